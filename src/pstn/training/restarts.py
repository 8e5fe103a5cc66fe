"""Training that failed: how it is noticed, and how a model is started again with more care."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from pstn.distributions import PosteriorFamily
from pstn.nn.classifier import TransformerModel
from pstn.nn.layer import SpatialTransformer
from pstn.training.diagnose import fatal_collapse
from pstn.training.population.trainer import Population
from pstn.transforms import Compose, Crop, Similarity, Transform

# What the localizer's learning rate is multiplied with in each restart.
_SLOWER = 0.1
# How much of the loss at chance a loss must be to count as that, and how many steps a model must have had to learn.
_SHARE, _STEPS = 0.98, 200
# What a restart subtracts from where the variance head starts, before softplus.
_SMALLER = 2.0


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


def _chance(nll: float, chance: float) -> str | None:
    """What is to be said of a training loss, if it is that of chance."""
    if math.isnan(nll) or not 0 < _SHARE * chance <= nll:
        return None
    return f"The training loss is at chance, {nll:.3f}: the frequencies of the classes alone give {chance:.3f}."


@final
class Watch:
    """Looks at one model while it trains, and knows how to start it again.

    Args:
        model: before its first step; layers of unknown width may find it in the first forward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self._start, self._labels, self.steps = model, dict[str, Any](), list[Tensor](), 0

    def see(self, y: Any) -> None:
        """Note the labels of a batch, before the step that learns from them."""
        if self.steps == 0 and isinstance(self.model, TransformerModel):
            self._start = copy.deepcopy(self.model.state_dict())
        self.steps += 1
        if isinstance(y, Tensor) and y.dim() == 1 and not y.is_floating_point():
            self._labels.append(y.detach())

    def judge(self, nll: float, x: Tensor, *, last: bool) -> str | None:
        """Why training has failed, at the end of an epoch; None if it has not, or if that is too early to say.

        Args:
            nll: mean negative log-likelihood of the epoch.
            x: (B, C, *in), a few inputs.
            last: whether it is the last epoch. Before that, a loss at chance may still fall, unless the classifier is
                shown nothing.
        """
        labels, self._labels = self._labels, []
        if self.steps < _STEPS or not labels:
            return None
        found = _chance(nll, chance_loss(torch.cat(labels)))
        if found is None:
            return None
        blind = fatal_collapse(self.model, x)
        return f"{found} {blind}".strip() if blind or last else None

    def start_again(self) -> str | None:
        """Put the model back to where it started, with more care; return what was changed, None if nothing can be."""
        if not isinstance(self.model, TransformerModel):
            return None
        self.model.load_state_dict(self._start)
        return make_careful(self.model)


def make_careful(model: TransformerModel) -> str:
    """Change an untrained model, in place, such that its transformer runs off less easily; return what was changed.

    A linear scale becomes a logarithmic one; where there is none, the variance starts smaller. Whoever trains it takes
    a `slower` localizer as well. A layer that was trained before stays what it is.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> make_careful(model), model.layer.transform
        ('a logarithmic scale and a localizer ten times slower', Similarity(scale='log'))
    """
    layer, slower = model.layer, "a localizer ten times slower"
    if not _is_untrained(layer):
        return slower
    if (log := _with_log_scale(layer.transform)) is not None:
        layer.transform, change = log, "a logarithmic scale"
    elif (family := _with_smaller_start(layer.posterior)) is not None:
        layer.posterior, change = family, "a smaller start of the variance"
    else:
        return slower
    with torch.no_grad():
        for held, start in _starts(layer):
            held.copy_(start)
    return f"{change} and {slower}"


def slower(model: TransformerModel, localizer_factor: float | None) -> float:
    """The factor of the localizer's learning rate in a restart, a tenth of what it was; None was the model's default.

    Example:
        >>> slower(pstn.nn.mnist_pstn(), 0.1)
        0.010000000000000002
    """
    return _SLOWER * float(model.parameter_groups(1.0)[0]["lr"] if localizer_factor is None else localizer_factor)


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


def _with_smaller_start(family: PosteriorFamily) -> PosteriorFamily | None:
    """The same family with a variance that starts smaller; None where it has no such setting."""
    settings: Any = family
    if isinstance(var_init := getattr(family, "var_init", None), float):
        return dataclasses.replace(settings, var_init=var_init - _SMALLER)
    base = getattr(family, "base", None)
    smaller = _with_smaller_start(base) if isinstance(base, PosteriorFamily) else None
    return None if smaller is None else dataclasses.replace(settings, base=smaller)


def failed_models(population: Population) -> dict[int, str]:
    """Models of a population that were stopped or whose training loss is at chance, by number, and what to say of each.

    Of a loss at chance nothing is said before 200 steps, unless the model has given up by then, nor where the loss does
    not report its likelihood.
    """
    progress, data = population.progress, population.stacks[0].constants.data
    patience = math.inf if population.recipe.patience is None else population.recipe.patience
    found = {f.model: f"Training stopped at step {f.step}: the loss was {f.loss:g}." for f in progress.failures}
    losses = progress.history[-1].get("nll") if progress.history else None
    if losses is None or "y" not in data or data["y"].is_floating_point():
        return found
    for number, (nll, member) in enumerate(zip(losses, population.members, strict=True)):
        if progress.step < _STEPS and (not progress.waited or progress.waited[number] < patience):
            continue
        index = slice(None) if member.train is None else member.train.to(data["y"].device)
        weights = data["weights"][index] if "weights" in data else None
        said = None if number in found else _chance(nll, chance_loss(data["y"][index], weights))
        if said is not None:
            found[number] = said
    return found


class Restarted(NamedTuple):
    """What came of training the failed models of a population again."""

    mended: dict[int, tuple[Population, int]]
    """By the number of a model, the population in which it learned something, and its place there."""
    failed: dict[int, str]
    """Models that failed again, or were not started again, and what to say of each."""


def train_again(
    population: Population,
    restarts: int,
    fit: Callable[[Population], bool | None],
    say: Callable[[str], None],
) -> Restarted:
    """Train those models of a population that failed again, with more care, as populations of their own.

    Args:
        population: trained; its other models are not touched.
        restarts: how often to try.
        fit: trains a population; True stops.
        say: called with one sentence or two for each model that is started again.
    """
    failed, data, mended = failed_models(population), population.stacks[0].constants.data, {}
    models = {number: population.start(number) for number in failed}
    members = {number: population.members[number] for number in failed}
    for _ in range(restarts):
        again = [number for number in failed if isinstance(models[number], TransformerModel)]
        if not again:
            break
        for number in again:
            model, member = models[number], members[number]
            assert isinstance(model, TransformerModel)
            say(f"model {number}: {failed[number]} It starts again with {make_careful(model)}.")
            members[number] = dataclasses.replace(member, localizer_factor=slower(model, member.localizer_factor))
        second = Population(
            [models[number] for number in again], data["x"], data.get("y"), [members[number] for number in again],
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
