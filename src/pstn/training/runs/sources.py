"""Data for a run, whatever it is called: a known set's name, a folder or a file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import pstn.data
from pstn.data.augment import RandomPlacement, RandomRotation, RandomTransform, generate_all
from pstn.data.files import DataWarning, expand
from pstn.data.registry import detect, find_known
from pstn.data.series import series_format
from pstn.data.split import Splits, stratified_indices
from pstn.nn import About, Shareable, make_model
from pstn.training.population import Population
from pstn.training.population.planning import make_device
from pstn.training.population.recipe import Augmentation, Member, RandomWarp
from pstn.training.runs.settings import SettingsError, TrainSettings

__all__ = [
    "HOW_TO_ADD_A_TEST",
    "Policy",
    "Source",
    "choose_subset",
    "load_source",
    "make_about",
    "make_population",
    "make_run_model",
    "prepare",
]

Policy = Literal["refuse", "resample", "pad"]

# For data that come without examples to be tested on; anything else is divided by itself.
HOW_TO_ADD_A_TEST = "add a folder test beside the folder train, or arrays x_test and y_test to an .npz file"

# What the setting `augment` means: the changes of the generated sets.
_MAKERS: dict[str, RandomTransform] = {"rotation": RandomRotation(), "placement": RandomPlacement()}


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
    augment: Augmentation | None = None
    """How the examples in `x` are changed at each access; those for the test are changed already."""
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
    def size(self) -> tuple[int, ...]:
        """What a model sees: an augmentation may place an example on a larger canvas."""
        if self.augment is None:
            return tuple(self.x.shape[2:])
        return tuple(self.augment(self.x[:1], torch.zeros(1, self.augment.width)).shape[2:])

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
    policy: Policy = "refuse",
    length: int | None = None,
    augment: Literal["none", "rotation", "placement"] = "none",
) -> Source:
    """Load a data set.

    Args:
        data: whatever `pstn.data.load` takes; "digits" ships with the package. A known name wins over a folder or file
            of that name, with a `DataWarning`.
        size: what the images of a folder are resized to; other data must have it already.
        channels: likewise 1 for grey, 3 for colour.
        kind: what an .npz file holds; must be said for three axes.
        policy: what becomes of missing values and unequal lengths in series.
        length: what series of a file are made by it, where a model has chosen that; by the data when not given.
        augment: how images are changed at random, where the set does not change its own; those for the test once.

    Example:
        >>> source = load_source("digits")
        >>> len(source.train), len(source.valid)
        (3200, 800)
    """
    # Only a folder of images can be read in more than one way, and only an .npz file needs to be told what it holds.
    held = None if kind == "auto" else kind
    ways: dict[str, dict[str, Any]] = {"classes": {"size": size, "channels": channels}, "npz": {"kind": held}}
    ways["series"] = {"policy": policy, "length": length}
    path, known = expand(data), find_known(data)
    if known is not None and path.exists():
        what = "folder" if path.is_dir() else "file"
        warnings.warn(f"the known set {known.name!r} is used; for the {what} say ./{data}", DataWarning, stacklevel=2)
    own = known is None and path.exists()
    of_archive = data.startswith("ucr:") if known is None else known.kind == "series"
    settings = ways.get(detect(path) or "", {}) if own else {"policy": policy} if of_archive else {}
    splits: Any = pstn.data.load(data, **{name: value for name, value in settings.items() if value is not None})
    if own:
        _require_classes(data, splits)
    return _from_splits(_changed(data, splits, augment))


def prepare(settings: TrainSettings) -> Source:
    """The data of a run as its models are to see it: the one way from settings to data.

    Example:
        >>> prepare(TrainSettings(data="digits", augment="placement")).size
        (96, 96)

    Raises:
        SettingsError: the size or kind that was asked for is not that of the data, and cannot be.
    """
    source = load_source(
        settings.data, size=settings.size, kind=settings.kind, policy=settings.policy, augment=settings.augment
    )
    found = tuple(source.x.shape[2:])
    if settings.size is not None and found != (settings.size, settings.size):
        raise SettingsError(
            f"size must be left out, got {settings.size}: only the images of a folder are resized, and the size of "
            f"{settings.data} is {' × '.join(map(str, found))}"
        )
    kind = "series" if len(found) == 1 else "image"
    if settings.kind not in ("auto", kind):
        raise SettingsError(f"kind of {settings.data} must be {kind}, got {settings.kind}")
    return source


def _changed(data: str, splits: Any, augment: str) -> Any:
    """The set with the change that is asked for, as if it were a generated set; one that is keeps its own."""
    if augment == "none":
        return splits
    own, wanted = getattr(splits.train, "random_transform", None), _MAKERS[augment]
    if type(own) is type(wanted):
        return splits
    if own is not None or splits.train.ndim != 2:
        reason = "has changes of its own" if own is not None else "holds no images"
        raise ValueError(f"augment must be 'none' for {data}, which {reason}, got {augment!r}")
    return generate_all(Splits(*map(_as_split, splits)), wanted)


def _require_classes(data: str, splits: Any) -> None:
    """Refuse a user's own data with fewer than two classes, or a class with fewer than two examples."""
    names = splits.train.classes
    if len(names) < 2:
        held = f"one class, {names[0]!r}" if names else "no class"
        raise ValueError(f"{data} holds {held}: at least two are needed, for a folder of images a folder each")
    count = torch.stack([torch.bincount(p.y, minlength=len(names)) for p in splits if p is not None]).sum(0)
    if int(count.min()) < 2:
        name = names[int(count.argmin())]
        label = "; the first column is the label: is it one, and is the first row no header?"
        raise ValueError(
            f"{data} holds {int(count.min())} example(s) of class {name!r}: at least two are needed, one to "
            f"learn from and one to test on{label if _is_table(data) else ''}"
        )


def _is_table(data: str) -> bool:
    path = expand(data)
    return path.is_file() and series_format(path) in (".tsv", ".csv", ".txt")


def _from_splits(splits: Any) -> Source:
    # A generated set: the trainer changes its originals, those for validation too, on the device.
    maker = getattr(splits.train, "random_transform", None)
    originals = [getattr(part, "base", part) for part in (splits.train, splits.validation)]
    train, valid, test = (_as_split(part) for part in (*originals, splits.test))
    x, y, index = train.x, train.y, None
    if valid is not None and valid.x.shape[1:] == x.shape[1:]:
        index = torch.arange(len(x), len(x) + len(valid.x))
        x, y = torch.cat([x, valid.x]), torch.cat([y, valid.y])
    fill = train.fill if isinstance(train.fill, float) else float(train.fill[0])
    augment = None if maker is None else RandomWarp(maker, train.fill)
    tested = None if test is None else (test.x, test.y.long())
    mean, std = (value if isinstance(value, tuple) else (value,) for value in (train.mean, train.std))
    return Source(x, y.long(), index, tested, fill, augment, train.classes, mean, std)


def _as_split(part: Any) -> Any:
    if part is None:
        return None
    split = part.all() if hasattr(part, "random_transform") else part
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


def make_run_model(settings: TrainSettings, source: Source, seed: int) -> Shareable:
    """One untrained model of a run.

    Args:
        settings: which kind, and its options.
        source: the data, for its shape.
        seed: of the weights.
    """
    return make_model(
        settings.model, source.x.shape[1], source.size, source.classes, settings.transform or None,
        # A series has no background: it continues with its last value.
        fill=None if len(source.size) == 1 else source.fill,
        samples=settings.samples, test_samples=settings.test_samples, var_init=settings.var_init, seed=seed,
    )  # fmt: skip


def make_about(settings: TrainSettings, source: Source, number: int, kl_weight: float | None = None) -> About:
    """What belongs to model `number` of a run beside its weights, before it has scores."""
    return About(
        source.names, source.x.shape[1], source.size, source.mean, source.std,
        kl_weight=kl_weight, seed=settings.seed + number,
        data=settings.data, policy=settings.policy,
    )  # fmt: skip


def _train_and_valid(settings: TrainSettings, source: Source, seed: int) -> tuple[Tensor, Tensor | None]:
    """The data's own validation part; else, where one is asked for, its share of every class."""
    if source.valid is not None or settings.valid_fraction == 0:
        return source.train, source.valid
    train, valid = stratified_indices(source.y[source.train], settings.valid_fraction, seed=seed)
    if len(valid) == 0:
        raise ValueError(
            f"valid_fraction {settings.valid_fraction:g} of {len(source.train)} training examples leaves none to "
            "validate on: give a larger one, or data with a validation part of its own"
        )
    return train, valid


def make_population(settings: TrainSettings, source: Source, seeds: Sequence[int] | None = None) -> Population:
    """The population that the settings describe, untrained.

    Args:
        settings: what to make.
        source: the data.
        seeds: one per model; counted up from the settings' seed when not given.
    """
    seeds = [settings.seed + i for i in range(settings.models)] if seeds is None else list(seeds)
    models = [make_run_model(settings, source, seed) for seed in seeds]
    members = []
    for i, seed in enumerate(seeds):
        train, valid = _train_and_valid(settings, source, seed)
        if settings.train_size is not None:
            train = choose_subset(source.y, train, settings.train_size, seed)
        lr = settings.lr[i % len(settings.lr)]
        kl_weight = settings.kl_weight[i % len(settings.kl_weight)] if settings.kl_weight else None
        members.append(Member(seed, lr, settings.localizer_factor, kl_weight, settings.weight_decay, train, valid))
    if settings.patience is not None and any(m.valid is None for m in members):
        raise ValueError("patience needs validation data: set valid_fraction")
    return Population(
        models, source.x, source.y, members, settings.recipe(source.augment),
        device=make_device(settings.device), groups=settings.groups, compile=settings.compile,
    )  # fmt: skip
