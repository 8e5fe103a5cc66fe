"""Archives and arrays from strangers: what is not asked for is not read, and what is asked for is bounded."""

import gzip
import io
import os
import struct
import tarfile
import time
import zipfile

import numpy as np
import pytest

from pstn.data import DataError, from_npz
from pstn.data.files import parse_npy, read_npy, read_text, read_zip_member, sha256_of_content, unpack_tar
from pstn.data.images import read_idx
from pstn.limits import ARCHIVE_FREE_BYTES, ARCHIVE_MEMBERS, EXAMPLES, TAR_HEADER_BYTES, ZIP_INDEX_BYTES
from security.limited import run_limited

SECONDS = 30


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


def in_little_memory(code, *arguments):
    """The code in a process of its own, that may take 1 GiB more than the package and half a minute."""
    start = time.perf_counter()
    outcome = run_limited(code, *arguments, memory=1 << 30, seconds=SECONDS, imports="import pstn.data")
    assert time.perf_counter() - start < SECONDS
    return outcome


REFUSED = """
import sys
from pathlib import Path
from pstn.data import DataError
from pstn.data.{module} import {function}
try:
    {function}(Path(sys.argv[1]){more})
except DataError as error:
    print("refused:", error)
"""


def test_members_of_an_npz_that_are_not_asked_for_are_never_read(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((4, 8)), y=[0, 1, 0, 1], zeros=[("z1", 1 << 30), ("z2", 1 << 30)])
    assert path.stat().st_size < 6_000_000
    code = "import sys; from pstn.data import from_npz; print(from_npz(sys.argv[1]).sizes())"
    assert "'train': 4" in in_little_memory(code, path).stdout


def test_the_arrays_of_an_npz_have_a_limit_in_all(tmp_path):
    half = ARCHIVE_FREE_BYTES // 2 + (1 << 20)
    path = write_npz(tmp_path / "a.npz", zeros=[("x_train", half), ("x_test", half)], y_train=[0], y_test=[0])
    outcome = in_little_memory(REFUSED.format(module="split", function="from_npz", more=""), path)
    assert outcome.stdout.startswith("refused:")
    assert "in all" in outcome.stdout


def test_members_of_an_npz_that_occur_twice_are_refused_if_asked_for(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((4, 8)), y=[0, 1, 0, 1])
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", b"")
    with pytest.raises(DataError, match="occurs twice"):
        from_npz(path)


def test_an_archive_of_endless_members_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + b"x.npy"
    count = ZIP_INDEX_BYTES // len(entry) + 1
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, count * len(entry), 0, 0)
    path.write_bytes(entry * count + end)
    with pytest.raises(DataError, match="index"):
        from_npz(path)


def test_examples_of_no_bytes_are_refused(tmp_path):
    """A header of 128 bytes can claim any number of them."""
    for dtype, count in (("|V0", 10**12), ("|S0", 10**12), ("<U0", 10**12)):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": (count,)})
        path = tmp_path / "a.npy"
        path.write_bytes(head.getvalue())
        with pytest.raises(DataError, match=r"a\.npy"):
            read_npy(path)
        with pytest.raises(DataError, match=r"a\.npy"):
            parse_npy(head.getvalue(), path, "x.npy")


def test_examples_are_counted_before_their_labels_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in (("x", (EXAMPLES + 1, 1)), ("y", (EXAMPLES + 1,))):
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", head.getvalue() + bytes(EXAMPLES + 1))
    path = tmp_path / "b.npz"
    outcome = in_little_memory(REFUSED.format(module="split", function="from_npz", more=""), path)
    assert "examples" in outcome.stdout


@pytest.mark.parametrize("shape", [(10**9, 64), (10**30,), (-1,), (2**63, 2), (1,) * 70])
def test_headers_of_arrays_that_claim_more_than_the_file_holds(tmp_path, shape):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(500) + "\n"
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + bytes(64)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    with pytest.raises(DataError, match=r"a\.npz"):
        from_npz(tmp_path / "a.npz")


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
    with pytest.raises(DataError, match="pickle"):
        read_npy(tmp_path / "a.npy")
    write_npz(tmp_path / "a.npz", x=np.zeros((2, 8)), y=objects)
    with pytest.raises(DataError, match="pickle"):
        from_npz(tmp_path / "a.npz")
    write_npz(tmp_path / "b.npz", x=np.zeros((2, 8)), y=[0, 1], other=objects)
    assert len(from_npz(tmp_path / "b.npz").train) == 2
    assert not (tmp_path / "mark").exists()


def test_zip64_sizes_that_lie(tmp_path):
    """The index claims far more than the member holds, in both of its sizes."""
    path = write_npz(tmp_path / "a.npz", x=np.zeros((2, 8)), y=[0, 1])
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\1\2")
    name, extra = struct.unpack_from("<2H", content, place + 28)
    assert extra == 0
    struct.pack_into("<2L", content, place + 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", content, place + 30, 20)
    more = struct.pack("<2H2Q", 1, 16, 1 << 40, 1 << 40)
    content[place + 46 + name : place + 46 + name] = more
    end = content.rindex(b"PK\5\6")
    struct.pack_into("<L", content, end + 12, struct.unpack_from("<L", content, end + 12)[0] + len(more))
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.infolist()[0].file_size == 1 << 40
    with pytest.raises(DataError, match=r"a\.npz"):
        from_npz(path)


@pytest.mark.parametrize("place", range(0, 46, 2))
def test_an_index_that_lies_is_refused(tmp_path, place):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((2, 8)), y=[0, 1])
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\1\2")
    for value in (b"\xff\xff", b"\x00\x80"):
        changed = content.copy()
        changed[start + place : start + place + 2] = value
        path.write_bytes(changed)
        try:
            from_npz(path)
        except DataError as error:
            assert "a.npz" in str(error)  # noqa: PT017 - some changes are harmless


def test_a_pipe_called_npz_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.npz"):
        from_npz(tmp_path / "a.npz")


def tar_entry(kind, size, name="x"):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_headers_of_a_tar_archive_are_bounded(tmp_path, kind):
    """tarfile reads names and comments whole before anybody can count them."""
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_entry(kind, 4 << 30)) + gzip.compress(bytes(1 << 26), 1) * 64)
    code = REFUSED.format(module="files", function="unpack_tar", more=", Path(sys.argv[2])")
    outcome = in_little_memory(code, path, tmp_path / "out")
    assert "refused:" in outcome.stdout
    assert not (tmp_path / "out").exists()


def test_maps_of_sparse_files_in_a_tar_archive_are_bounded(tmp_path):
    path = tmp_path / "a.tar.gz"
    records = b""
    for key, value in ((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"a"),
                       (b"GNU.sparse.realsize", b"1")):  # fmt: skip
        body = b" " + key + b"=" + value + b"\n"
        records += str(len(body) + 2).encode() + body
    head = tar_entry(tarfile.XHDTYPE, len(records)) + records.ljust(512, b"\0") + tar_entry(tarfile.REGTYPE, 1 << 28)
    path.write_bytes(gzip.compress(head + b"999999999\n".ljust(512, b"0")) + gzip.compress(b"0\n" * (1 << 19)) * 256)
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"a\.tar\.gz"):
        unpack_tar(path, tmp_path / "out")
    assert time.perf_counter() - start < 5


def test_many_headers_before_one_file_are_refused(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes((tar_entry(tarfile.XHDTYPE, 0)) * 5000 + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar"):
        unpack_tar(path, tmp_path / "out")


def test_members_of_a_tar_archive_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.limits.ARCHIVE_MEMBERS", 3)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(4):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    with pytest.raises(DataError, match="more than 3"):
        unpack_tar(tmp_path / "a.tar", tmp_path / "out")
    assert ARCHIVE_MEMBERS >= 1_000_000
    assert TAR_HEADER_BYTES >= 1 << 16


def test_a_gzip_that_grows_a_thousandfold_is_refused(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    count = ARCHIVE_FREE_BYTES + (1 << 20)
    head = struct.pack(">4B3I", 0, 0, 8, 3, count >> 10, 32, 32)
    path.write_bytes(gzip.compress(head) + gzip.compress(bytes(1 << 20), 1) * (count >> 20))
    with pytest.raises(DataError, match="limit"):
        read_idx(path)
    for read in (lambda: sha256_of_content(path), lambda: read_text(path, limit=1 << 40)):
        with pytest.raises(DataError, match="more than"):
            read()


def test_a_member_that_holds_more_than_the_index_says_is_refused(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=np.zeros((200, 8)))
    with zipfile.ZipFile(path) as archive:
        archive.getinfo("x.npy").file_size = 100
        with pytest.raises(DataError, match=r"x\.npy"):
            read_zip_member(archive, "x.npy", path)


def tar_of(path, *names, kind=tarfile.DIRTYPE):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
    return path


def test_folders_within_folders_count_for_the_limit_of_an_archive(tmp_path):
    path = tar_of(tmp_path / "a.tar.gz", *(f"{number}/" + "a/" * 200 for number in range(1000)))
    with pytest.raises(DataError, match="limit"):
        unpack_tar(path, tmp_path / "a", limit=1 << 20)
    assert [found.name for found in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "a"])
def test_names_that_no_disk_can_hold_are_the_mistake_of_the_archive(tmp_path, name):
    with pytest.raises(DataError, match=r"a\.tar\.gz"):
        unpack_tar(tar_of(tmp_path / "a.tar.gz", name, kind=tarfile.REGTYPE), tmp_path / "a")


@pytest.mark.parametrize("extents", [[1] * 255, [2**32 - 1] * 30 + [0]])
def test_idx_shapes_that_no_array_has_are_refused(tmp_path, extents):
    path = tmp_path / "images-ubyte"
    path.write_bytes(bytes([0, 0, 8, len(extents)]) + struct.pack(f">{len(extents)}I", *extents) + b"x" * all(extents))
    with pytest.raises(DataError, match="axes"):
        read_idx(path)


@pytest.mark.parametrize("shape", ["(0, 2**60)", "(True, 8)", "(-1, -8)", "(0, -1)"])
def test_npy_shapes_that_no_array_has_are_refused(tmp_path, shape):
    shape = shape.replace("2**60", str(2**60))
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + bytes(0 if "0" in shape else 64)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match="header"):
        read_npy(tmp_path / "a.npy")
    with pytest.raises(DataError, match="x"):
        parse_npy(content, tmp_path / "a.npz", "x.npy")


def test_a_long_header_of_an_array_takes_no_memory(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\3\0" + struct.pack("<I", 2**31 - 1) + b"{" * 100)
    code = """
    from pathlib import Path
    from pstn.data import DataError
    from pstn.data.files import read_npy
    try:
        read_npy(Path(sys.argv[1]))
    except DataError:
        print("refused")
    """
    assert run_limited(code, path, memory=1 << 28).stdout == "refused\n"
