"""The experiments of the paper, each a declaration of data, models and settings, and what runs them."""

from pstn.experiments.calibration import CALIBRATION
from pstn.experiments.declare import Experiment
from pstn.experiments.execute import Stopped
from pstn.experiments.lab import Lab
from pstn.experiments.mnist_subsets import MNIST_SUBSETS
from pstn.experiments.mnist_subsets import SEARCH as MNIST_SEARCH
from pstn.experiments.reproduce import Shard, choose, plan, reproduce
from pstn.experiments.rotated_mnist import ROTATED_MNIST

__all__ = ["EXPERIMENTS", "Experiment", "Lab", "Shard", "Stopped", "choose", "plan", "reproduce"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (ROTATED_MNIST, MNIST_SUBSETS, CALIBRATION, MNIST_SEARCH)
}
"""All experiments by name, in the paper's order; the searches for w last."""
