"""A step of `plane_flow`'s walk in plain torch: each particle to the edge of its region, or as far as the series reach.

Tensors of particles have them along the last axis: x and y, or the three edges, are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "HUGE",
    "QUADRATURE",
    "Step",
    "StepResult",
    "Tables",
    "Visit",
    "derive",
    "edge_tolerance",
    "lowest_point",
    "series",
    "take_step",
]

# Derivatives under a wild theta are cut off here, past any use, so that they stay finite in float32.
HUGE = 1e15
# What particles carry through a step: nothing, the Jacobian so far, or the adjoint.
Visit = Literal["move", "grow", "adjoin"]
# Region, time left, place and what is carried after a step; and the gradient (2, 3, m) for its nodes, of an adjoint.
StepResult = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


class Tables(NamedTuple):
    """What a walk looks up."""

    fields: Tensor  # (9, S * R) the columns of `_Field`, for every theta and region
    functions: Tensor  # (9, R) the edge functions: three slopes along x, three along y, three constants
    across: Tensor  # (3, R) the region beyond each edge, or -1


Step = Callable[[Tables, Visit, Tensor, Tensor, Tensor, Tensor, Tensor], StepResult]


class _Field(NamedTuple):
    """Affine velocities, one per particle: v = first x + second y + constant, so that A = [first | second]."""

    first: Tensor  # (2, m)
    second: Tensor  # (2, m)
    constant: Tensor  # (2, m)
    trace: Tensor  # (m,)
    det: Tensor  # (m,)
    step: Tensor  # (m,) the longest time for the series

    @classmethod
    def of(cls, table: Tensor, index: Tensor) -> _Field:
        """Columns of a table (9, ...) of such rows."""
        columns = table.index_select(1, index)
        return cls(columns[:2], columns[2:4], columns[4:6], *columns[6:].unbind(0))

    def at(self, place: Tensor) -> Tensor:
        return torch.addcmul(torch.addcmul(self.constant, self.first, place[0]), self.second, place[1])

    def turn(self, vector: Tensor) -> Tensor:
        """A applied to a vector."""
        return torch.addcmul(self.first * vector[0], self.second, vector[1])

    def take(self, index: Tensor) -> _Field:
        return _Field(*(column.index_select(-1, index) for column in self))


class Piece(NamedTuple):
    """A stretch of motion within one region, (m,) each unless said otherwise."""

    functions: Tensor  # (9, m)
    field: _Field
    place: Tensor  # (2, m) at its start
    time: Tensor
    low: Tensor  # b(time)
    high: Tensor  # B(time)


def take_step(
    tables: Tables, visit: Visit, row: Tensor, region: Tensor, left: Tensor, place: Tensor, carried: Tensor
) -> StepResult:
    """Take each particle to the edge of its region, or as far as the series reach.

    Args:
        tables: what to look up.
        visit: what to do with what is carried.
        row: (m,), which theta.
        region: (m,).
        left: (m,), how much time is left.
        place: (2, m).
        carried: (2, 2, m), the Jacobian; (2, m), the adjoint; or anything.
    """
    field = _Field.of(tables.fields, torch.add(region, row, alpha=tables.functions.shape[1]))
    functions, beyond = tables.functions.index_select(1, region), tables.across.index_select(1, region)
    time, crossed, end, (low, high) = _advance(functions, beyond, field, place, torch.minimum(left, field.step), region)
    piece = Piece(functions, field, place, time, low, high)
    shares = None
    if visit == "grow":
        carried = _grow(piece, carried)
    elif visit == "adjoin":
        shares, carried = _adjoin(piece, carried)
    return crossed, left - time, end, carried, shares


def derive(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Trace and determinant of A = [[a, b], [c, d]], and the longest time for the series, |A| t = 1/2."""
    norm = torch.maximum(a.abs() + b.abs(), c.abs() + d.abs())
    return a + d, a * d - b * c, 0.5 / norm.clamp(min=1e-6)


def edge_tolerance(dtype: torch.dtype) -> float:
    """Below this an edge function says that a particle is outside."""
    return -16 * torch.finfo(dtype).eps


def series(time: Tensor, trace: Tensor, det: Tensor) -> tuple[Tensor, Tensor]:
    """b(t) and B(t) of the module's docstring, for |A| t up to 1/2."""
    before, square = trace * time, time * time
    low, high = (before * (1 / 6)).add_(0.5), (before * (1 / 24)).add_(1 / 6)
    first, second = before, det * square
    term = torch.addcmul(-second, first, first)
    low.add_(term, alpha=1 / 24)
    for k in range(3, 13 if time.dtype == torch.float64 else 7):  # of high one term fewer matters
        high.add_(term, alpha=1 / math.factorial(k + 2))
        before, term = term, torch.addcmul(first * term, second, before, value=-1)
        low.add_(term, alpha=1 / math.factorial(k + 2))
    return low.mul_(square), high.mul_(square).mul_(time)


def lowest_point(gain: Tensor, fall: Tensor, rise: Tensor) -> Tensor:
    """Where on [0, 1] a cubic is lowest that changes by `gain`, with slopes `fall` < 0 at 0 and `rise` > 0 at 1.

    A parabola through the slopes alone would be too far off: an edge crossed for a moment would be missed.
    """
    half = 3 * gain - 2 * fall - rise
    root = (half * half - 3 * fall * (fall + rise - 2 * gain)).clamp(min=0).sqrt()
    return -fall / (half + root)


def _step(field: _Field, place: Tensor, time: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where a particle is after a time in its region, given the series at that time."""
    return _move(field, place, field.at(place), time, low, high)


def _move(field: _Field, place: Tensor, velocity: Tensor, time: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`_step`, given the velocity as well."""
    drift = torch.addcmul(time, field.det, high, value=-1)
    return torch.addcmul(torch.addcmul(place, drift, velocity), low, field.turn(velocity))


def _value(functions: Tensor, place: Tensor) -> Tensor:
    """The edge functions at a place, (3, m)."""
    return torch.addcmul(torch.addcmul(functions[6:], functions[:3], place[0]), functions[3:6], place[1])


def _slope(functions: Tensor, direction: Tensor) -> Tensor:
    """The edge functions' derivatives along a direction, (3, m)."""
    return torch.addcmul(functions[:3] * direction[0], functions[3:6], direction[1])


def _advance(
    functions: Tensor, beyond: Tensor, field: _Field, place: Tensor, limit: Tensor, region: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Advance to the first edge, or by `limit`: the time, the region and the place then, and the series."""
    low, high = series(limit, field.trace, field.det)
    velocity = field.at(place)
    end = _move(field, place, velocity, limit, low, high)
    values = _value(functions, end)
    open_ = beyond >= 0
    out = (values < edge_tolerance(place.dtype)) & open_
    fall, rise = _slope(functions, velocity), _slope(functions, field.at(end))
    # Outwards at the start and inwards at the end: it may have been out, and come back in.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    some = (out | turning).any(0).nonzero()[:, 0]
    if not len(some):
        return limit, region, end, (low, high)
    edges = _Edges(*(part.index_select(1, some) for part in (functions, out, turning, fall, rise, values)))
    field, place, latest = field.take(some), place.index_select(1, some), limit.index_select(0, some)
    (time, edge, there, sums), leaves = _exit(edges, field, place, latest)
    following = beyond.index_select(1, some).gather(0, edge[None])[0]
    following = torch.where(leaves, following, region.index_select(0, some))
    new = (time, following, there, *sums)
    old = (limit, region, end, low, high)
    time, region, end, low, high = (o.index_copy(-1, some, n) for o, n in zip(old, new, strict=True))
    return time, region, end, (low, high)


class _Edges(NamedTuple):
    """The edge functions of particles that may leave, (3, m) each but for the functions themselves, (9, m)."""

    functions: Tensor
    out: Tensor  # below 0 at the end of the step
    turning: Tensor  # may have been below 0 in between
    fall: Tensor  # slope at the start
    rise: Tensor  # slope at the end
    values: Tensor  # value at the end


# When and at which edge particles stop, the place then, and the series.
Stop = tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]


def _exit(edges: _Edges, field: _Field, place: Tensor, limit: Tensor) -> tuple[Stop, Tensor]:
    """Where particles stop, and whether they leave; the time is `limit` for those that do not."""
    functions, out, turning, fall, rise, values = edges
    span = limit.expand(3, -1)
    edge, who = turning.nonzero(as_tuple=True)
    if len(who):
        own, latest = field.take(who), limit.index_select(0, who)
        gain = values[edge, who] - _at_edge(functions, edge, who, place.index_select(1, who))
        lowest = latest * lowest_point(gain, latest * fall[edge, who], latest * rise[edge, who])
        there = _step(own, place.index_select(1, who), lowest, *series(lowest, own.trace, own.det))
        deepest = _at_edge(functions, edge, who, there)
        span, values = span.contiguous().index_put((edge, who), lowest), values.index_put((edge, who), deepest)
        out = out.index_put((edge, who), deepest < edge_tolerance(place.dtype))
    guess, edge = _quadratic_root(_value(functions, place).clamp_(min=0), fall, values, span, out).min(0)
    leaves = out.any(0)
    time = _polish(functions, edge, field, place, torch.minimum(guess, limit))
    time = torch.where(leaves, torch.minimum(time, limit), limit)
    sums = series(time, field.trace, field.det)
    stop = (time, edge, _step(field, place, time, *sums), sums)
    return _turn_back(functions, out, field, place, stop), leaves


def _turn_back(functions: Tensor, out: Tensor, field: _Field, place: Tensor, stop: Stop) -> Stop:
    """Stop particles at an edge that they have passed already: near a corner the parabolas may tell the wrong one."""
    time, edge, there, sums = stop
    deepest, passed = _value(functions, there).masked_fill_(~out, 0).min(0)
    some = (deepest < edge_tolerance(place.dtype)).nonzero()[:, 0]
    if not len(some):
        return stop
    functions, field, place = functions.index_select(1, some), field.take(some), place.index_select(1, some)
    late, passed = time.index_select(0, some), passed.index_select(0, some)
    early = torch.minimum(_polish(functions, passed, field, place, late), late)
    low, high = series(early, field.trace, field.det)
    new = (early, passed, _step(field, place, early, low, high), low, high)
    old = (time, edge, there, *sums)
    time, edge, there, low, high = (o.index_copy(-1, some, n) for o, n in zip(old, new, strict=True))
    return time, edge, there, (low, high)


def _at_edge(functions: Tensor, edge: Tensor, who: Tensor, place: Tensor) -> Tensor:
    """One edge function each of some particles, at a place (2, k) of theirs."""
    along_x, along_y, constant = functions.view(3, 3, -1)[:, edge, who].unbind(0)
    return torch.addcmul(torch.addcmul(constant, along_x, place[0]), along_y, place[1])


def _quadratic_root(start: Tensor, fall: Tensor, end: Tensor, span: Tensor, out: Tensor) -> Tensor:
    """When the parabola through a value and slope at 0 and a negative value at `span` falls to 0, if it is `out`."""
    bend = (end - start - fall * span) / (span * span)
    root = (fall * fall - 4 * bend * start).clamp_(min=0).sqrt_()
    time = torch.where(fall > 0, (fall + root) / (-2 * bend), 2 * start / (root - fall))
    return torch.minimum(time.nan_to_num_(nan=0.0).clamp_(min=0), span).masked_fill_(~out, math.inf)


def _polish(functions: Tensor, edge: Tensor, field: _Field, place: Tensor, guess: Tensor) -> Tensor:
    """One step of Halley's method towards the time at which an edge function, one each, is 0."""
    shape = functions.view(3, 3, -1).gather(1, edge.expand(3, 1, -1))[:, 0]
    place = _step(field, place, guess, *series(guess, field.trace, field.det))
    velocity = field.at(place)
    turned = field.turn(velocity)
    value = torch.addcmul(torch.addcmul(shape[2], shape[0], place[0]), shape[1], place[1])
    slope = torch.addcmul(shape[0] * velocity[0], shape[1], velocity[1])
    bend = torch.addcmul(shape[0] * turned[0], shape[1], turned[1])
    move = 2 * value * slope / (2 * slope * slope - value * bend)
    return (guess - move.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)).clamp(min=0)


def _grow(piece: Piece, matrix: Tensor) -> Tensor:
    """The Jacobian (2, 2, m) after a piece: exp(t A) times the one before."""
    field, time, low, high = piece.field, piece.time, piece.low, piece.high
    unit = torch.addcmul(torch.ones_like(low), field.det, low, value=-1)
    slope = torch.addcmul(torch.addcmul(time, field.trace, low), field.det, high, value=-1)
    turned = torch.addcmul(field.first[:, None] * matrix[0], field.second[:, None], matrix[1])
    return torch.addcmul(unit * matrix, slope, turned).clamp_(-HUGE, HUGE)


# Places and weights of Gauss-Legendre quadrature on [0, 1].
QUADRATURE = ((0.5 - math.sqrt(0.15), 5 / 18), (0.5, 8 / 18), (0.5 + math.sqrt(0.15), 5 / 18))


def _adjoin(piece: Piece, adjoint: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a piece with respect to its three nodes, (2, 3, m), and the adjoint (2, m) after it.

    Both the place and the adjoint are combinations of two fixed vectors with coefficients that depend on time, so that
    six integrals of scalars are all that is needed.
    """
    field, functions = piece.field, piece.functions
    still, drifted, bent = (torch.zeros_like(adjoint) for _ in range(3))  # of the adjoint, and of its image below
    for share, weight in QUADRATURE:
        time = piece.time * share
        low, high = series(time, field.trace, field.det)
        drift, unit_and_turn = _coefficients(field, time, low, high)
        still.add_(unit_and_turn, alpha=weight)
        drifted.addcmul_(unit_and_turn, drift, value=weight)
        bent.addcmul_(unit_and_turn, low, value=weight)
    # The adjugate of A, transposed, applied to the adjoint: the trace times it, less A transposed.
    turned = field.trace * adjoint - torch.stack([(field.first * adjoint).sum(0), (field.second * adjoint).sum(0)])
    velocity = field.at(piece.place)
    values = (
        _value(functions, piece.place),
        _slope(functions, velocity),
        _slope(functions, field.turn(velocity)),
    )
    shares: Tensor | None = None
    for value, (unit, turn) in zip(values, (still, drifted, bent), strict=True):
        mixed = torch.addcmul(unit * adjoint, turn, turned)[:, None]  # (2, 1, m)
        value = value * piece.time
        shares = mixed * value if shares is None else shares.addcmul_(mixed, value)
    assert shares is not None
    _, (unit, turn) = _coefficients(field, piece.time, piece.low, piece.high)
    return shares, torch.addcmul(unit * adjoint, turn, turned).clamp_(-HUGE, HUGE)


def _coefficients(field: _Field, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficient of v in the place after a time, and (2, m) of the adjoint and its image in the adjoint then."""
    drift = torch.addcmul(time, field.det, high, value=-1)
    shrink = torch.exp(field.trace * -time)
    unit = torch.addcmul(torch.ones_like(low), field.det, low, value=-1)
    return drift, torch.stack([unit, torch.addcmul(drift, field.trace, low)]).mul_(shrink)
