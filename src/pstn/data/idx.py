"""The IDX format of MNIST and its relatives: a magic number, the extents, the values."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pstn.data.errors import DataError
from pstn.data.files import bounded_read, is_gzip, most_unpacked, open_stream, require_shape

__all__ = ["read_idx"]

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
        dtype, shape = _read_header(path, bytes(bounded_read(stream, 4)), stream, ndim)
        promised = dtype.itemsize * math.prod(shape)
        size = path.stat().st_size
        most = min(limit, most_unpacked(path) if is_gzip(path) else size)
        if promised > most:
            raise DataError(
                path,
                f"the header promises {promised:,} bytes of shape {shape}, which a file of {size:,} bytes "
                f"cannot hold or which is above the limit of {limit:,}",
                place="header",
            )
        require_shape(shape, dtype, path)
        content = bounded_read(stream, promised)
        more = stream.read(1)
    offset = 4 + 4 * len(shape)
    if len(content) < promised:
        raise DataError(
            path,
            f"the header promises {promised:,} bytes of shape {shape}, the file holds {len(content):,}",
            place=f"offset {offset + len(content)}",
        )
    if more:
        raise DataError(path, f"holds more than the {promised:,} bytes its header promises", place=f"offset {offset}")
    return np.frombuffer(content, dtype).reshape(shape)


def _read_header(path: Path, magic: bytes, stream: Any, ndim: int | None) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or magic[3] == 0:
        raise DataError(path, f"is not an IDX file: it starts with {magic.hex(' ') or 'nothing'}", place="offset 0")
    axes = magic[3]
    if ndim is not None and axes != ndim:
        raise DataError(path, f"has {axes} axes, where {ndim} are expected: images and labels swapped?", place="header")
    extents = bytes(bounded_read(stream, 4 * axes))
    if len(extents) < 4 * axes:
        raise DataError(path, f"ends within the header of {4 + 4 * axes} bytes", place=f"offset {4 + len(extents)}")
    return np.dtype(_DTYPES[magic[2]]), struct.unpack(f">{axes}I", extents)
