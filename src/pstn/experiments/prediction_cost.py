"""Beyond the paper: what a prediction costs. Accuracy and likelihood by the number of samples and how they are drawn.

The P-STN of Table 1 for 100 digits predicts from S samples of its posterior. The same trained models are tested with
independent, antithetic and Sobol samples. The claim: four samples that are spread evenly are as good as ten independent
ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pstn.experiments import mnist_subsets, runner
from pstn.experiments.runner import ACCURACY, ECE, NLL
from pstn.noise import SamplingMethod
from pstn.report.figures import draw_curves
from pstn.report.tables import Claim, FigureSpec, Line, Metric, Table

if TYPE_CHECKING:
    from pstn.report.results import Result

NAME, FOLDS, DATA = "prediction-cost", 10, "MNIST100"
METHODS: dict[SamplingMethod, str] = {"iid": "independent", "antithetic": "antithetic", "sobol": "Sobol"}
SAMPLES = (1, 2, 4, 5, 10, 20)
TRAINED = replace(
    mnist_subsets.of_size(100)["P-STN"], experiment=NAME, model="trained", keep=True, seeds=FOLDS, departures=()
)


def _measure(
    method: SamplingMethod, samples: int, context: runner.RunContext, cell: Result
) -> tuple[dict[str, float], dict[str, object], dict[str, object]]:
    """Scores of a trained model with so many samples."""
    task, model = TRAINED.task(context), runner.trained(context, TRAINED, cell.seed)
    model.get_submodule("layer").sampling = method  # type: ignore[assignment]
    test = context.quick_subset(task.test)
    found = runner.predict(model, test, seed=cell.seed, samples=samples, batch=task.batch)
    return runner.classification_scores(found), {}, {"sampling": method, "samples": samples}


def _line(method: SamplingMethod, samples: int, metric: Metric) -> Line:
    return Line(
        METHODS[method], DATA, metric, f"S={samples}", row=str(samples), column=METHODS[method],
        rivals=f"{samples} {metric.name}",
    )  # fmt: skip


GROUPS = tuple(
    runner.Evaluation(NAME, label, DATA, partial(_measure, method, samples), f"S={samples}", seeds=FOLDS)
    for samples in SAMPLES for method, label in METHODS.items()
)  # fmt: skip

TABLES = tuple(
    Table("MNIST100", tuple(_line(method, samples, metric) for samples in SAMPLES for method in METHODS), row_label="S")
    for metric in (ACCURACY, NLL, ECE)
)

PREDICTION_COST = runner.Experiment(
    NAME,
    "What a prediction costs",
    runner.description_of(__doc__),
    summary="Accuracy and NLL by the number of samples, independent, antithetic and Sobol",
    needs=("mnist",),
    groups=(TRAINED, *GROUPS),
    tables=TABLES,
    claims=tuple(
        Claim(_line("sobol", 4, metric), _line("iid", 10, metric), paired=True, margin=margin)
        for metric, margin in ((ACCURACY, 0.5), (NLL, 0.01))
    ),
    figures=(
        FigureSpec(
            NAME,
            "Ten folds, mean ± one standard deviation, by the number of samples of a prediction.",
            partial(draw_curves, tables=TABLES[:2], xlabel="samples S", log=True),
        ),
    ),
    seeds=FOLDS,
    from_paper=False,
    holm=True,
    extra=True,
)
