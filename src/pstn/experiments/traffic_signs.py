"""Street signs: localizers find the sign in a crop of a photo for a frozen classifier (section 5.1.3).

The paper's photos, MTSD, cannot be passed on. These are others, Italian, at about a third of the resolution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data import (
    RandomPlacement,
    Sign,
    Split,
    commonest_classes,
    generate,
    isolated_signs,
    make_signs,
    read_yolo,
)
from pstn.data.boxes import region_around
from pstn.data.signs import divide_photos, find_traffic_signs, unpacked
from pstn.experiments.backbones import RESNET, SMALL, Backbone, default_backbone
from pstn.experiments.mnist_subsets import BOTH_SCALED, PRECISIONS
from pstn.experiments.runner import Experiment, Found, Lab, Probe, Task, Training, rounded, trained
from pstn.nn import PSTN, STN, Frozen, SpatialTransformer
from pstn.training import Recipe
from pstn.transforms import Similarity, to_pixels

__all__ = ["TRAFFIC_SIGNS", "overlap"]

# The photos are at about a third of MTSD's size: so is the margin of 150 pixels.
MARGIN, CLASSES, TEST_SHARE = 50.0, 10, 0.2
# Half of the wide crops are at most 118 pixels long: more would be made of the same pixels.
SIZE, QUICK_SIZE = 128, 64
RECIPE = Recipe(epochs=60, batch_size=10, lr_step=20, samples=10, precision="tf32")
# Twice the paper's factor: 506 signs make a ninth of its steps in as many epochs.
KL_WEIGHT, LOCALIZER_LR = 1e-7, 0.2
# A frozen classifier of tight boxes sees next to nothing of a sign in the whole crop.
START_SCALE = 0.5
LR, SCRATCH_LR = 1e-4, 1e-3
DATA = "stand-in photos"
# The digits of a quick run stay as they are, from 0 to 1.
_QUICK_BACKBONE = replace(SMALL, mean=(0.0,) * 3, std=(1.0,) * 3)

_DEPARTURES = (
    "Not MTSD: Italian street photos of 608 pixels with YOLO boxes, a margin of 50 pixels instead of 150, the ten "
    "commonest classes that stand alone, a fifth of the photos to test on.",
    "Networks and warp see crops of 128×128 instead of 224×224 and 1024×1024: the longer side of those of these photos "
    "has 118 pixels in the median.",
    "The frozen classifier is in evaluation mode while the localizer trains: batch statistics of warped crops would "
    "unfreeze its normalisation.",
    "Matrix products are in TF32 on the GPU, in float32 elsewhere.",
    "There is no weight decay, and the variance starts at softplus(-5): neither is known for this experiment.",
)
_START = (
    "STN and P-STN both start at half the crop, the authors' P-STN at all of it, and the localizer's learning rate is "
    "twice the paper's: 506 signs against 4,698 make a ninth of the steps in as many epochs."
)


def _signs(lab: Lab) -> dict[str, list[Sign]]:
    """Boxes that stand alone, of the ten commonest classes, in training and test photos."""

    def read() -> dict[str, list[Sign]]:
        photos = read_yolo(unpacked(find_traffic_signs()))[0]["all"]
        parts = {part: isolated_signs(p, MARGIN) for part, p in divide_photos(photos, TEST_SHARE).items()}
        chosen = commonest_classes(parts["train"], CLASSES)
        return {part: [s for s in signs if s.box.label in chosen] for part, signs in parts.items()}

    return lab.keep("signs", read)


def _box_in_crop(sign: Sign) -> list[float]:
    """Where the box is in the wide crop: (left, top, right, bottom) in [-1, 1]."""
    left, top, right, bottom = region_around(sign, MARGIN)
    box = sign.box

    def place(value: float, start: int, end: int) -> float:
        return 2 * (value - start) / (end - start) - 1

    return [
        place(box.xmin, left, right), place(box.ymin, top, bottom),
        place(box.xmax, left, right), place(box.ymax, top, bottom),
    ]  # fmt: skip


def _stand_in(lab: Lab, *, tight: bool) -> tuple[Split, Split]:
    """A quick run has no photos: digits in three channels, placed on a canvas where the crop is to be wide."""
    parts = []
    for digits in lab.data("mnist", normalise=False)[::2]:
        few = digits.take(range(100))
        x = nn.functional.interpolate(few.x, size=(QUICK_SIZE, QUICK_SIZE)).expand(-1, 3, -1, -1)
        box = torch.tensor([[-1.0, -1.0, 1.0, 1.0]]).expand(len(few), 4)
        if not tight:
            placed = generate(few, RandomPlacement(QUICK_SIZE, 28, None), seed=0).all()
            assert placed.theta is not None
            x = placed.x.expand(-1, 3, -1, -1)
            undo = Similarity().inverse(placed.theta)
            box = torch.cat([undo[:, 2:] - undo[:, 1:2], undo[:, 2:] + undo[:, 1:2]], dim=1)
        parts.append(replace(few, x=x.contiguous(), theta=box.to(few.x.device)))
    return parts[0], parts[1]


def _crops(lab: Lab, *, tight: bool) -> Task:
    def make() -> Task:
        backbone = _backbone(lab)
        if lab.quick:
            mean, std = (torch.tensor(v, device=lab.device).view(3, 1, 1) for v in (backbone.mean, backbone.std))
            train, test = (replace(part, x=(part.x - mean) / std) for part in _stand_in(lab, tight=tight))
        else:
            signs = _signs(lab)
            chosen = sorted({sign.box.label for sign in signs["train"]})
            splits = []
            for part in ("train", "test"):
                split = make_signs(
                    signs[part], chosen, crop="tight" if tight else "wide", margin=MARGIN, size=SIZE,
                    name=f"traffic signs {part}",
                )  # fmt: skip
                # What a test example is compared with: the sign's box, in the place where others keep their theta.
                boxes = torch.tensor([_box_in_crop(sign) for sign in signs[part]])
                splits.append(replace(split, theta=boxes).to(lab.device).as_float(backbone.mean, backbone.std))
            train, test = splits
        return Task(train.x, train.y, test, train.name, batch=50, classes=len(train.classes), notes=_equipment(lab))

    return lab.keep(("crops", tight), make)


def wide(lab: Lab) -> Task:
    """The sign and the margin around it."""
    return _crops(lab, tight=False)


def tight(lab: Lab) -> Task:
    """The sign alone."""
    return _crops(lab, tight=True)


def _backbone(lab: Lab) -> Backbone:
    """What classifiers and localizers are made of, and the weights that they start from."""
    if lab.quick and lab.backbone is None:
        return _QUICK_BACKBONE
    return lab.backbone or default_backbone()


def _equipment(lab: Lab) -> tuple[str, ...]:
    """What this run has to do without."""
    notes, backbone = [], _backbone(lab)
    if backbone.name == SMALL.name:
        notes.append("A small network in place of ResNet-18: torchvision does not import here.")
    elif backbone.name != RESNET.name:
        notes.append(f"{backbone.name}{' with ImageNet weights' * backbone.trained} in place of ResNet-18.")
    if not backbone.trained:
        rates = f"at a learning rate of {SCRATCH_LR:g} instead of {LR:g}"
        notes.append(f"No ImageNet weights: trained from scratch, {rates}.")
    return tuple(notes)


def _lr(lab: Lab) -> float:
    return LR if _backbone(lab).trained else SCRATCH_LR


def make_cnn(lab: Lab, seed: int) -> nn.Module:
    """The backbone as a classifier."""
    return _backbone(lab).make(_classes(lab))


def _classes(lab: Lab) -> int:
    return tight(lab).classes


CLASSIFIER = Training(
    "traffic-signs", "classifier", "tight boxes", tight, make_cnn, RECIPE,
    lr=_lr, departures=_DEPARTURES, keep=True, stacked=False,
)  # fmt: skip
"""Trained on the tight boxes, then frozen."""


def _layer(lab: Lab, *, probabilistic: bool) -> SpatialTransformer:
    size, backbone = QUICK_SIZE if lab.quick else SIZE, _backbone(lab)
    layer = SpatialTransformer(
        Similarity(), backbone.make(None), (size, size), probabilistic=probabilistic, fill=backbone.black
    )
    with torch.no_grad():
        layer.mean_head.last.bias[1] = START_SCALE
    return layer


def make_stn(lab: Lab, seed: int) -> nn.Module:
    """The STN in front of this seed's frozen classifier."""
    return STN(_layer(lab, probabilistic=False), Frozen(trained(lab, CLASSIFIER, seed)))


def make_pstn(lab: Lab, seed: int) -> nn.Module:
    """The P-STN in front of this seed's frozen classifier."""
    layer = _layer(lab, probabilistic=True)
    return PSTN(layer, Frozen(trained(lab, CLASSIFIER, seed)), train_samples=10, test_samples=10)


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of upright boxes (N, 4), (left, top, right, bottom), one by one: (N,).

    Example:
        >>> overlap(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0]]))
        tensor([0.3333])
    """

    def area(box: Tensor) -> Tensor:
        return (box[:, 2:] - box[:, :2]).clamp(min=0).prod(1)

    shared = torch.cat([torch.maximum(boxes[:, :2], others[:, :2]), torch.minimum(boxes[:, 2:], others[:, 2:])], dim=1)
    return area(shared) / (area(boxes) + area(others) - area(shared))


def _localisation(probe: Probe) -> Found:
    """How well the upright box around the mean window agrees with the sign's."""
    mean, truth = probe.answers.loc, probe.answers.truth
    assert mean is not None
    assert truth is not None
    corners = Similarity().corners(mean)
    window = torch.cat([corners.amin(1), corners.amax(1)], dim=1)
    figure = _windows(probe) if (probe.cell.model, probe.cell.seed) == ("P-STN", 0) else {}
    return {"iou": float(overlap(window, truth).mean())}, figure


def _windows(probe: Probe, count: int = 6, side: int = 80) -> dict[str, Any]:
    """Six crops, small, with the corners of ten windows on each."""
    x = probe.task.test.batch(range(count)).x.cpu()
    layer = probe.model.get_submodule("layer")
    assert isinstance(layer, SpatialTransformer)
    with torch.no_grad():
        theta = layer.localize(x).rsample(10, generator=torch.Generator().manual_seed(0))
    small = nn.functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
    backbone = _backbone(probe.lab)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (backbone.mean, backbone.std))
    images = ((small * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
    corners = to_pixels(layer.transform.corners(theta), (side, side)).transpose(0, 1)
    return {"images": images.tolist(), "corners": rounded(corners, 1)}


CNN_GROUP = Training(
    "traffic-signs", "CNN", DATA, wide, make_cnn, RECIPE,
    lr=_lr, localizer_factor=LOCALIZER_LR, departures=_DEPARTURES, stacked=False,
)  # fmt: skip
STN_GROUP = replace(
    CNN_GROUP, model="STN", make=make_stn, measures=(_localisation,), departures=(*_DEPARTURES, _START, BOTH_SCALED)
)
PSTN_GROUP = replace(
    STN_GROUP, model="P-STN", make=make_pstn, variants={"": KL_WEIGHT},
    departures=(*_DEPARTURES, _START, PRECISIONS, BOTH_SCALED),
)  # fmt: skip

TRAFFIC_SIGNS = Experiment(
    "traffic-signs",
    "Finding street signs for a frozen ResNet-18, or another, on photos that stand in for MTSD",
    needs=("traffic-signs",),
    groups=(CLASSIFIER, CNN_GROUP, STN_GROUP, PSTN_GROUP),
)
