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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pstn.transforms.cpab_operation import fold, plain

__all__ = ["flow1d", "velocity1d"]

# Times are compared with the unit of time only: a cell that takes longer than this is never crossed whole, and the sums
# of times stay small enough for float32.
_NEVER = 1.25
# Slopes below this are rounded to it: (exp(a r) - 1) / a is then r to the last digit, with nothing to branch on.
_TINY = 1e-20
# Times below this are rounded to it, so that a time times a slope is never 0.
_INSTANT = 1e-14
# exp(60) is about 1e26: past any use, and far enough from float32's end that products and sums stay finite.
_LOG_MAX = {torch.float32: 60.0, torch.float64: 600.0}


def flow1d(velocities: Tensor, points: Tensor, *, closed: bool = True) -> Tensor:
    """Move points for unit time along a piecewise-affine velocity.

    Args:
        velocities: (..., n + 1), velocity at the evenly spaced nodes of [-1, 1].
        points: (..., N), with the same leading axes.
        closed: whether the velocity is zero at both ends; if so a few operations are saved.

    Returns:
        (..., N).
    """
    if torch.compiler.is_compiling():
        return _traced_flow(velocities, points, closed)
    if plain():
        return _PlainFlow1d.apply(velocities, points, closed)
    moved: Tensor = _Flow1d.apply(velocities, points, closed)[0]
    return moved


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


class _Trip(NamedTuple):
    """Every particle, (..., N)."""

    cell: Tensor  # c
    place: Tensor  # y
    goal: Tensor  # J, which is c for those that stay
    leave: Tensor  # e, or 1 for those that stay
    time: Tensor  # r, or 1 for those that stay


class _PlainFlow1d(torch.autograd.Function):
    """For everyday use: without `setup_context`, which binds arguments by name at every call, it costs less."""

    @staticmethod
    def forward(ctx: Any, velocities: Tensor, points: Tensor, closed: bool) -> Tensor:
        cells = _tabulate(velocities)
        moved, trip = _follow(cells, points, closed)
        ctx.save_for_backward(*cells, *trip)
        return moved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        return (*_pull_back(grad, _Cells(*saved[:3]), _Trip(*saved[3:])), None)


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
        return _pull_back(grad, _Cells(*saved[:3]), _Trip(*saved[3:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("CPAB has first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _PullBack1d.apply(*(fold(info.batch_size, *pair) for pair in zip(in_dims, inputs, strict=True))), (0, 0)


def _tabulate(velocities: Tensor) -> _Cells:
    n = velocities.shape[-1] - 1
    inner = velocities * (n / 2)
    nodes = torch.cat([inner[..., :1], inner, inner[..., -1:]], dim=-1)
    left, right = nodes[..., :-1], nodes[..., 1:]
    rise = right - left
    slope = torch.where(rise.abs() < _TINY, _TINY, rise)
    # Moving left, a cell is met from its right end: the same time, of the other sign. Where the velocity changes sign
    # in the cell, or is 0 at an end, this is NaN or infinite.
    whole = (torch.log1p(slope / left) / slope).abs()[..., 1:-1].nan_to_num(nan=_NEVER).clamp(max=_NEVER)
    return _Cells(left.contiguous(), slope, torch.nn.functional.pad(whole, (1, 1), value=_NEVER))


def _follow(cells: _Cells, points: Tensor, closed: bool) -> tuple[Tensor, _Trip]:
    n = cells.left.shape[-1] - 2
    place = points * (n / 2) + (n / 2 + 1)
    within = place.clamp(0, n + 1)
    cell = within.long()
    # Where the ends do not move nothing outside does: one place will do for all of it.
    place = (within if closed else place) - cell
    slope = cells.slope.gather(-1, cell)
    u = torch.addcmul(cells.left.gather(-1, cell), slope, place)
    forwards = u > 0
    forth = forwards.to(place.dtype)
    back = 1 - forth
    leave = torch.log1p((forth - place) * slope / u) / slope
    crosses = (leave - 0.5).abs() <= 0.5  # NaN, where the border is not on the way, is not
    if not closed:  # the outside has no far end
        crosses &= cell != forwards * (n + 1)
    leave = torch.where(crosses, leave, 1.0).clamp(min=_INSTANT)

    clock = torch.nn.functional.pad(cells.whole.cumsum(-1), (1, 0))
    sign = forth - back
    now = torch.addcmul(clock.gather(-1, cell + forwards), sign, 1 - leave)
    # A particle that moves left and stands on a border belongs to the cell on its left.
    before = torch.sub(now, back, alpha=16 * torch.finfo(now.dtype).eps)
    goal = torch.where(crosses, _count_below(clock[..., 1:-1], before), cell)
    time = ((now - clock.gather(-1, goal + ~forwards)) * sign).clamp(min=_INSTANT)
    time = torch.where(crosses, time, 1.0)
    moved = _arrive(cells, goal, torch.where(crosses, back, place), time, closed)
    return torch.where(u.abs() <= 10 * _TINY, points, moved), _Trip(cell, place, goal, leave, time)


def _count_below(table: Tensor, values: Tensor) -> Tensor:
    """How many entries of a sorted table (..., K) are at most each value (..., N)."""
    if torch.compiler.is_compiling():  # fuses, and exports
        return (values[..., None, :] >= table[..., None]).sum(-2)
    # By bisection: `searchsorted` takes longer at the sizes of a batch, on CPUs.
    bits = table.shape[-1].bit_length()
    padded = torch.nn.functional.pad(table, (1, 2**bits - 1 - table.shape[-1]), value=math.inf)
    count = torch.zeros_like(values, dtype=torch.int64)
    for bit in reversed(range(bits)):
        more = count + 2**bit
        count = torch.where(padded.gather(-1, more) <= values, more, count)
    return count


def _arrive(cells: _Cells, goal: Tensor, enter: Tensor, time: Tensor, closed: bool) -> Tensor:
    """Where particles end that enter a cell at place `enter`, or are there, and spend `time` in it.

    The end is written about an anchor: the place in the cell where the velocity is 0, if there is one, or else the end
    of the cell from which particles come. It is then an increasing function of one quantity, and rounding cannot
    exchange two particles, however strongly the flow contracts.
    """
    n = cells.left.shape[-1] - 2
    star = -cells.left / cells.slope
    turns = (star - 0.5).abs() <= 0.5
    back = (cells.left < 0).to(star.dtype)
    anchors = torch.where(turns, star, back)
    speeds = torch.addcmul(cells.left, cells.slope, back).masked_fill(turns, 0)
    slope, anchor, speed = (table.gather(-1, goal) for table in (cells.slope, anchors, speeds))
    less_one = _expm1((slope * time).clamp(max=_LOG_MAX[slope.dtype]))
    end = torch.addcmul(torch.addcmul(anchor, enter - anchor, less_one + 1), speed, less_one / slope)
    # Rounding is not to carry a particle over a border.
    if closed:
        return ((end.clamp(0, 1) + goal) * (2 / n) - (1 + 2 / n)).clamp(-1, 1)
    end = torch.where(goal > 0, end.clamp(min=0), end)
    return (torch.where(goal <= n, end.clamp(max=1), end) + goal) * (2 / n) - (1 + 2 / n)


class _Slopes(NamedTuple):
    """What a change of each input brings, times the gradient of what comes out."""

    both: Tensor  # (..., 2 N) the first cell of each particle, then the last
    left: Tensor  # (..., 2 N) by the velocity at the left end of that cell
    right: Tensor  # (..., 2 N) and at its right end
    point: Tensor  # (..., N) by the place of the particle
    charge: Tensor  # (..., N) by the time spent in cells that are crossed whole
    ends: Tensor  # (..., 2 N) the first of these cells, then the one after the last
    cell_left: Tensor  # (..., n + 2) that time, by the velocity at the left end of the cell, for every cell
    cell_right: Tensor  # (..., n + 2) and at its right end


def _differentiate(grad: Tensor, cells: _Cells, trip: _Trip) -> _Slopes:
    cell, place, goal = trip.cell, trip.place, trip.goal
    size = place.shape[-1]
    stays = goal == cell
    both = torch.cat([cell, goal], dim=-1)
    slope, left = cells.slope.gather(-1, both), cells.left.gather(-1, both)
    enter = torch.cat([place, torch.where(stays, place, (goal < cell).to(place.dtype))], dim=-1)
    speed = torch.addcmul(left, slope, enter)
    shrink, lag, less_one = _integrals(slope, torch.cat([trip.leave, trip.time], dim=-1))
    growth = 1 / (1 + less_one[..., size:])
    arrival = speed[..., size:] * growth
    point = grad * torch.where(stays, growth, arrival / speed[..., :size])
    crosses = (~stays).to(place.dtype)
    weight = torch.cat([point * crosses, grad * growth], dim=-1)
    by_left, by_right = _share(weight, enter, speed, shrink, lag)

    never = cells.whole >= _NEVER
    enter = (cells.left < 0).to(place.dtype)
    speed = torch.addcmul(cells.left, cells.slope, enter).masked_fill(never, 1)
    shrink, lag, _ = _integrals(cells.slope, cells.whole)
    cell_left, cell_right = _share((1 / speed).masked_fill(never, 0), enter, speed, shrink, lag)
    ends = torch.cat([torch.minimum(cell, goal) + 1, torch.maximum(cell, goal)], dim=-1)
    return _Slopes(both, by_left, by_right, point, grad * arrival * crosses, ends, cell_left, cell_right)


def _pull_back(grad: Tensor, cells: _Cells, trip: _Trip) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the nodes' velocities and to the points."""
    slopes = _differentiate(grad, cells, trip)
    zeros = torch.zeros_like(cells.left)
    # A particle charges every cell that it crosses whole: + at the first, - after the last, and a running sum.
    charges = torch.cat([slopes.charge, -slopes.charge], dim=-1)
    charges = torch.nn.functional.pad(zeros, (0, 1)).scatter_add(-1, slopes.ends, charges).cumsum(-1)[..., :-1]
    by_left = torch.addcmul(zeros.scatter_add(-1, slopes.both, slopes.left), charges, slopes.cell_left)
    by_right = torch.addcmul(zeros.scatter_add(-1, slopes.both, slopes.right), charges, slopes.cell_right)
    # Node k is the left end of cell k + 1 and the right end of cell k; the outside is one node.
    nodes = by_left[..., 1:] + by_right[..., :-1]
    nodes = torch.cat([nodes[..., :1] + by_left[..., :1], nodes[..., 1:-1], nodes[..., -1:] + by_right[..., -1:]], -1)
    return nodes, slopes.point


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
    left, right = nodes[..., :-1], nodes[..., 1:]
    pieces = slopes.left * left.gather(-1, slopes.both) + slopes.right * right.gather(-1, slopes.both)
    clock = torch.nn.functional.pad((slopes.cell_left * left + slopes.cell_right * right).cumsum(-1), (1, 0))
    start, stop = clock.gather(-1, slopes.ends).chunk(2, dim=-1)
    first, last = pieces.chunk(2, dim=-1)
    return moved + first + last + slopes.charge * (stop - start) + slopes.point * (points - points.detach())


def _share(weight: Tensor, enter: Tensor, speed: Tensor, shrink: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Share the gradient of a stretch within a cell between the cell's two ends."""
    base = weight * shrink
    right = torch.addcmul(weight * speed * lag, base, enter)
    return base - right, right


def _integrals(slope: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals over time of exp(-a s) and of (1 - exp(-a s)) / a, and exp(-a time) - 1."""
    limit = _LOG_MAX[slope.dtype]
    z = (slope * -time).clamp(-limit, limit)  # never 0
    less_one = _expm1(z)
    first = less_one / z
    # Near 0 the quotient loses digits, as many as the series has terms to spare.
    border, series = (0.1, _SERIES) if z.dtype == torch.float64 else (0.03, _SERIES[:3])
    near = z * series[-1] + series[-2]
    for coefficient in reversed(series[:-2]):
        near = near * z + coefficient
    second = torch.where(z.abs() < border, near, (first - 1) / z)
    return time * first, time * time * second, less_one


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
