"""Families by name, for command lines, configurations and estimators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pstn._checks import require_choice
from pstn.transforms.affine import Affine
from pstn.transforms.base import Transform
from pstn.transforms.cpab import CPAB
from pstn.transforms.crop import Crop
from pstn.transforms.rotation import Rotation, Similarity
from pstn.transforms.translation import Translation

__all__ = ["make_transform"]

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


def make_transform(name: str | Transform, ndim: int = 2) -> Transform:
    """The family called `name` in `ndim` dimensions, with its default settings; a Transform is returned unchanged.

    Args:
        name: e.g. "similarity", "crop-log", "cpab", or a Transform.
        ndim: how many spatial axes the data has.

    Example:
        >>> make_transform("crop", ndim=1).dim
        2
    """
    if isinstance(name, Transform):
        return name
    require_choice("ndim", ndim, (1, 2, 3))
    require_choice(f"transform (for {ndim}-dimensional data)", name, sorted(n for n, d in _FAMILIES if d == ndim))
    return _FAMILIES[name, ndim]()
