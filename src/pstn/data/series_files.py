"""Files of series: tables such as .tsv and .csv, .ts and .arff, plain or gzipped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from pstn.data.arff import parse_arff
from pstn.data.errors import DataError, Refuse, raise_it
from pstn.data.files import read_lines
from pstn.data.labels import as_label
from pstn.data.series import RawSeries, Values, is_number, parse_numbers
from pstn.data.ts import parse_ts

__all__ = ["SERIES_SUFFIXES", "parse_tsv", "parse_values", "read_series", "series_format", "table_rows"]

SERIES_SUFFIXES = (".tsv", ".ts", ".arff", ".txt", ".csv")
# From quote to quote, and nothing but a separator before and after.
_QUOTED_CELL = re.compile(r'(?<![^\t;, ])"(?:[^"]|"")*"(?![^\t;, ])')
_TAKEN_OUT = "\0"  # no line that `read_lines` lets through holds one
_LIMIT = 1 << 30


def series_format(path: Path) -> str | None:
    """The suffix that says how to read `path`, without a ".gz"; None where it is not one of series.

    Example:
        >>> series_format(Path("FaceAll_TRAIN.tsv.gz"))
        '.tsv'
    """
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SERIES_SUFFIXES else None


def read_series(path: str | os.PathLike[str], *, limit: int = _LIMIT, refuse: Refuse = raise_it) -> RawSeries:
    r"""Read a file of labelled series, univariate or multivariate.

    Args:
        path: a .tsv (or .txt, .csv: label first), .ts or .arff file, plain or gzipped.
        limit: the most bytes of text it may hold.
        refuse: told of each series that cannot be read, which is then left out; when not given, the first one raises.

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
    series = parse(path, read_lines(path, limit=limit), refuse)
    if not len(series):
        raise DataError(path, "holds no series")
    return series


def parse_tsv(path: Path, lines: Iterator[tuple[int, str]], refuse: Refuse = raise_it) -> RawSeries:
    """Series one per line: a label, then the values; see `table_rows`.

    Lines may differ in length; the archive fills short series up with NaN.
    """
    values: list[Values] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, cells in table_rows(lines):
        try:
            label, row = _labelled_row(cells, path, number)
        except DataError as error:
            refuse(error)
            continue
        values.append(row)
        labels.append(label)
        numbers.append(number)
    return RawSeries(path, tuple(values), tuple(labels), tuple(numbers))


def _labelled_row(cells: list[str], path: Path, number: int) -> tuple[str, Values]:
    if len(cells) < 2:
        raise DataError(path, "a label and at least one value are expected", place=f"line {number}")
    label = as_label(cells[0])
    if not label or label in ("?", "NaN", "nan"):
        raise DataError(path, f"{cells[0]!r} is not a label", place=f"line {number}, column 1")
    return label, parse_values(cells[1:], path, number, first=2)


def table_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    r"""The numbered rows of a table as cells, whatever separates them, without empty lines and without a header.

    The first row is a header where none of its cells, apart from the first, is a number, and some of the next row are.

    Example:
        >>> list(table_rows(enumerate(["class,t0,t1\n", "up,1,2\n", "\n", "up,3,4\n"], start=1)))
        [(2, ['up', '1', '2']), (4, ['up', '3', '4'])]
    """
    rows = ((number, _split_cells(line)) for number, line in lines if line.strip())
    start = list(islice(rows, 2))
    if len(start) == 2 and _is_header(start[0][1], start[1][1]):
        del start[0]
    yield from start
    yield from rows


def _is_header(first: list[str], second: list[str]) -> bool:
    return len(first) > 1 and not any(map(is_number, first[1:])) and any(map(is_number, second[1:]))


def _split_cells(line: str) -> list[str]:
    """The cells of a row, whatever separates them: tabs, semicolons, commas or spaces; without quotes around them."""
    line = line.strip("\r\n")
    if '"' not in line:
        return _split_line(line)
    # What stands in quotes is taken out while the rest is split: separators in it are none.
    quoted = iter(_QUOTED_CELL.findall(line))
    cells = _split_line(_QUOTED_CELL.sub(_TAKEN_OUT, line))
    return [
        _unquoted(next(quoted)) if cell == _TAKEN_OUT else re.sub(_TAKEN_OUT, lambda _: next(quoted), cell)
        for cell in cells
    ]


def _unquoted(cell: str) -> str:
    """A cell as it was before a program such as R put quotes around it, and doubled those in it."""
    return cell[1:-1].replace('""', '"').strip()


def _split_line(line: str) -> list[str]:
    # Where semicolons separate, a comma may stand in a number; where commas do, a semicolon may stand in a label.
    semicolons = line.count(";") >= max(1, line.count(","))
    for separator in ("\t", ";" if semicolons else ","):
        if separator in line:
            return [cell.strip() for cell in line.split(separator)]
    return re.split(r"\s+", line.strip())


def parse_values(cells: list[str], path: Path, line: int, *, first: int) -> Values:
    """The values of a row as (1, length); the arguments are those of `parse_numbers`."""
    if len(cells) > 1 and not is_number(cells[-1]) and all(map(is_number, cells[:-1])):
        problem = f"{cells[-1][:40]!r} is not a number; if it is a label, move the last column to the front"
        raise DataError(path, problem, place=f"line {line}, column {first + len(cells) - 1}")
    return np.atleast_2d(parse_numbers(cells, path, line, first=first))
