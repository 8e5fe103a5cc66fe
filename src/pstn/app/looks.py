"""What three models make of one input: where they looked, what they saw, what they say, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pstn.nn import PSTN, STN, About, ConvClassifier, Prediction, SeriesClassifier
from pstn.transforms import to_pixels
from pstn.uncertainty import entropy, mutual_information

__all__ = ["Answer", "Look", "Trio", "boxes", "look"]

SAMPLES = 10


@dataclass(frozen=True)
class Trio:
    """The three models that the page compares, trained on the same data, in evaluation mode.

    Attributes:
        cnn: reads the input as it is.
        stn: looks once.
        pstn: looks several times.
    """

    cnn: ConvClassifier | SeriesClassifier
    stn: STN
    pstn: PSTN

    @property
    def about(self) -> About:
        """Names of the classes and how input is prepared, which the three share."""
        about = self.pstn.about
        assert about is not None  # from_pretrained always sets it
        return about

    def accuracy(self, name: str) -> float | None:
        """The share of unseen examples that a model ("cnn", "stn" or "pstn") got right; None where nobody noted it."""
        about: About | None = getattr(self, name).about
        found = math.nan if about is None else about.metrics.get("accuracy", math.nan)
        return found if math.isfinite(found) else None


class Answer(NamedTuple):
    """What one model says of one input."""

    classes: tuple[str, ...]
    """Names, in the order of `probs`."""
    probs: tuple[float, ...]
    """One probability per class."""
    votes: tuple[str, ...]
    """The most probable class under each look; one for a model that looks once."""
    doubt: float
    """The entropy of `probs`, in nats."""
    doubt_from_looking: float
    """How much of it comes from not knowing where to look: the mutual information, in nats."""

    @property
    def best(self) -> str:
        """The most probable class."""
        return self.classes[self.probs.index(max(self.probs))]

    @property
    def sureness(self) -> str:
        """How sure it is, in a word or two.

        The exponential of the entropy is the number of classes that a fair die would need to be as unpredictable. Who
        has a favourite of 60% or more is not guessing, however the rest is spread.
        """
        left = math.exp(self.doubt)
        if left > min(2.5, 0.97 * len(self.classes)) and max(self.probs) < 0.6:
            return "guessing"
        return "sure" if left < 1.25 else "fairly sure" if left < 1.7 else "unsure"

    @property
    def reasons(self) -> str:
        """Whether the looks agree, in one or two sentences; empty for a model that looks once.

        Example:
            >>> Answer(("a", "b"), (0.75, 0.25), ("a", "a", "a", "b"), 0.56, 0.5).reasons
            '3 of 4 looks say a, 1 says b. Most of its doubt comes from not knowing where to look.'
        """
        if len(self.votes) < 2:
            return ""
        ranked = sorted(set(self.votes), key=lambda name: (-self.votes.count(name), self.classes.index(name)))
        counts = [self.votes.count(name) for name in ranked]
        if len(ranked) == 1:
            text = f"All {counts[0]} looks say {ranked[0]}."
        else:
            others = [f"{n} {'says' if n == 1 else 'say'} {name}" for n, name in zip(counts, ranked, strict=True)][1:]
            text = f"{counts[0]} of {len(self.votes)} looks say {ranked[0]}, {', '.join(others)}."
        if self.sureness != "sure" and self.doubt_from_looking > self.doubt / 2:
            text += " Most of its doubt comes from not knowing where to look."
        return text


class Look(NamedTuple):
    """What the page shows of one input."""

    shown: Tensor
    """(C, *size), the input as a person sees it."""
    seen: Tensor
    """(S, C, *size), what the P-STN's classifier read."""
    theta: Tensor
    """(S, D), where the P-STN looked."""
    stn_seen: Tensor
    """(1, C, *size), what the STN's classifier read."""
    stn_theta: Tensor
    """(1, D), where the STN looked."""
    answers: dict[str, Answer]
    """By "cnn", "stn" and "pstn"."""


def look(trio: Trio, shown: Tensor, *, samples: int = SAMPLES, seed: int = 0) -> Look:
    """Let the three models read one input.

    Args:
        trio: the models.
        shown: (C, *size), the input as a person sees it: pixels from 0 to 1, or a series.
        samples: S, how often the P-STN looks.
        seed: of its samples: the same seed looks at the same places, so that only the input makes a difference.
    """
    x = trio.about.prepare(shown[None])
    with torch.inference_mode():
        plain = trio.cnn(x).log_softmax(-1)
        once: Prediction = trio.stn(x)
        often: Prediction = trio.pstn(x, samples, generator=torch.Generator().manual_seed(seed))
        seen, stn_seen = (
            trio.about.undo(model.layer.warp(x, theta)[:, 0])
            for model, theta in ((trio.pstn, often.theta), (trio.stn, once.theta))
        )
    classes = trio.about.classes
    answers = {
        "cnn": _answer(plain[None], plain, classes),
        "stn": _answer(once.sample_log_probs, once.log_probs, classes),
        "pstn": _answer(often.sample_log_probs, often.log_probs, classes),
    }
    return Look(shown, seen, often.theta[:, 0], stn_seen, once.theta[:, 0], answers)


def _answer(sample_log_probs: Tensor, log_probs: Tensor, classes: tuple[str, ...]) -> Answer:
    votes = tuple(classes[k] for k in sample_log_probs[:, 0].argmax(-1).tolist())
    doubt, from_looking = entropy(log_probs)[0], mutual_information(sample_log_probs)[0]
    return Answer(classes, tuple(log_probs[0].exp().tolist()), votes, doubt.item(), from_looking.item())


def boxes(model: PSTN | STN, theta: Tensor, size: tuple[int, ...]) -> Tensor:
    """(S, 4, 2), the corners in pixels of what was looked at in an image of `size`, for theta (S, D)."""
    return to_pixels(model.layer.transform.corners(theta, aspect=size[::-1]), size)
