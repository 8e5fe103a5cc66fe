"""A step in the plane for torch's compiler: one loop over the particles, nothing stored in between.

Plain torch is fastest with few operations on large tensors, and with particles that leave their region separated from
those that stay. A compiler needs the opposite: the same arithmetic for every particle, one number each, (m,).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab import plane
from pstn.transforms.cpab.plane import Carried, StepResult, Tables, edge_tolerance, series

Pair = tuple[Tensor, Tensor]


class _Edge(NamedTuple):
    """One of the three functions that are positive inside the region."""

    along_x: Tensor
    along_y: Tensor
    constant: Tensor
    beyond: Tensor  # the region on its other side, or -1

    def value(self, position: Pair) -> Tensor:
        return self.along_x * position[0] + self.along_y * position[1] + self.constant

    def slope(self, direction: Pair) -> Tensor:
        return self.along_x * direction[0] + self.along_y * direction[1]

    def where(self, other: _Edge, condition: Tensor) -> _Edge:
        return _Edge(*(torch.where(condition, a, b) for a, b in zip(self, other, strict=True)))


class _Motion(NamedTuple):
    """A particle at the start of a step, and the velocity A p + c of its region."""

    columns: tuple[Pair, Pair]  # of A
    constant: Pair
    trace: Tensor
    det: Tensor
    position: Pair
    velocity: Pair
    acceleration: Pair  # A times the velocity

    def times(self, vector: Pair) -> Pair:
        (a, c), (b, d) = self.columns
        return a * vector[0] + b * vector[1], c * vector[0] + d * vector[1]

    def at(self, position: Pair) -> Pair:
        product = self.times(position)
        return product[0] + self.constant[0], product[1] + self.constant[1]

    def after(self, time: Tensor) -> tuple[Pair, Tensor, Tensor]:
        """The position after a time, and b and B then."""
        low, high = series(time, self.trace, self.det)
        drift = time - self.det * high
        state = zip(self.position, self.velocity, self.acceleration, strict=True)
        x, y = (p + drift * v + low * w for p, v, w in state)
        return (x, y), low, high


def take_step(
    tables: Tables, kind: Carried, row: Tensor, region: Tensor, remaining: Tensor, position: Tensor, carried: Tensor
) -> StepResult:
    """As `plane.take_step`."""
    count = tables.functions.shape[1]
    a, c, b, d, e, f = (column[region + row * count] for column in tables.fields[:6])
    # Computing these again is cheaper than looking them up.
    trace, det, longest = plane.derive(a, b, c, d)
    functions = [function[region] for function in tables.functions]
    # As floating-point numbers, exact up to 2**24: selecting among integers takes twice the time.
    across = tables.across.to(position.dtype)
    edges = [_Edge(functions[k], functions[3 + k], functions[6 + k], across[k][region]) for k in range(3)]
    still = _Motion(((a, c), (b, d)), (e, f), trace, det, (position[0], position[1]), (e, f), (e, f))
    velocity = still.at(still.position)
    motion = still._replace(velocity=velocity, acceleration=still.times(velocity))
    time, crossed = _find_exit(motion, edges, torch.minimum(remaining, longest), region)
    end, low, high = motion.after(time)
    grads = None
    # Here the rows of a matrix or of an adjoint are computed together, as in plain torch.
    first, second, constant = (torch.stack(pair) for pair in (*motion.columns, motion.constant))
    field = plane.Field(first, second, constant, trace, det, longest)
    if kind == "jacobian":
        carried = plane.update_jacobian(field, carried, time, low, high)
    elif kind == "adjoint":
        grads, carried = plane.update_adjoint(torch.stack(functions), field, position, carried, time, low, high)
    return crossed, remaining - time, torch.stack(end), carried, grads


def _find_exit(motion: _Motion, edges: list[_Edge], limit: Tensor, region: Tensor) -> tuple[Tensor, Tensor]:
    """When the step ends, at the first edge or after `limit`, and the region then."""
    end, _, _ = motion.after(limit)
    arrival = motion.at(end)
    times = [_crossing_time(motion, edge, limit, end, arrival) for edge in edges]
    guess, first = times[0], edges[0]
    for time, edge in zip(times[1:], edges[1:], strict=True):
        first = edge.where(first, time < guess)
        guess = torch.minimum(guess, time)
    leaves = guess < math.inf
    guess = torch.minimum(guess, limit)
    there, _, _ = motion.after(guess)
    velocity = motion.at(there)
    bend = motion.times(velocity)
    time = torch.minimum((guess + _refinement(first, there, velocity, bend)).clamp(min=0), limit)
    # As `plane._stop_earlier`.
    there, velocity = _at_nearby_time(motion, there, velocity, bend, guess, time)
    passed, deepest = first, torch.full_like(limit, edge_tolerance(limit.dtype))
    for crossing, edge in zip(times, edges, strict=True):
        value = edge.value(there)
        deeper = (crossing < math.inf) & (value < deepest)
        passed, deepest = edge.where(passed, deeper), torch.where(deeper, value, deepest)
    early = torch.minimum((time + _refinement(passed, there, velocity, bend)).clamp(min=0), time)
    time = torch.where(deepest < edge_tolerance(limit.dtype), early, time)
    return torch.where(leaves, time, limit), torch.where(leaves, passed.beyond.long(), region)


def _at_nearby_time(
    motion: _Motion, there: Pair, velocity: Pair, bend: Pair, now: Tensor, later: Tensor
) -> tuple[Pair, Pair]:
    """Position and velocity at a time close to one at which they, and the acceleration, are known."""
    if later.dtype == torch.float64:
        there, _, _ = motion.after(later)
        return there, motion.at(there)
    # In float32 a second-order expansion gives all digits, for a fraction of the work.
    (x, y), (u, v), (a, b), more = there, velocity, bend, later - now
    return (x + more * (u + more / 2 * a), y + more * (v + more / 2 * b)), (u + more * a, v + more * b)


def _refinement(edge: _Edge, there: Pair, velocity: Pair, bend: Pair) -> Tensor:
    """One step of Halley's method towards the time at which an edge is crossed, relative to now."""
    value, slope = edge.value(there), edge.slope(velocity)
    move = 2 * value * slope / (2 * slope * slope - value * edge.slope(bend))
    return torch.where(move.abs() < math.inf, -move, 0.0)  # nor if NaN


def _crossing_time(motion: _Motion, edge: _Edge, limit: Tensor, end: Pair, arrival: Pair) -> Tensor:
    """A guess of when an edge is crossed, infinite if it is not, given position and velocity after `limit`."""
    tolerance = edge_tolerance(limit.dtype)
    last, fall, rise, open_ = edge.value(end), edge.slope(motion.velocity), edge.slope(arrival), edge.beyond >= 0
    out = (last < tolerance) & open_
    # Outwards at the start and inwards at the end: it may have been outside in between.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    begin = edge.value(motion.position)
    span = torch.where(turning, limit * plane.cubic_minimum(last - begin, limit * fall, limit * rise), limit)
    deepest = edge.value(motion.after(span)[0])
    last, out = torch.where(turning, deepest, last), torch.where(turning, deepest < tolerance, out)
    return plane.quadratic_root(begin.clamp(min=0), fall, last, span, out)
