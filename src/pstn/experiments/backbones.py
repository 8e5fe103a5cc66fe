"""Networks for photos: torchvision's ResNet-18 where it is to be had, and a small one of our own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

__all__ = ["has_resnet", "load_weights", "make_resnet", "make_small"]


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
        network.features = filters[-1]  # type: ignore[assignment]
        return network
    return network.append(nn.Linear(filters[-1], outputs))


def load_weights(network: nn.Module, path: Path | None) -> nn.Module:
    """Put weights from a file into a network, all but those of its last layer.

    Args:
        network: from `make_resnet`.
        path: .safetensors, or .pth as torchvision publishes them; None leaves the network as it is.
    """
    if path is None:
        return network
    if not path.is_file():
        raise ValueError(f"backbone must be a file of weights, got {path}: there is none")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        weights = load_file(path)
    else:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
    missing, unexpected = network.load_state_dict(kept, strict=False)
    odd = [name for name in (*missing, *unexpected) if not name.startswith("fc.")]
    if odd:
        raise ValueError(f"backbone must hold the weights of ResNet-18, got {path}: {odd[0]} does not fit")
    return network
