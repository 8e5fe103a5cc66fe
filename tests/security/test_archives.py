"""Untrusted archives and arrays: what is not asked for is not read, and what is asked for is bounded."""

import gzip
import io
import os
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from data_files import refused, tar_of
from pstn.data import from_npz
from pstn.data.files import read_lines, read_npy, sha256_of_content, unpack_tar
from pstn.data.images import read_idx
from pstn.limits import ARCHIVE_FREE_BYTES, ZIP_INDEX_BYTES
from security.limited import run_limited


def write_zeros(archive, member, count):
    """A member .npy of `count` zero bytes, written without holding them."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (count // 64, 64)})
    with archive.open(member, "w", force_zip64=True) as stream:
        stream.write(head.getvalue())
        for _ in range(count >> 20):
            stream.write(bytes(1 << 20))


def write_npz(path, zeros=(), **arrays):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
        for name, count in zeros:
            write_zeros(archive, f"{name}.npy", count)
    return path


REFUSED = """
import sys
from pathlib import Path
from pstn.data import DataError
from pstn.data.{module} import {function}
try:
    print({function}(*map(Path, sys.argv[1:])))
except DataError as error:
    print("refused:", error)
"""


def in_little_memory(module, function, *arguments, memory=1 << 30):
    """What a reader prints in a process of its own, that may take 1 GiB more than the package and half a minute."""
    code = REFUSED.format(module=module, function=function)
    return run_limited(code, *arguments, memory=memory, seconds=30, imports="import pstn.data").stdout


def test_members_of_an_npz_that_are_not_asked_for_are_never_read(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((4, 8)), y=[0, 1, 0, 1], zeros=[("z", 1 << 29)])
    assert "train" in in_little_memory("split", "from_npz", path, memory=1 << 28)


def test_the_arrays_of_an_npz_have_a_limit_in_all(tmp_path):
    half = ARCHIVE_FREE_BYTES // 2 + (1 << 20)
    path = write_npz(tmp_path / "a.npz", zeros=[("x_train", half), ("x_test", half)], y_train=[0], y_test=[0])
    said = in_little_memory("split", "from_npz", path)
    assert said.startswith("refused:")
    assert "in all" in said


def test_members_of_an_npz_that_occur_twice_are_refused_if_asked_for(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((4, 8)), y=[0, 1, 0, 1])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", b"")
    refused("occurs twice", from_npz, path)


def test_an_archive_of_endless_members_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + b"x.npy"
    count = ZIP_INDEX_BYTES // len(entry) + 1
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, count * len(entry), 0, 0)
    path.write_bytes(entry * count + end)
    refused("index", from_npz, path)


class Marks:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    objects = np.empty(2, object)
    objects[:] = [Marks(tmp_path / "mark")] * 2
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    refused("pickle", read_npy, tmp_path / "a.npy")
    refused("pickle", from_npz, write_npz(tmp_path / "a.npz", x=np.zeros((2, 8)), y=objects))
    write_npz(tmp_path / "b.npz", x=np.zeros((2, 8)), y=[0, 1], other=objects)
    assert len(from_npz(tmp_path / "b.npz").train) == 2
    assert not (tmp_path / "mark").exists()


def test_a_pipe_called_npz_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    refused(r"a\.npz", from_npz, tmp_path / "a.npz")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_of_a_tar_archive_are_bounded(tmp_path, kind):
    """tarfile reads names and comments whole before they can be counted."""
    path, info = tmp_path / "a.tar.gz", tarfile.TarInfo("x")
    info.type, info.size = kind, 4 << 30
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + gzip.compress(bytes(1 << 26), 1) * 64)
    assert "refused:" in in_little_memory("files", "unpack_tar", path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_members_of_a_tar_archive_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.limits.ARCHIVE_MEMBERS", 3)
    path = tar_of(tmp_path / "a.tar", *((f"{number}.txt", b"") for number in range(4)))
    refused("more than 3", unpack_tar, path, tmp_path / "out")


def test_a_gzip_that_grows_a_thousandfold_is_refused(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    count = ARCHIVE_FREE_BYTES + (1 << 20)
    head = struct.pack(">4B3I", 0, 0, 8, 3, count >> 10, 32, 32)
    path.write_bytes(gzip.compress(head) + gzip.compress(bytes(1 << 20), 1) * (count >> 20))
    refused("limit", read_idx, path)
    refused("more than", sha256_of_content, path)
    refused("more than", lambda: [*read_lines(path, limit=1 << 40)])


@pytest.mark.parametrize("extents", [[1] * 255, [2**32 - 1] * 30 + [0]])
def test_idx_shapes_that_no_array_has_are_refused(tmp_path, extents):
    path = tmp_path / "images-ubyte"
    path.write_bytes(bytes([0, 0, 8, len(extents)]) + struct.pack(f">{len(extents)}I", *extents) + b"x" * all(extents))
    refused("axes", read_idx, path)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("|V0", (10**12,)), ("|S0", (10**12,)), ("<f4", (10**9, 64)), ("<f4", (10**30,)), ("<f4", (-1,)),
        ("<f4", (2**63, 2)), ("<f4", (1,) * 70), ("<f8", (0, 2**60)), ("<f8", (True, 8)), ("<f8", (0, -1)),
    ],
)  # fmt: skip
def test_headers_of_arrays_that_no_file_holds_are_refused(tmp_path, kind, shape):
    head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}".ljust(500) + "\n"
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + bytes(0 if 0 in shape else 64)
    (tmp_path / "a.npy").write_bytes(content)
    refused(r"a\.npy", read_npy, tmp_path / "a.npy")


def test_a_long_header_of_an_array_takes_no_memory(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\3\0" + struct.pack("<I", 2**31 - 1) + b"{" * 100)
    assert in_little_memory("files", "read_npy", tmp_path / "a.npy", memory=1 << 28).startswith("refused")
