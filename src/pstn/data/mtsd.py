"""The Mapillary Traffic Sign Dataset as its users have it on disk."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pstn._checks import require_choice
from pstn.data.boxes import Box, Photo
from pstn.data.errors import DataError, DataWarning, MissingDataError
from pstn.data.files import read_text
from pstn.data.listing import Listing
from pstn.data.places import search_folders
from pstn.files import read_json

__all__ = ["MTSD_CLASSES", "find_mtsd", "is_mtsd", "read_mtsd", "require_distinct"]

MTSD_CLASSES = (
    "information--pedestrians-crossing--g1",
    "regulatory--no-entry--g1",
    "complementary--chevron-left--g1",
    "complementary--chevron-right--g1",
    "regulatory--yield--g1",
    "regulatory--stop--g1",
    "regulatory--keep-right--g1",
    "information--parking--g1",
    "warning--pedestrians-crossing--g4",
    "regulatory--no-overtaking--g5",
)
"""The ten classes of the paper's subset."""

_FOLDERS = ("mtsd_v2_fully_annotated", "mtsd_fully_annotated", ".")
_LIMIT = 1 << 26
_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Annotators' boxes reach over the edge by a rounding error now and then.
_SLACK = 2.0


class _BadBox(DataError):
    """A box that is written as it should be, but is no part of its photo."""


def find_mtsd(root: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """The folder with the annotations, and the one with the images beside it.

    Args:
        root: the folder that holds "mtsd_v2_fully_annotated" and "images"; else $PSTN_DATA/mtsd and the cache.
    """
    places = search_folders("mtsd", root)
    for place in places:
        for name in _FOLDERS:
            annotated = place / name
            if (annotated / "annotations").is_dir() and (annotated / "splits").is_dir():
                images = [f for f in (place / "images", annotated / "images", place.parent / "images") if f.is_dir()]
                if not images:
                    raise MissingDataError(place / "images", "is missing: unpack MTSD's image archives there")
                return annotated, images[0]
    raise MissingDataError(
        "mtsd_v2_fully_annotated",
        f"is missing; looked in {', '.join(map(str, places))}. MTSD cannot be downloaded without registration: get it "
        "from https://www.mapillary.com/dataset/trafficsign and unpack its archives so that "
        f"{places[0] / 'mtsd_v2_fully_annotated' / 'annotations'} and {places[0] / 'images'} are there; "
        "to check it: pstn data check FOLDER",
    )


def is_mtsd(root: Path) -> bool:
    """Whether a folder has the annotations and the splits of MTSD, as `find_mtsd` looks for them."""
    return any((root / name / "annotations").is_dir() and (root / name / "splits").is_dir() for name in _FOLDERS)


def read_mtsd(
    split: Literal["train", "val"],
    *,
    root: str | os.PathLike[str] | None = None,
    bad_boxes: Literal["refuse", "skip"] = "refuse",
) -> list[Photo]:
    """The photos of one split, with their boxes. The publisher's test split has no annotations.

    Args:
        split: "train" or "val".
        root: see `find_mtsd`.
        bad_boxes: what becomes of a box that is inverted or outside its photo: "refuse" is an error that names it,
            "skip" leaves it out and warns at the end.

    Raises:
        DataError: a file is not what it should be; the message names the file and the key in it.
    """
    require_choice("split", split, ("train", "val"))
    require_choice("bad_boxes", bad_boxes, ("refuse", "skip"))
    annotated, images = find_mtsd(root)
    # The images may lie beside the folder with the annotations: neither may lead out of the one that holds both.
    listing = Listing(os.path.commonpath([annotated.absolute(), images.absolute()]))
    skipped: list[str] = []
    photos = []
    for key in _read_keys(annotated / "splits", split):
        path = listing.require(annotated / "annotations" / f"{key}.json")
        image = listing.require(_image_path(images, split, key))
        photos.append(_read_annotation(path, key, image, bad_boxes == "skip", skipped))
    if skipped:
        warnings.warn(DataWarning(f"{len(skipped)} bad box(es) left out, first: {skipped[0]}"), stacklevel=2)
    return photos


def require_distinct(photos: Iterable[Photo]) -> None:
    """Refuse photos of which two are one file, by another name or through a link: one may be in the test part."""
    seen: dict[tuple[int, int], Path] = {}
    for photo in photos:
        try:
            found = photo.path.stat()
        except OSError:  # it is missing, which is said where it is read
            continue
        first = seen.setdefault((found.st_dev, found.st_ino), photo.path)
        if first != photo.path:
            raise DataError(photo.path, f"is the same file as {first}")


def _image_path(images: Path, split: str, key: str) -> Path:
    flat, nested = images / f"{key}.jpg", images / split / f"{key}.jpg"
    return nested if not flat.is_file() and nested.is_file() else flat


def _read_keys(folder: Path, split: str) -> list[str]:
    """The keys of one split; a key that occurs twice, in it or in the other splits, is an error."""
    seen: dict[str, str] = {}
    wanted: list[str] = []
    for name in ("train", "val", "test"):
        path = folder / f"{name}.txt"
        if not path.is_file():
            if name == split:
                raise MissingDataError(path, "is missing")
            continue
        for number, line in enumerate(read_text(path, limit=_LIMIT).split("\n"), start=1):
            key = line.strip()
            if not key:
                continue
            if not _KEY.fullmatch(key):  # it becomes part of a path
                raise DataError(
                    path, f"{key[:80]!r} is not an image key: it leads out of the folder", place=f"line {number}"
                )
            if key in seen:
                raise DataError(path, f"key {key!r} occurs twice, first at {seen[key]}", place=f"line {number}")
            seen[key] = f"{name}.txt line {number}"
            if name == split:
                wanted.append(key)
    if not wanted:
        raise DataError(folder / f"{split}.txt", "holds no keys")
    return wanted


def _read_annotation(path: Path, key: str, image: Path, skip: bool, skipped: list[str]) -> Photo:
    if not path.is_file():
        raise MissingDataError(path, f"is missing, though the split lists {key!r}")
    content = _parse_json(path)
    width, height = (_number(path, content, name, place="top level") for name in ("width", "height"))
    panorama = content.get("ispano", False)
    objects = content.get("objects")
    if not isinstance(panorama, bool) or not isinstance(objects, list):
        raise DataError(path, "'ispano' must be true or false, and 'objects' a list", place="top level")
    if not (width >= 1 and height >= 1 and width == int(width) and height == int(height)):
        raise DataError(path, f"width and height must be whole numbers of pixels, got {width}x{height}")
    boxes, keys = [], set()
    for position, entry in enumerate(objects):
        place = f"objects[{position}]"
        if not isinstance(entry, dict):
            raise DataError(path, "must be an object", place=place)
        name = entry.get("key")
        if name is not None and (not isinstance(name, str) or name in keys):
            raise DataError(path, f"key {name!r} occurs twice or is not text", place=place)
        keys.add(name)
        try:
            boxes.append(_read_box(path, entry, place, width, height, panorama))
        except _BadBox as error:
            if not skip:
                raise
            skipped.append(str(error))
    return Photo(key, image, int(width), int(height), tuple(boxes), panorama)


def _read_box(path: Path, entry: dict[str, Any], place: str, width: float, height: float, panorama: bool) -> Box:
    label, raw = entry.get("label"), entry.get("bbox")
    if not isinstance(label, str) or not label:
        raise DataError(path, f"label must be text, got {label!r}", place=place)
    if not isinstance(raw, dict):
        raise DataError(path, f"bbox must be an object, got {type(raw).__name__}", place=place)
    place += ".bbox"
    xmin, ymin, xmax, ymax = (_number(path, raw, name, place=place) for name in ("xmin", "ymin", "xmax", "ymax"))
    shown = f"({xmin}, {ymin}, {xmax}, {ymax})"
    outside = min(xmin, ymin, xmax) < -_SLACK or max(xmin, xmax) > width + _SLACK or ymax > height + _SLACK
    if outside:
        raise _BadBox(path, f"box {shown} is outside the image of {width:g}x{height:g}", place=place)
    if xmin > xmax and panorama:
        xmax += width  # across the edge: it goes on at the left side
    right = max(width, xmax) if panorama else width
    box = Box(max(xmin, 0.0), max(ymin, 0.0), min(xmax, right), min(ymax, height), label)
    if not (box.xmin < box.xmax and box.ymin < box.ymax):
        raise _BadBox(path, f"box {shown} is inverted or empty", place=place)
    return box


def _number(path: Path, holder: dict[str, Any], name: str, *, place: str) -> float:
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e9:  # NaN is not, either
        raise DataError(path, f"{name} must be a number, got {value!r}"[:200], place=place)
    return float(value)


def _parse_json(path: Path) -> dict[str, Any]:
    content = read_json(path, error=DataError)
    if not isinstance(content, dict):
        raise DataError(path, f"must hold an object, got {type(content).__name__}", place="top level")
    return content
