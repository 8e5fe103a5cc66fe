"""Checks of files and folders: what is verified, what is readable, what is damaged."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from pstn.data.files import DataError, Listing, open_zip, read_npy, sha256_of_content, unpack_tar
from pstn.data.images import IMAGE_SUFFIXES, each_in_parallel, open_image, with_bytes
from pstn.data.mnist import MNIST_FILES, read_idx
from pstn.data.photos import find_mtsd, read_mtsd, read_yolo, require_distinct
from pstn.data.registry import detect
from pstn.data.series import UCR_RECORDS, compare_with_archive, read_series, series_format, ucr_name, without_padding
from pstn.data.split import from_npz, name_classes

__all__ = ["Finding", "check"]

Status = Literal["verified", "readable", "differs", "damaged", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What was found out about one file or folder.

    Attributes:
        path: the file or folder.
        status: "verified", its checksum is the published one; "readable", no checksum is on record; "differs", it can
            be read but is not the published file; "damaged", it cannot be used; "skipped", text that is no table of
            series, as a note may be.
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

    Files of kinds that this package does not read are passed over, and so are links that lead out of the folder; no
    file or folder is looked at twice. A .csv or .txt file among others may be a note: one that is no table of series is
    "skipped", not "damaged". YOLO and MTSD folders are one finding each, and so are the images of one folder. Nothing
    is written but what an archive holds, in a temporary folder.

    Args:
        path: the file or folder.

    Raises:
        FileNotFoundError: when there is none.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "Toy_TRAIN.tsv"
        >>> _ = path.write_text("1\t0.5\tabc\t2\n")
        >>> [(finding.status, finding.note) for finding in check(path)]
        [('damaged', "line 1, column 3: 'abc' is not a number")]
    """
    path = Path(path)
    if path.is_dir():
        listing = Listing(path)
        waiting = [path]
        while waiting:
            folder = waiting.pop()
            errors: list[DataError] = []
            folders, files = listing.entries(folder, ("",), errors.append)
            kind = None
            try:
                kind = None if errors else detect(folder)
            except OSError as error:
                errors.append(DataError(folder, f"cannot be read ({error.strerror})"))
            if errors:
                yield Finding(folder, "damaged", errors[0].problem)
            elif kind == "mtsd" or kind == "yolo":
                yield _attempt(folder, _describe_mtsd if kind == "mtsd" else _describe_yolo)
            else:
                waiting += reversed(folders)
                yield from _check_files(folder, [file for file in files if file.is_file()])
        if listing.outside:
            yield Finding(path, "skipped", f"{listing.outside:,} link(s) lead out of the folder, and are not followed")
    elif path.is_file():
        if describe := _DESCRIBE.get(detect(path) or ""):
            yield _attempt(path, describe)
    else:
        raise FileNotFoundError(f"{path}: there is no such file or folder")


def _check_files(folder: Path, files: list[Path]) -> Iterator[Finding]:
    """The findings on the files of one folder: one for all images that decode, one for each other file."""
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    others = [file for file in files if file.suffix.lower() not in IMAGE_SUFFIXES]
    damaged = _damaged(images)
    for error in damaged:
        yield Finding(Path(error.path), "damaged", error.problem)
    if len(images) > len(damaged):
        yield Finding(folder, "readable", f"{len(images) - len(damaged):,} images decode")
    for file in others:
        describe = _DESCRIBE.get(detect(file) or "")
        if describe is None:
            continue
        finding = _attempt(file, describe)
        if finding.status == "damaged" and _may_be_no_data(file):
            finding = Finding(file, "skipped", f"no data set: {finding.note}")
        yield finding


def _may_be_no_data(path: Path) -> bool:
    """Whether it is text that is not called a part of a data set, or an .npz of arrays without x."""
    if path.suffix.lower() == ".npz":
        try:
            with open_zip(path) as archive:
                return not any(name.startswith("x") for name in archive.namelist())
        except DataError:
            return False
    named = any(part in path.name.lower() for part in ("_train.", "_test."))
    return series_format(path) in (".txt", ".csv") and not named


def _attempt(path: Path, describe: Callable[[Path], tuple[Status, str]]) -> Finding:
    try:
        return Finding(path, *describe(path))
    except DataError as error:
        where = "" if Path(error.path) == path else f"{error.path}: "
        return Finding(path, "damaged", f"{where}{f'{error.place}: ' if error.place else ''}{error.problem}")
    except ImportError:
        raise  # a missing package concerns all files
    except OSError as error:
        return Finding(path, "damaged", error.strerror or str(error))
    except Exception as error:  # whatever is wrong with one file, the others are checked
        return Finding(path, "damaged", f"{type(error).__name__}: {error}")


def _describe_npy(path: Path) -> tuple[Status, str]:
    array = read_npy(path, mmap=True)
    return "readable", f"array of shape {array.shape}, {array.dtype}"


def _describe_npz(path: Path) -> tuple[Status, str]:
    try:
        return "readable", f"examples: {from_npz(path).sizes()}"
    except DataError as first:
        try:
            sizes = from_npz(path, kind="image").sizes()
        except DataError:
            raise first from None
        return "readable", f"examples: {sizes}; to be loaded with kind='image' or 'series' (--kind)"


def _describe_archive(path: Path) -> tuple[Status, str]:
    with tempfile.TemporaryDirectory() as work:
        folder = unpack_tar(path, Path(work) / "unpacked")
        try:
            return _describe_yolo(folder)
        except DataError as error:
            inner = Path(error.path)
            name = inner.relative_to(folder).as_posix() if inner.is_relative_to(folder) else str(inner)
            place = name if error.place is None else f"{name}: {error.place}"
            raise DataError(path, error.problem, place=place) from error


def _describe_idx(path: Path) -> tuple[Status, str]:
    array = read_idx(path)
    shape = f"{'x'.join(map(str, array.shape))} {array.dtype.newbyteorder('=')}"
    name = path.name.removesuffix(".gz") + ".gz"
    published = {files[name].content_sha256: which for which, files in MNIST_FILES.items() if name in files}
    found = sha256_of_content(path)
    if found in published:
        return "verified", f"{shape}, of {published[found]}"
    return ("differs", f"{shape}, neither MNIST's nor FashionMNIST's") if published else ("readable", shape)


def _describe_series(path: Path) -> tuple[Status, str]:
    series = read_series(path)
    cut = [without_padding(values) for values in series.values]
    lengths = {values.shape[1] for values in cut}
    length = f"length {min(lengths)}" if len(lengths) == 1 else f"lengths {min(lengths)} to {max(lengths)}"
    channels = series.values[0].shape[0]
    note = f"{len(series):,} series of {channels} channel(s), {length}, {len(set(series.labels))} classes"
    if absent := sum(int(np.isnan(values).sum()) for values in cut):
        note += f"; {absent:,} missing value(s)"
    if single := [label for label, count in Counter(series.labels).items() if count == 1]:
        note += f"; only one example of {name_classes([repr(name) for name in single], most=3)}"
    match = re.fullmatch(r"([A-Za-z0-9_]+)_(TRAIN|TEST)\..*", path.name)
    known = ucr_name(match[1]) if match is not None and match[1][0] != "_" else ""
    if match is None or known not in UCR_RECORDS:
        return "readable", note
    if difference := compare_with_archive(known, match[2], series):
        return "differs", f"{note}; {difference}"
    exact = UCR_RECORDS[known].sha256[match[2] == "TEST"] is not None
    return ("verified", note) if exact else ("readable", f"{note}; no checksum is known")


def _describe_mtsd(path: Path) -> tuple[Status, str]:
    _, images = find_mtsd(path)
    parts = {split: read_mtsd(split, root=path) for split in ("train", "val")}
    require_distinct(chain(*parts.values()))
    absent = [photo for photos in parts.values() for photo in photos if not photo.path.is_file()]
    if absent:
        problem = f"{len(absent):,} of the images are missing, the first: {absent[0].path.name}"
        raise DataError(images, problem)
    counts = ", ".join(f"{len(photos):,} {split}" for split, photos in parts.items())
    boxes = sum(len(photo.boxes) for photos in parts.values() for photo in photos)
    return "readable", f"MTSD: {counts} photos with {boxes:,} boxes; every image is there"


def _describe_yolo(path: Path) -> tuple[Status, str]:
    parts, names = read_yolo(path)
    photos = [photo for part in parts.values() for photo in part]
    for error in _damaged([photo.path for photo in photos]):
        raise error
    used = len({box.label for photo in photos for box in photo.boxes})
    boxes = sum(len(photo.boxes) for photo in photos)
    return (
        "readable",
        f"YOLO: {len(photos):,} photos with {boxes:,} boxes, {used} of {len(names)} classes occur; all decode",
    )


def _damaged(paths: list[Path]) -> list[DataError]:
    """What is wrong with those images that do not decode."""
    errors: list[DataError] = []

    def decode(path: Path) -> None:
        try:
            with open_image(path) as image:
                image.load()
                with_bytes(image, "L", path)  # as training would: not every picture that decodes can be used
        except DataError as error:
            errors.append(error)

    each_in_parallel(decode, paths)
    return sorted(errors, key=lambda error: str(error.path))


_DESCRIBE: dict[str, Callable[[Path], tuple[Status, str]]] = {
    "idx": _describe_idx,
    "archive": _describe_archive,
    "series": _describe_series,
    "npy": _describe_npy,
    "npz": _describe_npz,
}
