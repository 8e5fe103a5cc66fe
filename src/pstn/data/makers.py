"""Ways to make examples from others: uniform noise becomes theta, and theta warps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import require_positive_int, require_positive_number
from pstn.transforms import Rotation, Similarity, Transform
from pstn.warp import warp

__all__ = ["Maker", "RandomPlacement", "RandomRotation"]

_ROTATION, _SIMILARITY = Rotation(), Similarity()


class Maker(ABC):
    """A way to make examples: uniform noise becomes theta, and theta warps.

    `generate` draws the noise of test sets and fresh batches, `pstn.training.RandomWarp` takes that of a population.
    One of your own says how many uniform numbers an example takes, what theta they make, and what theta does.
    """

    width: int
    """How many uniform numbers each example takes."""

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """The family that theta belongs to."""

    @abstractmethod
    def theta(self, u: Tensor) -> Tensor:
        """Theta (B, D) from uniform numbers `u` (B, width) in [0, 1)."""

    @abstractmethod
    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Warp x (B, C, H, W) by theta (B, D)."""

    def draw(self, count: int, *, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Draw theta, (count, D), where `generator` lives: one of the CPU gives every device the same."""
        place = device if generator is None else generator.device
        return self.theta(torch.rand(count, self.width, generator=generator, device=place))


@final
@dataclass(frozen=True)
class RandomRotation(Maker):
    """Images turned about their centre by an angle uniform on (-limit, limit).

    Convention:
        theta (B, 1) is the angle of `pstn.Rotation` with which the example was warped; a grid maps output to input. So
        warping the example by `Rotation().inverse(theta)`, the opposite angle, gives the original back: that is what a
        localizer should find.

    Args:
        limit: the largest angle, in radians; the paper's is pi.

    Example:
        >>> maker = RandomRotation()
        >>> theta = maker.draw(2, generator=torch.Generator().manual_seed(0))
        >>> maker.make(torch.zeros(2, 1, 28, 28), theta).shape
        torch.Size([2, 1, 28, 28])
    """

    limit: float = math.pi
    width = 1

    def __post_init__(self) -> None:
        require_positive_number("limit", self.limit)

    @property
    def transform(self) -> Transform:
        """`pstn.Rotation`."""
        return _ROTATION

    def theta(self, u: Tensor) -> Tensor:
        """Angles, (B, 1), from u (B, 1)."""
        return self.limit * (2 * u - 1)

    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Rotated images, of the size of `x` (B, C, H, W); the corners that come into view are `fill`."""
        return warp(x, self.transform.grid(theta, (x.shape[-2], x.shape[-1])), fill=fill)


@final
@dataclass(frozen=True)
class RandomPlacement(Maker):
    """Images pasted somewhere on an empty canvas.

    Convention:
        theta (B, 4) is the `pstn.Similarity` with which the example was warped, (0, canvas / size, tx, ty): a grid
        maps the canvas to the image. So warping the canvas by `Similarity().inverse(theta)` at the image's size gives
        the image back; that inverse, (0, size / canvas, ...), is what a localizer should find.

    Args:
        canvas: side of the canvas in pixels.
        size: side of the pasted image in pixels; the original is resized to it, averaging where it shrinks.
        corners: the upper left corner is uniform on the whole numbers 0..corners-1, in x and y; None for all that fit.

    The defaults are those of the authors' code: 28 pixels on a canvas of 96, with corners on 0..63. The paper's text
    instead shrinks the image to 50%, with a theta of scale 0.5, which is `RandomPlacement.as_in_text()`.

    Example:
        >>> maker = RandomPlacement()
        >>> theta = maker.draw(2)
        >>> maker.make(torch.zeros(2, 1, 28, 28), theta).shape
        torch.Size([2, 1, 96, 96])
    """

    canvas: int = 96
    size: int = 28
    corners: int | None = 64
    width = 2

    def __post_init__(self) -> None:
        require_positive_int("canvas", self.canvas)
        require_positive_int("size", self.size)
        most = self.canvas - self.size + 1
        if most < 1:
            raise ValueError(f"size must be at most the canvas, {self.canvas}, got {self.size}")
        if self.corners is not None and not 1 <= require_positive_int("corners", self.corners) <= most:
            raise ValueError(f"corners must be from 1 to {most} so that the image fits, got {self.corners}")

    @classmethod
    def as_in_text(cls) -> RandomPlacement:
        """The paper's text: the 28-pixel image at 50% on a canvas of its own size, so that the undoing scale is 0.5."""
        return cls(canvas=28, size=14, corners=None)

    @property
    def transform(self) -> Transform:
        """`pstn.Similarity`."""
        return _SIMILARITY

    def theta(self, u: Tensor) -> Tensor:
        """Placements, (B, 4), from u (B, 2): of the corner's x, then of its y."""
        corners = self.corners or self.canvas - self.size + 1
        corner = (u * corners).floor().clamp(max=corners - 1)
        shift = (self.canvas - 2 * corner) / self.size - 1
        angle = torch.zeros_like(shift[:, :1])
        return torch.cat([angle, torch.full_like(angle, self.canvas / self.size), shift], dim=1)

    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Canvases (B, C, canvas, canvas) with the images `x` (B, C, H, W) on them and `fill` around."""
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return warp(x, self.transform.grid(theta, (self.canvas, self.canvas)), fill=fill)
