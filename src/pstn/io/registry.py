"""Models as plain values, and back: what config.json holds, and the registry of what a model may be made of.

Reading a description runs nothing in it: a type is looked up in a table here, and each value is checked before it
reaches a constructor. Parts that are not of this package join the table with `register`, or are named "MODULE:NAME",
which is imported only for a caller who allows that module, or that one name.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pstn import distributions
from pstn._checks import require_fits
from pstn.distributions import PosteriorFamily, Prior
from pstn.limits import MODEL_CELLS, MODEL_DEPTH, MODEL_PARTS, MODEL_PIXELS, MODEL_SAMPLES
from pstn.nn import networks
from pstn.nn.backbones import BackboneClassifier, EfficientNetLite0, TimmNetwork, Trunk
from pstn.nn.classifier import PSTN, STN
from pstn.nn.layer import SpatialTransformer
from pstn.nn.wrap import Frozen
from pstn.text import excerpt
from pstn.transforms import CPAB, Affine, Compose, Crop, Rotation, Similarity, Transform, Translation

__all__ = ["build", "describe", "register", "set_constructor"]

Check = Callable[[str, Any], Any]
_LARGE = 1 << 20


@dataclass(frozen=True)
class Part:
    """One type of module of this package.

    Attributes:
        cls: its class.
        fields: the arguments of its constructor that a description lists, separated by blanks; `_CHECKS` has each.
        later: those that older files do not have: the constructor's default is what they were written with.
        upgrade: turns a description that an older version wrote into one of this version.
    """

    cls: type[Any]
    fields: str
    later: str = ""
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = lambda description: description


def _whole(low: int = 1, high: int = _LARGE) -> Check:
    def check(name: str, value: Any) -> int:
        require_fits(name, value, type(value) is int and low <= value <= high, f"a whole number from {low} to {high}")
        return value

    return check


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> float:
        fits = type(value) in (int, float) and low <= value <= high
        require_fits(name, value, fits, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def _choice(*options: Any) -> Check:
    def check(name: str, value: Any) -> Any:
        fits = any(value is option or (isinstance(value, str) and value == option) for option in options)
        require_fits(name, value, fits, f"one of {', '.join(map(repr, options))}")
        return value

    return check


def _maybe(inner: Check) -> Check:
    return lambda name, value: None if value is None else inner(name, value)


def _each(inner: Check, low: int = 1, high: int = 64) -> Check:
    def check(name: str, value: Any) -> tuple[Any, ...]:
        fits = isinstance(value, list) and low <= len(value) <= high
        require_fits(name, value, fits, f"a list of {low} to {high} values")
        return tuple(inner(f"{name}[{i}]", item) for i, item in enumerate(value))

    return check


def _numbers(name: str, value: Any) -> Any:
    """One number, or several."""
    level = _number(-1e30, 1e30)
    return torch.tensor(_each(level, high=4096)(name, value)) if isinstance(value, list) else level(name, value)


def _scale(name: str, value: Any) -> Any:
    """How a scale is meant, or how large it is: the constructor says which of the two it takes."""
    return _choice("linear", "log")(name, value) if isinstance(value, str) else _numbers(name, value)


def _upgrade_layer(description: dict[str, Any]) -> dict[str, Any]:
    """Version 0.1.0 had no posterior families: three settings said which Student-t it was, or none."""
    if "posterior" in description:
        return description
    rest = {k: v for k, v in description.items() if k not in ("probabilistic", "alpha", "precision")}
    if description.get("probabilistic") is False:
        return {**rest, "posterior": {"type": "Point", "prior": {"type": "NoPrior"}}}
    precision = description.get("precision", "per-parameter")
    prior = {"type": "GammaPrior", "alpha0": 1.0, "beta0": 1.0}
    old = {"alpha": description.get("alpha"), "precision": precision, "var_init": -5.0, "prior": prior}
    return {**rest, "posterior": {"type": "StudentT", **old}}


def _part(base: type, *kinds: str) -> Check:
    """A part of the package that is one of `kinds`, or one of a user's; a subclass of `base` in any case."""
    return lambda name, value: _build(name, value, kinds, base)


def _size(name: str, value: Any) -> tuple[int, ...]:
    size = _each(_whole(high=MODEL_PIXELS), high=3)(name, value)
    require_fits(name, size, math.prod(size) <= MODEL_PIXELS, f"of at most {MODEL_PIXELS:,} pixels")
    return size


_FLAG, _KERNEL, _SAMPLES, _ANY = _choice(True, False), _whole(high=4096), _whole(high=MODEL_SAMPLES), _whole()
_CONV, _SERIES = "in_channels size filters kernel", "in_channels filters kernels dropout padded"
_CLASSIFIERS = (
    "ConvClassifier",
    "SeriesClassifier",
    "InceptionClassifier",
    "ResNetClassifier",
    "BackboneClassifier",
    "Masked",
)
_LOCALIZERS = ("ConvLocalizer", "PoseLocalizer", "SeriesLocalizer", "GlobalLocalizer", "Trunk", "Masked")
# How the value of an argument is checked, whichever part has it.
_CHECKS: dict[str, Check] = {
    "scale": _scale, "ndim": _whole(high=3), "zero_boundary": _FLAG, "volume_preserving": _FLAG,
    # The basis of a much finer tessellation would take minutes to compute.
    "tess": _each(_whole(high=512), high=2), "transforms": _each(_part(Transform), 2, 8),
    "alpha0": _number(1e-30, 1e30), "beta0": _number(1e-30, 1e30), "loc": _maybe(_numbers), "learned": _FLAG,
    "alpha": _number(0.25, 1e9), "precision": _choice("per-parameter", "per-input"), "var_init": _number(-1e30, 1e30),
    "prior": _part(Prior), "k": _whole(high=64), "spread": _number(0, 1e9), "shrink": _number(1e-9, 1e9),
    "base": _part(PosteriorFamily), "probability": _number(1e-9, 1 - 1e-9), "log_density": _number(-1e9, 1e9),
    "in_channels": _ANY, "classes": _ANY, "features": _maybe(_ANY), "hidden": _maybe(_ANY), "size": _maybe(_size),
    "localizer_size": _maybe(_size), "filters": _each(_whole(high=65536)), "kernel": _KERNEL,
    "kernels": _each(_KERNEL), "width": _whole(high=65536), "depth": _whole(high=64),
    "dropout": _number(0, 1), "padded": _FLAG, "masked": _FLAG,
    "module": _part(nn.Module, *_CLASSIFIERS),
    "transform": _part(Transform),
    "localizer": _part(nn.Module, *_LOCALIZERS),
    "network": _part(nn.Module, "EfficientNetLite0", "TimmNetwork", "RocketFeatures", "SeriesLocalizer", *_CLASSIFIERS),
    "dilations": _each(_whole()), "counts": _each(_whole()), "learns": _choice("none", "last", "all"),
    "trunk": _part(Trunk), "outputs": _maybe(_ANY), "name": lambda _, value: value,
    "posterior": _part(PosteriorFamily), "sampling": _choice("iid", "antithetic", "sobol"), "fill": _numbers,
    "mode": _choice("bilinear", "nearest", "bicubic"), "padding_mode": _choice("zeros", "border", "reflection"),
    "layer": _part(SpatialTransformer),
    "classifier": _part(nn.Module, *_CLASSIFIERS, "Frozen"),
    "train_samples": _SAMPLES, "test_samples": _SAMPLES, "chunk_size": _maybe(_ANY), "temperature": _number(1e-3, 1e3),
}  # fmt: skip
_LISTED = (
    Part(Rotation, ""), Part(Translation, "scale ndim"), Part(Crop, "scale ndim"), Part(Similarity, "scale"),
    Part(Affine, "ndim"), Part(CPAB, "tess zero_boundary volume_preserving"), Part(Compose, "transforms"),
    Part(distributions.GammaPrior, "alpha0 beta0"), Part(distributions.NormalPrior, "loc scale learned"),
    Part(distributions.NoPrior, ""), Part(distributions.StudentT, "alpha precision var_init prior"),
    Part(distributions.Normal, "var_init prior"), Part(distributions.Point, "prior"),
    Part(distributions.Mixture, "k base spread"), Part(distributions.Gated, "base probability log_density"),
    Part(distributions.Global, "base"), Part(distributions.AtMode, "base"),
    Part(distributions.Hierarchical, "base shrink"), Part(networks.ConvLocalizer, _CONV),
    Part(networks.PoseLocalizer, f"{_CONV} hidden"), Part(networks.SeriesLocalizer, _SERIES, later="padded"),
    Part(networks.GlobalLocalizer, ""), Part(networks.ConvClassifier, f"{_CONV} classes hidden dropout"),
    Part(networks.SeriesClassifier, f"{_SERIES} classes", later="padded"), Part(Frozen, "module"),
    Part(networks.InceptionClassifier, "in_channels classes width kernels depth"),
    Part(networks.ResNetClassifier, "in_channels classes filters kernels"),
    Part(networks.RocketFeatures, "in_channels dilations counts"), Part(networks.Masked, "network"),
    Part(EfficientNetLite0, "outputs"), Part(TimmNetwork, "name"), Part(Trunk, "network learns"),
    Part(BackboneClassifier, "trunk classes"),
    Part(
        SpatialTransformer,
        "transform localizer size features hidden posterior localizer_size sampling fill mode padding_mode masked",
        later="features masked", upgrade=_upgrade_layer,
    ),
    Part(PSTN, "layer classifier train_samples test_samples chunk_size temperature", later="temperature"),
    Part(STN, "layer classifier temperature", later="temperature"),
)  # fmt: skip
_PARTS = {part.cls.__name__: part for part in _LISTED}
_MODELS = ("PSTN", "STN", *_CLASSIFIERS)


_BASES = (Transform, PosteriorFamily, Prior, nn.Module)
_REGISTERED: dict[str, type[Any]] = {}
_ALLOWED: ContextVar[tuple[str, ...]] = ContextVar("allowed", default=())
C = TypeVar("C", bound=type)
N = TypeVar("N", bound=nn.Module)


def register(cls: C) -> C:
    """A decorator for a transformation, posterior family, prior or network of your own: models with it can be saved.

    The class is written into config.json by its name and the arguments of its constructor, each of which it must keep
    as an attribute of the same name. To load such a model, import the module that registers the class first. A class
    that is not registered is written as "MODULE:NAME", and loading it needs `allow=[MODULE]`.

    Args:
        cls: a subclass of `pstn.Transform`, `pstn.PosteriorFamily`, `pstn.Prior` or `torch.nn.Module`.

    Raises:
        ValueError: another class of this name is there already.

    Example:
        >>> @register
        ... class Averaging(nn.Module):
        ...     def __init__(self, features):
        ...         super().__init__()
        ...         self.features = features
        >>> describe(Averaging(3))
        {'type': 'Averaging', 'features': 3}
    """
    if not isinstance(cls, type) or not issubclass(cls, _BASES):
        raise TypeError(f"cls must be a subclass of Transform, PosteriorFamily, Prior or nn.Module, got {cls!r}")
    held = _PARTS[cls.__name__].cls if cls.__name__ in _PARTS else _REGISTERED.get(cls.__name__)
    # A class that is defined anew, as in a notebook, takes the place of the old one.
    if held is not None and (held.__module__, held.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"a class called {cls.__name__} is registered already, {held.__module__}.{held.__qualname__}")
    _REGISTERED[cls.__name__] = cls
    return cls


def set_constructor(network: N, constructor: str | Callable[..., nn.Module], /, **arguments: Any) -> N:
    """Say what made a network of your own, so that models with it can be saved.

    For an `nn.Sequential` that a function built, or a class that does not keep its arguments: config.json then holds
    "MODULE:NAME" of the constructor and these arguments, and the weights are saved as always. Whoever loads the model
    allows that very name, `pstn.from_pretrained(folder, allow=["MODULE:NAME"])`, and the constructor is called again.

    Args:
        network: any module, for instance one to `pstn.wrap`; it is marked in place.
        constructor: a function or class at the top of a module, or "MODULE:NAME" of one. It is called on the device
            "meta" first, and should not read files: its weights are replaced by the saved ones.
        **arguments: what it was called with, as JSON can hold it.

    Returns:
        The network.

    Example:
        >>> network = set_constructor(nn.Linear(4, 2), nn.Linear, in_features=4, out_features=2)
        >>> describe(network)
        {'type': 'torch.nn.modules.linear:Linear', 'in_features': 4, 'out_features': 2}
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    if not isinstance(constructor, str):
        if not inspect.isfunction(constructor) and not isinstance(constructor, type):
            raise TypeError(f"constructor must be a function, a class or 'MODULE:NAME', got {constructor!r}")
        constructor = f"{constructor.__module__}:{constructor.__qualname__}"
    module, _, path = constructor.partition(":")
    if not module or not path or "<" in path or module == "__main__":
        raise ValueError(f"constructor must be at the top of a module that can be imported, got {constructor}")
    if "type" in arguments:
        raise ValueError("arguments must not be called type, which is what config.json calls the constructor")
    values = {name: _json_value(name, module, value) for name, value in arguments.items()}
    vars(network)["_pstn_constructor"] = {"type": constructor, **values}
    return network


def describe(module: Any) -> dict[str, Any]:
    """A model, as values that JSON can hold; `build` makes one of the same shape from them.

    Args:
        module: a classifier, or a part of one.

    Raises:
        TypeError: config.json cannot say how to build it.

    Example:
        >>> describe(pstn.Similarity())
        {'type': 'Similarity', 'scale': 'linear'}
    """
    cls = type(module)
    if isinstance(module, nn.Module) and "_pstn_constructor" in vars(module):
        return copy.deepcopy(vars(module)["_pstn_constructor"])
    if cls.__name__ in _PARTS and _PARTS[cls.__name__].cls is cls:
        fields = _PARTS[cls.__name__].fields.split()
        return {"type": cls.__name__, **{name: _value(getattr(module, name)) for name in fields}}
    kind = cls.__name__ if _REGISTERED.get(cls.__name__) is cls else f"{cls.__module__}:{cls.__qualname__}"
    if ":" in kind and (cls.__module__ == "__main__" or "<locals>" in kind):
        raise TypeError(f"{cls.__name__} could not be found again: define it in a module, or use @pstn.register")
    return {"type": kind, **dict(_user_values(cls, module))}


def _user_values(cls: type, module: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of the constructor of a user's class, which it must keep as attributes."""
    # One without a constructor of its own has that of nn.Module, which takes anything and keeps nothing.
    own = {} if cls.__init__ is nn.Module.__init__ else inspect.signature(cls).parameters  # type: ignore[misc]
    for p in own.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) or not hasattr(module, p.name):
            kept = f"keep each argument of its constructor as an attribute, self.{p.name}"
            raise TypeError(f"{cls.__name__} must {kept}; or say what made it, with pstn.set_constructor")
        yield p.name, _json_value(p.name, cls.__name__, getattr(module, p.name))


def _json_value(name: str, owner: str, value: Any) -> Any:
    value = _value(value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} of {owner} cannot be written into config.json: {error}") from error
    return value


def _value(value: Any) -> Any:
    if isinstance(value, nn.Dropout):
        return value.p
    if isinstance(value, nn.ModuleList):
        return [describe(item) for item in value]
    if isinstance(value, _BASES):
        return describe(value)
    if isinstance(value, Tensor):
        return value.tolist()
    return [_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def build(description: Any, allow: Sequence[str] = ()) -> Any:
    """A model from what `describe` wrote, with weights that are not trained.

    Args:
        description: of a classifier.
        allow: modules that may be imported for classes named "MODULE:NAME", and such names of classes and functions.

    Raises:
        ValueError: it is not such a description; nothing in it was run.

    Example:
        >>> build(describe(pstn.nn.mnist_pstn())).layer.transform
        Similarity(scale='linear')
    """
    if isinstance(allow, str):
        raise TypeError(f"allow must be a list of modules, got a text: {allow!r}")
    _require_modest(description)
    token = _ALLOWED.set(tuple(allow))
    try:
        return _build("model", description, _MODELS, nn.Module)
    finally:
        _ALLOWED.reset(token)


def types_in(description: Any) -> Iterator[str]:
    """The types of all parts of a description.

    Example:
        >>> sorted(set(types_in(describe(pstn.Compose(pstn.Rotation(), pstn.Affine())))))
        ['Affine', 'Compose', 'Rotation']
    """
    if isinstance(description, Mapping):
        yield from [description["type"]] if isinstance(description.get("type"), str) else []
        description = list(description.values())
    for item in description if isinstance(description, list) else ():
        yield from types_in(item)


def _require_modest(description: Any) -> None:
    """Refuse a description that would take long to build, before anything is built."""
    parts = cells = depth = 0
    level = [description]
    while level:
        dicts = [value for value in level if isinstance(value, dict)]
        parts, depth = parts + len(dicts), depth + bool(dicts)
        for tess in (part.get("tess") for part in dicts):
            if isinstance(tess, list) and all(isinstance(n, int) for n in tess):
                cells += abs(math.prod(tess))
        limits = (parts, MODEL_PARTS, "modules"), (depth, MODEL_DEPTH, "levels"), (cells, MODEL_CELLS, "cells in CPABs")
        for count, limit, what in limits:
            if count > limit:
                raise ValueError(f"model must have at most {limit} {what}, got {count} or more")
        values = [value for part in dicts for value in part.values()]
        level = [inner for value in values for inner in (value if isinstance(value, list) else [value])]


def _build(place: str, description: Any, kinds: Sequence[str], base: type) -> Any:
    kind = description.get("type") if isinstance(description, dict) else None
    if isinstance(kind, str) and kind not in _PARTS:
        return _build_user_part(place, kind, description, base)
    kinds = kinds or [name for name, part in _PARTS.items() if issubclass(part.cls, base)]
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{place} must be one of {', '.join(kinds)}, got {excerpt(kind)}")
    part = _PARTS[kind]
    description = part.upgrade(description)
    fields, found = part.fields.split(), set(description) - {"type"}
    if different := (found ^ set(fields)) - set(part.later.split()):
        first = sorted(map(str, different))[0]
        raise ValueError(f"{place}.{first[:80]} is {'missing' if first in fields else 'unknown'} in a {kind}")
    values = {name: _CHECKS[name](f"{place}.{name}", description[name]) for name in fields if name in found}
    if kind == "CPAB" and len(values["tess"]) == 2:
        require_fits(f"{place}.tess", values["tess"], math.prod(values["tess"]) <= 256, "of at most 256 cells")
    listed = values.pop("transforms", ())  # of Compose
    return _construct(place, lambda **rest: part.cls(*listed, **rest), values)


def _build_user_part(place: str, kind: str, description: dict[str, Any], base: type) -> Any:
    make = _find_constructor(place, kind)

    def read(name: str, value: Any) -> Any:
        if isinstance(value, dict) and "type" in value:
            return _build(f"{place}.{name}", value, tuple(_PARTS), object)
        return tuple(read(name, item) for item in value) if isinstance(value, list) else value

    wrong = ValueError(f"{place} must be a {base.__name__}, got {kind}")
    if isinstance(make, type) and not issubclass(make, base):
        raise wrong
    arguments = {name: value for name, value in description.items() if name != "type"}
    part = _construct(place, make, {name: read(name, value) for name, value in arguments.items()})
    if not isinstance(part, base):
        raise wrong
    if isinstance(part, nn.Module) and ":" in kind and not _is_described_by(part, description):
        set_constructor(part, kind, **arguments)  # so that it can be saved again
    return part


def _is_described_by(part: nn.Module, description: dict[str, Any]) -> bool:
    try:
        return describe(part) == description
    except TypeError:
        return False


def _find_constructor(place: str, kind: str) -> Callable[..., Any]:
    if kind in _REGISTERED:
        return _REGISTERED[kind]
    (module, _, path), allowed = kind.partition(":"), _ALLOWED.get()
    if not path or not {module, kind} & set(allowed):
        hint = f"import the module that registers it, or pass allow=[{excerpt(kind)}] if you trust it"
        raise ValueError(f"{place} is {excerpt(kind)}, which is neither of pstn nor registered nor allowed: {hint}")
    try:
        with torch.device("cpu"):  # models are built on "meta" first, where a module's own tensors must not land
            value: Any = importlib.import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place} is made by {kind}, which cannot be found: {error}") from error
    if isinstance(value, type) and issubclass(value, _BASES):
        return value
    if not inspect.isfunction(value):
        raise ValueError(f"{place} must be a class of a transformation, posterior, prior or network, got {kind}")
    if kind not in allowed:
        hint = f"pass allow=[{kind!r}] if you trust it"
        raise ValueError(f"{place} is made by {kind}, a function, which must be allowed by its own name: {hint}")
    return value


def _construct(place: str, make: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    try:
        return make(**values)
    except (TypeError, RuntimeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{place} cannot be built: {error}") from error


def _masked(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return part["network"] if part.get("type") == "Masked" else part


def describe_input(description: Mapping[str, Any]) -> tuple[int | None, int | None, tuple[int, ...] | None]:
    """How many classes and channels a described model has, and the size of its input, as far as it says; else None.

    Example:
        >>> describe_input(describe(pstn.nn.mnist_pstn()))
        (10, 1, (28, 28))
    """
    layer = description.get("layer")
    head = description if layer is None else description["classifier"]
    head = _masked(head.get("module", head))
    if layer is None:
        reader, size = head, head.get("size")
    elif layer["localizer"]["type"] == "GlobalLocalizer":  # it reads nothing: what is warped goes to the classifier
        reader, size = head, head.get("size") if layer["size"] is None else None
    else:
        reader = _masked(layer["localizer"])
        size = reader.get("size") if layer["localizer_size"] is None else None
    own = [part.get("type") in _PARTS for part in (head, reader)]
    return (
        head["classes"] if own[0] else None,
        reader.get("in_channels", 3) if own[1] else None,  # pretrained networks read colours
        tuple(size) if own[1] and size is not None else None,
    )
