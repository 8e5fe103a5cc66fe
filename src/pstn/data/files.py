"""Reading files of unknown quality: bounded and checked."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from pstn.data.errors import DataError
from pstn.limits import ARCHIVE_FREE_BYTES, ARCHIVE_RATIO

__all__ = [
    "MAX_RATIO",
    "bounded_read",
    "is_gzip",
    "most_unpacked",
    "open_stream",
    "parse_npy",
    "read_lines",
    "read_npy",
    "read_text",
    "require_shape",
    "sha256_of_content",
]

# Deflate cannot expand a byte to more than 1,032: a header that promises more than that is a lie, known before reading.
MAX_RATIO = 1032
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_LONGEST_HEADER = 1 << 16  # of a .npy file; numpy accepts fewer bytes
_MOST_AXES = 32  # of any version of numpy
LONGEST_LINE = 1 << 26


def is_gzip(path: Path) -> bool:
    """Whether the file is gzipped, by its first two bytes: names lie more often than contents."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def most_unpacked(path: Path) -> int:
    """The most bytes that may come out of a compressed file or an archive: photos, numbers and text shrink by less.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.gz"
        >>> _ = path.write_bytes(bytes(100))
        >>> most_unpacked(path) >> 20
        256
    """
    return max(ARCHIVE_FREE_BYTES, ARCHIVE_RATIO * path.stat().st_size)


@contextlib.contextmanager
def open_stream(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of `path`, unpacked on the way where it is gzipped; what goes wrong on the way is a DataError."""
    try:
        if path.stat().st_size == 0:
            raise DataError(path, "is empty")
        with path.open("rb") as file:
            if file.peek(2)[:2] != _GZIP:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked)
    except EOFError as error:
        raise DataError(path, "the gzip stream ends too early: the file is truncated, fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(path, f"the gzip stream is damaged ({error}): fetch the file again") from error
    except IsADirectoryError as error:
        raise DataError(path, "is a folder, where a file is expected") from error


def bounded_read(stream: IO[bytes], count: int) -> bytearray:
    """Up to `count` bytes, taken in small portions: memory grows with what is there, not with what was promised."""
    out = bytearray()
    while len(out) < count:
        portion = stream.read(min(_CHUNK, count - len(out)))
        if not portion:
            break
        out += portion
    return out


def read_text(path: Path, *, limit: int) -> str:
    """A text file, plain or gzipped, of at most `limit` bytes, as UTF-8 with or without a byte-order mark."""
    with open_stream(path) as stream:
        limit = min(limit, most_unpacked(path))
        content = bounded_read(stream, limit + 1)
    if len(content) > limit:
        raise DataError(path, f"holds more than {limit:,} bytes of text, which is the limit")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not UTF-8 text ({error.reason})", place=f"byte {error.start}") from error


def read_lines(path: Path, *, limit: int) -> Iterator[tuple[int, str]]:
    r"""The numbered lines of a text file as for `read_text`, one at a time.

    Only "\n" ends a line, whatever else Unicode has for it: editors count lines so.
    """
    number = 0
    with open_stream(path) as stream:
        left = limit = min(limit, most_unpacked(path))
        while line := stream.readline(min(left, LONGEST_LINE) + 1):
            number += 1
            place = f"line {number}"
            left -= len(line)
            if left < 0:
                raise DataError(path, f"holds more than {limit:,} bytes of text, which is the limit", place=place)
            if len(line) > LONGEST_LINE:
                raise DataError(path, f"is longer than {LONGEST_LINE:,} bytes, which is the limit", place=place)
            if b"\0" in line:
                raise DataError(path, "is not a text file: it holds a zero byte", place=place)
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(path, f"is not UTF-8 text ({error.reason})", place=place) from error


def sha256_of_content(path: Path, *, limit: int = 1 << 34) -> str:
    """The SHA-256 of what is in a file, after unpacking: the same for a plain file and for any gzip of it."""
    digest, seen = hashlib.sha256(), 0
    with open_stream(path) as stream:
        limit = min(limit, most_unpacked(path))
        while portion := stream.read(_CHUNK):
            digest.update(portion)
            seen += len(portion)
            if seen > limit:
                raise DataError(path, f"unpacks to more than {limit:,} bytes, which is the limit")
    return digest.hexdigest()


def read_npy(path: Path, *, mmap: bool = False) -> npt.NDArray[Any]:
    """An array from a .npy file, without pickle, and only if the file is as long as its header says.

    Args:
        path: the file.
        mmap: map the file instead of reading it, copy-on-write: for arrays larger than memory.
    """
    if not path.is_file():
        raise DataError(path, "there is no such file")
    with path.open("rb") as file:
        shape, _, dtype, start = _npy_header(io.BytesIO(file.read(_LONGEST_HEADER)), path, None)
    _check_npy_length(path, None, shape, dtype, path.stat().st_size - start)
    empty = 0 in shape
    return cast("npt.NDArray[Any]", np.load(path, allow_pickle=False, mmap_mode="c" if mmap and not empty else None))


def parse_npy(content: bytes | bytearray, path: Path, place: str) -> npt.NDArray[Any]:
    """An array from the bytes of a .npy file, without pickle; `path` and `place` are for messages."""
    shape, fortran, dtype, start = _npy_header(io.BytesIO(content), path, place)
    _check_npy_length(path, place, shape, dtype, len(content) - start)
    flat = np.frombuffer(content, dtype, offset=start)
    # Without a copy where the values lie as they should: arrays may fill half of the memory.
    return np.require(flat.reshape(shape, order="F" if fortran else "C"), requirements=("ALIGNED", "WRITEABLE"))


def _npy_header(stream: IO[bytes], path: Path, place: str | None) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except MemoryError:
        raise
    except Exception as error:  # the header is a Python literal, and its reader raises what evaluating one can raise
        raise DataError(path, f"is not a .npy file ({error})", place=place or "header") from error
    if not dtype.itemsize:
        raise DataError(path, "has values of 0 bytes: at least 1 is expected", place=place or "header")
    require_shape(shape, dtype, path, place)
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle can read: it is refused"
        raise DataError(path, problem, place=place or "header")
    return shape, fortran, dtype, stream.tell()


def require_shape(shape: tuple[Any, ...], dtype: np.dtype[Any], path: Path, place: str | None = None) -> None:
    """Refuse the shape in a file's header where no array can have it."""
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise DataError(path, "the extents of an array must be whole numbers, 0 or above", place=place or "header")
    # numpy counts in 64 bits, without the axes that are empty.
    if len(shape) > _MOST_AXES or dtype.itemsize * math.prod(extent or 1 for extent in shape) >> 62:
        problem = f"has {len(shape)} axes, at most {_MOST_AXES} are expected, or extents that are too large"
        raise DataError(path, problem, place=place or "header")


def _check_npy_length(path: Path, place: str | None, shape: tuple[int, ...], dtype: np.dtype[Any], held: int) -> None:
    promised = dtype.itemsize * math.prod(int(extent) for extent in shape)
    if promised != held:
        problem = f"the header promises {promised:,} bytes ({dtype}, {shape}), the file holds {held:,}"
        raise DataError(path, problem, place=place or "header")
