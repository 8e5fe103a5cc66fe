"""`kl_weight="auto"`: w, the localizer's factor and alpha, chosen on held-out data by training all candidates together.

`pstn.fit`, the estimators, `pstn train` and `pstn sweep` all search what `candidates` returns.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data.split import stratified_indices
from pstn.defaults import default_kl_weight
from pstn.distributions import StudentT
from pstn.nn.classifier import TransformerModel
from pstn.training.population.recipe import Member, Recipe
from pstn.training.population.trainer import Population

__all__ = ["Trial", "Tuned", "candidates", "hold_out", "set_alpha", "tune"]

# What is tried: multiples of the default w and of the localizer's factor, and values of alpha.
_KL_WEIGHTS, _FACTORS, _ALPHAS = (0.1, 1.0, 10.0), (1.0, 10.0), (1.0, 2.0)
# How often data are divided below so many examples, where a single division would say little.
_SPLITS, _ENOUGH = 3, 2000

Divided = tuple[Tensor, Tensor]
"""Indices of examples to learn from, and of those that are held out."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and what came of them.

    Args:
        kl_weight: w.
        localizer_factor: what the learning rate is multiplied with for the localizer.
        alpha: of the posterior; None where that is no Student-t.
        nll: on held-out examples, the mean over the divisions; infinite where training failed, NaN where nothing could
            be held out.
    """

    kl_weight: float
    localizer_factor: float
    alpha: float | None
    nll: float = math.nan

    def __str__(self) -> str:
        shape = "" if self.alpha is None else f", alpha={self.alpha:g}"
        return f"kl_weight={self.kl_weight:.2g}, localizer_factor={self.localizer_factor:g}{shape}"


@dataclass(frozen=True)
class Tuned:
    """What a search chose, and why.

    Args:
        trials: all that was tried, the best first.
        default: what is used without a search.
        held_out: how many examples were held out each time.
        splits: how many times.

    Example:
        >>> best = Trial(1e-3, 0.1, 1.0, 0.25)
        >>> print(Tuned((best, Trial(1e-4, 0.1, 2.0, 0.28)), best, 20, 3))  # doctest: +ELLIPSIS
        Chosen: kl_weight=0.001, localizer_factor=0.1, alpha=1, the defaults, with the lowest NLL of 2 settings ...
    """

    trials: tuple[Trial, ...]
    default: Trial
    held_out: int
    splits: int

    @property
    def best(self) -> Trial:
        """The trial with the lowest NLL."""
        return self.trials[0]

    def __str__(self) -> str:
        if not self.held_out:
            return f"Chosen: {self.best}, the defaults, as there are too few examples to hold any out."
        times = f"{self.splits} times {self.held_out:,}" if self.splits > 1 else f"{self.held_out:,}"
        why = f"with the lowest NLL of {len(self.trials)} settings on held-out examples, {self.best.nll:.3f} ({times})"
        if self.best == self.default:
            return f"Chosen: {self.best}, the defaults, {why}."
        return f"Chosen: {self.best}, {why}. The defaults, {self.default}, have {self.default.nll:.3f}."


def hold_out(y: Tensor, fraction: float = 0.2, *, seed: int = 0) -> list[Divided]:
    """Divide examples for a search, class by class: once, or three times at random where there are fewer than 2,000.

    Args:
        y: (N,), their classes; in floating point they are no classes, and divided regardless of them.
        fraction: how many to hold out.
        seed: of the draw.

    Returns:
        The parts of each division; none if every class must keep all it has.

    Example:
        >>> [(len(train), len(valid)) for train, valid in hold_out(torch.arange(100) % 10)]
        [(80, 20), (80, 20), (80, 20)]
    """
    classes = torch.zeros(len(y), dtype=torch.int64) if y.is_floating_point() else y.cpu()
    count = _SPLITS if len(y) < _ENOUGH else 1
    parts = [stratified_indices(classes, fraction, seed=seed + k) for k in range(count)]
    return [part for part in parts if len(part[1])]


def candidates(kl_weight: float, localizer_factor: float, alpha: float | None) -> list[Trial]:
    """What a search tries: every combination of a tenth, one and ten times w, of two factors and of two alphas.

    Args:
        kl_weight: the default for so many examples.
        localizer_factor: the default.
        alpha: the default; None if the posterior is no Student-t.

    Example:
        >>> len(candidates(1e-3, 0.1, 1.0)), len(candidates(1e-3, 0.1, None))
        (12, 6)
    """
    alphas: Iterable[float | None] = [None] if alpha is None else sorted({alpha, *_ALPHAS})
    return [
        Trial(kl_weight * w, localizer_factor * factor, value)
        for value, factor, w in itertools.product(alphas, _FACTORS, _KL_WEIGHTS)
    ]


def set_alpha(model: nn.Module, alpha: float | None) -> None:
    """Give a model's posterior, a Student-t, another alpha, in place; None leaves it as it is.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> set_alpha(model, 2.0)
        >>> model.layer.posterior.alpha
        2.0
    """
    if alpha is not None and isinstance(model, TransformerModel) and isinstance(model.layer.posterior, StudentT):
        model.layer.posterior = replace(model.layer.posterior, alpha=alpha)


def tune(
    make: Callable[..., nn.Module],
    x: Tensor,
    y: Tensor,
    member: Member,
    recipe: Recipe,
    splits: Sequence[Divided],
    *,
    weights: Tensor | None = None,
    device: torch.device | str | None = None,
    jobs: int = 1,
    run: Callable[[Callable[[Any], list[float]], list[Any]], Iterable[list[float]]] = map,
) -> Tuned:
    """Choose w, the localizer's factor and alpha by the loss on held-out examples.

    The candidates of one alpha train as one stack, for half of the recipe's epochs. In one division all of them start
    from the same weights and see the same batches.

    Args:
        make: an untrained P-STN for a `seed`.
        x: (N, C, *size), all examples.
        y: (N,), their classes.
        member: seed, learning rate and weight decay, and the factor and w to start from.
        recipe: how the model is to be trained afterwards.
        splits: what to learn from and what to hold out, such as `hold_out(y)`.
        weights: (N,), how much each example counts in training.
        device: where to train; where `x` is when not given.
        jobs: into how many parts the work is cut, for `run`.
        run: calls a function with each of the parts, such as `map`; in several processes, if it likes.

    Example:
        >>> x, y = torch.rand(40, 1, 28, 28), torch.arange(40) % 10
        >>> tuned = tune(lambda seed: pstn.nn.mnist_pstn(), x, y, Member(), Recipe(epochs=1), hold_out(y))
        >>> len(tuned.trials), tuned.splits
        (12, 3)
    """
    first = make(seed=member.seed)
    default_w = default_kl_weight(len(y)) if member.kl_weight is None else member.kl_weight
    if callable(default_w):
        raise ValueError(f"kl_weight must be a number to start a search from, got {default_w!r}")
    factor = member.localizer_factor
    if factor is None:
        factor = first.parameter_groups(1.0)[0]["lr"] if isinstance(first, TransformerModel) else 1.0
    family = first.layer.posterior if isinstance(first, TransformerModel) else None
    default = Trial(default_w, factor, family.alpha if isinstance(family, StudentT) else None)
    if not splits:
        return Tuned((default,), default, 0, 0)
    tried = candidates(default.kl_weight, default.localizer_factor, default.alpha)
    examples = min(len(train) for train, _ in splits)
    recipe = recipe.for_examples(examples, recipe.as_seen(x[:1]).shape[2:])
    lr_step = None if recipe.lr_step is None else math.ceil(recipe.lr_step / 2)
    recipe = replace(
        recipe, epochs=math.ceil(recipe.epochs / 2), batch_size=min(recipe.batch_size, examples), lr_step=lr_step,
        patience=None, validate_every=None,
    )  # fmt: skip
    stacks: list[list[tuple[Trial, Member]]] = []
    for _, same_alpha in itertools.groupby(tried, key=lambda trial: trial.alpha):
        rows = []
        for trial in same_alpha:
            own = replace(member, kl_weight=trial.kl_weight, localizer_factor=trial.localizer_factor)
            rows += [(trial, replace(own, seed=own.seed + k, train=a, valid=b)) for k, (a, b) in enumerate(splits)]
        parts = min(len(rows), math.ceil(jobs * len(rows) / (len(tried) * len(splits))))
        stacks += [rows[len(rows) * j // parts : len(rows) * (j + 1) // parts] for j in range(parts)]

    def score(rows: Sequence[tuple[Trial, Member]]) -> list[float]:
        """Train candidates of one alpha, and score each on what its division holds out; infinite if training failed."""
        models = []
        for trial, member in rows:
            model = copy.deepcopy(make(seed=member.seed))
            set_alpha(model, trial.alpha)
            models.append(model)
        on_cuda = torch.device(x.device if device is None else device).type == "cuda"
        # On a CPU one stack in this process: starting others would run a script without a main guard twice.
        with Population(
            models, x, y, [member for _, member in rows], recipe, device=device, groups=None if on_cuda else 1,
            workers=False, weights=weights,
        ) as population:  # fmt: skip
            population.fit(lambda progress: None)  # a trial may fail
            scores = population.evaluate_members()
            failed = {failure.model for failure in population.progress.failures}
        losses = scores["nll"] if "nll" in scores else scores["loss"]
        return [math.inf if i in failed or math.isnan(loss) else loss for i, loss in enumerate(losses)]

    losses = [loss for part in run(score, stacks) for loss in part]
    means = [fmean(losses[at : at + len(splits)]) for at in range(0, len(losses), len(splits))]
    trials = [replace(trial, nll=nll) for trial, nll in zip(tried, means, strict=True)]
    known = next(trial for trial in trials if str(trial) == str(default))
    return Tuned(tuple(sorted(trials, key=lambda trial: trial.nll)), known, len(splits[0][1]), len(splits))
