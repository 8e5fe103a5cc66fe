"""One front door: a data set by its name, or from a folder or file of your own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstn.data.detect import detect, training_files
from pstn.data.download import Progress
from pstn.data.errors import DataError, MissingDataError
from pstn.data.known import KNOWN, Known, get_ucr
from pstn.data.listing import require_inside
from pstn.data.mnist import load_mnist
from pstn.data.own import from_folder, from_npz
from pstn.data.places import expand
from pstn.data.series_files import SERIES_SUFFIXES
from pstn.data.signs import load_mtsd, load_yolo
from pstn.data.split import Splits
from pstn.data.ucr import load_series_file, load_ucr, plain_name

__all__ = ["find_known", "get", "load"]


def load(data: str | os.PathLike[str], **settings: Any) -> Splits[Any]:
    """Load a data set by its name, or from a folder or file of your own.

    A name that is known wins over a folder of the same name in the current one; write ./name for that.

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
    if path.exists():
        return _load_path(path, settings)
    raise MissingDataError(text, _unknown(text, "is no known data set, folder or file"))


def get(name: str, *, progress: Progress | None = None) -> str:
    """Fetch a known data set, or any "ucr:NAME", unless it is here already, and return where it is.

    Args:
        name: as for `load`.
        progress: told how far a download is.

    Example:
        >>> get("digits")
        'the package: it ships with pstn'
    """
    known = find_known(name)
    if known is not None:
        return known.get(progress)
    if name.startswith("ucr:"):
        return get_ucr(name[4:], progress)
    raise ValueError(f"{name!r} {_unknown(name, 'is no known data set')}")


def find_known(name: str) -> Known | None:
    """The declaration of a known set, whatever the case and the dashes of its name; None where there is none.

    Example:
        >>> find_known("face_all").name
        'FaceAll'
    """
    if name in KNOWN:
        return KNOWN[name]
    return next((known for known in KNOWN.values() if plain_name(known.name) == plain_name(name)), None)


def _unknown(name: str, problem: str) -> str:
    near = difflib.get_close_matches(name.lower(), {known.lower(): known for known in KNOWN}, n=1, cutoff=0.6)
    hint = f"; did you mean {next(k for k in KNOWN if k.lower() == near[0])!r}?" if near else "."
    return f"{problem}{hint} Known are {', '.join(KNOWN)}, and 'ucr:NAME' for any set of the UCR and UEA archives"


def _load_path(path: Path, settings: Mapping[str, Any]) -> Splits[Any]:
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
    series = ", ".join(SERIES_SUFFIXES)
    raise DataError(
        path, f"is no file of a known kind: .npz; {series}, also with .gz; or a tar archive of a YOLO folder"
    )


def _training_file(folder: Path) -> Path:
    files = training_files(folder)
    names = sorted({f.name.split("_TRAIN.")[0] for f in files})
    if len(names) > 1:
        raise DataError(folder, f"holds several sets ({', '.join(names)}): give the NAME_TRAIN file of one of them")
    return require_inside(folder, files[0])
