"""What the frozen classifier of placed FashionMNIST makes of windows that are off: the hill that localizers must climb.

For classifiers as the experiment trains them (100 epochs on pixels from 0 to 1), and a canvas that is left at that or
normalised: the negative log-likelihood and the accuracy of windows on the garment by their scale, of windows in the
middle of the canvas by their scale, and of windows of the right scale by their distance from the garment.

    pstn reproduce placed-fashion --cells '*cnn*'          # trains the classifiers and keeps them
    PSTN_DATA=... python benchmarks/placed_landscape.py --classifiers results/.work/placed-fashion --out ...
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pstn
from pstn.data import Split, generate, load
from pstn.experiments import placed_fashion as placed
from pstn.nn import mnist_cnn
from pstn.transforms import Similarity
from recording import Stopwatch, write

LOOKED_AT = 1000  # test canvases
RIGHT = placed.GARMENT / placed.CANVAS
SCALES = (0.02, 0.1, 0.2, 0.3, 0.4, RIGHT, 0.7, 1.0)
DISTANCES = (0, 2, 4, 6, 8, 12, 16, 24)


def score(classifier: nn.Module, seen: Tensor, y: Tensor) -> dict[str, float]:
    """What the classifier says of what it sees."""
    with torch.no_grad():
        log_probs = classifier(seen).log_softmax(1)
    nll = -log_probs.gather(1, y[:, None]).mean()
    return {"nll": round(float(nll), 3), "accuracy": round(float((log_probs.argmax(1) == y).float().mean()), 4)}


def look(classifier: nn.Module, canvases: Split) -> dict[str, Any]:
    """One classifier's landscape."""
    assert canvases.theta is not None
    right = Similarity().inverse(canvases.theta)
    turn = 2 * math.pi * torch.rand(len(right), generator=torch.Generator().manual_seed(0))
    away = torch.stack([turn.cos(), turn.sin()], dim=1) * 2 / placed.CANVAS

    def through(scale: float, position: Tensor) -> dict[str, float]:
        theta = torch.cat([torch.zeros(len(right), 1), torch.full((len(right), 1), scale), position], dim=1)
        seen = pstn.warp(canvases.x, Similarity().grid(theta, (placed.SIZE, placed.SIZE)))
        return score(classifier, seen, canvases.y)

    middle = torch.zeros(len(right), 2)
    black = torch.full((len(right), 1, placed.SIZE, placed.SIZE), float(canvases.x.min()))
    return {
        "nothing but black": score(classifier, black, canvases.y),
        "on the garment, by scale": [{"scale": s, **through(s, right[:, 2:])} for s in SCALES],
        "in the middle, by scale": [{"scale": s, **through(s, middle)} for s in SCALES],
        "by distance in pixels": [{"distance": d, **through(RIGHT, right[:, 2:] + d * away)} for d in DISTANCES],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifiers", type=Path, required=True, help="folder with upright-cnn-*.weights.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    files = sorted(arguments.classifiers.glob("upright-cnn-?.weights.safetensors"))
    if not files:
        parser.error(f"no upright-cnn-*.weights.safetensors in {arguments.classifiers}: train them first (see above)")
    watch = Stopwatch()
    rows = []
    for canvas, normalise in (("normalised", True), ("from 0 to 1", False)):
        test = load("fashion-mnist", normalise=normalise).test
        assert test is not None
        canvases = generate(test, placed.PLACEMENT, seed=0).batch(range(LOOKED_AT))
        for file in files:
            classifier = mnist_cnn().eval()
            classifier.load_state_dict(load_file(file))
            rows.append({"canvas": canvas, "classifier": file.name.split(".")[0], **look(classifier, canvases)})
            print(rows[-1], flush=True)
    what = "placed FashionMNIST: what the frozen classifier says of windows that are off"
    write(arguments.out, {"what": what, "test_canvases": LOOKED_AT, "rows": rows}, seed=0, watch=watch)


if __name__ == "__main__":
    main()
