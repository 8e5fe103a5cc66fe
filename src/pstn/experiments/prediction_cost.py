"""Beyond the paper: what a prediction costs. Accuracy and likelihood by the number of samples and how they are drawn.

The P-STN of Table 1 for 100 digits predicts from S samples of its posterior. The same trained models are tested with
independent, antithetic and Sobol samples, and a student of each learns, from images without labels, to answer in one
pass what its teacher answers with ten samples. The claim: four samples that are spread evenly are as good as ten
independent ones. It is wanted that the student keep 80% of what ten samples gain over one.

S samples minus ten independent ones, of the same trained models: mean ± one standard deviation of the differences of
ten folds. One sample, far below, is in the table.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

from pstn.experiments import little_data, mnist_subsets, runner
from pstn.experiments.runner import ACCURACY, ECE, NLL
from pstn.nn import PSTN
from pstn.noise import SamplingMethod
from pstn.report import Claim, FigureSpec, Line, Metric, Result, Table, figures
from pstn.training.fit import distil

NAME, FOLDS, DATA = "prediction-cost", 10, "MNIST100"
METHODS: dict[SamplingMethod, str] = {"iid": "independent", "antithetic": "antithetic", "sobol": "Sobol"}
SAMPLES = (1, 2, 4, 5, 10, 20)
TRAINED = replace(
    mnist_subsets.of_size(100)["P-STN"], experiment=NAME, model="trained", keep=True, seeds=FOLDS, departures=()
)


DEFAULTS = f"{DATA}, library’s defaults"
"""The second model: what `pstn.fit` makes of the same digits where it is told nothing."""
CHECKED: tuple[tuple[SamplingMethod, int], ...] = (("iid", 1), ("iid", 4), ("antithetic", 4), ("sobol", 4), ("iid", 10))


def _trained(context: runner.RunContext, cell: Result) -> PSTN:
    """The seed's trained model of a cell's data."""
    if cell.data == DATA:
        model = runner.trained(context, TRAINED, cell.seed)
    else:
        made = context.cached(("fitted", cell.seed), partial(little_data.fitted, context, cell.seed))
        model = copy.deepcopy(made)
    assert isinstance(model, PSTN)
    return model.to(context.device)


def _measure(method: SamplingMethod, samples: int, context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Scores of a trained model with so many samples."""
    task, model = TRAINED.task(context), _trained(context, cell)
    model.get_submodule("layer").sampling = method  # type: ignore[assignment]
    scores = runner.scores_of(model, task.test, seed=cell.seed, samples=samples, batch=task.batch)
    return scores, {}, {"sampling": method, "samples": samples}


INPUTS = 10_000
"""Images without labels that a student learns from."""
STUDENT: dict[str, Any] = {"epochs": 15, "batch_size": 250, "lr": 1e-3, "weight_decay": 0.0}
ALONE = "student without further images"


def _student(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Scores of a student, and how much it keeps of what ten samples of its teacher gain over one."""
    task, teacher = TRAINED.task(context), _trained(context, cell)
    settings, inputs = STUDENT, task.x[: 50 if context.quick else INPUTS]
    if cell.model == ALONE:  # as many steps as `fit` takes by default
        settings, inputs = STUDENT | {"epochs": 120, "batch_size": 8}, task.x[task.train(cell.seed)]
    if context.quick:
        settings = settings | {"epochs": 1, "batch_size": 25}
    with runner.seeded(context, cell.seed):
        student = distil(copy.deepcopy(teacher), inputs, samples=10, progress=False, **settings)
    scores, one, ten = (
        runner.scores_of(model, task.test, seed=cell.seed, samples=s, batch=task.batch)
        for model, s in ((student, None), (teacher, 1), (teacher, 10))
    )
    names = ("accuracy", "nll")
    kept = {f"kept_{name}": (scores[name] - one[name]) / ((ten[name] - one[name]) or math.nan) for name in names}
    teachers = {f"{name}_{s}": found[name] for s, found in ((1, one), (10, ten)) for name in names}
    return {**scores, **kept, **teachers}, {}, {**settings, "inputs": len(inputs)}


def _line(method: SamplingMethod, samples: int, metric: Metric, data: str = DATA) -> Line:
    return Line(
        METHODS[method], data, metric, f"S={samples}", row=str(samples), column=METHODS[method],
        rivals=f"{samples} {metric.name}",
    )  # fmt: skip


ALL: tuple[tuple[SamplingMethod, int], ...] = tuple((method, samples) for samples in SAMPLES for method in METHODS)
GROUPS = tuple(
    runner.Evaluation(NAME, METHODS[m], data, partial(_measure, m, s), f"S={s}", seeds=FOLDS)
    for data, shown in ((DATA, ALL), (DEFAULTS, CHECKED)) for m, s in shown
)  # fmt: skip
STUDENTS = tuple(
    runner.Evaluation(NAME, model, data, _student, seeds=FOLDS)
    for model, data in (("student", DATA), ("student", DEFAULTS), (ALONE, DEFAULTS))
)

_LABELS = "100 images with labels"
TABLES = tuple(
    Table(
        "MNIST100", tuple(_line(method, samples, metric) for method, samples in ALL), row_label="S",
        beside={"supervision": dict.fromkeys(map(str, SAMPLES), _LABELS)},
    )
    for metric in (ACCURACY, NLL, ECE)
)  # fmt: skip
_ROWS = {(method, samples): f"{METHODS[method]}, S = {samples}" for method, samples in CHECKED}
CHECKED_TABLE = Table(
    DEFAULTS,
    tuple(
        replace(_line(*way, metric, DEFAULTS), row=row, column=metric.label)
        for way, row in _ROWS.items() for metric in (ACCURACY, NLL, ECE)
    ),
    "samples", bold=False, beside={"supervision": dict.fromkeys(_ROWS.values(), _LABELS)},
)  # fmt: skip
_KEPT = tuple(
    Metric(f"kept_{name}", f"kept of the gain in {label} (%)", 100, 0, None)
    for name, label in (("accuracy", "accuracy"), ("nll", "NLL"))
)
_DRAWN = tuple(replace(table, lines=tuple(li for li in table.lines if li.variant != "S=1")) for table in TABLES[:2])


def _student_table(data: str, *students: str) -> Table:
    """Students beside their teacher, whose scores stand in the results of the first."""
    shown, made = {"teacher, S = 1": "_1", "teacher, S = 10": "_10"}, list[Line]()
    for row, suffix in shown.items():
        scores = [replace(metric, name=f"{metric.name}{suffix}") for metric in (ACCURACY, NLL)]
        made += [Line(students[0], data, metric, row=row, column=metric.label) for metric in scores]
    for model in students:
        row = f"{model}, one pass"
        made += [Line(model, data, m, row=row, column=m.label) for m in (ACCURACY, NLL, *_KEPT)]
    supervision = dict.fromkeys(shown, _LABELS) | {
        f"{model}, one pass": f"{_LABELS}{f', {INPUTS:,} without' * (model != ALONE)}" for model in students
    }
    title = f"A student in one pass, {data}"
    return Table(title, tuple(made), "model", bold=False, beside={"supervision": supervision})


PREDICTION_COST = runner.Experiment(
    NAME, "What a prediction costs", runner.description_of(__doc__),
    summary="Accuracy and NLL by the number of samples, independent, antithetic and Sobol",
    needs=("mnist",),
    groups=(TRAINED, *GROUPS, *STUDENTS),
    tables=(*TABLES, CHECKED_TABLE, _student_table(DATA, "student"), _student_table(DEFAULTS, "student", ALONE)),
    claims=tuple(
        Claim(_line("sobol", 4, metric, data), _line("iid", 10, metric, data), paired=True, margin=margin)
        for data in (DATA, DEFAULTS) for metric, margin in ((ACCURACY, 0.5), (NLL, 0.01))
    ),
    figures=(
        FigureSpec(
            NAME, runner.description_of(__doc__, 2),
            partial(figures.draw_curves, tables=_DRAWN, xlabel="samples S", log=True, minus=("10", METHODS["iid"])),
        ),
    ),
    seeds=FOLDS, from_paper=False, holm=True, extra=True,
)  # fmt: skip
