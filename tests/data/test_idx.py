import gzip
import struct

import numpy as np
import pytest

from data_files import idx_bytes, write_idx
from pstn.data import DataError, read_idx


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_what_was_written(tmp_path, suffix):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx(write_idx(tmp_path / f"images{suffix}", array)), array)


def test_reads_big_endian_floats(tmp_path):
    path = tmp_path / "floats"
    path.write_bytes(bytes([0, 0, 0x0D, 1]) + struct.pack(">I2f", 2, 1.5, -2.0))
    assert read_idx(path).tolist() == [1.5, -2.0]


BAD = {
    "empty": (b"", ""),
    "wrong magic": (b"\x89PNG\r\n\x1a\n", "offset 0"),
    "unknown type": (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "offset 0"),
    "no axes": (bytes([0, 0, 8, 0]), "offset 0"),
    "cut header": (bytes([0, 0, 8, 3, 0, 0]), "offset 6"),
    "too few": (bytes([0, 0, 8, 1]) + struct.pack(">I", 10) + b"12345", "offset 13"),
    "too many": (bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + b"12345", "offset 11"),
    "large header": (bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**32 - 1, 2**32 - 1) + b"1", "header"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_are_named_with_the_place(tmp_path, name, packed):
    content, place = BAD[name]
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(gzip.compress(content) if packed and content else content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert (caught.value.path, caught.value.place or "") == (path, place)


@pytest.mark.parametrize("cut", [3, 12, 30, -9, -1])
def test_truncated_gzip(tmp_path, cut):
    path = tmp_path / "images.gz"
    noise = np.random.default_rng(0).integers(0, 256, (50, 28), dtype=np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(noise))[:cut])
    with pytest.raises(DataError, match=r"truncated|damaged|is not an IDX"):
        read_idx(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "images.gz"
    content = bytearray(gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8))))
    content[-6] ^= 0xFF  # the checksum of the stream
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        read_idx(path)


def test_a_bomb_is_not_unpacked(tmp_path):
    """A header that declares little bounds what is read, however much the stream would give."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes(50_000_000)))
    with pytest.raises(DataError, match="offset 13"):
        read_idx(path)


def test_axes_can_be_demanded(tmp_path):
    path = write_idx(tmp_path / "labels", np.zeros(4, np.uint8))
    with pytest.raises(DataError, match="swapped"):
        read_idx(path, ndim=3)
