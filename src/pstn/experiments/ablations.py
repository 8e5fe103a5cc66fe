"""Beyond the paper: what each choice is worth, one changed at a time, on MNIST100 and on rotated MNIST."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pstn.distributions.student_t import PrecisionKind
from pstn.experiments.mnist_subsets import BLACK, RECIPE, WEIGHTS, make_pstn, subset
from pstn.experiments.rotated_mnist import KL_WEIGHT, PSTN_GROUP, localisation, rotated
from pstn.experiments.rotated_mnist import make_pstn as make_rotated_pstn
from pstn.experiments.runner import (
    Evaluation,
    Experiment,
    Found,
    Lab,
    Probe,
    Training,
    classify,
    digest,
    predict,
    same,
    trained,
)
from pstn.nn import PSTN, STN, ConvClassifier, ConvLocalizer, GlobalLocalizer, SpatialTransformer, mnist_cnn
from pstn.noise import SamplingMethod
from pstn.report.results import Result
from pstn.transforms import Similarity

__all__ = ["ABLATIONS", "FIXED", "make_fixed"]

SIZE = (28, 28)
W = WEIGHTS[100]
# With 100 degrees of freedom the Student-t is a Gaussian for all that can be seen.
GAUSSIAN_ALPHA = 50.0
# The fixed augmentation: standard deviations of angle (radians), scale, and shifts (half widths; 0.1 is 1.4 pixels).
FIXED = (0.15, 0.1, 0.1, 0.1)
TEST_SAMPLES = (1, 2, 3, 5, 10, 20, 30, 50)


def _layer(
    localizer: nn.Module | None = None,
    *,
    probabilistic: bool = True,
    alpha: float = 1.0,
    precision: PrecisionKind = "per-parameter",
    sampling: SamplingMethod = "iid",
) -> SpatialTransformer:
    """The P-STN's layer of Table 1, with one thing changed."""
    # The variance starts where it does in Table 1, whatever alpha: scale² is beta / alpha.
    var_init = inverse_softplus(alpha * math.log1p(math.exp(-5.0)))
    return SpatialTransformer(
        Similarity(), localizer or ConvLocalizer(1, SIZE, filters=(8, 14)), SIZE, fill=BLACK, var_init=var_init,
        probabilistic=probabilistic, alpha=alpha, precision=precision, sampling=sampling,
    )  # fmt: skip


def inverse_softplus(value: float) -> float:
    """What softplus turns into `value`.

    Example:
        >>> round(inverse_softplus(math.log1p(math.exp(-5.0))), 6)
        -5.0
    """
    return math.log(math.expm1(value))


def _classifier() -> ConvClassifier:
    return ConvClassifier(1, SIZE, classes=10, filters=(10, 20), hidden=50)


def make_fixed() -> nn.Module:
    """The control: the CNN of Table 1 on random similarities of a fixed size, as many copies as the P-STN has."""
    layer = _layer(GlobalLocalizer(), alpha=GAUSSIAN_ALPHA)
    starts = torch.tensor([inverse_softplus(GAUSSIAN_ALPHA * std**2) for std in FIXED])
    with torch.no_grad():
        layer.variance_head.last.bias.copy_(starts)
    return PSTN(layer.requires_grad_(False), mnist_cnn())


def _pstn(**options: Any) -> Callable[[Lab, int], nn.Module]:
    return same(lambda: PSTN(_layer(**options), _classifier()))


BASE = Training(
    "ablations", "P-STN", "MNIST100", subset(100), same(make_pstn), RECIPE, variants={"posterior=per-input": W},
    aliases=("precision=per-parameter", "noise=student-t", "augmentation=learned"),
    lr=1e-3, localizer_factor=0.1, weight_decay=0.01, keep=True,
)  # fmt: skip
"""The P-STN of Table 1, under each name by which the others are compared with it."""


def _change(variant: str, make: Callable[[Lab, int], nn.Module], model: str = "P-STN") -> Training:
    return replace(BASE, model=model, make=make, variants={variant: W}, aliases=(), keep=False)


def _of_sampling(method: SamplingMethod) -> Training:
    """Ten samples in training too: of one, there is nothing to spread evenly."""
    changed = _change(f"sampling={method}", _pstn(sampling=method))
    return replace(changed, recipe=replace(RECIPE, samples=10))


def _by_test_samples(method: SamplingMethod) -> Evaluation:
    """The baseline's scores by the number of samples at test."""

    def measure(lab: Lab, cell: Result) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
        model = trained(lab, BASE, cell.seed)
        layer = model.get_submodule("layer")
        assert isinstance(layer, SpatialTransformer)
        layer.sampling = method
        test = lab.few(BASE.task(lab).test)
        rows = {
            s: classify(predict(model, test, seed=cell.seed, samples=s, batch=max(100, 10_000 // s)))
            for s in TEST_SAMPLES
        }
        curves = {name: [round(row[name], 6) for row in rows.values()] for name in ("accuracy", "nll", "ece")}
        settings = {
            "trained_as": "posterior=per-input", "weights": digest(model.state_dict()), "sampling": method,
            "samples_test": list(TEST_SAMPLES),
        }  # fmt: skip
        return rows[10], {"samples": list(TEST_SAMPLES), **curves}, settings

    variant = "test-samples" if method == "iid" else f"test-samples-{method}"
    return Evaluation("ablations", "P-STN", "MNIST100", measure, variant)


def _errors(probe: Probe) -> Found:
    """Errors of the angle, without the figure that rotated MNIST has already."""
    return localisation(probe)[0], {}


def _with_dropout(lab: Lab, cell: Result) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Rotated MNIST's P-STN as it is: its frozen classifier dropped units while the localizer trained."""
    model, task = trained(lab, PSTN_GROUP, cell.seed), rotated(lab)
    test = lab.few(task.test)
    answers = predict(model, test, seed=cell.seed)
    errors, _ = _errors(Probe(lab, replace(task, test=test), model, answers, cell))
    settings = {
        "trained_as": "rotated-mnist, P-STN", "weights": digest(model.state_dict()), "kl_weight": KL_WEIGHT,
    }  # fmt: skip
    return {**classify(answers), **errors}, {}, settings


ABLATIONS = Experiment(
    "ablations",
    "Posterior, precision, noise, dropout, sampling, fixed augmentation, samples at test: one changed at a time",
    needs=("mnist",),
    groups=(
        BASE,
        _change("posterior=point", same(lambda: STN(_layer(probabilistic=False), _classifier())), "STN"),
        _change("posterior=global", _pstn(localizer=GlobalLocalizer())),
        _change("precision=per-input", _pstn(precision="per-input")),
        _change("noise=gaussian", _pstn(alpha=GAUSSIAN_ALPHA)),
        _of_sampling("iid"),
        _of_sampling("sobol"),
        _change("augmentation=none", same(mnist_cnn), "CNN"),
        _change("augmentation=fixed", same(make_fixed), "CNN"),
        _by_test_samples("iid"),
        _by_test_samples("sobol"),
        Evaluation("ablations", "P-STN", "rotated", _with_dropout, "dropout=on", PSTN_GROUP.departures),
        replace(
            PSTN_GROUP, experiment="ablations", variants={"dropout=off": KL_WEIGHT}, keep=False, measures=(_errors,),
            make=lambda lab, seed: make_rotated_pstn(lab, seed, dropout=False), departures=PSTN_GROUP.departures[:1],
        ),
    ),
)  # fmt: skip
