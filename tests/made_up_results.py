"""Made-up results of every experiment, in the shapes that real runs have. The numbers are random, near the paper's."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pstn.experiments import EXPERIMENTS, Experiment, RunContext
from pstn.report.results import Result

VERSIONS = {"pstn": "0.1.0", "torch": "2.11.0", "numpy": "2.4.6", "python": "3.12.3"}
SAMPLES = [1, 2, 3, 5, 10, 20, 30, 50]


@cache
def make_results(seed: int = 0) -> list[Result]:
    """Results of all experiments, the whole of each."""
    random = np.random.default_rng(seed)
    beyond = ("mnist-subsets-search", "time-series-search", "ablations")
    shown = [e for e in EXPERIMENTS.values() if not e.extra or e.name in beyond]
    return [result for experiment in shown for result in results_of(experiment, random)]


def results_of(experiment: Experiment, random: np.random.Generator) -> Iterator[Result]:
    published = {
        (line.model, line.data, line.variant, line.metric.name): line.paper.summary.mean / line.metric.scale
        for table in experiment.tables for line in table.lines if line.paper
    }  # fmt: skip
    wanted = {line.metric.name for table in experiment.tables for line in table.lines} | {"valid_nll", "valid_accuracy"}
    for cell in (cell for group in experiment.groups for cell in group.cells(RunContext(Path("results")))):
        if experiment.extra and cell.seed > 1:
            continue
        key = (cell.model, cell.data, cell.variant)
        metrics = {name: published.get((*key, name), 0.5) * random.normal(1, 0.01) for name in sorted(wanted)}
        figure = figure_of(cell, random) if cell.seed == 0 or experiment.name in ("calibration", "ablations") else {}
        departures = [f"Made up for a test of {experiment.name}."] + ["One precision."] * (cell.model == "P-STN")
        yield replace(
            cell, settings={"epochs": 600}, metrics=metrics, departures=departures, seconds=random.uniform(5, 30),
            figure=figure, commit="0123456789ab", machine="NVIDIA H200", versions=VERSIONS, training=cell.name,
        )  # fmt: skip


def figure_of(cell: Result, random: np.random.Generator) -> dict[str, Any]:
    """What the figures of an experiment draw."""

    def pixels(*shape: int) -> list[Any]:
        return random.integers(0, 256, shape).tolist()

    pstn, square = cell.model == "P-STN", np.array([[-9, -9], [9, -9], [9, 9], [-9, 9]])
    if cell.variant.startswith("test-samples"):
        return {"samples": SAMPLES, **{name: random.random(8).tolist() for name in ("accuracy", "nll", "ece")}}
    if cell.experiment == "rotated-mnist" and cell.model != "CNN":
        angles = random.uniform(-math.pi, math.pi, (2, 1000)).round(4)
        drawn = {"angle_true": angles[0].tolist(), "angle_mean": (0.1 * angles[1] - angles[0]).tolist()}
        if not pstn:
            return drawn
        told = {"index": list(range(8)), "labels": list(range(8)), "answers": [3] * 8}
        told["left_over"] = [20.0 * k for k in range(8)]
        beta = {"beta": random.gamma(20, 0.01, 1000).tolist()}
        return {**drawn, **beta, **told, "inputs": pixels(8, 28, 28), "warped": pixels(8, 3, 28, 28)}
    if cell.experiment == "calibration":
        share = ((np.arange(15) + 0.5) / 15).tolist()
        bins = {"confidence": [None, *share[1:]], "accuracy": [None, *share[:-1]], "count": [0, *range(10, 150, 10)]}
        return {"reliability": bins}
    if cell.experiment == "loss-landscape":
        grid = np.linspace(-math.pi, math.pi, 101)
        loss = np.abs(grid) + np.abs(np.sin(12 * grid + np.arange(6)[:, None]))
        return {"grid": grid.tolist(), "loss": loss.tolist(), "images": pixels(6, 28, 28)}
    if cell.experiment in ("placed-fashion", "traffic-signs") and pstn:
        corners = (random.uniform(20, 40, (6, 10, 1, 2)) + square).round(2).tolist()
        if cell.experiment == "traffic-signs":
            packed = [base64.b64encode(zlib.compress(bytes(64 * 64 * 3))).decode()] * 6
            boxes, answers = [[-0.2, -0.2, 0.3, 0.2]] * 6, [["SOS", "PARCHEGGIO", 0.7], *[["SOS", "SOS", 0.9]] * 5]
            return {
                "images": packed, "seen": packed, "side": 64, "seen_side": 64, "boxes": boxes,
                "windows": [[box] * 10 for box in boxes], "answers": answers,
            }  # fmt: skip
        return {"inputs": pixels(6, 96, 96), "warped": pixels(6, 5, 28, 28), "corners": corners}
    if cell.experiment == "time-series" and pstn:
        time = np.linspace(0, 9, 128)
        if cell.variant == "by time":
            return {"relative": random.uniform(0.5, 1.5, 131).tolist()}
        return {"series": np.sin(time).tolist(), "warped": np.sin(np.add.outer([0.1, 0.2, 0.3], time)).tolist()}
    return {}
