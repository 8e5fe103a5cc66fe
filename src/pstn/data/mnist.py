"""MNIST, FashionMNIST, the digits that ship with the package, and the sets generated from them."""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice
from pstn._deprecation import renamed
from pstn.data.augment import Generated, RandomPlacement, RandomRotation, generate_all
from pstn.data.download import Progress, RemoteFile, locate
from pstn.data.files import DataError, bounded_read, most_unpacked, open_stream, require_shape, sha256_of_content
from pstn.data.split import Sized, Split, Splits, balanced_indices, read_indices

__all__ = [
    "MNIST_MEAN", "MNIST_STD", "Digits", "load_digits", "load_mnist", "load_placed_fashion", "load_rotated_mnist",
    "mnist_subset", "read_idx",
]  # fmt: skip


def load_rotated_mnist(
    *, normalise: bool = False, seed: int = 0, generator: torch.Generator | None = None, **settings: Any
) -> Splits[Generated]:
    """MNIST with every image turned by an angle uniform on (-pi, pi): the paper's rotated MNIST.

    Training images are rotated anew on every access; validation and test images once, by `seed`.

    Args:
        normalise: as in `load_mnist`; the paper's experiment does not.
        seed: of the fixed draws.
        generator: of the fresh draws.
        **settings: root, fetch, verify and progress of `load_mnist`.

    Example:
        >>> batch = load_rotated_mnist().test.batch(range(64))  # doctest: +SKIP
        >>> batch.x.shape, batch.theta.shape  # doctest: +SKIP
        (torch.Size([64, 1, 28, 28]), torch.Size([64, 1]))
    """
    base = load_mnist("mnist", normalise=normalise, **settings)
    return generate_all(base, RandomRotation(), seed=seed, generator=generator)


@renamed(maker="random_transform")
def load_placed_fashion(
    *, random_transform: RandomPlacement | None = None, normalise: bool = True, seed: int = 0,
    generator: torch.Generator | None = None, **settings: Any,
) -> Splits[Generated]:  # fmt: skip
    """FashionMNIST with every image pasted at random on a canvas of 96 x 96: the paper's random placement.

    Training images are placed anew on every access; validation and test images once, by `seed`.

    Args:
        random_transform: the authors' placement where None; `RandomPlacement.as_in_text()` for the paper's text.
        normalise: (x - 0.1307) / 0.3081, as the authors do; the canvas is then at `fill`, not at 0.
        seed: of the fixed draws.
        generator: of the fresh draws.
        **settings: root, fetch, verify and progress of `load_mnist`.

    Example:
        >>> batch = load_placed_fashion().test.batch(range(64))  # doctest: +SKIP
        >>> batch.x.shape, batch.theta.shape  # doctest: +SKIP
        (torch.Size([64, 1, 96, 96]), torch.Size([64, 4]))
    """
    base = load_mnist("fashion-mnist", normalise=normalise, **settings)
    return generate_all(base, random_transform or RandomPlacement(), seed=seed, generator=generator)


_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, *, ndim: int | None = None, limit: int = 1 << 32) -> npt.NDArray[Any]:
    """The array in an IDX file, plain or gzipped.

    Memory is taken as the values arrive, never on the word of the header.

    Args:
        path: the file.
        ndim: how many axes it must have, e.g. 3 for images and 1 for labels.
        limit: the most bytes it may hold.

    Raises:
        DataError: the magic number is not IDX's, or the file holds fewer or more values than its header says.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
        >>> read_idx(path, ndim=1).tolist()
        [7, 2, 1]
    """
    path = Path(path)
    with open_stream(path) as stream:
        magic = bytes(bounded_read(stream, 4))
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or magic[3] == 0:
            raise DataError(path, f"is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}", place="offset 0")
        axes, dtype = magic[3], np.dtype(_DTYPES[magic[2]])
        if ndim is not None and axes != ndim:
            problem = f"has {axes} axes, where {ndim} are expected: images and labels swapped?"
            raise DataError(path, problem, place="header")
        extents = bounded_read(stream, 4 * axes)
        if len(extents) < 4 * axes:
            raise DataError(path, "ends within its header", place="header")
        shape = struct.unpack(f">{axes}I", extents)
        require_shape(shape, dtype, path)
        declared, most = dtype.itemsize * math.prod(shape), min(limit, most_unpacked(path))
        if declared > most:
            problem = f"declares {declared:,} bytes of shape {shape}, above the limit of {most:,}"
            raise DataError(path, problem, place="header")
        content = bounded_read(stream, declared + 1)
    if len(content) != declared:
        problem = f"the header declares {declared:,} bytes of shape {shape}, the file holds more or fewer"
        raise DataError(path, problem, place=f"offset {4 + 4 * axes + min(len(content), declared)}")
    return np.frombuffer(content, dtype).reshape(shape)


class Digits(NamedTuple):
    """A balanced set of handwritten digits; classes alternate, so any prefix of 10 k is balanced too."""

    x: Tensor
    """(N, 1, 28, 28), float32 from 0 (background) to 1."""
    y: Tensor
    """(N,), int64, the digit."""

    def __repr__(self) -> str:
        return f"Digits(x {tuple(self.x.shape)}, y {tuple(self.y.shape)})"


def load_digits(split: str = "train") -> Digits:
    """Load the digits that ship with the package, all from MNIST's own training set.

    Args:
        split: "train", a pool of 4,000 to draw subsets from, or "test", 1,000 others.

    Example:
        >>> digits = load_digits("test")
        >>> digits.x.shape, digits.y[:3]
        (torch.Size([1000, 1, 28, 28]), tensor([0, 1, 2]))
    """
    require_choice("split", split, ("train", "test"))
    with (files("pstn.data") / "offline" / "digits.npz").open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays[f"{split}_x"], arrays[f"{split}_y"]
    return Digits(torch.from_numpy(images)[:, None].float() / 255, torch.from_numpy(labels).long())


T = TypeVar("T", bound=Sized)
MNIST_MEAN = 0.1307
"""Mean of MNIST's pixels, from 0 to 1."""
MNIST_STD = 0.3081
"""Their standard deviation."""
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# name, bytes as served, SHA-256 as served, SHA-256 of the unpacked content
_FILES = {
    "mnist": (
        ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
         "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
         "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
         "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
         "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    "fashion-mnist": (
        ("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
         "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
         "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
         "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
         "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
}  # fmt: skip
_MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
}
MNIST_FILES: dict[str, dict[str, RemoteFile]] = {which: {} for which in _FILES}
for _which, _entries in _FILES.items():
    for _name, _size, _sha256, _content in _entries:
        _urls = tuple(mirror + _name for mirror in _MIRRORS[_which])
        MNIST_FILES[_which][_name] = RemoteFile(_which, _name, _urls, _sha256, _size, _which, content_sha256=_content)


def load_mnist(
    which: Literal["mnist", "fashion-mnist"] = "mnist", *, normalise: bool = True, validation: int = 10_000,
    root: str | os.PathLike[str] | None = None, fetch: bool = True, verify: bool = True,
    progress: Progress | None = None,
) -> Splits[Split]:  # fmt: skip
    """MNIST or FashionMNIST as the paper divides it: 50,000 for training, 10,000 for validation, 10,000 for testing.

    The validation images are the last 10,000 of the training file.

    Args:
        which: "mnist" or "fashion-mnist".
        normalise: (x - 0.1307) / 0.3081, the paper's normalisation, for both; else pixels in [0, 1]. `fill` of each
            part is the value that black has then.
        validation: how many of the 60,000 to set aside; 0 for none.
        root: the folder that holds the files; else $PSTN_DATA/<which>, then the cache, then a download.
        fetch: whether a missing file may be downloaded.
        verify: refuse a file whose content is not the published one.
        progress: called during a download.

    Returns:
        Images (N, 1, 28, 28) float32 and classes.

    Example:
        >>> load_mnist().sizes()  # doctest: +SKIP
        {'train': 50000, 'validation': 10000, 'test': 10000}
    """
    require_choice("which", which, tuple(MNIST_FILES))
    classes = FASHION_CLASSES if which == "fashion-mnist" else tuple("0123456789")
    parts = {}
    for part in ("train", "t10k"):
        files = [MNIST_FILES[which][f"{part}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1")]
        paths = [locate(file, root=root, fetch=fetch, progress=progress) for file in files]
        for path, file in zip(paths, files, strict=True):
            if verify and sha256_of_content(path) != file.content_sha256:
                problem = f"is not the published file of {which}: its SHA-256 after unpacking is not"
                advice = "Fetch it again, or pass verify=False to use it as it is"
                raise DataError(path, f"{problem} {file.content_sha256}. {advice}")
        split = Split(*_read_pair(*paths), classes, f"{which} {'train' if part == 'train' else 'test'}")
        parts[part] = split.as_float(MNIST_MEAN, MNIST_STD) if normalise else split.as_float()
    train = parts["train"]
    if isinstance(validation, bool) or not isinstance(validation, int) or not 0 <= validation < len(train):
        raise ValueError(f"validation must be a whole number from 0 to {len(train) - 1}, got {validation!r}")
    if validation == 0:
        return Splits(train, None, parts["t10k"])
    cut = len(train) - validation
    held_out = dataclasses.replace(train, x=train.x[cut:], y=train.y[cut:], name=f"{which} validation")
    return Splits(dataclasses.replace(train, x=train.x[:cut], y=train.y[:cut]), held_out, parts["t10k"])


def mnist_subset(split: T, k: int, *, fold: int = 0, seed: int = 0, indices: str | os.PathLike[str] | None = None) -> T:
    """A k-image subset of a training split, class-balanced from a seed, or by a published index file.

    Args:
        split: the examples to draw from, a `Split` or `Generated`. A published file counts in all 60,000: load with
            `validation=0` for it.
        k: how many images; see `balanced_indices` for the rule when the classes do not divide it. A published file
            must hold that many.
        fold: which of the subsets of this size.
        seed: which family of folds.
        indices: a .npy file of positions, in place of fold and seed.

    Example:
        >>> split = Split(torch.zeros(100, 1, 2, 2), torch.arange(100) % 10, tuple("0123456789"))
        >>> len(mnist_subset(split, 30, fold=2))
        30
    """
    if indices is None:
        return cast("T", split.take(balanced_indices(split.y, k, fold=fold, seed=seed)))
    chosen = read_indices(indices, size=len(split))
    if len(chosen) != k:
        raise DataError(indices, f"holds {len(chosen)} positions, where k={k} were asked for")
    return cast("T", split.take(chosen))


def _read_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    pixels, classes = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if len(pixels) != len(classes):
        raise DataError(labels, f"holds {len(classes):,} labels for the {len(pixels):,} images in {images}")
    if pixels.shape[1:] != (28, 28) or pixels.dtype != "u1":
        raise DataError(images, f"must hold uint8 images of (28, 28), got {pixels.dtype} of {pixels.shape[1:]}")
    unknown = (classes < 0) | (classes > 9)
    if unknown.any():
        at = int(unknown.argmax())
        raise DataError(labels, f"unknown label {classes[at]}: classes are 0 to 9", place=f"offset {8 + at}")
    return torch.from_numpy(pixels.copy())[:, None], torch.from_numpy(classes.astype("int64"))
