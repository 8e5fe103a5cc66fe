"""What it costs to find thresholds and conformal sets on the examples that early stopping has used.

    python benchmarks/validation_reuse.py OUT.json [--examples 200 1000] [--repeats 320 50] [--seed 0]

Small CNNs learn digits of 14 x 14 pixels, a part of which is kept to validate on, as `pstn train` does with data of
your own: with early stopping, which takes the weights that fit these best. Sets for 90% and answers for 95% are then
found on the same examples, on as many others that nothing has used, or on one half while the other half stopped the
training; with a temperature from the validation examples and without. What became of them is tested on the remaining
digits of the 5,000.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pstn
from pstn.abstaining import Abstention
from pstn.data.split import stratified_indices
from pstn.defaults import default_kl_weight
from pstn.nn import make_model
from pstn.provenance import provenance
from pstn.training import Member, Population, Recipe
from pstn.training.evaluate import find_temperature

COVERAGE, ACCURACY, FRACTION = 0.9, 0.95, 0.15
AT_ONCE = 20  # models in a population
NAMES = ("set_coverage", "set_size", "accuracy_answered", "answered")

Scores = dict[str, list[list[float]]]


def load_small() -> tuple[Tensor, Tensor]:
    """All digits of the package at half their size."""
    parts = [pstn.data.load_digits(part) for part in ("train", "test")]
    x = torch.nn.functional.avg_pool2d(torch.cat([part.x for part in parts]), 2)
    return x, torch.cat([part.y for part in parts])


def train(x: Tensor, splits: list[tuple[Tensor, Tensor]], seeds: list[int]) -> list[Tensor]:
    """The log-probabilities of all digits by a model for each pair of training and validation examples."""
    recipe = Recipe().for_examples(len(splits[0][0]))
    recipe = Recipe(recipe.epochs, recipe.batch_size, patience=max(5, -(-recipe.epochs // 5)))
    models = [make_model("cnn", 1, (14, 14), 10, networks="auto", width=8, seed=seed) for seed in seeds]
    members = [
        Member(seed, kl_weight=default_kl_weight(len(learned)), train=learned, valid=valid)
        for seed, (learned, valid) in zip(seeds, splits, strict=True)
    ]
    y = load_small()[1]
    with Population(models, x, y, members, recipe, workers=False, groups=1) as population:
        population.fit()
        return [log_probs.cpu() for log_probs in population.predict(x)]


def measure(x: Tensor, y: Tensor, examples: int, seeds: list[int], found: Scores) -> None:
    """Add the scores of a few models to `found`."""

    def test(name: str, probs: Tensor, on: Tensor, rest: Tensor) -> None:
        rule = Abstention.find(probs[on], y[on], coverage=COVERAGE, accuracy=ACCURACY)
        scores = rule.score(probs[rest], y[rest])
        values = [float("nan") if value is None else value for value in map(scores.get, NAMES)]
        found.setdefault(name, []).append(values)

    drawn: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for seed in seeds:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        learned, valid = stratified_indices(y[order[:examples]], FRACTION, seed=seed)
        others = order[examples : examples + len(valid)]
        drawn.append((order[learned], order[valid], others, order[examples + len(valid) :]))
    for (_, valid, others, rest), answers in zip(
        drawn, train(x, [(learned, valid) for learned, valid, *_ in drawn], seeds), strict=True
    ):
        calibrated = (answers / find_temperature(answers[valid], y[valid])).softmax(-1)
        test("the same", answers.exp(), valid, rest)
        test("the same, with a temperature from them", calibrated, valid, rest)
        test("others", answers.exp(), others, rest)
        test("others, with a temperature from the first", calibrated, others, rest)
    halves = [(learned, valid[::2]) for learned, valid, *_ in drawn]
    for (_, valid, _, rest), answers in zip(drawn, train(x, halves, seeds), strict=True):
        test("half of them each", answers.exp(), valid[1::2], rest)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--repeats", type=int, nargs="+", default=[320, 50])
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat")
    given = parser.parse_args()
    torch.set_num_threads(1)
    x, y = load_small()
    results = []
    for examples, repeats in zip(given.examples, given.repeats, strict=True):
        found: Scores = {}
        for first in range(0, repeats, AT_ONCE):
            measure(x, y, examples, [given.seed + k for k in range(first, min(first + AT_ONCE, repeats))], found)
            print(examples, first, flush=True)
        for name, rows in found.items():
            values = np.array(rows)
            mean, error = np.nanmean(values, 0), np.nanstd(values, 0) / np.sqrt(len(values))
            row = {"examples": examples, "found_on": name, "repeats": len(values), "seed": given.seed}
            row |= {n: [round(float(m), 5), round(float(e), 5)] for n, m, e in zip(NAMES, mean, error, strict=True)}
            results.append(row)
            print(row, flush=True)
        record = {"run": provenance(), "coverage": COVERAGE, "accuracy": ACCURACY, "results": results}
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
