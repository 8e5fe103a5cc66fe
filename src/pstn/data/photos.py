"""Photos with boxes: YOLO folders, MTSD, and the crops around boxes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice, require_positive_int
from pstn.data import files
from pstn.data.files import DataError, DataWarning, MissingDataError, cache_folder
from pstn.data.images import IMAGE_SUFFIXES, each_in_parallel
from pstn.data.split import Split, Splits, encode_labels, name_parts
from pstn.decode import decoding, image_size, open_image, to_array, with_bytes
from pstn.defaults import IMAGENET_MEAN, IMAGENET_STD
from pstn.files import import_optional, parse_yaml, read_json, read_text_file, sha256_of
from pstn.limits import CLASSES

__all__ = [
    "IMAGENET_MEAN", "IMAGENET_STD", "MTSD_CLASSES", "Box", "Photo", "Sign", "commonest_classes", "isolated",
    "isolated_signs", "load_mtsd", "load_yolo", "make_signs", "read_mtsd", "read_yolo",
]  # fmt: skip

MTSD_CLASSES = (
    "information--pedestrians-crossing--g1", "regulatory--no-entry--g1", "complementary--chevron-left--g1",
    "complementary--chevron-right--g1", "regulatory--yield--g1", "regulatory--stop--g1", "regulatory--keep-right--g1",
    "information--parking--g1", "warning--pedestrians-crossing--g4", "regulatory--no-overtaking--g5",
)  # fmt: skip
"""The ten classes of the paper's subset."""
CropKind = Literal["wide", "tight"]
OnBadBox = Literal["refuse", "skip"]
Region = tuple[int, int, int, int]
"""(left, top, right, bottom) in whole pixels; on a panorama left may be negative and right beyond the width."""
_Entries = Iterable[tuple[str, Any]]
_Parser = Callable[[Any], tuple[Sequence[float], str]]

_TEXT_LIMIT = 1 << 26
_MTSD_FOLDERS = ("mtsd_v2_fully_annotated", "mtsd_fully_annotated", ".")
_SLACK = 2.0  # pixels: annotators' boxes reach over the edge by a rounding error
_YOLO_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_YOLO_NAMES = ("classes.txt", "obj.names", "data.names", "data.yaml", "data.yml", "dataset.yaml")
_CROPS_VERSION = 1  # part of the cache's key: to be raised when the resulting pixels change


@dataclass(frozen=True)
class Box:
    """A labelled box in pixels of its photo.

    On a panorama a box across the edge has xmax beyond the photo's width: it continues at the left side.

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
    """One box of one photo, from which an example is made.

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
    whatever its label. On a panorama distances are measured across the edge too.

    Example:
        >>> boxes = (Box(0, 0, 10, 10, "a"), Box(170, 0, 180, 10, "b"), Box(200, 0, 210, 10, "c"))
        >>> isolated(Photo("p", Path("p.jpg"), 1000, 500, boxes), margin=150)
        [True, False, False]
    """
    turns = (-photo.width, 0, photo.width) if photo.panorama else (0,)

    def meets(box: Box, other: Box) -> bool:
        return (box.ymin < other.ymax + margin and box.ymax > other.ymin - margin) and any(
            box.xmin < other.xmax + margin + turn and box.xmax > other.xmin - margin + turn for turn in turns
        )

    boxes = list(enumerate(photo.boxes))
    return [not any(meets(box, other) for j, other in boxes if j != i) for i, box in boxes]


def isolated_signs(photos: Iterable[Photo], margin: float = 150.0) -> list[Sign]:
    """All isolated boxes of all photos; see `isolated`.

    Example:
        >>> photo = Photo("p", Path("p.jpg"), 1000, 500, (Box(0, 0, 10, 10, "a"), Box(900, 0, 910, 10, "b")))
        >>> [sign.box.label for sign in isolated_signs([photo])]
        ['a', 'b']
    """
    boxes = ((photo, zip(photo.boxes, isolated(photo, margin), strict=True)) for photo in photos)
    return [Sign(photo, box) for photo, found in boxes for box, alone in found if alone]


def commonest_classes(
    signs: Iterable[Sign], count: int | None = 10, *, leave_out: Sequence[str] = ("other-sign",)
) -> tuple[str, ...]:
    """The `count` labels that occur most often, the commonest first; labels that occur equally often go by name.

    Args:
        signs: e.g. from `isolated_signs`.
        count: how many labels; None for all.
        leave_out: labels that are no class.

    Example:
        >>> photo = Photo("p", Path("p.jpg"), 1000, 500, ())
        >>> commonest_classes([Sign(photo, Box(0, 0, 9, 9, label)) for label in "abcb"], 2)
        ('b', 'a')
    """
    tally = Counter(sign.box.label for sign in signs if sign.box.label not in leave_out)
    return tuple(sorted(tally, key=lambda label: (-tally[label], label))[:count])


def region_around(sign: Sign, margin: float = 0.0) -> Region:
    """The part of the photo that a crop shows: the box and `margin` pixels on every side.

    It ends at the photo's edges, so that a crop holds real pixels only; on a panorama it continues at the other side.

    Example:
        >>> box = Box(2.5, 3.0, 10.2, 9.0, "a")
        >>> region_around(Sign(Photo("p", Path("p.jpg"), 100, 50, (box,)), box), margin=5)
        (0, 0, 16, 14)
    """
    photo, box = sign.photo, sign.box
    left, right = math.floor(box.xmin - margin), math.ceil(box.xmax + margin)
    top, bottom = max(0, math.floor(box.ymin - margin)), min(photo.height, math.ceil(box.ymax + margin))
    if not photo.panorama:
        left, right = max(0, left), min(photo.width, right)
    elif right - left >= photo.width:
        left, right = 0, photo.width
    return left, top, right, bottom


@contextmanager
def _handler(bad_boxes: OnBadBox) -> Iterator[files.ErrorHandler]:
    """What to call with the error of a bad box: it is raised, or skipped with a warning at the end."""
    require_choice("bad_boxes", bad_boxes, ("refuse", "skip"))
    skipped: list[DataError] = []
    yield files.raise_error if bad_boxes == "refuse" else skipped.append
    if skipped:
        warnings.warn(DataWarning(f"{len(skipped)} bad box(es) skipped, first: {skipped[0]}"), stacklevel=4)


def _with_boxes(photo: Photo, path: Path, entries: _Entries, parse: _Parser, on_bad_box: files.ErrorHandler) -> Photo:
    """The photo with the boxes that a file of annotations describes.

    Args:
        photo: the photo.
        path: the file of annotations.
        entries: what describes each box, and where in the file that is.
        parse: makes the corners in pixels and the label of an entry.
        on_bad_box: called where a box has no area or is outside the photo; an entry that is no box is an error.
    """
    found = []
    width, height = photo.width, photo.height
    for place, entry in entries:
        with decoding(path, "is not a box with its label", place):
            (xmin, ymin, xmax, ymax), label = parse(entry)
        bad = DataError(path, f"box {(xmin, ymin, xmax, ymax)} is not inside {width}x{height} pixels", place=place)
        if min(xmin, xmax, ymin) < -_SLACK or max(xmin, xmax) > width + _SLACK or ymax > height + _SLACK:
            on_bad_box(bad)
            continue
        if xmin > xmax and photo.panorama:
            xmax += width  # across the edge: it continues at the left side
        right = max(width, xmax) if photo.panorama else width
        box = Box(max(xmin, 0.0), max(ymin, 0.0), min(xmax, right), min(ymax, height), label)
        if box.xmin < box.xmax and box.ymin < box.ymax:
            found.append(box)
        else:
            on_bad_box(bad)
    return dataclasses.replace(photo, boxes=tuple(found))


def find_mtsd(root: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """The folder with the annotations of MTSD, and the one with its images.

    Args:
        root: the folder that holds "mtsd_v2_fully_annotated" and "images"; else $PSTN_DATA/mtsd and the cache.
    """
    advice = "it needs a registration: unpack the archives of https://www.mapillary.com/dataset/trafficsign there"
    advice += "; pstn data check tells whether all is there"
    annotated = files.locate("mtsd", _MTSD_FOLDERS[0], find_annotations, advice=advice, root=root)
    images = [f for f in (annotated.parent / "images", annotated / "images") if f.is_dir()]
    if not images:
        raise MissingDataError(annotated.parent / "images", "is missing: unpack MTSD's image archives there")
    return annotated, images[0]


def find_annotations(root: Path) -> Path | None:
    """The folder with the annotations and the splits of MTSD in a folder, if it has one."""
    folders = (root / name for name in _MTSD_FOLDERS)
    return next((f for f in folders if (f / "annotations").is_dir() and (f / "splits").is_dir()), None)


def read_mtsd(
    split: Literal["train", "val"], *, root: str | os.PathLike[str] | None = None, bad_boxes: OnBadBox = "refuse"
) -> list[Photo]:
    """The photos of one split, with their boxes. The publisher's test split has no annotations.

    Args:
        split: "train" or "val".
        root: the folder that holds "mtsd_v2_fully_annotated" and "images"; else $PSTN_DATA/mtsd and the cache.
        bad_boxes: what to do with a box that is inverted or outside its photo: "refuse" raises an error that names it,
            "skip" skips it and warns at the end.

    Raises:
        DataError: a file is not what it should be; the message names the file and the key in it.
    """
    require_choice("split", split, ("train", "val"))
    annotated, images = find_mtsd(root)
    # The images may be beside the folder with the annotations: neither may lead out of the one that holds both.
    listing = files.Listing(os.path.commonpath([annotated.absolute(), images.absolute()]))
    photos = []
    with _handler(bad_boxes) as on_bad_box:
        for key in _read_keys(annotated / "splits", split):
            flat, nested = images / f"{key}.jpg", images / split / f"{key}.jpg"
            image = listing.require(nested if not flat.is_file() and nested.is_file() else flat)
            path = listing.require(annotated / "annotations" / f"{key}.json")
            if not path.is_file():
                raise MissingDataError(path, f"is missing, though the split lists {key!r}")
            photos.append(_read_annotation(path, key, image, on_bad_box))
    return photos


def require_distinct(photos: Iterable[Photo]) -> None:
    """Refuse photos of which two are one file, by another name or through a link: one may be in the test part."""
    seen: dict[object, Path] = {}
    for path in (photo.path for photo in photos if photo.path.is_file()):  # a missing one is reported where it is read
        first = seen.setdefault(files.identity(path.stat()), path)
        if first != path:
            raise DataError(path, f"is the same file as {first}")


def _read_keys(folder: Path, split: str) -> list[str]:
    """The keys of one split; a key that occurs twice, in it or in the other splits, is an error."""
    seen: dict[str, str] = {}
    for name in ("train", "val", "test"):
        path = folder / f"{name}.txt"
        for number, line in files.read_lines(path, limit=_TEXT_LIMIT) if name == split or path.is_file() else ():
            key = line.strip()
            if key in seen or not re.fullmatch("[A-Za-z0-9_-]*", key):  # it becomes part of a path
                problem = f"key {key[:80]!r} occurs twice, in this split or another, or leads out of the folder"
                raise DataError(path, problem, place=f"line {number}")
            if key:
                seen[key] = name
    wanted = [key for key, name in seen.items() if name == split]
    if not wanted:
        raise DataError(folder / f"{split}.txt", "holds no keys")
    return wanted


def _read_annotation(path: Path, key: str, image: Path, on_bad_box: files.ErrorHandler) -> Photo:
    content = read_json(path)
    held: dict[str, Any] = {"ispano": False, **content} if isinstance(content, dict) else {}
    values = [held.get(name) for name in ("width", "height", "ispano", "objects")]
    width, height, panorama, objects = cast("tuple[int, int, bool, list[Any]]", values)
    types = [type(value) for value in values]
    if types != [int, int, bool, list] or not 0 < min(width, height) <= max(width, height) < 10**6:
        problem = "needs width and height in whole pixels, ispano true or false, and a list of objects"
        raise DataError(path, problem, place="top level")

    def parse(entry: Any) -> tuple[list[float], str]:
        if not isinstance(entry["label"], str):
            raise TypeError("label must be text")
        return [float(entry["bbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax")], entry["label"]

    entries = ((f"objects[{i}]", entry) for i, entry in enumerate(objects))
    return _with_boxes(Photo(key, image, width, height, (), panorama), path, entries, parse, on_bad_box)


def find_yolo(root: Path) -> dict[str, list[tuple[Path, Path]]]:
    """The image and label folders of a YOLO data set, by part: "train", "val", "test", or "all" where it is undivided.

    Both common layouts are known: images/[part/] beside labels/[part/], and part/images beside part/labels.
    """
    found: dict[str, list[tuple[Path, Path]]] = {}
    for name, part in _YOLO_PARTS.items():
        pairs = ((root / "images" / name, root / "labels" / name), (root / name / "images", root / name / "labels"))
        if present := [pair for pair in pairs if pair[0].is_dir()]:
            found.setdefault(part, []).extend(present)
    if not found and (root / "images").is_dir():
        found["all"] = [(root / "images", root / "labels")]
    if not found:
        raise MissingDataError(root / "images", "is missing: a YOLO folder has images/ and labels/ side by side")
    for _, labels in chain(*found.values()):
        if not labels.is_dir():
            raise MissingDataError(labels, "is missing: the boxes of the images are expected there")
    return found


def read_yolo(
    root: str | os.PathLike[str], *, bad_boxes: OnBadBox = "refuse"
) -> tuple[dict[str, list[Photo]], tuple[str, ...]]:
    r"""The photos of a YOLO folder with their boxes, by part, and the names of all classes.

    A label file has one line per box: class, centre x, centre y, width, height, in fractions of the image. An image
    without a label file has no boxes.

    Args:
        root: the folder with images/, labels/ and classes.txt, obj.names or data.yaml.
        bad_boxes: what to do with a box that is outside its image or has no area: "refuse" raises an error that names
            it, "skip" skips it and warns at the end.

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
    root = Path(root)
    names = read_class_names(root)
    parts: dict[str, list[Photo]] = {}
    with _handler(bad_boxes) as on_bad_box, files.list_folder(root) as listing:
        for part, folders in find_yolo(root).items():
            photos = (_read_yolo_folder(listing, *folder, names, on_bad_box) for folder in folders)
            parts[part] = list(chain(*photos))
    return parts, names


def _read_yolo_folder(
    listing: files.Listing, images: Path, labels: Path, names: tuple[str, ...], on_bad_box: files.ErrorHandler
) -> list[Photo]:
    listing.require(images)
    listing.require(labels)
    repeated = listing.repeated
    photos: dict[str, Photo] = {}
    for path in sorted(listing.files(images, IMAGE_SUFFIXES)):
        key = path.relative_to(images).with_suffix("").as_posix()
        if key in photos:
            raise DataError(path, f"shares its label file with {photos[key].path.name}: one name, one image")
        size, label_file = image_size(path), listing.require(labels / f"{key}.txt")
        lines = files.read_lines(label_file, limit=_TEXT_LIMIT) if label_file.exists() else ()
        entries = ((f"line {number}", line.split()) for number, line in lines if line.strip())
        parse = partial(_parse_yolo_line, size, names)
        photos[key] = _with_boxes(Photo(key, path, *size, ()), label_file, entries, parse, on_bad_box)
    if not photos and listing.repeated == repeated:
        raise DataError(images, f"holds no images ({', '.join(IMAGE_SUFFIXES)})")
    return list(photos.values())


def _parse_yolo_line(size: tuple[int, int], names: tuple[str, ...], cells: list[str]) -> tuple[list[float], str]:
    """The corners of a box in pixels, and its label."""
    if len(cells) != 5 or not re.fullmatch("[0-9]{1,9}", cells[0]):
        raise ValueError(f"expected class, x, y, width and height, got {' '.join(cells)[:80]!r}")
    x, y, width, height = map(float, cells[1:])
    edges = zip((x - width / 2, y - height / 2, x + width / 2, y + height / 2), size * 2, strict=True)
    return [edge * side for edge, side in edges], names[int(cells[0])]


def read_class_names(root: Path) -> tuple[str, ...]:
    """The names of the classes, from classes.txt, a .names file (one per line) or the `names` of a data.yaml."""
    path = next((root / name for name in _YOLO_NAMES if (root / name).is_file()), None)
    if path is None:
        raise MissingDataError(root / "classes.txt", f"is missing, and so are {', '.join(_YOLO_NAMES[1:])}")
    text = read_text_file(files.require_inside(root, path), 1 << 20)
    names = _yaml_names(path, text) if path.suffix in (".yaml", ".yml") else text.rstrip().split("\n")
    names = [name.strip() for name in names]
    if len(names) > CLASSES:
        raise DataError(path, f"holds {len(names):,} classes, more than the limit of {CLASSES:,}")
    for name, count in Counter(names).items():
        if count > 1 or not name:
            raise DataError(path, f"class {name!r} is empty or occurs twice")
    return tuple(names)


def _yaml_names(path: Path, text: str) -> list[str]:
    """The `names` entry of a data.yaml: a list, or a mapping from 0..K-1; every name is read as text."""
    import_optional("yaml", "PyYAML", "data")
    top = parse_yaml(text, path, strings=True)
    names = top.get("names") if isinstance(top, dict) else None
    if isinstance(names, dict):
        names = [names.get(str(i)) for i in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(path, "needs a `names:` entry that lists the classes, each a word, or numbers them from 0")
    return names


def make_signs(
    signs: Sequence[Sign], classes: Sequence[str], *, crop: CropKind = "wide", margin: float = 150.0, size: int = 224,
    source: int | None = None, workers: int | None = None, cache: bool = True, name: str = "",
) -> Split:  # fmt: skip
    """Crops of the signs whose label is among `classes`, as uint8: `.take(index).as_float(mean, std)` per batch.

    Args:
        signs: boxes of photos, e.g. from `isolated_signs`.
        classes: the labels to keep, in the order of the classes.
        crop: "wide", the box plus the margin, where a localizer has something to find; or "tight", the box itself.
        margin: pixels on every side of a wide crop.
        size: side of the view in pixels.
        source: side of the same crop at a higher resolution, for the warp to read from; None for none.
        workers: decoding threads.
        cache: keep the decoded crops.
        name: of the split.

    Returns:
        x (N, 3, size, size) uint8, and source (N, 3, source, source) uint8, mapped from the cache.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from pstn.data import Box
        >>> path = Path(tempfile.mkdtemp()) / "street.png"
        >>> Image.new("RGB", (400, 300)).save(path)
        >>> box = Box(180.0, 130.0, 220.0, 170.0, "stop")
        >>> sign = Sign(Photo("street", path, 400, 300, (box,)), box)
        >>> split = make_signs([sign], ["stop"], size=64, source=256, cache=False)
        >>> split.x.shape, split.source.shape
        (torch.Size([1, 3, 64, 64]), torch.Size([1, 3, 256, 256]))
    """
    require_choice("crop", crop, ("wide", "tight"))
    large = size if source is None else require_positive_int("source", source)
    sizes = sorted({require_positive_int("size", size), large})
    wanted = set(classes)
    kept = [sign for sign in signs if sign.box.label in wanted]
    if not kept:
        raise ValueError(f"signs must hold a box of the classes {', '.join(classes)}; the filter left none")
    margin = margin if crop == "wide" else 0.0
    views = dict(zip(sizes, decode_crops(kept, margin=margin, sizes=sizes, workers=workers, cache=cache), strict=True))
    y = encode_labels([sign.box.label for sign in kept], classes)
    return Split(views[size], y, tuple(classes), name, source=None if source is None else views[source])


def load_mtsd(
    *, crop: CropKind = "wide", size: int = 224, source: int | None = 1024, margin: float = 150.0,
    classes: Sequence[str] | int = MTSD_CLASSES, root: str | os.PathLike[str] | None = None,
    bad_boxes: OnBadBox = "refuse", workers: int | None = None, cache: bool = True,
) -> Splits[Split]:  # fmt: skip
    """The paper's subset of the Mapillary Traffic Sign Dataset: isolated boxes, in ten classes.

    The publisher's validation split is the test split here, as its own test split has no annotations. A wide crop is
    the box plus 150 pixels on every side, seen at 224 x 224 with the same crop at 1024 x 1024 as the source; it stops
    at the photo's edges, and continues across the edge of a panorama.

    Args:
        crop: "wide" or "tight".
        size: side of the view.
        source: side of the source of wide crops; None for none. Tight crops have none.
        margin: of the filter, and of wide crops, in pixels.
        classes: labels, or how many of the commonest isolated ones to take.
        root: the folder with mtsd_v2_fully_annotated/ and images/; else $PSTN_DATA/mtsd.
        bad_boxes: "refuse" or "skip"; see `read_mtsd`.
        workers: decoding threads.
        cache: keep the decoded crops.

    Example:
        >>> splits = load_mtsd(root="mtsd")  # doctest: +SKIP
    """
    photos = [read_mtsd(split, root=root, bad_boxes=bad_boxes) for split in ("train", "val")]
    require_distinct(chain(*photos))
    settings = {"crop": crop, "size": size, "source": source if crop == "wide" else None}
    parts = {"train": photos[0], "test": photos[1]}
    return _to_splits(parts, classes, "mtsd", margin=margin, workers=workers, cache=cache, **settings)


def _to_splits(
    parts: dict[str, list[Photo]], classes: Sequence[str] | int | None, name: str, *, margin: float, **settings: Any
) -> Splits[Split]:
    """Crops of the isolated boxes of each part; the settings are those of `make_signs`."""
    signs = {part: isolated_signs(photos, margin) for part, photos in parts.items()}
    listed = classes is not None and not isinstance(classes, int)
    chosen = tuple(classes) if listed else commonest_classes(signs.get("train", ()), classes)  # type: ignore[arg-type]
    kept = {part: [sign for sign in found if sign.box.label in chosen] for part, found in signs.items()}
    if not kept.get("train"):
        problem = f"has no isolated boxes of the classes to train on, with a margin of {margin:g} pixels"
        raise DataError(name, f"{problem}: try a smaller one")
    made = {part: make_signs(found, chosen, margin=margin, **settings) for part, found in kept.items() if found}
    return name_parts(name, *map(made.get, ("train", "val", "test")))  # type: ignore[arg-type]


def load_yolo(
    root: str | os.PathLike[str], *, crop: CropKind = "wide", size: int = 224, source: int | None = None,
    margin: float = 150.0, classes: Sequence[str] | int | None = None, test: float = 0.2, seed: int = 0,
    bad_boxes: OnBadBox = "refuse", workers: int | None = None, cache: bool = True,
) -> Splits[Split]:  # fmt: skip
    """Boxes of your own in the YOLO format, by the same steps as the paper's traffic signs.

    Args:
        root: a YOLO folder (see `read_yolo`), or a tar archive of one, which is unpacked into the cache once.
        crop: "wide" or "tight".
        size: side of the view.
        source: side of the source; None for none.
        margin: of the filter and of wide crops, in pixels.
        classes: labels, how many of the commonest isolated ones to take, or None for all that occur.
        test: the share of the photos to test on, where the folder is not divided already. Photos are divided, not
            boxes: two boxes of one photo are on the same side.
        seed: of that division.
        bad_boxes: "refuse" or "skip".
        workers: decoding threads.
        cache: keep the decoded crops.

    Example:
        >>> splits = load_yolo("my-signs", margin=50, classes=10)  # doctest: +SKIP
    """
    folder = unpacked(Path(root))
    parts, _ = read_yolo(folder, bad_boxes=bad_boxes)
    if "all" in parts:
        parts = divide_photos(parts["all"], test, seed)
    settings = {"crop": crop, "size": size, "source": source, "workers": workers, "cache": cache}
    return _to_splits(parts, classes, folder.name, margin=margin, **settings)


def divide_photos(photos: Sequence[Photo], test: float = 0.2, seed: int = 0) -> dict[str, list[Photo]]:
    """A training and a test part: photos are divided, not boxes, so that two boxes of one photo are on the same side.

    Args:
        photos: all of them.
        test: the share to test on.
        seed: of the division.

    Example:
        >>> photos = [Photo(str(k), Path(f"{k}.jpg"), 100, 50, ()) for k in range(10)]
        >>> {part: len(chosen) for part, chosen in divide_photos(photos).items()}
        {'train': 8, 'test': 2}
    """
    if not 0 <= test < 1:
        raise ValueError(f"test must be at least 0 and below 1, got {test}")
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = {photos[i].key for i in order[: int(len(photos) * test + 0.5)]}
    parts = {"train": False, "test": True}
    return {part: [photo for photo in photos if (photo.key in held_out) == tested] for part, tested in parts.items()}


def unpacked(root: Path) -> Path:
    """`root` where it is a folder; where it is a tar archive, the folder in the cache that it is unpacked to."""
    if root.is_dir():
        return root
    if not root.is_file():
        raise MissingDataError(root, "there is no such folder or archive")
    # Named by content, so that a new version of the archive is unpacked anew.
    return files.unpack_tar(root, cache_folder() / "unpacked" / f"{root.name.split('.')[0]}-{sha256_of(root)[:16]}")


def find_traffic_signs(root: str | os.PathLike[str] | None = None) -> Path:
    """The Italian traffic signs as a YOLO folder or archive, in $PSTN_DATA/traffic-signs or the cache.

    Or, for the experiment alone, as a file of crops, .npz.
    """

    def find(folder: Path) -> Path | None:
        held = (folder.glob(pattern) for pattern in ("*.tar.gz", "*.npz"))
        return folder if (folder / "images").is_dir() else next(chain(*map(sorted, held)), None)

    advice = "it has no public mirror: put a YOLO folder or its .tar.gz there, or pass its path to load_yolo"
    return files.locate("traffic-signs", "traffic-signs", find, advice=advice, root=root)


def decode_crops(
    signs: Sequence[Sign], *, margin: float, sizes: Sequence[int], workers: int | None = None, cache: bool = True
) -> list[Tensor]:
    """Cut every sign's box plus a margin out of its photo, at one or more resolutions.

    A photo is decoded once for all its signs, in one of several threads; the crops go straight to files in the cache,
    so that memory holds one photo per thread. The tensors are mapped from these files. A second call with the same
    photos, boxes and settings decodes nothing.

    Args:
        signs: what to cut out.
        margin: pixels added on every side of the box.
        sizes: the side of the square that the crop is resized to, for each tensor wanted, e.g. (224, 1024).
        workers: threads; one per processor, at most 8, where None.
        cache: keep the crops for the next time; else they are in memory only.

    Returns:
        One tensor (N, 3, size, size) of uint8 per size, in the order of `signs`.
    """
    shapes = [(len(signs), 3, size, size) for size in sizes]
    if not cache:
        arrays = [np.empty(shape, np.uint8) for shape in shapes]
        _fill_crops(arrays, signs, margin, workers)
        return [torch.from_numpy(array) for array in arrays]
    folder = cache_folder() / "crops" / _crops_key(signs, margin, sizes)
    if not folder.is_dir():
        with files.whole_folder(folder) as work:
            # Writing to a mapped file on a full disk kills the process without a message.
            needed, free = sum(map(math.prod, shapes)), shutil.disk_usage(work).free
            if needed > free:
                problem = f"has no room for the crops: they need {needed:,} bytes, {free:,} are free"
                raise DataError(cache_folder(), f"{problem}: set $PSTN_CACHE to a folder on a larger disk")
            arrays = [np.lib.format.open_memmap(work / f"{s[-1]}.npy", "w+", np.uint8, s) for s in shapes]
            _fill_crops(arrays, signs, margin, workers)
            del arrays  # which closes the files
    return [torch.from_numpy(files.read_npy(folder / f"{size}.npy")) for size in sizes]


def _fill_crops(
    arrays: Sequence[npt.NDArray[np.uint8]], signs: Sequence[Sign], margin: float, workers: int | None
) -> None:
    def path_of(i: int) -> str:
        return str(signs[i].photo.path)

    def cut(group: list[int]) -> None:
        photo = signs[group[0]].photo
        with open_image(photo.path) as image:
            if image.size != (photo.width, photo.height):
                problem = f"is {image.size[0]}x{image.size[1]} pixels, its boxes are for {photo.width}x{photo.height}"
                raise DataError(photo.path, problem)
            whole = with_bytes(image, "RGB", photo.path)  # a copy of a panorama is 100 MB
            whole.load()
            for i in group:
                region = region_around(signs[i], margin)
                for array in arrays:
                    array[i] = to_array(_crop(whole, photo.width, region, array.shape[-1]))

    groups = [list(group) for _, group in groupby(sorted(range(len(signs)), key=path_of), key=path_of)]
    each_in_parallel(cut, groups, workers)


def _crop(image: Any, width: int, region: Region, size: int) -> Any:
    from PIL import Image

    left, top, right, bottom = region
    if left < 0 or right > width:  # across the edge of a panorama: two pieces, side by side
        joined = Image.new("RGB", (right - left, bottom - top))
        for turn in (-width, 0, width):
            start, end = max(left, turn), min(right, turn + width)
            if start < end:
                joined.paste(image.crop((start - turn, top, end - turn, bottom)), (start - left, 0))
        image, region = joined, (0, 0, right - left, bottom - top)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=region)


def _crops_key(signs: Sequence[Sign], margin: float, sizes: Sequence[int]) -> str:
    """A name for these crops: other files, boxes or settings give another."""
    digest = hashlib.sha256(json.dumps([_CROPS_VERSION, margin, list(sizes)]).encode())
    for sign in signs:
        path, box = sign.photo.path, sign.box
        if not path.is_file():
            raise DataError(path, "there is no such image file")
        state = path.stat()
        entry = [str(path.resolve()), state.st_size, state.st_mtime_ns, box.xmin, box.ymin, box.xmax, box.ymax]
        digest.update(json.dumps([*entry, sign.photo.panorama]).encode())
    return digest.hexdigest()[:32]
