"""Changes of the data that are drawn afresh on every access, on the device, from noise that is passed in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pstn.transforms import Rotation
from pstn.warp import warp

__all__ = ["Augmentation", "RandomPlacement", "RandomRotation"]


class Augmentation(ABC):
    """A random change of inputs, as a function of the inputs and of uniform noise."""

    width: int
    """How many uniform numbers each example needs."""

    @abstractmethod
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Change `x` (B, C, *size) with `u` (B, width) in [0, 1)."""


@final
@dataclass(frozen=True)
class RandomRotation(Augmentation):
    """Rotation of images by an angle uniform on (-limit, limit).

    Args:
        limit: largest angle, in radians.
        fill: what lies outside the image.

    Example:
        >>> RandomRotation()(torch.rand(2, 1, 28, 28), torch.rand(2, 1)).shape
        torch.Size([2, 1, 28, 28])
    """

    limit: float = math.pi
    fill: float = 0.0
    width = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Rotate: (B, C, H, W), (B, 1) -> (B, C, H, W)."""
        size = tuple(x.shape[2:])
        return warp(x, Rotation().grid(self.limit * (2 * u - 1), size, aspect=size[::-1]), fill=self.fill)


@final
@dataclass(frozen=True)
class RandomPlacement(Augmentation):
    """Images pasted on a larger canvas at a uniform whole-pixel corner.

    Args:
        canvas: side of the square canvas.
        span: corners are uniform on 0..span - 1; canvas - side + 1 when None, all that fit.
        fill: value of the empty canvas.

    Example:
        >>> RandomPlacement(96, span=64)(torch.rand(2, 1, 28, 28), torch.rand(2, 2)).shape
        torch.Size([2, 1, 96, 96])
    """

    canvas: int = 96
    span: int | None = None
    fill: float = 0.0
    width = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Place: (B, C, H, W), (B, 2) -> (B, C, canvas, canvas)."""
        height, width = x.shape[2:]
        spans = [self.canvas - side + 1 if self.span is None else self.span for side in (height, width)]
        at = torch.arange(self.canvas, device=x.device)
        rows, columns = ((at - (u[:, k, None] * spans[k]).long()) for k in (0, 1))  # (B, canvas): where each reads
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        flat = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        flat = flat.reshape(x.shape[0], 1, -1).expand(-1, x.shape[1], -1)
        read = x.flatten(2).gather(2, flat).reshape(x.shape[0], x.shape[1], self.canvas, self.canvas)
        return torch.where(inside[:, None], read, torch.full_like(read, self.fill))
