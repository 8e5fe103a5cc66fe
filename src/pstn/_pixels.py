"""Stored values as a network takes them: one arithmetic, so that data and models agree to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def standardise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std as float32, with whole-number pixels divided by 255 first.

    Args:
        x: (B, C, *size), uint8 as stored, or floating point.
        mean: one number, or one per channel, in units of [0, 1] pixels.
        std: likewise.
    """
    floats = x.float() if x.is_floating_point() else x.float() / 255
    shape = (-1, *[1] * (x.dim() - 2))
    return (floats - floats.new_tensor(mean).view(shape)) / floats.new_tensor(std).view(shape)
