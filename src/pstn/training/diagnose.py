"""Training that fails: losses at chance, the known ways to collapse, and starting again.

Trainers notice here that a model has failed, and start it again with more care.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn

from pstn._checks import NotFiniteError
from pstn.distributions import GatedPosterior, MixturePosterior, Posterior, PosteriorFamily
from pstn.nn.classifier import TransformerModel, evaluating
from pstn.nn.layer import SpatialTransformer
from pstn.training.population.recipe import Teaching
from pstn.transforms import Compose, Crop, Similarity, Transform

if TYPE_CHECKING:
    from pstn.training.population.trainer import Population

# How much of the loss at chance a loss must be to count as that.
_SHARE = 0.98
STEPS = 200
"""How many steps a model must have had to learn before anything is said of its loss."""
# What the localizer's learning rate is multiplied with in a restart.
_SLOWER = 0.1
# What a restart subtracts from where the variance head starts, before softplus, and where it puts it for a pose.
_SMALLER, _WIDE = 2.0, 0.0


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
    return [text for _, text in _collapses(model, x, tolerance)]


def fatal_collapse(model: nn.Module, x: Tensor) -> str:
    """The first of the collapses after which a classifier is shown nothing; empty when there is none."""
    return next((text for fatal, text in _collapses(model, x) if fatal), "")


def _collapses(model: nn.Module, x: Tensor, tolerance: float = 1e-3) -> list[tuple[bool, str]]:
    """The collapses of a model: whether its classifier is shown nothing, and in words.

    An error is reported, not raised: whoever trains goes on.
    """
    try:
        return _find_collapses(model, x, tolerance)
    except Exception as error:
        return [(False, f"The check for a collapsed transformation failed: {error}.")]


def _find_collapses(model: nn.Module, x: Tensor, tolerance: float) -> list[tuple[bool, str]]:
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


@final
class Watch:
    """Looks at one model while it trains, and knows how to start it again.

    Args:
        model: before its first step; layers of unknown width may find it in the first forward pass.
        teaching: the pose, where that alone is taught.
    """

    def __init__(self, model: nn.Module, teaching: Teaching | None = None) -> None:
        self.model, self.teaching, self.steps = model, teaching, 0
        self._start, self._labels = dict[str, Any](), list[Tensor]()
        self.error: Exception | None = None

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Where the pose alone is taught, keep an error about numbers that are not finite, and do not raise it."""
        if self.teaching is not None and isinstance(error, (FloatingPointError, NotFiniteError)):
            self.error = None if str(error).startswith("x must") else error  # no other start would mend the inputs
        return self.error is not None

    def see(self, y: Any, steps: int = 1) -> None:
        """Note the labels of a batch, or of all batches of so many steps, before the model learns from them."""
        if self.steps == 0 and isinstance(self.model, TransformerModel):
            self._start = copy.deepcopy(self.model.state_dict())
        self.steps += steps
        if isinstance(y, Tensor) and y.dim() == 1 and not y.is_floating_point():
            self._labels.append(y.detach())

    def judge(self, loss: float, x: Tensor, *, last: bool) -> str | None:
        """Why training has failed, at the end of an epoch; None if it has not, or if that is too early to say.

        Args:
            loss: mean negative log-likelihood of the epoch; where the pose alone is taught, the mean loss.
            x: (B, C, *in), a few inputs.
            last: whether it is the last epoch. Before that, a loss at chance may still fall, unless the classifier is
                shown nothing.
        """
        if self.teaching is not None:
            return self.teaching.judge(loss) if last else None
        labels, self._labels = self._labels, []
        if self.steps < STEPS or not labels:
            return None
        found = chance(loss, chance_loss(torch.cat(labels)))
        if found is None:
            return None
        blind = fatal_collapse(self.model, x)
        return f"{found} {blind}".strip() if blind or last else None

    def start_again(self, lr: float, localizer_factor: float | None) -> tuple[str, float, float | None] | None:
        """Put the model back to where it started, and return what `start_carefully` does.

        None if nothing can be done, or if it has hardly begun.
        """
        if not isinstance(self.model, TransformerModel) or (self.steps < STEPS and self.error is None):
            return None
        self.model.load_state_dict(self._start)
        return start_carefully(self.model, lr, localizer_factor, teaches=self.teaching is not None)


def start_carefully(
    model: TransformerModel, lr: float, localizer_factor: float | None, *, teaches: bool
) -> tuple[str, float, float | None]:
    """Change an untrained model, in place, and the rates to train it with, so that it fails less easily.

    A pose is missed from a narrow start of the variance, or by steps that are too large. With labels the transformer
    runs off: a linear scale becomes a logarithmic one; where there is none, the variance starts smaller; the localizer
    is slower. A layer that was trained before stays what it is.

    Args:
        model: as it started, before training failed.
        lr: learning rate with which it failed.
        localizer_factor: the same for the localizer; None was the model's default.
        teaches: whether the pose alone is taught.

    Returns:
        What was changed, in words; and the two rates.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> for _ in range(2):
        ...     start_carefully(model, 0.01, None, teaches=True)
        ('a wide start of the variance', 0.01, None)
        ('a learning rate ten times lower', 0.001, None)
    """
    layer, change = model.layer, ""
    if _is_untrained(layer):
        if not teaches and (log := _with_log_scale(layer.transform)) is not None:
            layer.transform, change = log, "a logarithmic scale"
        elif (family := _with_start(layer.posterior, wide=teaches)) is not None:
            layer.posterior, change = family, f"a {'wide' if teaches else 'smaller'} start of the variance"
        _put_back(layer)
    if teaches and change:
        return change, lr, localizer_factor
    if teaches:
        return "a learning rate ten times lower", _SLOWER * lr, localizer_factor
    factor = model.parameter_groups(1.0)[0]["lr"] if localizer_factor is None else localizer_factor
    slower = "a localizer ten times slower"
    return f"{change} and {slower}" if change else slower, lr, _SLOWER * float(factor)


def start_variance(model: TransformerModel, start: float) -> bool:
    """Let the variance of an untrained model start elsewhere, in place; False where it has no such setting.

    Args:
        model: before its first step.
        start: before softplus.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> start_variance(model, -9.0), model.layer.posterior.var_init
        (True, -9.0)
    """
    family: Any = model.layer.posterior
    if not isinstance(getattr(family, "var_init", None), float) or not _is_untrained(model.layer):
        return False
    model.layer.posterior = dataclasses.replace(family, var_init=start)
    _put_back(model.layer)
    return True


def _put_back(layer: SpatialTransformer) -> None:
    with torch.no_grad():
        for held, start in _starts(layer):
            held.copy_(start)


def _starts(layer: SpatialTransformer) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a layer that start at values of its families, and these values."""
    starts = layer.posterior.starts(layer.transform)
    heads = [(layer.get_submodule(f"{name}_head").last.bias, starts[name]) for name in layer.heads]  # type: ignore[union-attr]
    shared = layer.posterior.shared(layer.transform)
    return [*heads, *((getattr(layer.shared, name), start) for name, start in shared.items())]


def _is_untrained(layer: SpatialTransformer) -> bool:
    weights = [layer.get_submodule(f"{name}_head").last.weight for name in layer.heads]  # type: ignore[union-attr]
    same = (torch.equal(held.detach().cpu(), start.detach().cpu().to(held.dtype)) for held, start in _starts(layer))
    return all(not bool(weight.any()) for weight in weights) and all(same)  # type: ignore[operator]


def _with_log_scale(transform: Transform) -> Transform | None:
    """The same family with scales that are exponentials; None where none is linear."""
    if isinstance(transform, Similarity) and transform.scale == "linear":
        return Similarity("log")
    if isinstance(transform, Crop) and transform.scale == "linear":
        return Crop("log", transform.ndim)
    if isinstance(transform, Compose):
        parts = [part for part in transform.transforms if isinstance(part, Transform)]
        logs = [_with_log_scale(part) for part in parts]
        if any(log is not None for log in logs):
            return Compose([log or part for log, part in zip(logs, parts, strict=True)])
    return None


def _with_start(family: PosteriorFamily, *, wide: bool) -> PosteriorFamily | None:
    """The same family with a variance that starts elsewhere; None where it has no such setting, or starts there."""
    settings: Any = family
    if isinstance(var_init := getattr(family, "var_init", None), float):
        changed = max(var_init, _WIDE) if wide else var_init - _SMALLER
        return None if changed == var_init else dataclasses.replace(settings, var_init=changed)
    base = getattr(family, "base", None)
    inner = _with_start(base, wide=wide) if isinstance(base, PosteriorFamily) else None
    return None if inner is None else dataclasses.replace(settings, base=inner)


class Restarted(NamedTuple):
    """What came of training the failed models of a population again."""

    mended: dict[int, tuple[Population, int]]
    """By the number of a model, the population in which it learned something, and its place there."""
    failed: dict[int, str]
    """Models that failed again, or were not started again, and what to say of each."""


def train_again(
    population: Population, restarts: int, fit: Callable[[Population], bool | None], say: Callable[[str], None]
) -> Restarted:
    """Train those models of a population that failed again, with more care, as populations of their own.

    Args:
        population: trained; its other models are not touched.
        restarts: how often to try.
        fit: trains a population; True stops.
        say: called with one sentence or two for each model that is started again.
    """
    failed, data, mended = failed_models(population), population.stacks[0].constants.data, {}
    teaches = population.stacks[0].loss.only_teaches
    models, members = {number: population.start(number) for number in failed}, dict(enumerate(population.members))
    for _ in range(restarts):
        again = {n: model for n, model in models.items() if n in failed and isinstance(model, TransformerModel)}
        if not again:
            break
        for number, model in again.items():
            member = members[number]
            change, lr, factor = start_carefully(model, member.lr, member.localizer_factor, teaches=teaches)
            say(f"model {number}: {failed[number]} It starts again with {change}.")
            members[number] = dataclasses.replace(member, lr=lr, localizer_factor=factor)
        second = type(population)(
            list(again.values()), data["x"], data.get("y"), [members[number] for number in again],
            population.recipe, device=population.device, groups=min(len(population.stacks), len(again)),
            compile=population.compiles, weights=data.get("weights"),
        )  # fmt: skip
        stopped = fit(second)
        second.close()
        if stopped:
            break
        still = failed_models(second)
        for place, number in enumerate(again):
            if place in still:
                failed[number] = still[place]
            else:
                mended[number] = (second, place)
                del failed[number]
    return Restarted(mended, failed)
