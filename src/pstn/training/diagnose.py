"""Diagnosis of training that fails: where a NaN came from, losses at chance, and the known ways to collapse."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pstn._checks import skip_value_checks
from pstn.distributions import GatedPosterior, MixturePosterior, Posterior
from pstn.nn.classifier import TransformerModel, evaluating
from pstn.training.population.stack import Stack, Tensors
from pstn.training.population.step import differentiate_one, make_batch

if TYPE_CHECKING:
    from pstn.training.population.trainer import Population

# How much of the loss at chance a loss must be to count as that.
_SHARE = 0.98
STEPS = 200
"""How many steps a model must have had to learn before anything is said of its loss."""


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


def chance_loss(y: Tensor, weights: Tensor | None = None) -> float:
    """The negative log-likelihood of answering with the frequencies of the classes, whatever the input, in nats.

    Args:
        y: (N,), class indices.
        weights: (N,), how much each counts.

    Example:
        >>> round(chance_loss(torch.tensor([0, 0, 1, 1])), 4)
        0.6931
    """
    counts = torch.bincount(y.cpu(), None if weights is None else weights.cpu()).double()
    return float(torch.special.entr(counts / counts.sum()).sum())


def chance(nll: float, level: float) -> str | None:
    """What is to be said of a training loss, if it is that of chance."""
    if math.isnan(nll) or not 0 < _SHARE * level <= nll:
        return None
    return f"The training loss is at chance, {nll:.3f}: the frequencies of the classes alone give {level:.3f}."


def failed_models(population: Population, least: int = STEPS) -> dict[int, str]:
    """Models of a population that were stopped or have learned nothing, by number, and what to say of each.

    Nothing is said before `least` steps of a training loss that is at chance, unless the model has given up by then, or
    of a pose that was not learned, nor where the loss does not report its likelihood.

    Args:
        population: that is being trained, or was.
        least: how many steps a model must have had to learn.
    """
    progress, stack, data = population.progress, population.stacks[0], population.stacks[0].constants.data
    patience = math.inf if population.recipe.patience is None else population.recipe.patience
    stopped = "Training stopped at step {0.step}: the loss was {0.loss:g}, its gradient's norm {0.grad_norm:g}."
    found = {failure.model: stopped.format(failure) for failure in progress.failures}
    taught = stack.teaching if stack.loss.only_teaches else None
    losses = progress.history[-1].get("nll" if taught is None else "loss") if progress.history else None
    if losses is None or (taught is None and ("y" not in data or data["y"].is_floating_point())):
        return found
    for number, (loss, member) in enumerate(zip(losses, population.members, strict=True)):
        gave_up = bool(progress.waited) and progress.waited[number] >= patience
        if number in found or (progress.step < least and not gave_up):
            continue
        if taught is not None:
            said = taught.judge(loss)
        else:
            index = slice(None) if member.train is None else member.train.to(data["y"].device)
            weights = data["weights"][index] if "weights" in data else None
            said = chance(loss, chance_loss(data["y"][index], weights))
        if said is not None:
            found[number] = said
    return found


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
