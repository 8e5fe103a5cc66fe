"""The demonstration: train a CNN, an STN and a P-STN on 100 digits, compare them, draw where the P-STN looks."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pstn._checks import require_seed
from pstn.data import MNIST_MEAN, MNIST_STD, load_digits
from pstn.files import inside, require_writable
from pstn.nn import PSTN, ModelMetadata, Shareable, make_model
from pstn.nn.factory import ModelKind
from pstn.text import printable
from pstn.training.evaluate import evaluate
from pstn.training.fit import fit

LABELS: dict[ModelKind, str] = {"cnn": "CNN", "stn": "STN", "pstn": "P-STN"}


class DemoData(NamedTuple):
    """Inputs and labels for training and test."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def demo_data(images: int = 100, seed: int = 0) -> DemoData:
    """Draw a balanced training subset of the bundled digits; the test set is always the same 1,000.

    Args:
        images: number of training images, a multiple of 10.
        seed: which subset.
    """
    if images < 10 or images % 10 or images > 4000:
        raise ValueError(f"images must be a multiple of 10 from 10 to 4000, got {images}")
    pool, test = load_digits("train"), load_digits("test")
    source = torch.Generator().manual_seed(require_seed("seed", seed))
    by_class = torch.randperm(400, generator=source)[: images // 10]
    chosen = (by_class[:, None] * 10 + torch.arange(10)).flatten()
    x, test_x = ((part - MNIST_MEAN) / MNIST_STD for part in (pool.x[chosen], test.x))
    return DemoData(x, pool.y[chosen], test_x, test.y)


_ABOUT = ModelMetadata(tuple("0123456789"), 1, (28, 28), (MNIST_MEAN,), (MNIST_STD,), kl_weight=3e-4, data="digits")


def make_digit_model(kind: ModelKind) -> Shareable:
    """A model that is not trained, with the paper's networks, posterior and prior."""
    black = (0 - MNIST_MEAN) / MNIST_STD  # what a warp reads outside the image
    return make_model(kind, 1, (28, 28), 10, fill=black, samples=1, alpha=1.0, var_init=-5.0)


def train(
    kind: ModelKind, data: DemoData, *, epochs: int, seed: int = 0, on_loss: Callable[[float], None] = lambda loss: None
) -> Shareable:  # fmt: skip
    """Train one model as the paper does on MNIST subsets, with its w for 100 images.

    Args:
        kind: "cnn", "stn" or "pstn".
        data: for training, and for the scores in the model's metadata; one that samples uses the same 10 each time.
        epochs: passes over the data.
        seed: of the initial weights, batches and samples.
        on_loss: called after every epoch with its mean loss.
    """
    torch.manual_seed(seed)
    model = make_digit_model(kind)
    with warnings.catch_warnings():  # the table and the picture show how well it went
        warnings.simplefilter("ignore", UserWarning)
        model = fit(
            model, (data.x, data.y), epochs=epochs, lr=1e-4 if kind == "stn" else 1e-3, kl_weight=_ABOUT.kl_weight,
            localizer_factor=0.1, weight_decay=0.01, batch_size=8, progress=False,
            on_epoch=lambda epoch: on_loss(epoch.loss),
        )  # fmt: skip
    scores = evaluate(model, [(data.test_x, data.test_y)], generator=torch.Generator().manual_seed(0))
    metrics = dict(zip(("accuracy", "nll", "ece"), scores, strict=True))
    model.about = dataclasses.replace(_ABOUT, seed=seed, metrics=metrics)
    return model


def run_demo(folder: Path, *, images: int = 100, epochs: int = 300, seed: int = 0) -> None:
    """Train and compare the three models, print a table, and save the picture and the models in `folder`."""
    import matplotlib.figure  # noqa: F401  # a missing package is reported before training
    from rich.console import Console
    from rich.table import Table
    from safetensors.torch import save_file  # noqa: F401  # likewise

    console = Console()
    data = demo_data(images, seed)
    require_writable(folder)
    for kind in LABELS:
        inside(folder, kind)  # a link to elsewhere is refused before training
    console.print(f"{images} real digits for training, 1,000 others for the test; {epochs} epochs.")
    table = Table("", "accuracy", "NLL", "calibration error", "seconds")
    for kind, label in LABELS.items():
        console.print(f"Training the {label}")
        start = time.perf_counter()
        model = train(kind, data, epochs=epochs, seed=seed)
        seconds = time.perf_counter() - start
        model.save_pretrained(folder / kind)
        assert model.about is not None
        accuracy, nll, ece = model.about.metrics.values()
        table.add_row(label, f"{accuracy:.1%}", f"{nll:.3f}", f"{ece:.3f}", f"{seconds:.0f}")
    console.print(table)
    picture = _draw(folder / "looks.png", model, data)
    # Printed without markup: paths may contain brackets.
    console.out(printable(f"Where the P-STN looked: {picture}"))
    console.out(printable(f"The three models: {folder}/cnn, {folder}/stn, {folder}/pstn"))
    console.out(printable(f"Next, where it looks in an image of yours: pstn show {folder}/pstn IMAGE"))


def _draw(path: Path, model: Shareable, data: DemoData) -> Path:
    """Draw three of the fifth of the digits with the least uncertainty, and the three with the most."""
    from pstn.report.pictures import draw_samples

    assert isinstance(model, PSTN)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        by_entropy = model(data.test_x, generator=generator).entropy.argsort()
    chosen = torch.cat([by_entropy[[0, 100, 200]], by_entropy[-3:]])
    x, y = data.test_x[chosen], data.test_y[chosen]
    return draw_samples(
        path, model, x, y, samples=model.test_samples, undo=lambda x: x * MNIST_STD + MNIST_MEAN, generator=generator
    )
