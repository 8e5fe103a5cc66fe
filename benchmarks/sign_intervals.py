"""Differences between models on the traffic signs, tested over seeds and signs together.

142 signs (of ten classes; 250 of all) are few, and signs of photos that look alike are not independent; nor are the
answers of ten networks to one sign. So seeds and groups of photos are both drawn with replacement, each as often as
there are, many times: the difference of each draw gives an interval of 95%, and p is twice the share of draws on the
other side of 0.

    python benchmarks/sign_intervals.py --out benchmarks/results/sign_intervals.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pstn.experiments import traffic_signs as signs
from pstn.report.results import Result, read_results
from recording import Stopwatch, write

DRAWS = 20_000
PAIRS = (
    ("P-STN", "STN"), ("STN", signs.CNN), ("P-STN", signs.CNN), ("P-STN", signs.WINDOWS), ("STN", signs.CONSTANT),
    ("P-STN", signs.CONSTANT), (signs.TAUGHT, signs.CONSTANT), (signs.TAUGHT, "P-STN"), ("P-STN", signs.TRUE),
    ("STN", signs.TRUE), (signs.TAUGHT, signs.TRUE), (signs.CONSTANT, signs.TRUE),
    ("P-STN", signs.AROUND), (signs.TAUGHT, signs.AROUND),
)  # fmt: skip


def bootstrap(
    difference: npt.NDArray[np.float64], group: npt.NDArray[np.int64], draws: int = DRAWS, seed: int = 0
) -> tuple[float, float, float, float]:
    """The mean of (seeds, signs), an interval of 95% for it, and p, with seeds and groups of signs drawn anew.

    Args:
        difference: (S, N), one number for each seed and sign.
        group: (N,), signs that belong together.
        draws: how many.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    _, place = np.unique(group, return_inverse=True)
    groups = int(place.max()) + 1
    sums, sizes = np.zeros((len(difference), groups)), np.bincount(place, minlength=groups)
    np.add.at(sums.T, place, difference.T)
    seeds = random.multinomial(len(difference), np.full(len(difference), 1 / len(difference)), draws)
    chosen = random.multinomial(groups, np.full(groups, 1 / groups), draws)
    means = ((seeds @ sums) * chosen).sum(1) / (len(difference) * (chosen @ sizes))
    low, high = np.quantile(means, [0.025, 0.975])
    p = min(1.0, 2 * max(1 / draws, min(float((means <= 0).mean()), float((means >= 0).mean()))))
    return float(difference.mean()), float(low), float(high), p


def answers(results: list[Result], data: str, model: str, name: str) -> dict[int, npt.NDArray[np.float64]]:
    """For each seed what a model scored on each sign."""
    return {r.seed: np.array(r.figure[name], float) for r in results if (r.data, r.model) == (data, model)}


def compare(results: list[Result], data: str) -> dict[str, Any]:
    """All pairs, in accuracy (points) and in negative log-likelihood."""
    group = next(np.array(r.figure["photos"]) for r in results if r.data == data)
    found: dict[str, Any] = {"signs": len(group), "groups of photos": len(np.unique(group))}
    for first, second in PAIRS:
        for name, scale, digits in (("hits", 100, 2), ("losses", 1, 3)):
            one, other = (answers(results, data, model, name) for model in (first, second))
            shared = sorted(one.keys() & other.keys())
            if shared:
                matrix = scale * np.stack([one[s] - other[s] for s in shared])
                mean, low, high, p = bootstrap(matrix, group)
                found[f"{first} - {second}, {'accuracy' if name == 'hits' else 'NLL'}"] = {
                    "difference": round(mean, digits), "interval": [round(low, digits), round(high, digits)],
                    "p": round(p, 4), "seeds": len(shared),
                }  # fmt: skip
    return found


def main() -> None:
    """Write the intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, required=True)
    given, watch = parser.parse_args(), Stopwatch()
    results = read_results(given.results, signs.NAME)
    write(given.out, {data: compare(results, data) for data in (signs.TEN, signs.ALL)}, seed=0, watch=watch)


if __name__ == "__main__":
    main()
