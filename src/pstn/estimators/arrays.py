"""What an array holds: images or series, and which axis is which."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pstn._checks import require_choice
from pstn.data.files import DataWarning
from pstn.data.series import without_padding

# The smallest image: below it there is nothing for a convolution to do.
_SMALLEST_SIDE = 8
# An array (N, a, b) is taken for images if neither side is longer than this many times the other.
_LARGEST_RATIO = 4


@dataclass(frozen=True)
class Layout:
    """The axes of one example.

    Args:
        kind: "image" or "series".
        shape: of one example as the user has it: (H, W), (H, W, C), (L,), (C, L), or (L, C) with `axes="NLC"`.
        axes: of series, "NCL" or "NLC".

    Example:
        >>> layout = Layout("image", (28, 30, 3))
        >>> layout.channels, layout.size
        (3, (28, 30))
    """

    kind: Literal["image", "series"]
    shape: tuple[int, ...]
    axes: str = "NCL"

    @property
    def _channels_last(self) -> bool:
        return len(self.shape) == 3 if self.kind == "image" else len(self.shape) == 2 and self.axes == "NLC"

    @property
    def channels(self) -> int:
        """C."""
        if self._channels_last:
            return self.shape[-1]
        return self.shape[0] if self.kind == "series" and len(self.shape) == 2 else 1

    @property
    def size(self) -> tuple[int, ...]:
        """(H, W) or (L,)."""
        if self._channels_last:
            return self.shape[:-1]
        return self.shape[:2] if self.kind == "image" else self.shape[-1:]

    def channels_first(self, x: NDArray[Any]) -> NDArray[Any]:
        """(N, *shape) -> (N, C, *size), without copying."""
        if self._channels_last:
            return np.moveaxis(x, -1, 1)
        return x.reshape(len(x), self.channels, *self.size)

    def as_given(self, x: NDArray[Any]) -> NDArray[Any]:
        """(..., C, *size) -> (..., *shape)."""
        if self._channels_last:
            return np.moveaxis(x, -1 - len(self.size), -1)
        return x.reshape(*x.shape[: x.ndim - 1 - len(self.size)], *self.shape)


def choose_layout(shape: tuple[int, ...], kind: str = "auto", axes: str = "auto") -> Layout:
    """Say what examples of this shape are.

    The rule: (N, L) is series and (N, H, W, C) is images. (N, a, b) is images (N, H, W) if both sides are at least 8
    and neither is more than 4 times the other, else series (N, C, L); `kind` overrules that.

    Args:
        shape: of one example, without N.
        kind: "auto", "image" or "series".
        axes: of series with channels, "NCL" or "NLC"; with one of them, "auto" is series.

    Example:
        >>> [choose_layout(shape).kind for shape in ((24,), (28, 28), (12, 1000), (3, 50), (32, 32, 3))]
        ['series', 'image', 'series', 'series', 'image']
    """
    require_choice("kind", kind, ("auto", "image", "series"))
    require_choice("axes", axes, ("auto", "NCL", "NLC"))
    if axes != "auto" and kind == "image":
        raise ValueError(f"axes must be 'auto' for kind='image', got {axes!r}")
    kind = "series" if axes != "auto" else kind
    number, listed = len(shape), ", ".join(map(str, shape))
    if kind == "auto":
        like_an_image = number == 2 and min(shape) >= _SMALLEST_SIDE and max(shape) <= _LARGEST_RATIO * min(shape)
        kind = "image" if number == 3 or like_an_image else "series"
    if kind == "series" and number in (1, 2):
        return Layout("series", shape, "NLC" if axes == "NLC" else "NCL")
    if kind == "series" or number not in (2, 3):
        accepted = "(N, H, W) or (N, H, W, C) for images, such as X.reshape(-1, H, W), (N, L) or (N, C, L) for series"
        raise ValueError(f"X must be {accepted}, got (N, {listed}) for kind={kind!r}")
    if min(shape[:2]) < _SMALLEST_SIDE:
        hint = ": channels come last, X.transpose(0, 2, 3, 1)" if number == 3 else ""
        raise ValueError(f"images in X must be {_SMALLEST_SIDE}x{_SMALLEST_SIDE} or larger, got {listed}{hint}")
    return Layout("image", shape)


def warn_if_ambiguous(layout: Layout, kind: str, axes: str) -> None:
    """Warn where an array (N, a, b) may well be something else than the layout that was chosen for it.

    Silent are `axes` that were given, images that were asked for or are square, and series whose channels are fewer
    than their steps and, unless series were asked for, fewer than 8: an image is never that small.
    """
    if len(layout.shape) != 2 or axes != "auto" or kind == "image":
        return
    first, second = layout.shape
    if layout.kind == "image":
        doubtful = first != second
    else:
        doubtful = first >= second or (kind == "auto" and first >= _SMALLEST_SIDE)
    if doubtful:
        read = "images (N, H, W)" if layout.kind == "image" else "series (N, C, L)"
        ways = "kind='image', axes='NCL' for series (N, C, L), or axes='NLC' for series (N, L, C)"
        warnings.warn(f"X (N, {first}, {second}) is read as {read}: say which it is by {ways}", DataWarning)


def list_of_series(X: Any, axes: str = "auto") -> list[NDArray[np.float64]] | None:
    """The series of a ragged or nested container, each (C, L_i) or (L_i,); None where `X` is a plain array or table.

    Containers are lists and object arrays of arrays or tables, each (L_i,), (C, L_i) or, with `axes="NLC"`, (L_i, C);
    tables whose cells hold series and tables indexed by (series, time), both with one column per channel.

    Example:
        >>> [x.shape for x in list_of_series([np.zeros((2, 5)), np.zeros((2, 7))])]
        [(2, 5), (2, 7)]
    """
    index = getattr(X, "index", None)
    if getattr(index, "nlevels", 1) == 2 and hasattr(X, "groupby"):
        return [np.asarray(rows, np.float64).T for _, rows in X.groupby(level=0, sort=False)]
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:
        if not X.size or np.ndim(X.iloc[0, 0]) != 1:
            return None
        return [_join_channels([np.asarray(cell, np.float64) for cell in row]) for row in X.to_numpy()]
    listed = isinstance(X, (list, tuple)) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if not listed or not len(X) or not all(hasattr(x, "shape") and len(x.shape) in (1, 2) for x in X):
        return None
    arrays = [np.asarray(x, np.float64) for x in X]
    return [x.T for x in arrays] if axes == "NLC" else arrays


def _join_channels(channels: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(C, L), with NaN behind channels that end before the longest."""
    joined = np.full((len(channels), max(map(len, channels))), np.nan)
    for row, channel in zip(joined, channels, strict=True):
        row[: len(channel)] = channel
    return joined


def equalise(series: list[NDArray[np.float64]], length: int | None = None) -> NDArray[np.float64]:
    """Series of one length, (N, C, L) or (N, L): gaps are interpolated, and each is resampled from end to end.

    NaN at the end of all channels is how archives write a shorter series, and is removed first. NaN elsewhere is
    interpolated linearly, at the ends by the nearest value.

    Args:
        series: (C, L_i) or (L_i,) each.
        length: L; the longest when None.

    Example:
        >>> equalise([np.array([0.0, 1.0, np.nan]), np.array([4.0, np.nan, 6.0])]).tolist()
        [[0.0, 0.5, 1.0], [4.0, 5.0, 6.0]]
    """
    shapes = sorted({x.shape[:-1] for x in series})
    if len(shapes) > 1:
        raise ValueError(f"X must hold series with the same channels, got {shapes[0]} and {shapes[-1]}")
    cut = [without_padding(np.atleast_2d(x)) for x in series]
    for at, x in enumerate(cut):
        if np.isnan(x).all(axis=-1).any():
            raise ValueError(f"X must hold a value in every channel of every series, got only NaN in one of X[{at}]")
    length = max(x.shape[-1] for x in cut) if length is None else length
    stacked = np.stack([[_resample(channel, length) for channel in x] for x in cut])
    return stacked[:, 0] if shapes[0] == () else stacked


def _resample(channel: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    time, real = np.linspace(0, 1, len(channel)), ~np.isnan(channel)
    if len(channel) == length and real.all():
        return channel
    return np.interp(np.linspace(0, 1, length), time[real], channel[real])
