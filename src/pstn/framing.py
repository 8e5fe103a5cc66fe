"""What of an image is read, and how it is resized."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["INTERPOLATIONS", "WHOLE", "Framing"]

INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "box", "hamming", "nearest")
"""How an image may be resized, by Pillow's names."""


@dataclass(frozen=True)
class Framing:
    """What of an image is read, and how it is resized.

    Attributes:
        crop: the part of the shorter side that the middle of an image, in the proportions of the size that it is
            resized to, has at most; None for the whole image, squeezed where its proportions are others.
        interpolation: Pillow's name for how it is resized, in small letters.

    Example:
        >>> Framing(crop=0.5).box((100, 200), (32, 32))
        (75.0, 25.0, 125.0, 75.0)
        >>> Framing().box((100, 200), (32, 32))
        (0.0, 0.0, 200.0, 100.0)
    """

    crop: float | None = None
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        number = isinstance(self.crop, int | float) and not isinstance(self.crop, bool)
        if self.crop is not None and not (number and 0 < self.crop <= 1):
            raise ValueError(f"crop must be above 0 and at most 1, or None, got {self.crop!r:.50}")
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise ValueError(f"interpolation must be one of {known}, got {self.interpolation!r:.50}")

    def box(self, had: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, in pixels, of what is read.

        Args:
            had: the (height, width) of the image.
            size: that it is resized to.
        """
        high, wide = map(float, had)
        if self.crop is not None:
            scale = self.crop * min(had[0] / size[0], had[1] / size[1])
            high, wide = scale * size[0], scale * size[1]
        left, top = (had[1] - wide) / 2, (had[0] - high) / 2
        return left, top, left + wide, top + high


WHOLE = Framing()
"""All of an image, squeezed where its proportions are others than those of the size that it is resized to."""
