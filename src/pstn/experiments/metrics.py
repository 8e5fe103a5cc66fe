"""The numbers that most experiments share."""

from __future__ import annotations

from pstn.report.study import Metric

__all__ = ["ACCURACY", "ECE", "ECE10", "NLL", "SCORES"]

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
NLL = Metric("nll", "NLL")
ECE = Metric("ece", "calibration error, 15 bins", digits=4)
ECE10 = Metric("ece10", "calibration error, 10 bins", digits=4)
SCORES = (ACCURACY, NLL, ECE)
