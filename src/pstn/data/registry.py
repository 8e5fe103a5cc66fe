"""Every data set known by name, and `load`, which also takes a folder or file of your own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pstn.data.augment import RandomRotation, generate_all
from pstn.data.download import Progress, expand, find_file, locate
from pstn.data.files import DataError, MissingDataError, require_inside, sha256_of_content
from pstn.data.images import from_folder
from pstn.data.mnist import (
    MNIST_FILES,
    MNIST_MEAN,
    MNIST_STD,
    load_digits,
    load_mnist,
    load_placed_fashion,
    load_rotated_mnist,
)
from pstn.data.photos import find_mtsd, find_traffic_signs, find_yolo, is_mtsd, load_mtsd, load_yolo
from pstn.data.series import (
    SERIES_SUFFIXES,
    UCR_RECORDS,
    find_ucr,
    load_series_file,
    load_ucr,
    locate_ucr,
    plain_name,
    series_format,
    ucr_name,
)
from pstn.data.split import Split, Splits, divide, from_npz

__all__ = ["KNOWN", "Known", "get", "load"]

Kind = Literal["mtsd", "yolo", "series", "mnist", "fashion-mnist", "classes", "idx", "archive", "npy", "npz"]


@dataclass(frozen=True)
class Known:
    """A data set that is known by name.

    Attributes:
        name: what `load` and the command line call it.
        kind: "images", "series" or "photos".
        what: one line about it.
        load: reads it.
        where: the folder that holds it, or None where it is missing.
        get: downloads it, or raises an error that says how to get it; returns where it is.
        by_hand: whether the user has to get it, as it needs a registration or has no public mirror.

    Example:
        >>> KNOWN["digits"].kind, KNOWN["digits"].where()
        ('images', 'ships with pstn')
    """

    name: str
    kind: Literal["images", "series", "photos"]
    what: str
    load: Callable[..., Splits[Any]]
    where: Callable[[], str | None]
    get: Callable[[Progress | None], str]
    by_hand: bool = False


def _from_idx(name: str, which: str, what: str, load: Callable[..., Splits[Any]]) -> Known:
    """A set made of the four IDX files of MNIST or FashionMNIST."""
    files = MNIST_FILES[which].values()

    def where() -> str | None:
        found = [path.parent for path in map(find_file, files) if path is not None]
        return str(found[0]) if len(found) == len(files) else None

    def get(progress: Progress | None) -> str:
        paths = [locate(file, progress=progress) for file in files]
        return str(paths[0].parent)

    return Known(name, "images", what, load, where, get)


def _from_ucr(name: str) -> Known:
    """A set of the UCR archive of which the checksums are known."""
    record = UCR_RECORDS[name]

    def where() -> str | None:
        train, test = find_ucr(name, "TRAIN"), find_ucr(name, "TEST")
        if train is None:
            return None
        return str(train.parent) if test is not None else f"{train.parent} (training part only)"

    what = f"{record.counts[0]:,}/{record.counts[1]:,} series of length {record.length}, {record.classes} classes"
    return Known(name, "series", what, partial(load_ucr, name), where, partial(_get_ucr, name))


def _get_ucr(name: str, progress: Progress | None = None) -> str:
    """Download a set of the UCR or UEA archive unless both of its parts exist, and return the folder."""
    paths = [locate_ucr(ucr_name(name), part, progress=progress) for part in ("TRAIN", "TEST")]
    return str(paths[0].parent)


def _shipped(name: str, kind: Literal["images", "series"], what: str, load: Callable[..., Splits[Any]]) -> Known:
    """A set inside the package."""
    return Known(name, kind, what, load, lambda: "ships with pstn", lambda progress: "the package: it ships with pstn")


def _by_hand(name: str, what: str, load: Callable[..., Splits[Any]], find: Callable[[], Path]) -> Known:
    """A set that cannot be downloaded: `find` returns its place, or raises an error that says what to do."""

    def where() -> str | None:
        try:
            return str(find())
        except MissingDataError:
            return None

    return Known(name, "photos", what, load, where, lambda progress: str(find()), by_hand=True)


def _load_digits(*, normalise: bool = True, validation: float = 0.2, seed: int = 0) -> Splits[Split]:
    """The digits that ship with the package, as `Splits`."""
    parts = []
    for part in ("train", "test"):
        x, y = load_digits(part)
        split = Split(x, y, tuple("0123456789"), "digits" if part == "train" else "digits test")
        parts.append(split.as_float(MNIST_MEAN, MNIST_STD) if normalise else split)
    divided = divide(parts[0], test=0.0, validation=validation, seed=seed)
    return Splits(divided.train, divided.validation, parts[1])


def _load_rotated_digits(*, normalise: bool = False, seed: int = 0, generator: Any = None) -> Splits[Any]:
    return generate_all(_load_digits(normalise=normalise), RandomRotation(), seed=seed, generator=generator)


def _load_traffic_signs(root: str | os.PathLike[str] | None = None, **settings: Any) -> Splits[Split]:
    # The photos have about a third of their original size, and so has the paper's margin of 150 pixels.
    return load_yolo(find_traffic_signs(root), **{"margin": 50.0, "classes": 10, **settings})


_ALL = (
    _from_idx("mnist", "mnist", "handwritten digits, 50,000/10,000/10,000 of 28x28", load_mnist),
    _from_idx(
        "fashion-mnist", "fashion-mnist", "clothes, 50,000/10,000/10,000 of 28x28", partial(load_mnist, "fashion-mnist")
    ),
    _from_idx("rotated-mnist", "mnist", "MNIST turned by any angle; theta known", load_rotated_mnist),
    _from_idx(
        "placed-fashion-mnist",
        "fashion-mnist",
        "FashionMNIST anywhere on a 96x96 canvas; theta known",
        load_placed_fashion,
    ),
    _shipped("digits", "images", "5,000 of MNIST's training images", _load_digits),
    _shipped("rotated-digits", "images", "the same turned by any angle; theta known", _load_rotated_digits),
    *map(_from_ucr, ("FaceAll", "TwoPatterns", "Wafer", "UWaveGestureLibraryX", "PhalangesOutlinesCorrect")),
    _shipped(
        "ItalyPowerDemand",
        "series",
        "67/1,029 series of length 24, 2 classes",
        partial(load_ucr, "ItalyPowerDemand"),
    ),
    _by_hand(
        "mtsd",
        "Mapillary's traffic signs, the paper's subset; needs registration",
        load_mtsd,
        lambda: find_mtsd()[0],
    ),
    _by_hand("traffic-signs", "Italian street photos with YOLO boxes", _load_traffic_signs, find_traffic_signs),
)

KNOWN: Mapping[str, Known] = MappingProxyType({entry.name: entry for entry in _ALL})
"""All data sets known by name, in the order in which they are listed."""


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
            return load_ucr(text[4:], **settings)
    path = expand(text)
    if not path.exists():
        raise MissingDataError(text, _unknown(text, "is no known data set, folder or file"))
    kind = detect(path)
    if kind == "mtsd":
        return load_mtsd(root=path, **settings)
    if kind in ("yolo", "archive"):
        return load_yolo(path, **settings)
    if kind == "series":
        return load_series_file(_training_file(path) if path.is_dir() else path, **settings)
    if kind == "mnist" or kind == "fashion-mnist":
        return load_mnist(kind, root=path, **settings)
    if kind == "npz":
        return from_npz(path, **settings)
    if kind == "classes":
        return from_folder(path, **settings)
    accepted = f".npz; {', '.join(SERIES_SUFFIXES)}, also with .gz; or a tar archive of a YOLO folder"
    raise DataError(path, f"is no file of a known kind: {accepted}")


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
        return _get_ucr(name[4:], progress)
    raise ValueError(f"name must be a known data set: {name!r} {_unknown(name, 'is none')}")


def find_known(name: str) -> Known | None:
    """The declaration of a known set, whatever the case and the dashes of its name; None where there is none.

    Example:
        >>> find_known("face_all").name
        'FaceAll'
    """
    return next((known for known in KNOWN.values() if plain_name(known.name) == plain_name(name)), None)


def _unknown(name: str, problem: str) -> str:
    by_case = {known.lower(): known for known in KNOWN}
    near = difflib.get_close_matches(name.lower(), by_case, n=1)
    hint = f"; did you mean {by_case[near[0]]!r}?" if near else "."
    return f"{problem}{hint} Known are {', '.join(KNOWN)}, and 'ucr:NAME' for any set of the UCR and UEA archives"


def _training_files(folder: Path) -> list[Path]:
    """The NAME_TRAIN files of series in a folder."""
    return sorted(f for f in folder.iterdir() if "_TRAIN." in f.name and series_format(f))


def _training_file(folder: Path) -> Path:
    files = _training_files(folder)
    names = sorted({f.name.split("_TRAIN.")[0] for f in files})
    if len(names) > 1:
        raise DataError(folder, f"holds several sets ({', '.join(names)}): give the NAME_TRAIN file of one of them")
    return require_inside(folder, files[0])


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
        return "series" if series_format(path) else None
    if is_mtsd(path):
        return "mtsd"
    try:
        find_yolo(path)
        return "yolo"
    except DataError:
        pass
    if _training_files(path):
        return "series"
    labels = sorted(path.glob("train-labels-idx1-ubyte*"))
    if not labels or not any(path.glob("train-images-idx3-ubyte*")):
        return "classes"
    # The files of MNIST and FashionMNIST have the same names. Where the labels are of neither, by the folder's name.
    try:
        found = sha256_of_content(labels[0])
    except DataError:
        found = ""
    sums = {which: files["train-labels-idx1-ubyte.gz"].content_sha256 for which, files in MNIST_FILES.items()}
    if found in sums.values():
        return "mnist" if found == sums["mnist"] else "fashion-mnist"
    return "fashion-mnist" if "fashion" in path.resolve().name.lower() else "mnist"
