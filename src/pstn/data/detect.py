"""What a folder or file of somebody's own is: asked when it is loaded and when it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pstn.data.errors import DataError
from pstn.data.files import sha256_of_content
from pstn.data.mnist import MNIST_FILES
from pstn.data.mtsd import is_mtsd
from pstn.data.series_files import series_format
from pstn.data.yolo import find_yolo

__all__ = ["Kind", "detect", "training_files"]

Kind = Literal[
    "mtsd", "yolo", "series", "mnist", "fashion-mnist", "classes", "idx", "archive", "npy", "npz",
]  # fmt: skip


def detect(path: Path) -> Kind | None:
    """The kind of data in a folder or a file; None for a file of no kind that is read here.

    A folder that is nothing else is taken for a folder of images per class.

    Example:
        >>> detect(Path("FaceAll_TRAIN.tsv.gz")), detect(Path("letter.doc"))
        ('series', None)
    """
    return _folder_kind(path) if path.is_dir() else _file_kind(path)


def training_files(folder: Path) -> list[Path]:
    """The NAME_TRAIN files of series in a folder."""
    return sorted(f for f in folder.iterdir() if "_TRAIN." in f.name and series_format(f))


def _folder_kind(path: Path) -> Kind:
    if is_mtsd(path):
        return "mtsd"
    if _is_yolo(path):
        return "yolo"
    if training_files(path):
        return "series"
    labels = sorted(path.glob("train-labels-idx1-ubyte*"))
    if labels and any(path.glob("train-images-idx3-ubyte*")):
        return _which_mnist(labels[0])
    return "classes"


def _file_kind(path: Path) -> Kind | None:
    name = path.name.lower()
    if "ubyte" in name:
        return "idx"
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
        return "archive"
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(".npy"):
        return "npy"
    return "series" if series_format(path) else None


def _is_yolo(path: Path) -> bool:
    try:
        find_yolo(path)
    except DataError:
        return False
    return True


def _which_mnist(labels: Path) -> Literal["mnist", "fashion-mnist"]:
    """By what is in the labels: the files of both have the same names. Where it is neither, by the folder's name."""
    try:
        found = sha256_of_content(labels)
    except DataError:
        found = ""
    if found == MNIST_FILES["fashion-mnist"]["train-labels-idx1-ubyte.gz"].content_sha256:
        return "fashion-mnist"
    if found == MNIST_FILES["mnist"]["train-labels-idx1-ubyte.gz"].content_sha256:
        return "mnist"
    return "fashion-mnist" if "fashion" in labels.parent.resolve().name.lower() else "mnist"
