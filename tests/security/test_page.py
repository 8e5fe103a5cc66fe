"""The page as a hostile client meets it: the real server, asked over loopback."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("gradio", reason="needs gradio: pip install 'pstn[app]'")

from pstn import limits
from served import free_port

FORM = {"Content-Type": "multipart/form-data; boundary=b"}
SMALL = {"PAGE_UPLOADED_BYTES": 40_000, "PAGE_REQUESTS_AT_ONCE": 12}

# The page, with some limits that are quicker to reach.
SERVER = """
import json, sys
from pstn import limits
for name, value in json.loads(sys.argv[2]).items():
    setattr(limits, name, value)
from pstn.app import load_sets
from pstn.app.page import open_page
with open_page(load_sets(), port=int(sys.argv[1]), names=["page.example"]):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Client:
    """Requests to the page, each on a connection of its own."""

    def __init__(self, port, folder):
        self.port, self.folder = port, folder

    def ask(self, path, body=None, headers=()):
        """Status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            chunked = body is not None and not isinstance(body, bytes)
            connection.request("GET" if body is None else "POST", path, body, dict(headers), encode_chunked=chunked)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:  # answered and closed before all of the body was sent
            return None, b""
        finally:
            connection.close()

    def call(self, function, data):
        """What one of the page's functions answers, as the browser asks it."""
        session = f"s{time.monotonic_ns()}"
        body = json.dumps({"fn_index": function, "data": data, "session_hash": session}).encode()
        status, answer = self.ask("/gradio_api/queue/join", body, {"Content-Type": "application/json"})
        if status == 200:
            status, answer = self.ask(f"/gradio_api/queue/data?session_hash={session}")
        return status, answer.decode()

    def function(self, event):
        """The number of the first function that an event calls."""
        dependencies = json.loads(self.ask("/config")[1])["dependencies"]
        return next(d["id"] for d in dependencies if any(target[1] == event for target in d["targets"]))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("page"), free_port()
    environment = {**os.environ, "PSTN_CACHE": str(folder / "cache"), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SERVER, str(port), json.dumps(SMALL)]
    with (folder / "log.txt").open("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=folder, text=True
        )
        assert process.stdout.readline() == "ready\n", (folder / "log.txt").read_text()
        yield Client(port, folder)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert not [*folder.glob("pstn-app-*")]  # what visitors uploaded is gone


def uploaded(*contents):
    """The body of a form that uploads files."""
    parts = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="%d.png"\r\n\r\n' % number + content + b"\r\n"
        for number, content in enumerate(contents)
    )
    return b"".join(parts) + b"--b--\r\n"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7860", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1",
        "127.0.0.1#.evil.example", "localhost/.evil.example", "localhost?evil.example", "evil@127.0.0.1",
    ],
)  # fmt: skip
def test_a_host_header_with_another_name_is_refused(page, host):
    status, answer = page.ask("/", headers={"Host": host})
    assert status == 421
    assert b"gradio" not in answer
    for own in (f"127.0.0.1:{page.port}", "LOCALHOST", f"[::1]:{page.port}", "page.example"):
        assert page.ask("/", headers={"Host": own})[0] == 200


def test_the_page_listens_on_this_address_alone(page):
    with pytest.raises(ConnectionRefusedError):  # of the same machine, and another address
        socket.create_connection(("127.0.0.2", page.port), timeout=5)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://127.0.0.1:1"]
)
def test_requests_from_another_site_are_refused(page, origin):
    headers = {"Origin": origin, **FORM}
    assert page.ask("/gradio_api/upload", uploaded(b"x"), headers)[0] == 403


POSTED = ("/login", "/gradio_api/run/digit", "/gradio_api/call/digit", "/gradio_api/component_server")


@pytest.mark.parametrize(
    "path",
    [
        "/docs", "/redoc", "/openapi.json", "/gradio_api/openapi.json", "/monitoring", "/monitoring/summary",
        "/gradio_api/runs", "/gradio_api/token", "/gradio_api/user", "/gradio_api/vibe-code", "/gradio_api/dev/reload",
        "/gradio_api/file=/etc/passwd", "/gradio_api/file=http://example.org/", "/gradio_api/file/x",
        "/gradio_api/proxy=https://x.hf.space/", "/gradio_api/deep_link", "/gradio_api/custom_component/1/client/a/b",
        *POSTED, "/gradio_api/stream/a/b/c/playlist.m3u8", "/assets/../../routes.py", "/static/%2e%2e/%2e%2e/routes.py",
    ],
)  # fmt: skip
def test_endpoints_that_the_page_does_not_use_are_closed(page, path):
    status, answer = page.ask(path, b"{}" if path in POSTED else None, {"Content-Type": "application/json"})
    assert (status, b"def " in answer) == (404, False)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_json_body_has_a_limit(page, chunked):
    body = b'{"data": ["' + b"x" * limits.PAGE_REQUEST_BYTES + b'"]}'
    given = iter([body[:1000], body[1000:]]) if chunked else body
    assert page.ask("/gradio_api/queue/join", given, {"Content-Type": "application/json"})[0] == 413


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_has_a_limit_in_all(page, chunked):
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as connection:
        connection.sendall(b"POST /gradio_api/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")
    body = uploaded(*[bytes(limits.PAGE_FILE_BYTES // 3)] * 4)  # each of them is below the limit of one file
    before = len([*page.folder.rglob("*.png")])
    assert page.ask("/gradio_api/upload", iter([body]) if chunked else body, FORM)[0] in (413, None)
    assert len([*page.folder.rglob("*.png")]) == before


def test_uploads_do_not_fill_the_disk(page):
    for number in range(20):
        assert page.ask("/gradio_api/upload", uploaded(bytes([number]) * 10_000), FORM)[0] == 200
    kept = [*page.folder.rglob("*.png")]
    assert sum(path.stat().st_size for path in kept) <= SMALL["PAGE_UPLOADED_BYTES"] + 10_000
    [uploads] = page.folder.glob("pstn-app-*")
    assert len([path for path in uploads.iterdir() if path.is_dir()]) <= len(kept) + 1  # no empty folders pile up


def test_the_number_of_requests_at_once_has_a_limit(page):
    held = []
    try:
        for _ in range(SMALL["PAGE_REQUESTS_AT_ONCE"]):
            held.append(http.client.HTTPConnection("127.0.0.1", page.port, timeout=30))
            held[-1].request("GET", "/gradio_api/heartbeat/abc")
            held[-1].getresponse().read(10)  # the stream has begun
        assert page.ask("/")[0] == 503
    finally:
        for connection in held:
            connection.close()
    deadline = time.monotonic() + 20
    while page.ask("/")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_errors_show_no_paths_of_the_server(page):
    upload, load = page.function("upload"), page.function("load")
    missing = {"path": str(page.folder / "none.png"), "meta": {"_type": "gradio.FileData"}}
    for function, data in ((upload, [missing, None]), (upload, [7, None]), (load, [None, "x", 0, 0, 1, None])):
        _, answer = page.call(function, data)
        assert str(page.folder) not in answer
        assert "/site-packages/" not in answer
        assert "preprocess" not in answer
    assert json.loads(page.ask("/config")[1])["show_error"] is False


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "../../etc/passwd", "a\0b", "~/.bashrc"])
def test_only_uploaded_files_are_read(page, path):
    status, answer = page.call(page.function("upload"), [{"path": path, "meta": {"_type": "gradio.FileData"}}, None])
    assert status == 400
    assert path not in answer


def test_the_page_fetches_nothing_from_an_address_that_a_visitor_names(page):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
        for place in (file, [file], {"deep": [file]}):
            assert page.call(page.function("upload"), [place, None])[0] == 400
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize("body", [b"", b"[", b"[" * 100_000, b"null", b'{"data": 1e999}', b"\xff", b'"' + b"x" * 1000])
def test_damaged_requests_are_the_clients_mistake(page, body):
    assert page.ask("/gradio_api/queue/join", body, {"Content-Type": "application/json"})[0] in (400, 422)
