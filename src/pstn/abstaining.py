"""Knowing when not to answer: a threshold for a wanted accuracy, conformal prediction sets, and unlike inputs.

numpy alone, so that a server without torch uses it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Abstention", "Typicality"]

_NEVER = 2.0  # no probability reaches it
_FEWEST, _MOST = 50, 50_000  # examples that a typicality needs, and numbers that it may hold
_ATYPICAL = 0.05


@dataclass(frozen=True)
class Typicality:
    """How like the answers to held-out examples an answer is: low for inputs unlike the training data.

    An answer is described by its log-probabilities and by the mean and spread of its samples of theta. Its score adds
    up the logarithm of the distance to the nearest class's mean (Mahalanobis, one covariance for all classes) and that
    of the odds that the most probable class is wrong, each in deviations from its mean over held-out examples.

    Attributes:
        transform: (V, V), by which descriptions are multiplied, so that distances have no units.
        means: (K, V), of the classes, multiplied likewise.
        centre: (2,), the means of the two terms.
        spread: (2,), their deviations.
        scores: of held-out examples, quantiles in equal steps.

    Example:
        >>> probs = np.random.default_rng(0).dirichlet((0.3, 0.3), 200)
        >>> typical = Typicality.find(probs, probs.argmax(1))
        >>> common, rare = typical.share([[0.95, 0.05], [0.5, 0.5]])
        >>> bool(common > 0.1), bool(rare < 0.05)
        (True, True)
    """

    transform: tuple[tuple[float, ...], ...]
    means: tuple[tuple[float, ...], ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            held = {name: np.asarray(value, np.float64) for name, value in vars(self).items()}
        except (TypeError, ValueError):
            raise ValueError("typicality must hold lists of numbers") from None
        width, classes = len(self.transform), len(self.means)
        wanted = [(width, width), (classes, width), (2,), (2,), (len(self.scores),)]
        fits = [array.shape for array in held.values()] == wanted and 0 < width * (width + classes) <= _MOST
        if not fits or not classes or not self.scores or not all(np.isfinite(a).all() for a in held.values()):
            raise ValueError(f"typicality must hold 1 to {_MOST:,} finite numbers, of shapes that fit")
        for name, value in vars(self).items():
            object.__setattr__(self, name, tuple(tuple(v) if isinstance(v, list) else v for v in value))

    @classmethod
    def find(cls, probs: npt.ArrayLike, y: npt.ArrayLike, theta: npt.ArrayLike | None = None) -> Typicality | None:
        """Find it on examples that the model was not trained on; None for fewer than 50, or for very many classes.

        The quantiles are of scores in which neither half of the examples is compared with itself.

        Args:
            probs: (N, K), probabilities.
            y: (N,), class indices.
            theta: (S, N, D), the samples' transformations, of a model that has any.
        """
        x, labels = _describe(probs, theta), np.asarray(y)
        if len(x) < _FEWEST or x.shape[1] * (x.shape[1] + len(np.unique(labels))) > _MOST:
            return None
        order = np.argsort(labels, kind="stable")  # so that both halves have all classes
        x, labels = x[order], labels[order]
        terms = np.empty((len(x), 2))
        for half in (0, 1):
            terms[half::2, 0] = _distance(x[half::2], *_fit(x[1 - half :: 2], labels[1 - half :: 2]))
        terms[:, 1] = _odds(probs)[order]
        centre, spread = terms.mean(0), terms.std(0).clip(1e-9)
        scores = np.quantile(((terms - centre) / spread).sum(1), np.linspace(0, 1, 201))
        transform, means = _fit(x, labels)
        return cls(transform.tolist(), means.tolist(), centre.tolist(), spread.tolist(), scores.tolist())

    @cached_property
    def _arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return np.asarray(self.transform), np.asarray(self.means)

    def fits(self, probs: npt.ArrayLike, theta: npt.ArrayLike | None = None) -> bool:
        """Whether answers are of the kind that it was found for, with the same classes, parameters and sampling."""
        return _describe(probs, theta).shape[-1] == len(self.transform)

    def score(self, probs: npt.ArrayLike, theta: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """The score, higher for what is less typical: (N, K) and (S, N, D) -> (N,)."""
        terms = np.stack([_distance(_describe(probs, theta), *self._arrays), _odds(probs)], -1)
        return np.asarray(((terms - self.centre) / self.spread).sum(-1))

    def share(self, probs: npt.ArrayLike, theta: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """The share of held-out examples that are less typical: (N, K) and (S, N, D) -> (N,), from 0 to 1."""
        quantiles = np.linspace(0, 1, len(self.scores))
        return 1 - np.interp(self.score(probs, theta), self.scores, quantiles)


def _describe(probs: npt.ArrayLike, theta: npt.ArrayLike | None) -> npt.NDArray[np.float64]:
    """Answers as vectors, (N, K) and (S, N, D) -> (N, V)."""
    logs = np.log(np.asarray(probs, np.float64).clip(1e-13))
    parts = [logs - logs.mean(-1, keepdims=True)]
    if theta is not None:
        samples = np.asarray(theta, np.float64)
        parts += [samples.mean(0)] + [np.log(samples.std(0).clip(1e-6))] * (len(samples) > 1)
    return np.concatenate(parts, -1)


def _odds(probs: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The logarithm of the odds that the most probable class is wrong, (N, K) -> (N,)."""
    best = np.asarray(probs, np.float64).max(-1)
    return np.asarray(np.log((1 - best).clip(1e-9)) - np.log(best))


def _fit(x: npt.NDArray[np.float64], y: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What makes the covariance within classes the identity, and the classes' means under it."""
    scale, classes = x.std(0), np.unique(y)
    scale = np.where(scale > 1e-6, scale, 1.0)  # what is constant says nothing
    means = np.stack([x[y == k].mean(0) for k in classes]) / scale
    rest = x / scale - means[np.searchsorted(classes, y)]
    covariance = rest.T @ rest / len(rest)
    covariance += (1e-3 * np.trace(covariance) / len(covariance) + 1e-12) * np.eye(len(covariance))
    transform = np.linalg.cholesky(np.linalg.inv(covariance)) / scale[:, None]
    return transform, (means * scale) @ transform


def _distance(
    x: npt.NDArray[np.float64], transform: npt.NDArray[np.float64], means: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The logarithm of the squared distance to the nearest mean, (N, V) -> (N,)."""
    return np.asarray(np.log((((x @ transform)[..., None, :] - means) ** 2).sum(-1).min(-1).clip(1e-12)))


@dataclass(frozen=True)
class Abstention:
    """When a model should not answer, and which classes cannot be ruled out: found on held-out examples.

    Attributes:
        accuracy: that was wanted of the answers that are given; None if none was.
        threshold: the model abstains where its largest probability is below it; 2 where no share of the held-out
            examples reached the wanted accuracy, so that it never answers.
        coverage: the share of inputs whose true class is to be in the set; None if none was wanted.
        quantile: a class is in the set where its probability is at least 1 - quantile. 1 puts all classes into it:
            there were too few held-out examples for the wanted coverage.
        typicality: how like held-out examples an input is; None where that is not known.
        samples: S of the predictions that it was found on, or "modes": it holds for these alone. None for a model that
            does not sample, and for the model's own `test_samples`.

    Example:
        >>> Abstention(accuracy=0.99, threshold=0.8, coverage=0.9, quantile=0.75).describe([0.7, 0.3], ("a", "b"))
        {'abstain': True, 'set': ('a', 'b')}
    """

    accuracy: float | None = None
    threshold: float = 0.0
    coverage: float | None = None
    quantile: float = 1.0
    typicality: Typicality | None = None
    samples: int | str | None = None

    def __post_init__(self) -> None:
        given: Any = self.typicality
        if isinstance(given, dict):  # from a file
            object.__setattr__(self, "typicality", Typicality(**given))
        if not isinstance(self.typicality, Typicality | None):
            raise TypeError(f"typicality must be a pstn.abstaining.Typicality, got {type(self.typicality).__name__}")
        if self.samples not in (None, "modes") and (type(self.samples) is not int or self.samples < 1):
            raise ValueError(f'samples must be at least 1, or "modes", got {self.samples!r:.50}')
        for name, high in {"threshold": _NEVER, "quantile": 1.0}.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= high:
                raise ValueError(f"{name} must be a number from 0 to {high:g}, got {value!r:.50}")
        for name in ("accuracy", "coverage"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or not 0 < value < 1):
                raise ValueError(f"{name} must be above 0 and below 1, got {value!r:.50}")

    @classmethod
    def find(
        cls, probs: npt.ArrayLike, y: npt.ArrayLike, *, accuracy: float | None = None, coverage: float | None = None,
        theta: npt.ArrayLike | None = None,
    ) -> Abstention:  # fmt: skip
        """Choose the threshold and the quantile on examples that the model was not trained on.

        The threshold is the lowest that leaves `accuracy` among the answers given. The quantile is that of split
        conformal prediction: of the n values 1 - p(true class), the ceil((n + 1) coverage)-th smallest. Sets then hold
        the true class of a new example with at least this probability, whatever the model, where it and the held-out
        examples are drawn alike.

        Args:
            probs: (N, K), probabilities.
            y: (N,), class indices.
            accuracy: wanted of the answers that are given; no threshold when None.
            coverage: wanted of the sets; no sets when None.
            theta: (S, N, D), the samples' transformations, from which too the typicality is found.

        Example:
            >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]]
            >>> Abstention.find(probs, [0, 0, 1, 0], accuracy=0.9).threshold
            0.7
        """
        p, labels = np.asarray(probs, np.float64), np.asarray(y)
        if p.ndim != 2 or labels.shape != p.shape[:1] or not len(p) or not np.isfinite(p).all():
            raise ValueError(f"probs must be finite, of shape (N, K), and y (N,), got {p.shape} and {labels.shape}")
        if accuracy is None and coverage is None:
            raise ValueError("accuracy or coverage must be given, got neither")
        cls(accuracy=accuracy, coverage=coverage)  # refuses what cannot be wanted before it is looked for
        threshold, quantile, count = 0.0, 1.0, len(p)
        if accuracy is not None:
            confidence = p.max(1)
            order = np.argsort(-confidence, kind="stable")
            confidence, right = confidence[order], (p.argmax(1) == labels)[order].cumsum()
            # Examples of one confidence are answered together or not at all.
            last = np.append(confidence[1:] < confidence[:-1], True)
            enough = np.flatnonzero(last & (right >= accuracy * np.arange(1, count + 1)))
            threshold = float(confidence[enough[-1]]) if len(enough) else _NEVER
        if coverage is not None:
            rank = math.ceil((count + 1) * coverage - 1e-9)  # 0.9 * 10 is 9, not a little more
            if rank <= count:
                quantile = float(np.sort(1 - p[np.arange(count), labels])[rank - 1].clip(0, 1))
        return cls(accuracy, threshold, coverage, quantile, Typicality.find(p, labels, theta))

    def __str__(self) -> str:
        parts = []
        if self.accuracy is not None:
            at = "always" if self.threshold == _NEVER else f"below a probability of {self.threshold:.4g}"
            parts.append(f"abstains {at}, for {self.accuracy:.4g} of the answers to be right")
        if self.coverage is not None:
            least = f"sets of the classes of a probability of at least {1 - self.quantile:.4g}"
            parts.append(f"{least}, for {self.coverage:.4g} to hold the true one")
        return "; ".join(parts)

    def abstains(self, probs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether the model should not answer: (..., K) -> (...)."""
        return np.asarray(probs, np.float64).max(-1) < self.threshold

    def sets(self, probs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which classes are in the set: (..., K) -> (..., K). It may be empty where no class is probable enough."""
        # The comparison that found the quantile, so that rounding cannot leave its own example out.
        return 1 - np.asarray(probs, np.float64) <= self.quantile

    def describe(
        self, probs: npt.ArrayLike, classes: tuple[str, ...] | list[str], theta: npt.ArrayLike | None = None
    ) -> dict[str, Any]:
        """What an answer says: `abstain` and `set`, those of the two that were wanted, and `typical` where it is known.

        Args:
            probs: (K,), probabilities.
            classes: their names.
            theta: (S, D), the samples' transformations.
        """
        said: dict[str, Any] = {} if self.accuracy is None else {"abstain": bool(self.abstains(probs))}
        if self.coverage is not None:
            said["set"] = tuple(name for name, one in zip(classes, self.sets(probs), strict=True) if one)
        if self.typicality is not None and self.typicality.fits(probs, theta):
            said["typical"] = round(float(self.typicality.share(probs, theta)), 4)
        return said

    def score(
        self, probs: npt.ArrayLike, y: npt.ArrayLike, theta: npt.ArrayLike | None = None
    ) -> dict[str, float | None]:
        """What becomes of it on other examples: the share answered, its accuracy, and the sets' coverage and size.

        With `theta`, or for a model without, also the share that is less typical than all but 5% of held-out examples.

        Args:
            probs: (N, K), probabilities.
            y: (N,), class indices.
            theta: (S, N, D), the samples' transformations.

        Example:
            >>> Abstention(accuracy=0.9, threshold=0.7).score([[0.9, 0.1], [0.6, 0.4]], [0, 1])
            {'answered': 0.5, 'accuracy_answered': 1.0}
        """
        p, labels = np.asarray(probs, np.float64), np.asarray(y)
        found: dict[str, float | None] = {}
        if self.accuracy is not None:
            given = ~self.abstains(p)
            right = float((p.argmax(1) == labels)[given].mean()) if given.any() else None
            found |= {"answered": float(given.mean()), "accuracy_answered": right}
        if self.coverage is not None:
            held = self.sets(p)
            covered = held[np.arange(len(p)), labels]
            found |= {"set_coverage": float(covered.mean()), "set_size": float(held.sum(1).mean())}
        if self.typicality is not None and self.typicality.fits(p, theta):
            found["atypical"] = float((self.typicality.share(p, theta) < _ATYPICAL).mean())
        return found
