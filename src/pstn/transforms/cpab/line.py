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
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cells", "Slopes", "Trip", "by_point", "differentiate", "follow", "gather_up", "tabulate"]

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


class Cells(NamedTuple):
    """Every cell, (..., n + 2)."""

    left: Tensor  # velocity at its left end
    slope: Tensor  # never 0
    whole: Tensor  # time to cross it, _NEVER at most
    anchor: Tensor  # the place where the velocity is 0, if there is one, or else the end from which particles come
    drift: Tensor  # velocity at the anchor, over the slope


class Trip(NamedTuple):
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


def tabulate(velocities: Tensor) -> Cells:
    """The cells of velocities at the nodes, (..., n + 1)."""
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
    return Cells(left, slope, whole, torch.where(turns, star, back), drift)


# Particles' directions and whether they stay are numbers, 0 or 1, and choices between two values are arithmetic: on a
# CPU a comparison or `torch.where` with an outcome that differs from particle to particle takes several times longer.


def follow(cells: Cells, points: Tensor, closed: bool) -> tuple[Tensor, Trip]:
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
    trip = Trip(cell, place, slope, speed, leave, goal, crosses, enter, time, *arrival)
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


def _arrive(cells: Cells, goal: Tensor, count: Tensor, enter: Tensor, time: Tensor, closed: bool) -> tuple[Tensor, ...]:
    """Where particles end that enter cell `goal` at place `enter`, or are there, and spend `time` in it.

    `count` is the number of the cell in the dtype of the places.

    The end is written about the cell's anchor. It is then an increasing function of one quantity, and rounding cannot
    exchange two particles, however strongly the flow contracts.

    Returns:
        the points, and the last three fields of `Trip`.
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


class Slopes(NamedTuple):
    """What a change of each input brings, times the gradient of what comes out."""

    first: tuple[Tensor, Tensor]  # (..., N) by the velocities at the left and at the right end of the first cell
    last: tuple[Tensor, Tensor]  # (..., N) and of the last
    charge: Tensor  # (..., N) by the time spent in cells that are crossed whole
    begin: Tensor  # (..., N) the first of these cells
    end: Tensor  # (..., N) the one after the last of them
    cells: tuple[Tensor, Tensor]  # (..., n + 2) that time, by the velocities at the ends of the cell, for every cell
    by_leave: Tensor  # (..., N) by the place of a particle that crosses
    by_enter: Tensor  # (..., N) by the place in the last cell


def differentiate(grad: Tensor, cells: Cells, trip: Trip) -> Slopes:
    """What a change of each input brings, times the gradient of the points that came out, (..., N)."""
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
    return Slopes(first, last, charge, begin, end, whole, by_leave, by_enter)


def gather_up(slopes: Slopes, cells: Cells, trip: Trip) -> Tensor:
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


def by_point(slopes: Slopes, trip: Trip) -> Tensor:
    """The gradient with respect to the points, (..., N)."""
    return torch.addcmul(slopes.by_leave, slopes.by_enter, 1 - trip.crosses)


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
