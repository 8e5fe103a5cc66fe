"""Data for a run, whatever it is called: a known set's name, a folder or a file."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import pstn.data
from pstn.data.detect import detect
from pstn.data.places import expand
from pstn.data.registry import find_known

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
    names: tuple[str, ...] = ()
    """Of the classes."""
    mean: tuple[float, ...] = (0.0,)
    """What was subtracted from pixels in [0, 1], one number or one per channel."""
    std: tuple[float, ...] = (1.0,)
    """What they were then divided by."""

    @property
    def train(self) -> Tensor:
        """Indices of the training examples."""
        return torch.arange(len(self.x) - (0 if self.valid is None else len(self.valid)))

    @property
    def classes(self) -> int:
        """K."""
        return len(self.names) if self.names else int(self.y.max()) + 1


def load_source(
    data: str,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    kind: Literal["auto", "image", "series"] = "auto",
    policy: Literal["refuse", "resample", "pad"] = "refuse",
) -> Source:
    """Load a data set.

    Args:
        data: whatever `pstn.data.load` takes; "digits" ships with the package.
        size: what the images of a folder are resized to; other data must have it already.
        channels: likewise 1 for grey, 3 for colour.
        kind: what an .npz file holds; must be said for three axes.
        policy: what becomes of missing values and unequal lengths in series.

    Example:
        >>> source = load_source("digits")
        >>> len(source.train), len(source.valid)
        (3200, 800)
    """
    # Only a folder of images can be read in more than one way, and only an .npz file needs to be told what it holds.
    held = None if kind == "auto" else kind
    ways: dict[str, dict[str, Any]] = {"classes": {"size": size, "channels": channels}, "npz": {"kind": held}}
    ways["series"] = {"policy": policy}
    path = expand(data)
    own = find_known(data) is None and path.exists()
    settings = ways.get(detect(path) or "", {}) if own else {}
    splits: Any = pstn.data.load(data, **{name: value for name, value in settings.items() if value is not None})
    if own:
        _require_classes(data, splits)
    return _from_splits(splits)


def _require_classes(data: str, splits: Any) -> None:
    """Refuse data of somebody's own that nothing can be learned from, or that nothing can be tested on."""
    names = splits.train.classes
    if len(names) < 2:
        held = f"one class, {names[0]!r}" if names else "no class"
        raise ValueError(f"{data} holds {held}: at least two are needed, for a folder of images a folder each")
    count = torch.stack([torch.bincount(p.y, minlength=len(names)) for p in splits if p is not None]).sum(0)
    if int(count.min()) < 2:
        name = names[int(count.argmin())]
        raise ValueError(
            f"{data} holds {int(count.min())} example(s) of class {name!r}: at least two are needed, one to "
            "learn from and one to test on"
        )


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
    tested = None if test is None else (test.x, test.y.long())
    mean, std = (value if isinstance(value, tuple) else (value,) for value in (train.mean, train.std))
    return Source(x, y.long(), index, tested, fill, augment, train.classes, mean, std)


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
