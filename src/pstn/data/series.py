"""Time series: tables, .ts and .arff files, policies for gaps and lengths, the UCR and UEA archives."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice
from pstn._deprecation import renamed
from pstn.data import files
from pstn.data.files import DataError, DataWarning, ErrorHandler, MissingDataError, Progress, Root, raise_error
from pstn.data.split import Split, Splits, as_label, encode_labels, name_parts, sort_classes, stratified_indices
from pstn.limits import ARCHIVE_FREE_BYTES, ARCHIVE_RATIO

__all__ = ["RawSeries", "load_italy_power_demand", "load_series_file", "load_ucr", "read_series", "stack_series"]

Policy = Literal["refuse", "resample", "pad"]
Values = npt.NDArray[np.float64]
_Row = tuple[str | None, list[list[str]], int]  # a label, the cells of each channel, and the column of the first

SERIES_SUFFIXES = (".tsv", ".ts", ".arff", ".txt", ".csv")
MISSING = ("?", "", "NaN", "nan", "NAN")
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST = 400  # characters of a number; the longest float64 that is written out in full has about 330
_TEXT_LIMIT = 1 << 30
_ROWS_LIMIT = 1 << 32


@dataclass(frozen=True)
class RawSeries:
    """What a file of series holds, before gaps and lengths are dealt with.

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

    def _error(self, i: int, problem: str) -> DataError:
        """What to raise where series `i` has a problem."""
        return DataError(self.path, problem, place=f"line {self.lines[i]}")


def series_format(path: Path) -> str | None:
    """The suffix that says how to read `path`, without a ".gz"; None where it is not one of series.

    Example:
        >>> series_format(Path("FaceAll_TRAIN.tsv.gz"))
        '.tsv'
    """
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SERIES_SUFFIXES else None


@renamed(refuse="on_error")
def read_series(
    path: str | os.PathLike[str], *, limit: int = _TEXT_LIMIT, on_error: ErrorHandler = raise_error
) -> RawSeries:
    r"""Read a file of labelled series, univariate or multivariate.

    Args:
        path: a .tsv (or .txt, .csv: label first), .ts or .arff file, plain or gzipped.
        limit: the most bytes of text it may hold.
        on_error: called with the error of each series that cannot be read, which is then skipped; by default the first
            error is raised.

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
    declared, rows = _split_rows(path, limit)
    known = None if declared is None else set(declared)
    found = []
    for number, row in rows:
        try:
            found.append((number, *_parse_row(path, number, row, known)))
        except DataError as error:
            on_error(error)
    if not found:
        raise DataError(path, "holds no series")
    numbers, labels, values = zip(*found, strict=True)
    return RawSeries(path, values, labels, numbers, declared)


def _split_rows(
    path: Path, limit: int, first: Callable[[list[str]], int] | None = None
) -> tuple[tuple[str, ...] | None, Iterator[tuple[int, _Row]]]:
    """The classes that a file declares, if any, and its rows.

    Args:
        path: the file.
        limit: the most bytes of text it may hold.
        first: how many cells of a row of a table precede its values; where None one does, its label.
    """
    suffix = series_format(path)
    if suffix is None or path.is_dir():
        raise DataError(path, f"is not a table of series: {', '.join(SERIES_SUFFIXES)}, also with .gz")
    lines = files.read_lines(path, limit=limit)
    if suffix not in (".ts", ".arff"):
        table = table_rows(lines)
        if first is None:
            return None, ((number, (cells[0], [cells[1:]], 2)) for number, cells in table)
        return None, ((number, (None, [cells[first(cells) :]], first(cells) + 1)) for number, cells in table)
    stripped = ((number, line.strip()) for number, line in lines)
    content = ((number, line) for number, line in stripped if line and line[0] not in "#%")
    split = _split_ts if suffix == ".ts" else _split_arff
    return _read_header(path, content), ((number, split(line)) for number, line in content)


def _parse_row(path: Path, number: int, row: _Row, known: set[str] | None) -> tuple[str, Values]:
    """The label and the values (C, length) of a row; the label must be among those known, if any are."""
    name, cells, first = row
    label, channels = as_label(name), [parse_numbers(channel, path, number, first) for channel in cells]
    if (name is not None and label in MISSING) or not all(map(len, channels)) or not channels:
        raise DataError(path, f"expected a label and values, got the label {label!r}", place=f"line {number}")
    if known is not None and label not in known:
        raise DataError(path, f"unknown label {label!r}: the header does not declare it", place=f"line {number}")
    longest = max(map(len, channels))
    require_even(sum(map(len, channels)), longest * len(channels), path, f"line {number}")
    values = np.full((len(channels), longest), np.nan)  # channels of one series may end at different times
    for filled, channel in zip(values, channels, strict=True):
        filled[: len(channel)] = channel
    return label, values


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[str, ...]:
    """The classes of a .ts file of the UEA archive or an .arff file of Weka, from the lines up to @data.

    Supported are univariate and multivariate series with class labels; not time stamps and numeric targets.
    """
    names: list[str] = []
    for number, line in lines:
        key, *words = line.split()
        if line[0] != "@":
            raise DataError(path, "values before the @data line", place=f"line {number}")
        if key.lower() == "@data":
            break
        if key.lower() == "@classlabel" and words and words[0].lower() == "true":
            names = words[1:]
        elif key.lower() == "@attribute" and line[-1] == "}":
            names = line[:-1].partition("{")[2].split(",")
    classes = tuple(as_label(_unquote(name)) for name in names)
    if not classes or len(set(classes)) < len(classes):
        problem = "needs its classes, each once, as @classLabel true NAME ... or @attribute NAME {NAME,...}, and @data"
        raise DataError(path, problem, place="header")
    return classes


def _split_ts(line: str) -> _Row:
    *channels, label = line.split(":")
    return label, [channel.split(",") for channel in channels], 1


def _split_arff(line: str) -> _Row:
    """A multivariate row has its channels, separated by a backslash and an n, within one pair of quotes."""
    multivariate = line[0] in "'\""
    values, _, label = line[1:].rpartition(line[0] + ",") if multivariate else line.rpartition(",")
    return _unquote(label), [channel.split(",") for channel in values.split("\\n")], 1


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def parse_numbers(cells: Sequence[str], path: Path, line: int, first: int = 1) -> Values:
    """Numbers from text cells, (length,); "?", "NaN" and empty cells are missing values.

    Args:
        cells: the text.
        path: the file that holds them, for messages.
        line: their line in it.
        first: the column of the first cell.
    """
    try:
        # A row of clean numbers is parsed at once; any other cell by cell. Python reads "1_0" as 10: here an error.
        if any("_" in cell or len(cell) > _LONGEST for cell in cells):
            raise ValueError
        numbers: Values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        numbers = np.fromiter(map(_to_number, cells), np.float64, len(cells))
    if (bad := np.abs(numbers) > _LARGEST).any():
        at = int(bad.argmax())
        advice = "; decimals have a point, and labels stand in the first column"
        problem = f"{cells[at].strip()[:40]!r} is not a number of float32{advice if at else ''}"
        raise DataError(path, problem, place=f"line {line}, column {first + at}")
    return numbers


def _to_number(cell: str) -> float:
    """A text cell as a number: NaN where it is missing, infinity where it is none."""
    text = cell.strip()
    try:
        return float("inf" if "_" in text or len(text) > _LONGEST else "nan" if text in MISSING else text)
    except ValueError:
        return float("inf")


def is_number(cell: str) -> bool:
    """Whether a text cell is a number or the mark of a missing one.

    Example:
        >>> [is_number(cell) for cell in ("1.5", "?", "up")]
        [True, True, False]
    """
    return not np.isinf(_to_number(cell))


def table_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    r"""The numbered rows of a table as cells, whatever separates them, without empty lines and without a header.

    The first row is a header where none of its cells, apart from the first, is a number, and some of the next row are.

    Example:
        >>> list(table_rows(enumerate(["class,t0,t1\n", "up,1,2\n", "\n", "up,3,4\n"], start=1)))
        [(2, ['up', '1', '2']), (4, ['up', '3', '4'])]
    """
    rows = ((number, _split_cells(line.strip("\r\n"))) for number, line in lines if line.strip())
    start = list(islice(rows, 2))
    if len(start) == 2:
        first, second = start[0][1][1:], start[1][1][1:]
        if first and not any(map(is_number, first)) and any(map(is_number, second)):
            del start[0]
    yield from start
    yield from rows


def _split_cells(line: str) -> list[str]:
    """The cells of a row, whatever separates them: tabs, semicolons, commas or spaces; without quotes around them."""
    rest = re.sub('"[^"]*"', "", line) if '"' in line else line
    # Where semicolons separate, a number may hold a comma; where commas do, a label may hold a semicolon.
    semicolons = rest.count(";") >= max(1, rest.count(","))
    separator = next((mark for mark in ("\t", ";" if semicolons else ",") if mark in rest), None)
    if '"' not in line:
        return line.split() if separator is None else [cell.strip() for cell in line.split(separator)]
    try:
        [cells] = csv.reader([line.strip(" ")], delimiter=separator or " ", skipinitialspace=True)
    except csv.Error:  # which what follows names by its line
        return [line]
    return [cell.strip() for cell in cells]


class Wanted(NamedTuple):
    """The series that a model takes."""

    channels: int
    length: int
    classes: Sequence[str] = ()
    """Their names tell a label from a value, where lengths do not."""
    policy: Policy = "refuse"
    """How missing values and other lengths are treated, as for `stack_series`."""
    masked: bool = False
    """Whether padding is NaN in place of zeros."""


def read_rows(path: Path, wanted: Wanted, on_error: ErrorHandler = raise_error) -> Iterator[tuple[int, Tensor]]:
    r"""The series of a file, each with its line: (C, length) float32, with or without a label before them in the file.

    Where lengths may differ, the rows of a table have labels if all of them begin with text or with a class's name.
    Numbers may be both names and values: rows that are all as long as the series wanted have no labels then, and rows
    that are all longer by one cell have.

    Args:
        path: a table (.tsv, .csv, .txt), a .ts or an .arff file, plain or gzipped.
        wanted: the shape of the series.
        on_error: called with the error of each unusable series, which is then skipped; by default the first error is
            raised.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new.csv"
        >>> _ = path.write_text("1,3\n?,1,5\n")
        >>> [(line, x.tolist()) for line, x in read_rows(path, Wanted(1, 3, policy="resample"))]
        [(1, [[1.0, 2.0, 3.0]]), (2, [[1.0, 1.0, 5.0]])]
    """

    @cache
    def has_labels() -> bool:
        return _has_labels(path, wanted)

    def first(cells: list[str]) -> int:
        # Where all lengths must agree, each row shows by its own whether it has a label.
        return int(len(cells) != wanted.length if wanted.policy == "refuse" else has_labels())

    declared, rows = _split_rows(path, _ROWS_LIMIT, first)
    known = None if declared is None else set(declared)
    for line, row in rows:
        try:
            _, values = _parse_row(path, line, row, known)
            if len(values) != wanted.channels:
                problem = f"expected {wanted.channels} channel(s), got {len(values)}"
                raise DataError(path, problem, place=f"line {line}")
            one = RawSeries(path, (values,), ("",), (line,))
            [(x, mask)] = stack_series([one], wanted.policy, length=wanted.length)
            if wanted.masked and mask is not None:
                x = mark_padding(x, mask)
        except DataError as error:
            on_error(error)
        else:
            yield line, x[0]


def _has_labels(path: Path, wanted: Wanted) -> bool:
    texts = names = known = 0
    lengths: set[int] = set()
    for _, cells in table_rows(files.read_lines(path, limit=_ROWS_LIMIT)):
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


def stack_series(
    parts: Sequence[RawSeries], policy: Policy = "refuse", *, length: int | None = None
) -> list[tuple[Tensor, Tensor | None]]:
    """Tensors of one length from the series of several files, e.g. the training and the test part.

    The policy says how missing values and unequal lengths are treated:

    - "refuse": they are an error that names the first such series, wherever in it they are.
    - "resample": missing values are interpolated linearly between their neighbours (the nearest value at the ends), and
      every series is resampled linearly to the longest length in the first part.
    - "pad": every series is followed by zeros up to the longest length of all parts, missing values are interpolated as
      by "resample" (zeros in a channel that has no value), and a mask says which values are real.

    Values missing at the end of all channels of a series are the archive's way to write a shorter series: "resample"
    and "pad" remove them first.

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
    cut = [[without_padding(values) for values in part.values] for part in parts]
    longest = [max(values.shape[1] for values in part) for part in cut]
    if length is None:
        length = {"refuse": cut[0][0].shape[1], "resample": longest[0], "pad": max(longest)}[policy]
    channels = parts[0].values[0].shape[0]
    stacked: list[tuple[Tensor, Tensor | None]] = []
    for part, shortened in zip(parts, cut, strict=True):
        held = sum(values.size for values in shortened) + channels * length
        require_even(held, len(shortened) * channels * length, part.path)
        x = np.zeros((len(part), channels, length), np.float32)
        mask = np.zeros((len(part), length), bool)
        for i, values in enumerate(shortened):
            gaps, (found, steps) = np.isnan(values), values.shape
            if (
                (found != channels or not steps)
                or (policy == "refuse" and (steps != length or np.isnan(part.values[i]).any()))
                or (policy == "resample" and gaps.all(axis=1).any())
                or (policy == "pad" and steps > length)
            ):
                problem = f"has {found} channels of {steps} values, {int(gaps.sum())} of them missing, where policy"
                problem += f"={policy!r} needs {channels} of length {length}: 'resample' and 'pad' take more (--policy)"
                raise part._error(i, problem)
            if policy == "pad":
                filled = [channel if np.isnan(channel).all() else resample(channel, steps) for channel in values]
                x[i, :, :steps], mask[i, :steps] = np.nan_to_num(filled), ~gaps.any(axis=0)
            else:
                x[i] = [resample(channel, length) for channel in values]
        stacked.append((torch.from_numpy(x), torch.from_numpy(mask) if policy == "pad" else None))
    return stacked


def mark_padding(x: Tensor, mask: Tensor) -> Tensor:
    """Series (N, C, L) with NaN behind the last step that the mask (N, L) has."""
    behind = mask.flip(1).cumsum(1).flip(1) == 0
    return x.masked_fill(behind[:, None], torch.nan)


def require_even(held: int, padded: int, path: Path, place: str | None = None) -> None:
    """Refuse `held` numbers that would fill the memory, `padded` of them, once all are as long as the longest."""
    if 8 * padded > max(ARCHIVE_FREE_BYTES, 8 * ARCHIVE_RATIO * held):
        problem = f"has {held:,} values, and would have {padded:,} if all were as long as the longest"
        raise DataError(path, problem, place=place)


def without_padding(values: Values) -> Values:
    """A series (C, length) up to its last value: the archive fills shorter ones up with NaN."""
    real = np.flatnonzero(~np.isnan(values).all(axis=0))
    return values[:, : int(real[-1]) + 1 if len(real) else 0]


def resample(channel: Values, length: int) -> Values:
    """One channel at `length` points from its first to its last, interpolated linearly over gaps and between points."""
    real = ~np.isnan(channel)
    if len(channel) == length and real.all():
        return channel
    return np.interp(np.linspace(0, 1, length), np.linspace(0, 1, len(channel))[real], channel[real])


class ArchiveRecord(NamedTuple):
    """What is known of a data set of the UCR archive."""

    length: int
    """Of a series."""
    classes: int
    """How many there are."""
    counts: tuple[int, int]
    """How many series its training and its test file hold."""
    sha256: tuple[str | None, str | None] = (None, None)
    """Of their values, see `values_sha256`; None where no complete copy was available."""


UCR_RECORDS = {name: ArchiveRecord(**record) for name, record in files.CHECKSUMS["ucr"].items()}
_SITES = tuple(f"https://{start}timeseriesclassification.com/aeon-toolkit/" for start in ("", "www."))
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_PART = re.compile(r"(.+)_(TRAIN|TEST|train|test)\..+")
_OTHER = {"TRAIN": "TEST", "TEST": "TRAIN", "train": "test", "test": "train"}


def load_ucr(
    name: str, *, policy: Policy = "refuse", validation: float = 0.25, seed: int = 0, need_test: bool = True,
    root: str | os.PathLike[str] | None = None, fetch: bool = True, progress: Progress | None = None,
) -> Splits[Split]:  # fmt: skip
    """A data set of the UCR or UEA archive, with the archive's test split and a validation split of our own.

    Files are looked for as NAME_TRAIN and NAME_TEST with .tsv, .ts or .arff, plain or gzipped, in $PSTN_DATA/ucr, in a
    folder NAME within it, in the cache, and then on the archive's site. Values are used as they are: the paper does not
    normalise series. A file that differs from what is known of the archive's is used, with a `DataWarning`.

    Args:
        name: e.g. "FaceAll"; the older spellings of the paper ("wafer", "uWaveGestureLibrary_X") work too.
        policy: how missing values and unequal lengths are treated: "refuse", "resample" or "pad"; see `stack_series`.
        validation: the share of the training part set aside, class by class; the paper's is 0.25. 0 for none.
        seed: of the validation split.
        need_test: whether a missing test part is an error; else the test split is None.
        root: a folder that holds the files; then no other one is searched.
        fetch: whether a missing set may be downloaded.
        progress: called during a download.

    Returns:
        Series (N, C, L) float32; with policy "pad" a mask (N, L) too.

    Example:
        >>> load_ucr("ItalyPowerDemand").train.x.shape  # ships with the package; "FaceAll" is downloaded
        torch.Size([50, 1, 24])
    """
    name = ucr_name(name)
    if name == "ItalyPowerDemand" and root is None:
        return load_italy_power_demand(policy=policy, validation=validation, seed=seed)
    paths = []
    for part in ("TRAIN", "TEST"):
        try:
            paths.append(locate_ucr(name, part, root=root, fetch=fetch, progress=progress))
        except MissingDataError:
            if part == "TRAIN" or need_test:
                raise
    return _to_splits(name, _read_parts(name, paths), policy, validation, seed)


def load_series_file(
    path: str | os.PathLike[str], *, policy: Policy = "refuse", validation: float = 0.25, test: float = 0.2,
    seed: int = 0, need_test: bool = True, length: int | None = None,
) -> Splits[Split]:  # fmt: skip
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
    if match is None or not path.is_file():
        name = path.name.split(".")[0]
        whole = _to_splits(name, [read_series(path)], policy, 0.0, seed, length).train
        rest, tested = stratified_indices(whole.y, test, seed=seed)
        return _hold_out(name, whole.take(rest), validation, seed, whole.take(tested))
    name, part = match[1], match[2]
    other, is_train = _in_folder(path.parent, name, _OTHER[part]), part.upper() == "TRAIN"
    if other is None and (need_test or not is_train):
        problem = f"is missing beside {path.name}; need_test=False loads a training part alone"
        raise MissingDataError(path.parent / f"{name}_{_OTHER[part]}.tsv", problem)
    paths = [path] if other is None else [path, files.require_inside(path.parent, other)][:: 1 if is_train else -1]
    known = ucr_name(name) if re.fullmatch(_NAME, name) else name
    return _to_splits(name, _read_parts(known, paths), policy, validation, seed, length)


def _read_parts(name: str, paths: list[Path]) -> list[RawSeries]:
    """The training and the test part, each compared with what is known of the archive's."""
    if len(paths) == 2 and paths[0].samefile(paths[1]):
        raise DataError(paths[1], f"is the same file as {paths[0].name}: nothing would be left to test on")
    parts = [read_series(path) for path in paths]
    for series, part in zip(parts, ("TRAIN", "TEST"), strict=False):
        if difference := compare_with_archive(name, part, series):
            warnings.warn(DataWarning(f"{series.path}: {difference}; it is used as it is"), stacklevel=3)
    return parts


def _to_splits(
    name: str, parts: list[RawSeries], policy: Policy, validation: float, seed: int, length: int | None = None
) -> Splits[Split]:
    classes = sort_classes(parts[0].declared or parts[0].labels)
    splits = [
        Split(x, encode_labels(series.labels, classes, series._error), classes, mask=mask)
        for series, (x, mask) in zip(parts, stack_series(parts, policy, length=length), strict=True)
    ]
    return _hold_out(name, splits[0], validation, seed, splits[1] if len(splits) > 1 else None)


def _hold_out(name: str, train: Split, fraction: float, seed: int, test: Split | None) -> Splits[Split]:
    """Set a share of the training part aside for validation, class by class."""
    first, second = stratified_indices(train.y, fraction, seed=seed)
    return name_parts(name, train.take(first), train.take(second), test)


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
    place = resources.files("pstn.data") / "offline" / "italy_power_demand.npz"
    parts = []
    with place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for part in ("train", "test"):
            values = tuple(arrays[f"{part}_x"].astype(np.float64)[:, None])
            labels = tuple(("1", "2")[y] for y in arrays[f"{part}_y"])
            parts.append(RawSeries(Path(place.name), values, labels, tuple(range(1, len(labels) + 1))))
    return _to_splits("ItalyPowerDemand", parts, policy, validation, seed)


def ucr_name(name: str) -> str:
    """The archive's spelling of a name, where it is known; else the name as given, if it can be a file's.

    Example:
        >>> ucr_name("uWaveGestureLibrary_X"), ucr_name("wafer")
        ('UWaveGestureLibraryX', 'Wafer')
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"name must be a data set's, of letters, digits, '_' and '-', got {name!r}")
    return next((known for known in UCR_RECORDS if plain_name(known) == plain_name(name)), name)


def plain_name(name: str) -> str:
    """A name without case, dashes and underscores.

    Example:
        >>> plain_name("Face_All")
        'faceall'
    """
    return name.lower().replace("_", "").replace("-", "")


def _in_folder(folder: Path, name: str, part: str) -> Path | None:
    paths = (folder / f"{name}_{part}{suffix}{packed}" for suffix in SERIES_SUFFIXES for packed in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def locate_ucr(name: str, part: str, root: Root = None, fetch: bool = True, progress: Progress | None = None) -> Path:
    """The file of one part of a set, "TRAIN" or "TEST", downloaded into the cache first where it is missing."""

    def find(folder: Path) -> Path | None:
        return _in_folder(folder, name, part) or _in_folder(folder / name, name, part)

    advice = f"to get it: pstn data get {name if name in UCR_RECORDS else f'ucr:{name}'}"
    wanted = f"{name}_{part}.tsv (or .ts, .arff, with or without .gz)"
    obtain = partial(_fetch_ucr, name, progress) if fetch else None
    return files.locate("ucr", wanted, find, advice=advice, root=root, obtain=obtain)


def _fetch_ucr(name: str, progress: Progress | None) -> None:
    """Download a set from the archive's site into the cache.

    The site fixes no checksums. Only the two files that this package reads are unpacked, with bounded sizes, in a
    temporary folder; both are read before they are moved to their place. `load_ucr` compares them with what is known.
    """
    remote = files.RemoteFile("ucr", f"{name}.zip", tuple(f"{site}{name}.zip" for site in _SITES))
    folder = files.cache_folder() / "ucr" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetched-") as work:
        path = files.download(remote, Path(work), progress=progress)
        drafts = []
        with files.open_zip(path, "a zip archive: there may be no set of that name") as archive:
            # By the last part of the name: archives have a folder in them or not.
            members = {PurePosixPath(member).name: member for member in archive.namelist()}
            for part in ("TEST", "TRAIN"):
                wanted = [f"{name}_{part}{suffix}" for suffix in (".ts", ".tsv", ".arff")]
                found = next((file for file in wanted if file in members), None)
                if found is None:
                    raise DataError(remote.name, f"holds none of {', '.join(wanted)}")
                content = files.read_zip_member(archive, members[found], path, limit=files.most_unpacked(path))
                drafts.append(path.with_name(found))
                drafts[-1].write_bytes(content)
                read_series(drafts[-1])
        folder.mkdir(exist_ok=True)
        for draft in drafts:  # the training part last: it is what is looked for first
            draft.replace(folder / draft.name)


def compare_with_archive(name: str, part: str, series: RawSeries) -> str | None:
    """How a file differs from what is known of the archive's; None if it does not."""
    if name not in UCR_RECORDS:
        return None
    index = ("TRAIN", "TEST").index(part)
    count, expected = UCR_RECORDS[name].counts[index], UCR_RECORDS[name].sha256[index]
    if len(series) != count:
        return f"holds {len(series):,} series, the archive's file {count:,}"
    if expected is not None and (found := values_sha256(series)) != expected:
        return f"differs from the archive's file: SHA-256 of the values is {found}, the archive's {expected}"
    return None


def values_sha256(series: RawSeries) -> str:
    """SHA-256 of labels and float32 values, which is what is used of a file: the same whatever its format.

    Example:
        >>> one = RawSeries(Path("a.tsv"), (np.array([[1.0, 2.0]]),), ("up",), (1,))
        >>> values_sha256(one) == values_sha256(RawSeries(Path("a.ts"), one.values, one.labels, (9,)))
        True
    """
    digest = hashlib.sha256()
    for values, label in zip(series.values, series.labels, strict=True):
        digest.update(f"{label}\0{values.shape}\0".encode())
        digest.update((values + 0.0).astype("<f4").tobytes())  # -0 and 0 are the same number
    return digest.hexdigest()
