"""Train the models of posed digits that the page shows: `python scripts/train_page_models.py FOLDER`.

A classifier learns from upright MNIST digits and stays as it is. In front of it, an STN and a P-STN are taught what
undoes a random rotation, scale and shift. The 1,000 digits that the page shows are left out of the training, which
takes about half an hour of one core.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from pathlib import Path

import torch

import pstn
from pstn.data import MNIST_MEAN, MNIST_STD, RandomSimilarity, load_digits, load_mnist
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


def main() -> None:
    """Train the three models, score them, and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the digits, for the STN and the P-STN")
    parser.add_argument(
        "--held-out", type=int, default=0, help="score on this many training digits, which are left out"
    )
    options = parser.parse_args()
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
        model.save_pretrained(options.folder / kind)


if __name__ == "__main__":
    main()
