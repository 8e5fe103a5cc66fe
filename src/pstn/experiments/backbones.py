"""Networks for photos: ResNet-18, EfficientNet-Lite0 and a small one, with the weights of a file, or a user's own."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from pstn.data import IMAGENET_MEAN, IMAGENET_STD
from pstn.files import load_safetensors

__all__ = [
    "EFFICIENTNET",
    "RESNET",
    "SMALL",
    "Backbone",
    "EfficientNetLite0",
    "default_backbone",
    "find_backbone",
    "has_resnet",
    "make_resnet",
    "make_small",
    "published_name",
]


FEATURES = 1280
_STEM = 32
# How many blocks, kernel, stride of the first one, what it widens its input by, filters.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# What our modules are called in the files of weights.
_PUBLISHED = {
    "stem.conv": "_conv_stem", "stem.norm": "_bn0",
    "expand.conv": "_expand_conv", "expand.norm": "_bn0",
    "depthwise.conv": "_depthwise_conv", "depthwise.norm": "_bn1",
    "project.conv": "_project_conv", "project.norm": "_bn2",
    "head.conv": "_conv_head", "head.norm": "_bn1",
    "blocks": "_blocks", "fc": "_fc",
}  # fmt: skip


def published_name(name: str) -> str:
    """What the published weights call a tensor of ours.

    Example:
        >>> published_name("blocks.3.depthwise.norm.weight")
        '_blocks.3._bn1.weight'
    """
    for own, theirs in _PUBLISHED.items():
        name = name.replace(own, theirs)
    return name


class _Border(nn.Module):
    """Pads what is halved next as TensorFlow does: where a side is even, one less before it than after it."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.reach = kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        top, left = (self.reach - 1 + side % 2 for side in x.shape[-2:])
        return nn.functional.pad(x, (left, self.reach, top, self.reach))


class _Stage(nn.Module):
    """Convolution, normalisation, and ReLU6 unless `linear`: (N, C, H, W) -> (N, filters, H / stride, W / stride)."""

    def __init__(
        self, inputs: int, filters: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        halves = stride == 2
        self.border = _Border(kernel) if halves else nn.Identity()
        self.conv = nn.Conv2d(inputs, filters, kernel, stride, 0 if halves else kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)
        self.act = nn.Identity() if linear else nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.norm(self.conv(self.border(x))))
        return out


class _Block(nn.Module):
    """Widen, look around in each channel alone, narrow; what came in is added where the shapes agree."""

    def __init__(self, inputs: int, filters: int, kernel: int, stride: int, ratio: int) -> None:
        super().__init__()
        width = inputs * ratio
        self.expand = nn.Identity() if ratio == 1 else _Stage(inputs, width)
        self.depthwise = _Stage(width, width, kernel, stride, groups=width)
        self.project = _Stage(width, filters, linear=True)
        self.skip = stride == 1 and inputs == filters

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.skip else out


class EfficientNetLite0(nn.Module):
    """(N, 3, H, W), scaled to (x - 127) / 128 of pixels from 0 to 255, -> (N, outputs), or (N, 1280) features.

    There is no dropout and no dropping of blocks in training: ResNet-18, in whose place it stands, has neither.

    Args:
        outputs: of the last layer; None leaves it out.

    Example:
        >>> EfficientNetLite0(10)(torch.rand(2, 3, 64, 64)).shape, EfficientNetLite0(None).features
        (torch.Size([2, 10]), 1280)
    """

    def __init__(self, outputs: int | None) -> None:
        super().__init__()
        self.features = FEATURES if outputs is None else outputs  # the width that SpatialTransformer reads off
        self.stem = _Stage(3, _STEM, 3, stride=2)
        blocks, inputs = [], _STEM
        for count, kernel, stride, ratio, filters in _STAGES:
            for k in range(count):
                blocks.append(_Block(inputs, filters, kernel, stride if k == 0 else 1, ratio))
                inputs = filters
        self.blocks = nn.Sequential(*blocks)
        self.head = _Stage(inputs, FEATURES)
        self.fc = nn.Identity() if outputs is None else nn.Linear(FEATURES, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Features, or the last layer's answer to them."""
        out: Tensor = self.fc(self.head(self.blocks(self.stem(x))).mean((2, 3)))
        return out


def has_resnet() -> bool:
    """Whether torchvision imports here: next to a torch it was not built for, it raises."""
    try:
        import torchvision.models  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def make_resnet(outputs: int | None) -> nn.Module:
    """ResNet-18 with random weights: (N, 3, H, W) -> (N, outputs), or (N, 512) features where `outputs` is None."""
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    if outputs is None:
        network.fc = nn.Identity()
        network.features = 512  # type: ignore[assignment]  # what SpatialTransformer reads off a localizer
    else:
        network.fc = nn.Linear(512, outputs)
    return network


def make_small(outputs: int | None, filters: tuple[int, ...] = (3, 16, 32, 64)) -> nn.Module:
    """Strided Conv-BatchNorm-ReLU stages and a global average: (N, 3, H, W) -> (N, outputs), or features.

    Example:
        >>> make_small(10)(torch.rand(2, 3, 64, 64)).shape, make_small(None)(torch.rand(2, 3, 64, 64)).shape
        (torch.Size([2, 10]), torch.Size([2, 64]))
    """
    stages = [
        stage
        for inputs, width in pairwise(filters)
        for stage in (nn.Conv2d(inputs, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    network = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if outputs is None:
        network.features = filters[-1]  # type: ignore[assignment]  # as above
        return network
    return network.append(nn.Linear(filters[-1], outputs))


@dataclass(frozen=True)
class Backbone:
    """A network for photos, what it wants them to be like, and the weights that it starts from.

    Args:
        name: in messages.
        network: (outputs) -> a module (N, 3, H, W) -> (N, outputs), or features where `outputs` is None. Its last
            layer is called `fc`.
        mean: what is taken off pixels from 0 to 1, for each channel.
        std: what they are divided by then.
        published: what files call a tensor of the network.
        weights: by the names of files, without those of the last layer; None to leave them as `network` makes them.
        pretrained: whether those that `network` makes have learned something already, so that they want a smaller
            learning rate.

    Example:
        >>> SMALL.make(10)(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    name: str
    network: Callable[[int | None], nn.Module]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    published: Callable[[str], str] = str
    weights: Mapping[str, Tensor] | None = None
    pretrained: bool = False

    @property
    def trained(self) -> bool:
        """Whether it starts from weights that have learned something."""
        return self.pretrained or self.weights is not None

    @property
    def black(self) -> tuple[float, ...]:
        """What a black pixel is to the network, for each channel."""
        return tuple((0 - mean) / std for mean, std in zip(self.mean, self.std, strict=True))

    def make(self, outputs: int | None) -> nn.Module:
        """The network, with the weights where there are some and a random last layer.

        Args:
            outputs: of the last layer; None leaves it out, which makes a localizer.
        """
        network = self.network(outputs)
        if self.weights is not None:
            own = {self.published(name): name for name in network.state_dict()}
            # Not strict, for the last layer: find_backbone has seen that all others are there and fit.
            network.load_state_dict({own[name]: tensor for name, tensor in self.weights.items()}, strict=False)
        return network


RESNET = Backbone("ResNet-18", make_resnet)
EFFICIENTNET = Backbone(
    "EfficientNet-Lite0", EfficientNetLite0, (127 / 255,) * 3, (128 / 255,) * 3, published=published_name
)
SMALL = Backbone("a small network", make_small)

# A tensor by which a file is known to be of the one or the other, and what all those of its last layer begin with.
_KNOWN_BY = {("conv1.weight", "fc."): RESNET, ("_conv_stem.weight", "_fc."): EFFICIENTNET}


def default_backbone() -> Backbone:
    """ResNet-18, or a small network where torchvision does not import."""
    return RESNET if has_resnet() else SMALL


def find_backbone(given: str | Path) -> Backbone:
    """The network that a file has weights for, or that a module of the user's has.

    Args:
        given: .safetensors, or .pth as they are published: of torchvision's ResNet-18, or of EfficientNet-Lite0. Or
            "MODULE:NAME", as Python imports it, also from the current folder: a `Backbone`, or a function to make one
            of.
    """
    path = Path(given)
    if not path.is_file() and re.fullmatch(r"[\w.]+:\w+", str(given)):
        return _import(str(given))
    accepted = (
        f"backbone must be a file with the weights of {RESNET.name} or {EFFICIENTNET.name}, or MODULE:NAME, got {given}"
    )
    if not path.is_file():
        raise ValueError(f"{accepted}: there is none")
    weights = _read(path, accepted)
    for (first, last), known in _KNOWN_BY.items():
        if first not in weights:
            continue
        if known is RESNET and not has_resnet():
            raise ValueError(f"{path} has the weights of {known.name}, for which torchvision must import: install it")
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(last)}
        odd = _misfit(known, kept)
        if odd is not None:
            raise ValueError(f"{accepted}: {odd} does not fit {known.name}")
        return replace(known, weights=kept)
    raise ValueError(f"{accepted}: its tensors have other names")


def _import(given: str) -> Backbone:
    """What MODULE:NAME stands for, seen to make both a classifier and a localizer."""
    module, _, name = given.partition(":")
    sys.path.insert(0, "")  # the current folder: a command has its own in its place
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"backbone {given} cannot be imported: {error}") from error
    finally:
        sys.path.remove("")
    if not isinstance(found, Backbone):
        if not callable(found):
            raise ValueError(f"backbone {given} must be a Backbone or a function (outputs) -> network, got {found!r}")
        found = Backbone(name, found)
    with torch.random.fork_rng(devices=[]):  # takes no random numbers from those who follow
        classifier, localizer = found.make(3).eval(), found.make(None).eval()
    with torch.no_grad():
        shapes = [tuple(network(torch.rand(2, 3, 64, 64)).shape) for network in (classifier, localizer)]
    if shapes[0] != (2, 3) or len(shapes[1]) != 2:
        raise ValueError(
            f"backbone {given} must make networks (N, 3, H, W) -> (N, outputs), and -> (N, features) for outputs None; "
            f"of (2, 3, 64, 64) its own make {shapes[0]} for 3 outputs and {shapes[1]} for None"
        )
    return found


def _read(path: Path, accepted: str) -> dict[str, Tensor]:
    """All tensors of a file, by name; a file of anything else is refused."""
    if path.suffix == ".safetensors":
        load = load_safetensors("cli").torch.load_file
    else:
        load = partial(torch.load, map_location="cpu", weights_only=True)
    try:
        weights = load(path)
    except Exception as error:  # of pickle, zipfile, torch or safetensors: damaged files raise almost anything
        raise ValueError(f"{accepted}: it cannot be read as a file of tensors") from error
    tensors = weights.items() if isinstance(weights, dict) else ()
    if not tensors or not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors):
        raise ValueError(f"{accepted}: it holds something else than tensors by name")
    return dict(tensors)


def _misfit(known: Backbone, weights: Mapping[str, Tensor]) -> str | None:
    """The first tensor that only one of network and file has, or that has another shape there."""
    with torch.device("meta"):  # takes no time, and no random numbers from those who follow
        network = known.network(None).state_dict()
    wanted = {known.published(name): tensor.shape for name, tensor in network.items()}
    # Files of older versions of torch do not count batches.
    counters = {name: shape for name, shape in wanted.items() if name.endswith("num_batches_tracked")}
    found = counters | {name: tensor.shape for name, tensor in weights.items()}
    return next((name for name in (*wanted, *found) if wanted.get(name) != found.get(name)), None)
