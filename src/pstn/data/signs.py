"""Traffic signs, or whatever boxes are drawn around: from photos to views, sources and classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import torch

from pstn._checks import require_choice, require_positive_int
from pstn.data.archives import unpack_tar
from pstn.data.boxes import Photo, Sign, commonest_classes, isolated_signs
from pstn.data.crops import decode_crops
from pstn.data.errors import DataError, MissingDataError
from pstn.data.labels import encode_labels
from pstn.data.mtsd import MTSD_CLASSES, read_mtsd, require_distinct
from pstn.data.places import cache_folder, search_folders
from pstn.data.split import Split, Splits
from pstn.data.yolo import read_yolo
from pstn.files import sha256_of

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "divide_photos",
    "find_traffic_signs",
    "load_mtsd",
    "load_yolo",
    "make_signs",
    "unpacked",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Means of ImageNet's red, green and blue, from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviations."""
_MTSD_SPLITS: tuple[Literal["train", "val"], ...] = ("train", "val")
CropKind = Literal["wide", "tight"]


def make_signs(
    signs: Sequence[Sign],
    classes: Sequence[str],
    *,
    crop: CropKind = "wide",
    margin: float = 150.0,
    size: int = 224,
    source: int | None = None,
    workers: int | None = None,
    cache: bool = True,
    name: str = "",
) -> Split:
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
    sizes = [require_positive_int("size", size)]
    if source is not None:
        sizes.append(require_positive_int("source", source))
    wanted = set(classes)
    kept = [sign for sign in signs if sign.box.label in wanted]
    if not kept:
        raise ValueError(f"no box of the classes {', '.join(classes)} is left after the filter")
    views = decode_crops(
        kept, margin=margin if crop == "wide" else 0.0, sizes=sorted(set(sizes)), workers=workers, cache=cache
    )
    by_size = dict(zip(sorted(set(sizes)), views, strict=True))
    y = encode_labels([sign.box.label for sign in kept], classes)
    return Split(by_size[size], y, tuple(classes), name, source=None if source is None else by_size[source])


def load_mtsd(
    *,
    crop: CropKind = "wide",
    size: int = 224,
    source: int | None = 1024,
    margin: float = 150.0,
    classes: Sequence[str] | int = MTSD_CLASSES,
    root: str | os.PathLike[str] | None = None,
    bad_boxes: Literal["refuse", "skip"] = "refuse",
    workers: int | None = None,
    cache: bool = True,
) -> Splits[Split]:
    """The paper's subset of the Mapillary Traffic Sign Dataset: boxes that stand alone, in ten classes.

    The publisher's validation split is the test split here, as its own test split has no annotations. A wide crop is
    the box plus 150 pixels on every side, seen at 224 x 224 with the same crop at 1024 x 1024 as the source; it stops
    at the photo's edges, and goes round a panorama.

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
    photos = [read_mtsd(split, root=root, bad_boxes=bad_boxes) for split in _MTSD_SPLITS]
    require_distinct(chain(*photos))
    train, test = (isolated_signs(part, margin) for part in photos)
    chosen = commonest_classes(train, classes) if isinstance(classes, int) else tuple(classes)

    def make(signs: Sequence[Sign], name: str) -> Split:
        large = source if crop == "wide" else None
        return make_signs(
            signs, chosen, crop=crop, margin=margin, size=size, source=large, workers=workers, cache=cache, name=name
        )

    return Splits(make(train, "mtsd train"), None, make(test, "mtsd test"))


def load_yolo(
    root: str | os.PathLike[str],
    *,
    crop: CropKind = "wide",
    size: int = 224,
    source: int | None = None,
    margin: float = 150.0,
    classes: Sequence[str] | int | None = None,
    test: float = 0.2,
    seed: int = 0,
    bad_boxes: Literal["refuse", "skip"] = "refuse",
    workers: int | None = None,
    cache: bool = True,
) -> Splits[Split]:
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
    signs = {part: isolated_signs(photos, margin) for part, photos in parts.items()}
    if "train" not in signs:
        raise DataError(folder, f"has no training part, only {', '.join(signs)}")
    if isinstance(classes, int) or classes is None:
        chosen = commonest_classes(signs["train"], classes if isinstance(classes, int) else 1 << 30)
    else:
        chosen = tuple(classes)

    def make(part: str) -> Split | None:
        if not any(sign.box.label in chosen for sign in signs.get(part, [])):
            return None
        return make_signs(
            signs[part], chosen, crop=crop, margin=margin, size=size, source=source, workers=workers, cache=cache,
            name=f"{folder.name} {part}",
        )  # fmt: skip

    train = make("train")
    if train is None:
        raise DataError(folder, f"no box stands alone with a margin of {margin:g} pixels: try a smaller one")
    return Splits(train, make("val"), make("test"))


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
    cut = int(len(photos) * test + 0.5)
    held_out = {photos[i].key for i in order[:cut]}
    return {
        "train": [photo for photo in photos if photo.key not in held_out],
        "test": [photo for photo in photos if photo.key in held_out],
    }


def unpacked(root: Path) -> Path:
    """`root` where it is a folder; where it is a tar archive, the folder in the cache that it is unpacked to."""
    if root.is_dir():
        return root
    if not root.is_file():
        raise MissingDataError(root, "there is no such folder or archive")
    # Named by content, so that a new version of the archive is unpacked anew.
    return unpack_tar(root, cache_folder() / "unpacked" / f"{root.name.split('.')[0]}-{sha256_of(root)[:16]}")


def find_traffic_signs(root: str | os.PathLike[str] | None = None) -> Path:
    """The Italian traffic signs as a YOLO folder or archive, in $PSTN_DATA/traffic-signs or the cache."""
    places = search_folders("traffic-signs", root)
    for place in places:
        if (place / "images").is_dir():
            return place
        archives = sorted(place.glob("*.tar.gz")) if place.is_dir() else []
        if archives:
            return archives[0]
    raise MissingDataError(
        "traffic-signs",
        f"is missing; looked in {', '.join(map(str, places))} for images/, labels/ and classes.txt, or a .tar.gz of "
        "them. It has no public mirror; any YOLO folder will do: put it there, or pass its path to pstn.data.load_yolo",
    )
