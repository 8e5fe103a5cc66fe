"""Priors: the Gamma prior of the paper, a normal one on theta, none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast, final

import torch
from torch import Tensor, nn

from pstn._checks import can_inspect_values, require_bool, require_finite_number, require_positive_number
from pstn.distributions.base import Prior, ThetaDistribution
from pstn.transforms import Transform

__all__ = ["GammaPrior", "NoPrior", "NormalPrior", "built_prior", "shared_with_prior"]


@final
@dataclass(frozen=True)
class GammaPrior(Prior):
    """The paper's prior: the precision of each parameter is Gamma(alpha0, rate=beta0). It says nothing of the mean.

    Args:
        alpha0: shape.
        beta0: rate.

    Example:
        >>> q = pstn.Posterior(torch.zeros(8, 4), torch.ones(8, 4))
        >>> float(GammaPrior(1.0, 1.0).kl(q).abs().max())
        0.0
    """

    alpha0: float = 1.0
    beta0: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha0", "beta0"):
            object.__setattr__(self, name, require_positive_number(name, getattr(self, name)))

    def kl(self, q: ThetaDistribution) -> Tensor:
        """KL(Gamma(alpha, beta) || Gamma(alpha0, beta0)) between precisions, analytic, with the shape of beta.

        Args:
            q: a distribution whose precision is Gamma: one with `alpha`, a number, and `beta`, a tensor.
        """
        alpha, beta = getattr(q, "alpha", None), getattr(q, "beta", None)
        if not isinstance(alpha, float) or not isinstance(beta, Tensor):
            raise TypeError(f"GammaPrior needs a posterior with a precision, alpha and beta, got {type(q).__name__}")
        divergence = self.alpha0 * torch.log(beta / self.beta0) + alpha * (self.beta0 / beta - 1)
        if alpha == self.alpha0:
            return divergence
        # Special functions through torch, in float64: Python's math has no digamma and does not compile.
        a, a0 = (torch.full((), shape, dtype=torch.float64, device=beta.device) for shape in (alpha, self.alpha0))
        constant = torch.lgamma(a0) - torch.lgamma(a) + (a - a0) * torch.digamma(a)
        return divergence + constant.to(divergence.dtype)


@final
@dataclass(frozen=True, eq=False)
class NormalPrior(Prior):
    """Theta is normal, independently per parameter, with a mean and a scale that are fixed or learned.

    Works with every distribution that has `mean`, `variance` and `entropy`.

    Args:
        loc: the mean, (D,) or one number; where the transformation starts, which is the identity if the family has
            one, when None.
        scale: the standard deviation, (D,) or one number, above 0.
        learned: whether a layer learns both, one for each parameter of theta; they start as given.

    Example:
        >>> prior = NormalPrior(scale=0.3, learned=True)
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), posterior=pstn.Normal(prior=prior))
        >>> [name for name, _ in layer.named_parameters() if "prior" in name]
        ['shared.prior_loc', 'shared.prior_log_scale']
    """

    loc: Tensor | float | None = None
    scale: Tensor | float = 1.0
    learned: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require_bool("learned", self.learned)
        if self.loc is not None and not isinstance(self.loc, Tensor):
            object.__setattr__(self, "loc", _number(require_finite_number("loc", self.loc)))
        if not isinstance(self.scale, Tensor):
            object.__setattr__(self, "scale", _number(require_positive_number("scale", self.scale)))

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The mean and the log of the scale, (D,) each, learned or not."""
        loc = transform.initial() if self.loc is None else self.loc
        scale = self.scale
        assert isinstance(loc, Tensor)
        assert isinstance(scale, Tensor)
        if can_inspect_values(scale) and not bool((scale > 0).all()):
            raise ValueError(f"scale must be above 0 everywhere, got a minimum of {float(scale.min()):g}")
        made = {"loc": loc, "log_scale": scale.log()}
        made = {name: value.detach().float().expand(transform.dim).clone() for name, value in made.items()}
        return {name: nn.Parameter(value) for name, value in made.items()} if self.learned else made

    def build(self, transform: Transform, shared: Mapping[str, Tensor]) -> NormalPrior:
        """The prior with the present values of its mean and scale."""
        return NormalPrior(shared["loc"], shared["log_scale"].exp(), learned=self.learned)

    def kl(self, q: ThetaDistribution) -> Tensor:
        """KL(q || N(loc, scale²)), (..., D), from the mean, the variance and the entropy of q.

        Args:
            q: a distribution with `mean`, `variance` and `entropy`, (..., D) each.
        """
        if self.loc is None:
            raise ValueError("loc must be given to compare with this prior outside a layer, got None")
        try:
            mean, variance, entropy = q.mean, q.variance, q.entropy  # type: ignore[attr-defined]
        except AttributeError as error:
            raise TypeError(f"NormalPrior needs a mean, a variance and an entropy of q: {error}") from error
        scale, loc = cast("Tensor", self.scale), cast("Tensor", self.loc)
        energy = (variance + (mean - loc).square()) / (2 * scale.square())
        return energy + torch.log(scale) + 0.5 * math.log(2 * math.pi) - entropy


def _number(value: float) -> Tensor:
    """A number as a tensor without axes, which mixes with tensors of any device."""
    return torch.tensor(value, dtype=torch.float32)


@final
@dataclass(frozen=True)
class NoPrior(Prior):
    """No prior: the KL term is 0.

    Example:
        >>> NoPrior().kl(pstn.Posterior(torch.zeros(2, 3), torch.ones(2, 3)))
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """

    def kl(self, q: ThetaDistribution) -> Tensor:
        """Zeros, (..., D)."""
        return torch.zeros_like(q.mode)


def shared_with_prior(prior: Prior, transform: Transform) -> dict[str, Tensor]:
    """The prior's tensors under the names that a posterior family gives them."""
    return {f"prior_{name}": start for name, start in prior.shared(transform).items()}


def built_prior(prior: Prior, transform: Transform, numbers: Mapping[str, Tensor]) -> Prior:
    """The prior from among a family's numbers: the inverse of `shared_with_prior`."""
    prefix = "prior_"
    return prior.build(transform, {n[len(prefix) :]: v for n, v in numbers.items() if n.startswith(prefix)})
