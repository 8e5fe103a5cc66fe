"""What an array holds: images or series, and which axis is which; and what all estimators of such arrays share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pstn._checks import require_choice
from pstn.data.files import DataWarning
from pstn.data.series import resample, without_padding
from pstn.data.split import Scaling
from pstn.nn.metadata import without_mask

# The smallest image: below it there is nothing for a convolution to do.
_SMALLEST_SIDE = 8
# An array (N, a, b) is taken for images if neither side is longer than this many times the other.
_LARGEST_RATIO = 4
# The channels of colours and their opacity.
_MOST_COLOURS = 4
# How many inputs a prediction takes at once.
_INPUTS_AT_ONCE = 500


@dataclass(frozen=True)
class Layout:
    """The axes of one example, and what is done with series of other lengths.

    Args:
        kind: "image" or "series".
        shape: of one example as the user has it: (H, W), (H, W, C), (L,), (C, L), or (L, C) with `axes="NLC"`.
        axes: of series, "NCL" or "NLC".
        lengths: "equal" refuses series of other lengths, "resample" stretches them, "pad" puts NaN behind them.

    Example:
        >>> layout = Layout("image", (28, 30, 3))
        >>> layout.channels, layout.size
        (3, (28, 30))
    """

    kind: Literal["image", "series"]
    shape: tuple[int, ...]
    axes: str = "NCL"
    lengths: str = "equal"

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
        """(N, *shape) -> (N, C, *size), without copying; series may have another length than `shape` says."""
        if self._channels_last:
            return np.moveaxis(x, -1, 1)
        return x if len(self.shape) > len(self.size) else x[:, None]

    def as_given(self, x: NDArray[Any]) -> NDArray[Any]:
        """(..., C, *size) -> (..., *shape); series may have another length than `shape` says."""
        if self._channels_last:
            return np.moveaxis(x, -1 - len(self.size), -1)
        axes = len(self.size)
        return x if len(self.shape) > axes else x.reshape(*x.shape[: x.ndim - 1 - axes], *x.shape[x.ndim - axes :])


def choose_layout(shape: tuple[int, ...], kind: str = "auto", axes: str = "auto") -> Layout:
    """Say what examples of this shape are.

    The rule: (N, L) is series and (N, H, W, C) is images. (N, a, b) is images (N, H, W) if both sides are at least 8
    and neither is more than 4 times the other, else series: (N, L, 1) of one channel, or (N, C, L). `kind` overrules
    that.

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
        one_channel_last = axes == "auto" and number == 2 and shape[1] == 1 < shape[0]  # as tslearn has it
        return Layout("series", shape, "NLC" if axes == "NLC" or one_channel_last else "NCL")
    if kind == "series" or number not in (2, 3):
        accepted = "(N, H, W) or (N, H, W, C) for images, such as X.reshape(-1, H, W), (N, L) or (N, C, L) for series"
        raise ValueError(f"X must be {accepted}, got (N, {listed}) for kind={kind!r}")
    if min(shape[:2]) < _SMALLEST_SIDE:
        hint = ": channels come last, X.transpose(0, 2, 3, 1)" if number == 3 else ""
        raise ValueError(f"images in X must be {_SMALLEST_SIDE}x{_SMALLEST_SIDE} or larger, got {listed}{hint}")
    return Layout("image", shape)


def warn_if_ambiguous(layout: Layout, kind: str, axes: str, x: NDArray[Any]) -> None:
    """Warn where an array was read by the rule alone and may be something else.

    (N, a, b) may be images, (N, C, L) or (N, L, C). Silent are what `kind="image"` or `axes` has said, images of 8-bit
    pixels, and series of one channel, (N, 1, L) or (N, L, 1). With `kind="auto"`, (N, L) whose values and length may be
    those of flat images is read as series with a warning, and so is (N, H, W, C) as images where C is above 4.
    """
    if axes != "auto" or kind == "image":
        return
    problem = None
    if len(layout.shape) == 2 and not (x.dtype == np.uint8 if layout.kind == "image" else 1 in layout.shape):
        read = "images (N, H, W)" if layout.kind == "image" else f"series (N, {', '.join(layout.axes[1:])})"
        ways = "kind='image', axes='NCL' for series (N, C, L), or axes='NLC' for series (N, L, C)"
        problem = f"is read as {read}: say which it is by {ways}"
    elif kind == "auto" and len(layout.shape) == 1 and _like_flat_images(x):
        ways = "kind='series' says so, and X.reshape(-1, H, W) or X.reshape(-1, H, W, C) are images"
        problem = f"is read as series (N, L), and may hold flat images: {ways}"
    elif kind == "auto" and len(layout.shape) == 3 and layout.channels > _MOST_COLOURS:
        ways = "kind='image' says so, and X.transpose(0, 2, 3, 1) brings channels to the end"
        problem = f"is read as images (N, H, W, C): {ways}"
    if problem is not None:
        warnings.warn(f"X (N, {', '.join(map(str, layout.shape))}) {problem}", DataWarning)


def _like_flat_images(x: NDArray[Any]) -> bool:
    """Whether series (N, L) may be square images, grey or in colour: by L, and by values like those of pixels."""
    sides = [math.isqrt(x.shape[1] // channels) for channels in (1, 3) if x.shape[1] % channels == 0]
    if (
        not any(side >= _SMALLEST_SIDE and x.shape[1] in (side**2, 3 * side**2) for side in sides)
        or x.dtype.kind not in "iuf"
    ):
        return False
    low, high = x.min(), x.max()
    return bool(0 <= low < high <= 1 or (0 <= low < high <= 255 and (x == np.floor(x)).all()))


def read_inputs(
    estimator: Any, X: Any, *, layout: Layout | None = None, reset: bool = False
) -> tuple[NDArray[Any], Layout]:
    """Inputs in any form as one array, and their layout: what every estimator reads by, in `fit` and after it.

    Gaps in series are interpolated. NaN at the end of all channels is how archives write a shorter series. In `fit` the
    inputs decide the layout: if lengths differ, series are resampled to the longest, and so are those of any length
    that follow; if they do not, others are refused from then on. The parameter `lengths` overrules that.

    Args:
        estimator: its parameters `kind` ("series" where it has none), `axes` and `lengths` say how to read.
        X: arrays, tables, or containers as `unpack` takes them.
        layout: that of the inputs of `fit`; None in `fit`.
        reset: whether the estimator is to remember the number of columns and their names.

    Returns:
        (N, *shape) in the user's axes, with NaN only behind series that are padded; the layout.
    """
    kind, axes = getattr(estimator, "kind", "series"), getattr(estimator, "axes", "auto")
    lengths = getattr(estimator, "lengths", "auto")
    require_choice("lengths", lengths, ("auto", "resample", "pad"))
    if layout is not None:
        kind, axes, lengths = layout.kind, layout.axes, layout.lengths
    any_length = lengths in ("resample", "pad")
    X, series, found = unpack(X, kind, axes)
    if series is not None and kind == "image":
        raise ValueError("X must be one array (N, H, W) or (N, H, W, C) for kind='image', got series of unequal length")
    check = partial(validate_data, estimator, reset=reset)
    options: dict[str, Any] = {"allow_nd": True, "dtype": "numeric", "ensure_all_finite": "allow-nan"}
    if series is None:
        # scikit-learn counts the steps of series as features: where they may be any number, it is not asked.
        array = (partial(check_array, estimator=estimator) if layout and any_length else check)(X, **options)
        if layout is None:
            layout = choose_layout(array.shape[1:], kind, found)
            warn_if_ambiguous(layout, kind, axes, array)
        elif array.shape[1:] != layout.shape and not (any_length and array.ndim == 1 + len(layout.shape)):
            raise ValueError(f"X must hold inputs of shape {layout.shape}, as in fit, got {array.shape[1:]}")
        gaps = array.dtype.kind == "f" and bool(np.isnan(array).any())
        if gaps and layout.kind == "image":
            raise ValueError("X must not contain NaN where it holds images: fill in missing pixels first")
        if layout.kind == "image" or not (gaps or any_length):
            return array, layout
        return _set_lengths(list(layout.channels_first(array.astype(np.float64))), layout, lengths)
    if layout is None:
        longest = max(x.shape[-1] for x in series)
        shape = (longest,) if series[0].ndim == 1 else (len(series[0]), longest)[:: -1 if found == "NLC" else 1]
        layout = choose_layout(shape, "series", found)
    array, layout = _set_lengths(series, layout, lengths)
    return (check(array, **options) if reset else array), layout


def unpack(X: Any, kind: str = "auto", axes: str = "auto") -> tuple[Any, list[NDArray[np.float64]] | None, str]:
    """The series of a container of unequal or nested ones, each (C, L_i) or (L_i,); None for what is an array.

    Containers are lists and object arrays of arrays, lists or tables, each (L_i,), (C, L_i) or (L_i, C): where lengths
    differ, the axis that does is time. Tables in a list that are all of one length have time in their rows unless
    `axes` says otherwise. Tables whose cells hold series have one column per channel, and so have tables indexed by
    (series, time).

    Returns:
        The input, as an array where it was a list of equal ones; the series; the axes, "auto" where nothing says them.

    Example:
        >>> _, series, axes = unpack([np.zeros((5, 2)), np.zeros((7, 2))])
        >>> [x.shape for x in series], axes
        ([(2, 5), (2, 7)], 'NLC')
    """
    if getattr(getattr(X, "index", None), "nlevels", 1) == 2 and hasattr(X, "groupby"):
        channels_first = [np.asarray(rows, np.float64).T for _, rows in X.groupby(level=0, sort=False)]
        return X, channels_first, "NLC" if axes == "NLC" else "NCL"
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:
        if not X.size or np.ndim(X.iloc[0, 0]) != 1:
            return X, None, axes
        nested = [_padded([np.asarray(cell, np.float64) for cell in row]) for row in X.to_numpy()]
        return X, nested, "NLC" if axes == "NLC" else "NCL"
    listed = isinstance(X, (list, tuple)) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if not listed or not len(X) or not all(np.ndim(x) if hasattr(x, "shape") else isinstance(x, list) for x in X):
        return X, None, axes
    tables = kind != "image" and axes == "auto" and all(hasattr(x, "iloc") and x.ndim == 2 for x in X)
    try:
        arrays = [np.asarray(x) if hasattr(x, "shape") else np.array(x, np.float64) for x in X]
        shapes = sorted({x.shape for x in arrays})
        if len(shapes) == 1:
            return (np.stack(arrays) if hasattr(X[0], "shape") else X), None, "NLC" if tables else axes
        series = [x.astype(np.float64) for x in arrays]
    except (ValueError, TypeError) as error:
        raise ValueError(f"X must hold series of numbers, each (L_i,), (C, L_i) or (L_i, C), got {error}") from error
    if {len(shape) for shape in shapes} not in ({1}, {2}):
        what = "images of one size, or series, each (L_i,) or each with channels"
        raise ValueError(f"X must hold {what}, got arrays of shapes {shapes[0]} and {shapes[-1]}")
    if len(shapes[0]) == 2 and axes == "auto":
        axes = "NLC" if len({shape[0] for shape in shapes}) > 1 and len({shape[1] for shape in shapes}) == 1 else "NCL"
    series = [x.T for x in series] if axes == "NLC" else series
    if len({x.shape[:-1] for x in series}) > 1:
        ways = "(C, L_i), or (L_i, C) with axes='NLC'"
        raise ValueError(f"X must hold series with the same channels, {ways}, got {shapes[0]} and {shapes[-1]}")
    return X, series, axes


def _padded(arrays: list[NDArray[np.float64]], length: int = 0) -> NDArray[np.float64]:
    """(N, ..., L) of arrays (..., L_i), with NaN behind those that end before the longest, or before a length."""
    longest = max(length, *(x.shape[-1] for x in arrays))
    padded = np.full((len(arrays), *arrays[0].shape[:-1], longest), np.nan)
    for row, x in zip(padded, arrays, strict=True):
        row[..., : x.shape[-1]] = x
    return padded


def _set_lengths(series: list[NDArray[np.float64]], layout: Layout, lengths: str) -> tuple[NDArray[np.float64], Layout]:
    """Series (C, L_i) or (L_i,) as one array in the user's axes: what is done with lengths is decided here alone."""
    cut = [without_padding(np.atleast_2d(x)) for x in series]
    for at, x in enumerate(cut):
        if np.isnan(x).all(axis=-1).any():
            raise ValueError(f"X must hold a value in every channel of every series, got only NaN in one of X[{at}]")
        if np.isinf(x).any() or len(x) != layout.channels:
            raise ValueError(f"X must hold finite series of {layout.channels} channel(s), got others in X[{at}]")
    length, found = layout.size[0], {x.shape[-1] for x in cut}
    if lengths == "auto":
        lengths = "equal" if found == {length} else "resample"
    if lengths == "equal" and found != {length}:
        other = next(steps for steps in sorted(found) if steps != length)
        ways = "lengths='resample' or 'pad' in the constructor takes others"
        raise ValueError(f"X must hold series of length {length}, as in fit, where all had one, got {other}: {ways}")
    array = _padded([equalise([x])[0] for x in cut], length) if lengths == "pad" else equalise(cut, length)
    return layout.as_given(array), replace(layout, lengths=lengths)


def equalise(series: list[NDArray[np.float64]], length: int | None = None) -> NDArray[np.float64]:
    """Series of one length, (N, C, L): gaps are interpolated, and each is resampled from end to end.

    NaN is interpolated linearly, at the ends by the nearest value.

    Args:
        series: (C, L_i) each.
        length: L; the longest when None.

    Example:
        >>> equalise([np.array([[0.0, 1.0]]), np.array([[4.0, np.nan, 6.0]])])[:, 0].tolist()
        [[0.0, 0.5, 1.0], [4.0, 5.0, 6.0]]
    """
    length = max(x.shape[-1] for x in series) if length is None else length
    return np.stack([[resample(channel, length) for channel in x] for x in series])


class ArrayEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Reads arrays by what `fit` has seen of them, and passes some of them at a time through a network."""

    layout_: Layout
    scaling_: Scaling
    model_: Any
    # Numbers of the warped samples that are held at once: features may be many more numbers.
    _values = 1 << 21

    def _set_parameters(self, values: Mapping[str, Any]) -> None:
        """Set the constructor's parameters as attributes, unchanged, as scikit-learn wants them."""
        for name in self._get_param_names():
            setattr(self, name, values[name])

    def _read(self, X: Any, *, reset: bool = False) -> NDArray[Any]:
        """Inputs (N, *shape), of one length and without gaps unless padded."""
        array, self.layout_ = read_inputs(self, X, layout=None if reset else self.layout_, reset=reset)
        if array.size == 0:
            raise ValueError(f"X must hold inputs of at least one value each, got shape {array.shape}")
        return array

    def _scaled(self, array: NDArray[Any]) -> Tensor:
        """Inputs (N, *shape) as the network takes them, (N, C, *size); padded series with their mask, (N, C + 1, L)."""
        x = self.layout_.channels_first(array)
        if self.layout_.lengths != "pad":
            return self.scaling_.apply(x)
        real = ~np.isnan(x).any(1, keepdims=True)
        mask = torch.from_numpy(real.astype(np.float32))
        return torch.cat([self.scaling_.apply(np.where(real, x, 0.0)) * mask, mask], 1)

    def _at_once(self, samples: int) -> int:
        """How many inputs are warped by so many samples at once."""
        values = samples * self.layout_.channels * math.prod(self.layout_.size)
        return min(_INPUTS_AT_ONCE, max(1, self._values // values))

    def _batches(self, X: Any, samples: int = 1) -> Iterator[Tensor]:
        """Inputs as the network takes them, some at a time, on its device."""
        check_is_fitted(self)
        array, count, device = self._read(X), self._at_once(samples), next(self.model_.parameters()).device
        for at in range(0, len(array), count):
            yield self._scaled(array[at : at + count]).to(device)

    def __sklearn_tags__(self) -> Any:
        """Arrays of two to four axes; series may have gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.allow_nan = True
        return tags


class Warping(TransformerMixin):  # type: ignore[misc]  # it has no types
    """What has both a parameter and a method `transform`."""

    layout_: Layout
    scaling_: Scaling

    def _restored(self, warped: Tensor) -> NDArray[np.float32]:
        """(..., C, *size) as the network has it -> (..., *shape) as the user has it."""
        return self.layout_.as_given(self._in_units(warped))

    def _in_units(self, warped: Tensor) -> NDArray[np.float32]:
        """(..., C, *size) in the data's units, with NaN behind padded series."""
        if self.layout_.lengths == "pad":
            warped = without_mask(warped)
        return self.scaling_.restore(warped, len(self.layout_.size))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Names and values of the constructor's parameters, of nested estimators too if `deep`."""
        return {**super().get_params(deep=deep), "transform": vars(self)["transform"]}

    def __sklearn_tags__(self) -> Any:
        """What goes in comes out, in float32."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class parameter_too:
    """A method that shares its name with a constructor's parameter: reading gives the method, writing the parameter.

    scikit-learn wants every parameter as an attribute of its own name, and calls the method that changes inputs
    `transform`, which is also what a family of transformations is called here.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]  # it takes any object, its types a function

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._method if instance is None else MethodType(self._method, instance)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value


def draw_seed(random_state: Any) -> int:
    """A seed for torch from what scikit-learn takes for one."""
    return int(check_random_state(random_state).randint(2**31 - 1))
