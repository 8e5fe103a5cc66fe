"""Distributions over theta, the families that make them from a localizer's features, and priors."""

from pstn.distributions.base import GammaPrior, NoPrior, NormalPrior, PosteriorFamily, Prior, Region, ThetaDistribution
from pstn.distributions.mixture import Gated, GatedPosterior, Global, Hierarchical, Mixture, MixturePosterior
from pstn.distributions.normal import Normal, NormalPosterior, normal_quantile
from pstn.distributions.point import AtMode, Point, PointPosterior
from pstn.distributions.student_t import Posterior, StudentT

__all__ = [
    "AtMode", "GammaPrior", "Gated", "GatedPosterior", "Global", "Hierarchical", "Mixture", "MixturePosterior",
    "NoPrior", "Normal", "NormalPosterior", "NormalPrior", "Point", "PointPosterior", "Posterior", "PosteriorFamily",
    "Prior", "Region", "StudentT", "ThetaDistribution", "normal_quantile",
]  # fmt: skip
