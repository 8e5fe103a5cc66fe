"""The flow of a piecewise-affine velocity in the plane: exact in every region, from one region to the next.

In a region the velocity is A p + c, and the flow is a matrix exponential. With w = A v, tr and det of A,

    p(t) = p + (t - det B(t)) v + b(t) w,    exp(t A) = (1 - det b(t)) I + (t + tr b(t) - det B(t)) A,    B' = b,

where b and B are entire functions of t, tr and det, summed as Taylor series to the last digit. A particle advances to
the edge of its region or by a step with |A| t <= 1, whichever comes first. Within such a step each edge function turns
at most once, so the first exit is found for certain; the time of it is polished to rounding.

The velocity is continuous, so the times of crossing do not enter the derivatives: the Jacobian is the product of the
exponentials, and the gradient with respect to the velocities at the nodes is the integral of the adjoint times the edge
functions, by Gauss-Legendre quadrature of order 8 on each piece. The backward pass follows the particles again and keeps
nothing per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab_regions import Regions, locate, regions

__all__ = ["MAX_PIECES", "flow", "pull_back", "velocity2d"]

# A particle under a wild theta may circle for ever; after so many pieces it stays where it is.
MAX_PIECES = 500

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
    """A stretch of motion within one region, (m,) each."""

    row: Tensor  # which theta
    region: Tensor
    x: Tensor
    y: Tensor
    field: _Field
    time: Tensor


def velocity2d(velocities: Tensor, points: Tensor, nx: int, ny: int) -> Tensor:
    """The velocity at points, (..., K, 2) at the nodes and (..., N, 2) -> (..., N, 2)."""
    region = regions(nx, ny, False, points.dtype, points.device)
    where = locate(points[..., 0].detach(), points[..., 1].detach(), nx, ny)
    functions = region.functions[where]  # (..., N, 3, 3)
    shares = (functions[..., :2] * points[..., None, :]).sum(-1) + functions[..., 2]
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    nodes = region.nodes[where].flatten(-2)[..., None].expand(*where.shape[:-1], -1, 2)
    return (padded.gather(-2, nodes).unflatten(-2, (-1, 3)) * shares[..., None]).sum(-2)


def flow(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool
) -> tuple[Tensor, Tensor]:
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
    carried = (one, zero, zero, one) if jacobian else ()
    end_x, end_y, carried = _walk(velocities, points.shape[1], x, y, nx, ny, closed, _grow if jacobian else None, carried)
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
    geometry = regions(nx, ny, closed, points.dtype, points.device)

    def gather(piece: Piece, carried: Carried) -> Carried:
        shares, carried = _adjoin(piece, carried, geometry)
        owners = geometry.nodes.index_select(0, piece.region) + (piece.row * nodes)[:, None]
        total.index_add_(0, owners.t().reshape(-1), shares)
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
    out = tuple(part.clone() for part in (x, y, *carried))
    who = torch.arange(x.numel(), device=x.device)
    row = who // size
    region = locate(x, y, nx, ny)
    left = torch.ones_like(x)
    for _ in range(MAX_PIECES):
        field = _Field(*table.index_select(1, row * count + region).unbind(0))
        time, edge, x_new, y_new = _advance(geometry, region, field, x, y, torch.minimum(left, field.step))
        if visit is not None:
            carried = visit(Piece(row, region, x, y, field, time), carried)
        left = left - time
        crossed = geometry.across.view(-1).index_select(0, region * 3 + edge.clamp(min=0))
        region = torch.where(edge >= 0, crossed, region)
        x, y = x_new, y_new
        done = left <= 0
        finished, going = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
        if len(finished):
            slots = who[finished]
            for target, part in zip(out, (x, y, *carried), strict=True):
                target[slots] = part[finished]
            who, row, region, left, x, y, *rest = (p[going] for p in (who, row, region, left, x, y, *carried))
            carried = tuple(rest)
        if not len(going):
            break
    else:
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
    columns = (a, b, c, d, e, f, a + d, a * d - b * c, 1 / norm.clamp(min=1e-6))
    return torch.stack([column.reshape(-1) for column in columns])


def _series(time: Tensor, trace: Tensor, det: Tensor) -> tuple[Tensor, Tensor]:
    """b(t) and B(t) of the module's docstring, for |A| t up to 1."""
    first, second = trace * time, det * time * time
    before, term = torch.ones_like(time), first
    low = torch.add(first / 6, 0.5)
    high = torch.add(first / 24, 1 / 6)
    for k in range(2, 14 if time.dtype == torch.float64 else 10):
        before, term = term, torch.addcmul(first * term, second, before, value=-1)
        low = torch.add(low, term, alpha=1 / math.factorial(k + 2))
        high = torch.add(high, term, alpha=1 / math.factorial(k + 3))
    square = time * time
    return square * low, square * time * high


def _step(field: _Field, x: Tensor, y: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Where a particle is after a time of at most `field.step` in a region."""
    low, high = _series(time, field.trace, field.det)
    vx, vy = field.at(x, y)
    wx, wy = field.turn(vx, vy)
    drift = torch.addcmul(time, field.det, high, value=-1)
    return (
        torch.addcmul(torch.addcmul(x, drift, vx), low, wx),
        torch.addcmul(torch.addcmul(y, drift, vy), low, wy),
    )


def _exponential(field: _Field, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The entries of exp(t A), row by row."""
    low, high = _series(time, field.trace, field.det)
    unit = 1 - field.det * low
    slope = torch.addcmul(torch.addcmul(time, field.trace, low), field.det, high, value=-1)
    return (
        torch.addcmul(unit, slope, field.a),
        slope * field.b,
        slope * field.c,
        torch.addcmul(unit, slope, field.d),
    )


def _advance(
    geometry: Regions, region: Tensor, field: _Field, x: Tensor, y: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Advance to the first edge, or by `limit`: the time, the edge or -1, and the new place."""
    tolerance = 16 * torch.finfo(x.dtype).eps
    functions = geometry.functions.index_select(0, region).permute(1, 2, 0)  # (3, 3, m)
    open_ = geometry.across.index_select(0, region).t() >= 0
    vx, vy = field.at(x, y)
    x_new, y_new = _step(field, x, y, limit)
    ux, uy = field.at(x_new, y_new)
    out = (_value(functions, x_new, y_new) < -tolerance) & open_
    # Out and back in again within the step: inwards at the end, outwards at the start.
    turning = (_slope(functions, vx, vy) < 0) & (_slope(functions, ux, uy) > 0) & ~out & open_
    edge = torch.full_like(region, -1)
    time = limit
    some = (out | turning).any(0).nonzero()[:, 0]
    if len(some):
        found, which, x_found, y_found = _exit(
            functions[..., some], out[:, some], turning[:, some], field.take(some), x[some], y[some], limit[some]
        )
        time = limit.index_copy(0, some, found)
        edge = edge.index_copy(0, some, which)
        x_new, y_new = x_new.index_copy(0, some, x_found), y_new.index_copy(0, some, y_found)
    return time, edge, x_new, y_new


def _value(functions: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(torch.addcmul(functions[:, 2], functions[:, 0], x), functions[:, 1], y)


def _slope(functions: Tensor, vx: Tensor, vy: Tensor) -> Tensor:
    return torch.addcmul(functions[:, 0] * vx, functions[:, 1], vy)


def _exit(
    functions: Tensor, out: Tensor, turning: Tensor, field: _Field, x: Tensor, y: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first exit of particles of which an edge function is negative, or may have been, by the time `limit`."""
    tolerance = 16 * torch.finfo(x.dtype).eps
    vx, vy = field.at(x, y)
    start, fall = _value(functions, x, y).clamp(min=0), _slope(functions, vx, vy)
    time, edge = limit, torch.full_like(limit, -1, dtype=torch.int64)
    x_new, y_new = _step(field, x, y, limit)
    if bool(turning.any()):
        lowest = _turning_time(functions, turning, field, x, y, limit)
    # An edge beside the first may be reached sooner than a guess says: look again, up to once per edge.
    for round_ in range(3):
        if round_ == 0 and bool(turning.any()):
            sides = torch.where(turning, lowest, limit)
        else:
            sides = time.expand_as(start)
        values = _values_at(functions, field, x, y, sides)
        bad = (values < -tolerance) & (out | turning)
        if not bool(bad.any()):
            break
        guess = _quadratic_root(start, fall, values, sides).masked_fill(~bad, math.inf)
        best, which = guess.min(0)
        better = bad.any(0)
        which = torch.where(better, which, edge.clamp(min=0))
        chosen = functions.gather(0, which.expand(1, 3, -1))[0]
        solved, x_solved, y_solved = _polish(chosen, field, x, y, torch.where(better, best, time), time)
        edge = torch.where(better, which, edge)
        time = torch.where(better, solved, time)
        x_new, y_new = torch.where(better, x_solved, x_new), torch.where(better, y_solved, y_new)
        out, turning = out | turning, torch.zeros_like(turning)
    return time, edge, x_new, y_new


def _values_at(functions: Tensor, field: _Field, x: Tensor, y: Tensor, times: Tensor) -> Tensor:
    """Each edge function at a time of its own, (3, m)."""
    px, py = _step(_Field(*(column.expand_as(times) for column in field)), x.expand_as(times), y.expand_as(times), times)
    return _value(functions, px, py)


def _turning_time(functions: Tensor, turning: Tensor, field: _Field, x: Tensor, y: Tensor, limit: Tensor) -> Tensor:
    """When an edge function that falls at first and rises at the end is lowest, (3, m)."""
    vx, vy = field.at(x, y)
    ux, uy = field.at(*_step(field, x, y, limit))
    fall, rise = _slope(functions, vx, vy), _slope(functions, ux, uy)
    time = torch.where(turning, limit * fall / (fall - rise), limit)
    wide = _Field(*(column.expand_as(time) for column in field))
    vx, vy = wide.at(*_step(wide, x.expand_as(time), y.expand_as(time), time))
    bend = _slope(functions, *wide.turn(vx, vy))
    time = time - torch.where(turning, _slope(functions, vx, vy) / bend, 0.0)
    return torch.minimum(time.clamp(min=0), limit).nan_to_num(nan=0.0)


def _quadratic_root(start: Tensor, fall: Tensor, end: Tensor, span: Tensor) -> Tensor:
    """When the parabola through a value and slope at 0 and a negative value at `span` falls to 0."""
    bend = (end - start - fall * span) / (span * span)
    root = (fall * fall - 4 * bend * start).clamp(min=0).sqrt()
    time = torch.where(fall > 0, (fall + root) / (-2 * bend), 2 * start / (root - fall))
    return torch.minimum(time.nan_to_num(nan=0.0).clamp(min=0), span)


def _polish(
    function: Tensor, field: _Field, x: Tensor, y: Tensor, guess: Tensor, latest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The time at which an edge function (3, m) is 0, from a good guess, and the place then."""
    time = guess
    for _ in range(3):
        px, py = _step(field, x, y, time)
        vx, vy = field.at(px, py)
        value = torch.addcmul(torch.addcmul(function[2], function[0], px), function[1], py)
        slope = torch.addcmul(function[0] * vx, function[1], vy)
        move = (value / slope).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        time = torch.minimum((time - move).clamp(min=0), latest)
    return time, *_step(field, x, y, time)


def _grow(piece: Piece, carried: Carried) -> Carried:
    """The Jacobian after a piece."""
    p, q, r, s = _exponential(piece.field, piece.time)
    a, b, c, d = carried
    return p * a + q * c, p * b + q * d, r * a + s * c, r * b + s * d


_GAUSS = ((0.06943184420297371, 0.17392742256872693), (0.33000947820757187, 0.32607257743127307))
_NODES = tuple((place, weight) for p, weight in _GAUSS for place in (p, 1 - p))


def _adjoin(piece: Piece, carried: Carried, geometry: Regions) -> tuple[Tensor, Carried]:
    """The gradient of a piece with respect to its three nodes, (3 * m, 2), and the adjoint after it."""
    field, (first, second) = piece.field, carried
    functions = geometry.functions.index_select(0, piece.region).permute(1, 2, 0)
    share_x = torch.zeros_like(functions[:, 0])
    share_y = torch.zeros_like(share_x)
    for place, weight in _NODES:
        time = piece.time * place
        one, two = _unwind(field, time, first, second)
        shares = _value(functions, *_step(field, piece.x, piece.y, time)) * (piece.time * weight)
        share_x += shares * one
        share_y += shares * two
    stacked = torch.stack([share_x.reshape(-1), share_y.reshape(-1)], dim=-1)
    return stacked, _unwind(field, piece.time, first, second)


def _unwind(field: _Field, time: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The adjoint after a time: exp(-t A) transposed, applied to it."""
    p, q, r, s = _exponential(field, time)
    det = torch.exp(-field.trace * time)
    return (s * first - r * second) * det, (p * second - q * first) * det
