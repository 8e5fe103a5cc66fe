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


def diagnose(stack: Stack, row: int, step: int) -> str:
    """Take the step at which a model broke once more, without its update, and name what is not finite first.

    A broken model's weights are those before the step, and its noise is a function of the step: the same numbers come
    out again. An error in the diagnosis is reported, not raised: the other models keep training.

    Args:
        stack: the stack that the model belongs to.
        row: its place there.
        step: the step at which it broke.
    """

    def only(tensors: Tensors) -> Tensors:
        return {name: t[row : row + 1] for name, t in tensors.items()}

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(f"the output of {name or 'the model'}")

    found: list[str] = []
    noise = {name: t[0] for name, t in stack.draw(step, 1).items()}
    own = only({name: stack.state[f"buffer.{name}"].clone() for name in stack.buffers} | stack.constants.frozen)
    hooks = [part.register_forward_hook(partial(look, name)) for name, part in stack.module.named_modules()]
    try:
        for part in range(stack.recipe.accumulate):
            with skip_value_checks():
                batch = only(make_batch(stack, stack.constants, noise, part))
                params = only(stack.parameters(stack.state["rows"]))
                grads, _ = differentiate_one(stack, params, own, stack.constants.shared, batch)
            found += [f"the gradient of {name}" for name, g in grads.items() if not bool(torch.isfinite(g).all())]
    except Exception as error:
        return f"Repeating the step raised: {error}."
    finally:
        for hook in hooks:
            hook.remove()
    return f"Not finite is {found[0]}." if found else "Every value was finite when the step was repeated."


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


def look_for_collapses(model: nn.Module, x: Tensor) -> list[str]:
    """`collapses` for trainers: an error is reported as a problem, as a warning must not stop a run."""
    try:
        return collapses(model, x)
    except Exception as error:
        return [f"The check for a collapsed transformation failed: {error}."]


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
    given, seen = (float(images.flatten(1).std(1).median()) for images in (x, shown))
    found = list[tuple[bool, str]]()
    # Samples around the identity are an augmentation, which a classifier that learns beside it can use.
    learns = any(p.requires_grad for name, p in model.named_parameters() if not name.startswith("layer."))
    stays = float((loc - transform.initial().to(loc)).abs().max()) < tolerance
    if stays and not (learns and model.layer.probabilistic):
        text = "The transformation is the identity for every input: the localizer has learned nothing."
        found.append((False, f"{text} Try a larger localizer_factor, more samples, or a larger kl_weight."))
    if extent < 0.05:
        text = f"The scale has gone to nothing: the median input is read through {extent:.3g} of its width."
        found.append((True, f"{text} Try a smaller localizer_factor, transform='similarity-log', or another fill."))
    elif extent > 5:
        text = f"The transformation looks far outside: it spans {extent:.3g} widths of the median input."
        found.append((True, f"{text} Try a smaller localizer_factor, or fill= with the background's value."))
    elif seen < 0.02 * given:
        text = f"The window shows nothing: what the classifier reads varies by {seen:.2g}, the inputs by {given:.2g}."
        found.append((True, f"{text} Try a smaller localizer_factor, or a smaller family."))
    while isinstance(posterior, (MixturePosterior, GatedPosterior)):
        posterior = posterior.components if isinstance(posterior, MixturePosterior) else posterior.base
    if isinstance(posterior, Posterior):
        scale, beta = float(posterior.scale.median()), float(posterior.beta.median())
        if scale < 1e-3:
            text = f"The posterior's variance has gone to nothing (median scale {scale:.2g}): this is an STN."
            found.append((False, f"{text} Try a larger kl_weight."))
        elif 0.8 < beta < 1.25 and float(posterior.beta.std()) < 0.1:
            text = f"The posterior is the prior (median beta {beta:.3g}): samples are as wild as before any data."
            found.append((False, f"{text} Try a smaller kl_weight."))
        elif scale > 1.5:
            text = f"The posterior is wider than the prior (median scale {scale:.3g}): most samples miss the input."
            found.append((True, f"{text} Try a smaller localizer_factor, var_init or family."))
    return found
