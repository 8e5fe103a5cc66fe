"""A typical failure mode: does the localizer still transform when the classifier gets deeper (section 5.4)?

Nothing is frozen; classifiers of one to five linear layers learn rotated MNIST. The paper claims that the STN comes
to apply the identity, the sooner the deeper the classifier, and that the P-STN stays above it. It gives a figure, no
numbers.

Accuracy and the variance of the recovered angle by the depth of the classifier: a small dot for each of five runs, the
line through their medians. A variance near 0 is the identity: with three layers some P-STNs learn to turn, and others
do not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

from torch import nn

from pstn.experiments import runner
from pstn.experiments.rotated_mnist import KL_WEIGHT, ROTATING, SCHEDULE, make_layer, rotated, upright
from pstn.report import Claim, FigureSpec, Line, Metric, Table, figures

# Widths of the classifiers of one to five linear layers.
WIDTHS = {
    1: (784, 10), 2: (784, 128, 10), 3: (784, 256, 128, 10), 4: (784, 256, 256, 128, 10),
    5: (784, 256, 256, 128, 128, 10),
}  # fmt: skip
_DEPARTURES = (
    "30 epochs instead of 100: the learning rate, ×0.1 every 10 epochs, is a thousandth of the first by then.",
    "The learning rate, 1e-3, is rotated MNIST's: neither paper nor code states one for this experiment.",
    "The localizers are those of the rotated MNIST experiment; the paper does not name them.",
)


def make_classifier(depth: int) -> nn.Module:
    """A classifier of `depth` linear layers, each hidden one followed by ReLU and dropout 0.5."""
    *hidden, last = pairwise(WIDTHS[depth])
    stages = [stage for a, b in hidden for stage in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5))]
    return nn.Sequential(nn.Flatten(), *stages, nn.Linear(*last))


def _angle_variance(tested: runner.ModelUnderTest) -> runner.Measured:
    """How much the mean angle varies from image to image: 0 where nothing is transformed."""
    theta = tested.predictions.theta
    return {"angle_variance": 0.0 if theta is None else float(theta.var())}, {}


def _of_depth(depth: int) -> tuple[runner.Training, ...]:
    nn_upright = runner.Training(
        "failure-mode", "NN", "upright", upright, runner.same(lambda: make_classifier(depth)),
        replace(SCHEDULE, epochs=30), variants={f"depth={depth}": 0.0}, lr=1e-3, localizer_factor=0.1,
        weight_decay=1e-5, measures=(_angle_variance,), departures=_DEPARTURES[:2],
    )  # fmt: skip
    nn_rotated = replace(nn_upright, data="rotated", task=rotated, recipe=replace(ROTATING, epochs=30))

    def with_transformer(model: str, kl_weight: float) -> runner.Training:
        make = runner.same(lambda: runner.transformer_model(make_layer(model == "P-STN"), make_classifier(depth)))
        variants = {f"depth={depth}": kl_weight}
        return replace(nn_rotated, model=model, make=make, variants=variants, departures=_DEPARTURES)

    return nn_upright, nn_rotated, with_transformer("STN", 0.0), with_transformer("P-STN", KL_WEIGHT)


def _by_depth(metric: Metric, *columns: tuple[str, str, str]) -> dict[tuple[str, int], Line]:
    """A line for each depth and column; a column has a heading, a model and data."""
    return {
        (name, depth): Line(model, data, metric, f"depth={depth}", row=f"{depth} layer{'s' * (depth > 1)}", column=name)
        for depth in WIDTHS
        for name, model, data in columns
    }


_LOCALIZED = (("STN", "STN", "rotated"), ("P-STN", "P-STN", "rotated"))
_ACCURACY = _by_depth(runner.ACCURACY, ("NN, upright", "NN", "upright"), ("NN, rotated", "NN", "rotated"), *_LOCALIZED)
_VARIANCE = Metric("angle_variance", "variance of the recovered angle", higher_is_better=True)
_TABLES = tuple(
    Table("Failure mode", tuple(shown.values()), "classifier", robust=True, bold=False)
    for shown in (_ACCURACY, _by_depth(_VARIANCE, *_LOCALIZED))
)

FAILURE_MODE = runner.Experiment(
    "failure-mode", "A typical failure mode: the identity", runner.description_of(__doc__),
    summary="Accuracy and variance of the learned angle by the depth of the classifier, nothing frozen",
    needs=("mnist",),
    groups=tuple(group for depth in WIDTHS for group in _of_depth(depth)),
    quick=("upright-nn-depth=1", "rotated-nn-depth=1", "rotated-stn-depth=1", "rotated-p-stn-depth=1",
           "rotated-stn-depth=5", "rotated-p-stn-depth=5"),
    tables=_TABLES,
    claims=tuple(Claim(_ACCURACY["P-STN", depth], _ACCURACY["STN", depth], robust=True) for depth in WIDTHS),
    figures=(
        FigureSpec(
            "failure-mode", runner.description_of(__doc__, 2),
            partial(figures.draw_curves, tables=_TABLES, xlabel="layers of the classifier"),
        ),
    ),
)  # fmt: skip
