"""Street signs: localizers find the sign in a crop of a photo for a frozen classifier (section 5.1.3).

A classifier is frozen; localizers learn to find the sign in a larger crop. The paper uses the Mapillary Traffic Sign
Dataset (MTSD) and claims that the P-STN is ahead of the STN, and both far ahead of the CNN. These are other photos,
with their own classes, counts and splits: the paper’s numbers are shown for orientation, and nothing is tested against
them. Here the classifier learned from windows of several sizes around the sign, and every control has the same one.

The paper's photos, MTSD, cannot be passed on. These are others, Italian, at about a third of the resolution.

The five largest of the test signs whose windows were recorded, one of each class, seed 0. Left: the crop with ten
windows that the P-STN sampled (yellow), and the true box (green). Right: what the classifier sees through each of the
ten, and the answer that their average gives, with its probability.
"""

from __future__ import annotations

import base64
import copy
import math
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn._checks import skip_value_checks
from pstn.data import MTSD_CLASSES, RandomPlacement, Sign, Split, generate, isolated_signs, read_mtsd, read_yolo
from pstn.data.photos import decode_crops, find_traffic_signs, region_around, unpacked
from pstn.decode import open_image
from pstn.distributions import Point, StudentT
from pstn.experiments import runner
from pstn.files import load_safetensors
from pstn.nn import PSTN, STN, EfficientNetLite0, Frozen, Prediction, Pretrained, SpatialTransformer
from pstn.nn.backbones import import_pretrained
from pstn.processes import is_object_name
from pstn.report import Claim, FigureSpec, Line, Metric, Published, Result, Table, figures
from pstn.report.results import grouped, read_results
from pstn.text import shorten
from pstn.training import one_cycle
from pstn.training.fit import fit
from pstn.transforms import Affine, Crop, Similarity, Transform
from pstn.warping import Fill, warp

NAME, SEARCH_NAME, MTSD_NAME = "traffic-signs", "traffic-signs-search", "traffic-signs-mtsd"
TEN, ALL, MTSD = "ten classes", "all classes", "MTSD"
TEST_SHARE, FOLDS, SEEDS, SEARCH_FOLDS = 0.2, 5, 10, 2
ENOUGH = 12
"""How many isolated signs in training photos a class needs to be among all classes."""
ALIKE = 10
"""Photos whose hashes of 64 bits differ in so many bits, or fewer, stay on one side of every division."""
JITTER, SHIFT = 4.0, 0.4
"""The classifier learns from windows of 1 to 4 times the box, shifted by up to 0.4 of it."""
SMALLEST = 0.5
"""Of the random windows that localizers and CNNs are given, in sides of the crop."""
BATCH, AUTHORS_BATCH = 32, 10
SHOWN_SIDE = 256
"""The longest side of a crop in the figure: those of MTSD would fill a result file."""
_QUICK_SIZE = 64

TRUE, WHOLE, CONSTANT = "classifier at the true box", "classifier on the whole crop", "classifier, constant window"
CNN, WINDOWS, TAUGHT, AROUND = "CNN", "CNN, random windows", "taught P-STN", "classifier around the true box"


# --- Data ------------------------------------------------------------------------------------------------------------


class Signs(NamedTuple):
    """All isolated signs of some photos.

    Args:
        x: (N, 3, side, side) uint8, each box with a margin around it.
        boxes: (N, 4), where the box is in it: (left, top, right, bottom) in [-1, 1].
        y: (N,), position among the classes.
        group: (N,), photos that look alike have the same number.
        test: (N,) bool.
        classes: their names.
    """

    x: Tensor
    boxes: Tensor
    y: Tensor
    group: Tensor
    test: Tensor
    classes: tuple[str, ...]

    def of(self, classes: Sequence[str]) -> Signs:
        """Those of some classes alone, with `y` a position among them."""
        place = torch.tensor([classes.index(c) if c in classes else -1 for c in self.classes])[self.y]
        kept = place >= 0
        x, boxes, y, group, test = (t[kept] for t in (self.x, self.boxes, place, self.group, self.test))
        return Signs(x, boxes, y, group, test, tuple(classes))

    def parts(self, fold: int | None = None) -> tuple[Tensor, Tensor]:
        """What to train on and what to score: training and test signs, or of the former all but a fold, and it."""
        if fold is None:
            return (~self.test).nonzero()[:, 0], self.test.nonzero()[:, 0]
        order = torch.randperm(int(self.group.max()) + 1, generator=torch.Generator().manual_seed(1))
        held_out = order[self.group] % FOLDS == fold
        return tuple((~self.test & part).nonzero()[:, 0] for part in (~held_out, held_out))  # type: ignore[return-value]


@dataclass(frozen=True)
class Source:
    """Where signs come from, and how they are cut out.

    Args:
        margin: pixels of the photo around a box.
        view: side of what networks see.
        side: of the crop that the warp reads.
    """

    margin: float
    view: int
    side: int


# A third of MTSD's size, and so is the margin; half of the crops are at most 118 pixels long.
STAND_IN, AS_IN_THE_PAPER = Source(50.0, 128, 128), Source(150.0, 224, 1024)


def box_in_crop(sign: Sign, margin: float) -> list[float]:
    """Where the box is in the crop: (left, top, right, bottom) in [-1, 1]."""
    left, top, right, bottom = region_around(sign, margin)
    starts, sides = (left, top) * 2, (right - left, bottom - top) * 2
    corners = (sign.box.xmin, sign.box.ymin, sign.box.xmax, sign.box.ymax)
    return [2 * (value - start) / side - 1 for value, start, side in zip(corners, starts, sides, strict=True)]


def look_of(path: Path) -> Tensor:
    """64 bits that photos which look alike share: where a small grey copy gets brighter from left to right."""
    with open_image(path) as image:
        small = torch.from_numpy(np.array(image.convert("L").resize((9, 8), resample=2), dtype=np.int16))
    return (small[:, 1:] > small[:, :-1]).flatten()


def group_alike(looks: Tensor, most: int = ALIKE) -> Tensor:
    """Numbers (N,), equal for those of (N, 64) bits that differ in at most `most` bits, or that others connect so.

    Example:
        >>> group_alike(torch.eye(4, 64) @ torch.ones(64, 64).triu() > 0, most=0).tolist()
        [0, 1, 2, 3]
    """
    bits = looks.float()
    near = (bits @ (1 - bits.T) + (1 - bits) @ bits.T) <= most
    found = torch.arange(len(looks))
    while True:
        joined = torch.where(near, found[None], len(looks)).amin(1)
        if torch.equal(joined, found):
            return found.unique(return_inverse=True)[1]
        found = joined


def _cut(signs: Sequence[Sign], groups: Mapping[str, int], tested: Callable[[Sign], bool], source: Source) -> Signs:
    classes = sorted({sign.box.label for sign in signs})
    (x,) = decode_crops(signs, margin=source.margin, sizes=(source.side,))
    return Signs(
        x, torch.tensor([box_in_crop(sign, source.margin) for sign in signs]),
        torch.tensor([classes.index(sign.box.label) for sign in signs]),
        torch.tensor([groups[sign.photo.key] for sign in signs]), torch.tensor([tested(sign) for sign in signs]),
        tuple(classes),
    )  # fmt: skip


def read_stand_in(path: Path) -> Signs:
    """The signs of the Italian photos, of every class that has enough of them; or of a file of `save_signs`."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as held:
            found = {name: torch.from_numpy(held[name]) for name in Signs._fields[:-1]}
            # Stored as differences of neighbours, which a zip file holds in half the space.
            found["x"] = torch.from_numpy(np.cumsum(held["x"], axis=-1, dtype=np.uint8))
            return Signs(**found, classes=tuple(held["classes"].tolist()))
    photos = read_yolo(unpacked(path))[0]["all"]
    alike = group_alike(torch.stack([look_of(photo.path) for photo in photos]))
    order = torch.randperm(int(alike.max()) + 1, generator=torch.Generator().manual_seed(0))
    groups = {photo.key: int(group) for photo, group in zip(photos, alike, strict=True)}

    def tested(sign: Sign) -> bool:
        return int(order[groups[sign.photo.key]]) < TEST_SHARE * len(order)

    signs = isolated_signs(photos, STAND_IN.margin)
    tally = Counter(sign.box.label for sign in signs if not tested(sign))
    return _cut([sign for sign in signs if tally[sign.box.label] >= ENOUGH], groups, tested, STAND_IN)


def save_signs(signs: Signs, path: Path) -> None:
    """Write signs to one file, which `read_stand_in` reads where photos cannot be decoded."""
    held = {name: getattr(signs, name).numpy() for name in Signs._fields[:-1]}
    held["x"] = np.diff(held["x"], axis=-1, prepend=np.uint8(0))
    np.savez_compressed(path, **held, classes=np.array(signs.classes))


def _read_mtsd() -> Signs:
    """The paper's subset: isolated signs of its ten classes; the publisher's validation photos are the test part."""
    parts = {part: isolated_signs(read_mtsd(part), AS_IN_THE_PAPER.margin) for part in ("train", "val")}
    signs = [sign for found in parts.values() for sign in found if sign.box.label in MTSD_CLASSES]
    keys, held_out = sorted({sign.photo.key for sign in signs}), {sign.photo.key for sign in parts["val"]}
    groups = {key: number for number, key in enumerate(keys)}
    return _cut(signs, groups, lambda sign: sign.photo.key in held_out, AS_IN_THE_PAPER)


def _digits(context: runner.RunContext) -> Signs:
    """A quick run has no photos: digits in three channels, placed on a canvas."""
    digits = context.data("mnist", normalise=False)[0].take(range(60)).to("cpu")
    placed = generate(digits, RandomPlacement(_QUICK_SIZE, 28, None), seed=0).all()
    assert placed.theta is not None
    undo = Similarity().inverse(placed.theta)
    boxes = torch.cat([undo[:, 2:] - undo[:, 1:2], undo[:, 2:] + undo[:, 1:2]], dim=1)
    x = (placed.x * 255).round().byte().expand(-1, 3, -1, -1).contiguous()
    number = torch.arange(len(x))
    return Signs(x, boxes, digits.y, number, number % 3 == 0, tuple(digits.classes))


def load_signs(context: runner.RunContext, data: str) -> Signs:
    """The signs of a task, on the CPU."""

    def read() -> Signs:
        if context.quick:
            return _digits(context)
        return _read_mtsd() if data == MTSD else read_stand_in(find_traffic_signs())

    signs = context.cached(("signs", data == MTSD), read)
    if data != TEN or context.quick:
        return signs
    tally = signs.y[~signs.test].bincount(minlength=len(signs.classes))
    return signs.of([signs.classes[k] for k in tally.sort(descending=True, stable=True).indices[:10].tolist()])


# --- Windows ---------------------------------------------------------------------------------------------------------

Window = Callable[[Tensor], Tensor]
"""From the boxes of signs (B, 4) to windows of their crops (B, 4), all in [-1, 1] of the crop."""


def _half_and_middle(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Half the sides, and the middle, of boxes (B, 4)."""
    return (boxes[:, 2:] - boxes[:, :2]) / 2, (boxes[:, 2:] + boxes[:, :2]) / 2


def through(x: Tensor, windows: Tensor, side: int, fill: Fill = 0.0) -> Tensor:
    """What windows (B, 4) show of images (B, C, H, W): (B, C, side, side)."""
    half, middle = _half_and_middle(windows)
    zero = torch.zeros_like(half[:, 0])
    theta = torch.stack([half[:, 0], zero, middle[:, 0], zero, half[:, 1], middle[:, 1]], dim=1)
    return warp(x, Affine().grid(theta, (side, side)), fill=fill)


def around(times: float, boxes: Tensor) -> Tensor:
    """Several times the box, with the same middle."""
    half, middle = _half_and_middle(boxes)
    return torch.cat([middle - times * half, middle + times * half], dim=1)


def constant(scale: float, boxes: Tensor) -> Tensor:
    """In the middle of the crop, `scale` of its side."""
    return boxes.new_tensor([-scale, -scale, scale, scale]).expand(len(boxes), 4)


def jittered(boxes: Tensor) -> Tensor:
    """1 to 4 times the box, shifted by up to 0.4 of it."""
    half, middle = _half_and_middle(boxes)
    middle = middle + 2 * half * SHIFT * (2 * torch.rand_like(middle) - 1)
    half = half * JITTER ** torch.rand_like(half[:, :1])
    return torch.cat([middle - half, middle + half], dim=1)


def random_window(boxes: Tensor) -> Tensor:
    """A square of at least half the crop, inside of it, that holds the box."""
    low, high = boxes[:, :2], boxes[:, 2:]
    needed = (high - low).amax(1, keepdim=True).clamp(min=2 * SMALLEST, max=2.0)
    side = needed + (2 - needed) * torch.rand_like(needed)
    first, last = torch.maximum(high - side, -torch.ones_like(low)), torch.minimum(low, 1 - side)
    corner = first + (last - first) * torch.rand_like(low)
    return torch.cat([corner, corner + side], dim=1)


def inside(boxes: Tensor, windows: Tensor) -> Tensor:
    """Boxes (B, 4) in the coordinates of windows (B, 4)."""
    half, middle = _half_and_middle(windows)
    return (boxes - middle.repeat(1, 2)) / half.repeat(1, 2)


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


class Views:
    """Signs through windows, drawn afresh at each access: examples to test on, and batches to train on.

    Args:
        signs: on the device.
        index: which of them.
        window: what is seen of a crop; the whole crop when None.
        size: side of what is seen.
        backbone: how pixels are scaled.
    """

    def __init__(self, signs: Signs, index: Tensor, window: Window | None, size: int, backbone: Pretrained) -> None:
        self.signs, self.index, self.window, self.size, self.backbone = signs, index, window, size, backbone
        values = (backbone.mean, backbone.std)
        self._mean, self._std = (torch.tensor(v, device=index.device).view(-1, 1, 1) for v in values)

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, at: Tensor | Sequence[int]) -> Split:
        """The examples at `at`; theta holds the boxes, in [-1, 1] of what is seen."""
        index = self.index[torch.as_tensor(at, device=self.index.device)]
        boxes, y = self.signs.boxes[index], self.signs.y[index]
        x = (self.signs.x[index].float() / 255 - self._mean) / self._std
        if self.window is None:
            if self.size != x.shape[-1]:
                x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
            return Split(x, y, self.signs.classes, theta=boxes)
        windows = self.window(boxes)
        seen = through(x, windows, self.size, _black(self.backbone))
        return Split(seen, y, self.signs.classes, theta=inside(boxes, windows))


class Epochs:
    """Passes over `Views` in random order, for `pstn.fit`.

    Args:
        views: the examples.
        size: of a batch.
        taught: of how many times the box a window is to be found, in place of y; None for y.
    """

    def __init__(self, views: Views, size: int, taught: float | None = None) -> None:
        self.views, self.size, self.taught = views, min(size, len(views)), taught

    def __len__(self) -> int:
        return len(self.views) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.views))
        for at in order.split(self.size)[: len(self)]:
            batch = self.views.batch(at)
            assert batch.theta is not None
            yield batch.x, as_crop(around(self.taught, batch.theta)) if self.taught else batch.y


def as_crop(boxes: Tensor) -> Tensor:
    """Theta of `Crop("log")` (B, 3) for the smallest square around each box (B, 4)."""
    half, middle = (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True) / 2, (boxes[:, 2:] + boxes[:, :2]) / 2
    return torch.cat([half.log(), middle], dim=1)


# --- Models ----------------------------------------------------------------------------------------------------------


def _has_resnet() -> bool:
    """Whether torchvision imports here: next to a torch it was not built for, it raises."""
    try:
        import torchvision.models  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def _make_resnet() -> nn.Module:
    """ResNet-18 with random weights: (N, 3, H, W) -> (N, 512)."""
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    network.fc, network.features = nn.Identity(), 512  # type: ignore[assignment]  # read by SpatialTransformer
    return network


def _make_small() -> nn.Module:
    """Strided Conv-BatchNorm-ReLU stages and a global average: (N, 3, H, W) -> (N, 64)."""
    network = nn.Sequential()
    for inputs, width in pairwise((3, 16, 32, 64)):
        network.extend([nn.Conv2d(inputs, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()])
    network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    network.features = 64  # type: ignore[assignment]  # as above
    return network


RESNET = Pretrained("ResNet-18", _make_resnet, trained=False)
SMALL = Pretrained("a small network", _make_small, trained=False)
EFFICIENTNET = Pretrained(
    "EfficientNet-Lite0", partial(EfficientNetLite0, None), 224, (127 / 255,) * 3, (128 / 255,) * 3, trained=False
)
# The digits of a quick run stay as they are, from 0 to 1.
_QUICK_BACKBONE = replace(SMALL, mean=(0.0,) * 3, std=(1.0,) * 3)


def find_backbone(given: str | Path) -> Pretrained:
    """The network that a file has weights for, or that a module of the user's has.

    Args:
        given: .safetensors, or .pth as they are published: of torchvision's ResNet-18, or of EfficientNet-Lite0. Or
            "MODULE:NAME", as `pstn.nn.backbones.import_pretrained` takes it.

    Raises:
        ValueError: it is none of these.
    """
    path = Path(given)
    if not path.is_file() and is_object_name(str(given)):
        return import_pretrained(str(given))

    def make() -> nn.Module:
        network = known.make()
        network.load_state_dict(kept)
        return network

    try:
        if path.suffix == ".safetensors":
            weights = load_safetensors("cli").torch.load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        known, last = (EFFICIENTNET, "_fc.") if "_conv_stem.weight" in weights else (RESNET, "fc.")
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(last)}
        with torch.random.fork_rng(devices=[]):
            make()
    except Exception as error:  # of pickle, zipfile, torch or safetensors: damaged files raise almost anything
        accepted = f"weights of {RESNET.name}, which needs torchvision, or of {EFFICIENTNET.name}, or MODULE:NAME"
        problem = shorten(" ".join(str(error).split()))
        raise ValueError(f"backbone must be {accepted}, got {given}: {problem}") from error
    return replace(known, make=make, trained=True)


def _black(backbone: Pretrained) -> tuple[float, ...]:
    """The value of a black pixel after scaling, for each channel."""
    return tuple((0 - mean) / std for mean, std in zip(backbone.mean, backbone.std, strict=True))


def _backbone(context: runner.RunContext) -> Pretrained:
    """What classifiers and localizers are made of, and the weights that they start from."""
    if context.quick and context.backbone is None:
        return _QUICK_BACKBONE
    return context.backbone or (RESNET if _has_resnet() else SMALL)


def _equipment(context: runner.RunContext) -> tuple[str, ...]:
    """What this run has to do without."""
    notes, backbone = [], _backbone(context)
    if backbone.name == SMALL.name:
        notes.append("A small network in place of ResNet-18: torchvision does not import here.")
    elif backbone.name != RESNET.name:
        notes.append(f"{backbone.name}{' with ImageNet weights' * backbone.trained} in place of ResNet-18.")
    if not backbone.trained:
        notes.append("No ImageNet weights: trained from scratch, at ten times the learning rate.")
    return tuple(notes)


class Network(nn.Module):
    """A backbone with the channels last, in bfloat16 on a GPU; its outputs are float32.

    Args:
        backbone: of what.
        outputs: of a last layer; None for features.
    """

    def __init__(self, backbone: Pretrained, outputs: int | None) -> None:
        super().__init__()
        self.network = backbone.make()
        self.features = int(cast(int, self.network.features))
        self.head = nn.Identity() if outputs is None else nn.Linear(self.features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, outputs)."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            made: Tensor = self.head(self.network(x.contiguous(memory_format=torch.channels_last)))
        return made.float()


@dataclass(frozen=True)
class Settings:
    """How a network is trained, or where a constant window is.

    Args:
        lr: the highest learning rate of one cycle; ten times that for a network without trained weights.
        epochs: passes over the signs.
        start: the scale of a localizer's window at the start, or of a constant window.
        windows: whether a localizer is given random windows of the crops.
        kl_weight: w.
        alpha: of the posterior.
        times: of how many times the box a window around it is.
    """

    lr: float = 3e-4
    epochs: int = 60
    start: float = 1.0
    windows: bool = False
    kl_weight: float = 0.0
    alpha: float = 2.0
    times: float = 1.0

    def __str__(self) -> str:
        return ", ".join(f"{name}={value:g}" for name, value in asdict(self).items())


CLASSIFIER = Settings()
"""How the classifier is trained that stands behind all localizers and constant windows, unless a search chose."""


class Bench:
    """The signs of one task and fold, or test part, on the device, with what is trained on them.

    Args:
        context: of the run.
        data: the task.
        seed: of all that is random.
        fold: to hold out for validation; None to score the test part.

    Attributes:
        behind: how the classifier behind localizers is trained.
        authors: whether networks are trained as the authors did it, as on their own photos: batches of 10, the learning
            rate divided by 10 after each third, a classifier of tight boxes whose batch statistics follow what a
            localizer shows it, and localizers that turn too.
    """

    def __init__(self, context: runner.RunContext, data: str, seed: int, fold: int | None = None) -> None:
        self.context, self.seed, self.fold, self.backbone = context, seed, fold, _backbone(context)
        held = load_signs(context, data)
        moved = {name: getattr(held, name).to(context.device) for name in Signs._fields[:-1]}
        self.signs = held._replace(**moved)
        self.train, self.test = (index.to(context.device) for index in held.parts(fold))
        source = AS_IN_THE_PAPER if data == MTSD else STAND_IN
        self.view, self.side = (_QUICK_SIZE,) * 2 if context.quick else (source.view, source.side)
        self.behind, self.authors = CLASSIFIER, data == MTSD
        self._classifiers: dict[tuple[float, int], nn.Module] = {}

    def _fit(self, model: nn.Module, views: Views, settings: Settings, *, taught: bool = False) -> nn.Module:
        epochs = 1 if self.context.quick else settings.epochs
        lr = settings.lr * (1 if self.backbone.trained else 10)
        torch.manual_seed(self.seed)
        model.to(self.context.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        options: dict[str, Any] = {"loss": box_loss} if taught else {"kl_weight": settings.kl_weight}
        batches = Epochs(views, AUTHORS_BATCH if self.authors else BATCH, settings.times if taught else None)
        # Some trials of a search collapse: their scores tell, and the log says so.
        with skip_value_checks(), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            made = fit(
                model, batches, epochs=epochs, lr=lr, localizer_factor=1.0, weight_decay=0.0,
                lr_schedule=by_thirds if self.authors else one_cycle, progress=False, restarts=0, **options,
            )  # fmt: skip
        for warning in found:
            self.context.log(f"  {warning.message}")
        return made

    def views(self, index: Tensor, window: Window | None, size: int) -> Views:
        """Signs through windows, for this backbone."""
        return Views(self.signs, index, window, size, self.backbone)

    def network(self, window: Window | None, settings: Settings) -> nn.Module:
        """A classifier of what is seen through windows of the training signs."""
        torch.manual_seed(self.seed)
        made = Network(self.backbone, len(self.signs.classes))
        return self._fit(made, self.views(self.train, window, self.view), replace(settings, kl_weight=0.0))

    def classifier(self, settings: Settings) -> nn.Module:
        """Trained on jittered windows around the boxes, or as the authors' on the boxes, once."""
        key = settings.lr, settings.epochs
        if key not in self._classifiers:
            self._classifiers[key] = self.network(partial(around, 1.0) if self.authors else jittered, settings)
        return self._classifiers[key]

    def localizer(self, model: str, settings: Settings) -> STN | PSTN:
        """Trained in front of the frozen classifier, from the labels; the taught one from the boxes."""
        torch.manual_seed(self.seed)
        posterior = Point() if model == "STN" else StudentT(alpha=settings.alpha, var_init=-5.0)
        turns = self.authors and model != TAUGHT
        layer = SpatialTransformer(
            Similarity() if turns else Crop("log"), Network(self.backbone, None), (self.view, self.view),
            posterior=posterior, localizer_size=None if self.view == self.side else (self.view, self.view),
            fill=_black(self.backbone),
        )  # fmt: skip
        with torch.no_grad():
            layer.mean_head.last.bias[int(turns)] = settings.start if turns else math.log(settings.start)
        head = copy.deepcopy(self.classifier(self.behind)).requires_grad_(False)
        head = head if turns else Frozen(head)
        made = STN(layer, head) if model == "STN" else PSTN(layer, head, train_samples=1, test_samples=10)
        views = self.views(self.train, random_window if settings.windows else None, self.side)
        self._fit(made, views, settings, taught=model == TAUGHT)
        return made

    def run(self, model: str, settings: Settings) -> tuple[dict[str, float], dict[str, Any]]:
        """Train and score: metrics, and for each sign whether it was recognised and its loss."""
        known = partial(around, settings.times)
        window: dict[str, Window] = {TRUE: known, AROUND: known, CONSTANT: partial(constant, settings.start)}
        if model in (CNN, WINDOWS):
            made: nn.Module = self.network(random_window if model == WINDOWS else None, settings)
        else:
            made = self.classifier(settings) if model in (WHOLE, *window) else self.localizer(model, settings)
        views = self.views(self.test, window.get(model), self.side if isinstance(made, (STN, PSTN)) else self.view)
        found = runner.predict(made, views, seed=self.seed, batch=50)  # type: ignore[arg-type]
        metrics = runner.classification_scores(found)
        boxes = self.signs.boxes[self.test]
        if model in window:
            metrics["iou"] = float(overlap(window[model](boxes), boxes).mean())
        if found.theta is not None:
            assert isinstance(made, (STN, PSTN))
            metrics["iou"] = float(overlap(_around(made.layer.transform, found.theta), boxes).mean())
        figure: dict[str, Any] = {
            "hits": (found.log_probs.argmax(1) == found.y).int().tolist(),
            "losses": runner.rounded(F.nll_loss(found.log_probs, found.y, reduction="none")),
            "photos": self.signs.group[self.test].tolist(),
        }
        if (model, self.seed, self.fold) == ("P-STN", 0, None):
            figure |= self._shown(made, views)
        return metrics, figure

    def _shown(self, model: nn.Module, views: Views, count: int = 6) -> dict[str, Any]:
        """Signs of different classes: the crop, sampled windows, what is seen through the mean, and the answer."""
        y = views.signs.y[views.index].tolist()
        batch = views.batch([y.index(label) for label in dict.fromkeys(y)][:count])
        assert isinstance(model, PSTN)
        assert batch.theta is not None
        torch.manual_seed(0)
        with torch.no_grad():
            answer, seen = model(batch.x), model.layer(batch.x, samples="modes").warped[0]
        side = min(batch.x.shape[-1], SHOWN_SIDE)
        crops = F.interpolate(batch.x, (side, side), mode="bilinear", antialias=True)
        return {
            "images": _packed(views, crops), "side": side, "seen": _packed(views, seen), "seen_side": seen.shape[-1],
            "boxes": runner.rounded(batch.theta), "windows": runner.rounded(
                torch.stack([_around(model.layer.transform, theta) for theta in answer.theta], dim=1)
            ),
            "answers": [
                [views.signs.classes[truth], views.signs.classes[int(p.argmax())], round(float(p.max()), 3)]
                for truth, p in zip(batch.y.tolist(), answer.log_probs.exp(), strict=True)
            ],
        }  # fmt: skip


def by_thirds(done: float) -> float:
    """What the authors multiply the learning rate with: a tenth after each third of training.

    Example:
        >>> [round(by_thirds(done), 3) for done in (0.0, 0.5, 0.9, 1.0)]
        [1.0, 0.1, 0.01, 0.01]
    """
    return float(0.1 ** min(2, int(3 * done)))


def _around(transform: Transform, theta: Tensor) -> Tensor:
    """The upright windows (N, 4) around what theta (N, D) reads."""
    corners = transform.corners(theta)
    return torch.cat([corners.amin(-2), corners.amax(-2)], dim=-1)


def box_loss(prediction: Prediction, target: Tensor) -> Tensor:
    """−log q(theta of the true box): what a taught localizer minimises."""
    return -prediction.posterior.log_prob(target).sum(-1).mean()


def _packed(views: Views, x: Tensor) -> list[str]:
    """The bytes of images of scaled pixels as texts, for result files."""
    pixels = ((x * views._std + views._mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu()
    return [base64.b64encode(zlib.compress(image.contiguous().numpy().tobytes(), 9)).decode() for image in pixels]


# --- The experiments -------------------------------------------------------------------------------------------------

_DEPARTURES = (
    "Not MTSD: Italian street photos of 608 pixels with YOLO boxes, a margin of 50 pixels instead of 150, classes of "
    "signs that stand alone, a fifth of the photos to test on; photos that look alike are on one side.",
    "Networks and warp see crops of 128×128 instead of 224×224 and 1024×1024: the longer side of those of these photos "
    "has 118 pixels in the median.",
)
_WAYS = (
    "The classifier learned from windows of 1 to 4 times the box, shifted by up to 0.4 of it, not from boxes alone; "
    "it is frozen, in evaluation mode, while a localizer trains.",
    "Batches of 32, one cycle of the learning rate and other settings than the paper's, chosen on validation photos.",
    "Networks compute in bfloat16 on the GPU.",
)
_NOT_SEARCHED = "Settings were not searched: the results hold none of `traffic-signs-search`."
_LOCALIZERS = ("Scale and shift (`Crop`, the scale as its logarithm), without a rotation: the boxes are upright.",)
_ON_MTSD = (
    "How long the authors trained the CNN and the classifier is not known: 60 epochs, as the localizers.",
    "The settings of the controls that are not the paper's are ours.", _WAYS[2],
)  # fmt: skip
_ALPHA = "The posterior has alpha = 2, four degrees of freedom; the paper's has two."

DEFAULTS: dict[str, Settings] = {
    CNN: CLASSIFIER, WINDOWS: CLASSIFIER, "STN": Settings(3e-5, 20, 0.2, True),
    "P-STN": Settings(3e-5, 20, 0.2, True, 1e-3), TAUGHT: Settings(3e-4, 40, 0.2, True, times=1.5),
    CONSTANT: replace(CLASSIFIER, start=0.33), WHOLE: CLASSIFIER, TRUE: CLASSIFIER,
    AROUND: replace(CLASSIFIER, times=1.5),
}  # fmt: skip
"""By model, where nothing was searched."""
AUTHORS: dict[str, Settings] = {
    **{model: replace(settings, lr=1e-3) for model, settings in DEFAULTS.items()}, TAUGHT: DEFAULTS[TAUGHT],
    "STN": Settings(1e-5, 60, 0.5), "P-STN": Settings(1e-5, 60, 1.0, False, 1e-7, 1.0),
}  # fmt: skip
"""On the authors' photos: their settings. Their lr of 1e-4 counts a tenth for localizers. The controls are ours."""
_SCALES = (0.08, 0.1, 0.12, 0.15, 0.18, 0.22, 0.27, 0.33, 0.4, 0.5, 0.7)
_LR_START_WINDOWS = (
    (3e-5, 0.5, False), (1e-4, 0.5, False), (1e-4, 0.5, True), (3e-4, 0.5, True), (3e-5, 0.2, False), (3e-5, 0.2, True),
    (1e-4, 0.2, True),
)  # fmt: skip
_BASE = Settings(3e-5, 20, 0.2, True, 1e-3)
_CONSTANT_TRIALS = tuple((CONSTANT, replace(CLASSIFIER, start=scale)) for scale in _SCALES)
TRIALS: tuple[tuple[str, Settings], ...] = (
    *((model, Settings(lr, 20, start, windows, 1e-3 * (model == "P-STN")))
      for lr, start, windows in _LR_START_WINDOWS for model in ("STN", "P-STN")),
    *(("P-STN", replace(_BASE, kl_weight=w, alpha=alpha)) for w, alpha in ((1e-7, 2.0), (1e-2, 2.0), (1e-3, 1.0))),
    *((TAUGHT, Settings(lr, 40, 0.2, True, times=times))
      for lr, times in ((1e-4, 1.5), (3e-4, 1.0), (3e-4, 1.5), (3e-4, 2.0))),
    *((AROUND, replace(CLASSIFIER, times=times)) for times in (1.5, 2.0, 3.0)),
    *((model, replace(CLASSIFIER, lr=lr)) for lr in (1e-4, 3e-4) for model in (CNN, WINDOWS, TRUE)),
)  # fmt: skip
"""What is tried on validation folds, apart from constant windows."""


def choose(context: runner.RunContext, data: str) -> dict[str, Settings] | None:
    """By model, the settings with the lowest mean NLL on validation folds; None where the results hold no search.

    They are those of the ten classes, but for the constant window of a task that has trials of its own. On MTSD they
    are the authors': the search was on other photos.
    """
    if data == MTSD:
        return AUTHORS
    tried = {(model, str(settings)): settings for model, settings in (*TRIALS, *_CONSTANT_TRIALS)}
    held = [r for r in read_results(context.folder, SEARCH_NAME) if (r.model, r.variant) in tried]
    if not held:
        return None
    chosen = dict(DEFAULTS)
    for model, results in grouped(held, lambda r: r.model).items():
        own = [r for r in results if r.data == data] if model == CONSTANT else []
        runs = grouped(own or [r for r in results if r.data == TEN], lambda r: r.variant)
        whole = {v: rs for v, rs in runs.items() if len(rs) == max(map(len, runs.values()))}
        best = min(whole, key=lambda variant: fmean(r.metrics["nll"] for r in whole[variant]))
        chosen[model] = tried[model, best]
    classifier = chosen[TRUE]
    return {
        **chosen, WHOLE: classifier, CONSTANT: replace(classifier, start=chosen[CONSTANT].start),
        AROUND: replace(classifier, times=chosen[AROUND].times),
    }  # fmt: skip


def _compute(
    context: runner.RunContext, cells: Sequence[Result], data: str, trials: Mapping[tuple[str, str], Settings] | None
) -> Iterator[Result]:
    """Train and score some models of one seed, or trials on one fold, one after another."""
    seed, chosen = cells[0].seed, None if trials else choose(context, data)
    settings_of = trials or {(model, ""): settings for model, settings in (chosen or DEFAULTS).items()}
    bench = Bench(context, data, seed, seed if trials else None)
    bench.behind = (chosen or DEFAULTS)[TRUE]
    searched = _WAYS if chosen or trials else (_WAYS[0], _NOT_SEARCHED, *_WAYS[2:])
    for cell in cells:
        settings = settings_of[cell.model, cell.variant]
        metrics, figure = bench.run(cell.model, settings)
        ways = _ON_MTSD if data == MTSD else (*_DEPARTURES, *searched)
        notes = [*ways, *_equipment(context), *context.departures]
        if cell.model == TAUGHT or (cell.model in ("STN", "P-STN") and data != MTSD):
            notes += [*_LOCALIZERS, *([_ALPHA] if cell.model != "STN" else [])]
        counts = {"train_examples": len(bench.train), "test_examples": len(bench.test)}
        held = {**asdict(settings), **counts, "classifier": asdict(bench.behind), "classes": list(bench.signs.classes)}
        yield replace(cell, metrics=metrics, settings=held, departures=notes, figure=figure)


def _group(
    experiment: str, data: str, seed: int, trials: Sequence[tuple[str, Settings]] = (), part: str = ""
) -> runner.Joint:
    """The cells of one seed, or some trials on one validation fold."""
    held = {(model, str(settings)): settings for model, settings in trials}

    names = held or [(model, "") for model in DEFAULTS]
    cells = [Result(experiment, model, data, seed, variant) for model, variant in names]
    compute = partial(_compute, data=data, trials=held or None)
    return runner.Joint(experiment, f"{data} {seed}{part}", cells, compute, quick=len(cells) * (seed < 2))


def _search_groups() -> Iterator[runner.Joint]:
    """The trials of each fold in four parts, for as many processes; and the constant windows for all classes."""
    for fold in range(SEARCH_FOLDS):
        for part in range(4):
            yield _group(SEARCH_NAME, TEN, fold, (*TRIALS, *_CONSTANT_TRIALS)[part::4], f", part {part}")
        yield _group(SEARCH_NAME, ALL, fold, _CONSTANT_TRIALS)


def _final_groups(experiment: str, *data: str) -> tuple[runner.Joint, ...]:
    return tuple(_group(experiment, name, seed) for name in data for seed in range(SEEDS))


_IOU = Metric("iou", "overlap with the true box (IoU)", higher_is_better=True)
_METRICS = (*runner.SCORES, _IOU)
_PAPER = {
    (metric, model): Published(text)
    for metric, texts in ((runner.ACCURACY, ("76.0", "90.6", "92.2")), (runner.NLL, ("0.49", "0.31", "0.29")))
    for model, text in zip((CNN, "STN", "P-STN"), texts, strict=True)
}
_BOXES = "labels and boxes"
SUPERVISION = {
    CNN: "labels", WINDOWS: "labels; windows that hold the box", WHOLE: _BOXES, CONSTANT: _BOXES,
    "STN": f"{_BOXES} (the classifier), labels", "P-STN": f"{_BOXES} (the classifier), labels",
    TAUGHT: f"{_BOXES} (the classifier), boxes", TRUE: f"{_BOXES}; the box at test",
    AROUND: f"{_BOXES}; the box at test",
}  # fmt: skip


def _line(model: str, data: str, metric: Metric) -> Line:
    paper = _PAPER.get((metric, model)) if data == TEN else None
    return Line(model, data, metric, paper=paper, row=model, column=metric.label)


def _table(data: str) -> Table:
    shown = [
        _line(model, data, metric)
        for model in DEFAULTS for metric in _METRICS if metric != _IOU or model not in (CNN, WINDOWS, WHOLE)
    ]  # fmt: skip
    return Table(
        f"Traffic signs, stand-in photos, {data}", tuple(shown), row_label="model", bold=False,
        untested=dict.fromkeys(DEFAULTS, "other data"), beside={"supervision": SUPERVISION},
    )  # fmt: skip


def _claims(data: str) -> Iterator[Claim]:
    orders = (("P-STN", "STN", True), ("STN", CNN, True), ("P-STN", CNN, True), ("STN", CONSTANT, False),
              ("P-STN", CONSTANT, False), ("P-STN", WINDOWS, False), (TAUGHT, CONSTANT, False))  # fmt: skip
    for metric in (*_METRICS[:2], _IOU):
        for better, worse, claimed in orders:
            if metric == _IOU and worse != CONSTANT:  # the others have none, or it says nothing of them
                continue
            ahead, behind = (replace(_line(m, data, metric), row=data, column=m) for m in (better, worse))
            yield Claim(ahead, behind, comparable=False, claimed=claimed and data == TEN, paired=True)


ENGLISH = {
    "ATTRAVERSAMENTO PEDONALE": "pedestrian crossing", "SENSO VIETATO": "no entry", "DIVIETO DI SOSTA": "no parking",
    "PARCHEGGIO": "parking", "DIVIETO DI FERMATA": "no stopping", "SOS": "emergency telephone",
    "PASSAGGIO A LIVELLO CON BARRIERE": "level crossing", "DIREZIONE OBBLIGATORIA DIRITTO": "straight ahead only",
    "DOPPIO SENSO DI CIRCOLAZIONE": "two-way traffic", "FERMARSI E DARE PRECEDENZA": "stop",
    "PASSAGGIO OBBLIGATORIO A DESTRA": "keep right", "PASSAGGI CONSENTITI": "pass on either side",
}  # fmt: skip


def draw(results: Sequence[Result], count: int = 5) -> figures.Figure:
    """Crops with ten sampled windows and the true box; beside each what the ten show, and the answer."""
    from matplotlib.patches import Rectangle

    signs: dict[str, tuple[float, dict[str, Any]]] = {}
    for result in (r for r in results if "seen" in r.figure):
        names = ("images", "boxes", "windows", "answers")
        for held in zip(*(result.figure[name] for name in names), strict=True):
            one = dict(zip(names, held, strict=True)) | {"side": result.figure["side"], "data": result.data}
            left, top, right, bottom = one["boxes"]
            signs.setdefault(one["answers"][0], (max(right - left, bottom - top), one))
    if not signs:
        raise figures.NothingToDraw
    largest = sorted(signs.values(), key=lambda pair: -pair[0])[:count]
    figure = figures.new_figure(7.6, 2.15 * len(largest))
    panels = figure.subplots(len(largest), 2, squeeze=False, width_ratios=(1, 2.5))
    for (crop, seen), (_, one) in zip(panels, largest, strict=True):
        side, packed = one["side"], zlib.decompress(base64.b64decode(one["images"]))
        pixels = np.frombuffer(packed, np.uint8).reshape(side, side, 3)
        styles = ("#000000", 2.0), ("#ffd166", 1.0)
        outlines = [(window, style) for window in one["windows"] for style in styles]
        for box, (colour, width) in (*outlines, (one["boxes"], ("#06d6a0", 2.0))):
            left, top, right, bottom = ((value + 1) / 2 * side - 0.5 for value in box)
            crop.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, ec=colour, linewidth=width))
        crop.imshow(pixels)
        crop.set(xlim=(-0.5, side - 0.5), ylim=(side - 0.5, -0.5))
        windows = torch.tensor(one["windows"])
        crop_pixels = (torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255).expand(len(windows), -1, -1, -1)
        seen_pixels = (through(crop_pixels, windows, 96) * 255).round().byte().permute(0, 2, 3, 1).numpy()
        looks = np.pad(seen_pixels, ((0, 0), (0, 4), (0, 4), (0, 0)), constant_values=255)
        rows = looks.reshape(2, -1, *looks.shape[1:]).swapaxes(1, 2)
        seen.imshow(rows.reshape(2 * looks.shape[1], -1, 3))
        truth, answer, probability = one["answers"]
        name, said = (ENGLISH.get(n, n.lower()) for n in (truth, answer))
        crop.set_title(f"is: {name}", fontsize=9)
        told, colour = f"answer: {said}, {probability:.0%} ({one['data']})", "#0b6e4f" if truth == answer else "#b00020"
        seen.set_title(told, fontsize=9, color=colour)
        for panel in (crop, seen):
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
    return figure


TRAFFIC_SIGNS = runner.Experiment(
    NAME, "Traffic signs, on stand-in photos (not MTSD)", runner.description_of(__doc__),
    summary="Finding street signs for a frozen classifier, on photos that stand in for MTSD",
    needs=("traffic-signs",),
    groups=_final_groups(NAME, TEN, ALL), tables=(_table(TEN), _table(ALL)), claims=(*_claims(TEN), *_claims(ALL)),
    figures=(
        FigureSpec("traffic-signs", runner.description_of(__doc__, 3), draw),
    ),
    seeds=SEEDS,
)  # fmt: skip
SEARCH = runner.Experiment(
    SEARCH_NAME, "Traffic signs: the search",
    summary="Settings for the traffic signs, on validation folds of the training photos",
    needs=("traffic-signs",), groups=tuple(_search_groups()), extra=True,
)  # fmt: skip
ON_MTSD = runner.Experiment(
    MTSD_NAME, "Traffic signs, on MTSD",
    summary="The traffic signs on the paper's own photos, with its sizes; needs MTSD, which has to be registered for",
    needs=("mtsd",), groups=_final_groups(MTSD_NAME, MTSD), seeds=SEEDS, extra=True,
)  # fmt: skip
