"""A result: what one cell of an experiment gave, in one JSON file that says where it came from.

A cell is one model on one data set with one seed. Its file is the whole record: a stopped run goes on from the files
that are there, several machines fill one folder, and the report reads nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pstn.files import read_json, write_atomically
from pstn.text import excerpt

__all__ = ["SHORTENED", "Result", "read_results"]

SHORTENED = "Shortened:"
"""How the departure begins of a cell that was trained for fewer epochs than its declaration says."""


@dataclass(frozen=True)
class Result:
    """One cell of an experiment.

    Args:
        experiment: its name, such as "mnist-subsets".
        model: "CNN", "STN", "P-STN".
        data: what it was trained and tested on, such as "MNIST100".
        seed: of everything random in it, or the number of its fold.
        variant: what else tells it from its neighbours, such as "w=0.0001"; empty where nothing does.
        settings: how it was trained, whole.
        metrics: numbers by name; accuracies and their like are fractions. Empty for a model that diverged: its
            departures say so.
        figure: what the figures draw: small lists by name.
        departures: where this run leaves the paper's settings, in sentences.
        quick: whether this was the minute-long version, which shows nothing but that it runs.
        commit: what was run.
        machine: where.
        versions: of the packages.
        seconds: wall time of this cell; an equal share where models trained together, or where one model gives
            several cells.
        training: the name of the first cell of the model that gave this one. Empty in older files, each of which holds
            the whole time of its model, whatever other cells that gave.

    Example:
        >>> Result("calibration", "P-STN", "MNIST100", 0, "w=0.0001").name
        'mnist100-p-stn-w=0.0001-0'
    """

    experiment: str
    model: str
    data: str
    seed: int
    variant: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=dict)
    departures: list[str] = field(default_factory=list)
    quick: bool = False
    commit: str = "unknown"
    machine: str = "unknown"
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    training: str = ""

    @property
    def shortened(self) -> bool:
        """Whether it was trained for fewer epochs than its declaration says."""
        return any(sentence.startswith(SHORTENED) for sentence in self.departures)

    @property
    def name(self) -> str:
        """What tells the cell from the others of its experiment; the file is called after it."""
        parts = (self.data, self.model, self.variant, str(self.seed))
        return "-".join(re.sub(r"[^a-z0-9.=+]+", "-", part.lower()).strip("-") for part in parts if part)

    def path(self, folder: str | Path) -> Path:
        """Where its file lies under `folder`."""
        return Path(folder) / self.experiment / f"{self.name}.json"

    def write(self, folder: str | Path) -> Path:
        """Write its file under `folder`, a line for each part, whole or not at all."""
        path = self.path(folder)
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(self).items()]
        with write_atomically(path) as draft:
            draft.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Read one file.

        Raises:
            ValueError: when it is not a result file, naming it.
        """
        try:
            held = read_json(path)
            known = {f.name for f in fields(cls)}
            if not isinstance(held, dict) or not {"experiment", "model", "data", "seed"} <= held.keys() <= known:
                raise ValueError("its keys are not those of a result")
            for name, value in held.items():
                if not _FITS.get(name, _is_text)(value):
                    raise ValueError(f"its {name} is {excerpt(value)}")
        except ValueError as error:
            raise ValueError(f"{path} is not a result file: {error}. Remove it, and its cell is run again") from None
        return cls(**held)


def read_results(folder: str | Path, experiment: str | None = None) -> list[Result]:
    """All results under `folder`, of one experiment or of all, in the order of their files' names.

    Folders whose names start with a dot are not read: runs keep their work there.

    Args:
        folder: that holds a folder for each experiment.
        experiment: read that one's alone.

    Raises:
        ValueError: for a file that is no result, or that holds another cell than its name says, naming it.
    """
    found = []
    for path in sorted(Path(folder).glob(f"{experiment or '[!.]*'}/*.json")):
        result = Result.read(path)
        if result.path(folder) != path:
            raise ValueError(
                f"{path} holds the cell {result.experiment}/{result.name}: a copy would count twice. Move it to where "
                "it belongs, or remove it"
            )
        found.append(result)
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    """Whether it can be shown in tables and figures, where a dollar sign would start a formula."""
    return isinstance(value, str) and value.isprintable() and "$" not in value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_FITS: dict[str, Callable[[Any], bool]] = {
    "experiment": _is_name,
    "model": _is_name,
    "data": _is_name,
    "variant": _is_name,
    "seed": lambda value: type(value) is int,
    "settings": lambda value: isinstance(value, dict),
    "metrics": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "figure": lambda value: isinstance(value, dict),
    "departures": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "quick": lambda value: isinstance(value, bool),
    "versions": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "seconds": _is_number,
}
"""What each part of a result file must be; the parts that are not listed are texts."""
