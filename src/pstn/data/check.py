"""Looking a folder through: what is in it, what is verified, what is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pstn.data.errors import DataError
from pstn.data.files import read_npy, sha256_of_content
from pstn.data.idx import read_idx
from pstn.data.images import IMAGE_SUFFIXES, each_in_parallel, open_image
from pstn.data.mnist import MNIST_FILES
from pstn.data.mtsd import find_mtsd, read_mtsd
from pstn.data.own import from_npz
from pstn.data.series_files import read_series, series_format
from pstn.data.signs import unpacked
from pstn.data.ucr import compare_with_archive, ucr_name
from pstn.data.ucr_sums import UCR_RECORDS
from pstn.data.yolo import find_yolo, read_yolo

__all__ = ["Finding", "check"]

Status = Literal["verified", "readable", "differs", "damaged"]


@dataclass(frozen=True)
class Finding:
    """What was found out about one file or folder.

    Attributes:
        path: the file or folder.
        status: "verified", its checksum is the published one; "readable", no checksum is on record; "differs", it can
            be read but is not the published file; "damaged", it cannot be used.
        note: what is in it, or what is wrong.

    Example:
        >>> Finding(Path("fold0.npy"), "readable", "array of shape (30,), int64").status
        'readable'
    """

    path: Path
    status: Status
    note: str


def check(path: str | os.PathLike[str]) -> Iterator[Finding]:
    r"""Look through a file or a folder and everything below it, one finding at a time.

    Files of kinds that this package does not read are passed over. YOLO and MTSD folders are one finding each, and so
    are the images of one folder.

    Args:
        path: the file or folder.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "Toy_TRAIN.tsv"
        >>> _ = path.write_text("1\t0.5\tabc\n")
        >>> [(finding.status, finding.note) for finding in check(path)]
        [('damaged', "line 1, column 3: 'abc' is not a number")]
    """
    path = Path(path)
    if path.is_file():
        yield from _check_file(path)
    elif not path.is_dir():
        yield Finding(path, "damaged", "there is no such file or folder")
    elif _is_mtsd(path):
        yield _attempt(path, lambda: _describe_mtsd(path))
    elif _is_yolo(path):
        yield _attempt(path, lambda: _describe_yolo(path))
    else:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        images = [entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file()]
        if images:
            yield from _check_images(path, images)
        for entry in entries:
            if entry not in images:
                yield from check(entry)


def _check_file(path: Path) -> Iterator[Finding]:
    name = path.name.lower()
    if "ubyte" in name:
        yield _attempt(path, lambda: _describe_idx(path))
    elif name.endswith((".tar", ".tar.gz", ".tgz")):
        yield _attempt(path, lambda: _describe_yolo(unpacked(path)))
    elif "_train." in name or "_test." in name or (series_format(path) or ".txt") not in (".txt", ".csv"):
        yield _attempt(path, lambda: _describe_series(path))
    elif name.endswith(".npy"):
        yield _attempt(path, lambda: ("readable", "array of shape {}, {}".format(*_array_facts(path))))
    elif name.endswith(".npz"):
        yield _attempt(path, lambda: ("readable", f"examples: {from_npz(path).sizes()}"))


def _attempt(path: Path, describe: Callable[[], tuple[Status, str]]) -> Finding:
    try:
        status, note = describe()
    except DataError as error:
        where = "" if Path(error.path) == path else f"{error.path}: "
        return Finding(path, "damaged", f"{where}{f'{error.place}: ' if error.place else ''}{error.problem}")
    return Finding(path, status, note)


def _array_facts(path: Path) -> tuple[tuple[int, ...], str]:
    array = read_npy(path, mmap=True)
    return array.shape, str(array.dtype)


def _describe_idx(path: Path) -> tuple[Status, str]:
    array = read_idx(path)
    shape = f"{'x'.join(map(str, array.shape))} {array.dtype.newbyteorder('=')}"
    name = path.name if path.name.endswith(".gz") else f"{path.name}.gz"
    found = sha256_of_content(path)
    published = {which: files[name].content_sha256 for which, files in MNIST_FILES.items() if name in files}
    for which, expected in published.items():
        if found == expected:
            return "verified", f"{shape}, of {which}"
    return ("differs", f"{shape}, neither MNIST's nor FashionMNIST's") if published else ("readable", shape)


def _describe_series(path: Path) -> tuple[Status, str]:
    series = read_series(path)
    lengths = sorted({values.shape[1] for values in series.values})
    length = f"length {lengths[0]}" if len(lengths) == 1 else f"lengths {lengths[0]} to {lengths[-1]}"
    channels = series.values[0].shape[0]
    note = f"{len(series):,} series of {channels} channel(s), {length}, {len(set(series.labels))} classes"
    name, _, rest = path.name.partition("_TRAIN.") if "_TRAIN." in path.name else path.name.partition("_TEST.")
    known = ucr_name(name) if rest and name.replace("_", "").isalnum() else ""
    if known not in UCR_RECORDS:
        return "readable", note
    part = "TRAIN" if "_TRAIN." in path.name else "TEST"
    differences = compare_with_archive(known, part, series)
    if differences:
        return "differs", f"{note}; {differences[0]}"
    record = UCR_RECORDS[known].train if part == "TRAIN" else UCR_RECORDS[known].test
    exact = record.values is not None or (record.sha256 is not None and ".tsv" in path.name)
    return ("verified", note) if exact else ("readable", f"{note}; no checksum on record")


def _is_mtsd(path: Path) -> bool:
    names = ("mtsd_v2_fully_annotated", "mtsd_fully_annotated", ".")
    return any((path / name / "annotations").is_dir() and (path / name / "splits").is_dir() for name in names)


def _describe_mtsd(path: Path) -> tuple[Status, str]:
    _, images = find_mtsd(path)
    parts = {split: read_mtsd(split, root=path) for split in ("train", "val")}
    absent = [photo for photos in parts.values() for photo in photos if not photo.path.is_file()]
    if absent:
        problem = f"{len(absent):,} of the images are missing, the first: {absent[0].path.name}"
        raise DataError(images, problem)
    counts = ", ".join(f"{len(photos):,} {split}" for split, photos in parts.items())
    boxes = sum(len(photo.boxes) for photos in parts.values() for photo in photos)
    return "readable", f"MTSD: {counts} photos with {boxes:,} boxes; every image is there"


def _is_yolo(path: Path) -> bool:
    try:
        find_yolo(path)
    except DataError:
        return False
    return True


def _describe_yolo(path: Path) -> tuple[Status, str]:
    parts, names = read_yolo(path)
    photos = [photo for part in parts.values() for photo in part]
    _decode_all([photo.path for photo in photos])
    used = len({box.label for photo in photos for box in photo.boxes})
    boxes = sum(len(photo.boxes) for photo in photos)
    return (
        "readable",
        f"YOLO: {len(photos):,} photos with {boxes:,} boxes, {used} of {len(names)} classes occur; all decode",
    )


def _check_images(folder: Path, images: list[Path]) -> Iterator[Finding]:
    bad = False
    for image in images:
        try:
            _decode_all([image])
        except DataError as error:
            bad = True
            yield Finding(image, "damaged", error.problem)
    if not bad:
        yield Finding(folder, "readable", f"{len(images):,} images; all decode")


def _decode_all(paths: list[Path]) -> None:
    def decode(path: Path) -> None:
        with open_image(path) as image:
            image.load()

    each_in_parallel(decode, paths)
