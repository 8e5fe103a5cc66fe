"""Names for our containers, so that torch.export can write them down."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

__all__ = ["register_namedtuple"]


def register_namedtuple(cls: type[Any], name: str) -> None:
    """Let `torch.export.save` write programs that return `cls` and `torch.export.load` read them back.

    torch has no public function for this; without it such programs run but cannot be saved.
    """
    _pytree._register_namedtuple(cls, serialized_type_name=name)
