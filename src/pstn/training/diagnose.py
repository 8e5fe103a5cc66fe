"""Diagnosis of training that fails: where a NaN came from, and the known ways to collapse."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pstn._checks import skip_value_checks
from pstn.distributions import Posterior
from pstn.nn.classifier import TransformerModel, evaluating
from pstn.training.population.stack import Stack, Tensors
from pstn.training.population.step import differentiate_one, make_batch


def diagnose(stack: Stack, row: int, step: int, loss: float) -> str:
    """Take the step at which a model broke once more, without its update, and say which part is not finite.

    A broken model's weights are those before the step, and its noise is a function of the step: the same numbers come
    out again. An error in the diagnosis is reported, not raised: the other models keep training.

    Args:
        stack: the stack that the model belongs to.
        row: its place there.
        step: the step at which it broke.
        loss: the loss that it had there.
    """
    try:
        return _repeat(stack, row, step, loss)
    except Exception as error:
        return f"Repeating the step raised: {error}."


def _repeat(stack: Stack, row: int, step: int, loss: float) -> str:
    def only(tensors: Tensors) -> Tensors:
        return {name: t[row : row + 1] for name, t in tensors.items()}

    noise = {name: t[0] for name, t in stack.draw(step, 1).items()}
    params = only(stack.parameters(stack.state["rows"]))
    if bad := _first_not_finite(params):
        return f"The parameter {bad} was not finite before the step."
    own = only({name: stack.state[f"buffer.{name}"].clone() for name in stack.buffers} | stack.constants.frozen)
    parts, seen, theta = _named_parts(stack.module), Tensors(), ""
    hooks = [part.register_forward_hook(partial(_keep, seen, name)) for name, part in parts.items()]
    try:
        for number in range(stack.recipe.accumulate):
            seen.clear()
            with skip_value_checks():
                batch = only(make_batch(stack, stack.constants, noise, number))
                grads, _ = differentiate_one(stack, params, own, stack.constants.shared, batch)
            theta = _theta_report(stack.module, seen)
            if bad := _first_not_finite(seen):
                return f"The first part with values that are not finite: the {bad}. {theta}"
            if bad := _first_not_finite(grads):
                return f"The forward pass was finite, the gradient of {bad} was not. {theta}"
    finally:
        for hook in hooks:
            hook.remove()
    reason = "the loss exceeded its limit" if loss >= stack.recipe.loss_limit else "its gradient's norm overflowed"
    return f"{theta} Every value was finite when the step was repeated: {reason}."


def _first_not_finite(tensors: Tensors) -> str | None:
    return next((name for name, value in tensors.items() if not bool(torch.isfinite(value).all())), None)


def _named_parts(module: nn.Module) -> dict[str, nn.Module]:
    if not isinstance(module, TransformerModel):
        return {"classifier": module}
    heads = {f"{name} head": module.layer.get_submodule(f"{name}_head") for name in module.layer.heads}
    return {"localizer": module.layer.localizer, **heads, "classifier": getattr(module, "classifier", module)}


def _keep(seen: Tensors, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    while not isinstance(output, Tensor):
        output = output[0]  # a tuple, or whatever else a module of the user's returns
    seen.setdefault(name, output.detach())


def _theta_report(module: nn.Module, seen: Tensors) -> str:
    if not isinstance(module, TransformerModel) or not all(f"{h} head" in seen for h in module.layer.heads):
        return ""
    layer = module.layer
    heads = {name: seen[f"{name} head"].flatten(0, -2) for name in layer.heads}
    with skip_value_checks(), torch.no_grad():
        posterior = layer.posterior.build(layer.transform, {**heads, **layer.shared()})
        low, high = posterior.interval(0.5)
    means = [[f"{v:.3g}" for v in t.mean(0).tolist()] for t in (posterior.mode, high - low)]
    return "Theta's mean over the batch was ({}), the width of its 50% interval ({}).".format(*map(", ".join, means))


def collapses(model: nn.Module, x: Tensor, *, tolerance: float = 1e-3) -> list[str]:
    """Name the known ways to collapse that a model shows on these inputs, each with what to try.

    Args:
        model: a PSTN or STN; any other model has nothing to collapse.
        x: (B, C, *in), a few dozen inputs.
        tolerance: what counts as no change.

    Returns:
        One sentence or two for each collapse; empty when all is well.

    Example:
        >>> collapses(pstn.nn.mnist_stn(), torch.rand(16, 1, 28, 28))[0][:38]
        'The transformation is the identity for'
    """
    if not isinstance(model, TransformerModel):
        return []
    with evaluating(model), torch.no_grad():
        posterior = model.layer.localize(x)
    transform, loc = model.layer.transform, posterior.mode
    corners = transform.corners(loc)
    extent = float(((corners.amax(-2) - corners.amin(-2)).amax(-1) / 2).median())
    checks = [
        (
            float((loc - transform.initial().to(loc)).abs().max()) < tolerance,
            "The transformation is the identity for every input: the localizer has learned nothing. Try a larger "
            "localizer_factor, more samples, or a larger kl_weight.",
        ),
        (
            extent < 0.05,
            f"The scale has gone to nothing: the median input is read through {extent:.3g} of its width. Try a smaller "
            "localizer_factor, transform='similarity-log', or fill= with the background's value.",
        ),
        (
            extent > 5,
            f"The transformation looks far outside: it spans {extent:.3g} widths of the median input, mostly "
            "background. Try a smaller localizer_factor, or fill= with the background's value.",
        ),
    ]
    if isinstance(posterior, Posterior):
        scale, beta = float(posterior.scale.median()), float(posterior.beta.median())
        is_prior = 0.8 < beta < 1.25 and float(posterior.beta.std()) < 0.1 and scale >= 1e-3
        checks += [
            (
                scale < 1e-3,
                f"The posterior's variance has gone to nothing (median scale {scale:.2g}): samples no longer differ, "
                "and this is an STN. Try a larger kl_weight.",
            ),
            (
                is_prior,
                f"The posterior is the prior (median beta {beta:.3g}): samples are as wild as before seeing any data. "
                "Try a smaller kl_weight.",
            ),
            (
                scale > 1.5 and not is_prior,
                f"The posterior is wider than the prior (median scale {scale:.3g}): most samples miss the input, and "
                "the classifier reads background. Try a smaller localizer_factor, var_init or family.",
            ),
        ]
    return [text for found, text in checks if found]


def look_for_collapses(model: nn.Module, x: Tensor) -> list[str]:
    """`collapses` for trainers: an error is reported as a problem, as a warning must not stop a run."""
    try:
        return collapses(model, x)
    except Exception as error:
        return [f"The check for a collapsed transformation failed: {error}."]
