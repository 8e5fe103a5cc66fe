"""The flow of a piecewise-affine velocity on the line, as autograd, torch.func and torch.compile see it.

`line` explains and computes the flow and its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pstn.transforms.cpab.autograd import first_derivative, fold, plain
from pstn.transforms.cpab.line import Cells, Trip, by_point, differentiate, follow, gather_up, tabulate
from pstn.transforms.cpab.nodes import node_velocities

__all__ = ["flow1d", "velocity1d"]


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


class _PlainFlow1d(torch.autograd.Function):
    """For everyday use: from theta itself, and without `setup_context`, for which arguments are bound by name."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
        cells = tabulate(node_velocities(theta, nodal))
        moved, trip = follow(cells, points[..., 0], closed)
        ctx.shared, ctx.inputs = points.dim() == 2, (theta, points)
        ctx.save_for_backward(nodal, *cells, *trip)
        return moved[..., None]

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nodal, *saved = ctx.saved_tensors
        cells, trip = _unpack(saved)
        slopes = differentiate(grad[..., 0], cells, trip)
        by_theta = node_velocities(gather_up(slopes, cells, trip), nodal.mT)
        if not ctx.needs_input_grad[2]:
            return by_theta, None, None, None
        at_points = by_point(slopes, trip)
        if ctx.shared:
            at_points = at_points.reshape(math.prod(at_points.shape[:-1]), at_points.shape[-1]).sum(0)
        return by_theta, None, at_points[..., None], None


class _Flow1d(torch.autograd.Function):
    """For torch.func: returns the points, and for the backward pass the cells and the trips."""

    @staticmethod
    def forward(velocities: Tensor, points: Tensor, closed: bool) -> tuple[Tensor, ...]:
        cells = tabulate(velocities)
        moved, trip = follow(cells, points, closed)
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
        return _Flow1d.apply(*inputs, closed), (0,) * (1 + len(Cells._fields) + len(Trip._fields))


class _PullBack1d(torch.autograd.Function):
    """The backward pass, a function of its own so that vmap can batch it by a leading axis."""

    @staticmethod
    def forward(grad: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        cells, trip = _unpack(saved)
        slopes = differentiate(grad, cells, trip)
        return gather_up(slopes, cells, trip), by_point(slopes, trip)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("CPAB has first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _PullBack1d.apply(*(fold(info.batch_size, *pair) for pair in zip(in_dims, inputs, strict=True))), (0, 0)


def _unpack(saved: Sequence[Tensor]) -> tuple[Cells, Trip]:
    count = len(Cells._fields)
    return Cells(*saved[:count]), Trip(*saved[count:])


def _traced_flow(velocities: Tensor, points: Tensor, closed: bool) -> Tensor:
    """The flow as plain operations whose derivative autograd finds: the value, plus zero times each slope.

    The compiler fuses this; through a function of autograd it would warn, and could neither nest it nor export it.
    """
    with torch.no_grad():
        cells = tabulate(velocities)
        moved, trip = follow(cells, points, closed)
    if not (torch.is_grad_enabled() and (velocities.requires_grad or points.requires_grad)):
        return moved
    with torch.no_grad():
        slopes = differentiate(torch.ones_like(moved), cells, trip)
    change = velocities - velocities.detach()
    nodes = torch.cat([change[..., :1], change, change[..., -1:]], dim=-1)
    ends = nodes[..., :-1], nodes[..., 1:]
    for index, by_ends in ((trip.cell, slopes.first), (trip.goal, slopes.last)):
        for velocity, slope in zip(ends, by_ends, strict=True):
            moved = moved + slope * velocity.gather(-1, index)
    times = ends[0] * slopes.cells[0] + ends[1] * slopes.cells[1]
    clock = torch.nn.functional.pad(times.cumsum(-1), (1, 0))
    spent = clock.gather(-1, slopes.end) - clock.gather(-1, slopes.begin)
    return moved + slopes.charge * spent + by_point(slopes, trip) * (points - points.detach())
