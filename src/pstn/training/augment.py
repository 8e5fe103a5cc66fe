"""Changes of the data that are drawn afresh on every access, on the device, from noise that is passed in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

if TYPE_CHECKING:  # `import pstn` is to load this and not the data
    from pstn.data.augment import RandomTransform

__all__ = ["Augmentation", "RandomWarp"]


class Augmentation(ABC):
    """A random change of inputs, as a function of the inputs and of uniform noise."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many uniform numbers each example needs."""

    @abstractmethod
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Change `x` (B, C, *size) with `u` (B, width) in [0, 1)."""


@final
@dataclass(frozen=True, repr=False)
class RandomWarp(Augmentation):
    """Images warped as a generated set warps its own: training then sees what such a set is tested on.

    Args:
        maker: `pstn.data.RandomRotation()`, `pstn.data.RandomPlacement()`, or one of your own.
        fill: what lies outside the image, one number or one per channel.

    Example:
        >>> augment = RandomWarp(pstn.data.RandomPlacement(canvas=96, size=28), fill=-0.42)
        >>> augment(torch.rand(2, 1, 28, 28), torch.rand(2, augment.width)).shape
        torch.Size([2, 1, 96, 96])
    """

    maker: RandomTransform
    fill: float | tuple[float, ...] = 0.0

    @property
    def width(self) -> int:
        """How many uniform numbers the maker takes."""
        return self.maker.width

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Warp: (B, C, H, W), (B, width) -> what the maker makes."""
        return self.maker.make(x, self.maker.theta(u), fill=self.fill)

    def __repr__(self) -> str:
        # One call, as result files have it.
        return f"{repr(self.maker).removesuffix(')')}, fill={self.fill})"
