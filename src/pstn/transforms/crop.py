"""Crop: scale and shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from pstn.transforms.base import MatrixTransform, require_ndim
from pstn.transforms.scale import ScaleKind, initial_scale, invert_scale, read_scale, require_scale_kind

__all__ = ["Crop"]


@final
class Crop(MatrixTransform):
    """Scale and shift, p -> s * p + t, with theta = (scale, tx[, ty[, tz]]).

    Args:
        scale: "linear", the parameter is s itself and may pass through 0; or "log", s = exp(parameter), which cannot
            collapse or flip.
        ndim: 1, 2 or 3.

    Example:
        >>> Crop().matrix(torch.tensor([0.5, 0.25, 0.0]))
        tensor([[0.5000, 0.0000, 0.2500],
                [0.0000, 0.5000, 0.0000]])
    """

    def __init__(self, scale: ScaleKind = "linear", ndim: int = 2) -> None:
        super().__init__()
        self.scale = require_scale_kind(scale)
        self.ndim = require_ndim("Crop", ndim, (1, 2, 3))
        self.dim = 1 + ndim
        self.names = ("scale", "tx", "ty", "tz")[: self.dim]

    def initial(self) -> Tensor:
        """The identity, (D,)."""
        return torch.tensor([initial_scale(self.scale)] + [0.0] * self.ndim)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of p -> (p - t) / s, (..., D)."""
        theta = self._checked_theta(theta)
        raw, shift = theta[..., :1], theta[..., 1:]
        return torch.cat([invert_scale(raw, self.scale), -shift / read_scale(raw, self.scale)], dim=-1)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        scale = read_scale(theta[..., 0, None, None], self.scale)
        linear = scale * torch.eye(self.ndim, dtype=theta.dtype, device=theta.device)
        return torch.cat([linear, theta[..., 1:, None]], dim=-1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"scale={self.scale!r}, ndim={self.ndim}"
