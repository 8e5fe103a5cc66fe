"""A typical failure mode: does the localizer still transform when the classifier gets deeper (section 5.4)?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch import nn

from pstn.experiments.rotated_mnist import KL_WEIGHT, ROTATING, SCHEDULE, make_layer, rotated, upright
from pstn.experiments.runner import Experiment, Found, Probe, Training, same
from pstn.nn import PSTN, STN

__all__ = ["FAILURE_MODE", "make_classifier"]

# Widths of the classifiers of one to five linear layers.
WIDTHS = {
    1: (784, 10),
    2: (784, 128, 10),
    3: (784, 256, 128, 10),
    4: (784, 256, 256, 128, 10),
    5: (784, 256, 256, 128, 128, 10),
}
# ×0.1 every 10 epochs: a thousandth of the first by then.
EPOCHS = 30
UPRIGHT_RECIPE, ROTATED_RECIPE = replace(SCHEDULE, epochs=EPOCHS), replace(ROTATING, epochs=EPOCHS)
_DEPARTURES = (
    f"{EPOCHS} epochs instead of 100: the learning rate, ×0.1 every 10 epochs, is a thousandth of the first by then.",
    "The learning rate (1e-3) and weight decay (1e-5) are rotated MNIST's; none is known for this experiment.",
    "The localizers are those of the rotated MNIST experiment; the paper does not name them.",
)


def make_classifier(depth: int) -> nn.Module:
    """A classifier of `depth` linear layers, each hidden one followed by ReLU and dropout 0.5."""
    *hidden, last = pairwise(WIDTHS[depth])
    stages = [stage for a, b in hidden for stage in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5))]
    return nn.Sequential(nn.Flatten(), *stages, nn.Linear(*last))


def _angle_variance(probe: Probe) -> Found:
    """How much the mean angle varies from image to image: 0 where nothing is transformed."""
    mean = probe.answers.loc
    return {"angle_variance": 0.0 if mean is None else float(mean.var())}, {}


def _of_depth(depth: int) -> Iterator[Training]:
    nn_upright = Training(
        "failure-mode", "NN", "upright", upright, same(lambda: make_classifier(depth)), UPRIGHT_RECIPE,
        variants={f"depth={depth}": 0.0}, lr=1e-3, localizer_factor=0.1, weight_decay=1e-5,
        measures=(_angle_variance,), departures=_DEPARTURES[:2],
    )  # fmt: skip
    yield nn_upright
    yield replace(nn_upright, data="rotated", task=rotated, recipe=ROTATED_RECIPE)
    stn = replace(
        nn_upright, model="STN", data="rotated", task=rotated, recipe=ROTATED_RECIPE, departures=_DEPARTURES,
        make=same(lambda: STN(make_layer(probabilistic=False), make_classifier(depth))),
    )  # fmt: skip
    yield stn
    yield replace(
        stn, model="P-STN", variants={f"depth={depth}": KL_WEIGHT},
        make=same(lambda: PSTN(make_layer(probabilistic=True), make_classifier(depth), train_samples=10)),
    )  # fmt: skip


FAILURE_MODE = Experiment(
    "failure-mode",
    "Accuracy and variance of the learned angle by the depth of the classifier, nothing frozen",
    needs=("mnist",),
    groups=tuple(group for depth in WIDTHS for group in _of_depth(depth)),
    quick=("upright-nn-depth=1", "rotated-nn-depth=1", "rotated-stn-depth=1", "rotated-p-stn-depth=1",
           "rotated-stn-depth=5", "rotated-p-stn-depth=5"),
)  # fmt: skip
