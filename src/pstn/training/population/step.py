"""One training step of a stack of models, as one flat list of tensor operations.

The step is written with `torch.func` (one model, then vmap), traced once, and from then on runs as the traced list:
without autograd's and vmap's bookkeeping, and ready to be captured as a CUDA graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pstn._checks import skip_value_checks
from pstn.objective import Loss, TrainingLoss, count_hits
from pstn.training.population.recipe import Recipe
from pstn.training.population.stacking import Stack, Template, join_rows, view_rows

__all__ = [
    "METRICS",
    "Constants",
    "State",
    "StepNoise",
    "fold_constants",
    "make_step",
    "model_losses",
    "report_parts",
    "trace",
]

# Where the shared tensors stand among the arguments of a loss.
_SHARED = 3

METRICS = ("loss", "nll", "kl", "accuracy", "grad_norm")
"""What each step reports for each model."""


class State(NamedTuple):
    """What training changes, N models side by side. All of it goes into a checkpoint."""

    rows: Tensor
    """(N, P), parameters."""
    mean: Tensor
    """(N, P), Adam's running mean of gradients."""
    square: Tensor
    """(N, P), Adam's running mean of squared gradients."""
    alive: Tensor
    """(N,), whether a model still trains."""
    buffers: list[Tensor]
    """(N, ...) each: running statistics."""


class Constants(NamedTuple):
    """What training reads and does not change."""

    x: Tensor
    """(M, C, *size), all examples."""
    y: Tensor
    """(M, ...), their classes or other targets."""
    weights: list[Tensor]
    """One tensor (M,), how much each example counts; none where all count the same."""
    rates: Tensor
    """(N, P), each parameter's learning rate."""
    decay: Tensor
    """(N, 1), weight decay."""
    kl_weight: Tensor
    """(N,)."""
    frozen: list[Tensor]
    """(N, ...) each: frozen parameters that differ between models."""
    shared: list[Tensor]
    """Frozen parameters that all models have in common."""


class StepNoise(NamedTuple):
    """What one step is given; A micro-batches. The noise of several steps has the steps in front of each tensor."""

    examples: Tensor
    """(N, A, B), which examples."""
    schedule: Tensor
    """(2,): the schedule's factor over Adam's first bias correction, and one over the root of its second."""
    theta: Tensor | None
    """(N, A, S, B, D)."""
    dropout: list[Tensor]
    """(N, A, ...) each."""
    augment: Tensor | None
    """(N, A, B, width)."""
    kl_weight: Tensor | None = None
    """(N,), in place of the constant one where a model's weight follows a schedule."""

    def step(self, k: int) -> StepNoise:
        """Step `k` of a block of noise, whose tensors have the steps in front; without copying."""
        theta = None if self.theta is None else self.theta[k]
        augment = None if self.augment is None else self.augment[k]
        kl_weight = None if self.kl_weight is None else self.kl_weight[k]
        return StepNoise(self.examples[k], self.schedule[k], theta, [u[k] for u in self.dropout], augment, kl_weight)

    def tensors(self) -> list[Tensor]:
        """All tensors that there are."""
        optional = [t for t in (self.theta, self.augment, self.kl_weight) if t is not None]
        return [self.examples, self.schedule, *self.dropout, *optional]

    def first(self, count: int) -> StepNoise:
        """A copy of the first steps of a block."""

        def part(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[:count].clone()

        dropout = [u[:count].clone() for u in self.dropout]
        examples, schedule = self.examples[:count].clone(), self.schedule[:count].clone()
        return StepNoise(examples, schedule, part(self.theta), dropout, part(self.augment), part(self.kl_weight))


def report_parts(loss: Loss, output: Any, y: Tensor) -> Tensor:
    """(nll, kl, accuracy) of a batch, (3,), for the report; NaN for what there is not."""
    hits = count_hits(output, y)
    parts = [torch.full_like(hits, torch.nan) if part is None else part.detach() for part in (loss.nll, loss.kl)]
    return torch.stack([*parts, hits])


def model_losses(template: Template, stack: Stack, recipe: Recipe) -> Callable[..., Any]:
    """The loss of one model on one micro-batch, as a function of its parameters and of everything else it needs."""
    training_loss = TrainingLoss(recipe.loss)

    def loss(
        params: dict[str, Tensor],
        buffers: list[Tensor],
        frozen: list[Tensor],
        shared: list[Tensor],
        x: Tensor,
        y: Tensor,
        weights: list[Tensor],
        kl_weight: Tensor,
        theta: Tensor | None,
        dropout: list[Tensor],
        augment: Tensor | None,
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        template.supply(dropout)
        held = dict(zip((*stack.buffers, *stack.frozen, *stack.shared), (*buffers, *frozen, *shared), strict=True))
        if recipe.augment is not None:
            assert augment is not None
            x = recipe.augment(x, augment)
        options = {} if theta is None else {"noise": theta}
        with _autocast(recipe, x.device.type):
            output = functional_call(template.module, {**params, **held}, (x,), options)
        made = training_loss(output, y, kl_weight, weights[0] if weights else None)
        return made.total, (report_parts(made, output, y), buffers)

    return loss


def _autocast(recipe: Recipe, device: str) -> AbstractContextManager[Any]:
    # Without the cache: it would keep casts of one step's weights for the next.
    return (
        torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)
        if recipe.precision == "bf16"
        else nullcontext()
    )


def _all_by_vmap(losses: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients (N, ...) by name, losses (N,) and their parts (N, 3) of a stack of models, at once."""
    per_model = grad_and_value(losses, has_aux=True)

    def differentiate(*arguments: Any) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        in_dims = tuple(None if k == _SHARED or value is None else 0 for k, value in enumerate(arguments))
        found, (loss, (parts, _)) = vmap(per_model, in_dims=in_dims)(*arguments)
        return found, loss.detach(), parts

    return differentiate


def _one_by_autograd(losses: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a stack of one, without torch.func: fewer operations, and any operator will do."""

    def first(value: Any) -> Any:
        return [v[0] for v in value] if isinstance(value, list) else None if value is None else value[0]

    def differentiate(*arguments: Any) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        params = {name: value[0].detach().requires_grad_() for name, value in arguments[0].items()}
        rest = [value if k == _SHARED else first(value) for k, value in enumerate(arguments) if k]
        with skip_value_checks(), torch.enable_grad():
            loss, (parts, _) = losses(params, *rest)
        found = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
        return {k: g[None] for k, g in zip(params, found, strict=True)}, loss.detach()[None], parts[None]

    return differentiate


def make_step(
    template: Template, stack: Stack, recipe: Recipe, models: int
) -> Callable[[State, Constants, StepNoise], Tensor]:
    """The function that takes one optimiser step with every model of a stack, in place.

    It returns (N, 5), the metrics of each model. A model whose loss or gradient is not finite, or whose loss exceeds
    the limit, is no longer alive: from that step on its parameters and running statistics stay as they are.
    """
    losses = model_losses(template, stack, recipe)
    differentiate = _one_by_autograd(losses) if models == 1 else _all_by_vmap(losses)
    passes = recipe.accumulate

    def step(state: State, constants: Constants, noise: StepNoise) -> Tensor:
        before = [buffer.clone() for buffer in state.buffers]
        kl_weight = constants.kl_weight if noise.kl_weight is None else noise.kl_weight
        params = view_rows(stack, state.rows)
        grads: dict[str, Tensor] = {}
        metrics: Tensor | None = None
        for part in range(passes):
            index = noise.examples[:, part]
            theta = None if noise.theta is None else noise.theta[:, part]
            augment = None if noise.augment is None else noise.augment[:, part]
            dropout = [u[:, part] for u in noise.dropout]
            found, loss, parts = differentiate(
                params, state.buffers, constants.frozen, constants.shared, constants.x[index], constants.y[index],
                [w[index] for w in constants.weights], kl_weight, theta, dropout, augment,
            )  # fmt: skip
            report = torch.cat([loss[:, None], parts], dim=1)
            metrics = report if metrics is None else metrics + report
            grads = {k: g if part == 0 else grads[k] + g for k, g in found.items()}
        assert metrics is not None
        grad = join_rows(stack, grads)
        if passes > 1:
            grad, metrics = grad / passes, metrics / passes
        norm = torch.linalg.vector_norm(grad, dim=1)
        # A NaN compares as false, and an infinite norm times zero is NaN.
        alive = (torch.add(metrics[:, 0], norm, alpha=0) < recipe.loss_limit) & state.alive
        state.alive.copy_(alive)
        if recipe.clip_norm is not None:
            grad = grad * (recipe.clip_norm / (norm + 1e-6)).clamp(max=1.0)[:, None]
        _adam(state, constants, grad, alive, noise.schedule, recipe)
        for buffer, old in zip(state.buffers, before, strict=True):
            buffer.copy_(torch.where(alive.view(-1, *[1] * (buffer.dim() - 1)), buffer, old))
        return torch.cat([metrics, norm[:, None]], dim=1)

    return step


def _adam(state: State, constants: Constants, grad: Tensor, alive: Tensor, schedule: Tensor, recipe: Recipe) -> None:
    """Adam with its L2 term, in place, on the models that are alive."""
    beta1, beta2 = recipe.betas
    grad = torch.addcmul(grad, state.rows, constants.decay)
    grad = torch.where(alive[:, None], grad, torch.zeros_like(grad))  # a NaN must not reach the running means
    state.mean.lerp_(grad, 1 - beta1)
    state.square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    scale = schedule[0] * alive
    change = state.mean / torch.addcmul(torch.full_like(schedule[1], recipe.eps), state.square.sqrt(), schedule[1])
    state.rows.addcmul_(change * constants.rates, scale[:, None], value=-1)


def trace(
    step: Callable[..., Tensor], state: State, constants: Constants, noise: StepNoise, *, compile: bool = False
) -> Callable[..., Tensor]:
    """`step` as a flat program of the same signature; run on copies, so that `state` stays as it is.

    With `compile`, torch.compile then fuses its small operations into few kernels.
    """
    flat, rebuild = _flatten((state, constants, noise))
    example = [t.clone() if i < _count(state) else t for i, t in enumerate(flat)]
    traced = make_fx(lambda *tensors: step(*rebuild(tensors)))(*example)
    fold_constants(traced)
    program: Callable[..., Tensor] = torch.compile(traced) if compile else traced

    def run(state: State, constants: Constants, noise: StepNoise) -> Tensor:
        return program(*_flatten((state, constants, noise))[0])

    return run


def _count(state: State) -> int:
    return 4 + len(state.buffers)


def _flatten(tree: tuple[State, Constants, StepNoise]) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, spec = tree_flatten(tree)
    at = [i for i, leaf in enumerate(leaves) if leaf is not None]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        full: list[Any] = [None] * len(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            full[i] = tensor
        return tree_unflatten(full, spec)

    return [leaves[i] for i in at], rebuild


def fold_constants(program: fx.GraphModule) -> None:
    """Replace what is computed from constants alone (coordinate grids, for one) by its value, in place.

    Operations that write into their arguments, draw random numbers or return anything but tensors are left alone.
    """
    written = _written(program.graph)
    values: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr" and node not in written:
            values[node] = getattr(program, node.target)
        elif node.op == "call_function" and node not in written and _is_pure(node):
            inputs = node.all_input_nodes
            if all(i in values for i in inputs):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
                result = node.target(*args, **kwargs)
                if isinstance(result, Tensor):
                    values[node] = result
    for node, value in values.items():
        if node.op != "call_function" or all(user in values for user in node.users):
            continue
        name = f"_folded_{node.name}"
        program.register_buffer(name, value.detach().clone(), persistent=False)
        with program.graph.inserting_before(node):
            node.replace_all_uses_with(program.graph.get_attr(name))
    program.graph.eliminate_dead_code(_acts)
    program.recompile()


def _acts(node: fx.Node) -> bool:
    """Whether a node does more than return a value, as far as can be known."""
    known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
    return node.is_impure() or (node.op == "call_function" and not known)


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose memory some operation writes into, with the views that share it."""
    written: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        target = node.target
        if target is operator.getitem:
            if node in written:
                written.update(node.all_input_nodes)
        elif isinstance(target, torch._ops.OpOverload):
            given = {**dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)), **node.kwargs}
            for argument in target._schema.arguments:
                alias = argument.alias_info
                if alias is not None and (alias.is_write or node in written):
                    fx.node.map_arg(given.get(argument.name), written.add)
        elif _acts(node):
            written.update(node.all_input_nodes)  # no schema says what it writes: a kernel's launch, for one
    return written
