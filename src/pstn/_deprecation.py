"""Old names of arguments and of module attributes, which still work in this version and say what to write instead."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def with_new_names(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Values by name, with every old name replaced; a warning says which.

    Args:
        values: by name.
        names: new names by old ones.

    Raises:
        TypeError: both names are given.
    """
    made = dict(values)
    for old, new in names.items():
        if old not in made:
            continue
        if new in made:
            raise TypeError(f"{old} is the old name of {new}: give one of them, got both")
        warnings.warn(f"{old} is now called {new}; the old name goes in the next version", FutureWarning, stacklevel=3)
        made[new] = made.pop(old)
    return made


def renamed(**names: str) -> Callable[[F], F]:
    """Let a function take keyword arguments by old names too.

    Args:
        **names: new names by old ones.

    Example:
        >>> import warnings
        >>> @renamed(rate="factor")
        ... def scale(factor):
        ...     return 2 * factor
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     scale(rate=3)
        6
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*args, **(with_new_names(options, names) if names.keys() & options.keys() else options))

        return cast(F, call)

    return decorate


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, by which its old names still work, with a warning.

    Args:
        module: its `__name__`.
        names: new names by old ones, with that of the module in front where it is another one.

    Raises:
        AttributeError: for any other name.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name] if "." in names[name] else f"{module}.{names[name]}"
        warnings.warn(f"{module}.{name} is now {new}; the old name goes in the next version", FutureWarning, 2)
        place, _, last = new.rpartition(".")
        return getattr(import_module(place), last)

    return get
