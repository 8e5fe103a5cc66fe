"""The flow of a piecewise-affine velocity in the plane: exact in every region, from one region to the next.

In a region the velocity is A p + c, and the flow is a matrix exponential. With w = A v, tr and det of A,

    p(t) = p + (t - det B(t)) v + b(t) w,    exp(t A) = (1 - det b(t)) I + (t + tr b(t) - det B(t)) A,    B' = b,

where b and B are entire functions of t, tr and det, summed as Taylor series to the last digit. A particle advances to
the edge of its region or by a step with |A| t <= 1/2, whichever comes first. Within such a step each edge function
turns at most once, which tells whether the particle was outside in between.

The velocity is continuous across an edge, so an error in the time of crossing enters the end point as its square, and
the derivatives of those times not at all: the Jacobian is the product of the exponentials, and the gradient with
respect to the velocities at the nodes is the integral of the adjoint times the edge functions, by Gauss-Legendre
quadrature of order 6 on each piece. The backward pass follows the particles again and keeps nothing per step.
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

Carried = tuple[Tensor, ...]


class _Field(NamedTuple):
    """Rows of a table of affine velocities, one per particle, (m,) each: v = (a x + b y + e, c x + d y + f)."""

    a: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    e: Tensor
    f: Tensor
    trace: Tensor
    det: Tensor
    step: Tensor  # the longest time for the series

    def at(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (
            torch.addcmul(torch.addcmul(self.e, self.a, x), self.b, y),
            torch.addcmul(torch.addcmul(self.f, self.c, x), self.d, y),
        )

    def turn(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A applied to a vector."""
        return torch.addcmul(self.a * x, self.b, y), torch.addcmul(self.c * x, self.d, y)

    def take(self, index: Tensor) -> _Field:
        return _Field(*(column.index_select(0, index) for column in self))


class Piece(NamedTuple):
    """A stretch of motion within one region, (m,) each unless said otherwise."""

    row: Tensor  # which theta
    region: Tensor
    functions: Tensor  # (9, m) the edge functions: three slopes along x, three along y, three constants
    field: _Field
    x: Tensor
    y: Tensor
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
    x, y = points[..., 0].reshape(-1), points[..., 1].reshape(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    carried: Carried = (one, zero, zero, one) if jacobian else ()
    visit = _grow if jacobian else None
    end_x, end_y, carried = _walk(velocities, points.shape[1], x, y, nx, ny, closed, visit, carried)
    moved = torch.stack([end_x, end_y], dim=-1).view_as(points)
    if closed:  # a wall: rounding is not to move a particle off it or through it
        moved = torch.where(points.abs() >= 1, points, moved.clamp(-1, 1))
    if not jacobian:
        return moved, points.new_empty(0)
    return moved, torch.stack(carried, dim=-1).view(*points.shape[:-1], 4)


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
    total = velocities.new_zeros(velocities.shape[0] * nodes, 2)
    owners = regions(nx, ny, closed, points.dtype, points.device).nodes.t().contiguous()

    def gather(piece: Piece, carried: Carried) -> Carried:
        shares, carried = _adjoin(piece, carried)
        index = owners.index_select(1, piece.region) + piece.row * nodes
        total.index_add_(0, index.view(-1), shares)
        return carried

    x, y = points[..., 0].reshape(-1), points[..., 1].reshape(-1)
    carried = (adjoint[..., 0].reshape(-1), adjoint[..., 1].reshape(-1))
    _walk(velocities, points.shape[1], x, y, nx, ny, closed, gather, carried)
    return total.view(-1, nodes, 2)[:, :-1]


def _walk(
    velocities: Tensor,
    size: int,
    x: Tensor,
    y: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    visit: Callable[[Piece, Carried], Carried] | None,
    carried: Carried,
) -> tuple[Tensor, Tensor, Carried]:
    """Take every particle through its pieces; `visit` sees each piece and may change what particles carry."""
    geometry = regions(nx, ny, closed, x.dtype, x.device)
    table, count = _fields(velocities, geometry), len(geometry.nodes)
    shapes = geometry.functions.permute(2, 1, 0).reshape(9, count)
    across = geometry.across.t().contiguous()
    out = tuple(part.clone() for part in (x, y, *carried))
    who = torch.arange(x.numel(), device=x.device)
    row = who // size
    region = locate(x, y, nx, ny)
    left = torch.ones_like(x)
    for _ in range(MAX_PIECES):
        field = _Field(*table.index_select(1, torch.add(region, row, alpha=count)).unbind(0))
        functions, beyond = shapes.index_select(1, region), across.index_select(1, region)
        time, crossed, place, series = _advance(functions, beyond, field, x, y, torch.minimum(left, field.step))
        if visit is not None:
            carried = visit(Piece(row, region, functions, field, x, y, time, *series), carried)
        left, region, (x, y) = left - time, torch.where(crossed >= 0, crossed, region), place
        going = (left > 0).nonzero()[:, 0]
        if len(going) < len(who):
            for target, part in zip(out, (x, y, *carried), strict=True):
                target[who] = part  # those that go on are written again
            state = (who, row, region, left, x, y, *carried)
            who, row, region, left, x, y, *rest = (part.index_select(0, going) for part in state)
            carried = tuple(rest)
        if not len(going):
            break
    for target, part in zip(out, (x, y, *carried), strict=True):
        target[who] = part
    return out[0], out[1], out[2:]


def _fields(velocities: Tensor, geometry: Regions) -> Tensor:
    """The columns of `_Field` for every theta and region, (9, S * R)."""
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    corners = padded[:, geometry.nodes]  # (S, R, 3, 2)
    # Products and sums, not a matmul: TF32 and autocast would round velocities to a few bits.
    affine = (corners[..., :, None] * geometry.functions[..., None, :]).sum(-3)  # (S, R, 2, 3)
    (a, b, e), (c, d, f) = (affine[..., axis, :].unbind(-1) for axis in (0, 1))
    norm = torch.maximum(a.abs() + b.abs(), c.abs() + d.abs())
    columns = (a, b, c, d, e, f, a + d, a * d - b * c, 0.5 / norm.clamp(min=1e-6))
    return torch.stack([column.reshape(-1) for column in columns])


def _series(time: Tensor, trace: Tensor, det: Tensor) -> tuple[Tensor, Tensor]:
    """b(t) and B(t) of the module's docstring, for |A| t up to 1/2."""
    first, square = trace * time, time * time
    second = det * square
    before, term = torch.ones_like(time), first
    low = torch.add(first / 6, 0.5)
    high = torch.add(first / 24, 1 / 6)
    for k in range(2, 13 if time.dtype == torch.float64 else 7):
        before, term = term, torch.addcmul(first * term, second, before, value=-1)
        low = torch.add(low, term, alpha=1 / math.factorial(k + 2))
        high = torch.add(high, term, alpha=1 / math.factorial(k + 3))
    return square * low, square * time * high


def _step(field: _Field, x: Tensor, y: Tensor, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Where a particle is after a time in its region, given the series at that time."""
    vx, vy = field.at(x, y)
    return _move(field, x, y, vx, vy, time, low, high)


def _move(
    field: _Field, x: Tensor, y: Tensor, vx: Tensor, vy: Tensor, time: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """`_step`, given the velocity as well."""
    wx, wy = field.turn(vx, vy)
    drift = torch.addcmul(time, field.det, high, value=-1)
    return (
        torch.addcmul(torch.addcmul(x, drift, vx), low, wx),
        torch.addcmul(torch.addcmul(y, drift, vy), low, wy),
    )


def _exponential(field: _Field, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The entries of exp(t A), row by row."""
    unit = 1 - field.det * low
    slope = torch.addcmul(torch.addcmul(time, field.trace, low), field.det, high, value=-1)
    return (
        torch.addcmul(unit, slope, field.a),
        slope * field.b,
        slope * field.c,
        torch.addcmul(unit, slope, field.d),
    )


def _value(functions: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The edge functions at a place, (3, m)."""
    return torch.addcmul(torch.addcmul(functions[6:], functions[:3], x), functions[3:6], y)


def _slope(functions: Tensor, vx: Tensor, vy: Tensor) -> Tensor:
    """The edge functions' derivatives along a direction, (3, m)."""
    return torch.addcmul(functions[:3] * vx, functions[3:6], vy)


def _advance(
    functions: Tensor, beyond: Tensor, field: _Field, x: Tensor, y: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Advance to the first edge, or by `limit`: the time, the next region or -1, the new place, and the series."""
    low, high = _series(limit, field.trace, field.det)
    velocity = field.at(x, y)
    x_new, y_new = _move(field, x, y, *velocity, limit, low, high)
    values = _value(functions, x_new, y_new)
    open_ = beyond >= 0
    out = (values < -16 * torch.finfo(x.dtype).eps) & open_
    fall, rise = _slope(functions, *velocity), _slope(functions, *field.at(x_new, y_new))
    # Outwards at the start and inwards at the end: it may have been out, and come back in.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    crossed = torch.full_like(beyond[0], -1)
    some = (out | turning).any(0).nonzero()[:, 0]
    if not len(some):
        return limit, crossed, (x_new, y_new), (low, high)
    edges = _Edges(*(part[:, some] for part in (functions, out, turning, fall, rise, values)))
    field, x, y, latest = field.take(some), x[some], y[some], limit[some]
    time, edge, leaves = _exit(edges, field, x, y, latest)
    series = _series(time, field.trace, field.det)
    following = torch.where(leaves, beyond[:, some].gather(0, edge[None])[0], -1)
    new = (time, following, *_step(field, x, y, time, *series), *series)
    old = (limit, crossed, x_new, y_new, low, high)
    time, crossed, x_new, y_new, low, high = (o.index_copy(0, some, n) for o, n in zip(old, new, strict=True))
    return time, crossed, (x_new, y_new), (low, high)


class _Edges(NamedTuple):
    """The edge functions of particles that may leave, (3, m) each but for the functions themselves, (9, m)."""

    functions: Tensor
    out: Tensor  # below 0 at the end of the step
    turning: Tensor  # may have been below 0 in between
    fall: Tensor  # slope at the start
    rise: Tensor  # slope at the end
    values: Tensor  # value at the end


def _exit(edges: _Edges, field: _Field, x: Tensor, y: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """When, through which edge, and whether particles leave; the time is `limit` for those that do not."""
    functions, out, turning, fall, rise, values = edges
    span = limit.expand(3, -1)
    if bool(turning.any()):
        lowest = torch.where(turning, span * fall / (fall - rise), span)
        deepest = _value_at(functions, field, x, y, lowest)
        span, values = lowest, torch.where(turning, deepest, values)
        out = out | (turning & (deepest < -16 * torch.finfo(x.dtype).eps))
    start = _value(functions, x, y).clamp(min=0)
    guess, edge = _quadratic_root(start, fall, values, span).masked_fill(~out, math.inf).min(0)
    shape = functions.view(3, 3, -1).gather(1, edge.expand(3, 1, -1))[:, 0]
    leaves = out.any(0)
    return torch.where(leaves, _polish(shape, field, x, y, guess, limit), limit), edge, leaves


def _value_at(functions: Tensor, field: _Field, x: Tensor, y: Tensor, times: Tensor) -> Tensor:
    """Each edge function at a time of its own, (3, m)."""
    wide = _Field(*(column.expand_as(times) for column in field))
    return _value(functions, *_step(wide, x, y, times, *_series(times, wide.trace, wide.det)))


def _quadratic_root(start: Tensor, fall: Tensor, end: Tensor, span: Tensor) -> Tensor:
    """When the parabola through a value and slope at 0 and a negative value at `span` falls to 0."""
    bend = (end - start - fall * span) / (span * span)
    root = (fall * fall - 4 * bend * start).clamp(min=0).sqrt()
    time = torch.where(fall > 0, (fall + root) / (-2 * bend), 2 * start / (root - fall))
    return torch.minimum(time.nan_to_num(nan=0.0).clamp(min=0), span)


def _polish(shape: Tensor, field: _Field, x: Tensor, y: Tensor, guess: Tensor, latest: Tensor) -> Tensor:
    """One step of Halley's method towards the time at which an edge function, (3, m), is 0."""
    guess = torch.minimum(guess, latest)
    x, y = _step(field, x, y, guess, *_series(guess, field.trace, field.det))
    vx, vy = field.at(x, y)
    wx, wy = field.turn(vx, vy)
    value = torch.addcmul(torch.addcmul(shape[2], shape[0], x), shape[1], y)
    slope = torch.addcmul(shape[0] * vx, shape[1], vy)
    bend = torch.addcmul(shape[0] * wx, shape[1], wy)
    move = 2 * value * slope / (2 * slope * slope - value * bend)
    return torch.minimum((guess - move.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)).clamp(min=0), latest)


def _grow(piece: Piece, carried: Carried) -> Carried:
    """The Jacobian after a piece."""
    p, q, r, s = _exponential(piece.field, piece.time, piece.low, piece.high)
    a, b, c, d = carried
    grown = (
        torch.addcmul(p * a, q, c),
        torch.addcmul(p * b, q, d),
        torch.addcmul(r * a, s, c),
        torch.addcmul(r * b, s, d),
    )
    return tuple(entry.clamp(-HUGE, HUGE) for entry in grown)


# Places and weights of Gauss-Legendre quadrature on [0, 1].
_QUADRATURE = ((0.5 - math.sqrt(0.15), 5 / 18), (0.5, 8 / 18), (0.5 + math.sqrt(0.15), 5 / 18))


def _adjoin(piece: Piece, carried: Carried) -> tuple[Tensor, Carried]:
    """The gradient of a piece with respect to its three nodes, (3 * m, 2), and the adjoint after it.

    Both the place and the adjoint are combinations of two fixed vectors with coefficients that depend on time, so that
    six integrals of scalars are all that is needed.
    """
    field, functions, (first, second) = piece.field, piece.functions, carried
    zero = torch.zeros_like(piece.time)
    still, still_turned, drifted, drifted_turned, bent, bent_turned = (zero.clone() for _ in range(6))
    for place, weight in _QUADRATURE:
        time = piece.time * place
        low, high = _series(time, field.trace, field.det)
        drift, unit, turn = _coefficients(field, time, low, high)
        still.add_(unit, alpha=weight)
        still_turned.add_(turn, alpha=weight)
        drifted.addcmul_(unit, drift, value=weight)
        drifted_turned.addcmul_(turn, drift, value=weight)
        bent.addcmul_(unit, low, value=weight)
        bent_turned.addcmul_(turn, low, value=weight)
    # The adjugate of A, transposed, applied to the adjoint.
    one, two = field.d * first - field.c * second, field.a * second - field.b * first
    velocity = field.at(piece.x, piece.y)
    at_start = _value(functions, piece.x, piece.y) * piece.time
    along, across = _slope(functions, *velocity) * piece.time, _slope(functions, *field.turn(*velocity)) * piece.time
    shares = [
        at_start * torch.addcmul(still * own, still_turned, turned)
        + along * torch.addcmul(drifted * own, drifted_turned, turned)
        + across * torch.addcmul(bent * own, bent_turned, turned)
        for own, turned in ((first, one), (second, two))
    ]
    _, unit, turn = _coefficients(field, piece.time, piece.low, piece.high)
    after = (torch.addcmul(unit * own, turn, turned) for own, turned in ((first, one), (second, two)))
    stacked = torch.stack([share.view(-1) for share in shares], dim=-1)
    return stacked, tuple(adjoint.clamp(-HUGE, HUGE) for adjoint in after)


def _coefficients(field: _Field, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients of v in the place, and of the adjoint and its adjugate image in the adjoint, after a time."""
    drift = torch.addcmul(time, field.det, high, value=-1)
    shrink = torch.exp(field.trace * -time)
    unit = torch.addcmul(shrink, shrink * field.det, low, value=-1)
    return drift, unit, torch.addcmul(drift, field.trace, low) * shrink
