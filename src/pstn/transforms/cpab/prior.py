"""A prior over CPAB's theta that prefers smooth velocity fields, for sampling plausible random warps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from pstn._checks import require_floating, require_positive_int, require_positive_number
from pstn.transforms.cpab.basis import make_basis
from pstn.transforms.cpab.transform import CPAB

__all__ = ["SmoothPrior"]


@final
class SmoothPrior(nn.Module):
    """A normal prior over theta whose fields vary slowly: neighbouring cells have similar velocities.

    The entries of the affine maps A_c get the covariance scale^2 exp(-d^2 / (2 length^2)) between the same entry of two
    cells whose centres are d apart on the unit domain, and 0 between different entries; theta gets B' of it B.

    Args:
        transform: the family.
        scale: standard deviation of an entry of A_c, above 0.
        length: the distance on the unit domain over which cells are correlated, above 0. Short lengths give each
            parameter the same variance, long ones keep only fields that are nearly affine over the whole domain.

    Example:
        >>> prior = SmoothPrior(CPAB(tess=10), scale=0.5, length=0.2)
        >>> prior.sample(3, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 9])
    """

    covariance: Tensor
    factor: Tensor

    def __init__(self, transform: CPAB, scale: float = 0.5, length: float = 0.2) -> None:
        super().__init__()
        if not isinstance(transform, CPAB):
            raise TypeError(f"transform must be a CPAB, got {type(transform).__name__}")
        self.scale = require_positive_number("scale", scale)
        self.length = require_positive_number("length", length)
        settings = transform.tess, transform.zero_boundary, transform.volume_preserving
        centres = torch.from_numpy(make_basis(*settings).centres)
        basis = transform.basis.detach().double().cpu()
        square = (centres[:, None] - centres).square().sum(-1)
        cells = torch.exp(-square / (2 * self.length**2))
        entries = basis.shape[0] // len(centres)
        stacked = basis.view(-1, entries, transform.dim)
        mixed = torch.einsum("ced,cb,bef->df", stacked, cells, stacked)
        covariance = self.scale**2 * (mixed + mixed.mT) / 2
        # Kept in float64, whatever the module is cast to: directions that the prior all but excludes have variances far
        # below float32's rounding of the others.
        self._values, self._vectors = values, vectors = torch.linalg.eigh(covariance)
        self.register_buffer("covariance", covariance.float())
        # The symmetric root: unlike a Cholesky factor it exists where the covariance is singular.
        self.register_buffer("factor", ((vectors * values.clamp(min=0).sqrt()) @ vectors.mT).float())

    def sample(
        self, samples: int = 1, *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Sample thetas.

        Args:
            samples: how many.
            generator: the source of randomness; torch's global one when not given.
            noise: standard normal samples (..., D) to use instead, with `samples` then unused.

        Returns:
            (samples, D), or the shape of `noise`.
        """
        if noise is None:
            shape = (require_positive_int("samples", samples), len(self.factor))
            noise = torch.randn(shape, generator=generator, device=self.factor.device)
        self._require_width("noise", noise)
        return (noise[..., None, :].float() * self.factor.float()).sum(-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log density up to a constant, (..., D) -> (...): minus half a squared length.

        Directions with less than 1e-12 of the largest variance, which occur for long lengths, are ignored.
        """
        self._require_width("theta", theta)
        values, vectors = self._values.to(theta.device), self._vectors.to(theta.device)
        kept = values > values.max() * 1e-12
        rotated = (theta.double()[..., None] * vectors).sum(-2)
        return -(rotated.square() * torch.where(kept, 1 / values.clamp(min=1e-30), 0.0)).sum(-1).to(theta.dtype) / 2

    def _require_width(self, name: str, tensor: Tensor) -> None:
        require_floating(name, tensor)
        # A width of 1 would broadcast.
        if tensor.dim() < 1 or tensor.shape[-1] != len(self.factor):
            raise ValueError(f"{name} must have shape (..., {len(self.factor)}), got {tuple(tensor.shape)}")

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"scale={self.scale}, length={self.length}"
