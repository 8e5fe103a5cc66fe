"""Whether the localizers of placed FashionMNIST set out towards the garment, by how the pixels are scaled.

The first few hundred steps of STN and P-STN, as the experiment declares them, but for the frozen classifier, which is
trained for a few epochs only. The classifier was trained on pixels from 0 to 1; the canvas is either left at that too,
or normalised, as in the authors' runs. A window that shrinks to nothing, or turns its image upside down (a negative
scale), has lost its way; the error of its position says whether it is under way to the garment.

    PSTN_DATA=... python benchmarks/placed_start.py --out benchmarks/results/placed_start_cpu.json
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pstn.data import generate, load
from pstn.experiments import placed_fashion as placed
from pstn.nn import PSTN, STN, mnist_cnn
from pstn.training import Population, RandomWarp, Recipe, make_members
from pstn.transforms import Similarity
from recording import Stopwatch, write

LOOKED_AT = 500  # test canvases


def train_classifier(epochs: int) -> nn.Module:
    """The classifier, on images that are not normalised."""
    torch.manual_seed(0)
    data = load("fashion-mnist", normalise=False).train
    with Population([mnist_cnn()], data.x, data.y, recipe=Recipe(epochs=epochs, batch_size=64)) as population:
        population.fit()
        return population.models()[0]


def make_model(classifier: nn.Module, seed: int, *, probabilistic: bool) -> nn.Module:
    """A localizer in front of the frozen classifier."""
    torch.manual_seed(seed)
    layer = placed.make_layer(probabilistic=probabilistic)
    frozen = classifier.requires_grad_(False)
    return PSTN(layer, frozen, train_samples=10, test_samples=10) if probabilistic else STN(layer, frozen)


def look(model: Any, canvases: Any) -> dict[str, float]:
    """Accuracy, the distance of the window from the garment in pixels, and the window's scale."""
    batch = canvases.batch(range(LOOKED_AT))
    with torch.no_grad():
        prediction = model.eval()(batch.x, generator=torch.Generator().manual_seed(0))
    mean = prediction.posterior.loc
    off = (mean - Similarity().inverse(batch.theta))[:, 2:] * placed.CANVAS / 2
    return {
        "accuracy": float((prediction.log_probs.argmax(1) == batch.y).float().mean()),
        "position_error": float(off.norm(dim=1).mean()),
        "scale": float(mean[:, 1].mean()),
    }


def follow(classifier: nn.Module, *, normalise: bool, probabilistic: bool, seeds: int, steps: list[int]) -> list[Any]:
    """What is found after so many steps, for each seed."""
    splits = load("fashion-mnist", normalise=normalise)
    assert splits.test is not None
    fill = splits.train.fill
    recipe = replace(placed.RECIPE, precision="float32", augment=RandomWarp(placed.PLACEMENT, fill=fill))
    group = placed.PSTN_GROUP
    members = make_members(
        seeds, seed=list(range(seeds)), lr=group.lr, localizer_lr=group.localizer_lr, kl_weight=placed.KL_WEIGHT,
        weight_decay=group.weight_decay,
    )  # fmt: skip
    models = [make_model(classifier, seed, probabilistic=probabilistic) for seed in range(seeds)]
    canvases = generate(splits.test, placed.PLACEMENT, seed=0)
    found: list[Any] = []
    with Population(models, splits.train.x, splits.train.y, members, recipe) as population:
        for step in steps:
            population.fit(until=step)
            found.append({"step": step, "by_seed": [look(model, canvases) for model in population.models()]})
            print(f"normalise={normalise} probabilistic={probabilistic} {found[-1]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--classifier-epochs", type=int, default=3)
    arguments = parser.parse_args()
    watch = Stopwatch()
    classifier = train_classifier(arguments.classifier_epochs)
    rows = [
        {
            "canvas": "normalised" if normalise else "from 0 to 1",
            "model": "P-STN" if probabilistic else "STN",
            "found": follow(
                classifier, normalise=normalise, probabilistic=probabilistic, seeds=arguments.seeds,
                steps=arguments.steps,
            ),
        }
        for normalise in (True, False)
        for probabilistic in (True, False)
    ]  # fmt: skip
    figures = {
        "what": "placed FashionMNIST, the first steps: accuracy, distance from the garment in pixels, mean scale",
        "classifier_epochs": arguments.classifier_epochs,
        "test_canvases": LOOKED_AT,
        "rows": rows,
    }
    write(arguments.out, figures, seed=0, watch=watch)


if __name__ == "__main__":
    main()
