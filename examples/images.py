"""Train a CNN and a P-STN on a few hundred images, and show where the P-STN looked.

    python examples/images.py                      # 300 shipped digits, two minutes of processor time
    python examples/images.py --data my/folder     # a folder with one folder of images per class
    python examples/images.py --quick              # seconds, to check that it runs

Besides the usual scores it prints the accuracy on the more certain half of the test images, as if a person checked the
other half.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import pstn
from pstn.data import Split, balanced_indices, from_folder, load
from pstn.report.pictures import draw_samples


def open_data(name: str, images: int, size: int, seed: int) -> tuple[Split, Split]:
    """Training and test images, normalised."""
    folder = Path(name).is_dir()
    train, _, test = from_folder(name, size=size) if folder else load(name)
    assert train is not None
    assert test is not None
    if folder:
        pixels = train.x.double() / 255
        mean, std = pixels.mean((0, 2, 3)).tolist(), pixels.std((0, 2, 3)).clamp_min(1e-3).tolist()
        train, test = train.as_float(mean, std), test.as_float(mean, std)
    return train.take(balanced_indices(train.y, min(images, len(train)), seed=seed)), test


def make_cnn(train: Split) -> nn.Module:
    """The classifier alone."""
    channels, *size = train.x.shape[1:]
    return pstn.nn.ConvClassifier(channels, size, classes=len(train.classes))


def make_pstn(train: Split) -> nn.Module:
    """The same classifier behind a layer that rotates, scales and shifts its input."""
    channels, *size = train.x.shape[1:]
    localizer = pstn.nn.ConvLocalizer(channels, size)
    # Outside the image a warp reads the background, which is not 0 after normalisation.
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, fill=train.fill, alpha=1.0, var_init=-5.0)
    return pstn.PSTN(layer, make_cnn(train), train_samples=1)


def surest_half(model: nn.Module, test: Split) -> float:
    """Accuracy on the half of the test images with the lowest entropy."""
    with torch.no_grad():
        source = torch.Generator().manual_seed(0)
        output = model(test.x, generator=source) if isinstance(model, pstn.PSTN) else model(test.x)
    log_probs: Tensor = output.log_probs if isinstance(output, pstn.Prediction) else output.log_softmax(-1)
    sure = pstn.entropy(log_probs).argsort()[: len(test) // 2]
    return float(pstn.accuracy(log_probs[sure], test.y[sure]))


def draw(path: Path, model: nn.Module, test: Split) -> None:
    """The two images with the lowest entropy, and the four with the highest."""
    assert isinstance(model, pstn.PSTN)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        by_entropy = model(test.x, generator=source).entropy.argsort()
    chosen = torch.cat([by_entropy[:2], by_entropy[-4:]])
    x = test.x[chosen]
    low, high = x.amin(), x.amax()
    draw_samples(path, model, x, test.y[chosen], undo=lambda pixels: (pixels - low) / (high - low), generator=source)


def main(arguments: list[str] | None = None) -> dict[str, pstn.Scores]:
    """Train both, print their scores, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="a folder with one folder of images per class, or a known set")
    parser.add_argument("--images", type=int, default=300, help="number of training images")
    parser.add_argument("--size", type=int, default=32, help="side to which the images of a folder are resized")
    parser.add_argument("--quick", action="store_true", help="one epoch on a few images, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    train, test = open_data(options.data, options.images, options.size, options.seed)
    if options.quick:
        train, test = train.take(range(min(50, len(train)))), test.take(range(min(50, len(test))))
    print(f"{len(train)} images in {len(train.classes)} classes for training, {len(test)} for testing")
    scores = {}
    for name, make in {"CNN": make_cnn, "P-STN": make_pstn}.items():
        torch.manual_seed(options.seed)
        start = time.perf_counter()
        model = pstn.fit(
            make(train), train, epochs=1 if options.quick else 100, kl_weight=3e-4, weight_decay=0.01, batch_size=8,
            localizer_factor=0.1,
        )  # fmt: skip
        scores[name] = pstn.evaluate(model, test, generator=torch.Generator().manual_seed(0))
        half = surest_half(model, test)
        print(f"{name:6} {scores[name]}; more certain half {half:.1%}  ({time.perf_counter() - start:.0f} s)")
    path = options.out / "images.png"
    draw(path, model, test)
    print(f"Where the P-STN looked: {path}")
    return scores


if __name__ == "__main__":
    main()
