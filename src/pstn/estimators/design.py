"""Which network suits data of a given shape."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from pstn.nn import PSTN, STN, ConvClassifier, ConvLocalizer, SeriesClassifier, SeriesLocalizer, SpatialTransformer
from pstn.training.runs.sources import USUAL_FAMILY
from pstn.transforms import Transform, make_transform

__all__ = ["Design"]

# Networks draw their first weights from torch's global generator: one at a time, if threads build several.
_BUILDING = threading.Lock()
# Larger images are averaged down to this before the localizer looks at them: where a thing is shows at a glance.
_GLANCE = (32, 32)
# A stage of convolution and pooling must leave at least this many pixels along each axis.
_SMALLEST_MAP = 3


@dataclass(frozen=True)
class Design:
    """All that a network's shape depends on.

    Args:
        model: "cnn", "stn" or "pstn".
        channels: C.
        size: (H, W) or (L,).
        classes: K.
        transform: the family, or its name, or "auto": a similarity for images, CPAB for series.
        width: channels of the classifier's first convolution; None chooses by the data.
        train_samples: S in training.
        test_samples: S in prediction.
        fill: what lies outside, after standardisation, one number per channel; None repeats the border.

    Example:
        >>> model = Design("pstn", channels=1, size=(28, 28), classes=10).build(seed=0)
        >>> model.layer.transform
        Similarity(scale='linear')
    """

    model: Literal["cnn", "stn", "pstn"]
    channels: int
    size: tuple[int, ...]
    classes: int
    transform: str | Transform = "auto"
    width: int | None = None
    train_samples: int = 1
    test_samples: int = 10
    fill: tuple[float, ...] | None = None

    def build(self, seed: int) -> nn.Module:
        """An untrained network; its weights depend on `seed` alone, and torch's own random state stays as it is."""
        with _BUILDING, torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed every GPU as well.
            torch.default_generator.manual_seed(seed)
            return self._build()

    def _build(self) -> nn.Module:
        classifier = self._classifier()
        if self.model == "cnn":
            return classifier
        localizer, glance = self._localizer()
        layer = SpatialTransformer(
            self.family(), localizer, self.size, localizer_size=glance, probabilistic=self.model == "pstn",
            fill=0.0 if self.fill is None else self.fill, padding_mode="border" if self.fill is None else "zeros",
        )  # fmt: skip
        if self.model == "stn":
            return STN(layer, classifier)
        return PSTN(layer, classifier, self.train_samples, self.test_samples)

    def family(self) -> Transform:
        """The family of transformations."""
        ndim = len(self.size)
        name = USUAL_FAMILY[ndim] if self.transform in ("auto", None) else self.transform
        family = make_transform(name, ndim)
        if family.ndim != ndim:
            kind = "images" if ndim == 2 else "series"
            raise ValueError(
                f"transform must act on {ndim} axes for {kind}, got {family!r}, which acts on {family.ndim}"
            )
        return family

    def _classifier(self) -> nn.Module:
        if len(self.size) == 1:
            width = self.width or 32
            filters = (width, 2 * width, width)
            return SeriesClassifier(self.channels, self.classes, filters, self._series_kernels())
        kernel, stages = _stages(self.size)
        width = self.width or (10 if stages > 1 else 24)
        filters = tuple(width * 2 ** min(stage, 3) for stage in range(stages))
        return ConvClassifier(self.channels, self.size, self.classes, filters, hidden=5 * width, kernel=kernel)

    def _localizer(self) -> tuple[nn.Module, tuple[int, ...] | None]:
        """A localizer and the size at which it reads the input; None reads the input as it is."""
        if len(self.size) == 1:
            return SeriesLocalizer(self.channels, (16, 32, 16), self._series_kernels()), None
        glance = _GLANCE if min(self.size) > 3 * _GLANCE[0] // 2 else None
        size = glance or self.size
        kernel, stages = _stages(size)
        return ConvLocalizer(self.channels, size, (8, 14, 20, 20)[:stages], kernel), glance

    def _series_kernels(self) -> tuple[int, ...]:
        return tuple(min(kernel, self.size[0]) for kernel in (8, 5, 3))


def _stages(size: tuple[int, ...]) -> tuple[int, int]:
    """The width of convolutions for images of this size, and how many stages of them leave something to see."""
    side, stages = min(size), 0
    kernel = 5 if side >= 16 else 3
    while (side := (side - kernel + 1) // 2) >= _SMALLEST_MAP:
        stages += 1
    return kernel, stages
