"""Labels of any kind to whole numbers and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from pstn.limits import CLASSES

__all__ = ["as_label", "encode_labels", "name_classes", "require_classes", "sort_classes"]


def as_label(text: object) -> str:
    """A label as text, with numbers that are whole written without a fraction: "1.0" and "1.00e+00" are class "1".

    Text such as "01" or "1e2" is left alone, as it may be a name.

    Example:
        >>> [as_label(label) for label in ("-1", "1.0000000e+00", 2.0, " up ", "01", "1e2", b"cat")]
        ['-1', '1', '2', 'up', '01', '1e2', 'cat']
    """
    label = (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)).strip()
    if "." in label:
        try:
            number = float(label)
        except ValueError:
            return label
        if math.isfinite(number) and number == int(number):
            return str(int(number))
    return label


def name_classes(classes: Collection[str], most: int = 20) -> str:
    """The names of the classes for a message, the first of them where there are many.

    Example:
        >>> name_classes(["a", "b"]), name_classes(["a", "b", "c", "d"], most=2)
        ('a, b', 'a, b and 2 more')
    """
    more = f" and {len(classes) - most:,} more" if len(classes) > most else ""
    return ", ".join(name[:80] for name in islice(classes, most)) + more


def require_classes(count: int) -> None:
    """Refuse more classes than any network here can tell apart: their number is the width of its last layer.

    Example:
        >>> require_classes(10)
    """
    if count > CLASSES:
        raise ValueError(f"classes must be at most {CLASSES:,}, got {count:,}")


def sort_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in order: by value where all are numbers, else by name.

    Example:
        >>> sort_classes(["10", "2", "-1", "2"])
        ('-1', '2', '10')
    """
    distinct = sorted(set(labels))
    require_classes(len(distinct))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)


def encode_labels(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """The position of each label among `classes`, (N,) int64. A label that is not among them is a KeyError."""
    position = {name: i for i, name in enumerate(classes)}
    return torch.tensor([position[label] for label in labels], dtype=torch.long)
