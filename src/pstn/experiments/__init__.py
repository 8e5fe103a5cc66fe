"""The experiments of the paper, each a declaration of data, models and settings, and what runs them."""

from pstn.experiments.ablations import ABLATIONS
from pstn.experiments.calibration import CALIBRATION
from pstn.experiments.failure_mode import FAILURE_MODE
from pstn.experiments.loss_landscape import LOSS_LANDSCAPE
from pstn.experiments.mnist_subsets import MNIST_SUBSETS
from pstn.experiments.mnist_subsets import SEARCH as MNIST_SEARCH
from pstn.experiments.placed_fashion import PLACED_FASHION
from pstn.experiments.rotated_mnist import ROTATED_MNIST
from pstn.experiments.runner import Experiment, Lab, Shard, Stopped, choose, plan, reproduce
from pstn.experiments.time_series import SEARCH as SERIES_SEARCH
from pstn.experiments.time_series import TIME_SERIES
from pstn.experiments.traffic_signs import TRAFFIC_SIGNS

__all__ = ["EXPERIMENTS", "Experiment", "Lab", "Shard", "Stopped", "choose", "plan", "reproduce"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        ROTATED_MNIST, PLACED_FASHION, TRAFFIC_SIGNS, MNIST_SUBSETS, TIME_SERIES, CALIBRATION, FAILURE_MODE,
        LOSS_LANDSCAPE, ABLATIONS, MNIST_SEARCH, SERIES_SEARCH,
    )
}  # fmt: skip
"""All experiments by name, in the paper's order; the searches for w last."""
