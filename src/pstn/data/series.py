"""Series as files hold them, and the policies that make a tensor of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice
from pstn.data.errors import DataError
from pstn.limits import ARCHIVE_FREE_BYTES, ARCHIVE_RATIO

__all__ = ["MISSING", "Policy", "RawSeries", "is_number", "parse_numbers", "require_even", "stack_series"]

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
        _number(cell.strip())
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    if text in MISSING:
        return float("nan")
    if "_" in text or len(text) > _LONGEST:
        raise ValueError
    return float(text)


def _parse_cell(cell: str, path: Path, line: int, column: int) -> float:
    text = cell.strip()
    try:
        return _number(text)
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
    _require_moderate(parts, cut, length)
    stacked: list[tuple[Tensor, Tensor | None]] = []
    for part, values in zip(parts, cut, strict=True):
        if policy == "pad":
            _refuse_longer(part, values, length)
            stacked.append(_pad(values, length))
        else:
            even = [_resample(_fill_gaps(v, part, i), length) for i, v in enumerate(values)]
            stacked.append((torch.from_numpy(np.stack(even)).float(), None))
    return stacked


def require_even(held: int, padded: int, path: Path, place: str | None = None) -> None:
    """Refuse numbers that would fill the memory once all series or channels are as long as the longest.

    Args:
        held: how many numbers there are.
        padded: how many there would be.
        path: the file, for the message.
        place: in it.
    """
    if 8 * padded > max(ARCHIVE_FREE_BYTES, 8 * ARCHIVE_RATIO * held):
        problem = f"has {held:,} values, and would have {padded:,} if all were as long as the longest"
        raise DataError(path, f"{problem}: leave out what is much longer than the rest", place=place)


def _require_moderate(parts: Sequence[RawSeries], cut: Sequence[Sequence[Values]], length: int) -> None:
    for part, values in zip(parts, cut, strict=True):
        channels = values[0].shape[0]
        require_even(sum(v.size for v in values) + channels * length, len(values) * channels * length, part.path)


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
