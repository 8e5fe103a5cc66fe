"""Affine: every entry of the matrix is a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from pstn.transforms.base import MatrixTransform, require_ndim

__all__ = ["Affine"]


@final
class Affine(MatrixTransform):
    """Any affine map, with theta the entries of [A | t] row by row, as `torch.nn.functional.affine_grid` has them.

    Args:
        ndim: 2 (6 parameters) or 3 (12 parameters). In one dimension it would be `Crop(ndim=1)`.

    Example:
        >>> Affine().identity()
        tensor([1., 0., 0., 0., 1., 0.])
    """

    def __init__(self, ndim: int = 2) -> None:
        super().__init__()
        self.ndim = require_ndim("Affine", ndim, (2, 3))
        self.dim = ndim * (ndim + 1)
        self.names = tuple(
            f"a{row + 1}{column + 1}" if column < ndim else f"t{'xyz'[row]}"
            for row in range(ndim)
            for column in range(ndim + 1)
        )

    def initial(self) -> Tensor:
        """The identity, (D,)."""
        return torch.eye(self.ndim, self.ndim + 1).flatten()

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse map, (..., D); not finite where the matrix is singular."""
        matrix = self._matrix(self._checked_theta(theta), ())
        linear, _ = torch.linalg.inv_ex(matrix[..., : self.ndim])
        shift = -(linear * matrix[..., None, :, self.ndim]).sum(-1, keepdim=True)
        return torch.cat([linear, shift], dim=-1).flatten(-2)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        return theta.unflatten(-1, (self.ndim, self.ndim + 1))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"ndim={self.ndim}"
