"""Translation: a shift at a fixed scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from pstn._checks import require_positive_number
from pstn.transforms.base import MatrixTransform, require_ndim

__all__ = ["Translation"]


@final
class Translation(MatrixTransform):
    """A crop of fixed size that moves: p -> scale * p + t, with theta = t.

    With a scale other than 1 no theta gives the identity, and the inverse of a map is not in the family: `identity`
    and `inverse` raise ValueError, while `apply_inverse` works. A localizer starts at the centre.

    Args:
        scale: the fixed size of the crop relative to the input, above 0.
        ndim: 1, 2 or 3.

    Example:
        >>> t = Translation(scale=0.5)
        >>> t.corners(torch.tensor([0.5, 0.5])).tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """

    def __init__(self, scale: float = 0.5, ndim: int = 2) -> None:
        super().__init__()
        self.scale = require_positive_number("scale", scale)
        self.ndim = require_ndim("Translation", ndim, (1, 2, 3))
        self.dim = ndim
        self.names = ("tx", "ty", "tz")[:ndim]

    def initial(self) -> Tensor:
        """The centre, (D,)."""
        return torch.zeros(self.dim)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The opposite shift, (..., D); only where the scale is 1."""
        if self.scale != 1:
            raise ValueError(
                f"{self} has no inverse: the inverse of a crop at scale {self.scale} is not in the family. "
                "Use scale=1, the Crop family, or apply_inverse on points"
            )
        return -self._checked_theta(theta)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        linear = self.scale * torch.eye(self.ndim, dtype=theta.dtype, device=theta.device)
        return torch.cat([linear.expand(*theta.shape[:-1], -1, -1), theta[..., None]], dim=-1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"scale={self.scale}, ndim={self.ndim}"
