"""CPAB flows as operations: one entry for the line and one for the plane, which choose between kernel and twin.

On the line the twin is plain differentiable torch, which compiles, exports and batches by itself. The kernels, and the
twin in the plane, whose number of steps depends on the data, are operations that torch does not look into. They take
theta, not the velocities at the nodes, so that a forward pass is one node of autograd's graph.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from pstn._checks import require_choice
from pstn.transforms.cpab import plane_flow
from pstn.transforms.cpab.autograd import Operation, fold, plain
from pstn.transforms.cpab.line_autograd import flow1d
from pstn.transforms.cpab.nodes import node_velocities
from pstn.transforms.cpab.plane import Step, take_step
from pstn.transforms.cpab.triton import kernels_available

__all__ = ["BACKENDS", "Backend", "flow_line", "flow_plane", "require_backend"]

Backend = Literal["auto", "torch", "triton", "inductor"]
BACKENDS = ("auto", "torch", "triton", "inductor")


# What a backend comes to for given tensors.
Way = Literal["torch", "triton", "inductor"]


def require_backend(backend: Backend) -> Backend:
    """Refuse anything but the names of `BACKENDS`."""
    require_choice("backend", backend, BACKENDS)
    return backend


def _choose(backend: Backend, points: Tensor) -> Way:
    """What will do the work."""
    fits = points.dtype == torch.float32  # float64 is for checking: the twin has it
    if backend == "triton" and not kernels_available(points.device):
        raise ValueError(
            f'backend="triton" needs a CUDA device and the triton package, got tensors on {points.device}: '
            'use backend="auto"'
        )
    if backend == "inductor" and points.device.type != "cpu":
        raise ValueError(f'backend="inductor" is for CPUs, got tensors on {points.device}: use backend="auto"')
    if backend == "triton":
        return "triton" if fits else "torch"
    if backend == "auto":
        return "triton" if fits and points.is_cuda and kernels_available(points.device) else "torch"
    return backend


def flow_line(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, backend: Backend) -> Tensor:
    """Move points on the line for unit time.

    Args:
        theta: (..., D).
        nodal: (n + 1, D), velocities at the nodes per unit of theta, in float64.
        points: (..., N, 1), in theta's dtype; leading axes broadcast with theta's.
        closed: whether the velocity is zero at both ends.
        backend: one of `BACKENDS`.

    Returns:
        (..., N, 1).
    """
    theta, points = _broadcast(theta, points)
    way = _choose(backend, points)
    if way == "triton":
        moved: Tensor = _line(theta.contiguous(), nodal, points.contiguous(), closed)
        return moved
    # Where torch.func or a tracer is at work the compiler cannot be; they see the same arithmetic.
    if way == "inductor" and plain() and not torch._C._len_torch_dispatch_stack():
        return _compiled_line()(theta, nodal, points, closed=closed)
    return flow1d(theta, nodal, points, closed=closed)


def flow_plane(
    theta: Tensor, nodal: Tensor, points: Tensor, tess: tuple[int, int], closed: bool, backend: Backend
) -> Tensor:
    """Move points in the plane for unit time.

    Args:
        theta: (..., D).
        nodal: (K * 2, D), velocities at the nodes per unit of theta, in float64.
        points: (..., N, 2), in theta's dtype; leading axes broadcast with theta's.
        tess: cells along x and y.
        closed: whether the velocity normal to the boundary is zero.
        backend: one of `BACKENDS`.

    Returns:
        (..., N, 2).
    """
    theta, points = _broadcast(theta, points)
    way = _choose(backend, points)
    if backend == "auto" and torch.are_deterministic_algorithms_enabled():
        way = "torch"  # the kernel adds up gradients in no fixed order
    jacobian = torch.is_grad_enabled()
    moved: Tensor = _plane(theta.contiguous(), nodal, points.contiguous(), *tess, closed, jacobian, way)[0]
    return moved


def _broadcast(theta: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Give both all leading axes, (..., D) and (..., N, ndim); points that all thetas share lose theirs, (N, ndim)."""
    if points.dim() == 2:
        return theta, points
    lead = torch.broadcast_shapes(theta.shape[:-1], points.shape[:-2])
    theta = theta.expand(*lead, -1)
    if math.prod(points.shape[:-2]) == 1:
        return theta, points.reshape(points.shape[-2:])
    return theta, points.expand(*lead, -1, -1)


def _fold_nodal(size: int, dim: int | None, nodal: Tensor) -> Tensor:
    """The basis of every theta, or one for each group of thetas in a row, (G, K, D)."""
    shared = dim is None and nodal.dim() == 2
    return nodal if shared else fold(size, dim, nodal).reshape(-1, *nodal.shape[-2:])


def _fold_points(size: int, dim: int | None, points: Tensor, theta: Tensor) -> Tensor:
    """The points of every theta, (..., N, ndim) for a theta that is folded already, unless all share them."""
    if dim is None and points.dim() == 2:
        return points
    points = fold(size, dim, points)
    missing = theta.dim() - points.dim() + 1
    points = points.view(size, *(1,) * missing, *points.shape[1:])
    return points.expand(*theta.shape[:-1], -1, -1).contiguous()


def _sum_over_thetas(by_point: Tensor, points: Tensor) -> Tensor:
    if points.dim() > 2:
        return by_point
    return by_point.view(math.prod(by_point.shape[:-2]), *points.shape).sum(0)  # a size of its own: N may be 0


# ----------------------------------------------------------------------------------------------------------- the line


@cache
def _line_kernels() -> ModuleType:
    from pstn.transforms.cpab.triton import line

    return line


@cache
def _compiled_line() -> Any:
    return torch.compile(flow1d, dynamic=True)  # as in `inductor`


def _run_line(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    return _line_kernels().flow1d_forward(theta, nodal, points, closed)


def _pull_line(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    return _line_kernels().flow1d_backward(grad.contiguous(), theta, nodal, points, closed, to_points)


def _fake_line(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    return theta.new_empty(*theta.shape[:-1], *points.shape[-2:])


def _fake_pull_line(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(theta), grad.new_empty(grad.shape if to_points else 0)


def _line_rule(call: Any, info: Any, dims: Any, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Any:
    size = info.batch_size
    theta = fold(size, dims[0], theta)
    points = _fold_points(size, dims[2], points, theta)
    return call(theta, _fold_nodal(size, dims[1], nodal), points, closed), 0


def _pull_line_rule(
    call: Any, info: Any, dims: Any, grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, *flags: bool
) -> Any:
    size = info.batch_size
    theta = fold(size, dims[1], theta)
    points = _fold_points(size, dims[3], points, theta)
    gradients = call(fold(size, dims[0], grad), theta, _fold_nodal(size, dims[2], nodal), points, *flags)
    return gradients, (0, 0 if flags[1] else None)


def _line_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.closed = inputs
    ctx.save_for_backward(*tensors)


def _line_backward(ctx: Any, pull: Any, grad: Tensor) -> tuple[Any, ...]:
    theta, nodal, points = ctx.saved_tensors
    to_points = ctx.needs_input_grad[2]
    by_theta, by_point = pull(grad, theta, nodal, points, ctx.closed, to_points)
    return by_theta, None, _sum_over_thetas(by_point, points) if to_points else None, None


_line = Operation(
    "pstn::cpab_line",
    _run_line,
    _pull_line,
    fake=_fake_line,
    fake_pull=_fake_pull_line,
    rule=_line_rule,
    pull_rule=_pull_line_rule,
    context=_line_context,
    backward=_line_backward,
)


# ---------------------------------------------------------------------------------------------------------- the plane


@cache
def _plane_kernels() -> ModuleType:
    from pstn.transforms.cpab.triton import plane

    return plane


def _plane_step(way: str) -> Step:
    if way == "torch":
        return take_step
    from pstn.transforms.cpab.inductor import compiled_step

    return compiled_step()


def _groups(nodal: Tensor) -> int:
    """How many groups of thetas in a row have a basis of their own."""
    return 1 if nodal.dim() == 2 else nodal.shape[0]


def _adjoint(grad: Tensor, matrix: Tensor) -> Tensor:
    """The gradient with respect to where particles start, (..., N, 2), from the one where they end and the Jacobian."""
    return torch.addcmul(matrix[..., :2] * grad[..., :1], matrix[..., 2:], grad[..., 1:])


def _run_plane(
    theta: Tensor, nodal: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    lead, (size, _), width = theta.shape[:-1], points.shape[-2:], nodal.shape[-2]
    flat_points = points.view(math.prod(points.shape[:-2]), size, 2)  # (S, N, 2), or (1, N, 2) for all thetas
    velocities = node_velocities(theta.view(_groups(nodal), -1, theta.shape[-1]), nodal)
    flat = velocities.view(-1, width // 2, 2)
    if way == "triton":
        moved, matrix = _plane_kernels().flow2d_forward(flat, flat_points, nx, ny, closed, jacobian)
    else:
        moved, matrix = plane_flow.flow(flat, flat_points, nx, ny, closed, jacobian, _plane_step(way))
    matrix = matrix.view(*lead, size, 4) if jacobian else matrix
    return moved.view(*lead, size, 2), matrix, velocities.view(*lead, width)


def _pull_plane(
    grad: Tensor,
    matrix: Tensor,
    velocities: Tensor,
    nodal: Tensor,
    points: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    to_points: bool,
    way: str,
) -> tuple[Tensor, Tensor]:
    lead, (size, _) = velocities.shape[:-1], points.shape[-2:]
    flat_points = points.view(math.prod(points.shape[:-2]), size, 2)
    flat = velocities.view(-1, nodal.shape[-2] // 2, 2)
    grad, matrix = grad.reshape(len(flat), size, 2), matrix.view(len(flat), size, 4)
    if way == "triton":
        by_velocity, by_point = _plane_kernels().flow2d_backward(
            *(grad.contiguous(), matrix, flat, flat_points, nx, ny, closed, to_points)
        )
    else:
        by_point = _adjoint(grad, matrix)
        by_velocity = plane_flow.pull_back(by_point, flat, flat_points, nx, ny, closed, _plane_step(way))
    by_theta = node_velocities(by_velocity.reshape(_groups(nodal), -1, nodal.shape[-2]), nodal.mT)
    by_point = by_point.view(*lead, size, 2) if to_points else by_point.new_empty(0)
    return by_theta.view(*lead, nodal.shape[-1]), by_point


def _fake_plane(
    theta: Tensor, nodal: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    lead, size = theta.shape[:-1], points.shape[-2]
    matrix = theta.new_empty((*lead, size, 4) if jacobian else 0)
    return theta.new_empty(*lead, size, 2), matrix, theta.new_empty(*lead, nodal.shape[-2])


def _fake_pull_plane(
    grad: Tensor,
    matrix: Tensor,
    velocities: Tensor,
    nodal: Tensor,
    points: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    to_points: bool,
    way: str,
) -> tuple[Tensor, Tensor]:
    by_theta = velocities.new_empty(*velocities.shape[:-1], nodal.shape[-1])
    return by_theta, grad.new_empty(grad.shape if to_points else 0)


def _plane_rule(call: Any, info: Any, dims: Any, theta: Tensor, nodal: Tensor, points: Tensor, *rest: Any) -> Any:
    size = info.batch_size
    theta = fold(size, dims[0], theta)
    points = _fold_points(size, dims[2], points, theta)
    return call(theta, _fold_nodal(size, dims[1], nodal), points, *rest), (0, 0 if rest[3] else None, 0)


def _pull_plane_rule(call: Any, info: Any, dims: Any, *inputs: Any) -> Any:
    size = info.batch_size
    grad, matrix, velocities = (fold(size, dim, tensor) for dim, tensor in zip(dims[:3], inputs[:3], strict=True))
    nodal, points = _fold_nodal(size, dims[3], inputs[3]), _fold_points(size, dims[4], inputs[4], velocities)
    return call(grad, matrix, velocities, nodal, points, *inputs[5:]), (0, 0 if inputs[8] else None)


def _plane_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, nodal, points, *ctx.settings, _, ctx.way = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # or zeros would be made for these
    ctx.save_for_backward(*output[1:], nodal, points)


def _plane_backward(ctx: Any, pull: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 8
    matrix, velocities, nodal, points = ctx.saved_tensors
    to_points = ctx.needs_input_grad[2]
    if ctx.needs_input_grad[0]:
        by_theta, by_point = pull(grad, matrix, velocities, nodal, points, *ctx.settings, to_points, ctx.way)
    else:  # nothing has to follow the particles
        by_theta, by_point = None, _adjoint(grad, matrix)
    by_point = _sum_over_thetas(by_point, points) if to_points else None
    return by_theta, None, by_point, *(None,) * 5


_plane = Operation(
    "pstn::cpab_plane",
    _run_plane,
    _pull_plane,
    fake=_fake_plane,
    fake_pull=_fake_pull_plane,
    rule=_plane_rule,
    pull_rule=_pull_plane_rule,
    context=_plane_context,
    backward=_plane_backward,
)
