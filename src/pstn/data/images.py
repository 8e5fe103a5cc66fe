"""Decoding image files, in parallel, without trusting them."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pstn.data.errors import DataError, Refuse, raise_it, require_package
from pstn.data.listing import list_folder
from pstn.limits import EXIF_BYTES, IMAGE_BYTES, IMAGE_PIXELS, IMAGE_READS, IMAGE_SIDE, JPEG_SCANS, PPM_COMMENTS

__all__ = [
    "IMAGE_FORMATS",
    "IMAGE_SUFFIXES",
    "each_in_parallel",
    "find_images",
    "image_size",
    "is_grey",
    "open_image",
    "orientation",
    "read_image",
    "to_array",
    "turn_upright",
    "upright_size",
    "with_bytes",
]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# The first five are what Pillow knows from the start; the others make it import all its decoders, once.
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that are decoded, by Pillow's names, whatever the suffix: other decoders of Pillow start programs."""
T = TypeVar("T")

_SHORTEST_SCAN = 10  # bytes
_PIXELS_IN_SECONDS = 1 << 32  # of all scans together
_TOO_LARGE = f"has more than {IMAGE_PIXELS:,} pixels, too many to decode safely: make it smaller first"


def find_images(folder: Path, refuse: Refuse = raise_it) -> Iterator[Path]:
    """The image files in a folder and in those below it, in the order of names, as `Listing` lists them.

    Args:
        folder: where to look.
        refuse: told of folders that cannot be read.

    Warns:
        DataWarning: links lead out of the folder, or files are listed under another name; they are left out.
    """
    with list_folder(folder) as listing:
        yield from listing.files(folder, IMAGE_SUFFIXES, refuse)


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
            _require_moderate(path, image)
            if image.info.get("progressive") or _is_plain_ppm(image):
                prepare = _after(lambda: _require_quick(path, image), image.load_prepare)
                image.load_prepare = prepare  # type: ignore[method-assign]  # of this image alone
            try:
                yield image
            finally:
                # It refers to the image, which would stay in memory until the garbage collector runs.
                vars(image).pop("load_prepare", None)
    except UnidentifiedImageError as error:
        raise DataError(path, f"does not decode as an image (it is none of {', '.join(IMAGE_FORMATS)})") from error
    except (DataError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(path, _TOO_LARGE) from error
    except Exception as error:  # decoders raise almost anything on damaged files, SyntaxError and struct.error included
        raise DataError(path, f"does not decode as an image ({error})") from error


class _ImageStream(io.BufferedReader):
    """The bytes of an image file. Its parts may refer to the same bytes, of which Pillow makes a copy for each."""

    def __init__(self, path: Path) -> None:
        # A pipe that took the place of the file is not waited for.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        super().__init__(io.FileIO(os.open(path, flags), "rb"))
        state = os.fstat(self.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > IMAGE_BYTES:
            self.close()
            raise DataError(path, f"is no regular file of at most {IMAGE_BYTES:,} bytes, which is the limit")
        self.path, self.length = path, state.st_size
        self.reads_left = int(IMAGE_READS)
        self._left = 2 * self.length + (1 << 20)
        self._exif_left = int(EXIF_BYTES)

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


def _require_moderate(path: Path, image: Any) -> None:
    """Refuse what would fill the memory; a file of a few kilobytes can claim any size."""
    if image.width * image.height > IMAGE_PIXELS:
        raise DataError(path, _TOO_LARGE)
    if max(image.size) > IMAGE_SIDE:
        raise DataError(path, f"has a side of more than {IMAGE_SIDE:,} pixels, too many to decode safely")


def _is_plain_ppm(image: Any) -> bool:
    return image.format == "PPM" and bool(image.tile) and image.tile[0][0] == "ppm_plain"


def _require_quick(path: Path, image: Any) -> None:
    """Refuse what would take minutes to decode."""
    if not _is_plain_ppm(image):
        _require_few_scans(path, image)
        return
    with path.open("rb") as file:
        if sum(line.count(b"#") for line in file) > PPM_COMMENTS:
            raise DataError(path, f"has more than {PPM_COMMENTS} comments, which is the limit")


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    """What calls both: `load_prepare` of an image is called before it is decoded, and not for its header alone."""

    def both() -> None:
        first()
        then()

    return both


def _require_few_scans(path: Path, image: Any) -> None:
    """Refuse a JPEG file whose scans would take minutes to decode."""
    if image.width * image.height * (path.stat().st_size // _SHORTEST_SCAN) < _PIXELS_IN_SECONDS:
        return
    found, last = 0, b""
    with path.open("rb") as file:
        while portion := file.read(1 << 20):
            found += (last + portion).count(b"\xff\xda")  # the marker of a scan, which compressed data cannot hold
            last = portion[-1:]
    if found > JPEG_SCANS:
        raise DataError(path, f"has {found:,} scans, more than the limit of {JPEG_SCANS:,}: save it anew")


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file, from its header alone."""
    with open_image(path) as image:
        width, height = image.size
    return int(width), int(height)


def is_grey(mode: str) -> bool:
    """Whether Pillow's mode of an image has no colours."""
    return mode in ("L", "1", "LA", "I", "F") or mode.startswith("I;16")


def with_bytes(image: Any, mode: str, path: Path) -> Any:
    """The image in Pillow's mode "L" or "RGB", 8 bits a channel.

    Pillow's own conversion cuts off what is above 255, which makes a picture of 16 bits white, and drops what says
    which pixels are transparent. They become black here, which is what warps read outside a picture.
    """
    from PIL import Image

    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert(mode)

    # These formats know no whole numbers beyond 16 bits, which older versions of Pillow keep in 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        problem = (
            "has 32 bits a pixel, of which none says what is white: save it with 8 or 16 bits, or pass from_arrays"
        )
        raise DataError(path, f"{problem} its numbers")
    return image if image.mode == mode else image.convert(mode)


_ORIENTATION = 0x0112  # of EXIF
# By what Pillow calls the turn that undoes it.
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip


def orientation(image: Any) -> int:
    """How the camera was held, by EXIF: 1 to 8, of which 1 is upright and 5 and above lie on their side."""
    image.load()  # what is wrong with the picture itself is to be told; in a PNG the note may come after it, too
    notes = [image.info[name] for name in ("exif", "Raw profile type exif") if name in image.info]
    try:
        found = image.getexif().get(_ORIENTATION) if all(len(note) <= EXIF_BYTES for note in notes) else None
    except Exception:  # of a damaged note beside the picture, not of the picture: as good as none
        found = None
    return found if found in _TURNS else 1


def turn_upright(image: Any, orientation: int) -> Any:
    """The image as it is meant to be seen, which is how viewers show it."""
    from PIL import Image

    return image if orientation == 1 else image.transpose(Image.Transpose[_TURNS[orientation]])


def upright_size(image: Any) -> tuple[int, int]:
    """(height, width) of an image as it is meant to be seen."""
    return (image.width, image.height) if orientation(image) >= 5 else (image.height, image.width)


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
    workers = workers or min(8, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        futures = [pool.submit(work, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future in done:
                future.result()
    finally:
        # Also when the user interrupts: what is queued is not worth waiting for.
        pool.shutdown(wait=False, cancel_futures=True)
