"""Every data set known by name, `load`, which also takes a folder or file of your own, and `check`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from pstn.data import files, images, photos, series
from pstn.data.augment import RandomRotation, generate_all
from pstn.data.files import DataError, MissingDataError, Progress, expand, locate_file
from pstn.data.images import MNIST_FILES, load_mnist
from pstn.data.split import NO_ARRAYS, Split, Splits, divide, from_npz, name_parts
from pstn.decode import read_image
from pstn.text import did_you_mean, printable

__all__ = ["KNOWN", "Finding", "Known", "check", "get", "load"]

Kind = Literal["mtsd", "yolo", "series", "mnist", "fashion-mnist", "classes", "idx", "archive", "npy", "npz"]
Status = Literal["verified", "readable", "differs", "damaged", "skipped"]


@dataclass(frozen=True)
class Known:
    """A data set that is known by name.

    Attributes:
        name: what `load` and the command line call it.
        kind: "images", "series" or "photos".
        what: one line about it.
        load: reads it.
        find: returns where it is, or raises a MissingDataError that says how to get it; `fetch=True` downloads it.
        by_hand: whether the user has to get it, as it needs a registration or has no public mirror.

    Example:
        >>> KNOWN["digits"].kind, KNOWN["digits"].where()
        ('images', 'the package: it ships with pstn')
    """

    name: str
    kind: Literal["images", "series", "photos"]
    what: str
    load: Callable[..., Splits[Any]]
    find: Callable[..., object]
    by_hand: bool = False

    def where(self) -> str | None:
        """The folder that holds it, or None where it is missing."""
        try:
            return str(self.find(fetch=False))
        except MissingDataError:
            return None

    def get(self, progress: Progress | None = None) -> str:
        """Download it, and return where it is; an error says how to get it."""
        return str(self.find(fetch=True, progress=progress))


def _shipped(**options: Any) -> str:
    return "the package: it ships with pstn"


def _find_idx(which: str, **options: Any) -> Path:
    first, *_ = (locate_file(file, **options) for file in MNIST_FILES[which].values())
    return first.parent


def _find_ucr(name: str, *, fetch: bool, progress: Progress | None = None) -> Path:
    parts = ("TRAIN", "TEST") if fetch else ("TRAIN",)  # a training part alone can be used
    first, *_ = (series.locate_ucr(name, part, fetch=fetch, progress=progress) for part in parts)
    return first.parent


def _load_digits(*, normalise: bool = True, validation: float = 0.2, seed: int = 0) -> Splits[Split]:
    """The digits that ship with the package, as `Splits`."""
    train, test = (Split(*images.load_digits(part), tuple("0123456789")) for part in ("train", "test"))
    if normalise:
        train, test = (split.as_float(images.MNIST_MEAN, images.MNIST_STD) for split in (train, test))
    parts = divide(train, test=0.0, validation=validation, seed=seed)
    return name_parts("digits", parts.train, parts.validation, test)


def _load_rotated_digits(*, normalise: bool = False, seed: int = 0, generator: Any = None) -> Splits[Any]:
    return generate_all(_load_digits(normalise=normalise), RandomRotation(), seed=seed, generator=generator)


def _load_traffic_signs(root: str | os.PathLike[str] | None = None, **settings: Any) -> Splits[Split]:
    # The photos have about a third of their original size, and so has the paper's margin of 150 pixels.
    return photos.load_yolo(photos.find_traffic_signs(root), **{"margin": 50.0, "classes": 10, **settings})


def _known_ucr(name: str) -> Known:
    record = series.UCR_RECORDS[name]
    what = f"{record.counts[0]:,}/{record.counts[1]:,} series of length {record.length}, {record.classes} classes"
    find = _shipped if name == "ItalyPowerDemand" else partial(_find_ucr, name)
    return Known(name, "series", what, partial(series.load_ucr, name), find)


_MNIST, _FASHION = partial(_find_idx, "mnist"), partial(_find_idx, "fashion-mnist")
_ALL = (
    Known("mnist", "images", "handwritten digits, 50,000/10,000/10,000 of 28x28", load_mnist, _MNIST),
    Known("fashion-mnist", "images", "clothes, 50,000/10,000/10,000 of 28x28",
          partial(load_mnist, "fashion-mnist"), _FASHION),
    Known("rotated-mnist", "images", "MNIST turned by any angle; theta known", images.load_rotated_mnist, _MNIST),
    Known("placed-fashion-mnist", "images", "FashionMNIST anywhere on a 96x96 canvas; theta known",
          images.load_placed_fashion, _FASHION),
    Known("digits", "images", "5,000 of MNIST's training images", _load_digits, _shipped),
    Known("rotated-digits", "images", "the same turned by any angle; theta known", _load_rotated_digits, _shipped),
    *map(_known_ucr, ("FaceAll", "TwoPatterns", "Wafer", "UWaveGestureLibraryX", "PhalangesOutlinesCorrect",
                        "ItalyPowerDemand")),
    Known("mtsd", "photos", "Mapillary's traffic signs, the paper's subset; needs registration", photos.load_mtsd,
          lambda **options: photos.find_mtsd()[0], by_hand=True),
    Known("traffic-signs", "photos", "Italian street photos with YOLO boxes", _load_traffic_signs,
          lambda **options: photos.find_traffic_signs(), by_hand=True),
)  # fmt: skip

KNOWN: Mapping[str, Known] = MappingProxyType({entry.name: entry for entry in _ALL})
"""All data sets known by name, in the order in which they are listed."""
_NAMES = f"{', '.join(KNOWN)}, and 'ucr:NAME' for any set of the UCR and UEA archives"


def load(data: str | os.PathLike[str], **settings: Any) -> Splits[Any]:
    """Load a data set by its name, or from a folder or file of your own.

    A known name takes precedence over a folder of the same name in the current one; write ./name for that.

    Args:
        data: a name of `pstn data list`, in any case; "ucr:NAME" for any other set of the UCR and UEA archives; a
            folder (images per class, a YOLO data set, MTSD, NAME_TRAIN and NAME_TEST files); or a file (.npz, .tsv,
            .csv, .txt, .ts, .arff, a tar archive of a YOLO data set).
        **settings: of the loader, e.g. `normalise=False` for MNIST.

    Returns:
        `Splits` of `Split` or `Generated`.

    Example:
        >>> load("ItalyPowerDemand").sizes()
        {'train': 50, 'validation': 17, 'test': 1029}
    """
    text = os.fspath(data)
    if not text:  # which would be the current folder, and is most often a variable that was not set
        raise ValueError("data must be the name of a data set, a folder or a file, got nothing")
    if isinstance(data, str):
        known = find_known(text)
        if known is not None:
            return known.load(**settings)
        if text.startswith("ucr:"):
            return series.load_ucr(text[4:], **settings)
    path = expand(text)
    if not path.exists():
        beside = [str(path.with_name(each.name)) for each in path.parent.iterdir()] if path.parent.is_dir() else []
        meant = did_you_mean(text, [*KNOWN, *beside])
        raise MissingDataError(text, f"is no folder or file, and no known data set: {_NAMES}{meant}")
    kind = detect(path)
    if kind not in _LOADERS:
        accepted = f".npz; {', '.join(series.SERIES_SUFFIXES)}, also with .gz; or a tar archive of a YOLO folder"
        raise DataError(path, f"is no file of a known kind: {accepted}")
    return _LOADERS[kind](path, **settings)


def get(name: str, *, progress: Progress | None = None) -> str:
    """Download a known data set, or any "ucr:NAME", unless it exists already, and return where it is.

    Args:
        name: as for `load`.
        progress: called during a download with the file's name, the bytes so far and the bytes in all.

    Example:
        >>> get("digits")
        'the package: it ships with pstn'
    """
    known = find_known(name)
    if known is not None:
        return known.get(progress)
    if name.startswith("ucr:"):
        return str(_find_ucr(series.ucr_name(name[4:]), fetch=True, progress=progress))
    raise ValueError(f"name must be a known data set ({_NAMES}), got {name!r}{did_you_mean(name, KNOWN)}")


def find_known(name: str) -> Known | None:
    """The declaration of a known set, whatever the case and the dashes of its name; None where there is none.

    Example:
        >>> find_known("face_all").name
        'FaceAll'
    """
    return next((k for k in KNOWN.values() if series.plain_name(k.name) == series.plain_name(name)), None)


def _training_files(folder: Path) -> list[Path]:
    """The NAME_TRAIN files of series in a folder."""
    return sorted(f for f in folder.iterdir() if "_TRAIN." in f.name and series.series_format(f))


def _load_series(path: Path, **settings: Any) -> Splits[Split]:
    if path.is_dir():
        found = _training_files(path)
        names = sorted({f.name.split("_TRAIN.")[0] for f in found})
        if len(names) > 1:
            raise DataError(path, f"holds several sets ({', '.join(names)}): give the NAME_TRAIN file of one of them")
        path = files.require_inside(path, found[0])
    return series.load_series_file(path, **settings)


_LOADERS: dict[str | None, Callable[..., Splits[Any]]] = {
    "mtsd": lambda path, **settings: photos.load_mtsd(root=path, **settings),
    "mnist": lambda path, **settings: load_mnist("mnist", root=path, **settings),
    "fashion-mnist": lambda path, **settings: load_mnist("fashion-mnist", root=path, **settings),
    "yolo": photos.load_yolo, "archive": photos.load_yolo, "series": _load_series, "npz": from_npz,
    "classes": images.from_folder,
}  # fmt: skip


def detect(path: Path) -> Kind | None:
    """The kind of data in a folder or a file; None for a file of no kind that is read here.

    A folder that is nothing else is taken for a folder of images per class.

    Example:
        >>> detect(Path("FaceAll_TRAIN.tsv.gz")), detect(Path("letter.doc"))
        ('series', None)
    """
    if not path.is_dir():
        name = path.name.lower()
        if "ubyte" in name:
            return "idx"
        if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
            return "archive"
        if name.endswith((".npz", ".npy")):
            return "npz" if name.endswith("z") else "npy"
        return "series" if series.series_format(path) else None
    if photos.find_annotations(path):
        return "mtsd"
    with suppress(DataError):
        photos.find_yolo(path)
        return "yolo"
    if _training_files(path):
        return "series"
    labels = sorted(path.glob("train-labels-idx1-ubyte*"))
    if not labels or not any(path.glob("train-images-idx3-ubyte*")):
        return "classes"
    # The files of MNIST and FashionMNIST have the same names. Where the labels are of neither, by the folder's name.
    with suppress(DataError):
        if which := _publishers(labels[0]).get(files.sha256_of_content(labels[0])):
            return cast("Kind", which)
    return "fashion-mnist" if "fashion" in path.resolve().name.lower() else "mnist"


@dataclass(frozen=True)
class Finding:
    """What was found out about one file or folder.

    Attributes:
        path: the file or folder.
        status: "verified", its checksum is the published one; "readable", no checksum is known; "differs", it can
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

    Files of kinds that this package does not read are skipped, and so are links that lead out of the folder; no
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
        >>> [(finding.status, finding.note[:16]) for finding in check(path)]
        [('damaged', 'line 1, column 3')]
    """
    path = Path(path)
    if path.is_file():
        yield from _check_file(path)
        return
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    listing = files.Listing(path)
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            folders, found = listing.entries(folder, ("",))
            kind = detect(folder)
        except (DataError, OSError) as error:
            yield Finding(folder, "damaged", _reason(error, folder))
            continue
        if kind in ("mtsd", "yolo"):
            yield _attempt(folder, kind)
            continue
        waiting += reversed(folders)
        found = [file for file in found if file.is_file()]
        pictures = [file for file in found if file.suffix.lower() in images.IMAGE_SUFFIXES]
        damaged = _damaged(pictures)
        yield from (Finding(Path(error.path), "damaged", error.problem) for error in damaged)
        if len(pictures) > len(damaged):
            yield Finding(folder, "readable", f"{len(pictures) - len(damaged):,} images decode")
        for file in found:
            yield from _check_file(file, alone=False)
    if listing.outside:
        yield Finding(path, "skipped", f"{listing.outside:,} link(s) lead out of the folder, and are not followed")


def _check_file(path: Path, alone: bool = True) -> Iterator[Finding]:
    """The finding on a file, if it is of a kind that is read here; among others, it may be no data at all."""
    kind = detect(path)
    if kind is None:
        return
    finding = _attempt(path, kind)
    text = series.series_format(path) in (".txt", ".csv") and not re.search("_train[.]|_test[.]", path.name.lower())
    if not alone and finding.status == "damaged" and (text or finding.note.startswith(NO_ARRAYS)):
        finding = Finding(path, "skipped", f"no data set: {finding.note}")
    yield finding


def _attempt(path: Path, kind: Kind) -> Finding:
    try:
        return Finding(path, *_describe(path, kind))
    except ImportError:
        raise  # a missing package concerns all files
    except Exception as error:  # whatever is wrong with one file, the others are checked
        return Finding(path, "damaged", _reason(error, path))


def _reason(error: Exception, path: Path) -> str:
    """What is wrong with a file, without its path."""
    if isinstance(error, DataError):
        return str(error).removeprefix(f"{printable(path, lines=False)}: ")
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def _describe(path: Path, kind: Kind) -> tuple[Status, str]:
    """What a file or a folder holds, and whether it is what was published; an error if it cannot be used."""
    if kind == "archive":
        with tempfile.TemporaryDirectory() as work:
            return _describe(files.unpack_tar(path, Path(work) / "unpacked"), "yolo")
    if kind in ("mtsd", "yolo"):
        return "readable", _describe_photos(path, kind)
    if kind == "series":
        return _describe_series(path)
    if kind == "npz":
        try:
            return "readable", f"examples: {from_npz(path).sizes()}"
        except DataError as error:
            if "kind=" not in error.problem:
                raise
        return "readable", f"examples: {from_npz(path, kind='image').sizes()}, if kind='image' (--kind)"
    array = files.read_npy(path) if kind == "npy" else images.read_idx(path)
    note = f"array of shape {array.shape}, {array.dtype}"
    if not (published := _publishers(path)):
        return "readable", note
    which = published.get(files.sha256_of_content(path))
    return ("verified", f"{note}, of {which}") if which else ("differs", f"{note}, neither MNIST's nor FashionMNIST's")


def _publishers(path: Path) -> dict[str | None, str]:
    """The SHA-256 of the contents that MNIST and FashionMNIST have published under the name of a file."""
    name = path.name.removesuffix(".gz") + ".gz"
    return {known[name].content_sha256: which for which, known in MNIST_FILES.items() if name in known}


def _describe_series(path: Path) -> tuple[Status, str]:
    found = series.read_series(path)
    lengths = sorted({series.without_padding(values).shape[1] for values in found.values})
    size = f"{found.values[0].shape[0]} channel(s), length {lengths[0]} to {lengths[-1]}"
    note = f"{len(found):,} series of {size}, {len(set(found.labels))} classes"
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_]*)_(TRAIN|TEST)\..*", path.name)
    name = series.ucr_name(match[1]) if match else ""
    if match is None or name not in series.UCR_RECORDS:
        return "readable", note
    if difference := series.compare_with_archive(name, match[2], found):
        return "differs", f"{note}; {difference}"
    exact = series.UCR_RECORDS[name].sha256[match[2] == "TEST"] is not None
    return ("verified", note) if exact else ("readable", f"{note}; no checksum is known")


def _describe_photos(path: Path, kind: Kind) -> str:
    """What a YOLO folder or MTSD holds; every photo must be there, and those of a YOLO folder must decode."""
    if kind == "yolo":
        found = list(chain(*photos.read_yolo(path)[0].values()))
        errors = _damaged([photo.path for photo in found])
    else:
        found = [photo for split in ("train", "val") for photo in photos.read_mtsd(split, root=path)]
        photos.require_distinct(found)
        errors = [DataError(photo.path, "is missing") for photo in found if not photo.path.is_file()]
    for error in errors:
        raise error
    labels = [box.label for photo in found for box in photo.boxes]
    return f"{kind.upper()}: {len(found):,} photos with {len(labels):,} boxes of {len(set(labels))} classes"


def _damaged(paths: list[Path]) -> list[DataError]:
    """What is wrong with those images that do not decode."""

    def decode(path: Path) -> DataError | None:
        try:
            read_image(path, 1)  # as training would: not every picture that decodes can be used
            return None
        except DataError as error:
            return error

    return [error for error in images.each_in_parallel(decode, paths) if error is not None]
