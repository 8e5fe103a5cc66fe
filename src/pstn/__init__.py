"""Probabilistic Spatial Transformer Networks: networks that learn a distribution over where to look."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pstn import nn
from pstn.distributions import (
    AtMode, GammaPrior, Gated, GatedPosterior, Global, Hierarchical, Mixture, MixturePosterior, NoPrior, Normal,
    NormalPosterior, NormalPrior, Point, PointPosterior, Posterior, PosteriorFamily, Prior, StudentT,
    ThetaDistribution,
)  # fmt: skip
from pstn.io import from_pretrained, load_weights, push_to_hub, register, save_pretrained
from pstn.nn import PSTN, STN, About, Prediction, SpatialTransformer, TransformerOutput, wrap
from pstn.noise import draw_noise
from pstn.objective import Loss, elbo_loss
from pstn.training.calibrate import calibrate
from pstn.training.distil import distil
from pstn.training.evaluate import Scores, evaluate
from pstn.training.fit import Epoch, fit
from pstn.transforms import (
    CPAB, Affine, Compose, Crop, MatrixTransform, Rotation, Similarity, SmoothPrior, Transform, Translation,
    from_pixels, make_transform, to_pixels,
)  # fmt: skip
from pstn.uncertainty import (
    accuracy, brier_score, calibration_error, entropy, mutual_information, negative_log_likelihood, reliability_curve,
)  # fmt: skip
from pstn.warp import warp

if TYPE_CHECKING:
    # Not in __all__: a star-import would load them all, and need scikit-learn.
    from pstn import bench as bench, data as data, estimators as estimators, experiments as experiments  # fmt: skip
    from pstn import export as export, predict as predict, report as report, training as training  # fmt: skip
    from pstn.estimators import (
        CNNClassifier as CNNClassifier, PSTNClassifier as PSTNClassifier, STNClassifier as STNClassifier,
    )  # fmt: skip

__all__ = [
    "CPAB", "PSTN", "STN", "About", "Affine", "AtMode", "Compose", "Crop", "Epoch", "GammaPrior", "Gated",
    "GatedPosterior", "Global", "Hierarchical", "Loss", "MatrixTransform", "Mixture", "MixturePosterior", "NoPrior",
    "Normal", "NormalPosterior", "NormalPrior", "Point", "PointPosterior", "Posterior", "PosteriorFamily", "Prediction",
    "Prior", "Rotation", "Scores", "Similarity", "SmoothPrior", "SpatialTransformer", "StudentT", "ThetaDistribution",
    "Transform", "TransformerOutput", "Translation", "accuracy", "brier_score", "calibrate", "calibration_error",
    "distil", "draw_noise", "elbo_loss", "entropy", "evaluate", "fit", "from_pixels", "from_pretrained", "load_weights",
    "make_transform", "mutual_information", "negative_log_likelihood", "nn", "push_to_hub", "register",
    "reliability_curve", "save_pretrained", "to_pixels", "warp", "wrap",
]  # fmt: skip

__version__ = "0.2.0"

_MODULES = ("bench", "data", "experiments", "export", "predict", "report", "training")
_ESTIMATORS = ("CNNClassifier", "PSTNClassifier", "STNClassifier")


def __getattr__(name: str) -> Any:
    """Load the rest when it is asked for: it takes time, and the estimators scikit-learn, which not everybody has."""
    if name in (*_MODULES, "estimators"):
        return import_module(f"{__name__}.{name}")
    if name in _ESTIMATORS:
        return getattr(import_module(f"{__name__}.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names that are there, and the modules; not the estimators: reading all names would need scikit-learn."""
    return sorted({*globals(), *_MODULES})
