"""5,000 real MNIST digits that ship with the package: experiments without a network."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Digits", "load_digits"]


class Digits(NamedTuple):
    """A balanced set of handwritten digits; classes alternate, so any prefix of 10 k is balanced too."""

    x: Tensor
    """(N, 1, 28, 28), float32 from 0 (background) to 1."""
    y: Tensor
    """(N,), int64, the digit."""

    def __repr__(self) -> str:
        return f"Digits(x {tuple(self.x.shape)}, y {tuple(self.y.shape)})"


def load_digits(split: str = "train") -> Digits:
    """Load the digits that ship with the package, all from MNIST's own training set.

    Args:
        split: "train", a pool of 4,000 to draw subsets from, or "test", 1,000 others.

    Example:
        >>> digits = load_digits("test")
        >>> digits.x.shape, digits.y[:3]
        (torch.Size([1000, 1, 28, 28]), tensor([0, 1, 2]))
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    with (files("pstn.data") / "offline" / "digits.npz").open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays[f"{split}_x"], arrays[f"{split}_y"]
    return Digits(torch.from_numpy(images)[:, None].float() / 255, torch.from_numpy(labels).long())
