"""The networks of the paper's image experiments, at its parameter counts."""

from __future__ import annotations

from pstn.nn.classifier import PSTN, STN
from pstn.nn.layer import SpatialTransformer
from pstn.nn.networks import ConvClassifier, ConvLocalizer
from pstn.transforms import Similarity, Transform
from pstn.warp import Fill

__all__ = ["mnist_cnn", "mnist_pstn", "mnist_stn"]

_MNIST = (28, 28)


def mnist_cnn() -> ConvClassifier:
    """The CNN baseline of the MNIST experiments: 28,086 parameters.

    Example:
        >>> sum(p.numel() for p in mnist_cnn().parameters())
        28086
    """
    return ConvClassifier(1, _MNIST, classes=10, filters=(12, 24), hidden=52)


def mnist_stn(transform: Transform | None = None, *, fill: Fill = 0.0) -> STN:
    """The STN of the MNIST-subset experiments: 28,726 parameters with a similarity.

    Args:
        transform: the family; `Similarity()` when not given.
        fill: what lies outside the image: the background's value after normalisation.

    Example:
        >>> sum(p.numel() for p in mnist_stn().parameters())
        28726
    """
    localizer = ConvLocalizer(1, _MNIST, filters=(12, 18))
    layer = SpatialTransformer(transform or Similarity(), localizer, _MNIST, probabilistic=False, fill=fill)
    return STN(layer, ConvClassifier(1, _MNIST, classes=10, filters=(10, 20), hidden=50))


def mnist_pstn(transform: Transform | None = None, *, fill: Fill = 0.0, var_init: float = -5.0) -> PSTN:
    """The P-STN of the MNIST-subset experiments: 26,662 parameters with a similarity.

    Args:
        transform: the family; `Similarity()` when not given.
        fill: what lies outside the image: the background's value after normalisation.
        var_init: where the variance head starts, before softplus.

    Example:
        >>> sum(p.numel() for p in mnist_pstn().parameters())
        26662
    """
    localizer = ConvLocalizer(1, _MNIST, filters=(8, 14))
    layer = SpatialTransformer(transform or Similarity(), localizer, _MNIST, var_init=var_init, fill=fill)
    return PSTN(layer, ConvClassifier(1, _MNIST, classes=10, filters=(10, 20), hidden=50))
