"""Networks: localizers, the spatial transformer layer, classifiers."""

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
    InceptionClassifier,
    Masked,
    PoseLocalizer,
    ResNetClassifier,
    RocketFeatures,
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
    "InceptionClassifier",
    "Masked",
    "ModelMetadata",
    "PoseLocalizer",
    "Prediction",
    "Pretrained",
    "ResNetClassifier",
    "RocketFeatures",
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

__getattr__ = old_names(
    __name__,
    {
        "About": "ModelMetadata", "ModelFileError": "pstn.io.ModelFileError", "from_pretrained": "pstn.from_pretrained",
        "load_weights": "pstn.load_weights",
    },
)  # fmt: skip
