"""Knowing when not to answer: a threshold for a wanted accuracy, and conformal prediction sets.

numpy alone, so that a server without torch uses it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Abstention"]

_NEVER = 2.0  # no probability reaches it


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

    Example:
        >>> Abstention(accuracy=0.99, threshold=0.8, coverage=0.9, quantile=0.75).describe([0.7, 0.3], ("a", "b"))
        {'abstain': True, 'set': ['a', 'b']}
    """

    accuracy: float | None = None
    threshold: float = 0.0
    coverage: float | None = None
    quantile: float = 1.0

    def __post_init__(self) -> None:
        limits = {"threshold": _NEVER, "quantile": 1.0, "accuracy": 1.0, "coverage": 1.0}
        for name, high in limits.items():
            value = getattr(self, name)
            if value is None and name in ("accuracy", "coverage"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
                raise ValueError(f"{name} must be a number from 0 to {high:g}, got {value!r:.50}")
            if name in ("accuracy", "coverage") and not 0 < value < 1:
                raise ValueError(f"{name} must be above 0 and below 1, got {value}")

    @classmethod
    def find(
        cls, probs: npt.ArrayLike, y: npt.ArrayLike, *, accuracy: float | None = None, coverage: float | None = None
    ) -> Abstention:
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
        return cls(accuracy, threshold, coverage, quantile)

    def abstains(self, probs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether the model should not answer: (..., K) -> (...)."""
        return np.asarray(probs, np.float64).max(-1) < self.threshold

    def sets(self, probs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which classes are in the set: (..., K) -> (..., K). It may be empty where no class is probable enough."""
        # The comparison that found the quantile, so that rounding cannot leave its own example out.
        return 1 - np.asarray(probs, np.float64) <= self.quantile

    def describe(self, probs: npt.ArrayLike, classes: tuple[str, ...] | list[str]) -> dict[str, Any]:
        """What an answer says, of probabilities (K,): `abstain` and `set`, those of the two that were wanted."""
        held = self.sets(probs).tolist()
        said: dict[str, Any] = {} if self.accuracy is None else {"abstain": bool(self.abstains(probs))}
        return said | (
            {} if self.coverage is None else {"set": [name for name, one in zip(classes, held, strict=True) if one]}
        )

    def score(self, probs: npt.ArrayLike, y: npt.ArrayLike) -> dict[str, float | None]:
        """What becomes of it on other examples: the share answered, its accuracy, and the sets' coverage and size.

        Args:
            probs: (N, K), probabilities.
            y: (N,), class indices.

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
        return found
