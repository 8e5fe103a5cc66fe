"""The experiments of the paper, each a declaration of data, models, settings and claims, and what runs them."""

from pstn._deprecation import old_names
from pstn.experiments import ablations, calibration, failure_mode, finding, little_data, loss_landscape, mnist_subsets

# isort: split
from pstn.experiments import placed_fashion, prediction_cost, rotated_mnist, time_series, traffic_signs

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
        loss_landscape.LOSS_LANDSCAPE, ablations.ABLATIONS, finding.FINDING, little_data.LITTLE_DATA,
        prediction_cost.PREDICTION_COST, mnist_subsets.SEARCH, time_series.SEARCH, little_data.SEARCH,
    )
}  # fmt: skip
"""All experiments by name, in the paper's order; the searches for w last."""

__getattr__ = old_names(__name__, {"Lab": "RunContext"})
