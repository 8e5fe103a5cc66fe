"""Image files: decoding within limits, folders of images per class, contact sheets."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pstn import limits
from pstn._checks import require_positive_int
from pstn.data.files import DataError, ErrorHandler, Listing, list_folder, raise_error, require_package
from pstn.data.split import Sized, Split, Splits, balanced_indices, divide, encode_labels, name_classes, require_classes
from pstn.files import write_atomically
from pstn.plotting import without_tex

__all__ = ["contact_sheet", "from_folder"]

T = TypeVar("T")
_PARTS = {"train": ("train", "training"), "validation": ("val", "valid", "validation"), "test": ("test", "testing")}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# The first five are what Pillow knows from the start; the others make it import all its decoders, once.
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that are decoded, by Pillow's names, whatever the suffix: other decoders of Pillow start programs."""
_SHORTEST_SCAN = 10  # bytes
_PIXELS_IN_SECONDS = 1 << 32  # of all scans together
_ORIENTATION = 0x0112  # the tag of EXIF
# By Pillow's name of the turn that undoes it.
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip


def find_images(folder: Path, on_error: ErrorHandler = raise_error) -> Iterator[Path]:
    """The image files in a folder and in those below it, in the order of names, as `Listing` lists them.

    Args:
        folder: where to look.
        on_error: called for folders that cannot be read.

    Warns:
        DataWarning: links lead out of the folder, or files are listed under another name; they are skipped.
    """
    with list_folder(folder) as listing:
        yield from listing.files(folder, IMAGE_SUFFIXES, on_error)


@contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """A Pillow image of the file, open for as long as the block runs; what goes wrong in it is a DataError.

    This is the only place that opens image files: only `IMAGE_FORMATS` are decoded, and only within the limits.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(require_package("Pillow", "reading images")) from error
    if not path.is_file():
        raise DataError(path, "there is no such image file")
    try:
        Image.preinit()
        with _ImageStream(path) as stream, Image.open(stream, formats=IMAGE_FORMATS) as image:
            stream.reads_left = -1  # the header has been read
            if image.width * image.height > limits.IMAGE_PIXELS or max(image.size) > limits.IMAGE_SIDE:
                raise Image.DecompressionBombError(f"{image.width}x{image.height}")
            pixels, scans = image.width * image.height, stream.length // _SHORTEST_SCAN
            if image.info.get("progressive") and pixels * scans > _PIXELS_IN_SECONDS:
                _require_few(path, "scans", b"\xff\xda", limits.JPEG_SCANS)  # a marker that compressed data cannot hold
            elif image.format == "PPM" and image.tile and image.tile[0][0] == "ppm_plain":
                _require_few(path, "comments", b"#", limits.PPM_COMMENTS)
            yield image
    except (DataError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        problem = f"has more than {limits.IMAGE_PIXELS:,} pixels, or {limits.IMAGE_SIDE:,} along a side"
        raise DataError(path, f"{problem}, too many to decode safely: make it smaller first") from error
    except Exception as error:  # decoders raise almost anything on damaged files, SyntaxError and struct.error included
        reason = f"it is none of {', '.join(IMAGE_FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(path, f"does not decode as an image ({reason})") from error


class _ImageStream(io.BufferedReader):
    """The bytes of an image file. Its parts may refer to the same bytes, of which Pillow makes a copy for each."""

    def __init__(self, path: Path) -> None:
        # A pipe that took the place of the file is not waited for.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        super().__init__(io.FileIO(os.open(path, flags), "rb"))
        state = os.fstat(self.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > limits.IMAGE_BYTES:
            self.close()
            raise DataError(path, f"is no regular file of at most {limits.IMAGE_BYTES:,} bytes, which is the limit")
        self.path, self.length = path, state.st_size
        self.reads_left = int(limits.IMAGE_READS)
        self._left = 2 * self.length + (1 << 20)
        self._exif_left = int(limits.EXIF_BYTES)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= self.length:  # else memory is taken for what is not there
            size = self.length
        found = super().read(size)
        self._left -= len(found)
        if self._left < 0:
            raise DataError(self.path, "has parts that repeat the same bytes: save it anew")
        if self.reads_left >= 0:
            self.reads_left -= 1
            if found[:6] == b"Exif\0\0":  # of a JPEG file, which may have several; they are parsed when it is opened
                self._exif_left -= len(found)
            if self.reads_left < 0 or self._exif_left < 0:
                raise DataError(self.path, "has a header of too many pieces: save it anew")
        return found


def _require_few(path: Path, what: str, marker: bytes, most: int) -> None:
    """Refuse a file whose scans would take minutes to decode, or whose comments would to skip."""
    found, last = 0, b""
    with path.open("rb") as file:
        while portion := file.read(1 << 20):
            found += (last + portion).count(marker)
            last = portion[len(portion) - len(marker) + 1 :]
    if found > most:
        raise DataError(path, f"has {found:,} {what}, more than the limit of {most:,}: save it anew")


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file, from its header alone."""
    with open_image(path) as image:
        return image.width, image.height


def with_bytes(image: Any, mode: str, path: Path) -> Any:
    """The image in Pillow's mode "L" or "RGB", 8 bits a channel.

    Pillow's own conversion cuts off what is above 255, which makes a picture of 16 bits white, and drops what says
    which pixels are transparent. They become black here, which is what warps read outside a picture.
    """
    from PIL import Image

    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert(mode)
    # These formats have no integers beyond 16 bits, which older versions of Pillow keep in 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        problem = "has 32 bits a pixel, and nothing says which value is white"
        raise DataError(path, f"{problem}: save it with 8 or 16 bits, or pass its numbers to from_arrays")
    return image if image.mode == mode else image.convert(mode)


def orientation(image: Any) -> int:
    """How the camera was held, by EXIF: 1 to 8, of which 1 is upright and 5 and above lie on their side."""
    image.load()  # raises what is wrong with the picture itself; in a PNG the tag may come after it, too
    notes = [image.info[name] for name in ("exif", "Raw profile type exif") if name in image.info]
    try:
        found = image.getexif().get(_ORIENTATION) if all(len(note) <= limits.EXIF_BYTES for note in notes) else None
    except Exception:  # damaged metadata of a good picture
        found = None
    return found if found in _TURNS else 1


def turn_upright(image: Any, orientation: int) -> Any:
    """The image as it is meant to be seen, which is how viewers show it."""
    from PIL import Image

    return image if orientation == 1 else image.transpose(Image.Transpose[_TURNS[orientation]])


def read_image(
    path: Path, channels: int, size: tuple[int, int] | None = None
) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """A file as (C, H, W) uint8, upright, resized to `size` where given, and the (height, width) that it had.

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour.
        size: (height, width).
    """
    with open_image(path) as image:
        converted = turn_upright(with_bytes(image, "L" if channels == 1 else "RGB", path), orientation(image))
        had = (converted.height, converted.width)
        return to_array(converted if size in (None, had) else converted.resize((size[1], size[0]))), had


def to_array(image: Any) -> npt.NDArray[np.uint8]:
    """A decoded image as (C, H, W) uint8."""
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))


def each_in_parallel(work: Callable[[T], None], items: Iterable[T], workers: int | None = None) -> None:
    """Call `work` on every item in threads: decoders release the interpreter. The first error stops the rest.

    Args:
        work: what to do with an item.
        items: the items.
        workers: how many threads; one per processor, at most 8, where None. Each holds one decoded image.
    """
    pool = ThreadPoolExecutor(max_workers=workers or min(8, os.cpu_count() or 1))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # also when the user interrupts


def from_folder(
    root: str | os.PathLike[str], *, size: int | tuple[int, int] | None = None, channels: Literal[1, 3] | None = None,
    test: float = 0.2, validation: float = 0.0, seed: int = 0, workers: int | None = None,
) -> Splits[Split]:  # fmt: skip
    """A folder of images per class: root/cat/1.png, or root/train/cat/1.png with val/ and test/ beside it.

    Args:
        root: the folder.
        size: resize every image to this side, or to (height, width); without it all must be of one size.
        channels: 1 for grey, 3 for colour; colour where any image has it, if None.
        test: the share of each class to test on, where the folder is not divided already.
        validation: likewise for validation.
        seed: of that division.
        workers: decoding threads.

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
    target = (require_positive_int("size", size),) * 2 if isinstance(size, int) else size
    with list_folder(root) as listing:
        folders = listing.entries(root)[0]
        found = {folder.name.lower(): folder for folder in folders}
        parts = {part: next((found[n] for n in names if n in found), None) for part, names in _PARTS.items()}
        train = parts["train"]
        beside = found.keys() - set(chain(*_PARTS.values()))
        # A folder called "train" is a class, of vehicles say, where it has other classes beside it and images in it.
        if train is None or (beside and any(f.suffix.lower() in IMAGE_SUFFIXES for f in train.iterdir())):
            everything = _read_classes(listing, root, folders, None, target, channels, workers)
            return divide(everything, test=test, validation=validation, seed=seed)
        made: dict[str, Split] = {}
        for part, folder in parts.items():
            if folder is not None:
                inner = listing.entries(folder)[0]
                made[part] = _read_classes(listing, folder, inner, made.get("train"), target, channels, workers)
        return Splits(**made)


def _read_classes(
    listing: Listing, root: Path, folders: list[Path], like: Split | None, size: tuple[int, int] | None,
    channels: int | None, workers: int | None,
) -> Split:  # fmt: skip
    """The images in folders, one per class; with the classes, the size and the channels of `like` where given."""
    if not folders:
        raise DataError(root, "holds no folders: one per class is expected, with its images in it")
    if like is not None:
        channels, size = like.x.shape[1], (like.x.shape[2], like.x.shape[3])
    names = tuple(f.name for f in folders) if like is None else like.classes
    require_classes(len(names))
    known = set(names)
    labelled: list[tuple[Path, str]] = []
    for folder in folders:
        images = sorted(listing.files(folder, IMAGE_SUFFIXES))
        if folder.name not in known:
            raise DataError(folder, f"unknown label {folder.name!r}: the training part has {name_classes(names)}")
        if not images and like is None:
            raise DataError(folder, f"holds no images ({', '.join(IMAGE_SUFFIXES)})")
        labelled += [(path, folder.name) for path in images]
    if not labelled:
        raise DataError(root, "holds no images")
    paths, labels = zip(*labelled, strict=True)
    if size is None or channels is None:
        seen: dict[Path, tuple[bool, tuple[int, int]]] = {}

        def look(path: Path) -> None:
            with open_image(path) as image:
                grey = image.mode in ("L", "1", "LA", "I", "F") or image.mode.startswith("I;16")
                seen[path] = grey, image.size[:: 1 if size is None and orientation(image) >= 5 else -1]

        each_in_parallel(look, paths, workers)
        channels = channels or (1 if all(grey for grey, _ in seen.values()) else 3)
        if size is None:
            size = seen[paths[0]][1]
            odd = next((path for path in paths if seen[path][1] != size), None)
            if odd is not None:
                shapes = " and ".join(f"{width}x{height}" for height, width in (seen[odd][1], size))
                raise DataError(odd, f"images must be of one size, got {shapes}: pass size= (--size)")
    out = np.empty((len(paths), channels, *size), np.uint8)

    def read(i: int) -> None:
        out[i], _ = read_image(paths[i], out.shape[1], size)

    each_in_parallel(read, range(len(paths)), workers)
    return Split(torch.from_numpy(out), encode_labels(labels, names), names, root.name)


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
    shape = "x".join(map(str, x.shape[2:]))
    kind = "series of length" if batch.ndim == 1 else "images of"
    head = f"{title or batch.name}: {len(data):,} {kind} {shape}, {len(batch.classes)} classes"
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
