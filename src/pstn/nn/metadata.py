"""The metadata of a model: the names of its classes, how input is prepared for it, its scores; and how it is saved."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from pstn._checks import plain, require_bool, require_choice, require_fits, require_positive_int
from pstn.abstaining import Abstention
from pstn.framing import WHOLE, Framing
from pstn.limits import MODEL_CLASSES, MODEL_PIXELS

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
        abstention: when it should not answer, and which classes it cannot rule out: see `pstn.find_abstention`.
        framing: what of an image file is read, and how it is resized to `size`: see `pstn.data.Framing`.
        masked: whether the model takes series with a mask, (B, C + 1, L), as `pstn.nn.Masked` does; `prepare` makes it.

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
    abstention: Abstention | None = None
    framing: Framing = WHOLE
    masked: bool = False

    def __post_init__(self) -> None:
        for name in ("classes", "size", "mean", "std"):
            value = plain(getattr(self, name))
            require_fits(name, value, isinstance(value, Sequence | None) and not isinstance(value, str), "a list")
            object.__setattr__(self, name, value if value is None else tuple(map(plain, value)))
        for name in ("channels", "kl_weight", "seed"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        object.__setattr__(self, "metrics", {name: plain(value) for name, value in self.metrics.items()})
        distinct = 0 < len(set(map(str, self.classes))) == len(self.classes) <= MODEL_CLASSES
        require_fits("classes", self.classes, distinct, f"different names, from one to {MODEL_CLASSES:,} of them")
        # Names are printed on terminals and written into tables: control characters are refused.
        texts = (*self.classes, self.data, self.supervision, *self.metrics)
        bad = [text for text in texts if not isinstance(text, str) or not text.isprintable()]
        require_fits("every name in classes, data and metrics", bad, not bad, "text that can be printed")
        require_fits("metrics", self.metrics, all(map(_is_number, self.metrics.values())), "numbers by name")
        require_fits("abstention", self.abstention, isinstance(self.abstention, Abstention | None), "a pstn.Abstention")
        require_fits("framing", self.framing, isinstance(self.framing, Framing), "a pstn.data.Framing")
        require_choice("policy", self.policy, ("refuse", "resample", "pad"))
        require_bool("masked", self.masked)
        require_positive_int("channels", self.channels)
        for extent in self.size or ():
            require_positive_int("size", extent)
        pixels = math.prod(self.size or ())
        require_fits("size", self.size, pixels <= MODEL_PIXELS, f"of at most {MODEL_PIXELS:,} pixels")
        for name in ("mean", "std"):
            values = getattr(self, name)
            fits = len(values) in (1, self.channels) and all(map(_is_finite, values))
            require_fits(name, values, fits, "one finite number, or one per channel")
            object.__setattr__(self, name, tuple(map(float, values)))
        require_fits("std", self.std, min(self.std) > 0, "above 0")
        fits = self.kl_weight is None or (_is_finite(self.kl_weight) and self.kl_weight >= 0)
        require_fits("kl_weight", self.kl_weight, fits, "a finite number of at least 0")
        require_fits("seed", self.seed, type(self.seed) is int, "a whole number")

    @property
    def ndim(self) -> int | None:
        """How many spatial axes the input has: 1 for series, 2 for images; None where that is not known."""
        return None if self.size is None else len(self.size)

    def prepare(self, x: Tensor) -> Tensor:
        """The input as the model takes it: (x - mean) / std, with whole-number pixels divided by 255 first.

        Args:
            x: (B, C, *size), uint8 as stored, or floating point; NaN behind the ends of series if there is a mask.
        """
        prepared = standardise(x, self.mean, self.std)
        return with_mask(prepared) if self.masked else prepared

    def undo(self, x: Tensor) -> Tensor:
        """What `prepare` was given, as floats: the input as a person sees it."""
        x = without_mask(x) if self.masked else x
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
        try:
            metrics = {name: math.nan if value is None else value for name, value in config["metrics"].items()}
            rule = None if config.get("abstention") is None else Abstention(**config["abstention"])
            framing = Framing(**config.get("framing", {}))
            return cls(**{**config, "metrics": metrics, "abstention": rule, "framing": framing})
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"about cannot be read: {error}") from error


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


def with_mask(x: Tensor) -> Tensor:
    """Series (B, C, L) with NaN behind their ends -> (B, C + 1, L): zeros there, and the mask as the last channel.

    Example:
        >>> with_mask(torch.tensor([[[5.0, 6.0, torch.nan]]])).tolist()
        [[[5.0, 6.0, 0.0], [1.0, 1.0, 0.0]]]
    """
    real = ~x.isnan().any(1, keepdim=True)
    return torch.cat([x.where(real, 0.0), real.to(x)], 1)


def without_mask(x: Tensor) -> Tensor:
    """The opposite of `with_mask`: (..., C + 1, L) -> (..., C, L), with NaN where the mask is not above a half."""
    return x[..., :-1, :].where(x[..., -1:, :] > 0.5, torch.nan)


def _is_number(value: Any) -> bool:
    # Python's whole numbers have no largest one, floats have.
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)
