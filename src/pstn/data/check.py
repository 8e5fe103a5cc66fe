"""Looking a folder through: what is in it, what is verified, what is damaged."""

from __future__ import annotations

import os
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
from pstn.data.split import from_npz

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
        yield from _check_folders(path, listing)
        if listing.outside:
            yield Finding(path, "skipped", f"{listing.outside:,} link(s) lead out of the folder, and are not followed")
    elif path.is_file():
        yield from _check_file(path)
    else:
        raise FileNotFoundError(f"{path}: there is no such file or folder")


def _check_folders(path: Path, listing: Listing) -> Iterator[Finding]:
    waiting = [path]
    while waiting:
        place = waiting.pop()
        inner: list[Path] = []
        yield from _check_folder(place, listing, inner)
        waiting += reversed(inner)


def _check_folder(path: Path, listing: Listing, inner: list[Path]) -> Iterator[Finding]:
    """What is in one folder; the folders in it that are to be looked at are added to `inner`."""
    errors: list[DataError] = []
    folders, files = listing.entries(path, ("",), errors.append)
    try:
        kind = None if errors else detect(path)
    except OSError as error:
        errors.append(DataError(path, f"cannot be read ({error.strerror})"))
    if errors:
        yield Finding(path, "damaged", errors[0].problem)
        return
    if kind == "mtsd":
        yield _attempt(path, lambda: _describe_mtsd(path))
    elif kind == "yolo":
        yield _attempt(path, lambda: _describe_yolo(path))
    else:
        inner += folders
        yield from _check_images(path, [file for file in files if _is_image(file)])
        for entry in files:
            if entry.is_file() and not _is_image(entry):
                yield from _check_note(entry) if _is_text(entry) or _is_other_npz(entry) else _check_file(entry)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _is_text(path: Path) -> bool:
    """Text that is not called a part of a data set: it may be anything, unless somebody asks for this very file."""
    named = any(part in path.name.lower() for part in ("_train.", "_test."))
    return series_format(path) in (".txt", ".csv") and not named


def _is_other_npz(path: Path) -> bool:
    """Whether it is an .npz of arrays without x: not a data set, but nothing is wrong with it."""
    if path.suffix.lower() != ".npz":
        return False
    try:
        with open_zip(path) as archive:
            return not any(name.startswith("x") for name in archive.namelist())
    except DataError:
        return False


def _check_note(path: Path) -> Iterator[Finding]:
    for finding in _check_file(path):
        if finding.status == "damaged":
            yield Finding(path, "skipped", f"no data set: {finding.note}")
        else:
            yield finding


def _check_file(path: Path) -> Iterator[Finding]:
    describe = {
        "idx": _describe_idx,
        "archive": _describe_archive,
        "series": _describe_series,
        "npy": _describe_npy,
        "npz": _describe_npz,
    }.get(detect(path) or "")
    if describe is not None:
        yield _attempt(path, lambda: describe(path))


def _attempt(path: Path, describe: Callable[[], tuple[Status, str]]) -> Finding:
    try:
        status, note = describe()
    except DataError as error:
        where = "" if Path(error.path) == path else f"{error.path}: "
        return Finding(path, "damaged", f"{where}{f'{error.place}: ' if error.place else ''}{error.problem}")
    except ImportError:
        raise  # what is missing is a package, for all files alike
    except OSError as error:
        return Finding(path, "damaged", error.strerror or str(error))
    except Exception as error:  # whatever is wrong with one file, the others are to be looked at
        return Finding(path, "damaged", f"{type(error).__name__}: {error}")
    return Finding(path, status, note)


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
    name = path.name if path.name.endswith(".gz") else f"{path.name}.gz"
    found = sha256_of_content(path)
    published = {which: files[name].content_sha256 for which, files in MNIST_FILES.items() if name in files}
    for which, expected in published.items():
        if found == expected:
            return "verified", f"{shape}, of {which}"
    return ("differs", f"{shape}, neither MNIST's nor FashionMNIST's") if published else ("readable", shape)


def _describe_series(path: Path) -> tuple[Status, str]:
    series = read_series(path)
    cut = [without_padding(values) for values in series.values]
    lengths = sorted({values.shape[1] for values in cut})
    length = f"length {lengths[0]}" if len(lengths) == 1 else f"lengths {lengths[0]} to {lengths[-1]}"
    channels = series.values[0].shape[0]
    note = f"{len(series):,} series of {channels} channel(s), {length}, {len(set(series.labels))} classes"
    if absent := sum(int(np.isnan(values).sum()) for values in cut):
        note += f"; {absent:,} missing value(s)"
    if lone := [label for label, count in Counter(series.labels).items() if count == 1]:
        note += f"; one example alone of {', '.join(map(repr, lone[:3]))}{' …' * (len(lone) > 3)}"
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


def _check_images(folder: Path, images: list[Path]) -> Iterator[Finding]:
    damaged = _damaged(images)
    for error in damaged:
        yield Finding(Path(error.path), "damaged", error.problem)
    if len(images) > len(damaged):
        yield Finding(folder, "readable", f"{len(images) - len(damaged):,} images decode")


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
