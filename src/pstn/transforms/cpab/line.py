"""The flow on the line: closed form, and its closed-form gradient.

The velocity does not depend on time, so a particle never reverses: it crosses cells in one direction, and the time in
a cell that is crossed entirely is the same for every particle. One cumulative sum over the cells then gives the
position of a particle after unit time, without stepping through the cells:

    start at y in cell c, velocity u, slope a:   e = log(1 + a d / u) / a, the time to cover the d to the border
    e > 1, it stays in c:      phi = y + u (exp(a) - 1) / a
    e <= 1, it crosses:        1 - e, less the time of the cells crossed entirely, leaves r in the final cell J;
                               phi = border + v (exp(a r) - 1) / a there

The gradient follows from variation of constants, d phi = v(phi) * integral of dv(x(t)) / v(x(t)) dt, cell by cell:
the first and last cells are specific to each particle, those between are shared.

In this file positions are counted in cells: cell 0 is the outside on the left, cells 1 to n are those of [-1, 1], cell
n + 1 is the outside on the right, where the velocity is that of the nearer end.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pstn.transforms.cpab.autograd import Operation, is_eager
from pstn.transforms.cpab.basis import node_velocities

# Times are only compared with the unit of time: a cell that takes longer than this is never crossed entirely, and the
# sums of times stay small enough for float32.
_NEVER = 1.25
# The largest exit time; less than 1 + _NEVER, or a time would be assigned to another cell.
_LATE = 2.0
# Smaller slopes are rounded to this: (exp(a r) - 1) / a is then r to the last digit, without a branch.
_TINY = 1e-20
# Smaller times are rounded to this, so that a time times a slope is never 0.
_INSTANT = 1e-14
# exp(60) is about 1e26: beyond any use, and far enough from float32's limit that products and sums stay finite.
_LOG_MAX = {torch.float32: 60.0, torch.float64: 600.0}


def flow_line(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, backend: str) -> Tensor:
    """Move points on the line for unit time.

    Args:
        theta: (..., D).
        nodal: (n + 1, D), velocities at the evenly spaced nodes of [-1, 1] per unit of theta, in float64.
        points: (..., N, 1), in theta's dtype and with the same leading axes, or (N, 1) shared by all thetas.
        closed: whether the velocity is zero at both ends; if so a few operations are saved.
        backend: "torch", "triton" or "inductor".

    Returns:
        (..., N, 1).
    """
    if backend == "triton":
        return _triton_operation(theta.contiguous(), nodal, points.contiguous(), closed)
    # The compiler cannot run under torch.func or a tracer; they get the same arithmetic.
    if backend == "inductor" and is_eager() and not torch._C._len_torch_dispatch_stack():
        return _compiled_flow()(theta, nodal, points, closed)
    return _torch_flow(theta, nodal, points, closed)


def velocity_on_line(velocities: Tensor, points: Tensor) -> Tensor:
    """The velocity at points; outside, that of the nearer end.

    Args:
        velocities: (..., n + 1), at the nodes.
        points: (..., N).

    Returns:
        (..., N).
    """
    n = velocities.shape[-1] - 1
    position = (points.clamp(-1, 1) + 1) * (n / 2)
    cell = position.detach().long().clamp(0, n - 1)
    left, right = velocities.gather(-1, cell), velocities.gather(-1, cell + 1)
    return left + (right - left) * (position - cell)


# -------------------------------------------------------------------------------------------------- integration


class Cells(NamedTuple):
    """Every cell, (..., n + 2)."""

    left: Tensor  # velocity at its left end
    slope: Tensor  # of the velocity, never 0
    crossing: Tensor  # time to cross it, at most _NEVER
    anchor: Tensor  # the position at which the velocity is 0, if there is one, or else the end where particles enter
    offset: Tensor  # velocity at the anchor, divided by the slope


class Trajectory(NamedTuple):
    """Every particle, (..., N)."""

    first: Tensor  # first cell, c
    start: Tensor  # position in it, y
    slope: Tensor  # of its velocity
    speed: Tensor  # velocity at the start, u
    exit: Tensor  # time until it leaves the first cell, e, at most _LATE
    last: Tensor  # last cell, J, which is c for particles that stay
    crosses: Tensor  # 0 for those, 1 for others
    entry: Tensor  # position in the last cell where it enters, or starts
    time: Tensor  # time in the last cell, r, or 1 for particles that stay
    last_slope: Tensor  # slope of the velocity there
    reach: Tensor  # velocity at `entry`, divided by that slope
    growth: Tensor  # that slope times `time`


def tabulate(velocities: Tensor) -> Cells:
    """The cells, given velocities at the nodes, (..., n + 1)."""
    n = velocities.shape[-1] - 1
    inner = velocities * (n / 2)
    nodes = torch.cat([inner[..., :1], inner, inner[..., -1:]], dim=-1)
    left = nodes[..., :-1].contiguous()
    rise = nodes[..., 1:] - left
    slope = torch.where(rise.abs() < _TINY, _TINY, rise)
    # A particle that moves left enters at the right end: the same time, with the opposite sign. Where the velocity
    # changes sign in the cell, or is 0 at an end, this is NaN or infinite.
    crossing = (torch.log1p(slope / left) / slope).abs()[..., 1:-1].nan_to_num(nan=_NEVER).clamp(max=_NEVER)
    crossing = torch.nn.functional.pad(crossing, (1, 1), value=_NEVER)
    root = -left / slope
    has_root = (root - 0.5).abs() <= 0.5
    leftward = (left < 0).to(root.dtype)
    offset = (leftward - root).masked_fill(has_root, 0)
    return Cells(left, slope, crossing, torch.where(has_root, root, leftward), offset)


# Directions, and whether particles stay, are the numbers 0 and 1, and choices between two values are arithmetic: on a
# CPU a comparison or `torch.where` whose outcome differs from particle to particle takes several times longer.


def integrate(cells: Cells, points: Tensor, closed: bool) -> tuple[Tensor, Trajectory]:
    """The final positions, (..., N), and the trajectories; points (N,) are shared by all thetas."""
    n = cells.left.shape[-1] - 2
    position = (points * (n / 2)).add_(n / 2 + 1)
    within = position.clamp(0, n + 1)
    floor = within.nan_to_num().floor_()  # a NaN position stays NaN, and is assigned to some cell
    first = floor.long().expand(*cells.left.shape[:-1], -1)
    # Where the ends do not move, nothing outside does: one position represents all of it.
    start = (within if closed else position) - floor
    slope = cells.slope.gather(-1, first)
    speed = torch.addcmul(cells.left.gather(-1, first), slope, start)
    one = speed.new_ones(())
    right = speed.sign().clamp(min=0)
    left = one - right
    exit_time = (right - start).mul_(slope).div_(speed).log1p_().div_(slope)
    # NaN or infinite where the particle does not move towards the border.
    exit_time = exit_time.nan_to_num_(nan=_LATE, posinf=_LATE, neginf=_LATE).clamp(_INSTANT, _LATE)

    borders = torch.nn.functional.pad(cells.crossing.cumsum(-1), (1, 0))  # the time at which each border is passed
    sign = right - left
    # The final time on that scale: for particles that stay it falls within their own cell.
    final = torch.addcmul(borders.gather(-1, first + right.long()), sign, one - exit_time)
    # A particle that moves left and is on a border belongs to the cell on its left.
    rounded = torch.sub(final, left, alpha=16 * torch.finfo(final.dtype).eps)
    count = _count_below(borders[..., 1:-1], rounded)
    last = count.long()
    crosses = (count - floor).abs_().clamp(max=1)
    time = (final - borders.gather(-1, last + left.long())).mul_(sign).clamp(min=_INSTANT)
    time = torch.lerp(one, time, crosses)
    entry = torch.lerp(start, left, crosses)
    moved, *arrival = _arrive(cells, last, count, entry, time, closed)
    start = start.expand_as(speed)
    trajectory = Trajectory(first, start, slope, speed, exit_time, last, crosses, entry, time, *arrival)
    return torch.where(speed.abs() <= 10 * _TINY, points, moved), trajectory


def _count_below(table: Tensor, values: Tensor) -> Tensor:
    """How many entries of a sorted table (..., K) are at most each value (..., N), in the values' dtype."""
    size = table.shape[-1]
    if size <= 32 or torch.compiler.is_compiling():  # can be fused and exported
        signs = (values[..., None, :] - table[..., None]).sign_().sum(-2)
        return signs.add_(size).mul_(0.5).ceil_()
    # By bisection: `searchsorted` is slower for the sizes of a batch, on CPUs.
    bits = size.bit_length()
    padded = torch.nn.functional.pad(table, (1, 2**bits - 1 - size), value=math.inf)
    count = torch.zeros_like(values, dtype=torch.int64)
    for bit in reversed(range(bits)):
        more = count + 2**bit
        count = torch.where(padded.gather(-1, more) <= values, more, count)
    return count.to(values.dtype)


def _arrive(cells: Cells, last: Tensor, count: Tensor, entry: Tensor, time: Tensor, closed: bool) -> tuple[Tensor, ...]:
    """Where particles end that spend `time` in cell `last` from position `entry`, and the last fields of `Trajectory`.

    `count` is the number of the cell in the dtype of the positions. The end is written relative to the cell's anchor:
    it is then an increasing function of one quantity, and rounding cannot exchange two particles, however strongly the
    flow contracts.
    """
    n = cells.left.shape[-1] - 2
    slope, anchor, drift = (table.gather(-1, last) for table in (cells.slope, cells.anchor, cells.offset))
    limit = _LOG_MAX[slope.dtype]
    growth = (slope * time).clamp(-limit, limit)  # never 0
    less_one = _expm1(growth)
    distance = entry - anchor
    end = torch.addcmul(torch.addcmul(anchor, distance, less_one + 1), drift, less_one)
    # Rounding must not move a particle across a border.
    if closed:
        end = end.clamp(0, 1).add_(count).mul_(2 / n).sub_(1 + 2 / n).clamp(-1, 1)
    else:
        end = torch.where(last > 0, end.clamp(min=0), end)
        end = (torch.where(last <= n, end.clamp(max=1), end) + count) * (2 / n) - (1 + 2 / n)
    return end, slope, distance + drift, growth


# ----------------------------------------------------------------------------------------------------- gradient


class Gradients(NamedTuple):
    """Derivatives of the moved points, times the incoming gradient."""

    first: tuple[Tensor, Tensor]  # (..., N) by the velocities at the left and at the right end of the first cell
    last: tuple[Tensor, Tensor]  # (..., N) and of the last
    time: Tensor  # (..., N) by the time spent in cells that are crossed entirely
    begin: Tensor  # (..., N) the first of these cells
    end: Tensor  # (..., N) the one after the last of them
    cells: tuple[Tensor, Tensor]  # (..., n + 2) that time, by the velocities at the ends of the cell, for every cell
    start: Tensor  # (..., N) by the start of a particle that crosses
    entry: Tensor  # (..., N) by the position in the last cell


def differentiate(grad: Tensor, cells: Cells, trajectory: Trajectory) -> Gradients:
    """Derivatives of the moved points, times their gradient (..., N)."""
    limit = _LOG_MAX[grad.dtype]
    # The last cell of every particle, the first of every particle, and every cell, in one pass.
    sizes = [trajectory.time.shape[-1], trajectory.exit.shape[-1], cells.crossing.shape[-1]]
    time = torch.cat([trajectory.time, trajectory.exit, cells.crossing], dim=-1)
    z = torch.cat([trajectory.last_slope, trajectory.slope, cells.slope], dim=-1).mul_(time).clamp(-limit, limit).neg_()
    last_part, first_part, cell_part = zip(*(part.split(sizes, dim=-1) for part in _integrals(z, time)), strict=True)

    by_entry = grad * torch.exp(trajectory.growth)
    by_time = by_entry * (trajectory.reach * trajectory.last_slope)
    last = _split_between_ends(by_entry, by_time, trajectory.entry, *last_part)
    by_crossing = by_time * trajectory.crosses
    by_start = (by_crossing / trajectory.speed).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # without speed it stays
    first = _split_between_ends(by_start, by_crossing, trajectory.start, *first_part)

    never = cells.crossing >= _NEVER
    entry = (cells.left < 0).to(grad.dtype)
    per_speed = torch.addcmul(cells.left, cells.slope, entry).reciprocal_().masked_fill_(never, 0)
    each = _split_between_ends(per_speed, (~never).to(grad.dtype), entry, *cell_part)
    begin = torch.minimum(trajectory.first, trajectory.last) + 1
    end = torch.maximum(trajectory.first, trajectory.last)
    return Gradients(first, last, by_crossing, begin, end, each, by_start, by_entry)


def accumulate_node_grads(gradients: Gradients, cells: Cells, trajectory: Trajectory) -> Tensor:
    """The gradient with respect to the velocities at the nodes, (..., n + 1)."""
    # A particle contributes to every cell that it crosses entirely: + at the first, - after the last, cumulative sum.
    times = torch.nn.functional.pad(torch.zeros_like(cells.left), (0, 1))
    times.scatter_add_(-1, gradients.begin, gradients.time).scatter_add_(-1, gradients.end, -gradients.time)
    times = times.cumsum(-1)[..., :-1]
    by_left, by_right = (
        (times * each).scatter_add_(-1, trajectory.first, first).scatter_add_(-1, trajectory.last, last)
        for each, first, last in zip(gradients.cells, gradients.first, gradients.last, strict=True)
    )
    # Node k is the left end of cell k + 1 and the right end of cell k; the outside belongs to one node.
    nodes = by_left[..., 1:] + by_right[..., :-1]
    nodes[..., 0].add_(by_left[..., 0])
    nodes[..., -1].add_(by_right[..., -1])
    return nodes


def point_grads(gradients: Gradients, trajectory: Trajectory) -> Tensor:
    """The gradient with respect to the points, (..., N)."""
    return torch.addcmul(gradients.start, gradients.entry, 1 - trajectory.crosses)


def _split_between_ends(
    weight: Tensor, by_time: Tensor, entry: Tensor, decay: Tensor, lag: Tensor
) -> tuple[Tensor, Tensor]:
    """Split the gradient of a stretch within a cell between the cell's two ends; `by_time` is weight times speed."""
    base = weight * decay
    right = torch.addcmul(by_time * lag, base, entry)
    return base - right, right


def _integrals(z: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The integrals over a time of exp(-a s) and of (1 - exp(-a s)) / a, given z = -a time, not 0."""
    first = _expm1(z).div_(z)
    # Near 0 the quotient loses digits: there (exp(z) - 1 - z) / z^2 is a series, with as many terms as digits matter.
    border, terms = (0.1, 10) if z.dtype == torch.float64 else (0.03, 3)
    near = (z * (1 / math.factorial(terms + 1))).add_(1 / math.factorial(terms))
    for k in reversed(range(2, terms)):
        near.mul_(z).add_(1 / math.factorial(k))
    far = z.abs().sub_(border).mul_(1e9).clamp(0, 1)
    second = torch.lerp(near, (first - 1).div_(z), far)
    return first.mul_(time), second.mul_(time).mul_(time)


def _expm1(z: Tensor) -> Tensor:
    """exp(z) - 1. Inductor generates that very difference for torch.expm1, which loses all digits near 0."""
    if not torch.compiler.is_compiling():
        return torch.expm1(z)
    small = z.clamp(-0.4, 0.4)
    near = torch.zeros_like(z)
    for k in reversed(range(1, 15 if z.dtype == torch.float64 else 9)):
        near = small / k * (1 + near)
    return torch.where(z.abs() < 0.4, near, torch.exp(z) - 1)


# --------------------------------------------------------------------------------------------------- operations


def _torch_flow(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    if not torch.compiler.is_compiling():
        return _torch_operation(theta, nodal, points, closed)
    velocities, positions = node_velocities(theta, nodal), points[..., 0].expand(*theta.shape[:-1], -1)
    return _traced_flow(velocities, positions, closed)[..., None]


@cache
def _compiled_flow() -> Any:
    return torch.compile(_torch_flow, dynamic=True)  # not fullgraph=True, for the reason given in `plane`


def _run(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> tuple[Tensor, ...]:
    cells = tabulate(node_velocities(theta, nodal))
    moved, trajectory = integrate(cells, points[..., 0], closed)
    return (moved[..., None], *cells, *trajectory)


def _pull(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    *kept, nodal, _, to_theta, to_points, _ = inputs
    cells, trajectory = Cells(*kept[: len(Cells._fields)]), Trajectory(*kept[len(Cells._fields) :])
    gradients, none = differentiate(grad[..., 0], cells, trajectory), grad.new_empty(0)
    by_theta = node_velocities(accumulate_node_grads(gradients, cells, trajectory), nodal.mT) if to_theta else none
    return by_theta, point_grads(gradients, trajectory)[..., None] if to_points else none


_torch_operation = Operation(_run, _pull)


def _traced_flow(velocities: Tensor, points: Tensor, closed: bool) -> Tensor:
    """The flow as plain operations whose derivative autograd finds: the value, plus zero times each derivative.

    The compiler fuses this; with an autograd function it would warn, and could neither nest nor export it.
    """
    with torch.no_grad():
        cells = tabulate(velocities)
        moved, trajectory = integrate(cells, points, closed)
    if not (torch.is_grad_enabled() and (velocities.requires_grad or points.requires_grad)):
        return moved
    with torch.no_grad():
        gradients = differentiate(torch.ones_like(moved), cells, trajectory)
    change = velocities - velocities.detach()
    nodes = torch.cat([change[..., :1], change, change[..., -1:]], dim=-1)
    ends = nodes[..., :-1], nodes[..., 1:]
    for index, by_ends in ((trajectory.first, gradients.first), (trajectory.last, gradients.last)):
        for velocity, slope in zip(ends, by_ends, strict=True):
            moved = moved + slope * velocity.gather(-1, index)
    times = ends[0] * gradients.cells[0] + ends[1] * gradients.cells[1]
    borders = torch.nn.functional.pad(times.cumsum(-1), (1, 0))
    spent = borders.gather(-1, gradients.end) - borders.gather(-1, gradients.begin)
    return moved + gradients.time * spent + point_grads(gradients, trajectory) * (points - points.detach())


def _run_triton(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    from pstn.transforms.cpab.triton.line import flow_forward

    return flow_forward(theta, nodal, points, closed)


def _pull_triton(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, to_theta: bool, to_points: bool, closed: bool
) -> tuple[Tensor, Tensor]:
    from pstn.transforms.cpab.triton.line import flow_backward

    by_theta, by_point = flow_backward(grad.contiguous(), theta, nodal, points, closed, to_points)
    return by_theta if to_theta else by_theta.new_empty(0), by_point


def _fake_triton(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    return theta.new_empty(*theta.shape[:-1], *points.shape[-2:])


_triton_operation = Operation(_run_triton, _pull_triton, name="pstn::cpab_line", fake=_fake_triton)
