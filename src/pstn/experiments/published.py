"""The paper's numbers, as it prints them.

`Paper("95.80 ± 0.33", bold=True)` stands in bold there, ± one standard deviation over five runs. Accuracies are in
percent. The table of the MNIST subsets is called Table 1 here and that of the UCR series Table 2, by their order in the
section on classification.
"""

from __future__ import annotations

from pstn.report.statistics import Paper

__all__ = [
    "CALIBRATION_ERROR",
    "PLACED",
    "ROTATED",
    "ROTATED_ERROR",
    "ROTATED_LARGER_VARIANCE",
    "TABLE_1",
    "TABLE_1_W",
    "TABLE_2",
    "TABLE_2_MEAN",
    "TABLE_2_W",
    "TRAFFIC_SIGNS",
]

ROTATED = {
    ("CNN", "upright"): Paper("99.4"),
    ("CNN", "rotated"): Paper("41.2"),
    ("STN", "rotated"): Paper("76.13"),
    ("P-STN", "rotated"): Paper("82.98"),
}
"""Rotated MNIST, accuracy by model and data; no spread is given."""

ROTATED_ERROR = {"STN": Paper("0.76"), "P-STN": Paper("0.59")}
"""Mean error of the angle, mod π."""

ROTATED_LARGER_VARIANCE = Paper("17")
"""By how many percent the P-STN's variance is larger for images whose error is above the median."""

PLACED = {("CNN", "upright"): Paper("90.63"), ("STN", "placed"): Paper("84.41"), ("P-STN", "placed"): Paper("84.99")}
"""Random placement FashionMNIST, accuracy by model and data; no spread is given."""

TRAFFIC_SIGNS = {
    "CNN": (Paper("76.0"), Paper("0.49")),
    "STN": (Paper("90.6"), Paper("0.31")),
    "P-STN": (Paper("92.2", bold=True), Paper("0.29", bold=True)),
}
"""Mapillary traffic signs, accuracy and negative log-likelihood; no spread is given."""

TABLE_1 = {
    "MNIST30": {"CNN": Paper("70.12 ± 2.46"), "STN": Paper("69.26 ± 4.53"), "P-STN": Paper("81.00 ± 3.92", bold=True)},
    "MNIST100": {"CNN": Paper("87.29 ± 0.58"), "STN": Paper("82.16 ± 2.30"), "P-STN": Paper("92.70 ± 0.74", bold=True)},
    "MNIST1000": {
        "CNN": Paper("95.80 ± 0.33"), "STN": Paper("92.05 ± 0.58"), "P-STN": Paper("96.62 ± 0.58", bold=True),
    },
    "MNIST3000": {
        "CNN": Paper("97.48 ± 0.21", bold=True), "STN": Paper("94.71 ± 0.22"),
        "P-STN": Paper("97.33 ± 0.17", bold=True),
    },
    "MNIST10000": {
        "CNN": Paper("97.82 ± 0.34", bold=True), "STN": Paper("96.96 ± 0.20"),
        "P-STN": Paper("97.63 ± 0.23", bold=True),
    },
}  # fmt: skip
"""MNIST subsets, accuracy by data and model."""

TABLE_1_W = {"MNIST30": 0.001, "MNIST100": 0.0003, "MNIST1000": 0.0001, "MNIST3000": 0.00003, "MNIST10000": 0.00001}
"""Its last row: the optimal w."""

TABLE_2 = {
    "FaceAll": {"CNN": Paper("80.83 ± 0.62"), "STN": Paper("82.28 ± 0.42"), "P-STN": Paper("84.31 ± 0.75", bold=True)},
    "TwoPatterns": {
        "CNN": Paper("97.92 ± 0.53"), "STN": Paper("99.79 ± 0.04"), "P-STN": Paper("99.96 ± 0.04", bold=True),
    },
    "Wafer": {"CNN": Paper("99.63 ± 0.05", bold=True), "STN": Paper("99.18 ± 0.17"), "P-STN": Paper("98.86 ± 0.20")},
    "UWaveGestureLibraryX": {
        "CNN": Paper("74.15 ± 1.27"), "STN": Paper("79.77 ± 0.42"), "P-STN": Paper("81.13 ± 0.46", bold=True),
    },
    "PhalangesOutlinesCorrect": {
        "CNN": Paper("79.88 ± 1.32"), "STN": Paper("82.26 ± 0.98", bold=True),
        "P-STN": Paper("81.66 ± 0.59", bold=True),
    },
}  # fmt: skip
"""UCR series, accuracy by data and model."""

TABLE_2_MEAN = {"CNN": Paper("86.48"), "STN": Paper("88.65"), "P-STN": Paper("89.18", bold=True)}
"""Its last row; no spread is given."""

TABLE_2_W = {
    "FaceAll": 0.0001, "TwoPatterns": 0.0, "Wafer": 1e-05, "UWaveGestureLibraryX": 0.001,
    "PhalangesOutlinesCorrect": 0.0001,
}  # fmt: skip
"""The optimal w. The text has them as a list, [0.0001, 1e-05, 0.001, 0.0, 0.0001], in the order FaceAll, Wafer,
UWaveGestureLibraryX, TwoPatterns, PhalangesOutlinesCorrect of the authors' settings, not in that of the table."""

CALIBRATION_ERROR = {
    ("CNN", ""): Paper("0.0743 ± 0.0094"),
    ("STN", ""): Paper("0.1160 ± 0.0205"),
    ("P-STN", "w=0.0003"): Paper("0.0567 ± 0.0065"),
    ("P-STN", "w=0.0001"): Paper("0.0271 ± 0.0088", bold=True),
}
"""MNIST100, expected calibration error by model and variant."""
