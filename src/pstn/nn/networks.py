"""Small convolutional networks: localizers and classifiers of the paper's kind, for series, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

from torch import Tensor, nn

from pstn._checks import require_choice, require_positive_int, require_size
from pstn.nn.metadata import Shareable

__all__ = ["ConvClassifier", "ConvLocalizer", "GlobalLocalizer", "PoseLocalizer", "SeriesClassifier", "SeriesLocalizer"]


class _OfOneSize(nn.Module):
    """Convolutions for inputs of one size: what their constructors share, and `forward` by a `body`."""

    body: nn.Sequential
    features: int

    def __init__(self, in_channels: int, size: int | Sequence[int], filters: Sequence[int], kernel: int) -> None:
        super().__init__()
        self.in_channels = require_positive_int("in_channels", in_channels)
        self.ndim = 1 if isinstance(size, int) else len(size)
        require_choice("the number of axes in size", self.ndim, (1, 2, 3))
        self.size, self.filters = require_size("size", size, self.ndim), _require_widths("filters", filters)
        self.kernel = require_positive_int("kernel", kernel)

    def _stages(self, padding: int) -> tuple[list[nn.Module], list[int]]:
        """A convolution, a pool over two and a ReLU for each entry of `filters`; and the size that is left."""
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.ndim - 1]
        pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[self.ndim - 1]
        stages: list[nn.Module] = []
        left = list(self.size)
        for inputs, outputs in pairwise((self.in_channels, *self.filters)):
            stages += [conv(inputs, outputs, self.kernel, padding=padding), pool(2), nn.ReLU()]
            left = [(extent + 2 * padding - self.kernel + 1) // 2 for extent in left]
        if min(left) < 1:
            stated = f"{len(self.filters)} convolutions of width {self.kernel}"
            raise ValueError(f"size must be larger for {stated}: nothing is left of {self.size}")
        return stages, left

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

    def __init__(
        self, in_channels: int, size: int | Sequence[int], filters: Sequence[int] = (8, 14), kernel: int = 5
    ) -> None:
        super().__init__(in_channels, size, filters, kernel)
        stages, left = self._stages(0)
        self.body = nn.Sequential(*stages, nn.Flatten())
        self.features = filters[-1] * math.prod(left)


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
        self.hidden = self.features = require_positive_int("hidden", hidden)
        stages, left = self._stages(kernel // 2)
        self.body = nn.Sequential(*stages, nn.Flatten(), nn.Linear(filters[-1] * math.prod(left), hidden), nn.ReLU())


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


def _require_widths(name: str, values: Any) -> tuple[int, ...]:
    """Refuse anything but a list of at least one whole number of at least 1."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must hold whole numbers, got {values!r}")
    if len(values) == 0:
        raise ValueError(f"{name} must hold at least one whole number, got none")
    return tuple(require_positive_int(f"{name}[{i}]", value) for i, value in enumerate(values))
