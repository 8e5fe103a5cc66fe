"""Argument checks of the whole package: a message names the argument, what was given and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "NotFiniteError",
    "is_transformed",
    "overwritable",
    "plain",
    "require_bool",
    "require_choice",
    "require_finite",
    "require_finite_number",
    "require_floating",
    "require_nonnegative_number",
    "require_positive_int",
    "require_positive_number",
    "require_seed",
    "require_size",
    "require_tensor",
    "unread",
    "values_readable",
]

_unread: ContextVar[bool] = ContextVar("unread", default=False)


@contextmanager
def unread() -> Iterator[None]:
    """Skip the checks of values inside: for a trainer that watches for NaN itself, without stalling the device."""
    token = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(token)


def values_readable(*tensors: Tensor) -> bool:
    """Whether the values of `tensors` may be looked at now.

    They may not while a graph is compiled, exported or captured, nor under `torch.func` transforms: there is no value
    yet, or reading it would break the capture. Checks of values are skipped then; checks of shapes are not.
    """
    if torch.compiler.is_compiling() or _unread.get() or any(hasattr(tensor, "fake_mode") for tensor in tensors):
        return False
    for tensor in tensors:
        if is_transformed(tensor) or tensor.device.type == "meta":
            return False
    on_cuda = any(tensor.is_cuda for tensor in tensors)
    return not (on_cuda and torch.cuda.is_current_stream_capturing())


def overwritable(tensor: Tensor) -> bool:
    """Whether a tensor that nobody else holds may be changed in place: it takes part in no gradient and no capture.

    In a prediction, each large tensor that is not made anew saves as much time as the arithmetic on it takes.
    """
    return not tensor.requires_grad and values_readable(tensor)


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
    if not values_readable(tensor) or bool(torch.isfinite(tensor.detach().sum())):
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
        raise TypeError(
            f"{name} must be a floating-point tensor, got {tensor.dtype}: convert it first, "
            f"e.g. {name}.float(), and divide by 255 if it holds 8-bit pixels"
        )


def require_positive_int(name: str, value: Any) -> int:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value  # type: ignore[return-value]  # a SymInt stands for an int while compiling


def require_seed(name: str, value: Any, count: int = 1) -> int:
    """Refuse anything but a whole number that torch takes as a seed, with `count` - 1 others that follow it."""
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    low, high = -(2**63), 2**64 - count
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value}")
    return value


def require_positive_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number above 0."""
    if isinstance(value, (np.integer, np.floating)):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number above 0, got {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return float(value)


def require_nonnegative_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a finite number of at least 0, got {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return float(value)


def require_finite_number(name: str, value: Any) -> float:
    """Refuse anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a finite number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    return float(value)


def require_bool(name: str, value: Any) -> bool:
    """Refuse anything but True and False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def require_choice(name: str, value: Any, accepted: Sequence[Any]) -> None:
    """Refuse anything that is not among `accepted`."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}")


def require_size(name: str, size: Any, ndim: int) -> tuple[int, ...]:
    """Return `size` as a tuple of `ndim` whole numbers of at least 1; a bare number will do for one axis."""
    extents = (size,) if type(size) is int else size
    if type(extents) is tuple and len(extents) == ndim and all(type(n) is int and n > 0 for n in extents):
        return extents  # the usual case, without the cost of looking closer
    if isinstance(size, (int, torch.SymInt, np.integer)) and not isinstance(size, bool):
        extents = (size,)
    elif isinstance(size, np.ndarray):
        extents = size.tolist()
    if not isinstance(extents, Sequence) or isinstance(extents, str) or len(extents) != ndim:
        raise ValueError(f"{name} must hold {ndim} whole number(s), one per spatial axis, got {size!r}")
    return tuple(require_positive_int(f"{name}[{i}]", extent) for i, extent in enumerate(extents))
