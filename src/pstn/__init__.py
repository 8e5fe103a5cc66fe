"""Probabilistic Spatial Transformer Networks: networks that learn where to look, and know how sure they are."""

from typing import TYPE_CHECKING, Any

from pstn import nn
from pstn.nn import (
    PSTN,
    STN,
    About,
    Prediction,
    SpatialTransformer,
    TransformerOutput,
    from_pretrained,
    load_weights,
    wrap,
)
from pstn.noise import draw_noise
from pstn.objective import elbo_loss
from pstn.posterior import PointPosterior, Posterior
from pstn.training.single import Epoch, Scores, evaluate, fit
from pstn.transforms import (
    CPAB,
    Affine,
    Compose,
    Crop,
    MatrixTransform,
    Rotation,
    Similarity,
    SmoothPrior,
    Transform,
    Translation,
    from_pixels,
    make_transform,
    to_pixels,
)
from pstn.uncertainty import (
    accuracy,
    brier_score,
    calibration_error,
    entropy,
    mutual_information,
    negative_log_likelihood,
    reliability_curve,
)
from pstn.warp import warp

if TYPE_CHECKING:
    # Not in __all__: a star-import would need scikit-learn.
    from pstn.estimators import CNNClassifier as CNNClassifier
    from pstn.estimators import PSTNClassifier as PSTNClassifier
    from pstn.estimators import STNClassifier as STNClassifier

__all__ = [
    "CPAB",
    "PSTN",
    "STN",
    "About",
    "Affine",
    "Compose",
    "Crop",
    "Epoch",
    "MatrixTransform",
    "PointPosterior",
    "Posterior",
    "Prediction",
    "Rotation",
    "Scores",
    "Similarity",
    "SmoothPrior",
    "SpatialTransformer",
    "Transform",
    "TransformerOutput",
    "Translation",
    "accuracy",
    "brier_score",
    "calibration_error",
    "draw_noise",
    "elbo_loss",
    "entropy",
    "evaluate",
    "fit",
    "from_pixels",
    "from_pretrained",
    "load_weights",
    "make_transform",
    "mutual_information",
    "negative_log_likelihood",
    "nn",
    "reliability_curve",
    "to_pixels",
    "warp",
    "wrap",
]

__version__ = "0.1.0"

_ESTIMATORS = ("CNNClassifier", "PSTNClassifier", "STNClassifier")


def __getattr__(name: str) -> Any:
    """Load the estimators when they are asked for: they need scikit-learn, which not everybody has."""
    if name in _ESTIMATORS:
        from pstn import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
