"""Photos with boxes drawn on them: which boxes stand alone, and the piece of the photo around one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Box", "Photo", "Region", "Sign", "commonest_classes", "isolated", "isolated_signs", "region_around"]

Region = tuple[int, int, int, int]
"""(left, top, right, bottom) in whole pixels; on a panorama left may be negative and right beyond the width."""


@dataclass(frozen=True)
class Box:
    """A labelled box in pixels of its photo.

    On a panorama a box across the edge has xmax beyond the photo's width: it goes on at the left side.

    Example:
        >>> Box(10.5, 20.0, 42.0, 60.0, "stop").label
        'stop'
    """

    xmin: float
    ymin: float
    xmax: float
    ymax: float
    label: str


@dataclass(frozen=True)
class Photo:
    """An image file with its boxes. `panorama` means that its left and right edges meet.

    Example:
        >>> Photo("street", Path("street.jpg"), 3264, 2448, (Box(10.5, 20.0, 42.0, 60.0, "stop"),)).panorama
        False
    """

    key: str
    path: Path
    width: int
    height: int
    boxes: tuple[Box, ...]
    panorama: bool = False


@dataclass(frozen=True)
class Sign:
    """One box of one photo: an example to be.

    Example:
        >>> box = Box(10.5, 20.0, 42.0, 60.0, "stop")
        >>> Sign(Photo("street", Path("street.jpg"), 3264, 2448, (box,)), box).box.label
        'stop'
    """

    photo: Photo
    box: Box


def isolated(photo: Photo, margin: float = 150.0) -> list[bool]:
    """Which boxes of a photo have no other box within `margin` pixels on any side, the paper's filter.

    A box is kept unless it meets another one that was grown by the margin on each side. Every other box counts,
    whatever its label. On a panorama distances go round.

    Example:
        >>> boxes = (Box(0, 0, 10, 10, "a"), Box(170, 0, 180, 10, "b"), Box(200, 0, 210, 10, "c"))
        >>> isolated(Photo("p", Path("p.jpg"), 1000, 500, boxes), margin=150)
        [True, False, False]
    """
    alone = []
    for i, box in enumerate(photo.boxes):
        others = (other for j, other in enumerate(photo.boxes) if j != i)
        alone.append(not any(_meets(box, other, margin, photo) for other in others))
    return alone


def _meets(box: Box, other: Box, margin: float, photo: Photo) -> bool:
    if box.ymin >= other.ymax + margin or box.ymax <= other.ymin - margin:
        return False
    turns = (-photo.width, 0, photo.width) if photo.panorama else (0,)
    return any(box.xmin < other.xmax + margin + t and box.xmax > other.xmin - margin + t for t in turns)


def isolated_signs(photos: Iterable[Photo], margin: float = 150.0) -> list[Sign]:
    """All boxes of all photos that stand alone; see `isolated`.

    Example:
        >>> photo = Photo("p", Path("p.jpg"), 1000, 500, (Box(0, 0, 10, 10, "a"), Box(900, 0, 910, 10, "b")))
        >>> [sign.box.label for sign in isolated_signs([photo])]
        ['a', 'b']
    """
    return [
        Sign(photo, box)
        for photo in photos
        for box, alone in zip(photo.boxes, isolated(photo, margin), strict=True)
        if alone
    ]


def commonest_classes(
    signs: Iterable[Sign], count: int = 10, *, leave_out: Sequence[str] = ("other-sign",)
) -> tuple[str, ...]:
    """The `count` labels that occur most often, the commonest first; labels that occur equally often go by name.

    Args:
        signs: e.g. from `isolated_signs`.
        count: how many labels.
        leave_out: labels that are no class.

    Example:
        >>> photo = Photo("p", Path("p.jpg"), 1000, 500, ())
        >>> commonest_classes([Sign(photo, Box(0, 0, 9, 9, label)) for label in "abcb"], 2)
        ('b', 'a')
    """
    tally = Counter(sign.box.label for sign in signs if sign.box.label not in leave_out)
    return tuple(label for label, _ in sorted(tally.items(), key=lambda item: (-item[1], item[0]))[:count])


def region_around(sign: Sign, margin: float = 0.0) -> Region:
    """The part of the photo that a crop shows: the box and `margin` pixels on every side.

    It ends at the photo's edges, so that a crop holds real pixels only; on a panorama it goes on at the other side.

    Example:
        >>> box = Box(2.5, 3.0, 10.2, 9.0, "a")
        >>> region_around(Sign(Photo("p", Path("p.jpg"), 100, 50, (box,)), box), margin=5)
        (0, 0, 16, 14)
    """
    photo, box = sign.photo, sign.box
    left, right = math.floor(box.xmin - margin), math.ceil(box.xmax + margin)
    top, bottom = max(0, math.floor(box.ymin - margin)), min(photo.height, math.ceil(box.ymax + margin))
    if not photo.panorama:
        return max(0, left), top, min(photo.width, right), bottom
    if right - left >= photo.width:
        return 0, top, photo.width, bottom
    return left, top, right, bottom
