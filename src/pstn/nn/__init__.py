"""Networks: localizers, the spatial transformer layer, classifiers."""

from typing import Any

from pstn.nn.about import About, Shareable
from pstn.nn.classifier import PSTN, STN, Prediction, TransformerClassifier, TransformerModel
from pstn.nn.factory import make_model, mnist_cnn, mnist_pstn, mnist_stn
from pstn.nn.layer import SpatialTransformer, TransformerOutput
from pstn.nn.networks import (
    ConvClassifier,
    ConvLocalizer,
    GlobalLocalizer,
    PoseLocalizer,
    SeriesClassifier,
    SeriesLocalizer,
)
from pstn.nn.wrap import Frozen, wrap

__all__ = [
    "PSTN",
    "STN",
    "About",
    "ConvClassifier",
    "ConvLocalizer",
    "Frozen",
    "GlobalLocalizer",
    "PoseLocalizer",
    "Prediction",
    "SeriesClassifier",
    "SeriesLocalizer",
    "Shareable",
    "SpatialTransformer",
    "TransformerClassifier",
    "TransformerModel",
    "TransformerOutput",
    "make_model",
    "mnist_cnn",
    "mnist_pstn",
    "mnist_stn",
    "wrap",
]

# Names that were here in 0.1.0 and are now in `pstn` itself.
_MOVED = ("ModelFileError", "from_pretrained", "load_weights")


def __getattr__(name: str) -> Any:
    """Names of 0.1.0."""
    if name in _MOVED:
        from pstn import io

        return getattr(io, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
