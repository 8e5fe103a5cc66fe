"""A computation that torch is not to look into, with a first derivative of its own, wherever torch runs it.

It is three things: a custom operator for the compiler, which does not trace it; a function of autograd for torch.func,
which does not differentiate operators; and a plainer function for everyday use, which costs the least on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_vmap

__all__ = ["Operation", "first_derivative", "fold", "plain"]

_FIRST_ONLY = "CPAB has first derivatives only"


def plain() -> bool:
    """Whether neither the compiler nor torch.func is at work."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


class Operation:
    """The three forms of a computation; a call picks one.

    Args:
        name: of the custom operator, "namespace::name".
        run: the computation, typed as operators are.
        pull: its backward pass, typed as operators are.
        fake: `run` on shapes alone.
        fake_pull: `pull` on shapes alone.
        rule: how to run it on a batch: called with a form of `run`, vmap's info and axes, and the inputs.
        pull_rule: the same for `pull`.
        context: keeps on ctx what the backward pass needs, from inputs and output.
        backward: the inputs' gradients, from ctx, a form of `pull` and the outputs' gradients.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., Any],
        pull: Callable[..., Any],
        *,
        fake: Callable[..., Any],
        fake_pull: Callable[..., Any],
        rule: Callable[..., Any],
        pull_rule: Callable[..., Any],
        context: Callable[..., None],
        backward: Callable[..., tuple[Any, ...]],
    ) -> None:
        operator, pull_operator = (custom_op(n, f, mutates_args=()) for n, f in ((name, run), (f"{name}_pull", pull)))
        operator.register_fake(fake)
        pull_operator.register_fake(fake_pull)
        register_vmap(operator, partial(rule, operator))
        register_vmap(pull_operator, partial(pull_rule, pull_operator))
        operator.register_autograd(lambda ctx, *grads: backward(ctx, pull_operator, *grads), setup_context=context)
        self._operator = operator
        run, pull = _or_recorded(run, operator), _or_recorded(pull, pull_operator)
        self._everyday = _make_everyday(run, pull, context, backward)
        self._functional = _make_functional(run, partial(_Pull.apply, pull, pull_rule), rule, context, backward)

    def __call__(self, *inputs: Any) -> Any:
        """What `run` returns."""
        if torch.compiler.is_compiling():
            return self._operator(*inputs)
        return (self._everyday if plain() else self._functional).apply(*inputs)


def _or_recorded(run: Any, operator: Any) -> Any:
    """`run`, but its operator where a tracer watches: a trace holds operators, and misses the launch of a kernel."""

    def call(*inputs: Any) -> Any:
        return operator(*inputs) if torch._C._len_torch_dispatch_stack() else run(*inputs)

    return call


def _make_everyday(run: Any, pull: Any, context: Any, derive: Any) -> Any:
    class Everyday(torch.autograd.Function):
        """Without `setup_context`, for which arguments are bound by name at every call, a function costs half."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            context(ctx, inputs, output)
            ctx.inputs = inputs
            return output

        @staticmethod
        @first_derivative
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return derive(ctx, pull, *grads)

    return Everyday


def first_derivative(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward pass, for a function that keeps its inputs as `ctx.inputs`, whose own derivative is refused.

    torch's `once_differentiable` refuses it only where the gradients that come in can be differentiated, and takes the
    second derivative for zero elsewhere.
    """

    @wraps(backward)
    def once(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():  # nobody can ask for more
            return backward(ctx, *grads)
        with torch.no_grad():
            found = backward(ctx, *grads)
        return tuple(None if g is None else _Refuse.apply(g, *grads, *ctx.inputs) for g in found)

    return once


class _Refuse(torch.autograd.Function):
    """A first derivative, and what it depends on."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Any) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(_FIRST_ONLY)


def _make_functional(run: Any, pull: Any, rule: Any, context: Any, derive: Any) -> Any:
    class Functional(torch.autograd.Function):
        forward = staticmethod(run)
        setup_context = staticmethod(context)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return derive(ctx, pull, *grads)

        @staticmethod
        def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
            return rule(Functional.apply, info, dims, *inputs)

    return Functional


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
        raise NotImplementedError(_FIRST_ONLY)

    @staticmethod
    def vmap(info: Any, dims: Any, run: Any, rule: Any, *inputs: Any) -> Any:
        return rule(lambda *folded: _Pull.apply(run, rule, *folded), info, dims[2:], *inputs)


def fold(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """Put the axis that vmap maps over first, making one where there is none."""
    return (tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).contiguous()
