"""Teach a layer where an object lies in a volume, in front of a classifier that only knows centred ones.

    python examples/volumes.py            # a few minutes of processor time
    python examples/volumes.py --quick    # seconds, to check that it runs

Volumes of 16³ are made of digits: each is a few slices thick. A classifier learns from centred volumes and is frozen.
Volumes are then made larger or smaller and shifted along all three axes. The layer is taught what undoes that, with
centred volumes and without labels.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

import pstn
from pstn.data import RandomCrop, Split, load
from pstn.training import one_cycle

MOVED = RandomCrop(scale=0.2, shift=0.3, ndim=3)
"""A scale of e^±0.2, and shifts of ±0.3 of half the volume."""
SIZE = (16, 16, 16)


def make_volumes(images: torch.Tensor) -> torch.Tensor:
    """Images (N, 1, 28, 28) as volumes (N, 1, 16, 16, 16), six slices thick."""
    flat = F.pad(F.avg_pool2d(images, 2), (1, 1, 1, 1))
    return F.pad(flat[:, :, None].expand(-1, -1, 6, -1, -1), (0, 0, 0, 0, 5, 5))


def main(arguments: list[str] | None = None) -> dict[str, pstn.Scores]:
    """Train, teach, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short epoch each, to check that it runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    start = time.perf_counter()

    digits, _, test = load("digits", normalise=False, validation=0.0)
    assert isinstance(digits, Split)
    assert isinstance(test, Split)
    if options.quick:
        digits, test = digits.take(range(128)), test.take(range(50))
    x, centred = make_volumes(digits.x), make_volumes(test.x)
    classifier = pstn.nn.ConvClassifier(1, SIZE, classes=10, filters=(8, 16), kernel=3)
    pstn.fit(classifier, (x, digits.y), epochs=1 if options.quick else 10, batch_size=32)

    localizer = pstn.nn.PoseLocalizer(1, SIZE, filters=(8, 16, 32), kernel=3, hidden=128)
    posterior = pstn.StudentT(alpha=4.0, var_init=0.0)
    layer = pstn.SpatialTransformer(pstn.Crop(ndim=3), localizer, SIZE, posterior=posterior)
    model = pstn.PSTN(layer, classifier.requires_grad_(False))
    epochs = 1 if options.quick else 15
    model = pstn.fit(model, x, teach=MOVED, epochs=epochs, batch_size=64, lr=2e-3, lr_schedule=one_cycle)

    theta = MOVED.draw(len(centred), generator=torch.Generator().manual_seed(0))
    moved = MOVED.make(centred, theta)
    generator = torch.Generator().manual_seed(0)
    scores = {
        "centred, classifier alone": pstn.evaluate(classifier, [(centred, test.y)]),
        "moved, classifier alone": pstn.evaluate(classifier, [(moved, test.y)]),
        "moved, taught": pstn.evaluate(model, [(moved, test.y)], generator=generator),
        "centred, taught": pstn.evaluate(model, [(centred, test.y)], generator=generator),
    }
    for name, found in scores.items():
        print(f"{name:26} {found}")
    with torch.no_grad():
        q, truth = model.eval().layer.localize(moved), MOVED.undo(theta, layer.transform)
        held = [f"{100 * float(q.contains(truth, level).float().mean()):.1f}%" for level in (0.5, 0.9, 0.99)]
        off = (q.mode - truth).abs().median(0).values
    print(f"Regions of 50, 90 and 99% hold the true theta of {', '.join(held)}")
    print(f"Median errors: scale {off[0]:.3f}, shifts {off[1]:.3f}, {off[2]:.3f}, {off[3]:.3f}")
    print(f"{time.perf_counter() - start:.0f} s")
    return scores


if __name__ == "__main__":
    main()
