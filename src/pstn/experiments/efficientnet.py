"""EfficientNet-Lite0 (Tan and Le, 2019): EfficientNet with ReLU6, and without squeeze and excitation."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["EfficientNetLite0", "published_name"]

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
