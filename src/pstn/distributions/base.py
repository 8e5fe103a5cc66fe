"""What a distribution over theta is, what makes one from a localizer's features; priors; and angles."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, product
from typing import Any, ClassVar, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from pstn import _checks
from pstn.noise import SAMPLING_METHODS, Samples, SamplingMethod, draw_noise
from pstn.transforms import Transform

__all__ = ["GammaPrior", "NoPrior", "NormalPrior", "PosteriorFamily", "Prior", "Region", "ThetaDistribution"]

DIVERGED = "the {head} head diverged, or the localizer before it; lower the localizer's learning rate"
# Fields annotated with one of these are constants of the program; all others hold tensors, or containers of them.
_CONSTANT = {"bool", "int", "float", "str", "tuple[bool, ...]"}

_PERIOD = 2 * math.pi
# How many turns to either side a density on the circle adds up; what lies beyond them is spread evenly.
TURNS = (-2, -1, 0, 1, 2)
REACH = (len(TURNS) / 2) * _PERIOD


def _register_dataclass(cls: type[Any]) -> None:
    """Register a class that will be a dataclass: fields with an annotation of `_CONSTANT` are constants.

    torch's own function of this name wants the fields now, and a class that is still being made has none yet.
    """

    def is_constant(field: dataclasses.Field[Any]) -> bool:
        return getattr(field.type, "__name__", field.type) in _CONSTANT

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        parts: tuple[list[Any], list[Any]] = ([], [])
        for f in dataclasses.fields(value):
            parts[is_constant(f)].append(getattr(value, f.name))
        return parts[0], tuple(parts[1])

    def rebuild(leaves: Any, constants: Any) -> Any:
        # Transforms rebuild containers around placeholders that are not tensors: __post_init__ must not see them.
        made, parts = object.__new__(cls), (iter(leaves), iter(constants))
        for f in dataclasses.fields(cls):
            object.__setattr__(made, f.name, next(parts[is_constant(f)]))
        return made

    _pytree.register_pytree_node(
        cls,
        flatten,
        rebuild,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
    )


class ThetaDistribution(ABC):
    """A distribution over theta, (..., D): what a localizer predicts, one for each input.

    A subclass is a frozen dataclass (`@dataclass(frozen=True, eq=False)`) whose fields are tensors, apart from those
    annotated as bool, int, float, str or tuple[bool, ...], which are constants. It then passes through `torch.func`,
    `torch.compile` and `torch.export` without further work. Samples are a function of uniform noise (`from_noise`):
    that is how they can be drawn in chunks, in a population of models, in several processes and in an exported program.

    Example:
        >>> q = pstn.NormalPosterior(torch.zeros(8, 4), torch.full((8, 4), 0.1))
        >>> isinstance(q, pstn.ThetaDistribution), q.shape
        (True, torch.Size([8, 4]))
    """

    weighted: ClassVar[bool] = False
    """Whether samples have weights of their own: `weighted_from_noise` returns them, and `modes` more than one."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register_dataclass(cls)

    @property
    @abstractmethod
    def noise_width(self) -> int:
        """W, how many uniform numbers one sample takes; 0 if there is nothing to sample."""

    @abstractmethod
    def from_noise(self, noise: Tensor) -> Tensor:
        """Samples (S, ..., D) from uniform noise (S, ..., W) in (0, 1), with gradients to the parameters."""

    @abstractmethod
    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density at theta (..., D), one number per parameter, (..., D): their sum is the joint density's."""

    @abstractmethod
    def kl(self, prior: Prior | None = None) -> Tensor:
        """The divergence from a prior, (..., D), or (..., 1) if it is not by parameter; from its own prior when None.

        Trainers average it over parameters and inputs.
        """

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean, (..., D)."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """Where the density is highest, (..., D): the one theta to use where there is to be only one."""

    @abstractmethod
    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """An interval that holds each parameter with probability `level`: lower and upper ends, each (..., D)."""

    def weighted_from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Samples (S, ..., D) as `from_noise` returns them, and the logarithm of each one's weight, (S, ...).

        None, the default, is a weight of 1/S each. A distribution that picks one of several components gives weights
        whose gradient reaches the probabilities of the components, which the samples themselves do not.
        """
        return self.from_noise(noise), None

    def modes(self) -> tuple[Tensor, Tensor]:
        """The centre of each component, (K, ..., D), and the logarithms of their weights, (K, ...); one of weight 1."""
        return self.mode[None], torch.zeros_like(self.mode[None, ..., 0])

    @property
    def shape(self) -> torch.Size:
        """(..., D)."""
        return self.mode.shape

    @property
    def device(self) -> torch.device:
        """Of its tensors."""
        return self.mode.device

    @final
    def region(self, level: float = 0.9) -> Region:
        """The set of the highest joint density that holds theta with probability `level`; with several modes, in parts.

        Estimated from 1,000 samples of a fixed Sobol sequence, so it is the same at every call.

        Example:
            >>> q = pstn.NormalPosterior(torch.zeros(8, 4), torch.ones(8, 4))
            >>> 0.89 < q.region(0.9).inside.float().mean() < 0.91
            tensor(True)
        """
        require_level(level)
        noise = _region_noise(self.noise_width).to(self.device)
        noise = noise.reshape(len(noise), *[1] * (len(self.shape) - 1), self.noise_width)
        theta = self.from_noise(noise.expand(-1, *self.shape[:-1], -1))
        density = self.log_prob(theta).sum(-1)
        rank = max(1, round((1 - level) * (len(density) + 1)))
        threshold = density.kthvalue(min(rank, len(density)), dim=0).values
        return Region(threshold, theta, density >= threshold)

    @final
    def contains(self, theta: Tensor, level: float = 0.9) -> Tensor:
        """Whether the region of this level holds theta (..., D): (...).

        Example:
            >>> q = pstn.NormalPosterior(torch.zeros(2, 4), torch.ones(2, 4))
            >>> q.contains(torch.tensor([[0.0] * 4, [3.0] * 4]), 0.9)
            tensor([ True, False])
        """
        return self.log_prob(theta).sum(-1) >= self.region(level).log_density

    @final
    def rsample(
        self, samples: int = 1, method: SamplingMethod = "iid", *, generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Draw theta with gradients to the distribution's parameters.

        Args:
            samples: S, at least 1. A distribution without noise has one sample to give, whatever S is.
            method: "iid", "antithetic" or "sobol".
            generator: where the randomness comes from; torch's global generator when not given.
            noise: uniform noise (S, ..., W) in (0, 1) to use instead of drawing any, which then says what S is.

        Returns:
            (S, ..., D).
        """
        return self.weighted_sample(samples, method, generator=generator, noise=noise)[0]

    @final
    def weighted_sample(
        self, samples: Samples = 1, method: SamplingMethod = "iid", *, generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draw theta as `rsample` does, (S, ..., D), with the logarithms of the samples' weights, (S, ...).

        Args:
            samples: S, or "modes" for the centre of each component with its weight, without any noise.
            method: as for `rsample`.
            generator: likewise.
            noise: likewise.
        """
        if samples == "modes":
            return self.modes()
        _checks.require_positive_int("samples", samples)
        _checks.require_choice("method", method, SAMPLING_METHODS)
        shape = (*self.shape[:-1], self.noise_width)
        device = self.device
        if shape[-1] == 0:
            noise = torch.empty(1, *shape, device=device)
        elif noise is None:
            noise = draw_noise(samples, shape, method=method, generator=generator, device=device)
        else:
            _checks.require_floating("noise", noise)
            if noise.dim() != len(shape) + 1 or noise.shape[1:] != torch.Size(shape) or noise.shape[0] < 1:
                raise ValueError(f"noise must have shape (S, {', '.join(map(str, shape))}), got {tuple(noise.shape)}")
            if samples not in (1, noise.shape[0]):
                raise ValueError(f"samples must be left out or be the S of noise, {noise.shape[0]}, got {samples}")
            if _checks.can_inspect_values(noise) and not bool(((noise >= 0) & (noise <= 1)).all()):
                raise ValueError("noise must lie in (0, 1)")
        theta, log_weights = self.weighted_from_noise(noise)
        return theta, even_log_weights(theta[..., 0]) if log_weights is None else log_weights


class Located(ThetaDistribution):
    """A distribution that is symmetric about `loc`, with one number of noise for each parameter."""

    loc: Tensor
    circular: tuple[bool, ...]

    @property
    def shape(self) -> torch.Size:
        """(..., D)."""
        return self.loc.shape

    @property
    def device(self) -> torch.device:
        """Of its tensors."""
        return self.loc.device

    @property
    def noise_width(self) -> int:
        """D."""
        return self.loc.shape[-1]

    @property
    def mode(self) -> Tensor:
        """Loc, (..., D), its angles within [-pi, pi]."""
        return wrap(self.loc, self.circular)

    @property
    def mean(self) -> Tensor:
        """The mode, (..., D), where there is a mean."""
        return self.mode

    def _check(self, spread: str) -> None:
        """Check location and spread, and keep them in float32 at least: half precision has too few bits.

        Args:
            spread: the name of its field, (..., D) or (..., 1), above 0.
        """
        loc, value = self.loc, getattr(self, spread)
        _checks.require_floating("loc", loc)
        _checks.require_floating(spread, value)
        if loc.dim() < 1 or value.shape not in (loc.shape, torch.Size((*loc.shape[:-1], 1))):
            found = f"{tuple(loc.shape)} and {tuple(value.shape)}"
            raise ValueError(f"loc and {spread} must have one shape (..., D), or {spread} (..., 1), got {found}")
        # One sum that is finite just when every value is good: on a GPU each look at a value stalls.
        if _checks.can_inspect_values(loc, value) and not math.isfinite((loc.sum() + value.log().sum()).item()):
            _checks.require_finite("loc of the posterior", loc, DIVERGED.format(head="mean"))
            _checks.require_finite(f"{spread} of the posterior", value, DIVERGED.format(head="variance"))
            if not bool((value > 0).all()):
                raise ValueError(f"{spread} must be above 0 everywhere, got a minimum of {float(value.min()):g}")
        for name in ("loc", spread):
            object.__setattr__(self, name, at_least_float32(getattr(self, name)))

    @abstractmethod
    def quantile(self, probability: float | Tensor) -> Tensor:
        """The value that each parameter stays below with this probability, (..., D).

        Args:
            probability: in (0, 1), a number or a tensor that broadcasts with (..., D); read no closer than 2**-24 to
                either end.
        """

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds each parameter with probability `level`, each end (..., D).

        An angle's lies around its mode within [-pi, pi], ends at most half a turn away, and may so reach beyond.
        """
        low, high = map(self.quantile, require_level(level))
        if not any(self.circular):
            return low, high
        half = by_kind((high - low) / 2, self.circular, lambda angle: angle.clamp(max=math.pi))
        return self.mode - half, self.mode + half


class Mixed(ThetaDistribution):
    """A distribution that picks one of several components for each sample, by a number of noise of its own."""

    weighted = True
    circular: tuple[bool, ...]

    def from_noise(self, noise: Tensor) -> Tensor:
        """Samples (S, ..., D) from noise (S, ..., W): the last number of the first sample picks the components."""
        return self.weighted_from_noise(noise)[0]

    def mean_of(self, means: Tensor, weights: Tensor) -> Tensor:
        """The mean of components (..., K, D) by weights (..., K): (..., D), of angles the direction of the mean."""
        weights = weights[..., None]

        def direction(line: Tensor, angles: Tensor) -> Tensor:
            return torch.atan2((weights * angles.sin()).sum(-2), (weights * angles.cos()).sum(-2))

        return by_kind((weights * means).sum(-2), self.circular, direction, means)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval of each parameter, each end (..., D), from 1,000 samples; of angles around the mean.

        With modes far apart most of it may be empty: `region` and `contains` are for that.
        """
        lower, upper = require_level(level)
        theta, mean = self.region(level).theta, self.mean
        around = by_kind(torch.zeros_like(mean), self.circular, lambda zero, mean: mean, mean)
        difference = wrap(theta - around, self.circular).sort(dim=0).values
        low, high = (difference[min(round(end * len(theta)), len(theta) - 1)] for end in (lower, upper))
        return around + low, around + high


class Region(NamedTuple):
    """Where a distribution over theta has the highest density."""

    log_density: Tensor
    """(...), the joint log-density at its edge: the region is where it is at least this."""
    theta: Tensor
    """(S, ..., D), samples of the distribution."""
    inside: Tensor
    """(S, ...), which of them lie in the region."""


@lru_cache(maxsize=8)
def _region_noise(width: int) -> Tensor:
    # Outside a caller's inference mode or default device: the tensor is kept.
    with torch.inference_mode(False), torch.device("cpu"):
        if width == 0:
            return torch.empty(1, 0)
        return draw_noise(1000, (width,), method="sobol", generator=torch.Generator().manual_seed(0))


class PosteriorFamily(ABC):
    """Turns what a localizer's heads return into a distribution over theta.

    A family says which numbers it needs: those that a head predicts for each input (`starts`), and those that are
    the same for all inputs (`shared`), such as the parameters of a learned prior. `build` then makes the distribution.
    A family is a frozen dataclass of plain values; one with networks of its own is an `nn.Module`.

    Example:
        >>> family = pstn.StudentT(alpha=2.0)
        >>> {name: tuple(start.shape) for name, start in family.starts(pstn.Similarity()).items()}
        {'mean': (4,), 'variance': (4,)}
    """

    @abstractmethod
    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """For each head, by name, where its output starts, (n,): this also says how many numbers it returns.

        A head of no numbers tells the family of the batch's size; with no others the localizer is not asked.
        """

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """Tensors that all inputs have in common, by name; none unless overridden.

        An `nn.Parameter` is learned from there on; any other tensor is a constant that moves with the model.
        """
        return {}

    @abstractmethod
    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> ThetaDistribution:
        """The distribution.

        Args:
            transform: the family of transformations.
            numbers: by name, what each head returned, (..., n), and the shared tensors. Within a `Mixture` it is
                (B, K, n), for K components.
        """


class PriorFamily(PosteriorFamily):
    """A family with a field `prior`, whose tensors stand among its own under names that begin with "prior_"."""

    prior: Prior

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The prior's tensors."""
        return {f"prior_{name}": start for name, start in self.prior.shared(transform).items()}

    def built_prior(self, transform: Transform, numbers: Mapping[str, Tensor]) -> Prior:
        """The prior from among the family's numbers."""
        own = {name.removeprefix("prior_"): value for name, value in numbers.items() if name.startswith("prior_")}
        return self.prior.build(transform, own)


class Prior(ABC):
    """What the KL term pulls a posterior towards.

    A subclass is a frozen dataclass as a `ThetaDistribution` is. One with learned parameters names them in `shared`,
    and `build` returns the prior with their present values.

    Example:
        >>> pstn.NormalPrior(torch.zeros(4), 0.5).kl(pstn.NormalPosterior(torch.zeros(4), torch.full((4,), 0.5)))
        tensor([0., 0., 0., 0.])
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register_dataclass(cls)

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """Tensors of the prior, by name, as in `PosteriorFamily.shared`; none unless overridden."""
        return {}

    def build(self, transform: Transform, shared: Mapping[str, Tensor]) -> Prior:
        """The prior for a family of transformations, with the present values of what `shared` named."""
        return self

    @abstractmethod
    def kl(self, q: ThetaDistribution) -> Tensor:
        """KL(q || this prior), (..., D), or (..., 1) if it is not by parameter."""


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
            object.__setattr__(self, name, _checks.require_positive_number(name, getattr(self, name)))

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
        _checks.require_bool("learned", self.learned)
        if self.loc is not None and not isinstance(self.loc, Tensor):
            object.__setattr__(self, "loc", _number(_checks.require_finite_number("loc", self.loc)))
        if not isinstance(self.scale, Tensor):
            object.__setattr__(self, "scale", _number(_checks.require_positive_number("scale", self.scale)))

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The mean and the log of the scale, (D,) each, learned or not."""
        loc = transform.initial() if self.loc is None else self.loc
        scale = self.scale
        assert isinstance(loc, Tensor)
        assert isinstance(scale, Tensor)
        if _checks.can_inspect_values(scale) and not bool((scale > 0).all()):
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


def chosen_prior(prior: Prior | None, alpha0: float | None, beta0: float | None) -> Prior | None:
    """The prior that is given, or for which `alpha0` and `beta0` are short, each 1 where only the other is given."""
    if alpha0 is None and beta0 is None:
        return prior
    if prior is not None:
        raise ValueError("prior must be left out where alpha0 or beta0 is given, got both")
    return GammaPrior(1.0 if alpha0 is None else alpha0, 1.0 if beta0 is None else beta0)


def stratified(u: Tensor, samples: int) -> Tensor:
    """S numbers in (0, 1), one in each S-th part of it, moved together by one uniform number: (...) -> (S, ...).

    Antithetic pairs are half the samples apart: they get neighbouring parts, so that both mostly fall on one side of
    any threshold.
    """
    half = (samples + 1) // 2
    order = torch.arange(2 * half, device=u.device, dtype=u.dtype).reshape(half, 2).T.flatten()[:samples]
    return (order.reshape(-1, *[1] * u.dim()) + u) / samples


def even_log_weights(like: Tensor) -> Tensor:
    """The logarithm of 1/S for each of S samples, (S, ...), in float32 at least."""
    # S as a tensor's value: a Python logarithm of it would fix S when a model is exported.
    dtype = torch.promote_types(like.dtype, torch.float32)
    return -(torch.ones_like(like, dtype=dtype) * like.shape[0]).log()


def at_least_float32(value: Tensor) -> Tensor:
    """`value` in float32, or in float64 if it is that already."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def require_level(level: float) -> tuple[float, float]:
    """The two probabilities between which the central `level` of a distribution lies."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return (1 - level) / 2, (1 + level) / 2


def checked_probability(probability: float | Tensor, loc: Tensor) -> Tensor:
    """A probability, or a tensor of them, in float64 on the device of `loc`; all must lie inside (0, 1)."""
    u = torch.as_tensor(probability, dtype=torch.float64, device=loc.device)
    if _checks.can_inspect_values(u) and not bool(((u > 0) & (u < 1)).all()):
        raise ValueError(f"probability must lie between 0 and 1, got {probability}")
    return u


def wrap_angle(angle: Tensor) -> Tensor:
    """`angle` moved by whole turns to within [-pi, pi], unchanged where it lies there.

    Example:
        >>> wrap_angle(torch.tensor([0.5, 3.5]))
        tensor([ 0.5000, -2.7832])
    """
    # The number of turns has no gradient: backward passes are spared the zeros.
    return angle - _PERIOD * torch.round(angle.detach() / _PERIOD)


def by_kind(theta: Tensor, circular: tuple[bool, ...], on_circle: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """`theta` (..., D) with `on_circle(part, *parts of others)` in place of those parameters that are angles.

    Slices instead of a mask: a mask would be copied to the device at each call.
    """
    if not any(circular):
        return theta
    parts, at = [], 0
    for angle, run in groupby(circular):
        end = at + len(list(run))
        part = theta[..., at:end]
        parts.append(on_circle(part, *(other[..., at:end] for other in others)) if angle else part)
        at = end
    return torch.cat(parts, dim=-1)


def wrap(theta: Tensor, circular: tuple[bool, ...]) -> Tensor:
    """Theta (..., D) with its angles within [-pi, pi]."""
    return by_kind(theta, circular, wrap_angle)


def turns(circular: tuple[bool, ...], like: Tensor) -> Tensor:
    """Every combination of whole turns of the angles, (combinations, D), in radians; the first is none."""
    choices = [sorted(TURNS, key=abs) if angle else [0] for angle in circular]
    return _PERIOD * torch.tensor(list(product(*choices)), dtype=like.dtype, device=like.device)


def sum_over_turns(log_density: Callable[[Tensor], Tensor], difference: Tensor, tail: Tensor) -> Tensor:
    """The log-density on the circle of a variable on the line.

    Args:
        log_density: of the difference from the centre, on the line, elementwise.
        difference: from the centre, (..., n).
        tail: (..., n), the density on the circle of what lies further out than `REACH`.
    """
    nearest = wrap_angle(difference)
    near = torch.stack([log_density(nearest + _PERIOD * turn) for turn in TURNS])
    return torch.logaddexp(torch.logsumexp(near, dim=0), torch.log(tail.clamp_min(1e-30)))
