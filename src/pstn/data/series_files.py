"""Files of series: .tsv, .ts and .arff, plain or gzipped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pstn.data.arff import parse_arff
from pstn.data.errors import DataError
from pstn.data.files import read_lines
from pstn.data.labels import as_label
from pstn.data.series import RawSeries, Values, parse_numbers
from pstn.data.ts import parse_ts

__all__ = ["SERIES_SUFFIXES", "parse_tsv", "read_series", "series_format", "split_cells"]

SERIES_SUFFIXES = (".tsv", ".ts", ".arff", ".txt", ".csv")
_LIMIT = 1 << 30


def series_format(path: Path) -> str | None:
    """The suffix that says how to read `path`, without a ".gz"; None where it is not one of series.

    Example:
        >>> series_format(Path("FaceAll_TRAIN.tsv.gz"))
        '.tsv'
    """
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SERIES_SUFFIXES else None


def read_series(path: str | os.PathLike[str], *, limit: int = _LIMIT) -> RawSeries:
    r"""Read a file of labelled series, univariate or multivariate.

    Args:
        path: a .tsv (or .txt, .csv: label first), .ts or .arff file, plain or gzipped.
        limit: the most bytes of text it may hold.

    Raises:
        DataError: something in the file cannot be read; the message names the line and the column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "Toy_TRAIN.tsv"
        >>> _ = path.write_text("up\t1.5\t2\t3\ndown\t4\t5\t6\n")
        >>> series = read_series(path)
        >>> series.labels, series.values[0].tolist()
        (('up', 'down'), [[1.5, 2.0, 3.0]])
    """
    path = Path(path)
    suffix = series_format(path)
    if suffix is None:
        raise DataError(path, f"is not a file of series: the name must end in {', '.join(SERIES_SUFFIXES)} or with .gz")
    parse = {".ts": parse_ts, ".arff": parse_arff}.get(suffix, parse_tsv)
    series = parse(path, read_lines(path, limit=limit))
    if not len(series):
        raise DataError(path, "holds no series")
    return series


def parse_tsv(path: Path, lines: Iterator[tuple[int, str]]) -> RawSeries:
    """Series one per line: a label, then the values, separated by tabs, commas or spaces.

    Lines may differ in length; the archive fills short series up with NaN.
    """
    values: list[Values] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, line in lines:
        if not line.strip():
            continue
        cells = split_cells(line)
        if len(cells) < 2:
            raise DataError(path, "a label and at least one value are expected", place=f"line {number}")
        label = as_label(cells[0])
        if not label or label in ("?", "NaN", "nan"):
            raise DataError(path, f"{cells[0]!r} is not a label", place=f"line {number}, column 1")
        values.append(np.atleast_2d(parse_numbers(cells[1:], path, number, first=2)))
        labels.append(label)
        numbers.append(number)
    return RawSeries(path, tuple(values), tuple(labels), tuple(numbers))


def split_cells(line: str) -> list[str]:
    """The cells of a row, whatever separates them: tabs, commas or spaces."""
    line = line.strip("\r\n")
    for separator in ("\t", ","):
        if separator in line:
            return [cell.strip() for cell in line.split(separator)]
    return re.split(r"\s+", line.strip())
