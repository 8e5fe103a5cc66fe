"""Files of data: folders, text, arrays, archives, and downloads from a server that fails, stalls and lies."""

import gzip
import hashlib
import os
import sys
import tarfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from data_files import refused, tar_of
from pstn.data import MissingDataError, cache_folder, files
from pstn.data.files import RemoteFile

CONTENT = bytes(range(256)) * 400
SHA = hashlib.sha256(CONTENT).hexdigest()


def test_the_data_folder_comes_before_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "d"))
    assert files.search_folders("ucr") == [tmp_path / "d" / "ucr", tmp_path / "cache" / "ucr"]
    monkeypatch.setenv("PSTN_DATA", "  ")
    assert files.search_folders("ucr") == [tmp_path / "cache" / "ucr"]


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

    def read(path):
        return list(files.read_lines(path, limit=1000))

    for content, problem in ((gzip.compress(b"x" * 2_000_000), "1,000 bytes"), (b"abc\xff", "line 1.*utf-8")):
        path.write_bytes(content)
        refused(problem, read, path)
    path.write_bytes("\ufeffhé".encode())
    assert read(path) == [(1, "hé")]
    refused("regular file", read, tmp_path)


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((3, 2), "f4")), np.zeros((0, 4))]
)
def test_arrays_come_back(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    found = files.read_npy(tmp_path / "a.npy")
    assert np.array_equal(found, array)
    assert found.flags.writeable
    content = (tmp_path / "a.npy").read_bytes()
    assert np.array_equal(files.parse_npy(content, Path("x.npz"), "x"), array)


def test_a_tar_is_unpacked_once(tmp_path):
    path = tar_of(tmp_path / "a.tar.gz", ("images/x.jpg", b"jpg"), ("labels", b"", tarfile.DIRTYPE))
    target = files.unpack_tar(path, tmp_path / "out")
    assert (target / "images" / "x.jpg").read_bytes() == b"jpg"
    path.unlink()
    assert files.unpack_tar(path, tmp_path / "out") == target


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../evil", b"x")], "'../evil' leads out"),
        ([("ok", b"x"), ("/abs", b"x")], "'/abs' leads out"),
        ([("link", b"", tarfile.SYMTYPE)], "link: is neither a file nor a folder"),
        ([("hard", b"", tarfile.LNKTYPE)], "hard: is neither"),
        ([("fifo", b"", tarfile.FIFOTYPE)], "fifo: is neither"),
        ([("a", b"x"), ("a", b"y")], "a: occurs twice"),
        ([("a", b"x"), ("a/b", b"y")], "a file and a folder at once"),
        ([("a/b", b"x"), ("a", b"y")], "a file and a folder at once"),
        ([], "holds no files"),
    ],
)
def test_bad_tars_leave_nothing(tmp_path, members, message):
    path = tar_of(tmp_path / "a.tar.gz", *members)
    assert refused(message, files.unpack_tar, path, tmp_path / "new" / "out").path == path
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("change", ["cut", "cut between files", "changed"])
def test_a_damaged_tar_is_not_whole(tmp_path, change, mode):
    path = tar_of(tmp_path / "a.tar", *((name, os.urandom(512)) for name in "abcdefgh"), mode=mode)
    whole = path.read_bytes()
    cuts = {"cut": whole[: len(whole) // 2 + 7], "cut between files": whole[:2048]}
    path.write_bytes(cuts.get(change, whole[:2048] + b"?" * 512 + whole[2560:]))
    refused("not a whole tar archive", files.unpack_tar, path, tmp_path / "out")
    assert [found.name for found in tmp_path.iterdir()] == ["a.tar"]


def test_a_tar_that_grows_beyond_reason(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("a")
        info.size = 1 << 29
        archive.fileobj.write(info.tobuf())
    refused("unpacks to more than", files.unpack_tar, tmp_path / "a.tar.gz", tmp_path / "out")


DRIPS = {
    "drips-head": b"HTTP/1.1 200 OK\r\nX: ",
    "drips-body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "drips-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n000",
}


@pytest.fixture
def server():
    """Serves CONTENT in the way that the first part of the path says; remembers what was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            way, wanted = self.path.split("/")[1], self.headers.get("Range")
            http.requests.append(wanted)
            if way in DRIPS:
                with suppress(OSError):
                    self.wfile.write(DRIPS[way])
                    while not stop.wait(0.1):
                        self.wfile.write(b"0")
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            cut = CONTENT[:50_000]
            status, body, length = {
                "fails": (503, b"", 0),
                "refuses-ranges": (416, b"", 0) if wanted else (200, CONTENT, len(CONTENT)),
                "ignores-ranges": (200, CONTENT, len(CONTENT)),
                "lies": (200, CONTENT[:-1] + b"!", len(CONTENT)),
                "stalls": (200, CONTENT[:1000], len(CONTENT)),
                "truncates": (200, cut, len(CONTENT)),
                "truncates-once": (206, CONTENT[start:], len(CONTENT) - start) if wanted else (200, cut, len(CONTENT)),
                "lies-and-truncates": (200, b"?" * 50_000, len(CONTENT)),
                "endless": (200, CONTENT * 2, 2 * len(CONTENT)),
            }.get(way, (206 if wanted else 200, CONTENT[start:], len(CONTENT) - start))
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)
                stop.wait(60 if way == "stalls" else 0)
            self.close_connection = True

        def log_message(self, *args):
            pass

    http, stop = ThreadingHTTPServer(("127.0.0.1", 0), Handler), threading.Event()
    http.daemon_threads, http.requests = True, []
    http.url = lambda way: f"http://127.0.0.1:{http.server_port}/{way}/file.bin"
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield http
    stop.set()
    http.shutdown()
    http.server_close()


@pytest.fixture
def get(server, tmp_path):
    """Download by the given ways, each a mirror; returns the content or raises. Quick to give up on one that stalls."""

    def run(*ways, sha256=SHA, **settings):
        remote = RemoteFile("set", "file.bin", tuple(map(server.url, ways)), sha256, len(CONTENT))
        settings = {"timeout": 0.5 if {"stalls", *DRIPS} & {*ways} else 60.0, "pause": 0.0, **settings}
        return files.download(remote, tmp_path / "cache" / "set", **settings).read_bytes()

    return run


def everything_under(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_good_download(get, tmp_path):
    seen = []
    umask = os.umask(0o022)
    try:
        assert get("good", progress=lambda *report: seen.append(report)) == CONTENT
    finally:
        os.umask(umask)
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert everything_under(tmp_path / "cache") == ["set", "set/file.bin"]
    assert (tmp_path / "cache" / "set" / "file.bin").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("way", ["fails", "stalls", "truncates", "lies", "endless", *DRIPS])
def test_a_broken_download_leaves_nothing_and_the_next_succeeds(get, tmp_path, way):
    start = time.perf_counter()
    refused(f"/{way}/", get, way)
    assert time.perf_counter() - start < 6  # however slowly bytes arrive
    assert everything_under(tmp_path) == ["cache"]
    assert get(way, "good") == CONTENT


@pytest.mark.parametrize(
    ("ways", "sha256", "requests"),
    [
        (["truncates-once"], SHA, [None, "bytes=50000-"]),  # resumed where it broke
        (["truncates", "good"], SHA, [None, "bytes=50000-", "bytes=50000-"]),  # on another mirror, too
        (["truncates", "ignores-ranges"], SHA, [None, "bytes=50000-", "bytes=50000-"]),
        (["truncates", "refuses-ranges"], SHA, [None, "bytes=50000-", "bytes=50000-", None]),
        # Bytes of a bad mirror do not fit those of a good one, which is then asked for the whole.
        (["lies-and-truncates", "good"], SHA, [None, "bytes=50000-", "bytes=50000-", None]),
        # Without a checksum, two halves of different files would fit together unnoticed.
        (["truncates", "good"], None, [None, None, None]),
    ],
)
def test_a_lost_connection_is_resumed(get, server, ways, sha256, requests):
    assert get(*ways, sha256=sha256) == CONTENT
    assert server.requests == requests


def test_an_interrupt_keeps_the_part_for_the_next_time(get, server, tmp_path):
    def stop(name, done, total):
        if done > 60_000:
            raise KeyboardInterrupt

    refused("^$", get, "good", progress=stop, error=KeyboardInterrupt)
    assert everything_under(tmp_path / "cache") == ["set", "set/.file.bin.part"]
    assert get("good") == CONTENT
    assert server.requests[-1] is not None
    assert everything_under(tmp_path / "cache") == ["set", "set/file.bin"]


def test_a_file_with_a_wrong_checksum_is_replaced(get, tmp_path):
    (tmp_path / "cache" / "set").mkdir(parents=True)
    (tmp_path / "cache" / "set" / "file.bin").write_bytes(b"old")
    assert get("good") == CONTENT


def test_a_file_that_is_there_is_not_downloaded(server, tmp_path, monkeypatch):
    remote = RemoteFile("set", "file.bin", (server.url("good"),), SHA)
    (tmp_path / "data" / "set").mkdir(parents=True)
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "data"))
    message = str(refused("file.bin", files.locate_file, remote, error=MissingDataError))  # offline
    for part in (str(tmp_path / "data" / "set"), str(tmp_path / "cache" / "set"), "pstn data get set", "PSTN_OFFLINE"):
        assert part in message
    monkeypatch.delenv("PSTN_OFFLINE")
    refused("file.bin", files.locate_file, remote, root=tmp_path / "elsewhere", error=MissingDataError)
    assert server.requests == []
    assert files.locate_file(remote) == tmp_path / "cache" / "set" / "file.bin"
    (tmp_path / "data" / "set" / "file.bin").write_bytes(b"mine")
    assert files.locate_file(remote).read_bytes() == b"mine"
    assert len(server.requests) == 1


def test_a_failed_download_says_why(server, monkeypatch, tmp_path):
    monkeypatch.delenv("PSTN_OFFLINE")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    remote = RemoteFile("set", "file.bin", (server.url("fails"),), SHA)
    refused(r"file\.bin.*503", files.locate_file, remote, error=MissingDataError)
    assert not (tmp_path / "cache" / "set").exists()
    monkeypatch.setitem(sys.modules, "pooch", None)
    refused(r"file.bin.*cache/set.*pip install 'pstn\[data\]'", files.locate_file, remote, error=MissingDataError)
