"""One settings object, the same in Python, in a YAML file and on the command line."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pstn._checks import require_seed
from pstn._deprecation import with_new_names
from pstn.defaults import ALPHA, LOCALIZER_FACTOR, LR, RESTARTS, TEST_SAMPLES, WEIGHT_DECAY
from pstn.files import DataError, read_yaml, write_atomically
from pstn.limits import MODEL_PIXELS, MODEL_SAMPLES, RUN_MODELS
from pstn.text import ShortError, did_you_mean, excerpt
from pstn.training.population.recipe import Augmentation, Precision, Recipe, one_cycle

if typing.TYPE_CHECKING:
    from pstn.data.augment import RandomTransform


_SHARE = math.ulp(0.0), math.nextafter(1, 0)  # above 0 and below 1


class SettingsError(ShortError):
    """A setting that does not exist or does not fit."""


@dataclass(frozen=True)
class TrainSettings:
    """All settings of `pstn train`.

    The texts of the options are those of the arguments.

    Args:
        data: A known set's name, a folder or a file.
        out: Folder of the run; runs/DATA-MODEL when not given.
        model: What to train.
        transform: Family of transformations: similarity, rotation, crop, affine, cpab, ...; that of TEACH, or
            similarity for images and cpab for series, when not given.
        size: Side to which the images of a folder are resized; that of the images a pretrained network was trained on,
            and for others their own, if all have one of at most 128, or 64.
        framing: What of the images of a folder is read: whole squeezes each into a square; auto takes the middle of it
            for a network of timm that was trained so, without squeezing, and else is whole.
        skip_broken: Report the images of a folder that cannot be read, and go on without them.
        kind: What an .npz file holds; to be said for three axes.
        policy: For gaps and unequal lengths in series.
        models: How many models to train together, with seeds SEED, SEED + 1, ...
        seed: Of the first model: weights, subset, batches, samples, dropout.
        train_size: Training examples of each model, drawn for each; all when not given.
        kl_weight: Weight of the KL term, one or one each; by the number of examples if none; auto searches it, the
            localizer's factor and alpha on held-out data.
        lr: Learning rate; one for all models or one each.
        localizer_factor: What the localizer's learning rate is multiplied with.
        weight_decay: Adam's L2 term.
        epochs: Passes over the data; by the number of examples when not given.
        batch_size: Examples in a micro-batch; by the number of examples when not given.
        accumulate: Micro-batches per optimiser step.
        samples: S in training; a few when not given, one where a pretrained network classifies.
        test_samples: S in evaluation.
        alpha: Of the posterior, a Student-t with 2 ALPHA degrees of freedom.
        var_init: Where the variance head starts, before softplus; -4.3 when not given, or where a pretrained network
            classifies what predicts images best in cross-validation, that or -9.
        lr_step: Epochs after which learning rates are multiplied with LR_GAMMA, repeatedly.
        lr_gamma: That factor.
        lr_schedule: one-cycle lets learning rates rise over a quarter of the run, and fall to 0; instead of LR_STEP.
        clip_norm: Largest norm of a model's gradient.
        precision: tf32 rounds products to ten bits, on a GPU alone; bf16 is autocast.
        augment: light and standard turn, scale, shift and re-colour images a little, in training alone; auto is light
            for a folder of images. rotation turns them by any angle, and placement puts them, 28 pixels wide, on a
            canvas of 96: afresh at each access in training, once for validation and test.
        flip: Mirror images left to right as a part of AUGMENT; with standard, photos whose classes are no letters,
            digits or sides when not given.
        padding: What lies outside the images of a folder: their border repeated, or FILL; auto fills with a background
            that most borders show, and repeats the border of photos.
        fill: That value, from 0 for black to 1; the background's when not given.
        class_weights: balanced counts examples of rare classes more in training, so that all classes count the same.
        backbone: Networks: small ones, chosen by the size of the input, those of the paper, or a pretrained one:
            efficientnet-lite0, a model of timm, or MODULE:NAME of your own. auto is a pretrained one for a folder of
            images in colour, if efficientnet-lite0 is installed, and small for other folders of images.
        backbone_for: What reads by a pretrained network; a localizer and a classifier share one that is frozen.
        backbone_learns: What of a pretrained network learns: nothing beside a new last layer, its last layers too, or
            all of it.
        teach: Warp the training examples, which are aligned, at random, and teach the model what undoes it:
            rotation=3.14, similarity=3.14,0.3,0.3 (angle, log scale, shift), crop, translation, affine, cpab;
            ...,keep=0.7 keeps the middle, where no filled corners are seen. The test part is warped once.
        teach_weight: What the loss of TEACH is multiplied with beside that of the labels.
        valid_fraction: Part of the training examples kept for validation, where the data has none; 0.15 of your own
            data from 60 examples on when not given, 0 for none.
        patience: Validations without improvement after which a model stops, with its best weights; a fifth of all of
            them, and at least 5, for your own data when not given, 0 for never.
        validate_every: Epochs between validations; only with PATIENCE when not given.
        loss_limit: A loss above it stops the model.
        device: auto, cpu, cuda, cuda:1, ...
        groups: Into how many stacks the models are split; chosen when not given.
        compile: Fuse small operations, 10 to 30 s at the start; long CUDA runs do by default.
        calibrate: Find a temperature on the validation examples: see VALID_FRACTION.
        accuracy: Find on the validation examples below which probability to abstain, for this accuracy of the answers.
        coverage: Likewise sets of classes that hold the true one with this probability.
        restarts: How often a model that ends at chance is trained again, with more care.
        save_every: Seconds between checkpoints.

    Example:
        >>> settings = TrainSettings(data="digits", epochs=10)
        >>> TrainSettings.from_dict(settings.to_dict()) == settings
        True
    """

    data: str = "digits"
    out: str = ""
    model: Literal["cnn", "stn", "pstn"] = "pstn"
    transform: str = ""
    size: int | None = None
    framing: Literal["auto", "whole"] = "auto"
    skip_broken: bool = False
    kind: Literal["auto", "image", "series"] = "auto"
    policy: Literal["refuse", "resample", "pad"] = "refuse"
    models: int = 1
    seed: int = 0
    train_size: int | None = None
    kl_weight: list[float | Literal["auto"]] = field(default_factory=list)
    lr: list[float] = field(default_factory=lambda: [LR])
    localizer_factor: float = LOCALIZER_FACTOR
    weight_decay: float = WEIGHT_DECAY
    epochs: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    samples: int | None = None
    test_samples: int = TEST_SAMPLES
    alpha: float = ALPHA
    var_init: float | None = None
    lr_step: int | None = None
    lr_gamma: float = 0.1
    lr_schedule: Literal["constant", "one-cycle"] = "constant"
    clip_norm: float | None = None
    precision: Precision = "float32"
    augment: Literal["auto", "none", "light", "standard", "rotation", "placement"] = "auto"
    flip: bool | None = None
    padding: Literal["auto", "border", "fill"] = "auto"
    fill: float | None = None
    class_weights: Literal["none", "balanced"] = "none"
    backbone: str = "auto"
    backbone_for: Literal["classifier", "localizer", "both"] = "classifier"
    backbone_learns: Literal["none", "last", "all"] = "none"
    teach: str = ""
    teach_weight: float = 1.0
    valid_fraction: float | None = None
    patience: int | None = None
    validate_every: int | None = None
    loss_limit: float = 1e4
    device: str = "auto"
    groups: int | None = None
    compile: bool | None = None
    calibrate: bool = False
    accuracy: float | None = None
    coverage: float | None = None
    restarts: int = RESTARTS
    save_every: float = 30.0

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            object.__setattr__(self, name, _convert(name, getattr(self, name), hint))
        side = math.isqrt(MODEL_PIXELS)
        limits: dict[str, tuple[float, float]] = {
            "models": (1, RUN_MODELS), "samples": (1, MODEL_SAMPLES), "test_samples": (1, MODEL_SAMPLES),
            "size": (1, side), "valid_fraction": (0, math.nextafter(1, 0)), "groups": (1, math.inf),
            "save_every": (0, math.inf), "restarts": (0, 10), "teach_weight": (math.ulp(0.0), math.inf),
            "fill": (0, 1), "patience": (0, math.inf), "accuracy": _SHARE, "coverage": _SHARE,
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # nor NaN
                raise SettingsError(f"{name} must lie between {low} and {high}, got {excerpt(value)}")
        try:
            require_seed("seed", self.seed, self.models)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        for name in ("kl_weight", "lr"):
            if (found := len(getattr(self, name))) not in (1, self.models) and (name, found) != ("kl_weight", 0):
                raise SettingsError(f"{name} must hold one number or one for each of {self.models} models, got {found}")
        if self.padding == "border" and self.fill is not None:
            raise SettingsError(f"fill must be left out where padding is border, got {self.fill:g}")
        if self.teach and (self.augment not in ("auto", "none") or self.model == "cnn"):
            raise SettingsError(f"teach must be left out with augment, and for a cnn, got {excerpt(self.teach)}")
        if "auto" in self.kl_weight and len(self.kl_weight) > 1:
            raise SettingsError(f"kl_weight must be auto alone, or numbers, got {excerpt(self.kl_weight)}")
        if "auto" in self.kl_weight and self.model != "pstn":
            raise SettingsError(f"kl_weight must be left out, or be numbers, for the model {self.model}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Settings from names and values; an unknown name is an error that suggests the right one."""
        values = with_new_names(values, {"localizer_lr": "localizer_factor"})
        known = [item.name for item in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                meant = did_you_mean(str(name).replace("-", "_"), known) or f"; known are {', '.join(known)}"
                raise SettingsError(f"{excerpt(name)} is not a setting{meant}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Names and values, as YAML and JSON can hold them."""
        return dataclasses.asdict(self)

    def replace(self, **values: Any) -> TrainSettings:
        """The same settings with some changed."""
        return TrainSettings.from_dict({**self.to_dict(), **values})

    @property
    def folder(self) -> Path:
        """Where the run goes: never into the data, where a run would be taken for a class of images.

        Raises:
            SettingsError: `out` lies in the folder of the data.
        """
        from pstn.data.registry import find_known

        place = Path(self.data).expanduser().resolve()
        own = find_known(self.data) is None and place.is_dir()
        if self.out:
            if own and Path(self.out).resolve().is_relative_to(place):
                raise SettingsError(f"out must lie outside the folder of the data, {place}, got {excerpt(self.out)}")
            return Path(self.out)
        within = own and Path.cwd().is_relative_to(place)
        name = Path(self.data).stem.strip(".") or place.stem  # "." and ".." name no data
        return (place.parent if within else Path()) / "runs" / f"{name}-{self.model}"

    def recipe(self, augment: Augmentation | None = None, teach: RandomTransform | None = None) -> Recipe:
        """The part that says how to train.

        Args:
            augment: the change that the data asks for: see `pstn.training.runs.run.prepare`.
            teach: the random transform that is taught: see there.
        """
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(Recipe) if hasattr(self, f.name)}
        named |= {"augment": augment, "teach": teach, "teach_weight": None if teach is None else self.teach_weight}
        named["patience"] = self.patience or None  # 0 is never
        return Recipe(**{**named, "lr_schedule": None if self.lr_schedule == "constant" else one_cycle})


def help_texts() -> dict[str, str]:
    """What each setting is, from the documentation of `TrainSettings`.

    Example:
        >>> help_texts()["data"]
        "A known set's name, a folder or a file."
    """
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(TrainSettings) or "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _convert(name: str, value: Any, hint: Any) -> Any:
    """A value as a setting of this type wants it: a number alone may stand for a list, and text for a number.

    YAML reads 1e-3 as text: its numbers want a point.
    """
    if typing.get_origin(hint) is list:
        values = value if isinstance(value, (list, tuple)) else [value]
        return [_convert(name, v, typing.get_args(hint)[0]) for v in values]
    accepted = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for kind in accepted:
        choices = typing.get_args(kind)
        if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                return float(value)
        # A bool is an int to Python, and not to a person.
        elif value in choices if choices else isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "nothing"}
    wanted = " or ".join(words.get(kind) or f"one of {', '.join(typing.get_args(kind))}" for kind in accepted)
    meant = did_you_mean(value, [choice for kind in accepted for choice in typing.get_args(kind)])
    raise SettingsError(f"{name} must be {wanted}, got {excerpt(value)}{meant}")


def read_settings(path: str | Path) -> dict[str, Any]:
    """The names and values in a YAML file; `TrainSettings.from_dict` checks them."""
    try:
        values = read_yaml(path)
    except DataError as error:
        raise SettingsError(str(error)) from error
    if not isinstance(values, (dict, type(None))):
        raise SettingsError(f"{path} must hold names and values, got {type(values).__name__}")
    return values or {}


def write_settings(path: str | Path, settings: TrainSettings) -> None:
    """Write settings as YAML, atomically; `read_settings` reads them back."""
    import yaml

    with write_atomically(path) as draft:
        draft.write_text(yaml.safe_dump(settings.to_dict(), sort_keys=False))
