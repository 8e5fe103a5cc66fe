"""Street signs: localizers find the sign in a crop of a photo for a frozen classifier (section 5.1.3).

A ResNet-18 trained on tight crops is frozen; localizers learn to find the sign in a larger crop. The paper uses the
Mapillary Traffic Sign Dataset (MTSD) and claims that the P-STN is ahead of the STN, and both far ahead of the CNN.
These are other photos, with their own classes, counts and splits: the paper’s numbers are shown for orientation, and
nothing is tested against them.

The paper's photos, MTSD, cannot be passed on. These are others, Italian, at about a third of the resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pstn.data import RandomPlacement, Sign, Split, commonest_classes, generate, isolated_signs, make_signs, read_yolo
from pstn.data.photos import divide_photos, find_traffic_signs, region_around, unpacked
from pstn.experiments import runner
from pstn.experiments.backbones import RESNET, SMALL, Backbone, default_backbone
from pstn.experiments.mnist_subsets import BOTH_SCALED, PRECISIONS
from pstn.experiments.placed_fashion import TF32
from pstn.nn import SpatialTransformer
from pstn.report import FigureSpec, Metric, Table, claim_order, figures, lines, published_lines
from pstn.transforms import Similarity, to_pixels

# The photos are at about a third of MTSD's size: so is the margin of 150 pixels.
MARGIN, CLASSES, TEST_SHARE = 50.0, 10, 0.2
# Half of the wide crops are at most 118 pixels long: more would be made of the same pixels.
SIZE, QUICK_SIZE = 128, 64
RECIPE = replace(runner.PAPER, epochs=60, batch_size=10, lr_step=20, samples=10, precision="tf32")
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
    TF32,
    "There is no weight decay, and the variance starts at softplus(-5): neither is known for this experiment.",
)
_START = (
    "STN and P-STN both start at half the crop, the authors' P-STN at all of it, and the localizer's learning rate is "
    "twice the paper's: 506 signs against 4,698 make a ninth of the steps in as many epochs."
)


def _signs(context: runner.RunContext) -> dict[str, list[Sign]]:
    """Boxes that stand alone, of the ten commonest classes, in training and test photos."""

    def read() -> dict[str, list[Sign]]:
        photos = read_yolo(unpacked(find_traffic_signs()))[0]["all"]
        parts = {part: isolated_signs(p, MARGIN) for part, p in divide_photos(photos, TEST_SHARE).items()}
        chosen = commonest_classes(parts["train"], CLASSES)
        return {part: [s for s in signs if s.box.label in chosen] for part, signs in parts.items()}

    return context.cached("signs", read)


def _box_in_crop(sign: Sign) -> list[float]:
    """Where the box is in the wide crop: (left, top, right, bottom) in [-1, 1]."""
    left, top, right, bottom = region_around(sign, MARGIN)
    (x0, x1), (y0, y1) = (
        [2 * (value - start) / (end - start) - 1 for value in values]
        for values, start, end in (
            ((sign.box.xmin, sign.box.xmax), left, right), ((sign.box.ymin, sign.box.ymax), top, bottom),
        )
    )  # fmt: skip
    return [x0, y0, x1, y1]


def _stand_in(context: runner.RunContext) -> list[Split]:
    """A quick run has no photos: digits in three channels, placed on a canvas."""
    parts = []
    for digits in context.data("mnist", normalise=False)[::2]:
        few = digits.take(range(100))
        placed = generate(few, RandomPlacement(QUICK_SIZE, 28, None), seed=0).all()
        assert placed.theta is not None
        undo = Similarity().inverse(placed.theta)
        box = torch.cat([undo[:, 2:] - undo[:, 1:2], undo[:, 2:] + undo[:, 1:2]], dim=1)
        parts.append(replace(few, x=placed.x.expand(-1, 3, -1, -1).contiguous(), theta=box.to(few.x.device)))
    return parts


def _crops(context: runner.RunContext, *, tight: bool) -> runner.Task:
    def make() -> runner.Task:
        backbone = _backbone(context)
        if context.quick:
            mean, std = (torch.tensor(v, device=context.device).view(3, 1, 1) for v in (backbone.mean, backbone.std))
            train, test = (replace(part, x=(part.x - mean) / std) for part in _stand_in(context))
        else:
            signs = _signs(context)
            chosen = sorted({sign.box.label for sign in signs["train"]})
            splits = []
            for part in ("train", "test"):
                split = make_signs(
                    signs[part], chosen, crop="tight" if tight else "wide", margin=MARGIN, size=SIZE,
                    name=f"traffic signs {part}",
                )  # fmt: skip
                # What a test example is compared with: the sign's box, in the place where others keep their theta.
                boxes = torch.tensor([_box_in_crop(sign) for sign in signs[part]])
                splits.append(replace(split, theta=boxes).to(context.device).as_float(backbone.mean, backbone.std))
            train, test = splits
        return runner.Task(
            train.x, train.y, test, train.name, batch=50, classes=len(train.classes), notes=_equipment(context)
        )

    return context.cached(("crops", tight), make)


wide, tight = partial(_crops, tight=False), partial(_crops, tight=True)
"""The sign and the margin around it, and the sign alone."""


def _backbone(context: runner.RunContext) -> Backbone:
    """What classifiers and localizers are made of, and the weights that they start from."""
    if context.quick and context.backbone is None:
        return _QUICK_BACKBONE
    return context.backbone or default_backbone()


def _equipment(context: runner.RunContext) -> tuple[str, ...]:
    """What this run has to do without."""
    notes, backbone = [], _backbone(context)
    if backbone.name == SMALL.name:
        notes.append("A small network in place of ResNet-18: torchvision does not import here.")
    elif backbone.name != RESNET.name:
        notes.append(f"{backbone.name}{' with ImageNet weights' * backbone.trained} in place of ResNet-18.")
    if not backbone.trained:
        rates = f"at a learning rate of {SCRATCH_LR:g} instead of {LR:g}"
        notes.append(f"No ImageNet weights: trained from scratch, {rates}.")
    return tuple(notes)


def _lr(context: runner.RunContext) -> float:
    return LR if _backbone(context).trained else SCRATCH_LR


def make_cnn(context: runner.RunContext, seed: int) -> nn.Module:
    """The backbone as a classifier."""
    return _backbone(context).make(tight(context).classes)


CLASSIFIER = runner.Training(
    "traffic-signs", "classifier", "tight boxes", tight, make_cnn, RECIPE,
    lr=_lr, departures=_DEPARTURES, keep=True, stacked=False,
)  # fmt: skip
"""Trained on the tight boxes, then frozen."""


def _layer(context: runner.RunContext, *, probabilistic: bool) -> SpatialTransformer:
    size, backbone = QUICK_SIZE if context.quick else SIZE, _backbone(context)
    posterior = runner.paper_posterior(probabilistic)
    layer = SpatialTransformer(
        Similarity(), backbone.make(None), (size, size), posterior=posterior, fill=backbone.black
    )
    with torch.no_grad():
        layer.mean_head.last.bias[1] = START_SCALE
    return layer


def make_model(*, probabilistic: bool) -> Callable[[runner.RunContext, int], nn.Module]:
    """The STN or P-STN in front of the seed's frozen classifier, which is in evaluation mode."""
    return runner.in_front_of(CLASSIFIER, partial(_layer, probabilistic=probabilistic), dropout=False)


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


def _localisation(tested: runner.ModelUnderTest) -> runner.Measured:
    """How well the upright box around the mean window agrees with the sign's."""
    theta, truth = tested.transformations
    corners = Similarity().corners(theta)
    window = torch.cat([corners.amin(1), corners.amax(1)], dim=1)
    drawn = _windows(tested) if (tested.cell.model, tested.cell.seed) == ("P-STN", 0) else {}
    return {"iou": float(overlap(window, truth).mean())}, drawn


def _windows(tested: runner.ModelUnderTest, count: int = 6, side: int = 80) -> dict[str, list[object]]:
    """Six crops, small, with the corners of ten windows on each."""
    x, out = tested.sample(count, 10)
    small = nn.functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
    backbone = _backbone(tested.context)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (backbone.mean, backbone.std))
    images = ((small * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
    corners = to_pixels(Similarity().corners(out.theta), (side, side)).transpose(0, 1)
    return {"images": images.tolist(), "corners": runner.rounded(corners, 1)}


CNN_GROUP = runner.Training(
    "traffic-signs", "CNN", DATA, wide, make_cnn, RECIPE,
    lr=_lr, localizer_factor=LOCALIZER_LR, departures=_DEPARTURES, stacked=False,
)  # fmt: skip
STN_GROUP = replace(
    CNN_GROUP,
    model="STN",
    make=make_model(probabilistic=False),
    measures=(_localisation,),
    departures=(*_DEPARTURES, _START, BOTH_SCALED),
)
PSTN_GROUP = replace(
    STN_GROUP, model="P-STN", make=make_model(probabilistic=True), variants={"": KL_WEIGHT},
    departures=(*_DEPARTURES, _START, PRECISIONS, BOTH_SCALED),
)  # fmt: skip

_ACCURACY = published_lines(runner.ACCURACY, """
    data             CNN   STN   P-STN
    stand-in photos  76.0  90.6  *92.2*
""")  # fmt: skip
_NLL = published_lines(runner.NLL, """
    data             CNN   STN   P-STN
    stand-in photos  0.49  0.31  *0.29*
""")  # fmt: skip
_IOU = Metric("iou", "overlap with the true box (IoU)", higher_is_better=True)

TRAFFIC_SIGNS = runner.Experiment(
    "traffic-signs",
    "Traffic signs, on stand-in photos (not MTSD)",
    runner.description_of(__doc__),
    summary="Finding street signs for a frozen ResNet-18, or another, on photos that stand in for MTSD",
    needs=("traffic-signs",),
    groups=(CLASSIFIER, CNN_GROUP, STN_GROUP, PSTN_GROUP),
    tables=(
        Table.of(
            "Traffic signs, stand-in photos",
            *(lines(metric, ("classifier",), ("tight boxes",)) for metric in runner.SCORES[:2]),
            _ACCURACY, _NLL, lines(_IOU, ("STN", "P-STN"), (DATA,)), untested={DATA: "other data"},
        ),
    ),
    claims=tuple(
        claim
        for shown in (_ACCURACY, _NLL) for order in (("P-STN", "STN"), ("STN", "CNN"))
        for claim in claim_order(shown, *order, comparable=False)
    ),
    figures=(FigureSpec("traffic-signs", "Test photos with the boxes that the P-STN sampled.", figures.draw_windows),),
)  # fmt: skip
