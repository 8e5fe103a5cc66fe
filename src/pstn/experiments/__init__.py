"""The experiments of the paper, each a declaration of data, models, settings and claims, and what runs them."""

from pstn._deprecation import old_names
from pstn.experiments import ablations, calibration, failure_mode, finding, little_data, loss_landscape, mnist_subsets

# isort: split
from pstn.experiments import per_input, placed_fashion, prediction_cost, prior, rotated_12k, rotated_mnist

# isort: split
from pstn.experiments import time_series, traffic_signs

# isort: split
from pstn.experiments.runner import ACCURACY, ECE, NLL, SCORES, Evaluation, Experiment, ModelUnderTest, RunContext

# isort: split
from pstn.experiments.runner import Shard, Stopped, Task, Training, choose, plan, reproduce, same, trained

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
        rotated_mnist.ROTATED_MNIST, placed_fashion.PLACED_FASHION, traffic_signs.TRAFFIC_SIGNS,
        mnist_subsets.MNIST_SUBSETS, time_series.TIME_SERIES, calibration.CALIBRATION, failure_mode.FAILURE_MODE,
        loss_landscape.LOSS_LANDSCAPE, prior.PRIOR, ablations.ABLATIONS, finding.FINDING, rotated_12k.ROTATED_12K,
        little_data.LITTLE_DATA, prediction_cost.PREDICTION_COST, per_input.PER_INPUT, mnist_subsets.OWN_FOLDS,
        mnist_subsets.STN_START, mnist_subsets.MORE_SEEDS,
        mnist_subsets.SEARCH, time_series.SEARCH, little_data.SEARCH, per_input.SEARCH, placed_fashion.LONG,
        traffic_signs.SEARCH, traffic_signs.ON_MTSD,
    )
}  # fmt: skip
"""All experiments by name, in the paper's order; the searches for w last."""

__getattr__ = old_names(__name__, {"Lab": "RunContext"})
