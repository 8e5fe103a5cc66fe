"""The numbers that most experiments share, and which cells come of one training: for the studies."""

from __future__ import annotations

from pstn.experiments.declare import Training
from pstn.report.study import CellKey, Metric

__all__ = ["ACCURACY", "ECE", "ECE10", "NLL", "SCORES", "given_by"]

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
NLL = Metric("nll", "NLL")
ECE = Metric("ece", "calibration error, 15 bins", digits=4)
ECE10 = Metric("ece10", "calibration error, 10 bins", digits=4)
SCORES = (ACCURACY, NLL, ECE)


def given_by(group: Training) -> tuple[CellKey, ...]:
    """The cells that each training of a group gives."""
    return tuple((c.model, c.data, c.variant) for c in group.of_model(next(iter(group.variants)), 0))
