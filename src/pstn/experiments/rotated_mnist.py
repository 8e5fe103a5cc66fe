"""Rotated MNIST: localizers learn to undo rotations for a frozen classifier (section 5.1.1)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data import RandomRotation, generate
from pstn.experiments.runner import Experiment, Found, Lab, Probe, Task, Training, as_pixels, rounded, same, trained
from pstn.nn import PSTN, STN, ConvLocalizer, Frozen, SpatialTransformer, mnist_cnn
from pstn.training import RandomWarp, Recipe
from pstn.transforms import Rotation

__all__ = [
    "CLASSIFIER",
    "PSTN_GROUP",
    "ROTATED_MNIST",
    "localisation",
    "make_layer",
    "make_pstn",
    "rotated",
    "undo_errors",
    "upright",
]

SIZE, ROTATION = (28, 28), RandomRotation(math.pi)
# ×0.1 every 10 epochs: spent after 40.
SCHEDULE = Recipe(epochs=40, batch_size=64, lr_step=10, lr_gamma=0.1)
ROTATING = Recipe(epochs=40, batch_size=64, lr_step=10, lr_gamma=0.1, samples=10, augment=RandomWarp(ROTATION))
KL_WEIGHT, VAR_INIT = 3e-5, -3.0

SPENT = "40 epochs instead of 100: the learning rate, ×0.1 every 10 epochs, is spent by then."
_DEPARTURES = (
    SPENT,
    "The frozen classifier keeps its dropout active while the localizer trains, as in the authors' runs.",
)


def upright(lab: Lab) -> Task:
    """MNIST as it is, not normalised: 50,000 to train on, the 10,000 test images."""
    train, _, test = lab.data("mnist", normalise=False)
    return Task(train.x, train.y, test, train.name)


def rotated(lab: Lab) -> Task:
    """The same, tested on images that were each rotated once by an angle uniform on (-pi, pi)."""
    train, _, test = lab.data("mnist", normalise=False)
    return Task(train.x, train.y, generate(test, ROTATION, seed=0), f"rotated {train.name}")


CLASSIFIER = Training(
    "rotated-mnist", "CNN", "upright", upright, same(mnist_cnn), SCHEDULE,
    lr=1e-3, weight_decay=1e-5, also={"rotated": rotated}, departures=(SPENT,), keep=True,
)  # fmt: skip
"""The CNN of 28,086 weights, trained on upright MNIST, then frozen."""


def make_layer(*, probabilistic: bool) -> SpatialTransformer:
    """The localizers of about 72k parameters: heads of linear-ReLU-linear, for the angle alone."""
    filters = (28, 53) if probabilistic else (32, 64)
    localizer = ConvLocalizer(1, SIZE, filters=filters)
    return SpatialTransformer(
        Rotation(), localizer, SIZE, hidden=20, probabilistic=probabilistic, var_init=VAR_INIT
    )  # fmt: skip


def make_stn(lab: Lab, seed: int) -> nn.Module:
    """The STN in front of this seed's frozen classifier."""
    return STN(make_layer(probabilistic=False), trained(lab, CLASSIFIER, seed).requires_grad_(False))


def make_pstn(lab: Lab, seed: int, *, dropout: bool = True) -> nn.Module:
    """The P-STN in front of this seed's frozen classifier, whose dropout stays active in training or does not."""
    classifier = trained(lab, CLASSIFIER, seed).requires_grad_(False)
    layer = make_layer(probabilistic=True)
    return PSTN(layer, classifier if dropout else Frozen(classifier), train_samples=10, test_samples=10)


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


def localisation(probe: Probe) -> Found:
    """Errors of the angle; for a P-STN how much larger the variance is where it localises badly."""
    mean, truth, beta = probe.answers.loc, probe.answers.truth, probe.answers.beta
    assert mean is not None
    assert truth is not None
    mod_pi, wrapped = undo_errors(mean[:, 0], truth[:, 0])
    metrics = {"error_mod_pi": float(mod_pi.mean()), "error_wrapped": float(wrapped.mean())}
    figure: dict[str, Any] = {}
    if probe.cell.seed == 0:
        figure = {"angle_true": rounded(truth[:1000, 0]), "angle_mean": rounded(mean[:1000, 0])}
        figure |= _samples(probe)
    if beta is not None:
        worse = mod_pi > mod_pi.median()
        metrics["larger_variance"] = float(beta[worse].mean() / beta[~worse].mean() - 1)
        if figure:
            figure["beta"] = rounded(beta[:1000, 0], 6)
    return metrics, figure


def _samples(probe: Probe) -> dict[str, Any]:
    """Eight inputs, and each under five samples of the transformation."""
    x = probe.task.test.batch(range(8)).x.cpu()
    layer = probe.model.get_submodule("layer")
    with torch.no_grad():
        warped = layer(x, samples=5, generator=torch.Generator().manual_seed(0)).warped  # (S, 8, 1, 28, 28)
    return {"inputs": as_pixels(x[:, 0]), "warped": as_pixels(warped[:, :, 0].transpose(0, 1))}


STN_GROUP = Training(
    "rotated-mnist", "STN", "rotated", rotated, make_stn, ROTATING,
    lr=1e-3, localizer_factor=1.0, weight_decay=1e-5, measures=(localisation,), departures=_DEPARTURES,
)  # fmt: skip
PSTN_GROUP = replace(STN_GROUP, model="P-STN", make=make_pstn, variants={"": KL_WEIGHT}, keep=True)

ROTATED_MNIST = Experiment(
    "rotated-mnist",
    "Undoing rotations for a frozen classifier: accuracy, error of the angle, variance by error",
    needs=("mnist",),
    groups=(CLASSIFIER, STN_GROUP, PSTN_GROUP),
)
