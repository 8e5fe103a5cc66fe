"""Networks for photos: ResNet-18, EfficientNet-Lite0 and a small one, with the weights of a file, or a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from pstn.data import IMAGENET_MEAN, IMAGENET_STD
from pstn.files import load_safetensors
from pstn.nn.backbones import EfficientNetLite0
from pstn.processes import import_object, is_object_name


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
    network.fc = nn.Identity() if outputs is None else nn.Linear(512, outputs)
    network.features = 512 if outputs is None else outputs  # type: ignore[assignment]  # read by SpatialTransformer
    return network


def make_small(outputs: int | None, filters: tuple[int, ...] = (3, 16, 32, 64)) -> nn.Module:
    """Strided Conv-BatchNorm-ReLU stages and a global average: (N, 3, H, W) -> (N, outputs), or features.

    Example:
        >>> make_small(10)(torch.rand(2, 3, 64, 64)).shape, make_small(None)(torch.rand(2, 3, 64, 64)).shape
        (torch.Size([2, 10]), torch.Size([2, 64]))
    """
    network = nn.Sequential()
    for inputs, width in pairwise(filters):
        network.extend([nn.Conv2d(inputs, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()])
    network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    if outputs is None:
        network.features = filters[-1]  # type: ignore[assignment]  # as above
        return network
    return network.append(nn.Linear(filters[-1], outputs))


@dataclass(frozen=True)
class Backbone:
    """A network for photos, how their pixels are scaled, and the weights that it starts from.

    Args:
        name: in messages.
        network: (outputs) -> a module (N, 3, H, W) -> (N, outputs), or features where `outputs` is None.
        mean: what is subtracted from pixels from 0 to 1, for each channel.
        std: what they are then divided by.
        weights: by name, without those of the last layer; None to leave them as `network` makes them.
        pretrained: whether those that `network` makes are trained already, so that they need a smaller learning rate.

    Example:
        >>> SMALL.make(10)(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    name: str
    network: Callable[[int | None], nn.Module]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    weights: Mapping[str, Tensor] | None = None
    pretrained: bool = False

    @property
    def trained(self) -> bool:
        """Whether it starts from trained weights."""
        return self.pretrained or self.weights is not None

    @property
    def black(self) -> tuple[float, ...]:
        """The value of a black pixel after scaling, for each channel."""
        return tuple((0 - mean) / std for mean, std in zip(self.mean, self.std, strict=True))

    def make(self, outputs: int | None) -> nn.Module:
        """The network, with the weights where there are some and a random last layer.

        Args:
            outputs: of the last layer; None leaves it out, which makes a localizer.
        """
        network = self.network(outputs)
        if self.weights is not None:
            # Not strict, for the last layer: find_backbone has checked that all others are there and fit.
            network.load_state_dict(self.weights, strict=False)
        return network


RESNET = Backbone("ResNet-18", make_resnet)
EFFICIENTNET = Backbone("EfficientNet-Lite0", EfficientNetLite0, (127 / 255,) * 3, (128 / 255,) * 3)
SMALL = Backbone("a small network", make_small)


def default_backbone() -> Backbone:
    """ResNet-18, or a small network where torchvision does not import."""
    return RESNET if has_resnet() else SMALL


def find_backbone(given: str | Path) -> Backbone:
    """The network that a file has weights for, or that a module of the user's has.

    Args:
        given: .safetensors, or .pth as they are published: of torchvision's ResNet-18, or of EfficientNet-Lite0. Or
            "MODULE:NAME", as Python imports it, also from the current folder: a `Backbone`, or its `network`.

    Raises:
        ValueError: it is none of these.
    """
    path = Path(given)
    if not path.is_file() and is_object_name(str(given)):
        return _import_backbone(str(given))
    accepted = (
        f"backbone must be a file of weights of {RESNET.name} or {EFFICIENTNET.name}, or MODULE:NAME, got {given}"
    )
    try:
        if path.suffix == ".safetensors":
            weights = load_safetensors("cli").torch.load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        if not all(isinstance(tensor, Tensor) for tensor in weights.values()):
            raise TypeError("it holds something else than tensors")
    except Exception as error:  # of pickle, zipfile, torch or safetensors: damaged files raise almost anything
        raise ValueError(f"{accepted}: it cannot be read as a file of tensors: {error}") from error
    known, last = (EFFICIENTNET, "_fc.") if "_conv_stem.weight" in weights else (RESNET, "fc.")
    if known is RESNET and "conv1.weight" not in weights:
        raise ValueError(f"{accepted}: its tensors have other names")
    if known is RESNET and not has_resnet():
        raise ValueError(f"{path} has the weights of {known.name}, for which torchvision must import: install it")
    with torch.device("meta"):  # takes no time, and no random numbers
        wanted = {name: tensor.shape for name, tensor in known.network(None).state_dict().items()}
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(last)}
    # Files of older versions of torch do not count batches.
    found = {name: shape for name, shape in wanted.items() if name.endswith("num_batches_tracked")}
    found |= {name: tensor.shape for name, tensor in kept.items()}
    for name in (*wanted, *found):
        if wanted.get(name) != found.get(name):
            raise ValueError(f"{accepted}: {name} does not fit {known.name}")
    return replace(known, weights=kept)


def _import_backbone(given: str) -> Backbone:
    """A user's backbone, checked to make both a classifier and a localizer."""
    found = import_object(given, "backbone")
    if callable(found):
        found = Backbone(given.partition(":")[2], found)
    if not isinstance(found, Backbone):
        raise ValueError(f"backbone {given} must be a Backbone or a function (outputs) -> network, got {found!r}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # takes no random numbers from those who follow
        shapes = [tuple(found.make(outputs).eval()(torch.rand(2, 3, 64, 64)).shape) for outputs in (3, None)]
    if shapes[0] != (2, 3) or len(shapes[1]) != 2:
        wanted = "must make networks (N, 3, H, W) -> (N, outputs), and -> (N, features) for outputs None"
        raise ValueError(f"backbone {given} {wanted}; of (2, 3, 64, 64) its own make {shapes[0]} and {shapes[1]}")
    return found
