"""A data set in memory: tensors that go to the device once, and batches that are taken there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pstn._checks import plain, require_positive_int
from pstn._pixels import standardise

__all__ = ["Sized", "Split", "Splits", "batches"]

_TENSORS = ("x", "y", "mask", "theta", "source")


@dataclass(frozen=True)
class Split:
    """Examples with their classes: images, series or volumes; stored, generated or decoded.

    Attributes:
        x: (N, C, *size), uint8 as stored or float32. `as_float` goes from the one to the other.
        y: (N,) int64, positions in `classes`.
        classes: the names of the classes, as the data set has them.
        name: what this is, for messages and plots.
        fill: the background's value in `x`, one number or one per channel: what `pstn.warp(..., fill=...)` needs.
            Black is 0 as stored and (0 - mean) / std after normalisation.
        mask: (N, *size) bool, True where `x` holds a real value; None where all of them are real.
        theta: (N, D), how each example was made, where that is known; see `pstn.data.Generated`.
        source: (N, C, *large), the same views at a higher resolution, where the warp should read from that.
        mean: what was subtracted from pixels in [0, 1], one number or one per channel; `as_float` keeps count.
        std: what they were then divided by.

    Example:
        >>> split = Split(torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 1, 0]), ("no", "yes"))
        >>> split.take(torch.tensor([1, 2])).y
        tensor([1, 1])
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str = ""
    fill: float | tuple[float, ...] = 0.0
    mask: Tensor | None = None
    theta: Tensor | None = None
    source: Tensor | None = None
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        if self.x.dim() < 3:
            raise ValueError(f"x must have shape (N, C, *size), got {tuple(self.x.shape)}")
        if self.y.dim() != 1 or self.y.is_floating_point():
            raise ValueError(f"y must be whole numbers of shape (N,), got {self.y.dtype} of {tuple(self.y.shape)}")
        for name in _TENSORS:
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != self.x.shape[0]:
                raise ValueError(f"{name} must have one entry per example, {self.x.shape[0]}, got {tensor.shape[0]}")

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One example and its class, as a DataLoader asks for them."""
        return self.x[index], self.y[index]

    def __repr__(self) -> str:
        shape = f"{tuple(self.x.shape[1:])} {str(self.x.dtype).removeprefix('torch.')}"
        return f"Split({self.name!r}: {len(self):,} examples of {shape}, {len(self.classes)} classes)"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.x.device

    @property
    def ndim(self) -> int:
        """How many spatial axes an example has: 1 for series, 2 for images."""
        return self.x.dim() - 2

    def counts(self) -> Tensor:
        """How many examples each class has, (K,)."""
        return torch.bincount(self.y, minlength=len(self.classes))

    def to(self, device: torch.device | str) -> Split:
        """The same examples on `device`. Call it once, before training."""
        return self._each(lambda tensor: tensor.to(device))

    def take(self, index: Tensor | Sequence[int]) -> Split:
        """The examples at `index` (B,), on the device where the data is."""
        at = torch.as_tensor(index, device=self.device)
        return self._each(lambda tensor: tensor[at])

    batch = take

    def as_float(self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> Split:
        """The examples as float32, (x - mean) / std, with whole-number pixels divided by 255 first.

        `fill` follows: it stays the value of the background. Do it once for small data; for large images do it per
        batch, on the device: `split.take(index).as_float(mean, std)`.

        Args:
            mean: one number or one per channel, in units of [0, 1] pixels.
            std: likewise, above 0.
        """
        means, stds = _per_channel("mean", mean, self.x.shape[1]), _per_channel("std", std, self.x.shape[1])
        if min(stds) <= 0:
            raise ValueError(f"std must be above 0, got {std}")
        # The background goes through the same arithmetic as the pixels, so that it stays equal to them to the last bit.
        raw = self.fill if isinstance(self.fill, tuple) else (self.fill,) * len(means)
        background = torch.tensor(raw).view(1, -1, 1).to(self.x.dtype)
        fills = tuple(standardise(background, means, stds).flatten().tolist())
        source = None if self.source is None else standardise(self.source, means, stds)
        before = zip(*(_per_channel(n, getattr(self, n), len(means)) for n in ("mean", "std")), strict=True)
        steps = list(zip(before, means, stds, strict=True))
        shift = tuple(old_mean + old_std * mean for (old_mean, old_std), mean, _ in steps)
        width = tuple(old_std * std for (_, old_std), _, std in steps)
        return dataclasses.replace(
            self, x=standardise(self.x, means, stds), source=source, fill=_one_or_each(fills),
            mean=_one_or_each(shift), std=_one_or_each(width),
        )  # fmt: skip

    def _each(self, change: Callable[[Tensor], Tensor]) -> Split:
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in present.items()}
        return dataclasses.replace(self, **changed)


class Sized(Protocol):
    """What training needs of data: a length, classes, batches and subsets by index, and a way to the device."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    @property
    def y(self) -> Tensor:
        """(N,) int64, positions among the classes."""
        ...

    def batch(self, index: Tensor | Sequence[int]) -> Split:
        """The examples at `index`."""
        ...

    def take(self, index: Tensor | Sequence[int]) -> Any:
        """The examples at `index` as a data set of the same kind."""
        ...

    def to(self, device: torch.device | str) -> Any:
        """The same on `device`."""
        ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class Splits(Generic[T]):
    """Training, validation and test examples of one data set; a part that does not exist is None.

    Example:
        >>> one = Split(torch.zeros(1, 1, 8), torch.tensor([0]), ("a",))
        >>> Splits(one, None, one).sizes()
        {'train': 1, 'validation': 0, 'test': 1}
    """

    train: T
    validation: T | None = None
    test: T | None = None

    def to(self, device: torch.device | str) -> Splits[T]:
        """All parts on `device`."""
        return Splits(*(None if part is None else part.to(device) for part in self))

    def __iter__(self) -> Iterator[T | None]:
        return iter((self.train, self.validation, self.test))

    def sizes(self) -> dict[str, int]:
        """How many examples each part has."""
        return {
            name: 0 if part is None else len(part)
            for name, part in zip(("train", "validation", "test"), self, strict=True)
        }


def batches(
    data: Sized,
    batch_size: int,
    *,
    shuffle: bool = False,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Split]:
    """Walk through `data` once, `batch_size` examples at a time; the last batch may be smaller.

    Args:
        data: a `Split` or `Generated`.
        batch_size: at least 1.
        shuffle: in a random order, drawn from `generator` or torch's global seed.
        generator: on the CPU, so that the order is the same on every device.
        device: where to put each batch; by default where the data is.

    Example:
        >>> split = Split(torch.zeros(5, 1, 8), torch.zeros(5, dtype=torch.long), ("a",))
        >>> [len(b) for b in batches(split, 2)]
        [2, 2, 1]
    """
    size = require_positive_int("batch_size", batch_size)
    order = torch.randperm(len(data), generator=generator) if shuffle else torch.arange(len(data))
    for index in order.split(size):
        batch = data.batch(index)
        yield batch if device is None else batch.to(device)


def _per_channel(name: str, value: float | Sequence[float], channels: int) -> tuple[float, ...]:
    value = plain(value)
    values = (float(value),) * channels if isinstance(value, (int, float)) else tuple(float(v) for v in value)
    if len(values) != channels:
        raise ValueError(f"{name} must be one number or one per channel ({channels}), got {len(values)}")
    return values


def _one_or_each(values: tuple[float, ...]) -> float | tuple[float, ...]:
    return values[0] if len(set(values)) == 1 else values
