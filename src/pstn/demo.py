"""The demonstration: train a CNN, an STN and a P-STN on 100 digits, compare them, draw where the P-STN looks."""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pstn._checks import require_seed
from pstn.data import MNIST_MEAN, MNIST_STD, load_digits
from pstn.files import inside, require_writable
from pstn.nn import PSTN, About, Shareable, mnist_cnn, mnist_pstn, mnist_stn
from pstn.text import printable
from pstn.training.evaluate import evaluate as score_model
from pstn.training.fit import fit

__all__ = ["DEMO_MODELS", "DemoData", "DemoModel", "Score", "demo_about", "demo_data", "evaluate", "train"]

_KL_WEIGHT = 3e-4  # the paper's choice for 100 images


@dataclass(frozen=True)
class DemoModel:
    """One model of the comparison.

    Attributes:
        label: its name in tables.
        make: makes it, untrained.
        lr: its learning rate in the paper's MNIST experiment.
    """

    label: str
    make: Callable[[], Shareable]
    lr: float


# The value of a black pixel after normalisation, which a warp reads outside the image.
_BLACK = (0 - MNIST_MEAN) / MNIST_STD

DEMO_MODELS = {
    "cnn": DemoModel("CNN", mnist_cnn, 1e-3),
    "stn": DemoModel("STN", lambda: mnist_stn(fill=_BLACK), 1e-4),
    "pstn": DemoModel("P-STN", lambda: mnist_pstn(fill=_BLACK), 1e-3),
}


class DemoData(NamedTuple):
    """Inputs and labels for training and test."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


class Score(NamedTuple):
    """The scores of a trained model."""

    accuracy: float
    nll: float
    calibration_error: float
    seconds: float


def demo_data(images: int = 100, seed: int = 0) -> DemoData:
    """Draw a balanced training subset of the bundled digits; the test set is always the same 1,000.

    Args:
        images: number of training images, a multiple of 10.
        seed: which subset.
    """
    if images < 10 or images % 10 or images > 4000:
        raise ValueError(f"images must be a multiple of 10 from 10 to 4000, got {images}")
    require_seed("seed", seed)
    pool, test = load_digits("train"), load_digits("test")
    by_class = torch.randperm(400, generator=torch.Generator().manual_seed(seed))[: images // 10]
    chosen = (by_class[:, None] * 10 + torch.arange(10)).flatten()
    return DemoData(_normalise(pool.x[chosen]), pool.y[chosen], _normalise(test.x), test.y)


def _normalise(x: Tensor) -> Tensor:
    return (x - MNIST_MEAN) / MNIST_STD


def train(
    entry: DemoModel,
    data: DemoData,
    *,
    epochs: int,
    kl_weight: float = _KL_WEIGHT,
    seed: int = 0,
    progress: Callable[[float], None] = lambda loss: None,
) -> Shareable:
    """Train one model as the paper trains on MNIST subsets: batches of 8, Adam, weight decay 0.01.

    Args:
        entry: which model.
        data: the training data.
        epochs: passes over the data; the paper uses 600.
        kl_weight: w.
        seed: of the initial weights, batches and samples.
        progress: called after every epoch with its mean loss.
    """
    torch.manual_seed(seed)
    with warnings.catch_warnings():  # the table and the picture show how well it went
        warnings.simplefilter("ignore", UserWarning)
        return fit(
            entry.make(), (data.x, data.y), epochs=epochs, lr=entry.lr, localizer_factor=0.1, kl_weight=kl_weight,
            weight_decay=0.01, batch_size=8, on_epoch=lambda epoch: progress(epoch.loss), progress=False,
        )  # fmt: skip


def evaluate(model: nn.Module, data: DemoData, seconds: float = 0.0) -> Score:
    """Score a trained model on the test data; one that samples uses the same 10 samples each time."""
    fixed = torch.Generator().manual_seed(0)
    return Score(*score_model(model, [(data.test_x, data.test_y)], generator=fixed), seconds)


def demo_about(score: Score, seed: int) -> About:
    """The metadata of a model of the demo."""
    metrics = {"accuracy": score.accuracy, "nll": score.nll, "ece": score.calibration_error}
    return About(
        tuple("0123456789"), 1, (28, 28), (MNIST_MEAN,), (MNIST_STD,), kl_weight=_KL_WEIGHT, seed=seed, data="digits",
        metrics=metrics,
    )  # fmt: skip


def run_demo(folder: Path, *, images: int = 100, epochs: int = 300, seed: int = 0) -> dict[str, Score]:
    """Train and compare the three models, print a table, and save the picture and the models in `folder`."""
    import matplotlib.figure  # noqa: F401  # a missing package is reported before training
    from rich.console import Console
    from rich.table import Table
    from safetensors.torch import save_file  # noqa: F401  # likewise

    console = Console()
    data = demo_data(images, seed)
    require_writable(folder)
    for name in DEMO_MODELS:
        inside(folder, name)  # a link to elsewhere is refused before training
    console.print(f"{images} real digits for training, 1,000 others for the test; {epochs} epochs.")
    trained: dict[str, Shareable] = {}
    scores: dict[str, Score] = {}
    table = Table("", "accuracy", "NLL", "calibration error", "seconds")
    for name, entry in DEMO_MODELS.items():
        console.print(f"Training the {entry.label}")
        start = time.perf_counter()
        trained[name] = train(entry, data, epochs=epochs, seed=seed)
        score = scores[name] = evaluate(trained[name], data, time.perf_counter() - start)
        trained[name].save_pretrained(folder / name, about=demo_about(score, seed))
        row = (f"{score.accuracy:.1%}", f"{score.nll:.3f}", f"{score.calibration_error:.3f}", f"{score.seconds:.0f}")
        table.add_row(entry.label, *row)
    console.print(table)
    picture = _draw(folder / "looks.png", trained["pstn"], data)
    # Printed without markup: paths may contain brackets.
    console.out(printable(f"Where the P-STN looked: {picture}"))
    console.out(printable(f"The three models: {folder}/cnn, {folder}/stn, {folder}/pstn"))
    # `make demo` calls the command by its path, in an environment that is not active.
    command = "pstn" if shutil.which("pstn") else sys.argv[0]
    console.out(f"Next, where it looks in an image of yours: {command} show {folder}/pstn IMAGE")
    return scores


def _draw(path: Path, model: nn.Module, data: DemoData) -> Path:
    """Draw three of the fifth of the digits with the least uncertainty, and the three with the most."""
    from pstn.report.pictures import draw_samples

    assert isinstance(model, PSTN)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        by_entropy = model(data.test_x, generator=generator).entropy.argsort()
    chosen = torch.cat([by_entropy[[0, 100, 200]], by_entropy[-3:]])
    x, y = data.test_x[chosen], data.test_y[chosen]
    return draw_samples(path, model, x, y, undo=lambda x: x * MNIST_STD + MNIST_MEAN, generator=generator)
