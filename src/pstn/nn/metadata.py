"""The metadata of a model: the names of its classes, how input is prepared for it, its scores; and how it is saved."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from pstn._checks import plain, require_choice, require_positive_int
from pstn.limits import MODEL_CLASSES, MODEL_PIXELS
from pstn.text import excerpt

__all__ = ["ModelMetadata", "Shareable"]

M = TypeVar("M", bound="Shareable")


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata that is needed to use a trained model.

    Attributes:
        classes: the name of each class, in the order of the model's outputs.
        channels: C of the input.
        size: spatial size of the input, e.g. (28, 28); None for any.
        mean: what is subtracted from the input, in units of [0, 1] pixels: one number, or one per channel.
        std: what it is then divided by.
        kl_weight: w, with which the model was trained.
        seed: of its training and of its scores.
        data: what it was trained on, in the words of `pstn train`.
        metrics: its scores, by name.
        policy: how missing values and other lengths in series are handled, as in its training: "refuse", "resample" or
            "pad".
        supervision: what it learned from, e.g. "labels", or aligned inputs and the random transform that warped them.

    Example:
        >>> about = ModelMetadata(("cat", "dog"), channels=1, size=(2, 2), mean=(0.5,), std=(0.25,))
        >>> about.prepare(torch.tensor([[[[0, 255], [0, 255]]]], dtype=torch.uint8)).flatten()
        tensor([-2.,  2., -2.,  2.])
        >>> ModelMetadata.from_config(about.to_config()) == about
        True
    """

    classes: tuple[str, ...]
    channels: int
    size: tuple[int, ...] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    kl_weight: float | None = None
    seed: int = 0
    data: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    policy: Literal["refuse", "resample", "pad"] = "refuse"
    supervision: str = ""

    def __post_init__(self) -> None:
        for name in ("classes", "size", "mean", "std"):
            value = plain(getattr(self, name))
            if isinstance(value, str) or not isinstance(value, Sequence | None):
                raise TypeError(f"{name} must be a list, got {excerpt(value)}")
            object.__setattr__(self, name, value if value is None else tuple(map(plain, value)))
        for name in ("channels", "kl_weight", "seed"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        object.__setattr__(self, "metrics", {name: plain(value) for name, value in self.metrics.items()})
        self._check_text()
        require_choice("policy", self.policy, ("refuse", "resample", "pad"))
        require_positive_int("channels", self.channels)
        for extent in self.size or ():
            require_positive_int("size", extent)
        if math.prod(self.size or ()) > MODEL_PIXELS:
            raise ValueError(f"size must have at most {MODEL_PIXELS:,} pixels, got {excerpt(self.size)}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) not in (1, self.channels) or not all(map(_is_finite, values)):
                raise ValueError(f"{name} must hold one finite number, or one per channel, got {excerpt(values)}")
            object.__setattr__(self, name, tuple(map(float, values)))
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0, got {excerpt(self.std)}")
        if self.kl_weight is not None and not (_is_finite(self.kl_weight) and self.kl_weight >= 0):
            raise ValueError(f"kl_weight must be a finite number of at least 0, got {excerpt(self.kl_weight)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be a whole number, got {excerpt(self.seed)}")

    def _check_text(self) -> None:
        if not self.classes or len(set(map(str, self.classes))) != len(self.classes):
            raise ValueError(f"classes must be different names, at least one, got {len(self.classes)} of them")
        if len(self.classes) > MODEL_CLASSES:
            raise ValueError(f"classes must be at most {MODEL_CLASSES:,} names, got {len(self.classes):,}")
        for name in (*self.classes, self.data, self.supervision, *self.metrics):
            # Names are printed on terminals and written into tables: control characters are refused.
            if not isinstance(name, str) or not name.isprintable():
                raise ValueError(f"classes, data and metrics must have names that can be printed, got {excerpt(name)}")
        if not all(map(_is_number, self.metrics.values())):
            raise ValueError(f"metrics must be numbers by name, got {excerpt(self.metrics)}")

    @property
    def ndim(self) -> int | None:
        """How many spatial axes the input has: 1 for series, 2 for images; None where that is not known."""
        return None if self.size is None else len(self.size)

    def prepare(self, x: Tensor) -> Tensor:
        """The input as the model takes it: (x - mean) / std, with whole-number pixels divided by 255 first.

        Args:
            x: (B, C, *size), uint8 as stored, or floating point.
        """
        return standardise(x, self.mean, self.std)

    def undo(self, x: Tensor) -> Tensor:
        """What `prepare` was given, as floats: the input as a person sees it."""
        shape = (-1, *[1] * (x.dim() - 2))
        return x * x.new_tensor(self.std).view(shape) + x.new_tensor(self.mean).view(shape)

    def to_config(self) -> dict[str, Any]:
        """Names and values, as JSON can hold them."""
        metrics = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        return {**asdict(self), "metrics": metrics}

    @classmethod
    def from_config(cls, config: Any) -> ModelMetadata:
        """What `to_config` wrote, checked.

        Raises:
            ValueError: a key is missing or unknown, or a value cannot be.
        """
        known = [f.name for f in fields(cls)]
        # Earlier files have no policy, as theirs was always to refuse, and do not say what the model learned from.
        if not isinstance(config, dict) or {"policy", "supervision", *config} != set(known):
            got = sorted(map(str, config)) if isinstance(config, dict) else type(config).__name__
            raise ValueError(f"about must hold {', '.join(known)}, got {excerpt(got)}")
        if not isinstance(config["metrics"], dict):
            raise ValueError(f"metrics must be numbers by name, got {excerpt(config['metrics'])}")
        metrics = {name: math.nan if value is None else value for name, value in config["metrics"].items()}
        try:
            return cls(**{**config, "metrics": metrics})
        except TypeError as error:
            raise ValueError(str(error)) from error


class Shareable(nn.Module, ABC):
    """A classifier with methods for saving and loading: short forms of the functions of these names in `pstn`.

    Attributes:
        about: the names of its classes, how its input is prepared, its scores; None if there is no metadata.
    """

    about: ModelMetadata | None = None

    def save_pretrained(self, folder: str | Path, *, about: ModelMetadata | None = None) -> Path:
        """Short for `pstn.save_pretrained(model, folder, about=about)`."""
        from pstn.io import save_pretrained

        return save_pretrained(self, folder, about=about)

    @classmethod
    def from_pretrained(cls: type[M], name: str | Path, **options: Any) -> M:
        """Short for `pstn.from_pretrained(name, ...)`, for a model of this class."""
        from pstn.io import ModelFileError, from_pretrained

        model = from_pretrained(name, **options)
        if not isinstance(model, cls):
            raise ModelFileError(f"{name} holds a {type(model).__name__}, not a {cls.__name__}: pstn.from_pretrained")
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Short for `pstn.push_to_hub(model, repo_id, ...)`."""
        from pstn.io import push_to_hub

        return push_to_hub(self, repo_id, **options)


def standardise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std as float32, with whole-number pixels divided by 255 first.

    Args:
        x: (B, C, *size), uint8 as stored, or floating point.
        mean: one number, or one per channel, in units of [0, 1] pixels.
        std: likewise.
    """
    floats = x.float() if x.is_floating_point() else x.float() / 255
    shape = (-1, *[1] * (x.dim() - 2))
    return (floats - floats.new_tensor(mean).view(shape)) / floats.new_tensor(std).view(shape)


def _is_number(value: Any) -> bool:
    # Python's whole numbers have no largest one, floats have.
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)
