"""Where experiments are run: the folder of results, the device, the data, and how much of the paper's schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from pstn.data import KNOWN, MissingDataError, Splits, load
from pstn.training import Recipe

__all__ = ["SEEDS", "Lab"]

SEEDS = 5
"""Folds or repetitions of every experiment in the paper."""

# A quick run takes this many steps of each training, looks at this many test examples, and has this many seeds.
_QUICK_STEPS, QUICK_TEST, _QUICK_SEEDS = 8, 100, 2
# What stands in for data that do not ship with the package.
_SHIPPED = {"images": "digits", "series": "ItalyPowerDemand"}

T = TypeVar("T")


@dataclass
class Lab:
    """Everything about a run that is not the experiment.

    Args:
        results: folder of the result files.
        device: where to train and test.
        quick: a minute of everything on the data that ship with the package, which shows only that it runs.
        epochs_scale: what epochs, and the steps of learning-rate schedules, are multiplied with.
        compile: fuse small GPU kernels before training: slower to start, faster to step.
        backbone: a file of ImageNet weights for the traffic signs' ResNet-18 (.pth or .safetensors).
        save_every: seconds between checkpoints.
        say: where messages go.

    Example:
        >>> Lab(Path("results"), quick=True).folder.as_posix()
        'results/quick'
    """

    results: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    quick: bool = False
    epochs_scale: float = 1.0
    compile: bool = False
    backbone: Path | None = None
    save_every: float = 30.0
    say: Callable[[str], None] = print
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.epochs_scale <= 1:
            raise ValueError(f"epochs_scale must lie above 0 and be at most 1, got {self.epochs_scale}")

    @property
    def folder(self) -> Path:
        """Where the result files go: quick ones apart, so that no report mixes them up."""
        return self.results / "quick" if self.quick else self.results

    @property
    def work(self) -> Path:
        """Where checkpoints and trained classifiers lie while experiments run."""
        return self.folder / ".work"

    @property
    def seeds(self) -> range:
        """The seeds, or folds, of this run."""
        return range(_QUICK_SEEDS if self.quick else SEEDS)

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returns, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def forget(self) -> None:
        """Let go of what was kept: the next experiment has other data."""
        self._kept.clear()

    def data(self, name: str, **settings: Any) -> tuple[Any, Any, Any]:
        """Training, validation and test part of a known data set on the device; None for a part that is not there.

        In a quick run it is the data set of its kind that ships with the package.
        """

        def read() -> Splits[Any]:
            if self.quick:
                shipped = _SHIPPED[KNOWN[name].kind]
                allowed = {k: v for k, v in settings.items() if k == "normalise" and shipped == "digits"}
                return load(shipped, **allowed).to(self.device)
            return load(name, **settings).to(self.device)

        train, validation, test = self.keep((name, *sorted(settings.items())), read)
        return train, validation, test

    def require_data(self, names: Sequence[str]) -> None:
        """Refuse to start without the data, before anything is trained."""
        missing = [] if self.quick else [name for name in names if KNOWN[name].where() is None]
        if missing:
            raise MissingDataError(
                ", ".join(missing),
                "not found: set PSTN_DATA to a folder that holds it (docs/data.md has the layout), get it with "
                "`pstn data get NAME` where it can be had, or add --quick, which needs no data",
            )

    def shorten(self, recipe: Recipe, examples: int) -> Recipe:
        """The recipe as this run takes it."""
        if recipe.precision == "tf32" and self.device.type != "cuda":
            recipe = dataclasses.replace(recipe, precision="float32")
        if self.quick:
            steps = max(1, min(_QUICK_STEPS, examples // recipe.batch_size))
            return dataclasses.replace(
                recipe, epochs=1, steps_per_epoch=steps, batch_size=min(recipe.batch_size, examples)
            )
        if self.epochs_scale == 1:
            return recipe
        step = None if recipe.lr_step is None else max(1, round(recipe.lr_step * self.epochs_scale))
        return dataclasses.replace(recipe, epochs=max(1, round(recipe.epochs * self.epochs_scale)), lr_step=step)

    def departures(self, declared: Recipe, taken: Recipe) -> list[str]:
        """Where this run leaves the declared recipe, in sentences."""
        if self.quick:
            return ["A quick run: a few steps on the data that ship with the package. Not the paper's setting."]
        if declared.epochs == taken.epochs:
            return []
        steps = "" if taken.lr_step is None else f", the learning rate's steps every {taken.lr_step} epochs"
        return [f"Shortened: {taken.epochs} epochs instead of {declared.epochs}{steps}."]
