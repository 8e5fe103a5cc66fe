"""What heavy tails cost on placed FashionMNIST: windows that are right, but for noise of a given family.

Classifiers of garments look through ten windows that differ from the true one by noise, and their probabilities are
averaged: a Student-t with the two degrees of freedom of the paper, with four, a normal, all of the same scale, and no
noise. The scale is that of the P-STN's samples in the committed results: the median deviation of its 60 windows
there, over the median of |t| with two degrees of freedom.

    PSTN_DATA=... python benchmarks/placed_tails.py --out benchmarks/results/placed_tails_cpu.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pstn
from pstn.data import generate, load
from pstn.experiments import placed_fashion as placed
from pstn.experiments import runner
from pstn.report.results import read_results
from pstn.transforms import Similarity
from pstn.uncertainty import log_mean_exp
from recording import Stopwatch, write

SAMPLES, LOOKED_AT = 10, 4000
FREEDOM = {"two degrees of freedom": 2.0, "four degrees of freedom": 4.0, "normal": None}
_MEDIAN_T2 = 0.8165  # of |t| with two degrees of freedom


def sampled_scale(results: Path) -> list[float]:
    """The scale of angle, scale and shift of theta in the windows that the committed P-STN sampled."""
    held = next(r for r in read_results(results, "placed-fashion") if "corners" in r.figure)
    corners = np.array(held.figure["corners"])  # (6, 10, 4, 2), in pixels of the canvas
    edge = corners[:, :, 1] - corners[:, :, 0]
    length = np.linalg.norm(edge, axis=-1) / placed.CANVAS
    middle = corners.mean(2) * 2 / placed.CANVAS
    parts = (np.arctan2(edge[..., 1], edge[..., 0]), length, middle[..., 0], middle[..., 1])
    return [float(np.median(np.abs(p - np.median(p, 1, keepdims=True))) / _MEDIAN_T2) for p in parts]


def noise(freedom: float | None, shape: tuple[int, ...]) -> Tensor:
    """Standard noise of a family."""
    random = torch.randn(shape)
    return (
        random if freedom is None else random * torch.rsqrt(torch.distributions.Chi2(freedom).sample(shape) / freedom)
    )


def scores_of(classifier: nn.Module, canvases: Any, theta: Tensor) -> dict[str, float]:
    """Scores of the averaged probabilities under thetas (S, N, 4)."""
    parts = []
    with torch.no_grad():
        for at in torch.arange(len(canvases)).split(500):
            x = canvases.batch(at).x
            grids = Similarity().grid(theta[:, at].flatten(0, 1), (placed.SIZE, placed.SIZE))
            seen = pstn.warp(x.repeat(len(theta), 1, 1, 1), grids)
            parts.append(log_mean_exp(classifier(seen).log_softmax(-1).unflatten(0, (len(theta), len(at)))))
    found = runner.classification_scores(runner.Predictions(torch.cat(parts), canvases.y))
    return {name: round(found[name], 4) for name in ("accuracy", "nll", "ece")}


def main() -> None:
    """Train a classifier for each seed, and score it under each family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    given, watch = parser.parse_args(), Stopwatch()
    scale, data, rows = sampled_scale(given.results), load("fashion-mnist", normalise=False), []
    assert data.test is not None
    canvases = generate(data.test.take(range(LOOKED_AT)), placed.PLACEMENT, seed=0)
    assert canvases.theta is not None
    truth = Similarity().inverse(canvases.theta)
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        classifier = pstn.fit(
            pstn.nn.mnist_cnn(), data.train, epochs=given.epochs, batch_size=64, lr=1e-3,
            weight_decay=placed.CLASSIFIER_DECAY, lr_schedule=pstn.training.one_cycle,
        )  # fmt: skip
        row: dict[str, Any] = {"seed": seed, "no noise": scores_of(classifier, canvases, truth[None])}
        for name, freedom in FREEDOM.items():
            theta = truth + torch.tensor(scale) * noise(freedom, (SAMPLES, *truth.shape))
            row[name] = scores_of(classifier, canvases, theta)
        rows.append(row)
    names = ("no noise", *FREEDOM)
    means = {n: {m: round(float(np.mean([r[n][m] for r in rows])), 4) for m in rows[0][n]} for n in names}
    figures = {"scale of angle, scale, shift": [round(s, 4) for s in scale], "means": means, "runs": rows}
    write(given.out, figures, seed=0, watch=watch)


if __name__ == "__main__":
    main()
