"""Rotated MNIST: localizers learn to undo rotations for a frozen classifier (section 5.1.1).

A classifier trained on upright digits is frozen; localizers of about 72 thousand parameters learn to undo rotations
with nothing but the class labels. The paper claims that the P-STN localises better than the STN and is more accurate,
and that its variance is larger, by 17%, where it localises badly.

Left: true against recovered angle for 1,000 test images; on the dotted line it is recovered exactly. Right: eight of
them, at evenly spaced ranks of the error, from the best to the worst localised; below each input what the mean of the
P-STN’s posterior makes of it, and the digit upright; then its class, and the angle that the mean leaves over. The
answers were not recorded. Samples are not shown: at this width, about 2°, they look like the mean. Below: the variance
β of the better (filled) and the worse localised half (hatched).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data import RandomRotation, generate
from pstn.data.split import Sized
from pstn.distributions import Posterior
from pstn.experiments import runner
from pstn.nn import ConvLocalizer, SpatialTransformer, mnist_cnn
from pstn.report import FigureSpec, Metric, Table, claim_order, figures, lines, published_lines
from pstn.training import RandomWarp
from pstn.transforms import Rotation
from pstn.warping import warp

SIZE, ROTATION = (28, 28), RandomRotation(math.pi)
# ×0.1 every 10 epochs: a ten-thousandth after 40.
SCHEDULE = replace(runner.PAPER, epochs=40, batch_size=64, lr_step=10)
ROTATING = replace(SCHEDULE, samples=10, augment=RandomWarp(ROTATION))
KL_WEIGHT, VAR_INIT = 3e-5, -3.0
# Twice the usual number: the STN's runs are far apart.
SEEDS = 10
# Images in the figure.
SHOWN = 8
SPENT = "40 epochs instead of 100: the learning rate, ×0.1 every 10 epochs, is spent by then."
DROPOUT = "The frozen classifier keeps its dropout active while the localizer trains, as in the authors' runs."


def upright(context: runner.RunContext) -> runner.Task:
    """MNIST as it is, not normalised: 50,000 to train on, the 10,000 test images."""
    train, _, test = context.data("mnist", normalise=False)
    return runner.Task(train.x, train.y, test, train.name)


def rotated(context: runner.RunContext) -> runner.Task:
    """The same, tested on images that were each rotated once by an angle uniform on (-pi, pi)."""
    train, _, test = context.data("mnist", normalise=False)
    return runner.Task(train.x, train.y, generate(test, ROTATION, seed=0), f"rotated {train.name}")


CLASSIFIER = runner.Training(
    "rotated-mnist", "CNN", "upright", upright, runner.same(mnist_cnn), SCHEDULE,
    lr=1e-3, weight_decay=1e-5, also={"rotated": rotated}, departures=(SPENT,), keep=True, seeds=SEEDS,
)  # fmt: skip
"""The CNN of 28,086 weights, trained on upright MNIST, then frozen."""


def make_layer(probabilistic: bool) -> SpatialTransformer:
    """The localizers of about 72k parameters: heads of linear-ReLU-linear, for the angle alone."""
    localizer = ConvLocalizer(1, SIZE, filters=(28, 53) if probabilistic else (32, 64))
    posterior = runner.paper_posterior(probabilistic, VAR_INIT)
    return SpatialTransformer(Rotation(), localizer, SIZE, hidden=20, posterior=posterior)


def make_model(*, probabilistic: bool, dropout: bool = True) -> Callable[[runner.RunContext, int], nn.Module]:
    """The STN or P-STN in front of the seed's frozen classifier, whose dropout stays active in training or does not."""
    return runner.in_front_of(CLASSIFIER, lambda: make_layer(probabilistic), dropout=dropout)


def undo_errors(mean: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """How far a recovered angle is from the one that undoes the rotation: the paper's error, and the wrapped one.

    Warping by r is undone by warping by -r, so the error is on mean + angle. The paper takes it mod pi, which scores
    a small error across the wrap as 3.1 and an upside-down digit as 0; the wrapped error is the distance on the
    circle, from 0 to pi.

    Args:
        mean: (N,), recovered.
        angle: (N,), of the rotation.

    Example:
        >>> undo_errors(torch.tensor([0.1 - 3.1]), torch.tensor([3.1]))
        (tensor([0.1000]), tensor([0.1000]))
    """
    off = mean + angle
    wrapped = torch.remainder(off + math.pi, 2 * math.pi) - math.pi
    return torch.remainder(off.abs(), math.pi), wrapped.abs()


def examples(test: Sized, true: Tensor, mean: Tensor, beta: Tensor) -> dict[str, Any]:
    """Eight images at evenly spaced ranks of the wrapped error, each turned by the mean and by two samples.

    Args:
        test: the rotated images.
        true: (N,), the angles of the first N.
        mean: (N,), recovered.
        beta: (N,), of the posterior.
    """
    off = torch.remainder(mean + true + math.pi, 2 * math.pi) - math.pi
    ranks = [(2 * k + 1) * len(off) // (2 * SHOWN) for k in range(SHOWN)]
    shown = off.abs().argsort(stable=True)[ranks]
    batch = test.batch(shown.tolist())
    posterior = Posterior(mean[shown, None], beta[shown, None])
    theta = torch.cat([posterior.mode[None], posterior.rsample(2, generator=torch.Generator().manual_seed(0))])
    turned = warp(batch.x.cpu(), Rotation().grid(theta, SIZE))
    return {
        "index": shown.tolist(), "labels": batch.y.tolist(), "left_over": runner.rounded(off[shown].rad2deg(), 1),
        "inputs": runner.as_pixels(batch.x[:, 0]), "warped": runner.as_pixels(turned[:, :, 0].transpose(0, 1)),
    }  # fmt: skip


def localisation(tested: runner.ModelUnderTest) -> runner.Measured:
    """Errors of the angle; for a P-STN how much larger the variance is where it localises badly."""
    (theta, truth), beta = tested.transformations, tested.predictions.beta
    mod_pi, wrapped = undo_errors(theta[:, 0], truth[:, 0])
    metrics = {"error_mod_pi": float(mod_pi.mean()), "error_wrapped": float(wrapped.mean())}
    figure: dict[str, Any] = {}
    if tested.cell.seed == 0:
        figure = {"angle_true": runner.rounded(truth[:1000, 0]), "angle_mean": runner.rounded(theta[:1000, 0])}
    if beta is not None:
        worse = mod_pi > mod_pi.median()
        metrics["larger_variance"] = float(beta[worse].mean() / beta[~worse].mean() - 1)
        if figure:
            figure["beta"] = runner.rounded(beta[:1000, 0], 6)
            figure |= examples(tested.task.test, truth[:1000, 0].cpu(), theta[:1000, 0].cpu(), beta[:1000, 0].cpu())
            figure["answers"] = tested.predictions.log_probs[figure["index"]].argmax(-1).tolist()
    return metrics, figure


STN_GROUP = runner.Training(
    "rotated-mnist", "STN", "rotated", rotated, make_model(probabilistic=False), ROTATING,
    lr=1e-3, localizer_factor=1.0, weight_decay=1e-5, measures=(localisation,), departures=(SPENT, DROPOUT),
    seeds=SEEDS,
)  # fmt: skip
PSTN_GROUP = replace(STN_GROUP, model="P-STN", make=make_model(probabilistic=True), variants={"": KL_WEIGHT}, keep=True)

_ACCURACY = published_lines(runner.ACCURACY, """
    data     CNN   STN    P-STN
    upright  99.4  -      -
    rotated  41.2  76.13  82.98
""")  # fmt: skip
_ERROR = published_lines(Metric("error_mod_pi", "error of the angle, mod π", digits=2), """
    data     STN   P-STN
    rotated  0.76  0.59
""")  # fmt: skip
_WRAPPED = lines(Metric("error_wrapped", "error of the angle, wrapped", digits=2), ("STN", "P-STN"), ("rotated",))
_LARGER = Metric("larger_variance", "larger variance where badly localised (%)", 100, 1, higher_is_better=None)

ROTATED_MNIST = runner.Experiment(
    "rotated-mnist", "Rotated MNIST, frozen classifier", runner.description_of(__doc__),
    summary="Undoing rotations for a frozen classifier: accuracy, error of the angle, variance by error",
    needs=("mnist",),
    groups=(CLASSIFIER, STN_GROUP, PSTN_GROUP),
    tables=(
        Table.of(
            "Rotated MNIST", _ACCURACY, _ERROR, _WRAPPED, published_lines(_LARGER, "data  P-STN\nrotated  17"),
            notes=(
                "The paper’s error is the mean of |true angle − recovered angle| mod π, which scores a small error "
                "across the wrap as 3.1 and an upside-down digit as 0. The wrapped error is the distance on the "
                "circle.",
            ),
        ),
    ),
    claims=(
        # Models of one seed share its frozen classifier.
        *claim_order(_ACCURACY, "P-STN", "STN", paired=True), *claim_order(_ACCURACY, "STN", "CNN", paired=True),
        *claim_order(_ACCURACY, "P-STN", "CNN", paired=True), *claim_order(_ERROR, "P-STN", "STN", paired=True),
        *claim_order(_WRAPPED, "P-STN", "STN", claimed=False, paired=True),
    ),
    figures=(FigureSpec("rotated-mnist", runner.description_of(__doc__, 2), figures.draw_angles),),
    seeds=SEEDS,
)  # fmt: skip
