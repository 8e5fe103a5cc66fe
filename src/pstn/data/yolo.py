"""Folders of photos with boxes in the YOLO format: anybody's own."""

from __future__ import annotations

import math
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Literal

from pstn._checks import require_choice
from pstn.data.boxes import Box, Photo
from pstn.data.errors import DataError, DataWarning, MissingDataError, require_package
from pstn.data.files import read_text
from pstn.data.images import IMAGE_SUFFIXES, image_size
from pstn.data.listing import Listing, list_folder, require_inside
from pstn.limits import CLASSES
from pstn.yaml_files import parse_yaml

__all__ = ["find_yolo", "read_class_names", "read_yolo"]

_LIMIT = 1 << 26
_NAMES_LIMIT = 1 << 20
# Boxes are stored as rounded fractions of the image: they may reach over its edge by that much.
_SLACK = 1e-3
_NAMES = ("classes.txt", "obj.names", "data.names", "data.yaml", "data.yml", "dataset.yaml")
_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class _BadBox(DataError):
    """A box that is written as it should be, but is no part of its photo."""


def find_yolo(root: Path) -> dict[str, list[tuple[Path, Path]]]:
    """The image and label folders of a YOLO data set, by part: "train", "val", "test", or "all" where it is undivided.

    Both common layouts are known: images/[part/] beside labels/[part/], and part/images beside part/labels.
    """
    found: dict[str, list[tuple[Path, Path]]] = {}
    for name, part in _PARTS.items():
        for images in (root / "images" / name, root / name / "images"):
            if images.is_dir():
                labels = root / "labels" / name if images.parent.name == "images" else root / name / "labels"
                found.setdefault(part, []).append((images, labels))
    if not found and (root / "images").is_dir():
        found["all"] = [(root / "images", root / "labels")]
    if not found:
        raise MissingDataError(root / "images", "is missing: a YOLO folder has images/ and labels/ side by side")
    for folders in found.values():
        for _, labels in folders:
            if not labels.is_dir():
                raise MissingDataError(labels, "is missing: the boxes of the images are expected there")
    return found


def read_yolo(
    root: str | os.PathLike[str], *, bad_boxes: Literal["refuse", "skip"] = "refuse"
) -> tuple[dict[str, list[Photo]], tuple[str, ...]]:
    r"""The photos of a YOLO folder with their boxes, by part, and the names of all classes.

    A label file has one line per box: class, centre x, centre y, width, height, in fractions of the image. An image
    without a label file has no boxes.

    Args:
        root: the folder with images/, labels/ and classes.txt, obj.names or data.yaml.
        bad_boxes: what becomes of a box that is outside its image or has no area: "refuse" is an error that names it,
            "skip" leaves it out and warns at the end.

    Raises:
        DataError: a file is not what it should be; the message names the file and the line.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "images").mkdir(), (root / "labels").mkdir()
        (None, None)
        >>> Image.new("RGB", (200, 100)).save(root / "images" / "street.png")
        >>> _ = (root / "labels" / "street.txt").write_text("0 0.5 0.5 0.2 0.4\n")
        >>> _ = (root / "classes.txt").write_text("stop\n")
        >>> parts, names = read_yolo(root)
        >>> parts["all"][0].boxes
        (Box(xmin=80.0, ymin=30.0, xmax=120.0, ymax=70.0, label='stop'),)
    """
    require_choice("bad_boxes", bad_boxes, ("refuse", "skip"))
    root = Path(root)
    names = read_class_names(root)
    skipped: list[str] = []
    parts: dict[str, list[Photo]] = {}
    with list_folder(root) as listing:
        for part, folders in find_yolo(root).items():
            found = [_read_folder(listing, images, labels, names, bad_boxes, skipped) for images, labels in folders]
            parts[part] = [photo for photos in found for photo in photos]
    if skipped:
        warnings.warn(DataWarning(f"{len(skipped)} bad box(es) left out, first: {skipped[0]}"), stacklevel=2)
    return parts, names


def _read_folder(
    listing: Listing, images: Path, labels: Path, names: tuple[str, ...], bad_boxes: str, skipped: list[str]
) -> list[Photo]:
    listing.require(images)
    listing.require(labels)
    repeated = listing.repeated
    photos: list[Photo] = []
    seen: dict[str, Path] = {}
    for path in sorted(listing.files(images, IMAGE_SUFFIXES)):
        key = path.relative_to(images).with_suffix("").as_posix()
        if key in seen:
            raise DataError(path, f"shares its label file with {seen[key].name}: one name, one image")
        seen[key] = path
        width, height = image_size(path)
        label_file = labels / f"{key}.txt"
        state = listing.find(label_file)
        # An empty file is YOLO's way to say that nothing is on the image.
        labelled = state is not None and state.st_size > 0 and stat.S_ISREG(state.st_mode)
        boxes = _read_boxes(label_file, width, height, names, bad_boxes, skipped) if labelled else ()
        photos.append(Photo(key, path, width, height, boxes))
    if not photos and listing.repeated == repeated:
        raise DataError(images, f"holds no images ({', '.join(IMAGE_SUFFIXES)})")
    return photos


def _read_boxes(
    path: Path, width: int, height: int, names: tuple[str, ...], bad_boxes: str, skipped: list[str]
) -> tuple[Box, ...]:
    boxes = []
    for number, line in enumerate(read_text(path, limit=_LIMIT).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            boxes.append(_read_box(path, line.split(), number, width, height, names))
        except _BadBox as error:
            if bad_boxes == "refuse":
                raise
            skipped.append(str(error))
    return tuple(boxes)


def _read_box(path: Path, cells: list[str], number: int, width: int, height: int, names: tuple[str, ...]) -> Box:
    place = f"line {number}"
    if len(cells) != 5:
        raise DataError(path, f"5 columns (class, x, y, width, height) are expected, got {len(cells)}", place=place)
    if not re.fullmatch(r"[0-9]{1,9}", cells[0]) or int(cells[0]) >= len(names):
        raise DataError(path, f"unknown label {cells[0]!r}: classes are 0 to {len(names) - 1}", place=place)
    numbers = []
    for column, cell in enumerate(cells[1:], start=2):
        try:
            numbers.append(float(cell))
        except ValueError as error:
            raise DataError(path, f"{cell[:40]!r} is not a number", place=f"{place}, column {column}") from error
    x, y, w, h = numbers
    if not all(math.isfinite(v) for v in numbers) or w <= 0 or h <= 0:
        raise _BadBox(path, f"the box has no area: width {w}, height {h}", place=place)
    edges = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
    if min(edges) < -_SLACK or max(edges) > 1 + _SLACK:
        raise _BadBox(path, f"the box is outside the image: it spans {edges}", place=place)
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in edges)
    if left >= right or top >= bottom:
        raise _BadBox(path, "the box has no area within the image", place=place)
    return Box(left * width, top * height, right * width, bottom * height, names[int(cells[0])])


def read_class_names(root: Path) -> tuple[str, ...]:
    """The names of the classes, from classes.txt, a .names file (one per line) or the `names` of a data.yaml."""
    path = next((root / name for name in _NAMES if (root / name).is_file()), None)
    if path is None:
        raise MissingDataError(
            root / "classes.txt", f"is missing: the class names are looked for in {', '.join(_NAMES)}"
        )
    text = read_text(require_inside(root, path), limit=_NAMES_LIMIT)
    if path.suffix in (".yaml", ".yml"):
        names = _yaml_names(path, text)
    else:
        names = [line.strip() for line in text.rstrip().split("\n")]
    if len(names) > CLASSES:
        raise DataError(path, f"holds {len(names):,} classes, more than the limit of {CLASSES:,}")
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        if not name:
            raise DataError(path, "a class has no name", place=f"line {number}")
        if name in seen:
            raise DataError(path, f"class {name!r} occurs twice", place=f"line {number}")
        seen.add(name)
    return tuple(names)


def _yaml_names(path: Path, text: str) -> list[str]:
    """The `names` entry of a data.yaml: a list, or a mapping from 0..K-1; whatever it looks like, a name is text."""
    try:
        top = parse_yaml(text, path, strings=True, error=DataError)
    except ImportError as error:
        raise ImportError(require_package("PyYAML", f"reading {path.name}")) from error
    names = top.get("names") if isinstance(top, dict) else None
    if names is None:
        raise DataError(path, "has no `names:` entry")
    if isinstance(names, dict):
        wanted = [str(i) for i in range(len(names))]
        if not names or set(names) != set(wanted):
            raise DataError(path, f"the classes of `names:` must be numbered from 0 to {len(names) - 1}, each once")
        names = [names[key] for key in wanted]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(path, "`names:` must list the classes, each a word")
    return [name.strip() for name in names]
