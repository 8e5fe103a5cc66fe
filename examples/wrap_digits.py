"""Make a trained classifier robust to rotations and shifts without retraining it.

    python examples/wrap_digits.py            # two minutes of processor time
    python examples/wrap_digits.py --quick    # seconds, to check that it runs

A CNN is trained on upright digits and frozen. It is tested on digits that are rotated by up to 60 degrees, and on
digits that are shifted by up to a quarter of the image: as it is; wrapped by `pstn.wrap`, with a localizer trained on
rotated or shifted digits; and, for comparison, retrained on the same digits for as many epochs.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch

import pstn
from pstn.data import Generated, RandomRotation, RandomTransform, RandomTranslation, generate, load
from pstn.report.pictures import draw_samples

# For each, the smallest family that covers it, and the localizer's factor: a rotation cannot leave the image.
DISTURBANCES: dict[str, tuple[RandomTransform, pstn.Transform, float]] = {
    "rotated": (RandomRotation(math.pi / 3), pstn.Rotation(), 1.0),
    "shifted": (RandomTranslation(0.5), pstn.Translation(scale=1.0), 0.1),
}


def compare(
    classifier: torch.nn.Module, name: str, train: Generated, test: Generated, epochs: int
) -> tuple[dict[str, pstn.Scores], pstn.PSTN]:
    """Scores before, wrapped and retrained; and the wrapped model."""
    fixed = [(test.all().x, test.y)]
    scores = {"as it is": pstn.evaluate(classifier, fixed)}
    _, family, rate = DISTURBANCES[name]
    wrapped = pstn.wrap(classifier, family, in_channels=1, train_samples=2, alpha=1.0, var_init=-5.0)
    pstn.fit(wrapped, train, epochs=epochs, localizer_factor=rate, batch_size=32, kl_weight=3.47e-5)
    scores["wrapped"] = pstn.evaluate(wrapped, fixed, generator=torch.Generator().manual_seed(0))
    retrained = pstn.fit(copy.deepcopy(classifier).requires_grad_(True), train, epochs=epochs, batch_size=32)
    scores["retrained"] = pstn.evaluate(retrained, fixed)
    return scores, wrapped


def main(arguments: list[str] | None = None) -> dict[str, dict[str, pstn.Scores]]:
    """Train, wrap, print the tables, save one picture for each disturbance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short epoch each, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)

    digits, _, test = load("digits", normalise=False, validation=0.0)
    assert digits is not None
    assert test is not None
    if options.quick:
        digits, test = digits.take(range(100)), test.take(range(50))
    start = time.perf_counter()
    classifier = pstn.fit(pstn.nn.mnist_cnn(), digits, epochs=1 if options.quick else 8)
    print(f"The classifier on upright digits: {pstn.evaluate(classifier, test)}")
    found = {}
    for name, (random_transform, _, _) in DISTURBANCES.items():
        train = generate(digits.take(range(min(2000, len(digits)))), random_transform)
        disturbed = generate(test, random_transform, seed=0)
        found[name], wrapped = compare(classifier, name, train, disturbed, 1 if options.quick else 12)
        for label, scores in found[name].items():
            print(f"{name:8} {label:10} {scores}")
        upright = pstn.evaluate(wrapped, test, generator=torch.Generator().manual_seed(0))
        print(f"{'upright':8} {'wrapped':10} {upright}")
        shown = disturbed.batch(range(6))
        path = options.out / f"wrap-{name}.png"
        draw_samples(path, wrapped, shown.x, shown.y, generator=torch.Generator().manual_seed(0))
        print(f"Where it looked: {path}")
    print(f"{time.perf_counter() - start:.0f} s")
    return found


if __name__ == "__main__":
    main()
