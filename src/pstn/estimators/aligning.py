"""Alignment of series in time: each gets a smooth warp, with a distribution over it, under which classes look alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pstn import _checks
from pstn.data.augment import RandomTransform, make_random_transform
from pstn.data.split import fit_scaling
from pstn.distributions import Normal, NormalPrior, Point, ThetaDistribution
from pstn.distributions.base import require_level
from pstn.estimators.arrays import ArrayEstimator, Warping, draw_seed, parameter_too
from pstn.nn import SpatialTransformer
from pstn.nn.classifier import TransformerModel
from pstn.nn.networks import GlobalLocalizer, PoseLocalizer
from pstn.noise import draw_noise
from pstn.objective import Loss
from pstn.training import one_cycle
from pstn.training.fit import fit
from pstn.training.population.trainer import make_device
from pstn.transforms import CPAB, SmoothPrior, Transform, make_transform
from pstn.transforms.coordinates import base_grid
from pstn.warping import warp

__all__ = ["ClassAverages", "SeriesAligner", "Warps"]

# The localizer reads longer series averaged down to this length.
_LOCALIZER_LENGTH = 128
# Series that a step takes at once, and the numbers in those of a prediction, each of which takes CPAB some tens more.
_BATCH, _VALUES = 256, 1 << 19
# Before softplus: samples of a posterior that has learned nothing are near its mean. One that is taught starts wide.
_VAR_INIT = -5.0
# How sure the nearest average is of its class, per variance; and the least variance that is divided by.
_SHARPNESS, _TINY = 2.0, 1e-6
# The standard deviation of velocity gradients in the smoothness prior, and how far they are correlated.
_SCALE, _LENGTH = 0.5, 0.1
# Warps of each training series, for bands.
_BAND_SAMPLES = 32


class Warps(NamedTuple):
    """Which time step of a series each step of its aligned version reads."""

    mode: NDArray[np.float32]
    """(N, L), under the most probable warp."""
    low: NDArray[np.float32]
    """(N, L), the lower end of the interval."""
    high: NDArray[np.float32]
    """(N, L), the upper end."""


class ClassAverages(NamedTuple):
    """The average series of each class in warped time."""

    classes: NDArray[Any]
    """(K,), the labels."""
    mean: NDArray[np.float32]
    """(K, ...), of the aligned training series, each in the shape of one."""
    low: NDArray[np.float32]
    """(K, ...), the lower end of the band."""
    high: NDArray[np.float32]
    """(K, ...), the upper end."""


@final
class SmoothCPAB(Transform):
    """CPAB by whitened parameters: under its smoothness prior they are independent and standard normal.

    Args:
        cpab: the family.
        scale: of `pstn.SmoothPrior`.
        length: of `pstn.SmoothPrior`.

    Example:
        >>> family = SmoothCPAB(pstn.CPAB(tess=16))
        >>> family.dim, bool(family.identity().any())
        (15, False)
    """

    factor: Tensor

    def __init__(self, cpab: CPAB, scale: float = _SCALE, length: float = _LENGTH) -> None:
        super().__init__()
        self.cpab, self.ndim, self.dim = cpab, cpab.ndim, cpab.dim
        self.names = cpab.names
        self.register_buffer("factor", SmoothPrior(cpab, scale, length).factor)

    def initial(self) -> Tensor:
        """The identity, (D,)."""
        return torch.zeros(self.dim)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse map, -theta, (..., D)."""
        return -self._checked_theta(theta)

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        return self.cpab._map(theta @ self.factor.to(theta), points, aspect)

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        return self._map(-theta, points, aspect)


class Alignment(NamedTuple):
    """What an `AligningModel` returns."""

    warped: Tensor
    """(S, B, C, L)."""
    theta: Tensor
    """(passes, S, B, D)."""
    posterior: ThetaDistribution
    """Over theta of the last pass."""
    posteriors: tuple[ThetaDistribution, ...]
    """Of all passes."""


@final
class AligningModel(TransformerModel):
    """A layer that looks, warps by the most probable theta and looks again; the last pass is sampled.

    The input is interpolated once: the warps of all passes are composed.

    Args:
        layer: for series (B, C, L).
        passes: how often it looks.
        augment: how strongly series are warped at random in training, in standard deviations of the prior.
    """

    def __init__(self, layer: SpatialTransformer, passes: int = 1, augment: float = 0.0) -> None:
        super().__init__()
        self.layer, self.passes, self.augment = layer, passes, augment

    def points(self, theta: Tensor, points: Tensor | int, *, inverse: bool = False) -> Tensor:
        """Where aligned points are in the series: theta (passes, ..., D), points (..., N, 1) -> (..., N, 1).

        Args:
            theta: of all passes.
            points: in [-1, 1]; a number for those of a series of that length.
            inverse: the other way, from the series to the aligned points.
        """
        family = self.layer.transform
        points = base_grid((points,), device=theta.device) if isinstance(points, int) else points
        for one in theta if inverse else theta.flip(0):
            points = (family.apply_inverse if inverse else family.apply)(one, points)
        return points

    def forward(
        self, x: Tensor, samples: int | None = None, *, noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Alignment:  # fmt: skip
        """(B, C, L) -> the series under S samples of their warps."""
        if self.training and self.augment:
            family = self.layer.transform
            scale = self.augment * prior_scale(family)
            theta = family.initial().to(x) + scale * torch.randn(len(x), family.dim, device=x.device)
            x = warp(x, family.grid(theta, x.shape[-1]), padding_mode="border")
        thetas, posteriors, seen = list[Tensor](), list[ThetaDistribution](), x
        for number in range(self.passes):
            posterior = self.layer.localize(seen)
            posteriors.append(posterior)
            if number + 1 < self.passes:
                thetas.append(posterior.mode)
                seen = warp(x, self.points(torch.stack(thetas), x.shape[-1]), padding_mode="border")
        drawn = posteriors[-1].rsample(samples or self.samples, noise=noise, generator=generator)
        theta = torch.stack([*(one.expand_as(drawn) for one in thetas), drawn])
        warped = warp(x, self.points(theta, x.shape[-1]), padding_mode="border")
        return Alignment(warped, theta, posteriors[-1], tuple(posteriors))


def prior_scale(family: Transform) -> float:
    """The standard deviation of each parameter in the prior."""
    return 1.0 if isinstance(family, SmoothCPAB) else 0.2


@final
class AligningLoss:
    """How much the series of a class differ once they are warped, over a batch and its samples.

    The variance within classes alone would be least for warps that stretch a flat part of each series over all of it.
    Its share of the whole variance is not: what flattens a series lowers both.

    Args:
        classes: K.
        objective: "share" of the variance within classes in the whole, or that "variance" itself.
        separation: the weight of the cross-entropy of classification by the nearest average.
    """

    def __init__(self, classes: int, objective: str = "share", separation: float = 0.0) -> None:
        self.classes, self.objective, self.separation = classes, objective, separation

    def __call__(self, output: Alignment, y: Tensor, kl_weight: float) -> Loss:
        """The loss of a batch.

        Args:
            output: of an `AligningModel`.
            y: (B,), classes.
            kl_weight: of the KL from the prior.
        """
        flat = output.warped.flatten(2)  # (S, B, C L)
        samples, members = len(flat), F.one_hot(y, self.classes).to(flat)
        counts = members.sum(0)
        means = torch.einsum("bk,sbf->kf", members, flat) / (samples * counts.clamp_min(1))[:, None]
        # A class of n series has n - 1 degrees of freedom, as in any estimate of a variance.
        free = (counts - 1).clamp_min(0).sum().clamp_min(1)
        within = (flat - means[y]).square().sum() / (samples * free * flat.shape[2])
        total = within
        if self.objective == "share":
            total = within / (flat - flat.mean()).square().mean().clamp_min(_TINY)
        if self.separation and self.classes > 1:
            # As products: the differences would be as many numbers again for every class.
            squares = flat.square().sum(-1, keepdim=True) - 2 * flat @ means.T + means.square().sum(-1)
            logits = -_SHARPNESS * squares / (flat.shape[2] * within.clamp_min(_TINY))
            logits = torch.where(counts > 0, logits, -torch.inf)
            total = total + self.separation * F.cross_entropy(logits.flatten(0, 1), y.repeat(samples))
        kl = sum((q.kl().mean() for q in output.posteriors), torch.zeros((), device=y.device))
        return Loss(total + kl_weight * kl, kl=kl)


@final
class SeriesAligner(Warping, ClassifierMixin, ArrayEstimator, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]
    """Aligns series in time, and says how sure it is of each warp.

    A network predicts a distribution over smooth warps of the time axis for each series. It learns the warps under
    which the series of a class vary least around their average, against a prior that prefers smooth and small ones; or,
    with `teach`, to undo random warps of series that are aligned. Series that it has not seen need no label.

    Args:
        transform: the family of warps: a `pstn.Transform` of one axis or its name; `pstn.CPAB(tess=16)` for "auto".
        axes: of series with channels: "NCL" (N, C, L), "NLC" (N, L, C), or "auto": (N, C, L), with a warning. All
            channels of a series share one warp.
        lengths: "resample" stretches series to the longest of `fit`; "auto" does if their lengths differ in `fit`, and
            otherwise refuses others.
        teach: a random transform such as `pstn.data.RandomCPAB(pstn.CPAB(tess=16))`: the series of `fit` are aligned,
            and the network is taught what undoes random warps of them.
        passes: how often the network looks: each time at what the warps so far have made of the series.
        objective: what is made small: the "share" of the variance within classes in the whole variance, or, as in most
            of the literature, the "variance" within classes, which warps can also lower by flattening the series.
        separation: the weight of the cross-entropy of classification by the nearest average, beside it.
        smoothness: the weight of the prior.
        augment: how strongly the series of `fit` are warped at random before the network sees them, in standard
            deviations of the prior: few series teach it more.
        probabilistic: False for a point in place of a distribution: one warp for each series.
        samples: S in training.
        steps: how many steps of training.
        learning_rate: Adam's, at its highest.
        distance: by which `predict` finds the nearest average: "scaled", in units of the spread of each class in each
            channel, under a normal distribution, which tells classes by their amplitude too; or "euclidean".
        random_state: a number, a `numpy.random.RandomState` or None. No global seed is touched.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...
        verbose: 0 is quiet, 1 prints the figures of each epoch.

    Attributes:
        classes_: (K,), the labels; none without `y`.
        averages_: (K, ...), the average of each class of aligned training series, or the one of all series.
        layout_: what the axes are.
        scaling_: mean and deviation.
        model_: the network.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.repeat(["slow", "fast"], 10)
        >>> aligner = pstn.SeriesAligner(steps=20, random_state=0).fit(X, y)
        >>> aligner.transform(X).shape, aligner.predict(X).shape, aligner.warps(X).mode.shape
        ((20, 50), (20,), (20, 50))
    """

    classes_: NDArray[Any]
    averages_: NDArray[np.float32]
    model_: AligningModel
    _values = _VALUES

    def __init__(
        self, transform: str | Transform = "auto", *, axes: str = "auto", lengths: str = "auto",
        teach: str | RandomTransform | None = None,
        passes: int = 1, objective: str = "share", separation: float = 0.1, smoothness: float = 0.1,
        augment: float = 0.5, probabilistic: bool = True, samples: int = 2, steps: int = 300,
        learning_rate: float = 3e-3, distance: str = "scaled", random_state: Any = None, device: str = "auto",
        verbose: int = 0,
    ) -> None:  # fmt: skip
        self._set_parameters(locals())

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the warps.

        Args:
            X: series (N, L) or (N, C, L), also as a list of arrays of unequal length or a nested table, which are
                resampled to the longest; NaN is interpolated.
            y: (N,), the classes within which series are alike; all are of one class when None.

        Returns:
            The estimator itself.
        """
        x, labels = self._start(X, y)
        teach = None if self.teach is None else make_random_transform(self.teach, 1)
        number = torch.zeros(len(x), dtype=torch.int64)
        if labels is not None:
            number = torch.from_numpy(np.searchsorted(self.classes_, labels).astype(np.int64))
        classes = 1 if labels is None else len(self.classes_)
        self._seed = draw_seed(self.random_state)
        batch = min(_BATCH, len(x))
        epochs = max(1, round(self.steps * batch / len(x)))
        options: dict[str, Any] = {
            "epochs": epochs, "batch_size": batch, "lr": self.learning_rate,
            "lr_schedule": one_cycle, "clip_norm": 1.0, "weight_decay": 0.0, "restarts": 0, "progress": False,
            "on_epoch": print if self.verbose else None,
        }  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed)
            model = self._make_model(teach).to(make_device(self.device))
            if teach is not None:
                fit(model, x, teach=teach, **options)
            else:
                loss = AligningLoss(classes, self.objective, self.separation)
                fit(model, (x, number), loss=loss, kl_weight=self.smoothness, localizer_factor=1.0, **options)
        self.model_ = model.cpu()
        self._settle(x, number, classes)
        return self

    @torch.no_grad()
    def _settle(self, x: Tensor, number: Tensor, classes: int) -> None:
        """Keep the training series, their warps and the averages of their classes."""
        self._x, self._number = x, number
        self._theta = torch.cat([self._look(part, 0).theta for part in x.split(self._at_once(1))], 2)
        parts = x.split(self._at_once(_BAND_SAMPLES))
        self._samples = torch.cat([self._look(part, _BAND_SAMPLES).theta for part in parts], 2)
        aligned = warp(x, self.model_.points(self._theta, x.shape[-1]), padding_mode="border")[0]
        self._means = torch.stack([aligned[number == k].mean(0) for k in range(classes)])
        away = (aligned - self._means[number]).square().mean(-1)  # (N, C)
        pooled = away.sum(0) / max(1, len(x) - classes)
        sums = torch.stack([away[number == k].sum(0) for k in range(classes)])
        self._spread = (sums + pooled) / number.bincount(minlength=classes)[:, None] + _TINY
        self.averages_ = self._restored(self._means)

    def __sklearn_tags__(self) -> Any:
        """Labels may be left out."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

    def _start(self, X: ArrayLike, y: ArrayLike | None) -> tuple[Tensor, NDArray[Any] | None]:
        """Check everything, and learn the shape, scale and classes of the data: (N, C, L) and the labels."""
        for name in ("passes", "samples", "steps"):
            _checks.require_positive_int(name, getattr(self, name))
        _checks.require_positive_number("learning_rate", self.learning_rate)
        for name in ("smoothness", "augment", "separation"):
            _checks.require_nonnegative_number(name, getattr(self, name))
        _checks.require_choice("objective", self.objective, ("share", "variance"))
        _checks.require_choice("distance", self.distance, ("euclidean", "scaled"))
        _checks.require_bool("probabilistic", self.probabilistic)
        if self.lengths == "pad":
            raise ValueError("lengths must be 'auto' or 'resample': an aligner compares series step by step, got 'pad'")
        array = self._read(X, reset=True)
        labels: NDArray[Any] | None = None
        self.__dict__.pop("classes_", None)
        if y is not None:
            _, labels = check_X_y(array, y, allow_nd=True, estimator=self)
            check_classification_targets(labels)
            self.classes_ = np.unique(labels)
        self.scaling_ = fit_scaling(self.layout_.channels_first(array), "border")
        return self._scaled(array), labels

    def _make_model(self, teach: RandomTransform | None) -> AligningModel:
        channels, length = self.layout_.channels, self.layout_.size[0]
        given = vars(self)["transform"]
        if isinstance(given, str) and given == "auto":
            given = CPAB(tess=16) if teach is None else teach.transform
        family = make_transform(given, ndim=1)
        if family.ndim != 1:
            raise ValueError(f"transform must act on one axis, got {family!r}, which acts on {family.ndim}")
        if isinstance(family, CPAB) and teach is None:
            family = SmoothCPAB(family)
        read = min(length, _LOCALIZER_LENGTH)
        stages = min(3, read.bit_length() - 1)
        localizer = PoseLocalizer(channels, (read,), (16, 32, 32)[:stages], 5, 64) if stages else GlobalLocalizer()
        prior = NormalPrior(scale=prior_scale(family))
        posterior = Normal(_VAR_INIT if teach is None else 0.0, prior) if self.probabilistic else Point(prior)
        layer = SpatialTransformer(
            family, localizer, posterior=posterior, padding_mode="border",
            localizer_size=None if read == length else (read,),
        )  # fmt: skip
        model = AligningModel(layer, self.passes, 0.0 if teach is not None else float(self.augment))
        model.train_samples = self.samples if self.probabilistic else 1
        return model

    def _look(self, x: Tensor, samples: int) -> Alignment:
        """Series under the same quantiles of their posteriors, whatever else is in the batch; at the mode for 0."""
        width = self.model_.layer.noise_width
        if not samples or not width:
            return self.model_(x, 1, noise=torch.full((1, len(x), width), 0.5))
        source = torch.Generator().manual_seed(self._seed)
        noise = draw_noise(samples, (1, width), method="sobol", generator=source, device=x.device)
        return self.model_(x, samples, noise=noise.expand(-1, len(x), -1))

    @parameter_too
    @torch.no_grad()
    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Series aligned by their most probable warps.

        Args:
            X: as for `fit`.

        Returns:
            (N, ...), in the shape and the units of `X`, float32; series of unequal length have the longest one's.
        """
        return np.concatenate([self._restored(self._look(x, 0).warped[0]) for x in self._batches(X)])

    @torch.no_grad()
    def inverse_transform(self, X: ArrayLike, like: ArrayLike | None = None) -> NDArray[np.float32]:
        """Bring aligned series, or anything else in warped time, back to the time of the series they were made from.

        Args:
            X: (N, ...), in warped time, as `transform` returns it.
            like: (N, ...), the series whose warps are undone; those of `fit` when None.

        Returns:
            The shape of `X`.
        """
        check_is_fitted(self)
        theta = self._theta if like is None else torch.cat([self._look(x, 0).theta for x in self._batches(like)], 2)
        aligned = torch.cat(list(self._batches(X)))
        if len(aligned) != theta.shape[2]:
            source = "in fit" if like is None else "in like"
            raise ValueError(f"X must hold as many series as there are {source}, {theta.shape[2]}, got {len(aligned)}")
        grid = self.model_.points(theta, aligned.shape[-1], inverse=True)
        return self._restored(warp(aligned, grid, padding_mode="border")[0])

    @torch.no_grad()
    def warps(self, X: ArrayLike, level: float = 0.9, samples: int = 64) -> Warps:
        """Which time step of a series each step of its aligned version reads, with an interval from the posterior.

        Args:
            X: as for `fit`.
            level: the probability with which the step read lies in the interval.
            samples: how many warps the interval is taken from.
        """
        low, high = require_level(level)
        parts = []
        for x in self._batches(X, samples):
            length = x.shape[-1]

            def steps(theta: Tensor, length: int = length) -> Tensor:
                return (self.model_.points(theta, length)[..., 0] + 1) * (length / 2) - 0.5

            drawn = steps(self._look(x, samples).theta)
            ends = torch.quantile(drawn, torch.tensor([low, high]), dim=0)
            parts.append(torch.stack([steps(self._look(x, 0).theta)[0], *ends]).numpy())
        return Warps(*np.concatenate(parts, axis=1))

    @torch.no_grad()
    def sample(self, X: ArrayLike, samples: int = 10, *, random_state: Any = None) -> NDArray[np.float32]:
        """Versions of each series with the timing of others: aligned, then brought to the time of a training series.

        They are augmentation learned from the data: warps that occur between series of a class, and no others.

        Args:
            X: as for `fit`.
            samples: S.
            random_state: of the draw.

        Returns:
            (S, N, ...), each of the S in the shape and units of `X`, float32.
        """
        _checks.require_positive_int("samples", samples)
        source = torch.Generator().manual_seed(draw_seed(random_state))
        parts = []
        for x in self._batches(X, samples):
            other = torch.randint(self._theta.shape[2], (samples, len(x)), generator=source)
            aligned = self.model_.points(self._theta[:, 0, other], x.shape[-1], inverse=True)
            theta = self.model_(x, samples, generator=source).theta
            parts.append(self._restored(warp(x, self.model_.points(theta, aligned), padding_mode="border")))
        return np.concatenate(parts, axis=1)

    @torch.no_grad()
    def class_averages(self, level: float = 0.9) -> ClassAverages:
        """The average of each class in warped time, with the band that holds its training series.

        The band is taken over the series of a class and the samples of their warps: how sure the warps are is part of
        its width.

        Args:
            level: the share of the class that lies within the band at each step.
        """
        check_is_fitted(self)
        ends = torch.tensor(require_level(level))
        bands = [self._band(self._number == k, ends) for k in range(len(self._means))]
        classes = getattr(self, "classes_", np.zeros(1, np.int64))
        low, high = (self._restored(torch.stack(end)) for end in zip(*bands, strict=True))
        return ClassAverages(classes, self.averages_, low, high)

    def _band(self, chosen: Tensor, ends: Tensor) -> Tensor:
        """Quantiles of the aligned training series that are chosen, (ends, C, L), some time steps at once."""
        x, theta = self._x[chosen], self._samples[:, :, chosen]
        steps = max(1, _VALUES // (theta.shape[1] * x[:, :, 0].numel()))
        parts = base_grid((x.shape[-1],)).split(steps)
        read = (warp(x, self.model_.points(theta, part), padding_mode="border").flatten(0, 1) for part in parts)
        return torch.cat([quantiles(values, ends) for values in read], -1)

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class whose average is nearest to each aligned series, (N,), by `distance`."""
        check_is_fitted(self)
        if not hasattr(self, "classes_"):
            raise NotFittedError("this SeriesAligner was fitted without y, and has no classes to predict")
        nearest = [self._distances(self._look(x, 0).warped[0]).argmin(1) for x in self._batches(X)]
        return self.classes_[torch.cat(nearest).numpy()]

    def _distances(self, aligned: Tensor) -> Tensor:
        """From aligned series (N, C, L) to the average of each class, (N, K)."""
        squares = torch.stack([(aligned - mean).square().mean(-1) for mean in self._means], 1)  # (N, K, C)
        scaled = self.distance == "scaled"
        return (squares / self._spread + self._spread.log() if scaled else squares).sum(-1)


def quantiles(values: Tensor, ends: Tensor) -> Tensor:
    """(N, ...) -> (ends, ...): `torch.quantile`, which refuses more than 16 million values."""
    return torch.from_numpy(np.quantile(values.numpy(), ends.numpy(), axis=0).astype(np.float32))
