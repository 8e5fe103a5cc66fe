"""Decoding images within limits, without torch: the only place that opens image files."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pstn import limits
from pstn.files import DataError, import_optional
from pstn.framing import WHOLE, Framing

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


@contextmanager
def decoding(path: Path, problem: str, place: str | None = None, *, writes: bool = False) -> Iterator[None]:
    """Turn whatever a decoder raises on a damaged file, which may be anything, into a DataError.

    Args:
        path: the file.
        problem: what to say of it.
        place: where in it.
        writes: whether files are written, too: errors of the disk stay what they are then.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        if writes and isinstance(error, OSError) and error.errno not in (None, errno.ENAMETOOLONG):
            raise
        raise DataError(path, f"{problem} ({error or type(error).__name__})", place=place) from error


@contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """A Pillow image of the file, open for as long as the block runs; what goes wrong in it is a DataError.

    This is the only place that opens image files: only `IMAGE_FORMATS` are decoded, and only within the limits.
    """
    import_optional("PIL", "Pillow", "data")
    from PIL import Image, UnidentifiedImageError

    Image.preinit()
    with decoding(path, "does not decode as an image"), _ImageStream(path) as stream:
        try:
            image = Image.open(stream, formats=IMAGE_FORMATS)
        except UnidentifiedImageError as error:  # whose text names an object in memory
            raise ValueError(f"it is none of {', '.join(IMAGE_FORMATS)}") from error
        stream.reads_left = -1  # the header has been read
        pixels, scans = image.width * image.height, stream.length // _SHORTEST_SCAN
        if pixels > limits.IMAGE_PIXELS or max(image.size) > limits.IMAGE_SIDE:
            raise DataError(path, f"has {image.width}x{image.height} pixels, too many to decode safely: shrink it")
        if image.info.get("progressive") and pixels * scans > _PIXELS_IN_SECONDS:
            _require_few(path, "scans", b"\xff\xda", limits.JPEG_SCANS)  # a marker that compressed data cannot hold
        elif image.format == "PPM" and image.tile and image.tile[0][0] == "ppm_plain":
            _require_few(path, "comments", b"#", limits.PPM_COMMENTS)
        yield image


class _ImageStream(io.BufferedReader):
    """The bytes of an image file. Its parts may refer to the same bytes, of which Pillow makes a copy for each."""

    def __init__(self, path: Path) -> None:
        # By hand, as `open_regular_file` takes as long as the header of a small image; a pipe is not waited for.
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
        # No more than there is: memory is taken for what is asked for.
        found = super().read(size if size is not None and 0 <= size <= self.length else self.length)
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
    path: Path, channels: int, size: tuple[int, int] | None = None, framing: Framing = WHOLE
) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """A file as (C, H, W) uint8, upright, resized to `size` where given, and the (height, width) that it had.

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour.
        size: (height, width).
        framing: what of it is read.
    """
    with open_image(path) as image:
        from PIL import Image

        converted = turn_upright(with_bytes(image, "L" if channels == 1 else "RGB", path), orientation(image))
        had = (converted.height, converted.width)
        if size is not None and (size != had or framing.crop not in (None, 1)):
            how = Image.Resampling[framing.interpolation.upper()]
            converted = converted.resize((size[1], size[0]), how, framing.box(had, size))
        return to_array(converted), had


def to_array(image: Any) -> npt.NDArray[np.uint8]:
    """A decoded image as (C, H, W) uint8."""
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))
