"""What an array holds: images or series, and which axis is which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pstn._checks import require_choice

__all__ = ["Layout", "choose_layout"]

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
    if len(shape) not in (1, 2, 3):
        raise ValueError(
            "X must hold images (N, H, W) or (N, H, W, C), or series (N, L) or (N, C, L); "
            f"got an array with {len(shape) + 1} axes"
        )
    if kind == "auto":
        kind = "image" if len(shape) == 3 or (len(shape) == 2 and _looks_like_an_image(shape)) else "series"
    if kind == "series":
        if len(shape) == 3:
            raise ValueError(f"X must be (N, L) or (N, C, L) for kind='series', got (N, {_listed(shape)})")
        return Layout("series", shape)
    if len(shape) == 1:
        raise ValueError(
            f"X must be (N, H, W) or (N, H, W, C) for kind='image', got (N, {shape[0]}): flat images have to get "
            "their shape back, X.reshape(-1, H, W)"
        )
    if min(shape[:2]) < _SMALLEST_SIDE:
        hint = ": channels come last, X.transpose(0, 2, 3, 1)" if len(shape) == 3 else ""
        raise ValueError(f"images in X must be {_SMALLEST_SIDE}x{_SMALLEST_SIDE} or larger, got {_listed(shape)}{hint}")
    return Layout("image", shape)


def _looks_like_an_image(shape: tuple[int, ...]) -> bool:
    return min(shape) >= _SMALLEST_SIDE and max(shape) <= _LARGEST_RATIO * min(shape)


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
