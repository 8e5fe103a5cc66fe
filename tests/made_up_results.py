"""Made-up results of every experiment, in the shapes that real runs have. The numbers are random, near the paper's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from pstn.report.results import Result

SEEDS = range(5)
MODELS = ("CNN", "STN", "P-STN")
TABLE_1 = {
    "MNIST30": (70.1, 69.3, 81.0), "MNIST100": (87.3, 82.2, 92.7), "MNIST1000": (95.8, 92.1, 96.6),
    "MNIST3000": (97.5, 94.7, 97.3), "MNIST10000": (97.8, 97.0, 97.6),
}  # fmt: skip
TABLE_2 = {
    "FaceAll": (80.8, 82.3, 84.3), "TwoPatterns": (97.9, 99.8, 99.96), "Wafer": (99.6, 99.2, 98.9),
    "UWaveGestureLibraryX": (74.2, 79.8, 81.1), "PhalangesOutlinesCorrect": (79.9, 82.3, 81.7),
}  # fmt: skip
PROVENANCE: dict[str, Any] = {
    "commit": "0123456789ab",
    "machine": "NVIDIA H200",
    "versions": {"pstn": "0.1.0", "torch": "2.11.0", "numpy": "2.4.6", "python": "3.12.3"},
}
WEIGHTS = (0.0, 1e-5, 3e-4, 1e-3)


@cache
def make_results(seed: int = 0) -> list[Result]:
    """Results of all experiments, the whole of each."""
    random = np.random.default_rng(seed)
    return [
        result
        for make in (rotated, placed, signs, subsets, series, searches, calibration, depths, landscapes, ablations)
        for result in make(random)
    ]


def cell(random, experiment, model, data, seed, centre=90.0, spread=0.4, *, variant="", figure=None, **more) -> Result:
    accuracy = float(np.clip(random.normal(centre, spread), 0, 100)) / 100
    metrics = {
        "accuracy": accuracy,
        "nll": float(2.2 * (1 - accuracy) + random.uniform(0.01, 0.05)),
        "ece": float(0.3 * (1 - accuracy) + random.uniform(0.01, 0.02)),
        "ece10": float(0.3 * (1 - accuracy) + random.uniform(0.01, 0.02)),
    }
    departures = [f"Made up for a test of {experiment}."] + (
        ["One precision per parameter."] if model == "P-STN" else []
    )
    return Result(
        experiment, model, data, seed, variant, settings={"epochs": 600}, metrics=metrics | more, figure=figure or {},
        departures=departures, seconds=float(random.uniform(5, 30)), **PROVENANCE,
    )  # fmt: skip


def blob(random, size, turn=0.0, shift=(0.0, 0.0), scale=1.0):
    """A digit of sorts: a bar with a hook."""
    x, y = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size))
    x, y = (x - shift[0]) / scale, (y - shift[1]) / scale
    c, s = math.cos(turn), math.sin(turn)
    u, v = c * x + s * y, c * y - s * x
    bar = np.exp(-((u / 0.12) ** 2)) * (np.abs(v) < 0.6)
    hook = np.exp(-(((v - 0.5 + 0.3 * np.abs(u)) / 0.12) ** 2)) * (u > 0) * (u < 0.5)
    return np.clip(255 * (bar + hook), 0, 255).astype(int)


def corners(centre, half, turn):
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half
    c, s = math.cos(turn), math.sin(turn)
    return (square @ np.array([[c, s], [-s, c]]) + centre).round(2).tolist()


def rotated(random) -> Iterator[Result]:
    for seed in SEEDS:
        yield cell(random, "rotated-mnist", "CNN", "upright", seed, 99.3, 0.05)
        yield cell(random, "rotated-mnist", "CNN", "rotated", seed, 43.0, 1.5)
        for model, centre, error in (("STN", 75.0, 0.8), ("P-STN", 84.0, 0.6)):
            more = {"error_mod_pi": random.normal(error, 0.08), "error_wrapped": random.normal(error + 0.1, 0.1)}
            figure: dict[str, Any] = {}
            if seed == 0:
                true = random.uniform(-math.pi, math.pi, 1000)
                lost = random.random(1000) < 0.2
                mean = -true + np.where(lost, random.uniform(-3, 3, 1000), random.normal(0, 0.2, 1000))
                turns = random.uniform(-3, 3, 8)
                figure = {
                    "angle_true": true.round(4).tolist(), "angle_mean": mean.round(4).tolist(),
                    "inputs": [blob(random, 28, t).tolist() for t in turns],
                    "warped": [[blob(random, 28, random.normal(0, 0.2)).tolist() for _ in range(5)] for _ in turns],
                }  # fmt: skip
                if model == "P-STN":
                    figure["beta"] = (random.gamma(20, 0.01, 1000) * (1 + 0.17 * lost)).round(6).tolist()
            if model == "P-STN":
                more["larger_variance"] = random.normal(0.16, 0.02)
            yield cell(random, "rotated-mnist", model, "rotated", seed, centre, 1.2, figure=figure, **more)


def placed(random) -> Iterator[Result]:
    for seed in SEEDS:
        yield cell(random, "placed-fashion", "CNN", "upright", seed, 90.5, 0.2)
        for model, centre in (("STN", 84.2), ("P-STN", 85.2)):
            figure: dict[str, Any] = {}
            if seed == 0 and model == "P-STN":
                at = random.uniform(20, 76, (6, 2))
                figure = {
                    "inputs": [blob(random, 96, 0, (p - 48) / 48, 0.29).tolist() for p in at],
                    "warped": [[blob(random, 28, random.normal(0, 0.1)).tolist() for _ in range(5)] for _ in at],
                    "corners": [[corners(p + random.normal(0, 1.5, 2), 14, 0.05) for _ in range(10)] for p in at],
                }  # fmt: skip
            more = {"position_error": random.uniform(0.02, 0.05), "scale_error": random.uniform(0.01, 0.03)}
            yield cell(random, "placed-fashion", model, "placed", seed, centre, 0.4, figure=figure, **more)


def signs(random) -> Iterator[Result]:
    for seed in SEEDS:
        yield cell(random, "traffic-signs", "classifier", "tight boxes", seed, 97.0, 0.5)
        for model, centre in zip(MODELS, (78.0, 90.0, 92.0), strict=True):
            figure: dict[str, Any] = {}
            if seed == 0 and model == "P-STN":
                figure = {
                    "images": [random.integers(60, 200, (64, 64, 3)).tolist() for _ in range(6)],
                    "corners": [[corners(random.normal(32, 3, 2), 12, 0.05) for _ in range(10)] for _ in range(6)],
                }  # fmt: skip
            more = {} if model == "CNN" else {"iou": random.uniform(0.6, 0.8)}
            yield cell(random, "traffic-signs", model, "stand-in photos", seed, centre, 1.0, figure=figure, **more)


def subsets(random) -> Iterator[Result]:
    for (name, centres), spread in zip(TABLE_1.items(), (3.5, 1.2, 0.4, 0.2, 0.2), strict=True):
        for model, centre in zip(MODELS, centres, strict=True):
            for seed in SEEDS:
                yield cell(random, "mnist-subsets", model, name, seed, centre, spread)


def series(random) -> Iterator[Result]:
    for name, centres in TABLE_2.items():
        for model, centre in zip(MODELS, centres, strict=True):
            for seed in SEEDS:
                figure: dict[str, Any] = {}
                if seed == 0 and model == "P-STN":
                    time = np.linspace(0, 1, 128)
                    bends = (time + b * np.sin(math.pi * time) for b in (0.05, -0.04, 0.02))
                    draw = [np.sin(9 * t) + 0.4 * np.sin(31 * t) for t in (time, *bends)]
                    figure = {"series": draw[0].round(3).tolist(), "warped": [d.round(3).tolist() for d in draw[1:]]}
                yield cell(random, "time-series", model, name, seed, centre, 0.3, figure=figure)


def searches(random) -> Iterator[Result]:
    for experiment, names in (("mnist-subsets-search", TABLE_1), ("time-series-search", TABLE_2)):
        for name in names:
            for weight in WEIGHTS:
                for seed in SEEDS[:2]:
                    accuracy = random.normal(0.9 - abs(math.log10(weight + 1e-6) + 3.5) / 50, 0.01)
                    yield Result(
                        experiment, "P-STN", name, seed, f"w={weight:g}", seconds=4.0, **PROVENANCE,
                        metrics={"valid_accuracy": accuracy, "valid_nll": 2 * (1 - accuracy)},
                    )  # fmt: skip


def calibration(random) -> Iterator[Result]:
    cases = (("CNN", "", 87.0, 0.06), ("STN", "", 82.0, 0.11), ("P-STN", "w=0.0003", 92.5, -0.05),
             ("P-STN", "w=0.0001", 92.0, 0.02))  # fmt: skip
    for model, variant, centre, gap in cases:
        for seed in SEEDS:
            confidence = (np.arange(15) + 0.5) / 15
            count = np.r_[0, 0, np.linspace(20, 3000, 13).astype(int)]
            accuracy = np.clip(confidence - gap * (1 - (2 * confidence - 1) ** 2) * 3, 0, 1)
            figure = {"reliability": {
                "confidence": [c if n else None for c, n in zip(confidence.tolist(), count, strict=True)],
                "accuracy": [a if n else None for a, n in zip(accuracy.tolist(), count, strict=True)],
                "count": count.tolist(),
            }}  # fmt: skip
            yield cell(random, "calibration", model, "MNIST100", seed, centre, 1.0, variant=variant, figure=figure)


def depths(random) -> Iterator[Result]:
    for depth in range(1, 6):
        cases = (
            ("NN", "upright", 92 + depth, 0.0), ("NN", "rotated", 50 + 9 * depth, 0.0),
            ("STN", "rotated", 55 + 8 * depth, 0.4 / depth), ("P-STN", "rotated", 68 + 5 * depth, 2.5 / depth),
        )  # fmt: skip
        for model, data, centre, variance in cases:
            for seed in SEEDS:
                more = {"angle_variance": variance * random.uniform(0.7, 1.3)}
                yield cell(
                    random, "failure-mode", model, data, seed, min(centre, 98), 1.0, variant=f"depth={depth}", **more
                )


def landscapes(random) -> Iterator[Result]:
    for data, reach in (("angle", math.pi), ("translation", 1.0)):
        grid = np.linspace(-reach, reach, 101)
        for model, rough in (("STN", 1.0), ("P-STN", 0.15)):
            for seed in SEEDS:
                figure: dict[str, Any] = {}
                if seed == 0:
                    loss = [np.abs(2 * grid / reach) + rough * np.abs(np.sin(12 * grid / reach + p)) for p in range(6)]
                    images = [blob(random, 28, t).tolist() for t in range(6)]
                    figure = {"grid": grid.round(4).tolist(), "loss": np.round(loss, 4).tolist(), "images": images}
                minima = {"minima": random.normal(3.5 * rough + 1, 0.2), "roughness": random.normal(9 * rough + 4, 0.5)}
                yield Result(
                    "loss-landscape", model, data, seed, metrics=minima, figure=figure, seconds=3.0, **PROVENANCE
                )


def ablations(random) -> Iterator[Result]:
    groups = {
        "posterior": ("point", "global", "per-input"), "precision": ("per-input", "per-parameter"),
        "noise": ("gaussian", "student-t"), "dropout": ("on", "off"), "sampling": ("iid", "sobol"),
        "augmentation": ("none", "fixed", "learned"),
    }  # fmt: skip
    models = {"posterior=point": "STN", "augmentation=none": "CNN", "augmentation=fixed": "CNN"}
    for name, values in groups.items():
        for at, value in enumerate(values):
            variant = f"{name}={value}"
            data, model = "rotated" if name == "dropout" else "MNIST100", models.get(variant, "P-STN")
            for seed in SEEDS:
                yield cell(random, "ablations", model, data, seed, 90 + at, 0.8, variant=variant)
    samples = [1, 2, 3, 5, 10, 20, 30, 50]
    for seed, variant in itertools.product(SEEDS, ("test-samples", "test-samples-sobol")):
        gain = 1 - np.exp(-np.array(samples) / (3 if "sobol" in variant else 4)) + random.normal(0, 0.02, len(samples))
        figure = {
            "samples": samples, "accuracy": (0.88 + 0.04 * gain).tolist(), "nll": (0.5 - 0.2 * gain).tolist(),
            "ece": (0.08 - 0.04 * gain).tolist(),
        }  # fmt: skip
        yield cell(random, "ablations", "P-STN", "MNIST100", seed, 92, 0.8, variant=variant, figure=figure)
