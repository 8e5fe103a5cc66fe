"""Models of the package's own parts as plain values, and back: what config.json holds.

Reading a description runs nothing in it: a type is looked up in a table here, and each value is checked before it
reaches a constructor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pstn.limits import MODEL_CELLS, MODEL_DEPTH, MODEL_PARTS, MODEL_PIXELS, MODEL_SAMPLES
from pstn.nn.classifier import PSTN, STN
from pstn.nn.layer import SpatialTransformer
from pstn.nn.networks import ConvClassifier, ConvLocalizer, GlobalLocalizer, SeriesClassifier, SeriesLocalizer
from pstn.nn.wrap import Frozen
from pstn.text import excerpt
from pstn.transforms import CPAB, Affine, Compose, Crop, Rotation, Similarity, Translation

__all__ = ["build", "describe", "describe_input"]

Check = Callable[[str, Any], Any]
_LARGE = 1 << 20


@dataclass(frozen=True)
class Part:
    """One type of module: its class, and for each argument of the constructor how a value is checked."""

    cls: Callable[..., nn.Module]
    fields: Mapping[str, Check]
    later: frozenset[str] = frozenset()
    """Arguments that older files do not have: the constructor's default is what they were written with."""


def _whole(low: int = 1, high: int = _LARGE) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} must be a whole number from {low} to {high}, got {excerpt(value)}")
        return value

    return check


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {excerpt(value)}")
        return float(value)

    return check


def _choice(*options: Any) -> Check:
    def check(name: str, value: Any) -> Any:
        if not any(value is option or (isinstance(value, str) and value == option) for option in options):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {excerpt(value)}")
        return value

    return check


def _maybe(inner: Check) -> Check:
    return lambda name, value: None if value is None else inner(name, value)


def _each(inner: Check, low: int = 1, high: int = 64) -> Check:
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not low <= len(value) <= high:
            raise ValueError(f"{name} must be a list of {low} to {high} values, got {excerpt(value)}")
        return tuple(inner(f"{name}[{i}]", item) for i, item in enumerate(value))

    return check


def _fill(name: str, value: Any) -> Any:
    level = _number(-1e30, 1e30)
    return _each(level)(name, value) if isinstance(value, list) else level(name, value)


def _part(*kinds: str) -> Check:
    return lambda name, value: _build(name, value, kinds)


def _size(name: str, value: Any) -> tuple[int, ...]:
    size = _each(_whole(high=MODEL_PIXELS), high=3)(name, value)
    if math.prod(size) > MODEL_PIXELS:
        raise ValueError(f"{name} must have at most {MODEL_PIXELS:,} pixels, got {size}")
    return size


_FLAG, _SIZE = _choice(True, False), _size
_NDIM, _SCALE, _RATE = _whole(high=3), _choice("linear", "log"), _number(0, 1)
_WIDTHS, _KERNELS = _each(_whole(high=65536)), _each(_whole(high=4096))
_TRANSFORMS = ("Rotation", "Translation", "Crop", "Similarity", "Affine", "CPAB", "Compose")
_LOCALIZERS = ("ConvLocalizer", "SeriesLocalizer", "GlobalLocalizer")
_CLASSIFIERS = ("ConvClassifier", "SeriesClassifier", "Frozen")
_MODELS = ("PSTN", "STN", "ConvClassifier", "SeriesClassifier")
_CONV = {"in_channels": _whole(), "size": _SIZE, "filters": _WIDTHS, "kernel": _whole(high=4096)}
_SERIES = {"in_channels": _whole(), "filters": _WIDTHS, "kernels": _KERNELS, "dropout": _RATE, "padded": _FLAG}
_SAMPLES = _whole(high=MODEL_SAMPLES)
_HEADED = {"layer": _part("SpatialTransformer"), "classifier": _part(*_CLASSIFIERS)}

_PARTS: dict[str, Part] = {
    "Rotation": Part(Rotation, {}),
    "Translation": Part(Translation, {"scale": _number(1e-9, 1e9), "ndim": _NDIM}),
    "Crop": Part(Crop, {"scale": _SCALE, "ndim": _NDIM}),
    "Similarity": Part(Similarity, {"scale": _SCALE}),
    "Affine": Part(Affine, {"ndim": _NDIM}),
    # The basis of a much finer tessellation would take minutes to compute.
    "CPAB": Part(CPAB, {"tess": _each(_whole(high=512), high=2), "zero_boundary": _FLAG, "volume_preserving": _FLAG}),
    "Compose": Part(lambda transforms: Compose(transforms), {"transforms": _each(_part(*_TRANSFORMS), 2, 8)}),
    "ConvLocalizer": Part(ConvLocalizer, _CONV),
    "SeriesLocalizer": Part(SeriesLocalizer, _SERIES, later=frozenset({"padded"})),
    "GlobalLocalizer": Part(GlobalLocalizer, {}),
    "ConvClassifier": Part(ConvClassifier, {**_CONV, "classes": _whole(), "hidden": _whole(), "dropout": _RATE}),
    "SeriesClassifier": Part(SeriesClassifier, {**_SERIES, "classes": _whole()}, later=frozenset({"padded"})),
    "Frozen": Part(Frozen, {"module": _part("ConvClassifier", "SeriesClassifier")}),
    "SpatialTransformer": Part(
        SpatialTransformer,
        {
            "transform": _part(*_TRANSFORMS), "localizer": _part(*_LOCALIZERS), "size": _maybe(_SIZE),
            "probabilistic": _FLAG, "alpha": _number(0.25, 1e9), "hidden": _maybe(_whole()),
            "precision": _choice("per-parameter", "per-input"),
            "localizer_size": _maybe(_SIZE), "sampling": _choice("iid", "antithetic", "sobol"), "fill": _fill,
            "mode": _choice("bilinear", "nearest", "bicubic"), "padding_mode": _choice("zeros", "border", "reflection"),
        },
        later=frozenset({"precision"}),
    ),
    "PSTN": Part(
        PSTN,
        {**_HEADED, "train_samples": _SAMPLES, "test_samples": _SAMPLES, "chunk_size": _maybe(_whole())},
    ),
    "STN": Part(STN, _HEADED),
}  # fmt: skip

_CLASSES = {"Compose": Compose, **{name: part.cls for name, part in _PARTS.items() if isinstance(part.cls, type)}}


def describe(module: nn.Module) -> dict[str, Any]:
    """A model, as values that JSON can hold; `build` makes one of the same shape from them.

    Args:
        module: a classifier of this package, with parts of this package.

    Raises:
        TypeError: it holds a module of somebody else's.

    Example:
        >>> describe(pstn.Similarity())
        {'type': 'Similarity', 'scale': 'linear'}
    """
    kind = type(module).__name__
    if _CLASSES.get(kind) is not type(module):
        raise TypeError(
            f"{kind} is not a module of pstn, so config.json cannot say how to build it: keep the weights with "
            "safetensors.torch.save_file(model.state_dict(), path), and put them into a model that you have built "
            "with pstn.load_weights(model, path)"
        )
    return {"type": kind, **{name: _value(getattr(module, name)) for name in _PARTS[kind].fields}}


def _value(value: Any) -> Any:
    if isinstance(value, nn.Dropout):
        return value.p
    if isinstance(value, nn.ModuleList):
        return [describe(item) for item in value]
    if isinstance(value, nn.Module):
        return describe(value)
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def build(description: Any) -> nn.Module:
    """A model from what `describe` wrote, with weights that are not trained.

    Args:
        description: of a classifier.

    Raises:
        ValueError: it is not such a description; nothing in it was run.

    Example:
        >>> build(describe(pstn.nn.mnist_pstn())).layer.transform
        Similarity(scale='linear')
    """
    _require_modest(description)
    return _build("model", description, _MODELS)


def _require_modest(description: Any) -> None:
    """Refuse what would take long to build, before anything is built."""
    parts = cells = depth = 0
    level = [description]
    while level:
        dicts = [value for value in level if isinstance(value, dict)]
        parts, depth = parts + len(dicts), depth + bool(dicts)
        for what, found, limit in (("modules", parts, MODEL_PARTS), ("levels of modules", depth, MODEL_DEPTH)):
            if found > limit:
                raise ValueError(f"model must have at most {limit} {what}, got more")
        for part in dicts:
            tess = part.get("tess")
            if isinstance(tess, list) and all(isinstance(n, int) for n in tess):
                cells += abs(math.prod(tess))
        if cells > MODEL_CELLS:
            raise ValueError(
                f"model must have at most {MODEL_CELLS} cells in all its CPAB transformations, got {cells}"
            )
        level = [inner for part in dicts for value in part.values() for inner in _in_a_list(value)]


def _in_a_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _build(place: str, description: Any, kinds: Sequence[str]) -> nn.Module:
    kind = description.get("type") if isinstance(description, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{place} must be one of {', '.join(kinds)}, got {excerpt(kind)}")
    part = _PARTS[kind]
    wanted, found = {"type", *part.fields}, set(description)
    if odd := (found ^ wanted) - part.later:
        first = sorted(map(str, odd))[0]
        raise ValueError(f"{place}.{first[:80]} is {'missing' if first in wanted else 'unknown'} in a {kind}")
    present = {name: check for name, check in part.fields.items() if name in found}
    values = {name: check(f"{place}.{name}", description[name]) for name, check in present.items()}
    if kind == "CPAB" and len(values["tess"]) == 2 and math.prod(values["tess"]) > 256:
        raise ValueError(f"{place}.tess must have at most 256 cells, got {values['tess']}")
    try:
        return part.cls(**values)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{place} cannot be built: {error}") from error


def describe_input(description: Mapping[str, Any]) -> tuple[int, int, tuple[int, ...] | None]:
    """How many classes and channels a described model has, and the spatial size of its input, where that is fixed.

    Example:
        >>> describe_input(describe(pstn.nn.mnist_pstn()))
        (10, 1, (28, 28))
    """
    layer = description.get("layer")
    head = description if layer is None else description["classifier"]
    head = head.get("module", head)
    if layer is None:
        reader, size = head, head.get("size")
    elif layer["localizer"]["type"] == "GlobalLocalizer":  # it reads nothing: what is warped goes to the classifier
        reader, size = head, head.get("size") if layer["size"] is None else None
    else:
        reader = layer["localizer"]
        size = reader.get("size") if layer["localizer_size"] is None else None
    return head["classes"], reader["in_channels"], None if size is None else tuple(size)
