"""The .ts format of the UEA archive: a header of @ lines, then series with channels and label divided by colons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pstn.data.errors import DataError, Refuse, raise_it
from pstn.data.labels import as_label, name_classes
from pstn.data.series import RawSeries, Values, parse_numbers, require_even

__all__ = ["parse_ts"]

_FLAGS = {"true": True, "false": False}


def parse_ts(path: Path, lines: Iterator[tuple[int, str]], refuse: Refuse = raise_it) -> RawSeries:
    """Parse the numbered lines of a .ts file.

    Supported are univariate and multivariate series with class labels, of equal or unequal length, with missing
    values. Time stamps and numeric targets (regression) are refused with a message that says so.
    """
    header = _read_header(path, lines)
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


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[dict[str, None], int | None, int | None]:
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
    require_even(sum(map(len, rows)), longest * len(rows), path, f"line {number}")
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
