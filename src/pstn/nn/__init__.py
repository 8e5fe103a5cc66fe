"""Networks: localizers, the spatial transformer layer, classifiers."""

from pstn.nn.classifier import PSTN, STN, Prediction, TransformerClassifier
from pstn.nn.layer import SpatialTransformer, TransformerOutput
from pstn.nn.networks import ConvClassifier, ConvLocalizer, GlobalLocalizer, SeriesClassifier, SeriesLocalizer
from pstn.nn.paper import mnist_cnn, mnist_pstn, mnist_stn
from pstn.nn.wrap import Frozen, wrap

__all__ = [
    "PSTN",
    "STN",
    "ConvClassifier",
    "ConvLocalizer",
    "Frozen",
    "GlobalLocalizer",
    "Prediction",
    "SeriesClassifier",
    "SeriesLocalizer",
    "SpatialTransformer",
    "TransformerClassifier",
    "TransformerOutput",
    "mnist_cnn",
    "mnist_pstn",
    "mnist_stn",
    "wrap",
]
