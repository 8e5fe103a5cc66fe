"""The scale of data: a mean and a deviation per channel, and what lies outside an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A background is what at least this share of the border shows, give or take this part of the range of values.
_SHARE, _TOLERANCE = 0.5, 0.05
# A channel whose deviation is below this part of its largest value is constant, up to rounding.
_CONSTANT = 1e-10


@dataclass(frozen=True)
class Scaling:
    """A mean and a deviation per channel, and what lies outside the input.

    Args:
        mean: one number per channel, in the units of the data.
        std: the same, above 0.
        fill: what lies outside, one number per channel in the units of the data; None repeats the border.

    Example:
        >>> x = np.arange(12.0).reshape(2, 1, 6)
        >>> scaling = fit_scaling(x)
        >>> scaling.mean, scaling.fill
        ((5.5,), None)
        >>> bool(np.allclose(scaling.restore(scaling.apply(x), ndim=1), x, atol=1e-5))
        True
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: tuple[float, ...] | None

    def apply(self, x: NDArray[Any]) -> Tensor:
        """(N, C, *size) in the data's units -> float32 around 0."""
        wide = x if x.dtype == np.float32 else x.astype(np.float64)  # a float64 may lose all it has to say in 32 bits
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (np.reshape(values, shape).astype(wide.dtype) for values in (self.mean, self.std))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = ((wide - mean) / std).astype(np.float32)
        if not np.isfinite(scaled).all():
            raise ValueError("X has values too large to work with: they overflow once mean and deviation are taken out")
        return torch.from_numpy(np.ascontiguousarray(scaled))

    def restore(self, x: Tensor, ndim: int) -> NDArray[Any]:
        """Back to the data's units: (..., C, *size) with `ndim` spatial axes, float32."""
        mean, std = (np.reshape(values, (-1, *[1] * ndim)) for values in (self.mean, self.std))
        restored: NDArray[Any] = (x.cpu().numpy() * std + mean).astype(np.float32)
        return restored

    @property
    def scaled_fill(self) -> tuple[float, ...] | None:
        """The fill as the network sees it: after standardisation black is not 0."""
        if self.fill is None:
            return None
        return tuple((f - m) / s for f, m, s in zip(self.fill, self.mean, self.std, strict=True))


def fit_scaling(x: NDArray[Any], fill: str | float | Sequence[float] = "auto") -> Scaling:
    """Learn the scaling from training data.

    Args:
        x: (N, C, *size).
        fill: what lies outside an input, in the data's units: one number or one per channel; "border" repeats the
            nearest value; "auto" is the background of images that have one, a value that half of their border pixels
            show, and "border" otherwise.
    """
    axes = (0, *range(2, x.ndim))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
        usable = np.isfinite(mean + std).all()
    if not usable:
        raise ValueError("X has values too large to work with: their mean or deviation overflows")
    largest = np.maximum(np.abs(x.max(axes).astype(np.float64)), np.abs(x.min(axes).astype(np.float64)))
    std = np.where(std > _CONSTANT * largest, std, 1.0)
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()), _choose_fill(x, fill))


def _choose_fill(x: NDArray[Any], fill: Any) -> tuple[float, ...] | None:
    if isinstance(fill, str) and fill in ("auto", "border"):
        return _background(x) if fill == "auto" and x.ndim == 4 else None
    try:
        values = np.broadcast_to(np.asarray(fill, dtype=np.float64), (x.shape[1],))
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not np.isfinite(values).all():
        raise ValueError(f"fill must be 'auto', 'border', or one finite number or {x.shape[1]}, got {fill!r}")
    return tuple(values.tolist())


def _background(x: NDArray[Any]) -> tuple[float, ...] | None:
    """The value per channel that most of the border shows, or None if there is none."""
    edges = (x[..., 0, :], x[..., -1, :], x[..., 1:-1, 0], x[..., 1:-1, -1])
    border = np.concatenate(edges, axis=-1).astype(np.float64)  # (N, C, pixels)
    value = np.median(border, axis=(0, 2))
    spread = x.max((0, 2, 3)).astype(np.float64) - x.min((0, 2, 3)).astype(np.float64)
    near = np.abs(border - value[:, None]) <= _TOLERANCE * spread[:, None]
    return tuple(value.tolist()) if near.mean() >= _SHARE else None
