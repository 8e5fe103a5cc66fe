"""Whether the localizers of placed FashionMNIST set out towards the garment, and what that depends on.

The first steps of STN and P-STN in front of frozen classifiers, as the experiment declares them, with one thing changed
at a time, and with the settings of the authors' code. A window that shrinks to nothing, or turns its image upside down
(a negative scale), or leaves the canvas, has lost its way; the error of its position says whether it is under way to
the garment.

    PSTN_DATA=... python benchmarks/placed_start.py --device cuda --seeds 5 --classifier-epochs 100 --out ...

The classifiers are trained for --classifier-epochs, or, for the ways with their weight decay, are those that the
experiment has kept:

    python -m pstn.experiments placed-fashion --cells '*cnn*'
    PSTN_DATA=... python benchmarks/placed_start.py --classifiers results/.work/placed-fashion --seeds 5 --out ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from pstn.data import RandomPlacement, generate, load
from pstn.experiments import placed_fashion as placed
from pstn.nn import PSTN, STN, mnist_cnn
from pstn.training import Population, RandomWarp, Recipe, make_members
from pstn.transforms import Similarity
from recording import Stopwatch, write

LOOKED_AT = 1000  # canvases of the validation part, as settings may be chosen by what is seen here


@dataclass(frozen=True)
class Way:
    """What a localizer starts with; the defaults are what the experiment declares.

    Args:
        size: of the garment on the canvas, in pixels.
        normalise: whether the canvas is normalised; the classifier's images never are.
        black: whether black, and not 0, lies outside a normalised canvas.
        scale: of the first window.
        random_biases: whether the localizer's biases start at random, as torch has it, and not at 0.
        var_init: the variance at the start, before softplus.
        localizer_factor: times the learning rate.
        weight_decay: of the classifier.
    """

    size: int = placed.GARMENT
    normalise: bool = False
    black: bool = False
    scale: float = placed.START_SCALE
    random_biases: bool = False
    var_init: float = -5.0
    localizer_factor: float = 0.1
    weight_decay: float = placed.CLASSIFIER_DECAY

    @property
    def placement(self) -> RandomPlacement:
        """Anywhere on the canvas; garments of 28 pixels as in the authors' code, which leaves a margin."""
        return RandomPlacement() if self.size == 28 else replace(placed.PLACEMENT, size=self.size)


# Size and canvas of the authors' code, and the start of their STN.
AUTHORS = Way(size=28, normalise=True, scale=0.5, random_biases=True, weight_decay=1e-5)
WAYS = {
    "declared": Way(),
    "random biases": Way(random_biases=True),
    "from all of the canvas": Way(scale=1.0),
    "from all of the canvas, random biases": Way(scale=1.0, random_biases=True),
    "from half of the canvas": Way(scale=0.5),
    "decay 1e-4": Way(weight_decay=1e-4),
    "decay 1e-5": Way(weight_decay=1e-5),
    "normalised": Way(normalise=True),
    "28 pixels": Way(size=28),
    "wider": Way(var_init=-3.0),
    "slower": Way(localizer_factor=0.02),
    "the authors'": AUTHORS,
    "the authors', black outside": replace(AUTHORS, black=True),
    "the authors', a window of 28 pixels": replace(AUTHORS, scale=28 / placed.CANVAS),
}


def train_classifiers(
    seeds: int, epochs: int, decays: Sequence[float], device: torch.device
) -> dict[float, list[nn.Module]]:
    """Classifiers of each weight decay on images that are not normalised, on the experiment's schedule, all at once."""
    data = load("fashion-mnist", normalise=False).train.to(device)
    each = [(decay, seed) for decay in decays for seed in range(seeds)]
    models = []
    for _, seed in each:
        torch.manual_seed(seed)
        models.append(mnist_cnn().to(device))
    members = make_members(
        len(each), seed=[seed for _, seed in each], lr=placed.CLASSIFIER.lr, weight_decay=[decay for decay, _ in each]
    )
    recipe = Recipe(epochs=epochs, batch_size=64, lr_step=max(1, epochs // 2))
    with Population(models, data.x, data.y, members, recipe) as population:
        population.fit()
        fitted = population.models()
    return {decay: [m.to(device) for m in fitted[i * seeds : (i + 1) * seeds]] for i, decay in enumerate(decays)}


def validate(classifiers: Sequence[nn.Module], device: torch.device) -> list[float]:
    """The classifiers' accuracy on images as they know them."""
    images = load("fashion-mnist", normalise=False).validation
    assert images is not None
    x, y = images.x.to(device), images.y.to(device)
    with torch.no_grad():
        return [round(float((c.eval()(x).argmax(1) == y).float().mean()), 4) for c in classifiers]


def make_model(classifier: nn.Module, seed: int, way: Way, outside: Any, *, probabilistic: bool) -> nn.Module:
    """A localizer in front of the frozen classifier."""
    torch.manual_seed(seed)
    layer = placed.make_layer(probabilistic=probabilistic, zero_biases=not way.random_biases)
    layer.fill = outside
    with torch.no_grad():
        layer.mean_head.last.bias[1] = way.scale
        if layer.probabilistic:
            layer.variance_head.last.bias.fill_(way.var_init)
    frozen = classifier.requires_grad_(False)
    return PSTN(layer, frozen, train_samples=10, test_samples=10) if probabilistic else STN(layer, frozen)


def look(model: Any, canvases: Any) -> dict[str, float]:
    """Accuracy, the distance of the window from the garment in pixels, and the window's scale."""
    batch = canvases.batch(range(LOOKED_AT))
    generator = torch.Generator(batch.x.device).manual_seed(0)
    with torch.no_grad():
        prediction = model.to(batch.x.device).eval()(batch.x, generator=generator)
    mean = prediction.posterior.loc
    off = (mean - Similarity().inverse(batch.theta))[:, 2:] * placed.CANVAS / 2
    return {
        "accuracy": round(float((prediction.log_probs.argmax(1) == batch.y).float().mean()), 4),
        "nll": round(float(-prediction.log_probs.gather(1, batch.y[:, None]).mean()), 3),
        "position_error": round(float(off.norm(dim=1).mean()), 2),
        "scale": round(float(mean[:, 1].mean()), 4),
    }


def follow(
    classifiers: Sequence[nn.Module], way: Way, steps: Sequence[int], device: torch.device, *, probabilistic: bool
) -> list[dict[str, Any]]:
    """What is found after so many steps, for each seed."""
    splits = load("fashion-mnist", normalise=way.normalise).to(device)
    assert splits.validation is not None
    fill, seeds = splits.train.fill, len(classifiers)
    recipe = replace(placed.RECIPE, augment=RandomWarp(way.placement, fill=fill))
    if device.type != "cuda":
        recipe = replace(recipe, precision="float32")
    members = make_members(
        seeds, seed=list(range(seeds)), lr=placed.PSTN_GROUP.lr, localizer_factor=way.localizer_factor,
        kl_weight=placed.KL_WEIGHT, weight_decay=placed.PSTN_GROUP.weight_decay,
    )  # fmt: skip
    models = [
        make_model(classifier, seed, way, fill if way.black else 0.0, probabilistic=probabilistic).to(device)
        for seed, classifier in enumerate(classifiers)
    ]
    canvases = generate(splits.validation, way.placement, seed=0)
    found: list[dict[str, Any]] = []
    with Population(models, splits.train.x, splits.train.y, members, recipe) as population:
        for step in steps:
            population.fit(until=step)
            found.append({"step": step, "by_seed": [look(model, canvases) for model in population.models()]})
            print(way, "P-STN" if probabilistic else "STN", found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["declared"])
    parser.add_argument("--models", nargs="+", choices=("P-STN", "STN"), default=["P-STN", "STN"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--classifier-epochs", type=int, default=3)
    parser.add_argument("--classifiers", type=Path, help="a folder of kept ones")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    arguments = parser.parse_args()
    watch, device = Stopwatch(), arguments.device
    others = [name for name in arguments.ways if WAYS[name].weight_decay != placed.CLASSIFIER_DECAY]
    if arguments.classifiers and others:
        parser.error(f"the kept classifiers have another weight decay than {', '.join(others)}: run those without them")
    known: dict[float, list[nn.Module]] = {}
    if arguments.classifiers:
        kept: list[nn.Module] = [mnist_cnn().to(device) for _ in range(arguments.seeds)]
        known[placed.CLASSIFIER_DECAY] = kept
        for seed, classifier in enumerate(kept):
            classifier.load_state_dict(load_file(arguments.classifiers / f"upright-cnn-{seed}.weights.safetensors"))
    decays = sorted({WAYS[name].weight_decay for name in arguments.ways} - set(known))
    if decays:
        known |= train_classifiers(arguments.seeds, arguments.classifier_epochs, decays, device)
    rows: list[dict[str, Any]] = []
    for name in arguments.ways:
        way = WAYS[name]
        classifiers = known[way.weight_decay]
        accuracy = validate(classifiers, device)
        for model in arguments.models:
            found = follow(classifiers, way, arguments.steps, device, probabilistic=model == "P-STN")
            rows.append({"way": name, **asdict(way), "model": model, "classifiers": accuracy, "found": found})
        # After every way: what was found so far is not lost if the run is cut off.
        figures = {
            "what": "placed FashionMNIST, the first steps: accuracy, NLL, pixels from the garment, mean scale",
            "classifier_epochs": "kept" if arguments.classifiers else arguments.classifier_epochs,
            "validation_canvases": LOOKED_AT,
            "rows": rows,
        }
        write(arguments.out, figures, seed=0, watch=watch)


if __name__ == "__main__":
    main()
