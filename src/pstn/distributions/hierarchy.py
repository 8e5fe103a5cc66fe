"""Posteriors that inputs share: one for all of them, or one with a shrunken part of each input's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from pstn._checks import require_positive_number
from pstn.distributions.base import PosteriorFamily, ThetaDistribution
from pstn.distributions.student_t import StudentT
from pstn.transforms import Transform

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
