"""Families made from another: with a gate for inputs that are fine as they are, or one posterior for all inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pstn._checks import require_finite_number, require_positive_number
from pstn.distributions.base import Mixed, PosteriorFamily, Prior, ThetaDistribution, even_log_weights, stratified
from pstn.distributions.mixture import Mixture, MixturePosterior
from pstn.distributions.student_t import StudentT
from pstn.transforms import Transform


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
        places = stratified(noise[0, ..., -1], samples)
        closed, rest = places < share, noise[..., :-1]
        chosen = torch.where(closed, logsigmoid(self.logit), logsigmoid(-self.logit))
        log_weights = chosen - chosen.detach() + even_log_weights(chosen)
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
        require_finite_number("log_density", self.log_density)
        if not 0 < require_finite_number("probability", self.probability) < 1:
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


_ALL = "all_"


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
        require_positive_number("shrink", self.shrink)

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
