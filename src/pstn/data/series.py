"""Time series: tables, .ts and .arff files, policies for gaps and lengths, the UCR and UEA archives."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice
from pstn.data.download import Progress, RemoteFile, cache_folder, download, missing, offline, search_folders
from pstn.data.files import (
    DataError,
    DataWarning,
    MissingDataError,
    Refuse,
    bounded_read,
    most_unpacked,
    open_stream,
    open_zip,
    raise_it,
    read_lines,
    read_zip_member,
    require_inside,
)
from pstn.data.split import Split, Splits, as_label, encode_labels, name_classes, sort_classes, stratified_indices

__all__ = ["RawSeries", "load_italy_power_demand", "load_series_file", "load_ucr", "read_series", "stack_series"]


Policy = Literal["refuse", "resample", "pad"]
Values = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST = 400  # characters of a number; the longest float64 that is written out in full has about 330
MISSING = ("?", "", "NaN", "nan", "NAN")


@dataclass(frozen=True)
class RawSeries:
    """What a file of series holds, before anything is done about gaps and lengths.

    Attributes:
        path: the file.
        values: one array (C, length) per series; NaN where a value is missing.
        labels: one per series.
        lines: the line each series was read from, for messages.
        declared: the classes the header names, where it names them.

    Example:
        >>> len(RawSeries(Path("toy.tsv"), (np.zeros((1, 9)),), ("a",), (1,)))
        1
    """

    path: Path
    values: tuple[Values, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]
    declared: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)


def parse_numbers(cells: Sequence[str], path: Path, line: int, *, first: int = 1) -> Values:
    """Numbers from text cells; "?", "NaN" and empty cells are missing values. The bad cell is named.

    Args:
        cells: the text.
        path: the file, for messages.
        line: the line, for messages.
        first: the column number of the first cell, for messages.
    """
    try:
        # A line of clean numbers is parsed at once; only what is refused is looked at cell by cell. Python reads "1_0"
        # as 10, as in its source; in data that is a slip.
        if any("_" in cell or len(cell) > _LONGEST for cell in cells):
            raise ValueError
        numbers: Values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        numbers = np.array([_parse_cell(c, path, line, first + i) for i, c in enumerate(cells)], dtype=np.float64)
    infinite = np.abs(numbers) > _LARGEST
    if infinite.any():
        at = int(infinite.argmax())
        raise DataError(
            path, f"{cells[at].strip()!r} is not a finite number of float32", place=f"line {line}, column {first + at}"
        )
    return numbers


def is_number(cell: str) -> bool:
    """Whether a text cell is a number or the mark of a missing one.

    Example:
        >>> [is_number(cell) for cell in ("1.5", "?", "up")]
        [True, True, False]
    """
    try:
        _parse_number(cell.strip())
    except ValueError:
        return False
    return True


def _parse_number(text: str) -> float:
    if text in MISSING:
        return float("nan")
    if "_" in text or len(text) > _LONGEST:
        raise ValueError
    return float(text)


def _parse_cell(cell: str, path: Path, line: int, column: int) -> float:
    text = cell.strip()
    try:
        return _parse_number(text)
    except ValueError as error:
        shown = text if len(text) <= 40 else text[:37] + "..."
        advice = ": decimals have a point" if is_number(text.replace(",", ".", 1)) else ""
        raise DataError(path, f"{shown!r} is not a number{advice}", place=f"line {line}, column {column}") from error


def stack_series(
    parts: Sequence[RawSeries], policy: Policy = "refuse", *, length: int | None = None
) -> list[tuple[Tensor, Tensor | None]]:
    """Tensors of one length from the series of several files, e.g. the training and the test part.

    The policy says what becomes of missing values and unequal lengths:

    - "refuse": they are an error that names the first such series, wherever in it they are.
    - "resample": missing values are interpolated linearly between their neighbours (the nearest value at the ends), and
      every series is resampled linearly to the longest length in the first part.
    - "pad": every series is followed by zeros up to the longest length of all parts, missing values become zeros, and
      a mask says which values are real.

    Values missing at the end of all channels of a series are the archive's way to write a shorter series: "resample"
    and "pad" cut them off before anything else.

    Args:
        parts: the files, the training part first.
        policy: "refuse", "resample" or "pad".
        length: L, where something else has chosen it, such as a model; by the policy when not given.

    Returns:
        For each part (x, mask): x (N, C, L) float32; mask (N, L) bool with "pad", else None.

    Example:
        >>> values = (np.array([[1.0, 2.0, 3.0]]), np.array([[4.0, 5.0]]))
        >>> series = RawSeries(Path("toy.tsv"), values, ("a", "b"), (1, 2))
        >>> [(x, mask)] = stack_series([series], policy="pad")
        >>> x[1].tolist(), mask[1].tolist()
        ([[4.0, 5.0, 0.0]], [True, True, False])
    """
    require_choice("policy", policy, ("refuse", "resample", "pad"))
    _check_channels(parts)
    cut = [[_cut_end(v, part, i) for i, v in enumerate(part.values)] for part in parts]
    if policy == "refuse":
        _refuse_odd(parts, cut, length)
    longest = [max(v.shape[1] for v in values) for values in cut]
    if length is None:
        length = longest[0] if policy == "resample" else max(longest)
    stacked: list[tuple[Tensor, Tensor | None]] = []
    for part, values in zip(parts, cut, strict=True):
        if policy == "pad":
            _refuse_longer(part, values, length)
            stacked.append(_pad(values, length))
        else:
            even = [_resample(_fill_gaps(v, part, i), length) for i, v in enumerate(values)]
            stacked.append((torch.from_numpy(np.stack(even)).float(), None))
    return stacked


def _check_channels(parts: Sequence[RawSeries]) -> None:
    channels = parts[0].values[0].shape[0]
    for part in parts:
        for values, line in zip(part.values, part.lines, strict=True):
            if values.shape[0] != channels:
                raise DataError(
                    part.path, f"has {values.shape[0]} channels, others have {channels}", place=f"line {line}"
                )


def _cut_end(values: Values, part: RawSeries, at: int) -> Values:
    cut = without_padding(values)
    if not cut.shape[1]:
        raise DataError(part.path, "the series holds no value", place=f"line {part.lines[at]}")
    return cut


def without_padding(values: Values) -> Values:
    """A series (C, length) up to its last value: the archive fills shorter ones up with NaN."""
    real = np.flatnonzero(~np.isnan(values).all(axis=0))
    return values[:, : int(real[-1]) + 1 if len(real) else 0]


def _refuse_odd(parts: Sequence[RawSeries], cut: Sequence[Sequence[Values]], length: int | None) -> None:
    others = "others have" if length is None else "wanted is"
    length = length or cut[0][0].shape[1]
    advice = "pass policy='resample' or policy='pad' (--policy)"
    for part, values in zip(parts, cut, strict=True):
        for series, whole, line in zip(values, part.values, part.lines, strict=True):
            place = f"line {line}"
            if series.shape[1] != length:
                raise DataError(part.path, f"has length {series.shape[1]}, {others} {length}: {advice}", place=place)
            if np.isnan(whole).any():
                count = int(np.isnan(whole).sum())
                raise DataError(part.path, f"{count} value(s) are missing: {advice}", place=place)


def _refuse_longer(part: RawSeries, values: Sequence[Values], length: int) -> None:
    for series, line in zip(values, part.lines, strict=True):
        if series.shape[1] > length:
            problem = f"has length {series.shape[1]}, and padding cannot make it {length}"
            raise DataError(part.path, problem, place=f"line {line}")


def _fill_gaps(values: Values, part: RawSeries, at: int) -> Values:
    if not np.isnan(values).any():
        return values
    filled = values.copy()
    time = np.arange(values.shape[1])
    for channel in filled:
        real = ~np.isnan(channel)
        if not real.any():
            raise DataError(part.path, "a channel of the series holds no value", place=f"line {part.lines[at]}")
        channel[~real] = np.interp(time[~real], time[real], channel[real])
    return filled


def _resample(values: Values, length: int) -> Values:
    if values.shape[1] == length:
        return values
    # First and last points stay where they are: both ends of a series mean something.
    old, new = np.linspace(0, 1, values.shape[1]), np.linspace(0, 1, length)
    return np.stack([np.interp(new, old, channel) for channel in values])


def _pad(values: Sequence[Values], length: int) -> tuple[Tensor, Tensor]:
    x = np.zeros((len(values), values[0].shape[0], length), dtype=np.float32)
    mask = np.zeros((len(values), length), dtype=bool)
    for i, series in enumerate(values):
        missing = np.isnan(series)
        x[i, :, : series.shape[1]] = np.where(missing, 0.0, series)
        mask[i, : series.shape[1]] = ~missing.any(axis=0)
    return torch.from_numpy(x), torch.from_numpy(mask)


_ARFF_NUMERIC = ("numeric", "real", "integer")


@dataclass
class _ArffHeader:
    """What the attributes say: how many numbers a channel has, whether channels are relational, and the classes."""

    numbers: int = 0
    relational: bool = False
    classes: dict[str, None] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def parse_arff(path: Path, lines: Iterator[tuple[int, str]], refuse: Refuse = raise_it) -> RawSeries:
    """Parse the numbered lines of an .arff file whose last attribute is nominal: the class.

    Univariate files have one numeric attribute per point in time; multivariate ones a relational attribute whose rows,
    divided by a backslash and an n within one pair of quotes, are the channels.
    """
    header = _read_arff_header(path, lines)
    values: list[Values] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] == "%":
            continue
        try:
            series, label = _arff_row(line, header, path, number)
        except DataError as error:
            refuse(error)
            continue
        values.append(series)
        labels.append(label)
        numbers.append(number)
    return RawSeries(path, tuple(values), tuple(labels), tuple(numbers), tuple(header.classes))


def _arff_row(line: str, header: _ArffHeader, path: Path, number: int) -> tuple[Values, str]:
    if line[0] == "{":
        raise DataError(path, "sparse rows are not supported", place=f"line {number}")
    series, label = (_relational_row if header.relational else _flat_row)(line, header, path, number)
    if label not in header.classes:
        known = name_classes(header.classes)
        raise DataError(path, f"unknown label {label!r}: the header declares {known}", place=f"line {number}")
    return series, label


def _flat_row(line: str, header: _ArffHeader, path: Path, number: int) -> tuple[Values, str]:
    *cells, label = line.split(",")
    if len(cells) != header.numbers:
        problem = f"has {len(cells)} values, the header promises {header.numbers}"
        raise DataError(path, problem, place=f"line {number}")
    return np.atleast_2d(parse_numbers(cells, path, number)), as_label(_unquote(label))


def _relational_row(line: str, header: _ArffHeader, path: Path, number: int) -> tuple[Values, str]:
    quote = line[0]
    end = line.rfind(quote + ",", 1)
    if quote not in "'\"" or end < 0:
        raise DataError(path, "channels in quotes, a comma and a label are expected", place=f"line {number}")
    label = as_label(_unquote(line[end + 2 :]))
    rows = [parse_numbers(row.split(","), path, number) for row in line[1:end].split("\\n")]
    for channel, row in enumerate(rows, start=1):
        if len(row) != header.numbers:
            problem = f"channel {channel} has {len(row)} values, the header promises {header.numbers}"
            raise DataError(path, problem, place=f"line {number}")
    return np.stack(rows), label


def _read_arff_header(path: Path, lines: Iterator[tuple[int, str]]) -> _ArffHeader:
    header = _ArffHeader()
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] == "%":
            continue
        keyword = line.split(None, 1)[0].lower()
        if keyword == "@data":
            break
        if keyword == "@attribute":
            _read_attribute(line, header, path, number)
        elif keyword not in ("@relation", "@end"):
            raise DataError(path, f"{keyword[:40]!r} is not expected before @data", place=f"line {number}")
    else:
        raise DataError(path, "has no @data line")
    if not header.classes:
        raise DataError(path, "has no nominal attribute for the class, such as @attribute target {1,2}", place="header")
    if not header.numbers:
        raise DataError(path, "has no numeric attribute", place="header")
    return header


def _read_attribute(line: str, header: _ArffHeader, path: Path, number: int) -> None:
    place = f"line {number}"
    body = line.split(None, 1)[1] if len(line.split(None, 1)) > 1 else ""
    name, kind = _split_name(body)
    if not name or not kind:
        raise DataError(path, "an attribute needs a name and a type", place=place)
    if name in header.names:
        raise DataError(path, f"attribute {name!r} occurs twice", place=place)
    header.names.add(name)
    if header.classes:
        raise DataError(path, "the class must be the last attribute", place=place)
    if kind.startswith("{"):
        if not kind.endswith("}"):
            raise DataError(path, "the list of classes is not closed by '}'", place=place)
        names = [as_label(_unquote(word)) for word in kind[1:-1].split(",") if word.strip()]
        header.classes = dict.fromkeys(names)
        if len(header.classes) < len(names) or not names:
            raise DataError(path, "classes must be given, each once", place=place)
    elif kind.lower() == "relational":
        header.relational = True
    elif kind.lower() in _ARFF_NUMERIC:
        header.numbers += 1
    else:
        raise DataError(path, f"attributes of type {kind[:40]!r} are not supported", place=place)


def _split_name(body: str) -> tuple[str, str]:
    """The name of an attribute, in quotes or not, and what follows it."""
    body = body.strip()
    if body[:1] in ("'", '"'):
        name, _, rest = body[1:].partition(body[0])
        return name, rest.strip()
    words = body.split(None, 1)
    return words[0] if words else "", words[1].strip() if len(words) > 1 else ""


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


_FLAGS = {"true": True, "false": False}


def parse_ts(path: Path, lines: Iterator[tuple[int, str]], refuse: Refuse = raise_it) -> RawSeries:
    """Parse the numbered lines of a .ts file.

    Supported are univariate and multivariate series with class labels, of equal or unequal length, with missing
    values. Time stamps and numeric targets (regression) are refused with a message that says so.
    """
    header = _read_ts_header(path, lines)
    classes, dimensions, length = header
    values: list[Values] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] in "#%":
            continue
        *channels, label = line.split(":")
        try:
            label = _check_label(label, classes, path, number)
            row = _read_channels(channels, dimensions, length, path, number)
        except DataError as error:
            refuse(error)
            continue
        values.append(row)
        labels.append(label)
        numbers.append(number)
    return RawSeries(path, tuple(values), tuple(labels), tuple(numbers), tuple(classes))


def _read_ts_header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[dict[str, None], int | None, int | None]:
    """(classes, dimensions, length) from the lines up to @data."""
    entries: dict[str, tuple[int, list[str]]] = {}
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] in "#%":
            continue
        if line[0] != "@":
            raise DataError(path, "values before the @data line", place=f"line {number}")
        name, *words = line.split()
        key = name[1:].lower()
        if key == "data":
            break
        if key in entries and key != "problemname":  # which files of the archive do repeat, and which says nothing
            raise DataError(path, f"@{key} occurs twice, first on line {entries[key][0]}", place=f"line {number}")
        entries[key] = (number, words)
    else:
        raise DataError(path, "has no @data line")
    if _flag(path, entries, "timestamps"):
        raise DataError(path, "series with time stamps are not supported", place=f"line {entries['timestamps'][0]}")
    if "targetlabel" in entries:
        place = f"line {entries['targetlabel'][0]}"
        raise DataError(path, "has numeric targets (regression), where class labels are expected", place=place)
    dimensions = _whole(path, entries, "dimensions") or _whole(path, entries, "dimension")
    if dimensions is None and _flag(path, entries, "univariate"):
        dimensions = 1
    length = _whole(path, entries, "serieslength") if _flag(path, entries, "equallength") else None
    return _classes(path, entries), dimensions, length


def _classes(path: Path, entries: dict[str, tuple[int, list[str]]]) -> dict[str, None]:
    if "classlabel" not in entries:
        raise DataError(path, "has no @classLabel line: its series have no classes", place="header")
    number, words = entries["classlabel"]
    if not words or _FLAGS.get(words[0].lower()) is not True or len(words) < 2:
        raise DataError(path, "@classLabel must be 'true' followed by the classes", place=f"line {number}")
    names = [as_label(word) for word in words[1:]]
    classes = dict.fromkeys(names)
    if len(classes) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(path, f"class {twice!r} is declared twice", place=f"line {number}")
    return classes


def _check_label(label: str, classes: dict[str, None], path: Path, number: int) -> str:
    label = as_label(label)
    if label not in classes:
        raise DataError(
            path, f"unknown label {label!r}: the header declares {name_classes(classes)}", place=f"line {number}"
        )
    return label


def _read_channels(channels: list[str], dimensions: int | None, length: int | None, path: Path, number: int) -> Values:
    if not channels:
        raise DataError(path, "values and a label, divided by ':', are expected", place=f"line {number}")
    if dimensions is not None and len(channels) != dimensions:
        problem = f"has {len(channels)} channel(s), the header promises {dimensions}"
        raise DataError(path, problem, place=f"line {number}")
    rows = [parse_numbers(channel.split(","), path, number) for channel in channels]
    longest = max(len(row) for row in rows)
    if length is not None and any(len(row) != length for row in rows):
        wrong = next(len(row) for row in rows if len(row) != length)
        raise DataError(path, f"has length {wrong}, the header promises {length}", place=f"line {number}")
    # Channels of one series may end at different times: the rest of the shorter ones is missing.
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=np.nan) for row in rows])


def _flag(path: Path, entries: dict[str, tuple[int, list[str]]], key: str) -> bool:
    if key not in entries:
        return False
    number, words = entries[key]
    if len(words) != 1 or words[0].lower() not in _FLAGS:
        raise DataError(path, f"@{key} must be true or false, got {' '.join(words)!r}", place=f"line {number}")
    return _FLAGS[words[0].lower()]


def _whole(path: Path, entries: dict[str, tuple[int, list[str]]], key: str) -> int | None:
    if key not in entries:
        return None
    number, words = entries[key]
    if len(words) != 1 or not (words[0].isascii() and words[0].isdigit() and len(words[0]) < 10) or int(words[0]) < 1:
        raise DataError(
            path, f"@{key} must be a whole number of at least 1, got {' '.join(words)!r}", place=f"line {number}"
        )
    return int(words[0])


SERIES_SUFFIXES = (".tsv", ".ts", ".arff", ".txt", ".csv")
# From quote to quote, and nothing but a separator before and after.
_QUOTED_CELL = re.compile(r'(?<![^\t;, ])"(?:[^"]|"")*"(?![^\t;, ])')
_TAKEN_OUT = "\0"  # no line that `read_lines` lets through holds one
_SERIES_LIMIT = 1 << 30


def series_format(path: Path) -> str | None:
    """The suffix that says how to read `path`, without a ".gz"; None where it is not one of series.

    Example:
        >>> series_format(Path("FaceAll_TRAIN.tsv.gz"))
        '.tsv'
    """
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SERIES_SUFFIXES else None


def read_series(path: str | os.PathLike[str], *, limit: int = _SERIES_LIMIT, refuse: Refuse = raise_it) -> RawSeries:
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
        _unquote_cell(next(quoted)) if cell == _TAKEN_OUT else re.sub(_TAKEN_OUT, lambda _: next(quoted), cell)
        for cell in cells
    ]


def _unquote_cell(cell: str) -> str:
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
            values = _table_row(path, number, cells, wanted.length, first)
        except DataError as error:
            refuse(error)
        else:
            yield number, values


def _table_row(path: Path, line: int, cells: list[str], length: int, first: int | None) -> Values:
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


@dataclass(frozen=True)
class PartRecord:
    """One file of the archive.

    Attributes:
        count: how many series the archive's file holds.
        sha256: of the archive's .tsv after unpacking; None where no copy known to be exact was at hand.
        values: of what is in it, labels and float32 values, whatever the format; see `values_sha256`.
            None where no complete copy was at hand.
        copies: SHA-256 of copies in circulation that differ, and how they do.
    """

    count: int
    sha256: str | None = None
    values: str | None = None
    copies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SetRecord:
    """One data set of the archive: length of a series, classes, and its two files."""

    length: int
    classes: int
    train: PartRecord
    test: PartRecord
    aliases: tuple[str, ...] = ()


UCR_RECORDS: dict[str, SetRecord] = {
    "FaceAll": SetRecord(
        131,
        14,
        PartRecord(
            560,
            "ac1957cc8aac3cfd7951a0d46e7ea1147fd3a23db3eeda2a30484764584a3242",
            "9e879cfac05c268505863a6ead31b7354077e5d81f4a3b6044e94208c16c103a",
        ),
        PartRecord(
            1690,
            "ae3cc831966b5b28684ca2563813bd550beb8648b3c3737d585b3eca79271d11",
            "13869b5f0832e2023d056b60fe7a47f89c3b6dbcf6066f086d2c1dc10dc772ba",
        ),
    ),
    "PhalangesOutlinesCorrect": SetRecord(
        80,
        2,
        PartRecord(
            1800,
            "c9479797e88b57cbff8d764584011b15493a8c8b6a5bd2e2c627e477f18cc298",
            "43aaefb8cea086c8cd1254a29ad9ef2d43faeeeb1571f317d5187e937a8b7ae2",
        ),
        PartRecord(
            858,
            "a57a9343d87a1a72f2cc31febdd13584b04952126a9bbdd3712ebc083082f10c",
            "c43faac6a697f0edb40fc20142b616df6cd912aa945d2b42f1927edefd132f0c",
        ),
    ),
    "TwoPatterns": SetRecord(
        128,
        4,
        PartRecord(
            1000,
            "fe4756d0a92e39994e3cc410912ef4c6929a4559b6bece395a8f8d344e2e619f",
            "bd57de75293964f9a4ec23585d68d044b20436720f10bc7aa75df3fb45edda1e",
        ),
        PartRecord(
            4000,
            copies={"b3e8286807f1523649bd4891a14d3699d9c38c86dea54aaa4f0439376141e459": "values rounded to float32"},
        ),
        aliases=("Two_Patterns",),
    ),
    "Wafer": SetRecord(
        152,
        2,
        PartRecord(
            1000,
            "a5d44c056e929ce6f406c9e88c135f1d0996bfe73f3aa4508804914956477a02",
            "20861fe5b15f39076fb3efdc7b7264c59c545f0de9b02c1f43fa39243e37fea2",
        ),
        PartRecord(
            6164,
            copies={"ff6c8f19ea34333359af153a5370fa897528bdf43a3b31219476f710ac9b4175": "its first series is missing"},
        ),
    ),
    "UWaveGestureLibraryX": SetRecord(
        315,
        8,
        PartRecord(
            896,
            "9e8d695d5a49a47a8322908c2000fb9fe8b593f9fbfce3332840d70de7503856",
            "9801045aa0329e01c7f03b902d590e946deb1cfca6c4136b1e5291a6627d650c",
        ),
        PartRecord(3582),
        aliases=("uWaveGestureLibrary_X",),
    ),
    "ItalyPowerDemand": SetRecord(24, 2, PartRecord(67), PartRecord(1029)),
}
_SITE = "https://timeseriesclassification.com/aeon-toolkit/"
_MIRROR = "https://www.timeseriesclassification.com/aeon-toolkit/"
_UCR_SUFFIXES = tuple(suffix + packed for suffix in SERIES_SUFFIXES for packed in ("", ".gz"))
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_PART = re.compile(r"(.+)_(TRAIN|TEST|train|test)\..+")
_OTHER = {"TRAIN": "TEST", "TEST": "TRAIN", "train": "test", "test": "train"}


def load_ucr(
    name: str,
    *,
    policy: Policy = "refuse",
    validation: float = 0.25,
    seed: int = 0,
    need_test: bool = True,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Splits[Split]:
    """A data set of the UCR or UEA archive, with the archive's test split and a validation split of our own.

    Files are looked for as NAME_TRAIN and NAME_TEST with .tsv, .ts or .arff, plain or gzipped, in $PSTN_DATA/ucr, in a
    folder NAME within it, in the cache, and then on the archive's site. Values are used as they are: the paper does not
    normalise series. A file that differs from what is on record about the archive's is used, with a `DataWarning`.

    Args:
        name: e.g. "FaceAll"; the older spellings of the paper ("wafer", "uWaveGestureLibrary_X") work too.
        policy: what becomes of missing values and unequal lengths: "refuse", "resample" or "pad"; see `stack_series`.
        validation: the share of the training part set aside, class by class; the paper's is 0.25. 0 for none.
        seed: of the validation split.
        need_test: whether a missing test part is an error; else the test split is None.
        root: a folder that holds the files; then nothing else is looked at.
        fetch: whether a missing set may be downloaded.
        progress: told how far a download is.

    Returns:
        Series (N, C, L) float32; with policy "pad" a mask (N, L) too.

    Example:
        >>> load_ucr("ItalyPowerDemand").train.x.shape  # ships with the package; "FaceAll" is fetched
        torch.Size([50, 1, 24])
    """
    name = ucr_name(name)
    if name == "ItalyPowerDemand" and root is None and find_ucr(name, "TRAIN") is None:
        return load_italy_power_demand(policy=policy, validation=validation, seed=seed)
    paths = []
    for part in ("TRAIN", "TEST"):
        try:
            paths.append(locate_ucr(name, part, root=root, fetch=fetch, progress=progress))
        except MissingDataError:
            if part == "TRAIN" or need_test:
                raise
    return _build(name, _read_parts(name, paths), policy, validation, seed)


def _read_parts(name: str, paths: list[Path]) -> list[RawSeries]:
    """The training and the test part, each compared with what is on record."""
    if len(paths) == 2 and paths[0].samefile(paths[1]):
        raise DataError(paths[1], f"is the same file as {paths[0].name}: nothing would be left to test on")
    parts = [read_series(path) for path in paths]
    for series, part in zip(parts, ("TRAIN", "TEST"), strict=False):
        for difference in compare_with_archive(name, part, series):
            warnings.warn(DataWarning(f"{series.path}: {difference}; it is used as it is"), stacklevel=3)
    return parts


def _build(
    name: str, parts: list[RawSeries], policy: Policy, validation: float, seed: int, length: int | None = None
) -> Splits[Split]:
    classes = sort_classes(parts[0].declared or parts[0].labels)
    known = set(classes)
    stacked = stack_series(parts, policy, length=length)
    splits = []
    for series, (x, mask), which in zip(parts, stacked, ("train", "test"), strict=False):
        for label, line in zip(series.labels, series.lines, strict=True):
            if label not in known:
                problem = f"unknown label {label!r}: the training part has {name_classes(classes)}"
                raise DataError(series.path, problem, place=f"line {line}")
        splits.append(Split(x, encode_labels(series.labels, classes), classes, f"{name} {which}", mask=mask))
    test = splits[1] if len(splits) > 1 else None
    return hold_out(splits[0], validation, seed, test)


def load_series_file(
    path: str | os.PathLike[str],
    *,
    policy: Policy = "refuse",
    validation: float = 0.25,
    test: float = 0.2,
    seed: int = 0,
    need_test: bool = True,
    length: int | None = None,
) -> Splits[Split]:
    r"""Series of your own from one file, or from NAME_TRAIN with NAME_TEST beside it, in whatever format each is.

    Args:
        path: a .tsv, .csv, .txt, .ts or .arff file, plain or gzipped.
        policy: as for `load_ucr`.
        validation: the share of the training part set aside.
        test: the share of a single file to test on. No part of a NAME_TRAIN file is ever used to test on.
        seed: of these divisions.
        need_test: whether a missing NAME_TEST is an error; else the test split is None.
        length: as for `stack_series`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> _ = path.write_text("up,1,2\ndown,3,4\n" * 10)
        >>> load_series_file(path).sizes()
        {'train': 12, 'validation': 4, 'test': 4}
    """
    path = Path(path)
    match = _PART.fullmatch(path.name)
    if match is not None and path.is_file():
        parts = _read_parts(_on_record(match[1]), _both(path, need_test))
        return _build(match[1], parts, policy, validation, seed, length)
    name = path.name.split(".")[0]
    whole = _build(name, [read_series(path)], policy, 0.0, seed, length).train
    rest, tested = stratified_indices(whole.y, test, seed=seed)
    held = dataclasses.replace(whole.take(tested), name=f"{name} test") if len(tested) else None
    return hold_out(whole.take(rest), validation, seed, held)


def _both(path: Path, need_test: bool) -> list[Path]:
    """NAME_TRAIN and NAME_TEST, of which `path` is one and the other lies beside it."""
    match = _PART.fullmatch(path.name)
    assert match is not None
    name, given = match[1], match[2]
    trains = given.upper() == "TRAIN"
    other = _in_folder(path.parent, name, _OTHER[given])
    if other is not None:
        require_inside(path.parent, other)
        return [path, other] if trains else [other, path]
    if trains and not need_test:
        return [path]
    wanted = path.parent / f"{name}_{_OTHER[given]}.tsv"
    advice = "; pass need_test=False to go without a test part" if trains else ""
    raise MissingDataError(wanted, f"is missing beside {path.name}, and so are .ts, .arff and .gz of it{advice}")


def _on_record(name: str) -> str:
    """The archive's spelling of the name of a file, which may hold anything."""
    return ucr_name(name) if re.fullmatch(_NAME, name) else name


def hold_out(train: Split, fraction: float, seed: int, test: Split | None) -> Splits[Split]:
    """Set a share of the training part aside, class by class."""
    if fraction == 0:
        return Splits(train, None, test)
    first, second = stratified_indices(train.y, fraction, seed=seed)
    if len(second) == 0:
        return Splits(train, None, test)
    named = dataclasses.replace(train.take(second), name=train.name.replace("train", "validation"))
    return Splits(train.take(first), named, test)


def load_italy_power_demand(*, policy: Policy = "refuse", validation: float = 0.25, seed: int = 0) -> Splits[Split]:
    """ItalyPowerDemand, which ships with the package: 67 training and 1,029 test series of length 24 in 2 classes.

    A day's electricity demand in Italy; the classes are October to March and April to September.

    Args:
        policy: as for `load_ucr`; no value is missing and all lengths agree, so that only "pad" adds anything: a mask.
        validation: the share of the training part set aside, class by class.
        seed: of the validation split.

    Example:
        >>> load_italy_power_demand().sizes()
        {'train': 50, 'validation': 17, 'test': 1029}
    """
    place = files("pstn.data") / "offline" / "italy_power_demand.npz"
    parts = []
    with place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for part in ("train", "test"):
            values = tuple(arrays[f"{part}_x"].astype(np.float64)[:, None])
            labels = tuple(("1", "2")[y] for y in arrays[f"{part}_y"])
            parts.append(RawSeries(Path(place.name), values, labels, tuple(range(1, len(labels) + 1))))
    return _build("ItalyPowerDemand", parts, policy, validation, seed)


def ucr_name(name: str) -> str:
    """The archive's spelling of a name, where it is on record; else the name as given, if it can be a file's.

    Example:
        >>> ucr_name("uWaveGestureLibrary_X"), ucr_name("wafer")
        ('UWaveGestureLibraryX', 'Wafer')
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"name must be a data set's, of letters, digits, '_' and '-', got {name!r}")
    for known, record in UCR_RECORDS.items():
        if plain_name(name) in {plain_name(known), *map(plain_name, record.aliases)}:
            return known
    return name


def plain_name(name: str) -> str:
    """A name without case, dashes and underscores: what people remember of it.

    Example:
        >>> plain_name("Face_All")
        'faceall'
    """
    return name.lower().replace("_", "").replace("-", "")


def find_ucr(name: str, part: str, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The file of one part, "TRAIN" or "TEST", of a set where it already lies, or None."""
    for folder in search_folders("ucr", root):
        found = _in_folder(folder, name, part) or _in_folder(folder / name, name, part)
        if found is not None:
            return require_inside(folder, found)
    return None


def _in_folder(folder: Path, name: str, part: str) -> Path | None:
    paths = (folder / f"{name}_{part}{suffix}" for suffix in _UCR_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def locate_ucr(
    name: str,
    part: str,
    *,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The file of one part of a set where it lies, fetched into the cache first where it lies nowhere."""
    found = find_ucr(name, part, root=root)
    if found is not None:
        return found
    failure = ""
    if root is None and fetch and not offline():
        try:
            fetch_ucr(name, progress=progress)
        except (DataError, ImportError) as error:
            failure = str(getattr(error, "problem", error))
        found = find_ucr(name, part)
        if found is not None:
            return found
    get = name if name in UCR_RECORDS else f"ucr:{name}"
    wanted = RemoteFile("ucr", f"{name}_{part}.tsv (or .ts, .arff, with or without .gz)", (), get=get)
    raise missing(wanted, root, failure)


def fetch_ucr(name: str, *, progress: Progress | None = None) -> list[Path]:
    """Fetch a set from the archive's site into the cache, and return its training and its test file.

    The site fixes no checksums. The archive is unpacked member by member, only what this package reads, with bounded
    sizes, in a folder of its own; both files are read before they are moved to their place. `load_ucr` compares them
    with what is on record.
    """
    name = ucr_name(name)
    if offline():
        raise DataError(f"{name}.zip", "is not fetched: $PSTN_OFFLINE says that the network is not to be used")
    remote = RemoteFile("ucr", f"{name}.zip", (f"{_SITE}{name}.zip", f"{_MIRROR}{name}.zip"), get=name)
    folder = cache_folder() / "ucr" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetched-") as work:
        drafts = _unpack_ucr(download(remote, Path(work), progress=progress), name)
        for draft in drafts:
            try:
                read_series(draft)
            except DataError as error:
                raise DataError(remote.name, f"{draft.name} in it cannot be read: {error.problem}") from error
        folder.mkdir(exist_ok=True)
        # The training part last: it is what is looked for first.
        return [draft.replace(folder / draft.name) for draft in reversed(drafts)][::-1]


def _unpack_ucr(path: Path, name: str) -> list[Path]:
    """The training and the test file of a set, out of the site's zip and beside it."""
    drafts = []
    with open_zip(path, "a zip archive: there may be no set of that name") as archive:
        # By the last part of the name, which is all that is used of it: archives have a folder in them or not.
        members = {PurePosixPath(member).name: member for member in archive.namelist()}
        for part in ("TRAIN", "TEST"):
            wanted = [f"{name}_{part}{suffix}" for suffix in (".ts", ".tsv", ".arff")]
            found = next((file for file in wanted if file in members), None)
            if found is None:
                raise DataError(path.name, f"holds none of {', '.join(wanted)}")
            drafts.append(path.with_name(found))
            drafts[-1].write_bytes(read_zip_member(archive, members[found], path, limit=most_unpacked(path)))
    return drafts


def compare_with_archive(name: str, part: str, series: RawSeries) -> list[str]:
    """How a file differs from what is on record about the archive's: one sentence each, none if it agrees."""
    if name not in UCR_RECORDS:
        return []
    known = UCR_RECORDS[name]
    record: PartRecord = known.train if part == "TRAIN" else known.test
    text = _text_sha256(series.path) if ".tsv" in series.path.name.lower() else None
    if text is not None and text == record.sha256:
        return []
    if text in record.copies:
        return [f"differs from the archive's file: {record.copies[text]}"]
    found, expected = values_sha256(series), record.values
    if expected is None and text is not None:
        found, expected = text, record.sha256
    if expected is not None and found != expected:
        return [f"differs from the archive's checksum: SHA-256 is {found}, the archive's {expected}"]
    if len(series) != record.count:
        return [f"holds {len(series):,} series, the archive's file {record.count:,}"]
    return []


def _text_sha256(path: Path) -> str:
    """Of the unpacked text with plain line ends: copies made on Windows are no different."""
    with open_stream(path) as stream:
        content = bounded_read(stream, most_unpacked(path))
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def values_sha256(series: RawSeries) -> str:
    """Of labels and float32 values, which is what is used of a file: the same whatever its format.

    Example:
        >>> one = RawSeries(Path("a.tsv"), (np.array([[1.0, 2.0]]),), ("up",), (1,))
        >>> values_sha256(one) == values_sha256(dataclasses.replace(one, path=Path("a.ts"), lines=(9,)))
        True
    """
    digest = hashlib.sha256()
    for values, label in zip(series.values, series.labels, strict=True):
        digest.update(f"{label}\0{values.shape}\0".encode())
        digest.update((values + 0.0).astype("<f4").tobytes())  # -0 and 0 are the same number
    return digest.hexdigest()
