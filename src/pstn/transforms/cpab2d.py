"""The flow of a piecewise-affine velocity in the plane: exact in every region, from one region to the next.

In a region the velocity is A p + c, and the flow is a matrix exponential. With w = A v, tr and det of A,

    p(t) = p + (t - det B(t)) v + b(t) w,    exp(t A) = (1 - det b(t)) I + (t + tr b(t) - det B(t)) A,    B' = b,

where b and B are entire functions of t, tr and det, summed as Taylor series to the last digit. A particle
advances to the edge of its region or by a step with |A| t <= 1/2, whichever comes first. Within such a step each
edge function turns at most once, which tells whether the particle was outside in between.

Tensors of particles have them along the last axis: x and y, or the three edges, are rows.

The velocity is continuous across an edge, so an error in the time of crossing enters the end point as its square, and
the derivatives of those times not at all: the Jacobian is the product of the exponentials, and the gradient with
respect to the velocities at the nodes is the integral of the adjoint times the edge functions, by Gauss-Legendre
quadrature on each piece. The backward pass follows the particles again and keeps nothing per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab_regions import Regions, locate, regions

__all__ = ["HUGE", "MAX_PIECES", "flow", "pull_back", "velocity2d"]

# A particle under a wild theta may circle for ever; after so many pieces it stays where it is.
MAX_PIECES = 500
# Derivatives under a wild theta are cut off here, past any use, so that they stay finite in float32.
HUGE = 1e15


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

    row: Tensor  # which theta
    region: Tensor
    functions: Tensor  # (9, m) the edge functions: three slopes along x, three along y, three constants
    field: _Field
    place: Tensor  # (2, m) at its start
    time: Tensor
    low: Tensor  # b(time)
    high: Tensor  # B(time)


def velocity2d(velocities: Tensor, points: Tensor, nx: int, ny: int) -> Tensor:
    """The velocity at points, (..., K, 2) at the nodes and (..., N, 2) -> (..., N, 2)."""
    region = regions(nx, ny, False, points.dtype, points.device)
    where = locate(points[..., 0].detach(), points[..., 1].detach(), nx, ny)
    functions = region.functions[where]  # (..., N, 3, 3)
    shares = (functions[..., :2] * points[..., None, :]).sum(-1) + functions[..., 2]
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    nodes = region.nodes[where].flatten(-2)[..., None].expand(*where.shape[:-1], -1, 2)
    return (padded.gather(-2, nodes).unflatten(-2, (-1, 3)) * shares[..., None]).sum(-2)


def flow(velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool) -> tuple[Tensor, Tensor]:
    """Move points for unit time.

    Args:
        velocities: (S, K, 2), at the nodes.
        points: (S, N, 2).
        nx: cells along x.
        ny: cells along y.
        closed: whether the velocity normal to the boundary is zero.
        jacobian: whether to return the Jacobian too.

    Returns:
        (S, N, 2), and d moved / d points (S, N, 4), row by row; empty if not asked for.
    """
    place = points.reshape(-1, 2).t().contiguous()
    out = torch.empty_like(place)
    if jacobian:
        matrix = out.new_tensor([[1.0, 0.0], [0.0, 1.0]])[..., None].repeat(1, 1, place.shape[1])
    else:
        matrix = out.new_empty(0, place.shape[1])
    end = torch.empty_like(matrix)
    _walk(velocities, place, nx, ny, closed, _grow if jacobian else None, matrix, (out, end))
    moved = out.t().contiguous().view(points.shape)
    if closed:  # a wall: rounding is not to move a particle off it or through it
        moved = torch.where(points.abs() >= 1, points, moved.clamp(-1, 1))
    matrix = end.flatten(0, 1).t().contiguous().view(*points.shape[:-1], 4) if jacobian else points.new_empty(0)
    return moved, matrix


def pull_back(adjoint: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool) -> Tensor:
    """The gradient with respect to the nodes' velocities, (S, K, 2).

    Args:
        adjoint: (S, N, 2), the gradient with respect to the points that the particles start from.
        velocities: as for `flow`.
        points: as for `flow`.
        nx: as for `flow`.
        ny: as for `flow`.
        closed: as for `flow`.
    """
    nodes = velocities.shape[1] + 1
    total = velocities.new_zeros(2, velocities.shape[0] * nodes)
    owners = regions(nx, ny, closed, points.dtype, points.device).nodes.t().contiguous()

    def gather(piece: Piece, carried: Tensor) -> Tensor:
        shares, carried = _adjoin(piece, carried)
        index = (owners.index_select(1, piece.region) + piece.row * nodes).view(-1)
        for axis in (0, 1):
            total[axis].index_add_(0, index, shares[axis].view(-1))
        return carried

    place, adjoint = (tensor.reshape(-1, 2).t().contiguous() for tensor in (points, adjoint))
    _walk(velocities, place, nx, ny, closed, gather, adjoint, ())
    return total.t().reshape(-1, nodes, 2)[:, :-1]


def _walk(
    velocities: Tensor,
    place: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    visit: Callable[[Piece, Tensor], Tensor] | None,
    carried: Tensor,
    out: tuple[Tensor, ...],
) -> None:
    """Take every particle from its place (2, m) through its pieces.

    `visit` sees each piece and may change what particles carry, (..., m). The place where a particle ends goes to the
    first tensor of `out`, if there is one, and what it carries then to the second.
    """
    geometry = regions(nx, ny, closed, place.dtype, place.device)
    table, count = _fields(velocities, geometry), len(geometry.nodes)
    shapes = geometry.functions.permute(2, 1, 0).reshape(9, count)
    across = geometry.across.t().contiguous()
    who = torch.arange(place.shape[1], device=place.device)
    row = who // max(1, place.shape[1] // max(1, len(velocities)))
    region = locate(place[0], place[1], nx, ny)
    left = torch.ones_like(place[0])
    for _ in range(MAX_PIECES):
        field = _Field.of(table, torch.add(region, row, alpha=count))
        functions, beyond = shapes.index_select(1, region), across.index_select(1, region)
        time, crossed, end, series = _advance(functions, beyond, field, place, torch.minimum(left, field.step), region)
        if visit is not None:
            carried = visit(Piece(row, region, functions, field, place, time, *series), carried)
        left, region, place = left - time, crossed, end
        going = (left > 0).nonzero()[:, 0]
        if len(going) < len(who):
            for target, part in zip(out, (place, carried), strict=False):
                target.index_copy_(-1, who, part)  # those that go on are written again
            state = (who, row, region, left, place, carried)
            who, row, region, left, place, carried = (part.index_select(-1, going) for part in state)
        if not len(going):
            break
    for target, part in zip(out, (place, carried), strict=False):
        target.index_copy_(-1, who, part)


def _fields(velocities: Tensor, geometry: Regions) -> Tensor:
    """The columns of `_Field` for every theta and region, (9, S * R)."""
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    corners = padded[:, geometry.nodes]  # (S, R, 3, 2)
    # Products and sums, not a matmul: TF32 and autocast would round velocities to a few bits.
    affine = (corners[..., :, None] * geometry.functions[..., None, :]).sum(-3)  # (S, R, 2, 3)
    (a, b, e), (c, d, f) = (affine[..., axis, :].unbind(-1) for axis in (0, 1))
    norm = torch.maximum(a.abs() + b.abs(), c.abs() + d.abs())
    columns = (a, c, b, d, e, f, a + d, a * d - b * c, 0.5 / norm.clamp(min=1e-6))
    return torch.stack([column.reshape(-1) for column in columns])


def _series(time: Tensor, field: _Field) -> tuple[Tensor, Tensor]:
    """b(t) and B(t) of the module's docstring, for |A| t up to 1/2."""
    before, square = field.trace * time, time * time
    low, high = (before * (1 / 6)).add_(0.5), (before * (1 / 24)).add_(1 / 6)
    first, second = before, field.det * square
    term = torch.addcmul(-second, first, first)
    low.add_(term, alpha=1 / 24)
    for k in range(3, 13 if time.dtype == torch.float64 else 7):  # of high one term fewer matters
        high.add_(term, alpha=1 / math.factorial(k + 2))
        before, term = term, torch.addcmul(first * term, second, before, value=-1)
        low.add_(term, alpha=1 / math.factorial(k + 2))
    return low.mul_(square), high.mul_(square).mul_(time)


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
    low, high = _series(limit, field)
    velocity = field.at(place)
    end = _move(field, place, velocity, limit, low, high)
    values = _value(functions, end)
    open_ = beyond >= 0
    out = (values < -16 * torch.finfo(place.dtype).eps) & open_
    fall, rise = _slope(functions, velocity), _slope(functions, field.at(end))
    # Outwards at the start and inwards at the end: it may have been out, and come back in.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    some = (out | turning).any(0).nonzero()[:, 0]
    if not len(some):
        return limit, region, end, (low, high)
    edges = _Edges(*(part.index_select(1, some) for part in (functions, out, turning, fall, rise, values)))
    field, place, latest = field.take(some), place.index_select(1, some), limit.index_select(0, some)
    time, edge, leaves = _exit(edges, field, place, latest)
    series = _series(time, field)
    following = beyond.index_select(1, some).gather(0, edge[None])[0]
    following = torch.where(leaves, following, region.index_select(0, some))
    new = (time, following, _step(field, place, time, *series), *series)
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


def _exit(edges: _Edges, field: _Field, place: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """When, through which edge, and whether particles leave; the time is `limit` for those that do not."""
    functions, out, turning, fall, rise, values = edges
    span = limit.expand(3, -1)
    edge, who = turning.nonzero(as_tuple=True)
    if len(who):
        start, end, own = fall[edge, who], rise[edge, who], field.take(who)
        lowest = limit.index_select(0, who) * start / (start - end)
        there = _step(own, place.index_select(1, who), lowest, *_series(lowest, own))
        deepest = _at_edge(functions, edge, who, there)
        span, values = span.contiguous().index_put((edge, who), lowest), values.index_put((edge, who), deepest)
        out = out.index_put((edge, who), deepest < -16 * torch.finfo(place.dtype).eps)
    guess, edge = _quadratic_root(_value(functions, place).clamp_(min=0), fall, values, span, out).min(0)
    guess, leaves = torch.minimum(guess, limit), out.any(0)
    shape = functions.view(3, 3, -1).gather(1, edge.expand(3, 1, -1))[:, 0]
    guess = torch.minimum(_polish(shape, field, place, guess), limit)
    return torch.where(leaves, guess, limit), edge, leaves


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


def _polish(shape: Tensor, field: _Field, place: Tensor, guess: Tensor) -> Tensor:
    """One step of Halley's method towards the time at which an edge function, (3, m), is 0."""
    place = _step(field, place, guess, *_series(guess, field))
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
_QUADRATURE = ((0.5 - math.sqrt(0.15), 5 / 18), (0.5, 8 / 18), (0.5 + math.sqrt(0.15), 5 / 18))


def _adjoin(piece: Piece, adjoint: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a piece with respect to its three nodes, (2, 3, m), and the adjoint (2, m) after it.

    Both the place and the adjoint are combinations of two fixed vectors with coefficients that depend on time, so that
    six integrals of scalars are all that is needed.
    """
    field, functions = piece.field, piece.functions
    still, drifted, bent = (torch.zeros_like(adjoint) for _ in range(3))  # of the adjoint, and of its image below
    for share, weight in _QUADRATURE:
        time = piece.time * share
        low, high = _series(time, field)
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
