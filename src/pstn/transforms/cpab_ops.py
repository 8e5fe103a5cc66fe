"""CPAB flows as operators: one entry for the line and one for the plane, which choose between kernel and twin.

On the line the twin is plain differentiable torch, which compiles, exports and batches by itself. The kernels, and the
twin in the plane, whose number of steps depends on the data, are three things: custom operators for the compiler, which
does not look into them; functions of autograd for torch.func, which does not differentiate operators; and plainer
functions for everyday use, which cost the least on the host.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op, register_vmap

from pstn._checks import require_choice
from pstn.kernels import kernels_available
from pstn.transforms import cpab2d
from pstn.transforms.cpab1d import flow1d, plain

__all__ = ["BACKENDS", "Backend", "flow_line", "flow_plane", "node_velocities", "require_backend"]

Backend = Literal["auto", "torch", "triton"]
BACKENDS = ("auto", "torch", "triton")


def require_backend(backend: Backend) -> Backend:
    """Refuse anything but the names of `BACKENDS`."""
    require_choice("backend", backend, BACKENDS)
    return backend


def _use_kernel(backend: Backend, theta: Tensor, points: Tensor) -> bool:
    fits = points.dtype == torch.float32 and theta.dtype == torch.float32
    if backend == "triton":
        if not kernels_available(points.device):
            raise ValueError(
                f'backend="triton" needs a CUDA device and the triton package, got tensors on {points.device}: '
                'use backend="auto"'
            )
        return fits  # float64 is for checking: the twin has it
    # The kernel in the plane adds up gradients in no fixed order.
    orderly = torch.are_deterministic_algorithms_enabled()
    return backend == "auto" and fits and points.is_cuda and not orderly and kernels_available(points.device)


def flow_line(theta: Tensor, nodal: tuple[Tensor, Tensor], points: Tensor, closed: bool, backend: Backend) -> Tensor:
    """Move points on the line for unit time.

    Args:
        theta: (..., D).
        nodal: (n + 1, D), velocities at the nodes per unit of theta, in float32 and in float64.
        points: (..., N, 1); leading axes broadcast with theta's.
        closed: whether the velocity is zero at both ends.
        backend: "auto", "torch" or "triton".

    Returns:
        (..., N, 1).
    """
    lead = _lead(theta, points)
    if not _use_kernel(backend, theta, points):
        velocities = node_velocities(theta, nodal[1])
        return flow1d(velocities.expand(*lead, -1), points[..., 0].expand(*lead, -1), closed=closed)[..., None]
    flat_theta, flat_points = _flatten(theta, points, lead)
    moved: Tensor = _pick(_line, _PlainLine, _Line)(
        flat_theta, nodal[0][None], flat_points[..., 0].contiguous(), closed
    )
    return moved.view(*lead, -1, 1)


def flow_plane(
    theta: Tensor, nodal: Tensor, points: Tensor, tess: tuple[int, int], closed: bool, backend: Backend
) -> Tensor:
    """Move points in the plane for unit time.

    Args:
        theta: (..., D).
        nodal: (K * 2, D), velocities at the nodes per unit of theta.
        points: (..., N, 2); leading axes broadcast with theta's.
        tess: cells along x and y.
        closed: whether the velocity normal to the boundary is zero.
        backend: "auto", "torch" or "triton".

    Returns:
        (..., N, 2).
    """
    lead = _lead(theta, points)
    kernel = _use_kernel(backend, theta, points)
    flat_theta, flat_points = _flatten(theta, points, lead)
    velocities = node_velocities(flat_theta, nodal).unflatten(-1, (-1, 2))
    jacobian = torch.is_grad_enabled()
    moved: Tensor = _pick(_plane, _PlainPlane, _Plane)(
        velocities, flat_points.contiguous(), *tess, closed, jacobian, kernel
    )[0]
    return moved.view(*lead, -1, 2)


def node_velocities(theta: Tensor, nodal: Tensor) -> Tensor:
    """The velocities at the nodes, (..., D) and (K, D) -> (..., K), with all the digits of theta's dtype."""
    if theta.device.type == "mps":  # which has no float64
        return (theta[..., None, :] * nodal).sum(-1)
    # In float32, TF32 and autocast would round a product of matrices to a few bits; neither touches float64.
    return (theta.double() @ nodal.double().mT).to(theta.dtype)


def _pick(operator: Any, everyday: Any, functional: Any) -> Any:
    if torch.compiler.is_compiling():
        return operator
    return everyday.apply if plain() else functional.apply


def _lead(theta: Tensor, points: Tensor) -> torch.Size:
    """The leading axes of both, broadcast."""
    return theta.shape[:-1] if points.dim() == 2 else torch.broadcast_shapes(theta.shape[:-1], points.shape[:-2])


def _flatten(theta: Tensor, points: Tensor, lead: torch.Size) -> tuple[Tensor, Tensor]:
    """One leading axis for both; points that all thetas share keep an axis of 1."""
    if theta.dim() == 2 and points.dim() == 2:  # the usual case, and the host's time is what a small batch costs
        return theta.contiguous(), points[None]
    count = math.prod(lead)
    flat_theta = theta.expand(*lead, theta.shape[-1]).reshape(count, theta.shape[-1])
    shared = math.prod(points.shape[:-2]) == 1
    flat_points = points if shared else points.expand(*lead, *points.shape[-2:])
    return flat_theta.contiguous(), flat_points.reshape(1 if shared else count, *points.shape[-2:])


def _fold(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """Fold the axis that vmap maps over into the first one."""
    first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return first.reshape(-1, *first.shape[2:]).contiguous()


def _fold_points(size: int, dim: int | None, points: Tensor, count: int) -> Tensor:
    """The points of every theta, unless all share them."""
    shared = points.shape[0 if dim is None or dim > 0 else 1] == 1
    if dim is None and shared:
        return points
    first = points.expand(size, *points.shape) if dim is None else points.movedim(dim, 0)
    if shared:
        first = first.expand(size, count // size, *first.shape[2:])
    return first.reshape(-1, *first.shape[2:]).contiguous()


def _traced() -> bool:
    """Whether a tracer watches: it records operators, and would not see the launch of a kernel."""
    return torch._C._len_torch_dispatch_stack() > 0


class _Pull(torch.autograd.Function):
    """A backward pass; torch.func records what a backward pass does, as if to differentiate it again."""

    @staticmethod
    def forward(run: Any, rule: Any, *inputs: Any) -> Any:
        return run(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("CPAB has first derivatives only")

    @staticmethod
    def vmap(info: Any, dims: Any, run: Any, rule: Any, *inputs: Any) -> Any:
        return rule(lambda *folded: _Pull.apply(run, rule, *folded), info, dims[2:], *inputs)


# ----------------------------------------------------------------------------------------------------------- the line


def _run_line(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    from pstn.kernels.cpab1d import flow1d_forward

    if _traced():
        return _line(theta, nodal, points, closed)
    return flow1d_forward(theta, nodal, points, closed)


def _run_line_pull(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    from pstn.kernels.cpab1d import flow1d_backward

    if _traced():
        return _line_pull(grad.contiguous(), theta, nodal, points, closed, to_points)
    return flow1d_backward(grad.contiguous(), theta, nodal, points, closed, to_points)


def _line_rule(call: Any, info: Any, dims: Any, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Any:
    size = info.batch_size
    theta = _fold(size, dims[0], theta)
    nodal = nodal if dims[1] is None else _fold(size, dims[1], nodal)
    points = _fold_points(size, dims[2], points, theta.shape[0])
    return call(theta, nodal, points, closed).unflatten(0, (size, -1)), 0


def _line_pull_rule(
    call: Any, info: Any, dims: Any, grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, *flags: bool
) -> Any:
    size = info.batch_size
    theta = _fold(size, dims[1], theta)
    nodal = nodal if dims[2] is None else _fold(size, dims[2], nodal)
    points = _fold_points(size, dims[3], points, theta.shape[0])
    by_theta, by_point = call(_fold(size, dims[0], grad), theta, nodal, points, *flags)
    by_point = by_point.unflatten(0, (size, -1)) if flags[1] else by_point
    return (by_theta.unflatten(0, (size, -1)), by_point), (0, 0 if flags[1] else None)


_line = custom_op("pstn::cpab_line", _run_line, mutates_args=())
_line_pull = custom_op("pstn::cpab_line_pull", _run_line_pull, mutates_args=())
register_vmap(_line, partial(_line_rule, _line))
register_vmap(_line_pull, partial(_line_pull_rule, _line_pull))


@_line.register_fake
def _(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    return theta.new_empty(theta.shape[0], points.shape[1])


@_line_pull.register_fake
def _(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(theta), torch.empty_like(grad) if to_points else theta.new_empty(0)


def _line_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.closed = inputs
    ctx.save_for_backward(*tensors)


def _line_backward(ctx: Any, grad: Tensor, pull: Any = _line_pull) -> tuple[Any, ...]:
    theta, nodal, points = ctx.saved_tensors
    to_points = ctx.needs_input_grad[2]
    by_theta, by_point = pull(grad, theta, nodal, points, ctx.closed, to_points)
    if not to_points:
        return by_theta, None, None, None
    return by_theta, None, by_point.sum(0, keepdim=True) if points.shape[0] == 1 else by_point, None


_line.register_autograd(_line_backward, setup_context=_line_context)


class _Line(torch.autograd.Function):
    """The kernel with its derivative, for torch.func."""

    @staticmethod
    def forward(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
        return _run_line(theta, nodal, points, closed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _line_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _line_backward(ctx, grad, partial(_Pull.apply, _run_line_pull, _line_pull_rule))

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _line_rule(_Line.apply, info, dims, *inputs)


class _PlainLine(torch.autograd.Function):
    """`_Line` for everyday use: without `setup_context`, which binds arguments by name at every call, it costs half."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = _run_line(*inputs)
        _line_context(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _line_backward(ctx, grad, _run_line_pull)


# ---------------------------------------------------------------------------------------------------------- the plane


def _run_plane(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, kernel: bool
) -> tuple[Tensor, Tensor]:
    if _traced():
        return _plane(velocities, points, nx, ny, closed, jacobian, kernel)
    if kernel:
        from pstn.kernels.cpab2d import flow2d_forward

        return flow2d_forward(velocities.contiguous(), points, nx, ny, closed, jacobian)
    points = points.expand(velocities.shape[0], -1, -1)
    return cpab2d.flow(velocities, points, nx, ny, closed, jacobian)


def _run_plane_pull(
    adjoint: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, kernel: bool
) -> Tensor:
    if _traced():
        return _plane_pull(adjoint.contiguous(), velocities, points, nx, ny, closed, kernel)
    if kernel:
        from pstn.kernels.cpab2d import flow2d_backward

        return flow2d_backward(adjoint.contiguous(), velocities.contiguous(), points, nx, ny, closed).contiguous()
    points = points.expand(velocities.shape[0], -1, -1)
    return cpab2d.pull_back(adjoint, velocities, points, nx, ny, closed).contiguous()


def _plane_rule(call: Any, info: Any, dims: Any, velocities: Tensor, points: Tensor, *rest: Any) -> Any:
    size = info.batch_size
    velocities = _fold(size, dims[0], velocities)
    moved, jacobian = call(velocities, _fold_points(size, dims[1], points, velocities.shape[0]), *rest)
    if not rest[3]:
        return (moved.unflatten(0, (size, -1)), jacobian), (0, None)
    return (moved.unflatten(0, (size, -1)), jacobian.unflatten(0, (size, -1))), (0, 0)


def _plane_pull_rule(
    call: Any, info: Any, dims: Any, adjoint: Tensor, velocities: Tensor, points: Tensor, *rest: Any
) -> Any:
    size = info.batch_size
    velocities = _fold(size, dims[1], velocities)
    points = _fold_points(size, dims[2], points, velocities.shape[0])
    return call(_fold(size, dims[0], adjoint), velocities, points, *rest).unflatten(0, (size, -1)), 0


_plane = custom_op("pstn::cpab_plane", _run_plane, mutates_args=())
_plane_pull = custom_op("pstn::cpab_plane_pull", _run_plane_pull, mutates_args=())
register_vmap(_plane, partial(_plane_rule, _plane))
register_vmap(_plane_pull, partial(_plane_pull_rule, _plane_pull))


@_plane.register_fake
def _(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, kernel: bool
) -> tuple[Tensor, Tensor]:
    moved = points.new_empty(velocities.shape[0], points.shape[1], 2)
    return moved, points.new_empty(*moved.shape[:2], 4) if jacobian else points.new_empty(0)


@_plane_pull.register_fake
def _(adjoint: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, kernel: bool) -> Tensor:
    return velocities.new_empty(velocities.shape)


def _plane_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    velocities, points, nx, ny, closed, _, kernel = inputs
    ctx.settings = (nx, ny, closed, kernel)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(velocities, points, output[1])


def _plane_backward(ctx: Any, grad: Tensor, _: Any, pull: Any = _plane_pull) -> tuple[Any, ...]:
    velocities, points, jacobian = ctx.saved_tensors
    adjoint = torch.addcmul(jacobian[..., :2] * grad[..., :1], jacobian[..., 2:], grad[..., 1:])
    by_velocity, by_point = None, None
    if ctx.needs_input_grad[0]:
        by_velocity = pull(adjoint, velocities, points, *ctx.settings)
    if ctx.needs_input_grad[1]:
        by_point = adjoint.sum(0, keepdim=True) if points.shape[0] == 1 else adjoint
    return by_velocity, by_point, None, None, None, None, None


_plane.register_autograd(_plane_backward, setup_context=_plane_context)


class _Plane(torch.autograd.Function):
    """The flow with its derivative, for torch.func."""

    @staticmethod
    def forward(
        velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, kernel: bool
    ) -> tuple[Tensor, Tensor]:
        return _run_plane(velocities, points, nx, ny, closed, jacobian, kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _plane_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
        return _plane_backward(ctx, grad, _, partial(_Pull.apply, _run_plane_pull, _plane_pull_rule))

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _plane_rule(_Plane.apply, info, dims, *inputs)


class _PlainPlane(torch.autograd.Function):
    """`_Plane` for everyday use, as `_PlainLine`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _run_plane(*inputs)
        _plane_context(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
        return _plane_backward(ctx, grad, _, _run_plane_pull)
