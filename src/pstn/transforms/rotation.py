"""Rotation and similarity: the paper's transformations of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from pstn.transforms.base import MatrixTransform, require_ndim
from pstn.transforms.scale import ScaleKind, initial_scale, invert_scale, read_scale, require_scale_kind

__all__ = ["Rotation", "Similarity", "rotation_matrix"]


def rotation_matrix(angle: Tensor, aspect: Sequence[float]) -> Tensor:
    """The matrix that rotates an input of extents `aspect` rigidly, in coordinates normalised to [-1, 1].

    On a square it is [[cos, -sin], [sin, cos]]. Otherwise a unit of x is longer than a unit of y by the aspect ratio
    a, and the off-diagonal entries are multiplied by 1/a and a.

    Args:
        angle: (...), in radians.
        aspect: (width, height) of the input.

    Returns:
        (..., 2, 2).
    """
    ratio = aspect[0] / aspect[1]
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = [torch.stack([cos, -sin / ratio], dim=-1), torch.stack([sin * ratio, cos], dim=-1)]
    return torch.stack(rows, dim=-2)


@final
class Rotation(MatrixTransform):
    """Rotation about the centre, with theta = (angle), in radians.

    A warp with angle r is undone by a warp with -r.

    Args:
        ndim: 2; rotations in space have other parameters.

    Example:
        >>> Rotation().identity()
        tensor([0.])
    """

    def __init__(self, ndim: int = 2) -> None:
        super().__init__()
        self.ndim, self.dim, self.names = require_ndim("Rotation", ndim, (2,)), 1, ("angle",)

    @property
    def circular(self) -> tuple[bool, ...]:
        """The one parameter is an angle."""
        return (True,)

    def initial(self) -> Tensor:
        """The identity, (1,)."""
        return torch.zeros(1)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The opposite angle, (..., 1)."""
        return -self._checked_theta(theta)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        linear = rotation_matrix(theta[..., 0], aspect)
        return torch.cat([linear, torch.zeros_like(linear[..., :1])], dim=-1)


@final
class Similarity(MatrixTransform):
    """Rotation, isotropic scale and shift, the paper's Eq. 1, with theta = (angle, scale, tx, ty).

    Both the cosine and the sine terms are scaled, as in the equation; the authors' published code scales the cosines
    only, which is not a similarity.

    Args:
        scale: "linear", as in the paper; or "log", s = exp(parameter), which cannot collapse or flip.
        ndim: 2.

    Example:
        >>> Similarity().identity()
        tensor([0., 1., 0., 0.])
    """

    def __init__(self, scale: ScaleKind = "linear", ndim: int = 2) -> None:
        super().__init__()
        self.scale = require_scale_kind(scale)
        self.ndim = require_ndim("Similarity", ndim, (2,))
        self.dim, self.names = 4, ("angle", "scale", "tx", "ty")

    @property
    def circular(self) -> tuple[bool, ...]:
        """The first parameter is an angle."""
        return (True, False, False, False)

    def initial(self) -> Tensor:
        """The identity, (4,)."""
        return torch.tensor([0.0, initial_scale(self.scale), 0.0, 0.0])

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse similarity, (..., 4). The shift depends on the aspect where the input is not square."""
        theta = self._checked_theta(theta)
        angle, raw, shift = theta[..., :1], theta[..., 1:2], theta[..., 2:]
        inverse_rotation = rotation_matrix(-angle[..., 0], self._checked_aspect(aspect))
        back = -(inverse_rotation * shift[..., None, :]).sum(-1) / read_scale(raw, self.scale)
        return torch.cat([-angle, invert_scale(raw, self.scale), back], dim=-1)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        scale = read_scale(theta[..., 1, None, None], self.scale)
        linear = scale * rotation_matrix(theta[..., 0], aspect)
        return torch.cat([linear, theta[..., 2:, None]], dim=-1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"scale={self.scale!r}"
