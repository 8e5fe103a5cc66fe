"""The main job on one page: train a CNN, an STN and a P-STN on 100 digits, compare them, draw what they look at."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn._checks import require_seed
from pstn.data import MNIST_MEAN, MNIST_STD, load_digits
from pstn.files import inside, require_writable
from pstn.nn import PSTN, About, Shareable, TransformerClassifier, mnist_cnn, mnist_pstn, mnist_stn
from pstn.objective import elbo_loss
from pstn.text import printable
from pstn.training import single as training

__all__ = ["DEMO_MODELS", "DemoData", "DemoModel", "Score", "demo_about", "demo_data", "evaluate", "train"]

_KL_WEIGHT = 3e-4  # the paper's choice for 100 images


@dataclass(frozen=True)
class DemoModel:
    """One column of the comparison: how the model is made, and its learning rate in the paper's MNIST experiment."""

    label: str
    make: Callable[[], Shareable]
    lr: float


# Black is 0 before normalisation and this after it: what a warp reads outside the image.
_BACKGROUND = (0 - MNIST_MEAN) / MNIST_STD

DEMO_MODELS = {
    "cnn": DemoModel("CNN", mnist_cnn, 1e-3),
    "stn": DemoModel("STN", lambda: mnist_stn(fill=_BACKGROUND), 1e-4),
    "pstn": DemoModel("P-STN", lambda: mnist_pstn(fill=_BACKGROUND), 1e-3),
}


class DemoData(NamedTuple):
    """Normalised digits for training and test."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


class Score(NamedTuple):
    """What the demo reports of a trained model."""

    accuracy: float
    nll: float
    calibration_error: float
    seconds: float


def demo_data(images: int = 100, seed: int = 0) -> DemoData:
    """Draw a balanced training subset of the shipped digits; the test set is always the same 1,000.

    Args:
        images: how many training images, a multiple of 10.
        seed: which subset.
    """
    if images < 10 or images % 10 or images > 4000:
        raise ValueError(f"images must be a multiple of 10 from 10 to 4000, got {images}")
    require_seed("seed", seed)
    pool, test = load_digits("train"), load_digits("test")
    by_class = torch.randperm(400, generator=torch.Generator().manual_seed(seed))[: images // 10]
    chosen = (by_class[:, None] * 10 + torch.arange(10)).flatten()
    return DemoData(_normalised(pool.x[chosen]), pool.y[chosen], _normalised(test.x), test.y)


def _normalised(x: Tensor) -> Tensor:
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
        data: the digits.
        epochs: how often each image is seen; the paper has 600.
        kl_weight: w.
        seed: of initial weights, batches and samples.
        progress: called after every epoch with its mean loss.
    """
    torch.manual_seed(seed)
    model = entry.make().train()
    transformer = isinstance(model, TransformerClassifier)
    groups = model.parameter_groups(entry.lr) if isinstance(model, TransformerClassifier) else model.parameters()
    optimiser = torch.optim.Adam(groups, lr=entry.lr, weight_decay=0.01, fused=True)
    for _ in range(epochs):
        total = 0.0
        for index in torch.randperm(len(data.y)).split(8):
            x, y = data.x[index], data.y[index]
            loss = elbo_loss(model(x), y, kl_weight) if transformer else F.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(y)
        progress(total / len(data.y))
    return model.eval()


def evaluate(model: nn.Module, data: DemoData, seconds: float = 0.0) -> Score:
    """Score a trained model on the test digits, with 10 samples, always the same, where it samples."""
    fixed = torch.Generator().manual_seed(0)
    return Score(*training.evaluate(model, [(data.test_x, data.test_y)], generator=fixed), seconds)


def demo_about(score: Score, seed: int) -> About:
    """What belongs to a model of the demo beside its weights."""
    metrics = {"accuracy": score.accuracy, "nll": score.nll, "ece": score.calibration_error}
    return About(
        tuple("0123456789"), 1, (28, 28), (MNIST_MEAN,), (MNIST_STD,), kl_weight=_KL_WEIGHT, seed=seed, data="digits",
        metrics=metrics,
    )  # fmt: skip


def run_demo(folder: Path, *, images: int = 100, epochs: int = 300, seed: int = 0) -> dict[str, Score]:
    """Train and compare the three models, print one table, and save the picture and the models in `folder`."""
    import matplotlib.figure  # noqa: F401  # asked for before training, not after it
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
    from safetensors.torch import save_file  # noqa: F401  # likewise

    console = Console()
    data = demo_data(images, seed)
    require_writable(folder)
    for name in DEMO_MODELS:
        inside(folder, name)  # a link elsewhere is refused now, not after training
    console.print(f"{images} real digits to learn from, 1,000 others to be tested on; {epochs} passes over them.")
    scores: dict[str, Score] = {}
    trained: dict[str, Shareable] = {}
    columns = (TextColumn("{task.description:<6}"), BarColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        tasks = {name: bars.add_task(entry.label, total=epochs, loss="") for name, entry in DEMO_MODELS.items()}
        for name, entry in DEMO_MODELS.items():
            start = time.perf_counter()
            trained[name] = train(
                entry, data, epochs=epochs, seed=seed,
                # mypy has no type for a default of a lambda
                progress=lambda loss, task=tasks[name]: bars.update(task, advance=1, loss=f"loss {loss:.3f}"),  # type: ignore[misc]
            )  # fmt: skip
            scores[name] = evaluate(trained[name], data, time.perf_counter() - start)
            trained[name].save_pretrained(folder / name, about=demo_about(scores[name], seed))
    table = Table("", "accuracy", "NLL", "calibration error", "seconds")
    for name, score in scores.items():
        row = (f"{score.accuracy:.1%}", f"{score.nll:.3f}", f"{score.calibration_error:.3f}", f"{score.seconds:.0f}")
        table.add_row(DEMO_MODELS[name].label, *row)
    console.print(table)
    picture = _draw(folder / "looks.png", trained["pstn"], data)
    paths = f"What the P-STN looked at: {picture}\nThe three models: {folder}/cnn, {folder}/stn, {folder}/pstn"
    console.out(printable(paths))  # as it is: rich would take brackets in a path for markup of its own
    # As it was called where the shell does not know it: `make demo` calls it in an environment that nobody is in.
    command = "pstn" if shutil.which("pstn") else sys.argv[0]
    console.out(f"Next, where it looks in an image of yours: {command} show {folder}/pstn IMAGE")
    return scores


def _draw(path: Path, model: nn.Module, data: DemoData) -> Path:
    """The picture: three of the fifth of digits that the P-STN is surest of, and the three that it is least sure of."""
    from pstn.report.pictures import draw_samples

    assert isinstance(model, PSTN)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        by_entropy = model(data.test_x, generator=source).entropy.argsort()
    chosen = torch.cat([by_entropy[[0, 100, 200]], by_entropy[-3:]])
    x, y = data.test_x[chosen], data.test_y[chosen]
    return draw_samples(path, model, x, y, undo=lambda x: x * MNIST_STD + MNIST_MEAN, generator=source)
