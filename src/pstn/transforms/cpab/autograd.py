"""Flows as operations with a first derivative of their own, under autograd, torch.func and torch.compile.

A flow is computed by `run(theta, nodal, points, *settings)`, which returns the moved points, alone or followed by the
tensors that its backward pass needs; without any, theta is kept. The backward pass is
`pull(grad, *kept, nodal, points, to_theta, to_points, *settings)`, which returns the gradients with respect to theta
and to the points of each theta, each empty unless asked for.

Shape:
    theta (..., D); nodal (K, D), or (G, K, D) for G groups of consecutive thetas; points (..., N, ndim) with theta's
    leading axes, or (N, ndim) shared by all thetas. The kept tensors start with theta's leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_vmap


def is_eager() -> bool:
    """Whether neither the compiler nor a torch.func transform is active."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def broadcast(theta: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Give theta and points the same leading axes; points that all thetas share become (N, ndim).

    Args:
        theta: (..., D).
        points: (..., N, ndim), with leading axes that broadcast with theta's.
    """
    if points.dim() == 2:
        return theta, points
    lead = torch.broadcast_shapes(theta.shape[:-1], points.shape[:-2])
    theta = theta.expand(*lead, -1)
    if math.prod(points.shape[:-2]) == 1:
        return theta, points.reshape(points.shape[-2:])
    return theta, points.expand(*lead, -1, -1)


class Operation:
    """A flow in up to three forms, of which a call picks one.

    An autograd function without `setup_context` for eager calls, which has the least overhead; one with it for
    torch.func; and, if named, a custom operator for the compiler and for tracers, which do not look inside.

    Args:
        run: the flow, see the module's docstring; with a name, typed as custom operators are.
        pull: its backward pass, likewise.
        name: of the custom operator, "namespace::name".
        fake: `run` on shapes alone; needed with a name.
    """

    def __init__(
        self, run: Callable[..., Any], pull: Callable[..., Any], *, name: str | None = None, fake: Any = None
    ) -> None:
        self._operator: Any = None
        if name is not None:
            operator = custom_op(name, run, mutates_args=())
            pull_operator = custom_op(f"{name}_pull", pull, mutates_args=())
            for op, on_shapes in ((operator, fake), (pull_operator, _fake_pull)):
                op.register_fake(on_shapes)
                register_vmap(op, partial(_batch, op))
            operator.register_autograd(lambda ctx, *grads: _backward(ctx, pull_operator, *grads), setup_context=_keep)
            self._operator = operator
            run, pull = _or_traced(run, operator), _or_traced(pull, pull_operator)
        self._eager, self._functional = _make_eager(run, pull), _make_functional(run, partial(_Pull.apply, pull))

    def __call__(self, theta: Tensor, nodal: Tensor, points: Tensor, *settings: Any) -> Tensor:
        """The moved points, (..., N, ndim)."""
        if is_eager():
            return self._eager.apply(theta, nodal, points, *settings)
        call = self._operator if torch.compiler.is_compiling() else self._functional.apply
        return _split(call(theta, nodal, points, *settings))[0]


def _split(output: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The moved points, and the tensors kept for the backward pass."""
    return (output[0], output[1:]) if isinstance(output, tuple) else (output, ())


def _or_traced(run: Any, operator: Any) -> Any:
    """`run`, or its operator under a tracer: a trace records operators, but not the launch of a kernel."""

    def call(*inputs: Any) -> Any:
        return operator(*inputs) if torch._C._len_torch_dispatch_stack() else run(*inputs)

    return call


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    theta, nodal, points, *ctx.settings = inputs
    _, kept = _split(output)
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # no zeros for the gradients of what is kept
    ctx.save_for_backward(*(kept or (theta,)), nodal, points)


def _backward(ctx: Any, pull: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    unused = (None,) * len(ctx.settings)
    if grad is None:
        return (None, None, None, *unused)
    to_theta, _, to_points, *_ = ctx.needs_input_grad
    points = ctx.saved_tensors[-1]
    by_theta, by_point = pull(grad, *ctx.saved_tensors, to_theta, to_points, *ctx.settings)
    if to_points and points.dim() == 2:
        by_point = by_point.view(math.prod(by_point.shape[:-2]), *points.shape).sum(0)  # not -1: N may be 0
    return (by_theta if to_theta else None, None, by_point if to_points else None, *unused)


def _make_eager(run: Any, pull: Any) -> Any:
    class Eager(torch.autograd.Function):
        """Without `setup_context`, for which arguments are bound by name at every call, a call takes half the time."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            output = run(*inputs)
            _keep(ctx, inputs, output)
            ctx.inputs = inputs
            return _split(output)[0]

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
            if not torch.is_grad_enabled():  # no second derivative can be asked for
                return _backward(ctx, pull, grad)
            # torch's `once_differentiable` refuses a second derivative only if the incoming gradient requires one, and
            # treats it as zero otherwise.
            with torch.no_grad():
                found = _backward(ctx, pull, grad)
            return tuple(None if g is None else _FirstOnly.apply(g, grad, *ctx.inputs) for g in found)

    return Eager


def _make_functional(run: Any, pull: Any) -> Any:
    class Functional(torch.autograd.Function):
        forward = staticmethod(run)
        setup_context = staticmethod(_keep)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return _backward(ctx, pull, *grads)

        @staticmethod
        def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
            return _batch(Functional.apply, info, dims, *inputs)

    return Functional


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("CPAB has first derivatives only")


class _FirstOnly(torch.autograd.Function):
    """A first derivative, connected to the tensors that it depends on, so that a second one is refused."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Any) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(_refuse)


class _Pull(torch.autograd.Function):
    """A backward pass for torch.func, which records it as if to differentiate it again."""

    @staticmethod
    def forward(pull: Any, *inputs: Any) -> Any:
        return pull(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    backward = staticmethod(_refuse)

    @staticmethod
    def vmap(info: Any, dims: Any, pull: Any, *inputs: Any) -> Any:
        return _batch(partial(_Pull.apply, pull), info, dims[1:], *inputs)


def _fake_pull(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    *kept, nodal, _ = (value for value in inputs if isinstance(value, Tensor))
    to_theta, to_points = inputs[len(kept) + 2 : len(kept) + 4]
    by_theta = (*kept[-1].shape[:-1], nodal.shape[-1]) if to_theta else (0,)
    return grad.new_empty(by_theta), grad.new_empty(grad.shape if to_points else 0)


def _batch(call: Any, info: Any, dims: Any, *inputs: Any) -> Any:
    """Evaluate `run` or `pull` under vmap: the mapped axis becomes the first of theta's leading axes."""
    size = info.batch_size
    *leading, nodal, points = (value for value in inputs if isinstance(value, Tensor))
    count = len(leading)
    leading = [_fold(size, dim, tensor) for dim, tensor in zip(dims, leading, strict=False)]
    if dims[count] is not None or nodal.dim() > 2:
        nodal = _fold(size, dims[count], nodal).flatten(0, -3)
    if dims[count + 1] is not None or points.dim() > 2:
        points, lead = _fold(size, dims[count + 1], points), leading[-1].shape[:-1]
        points = points.view(size, *(1,) * (len(lead) + 2 - points.dim()), *points.shape[1:])
        points = points.expand(*lead, -1, -1).contiguous()
    output = call(*leading, nodal, points, *inputs[count + 2 :])
    return output, torch.utils._pytree.tree_map(lambda tensor: 0 if tensor.dim() > 1 else None, output)


def _fold(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """Move the axis that vmap maps over to the front, or add one."""
    return (tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).contiguous()
