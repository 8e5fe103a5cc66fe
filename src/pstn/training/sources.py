"""Data for a run, whatever it is called: a known set's name, a folder or a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pstn.data

__all__ = ["Source", "choose_subset", "load_source"]
_AUGMENT = {"NoneType": "none", "RandomRotation": "rotation", "RandomPlacement": "placement"}


class Source(NamedTuple):
    """What a run trains on and is tested on."""

    x: Tensor
    """(M, C, *size), float32: training examples, then validation examples where the set has its own."""
    y: Tensor
    """(M,), int64."""
    valid: Tensor | None
    """Which of them are for validation."""
    test: tuple[Tensor, Tensor] | None
    fill: float
    """The background's value."""
    augment: str = "none"
    """How a generated set changes its examples at each access, by the names that settings have."""

    @property
    def train(self) -> Tensor:
        """Indices of the training examples."""
        return torch.arange(len(self.x) - (0 if self.valid is None else len(self.valid)))

    @property
    def classes(self) -> int:
        """K."""
        return int(self.y.max()) + 1


def load_source(data: str) -> Source:
    """Load a data set.

    Args:
        data: whatever `pstn.data.load` takes; "digits" ships with the package.

    Example:
        >>> source = load_source("digits")
        >>> len(source.train), len(source.valid)
        (3200, 800)
    """
    splits: Any = pstn.data.load(data)
    return _from_splits(splits)


def _from_splits(splits: Any) -> Source:
    # A generated set: the trainer changes its originals, those for validation too, on the device.
    augment = _AUGMENT[type(getattr(splits.train, "maker", None)).__name__]
    originals = [getattr(part, "base", part) for part in (splits.train, splits.validation)]
    train, valid, test = (_as_split(part) for part in (*originals, splits.test))
    x, y, index = train.x, train.y, None
    if valid is not None and valid.x.shape[1:] == x.shape[1:]:
        index = torch.arange(len(x), len(x) + len(valid.x))
        x, y = torch.cat([x, valid.x]), torch.cat([y, valid.y])
    fill = train.fill if isinstance(train.fill, float) else float(train.fill[0])
    return Source(x, y.long(), index, None if test is None else (test.x, test.y.long()), fill, augment)


def _as_split(part: Any) -> Any:
    if part is None:
        return None
    split = part.all() if hasattr(part, "maker") else part
    return split if split.x.is_floating_point() else split.as_float()


def choose_subset(y: Tensor, pool: Tensor, size: int, seed: int) -> Tensor:
    """`size` examples of the pool, as many of each class as can be, drawn by the seed.

    Args:
        y: (M,), classes of all examples.
        pool: indices to choose from.
        size: how many.
        seed: of the draw.

    Example:
        >>> chosen = choose_subset(torch.arange(20) % 2, torch.arange(20), 4, seed=0)
        >>> torch.bincount(chosen % 2)
        tensor([2, 2])
    """
    if not 1 <= size <= len(pool):
        raise ValueError(f"train_size must lie between 1 and {len(pool)}, the training examples there are, got {size}")
    shuffled = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))]
    # An example's rank among its own class: taking the lowest ranks first goes round the classes.
    rank = torch.zeros(len(shuffled), dtype=torch.int64)
    for k in y[shuffled].unique():
        mine = y[shuffled] == k
        rank[mine] = torch.arange(int(mine.sum()))
    return shuffled[rank.argsort(stable=True)[:size]]
