import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pstn.data import DataError
from pstn.data.download import cache_folder, search_folders
from pstn.data.files import parse_npy, read_npy, read_text, read_zip_member, sha256_of_content, unpack_tar, whole_folder
from pstn.files import inside


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "..", "a\\..\\..\\x", "C:\\x", "C:x", "", "a\0b", "\\\\h\\x"]
)
def test_names_that_lead_out_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="leads out of the folder"):
        inside(tmp_path, name, owner="index.txt", error=DataError)


def test_the_data_folder_comes_before_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "d"))
    assert search_folders("ucr") == [tmp_path / "d" / "ucr", tmp_path / "cache" / "ucr"]
    monkeypatch.setenv("PSTN_DATA", "  ")
    assert search_folders("ucr") == [tmp_path / "cache" / "ucr"]


@pytest.mark.parametrize(
    ("platform", "part"), [("linux", ".cache/pstn"), ("darwin", "Library/Caches/pstn"), ("win32", "pstn/Cache")]
)
def test_the_platforms_cache(monkeypatch, platform, part):
    for name in ("PSTN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder().as_posix().endswith(part)


def test_text_is_bounded_and_must_be_text(tmp_path):
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(b"x" * 2_000_000))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        read_text(path, limit=1000)
    path.write_bytes(b"abc\xff")
    with pytest.raises(DataError, match="byte 3: is not UTF-8"):
        read_text(path, limit=1000)
    path.write_bytes("\ufeffhé".encode())
    assert read_text(path, limit=1000) == "hé"


def test_a_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        read_text(tmp_path, limit=10)


def test_content_sums_do_not_depend_on_packing(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").write_bytes(gzip.compress(b"content", 1))
    assert sha256_of_content(tmp_path / "a") == sha256_of_content(tmp_path / "b")


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((3, 2), "f4")), np.zeros((0, 4))]
)
def test_arrays_come_back(tmp_path, array):
    (tmp_path / "a.npy").write_bytes(npy(array))
    assert np.array_equal(read_npy(tmp_path / "a.npy"), array)
    assert np.array_equal(read_npy(tmp_path / "a.npy", mmap=True), array)
    assert np.array_equal(parse_npy(npy(array), Path("x.npz"), "x"), array)


def test_a_header_that_declares_more_than_the_file_holds(tmp_path):
    content = npy(np.zeros(10, "u1")).replace(b"(10,)", b"(10000000000000,)".ljust(5))
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes(npy(np.zeros(10, "u1"))[:-1])
    with pytest.raises(DataError, match=r"b\.npy"):
        read_npy(tmp_path / "b.npy")


def tar_of(path, members) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(content))


def test_a_tar_is_unpacked_once(tmp_path):
    tar_of(tmp_path / "a.tar.gz", [("images/x.jpg", b"jpg", tarfile.REGTYPE), ("labels", b"", tarfile.DIRTYPE)])
    target = unpack_tar(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (target / "images" / "x.jpg").read_bytes() == b"jpg"
    (tmp_path / "a.tar.gz").unlink()
    assert unpack_tar(tmp_path / "a.tar.gz", tmp_path / "out") == target


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../evil", b"x", tarfile.REGTYPE)], "'../evil' leads out"),
        ([("ok", b"x", tarfile.REGTYPE), ("/abs", b"x", tarfile.REGTYPE)], "'/abs' leads out"),
        ([("link", b"", tarfile.SYMTYPE)], "link: is neither a file nor a folder"),
        ([("hard", b"", tarfile.LNKTYPE)], "hard: is neither"),
        ([("fifo", b"", tarfile.FIFOTYPE)], "fifo: is neither"),
        ([("a", b"x", tarfile.REGTYPE), ("a", b"y", tarfile.REGTYPE)], "a: occurs twice"),
        ([("a", b"x" * 2000, tarfile.REGTYPE)], "more than the limit"),
        ([], "holds no files"),
    ],
)
def test_bad_tars_leave_nothing(tmp_path, members, message):
    tar_of(tmp_path / "a.tar.gz", members)
    with pytest.raises(DataError, match=message) as caught:
        unpack_tar(tmp_path / "a.tar.gz", tmp_path / "new" / "out", limit=1000)
    assert "a.tar.gz" in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("keep", [0, 5, 40, -20])
def test_truncated_tars(tmp_path, keep):
    tar_of(tmp_path / "a.tar.gz", [("x", os.urandom(5000), tarfile.REGTYPE)])
    content = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(content[:keep])
    with pytest.raises(DataError, match="not a whole tar archive"):
        unpack_tar(tmp_path / "a.tar.gz", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar.gz"]


def test_zip_members_are_bounded(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(100_000))
        archive.writestr("small", b"content")
    with zipfile.ZipFile(path) as archive:
        assert read_zip_member(archive, "small", path) == b"content"
        with pytest.raises(DataError, match="big"):
            read_zip_member(archive, "big", path, limit=1000)


def plain_tar(path, names):
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 512
            archive.addfile(info, io.BytesIO(b"x" * 512))
    return path.read_bytes()


@pytest.mark.parametrize("packing", [lambda content: content, gzip.compress])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: 2 * 1024],  # the last of three members is not there, nor the end
        lambda content: content[: 2 * 1024] + b"?" * 512 + content[2 * 1024 + 512 :],
        lambda content: content[: 2 * 1024 + 100],
        lambda content: content[: 2 * 1024 + 600],
    ],
)
def test_a_tar_that_ends_between_members_is_not_whole(tmp_path, spoil, packing):
    content = plain_tar(tmp_path / "a.tar", "abc")
    (tmp_path / "a.tar").write_bytes(packing(spoil(content)))
    with pytest.raises(DataError, match="not a whole tar archive"):
        unpack_tar(tmp_path / "a.tar", tmp_path / "out")
    (tmp_path / "a.tar").write_bytes(packing(content))
    assert len(list(unpack_tar(tmp_path / "a.tar", tmp_path / "out").iterdir())) == 3


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_a_tar_whose_file_is_a_folder_too(tmp_path, names):
    plain_tar(tmp_path / "a.tar", names)
    with pytest.raises(DataError, match="is a file and a folder at once"):
        unpack_tar(tmp_path / "a.tar", tmp_path / "out")


def test_a_damaged_xz_is_a_data_error(tmp_path):
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as archive:
        info = tarfile.TarInfo("a")
        info.size = 50_000
        archive.addfile(info, io.BytesIO(os.urandom(50_000)))
    content = bytearray((tmp_path / "a.tar.xz").read_bytes())
    content[30_000:30_100] = bytes(100)
    (tmp_path / "a.tar.xz").write_bytes(content)
    with pytest.raises(DataError, match="not a whole tar archive"):
        unpack_tar(tmp_path / "a.tar.xz", tmp_path / "out")


def test_a_tar_that_grows_beyond_reason(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("a")
        info.size = 1 << 29
        archive.fileobj.write(info.tobuf())
    with pytest.raises(DataError, match="unpacks to more than"):
        unpack_tar(tmp_path / "a.tar.gz", tmp_path / "out")


def test_the_slower_of_two_takes_what_the_faster_made(tmp_path):
    with whole_folder(tmp_path / "new" / "out") as work:
        (work / "a").write_text("mine")
        (tmp_path / "new" / "out").mkdir()
        (tmp_path / "new" / "out" / "a").write_text("theirs")
    assert (tmp_path / "new" / "out" / "a").read_text() == "theirs"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_a_folder_obeys_the_umask(tmp_path):
    umask = os.umask(0o022)
    try:
        with whole_folder(tmp_path / "out"):
            pass
    finally:
        os.umask(umask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
