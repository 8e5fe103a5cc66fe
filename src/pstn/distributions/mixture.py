"""Families made from another: with several modes, with a gate for inputs that are fine, or with one for all inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pstn import _checks
from pstn.distributions import base as bases
from pstn.distributions.base import Mixed, PosteriorFamily, Prior, ThetaDistribution, by_kind
from pstn.distributions.student_t import StudentT
from pstn.transforms import Transform

_EACH, _ALL = "each_", "all_"
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


@final
@dataclass(frozen=True, eq=False)
class MixturePosterior(Mixed):
    """Several distributions over theta, each with a weight.

    Samples are stratified: of S samples each component has its share, rounded up or down. Their weights are 1/S, and
    carry the gradient with respect to the probabilities of the components (by the score function, unbiased for any S).

    Args:
        log_weights: (..., K), logarithms of the components' weights, which add up to 1.
        components: K distributions in one, over theta (..., K, D).
        circular: for each parameter whether it is an angle; none when empty.

    Example:
        >>> normals = pstn.NormalPosterior(torch.tensor([[[-1.0], [1.0]]]), torch.full((1, 2, 1), 0.1))
        >>> q = MixturePosterior(torch.tensor([[0.25, 0.75]]).log(), normals)
        >>> q.mean, (q.rsample(8) > 0).float().mean()
        (tensor([[0.5000]]), tensor(0.7500))
    """

    log_weights: Tensor
    components: ThetaDistribution
    circular: tuple[bool, ...] = ()

    @property
    def noise_width(self) -> int:
        """What a component takes, and one more to pick it."""
        return self.components.noise_width + 1

    def weighted_from_noise(self, noise: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Samples (S, ..., D) and the logarithms of their weights, (S, ...): 1/S, with a gradient.

        Args:
            noise: (S, ..., W).
            places: (S, ...), where each sample lies between 0 and 1 on the weights laid end to end; evenly spaced
                places, moved by the last number of the first sample's noise, when None.
        """
        places = bases.stratified(noise[0, ..., -1], noise.shape[0]) if places is None else places
        ends = self.log_weights.exp().cumsum(-1)[..., :-1].movedim(-1, 0)
        choose = _chooser((places >= ends[:, None]).sum(0), self.log_weights.shape)
        log_weights = bases.even_log_weights(places)
        if torch.is_grad_enabled():
            chosen = choose(self.log_weights[..., None])[..., 0]
            log_weights = log_weights + chosen - chosen.detach()
        return self._chosen(choose).from_noise(noise[..., :-1]), log_weights

    def _chosen(self, choose: Callable[[Tensor], Tensor]) -> ThetaDistribution:
        """The component that each sample is drawn from: a distribution over theta (S, ..., D)."""
        chosen: ThetaDistribution = object.__new__(type(self.components))  # its tensors were checked already
        for field in fields(self.components):  # type: ignore[arg-type]  # every distribution is a dataclass
            value = getattr(self.components, field.name)
            own = isinstance(value, Tensor) and value.shape[:-1] == self.log_weights.shape
            object.__setattr__(chosen, field.name, choose(value) if own else value)
        return chosen

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of each parameter given those before it, (..., D): their sum is that of the joint density."""
        each = self.components.log_prob(theta[..., None, :]).cumsum(-1)
        joint = torch.logsumexp(self.log_weights[..., None] + each, dim=-2)
        return torch.diff(joint, prepend=torch.zeros_like(joint[..., :1]))

    def kl(self, prior: Prior | None = None) -> Tensor:
        """An upper bound of the KL from a prior, (..., D) or (..., 1).

        It is the weighted KL of the components, plus that of the weights from equal ones, in equal shares: the KL
        between the joint distributions of theta and its component, which is at least that of theta alone.
        """
        weights = self.log_weights.exp()
        each = (weights[..., None] * self.components.kl(prior)).sum(-2)
        unequal = (weights * (self.log_weights + math.log(weights.shape[-1]))).sum(-1, keepdim=True)
        return each + unequal / each.shape[-1]

    def modes(self) -> tuple[Tensor, Tensor]:
        """The modes of the components, (K, ..., D), and the logarithms of their weights, (K, ...)."""
        return self.components.mode.movedim(-2, 0), self.log_weights.movedim(-1, 0)

    @property
    def mean(self) -> Tensor:
        """The weighted mean, (..., D); of angles the direction of the mean."""
        return self.mean_of(self.components.mean, self.log_weights.exp())

    @property
    def mode(self) -> Tensor:
        """That mode of a component at which the density is highest, (..., D)."""
        centres = self.components.mode
        density = self.log_prob(centres.movedim(-2, 0)).sum(-1)
        at = density.argmax(0)[..., None, None].expand(*centres.shape[:-2], 1, centres.shape[-1])
        return centres.gather(-2, at)[..., 0, :]

    @property
    def shape(self) -> torch.Size:
        """(..., D)."""
        shape = self.components.shape
        return torch.Size((*shape[:-2], shape[-1]))

    @property
    def device(self) -> torch.device:
        """Of its tensors."""
        return self.log_weights.device


def _chooser(index: Tensor, batch: torch.Size) -> Callable[[Tensor], Tensor]:
    """A function that takes of values (..., K, n) those of each sample's component, (S, ..., n).

    Args:
        index: (S, ...), which component that is.
        batch: (..., K).
    """
    if torch.compiler.is_compiling():  # selections become one loop with the arithmetic on what is selected

        def select(values: Tensor) -> Tensor:
            chosen = values[..., 0, :].expand(*index.shape, -1)
            for k in range(1, batch[-1]):
                chosen = torch.where((index >= k)[..., None], values[..., k, :], chosen)
            return chosen

        return select
    first = torch.arange(0, batch.numel(), batch[-1], device=index.device).reshape(batch[:-1])
    rows = (index + first).flatten()
    return lambda values: values.flatten(0, -2).index_select(0, rows).reshape(*index.shape, -1)


@final
@dataclass(frozen=True)
class Mixture(PosteriorFamily):
    """The family of mixtures of k members of another family, with weights that are predicted for each input.

    The modes start apart: angles evenly around the circle from the transformation's start, other parameters `spread`
    away from it. Angles are predicted as a direction (cosine and sine), which has no end where a turn is complete.

    Args:
        k: how many.
        base: the family of each; it must have a head named "mean" that returns theta.
        spread: how far apart the modes start, in parameters that are no angles.

    Example:
        >>> family = Mixture(4, pstn.StudentT(alpha=2.0))
        >>> layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), size=(28, 28), posterior=family)
        >>> out = layer(torch.rand(2, 1, 28, 28), samples=10)
        >>> out.theta.shape, out.posterior.log_weights.shape
        (torch.Size([10, 2, 1]), torch.Size([2, 4]))
    """

    k: int
    base: PosteriorFamily = StudentT(alpha=2.0)
    spread: float = 0.1

    def __post_init__(self) -> None:
        _checks.require_positive_int("k", self.k)
        _checks.require_nonnegative_number("spread", self.spread)
        if not isinstance(self.base, PosteriorFamily) or isinstance(self.base, Mixture):
            raise TypeError(f"base must be a pstn.PosteriorFamily that is no mixture, got {self.base!r}")

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """The heads of the base, "each_" before their names and k times as wide, and "weights", (k,)."""
        starts = dict(self.base.starts(transform))
        if "mean" not in starts or starts["mean"].shape != (transform.dim,):
            raise ValueError(f"base must have a head 'mean' of {transform.dim} numbers, got {sorted(starts)}")
        mean = starts["mean"] + self._offsets(transform)
        each = {f"{_EACH}{name}": start.repeat(self.k) for name, start in starts.items()}
        return {**each, f"{_EACH}mean": _encode(mean, transform.circular).flatten(), "weights": torch.zeros(self.k)}

    def _offsets(self, transform: Transform) -> Tensor:
        """Where each mode starts, from where the transformation does: (k, D); the first at 0."""
        mode = torch.arange(self.k)[:, None]
        turn = 2 * math.pi / self.k * mode
        # Multiples of the golden angle come close to no point twice.
        offsets = self.spread * torch.sin(_GOLDEN_ANGLE * mode * torch.arange(1, transform.dim + 1))
        return by_kind(offsets, transform.circular, lambda part: bases.wrap_angle(turn).expand_as(part))

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The base's tensors."""
        return self.base.shared(transform)

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> MixturePosterior:
        """The mixture, with the softmax of "weights" as weights."""
        each = {
            name.removeprefix(_EACH): value.unflatten(-1, (self.k, -1))
            for name, value in numbers.items()
            if name.startswith(_EACH)
        }
        each["mean"] = _decode(each["mean"], transform.circular)
        components = self.base.build(transform, {**numbers, **each})
        if components.weighted:
            raise TypeError(f"base must be a family of one mode and without a gate, got {self.base!r}")
        return MixturePosterior(numbers["weights"].log_softmax(-1), components, transform.circular)


def _encode(theta: Tensor, circular: tuple[bool, ...]) -> Tensor:
    """Theta (..., D) with the cosine of each angle in its place, and the sines at the end."""
    angles = [theta[..., d] for d, angle in enumerate(circular) if angle]
    cosines = by_kind(theta, circular, torch.cos)
    return torch.cat([cosines, *(angle.sin()[..., None] for angle in angles)], dim=-1)


def _decode(numbers: Tensor, circular: tuple[bool, ...]) -> Tensor:
    """The inverse of `_encode`; (cosine, sine) need not have length 1."""
    dim = len(circular)
    if not any(circular):
        return numbers
    sines = iter(numbers[..., dim:].unbind(-1))
    columns = zip(numbers[..., :dim].unbind(-1), circular, strict=True)
    return torch.stack([torch.atan2(next(sines), column) if angle else column for column, angle in columns], dim=-1)


@final
@dataclass(frozen=True, eq=False)
class GatedPosterior(Mixed):
    """A posterior, or else the identity, with the probability that an input is to be left alone.

    Samples, modes, the mean and intervals are gated. `log_prob` and `kl` are those of `base`: the identity alone has a
    probability, not a density.

    Args:
        base: the posterior without the gate, over theta (..., D).
        logit: (...), log-odds of leaving the input as it is.
        identity: (D,), the theta that does so.
        circular: for each parameter whether it is an angle; none when empty.

    Example:
        >>> base = pstn.NormalPosterior(torch.ones(2, 1), torch.full((2, 1), 0.1))
        >>> GatedPosterior(base, torch.tensor([-20.0, 20.0]), torch.zeros(1)).mode
        tensor([[1.],
                [0.]])
    """

    base: ThetaDistribution
    logit: Tensor
    identity: Tensor
    circular: tuple[bool, ...] = ()

    @property
    def noise_width(self) -> int:
        """What the base takes, and one more for the gate."""
        return self.base.noise_width + 1

    def weighted_from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (S, ..., D) and the logarithms of their weights, (S, ...), with a gradient to both parts."""
        samples, share = noise.shape[0], self.logit.sigmoid()
        places = bases.stratified(noise[0, ..., -1], samples)
        closed, rest = places < share, noise[..., :-1]
        chosen = torch.where(closed, logsigmoid(self.logit), logsigmoid(-self.logit))
        log_weights = chosen - chosen.detach() + bases.even_log_weights(chosen)
        if isinstance(self.base, MixturePosterior):
            # The samples that are left are spread over its modes as they would be without a gate.
            left = (places - share) / (1 - share).clamp_min(torch.finfo(share.dtype).eps)
            theta, of_modes = self.base.weighted_from_noise(rest, left)
            log_weights = torch.where(closed, log_weights, log_weights + of_modes - of_modes.detach())
        else:
            theta = self.base.from_noise(rest)
        return torch.where(closed[..., None], self.identity, theta), log_weights

    def log_prob(self, theta: Tensor) -> Tensor:
        """That of the base, (..., D)."""
        return self.base.log_prob(theta)

    def kl(self, prior: Prior | None = None) -> Tensor:
        """That of the base."""
        return self.base.kl(prior)

    def modes(self) -> tuple[Tensor, Tensor]:
        """The identity and the base's modes, (K + 1, ..., D), and the logarithms of their weights."""
        theta, log_weights = self.base.modes()
        log_weights = torch.cat([logsigmoid(self.logit)[None], log_weights + logsigmoid(-self.logit)])
        return torch.cat([self.identity.expand_as(theta[:1]), theta]), log_weights

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the identity and the base's mean, (..., D); of angles the direction of the mean."""
        share, mean = self.logit.sigmoid(), self.base.mean
        means = torch.stack([self.identity.expand_as(mean), mean], -2)
        return self.mean_of(means, torch.stack([share, 1 - share], -1))

    @property
    def mode(self) -> Tensor:
        """The identity where that is the more probable, else the base's mode, (..., D)."""
        return torch.where((self.logit > 0)[..., None], self.identity, self.base.mode)

    @property
    def shape(self) -> torch.Size:
        """(..., D)."""
        return self.base.shape

    @property
    def device(self) -> torch.device:
        """Of its tensors."""
        return self.logit.device


@final
@dataclass(frozen=True)
class Gated(PosteriorFamily):
    r"""A family whose members leave an input alone where it is probably fine as it is.

    A posterior q that was taught under random poses of density u has not heard that many inputs need no transformation
    at all. If a share g of them does not, Bayes' rule gives the probability that this input is one:
    r = g q(identity | x) / (g q(identity | x) + (1 - g) u). The gate needs no training of its own.

    Args:
        base: the family of the posterior.
        probability: g, between 0 and 1.
        log_density: log u, of the poses that the localizer was taught, at the identity: -log(2 pi) for any angle.

    Example:
        >>> family = Gated(pstn.Mixture(4), log_density=-math.log(2 * math.pi))
        >>> layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), posterior=family)
        >>> layer.localize(torch.rand(2, 1, 8, 8)).modes()[0].shape
        torch.Size([5, 2, 1])
    """

    base: PosteriorFamily = Mixture(4)
    probability: float = 0.5
    log_density: float = 0.0

    def __post_init__(self) -> None:
        _checks.require_finite_number("log_density", self.log_density)
        if not 0 < _checks.require_finite_number("probability", self.probability) < 1:
            raise ValueError(f"probability must lie between 0 and 1, got {self.probability}")
        if not isinstance(self.base, PosteriorFamily) or isinstance(self.base, Gated):
            raise TypeError(f"base must be a pstn.PosteriorFamily without a gate, got {self.base!r}")

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """The heads of the base."""
        return self.base.starts(transform)

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The identity, (D,), and the base's tensors."""
        return {**self.base.shared(transform), "identity": transform.identity()}

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> GatedPosterior:
        """The base's distribution with its gate."""
        base = self.base.build(transform, numbers)
        odds = math.log(self.probability) - math.log1p(-self.probability) - self.log_density
        logit = base.log_prob(numbers["identity"].expand(base.shape)).sum(-1) + odds
        return GatedPosterior(base, logit, numbers["identity"], transform.circular)


def _start_of_all(base: PosteriorFamily, transform: Transform) -> dict[str, Tensor]:
    """What `base` predicts for an input, as parameters that all inputs share, beside its own shared tensors."""
    starts = {f"{_ALL}{name}": nn.Parameter(start.clone()) for name, start in base.starts(transform).items()}
    return {**base.shared(transform), **starts}


def _of_all(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_ALL): value for name, value in numbers.items() if name.startswith(_ALL)}


@final
@dataclass(frozen=True)
class Global(PosteriorFamily):
    """One posterior for all inputs, learned directly: augmentation that is learned, but not per input.

    The localizer is not asked.

    Args:
        base: the family that it is of.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), posterior=Global(pstn.StudentT()))
        >>> layer.localize(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 4])
    """

    base: PosteriorFamily = StudentT()

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """One head without numbers, which tells of the batch's size."""
        return {"batch": torch.empty(0)}

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """What the heads of the base would predict, and the base's shared tensors."""
        return _start_of_all(self.base, transform)

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> ThetaDistribution:
        """The base's distribution, the same for each input."""
        batch = numbers["batch"].shape[:-1]
        own = {name: value.expand(*batch, -1) for name, value in _of_all(numbers).items()}
        return self.base.build(transform, {**numbers, **own})


@final
@dataclass(frozen=True)
class Hierarchical(PosteriorFamily):
    """A posterior that all inputs share, plus a part of each input's own that is held small.

    What the heads of `base` predict is the shared start, which is learned, plus `shrink` times what the localizer says
    of this input. With few examples a localizer learns to memorise them; the smaller `shrink`, the less.

    Args:
        base: the family that it is of.
        shrink: what the part of an input is multiplied with, above 0.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), posterior=Hierarchical(shrink=0.1))
        >>> layer.localize(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 4])
    """

    base: PosteriorFamily = StudentT()
    shrink: float = 0.1

    def __post_init__(self) -> None:
        _checks.require_positive_number("shrink", self.shrink)

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """The heads of the base, at 0."""
        return {name: torch.zeros_like(start) for name, start in self.base.starts(transform).items()}

    def shared(self, transform: Transform) -> Mapping[str, Tensor]:
        """The shared part, and the base's shared tensors."""
        return _start_of_all(self.base, transform)

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> ThetaDistribution:
        """The base's distribution at the sum of the two parts."""
        own = {name: value + self.shrink * numbers[name] for name, value in _of_all(numbers).items()}
        return self.base.build(transform, {**numbers, **own})
