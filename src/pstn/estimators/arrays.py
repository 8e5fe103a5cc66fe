"""What an array holds: images or series, and which axis is which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pstn._checks import require_choice

# The smallest image: below it there is nothing for a convolution to do.
_SMALLEST_SIDE = 8
# An array (N, a, b) is taken for images if neither side is longer than this many times the other.
_LARGEST_RATIO = 4


@dataclass(frozen=True)
class Layout:
    """The axes of one example.

    Args:
        kind: "image" or "series".
        shape: of one example as the user has it: (H, W), (H, W, C), (L,) or (C, L).

    Example:
        >>> layout = Layout("image", (28, 30, 3))
        >>> layout.channels, layout.size
        (3, (28, 30))
    """

    kind: Literal["image", "series"]
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """C."""
        if self.kind == "image":
            return self.shape[2] if len(self.shape) == 3 else 1
        return self.shape[0] if len(self.shape) == 2 else 1

    @property
    def size(self) -> tuple[int, ...]:
        """(H, W) or (L,)."""
        return self.shape[:2] if self.kind == "image" else self.shape[-1:]

    def channels_first(self, x: NDArray[Any]) -> NDArray[Any]:
        """(N, *shape) -> (N, C, *size), without copying."""
        if self.kind == "image" and len(self.shape) == 3:
            return np.moveaxis(x, -1, 1)
        return x.reshape(len(x), self.channels, *self.size)

    def as_given(self, x: NDArray[Any]) -> NDArray[Any]:
        """(..., C, *size) -> (..., *shape)."""
        if self.kind == "image" and len(self.shape) == 3:
            return np.moveaxis(x, -3, -1)
        return x.reshape(*x.shape[: x.ndim - 1 - len(self.size)], *self.shape)


def choose_layout(shape: tuple[int, ...], kind: str = "auto") -> Layout:
    """Say what examples of this shape are.

    The rule: (N, L) is series and (N, H, W, C) is images. (N, a, b) is images (N, H, W) if both sides are at least 8
    and neither is more than 4 times the other, else series (N, C, L); `kind` overrules that.

    Args:
        shape: of one example, without N.
        kind: "auto", "image" or "series".

    Example:
        >>> [choose_layout(shape).kind for shape in ((24,), (28, 28), (12, 1000), (3, 50), (32, 32, 3))]
        ['series', 'image', 'series', 'series', 'image']
    """
    require_choice("kind", kind, ("auto", "image", "series"))
    axes, listed = len(shape), ", ".join(map(str, shape))
    if kind == "auto":
        like_an_image = axes == 2 and min(shape) >= _SMALLEST_SIDE and max(shape) <= _LARGEST_RATIO * min(shape)
        kind = "image" if axes == 3 or like_an_image else "series"
    if kind == "series" and axes in (1, 2):
        return Layout("series", shape)
    if kind == "series" or axes not in (2, 3):
        accepted = "(N, H, W) or (N, H, W, C) for images, such as X.reshape(-1, H, W), (N, L) or (N, C, L) for series"
        raise ValueError(f"X must be {accepted}, got (N, {listed}) for kind={kind!r}")
    if min(shape[:2]) < _SMALLEST_SIDE:
        hint = ": channels come last, X.transpose(0, 2, 3, 1)" if axes == 3 else ""
        raise ValueError(f"images in X must be {_SMALLEST_SIDE}x{_SMALLEST_SIDE} or larger, got {listed}{hint}")
    return Layout("image", shape)
