"""Families by name, for command lines, configurations and estimators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

from pstn._checks import require_choice
from pstn.processes import import_object, is_object_name
from pstn.transforms.affine import Affine, Crop, Rotation, Similarity, Translation
from pstn.transforms.base import Transform
from pstn.transforms.cpab import CPAB

__all__ = ["import_transform", "make_transform"]

_FAMILIES: dict[tuple[str, int], Callable[[], Transform]] = {
    ("rotation", 2): Rotation,
    ("similarity", 2): Similarity,
    ("similarity-log", 2): partial(Similarity, scale="log"),
    **{("translation", n): partial(Translation, ndim=n) for n in (1, 2, 3)},
    **{("crop", n): partial(Crop, ndim=n) for n in (1, 2, 3)},
    **{("crop-log", n): partial(Crop, scale="log", ndim=n) for n in (1, 2, 3)},
    ("cpab", 1): partial(CPAB, tess=10),
    ("cpab", 2): partial(CPAB, tess=(3, 3)),
    **{("affine", n): partial(Affine, ndim=n) for n in (2, 3)},
}

_IMPORTED: dict[str, Transform] = {}


def import_transform(name: str, argument: str = "transform") -> Transform:
    """Import a family of the user's, so that `make_transform` knows it as "MODULE:NAME" in this process.

    Call it with what a user typed: `make_transform`, whose names may come from files, imports nothing.

    Args:
        name: "MODULE:NAME", also from the current folder: a Transform, or a class or function without arguments that
            makes one.
        argument: what the user gave it for, for messages.

    Raises:
        ValueError: it cannot be imported, or is not a Transform.
    """
    found = import_object(name, argument)
    family = found if isinstance(found, Transform) else found() if callable(found) else None
    if not isinstance(family, Transform):
        raise ValueError(f"{argument} {name} must be a Transform, or make one without arguments, got {found!r}")
    _IMPORTED[name] = family
    return family


def make_transform(name: str | Transform, ndim: int = 2) -> Transform:
    """The family called `name` in `ndim` dimensions, with its default settings; a Transform is returned unchanged.

    Args:
        name: e.g. "similarity", "crop-log", "cpab", or a Transform; "MODULE:NAME" once that has been imported by
            `import_transform`, as `pstn train --transform` does.
        ndim: how many spatial axes the data has.

    Example:
        >>> make_transform("crop", ndim=1).dim
        2
    """
    if isinstance(name, Transform):
        return name
    require_choice("ndim", ndim, (1, 2, 3))
    if name in _IMPORTED:
        if (found := _IMPORTED[name].ndim) != ndim:
            raise ValueError(f"transform must be for {ndim}-dimensional data, got {name} for {found}-dimensional data")
        return copy.deepcopy(_IMPORTED[name])
    if is_object_name(name):
        raise ValueError(f"transform {name} has not been imported: give it on the command line, --transform {name}")
    require_choice(f"transform (for {ndim}-dimensional data)", name, sorted(n for n, d in _FAMILIES if d == ndim))
    return _FAMILIES[name, ndim]()
