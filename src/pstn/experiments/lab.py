"""Where experiments are run: the folder of results, the device, the data, and how much of the paper's schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from pstn._checks import require_positive_int
from pstn.data import KNOWN, MissingDataError, Splits, load
from pstn.data.split import Sized
from pstn.experiments.backbones import Backbone
from pstn.report.results import SHORTENED
from pstn.training import Recipe

__all__ = ["QUICK_SEEDS", "SEEDS", "Lab"]

SEEDS = 5
"""Folds or repetitions of every experiment in the paper."""

# A quick run takes this many steps of each training, in batches no larger than this, looks at this many test examples,
# and has this many seeds and variants.
_QUICK_STEPS, _QUICK_BATCH, _QUICK_TEST, QUICK_SEEDS = 5, 16, 50, 2
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
        epochs_scale: what epochs, and the steps of learning-rate schedules, are multiplied with; trainings that
            others build on stay whole.
        compile: fuse small GPU kernels before training, also where the trainer would not by itself.
        backbone: the network for the traffic signs; when not given, ResNet-18 without weights, or a small one where
            torchvision does not import.
        together: how many groups train side by side: small networks leave most of a GPU idle.
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
    backbone: Backbone | None = None
    together: int = 1
    save_every: float = 30.0
    say: Callable[[str], None] = print
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.epochs_scale <= 1:
            raise ValueError(f"epochs_scale must lie above 0 and be at most 1, got {self.epochs_scale}")
        require_positive_int("together", self.together)

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
        return range(QUICK_SEEDS if self.quick else SEEDS)

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

    def few(self, test: Sized) -> Any:
        """The test examples that this run looks at: all, or in a quick run the first few."""
        return test.take(range(min(_QUICK_TEST, len(test)))) if self.quick else test

    def absent(self, names: Iterable[str]) -> list[str]:
        """Those of the data sets that this run needs and that are not here."""
        return [] if self.quick else [name for name in dict.fromkeys(names) if KNOWN[name].where() is None]

    def require_data(self, names: Iterable[str]) -> None:
        """Refuse to start without the data, before anything is trained."""
        missing = self.absent(names)
        if missing:
            raise MissingDataError(
                ", ".join(missing),
                "not found: set PSTN_DATA to a folder that holds it (docs/data.md has the layout), get it with "
                "`pstn data get NAME` where it can be had, or add --quick, which needs no data",
            )

    def shorten(self, recipe: Recipe, examples: int, *, whole: bool = False) -> Recipe:
        """The recipe as this run takes it.

        Args:
            recipe: as declared.
            examples: how many there are to train on.
            whole: leave its epochs as they are, whatever `epochs_scale`.
        """
        if recipe.precision == "tf32" and self.device.type != "cuda":
            recipe = dataclasses.replace(recipe, precision="float32")
        if self.quick:
            batch = min(recipe.batch_size, _QUICK_BATCH, examples)
            steps = min(_QUICK_STEPS, examples // batch)
            return dataclasses.replace(recipe, epochs=1, steps_per_epoch=steps, batch_size=batch)
        if self.epochs_scale == 1 or whole:
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
        return [f"{SHORTENED} {taken.epochs} epochs instead of {declared.epochs}{steps}."]
