"""Make a trained classifier robust to rotations and shifts, and compare ways to do so.

    python examples/wrap_digits.py            # six minutes of one core, with OMP_NUM_THREADS=1
    python examples/wrap_digits.py --quick    # seconds, to check that it runs

A CNN, a plain `nn.Sequential`, is trained on upright digits. `pstn.compare` then tests it on digits that are rotated by
up to 60 degrees, and on digits that are shifted by up to a quarter of the image: as it is; with fixed test-time
augmentation; retrained; and wrapped, fitted to the labels of moved digits, and for rotations also taught the pose of
upright ones without labels. The wrapped classifier that was taught rotations is saved.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import nn

import pstn
from pstn.comparison import ClassifierComparison
from pstn.data import RandomRotation, RandomTransform, RandomTranslation, generate, load
from pstn.report.pictures import draw_samples

# For each, whether the wrapped classifier is taught or fitted.
DISTURBANCES: dict[str, tuple[RandomTransform, list[bool]]] = {
    "rotated": (RandomRotation(math.pi / 3), [True, False]),
    "shifted": (RandomTranslation(0.5), [False]),
}


def make_classifier(classes: int = 10) -> nn.Sequential:
    """The network of the classifier: any other will do."""
    stages = (nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, classes))


def main(arguments: list[str] | None = None) -> dict[str, list[ClassifierComparison]]:
    """Train, compare, print the tables, save one picture for each disturbance, and a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short epoch each, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures and the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)

    train, validation, test = load("digits", normalise=False)
    assert train is not None
    assert validation is not None
    assert test is not None
    if options.quick:
        train, validation, test = (part.take(range(60)) for part in (train, validation, test))
    start = time.perf_counter()
    classifier = pstn.fit(make_classifier(), train, epochs=1 if options.quick else 8)
    # What made it, so that models with it can be saved: "MODULE:NAME", as this file is run as a script.
    pstn.set_constructor(classifier, "wrap_digits:make_classifier", classes=10)

    epochs, tries = (1, 1) if options.quick else (12, 2)
    found: dict[str, list[ClassifierComparison]] = {}
    for name, (poses, ways) in DISTURBANCES.items():
        for teach in ways:
            compared = pstn.compare(
                classifier, train, validation, test, poses, teach=teach, epochs=epochs, tries=tries, seed=options.seed
            )
            print(f"Digits {name}, the wrapped classifier {'taught' if teach else 'fitted'}\n{compared}\n", flush=True)
            found.setdefault(name, []).append(compared)
        wrapped = found[name][0].models["wrapped"]
        assert isinstance(wrapped, pstn.PSTN)
        shown = generate(test, poses, seed=0).batch(range(6))
        path = options.out / f"wrap-{name}.png"
        draw_samples(path, wrapped, shown.x, shown.y, generator=torch.Generator().manual_seed(0))
        print(f"Where it looked: {path}")
        if name == "rotated":
            about = pstn.ModelMetadata(test.classes, 1, (28, 28), data="digits", supervision="labels of upright digits")
            print(f"Saved: {pstn.save_pretrained(wrapped, options.out / 'robust', about=about)}")
    print(f"{time.perf_counter() - start:.0f} s")
    return found


if __name__ == "__main__":
    main()
