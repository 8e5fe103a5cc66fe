"""Diagnosis of training that fails: where a NaN came from, and the known ways to collapse."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pstn._checks import skip_value_checks
from pstn.distributions import GatedPosterior, MixturePosterior, Posterior
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
    return [text for _, text in _found(model, x, tolerance)]


def fatal_collapse(model: nn.Module, x: Tensor) -> str:
    """The first of the collapses after which a classifier is shown nothing; empty when there is none.

    An error counts as none: whoever trains goes on.
    """
    try:
        return next((text for fatal, text in _found(model, x) if fatal), "")
    except Exception:
        return ""


def _found(model: nn.Module, x: Tensor, tolerance: float = 1e-3) -> list[tuple[bool, str]]:
    """The collapses of a model: whether its classifier is shown nothing, and in words."""
    if not isinstance(model, TransformerModel):
        return []
    with evaluating(model), torch.no_grad():
        posterior = model.layer.localize(x)
        loc = posterior.mode
        shown = model.layer.warp(x, loc[None])[0]
    transform = model.layer.transform
    corners = transform.corners(loc)
    extent = float(((corners.amax(-2) - corners.amin(-2)).amax(-1) / 2).median())
    contrast = [float(images.flatten(1).std(1).median()) for images in (x, shown)]
    # Samples around the identity are an augmentation, which a classifier that learns beside it can use.
    augments = model.layer.probabilistic and any(
        p.requires_grad for name, p in model.named_parameters() if not name.startswith("layer.")
    )
    checks = [
        (
            False,
            float((loc - transform.initial().to(loc)).abs().max()) < tolerance and not augments,
            "The transformation is the identity for every input: the localizer has learned nothing. Try a larger "
            "localizer_factor, more samples, or a larger kl_weight.",
        ),
        (
            True,
            extent < 0.05,
            f"The scale has gone to nothing: the median input is read through {extent:.3g} of its width. Try a smaller "
            "localizer_factor, transform='similarity-log', or fill= with the background's value.",
        ),
        (
            True,
            extent > 5,
            f"The transformation looks far outside: it spans {extent:.3g} widths of the median input, mostly "
            "background. Try a smaller localizer_factor, or fill= with the background's value.",
        ),
        (
            True,
            0.05 <= extent <= 5 and contrast[1] < 0.02 * contrast[0],
            f"The window shows nothing: what the classifier reads varies by {contrast[1]:.2g}, the inputs by "
            f"{contrast[0]:.2g}. Try a smaller localizer_factor, or a smaller family.",
        ),
    ]
    student_t = posterior
    while isinstance(student_t, (MixturePosterior, GatedPosterior)):
        student_t = student_t.components if isinstance(student_t, MixturePosterior) else student_t.base
    if isinstance(student_t, Posterior):
        scale, beta = float(student_t.scale.median()), float(student_t.beta.median())
        is_prior = 0.8 < beta < 1.25 and float(student_t.beta.std()) < 0.1 and scale >= 1e-3
        checks += [
            (
                False,
                scale < 1e-3,
                f"The posterior's variance has gone to nothing (median scale {scale:.2g}): samples no longer differ, "
                "and this is an STN. Try a larger kl_weight.",
            ),
            (
                False,
                is_prior,
                f"The posterior is the prior (median beta {beta:.3g}): samples are as wild as before seeing any data. "
                "Try a smaller kl_weight.",
            ),
            (
                True,
                scale > 1.5 and not is_prior,
                f"The posterior is wider than the prior (median scale {scale:.3g}): most samples miss the input, and "
                "the classifier reads background. Try a smaller localizer_factor, var_init or family.",
            ),
        ]
    return [(fatal, text) for fatal, found, text in checks if found]


def look_for_collapses(model: nn.Module, x: Tensor) -> list[str]:
    """`collapses` for trainers: an error is reported as a problem, as a warning must not stop a run."""
    try:
        return collapses(model, x)
    except Exception as error:
        return [f"The check for a collapsed transformation failed: {error}."]
