"""Beyond the paper: what each choice is worth, one changed at a time, on MNIST100 and on rotated MNIST.

Beyond the paper: what each choice is worth, one changed at a time. A point, a global and a per-input posterior; one
precision per input or per parameter; Gaussian or Student-t; no augmentation, a fixed one with as many copies in
training and testing, or the learned one; independent or Sobol samples; dropout in the frozen classifier; the number
of samples in testing.

What a choice gains over another, fold by fold (small) and on average (large): to the right for accuracy and to the
left for errors, the shaded sides, the first is better. The P-STN as in the paper stands in the first six rows.

Sobol samples minus independent ones in testing, by their number: thin, the runs that tested the same models in both
ways; bold, their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from pstn.experiments import runner
from pstn.experiments.mnist_subsets import WEIGHTS, make_pstn, subset, table_1_layer, table_1_model
from pstn.experiments.rotated_mnist import KL_WEIGHT, PSTN_GROUP, localisation, make_model, rotated
from pstn.nn import PSTN, GlobalLocalizer, SpatialTransformer, mnist_cnn
from pstn.noise import SamplingMethod
from pstn.report import Claim, FigureSpec, Line, Metric, Result, figures, variant_tables
from pstn.report.results import RUNS

W = WEIGHTS[100]
# The fixed augmentation: standard deviations of angle (radians), scale, and shifts (half widths; 0.1 is 1.4 pixels).
FIXED = (0.15, 0.1, 0.1, 0.1)
TEST_SAMPLES = (1, 2, 3, 5, 10, 20, 30, 50)


def _layer(localizer: nn.Module | None = None, *, alpha: float = 1.0, **options: Any) -> SpatialTransformer:
    """The P-STN's layer of Table 1, with one option of `SpatialTransformer` changed."""
    # The variance starts where it does in Table 1, whatever alpha: scale² is beta / alpha.
    var_init = runner.inverse_softplus(alpha * math.log1p(math.exp(-5.0)))
    return table_1_layer(localizer, alpha=alpha, var_init=var_init, **options)


def make_fixed() -> nn.Module:
    """The control: the CNN of Table 1 on random similarities of a fixed size, as many copies as the P-STN has."""
    layer = _layer(GlobalLocalizer(), alpha=runner.GAUSSIAN_ALPHA)
    with torch.no_grad():
        starts = [runner.inverse_softplus(runner.GAUSSIAN_ALPHA * std**2) for std in FIXED]
        layer.variance_head.last.bias.copy_(torch.tensor(starts))
    return PSTN(layer.requires_grad_(False), mnist_cnn(), train_samples=1, test_samples=10)


def _model(**options: Any) -> Callable[[runner.RunContext, int], nn.Module]:
    return runner.same(lambda: table_1_model(_layer(**options)))


BASE = runner.Training(
    "ablations", "P-STN", "MNIST100", subset(100), runner.same(make_pstn), runner.PAPER,
    variants={"posterior=per-input": W}, aliases=("precision=per-parameter", "noise=student-t", "augmentation=learned"),
    lr=1e-3, localizer_factor=0.1, weight_decay=0.01, keep=True,
)  # fmt: skip
"""The P-STN of Table 1, under each name by which the others are compared with it."""


def _change(variant: str, make: Callable[[runner.RunContext, int], nn.Module], model: str = "P-STN") -> runner.Training:
    return replace(BASE, model=model, make=make, variants={variant: W}, aliases=(), keep=False)


def _sampling(method: SamplingMethod) -> runner.Training:
    """Ten samples in training too: of one, there is nothing to spread evenly."""
    return replace(_change(f"sampling={method}", _model(sampling=method)), recipe=replace(runner.PAPER, samples=10))


def _by_test_samples(method: SamplingMethod) -> runner.Evaluation:
    """The baseline's scores by the number of samples at test."""

    def measure(context: runner.RunContext, cell: Result) -> runner.Evaluated:
        model, test = runner.trained(context, BASE, cell.seed), BASE.task(context).test
        model.get_submodule("layer").sampling = method  # type: ignore[assignment]
        options = {s: {"seed": cell.seed, "samples": s, "batch": max(100, 10_000 // s)} for s in TEST_SAMPLES}
        rows = {s: runner.scores_of(model, test, **given) for s, given in options.items()}
        curves = {m.name: [round(row[m.name], 6) for row in rows.values()] for m in runner.SCORES}
        settings = {
            "trained_as": "posterior=per-input", "weights": runner.digest(model.state_dict()), "sampling": method,
            "samples_test": list(TEST_SAMPLES),
        }  # fmt: skip
        return rows[10], {"samples": list(TEST_SAMPLES), **curves}, settings

    variant = "test-samples" if method == "iid" else f"test-samples-{method}"
    return runner.Evaluation("ablations", "P-STN", "MNIST100", measure, variant)


def _errors(tested: runner.ModelUnderTest) -> runner.Measured:
    """Errors of the angle, without the figure that rotated MNIST has already."""
    return localisation(tested)[0], {}


def _with_dropout(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Rotated MNIST's P-STN as it is: its frozen classifier dropped units while the localizer trained."""
    model, task = runner.trained(context, PSTN_GROUP, cell.seed), rotated(context)
    predictions = runner.predict(model, task.test, seed=cell.seed)
    errors, _ = _errors(runner.ModelUnderTest(context, task, model, predictions, cell))
    weights = runner.digest(model.state_dict())
    settings = {"trained_as": "rotated-mnist, P-STN", "weights": weights, "kl_weight": KL_WEIGHT}
    return runner.classification_scores(predictions) | errors, {}, settings


# Data, model and variant of each row of the tables.
CELLS = (
    *(("MNIST100", model, variant) for model, variant in (
        ("STN", "posterior=point"), ("P-STN", "posterior=global"), ("P-STN", "posterior=per-input"),
        ("P-STN", "precision=per-input"), ("P-STN", "precision=per-parameter"),
        ("P-STN", "noise=gaussian"), ("P-STN", "noise=student-t"),
        ("CNN", "augmentation=none"), ("CNN", "augmentation=fixed"), ("P-STN", "augmentation=learned"),
        ("P-STN", "sampling=iid"), ("P-STN", "sampling=sobol"),
    )),
    ("rotated", "P-STN", "dropout=on"), ("rotated", "P-STN", "dropout=off"),
)  # fmt: skip
_OF = {variant: (model, data) for data, model, variant in CELLS}


def _claim(better: str, worse: str, metric: Metric, names: Sequence[str] = (), **options: Any) -> Claim:
    """That one variant is ahead of another; they are called by their variants, or by these names."""
    ahead, behind = (Line(*_OF[v], metric, v) for v in (better, worse))
    first, second = names or (better, worse)
    return Claim(replace(ahead, column=first), replace(behind, column=second), **options)


# "We often find it sufficient to draw only S = 1 samples during training": two standard deviations of the paper's for
# the P-STN on 100 images are what would matter.
_ONE_SAMPLE = _claim(
    "posterior=per-input", "sampling=iid", runner.ACCURACY, ("S=1 in training", "S=10"), paired=True, margin=1.48
)
# The pairs that the page speaks of; all share their folds.
_BESIDE = [
    _claim(better, worse, metric, claimed=False, paired=True)
    for better, worse in (
        ("posterior=per-input", "posterior=global"),
        ("augmentation=learned", "augmentation=fixed"), ("augmentation=learned", "augmentation=none"),
        ("precision=per-parameter", "precision=per-input"), ("noise=student-t", "noise=gaussian"),
        ("sampling=sobol", "sampling=iid"), ("dropout=on", "dropout=off"),
    ) for metric in runner.SCORES[: 1 if better == "dropout=on" else None]
]  # fmt: skip
# What the figure compares, by name: the P-STN as in the paper with what one change makes of it, and two more pairs.
_DRAWN = [
    _claim(better, worse, metric, names)
    for better, worse, *names in (
        *(("posterior=per-input", other, "P-STN as in the paper", name) for other, name in (
            ("posterior=point", "STN"), ("posterior=global", "one posterior for all"),
            ("precision=per-input", "one precision per input"), ("noise=gaussian", "Gaussian noise"),
            ("augmentation=none", "CNN"), ("augmentation=fixed", "CNN, fixed augmentation"),
        )),
        ("sampling=sobol", "sampling=iid", "Sobol samples, S = 10", "independent ones"),
        ("dropout=on", "dropout=off", "rotated: dropout", "none in training"),
    ) for metric in runner.SCORES
]  # fmt: skip

ABLATIONS = runner.Experiment(
    "ablations", "Ablations", runner.description_of(__doc__),
    summary="Posterior, precision, noise, dropout, sampling, augmentation, samples at test: one changed at a time",
    needs=("mnist",),
    groups=(
        BASE,
        _change("posterior=point", _model(probabilistic=False), "STN"),
        _change("posterior=global", _model(localizer=GlobalLocalizer())),
        _change("precision=per-input", _model(precision="per-input")),
        _change("noise=gaussian", _model(alpha=runner.GAUSSIAN_ALPHA)),
        _sampling("iid"),
        _sampling("sobol"),
        _change("augmentation=none", runner.same(mnist_cnn), "CNN"),
        _change("augmentation=fixed", runner.same(make_fixed), "CNN"),
        _by_test_samples("iid"),
        _by_test_samples("sobol"),
        runner.Evaluation("ablations", "P-STN", "rotated", _with_dropout, "dropout=on", PSTN_GROUP.departures),
        replace(
            PSTN_GROUP, experiment="ablations", variants={"dropout=off": KL_WEIGHT}, keep=False, measures=(_errors,),
            make=make_model(probabilistic=True, dropout=False), departures=PSTN_GROUP.departures[:1], seeds=RUNS,
        ),
    ),
    tables=variant_tables(CELLS, runner.SCORES),
    claims=(_ONE_SAMPLE, *_BESIDE),
    figures=(
        FigureSpec(
            "ablations", runner.description_of(__doc__, 2),
            partial(figures.draw_differences, claims=_DRAWN, metrics=runner.SCORES),
        ),
        FigureSpec(
            "ablations-samples", runner.description_of(__doc__, 3),
            partial(figures.draw_sobol_gain, metrics=runner.SCORES),
        ),
    ),
    from_paper=False,
    extra=True,
)  # fmt: skip
