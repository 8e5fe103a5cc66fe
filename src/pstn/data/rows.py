"""Series that a model is to answer, row by row: one that cannot be used is told of, and the rest is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pstn.data.errors import DataError, Refuse, raise_it
from pstn.data.files import read_lines
from pstn.data.labels import as_label
from pstn.data.series import MISSING, Policy, RawSeries, Values, is_number, stack_series
from pstn.data.series_files import parse_values, read_series, series_format, table_rows

__all__ = ["Wanted", "read_rows"]

_MOST_TEXT = 1 << 32


class Wanted(NamedTuple):
    """The series that a model takes."""

    channels: int
    length: int
    classes: Sequence[str] = ()
    """Their names tell a label from a value, where lengths do not."""
    policy: Policy = "refuse"
    """What becomes of missing values and other lengths, as for `stack_series`."""


def read_rows(path: Path, wanted: Wanted, refuse: Refuse = raise_it) -> Iterator[tuple[int, Tensor]]:
    r"""The series of a file, each with its line: (C, length) float32, with or without a label before them in the file.

    Where lengths may differ, the rows of a table have labels if all of them begin with text or with a class's name.
    Numbers may be both names and values: rows that are all as long as the series wanted have no labels then, and rows
    that are all longer by one cell have.

    Args:
        path: a table (.tsv, .csv, .txt), a .ts or an .arff file, plain or gzipped.
        wanted: what the series are made to be.
        refuse: told of each series that cannot be used, which is then left out; when not given, the first one raises.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new.csv"
        >>> _ = path.write_text("1,3\n?,1,5\n")
        >>> [(line, x.tolist()) for line, x in read_rows(path, Wanted(1, 3, policy="resample"))]
        [(1, [[1.0, 2.0, 3.0]]), (2, [[1.0, 1.0, 5.0]])]
    """
    for line, values in _raw_rows(path, wanted, refuse):
        try:
            series = _fitted(path, line, values, wanted)
        except DataError as error:
            refuse(error)
        else:
            yield line, series


def _raw_rows(path: Path, wanted: Wanted, refuse: Refuse) -> Iterator[tuple[int, Values]]:
    if path.is_dir() or series_format(path) is None:
        raise DataError(path, "is not a table of series (.tsv, .csv, .txt, .ts, .arff), which this model takes")
    if series_format(path) in (".ts", ".arff"):
        labelled = read_series(path, refuse=refuse)
        yield from zip(labelled.lines, labelled.values, strict=True)
        return
    # Where all lengths agree, each row tells by its own; else the whole table has to be looked at.
    first = None if wanted.policy == "refuse" else int(_has_labels(path, wanted))
    for number, cells in table_rows(read_lines(path, limit=_MOST_TEXT)):
        try:
            values = _row(path, number, cells, wanted.length, first)
        except DataError as error:
            refuse(error)
        else:
            yield number, values


def _row(path: Path, line: int, cells: list[str], length: int, first: int | None) -> Values:
    if first is None:
        first = len(cells) - length
        if first not in (0, 1):
            problem = f"{length} values are expected, with or without a label before them, got {len(cells)} cells"
            raise DataError(path, problem, place=f"line {line}")
    if len(cells) <= first:
        raise DataError(path, "a label and at least one value are expected", place=f"line {line}")
    return parse_values(cells[first:], path, line, first=first + 1)


def _has_labels(path: Path, wanted: Wanted) -> bool:
    texts = names = known = 0
    lengths: set[int] = set()
    for _, cells in table_rows(read_lines(path, limit=_MOST_TEXT)):
        lengths.add(len(cells))
        if cells[0] not in MISSING:  # which may be a label or a value
            known += 1
            texts += not is_number(cells[0])
            names += as_label(cells[0]) in wanted.classes
    if known and texts == known:
        return True
    if len(lengths) == 1 and lengths <= {wanted.length, wanted.length + 1}:
        return lengths == {wanted.length + 1}
    return known > 0 and names == known


def _fitted(path: Path, line: int, values: Values, wanted: Wanted) -> Tensor:
    """The values of one series (C, length) as the policy makes them."""
    place = f"line {line}"
    channels, length = values.shape
    if channels != wanted.channels or (wanted.policy == "refuse" and length != wanted.length):
        expected = f"{wanted.channels} channel(s) of {wanted.length} values"
        raise DataError(path, f"{expected} are expected, got {channels} of {length}", place=place)
    if wanted.policy != "refuse":
        [(x, _)] = stack_series([RawSeries(path, (values,), ("",), (line,))], wanted.policy, length=wanted.length)
        return x[0]
    if np.isnan(values).any():
        missing = int(np.isnan(values).sum())
        raise DataError(path, f"{missing} value(s) are missing (NaN): fill them in first", place=place)
    return torch.from_numpy(values).float()
