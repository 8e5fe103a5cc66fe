"""Argument checks of the whole package: a message names the argument, what was given and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pstn.text import did_you_mean, excerpt

_skip_values: ContextVar[bool] = ContextVar("skip_values", default=False)


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Skip the checks of values inside: for a trainer that watches for NaN itself, without stalling the device."""
    token = _skip_values.set(True)
    try:
        yield
    finally:
        _skip_values.reset(token)


def can_inspect_values(*tensors: Tensor) -> bool:
    """Whether the values of `tensors` may be looked at now.

    They may not while a graph is compiled, exported or captured, nor under `torch.func` transforms: there is no value
    yet, or reading it would break the capture. Checks of values are skipped then; checks of shapes are not.
    """
    if torch.compiler.is_compiling() or _skip_values.get() or any(hasattr(tensor, "fake_mode") for tensor in tensors):
        return False
    if any(is_transformed(tensor) or tensor.device.type == "meta" for tensor in tensors):
        return False
    return not (any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing())


def overwritable(tensor: Tensor) -> bool:
    """Whether a tensor without other owners may be changed in place: it takes part in no gradient and no capture.

    In a prediction, an operation in place saves about as much time as the arithmetic itself takes.
    """
    return not tensor.requires_grad and can_inspect_values(tensor)


def recomputable() -> bool:
    """Whether a part of the forward pass may be computed again in the backward pass.

    `torch.func` has no such recomputation, an exported program no use for it, a capture cannot restore the state of
    random numbers, by which dropout would be the same again, and torch.compile fails on it where sizes vary.
    """
    functorch = torch._C._functorch  # torch has no public way to ask
    compiling = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    if compiling or isinstance(functorch.peek_interpreter_stack(), functorch.CInterpreter):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def is_transformed(tensor: Tensor) -> bool:
    """Whether `tensor` stands for something inside a `torch.func` transform, where reading its value raises."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # torch has no public way to ask


def plain(value: Any) -> Any:
    """Turn numpy's numbers and arrays into Python's numbers and lists, and leave anything else as it is."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


class NotFiniteError(ValueError):
    """NaN or infinity where neither may be: of a trained model's output, the sign that it diverged."""


def require_finite(name: str, tensor: Tensor, hint: str) -> None:
    """Refuse NaN and infinity in `tensor`, where its values can be read."""
    if not can_inspect_values(tensor) or math.isfinite(tensor.detach().sum().item()):
        return  # a finite sum, one cheap reduction, rules out NaN and infinity; an overflowing one proves nothing
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise NotFiniteError(f"{name} must be finite, got {bad} NaN or infinite value(s) of {tensor.numel()}: {hint}")


def require_tensor(name: str, tensor: Any) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")


def require_floating(name: str, tensor: Any) -> None:
    """Refuse anything but a floating-point tensor."""
    require_tensor(name, tensor)
    if not tensor.is_floating_point():
        hint = f"{name}.float(), divided by 255 if it holds 8-bit pixels"
        raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}: pass {hint}")


def _require_int(name: str, value: Any, least: int | None = None) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        limit = "" if least is None else f" of at least {least}"
        raise TypeError(f"{name} must be a whole number{limit}, got {value!r}")
    if least is not None and isinstance(value, int) and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value  # type: ignore[return-value]  # a SymInt stands for an int while compiling


def require_positive_int(name: str, value: Any) -> int:
    """Refuse anything but a whole number of at least 1."""
    return _require_int(name, value, 1)


def require_nonnegative_int(name: str, value: Any) -> int:
    """Refuse anything but a whole number of at least 0."""
    return _require_int(name, value, 0)


def require_seed(name: str, value: Any, count: int = 1) -> int:
    """Refuse anything but a whole number that torch takes as a seed, with `count` - 1 others that follow it."""
    value = _require_int(name, value)
    low, high = -(2**63), 2**64 - count
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value}")
    return value


def _require_number(name: str, value: Any, meaning: str, accepts: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a finite number{meaning}, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and accepts(number)):
        raise ValueError(f"{name} must be a finite number{meaning}, got {value}")
    return number


def require_positive_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number above 0."""
    return _require_number(name, value, " above 0", lambda number: number > 0)


def require_nonnegative_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number of at least 0."""
    return _require_number(name, value, " of at least 0", lambda number: number >= 0)


def require_finite_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number."""
    return _require_number(name, value, "", lambda number: True)


def require_bool(name: str, value: Any) -> bool:
    """Refuse anything but True and False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def require_choice(name: str, value: Any, accepted: Sequence[Any]) -> None:
    """Refuse anything that is not among `accepted`."""
    if value not in accepted:
        meant = did_you_mean(value, accepted)
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}{meant}")


def require_fits(name: str, value: Any, fits: bool, what: str) -> None:
    """Refuse a value from a file, of which the message repeats no more than the start: it may be of any length.

    Args:
        name: the argument, or where in the file the value is.
        value: the value.
        fits: whether it is what is accepted.
        what: what is accepted, after "must be".
    """
    if not fits:
        raise ValueError(f"{name} must be {what}, got {excerpt(value)}")


def require_size(name: str, size: Any, ndim: int) -> tuple[int, ...]:
    """Return `size` as a tuple of `ndim` whole numbers of at least 1; a bare number will do for one axis."""
    extents = (size,) if type(size) is int else size
    if type(extents) is tuple and len(extents) == ndim and all(type(n) is int and n > 0 for n in extents):
        return extents  # the usual case, without the cost of the checks below
    if isinstance(size, (int, torch.SymInt, np.integer)) and not isinstance(size, bool):
        extents = (size,)
    elif isinstance(size, np.ndarray):
        extents = size.tolist()
    if not isinstance(extents, Sequence) or isinstance(extents, str) or len(extents) != ndim:
        raise ValueError(f"{name} must hold {ndim} whole number(s), one per spatial axis, got {size!r}")
    return tuple(require_positive_int(f"{name}[{i}]", extent) for i, extent in enumerate(extents))
