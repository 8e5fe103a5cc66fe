"""The experiments of the paper, each a declaration of data, models, settings and claims, and what runs them."""

from pstn._deprecation import old_names
from pstn.experiments.ablations import ABLATIONS
from pstn.experiments.calibration import CALIBRATION
from pstn.experiments.failure_mode import FAILURE_MODE
from pstn.experiments.little_data import SEARCH as LITTLE_DATA_SEARCH
from pstn.experiments.loss_landscape import LOSS_LANDSCAPE
from pstn.experiments.mnist_subsets import MNIST_SUBSETS
from pstn.experiments.mnist_subsets import SEARCH as MNIST_SEARCH
from pstn.experiments.placed_fashion import PLACED_FASHION
from pstn.experiments.rotated_mnist import ROTATED_MNIST
from pstn.experiments.runner import (
    ACCURACY,
    ECE,
    NLL,
    SCORES,
    Evaluation,
    Experiment,
    ModelUnderTest,
    RunContext,
    Shard,
    Stopped,
    Task,
    Training,
    choose,
    plan,
    reproduce,
    same,
    trained,
)
from pstn.experiments.time_series import SEARCH as SERIES_SEARCH
from pstn.experiments.time_series import TIME_SERIES
from pstn.experiments.traffic_signs import TRAFFIC_SIGNS

__all__ = ["ACCURACY", "ECE", "EXPERIMENTS", "NLL", "SCORES", "Evaluation", "Experiment", "ModelUnderTest",
           "RunContext", "Shard", "Stopped", "Task", "Training", "choose", "plan", "reproduce", "same",
           "trained"]  # fmt: skip

TITLE = "Probabilistic Spatial Transformer Networks, reproduced"
INTRODUCTION = (
    "The experiments of “Probabilistic Spatial Transformer Networks” (Schwöbel, Warburg, Jørgensen, Madsen and "
    "Hauberg, UAI 2022): our runs beside the published numbers."
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        ROTATED_MNIST, PLACED_FASHION, TRAFFIC_SIGNS, MNIST_SUBSETS, TIME_SERIES, CALIBRATION, FAILURE_MODE,
        LOSS_LANDSCAPE, ABLATIONS, MNIST_SEARCH, SERIES_SEARCH, LITTLE_DATA_SEARCH,
    )
}  # fmt: skip
"""All experiments by name, in the paper's order; the searches for w last."""

__getattr__ = old_names(__name__, {"Lab": "RunContext"})
