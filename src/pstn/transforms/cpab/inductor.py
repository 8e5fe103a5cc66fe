"""A step of `plane_flow`'s walk, for torch's compiler: one loop over the particles, nothing stored in between.

Plain torch is fastest with few operations on large tensors, and with particles that leave their region taken apart from
those that stay. A compiler wants the opposite: the same arithmetic for every particle, one number each, (m,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab.plane import (
    HUGE,
    QUADRATURE,
    StepResult,
    Tables,
    Visit,
    derive,
    edge_tolerance,
    lowest_point,
    series,
    take_step,
)

__all__ = ["compiled_step"]

Pair = tuple[Tensor, Tensor]
# The last few particles of a walk are quicker without; and for 0 and 1 of them the compiler would start again.
_WORTH_A_CALL = 64


@cache
def compiled_step() -> Callable[..., StepResult]:
    """`plane.take_step`, compiled on its first call for each kind of visit and dtype."""
    # Without fullgraph=True a function of which torch has compiled too many kinds runs as it is, instead of raising.
    compiled = torch.compile(_take_step, dynamic=True)

    def step(tables: Tables, visit: Visit, row: Tensor, *state: Tensor) -> StepResult:
        return (compiled if row.shape[0] >= _WORTH_A_CALL else take_step)(tables, visit, row, *state)

    return step


class _Edge(NamedTuple):
    """One of the three functions that are positive inside the region."""

    along_x: Tensor
    along_y: Tensor
    constant: Tensor
    beyond: Tensor  # the region on its other side, or -1

    def value(self, place: Pair) -> Tensor:
        return self.along_x * place[0] + self.along_y * place[1] + self.constant

    def slope(self, direction: Pair) -> Tensor:
        return self.along_x * direction[0] + self.along_y * direction[1]

    def or_else(self, other: _Edge, condition: Tensor) -> _Edge:
        return _Edge(*(torch.where(condition, a, b) for a, b in zip(self, other, strict=True)))


class _Motion(NamedTuple):
    """A particle at the start of its step, and the velocity A p + c of its region."""

    columns: tuple[Pair, Pair]  # of A
    constant: Pair
    trace: Tensor
    det: Tensor
    place: Pair
    velocity: Pair
    turned: Pair  # A times the velocity

    def turn(self, vector: Pair) -> Pair:
        (a, c), (b, d) = self.columns
        return a * vector[0] + b * vector[1], c * vector[0] + d * vector[1]

    def at(self, place: Pair) -> Pair:
        turned = self.turn(place)
        return turned[0] + self.constant[0], turned[1] + self.constant[1]

    def after(self, time: Tensor) -> tuple[Pair, Tensor, Tensor]:
        """The place after a time, and b and B then."""
        low, high = series(time, self.trace, self.det)
        drift = time - self.det * high
        x, y = (p + drift * v + low * w for p, v, w in zip(self.place, self.velocity, self.turned, strict=True))
        return (x, y), low, high


def _take_step(
    tables: Tables, visit: Visit, row: Tensor, region: Tensor, left: Tensor, place: Tensor, carried: Tensor
) -> StepResult:
    count = tables.functions.shape[1]
    a, c, b, d, e, f = (column[region + row * count] for column in tables.fields[:6])
    # To work these out again is cheaper than to look them up.
    trace, det, longest = derive(a, b, c, d)
    functions = [function[region] for function in tables.functions]
    # As numbers of the places' own kind, exact up to 2**24: to choose among whole numbers takes twice the work.
    across = tables.across.to(place.dtype)
    edges = [_Edge(functions[k], functions[3 + k], functions[6 + k], across[k][region]) for k in range(3)]
    still = _Motion(((a, c), (b, d)), (e, f), trace, det, (place[0], place[1]), (e, f), (e, f))
    velocity = still.at(still.place)
    motion = still._replace(velocity=velocity, turned=still.turn(velocity))
    time, crossed = _leave(motion, edges, torch.minimum(left, longest), region)
    end, low, high = motion.after(time)
    shares = None
    if visit == "grow":
        carried = _grow(motion, carried, time, low, high)
    elif visit == "adjoin":
        shares = _share(motion, edges, carried, time)
        carried = torch.stack(_adjoint_after(motion, (carried[0], carried[1]), time, low, high)).clamp(-HUGE, HUGE)
    return crossed, left - time, torch.stack(end), carried, shares


def _leave(motion: _Motion, edges: list[_Edge], limit: Tensor, region: Tensor) -> tuple[Tensor, Tensor]:
    """When the step ends, at the first edge or at `limit`, and the region then."""
    end, _, _ = motion.after(limit)
    arrival = motion.at(end)
    times = [_meet(motion, edge, limit, end, arrival) for edge in edges]
    guess, first = times[0], edges[0]
    for time, edge in zip(times[1:], edges[1:], strict=True):
        first = edge.or_else(first, time < guess)
        guess = torch.minimum(guess, time)
    leaves = guess < math.inf
    guess = torch.minimum(guess, limit)
    there, _, _ = motion.after(guess)
    pace = motion.at(there)
    bend = motion.turn(pace)
    time = torch.minimum((guess + _towards(first, there, pace, bend)).clamp(min=0), limit)
    # As `plane._turn_back`.
    there, pace = _a_little_later(motion, there, pace, bend, guess, time)
    passed, deepest = first, torch.full_like(limit, edge_tolerance(limit.dtype))
    for met, edge in zip(times, edges, strict=True):
        value = edge.value(there)
        deeper = (met < math.inf) & (value < deepest)
        passed, deepest = edge.or_else(passed, deeper), torch.where(deeper, value, deepest)
    early = torch.minimum((time + _towards(passed, there, pace, bend)).clamp(min=0), time)
    time = torch.where(deepest < edge_tolerance(limit.dtype), early, time)
    return torch.where(leaves, time, limit), torch.where(leaves, passed.beyond.long(), region)


def _a_little_later(
    motion: _Motion, there: Pair, pace: Pair, bend: Pair, now: Tensor, later: Tensor
) -> tuple[Pair, Pair]:
    """Place and velocity at a time near another at which they, and A times the velocity, are known."""
    if later.dtype == torch.float64:
        there, _, _ = motion.after(later)
        return there, motion.at(there)
    # In float32 the velocity and its change tell all digits, for a fraction of the work.
    (x, y), (u, v), (a, b), more = there, pace, bend, later - now
    return (x + more * (u + more / 2 * a), y + more * (v + more / 2 * b)), (u + more * a, v + more * b)


def _towards(edge: _Edge, there: Pair, pace: Pair, bend: Pair) -> Tensor:
    """One step of Halley's method towards the time at which an edge is met: how much later than now."""
    value, slope = edge.value(there), edge.slope(pace)
    move = 2 * value * slope / (2 * slope * slope - value * edge.slope(bend))
    return torch.where(move.abs() < math.inf, -move, 0.0)  # nor NaN


def _meet(motion: _Motion, edge: _Edge, limit: Tensor, end: Pair, arrival: Pair) -> Tensor:
    """Roughly when an edge is met, infinite if it is not, given the place and the velocity after `limit`."""
    tolerance = edge_tolerance(limit.dtype)
    last, fall, rise, open_ = edge.value(end), edge.slope(motion.velocity), edge.slope(arrival), edge.beyond >= 0
    out = (last < tolerance) & open_
    # Outwards at the start and inwards at the end: it may have been out, and come back in.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    begin = edge.value(motion.place)
    span = torch.where(turning, limit * lowest_point(last - begin, limit * fall, limit * rise), limit)
    deepest = edge.value(motion.after(span)[0])
    last, out = torch.where(turning, deepest, last), torch.where(turning, deepest < tolerance, out)
    # The parabola through value and slope at the start, and the last value.
    start = begin.clamp(min=0)
    bend = (last - start - fall * span) / (span * span)
    root = (fall * fall - 4 * bend * start).clamp(min=0).sqrt()
    time = torch.where(fall > 0, (fall + root) / (-2 * bend), 2 * start / (root - fall))
    time = torch.minimum(torch.where(time.isnan(), 0.0, time).clamp(min=0), span)
    return torch.where(out, time, math.inf)


def _grow(motion: _Motion, matrix: Tensor, time: Tensor, low: Tensor, high: Tensor) -> Tensor:
    unit = 1 - motion.det * low
    slope = time + motion.trace * low - motion.det * high
    columns = []
    for k in range(2):
        column = (matrix[0, k], matrix[1, k])
        turned = motion.turn(column)
        columns.append(torch.stack([unit * c + slope * t for c, t in zip(column, turned, strict=True)]))
    return torch.stack(columns, dim=1).clamp(-HUGE, HUGE)


def _coefficients(motion: _Motion, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Pair]:
    """As `plane._coefficients`: of v in the place, and of the adjoint and its image in the adjoint."""
    drift = time - motion.det * high
    shrink = torch.exp(motion.trace * -time)
    return drift, ((1 - motion.det * low) * shrink, (drift + motion.trace * low) * shrink)


def _image(motion: _Motion, adjoint: Pair) -> Pair:
    """The adjugate of A, transposed, applied to the adjoint."""
    (a, c), (b, d) = motion.columns
    x, y = adjoint
    return d * x - c * y, a * y - b * x


def _adjoint_after(motion: _Motion, adjoint: Pair, time: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
    _, (unit, turn) = _coefficients(motion, time, low, high)
    return [unit * own + turn * other for own, other in zip(adjoint, _image(motion, adjoint), strict=True)]


def _share(motion: _Motion, edges: list[_Edge], carried: Tensor, time: Tensor) -> Tensor:
    """The gradient of the step with respect to the three nodes of its region, (2, 3, m); see `plane._adjoin`."""
    adjoint = (carried[0], carried[1])
    integrals = [[torch.zeros_like(time), torch.zeros_like(time)] for _ in range(3)]
    for share, weight in QUADRATURE:
        part = time * share
        low, high = series(part, motion.trace, motion.det)
        drift, coefficients = _coefficients(motion, part, low, high)
        for integral, factor in zip(integrals, (torch.ones_like(low), drift, low), strict=True):
            for k, coefficient in enumerate(coefficients):
                integral[k] = integral[k] + weight * coefficient * factor
    rows = []
    for own, other in zip(adjoint, _image(motion, adjoint), strict=True):
        mixed = [(unit * own + turn * other) * time for unit, turn in integrals]
        by_edge = [
            mixed[0] * edge.value(motion.place)
            + mixed[1] * edge.slope(motion.velocity)
            + mixed[2] * edge.slope(motion.turned)
            for edge in edges
        ]
        rows.append(torch.stack(by_edge))
    return torch.stack(rows)
