"""The distribution over theta: sampling, its divergence from the prior, intervals."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from pstn._checks import (
    require_choice,
    require_finite,
    require_floating,
    require_positive_int,
    require_positive_number,
    values_readable,
)
from pstn._student import student_t_quantile
from pstn.noise import SamplingMethod, draw_noise

__all__ = ["PointPosterior", "Posterior", "ThetaDistribution", "require_alpha"]

# With fewer degrees of freedom than 2 * 0.25 a sample can leave float32's range.
_MIN_ALPHA = 0.25

_DIVERGED = "the {head} head diverged, or the localizer before it; lower the localizer's learning rate"


def require_alpha(alpha: float) -> float:
    """Refuse a shape of the Gamma distribution with which samples could leave float32's range."""
    if require_positive_number("alpha", alpha) < _MIN_ALPHA:
        raise ValueError(f"alpha must be at least {_MIN_ALPHA}, got {alpha}")
    return float(alpha)


class ThetaDistribution(ABC):
    """What a localizer predicts: a distribution over theta, one per input."""

    loc: Tensor

    @abstractmethod
    def rsample(
        self,
        samples: int = 1,
        method: SamplingMethod = "iid",
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Draw theta, (S, ..., D), with gradients to the distribution's parameters."""

    @abstractmethod
    def kl(self, alpha0: float = 1.0, beta0: float = 1.0) -> Tensor:
        """The divergence from the prior Gamma(alpha0, beta0) over the precision, (..., D)."""

    @abstractmethod
    def quantile(self, probability: float | Tensor) -> Tensor:
        """The value that each parameter stays below with this probability, (..., D)."""

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds each parameter with probability `level`.

        Args:
            level: between 0 and 1.

        Returns:
            Lower and upper ends, each (..., D).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


@final
@dataclass(frozen=True, eq=False)
class Posterior(ThetaDistribution):
    r"""Student-t, independent per parameter: theta given a precision lambda is normal, and lambda is Gamma.

    With lambda ~ Gamma(alpha, rate=beta) and theta | lambda ~ N(loc, 1/lambda), theta itself is Student-t with
    2 alpha degrees of freedom, location loc and scale sqrt(beta / alpha). At alpha = 1, the paper's choice, its
    quantile is closed form, t = (2u - 1) / sqrt(2u(1 - u)), so sampling is arithmetic on uniform noise u: it compiles,
    exports, and runs under autocast and vmap. Its variance is infinite: a sample far out is not a mistake.

    The paper's text has one precision per input, shared by all parameters, which then go far out together: that is
    beta (..., 1). The authors' experiments have one per parameter, beta (..., D), and so has the layer by default.

    Args:
        loc: (..., D), at least float32 in every result.
        beta: (..., D), or (..., 1) for one precision shared by all parameters; above 0.
        alpha: at least 0.25.

    Example:
        >>> q = Posterior(torch.zeros(8, 4), torch.full((8, 4), 0.01))
        >>> q.rsample(10).shape, q.kl().shape
        (torch.Size([10, 8, 4]), torch.Size([8, 4]))
    """

    loc: Tensor
    beta: Tensor
    alpha: float = 1.0

    def __post_init__(self) -> None:
        require_floating("loc", self.loc)
        require_floating("beta", self.beta)
        require_alpha(self.alpha)
        shapes = (self.loc.shape, torch.Size((*self.loc.shape[:-1], 1)))
        if self.loc.dim() < 1 or self.beta.shape not in shapes:
            raise ValueError(
                f"loc and beta must have one shape (..., D), or beta (..., 1), got {tuple(self.loc.shape)} and "
                f"{tuple(self.beta.shape)}"
            )
        # One sum that is finite just when every value is good: on a GPU each look at a value stalls.
        if values_readable(self.loc, self.beta) and not bool(torch.isfinite(self.loc.sum() + self.beta.log().sum())):
            require_finite("loc of the posterior", self.loc, _DIVERGED.format(head="mean"))
            require_finite("beta of the posterior", self.beta, _DIVERGED.format(head="variance"))
            if not bool((self.beta > 0).all()):
                raise ValueError(f"beta must be above 0 everywhere, got a minimum of {float(self.beta.min()):g}")
        # Half precision has too few bits for coordinates.
        for name in ("loc", "beta"):
            value = getattr(self, name)
            object.__setattr__(self, name, value.to(torch.promote_types(value.dtype, torch.float32)))

    @property
    def df(self) -> float:
        """Degrees of freedom, 2 alpha."""
        return 2 * self.alpha

    @property
    def scale(self) -> Tensor:
        """The scale of the Student-t, sqrt(beta / alpha), with the shape of beta."""
        return torch.sqrt(self.beta / self.alpha)

    @property
    def _shared(self) -> bool:
        """Whether several parameters have one precision."""
        return self.beta.shape != self.loc.shape

    def rsample(
        self,
        samples: int = 1,
        method: SamplingMethod = "iid",
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Draw theta with gradients to loc and beta.

        Args:
            samples: S, at least 1.
            method: "iid", "antithetic" or "sobol".
            generator: where the randomness comes from; torch's global generator when not given.
            noise: uniform noise (S, ..., D) in (0, 1) to use instead of drawing any, which then says what S is; 0.5
                everywhere gives loc.

        Returns:
            (S, ..., D).
        """
        if noise is None:
            shape = tuple(self.loc.shape)
            noise = draw_noise(samples, shape, method=method, generator=generator, device=self.loc.device)
        else:
            _check_noise(noise, samples, self.loc)
        t = _joint_quantile(noise, self.df) if self._shared else student_t_quantile(noise, self.df)
        t = t.to(self.loc.dtype)
        return torch.addcmul(self.loc, self.scale, t)

    def kl(self, alpha0: float = 1.0, beta0: float = 1.0) -> Tensor:
        """KL(Gamma(alpha, beta) || Gamma(alpha0, beta0)) between precisions, analytic, with the shape of beta.

        Args:
            alpha0: shape of the prior.
            beta0: rate of the prior.
        """
        alpha0, beta0 = require_positive_number("alpha0", alpha0), require_positive_number("beta0", beta0)
        divergence = alpha0 * torch.log(self.beta / beta0) + self.alpha * (beta0 / self.beta - 1)
        if self.alpha == alpha0:
            return divergence
        # Special functions through torch, in float64: Python's math has no digamma and does not compile.
        a, a0 = (torch.full((), shape, dtype=torch.float64, device=self.beta.device) for shape in (self.alpha, alpha0))
        constant = torch.lgamma(a0) - torch.lgamma(a) + (a - a0) * torch.digamma(a)
        return divergence + constant.to(divergence.dtype)

    def quantile(self, probability: float | Tensor) -> Tensor:
        """The value that each parameter stays below with this probability, (..., D).

        Args:
            probability: in (0, 1), a number or a tensor that broadcasts with (..., D); read no closer than 2**-24 to
                either end.
        """
        u = _checked_probability(probability, self.loc)
        return self.loc + self.scale * student_t_quantile(u, self.df).to(self.loc.dtype)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of each parameter, (..., D) for theta (..., D); add over D for the joint density.

        With one precision for all it is the density of each parameter given those before it.
        """
        if not isinstance(theta, Tensor) or theta.shape[-1:] != self.loc.shape[-1:]:
            shape = tuple(theta.shape) if isinstance(theta, Tensor) else repr(theta)
            raise ValueError(f"theta must be a tensor (..., {self.loc.shape[-1]}) as loc is, got {shape}")
        z = (theta - self.loc) / self.scale
        if not self._shared:
            return _log_density(z, self.df) - torch.log(self.scale)
        parts, before = [], torch.zeros_like(z[..., 0])
        for d in range(z.shape[-1]):
            width = _width(before, self.df, d)
            parts.append(_log_density(z[..., d] / width, self.df + d) - torch.log(width))
            before = before + z[..., d].square()
        return torch.stack(parts, dim=-1) - torch.log(self.scale)


def _joint_quantile(u: Tensor, df: float) -> Tensor:
    """Standard Student-t variables that share their precision, (..., D), from uniform noise (..., D).

    Each, given those before it, is Student-t again, with one more degree of freedom for each of them, and the wider the
    further out they lie.
    """
    drawn: list[Tensor] = []
    before = torch.zeros_like(u[..., 0])
    for d in range(u.shape[-1]):
        t = _width(before, df, d) * student_t_quantile(u[..., d], df + d)
        drawn.append(t)
        before = before + t * t
    return torch.stack(drawn, dim=-1)


def _width(before: Tensor, df: float, count: int) -> Tensor:
    """The scale of a variable given `count` others with its precision, whose squares add up to `before`."""
    return torch.sqrt((df + before) / (df + count))


def _log_density(z: Tensor, df: float) -> Tensor:
    """Of the standard Student-t."""
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return constant - (df + 1) / 2 * torch.log1p(z * z / df)


@final
@dataclass(frozen=True, eq=False)
class PointPosterior(ThetaDistribution):
    """All mass at loc: the posterior of a classic spatial transformer. There is one sample, and the KL is 0.

    Args:
        loc: (..., D).

    Example:
        >>> PointPosterior(torch.zeros(8, 4)).rsample(10).shape
        torch.Size([1, 8, 4])
    """

    loc: Tensor

    def __post_init__(self) -> None:
        require_floating("loc", self.loc)
        require_finite("loc of the posterior", self.loc, _DIVERGED.format(head="mean"))
        object.__setattr__(self, "loc", self.loc.to(torch.promote_types(self.loc.dtype, torch.float32)))

    def rsample(
        self,
        samples: int = 1,
        method: SamplingMethod = "iid",
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return loc as the only sample, (1, ..., D): more copies of one point would change no average."""
        require_positive_int("samples", samples)
        require_choice("method", method, ("iid", "antithetic", "sobol"))
        return self.loc[None]

    def kl(self, alpha0: float = 1.0, beta0: float = 1.0) -> Tensor:
        """Zero, (..., D): there is no precision to compare with the prior's."""
        return torch.zeros_like(self.loc)

    def quantile(self, probability: float | Tensor) -> Tensor:
        """Return loc, (..., D), whatever the probability."""
        _checked_probability(probability, self.loc)
        return self.loc


def _checked_probability(probability: float | Tensor, loc: Tensor) -> Tensor:
    u = torch.as_tensor(probability, dtype=torch.float64, device=loc.device)
    if values_readable(u) and not bool(((u > 0) & (u < 1)).all()):
        raise ValueError(f"probability must lie between 0 and 1, got {probability}")
    return u


def _check_noise(noise: Any, samples: int, loc: Tensor) -> None:
    require_floating("noise", noise)
    require_positive_int("samples", samples)
    if noise.dim() != loc.dim() + 1 or noise.shape[1:] != loc.shape or noise.shape[0] < 1:
        raise ValueError(f"noise must have shape (S, {', '.join(map(str, loc.shape))}), got {tuple(noise.shape)}")
    if samples not in (1, noise.shape[0]):
        raise ValueError(f"samples must be left out or be the S of noise, {noise.shape[0]}, got {samples}")
    if values_readable(noise) and not bool(((noise >= 0) & (noise <= 1)).all()):
        raise ValueError("noise must lie in (0, 1)")


def _register_pytrees() -> None:
    """Let posteriors pass through torch.func, torch.compile and torch.export, which take containers apart."""
    from torch.utils._pytree import register_pytree_node

    def rebuild(cls: type[Any], fields: dict[str, Any]) -> Any:
        # Transforms rebuild containers around placeholders that are not tensors: __post_init__ must not look at them.
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    register_pytree_node(
        Posterior,
        lambda q: ([q.loc, q.beta], q.alpha),
        lambda leaves, alpha: rebuild(Posterior, dict(zip(("loc", "beta"), leaves, strict=True), alpha=alpha)),
        serialized_type_name="pstn.Posterior",
    )
    register_pytree_node(
        PointPosterior,
        lambda q: ([q.loc], None),
        lambda leaves, _: rebuild(PointPosterior, {"loc": next(iter(leaves))}),
        serialized_type_name="pstn.PointPosterior",
    )


_register_pytrees()
