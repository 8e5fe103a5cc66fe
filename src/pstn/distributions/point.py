"""The point posterior of a classic spatial transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pstn._checks import require_finite, require_floating
from pstn.distributions import base as bases
from pstn.distributions.base import NoPrior, PosteriorFamily, Prior, wrap
from pstn.transforms import Transform

__all__ = ["AtMode", "Point", "PointPosterior"]


@final
@dataclass(frozen=True, eq=False)
class PointPosterior(bases.Located):
    """All mass at loc: the posterior of a classic spatial transformer. There is one sample.

    Args:
        loc: (..., D).
        prior: what `kl` compares with. With the default the KL is 0. Under any other it is the prior's negative
            log-density at loc, a penalty: the divergence of a point from a density is infinite.
        circular: for each parameter whether it is an angle, which then lives on the circle; none when empty.

    Example:
        >>> PointPosterior(torch.zeros(8, 4)).rsample(10).shape
        torch.Size([1, 8, 4])
    """

    loc: Tensor
    prior: Prior | None = None
    circular: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        require_floating("loc", self.loc)
        require_finite("loc of the posterior", self.loc, bases.DIVERGED.format(head="mean"))
        object.__setattr__(self, "loc", wrap(bases.at_least_float32(self.loc), self.circular))

    @property
    def noise_width(self) -> int:
        """0: there is nothing to sample."""
        return 0

    def from_noise(self, noise: Tensor) -> Tensor:
        """Copies of loc, (S, ..., D) for noise (S, ..., 0)."""
        return self.loc.expand(noise.shape[0], *self.loc.shape)

    def log_prob(self, theta: Tensor) -> Tensor:
        """0 at loc and minus infinity elsewhere, (..., D): the log of the probability of that very point."""
        return torch.where(wrap(theta, self.circular) == self.loc, 0.0, -torch.inf).to(self.loc.dtype)

    def kl(self, prior: Prior | None = None) -> Tensor:
        """The penalty of a prior at loc, (..., D); 0 without one."""
        return (prior or self.prior or NoPrior()).kl(self)

    @property
    def variance(self) -> Tensor:
        """Zeros, (..., D)."""
        return torch.zeros_like(self.loc)

    @property
    def entropy(self) -> Tensor:
        """Zeros, (..., D): that of the one value it takes."""
        return torch.zeros_like(self.loc)

    def quantile(self, probability: float | Tensor) -> Tensor:
        """Loc, (..., D), whatever the probability."""
        bases.checked_probability(probability, self.loc)
        return self.loc


@final
@dataclass(frozen=True)
class Point(bases.PriorFamily):
    """The family of point posteriors: with it a layer is the classic spatial transformer.

    Args:
        prior: a penalty on theta; none by default.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), posterior=Point())
        >>> layer.probabilistic
        False
    """

    prior: Prior = NoPrior()

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """One head, "mean", (D,), at the transformation's start."""
        return {"mean": transform.initial()}

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> PointPosterior:
        """All mass at the mean."""
        return PointPosterior(numbers["mean"], self.built_prior(transform, numbers), transform.circular)


@final
@dataclass(frozen=True)
class AtMode(PosteriorFamily):
    """All mass at the mode of another family's posterior: one sample for each input, where that is most probable.

    Args:
        base: the family whose mode it is.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), posterior=pstn.AtMode(pstn.Mixture(4)))
        >>> layer(torch.rand(2, 1, 8, 8)).theta.shape, layer.probabilistic
        (torch.Size([1, 2, 1]), False)
    """

    base: PosteriorFamily

    def __post_init__(self) -> None:
        if not isinstance(self.base, PosteriorFamily):
            raise TypeError(f"base must be a pstn.PosteriorFamily, got {self.base!r}")

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """The heads of the base."""
        return self.base.starts(transform)

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The base's tensors."""
        return self.base.shared(transform)

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> PointPosterior:
        """All mass at the mode of what the base builds."""
        return PointPosterior(self.base.build(transform, numbers).mode, NoPrior(), transform.circular)
