"""What a classifier of traffic signs makes of windows that do not fit, and so what a localizer can learn from it.

For a classifier that learned from the boxes alone and one that learned from windows of 1 to 4 times the box: accuracy
and negative log-likelihood on validation signs, through windows of several times the box and through constant windows
in the middle of the crop. The ten classes, a short training, validation folds of the training photos; the test photos
are not read.

    PSTN_DATA=... python benchmarks/sign_windows.py --backbone efficientnet-lite0-57934424.pth --out ...
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pstn.experiments import RunContext, runner
from pstn.experiments import traffic_signs as signs
from pstn.training.population.trainer import make_device
from recording import Stopwatch, write

TIMES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALES = (0.08, 0.1, 0.12, 0.15, 0.18, 0.22, 0.27, 0.33, 0.4, 0.5, 0.7, 1.0)
LEARNED_FROM: dict[str, signs.Window] = {
    "boxes alone": partial(signs.around, 1.0),
    "windows of 1 to 4 times the box": signs.jittered,
}


def measure(context: RunContext, fold: int, epochs: int) -> dict[str, Any]:
    """Both classifiers on one validation fold."""
    bench = signs.Bench(context, signs.TEN, fold, fold)
    found: dict[str, Any] = {}
    for name, learned_from in LEARNED_FROM.items():
        classifier = bench.network(learned_from, signs.Settings(signs.CLASSIFIER.lr, epochs))

        def score(window: signs.Window, classifier: torch.nn.Module = classifier) -> dict[str, float]:
            views = bench.views(bench.test, window, bench.view)
            scores = runner.classification_scores(runner.predict(classifier, views, batch=50))  # type: ignore[arg-type]
            return {"accuracy": round(scores["accuracy"], 4), "nll": round(scores["nll"], 4)}

        found[name] = {
            "times the box": {f"{times:g}": score(partial(signs.around, times)) for times in TIMES},
            "constant": {f"{scale:g}": score(partial(signs.constant, scale)) for scale in SCALES},
        }
    overlaps = {}
    boxes = bench.signs.boxes[bench.test]
    for scale in SCALES:
        overlaps[f"{scale:g}"] = round(float(signs.overlap(signs.constant(scale, boxes), boxes).mean()), 4)
    return {"signs": len(boxes), "overlap of constant windows": overlaps, **found}


def main() -> None:
    """Write what was measured on each fold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, required=True)
    given, watch = parser.parse_args(), Stopwatch()
    context = RunContext(Path("results"), make_device(given.device), backbone=signs.find_backbone(given.backbone))
    folds = {str(fold): measure(context, fold, given.epochs) for fold in given.folds}
    write(given.out, {"epochs": given.epochs, "folds": folds}, seed=0, watch=watch)


if __name__ == "__main__":
    main()
