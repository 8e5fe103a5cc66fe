"""The calibration figure: reliability and expected calibration error on MNIST100 (section 5.3).

Confidence against accuracy of the models trained on 100 digits. The paper claims that both P-STNs, the more accurate
(w = 0.0003) and the better calibrated (w = 0.0001), are better calibrated than the CNN and the STN. In our search on
validation images the best calibrated is w = 3e-05.

Accuracy by confidence in 15 bins, five folds together; pale: bins with less than 50 of the 50,000 predictions; dotted:
perfect calibration. Below: the share of the predictions in each bin. The calibration errors (ECE) are those of the
table, in 10 bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pstn.experiments import runner
from pstn.experiments.mnist_subsets import MODELS, of_size
from pstn.report import Claim, FigureSpec, Line, Metric, Published, Result, Table, figures
from pstn.training.evaluate import find_temperature

# w with the best accuracy and w with the best calibration, in the paper; w with the best calibration in our search.
WEIGHTS = {"w=0.0003": 3e-4, "w=0.0001": 1e-4, "w=3e-05": 3e-5}
DATA, OWN_FOLDS = "MNIST100", "MNIST100, own folds"
_BEST = Published("0.0271 ± 0.0088", bold=True)
_PAPER = {
    ("CNN", ""): Published("0.0743 ± 0.0094"), ("STN", ""): Published("0.1160 ± 0.0205"),
    ("P-STN", "w=0.0003"): Published("0.0567 ± 0.0065"), ("P-STN", "w=0.0001"): _BEST, ("P-STN", "w=3e-05"): _BEST,
}  # fmt: skip


def _lines(data: str) -> dict[tuple[str, str], Line]:
    return {cell: Line(cell[0], data, runner.ECE10, cell[1], paper) for cell, paper in _PAPER.items()}


PUBLISHED, _OWN = _lines(DATA), _lines(OWN_FOLDS)


def measure(tested: runner.ModelUnderTest) -> runner.Measured:
    """The reliability curve, and scores under the temperature that fits validation images best."""
    train, held_out, _ = tested.context.data("mnist", normalise=True)
    # The authors' folds may hold validation images: the last of all.
    used = set(() if (fold := tested.task.train(tested.cell.seed)) is None else fold.tolist())
    unseen = held_out.take([k for k in range(len(held_out)) if len(train) + k not in used])
    validation = runner.predict(tested.model, unseen, seed=tested.cell.seed)
    temperature = find_temperature(validation.log_probs, validation.y)
    scaled = (tested.predictions.log_probs / temperature).log_softmax(-1)
    scores = runner.classification_scores(tested.predictions._replace(log_probs=scaled))
    metrics = {"temperature": temperature, "scaled_nll": scores["nll"], "scaled_ece10": scores["ece10"]}
    return metrics, {"reliability": runner.reliability(tested.predictions)}


def _group(model: str, *, authors_folds: bool) -> runner.Training:
    """The training of Table 1, with calibration measured."""
    return replace(
        of_size(100, authors_folds=authors_folds)[model], experiment="calibration", measures=(measure,),
        data=DATA if authors_folds else OWN_FOLDS, variants=WEIGHTS if model == "P-STN" else {"": 0.0},
    )  # fmt: skip


def _draw(results: Sequence[Result]) -> figures.Figure:
    """On the authors' folds, or on our own where those were not run."""
    return figures.draw_reliability([r for r in results if r.data == DATA] or results)


_SHOWN = (
    *runner.SCORES, Metric("temperature", "temperature", digits=2, higher_is_better=None),
    Metric("scaled_nll", "NLL with it"), Metric("scaled_ece10", "calibration error with it, 10 bins", digits=4),
)  # fmt: skip

CALIBRATION = runner.Experiment(
    "calibration", "Calibration on MNIST100", runner.description_of(__doc__),
    summary="Reliability diagrams and calibration error on MNIST100, five folds",
    needs=("mnist",),
    groups=tuple(_group(model, authors_folds=authors) for authors in (True, False) for model in MODELS),
    tables=(
        Table(
            "MNIST100", tuple(PUBLISHED.values()), notes=(
                "The paper does not say how many bins it took; it is compared with ours in 10 bins. Its best "
                "calibrated model has w = 0.0001, ours, by validation, 3e-05: both stand beside its number.",
            ),
        ),
        Table("MNIST100, own folds", tuple(_OWN.values())),
        *(
            Table(
                data, tuple(
                    Line(model, data, metric, variant, row=f"{model} {variant}".strip(), column=metric.label,
                         rivals=metric.name)
                    for model, variant in PUBLISHED for metric in shown
                ),
                row_label="model",
            )
            for data, shown in ((DATA, _SHOWN), (OWN_FOLDS, runner.SCORES))
        ),
    ),
    claims=tuple(
        Claim(lines["P-STN", variant], lines[other, ""], paired=True)
        for lines in (PUBLISHED, _OWN) for variant in WEIGHTS for other in ("CNN", "STN")
    ),
    figures=(FigureSpec("calibration", runner.description_of(__doc__, 2), _draw),),
)  # fmt: skip
