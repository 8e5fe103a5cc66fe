"""The calibration figure: reliability and expected calibration error on MNIST100 (section 5.3).

Confidence against accuracy of the models trained on 100 digits. The paper claims that both P-STNs, the more accurate
(w = 0.0003) and the better calibrated (w = 0.0001), are better calibrated than the CNN and the STN.

Accuracy by confidence in 15 bins, five folds together; dotted: perfect calibration. Below: the share of the predictions
in each bin. The calibration errors (ECE) are those of the table, in 10 bins.
"""

from __future__ import annotations

from dataclasses import replace

from pstn.experiments import runner
from pstn.experiments.mnist_subsets import MODELS, of_size
from pstn.report import Claim, FigureSpec, Line, Published, Table, figures

# w with the best accuracy, and w with the best calibration.
WEIGHTS = {"w=0.0003": 3e-4, "w=0.0001": 1e-4}
PUBLISHED = {
    (model, variant): Line(model, "MNIST100", runner.ECE10, variant, paper)
    for model, variant, paper in (
        ("CNN", "", Published("0.0743 ± 0.0094")),
        ("STN", "", Published("0.1160 ± 0.0205")),
        ("P-STN", "w=0.0003", Published("0.0567 ± 0.0065")),
        ("P-STN", "w=0.0001", Published("0.0271 ± 0.0088", bold=True)),
    )
}


def _reliability(tested: runner.ModelUnderTest) -> runner.Measured:
    return {}, {"reliability": runner.reliability(tested.predictions)}


CALIBRATION = runner.Experiment(
    "calibration",
    "Calibration on MNIST100",
    runner.description_of(__doc__),
    summary="Reliability diagrams and calibration error on MNIST100, five folds",
    needs=("mnist",),
    groups=tuple(  # the trainings of Table 1, with reliability measured
        replace(
            of_size(100)[model], experiment="calibration", measures=(_reliability,),
            variants=WEIGHTS if model == "P-STN" else {"": 0.0},
        )
        for model in MODELS
    ),
    tables=(
        Table(
            "MNIST100",
            tuple(PUBLISHED.values()),
            notes=("The paper does not say how many bins it took; it is compared with ours in 10 bins.",),
        ),
        Table(
            "MNIST100",
            tuple(
                Line(model, "MNIST100", metric, variant, row=f"{model} {variant}".strip(), column=metric.label,
                     rivals=metric.name)
                for model, variant in PUBLISHED for metric in runner.SCORES
            ),
            row_label="model",
        ),
    ),
    claims=tuple(
        Claim(PUBLISHED["P-STN", variant], PUBLISHED[other, ""]) for variant in WEIGHTS for other in ("CNN", "STN")
    ),
    figures=(FigureSpec("calibration", runner.description_of(__doc__, 2), figures.draw_reliability),),
)  # fmt: skip
