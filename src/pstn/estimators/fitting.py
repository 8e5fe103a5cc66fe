"""Training for the estimators: how long, on what, and with which weight of the KL term."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.parallel import Parallel, delayed
from torch import Tensor, nn

from pstn.data.split import stratified_indices
from pstn.defaults import default_kl_weight
from pstn.estimators.design import Design
from pstn.training import Member, Population, Recipe

__all__ = [
    "Outcome",
    "Schedule",
    "TrainingData",
    "advance",
    "search_kl_weight",
    "train",
]

# What kl_weight="auto" tries, in rules of thumb.
_CANDIDATES = (0.1, 1.0, 10.0)

# The search repeats its split this often where data are few, and one split alone would say little.
_SPLITS, _ENOUGH = 3, 2000


class TrainingData(NamedTuple):
    """Examples as the networks take them."""

    x: Tensor
    """(N, C, *size), standardised."""
    y: Tensor
    """(N,), classes 0..K-1."""
    weights: Tensor | None
    """(N,), how much each counts; None if all count the same."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train; None is chosen by the number of examples."""

    epochs: int | None
    batch_size: int | None
    learning_rate: float
    localizer_factor: float
    weight_decay: float
    patience: int | None
    """Epochs without a better validation loss after which to stop; None trains to the end."""
    device: torch.device

    def recipe(self, examples: int) -> Recipe:
        """For so many examples."""
        given: dict[str, Any] = {"epochs": self.epochs, "patience": self.patience}
        if self.batch_size is not None:
            given["batch_size"] = min(self.batch_size, examples)
        recipe = Recipe(**given).for_examples(examples)
        return replace(recipe, lr_step=_settling(recipe.epochs))

    def member(self, seed: int, kl_weight: float, train: Tensor | None = None, valid: Tensor | None = None) -> Member:
        """One model of a population."""
        return Member(seed, self.learning_rate, self.localizer_factor, kl_weight, self.weight_decay, train, valid)


def _settling(epochs: int) -> int:
    """When learning rates fall to a tenth, for the weights to settle: after two thirds of the epochs."""
    return math.ceil(2 * epochs / 3)


class Outcome(NamedTuple):
    """A trained network and how it got there."""

    model: nn.Module
    loss_curve: list[float]
    """The training loss of each epoch."""
    validation_curve: list[float]
    """The validation loss of each epoch, where there was early stopping."""
    optimiser: dict[str, Tensor] | None
    """The state that `advance` goes on from; None before the first step."""
    steps: int
    """How many steps the optimiser has taken."""


def train(
    model: nn.Module, data: TrainingData, schedule: Schedule, *, kl_weight: float, seed: int, valid_fraction: float
) -> Outcome:
    """Train one network.

    Args:
        model: its starting point; left as it is.
        data: what to learn from.
        schedule: for how long. With patience, part of the data is held out to say when to stop.
        kl_weight: w.
        seed: of the held-out part, batches and samples.
        valid_fraction: how much is held out.
    """
    subset, valid = None, None
    if schedule.patience is not None:
        subset, valid = stratified_indices(data.y, valid_fraction, seed=seed)
        if len(valid) == 0:
            raise ValueError(
                "early_stopping must be False here: validation_fraction leaves no example to validate on, as every "
                "class must keep one to learn from"
            )
    examples = len(data.y) if subset is None else len(subset)
    members = [schedule.member(seed, kl_weight, subset, valid)]
    with _population([model], data, members, schedule.recipe(examples), schedule.device) as population:
        population.fit()
        return _outcome(population)


def advance(
    model: nn.Module,
    data: TrainingData,
    schedule: Schedule,
    *,
    kl_weight: float,
    seed: int,
    step: int,
    optimiser: dict[str, Tensor] | None,
) -> Outcome:
    """Take a trained network one pass over new data further, each of them once, with the optimiser where it was.

    Args:
        model: where it stands; left as it is.
        data: what is new.
        schedule: rates, and the largest batch; epochs and patience do not matter here.
        kl_weight: w.
        seed: of batches and samples.
        step: how many steps the optimiser has taken.
        optimiser: its state, from the last outcome; None for a fresh one.
    """
    per_pass = math.ceil(len(data.y) / schedule.recipe(len(data.y)).batch_size)
    batch = math.ceil(len(data.y) / per_pass)
    data = _filled_up(data, per_pass * batch)
    # Noise and batches are functions of the step, and a pass starts at a multiple of its length.
    passed = -(-step // per_pass)
    members = [schedule.member(seed, kl_weight)]
    with _population([model], data, members, Recipe(passed + 1, batch), schedule.device) as population:
        if optimiser is not None:
            population.load_tensors({**population.tensors(), **optimiser})
        population.progress.step, population.progress.epoch = passed * per_pass, passed
        population.fit()
        return _outcome(population)


def _filled_up(data: TrainingData, count: int) -> TrainingData:
    """Data of `count` examples: a population takes whole batches, so the first few come again and count for nothing."""
    missing = count - len(data.y)
    if missing == 0:
        return data
    weights = torch.ones(len(data.y)) if data.weights is None else data.weights
    # What is left over of the mean over a batch goes to those that count.
    weights = torch.cat([weights * (count / len(data.y)), weights.new_zeros(missing)])
    return TrainingData(torch.cat([data.x, data.x[:missing]]), torch.cat([data.y, data.y[:missing]]), weights)


def search_kl_weight(
    design: Design, data: TrainingData, schedule: Schedule, *, seed: int, valid_fraction: float, n_jobs: int | None
) -> dict[float, float]:
    """The loss on held-out data with a tenth, one and ten times the rule of thumb's weight, all trained together.

    Args:
        design: what to train.
        data: what to learn from.
        schedule: for how long.
        seed: of everything random.
        valid_fraction: how much to hold out.
        n_jobs: processes, as joblib counts them.

    Returns:
        The validation loss of each candidate; of the rule of thumb alone, NaN, if nothing could be held out.
    """
    count = _SPLITS if len(data.y) < _ENOUGH else 1
    splits = [stratified_indices(data.y, valid_fraction, seed=seed + k) for k in range(count)]
    if len(splits[0][1]) == 0:
        return {default_kl_weight(len(data.y)): math.nan}
    candidates = [factor * default_kl_weight(len(data.y)) for factor in _CANDIDATES]
    # Candidates of one split share seed and start: they differ in w alone.
    members = [schedule.member(seed + k, w, *split) for k, split in enumerate(splits) for w in candidates]
    # Half the epochs show which candidate is best.
    full = schedule.recipe(len(splits[0][0]))
    epochs = math.ceil(full.epochs / 2)
    recipe = replace(full, epochs=epochs, lr_step=_settling(epochs), patience=None)
    count = min(len(members), effective_n_jobs(n_jobs))
    parts = [members[len(members) * j // count : len(members) * (j + 1) // count] for j in range(count)]
    losses = Parallel(n_jobs=count)(
        delayed(_validation_losses)(design, data, part, recipe, schedule.device) for part in parts
    )
    means = np.reshape(np.concatenate(losses), (len(splits), len(candidates))).mean(0)
    return dict(zip(candidates, means.tolist(), strict=True))


def _validation_losses(
    design: Design, data: TrainingData, members: Sequence[Member], recipe: Recipe, device: torch.device
) -> list[float]:
    models = [design.build(member.seed) for member in members]
    with _population(models, data, members, recipe, device) as population:
        population.fit()
        losses = population.evaluate_members()["nll"]
        failed = {failure.model for failure in population.progress.failures}
    return [math.inf if i in failed or math.isnan(loss) else loss for i, loss in enumerate(losses)]


def _population(
    models: Sequence[nn.Module], data: TrainingData, members: Sequence[Member], recipe: Recipe, device: torch.device
) -> Population:
    # One stack in this process: starting others would run a script without a main guard twice.
    return Population(
        models, data.x, data.y, members, recipe, device=device, groups=1, workers=False, weights=data.weights
    )


def _outcome(population: Population) -> Outcome:
    for failure in population.progress.failures:
        warnings.warn(f"Training stopped early: {failure}", ConvergenceWarning)
    history = population.progress.history
    kept = {k: t for k, t in population.tensors().items() if k in ("mean", "square")}
    return Outcome(
        population.models()[0],
        [entry["loss"][0] for entry in history],
        [entry["valid_nll"][0] for entry in history if "valid_nll" in entry],
        kept,
        population.progress.step,
    )
