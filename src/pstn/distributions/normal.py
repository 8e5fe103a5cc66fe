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
from pstn.distributions.base import REACH, NormalPrior, by_kind, sum_over_turns, wrap
from pstn.noise import uniform_bounds
from pstn.transforms import Transform

__all__ = ["Normal", "NormalPosterior", "normal_quantile"]

# Keeps the scale, and so the KL and its gradient, finite however far down the variance head goes.
_MIN_VARIANCE = 1e-8


@final
@dataclass(frozen=True, eq=False)
class NormalPosterior(base.Located):
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
        self._check("scale")
        object.__setattr__(self, "scale", self.scale.expand_as(self.loc))

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


def _log_density(difference: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * (difference / scale).square() - torch.log(scale) - 0.5 * math.log(2 * math.pi)


def _log_density_of_angles(line: Tensor, difference: Tensor, scale: Tensor) -> Tensor:
    tail = torch.erfc(REACH / (scale * math.sqrt(2))) / (2 * math.pi)
    return sum_over_turns(lambda d: _log_density(d, scale), difference, tail)


@final
@dataclass(frozen=True)
class Normal(base.PriorFamily):
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

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> NormalPosterior:
        """Normal around the mean, with softplus of the variance head as variance."""
        scale = torch.sqrt(F.softplus(numbers["variance"]) + _MIN_VARIANCE)
        prior = self.built_prior(transform, numbers)
        return NormalPosterior(numbers["mean"], scale, prior, transform.circular)


# Wichura's algorithm AS 241 (1988), PPND16: numerators and denominators of rational functions, lowest power first. The
# first pair is for the middle, the second for the tails down to a probability of 1e-11, far below the noise's margin.
_MIDDLE = (
    (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_TAILS = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip


def normal_quantile(u: Tensor) -> Tensor:
    """The value that a standard normal variable stays below with probability `u`.

    As `torch.special.ndtri`, in plain arithmetic: it exports to ONNX too.

    Args:
        u: (...), probabilities; read within 2**-24 of 0 and 1.

    Returns:
        (...), at least float32.

    Example:
        >>> normal_quantile(torch.tensor([0.5, 0.975]))
        tensor([0.0000, 1.9600])
    """
    u = uniform_bounds(u)
    q = u - 0.5
    middle = q * _ratio(0.180625 - q * q, *_MIDDLE)
    # The argument of the other branch is kept where its gradient is finite: torch.where passes both gradients on.
    tail = torch.where(q.abs() <= 0.425, torch.full_like(u, 0.05), torch.minimum(u, 1 - u))
    outside = torch.sign(q) * _ratio(torch.sqrt(-torch.log(tail)) - 1.6, *_TAILS)
    return torch.where(q.abs() <= 0.425, middle, outside)


def _ratio(x: Tensor, above: tuple[float, ...], below: tuple[float, ...]) -> Tensor:
    numerator, denominator = torch.full_like(x, above[-1]), torch.full_like(x, below[-1])
    for a, b in zip(above[-2::-1], below[-2::-1], strict=True):
        numerator, denominator = numerator * x + a, denominator * x + b
    return numerator / denominator
