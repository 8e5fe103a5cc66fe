"""A result: the record of one cell of an experiment, one line of a JSON-lines file.

A cell is one model on one data set with one seed. A folder of results holds one file per experiment, `NAME.jsonl`, and
beside it one shard for each process that has added results since, `NAME.PROCESS.jsonl`; reading merges them. A stopped
run continues from the records that are there, several machines fill one folder, and the report reads nothing else.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from pstn.files import open_regular_file, parse_json
from pstn.limits import RESULT_BYTES
from pstn.text import excerpt

RUNS = 5
"""Runs of every cell unless its experiment says otherwise, each with a seed or a fold of its own, as in the paper."""

T = TypeVar("T")
K = TypeVar("K")
# Names of shards sort by when their process started: where two hold the same cell, the later process wins.
_SHARD = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}"


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
        training: the name of the first cell of the model that gave this one.

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
    def name(self) -> str:
        """What tells the cell from the others of its experiment."""
        parts = (self.data, self.model, self.variant, str(self.seed))
        return "-".join(re.sub(r"[^a-z0-9.=+]+", "-", part.lower()).strip("-") for part in parts if part)

    @property
    def full_name(self) -> str:
        """What tells the cell from all others: "EXPERIMENT/NAME"."""
        return f"{self.experiment}/{self.name}"

    def to_line(self) -> str:
        """The record as one line of JSON, without its end."""
        return json.dumps(asdict(self))

    def write(self, folder: str | Path) -> Path:
        """Append the record to this process's shard under `folder`.

        Args:
            folder: of results; made if need be.

        Returns:
            The shard.
        """
        path = Path(folder) / f"{self.experiment}.{_SHARD}-{os.getpid()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        left = memoryview(f"{self.to_line()}\n".encode())
        with path.open("ab", buffering=0) as stream:
            start = stream.tell()
            try:
                while left:
                    left = left[stream.write(left) :]
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)  # part of a line would spoil the next one
                raise
        return path


def read_results(folder: str | Path, experiment: str | None = None) -> list[Result]:
    """All results under `folder`, of one experiment or of all, in the order of their full names.

    A cell that occurs several times counts once: a shard's record replaces that of the experiment's file, a later one
    an earlier one. A last line that was cut off, by a kill or a full disk, is ignored: its cell counts as not run.

    Args:
        folder: that holds the files of the experiments.
        experiment: read that one's alone.

    Raises:
        ValueError: for a line that is not a result, or one of another experiment than its file's name says, naming the
            file and the line.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for accuracy in (0.5, 0.9):
        ...     path = Result("calibration", "CNN", "MNIST100", 0, metrics={"accuracy": accuracy}).write(folder)
        >>> [(result.full_name, result.metrics) for result in read_results(folder)]
        [('calibration/mnist100-cnn-0', {'accuracy': 0.9})]
    """
    found: dict[str, Result] = {}
    # Experiments' own files first: "NAME" is a stem without a dot, that of a shard has one.
    for path in sorted(Path(folder).glob("[!.]*.jsonl"), key=lambda path: ("." in path.stem, path.name)):
        if experiment in (None, path.name.partition(".")[0]):
            found |= {result.full_name: result for result in _read_file(path)}
    return [found[name] for name in sorted(found)]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, in the order in which the keys first occur.

    Example:
        >>> grouped(["CNN", "STN", "CPAB"], key=len)
        {3: ['CNN', 'STN'], 4: ['CPAB']}
    """
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _read_file(path: Path) -> list[Result]:
    with open_regular_file(path) as file:
        content = file.read(RESULT_BYTES + 1)
    if len(content) > RESULT_BYTES:
        raise ValueError(f"{path} is longer than {RESULT_BYTES:,} bytes, which is the limit")
    *lines, last = content.split(b"\n")
    results = []
    for number, line in enumerate([*lines, last] if last else lines, start=1):
        try:
            results.append(_parse(line, path))
        except ValueError as error:
            if number > len(lines):
                break  # it was cut off
            raise ValueError(
                f"{path}, line {number}, is not a result: {error}. Remove the line, and its cell is run again"
            ) from None
    return results


def _parse(line: bytes, path: Path) -> Result:
    held, experiment = parse_json(line.decode(), path), path.name.partition(".")[0]
    if not isinstance(held, dict) or not {"experiment", "model", "data", "seed"} <= held.keys() <= _TYPES.keys():
        raise ValueError("its keys are not those of a result")
    for name, value in held.items():
        usable = type(value) in _TYPES[name]
        if usable and name in _ELEMENTS:
            elements = value.values() if isinstance(value, dict) else value
            usable = all(type(element) in _ELEMENTS[name] for element in elements)
        # Names are shown in tables and figures, where a dollar sign would start a formula.
        named = name in ("experiment", "model", "data", "variant")
        if not usable or (named and ("$" in value or not value.isprintable())):
            raise ValueError(f"its {name} is {excerpt(value)}")
    if held["experiment"] != experiment:
        raise ValueError(f"experiment must be {experiment}, by the name of the file, got {held['experiment']!r}")
    return Result(**held)


# The types of the fields, and of what some of them hold; `parse_json` has refused numbers that are not finite.
_TYPES: dict[str, tuple[type, ...]] = dict.fromkeys((f.name for f in fields(Result)), (str,)) | {
    "seed": (int,), "quick": (bool,), "seconds": (int, float), "departures": (list,),
    **dict.fromkeys(("settings", "metrics", "figure", "versions"), (dict,)),
}  # fmt: skip
_ELEMENTS = {"metrics": (int, float), "versions": (str,), "departures": (str,)}
