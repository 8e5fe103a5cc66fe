"""The public names of the package, which `pstn` loads when the first of them is asked for."""

from pstn import nn
from pstn.abstaining import Abstention
from pstn.distributions import (
    AtMode, GammaPrior, Gated, GatedPosterior, Global, Hierarchical, Mixture, MixturePosterior, NoPrior, Normal,
    NormalPosterior, NormalPrior, Point, PointPosterior, Posterior, PosteriorFamily, Prior, StudentT,
    ThetaDistribution,
)  # fmt: skip
from pstn.io import from_pretrained, load_weights, push_to_hub, register, save_pretrained, set_constructor
from pstn.nn import PSTN, STN, ModelMetadata, Prediction, SpatialTransformer, TransformerOutput, Unwarped, wrap
from pstn.noise import draw_noise
from pstn.objective import Loss, elbo_loss
from pstn.plotting import plot
from pstn.training.evaluate import Scores, calibrate, evaluate, find_abstention
from pstn.training.fit import Epoch, distil, fit
from pstn.transforms import (
    CPAB, Affine, Compose, Crop, MatrixTransform, Rotation, Similarity, SmoothPrior, Transform, Translation,
    from_pixels, make_transform, to_pixels,
)  # fmt: skip
from pstn.uncertainty import (
    accuracy, brier_score, calibration_error, entropy, mutual_information, negative_log_likelihood, reliability_curve,
    risk_coverage_curve,
)  # fmt: skip
from pstn.warping import warp

__all__ = [
    "CPAB", "PSTN", "STN", "Abstention", "Affine", "AtMode", "Compose", "Crop", "Epoch", "GammaPrior", "Gated",
    "GatedPosterior", "Global", "Hierarchical", "Loss", "MatrixTransform", "Mixture", "MixturePosterior",
    "ModelMetadata", "NoPrior",
    "Normal", "NormalPosterior", "NormalPrior", "Point", "PointPosterior", "Posterior", "PosteriorFamily", "Prediction",
    "Prior", "Rotation", "Scores", "Similarity", "SmoothPrior", "SpatialTransformer", "StudentT", "ThetaDistribution",
    "Transform", "TransformerOutput", "Translation", "Unwarped", "accuracy", "brier_score", "calibrate",
    "calibration_error", "distil", "draw_noise", "elbo_loss", "entropy", "evaluate", "find_abstention", "fit",
    "from_pixels", "from_pretrained", "load_weights", "make_transform", "mutual_information", "negative_log_likelihood",
    "nn", "plot", "push_to_hub", "register", "reliability_curve", "risk_coverage_curve", "save_pretrained",
    "set_constructor", "to_pixels", "warp", "wrap",
]  # fmt: skip
