"""Downloads against a server on this machine that fails, stalls, truncates and lies."""

import hashlib
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pstn.data import DataError, MissingDataError
from pstn.data.download import RemoteFile, cache_folder, download, locate

CONTENT = bytes(range(256)) * 400
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Serves CONTENT in the way that the first part of the path says; remembers what was asked."""

    def __init__(self):
        self.requests: list[tuple[str, str | None]] = []
        self.times: dict[str, int] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.stop = threading.Event()
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def url(self, way: str) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/{way}/file.bin"

    def answer(self, handler) -> None:
        way = handler.path.split("/")[1]
        wanted = handler.headers.get("Range")
        self.requests.append((way, wanted))
        self.times[way] = self.times.get(way, 0) + 1
        first = self.times[way] == 1
        if way == "fails" or (way == "fails-once" and first):
            handler.send_error(503)
        elif way == "refuses-ranges":
            self.send(handler, CONTENT if wanted is None else b"", 200 if wanted is None else 416)
        elif way == "lies":
            self.send(handler, CONTENT[:-1] + b"!")
        elif way == "stalls":
            self.send(handler, CONTENT, stop_at=1000, stall=True)
        elif way == "truncates" or (way == "truncates-once" and first):
            self.send(handler, CONTENT, stop_at=50_000)
        elif way == "lies-and-truncates":
            self.send(handler, b"?" * len(CONTENT), stop_at=50_000)
        elif way == "endless":
            self.send(handler, CONTENT * 2)
        elif wanted and way != "ignores-ranges":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send(handler, CONTENT[start:], 206)
        else:
            self.send(handler, CONTENT)

    def send(self, handler, body: bytes, status: int = 200, stop_at: int | None = None, stall: bool = False) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        try:
            handler.wfile.write(body[:stop_at])
            handler.wfile.flush()
            if stall:
                self.stop.wait(60)
        except OSError:
            pass
        handler.close_connection = True


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop.set()
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def get(server, tmp_path):
    """Download by the given ways, each a mirror; returns the path or raises. Quick to give up on one that stalls."""

    def run(*ways, sha256=SHA, **settings):
        remote = RemoteFile("set", "file.bin", tuple(map(server.url, ways)), sha256, len(CONTENT), "a-set")
        settings = {"timeout": 1.0 if "stalls" in ways else 60.0, "pause": 0.0, **settings}
        return download(remote, tmp_path / "cache" / "set", **settings)

    return run


def everything_under(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_good_download(get, tmp_path):
    seen = []
    path = get("good", progress=lambda *report: seen.append(report))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert everything_under(tmp_path / "cache") == ["set", "set/file.bin"]


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("fails", "503"),
        ("stalls", "no answer within the time limit"),
        ("truncates", "50000 bytes read"),
        ("lies", "does not match the known hash"),
        ("endless", "sends more than"),
    ],
)
def test_a_broken_download_leaves_nothing_and_the_next_succeeds(get, tmp_path, way, reason):
    with pytest.raises(DataError, match=reason) as caught:
        get(way)
    assert "file.bin" in str(caught.value)
    assert f"/{way}/" in str(caught.value)
    assert everything_under(tmp_path) == ["cache"]
    assert get("good").read_bytes() == CONTENT


@pytest.mark.parametrize("first", ["fails", "stalls", "truncates", "lies", "endless"])
def test_the_second_mirror_is_tried(get, first):
    assert get(first, "good").read_bytes() == CONTENT


def test_a_lost_connection_is_resumed_where_it_broke(get, server):
    assert get("truncates", "good").read_bytes() == CONTENT
    assert server.requests == [("truncates", None), ("good", "bytes=50000-")]


def test_a_single_mirror_is_asked_again(get, server):
    assert get("truncates-once").read_bytes() == CONTENT
    assert server.requests[1] == ("truncates-once", "bytes=50000-")


def test_a_server_without_ranges_starts_again(get):
    assert get("truncates", "ignores-ranges").read_bytes() == CONTENT


def test_a_part_that_does_not_fit_is_dropped(get, server):
    assert get("truncates", "refuses-ranges").read_bytes() == CONTENT
    assert ("refuses-ranges", "bytes=50000-") in server.requests


def test_a_stopped_process_is_continued(get, server, tmp_path):
    """What a killed process leaves is taken up, and gone afterwards."""
    folder = tmp_path / "cache" / "set"
    folder.mkdir(parents=True)
    (folder / ".file.bin.part").write_bytes(CONTENT[:70_000])
    os.utime(folder / ".file.bin.part", (1, 1))
    assert get("good").read_bytes() == CONTENT
    assert server.requests == [("good", "bytes=70000-")]
    assert everything_under(folder) == ["file.bin"]


def test_a_part_that_somebody_else_writes_is_left_alone(get, server, tmp_path):
    folder = tmp_path / "cache" / "set"
    folder.mkdir(parents=True)
    (folder / ".file.bin.0.part").write_bytes(CONTENT[:70_000])
    assert get("good").read_bytes() == CONTENT
    assert server.requests == [("good", None)]
    assert everything_under(folder) == [".file.bin.0.part", "file.bin"]


def test_a_wrong_part_costs_one_try(get, tmp_path):
    folder = tmp_path / "cache" / "set"
    folder.mkdir(parents=True)
    (folder / ".file.bin.part").write_bytes(b"?" * 70_000)
    os.utime(folder / ".file.bin.part", (1, 1))
    assert get("good").read_bytes() == CONTENT


def test_a_bad_mirror_does_not_spoil_a_good_one(get, server):
    """Bytes of the bad one do not fit those of the good one, which is then asked for the whole."""
    assert get("lies-and-truncates", "good").read_bytes() == CONTENT
    assert server.requests == [("lies-and-truncates", None), ("good", "bytes=50000-"), ("good", None)]


def test_a_download_of_unknown_size_is_bounded(server, tmp_path):
    remote = RemoteFile("set", "file.bin", (server.url("good"),), limit=1000)
    with pytest.raises(DataError, match="more than the 1,000 bytes"):
        download(remote, tmp_path / "set")
    assert everything_under(tmp_path) == []


def test_nothing_is_resumed_without_a_checksum(get, server):
    """Two halves of different files would fit together unnoticed."""
    assert get("truncates", "good", sha256=None).read_bytes() == CONTENT
    assert server.requests == [("truncates", None), ("good", None)]


def test_an_interrupt_keeps_the_part_for_the_next_time(get, server, tmp_path):
    def stop(name, done, total):
        if done > 60_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("good", progress=stop)
    [_, part] = everything_under(tmp_path / "cache")
    assert part.startswith("set/.file.bin.")
    assert part.endswith(".part")
    assert get("good").read_bytes() == CONTENT
    assert server.requests[-1][1] is not None


def test_two_at_once_do_not_mix(get):
    results = []
    threads = [threading.Thread(target=lambda: results.append(get("good").read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4


def test_a_file_with_a_wrong_checksum_is_replaced(get, tmp_path):
    (tmp_path / "cache" / "set").mkdir(parents=True)
    (tmp_path / "cache" / "set" / "file.bin").write_bytes(b"old")
    assert get("good").read_bytes() == CONTENT


def test_locate_prefers_what_is_there(server, tmp_path, monkeypatch):
    remote = RemoteFile("set", "file.bin", (server.url("good"),), SHA)
    (tmp_path / "data" / "set").mkdir(parents=True)
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PSTN_OFFLINE")
    fetched = locate(remote)
    assert fetched == tmp_path / "cache" / "set" / "file.bin"
    (tmp_path / "data" / "set" / "file.bin").write_bytes(b"mine")
    assert locate(remote).read_bytes() == b"mine"
    assert len(server.requests) == 1


def test_offline_says_what_is_missing_where_and_how_to_get_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "data"))
    remote = RemoteFile("set", "file.bin", (server.url("good"),), SHA, get="a-set")
    with pytest.raises(MissingDataError) as caught:
        locate(remote)
    message = str(caught.value)
    for part in ("file.bin", str(tmp_path / "data" / "set"), str(tmp_path / "cache" / "set"), "pstn data get a-set"):
        assert part in message
    assert server.requests == []


def test_a_failed_fetch_says_why(server, monkeypatch, tmp_path):
    monkeypatch.delenv("PSTN_OFFLINE")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    remote = RemoteFile("set", "file.bin", (server.url("fails"),), SHA, get="a-set")
    with pytest.raises(MissingDataError, match=r"file\.bin.*503"):
        locate(remote)
    assert not (tmp_path / "cache" / "set").exists()


def test_without_pooch_the_message_says_what_to_install(get, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'pstn\[data\]'"):
        get("good")


def test_without_pooch_the_file_and_its_places_are_named_too(server, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    monkeypatch.delenv("PSTN_OFFLINE")
    remote = RemoteFile("set", "file.bin", (server.url("good"),), SHA, get="a-set")
    with pytest.raises(
        MissingDataError, match=r"file.bin: is missing; looked in .*cache/set.*pip install 'pstn\[data\]'"
    ):
        locate(remote)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_the_file_obeys_the_umask(get):
    umask = os.umask(0o022)
    try:
        assert get("good").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(umask)


def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PSTN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert cache_folder().is_absolute()
