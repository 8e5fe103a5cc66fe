"""Small convolutional networks: localizers and classifiers of the paper's kind, for series, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, max_pool1d, max_pool2d, max_pool3d, relu

from pstn._checks import can_inspect_values, require_choice, require_positive_int, require_size
from pstn.nn.metadata import Shareable

__all__ = [
    "ConvClassifier", "ConvLocalizer", "GlobalLocalizer", "InceptionClassifier", "Masked", "PoseLocalizer",
    "ResNetClassifier", "RocketFeatures", "SeriesClassifier", "SeriesLocalizer",
]  # fmt: skip

# Numbers that MiniRocket's features compare with biases at once: 20 MB with what the comparison makes of them.
_ROCKET_VALUES = 1 << 22


class _MaxPool(nn.Module):
    """The maximum over windows of two in every axis behind the second: (B, C, *size) -> (B, C, *size // 2).

    Torch's own pooling finds indices, too, which only a gradient needs: for images on a CPU it takes ten times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        traced = torch.compiler.is_compiling() or hasattr(x, "fake_mode")
        if traced or torch.is_grad_enabled() or x.device.type != "cpu":
            return (max_pool1d, max_pool2d, max_pool3d)[x.dim() - 3](x, 2)
        for axis in range(2, x.dim()):
            half = x.shape[axis] // 2
            x = torch.maximum(*x.narrow(axis, 0, 2 * half).unflatten(axis, (half, 2)).unbind(axis + 1))
        return x


class _OfOneSize(nn.Module):
    """A convolution, a pool over two and a ReLU for each entry of `filters`, flattened, for inputs of one size."""

    _padded = False

    def __init__(
        self, in_channels: int, size: int | Sequence[int], filters: Sequence[int] = (8, 14), kernel: int = 5
    ) -> None:
        super().__init__()
        self.in_channels = require_positive_int("in_channels", in_channels)
        self.ndim = 1 if isinstance(size, int) else len(size)
        require_choice("the number of axes in size", self.ndim, (1, 2, 3))
        self.size, self.filters = require_size("size", size, self.ndim), _require_widths("filters", filters)
        self.kernel = require_positive_int("kernel", kernel)
        padding = kernel // 2 if self._padded else 0
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.ndim - 1]
        stages: list[nn.Module] = []
        left = list(self.size)
        for inputs, outputs in pairwise((in_channels, *filters)):
            stages += [conv(inputs, outputs, kernel, padding=padding), _MaxPool(), nn.ReLU()]
            left = [(extent + 2 * padding - kernel + 1) // 2 for extent in left]
        if min(left) < 1:
            stated = f"{len(filters)} convolutions of width {kernel}"
            raise ValueError(f"size must be larger for {stated}: nothing is left of {self.size}")
        self.body = nn.Sequential(*stages, nn.Flatten())
        self.features = filters[-1] * math.prod(left)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *size) -> (B, F)."""
        if tuple(x.shape[1:]) != (self.in_channels, *self.size):
            wanted = ", ".join(map(str, (self.in_channels, *self.size)))
            raise ValueError(f"x must have shape (B, {wanted}), got {tuple(x.shape)}")
        return self.body(x)


@final
class ConvLocalizer(_OfOneSize):
    """Conv-MaxPool-ReLU for each entry of `filters`, flattened: (B, C, *size) -> (B, F).

    Args:
        in_channels: C.
        size: spatial size of the input.
        filters: channels of each convolution.
        kernel: width of each convolution.

    Attributes:
        features: F.

    Example:
        >>> ConvLocalizer(1, (28, 28), filters=(8, 14)).features
        224
    """


@final
class PoseLocalizer(_OfOneSize):
    """A larger localizer, for one that is taught the pose: padded Conv-MaxPool-ReLU stages and a hidden layer.

    Args:
        in_channels: C.
        size: spatial size of the input: at least 2 for one stage, 4 for two, 8 for three.
        filters: channels of each convolution.
        kernel: width of each convolution, an odd number.
        hidden: width of the hidden layer, F.

    Attributes:
        features: F.

    Example:
        >>> PoseLocalizer(1, (28, 28))(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 256])
    """

    _padded = True

    def __init__(
        self,
        in_channels: int,
        size: int | Sequence[int],
        filters: Sequence[int] = (32, 64, 128),
        kernel: int = 5,
        hidden: int = 256,
    ) -> None:
        super().__init__(in_channels, size, filters, kernel)
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {kernel}")
        self.hidden = require_positive_int("hidden", hidden)
        self.body.extend([nn.Linear(self.features, hidden), nn.ReLU()])
        self.features = hidden


def make_pose_localizer(in_channels: int, size: Sequence[int]) -> PoseLocalizer:
    """A localizer for teaching the pose, with as many stages as inputs of this size allow, at most three.

    Example:
        >>> make_pose_localizer(1, (5, 5)).filters
        (32, 64)
    """
    return PoseLocalizer(in_channels, size, (32, 64, 128)[: min(3, min(size).bit_length() - 1)])


@final
class GlobalLocalizer(nn.Module):
    """A localizer that does not look: with it the posterior is one and the same for all inputs, learned augmentation.

    It returns zeros, so that the heads have nothing but their biases to learn.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), GlobalLocalizer())
        >>> layer.localize(torch.rand(2, 1, 28, 28)).loc
        tensor([[0., 1., 0., 0.],
                [0., 1., 0., 0.]], grad_fn=<AddmmBackward0>)
    """

    features = 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *size) -> (B, 1)."""
        return x.new_zeros(x.shape[0], 1)


@final
class ConvClassifier(Shareable):
    """The paper's classifier: a `ConvLocalizer`'s body, a hidden layer, dropout and a linear layer.

    Args:
        in_channels: C.
        size: spatial size of the input.
        classes: K.
        filters: channels of each convolution.
        hidden: width of the hidden layer.
        kernel: width of each convolution.
        dropout: probability of dropping a hidden unit in training.

    Example:
        >>> ConvClassifier(1, (28, 28), classes=10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int,
        size: int | Sequence[int],
        classes: int,
        filters: Sequence[int] = (12, 24),
        hidden: int = 52,
        kernel: int = 5,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.body = ConvLocalizer(in_channels, size, filters, kernel)
        self.in_channels, self.size = self.body.in_channels, self.body.size
        self.filters, self.kernel = self.body.filters, self.body.kernel
        self.classes, self.hidden = require_positive_int("classes", classes), require_positive_int("hidden", hidden)
        self.dropout = dropout
        first, last = nn.Linear(self.body.features, hidden), nn.Linear(hidden, classes)
        self.head = nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), last)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *size) -> (B, K) logits."""
        return self.head(self.body(x))


class _OfSeries(nn.Module):
    """Conv-BatchNorm-ReLU stages, then the mean over time: (B, C, L) -> (B, F)."""

    def __init__(self, in_channels: int, filters: Sequence[int], kernels: Sequence[int], padded: bool) -> None:
        super().__init__()
        self.in_channels, self.padded = require_positive_int("in_channels", in_channels), padded
        self.filters, self.kernels = _require_widths("filters", filters), _require_widths("kernels", kernels)
        if len(filters) != len(kernels):
            raise ValueError(f"kernels must hold {len(filters)} widths, one per entry of filters, got {self.kernels}")
        stages: list[nn.Module] = []
        for (inputs, outputs), kernel in zip(pairwise((in_channels, *filters)), kernels, strict=True):
            # padding="same" would do, but warns that it copies the input where the kernel is even.
            pad = nn.ZeroPad1d(((kernel - 1) // 2, kernel // 2)) if padded else nn.Identity()
            stages += [pad, nn.Conv1d(inputs, outputs, kernel), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*stages, nn.AdaptiveAvgPool1d(1), nn.Flatten())

    def _read(self, x: Tensor) -> Tensor:
        least = 1 + sum(kernel - 1 for kernel in self.kernels)
        if not self.padded and x.shape[-1] < least:
            raise ValueError(f"x must have at least {least} values, or the network padded=True, got {x.shape[-1]}")
        return self.body(x)


@final
class SeriesLocalizer(_OfSeries):
    """The paper's localizer of time series: three Conv-BN-ReLU, global average, dropout. (B, C, L) -> (B, F).

    Args:
        in_channels: C.
        filters: channels of each convolution.
        kernels: width of each convolution.
        dropout: probability of dropping a feature in training.
        padded: zeros beside the series, so that each convolution keeps its length. The authors' networks have none:
            each takes a kernel's width less one from it.

    Attributes:
        features: F.

    Example:
        >>> SeriesLocalizer(1)(torch.rand(2, 1, 100)).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        in_channels: int,
        filters: Sequence[int] = (64, 164, 64),
        kernels: Sequence[int] = (8, 5, 3),
        dropout: float = 0.5,
        padded: bool = True,
    ) -> None:
        super().__init__(in_channels, filters, kernels, padded)
        self.dropout = nn.Dropout(dropout)
        self.features = filters[-1]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, F)."""
        return self.dropout(self._read(x))


@final
class SeriesClassifier(_OfSeries, Shareable):
    """The paper's classifier of time series: five Conv-BN-ReLU, global average, dropout, linear.

    Args:
        in_channels: C.
        classes: K.
        filters: channels of each convolution.
        kernels: width of each convolution.
        dropout: probability of dropping a feature in training.
        padded: zeros beside the series, so that each convolution keeps its length. The authors' networks have none:
            each takes a kernel's width less one from it.

    Example:
        >>> SeriesClassifier(1, classes=14)(torch.rand(2, 1, 100)).shape
        torch.Size([2, 14])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        filters: Sequence[int] = (164, 256, 256, 256, 256),
        kernels: Sequence[int] = (8, 8, 5, 5, 3),
        dropout: float = 0.25,
        padded: bool = True,
    ) -> None:
        super().__init__(in_channels, filters, kernels, padded)
        self.classes, self.dropout = require_positive_int("classes", classes), dropout
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(filters[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, K) logits."""
        return self.head(self._read(x))


def _conv_of_same_length(inputs: int, outputs: int, kernel: int, bias: bool = False) -> nn.Sequential:
    """(B, inputs, L) -> (B, outputs, L); where the kernel is even, one zero more after the series, as in Keras."""
    return nn.Sequential(nn.ZeroPad1d(((kernel - 1) // 2, kernel // 2)), nn.Conv1d(inputs, outputs, kernel, bias=bias))


_Read = Callable[[nn.Module, Tensor], Tensor]


def _as_it_is(part: nn.Module, x: Tensor) -> Tensor:
    return part(x)


class _Residual(nn.Module):
    """A body and a shortcut, added: (B, C, L) -> (B, F, L)."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Sequential) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor, read: _Read = _as_it_is) -> Tensor:
        return relu(read(self.body, x) + read(self.shortcut, x))


class _Inception(nn.Module):
    """Convolutions of several widths beside each other, and one of a maximum: (B, C, L) -> (B, F, L)."""

    def __init__(self, in_channels: int, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(in_channels, width, 1, bias=False) if in_channels > 1 else nn.Identity()
        narrow = width if in_channels > 1 else 1
        self.wide = nn.ModuleList(_conv_of_same_length(narrow, width, kernel) for kernel in kernels)
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, padding=1), nn.Conv1d(in_channels, width, 1, bias=False))
        self.norm = nn.BatchNorm1d(width * (len(kernels) + 1))

    def forward(self, x: Tensor, read: _Read = _as_it_is) -> Tensor:
        narrow = self.bottleneck(x)
        return relu(read(self.norm, torch.cat([*(conv(narrow) for conv in self.wide), read(self.pooled, x)], 1)))


@final
class InceptionClassifier(Shareable):
    """One of the five networks whose averaged probabilities are InceptionTime.

    Fawaz et al., [InceptionTime](https://arxiv.org/abs/1909.04939), 2020: `depth` modules of a bottleneck, three
    convolutions and a maximum side by side, with a shortcut over every three; mean over time, linear. (B, C, L) ->
    logits (B, K). As there, the first module has no bottleneck where C is 1. The published kernels are 40, 20 and 10.

    Args:
        in_channels: C.
        classes: K.
        width: channels of each convolution; a module has four times as many.
        kernels: widths of the convolutions of a module.
        depth: modules.

    Example:
        >>> InceptionClassifier(1, classes=14)(torch.rand(2, 1, 100)).shape
        torch.Size([2, 14])
    """

    def __init__(
        self, in_channels: int, classes: int, width: int = 32, kernels: Sequence[int] = (40, 20, 10), depth: int = 6
    ) -> None:
        super().__init__()
        self.in_channels = require_positive_int("in_channels", in_channels)
        self.classes = require_positive_int("classes", classes)
        self.width, self.depth = require_positive_int("width", width), require_positive_int("depth", depth)
        self.kernels = _require_widths("kernels", kernels)
        features = width * (len(kernels) + 1)
        stages: list[nn.Module] = []
        channels = in_channels
        for first in range(0, depth, 3):
            count, inputs = min(3, depth - first), channels
            modules = [_Inception(inputs if k == 0 else features, width, kernels) for k in range(count)]
            channels = features
            if count < 3:
                stages += modules
                continue
            shortcut = nn.Sequential(nn.Conv1d(inputs, features, 1, bias=False), nn.BatchNorm1d(features))
            stages.append(_Residual(nn.Sequential(*modules), shortcut))
        self.body = nn.Sequential(*stages, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, K) logits."""
        return self.head(self.body(x))


@final
class ResNetClassifier(Shareable):
    """The residual network for time series: three blocks of three convolutions, mean over time, linear.

    Wang, Yan and Oates, [Time series classification from scratch](https://arxiv.org/abs/1611.06455), 2017.
    (B, C, L) -> logits (B, K).

    Args:
        in_channels: C.
        classes: K.
        filters: channels of each block.
        kernels: widths of the convolutions of a block.

    Example:
        >>> ResNetClassifier(1, classes=14)(torch.rand(2, 1, 100)).shape
        torch.Size([2, 14])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        filters: Sequence[int] = (64, 128, 128),
        kernels: Sequence[int] = (8, 5, 3),
    ) -> None:
        super().__init__()
        self.in_channels = require_positive_int("in_channels", in_channels)
        self.classes = require_positive_int("classes", classes)
        self.filters, self.kernels = _require_widths("filters", filters), _require_widths("kernels", kernels)
        blocks: list[nn.Module] = []
        for inputs, outputs in pairwise((in_channels, *filters)):
            body: list[nn.Module] = []
            for number, kernel in enumerate(kernels):
                conv = _conv_of_same_length(outputs if number else inputs, outputs, kernel, bias=True)
                body += [conv, nn.BatchNorm1d(outputs), nn.ReLU()]
            widen = [] if inputs == outputs else [nn.Conv1d(inputs, outputs, 1)]
            blocks.append(_Residual(nn.Sequential(*body[:-1]), nn.Sequential(*widen, nn.BatchNorm1d(outputs))))
        self.body = nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(filters[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, K) logits."""
        return self.head(self.body(x))


@final
class Masked(Shareable):
    """A network of series that leaves out what stands behind their ends: (B, C + 1, L) -> what the network returns.

    The last channel of the input is 1 up to the end of a series and 0 behind it. Convolutions read zeros there, as they
    do beside a series that is not padded, and maxima nothing; batch norm and the mean over time count real steps alone.

    Args:
        network: a `SeriesLocalizer` or `SeriesClassifier` with padded=True, an `InceptionClassifier` or a
            `ResNetClassifier`, of C channels.

    Example:
        >>> network, x = Masked(SeriesClassifier(1, classes=3)).eval(), torch.rand(1, 1, 20)
        >>> longer = nn.functional.pad(torch.cat([x, torch.ones_like(x)], 1), (0, 30))
        >>> torch.allclose(network(longer), network.network(x), atol=1e-5)
        True
    """

    def __init__(self, network: SeriesLocalizer | SeriesClassifier | InceptionClassifier | ResNetClassifier) -> None:
        super().__init__()
        kept = isinstance(network, _OfSeries) and network.padded
        if not (kept or isinstance(network, (InceptionClassifier, ResNetClassifier))):
            raise ValueError(f"network must be one of series; with padded=True where it has that, got {network}")
        self.network = network
        if isinstance(network, SeriesLocalizer):
            self.features = network.features

    def forward(self, x: Tensor) -> Tensor:
        """(B, C + 1, L) -> (B, F) or (B, K)."""
        if x.dim() != 3 or x.shape[1] != self.network.in_channels + 1:
            wanted = f"(B, {self.network.in_channels + 1}, L), the mask as the last channel"
            raise ValueError(f"x must have shape {wanted}, got {tuple(x.shape)}")
        mask = x[:, -1:]
        read = _read_real(self.network.body[:-2], x[:, :-1] * mask, mask)  # less the mean over time
        mean = read.sum(-1) / mask.sum(-1)
        return self.network.dropout(mean) if isinstance(self.network, SeriesLocalizer) else self.network.head(mean)


def _read_real(part: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What a part of a network makes of series (B, C, L) that are zero where the mask (B, 1, L) is."""
    if isinstance(part, nn.Sequential):
        for each in part:
            x = _read_real(each, x, mask)
        return x
    if isinstance(part, (_Residual, _Inception)):
        return part(x, partial(_read_real, mask=mask))
    if isinstance(part, nn.BatchNorm1d):
        return _normalise_real(part, x, mask) * mask
    if isinstance(part, nn.MaxPool1d):
        behind = mask == 0
        return part(x.masked_fill(behind, -torch.inf)).masked_fill(behind, 0.0)
    return part(x)


def _normalise_real(norm: nn.BatchNorm1d, x: Tensor, mask: Tensor) -> Tensor:
    """Batch norm by the values (B, C, L) whose mask (B, 1, L) is 1; in training, running statistics follow."""
    held: Any = norm  # which may have no statistics, as far as its types know
    mean, var = held.running_mean, held.running_var
    if norm.training:
        count = mask.sum()
        mean = (x * mask).sum((0, 2)) / count
        var = ((x - mean[:, None]).square() * mask).sum((0, 2)) / count
        unbiased = var * count / (count - 1).clamp_min(1)
        held.running_mean.lerp_(mean.detach(), held.momentum)
        held.running_var.lerp_(unbiased.detach(), held.momentum)
    scale = norm.weight * (var + norm.eps).rsqrt()
    return (x - mean[:, None]) * scale[:, None] + norm.bias[:, None]


@final
class RocketFeatures(nn.Module):
    """MiniRocket's features of series, (B, C, L) -> (B, F): the share of values above a bias after each convolution.

    Dempster, Schmidt and Webb, [MiniRocket](https://arxiv.org/abs/2012.08791), 2021: 84 fixed kernels of width 9, each
    with several dilations and biases. Nothing in it learns, and no gradient passes; which channels each kernel adds up
    and the biases are buffers, which `pstn.estimators.aeon.rocket_features` takes from aeon's MiniRocket.

    Args:
        in_channels: C.
        dilations: of the kernels.
        counts: how many biases each kernel has with each dilation.

    Attributes:
        features: F, 84 times the sum of `counts`.

    Example:
        >>> RocketFeatures(1, dilations=(1, 2), counts=(3, 1))(torch.rand(2, 1, 50)).shape
        torch.Size([2, 336])
    """

    kernels: Tensor
    channels: Tensor
    biases: Tensor

    def __init__(self, in_channels: int, dilations: Sequence[int], counts: Sequence[int]) -> None:
        super().__init__()
        self.in_channels = require_positive_int("in_channels", in_channels)
        self.dilations, self.counts = _require_widths("dilations", dilations), _require_widths("counts", counts)
        if len(counts) != len(dilations):
            raise ValueError(f"counts must hold {len(dilations)} numbers, one per dilation, got {self.counts}")
        kernels = torch.full((84, 1, 9), -1.0)
        for kernel, places in zip(kernels, combinations(range(9), 3), strict=True):
            kernel[0, list(places)] = 2.0
        self.register_buffer("kernels", kernels, persistent=False)
        self.features = 84 * sum(counts)
        self.register_buffer("channels", torch.ones(len(dilations), 84, in_channels))
        self.register_buffer("biases", torch.zeros(self.features))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, L) -> (B, F), some series and biases at a time, so that memory does not grow with their number."""
        if not can_inspect_values(x):
            return self._read(x, max(self.counts))
        values = 84 * max(1, x.shape[-1])  # of one series and one bias
        at_once = max(1, _ROCKET_VALUES // (values * max(self.counts)))
        return torch.cat([self._read(part, max(1, _ROCKET_VALUES // values)) for part in x.split(at_once)])

    def _read(self, x: Tensor, at_once: int) -> Tensor:
        """The features of series, `at_once` biases of each kernel at a time."""
        found, first = list[Tensor](), 0
        for number, (dilation, count) in enumerate(zip(self.dilations, self.counts, strict=True)):
            biases = self.biases[first : first + 84 * count].view(84, count, 1)
            first += 84 * count
            added = torch.einsum("kc,bcl->bkl", self.channels[number], x)
            read = conv1d(added, self.kernels, padding=4 * dilation, dilation=dilation, groups=84)[:, :, None]
            # Every other kernel leaves out the values that zeros beside the series went into.
            inside = read[..., 4 * dilation : read.shape[-1] - 4 * dilation]
            shares = list[Tensor]()
            for k, part in enumerate((read, inside) if number % 2 == 0 else (inside, read)):
                some = biases[k::2].split(at_once, 1)
                shares.append(torch.cat([(part[:, k::2] > b).to(x.dtype).mean(-1) for b in some], -1))
            found.append(torch.stack(shares, 2).flatten(1))
        return torch.cat(found, 1)


def _require_widths(name: str, values: Any) -> tuple[int, ...]:
    """Refuse anything but a list of at least one whole number of at least 1."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must hold whole numbers, got {values!r}")
    if len(values) == 0:
        raise ValueError(f"{name} must hold at least one whole number, got none")
    return tuple(require_positive_int(f"{name}[{i}]", value) for i, value in enumerate(values))
