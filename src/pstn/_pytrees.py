"""Registering the package's containers with torch, so that they pass through torch.func, compile and export."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.utils import _pytree

__all__ = ["register_dataclass", "register_namedtuple"]

# Fields annotated with one of these are constants of the program; all others hold tensors, or containers of them.
_CONSTANT = {"bool", "int", "float", "str", "tuple[bool, ...]"}


def register_namedtuple(cls: type[Any], name: str) -> None:
    """Let `torch.export.save` write programs that return `cls` and `torch.export.load` read them back.

    torch has no public function for this; without it such programs run but cannot be saved.
    """
    _pytree._register_namedtuple(cls, serialized_type_name=name)


def register_dataclass(cls: type[Any]) -> None:
    """Register a class that will be a dataclass: fields with an annotation of `_CONSTANT` are constants.

    torch's own function of this name wants the fields now, and a class that is still being made has none yet.
    """

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        fields = dataclasses.fields(value)
        leaves = [getattr(value, f.name) for f in fields if _name(f.type) not in _CONSTANT]
        return leaves, tuple(getattr(value, f.name) for f in fields if _name(f.type) in _CONSTANT)

    def rebuild(leaves: Any, constants: Any) -> Any:
        # Transforms rebuild containers around placeholders that are not tensors: __post_init__ must not see them.
        made, held, known = object.__new__(cls), iter(leaves), iter(constants)
        for f in dataclasses.fields(cls):
            object.__setattr__(made, f.name, next(known if _name(f.type) in _CONSTANT else held))
        return made

    _pytree.register_pytree_node(
        cls,
        flatten,
        rebuild,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
    )


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
