"""What an experiment is made of: groups of models of one shape, each a declaration of what is trained and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from pstn.data.split import Sized
from pstn.experiments.lab import QUICK_SEEDS, Lab
from pstn.experiments.scores import Answers, Found
from pstn.report.results import Result
from pstn.training import Recipe

__all__ = ["Evaluation", "Experiment", "Group", "Measure", "Probe", "Task", "Training", "same"]


@dataclass(frozen=True)
class Task:
    """Data to train and test on, on the device.

    Args:
        x: (M, C, *size), training examples.
        y: (M,), their classes.
        test: what to test on.
        name: where the examples come from.
        train: the examples that a seed trains on; all where it returns None.
        batch: test examples at a time.
        classes: K.
        notes: what is odd about the data, for the results.
    """

    x: Tensor
    y: Tensor
    test: Sized
    name: str
    train: Callable[[int], Tensor | None] = lambda seed: None
    batch: int = 1000
    classes: int = 10
    notes: tuple[str, ...] = ()


class Probe(NamedTuple):
    """A trained model with its answers, for the measures."""

    lab: Lab
    task: Task
    model: nn.Module
    answers: Answers
    cell: Result


Measure = Callable[[Probe], Found]


def same(make: Callable[[], nn.Module]) -> Callable[[Lab, int], nn.Module]:
    """A network that is made alike for every seed, but for its random weights."""
    return lambda lab, seed: make()


@dataclass(frozen=True)
class Training:
    """Models of one shape that train together: every variant with every seed, a result each.

    Args:
        experiment: its name.
        model: "CNN", "STN", "P-STN", ...
        data: what the table calls the data.
        task: loads it.
        make: an untrained network for a seed; called with torch's random state set to that seed.
        recipe: how to train.
        variants: KL weight by variant; one variant without a name, and a weight of 0, when not given.
        lr: learning rate of the classifier; a function where it depends on how the lab is equipped.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        measures: what is measured besides classification.
        also: other data to test the trained models on, by name: a result each.
        aliases: further variants under which the same results are filed.
        departures: where the declaration leaves the paper, in sentences.
        keep: whether the weights stay in the work folder, for other groups to build on.
        stacked: whether the models step as one stack; large ones are faster each on a stream of its own.
    """

    experiment: str
    model: str
    data: str
    task: Callable[[Lab], Task]
    make: Callable[[Lab, int], nn.Module]
    recipe: Recipe
    variants: Mapping[str, float] = field(default_factory=lambda: {"": 0.0})
    lr: float | Callable[[Lab], float] = 1e-3
    localizer_factor: float = 0.1
    weight_decay: float = 0.0
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Callable[[Lab], Task]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    keep: bool = False
    stacked: bool = True

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return self._cell(next(iter(self.variants)), 0).name.removesuffix("-0")

    def _cell(self, variant: str, seed: int, data: str | None = None) -> Result:
        return Result(self.experiment, self.model, data or self.data, seed, variant)

    def of_model(self, variant: str, seed: int) -> list[Result]:
        """The results that one trained model gives, still empty: on its own data first."""
        names = [variant, *self.aliases]
        return [self._cell(name, seed, data) for data in (self.data, *self.also) for name in names]

    def pairs(self, lab: Lab) -> list[tuple[str, int]]:
        """Variant and seed of every model."""
        variants = list(self.variants)[: QUICK_SEEDS if lab.quick else None]
        return [(variant, seed) for variant in variants for seed in lab.seeds]

    def cells(self, lab: Lab) -> list[Result]:
        """All results of the group, still empty."""
        return [cell for pair in self.pairs(lab) for cell in self.of_model(*pair)]


@dataclass(frozen=True)
class Evaluation:
    """Results that take no training of their own, one for each seed.

    Args:
        experiment: its name.
        model: "STN", "P-STN", ...
        data: what the table calls the data.
        measure: returns metrics, figure and settings for a cell.
        variant: its variant.
        departures: where the declaration leaves the paper, in sentences.
    """

    experiment: str
    model: str
    data: str
    measure: Callable[[Lab, Result], tuple[dict[str, float], dict[str, Any], dict[str, Any]]]
    variant: str = ""
    departures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return Result(self.experiment, self.model, self.data, 0, self.variant).name.removesuffix("-0")

    def cells(self, lab: Lab) -> list[Result]:
        """All results of the group, still empty."""
        return [Result(self.experiment, self.model, self.data, seed, self.variant) for seed in lab.seeds]


Group = Training | Evaluation


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper, or one beyond it.

    Args:
        name: on the command line and in the results.
        title: one line about it.
        needs: names of the data sets, as `pstn data list` has them.
        groups: everything that is trained and measured.
        quick: what of it a quick run takes, by the name of the group; all when None.
        extra: whether it runs only when asked for by name or with --search.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    groups: tuple[Group, ...]
    quick: tuple[str, ...] | None = None
    extra: bool = False

    def needs_of(self, group: Group) -> tuple[str, ...]:
        """The data sets that one of its groups needs: its own where it is called after one, else all."""
        return (group.data,) if group.data in self.needs else self.needs
