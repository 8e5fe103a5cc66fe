"""Training that failed: how it is noticed, and how a model is started again with more care."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from pstn._checks import NotFiniteError
from pstn.distributions import PosteriorFamily
from pstn.nn.classifier import TransformerModel
from pstn.nn.layer import SpatialTransformer
from pstn.training.diagnose import STEPS, chance, chance_loss, failed_models, fatal_collapse
from pstn.training.population.trainer import Population
from pstn.training.teach import Teaching
from pstn.transforms import Compose, Crop, Similarity, Transform

# What the localizer's learning rate is multiplied with in a restart.
_SLOWER = 0.1
# What a restart subtracts from where the variance head starts, before softplus, and where it puts it for a pose.
_SMALLER, _WIDE = 2.0, 0.0


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

    def start_again(self, lr: float, localizer_factor: float | None) -> Careful | None:
        """Put the model back to where it started, and return what `start_carefully` does.

        None if nothing can be done, or if it has hardly begun.
        """
        if not isinstance(self.model, TransformerModel) or (self.steps < STEPS and self.error is None):
            return None
        self.model.load_state_dict(self._start)
        return start_carefully(self.model, lr, localizer_factor, teaches=self.teaching is not None)


class Careful(NamedTuple):
    """How a model that failed is trained again."""

    change: str
    """In words."""
    lr: float
    localizer_factor: float | None


def start_carefully(model: TransformerModel, lr: float, localizer_factor: float | None, *, teaches: bool) -> Careful:
    """Change an untrained model, in place, and the rates to train it with, so that it fails less easily.

    A pose is missed from a narrow start of the variance, or by steps that are too large; labels, see `make_careful`.

    Args:
        model: as it started, before training failed.
        lr: learning rate with which it failed.
        localizer_factor: the same for the localizer.
        teaches: whether the pose alone is taught.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> for _ in range(2):
        ...     start_carefully(model, 0.01, None, teaches=True)
        Careful(change='a wide start of the variance', lr=0.01, localizer_factor=None)
        Careful(change='a learning rate ten times lower', lr=0.001, localizer_factor=None)
    """
    if not teaches:
        return Careful(make_careful(model), lr, slower(model, localizer_factor))
    wide = _with_start(model.layer.posterior, lambda start: max(start, _WIDE))
    if wide is None or not _is_untrained(model.layer):
        return Careful("a learning rate ten times lower", _SLOWER * lr, localizer_factor)
    model.layer.posterior = wide
    _put_back(model.layer)
    return Careful("a wide start of the variance", lr, localizer_factor)


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
    elif (family := _with_start(layer.posterior, lambda start: start - _SMALLER)) is not None:
        layer.posterior, change = family, "a smaller start of the variance"
    else:
        return slower
    _put_back(layer)
    return f"{change} and {slower}"


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
    family = model.layer.posterior
    if not isinstance(getattr(family, "var_init", None), float) or not _is_untrained(model.layer):
        return False
    model.layer.posterior = _with_start(family, lambda _: start) or family
    _put_back(model.layer)
    return True


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


def _put_back(layer: SpatialTransformer) -> None:
    with torch.no_grad():
        for held, start in _starts(layer):
            held.copy_(start)


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


def _with_start(family: PosteriorFamily, change: Callable[[float], float]) -> PosteriorFamily | None:
    """The same family with a variance that starts elsewhere; None where it has no such setting, or starts there."""
    settings: Any = family
    if isinstance(var_init := getattr(family, "var_init", None), float):
        changed = change(var_init)
        return None if changed == var_init else dataclasses.replace(settings, var_init=changed)
    base = getattr(family, "base", None)
    inner = _with_start(base, change) if isinstance(base, PosteriorFamily) else None
    return None if inner is None else dataclasses.replace(settings, base=inner)


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
    teaches = population.stacks[0].loss.only_teaches
    models = {number: population.start(number) for number in failed}
    members = {number: population.members[number] for number in failed}
    for _ in range(restarts):
        again = [number for number in failed if isinstance(models[number], TransformerModel)]
        if not again:
            break
        for number in again:
            model, member = models[number], members[number]
            assert isinstance(model, TransformerModel)
            change, lr, factor = start_carefully(model, member.lr, member.localizer_factor, teaches=teaches)
            say(f"model {number}: {failed[number]} It starts again with {change}.")
            members[number] = dataclasses.replace(member, lr=lr, localizer_factor=factor)
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
