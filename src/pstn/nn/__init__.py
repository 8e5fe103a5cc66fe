"""Networks: localizers, the spatial transformer layer, classifiers."""

from typing import Any

from pstn._deprecation import old_names
from pstn.nn.backbones import BackboneClassifier, EfficientNetLite0, Pretrained, TimmNetwork, Trunk, find_pretrained
from pstn.nn.classifier import PSTN, STN, Prediction, TransformerClassifier, TransformerModel
from pstn.nn.factory import make_model, mnist_cnn, mnist_pstn, mnist_stn
from pstn.nn.layer import SpatialTransformer, TransformerOutput, Unwarped
from pstn.nn.metadata import ModelMetadata, Shareable
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
    "BackboneClassifier",
    "ConvClassifier",
    "ConvLocalizer",
    "EfficientNetLite0",
    "Frozen",
    "GlobalLocalizer",
    "ModelMetadata",
    "PoseLocalizer",
    "Prediction",
    "Pretrained",
    "SeriesClassifier",
    "SeriesLocalizer",
    "Shareable",
    "SpatialTransformer",
    "TimmNetwork",
    "TransformerClassifier",
    "TransformerModel",
    "TransformerOutput",
    "Trunk",
    "Unwarped",
    "find_pretrained",
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
    return old_names(__name__, {"About": "ModelMetadata"})(name)
