"""Beyond the paper: rotated MNIST as others report it, 12,000 training and 50,000 test images, each turned once.

Nothing but rotated images and their labels is used: no upright image and no angle. A P-STN learns end to end, with four
modes around the circle. It is compared with the same classifier alone, with one that learns from images turned by any
angle, and with one posterior for all inputs. The claim: an error of at most 2%, ahead of the classifier alone.

Left: the density of the angle of the P-STN’s warp for six test digits, one over the other. Right: four of them,
and each under the four modes, with what the classifier reads and the weight of the mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from pstn.data import RandomRotation, Split, generate
from pstn.distributions import Global, Mixture, PosteriorFamily, StudentT
from pstn.experiments import finding, runner
from pstn.experiments.runner import ACCURACY, ECE, NLL
from pstn.nn import PSTN, PoseLocalizer, SpatialTransformer
from pstn.report import Claim, FigureSpec, Line, Result, Table, figures
from pstn.training import one_cycle
from pstn.transforms import Rotation

NAME, DATA, SIZE = "rotated-12k", "rotated", (28, 28)
TRAIN, TEST = 12_000, 50_000
MODES, SAMPLES = 4, 4
ALONE, ANY_ANGLE, GLOBAL, PSTN_MODEL = "CNN", "any angle, averaged", "global posterior", "P-STN"


def task(context: runner.RunContext) -> runner.Task:
    """All 70,000 images in an order of our own, each turned once: the first to train on, the next to test on."""
    parts = context.data("mnist", normalise=False)
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(12)).to(x.device)
    train = min(TRAIN, len(x) // 2)
    train_part, test_part = (
        generate(Split(x[at], y[at], parts[0].classes, name=f"rotated {parts[0].name}"), RandomRotation(), seed=seed)
        for seed, at in enumerate((order[:train], order[train : train + TEST]))
    )
    held = train_part.all()
    return runner.Task(held.x, held.y, test_part, held.name, batch=500)


def make_classifier(channels: Sequence[int] = (32, 64, 128), hidden: int = 128, dropout: float = 0.3) -> nn.Sequential:
    """Three times two convolutions of 3 by 3 and a pooling, then a hidden layer.

    Args:
        channels: of each two convolutions.
        hidden: width of the hidden layer.
        dropout: before the last layer; half of it after each pooling.

    Example:
        >>> sum(p.numel() for p in make_classifier().parameters())
        436202
    """
    layers: list[nn.Module] = []
    inputs = 1
    for outputs in channels:
        for read in (inputs, outputs):
            layers += [nn.Conv2d(read, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(dropout / 2)]
        inputs = outputs
    features = inputs * math.prod(extent // 2 ** len(channels) for extent in SIZE)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10)
    )


def make_pstn(posterior: PosteriorFamily, *, learned: bool = True) -> PSTN:
    """The classifier behind a layer that turns, with a posterior that is learned or stays as it is."""
    classifier = make_classifier()
    layer = SpatialTransformer(Rotation(), PoseLocalizer(1, SIZE), SIZE, posterior=posterior)
    return PSTN(layer.requires_grad_(learned), classifier, train_samples=SAMPLES, test_samples=10)


# A Student-t as wide as half a turn is all but even on the circle.
_ANY = Global(StudentT(alpha=2.0, var_init=20.0))
_RECIPE = replace(
    runner.PAPER, epochs=24, batch_size=64, samples=SAMPLES, lr_schedule=one_cycle, clip_norm=5.0, precision="tf32"
)
_CNN = runner.Training(
    NAME, ALONE, DATA, task, runner.same(make_classifier), replace(_RECIPE, samples=None), lr=1e-3, stacked=False
)


def examples(tested: runner.ModelUnderTest) -> runner.Measured:
    """Scores at the modes; of the first model also test digits with their posteriors."""
    test = tested.task.test
    device = test.batch([0]).x.device
    model = tested.model.to(device).eval()
    assert isinstance(model, PSTN)
    shown = finding.examples_of(model, test.batch(range(6)).x) if tested.cell.seed == 0 else {}
    return finding.mode_scores(model, test), shown


def _behind(model: str, make: Any, **settings: Any) -> runner.Training:
    return replace(_CNN, model=model, make=runner.same(make), recipe=_RECIPE, variants={"": 1e-5}, **settings)


GROUPS = (
    _CNN,
    _behind(ANY_ANGLE, partial(make_pstn, _ANY, learned=False)),
    _behind(GLOBAL, partial(make_pstn, _ANY), localizer_factor=0.1),
    _behind(
        PSTN_MODEL, partial(make_pstn, Mixture(MODES, StudentT(alpha=2.0, var_init=-1.0))), localizer_factor=0.01,
        measures=(examples,),
    ),
)  # fmt: skip
_METRICS = (ACCURACY, NLL, ECE)
_MODELS = (ALONE, ANY_ANGLE, GLOBAL, PSTN_MODEL)


def draw(results: Sequence[Result]) -> figures.Figure:
    """The posteriors of test digits, and four of the digits under each mode."""
    shown, figure = figures.first_of_cells(results, "density")[0].figure, figures.new_figure(9.0, 4.9)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25), squeeze=False)[0]
    axes = left.subplots()
    for density in shown["density"]:
        axes.plot(np.linspace(-180, 180, len(density)), density, color="#0072B2", linewidth=1.0, alpha=0.6)
    axes.set(xlabel="angle of the warp (degrees)", ylabel="density", xticks=range(-180, 181, 90), xlim=(-180, 180))
    axes.set_ylim(bottom=0)
    four = [min(number, len(shown["inputs"]) - 1) for number in (1, 3, 4, 5)]  # of different classes
    panels = right.subplots(len(four), 1 + MODES, squeeze=False)
    for row, (first, *others) in zip(four, panels, strict=True):
        first.imshow(shown["inputs"][row], cmap="gray_r")
        first.set_title("input", fontsize=9)
        for mode, panel in enumerate(others):
            panel.imshow(shown["warped"][row][mode], cmap="gray_r")
            panel.set_title(f"{shown['classes'][row][mode]}: {shown['weights'][row][mode]:.0%}", fontsize=9)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    return figure


ROTATED_12K = runner.Experiment(
    NAME, "Rotated MNIST from 12,000 labels", runner.description_of(__doc__),
    summary="Beyond the paper: rotated MNIST as others report it, end to end from 12,000 labels",
    needs=("mnist",),
    groups=GROUPS,
    tables=(
        Table(
            "Rotated MNIST, 12,000 training images",
            tuple(Line(m, DATA, metric, row=m, column=metric.label, rivals=metric.label)
                  for m in _MODELS for metric in _METRICS),
            row_label="model",
            beside={"supervision": dict.fromkeys(_MODELS, "12,000 rotated images with labels")
                    | {ANY_ANGLE: "12,000 rotated images with labels; that any angle occurs"}},
        ),
    ),
    claims=tuple(
        Claim(Line(PSTN_MODEL, DATA, metric), Line(other, DATA, metric), paired=True)
        for other in (ALONE, ANY_ANGLE, GLOBAL) for metric in (ACCURACY, NLL)
    ),
    figures=(FigureSpec(NAME, runner.description_of(__doc__, 2), draw),),
    from_paper=False, holm=True, extra=True,
)  # fmt: skip
