"""Training for the estimators: how long, on what, and with which weight of the KL term."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.parallel import Parallel, delayed
from torch import Tensor, nn

from pstn.data.split import stratified_indices
from pstn.defaults import default_kl_weight
from pstn.objective import LossFunction, TrainingLoss
from pstn.training import Member, Population, Recipe

__all__ = ["Outcome", "Schedule", "TrainingData", "advance", "search_kl_weight", "train"]

# What kl_weight="auto" tries, as multiples of the default weight.
_CANDIDATES = (0.1, 1.0, 10.0)
# The search repeats its split this often below this many examples, where a single split would say little.
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
    """How long and how fast to train, and what to minimise; None is chosen by the number of examples."""

    epochs: int | None
    batch_size: int | None
    learning_rate: float
    localizer_factor: float
    weight_decay: float
    patience: int | None
    """Epochs without a better validation loss after which to stop; None trains to the end."""
    device: torch.device
    loss: LossFunction | None = None
    """(prediction, y) -> a scalar or a `pstn.Loss`; the negative ELBO when None."""

    def recipe(self, examples: int) -> Recipe:
        """For so many examples; learning rates fall to a tenth after two thirds of the epochs."""
        batch_size = None if self.batch_size is None else min(self.batch_size, examples)
        recipe = Recipe(self.epochs, batch_size, patience=self.patience, loss=self.loss)  # type: ignore[arg-type]
        recipe = recipe.for_examples(examples)
        return replace(recipe, lr_step=math.ceil(2 * recipe.epochs / 3))

    def member(
        self, seed: int, kl_weight: float | None, train: Tensor | None = None, valid: Tensor | None = None
    ) -> Member:
        """One model of a population."""
        return Member(seed, self.learning_rate, self.localizer_factor, kl_weight, self.weight_decay, train, valid)


class Outcome(NamedTuple):
    """A trained network and its history."""

    model: nn.Module
    loss_curve: list[float]
    """The training loss of each epoch."""
    validation_curve: list[float]
    """The validation loss of each epoch, where there was early stopping."""
    optimiser: dict[str, Tensor] | None
    """The state that `advance` continues from; None before the first step."""
    steps: int
    """How many steps the optimiser has taken."""


def train(
    model: nn.Module,
    data: TrainingData,
    schedule: Schedule,
    *,
    kl_weight: float | None,
    seed: int,
    valid_fraction: float,
) -> Outcome:
    """Train one network.

    Args:
        model: its starting point; left as it is.
        data: what to learn from.
        schedule: for how long. With patience, part of the data is held out to decide when to stop.
        kl_weight: w; None for a loss that takes none.
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
    recipe = schedule.recipe(len(data.y) if subset is None else len(subset))
    with _population([model], data, [schedule.member(seed, kl_weight, subset, valid)], recipe, schedule) as population:
        population.fit()
        return _outcome(population)


def advance(
    model: nn.Module,
    data: TrainingData,
    schedule: Schedule,
    *,
    kl_weight: float | None,
    seed: int,
    step: int,
    optimiser: dict[str, Tensor] | None,
) -> Outcome:
    """Take a trained network one pass over new data further, each example once, with the optimiser where it was.

    A population takes whole batches. Where the last one is incomplete, the first examples fill it up with a weight of
    0; for a loss without weights they count again.

    Args:
        model: where it stands; left as it is.
        data: what is new.
        schedule: rates, and the largest batch; epochs and patience do not matter here.
        kl_weight: w; None for a loss that takes none.
        seed: of batches and samples.
        step: how many steps the optimiser has taken.
        optimiser: its state, from the last outcome; None for a fresh one.
    """
    count = len(data.y)
    per_pass = math.ceil(count / schedule.recipe(count).batch_size)
    batch = math.ceil(count / per_pass)
    if missing := per_pass * batch - count:
        x, y, weights = torch.cat([data.x, data.x[:missing]]), torch.cat([data.y, data.y[:missing]]), None
        if TrainingLoss(schedule.loss).takes_weights:
            given = torch.ones(count) if data.weights is None else data.weights
            # The loss is a mean over whole batches: what the fillers do not count goes to the others.
            weights = torch.cat([given * ((count + missing) / count), given.new_zeros(missing)])
        data = TrainingData(x, y, weights)
    # Noise and batches are functions of the step, and a pass starts at a multiple of its length.
    passed = -(-step // per_pass)
    recipe = Recipe(passed + 1, batch, loss=schedule.loss)
    with _population([model], data, [schedule.member(seed, kl_weight)], recipe, schedule) as population:
        if optimiser is not None:
            population.load_tensors({**population.tensors(), **optimiser})
        population.progress.step, population.progress.epoch = passed * per_pass, passed
        population.fit()
        return _outcome(population)


def search_kl_weight(
    make: Callable[..., nn.Module],
    data: TrainingData,
    schedule: Schedule,
    *,
    seed: int,
    valid_fraction: float,
    n_jobs: int | None,
) -> dict[float, float]:
    """The loss on held-out data with a tenth, one and ten times the default weight, all trained together.

    Args:
        make: makes an untrained network from `seed=`.
        data: what to learn from.
        schedule: for how long.
        seed: of everything random.
        valid_fraction: how much to hold out.
        n_jobs: processes, as joblib counts them.

    Returns:
        The validation loss of each candidate, infinite for one whose training failed; of the default weight alone, NaN,
        if nothing could be held out.
    """
    default = default_kl_weight(len(data.y))
    count = _SPLITS if len(data.y) < _ENOUGH else 1
    splits = [stratified_indices(data.y, valid_fraction, seed=seed + k) for k in range(count)]
    if len(splits[0][1]) == 0:
        return {default: math.nan}
    candidates = [factor * default for factor in _CANDIDATES]
    # Candidates of one split share seed and start: they differ in w alone.
    members = [schedule.member(seed + k, w, *split) for k, split in enumerate(splits) for w in candidates]
    epochs = math.ceil(schedule.recipe(len(splits[0][0])).epochs / 2)  # enough to show which candidate is best
    recipe = replace(schedule, epochs=epochs, patience=None).recipe(len(splits[0][0]))
    jobs = min(len(members), effective_n_jobs(n_jobs))
    parts = [members[len(members) * j // jobs : len(members) * (j + 1) // jobs] for j in range(jobs)]
    losses = Parallel(n_jobs=jobs)(delayed(_validation_losses)(make, data, part, recipe, schedule) for part in parts)
    means = np.reshape(np.concatenate(losses), (count, len(candidates))).mean(0)
    return dict(zip(candidates, means.tolist(), strict=True))


def _validation_losses(
    make: Callable[..., nn.Module], data: TrainingData, members: Sequence[Member], recipe: Recipe, schedule: Schedule
) -> list[float]:
    with _population([make(seed=m.seed) for m in members], data, members, recipe, schedule) as population:
        population.fit()
        losses = population.evaluate_members()["nll"]
        failed = {failure.model for failure in population.progress.failures}
    return [math.inf if i in failed or math.isnan(loss) else loss for i, loss in enumerate(losses)]


def _population(
    models: Sequence[nn.Module], data: TrainingData, members: Sequence[Member], recipe: Recipe, schedule: Schedule
) -> Population:
    # One stack in this process: starting others would run a script without a main guard twice.
    return Population(
        models, data.x, data.y, members, recipe, device=schedule.device, groups=1, workers=False, weights=data.weights
    )


def _outcome(population: Population) -> Outcome:
    for failure in population.progress.failures:
        warnings.warn(f"Training stopped early: {failure}", ConvergenceWarning)
    history = population.progress.history
    return Outcome(
        population.models()[0],
        [entry["loss"][0] for entry in history],
        [entry["valid_nll"][0] for entry in history if "valid_nll" in entry],
        {name: tensor for name, tensor in population.tensors().items() if name in ("mean", "square")},
        population.progress.step,
    )
