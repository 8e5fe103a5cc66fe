"""Networks: localizers, the spatial transformer layer, classifiers."""

from pstn.nn.about import About
from pstn.nn.classifier import PSTN, STN, Prediction, TransformerClassifier, TransformerModel
from pstn.nn.factory import make_model, mnist_cnn, mnist_pstn, mnist_stn
from pstn.nn.layer import SpatialTransformer, TransformerOutput
from pstn.nn.networks import ConvClassifier, ConvLocalizer, GlobalLocalizer, SeriesClassifier, SeriesLocalizer
from pstn.nn.pretrained import ModelFileError, Shareable, from_pretrained, load_weights
from pstn.nn.wrap import Frozen, wrap

__all__ = [
    "PSTN",
    "STN",
    "About",
    "ConvClassifier",
    "ConvLocalizer",
    "Frozen",
    "GlobalLocalizer",
    "ModelFileError",
    "Prediction",
    "SeriesClassifier",
    "SeriesLocalizer",
    "Shareable",
    "SpatialTransformer",
    "TransformerClassifier",
    "TransformerModel",
    "TransformerOutput",
    "from_pretrained",
    "load_weights",
    "make_model",
    "mnist_cnn",
    "mnist_pstn",
    "mnist_stn",
    "wrap",
]
