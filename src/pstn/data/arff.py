r"""The .arff format of Weka as the UCR and UEA archives use it: numeric attributes, or one relation per series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pstn.data.errors import DataError, Refuse, raise_it
from pstn.data.labels import as_label, name_classes
from pstn.data.series import RawSeries, Values, parse_numbers

__all__ = ["parse_arff"]

_NUMERIC = ("numeric", "real", "integer")


@dataclass
class _Header:
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
    header = _read_header(path, lines)
    values: list[Values] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] == "%":
            continue
        try:
            series, label = _row(line, header, path, number)
        except DataError as error:
            refuse(error)
            continue
        values.append(series)
        labels.append(label)
        numbers.append(number)
    return RawSeries(path, tuple(values), tuple(labels), tuple(numbers), tuple(header.classes))


def _row(line: str, header: _Header, path: Path, number: int) -> tuple[Values, str]:
    if line[0] == "{":
        raise DataError(path, "sparse rows are not supported", place=f"line {number}")
    series, label = (_relational_row if header.relational else _flat_row)(line, header, path, number)
    if label not in header.classes:
        known = name_classes(header.classes)
        raise DataError(path, f"unknown label {label!r}: the header declares {known}", place=f"line {number}")
    return series, label


def _flat_row(line: str, header: _Header, path: Path, number: int) -> tuple[Values, str]:
    *cells, label = line.split(",")
    if len(cells) != header.numbers:
        problem = f"has {len(cells)} values, the header promises {header.numbers}"
        raise DataError(path, problem, place=f"line {number}")
    return np.atleast_2d(parse_numbers(cells, path, number)), as_label(_unquote(label))


def _relational_row(line: str, header: _Header, path: Path, number: int) -> tuple[Values, str]:
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


def _read_header(path: Path, lines: Iterator[tuple[int, str]]) -> _Header:
    header = _Header()
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


def _read_attribute(line: str, header: _Header, path: Path, number: int) -> None:
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
    elif kind.lower() in _NUMERIC:
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
