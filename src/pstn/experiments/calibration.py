"""The calibration figure: reliability and expected calibration error on MNIST100 (section 5.3)."""

from __future__ import annotations

import dataclasses

from pstn.experiments.mnist_subsets import MNIST_SUBSETS
from pstn.experiments.runner import Experiment, Found, Probe, Training, reliability

__all__ = ["CALIBRATION"]

# w with the best accuracy, and w with the best calibration.
WEIGHTS = (3e-4, 1e-4)


def _reliability(probe: Probe) -> Found:
    return {}, {"reliability": reliability(probe.answers)}


def _of_mnist100(model: str) -> Training:
    """The same training as in Table 1, with reliability measured."""
    table = next(
        g for g in MNIST_SUBSETS.groups if isinstance(g, Training) and (g.data, g.model) == ("MNIST100", model)
    )
    variants = {f"w={w:g}": w for w in WEIGHTS} if model == "P-STN" else {"": 0.0}
    return dataclasses.replace(table, experiment="calibration", variants=variants, measures=(_reliability,))


CALIBRATION = Experiment(
    "calibration",
    "Reliability diagrams and calibration error on MNIST100, five folds",
    needs=("mnist",),
    groups=tuple(_of_mnist100(model) for model in ("CNN", "STN", "P-STN")),
)
