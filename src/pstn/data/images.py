"""Images: decoding within limits, folders of images per class, contact sheets, MNIST and FashionMNIST."""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_choice, require_nonnegative_int, require_positive_int
from pstn._deprecation import renamed
from pstn.data import files
from pstn.data.augment import Generated, RandomPlacement, RandomRotation, generate_all
from pstn.data.files import DataError, DataWarning, ErrorHandler, Listing, Progress, RemoteFile, raise_error

from pstn.data.split import (  # isort: skip
    Sized, Split, Splits, balanced_indices, divide, encode_labels, name_parts, read_indices,
)  # fmt: skip
from pstn.decode import open_image, orientation, read_image
from pstn.files import import_optional, write_atomically
from pstn.framing import WHOLE, Framing

__all__ = [
    "MNIST_MEAN", "MNIST_STD", "Digits", "contact_sheet", "from_folder", "load_digits", "load_mnist",
    "load_placed_fashion", "load_rotated_mnist", "mnist_subset", "read_idx",
]  # fmt: skip

T = TypeVar("T")
R = TypeVar("R")
SizeRule = Callable[[Sequence[tuple[int, int]]], tuple[int, int]]
_PARTS = {"train": ("train", "training"), "validation": ("val", "valid", "validation"), "test": ("test", "testing")}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# Photos of these formats are counted, so that nobody takes them for read.
_NOT_READ = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".psd", ".svg")
# Sides of images that keep their size, and of those that are resized, where nobody says otherwise.
_LARGEST_OWN_SIDE, _LARGEST_SIDE = 128, 64


def find_images(folder: Path, on_error: ErrorHandler = raise_error) -> Iterator[Path]:
    """The image files in a folder and in those below it, in the order of names, as `Listing` lists them.

    Args:
        folder: where to look.
        on_error: called for folders that cannot be read.

    Warns:
        DataWarning: links lead out of the folder, or files are listed under another name; they are skipped.
    """
    with files.list_folder(folder) as listing:
        yield from listing.files(folder, IMAGE_SUFFIXES, on_error)


def each_in_parallel(work: Callable[[T], R], items: Iterable[T], workers: int | None = None) -> list[R]:
    """What `work` returns for each item, in threads: decoders release the interpreter. The first error stops the rest.

    Args:
        work: what to do with an item.
        items: the items.
        workers: how many threads; one per processor, at most 8, where None. Each holds one decoded image.
    """
    pool = ThreadPoolExecutor(max_workers=workers or min(8, os.cpu_count() or 1))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # also when the user interrupts


def from_folder(
    root: str | os.PathLike[str], *, size: int | tuple[int, int] | Literal["auto"] | SizeRule | None = None,
    channels: Literal[1, 3] | None = None, test: float = 0.2, validation: float = 0.0, seed: int = 0,
    workers: int | None = None, skip_broken: bool = False, framing: Framing = WHOLE,
) -> Splits[Split]:  # fmt: skip
    """A folder of images per class: root/cat/1.png, or root/train/cat/1.png with val/ and test/ beside it.

    Args:
        root: the folder.
        size: resize every image to this side, or to (height, width); without it all must be of one size. "auto" leaves
            images that are all of one size of at most 128 as they are, and makes others square: 64, or less if most are
            smaller. A function makes (height, width) from the sizes of all images.
        channels: 1 for grey, 3 for colour; colour where any image has it, if None.
        test: the share of each class to test on, where the folder is not divided already.
        validation: likewise for validation.
        seed: of that division.
        workers: decoding threads.
        skip_broken: leave out images that cannot be read, with a `DataWarning`; else the first one is an error.
        framing: what of each image is read, and how it is resized: see `pstn.data.Framing`.

    Returns:
        Images (N, C, H, W) as uint8; `as_float` makes numbers of them.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     Image.new("RGB", (32, 24)).save(root / name / "1.png")
        >>> splits = from_folder(root, test=0.0)
        >>> splits.train.x.shape, splits.train.classes
        (torch.Size([2, 3, 24, 32]), ('cat', 'dog'))
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(root, "there is no such folder")
    if isinstance(size, str):
        require_choice("size (unless it is a number)", size, ("auto",))
    target = (require_positive_int("size", size),) * 2 if isinstance(size, int) else size
    target = choose_size if target == "auto" else target
    broken: list[DataError] = []
    read = partial(
        _read_classes,
        size=target,
        channels=channels,
        workers=workers,
        broken=broken if skip_broken else None,
        framing=framing,
    )
    with files.list_folder(root) as listing:
        folders = listing.entries(root)[0]
        if unread := _name_unread(root):
            warnings.warn(DataWarning(f"{root}: {unread} skipped: convert them to JPEG or PNG"), stacklevel=2)
        found = {folder.name.lower(): folder for folder in folders}
        parts = {part: next((found[n] for n in names if n in found), None) for part, names in _PARTS.items()}
        train = parts["train"]
        beside = found.keys() - set(chain(*_PARTS.values()))
        # A folder called "train" is a class, of vehicles say, where it has other classes beside it and images in it.
        if train is None or (beside and any(f.suffix.lower() in IMAGE_SUFFIXES for f in train.iterdir())):
            made = divide(read(listing, root, folders), test=test, validation=validation, seed=seed)
        else:
            held: dict[str, Split] = {}
            for part, folder in parts.items():
                if folder is not None:
                    held[part] = read(listing, folder, listing.entries(folder)[0], like=held.get("train"))
            made = Splits(**held)
    if broken:
        warnings.warn(DataWarning(f"{len(broken):,} broken image(s) skipped: {name_some(broken)}"), stacklevel=2)
    return made


def _name_unread(folder: Path) -> str:
    """How many photos of formats that are not read are in a folder and below it; empty if there are none."""
    found = [path.suffix.lower() for path in Listing(folder).files(folder, _NOT_READ, lambda error: None)]
    return f"{len(found):,} file(s) of formats that are not read ({', '.join(sorted(set(found)))})" if found else ""


def has_colour(root: Path) -> bool:
    """Whether any image in a folder has colours, as `from_folder` asks; those that cannot be read are passed over.

    Their headers say so: all of them take about a tenth of the time of decoding grey images.
    """
    for path in find_images(root, lambda error: None):
        with suppress(DataError), open_image(path) as image:
            if not _is_grey(image):
                return True
    return False


def _is_grey(image: Any) -> bool:
    return image.mode in ("L", "1", "LA", "I", "F") or image.mode.startswith("I;16")


def name_some(broken: list[DataError], most: int = 5) -> str:
    """The first errors for a message, and how many more there are."""
    more = f"; and {len(broken) - most:,} more" if len(broken) > most else ""
    return "; ".join(sorted(map(str, broken))[:most]) + more


def choose_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The (height, width) to which images of these sizes are resized.

    Example:
        >>> choose_size([(28, 28), (28, 28)]), choose_size([(480, 640), (640, 480)]), choose_size([(30, 50), (40, 44)])
        ((28, 28), (64, 64), (35, 35))
    """
    if len(set(sizes)) == 1 and max(sizes[0]) <= _LARGEST_OWN_SIDE:
        return sizes[0]
    return (min(_LARGEST_SIDE, int(np.median([min(size) for size in sizes]))),) * 2


def _read_classes(
    listing: Listing, root: Path, folders: list[Path], *, size: tuple[int, int] | SizeRule | None,
    channels: int | None, workers: int | None, broken: list[DataError] | None, framing: Framing,
    like: Split | None = None,
) -> Split:  # fmt: skip
    """The images in folders, one per class; with the classes, the size and the channels of `like` where given.

    Errors of images are added to `broken`, where it is a list, and the images left out.
    """
    if not folders:
        raise DataError(root, "holds no folders: one per class is expected, with its images in it")
    if like is not None:
        channels, size = like.x.shape[1], (like.x.shape[2], like.x.shape[3])
    names = tuple(f.name for f in folders) if like is None else like.classes
    paths: list[Path] = []
    labels: list[str] = []
    for folder in folders:
        found = sorted(listing.files(folder, IMAGE_SUFFIXES))
        if not found and like is None:
            unread = _name_unread(folder)
            raise DataError(folder, f"holds no images ({', '.join(IMAGE_SUFFIXES)}){unread and f', and {unread}'}")
        paths += found
        labels += [folder.name] * len(found)
    if not paths:
        raise DataError(root, "holds no images")
    y = encode_labels(labels, names, lambda i, problem: DataError(paths[i], problem))

    def attempt(work: Callable[[Path], R], path: Path) -> R | None:
        try:
            return work(path)
        except DataError as error:
            if broken is None:
                raise DataError(path, f"{error.problem}; skip_broken=True (--skip-broken) skips such files") from error
            broken.append(error)
            return None

    if not isinstance(size, tuple) or channels is None:

        def look(path: Path) -> tuple[bool, tuple[int, int]]:
            with open_image(path) as image:
                turned = not isinstance(size, tuple) and orientation(image) >= 5
                return _is_grey(image), image.size[:: 1 if turned else -1]

        found_out = each_in_parallel(partial(attempt, look), paths, workers)
        paths, y = [path for path, seen in zip(paths, found_out, strict=True) if seen], y[[bool(s) for s in found_out]]
        grey, sizes = zip(*filter(None, found_out), strict=True) if paths else ((), ())
        channels = channels or (1 if all(grey) else 3)
        if callable(size) and paths:
            size = size(sizes)
        elif size is None and paths:
            size = sizes[0]
            odd = next((i for i, other in enumerate(sizes) if other != size), None)
            if odd is not None:
                shapes = " and ".join(f"{width}x{height}" for height, width in (sizes[odd], sizes[0]))
                raise DataError(paths[odd], f"images must be of one size, got {shapes}: pass size= (--size)")
    fits = size if isinstance(size, tuple) else (1, 1)  # of no image
    out, at = np.empty((len(paths), channels, fits[0], fits[1]), np.uint8), {path: i for i, path in enumerate(paths)}

    def read(path: Path) -> bool:
        out[at[path]], _ = read_image(path, out.shape[1], fits, framing)
        return True

    fine = torch.tensor([bool(done) for done in each_in_parallel(partial(attempt, read), paths, workers)])
    if not fine.any() or (like is None and len(y[fine].unique()) < len(names)):
        raise DataError(root, f"holds a class without an image that can be read: {name_some(broken or [])}")
    x = torch.from_numpy(out)
    return Split(x if fine.all() else x[fine], y[fine], names, root.name)


@contextmanager
def without_tex() -> Iterator[None]:
    """Matplotlib without TeX in the block: a `matplotlibrc` in the current folder may ask for it, and it is a program.

    Raises:
        ImportError: matplotlib is not installed, with how to install it.

    Example:
        >>> import matplotlib
        >>> with without_tex():
        ...     matplotlib.rcParams["text.usetex"]
        False
    """
    matplotlib = import_optional("matplotlib", "matplotlib", "plot")
    with matplotlib.rc_context({"text.usetex": False}):
        yield


@without_tex()
def contact_sheet(
    data: Sized, path: str | os.PathLike[str], *, title: str = "", count: int = 40, columns: int = 10, seed: int = 0
) -> Path:
    """Draw examples of a data set, as even over the classes as can be, with their classes, into a PNG file.

    Images are shown with the full range of their values from black to white, and series as lines at one scale;
    generated examples have theta below their class. Needs matplotlib: `pip install 'pstn[plot]'`.

    Args:
        data: a `Split` or `Generated`.
        path: the file to write.
        title: above the examples; the name of the data where empty.
        count: how many examples.
        columns: how many of them in a row.
        seed: of the choice.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, pstn
        >>> contact_sheet(pstn.data.load("digits").train, Path(tempfile.mkdtemp()) / "digits.png").name
        'digits.png'
    """
    from matplotlib.figure import Figure

    count = min(require_positive_int("count", count), len(data))
    columns = min(require_positive_int("columns", columns), count)
    index = balanced_indices(data.y, count, seed=seed)
    batch = data.batch(index[torch.argsort(data.y.cpu()[index], stable=True)]).to("cpu")
    batch = batch if batch.x.is_floating_point() else batch.as_float()
    x = batch.x if batch.mask is None else batch.x.masked_fill(~batch.mask[:, None], torch.nan)
    values = x[~x.isnan()].numpy()
    # A single spike would flatten all other series: the outermost hundredths of the values are cut off.
    low, high = np.quantile(values, (0.01, 0.99) if batch.ndim == 1 else (0, 1))
    high = high if high > low else low + 1
    rows = -(-count // columns)
    figure = Figure(figsize=(1.2 * columns + 0.2, 1.5 * rows + 0.4), dpi=100, layout="constrained")
    shape = "x".join(map(str, x.shape[1:]))
    head = f"{title or batch.name}: {len(data):,} examples of {shape}, {len(batch.classes)} classes"
    figure.suptitle(head.replace("$", r"\$"), fontsize=9)
    for i, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set(xticks=[], yticks=[], frame_on=i < count and batch.ndim == 1)
        if i >= count:
            continue
        if batch.ndim == 1:
            axes.plot(x[i].T.numpy(), linewidth=0.7)
            axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        else:
            pixels = ((x[i] - low) / (high - low)).clamp(0, 1)
            axes.imshow((pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)).movedim(0, -1).numpy())
        caption = batch.classes[int(batch.y[i])][:20].replace("$", r"\$")
        if batch.theta is not None:
            caption += "\n" + ", ".join(f"{value:.2f}" for value in batch.theta[i].tolist())
        axes.set_xlabel(caption, fontsize=6)
    target = Path(path)
    with write_atomically(target) as draft:
        figure.savefig(draft, format="png")
    return target


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

    Returns:
        Splits of `Generated`: images (N, 1, 28, 28) float32, with the angle of each as theta (N, 1).

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

    Returns:
        Splits of `Generated`: images (N, 1, 96, 96) float32, with the placement of each as theta (N, 4).

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
    with files.open_stream(path) as stream:
        magic = bytes(files.bounded_read(stream, 4))
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or magic[3] == 0:
            raise DataError(path, f"is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}", place="offset 0")
        axes, dtype = magic[3], np.dtype(_DTYPES[magic[2]])
        if ndim is not None and axes != ndim:
            raise DataError(path, f"has {axes} axes, expected {ndim}: images and labels swapped?", place="header")
        extents = files.bounded_read(stream, 4 * axes)
        if len(extents) < 4 * axes:
            raise DataError(path, "ends within its header", place="header")
        shape = struct.unpack(f">{axes}I", extents)
        files.require_shape(shape, dtype, path)
        declared, most = dtype.itemsize * math.prod(shape), min(limit, files.most_unpacked(path))
        if declared > most:
            raise DataError(path, f"declares {declared:,} bytes, above the limit of {most:,}", place="header")
        content = files.bounded_read(stream, declared + 1)
    if len(content) != declared:
        place = f"offset {4 + 4 * axes + min(len(content), declared)}"
        raise DataError(path, f"declares {declared:,} bytes of shape {shape}, and holds more or fewer", place=place)
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


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
    with (resources.files("pstn.data") / "offline" / "digits.npz").open("rb") as stream, np.load(stream) as arrays:
        images, labels = arrays[f"{split}_x"], arrays[f"{split}_y"]
    return Digits(torch.from_numpy(images)[:, None].float() / 255, torch.from_numpy(labels).long())


S = TypeVar("S", bound=Sized)
MNIST_MEAN = 0.1307
"""Mean of MNIST's pixels, from 0 to 1."""
MNIST_STD = 0.3081
"""Their standard deviation."""
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MNIST_FILES: dict[str, dict[str, RemoteFile]] = {
    which: {
        name: RemoteFile(which, name, tuple(mirror + name for mirror in known["mirrors"]), **checksums)
        for name, checksums in known["files"].items()
    }
    for which, known in files.CHECKSUMS["mnist_files"].items()
}


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
    parts = []
    for part in ("train", "t10k"):
        remotes = [MNIST_FILES[which][f"{part}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1")]
        paths = [files.locate_file(remote, root=root, fetch=fetch, progress=progress) for remote in remotes]
        for path, remote in zip(paths, remotes, strict=True):
            if verify and files.sha256_of_content(path) != remote.content_sha256:
                problem = f"is not the published file of {which}, by its SHA-256 after unpacking"
                raise DataError(path, f"{problem}. Fetch it again, or pass verify=False to use it as it is")
        x, y = (torch.from_numpy(read_idx(path, ndim=ndim)) for path, ndim in zip(paths, (3, 1), strict=True))
        if x.dtype != torch.uint8 or len(x) != len(y) or ((y < 0) | (y > 9)).any():
            raise DataError(paths[1], f"must hold one label from 0 to 9 for each of {len(x):,} 8-bit images")
        split = Split(x[:, None], y.long(), classes)
        parts.append(split.as_float(MNIST_MEAN, MNIST_STD) if normalise else split.as_float())
    train, test = parts
    if require_nonnegative_int("validation", validation) >= len(train):
        raise ValueError(f"validation must be below {len(train)}, got {validation}")
    cut = len(train) - validation
    return name_parts(which, train.take(slice(cut)), train.take(slice(cut, None)), test)


def mnist_subset(split: S, k: int, *, fold: int = 0, seed: int = 0, indices: str | os.PathLike[str] | None = None) -> S:
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
        return cast("S", split.take(balanced_indices(split.y, k, fold=fold, seed=seed)))
    chosen = read_indices(indices, size=len(split))
    if len(chosen) != k:
        raise DataError(indices, f"holds {len(chosen)} positions, where k={k} were asked for")
    return cast("S", split.take(chosen))
