"""Train the models that the page shows: `python scripts/train_page_models.py FOLDER`.

Of posed digits: a classifier learns from upright MNIST digits and stays as it is. In front of it, an STN and a P-STN
are taught what undoes a random rotation, scale and shift. The 1,000 digits that the page shows are left out of the
training, which takes about half an hour of one core. Of little data: those of `pstn demo`, for 100 epochs, and likewise
of 67 series; `--little` trains these alone, in a minute.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from pathlib import Path

import torch

import pstn
from pstn.data import MNIST_MEAN, MNIST_STD, RandomSimilarity, load_digits, load_italy_power_demand, load_mnist
from pstn.demo import LABELS, demo_data, train
from pstn.nn import PoseLocalizer, make_model
from pstn.training import one_cycle

POSE = RandomSimilarity()
BLACK = (0 - MNIST_MEAN) / MNIST_STD


def upright_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All of MNIST's training digits, without those that the page shows."""
    splits = load_mnist(validation=0)
    shown = {image.tobytes() for image in (load_digits("test").x * 255).round().byte().numpy()}
    pixels = ((splits.train.x * MNIST_STD + MNIST_MEAN) * 255).round().byte().numpy()
    kept = torch.tensor([image.tobytes() not in shown for image in pixels])
    assert (~kept).sum() >= len(shown)
    return splits.train.x[kept], splits.train.y[kept]


def train_little(folder: Path) -> None:
    """Train the models of little data, into the subfolders digits and series."""
    splits = load_italy_power_demand(validation=0.0)
    assert splits.test is not None
    # The archive calls the classes 1 and 2: days from October to March, whose evening peak comes early, and the others.
    about = pstn.ModelMetadata(("winter", "summer"), 1, (24,), kl_weight=1e-3, data="ItalyPowerDemand", seed=0)
    for kind in LABELS:
        train(kind, demo_data(), epochs=100).save_pretrained(folder / "digits" / kind)
        torch.manual_seed(0)
        model = make_model(
            kind, 1, (24,), 2, pstn.CPAB(tess=5), networks="auto", width=16, fill=None, samples=1, alpha=1.0,
            var_init=-5.0,
        )  # fmt: skip
        pstn.fit(
            model, (splits.train.x, splits.train.y), epochs=60, lr=3e-3, kl_weight=1e-3, localizer_factor=0.1,
            weight_decay=0.01, batch_size=8, progress=False,
        )  # fmt: skip
        tested = [(splits.test.x, splits.test.y)]
        scores = pstn.evaluate(model, tested, generator=torch.Generator().manual_seed(0))
        metrics = dict(zip(("accuracy", "nll", "ece"), scores, strict=True))
        model.save_pretrained(folder / "series" / kind, about=dataclasses.replace(about, metrics=metrics))


def main() -> None:
    """Train the models, score them, and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the digits, for the STN and the P-STN")
    parser.add_argument(
        "--held-out", type=int, default=0, help="score on this many training digits, which are left out"
    )
    parser.add_argument("--little", action="store_true", help="train only the models of little data")
    options = parser.parse_args()
    train_little(options.folder)
    if options.little:
        return
    x, y = upright_digits()
    test = load_digits("test")
    test_x, test_y = (test.x - MNIST_MEAN) / MNIST_STD, test.y
    if options.held_out:
        test_x, test_y = x[-options.held_out :], y[-options.held_out :]
        x, y = x[: -options.held_out], y[: -options.held_out]
    theta = POSE.draw(len(test_x), generator=torch.Generator().manual_seed(0))
    posed = POSE.make(test_x, theta, fill=BLACK)
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28), (MNIST_MEAN,), (MNIST_STD,), data="mnist", seed=0)
    torch.manual_seed(0)
    classifier = make_model("cnn", 1, (28, 28), 10)
    pstn.fit(classifier, (x, y), epochs=6, batch_size=64, lr=2e-3, lr_schedule=one_cycle, progress=False)
    for kind in ("cnn", "stn", "pstn"):
        start, model = time.perf_counter(), classifier
        torch.manual_seed(0)
        if kind != "cnn":
            localizer = PoseLocalizer(1, (28, 28), (16, 32, 64), hidden=128)
            posterior = pstn.Point() if kind == "stn" else pstn.Mixture(4, pstn.StudentT(alpha=2.0, var_init=0.0))
            layer = pstn.SpatialTransformer(
                pstn.Similarity(scale="log"), localizer, (28, 28), posterior=posterior, fill=BLACK
            )
            wrapper = pstn.STN if kind == "stn" else pstn.PSTN
            model = wrapper(layer, copy.deepcopy(classifier))
            pstn.fit(
                model, x, teach=POSE, epochs=options.epochs, batch_size=128, lr=3e-3, lr_schedule=one_cycle,
                progress=False, on_epoch=lambda epoch: print(epoch, flush=True),
            )  # fmt: skip
        noise = torch.Generator().manual_seed(0)
        scores = {
            name: pstn.evaluate(model, [(inputs, test_y)], generator=noise)
            for name, inputs in (("posed", posed), ("upright", test_x))
        }
        print(kind, scores, f"{time.perf_counter() - start:.0f} s", flush=True)
        supervision = "labels of upright digits" + (", and random poses of them" if kind != "cnn" else "")
        metrics = dict(zip(("accuracy", "nll", "ece"), scores["posed"], strict=True))
        model.about = dataclasses.replace(about, metrics=metrics, supervision=supervision)
        model.save_pretrained(options.folder / "poses" / kind)


if __name__ == "__main__":
    main()
