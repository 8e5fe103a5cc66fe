"""Every data set that is known by name: a declaration each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pstn.data.digits import load_digits
from pstn.data.download import Progress, find_file, locate
from pstn.data.errors import MissingDataError
from pstn.data.generated import generate_all, load_placed_fashion, load_rotated_mnist
from pstn.data.makers import RandomRotation
from pstn.data.mnist import MNIST_FILES, MNIST_MEAN, MNIST_STD, load_mnist
from pstn.data.mtsd import find_mtsd
from pstn.data.own import divide
from pstn.data.signs import find_traffic_signs, load_mtsd, load_yolo
from pstn.data.split import Split, Splits
from pstn.data.ucr import find_ucr, load_ucr, locate_ucr, ucr_name
from pstn.data.ucr_sums import UCR_RECORDS

__all__ = ["KNOWN", "Known", "get_ucr"]

Load = Callable[..., Splits[Any]]


@dataclass(frozen=True)
class Known:
    """A data set that is known by name.

    Attributes:
        name: what `load` and the command line call it.
        kind: "images", "series" or "photos".
        what: one line about it.
        load: reads it.
        where: where it lies, or None where it is absent.
        get: fetches it, or says how to come by it; returns where it is.
        by_hand: whether nobody but the user can get it, as it needs a registration or is not on the net.

    Example:
        >>> KNOWN["digits"].kind, KNOWN["digits"].where()
        ('images', 'ships with pstn')
    """

    name: str
    kind: Literal["images", "series", "photos"]
    what: str
    load: Load
    where: Callable[[], str | None]
    get: Callable[[Progress | None], str]
    by_hand: bool = False


def _from_idx(name: str, which: str, what: str, load: Load) -> Known:
    """A set made of the four IDX files of MNIST or FashionMNIST."""

    def where() -> str | None:
        found = [find_file(file.remote) for file in MNIST_FILES[which].values()]
        return str(found[0].parent) if found[0] is not None and None not in found else None

    def get(progress: Progress | None) -> str:
        paths = [locate(file.remote, progress=progress) for file in MNIST_FILES[which].values()]
        return str(paths[0].parent)

    return Known(name, "images", what, load, where, get)


def _from_ucr(name: str) -> Known:
    """A set of the UCR archive that is on record."""
    record = UCR_RECORDS[name]
    counts = f"{record.train.count:,}/{record.test.count:,}"

    def where() -> str | None:
        train, test = find_ucr(name, "TRAIN"), find_ucr(name, "TEST")
        if train is None:
            return None
        return str(train.parent) if test is not None else f"{train.parent} (training part only)"

    what = f"{counts} series of length {record.length}, {record.classes} classes"
    return Known(name, "series", what, lambda **s: load_ucr(name, **s), where, lambda p: get_ucr(name, p))


def get_ucr(name: str, progress: Progress | None = None) -> str:
    """Fetch a set of the UCR or UEA archive unless both of its parts are here, and return the folder."""
    name = ucr_name(name)
    paths = [locate_ucr(name, part, progress=progress) for part in ("TRAIN", "TEST")]
    return str(paths[0].parent)


def _shipped(name: str, kind: Literal["images", "series"], what: str, load: Load) -> Known:
    """A set inside the package."""
    return Known(name, kind, what, load, lambda: "ships with pstn", lambda progress: "the package: it ships with pstn")


def _by_hand(name: str, what: str, load: Load, find: Callable[[], Any]) -> Known:
    """A set that cannot be downloaded: `find` gives its place, or raises with what to do."""

    def place() -> str:
        found = find()
        return str(found[0] if isinstance(found, tuple) else found)

    def where() -> str | None:
        try:
            return place()
        except MissingDataError:
            return None

    return Known(name, "photos", what, load, where, lambda progress: place(), by_hand=True)


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


def _load_traffic_signs(**settings: Any) -> Splits[Split]:
    root = find_traffic_signs(settings.pop("root", None))
    # The photos are at about a third of their original size: so is the paper's margin of 150 pixels.
    return load_yolo(root, **{"margin": 50.0, "classes": 10, **settings})


_ALL = (
    _from_idx("mnist", "mnist", "handwritten digits, 50,000/10,000/10,000 of 28x28", load_mnist),
    _from_idx(
        "fashion-mnist",
        "fashion-mnist",
        "clothes, 50,000/10,000/10,000 of 28x28",
        lambda **s: load_mnist("fashion-mnist", **s),
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
    _from_ucr("FaceAll"),
    _from_ucr("TwoPatterns"),
    _from_ucr("Wafer"),
    _from_ucr("UWaveGestureLibraryX"),
    _from_ucr("PhalangesOutlinesCorrect"),
    _shipped(
        "ItalyPowerDemand",
        "series",
        "67/1,029 series of length 24, 2 classes",
        lambda **s: load_ucr("ItalyPowerDemand", **s),
    ),
    _by_hand("mtsd", "Mapillary's traffic signs, the paper's subset; needs registration", load_mtsd, find_mtsd),
    _by_hand("traffic-signs", "Italian street photos with YOLO boxes", _load_traffic_signs, find_traffic_signs),
)

KNOWN: Mapping[str, Known] = MappingProxyType({entry.name: entry for entry in _ALL})
"""All data sets known by name, in the order in which they are listed."""
