"""The normal distribution over theta, independent per parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import require_finite_number
from pstn.defaults import VAR_INIT
from pstn.distributions import base
from pstn.distributions.angles import REACH, by_kind, sum_over_turns, wrap
from pstn.distributions.priors import NormalPrior, built_prior, shared_with_prior
from pstn.distributions.quantiles import normal_quantile
from pstn.transforms import Transform

__all__ = ["Normal", "NormalPosterior"]

# Keeps the scale, and so the KL and its gradient, finite however far down the variance head goes.
_MIN_VARIANCE = 1e-8


@final
@dataclass(frozen=True, eq=False)
class NormalPosterior(base.ThetaDistribution):
    """Normal, independent per parameter.

    Args:
        loc: (..., D), the mean.
        scale: (..., D), or (..., 1) for one that all parameters share, the standard deviation, above 0.
        prior: what `kl` compares with; the standard normal around 0 when not given.
        circular: for each parameter whether it is an angle, which then lives on the circle; none when empty.

    Example:
        >>> q = NormalPosterior(torch.zeros(8, 4), torch.full((8, 4), 0.1))
        >>> q.rsample(10).shape, q.kl().shape
        (torch.Size([10, 8, 4]), torch.Size([8, 4]))
    """

    loc: Tensor
    scale: Tensor
    prior: base.Prior | None = None
    circular: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        loc, scale = base.checked_parameters(self.loc, self.scale, "scale")
        object.__setattr__(self, "loc", loc)
        object.__setattr__(self, "scale", scale.expand_as(loc))

    @property
    def noise_width(self) -> int:
        """D."""
        return self.loc.shape[-1]

    def from_noise(self, noise: Tensor) -> Tensor:
        """Samples (S, ..., D) from noise (S, ..., D), by the normal's quantiles; 0.5 everywhere gives loc."""
        return wrap(torch.addcmul(self.loc, self.scale, normal_quantile(noise).to(self.loc.dtype)), self.circular)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of each parameter, (..., D)."""
        difference = theta - self.loc
        line = _log_density(difference, self.scale)
        return by_kind(line, self.circular, _log_density_of_angles, difference, self.scale.expand_as(line))

    def kl(self, prior: base.Prior | None = None) -> Tensor:
        """KL from a prior, (..., D), analytic for a `NormalPrior`; from its own when None."""
        return (prior or self.prior or NormalPrior(0.0)).kl(self)

    @property
    def mean(self) -> Tensor:
        """Loc, (..., D), its angles within [-pi, pi]."""
        return self.mode

    @property
    def mode(self) -> Tensor:
        """Loc, (..., D), its angles within [-pi, pi]."""
        return wrap(self.loc, self.circular)

    @property
    def variance(self) -> Tensor:
        """(..., D)."""
        return self.scale.square()

    @property
    def entropy(self) -> Tensor:
        """Of each parameter, in nats, (..., D)."""
        return torch.log(self.scale) + 0.5 * (1 + math.log(2 * math.pi))

    def quantile(self, probability: float | Tensor) -> Tensor:
        """The value that each parameter stays below with this probability, (..., D).

        Args:
            probability: in (0, 1), a number or a tensor that broadcasts with (..., D).
        """
        z = normal_quantile(base.checked_probability(probability, self.loc))
        return self.loc + self.scale * z.to(self.loc.dtype)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds each parameter with probability `level`, each end (..., D)."""
        return base.central_interval(self.quantile, level, self.mode, self.circular)


def _log_density(difference: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * (difference / scale).square() - torch.log(scale) - 0.5 * math.log(2 * math.pi)


def _log_density_of_angles(line: Tensor, difference: Tensor, scale: Tensor) -> Tensor:
    tail = torch.erfc(REACH / (scale * math.sqrt(2))) / (2 * math.pi)
    return sum_over_turns(lambda d: _log_density(d, scale), difference, tail)


@final
@dataclass(frozen=True)
class Normal(base.PosteriorFamily):
    """The family of normal posteriors, one variance for each parameter.

    Args:
        var_init: where the variance head starts, before softplus.
        prior: by default normal with standard deviation 1 around the transformation's start.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), size=(28, 28), posterior=Normal())
        >>> layer(torch.rand(2, 1, 28, 28), samples=10).theta.shape
        torch.Size([10, 2, 4])
    """

    var_init: float = VAR_INIT
    prior: base.Prior = NormalPrior()

    def __post_init__(self) -> None:
        object.__setattr__(self, "var_init", require_finite_number("var_init", self.var_init))

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """Two heads, "mean" and "variance", (D,) each."""
        return {"mean": transform.initial(), "variance": torch.full((transform.dim,), self.var_init)}

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The prior's learned parameters."""
        return shared_with_prior(self.prior, transform)

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> NormalPosterior:
        """Normal around the mean, with softplus of the variance head as variance."""
        scale = torch.sqrt(F.softplus(numbers["variance"]) + _MIN_VARIANCE)
        prior = built_prior(self.prior, transform, numbers)
        return NormalPosterior(numbers["mean"], scale, prior, transform.circular)
