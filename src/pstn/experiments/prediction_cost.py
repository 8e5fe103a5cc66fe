"""Beyond the paper: what a prediction costs. Accuracy and likelihood by the number of samples and how they are drawn.

The P-STN of Table 1 for 100 digits predicts from S samples of its posterior. The same trained models are tested with
independent, antithetic and Sobol samples, and a student of each learns, from images without labels, to answer in one
pass what its teacher answers with ten samples. The claim: four samples that are spread evenly are as good as ten
independent ones. It is wanted that the student keep 80% of what ten samples gain over one.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pstn.experiments import mnist_subsets, runner
from pstn.experiments.runner import ACCURACY, ECE, NLL
from pstn.nn import PSTN
from pstn.noise import SamplingMethod
from pstn.report.figures import draw_curves
from pstn.report.tables import Claim, FigureSpec, Line, Metric, Table
from pstn.training.distil import distil

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


INPUTS = 10_000
"""Images without labels that a student learns from."""
STUDENT: dict[str, Any] = {"epochs": 15, "batch_size": 250, "lr": 1e-3, "weight_decay": 0.0}


def _student(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Scores of a student, and how much it keeps of what ten samples of its teacher gain over one."""
    task, teacher = TRAINED.task(context), runner.trained(context, TRAINED, cell.seed).to(context.device)
    assert isinstance(teacher, PSTN)
    settings = STUDENT | {"epochs": 1, "batch_size": 25} if context.quick else STUDENT
    inputs = task.x[: 50 if context.quick else INPUTS]
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        torch.manual_seed(cell.seed)
        student = distil(copy.deepcopy(teacher), inputs, samples=10, progress=False, **settings)
    test = context.quick_subset(task.test)
    scores, one, ten = (
        runner.classification_scores(runner.predict(model, test, seed=cell.seed, samples=s, batch=task.batch))
        for model, s in ((student, None), (teacher, 1), (teacher, 10))
    )
    kept = {
        f"kept_{name}": (scores[name] - one[name]) / ((ten[name] - one[name]) or math.nan)
        for name in ("accuracy", "nll")
    }
    teachers = {f"{name}_{s}": found[name] for s, found in ((1, one), (10, ten)) for name in ("accuracy", "nll")}
    return {**scores, **kept, **teachers}, {}, {**settings, "inputs": len(inputs)}


def _line(method: SamplingMethod, samples: int, metric: Metric) -> Line:
    return Line(
        METHODS[method], DATA, metric, f"S={samples}", row=str(samples), column=METHODS[method],
        rivals=f"{samples} {metric.name}",
    )  # fmt: skip


GROUPS = tuple(
    runner.Evaluation(NAME, label, DATA, partial(_measure, method, samples), f"S={samples}", seeds=FOLDS)
    for samples in SAMPLES for method, label in METHODS.items()
)  # fmt: skip
STUDENTS = runner.Evaluation(NAME, "student", DATA, _student, seeds=FOLDS)

TABLES = tuple(
    Table("MNIST100", tuple(_line(method, samples, metric) for samples in SAMPLES for method in METHODS), row_label="S")
    for metric in (ACCURACY, NLL, ECE)
)

_SCORES = (("accuracy", 100, 2, "accuracy (%)", True), ("nll", 1, 3, "NLL", False))
STUDENT_TABLE = Table(
    "A student in one pass",
    tuple(
        Line("student", DATA, Metric(f"{name}{suffix}", label, scale, digits, better), row=row, column=label)
        for name, scale, digits, label, better in _SCORES
        for row, suffix in (("teacher, S = 1", "_1"), ("teacher, S = 10", "_10"), ("student, one pass", ""))
    )
    + tuple(
        Line(
            "student",
            DATA,
            Metric(f"kept_{name}", f"kept of the gain in {label.removesuffix(' (%)')} (%)", 100, 0, None),
            row="student, one pass",
            column=f"kept of the gain in {label.removesuffix(' (%)')} (%)",
        )
        for name, _, _, label, _ in _SCORES
    ),
    "model",
    bold=False,
    notes=(f"The student has {INPUTS:,} training images without labels besides the teacher’s 100 labels.",),
)

PREDICTION_COST = runner.Experiment(
    NAME,
    "What a prediction costs",
    runner.description_of(__doc__),
    summary="Accuracy and NLL by the number of samples, independent, antithetic and Sobol",
    needs=("mnist",),
    groups=(TRAINED, *GROUPS, STUDENTS),
    tables=(*TABLES, STUDENT_TABLE),
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
