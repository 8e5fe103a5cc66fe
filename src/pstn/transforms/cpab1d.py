"""The flow of a piecewise-affine velocity on the line, in closed form, and its closed-form gradient.

The velocity does not depend on time, so a particle never turns round: it crosses cells in one direction, and the time
that it spends in a cell crossed whole is the same for every particle. One cumulative sum over the cells then says where
a particle is after unit time, without stepping through the cells:

    start at place y of cell c, velocity u, slope a:   e = log(1 + a d / u) / a, the time to cover the d to the border
    e > 1, it stays in c:      phi = y + u (exp(a) - 1) / a
    e <= 1, it crosses:        1 - e, less the time of the cells crossed whole, leaves r in the cell J that is reached;
                               phi = border + v (exp(a r) - 1) / a there

The gradient is that of variation of constants, d phi = v(phi) * integral of dv(x(t)) / v(x(t)) dt, again cell by cell:
the first cell and the last are each particle's own, those between are shared.

Inside this file places are counted in cells: cell 0 is the outside on the left, cells 1 to n are those of [-1, 1], cell
n + 1 is the outside on the right, where the velocity is that of the nearer end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab_nodes import node_velocities
from pstn.transforms.cpab_operation import first_derivative, fold, plain

__all__ = ["flow1d", "velocity1d"]

# Times are compared with the unit of time only: a cell that takes longer than this is never crossed whole, and the sums
# of times stay small enough for float32.
_NEVER = 1.25
# Nor is a border reached in time that takes so long, or longer; less than 1 + _NEVER, or the clock tells another cell.
_LATE = 2.0
# Slopes below this are rounded to it: (exp(a r) - 1) / a is then r to the last digit, with nothing to branch on.
_TINY = 1e-20
# Times below this are rounded to it, so that a time times a slope is never 0.
_INSTANT = 1e-14
# exp(60) is about 1e26: past any use, and far enough from float32's end that products and sums stay finite.
_LOG_MAX = {torch.float32: 60.0, torch.float64: 600.0}


def flow1d(theta: Tensor, nodal: Tensor, points: Tensor, *, closed: bool = True) -> Tensor:
    """Move points for unit time along a piecewise-affine velocity.

    Args:
        theta: (..., D).
        nodal: (n + 1, D), velocities at the evenly spaced nodes of [-1, 1] per unit of theta, in float64.
        points: (..., N, 1), with the same leading axes, or (N, 1) for all thetas.
        closed: whether the velocity is zero at both ends; if so a few operations are saved.

    Returns:
        (..., N, 1).
    """
    if plain():
        return _PlainFlow1d.apply(theta, nodal, points, closed)
    velocities, places = node_velocities(theta, nodal), points[..., 0].expand(*theta.shape[:-1], -1)
    if torch.compiler.is_compiling():
        return _traced_flow(velocities, places, closed)[..., None]
    moved: Tensor = _Flow1d.apply(velocities, places, closed)[0]
    return moved[..., None]


def velocity1d(velocities: Tensor, points: Tensor) -> Tensor:
    """The velocity at points, (..., n + 1) and (..., N) -> (..., N); outside, that of the nearer end."""
    n = velocities.shape[-1] - 1
    place = (points.clamp(-1, 1) + 1) * (n / 2)
    cell = place.detach().long().clamp(0, n - 1)
    left, right = velocities.gather(-1, cell), velocities.gather(-1, cell + 1)
    return left + (right - left) * (place - cell)


class _Cells(NamedTuple):
    """Every cell, (..., n + 2)."""

    left: Tensor  # velocity at its left end
    slope: Tensor  # never 0
    whole: Tensor  # time to cross it, _NEVER at most
    anchor: Tensor  # the place where the velocity is 0, if there is one, or else the end from which particles come
    drift: Tensor  # velocity at the anchor, over the slope


class _Trip(NamedTuple):
    """Every particle, (..., N)."""

    cell: Tensor  # c
    place: Tensor  # y
    slope: Tensor  # of the first cell
    speed: Tensor  # u
    leave: Tensor  # e, at most _LATE
    goal: Tensor  # J, which is c for those that stay
    crosses: Tensor  # 0 for those, 1 for others
    enter: Tensor  # place in the last cell where the particle comes in, or is
    time: Tensor  # r, or 1 for those that stay
    last_slope: Tensor  # of the last cell
    reach: Tensor  # velocity at `enter`, over that slope
    grown: Tensor  # slope times time there


class _PlainFlow1d(torch.autograd.Function):
    """For everyday use: from theta itself, and without `setup_context`, for which arguments are bound by name."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
        cells = _tabulate(node_velocities(theta, nodal))
        moved, trip = _follow(cells, points[..., 0], closed)
        ctx.shared, ctx.inputs = points.dim() == 2, (theta, points)
        ctx.save_for_backward(nodal, *cells, *trip)
        return moved[..., None]

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nodal, *saved = ctx.saved_tensors
        cells, trip = _unpack(saved)
        slopes = _differentiate(grad[..., 0], cells, trip)
        by_theta = node_velocities(_gather_up(slopes, cells, trip), nodal.mT)
        if not ctx.needs_input_grad[2]:
            return by_theta, None, None, None
        by_point = _by_point(slopes, trip)
        if ctx.shared:
            by_point = by_point.reshape(math.prod(by_point.shape[:-1]), by_point.shape[-1]).sum(0)
        return by_theta, None, by_point[..., None], None


class _Flow1d(torch.autograd.Function):
    """For torch.func: returns the points, and for the backward pass the cells and the trips."""

    @staticmethod
    def forward(velocities: Tensor, points: Tensor, closed: bool) -> tuple[Tensor, ...]:
        cells = _tabulate(velocities)
        moved, trip = _follow(cells, points, closed)
        return (moved, *cells, *trip)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        return (*_PullBack1d.apply(grad, *ctx.saved_tensors), None)

    @staticmethod
    def vmap(info: Any, in_dims: Any, velocities: Tensor, points: Tensor, closed: bool) -> Any:
        inputs = (fold(info.batch_size, dim, t) for dim, t in zip(in_dims, (velocities, points), strict=False))
        return _Flow1d.apply(*inputs, closed), (0,) * (1 + len(_Cells._fields) + len(_Trip._fields))


class _PullBack1d(torch.autograd.Function):
    """The backward pass, a function of its own so that vmap can batch it by a leading axis."""

    @staticmethod
    def forward(grad: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        cells, trip = _unpack(saved)
        slopes = _differentiate(grad, cells, trip)
        return _gather_up(slopes, cells, trip), _by_point(slopes, trip)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("CPAB has first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _PullBack1d.apply(*(fold(info.batch_size, *pair) for pair in zip(in_dims, inputs, strict=True))), (0, 0)


def _unpack(saved: Sequence[Tensor]) -> tuple[_Cells, _Trip]:
    count = len(_Cells._fields)
    return _Cells(*saved[:count]), _Trip(*saved[count:])


def _tabulate(velocities: Tensor) -> _Cells:
    n = velocities.shape[-1] - 1
    inner = velocities * (n / 2)
    nodes = torch.cat([inner[..., :1], inner, inner[..., -1:]], dim=-1)
    left = nodes[..., :-1].contiguous()
    rise = nodes[..., 1:] - left
    slope = torch.where(rise.abs() < _TINY, _TINY, rise)
    # Moving left, a cell is met from its right end: the same time, of the other sign. Where the velocity changes sign
    # in the cell, or is 0 at an end, this is NaN or infinite.
    whole = (torch.log1p(slope / left) / slope).abs()[..., 1:-1].nan_to_num(nan=_NEVER).clamp(max=_NEVER)
    star = -left / slope
    turns = (star - 0.5).abs() <= 0.5
    back = (left < 0).to(star.dtype)
    drift = (back - star).masked_fill(turns, 0)
    whole = torch.nn.functional.pad(whole, (1, 1), value=_NEVER)
    return _Cells(left, slope, whole, torch.where(turns, star, back), drift)


# Particles' directions and whether they stay are numbers, 0 or 1, and choices between two values are arithmetic: on a
# CPU a comparison or `torch.where` with an outcome that differs from particle to particle takes several times longer.


def _follow(cells: _Cells, points: Tensor, closed: bool) -> tuple[Tensor, _Trip]:
    """Where particles end, (..., N), and how they got there; points (N,) are those of all thetas."""
    n = cells.left.shape[-1] - 2
    place = (points * (n / 2)).add_(n / 2 + 1)
    within = place.clamp(0, n + 1)
    floor = within.nan_to_num().floor_()  # a place that is NaN stays so, and is in some cell
    cell = floor.long().expand(*cells.left.shape[:-1], -1)
    # Where the ends do not move nothing outside does: one place will do for all of it.
    place = (within if closed else place) - floor
    slope = cells.slope.gather(-1, cell)
    speed = torch.addcmul(cells.left.gather(-1, cell), slope, place)
    one = speed.new_ones(())
    forth = speed.sign().clamp(min=0)
    back = one - forth
    leave = (forth - place).mul_(slope).div_(speed).log1p_().div_(slope)
    # NaN or infinite where the border is not on the way.
    leave = leave.nan_to_num_(nan=_LATE, posinf=_LATE, neginf=_LATE).clamp(_INSTANT, _LATE)

    clock = torch.nn.functional.pad(cells.whole.cumsum(-1), (1, 0))
    sign = forth - back
    # What a clock says that runs from cell to cell: those that stay read a time of their own cell.
    now = torch.addcmul(clock.gather(-1, cell + forth.long()), sign, one - leave)
    # A particle that moves left and stands on a border belongs to the cell on its left.
    before = torch.sub(now, back, alpha=16 * torch.finfo(now.dtype).eps)
    count = _count_below(clock[..., 1:-1], before)
    goal = count.long()
    crosses = (count - floor).abs_().clamp(max=1)
    time = (now - clock.gather(-1, goal + back.long())).mul_(sign).clamp(min=_INSTANT)
    time = torch.lerp(one, time, crosses)
    enter = torch.lerp(place, back, crosses)
    moved, *arrival = _arrive(cells, goal, count, enter, time, closed)
    trip = _Trip(cell, place, slope, speed, leave, goal, crosses, enter, time, *arrival)
    return torch.where(speed.abs() <= 10 * _TINY, points, moved), trip


def _count_below(table: Tensor, values: Tensor) -> Tensor:
    """How many entries of a sorted table (..., K) are at most each value (..., N), in the values' dtype."""
    size = table.shape[-1]
    if size <= 32 or torch.compiler.is_compiling():  # fuses, and exports
        signs = (values[..., None, :] - table[..., None]).sign_().sum(-2)
        return signs.add_(size).mul_(0.5).ceil_()
    # By bisection: `searchsorted` takes longer at the sizes of a batch, on CPUs.
    bits = size.bit_length()
    padded = torch.nn.functional.pad(table, (1, 2**bits - 1 - size), value=math.inf)
    count = torch.zeros_like(values, dtype=torch.int64)
    for bit in reversed(range(bits)):
        more = count + 2**bit
        count = torch.where(padded.gather(-1, more) <= values, more, count)
    return count.to(values.dtype)


def _arrive(
    cells: _Cells, goal: Tensor, count: Tensor, enter: Tensor, time: Tensor, closed: bool
) -> tuple[Tensor, ...]:
    """Where particles end that enter cell `goal` at place `enter`, or are there, and spend `time` in it.

    `count` is the number of the cell in the dtype of the places.

    The end is written about the cell's anchor. It is then an increasing function of one quantity, and rounding cannot
    exchange two particles, however strongly the flow contracts.

    Returns:
        the points, and the last three fields of `_Trip`.
    """
    n = cells.left.shape[-1] - 2
    slope, anchor, drift = (table.gather(-1, goal) for table in (cells.slope, cells.anchor, cells.drift))
    limit = _LOG_MAX[slope.dtype]
    grown = (slope * time).clamp(-limit, limit)  # never 0
    less_one = _expm1(grown)
    offset = enter - anchor
    end = torch.addcmul(torch.addcmul(anchor, offset, less_one + 1), drift, less_one)
    # Rounding is not to carry a particle over a border.
    if closed:
        end = end.clamp(0, 1).add_(count).mul_(2 / n).sub_(1 + 2 / n).clamp(-1, 1)
    else:
        end = torch.where(goal > 0, end.clamp(min=0), end)
        end = (torch.where(goal <= n, end.clamp(max=1), end) + count) * (2 / n) - (1 + 2 / n)
    return end, slope, offset + drift, grown


class _Slopes(NamedTuple):
    """What a change of each input brings, times the gradient of what comes out."""

    first: tuple[Tensor, Tensor]  # (..., N) by the velocities at the left and at the right end of the first cell
    last: tuple[Tensor, Tensor]  # (..., N) and of the last
    charge: Tensor  # (..., N) by the time spent in cells that are crossed whole
    begin: Tensor  # (..., N) the first of these cells
    end: Tensor  # (..., N) the one after the last of them
    cells: tuple[Tensor, Tensor]  # (..., n + 2) that time, by the velocities at the ends of the cell, for every cell
    by_leave: Tensor  # (..., N) by the place of a particle that crosses
    by_enter: Tensor  # (..., N) by the place in the last cell


def _differentiate(grad: Tensor, cells: _Cells, trip: _Trip) -> _Slopes:
    limit = _LOG_MAX[grad.dtype]
    # The last cell of every particle, the first of every particle, and every cell, in one go.
    sizes = [trip.time.shape[-1], trip.leave.shape[-1], cells.whole.shape[-1]]
    time = torch.cat([trip.time, trip.leave, cells.whole], dim=-1)
    z = torch.cat([trip.last_slope, trip.slope, cells.slope], dim=-1).mul_(time).clamp(-limit, limit).neg_()
    (shrink_last, shrink_first, shrink_whole), (lag_last, lag_first, lag_whole) = (
        integral.split(sizes, dim=-1) for integral in _integrals(z, time)
    )

    by_enter = grad * torch.exp(trip.grown)
    pace = by_enter * (trip.reach * trip.last_slope)
    last = _share(by_enter, pace, trip.enter, shrink_last, lag_last)
    charge = pace * trip.crosses
    by_leave = (charge / trip.speed).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # a particle without speed stays
    first = _share(by_leave, charge, trip.place, shrink_first, lag_first)

    never = cells.whole >= _NEVER
    enter = (cells.left < 0).to(grad.dtype)
    per_speed = torch.addcmul(cells.left, cells.slope, enter).reciprocal_().masked_fill_(never, 0)
    whole = _share(per_speed, (~never).to(grad.dtype), enter, shrink_whole, lag_whole)
    begin, end = torch.minimum(trip.cell, trip.goal) + 1, torch.maximum(trip.cell, trip.goal)
    return _Slopes(first, last, charge, begin, end, whole, by_leave, by_enter)


def _gather_up(slopes: _Slopes, cells: _Cells, trip: _Trip) -> Tensor:
    """The gradient with respect to the nodes' velocities, (..., n + 1)."""
    # A particle charges every cell that it crosses whole: + at the first, - after the last, and a running sum.
    charges = torch.nn.functional.pad(torch.zeros_like(cells.left), (0, 1))
    charges.scatter_add_(-1, slopes.begin, slopes.charge).scatter_add_(-1, slopes.end, -slopes.charge)
    charges = charges.cumsum(-1)[..., :-1]
    by_left, by_right = (
        (charges * whole).scatter_add_(-1, trip.cell, first).scatter_add_(-1, trip.goal, last)
        for whole, first, last in zip(slopes.cells, slopes.first, slopes.last, strict=True)
    )
    # Node k is the left end of cell k + 1 and the right end of cell k; the outside is one node.
    nodes = by_left[..., 1:] + by_right[..., :-1]
    nodes[..., 0].add_(by_left[..., 0])
    nodes[..., -1].add_(by_right[..., -1])
    return nodes


def _by_point(slopes: _Slopes, trip: _Trip) -> Tensor:
    """The gradient with respect to the points, (..., N)."""
    return torch.addcmul(slopes.by_leave, slopes.by_enter, 1 - trip.crosses)


def _traced_flow(velocities: Tensor, points: Tensor, closed: bool) -> Tensor:
    """The flow as plain operations whose derivative autograd finds: the value, plus zero times each slope.

    The compiler fuses this; through a function of autograd it would warn, and could neither nest it nor export it.
    """
    with torch.no_grad():
        cells = _tabulate(velocities)
        moved, trip = _follow(cells, points, closed)
    if not (torch.is_grad_enabled() and (velocities.requires_grad or points.requires_grad)):
        return moved
    with torch.no_grad():
        slopes = _differentiate(torch.ones_like(moved), cells, trip)
    change = velocities - velocities.detach()
    nodes = torch.cat([change[..., :1], change, change[..., -1:]], dim=-1)
    ends = nodes[..., :-1], nodes[..., 1:]
    for index, by_ends in ((trip.cell, slopes.first), (trip.goal, slopes.last)):
        for velocity, slope in zip(ends, by_ends, strict=True):
            moved = moved + slope * velocity.gather(-1, index)
    times = ends[0] * slopes.cells[0] + ends[1] * slopes.cells[1]
    clock = torch.nn.functional.pad(times.cumsum(-1), (1, 0))
    spent = clock.gather(-1, slopes.end) - clock.gather(-1, slopes.begin)
    return moved + slopes.charge * spent + _by_point(slopes, trip) * (points - points.detach())


def _share(weight: Tensor, pace: Tensor, enter: Tensor, shrink: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Share the gradient of a stretch within a cell between the cell's two ends; pace is weight times speed."""
    base = weight * shrink
    right = torch.addcmul(pace * lag, base, enter)
    return base - right, right


def _integrals(z: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The integrals over a time of exp(-a s) and of (1 - exp(-a s)) / a, given z = -a time, not 0."""
    first = _expm1(z).div_(z)
    # Near 0 the quotient loses digits, as many as the series has terms to spare.
    border, series = (0.1, _SERIES) if z.dtype == torch.float64 else (0.03, _SERIES[:3])
    near = (z * series[-1]).add_(series[-2])
    for coefficient in reversed(series[:-2]):
        near.mul_(z).add_(coefficient)
    far = z.abs().sub_(border).mul_(1e9).clamp(0, 1)
    second = torch.lerp(near, (first - 1).div_(z), far)
    return first.mul_(time), second.mul_(time).mul_(time)


def _expm1(z: Tensor) -> Tensor:
    """exp(z) - 1. What inductor generates for torch.expm1 is that very difference, which near 0 has no digits left."""
    if not torch.compiler.is_compiling():
        return torch.expm1(z)
    small = z.clamp(-0.4, 0.4)
    near = torch.zeros_like(z)
    for k in reversed(range(1, 15 if z.dtype == torch.float64 else 9)):
        near = small / k * (1 + near)
    return torch.where(z.abs() < 0.4, near, torch.exp(z) - 1)


# (exp(z) - 1 - z) / z^2 about 0.
_SERIES = [1 / math.factorial(k + 2) for k in range(10)]
