"""`pstn serve` as a hostile client meets it: a real process, and real connections."""

import contextlib
import io
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from pstn import limits
from served import MOST_MEMORY, Server, tiny_model

# A second without a request is too long, and so are fifty connections.
IMPATIENT = (
    "from pstn import limits; limits.SERVE_SECONDS, limits.SERVE_AT_ONCE = 1, 50; import pstn.serve as s; s.main()"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("server") / "tiny.onnx")


@pytest.fixture(scope="module")
def impatient(model):
    with Server("-c", IMPATIENT, str(model), "--rate=0", log=model.with_name("impatient.txt")) as server:
        yield server
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def connect(impatient):
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(("127.0.0.1", impatient.port), timeout=60))


def picture(mode="RGB", size=(20, 24)):
    stream = io.BytesIO()
    Image.new(mode, size, "red").save(stream, "PNG")
    return stream.getvalue()


def until_closed(connection):
    """What the server still sends. Without a limit of the server's, this raises TimeoutError."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


def drip(connection, part, stop):
    for _ in range(300):  # a minute
        if stop.wait(0.2):
            return
        connection.sendall(part)


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("said", [b"", HEALTH, HEALTH + b"\r\n" + HEALTH], ids=["silent", "headers", "second headers"])
def test_connections_without_a_request_are_closed(connect, said):
    connection = connect()
    connection.sendall(said)
    assert until_closed(connection).count(b"200 OK") == (said.count(b"\r\n\r\n"))


def test_headers_that_arrive_bit_by_bit_are_given_up(connect):
    connection, stop = connect(), threading.Event()
    connection.sendall(HEALTH)

    with ThreadPoolExecutor() as pool:
        dripping = pool.submit(drip, connection, b"X: y\r\n", stop)
        try:
            assert until_closed(connection) == b""
        finally:
            stop.set()
        with contextlib.suppress(ConnectionError):
            dripping.result()


def test_idle_connections_block_no_other(connect):
    idle = [connect() for _ in range(70)]
    for connection in idle[::2]:
        connection.sendall(b"POST /predict HT")
    asks = connect()
    asks.sendall(HEALTH + b"\r\n")
    assert b" 200 OK" in until_closed(asks)


def test_an_answer_that_is_not_read_holds_no_connection(connect):
    """It is larger than what the kernel keeps for a client."""
    connection = connect()
    body = json.dumps({"inputs": [[[[1] * 10] * 12] * 3] * 1000}).encode()
    headers = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(b"POST /predict HTTP/1.1\r\n" + headers + body)
    with pytest.raises(ConnectionError):
        drip(connection, b"GET", threading.Event())


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_connection_that_is_accepted_last_does_not_keep_the_server_from_stopping(model):
    """uvicorn tells its connections that it stops, but not those that are being accepted: here that takes 80 ms."""
    slow_to_accept = (
        "import pstn.serve as s; made = s.Protocol.connection_made\n"
        "def late(self, transport): made(self, transport); transport.resume_reading()\n"
        "def slowly(self, transport):\n"
        "    transport.pause_reading(); self.loop.call_later(0.08, late, self, transport)\n"
        "s.Protocol.connection_made = slowly; s.main()"
    )
    told, stopped = threading.Event(), threading.Event()

    def ask_again_and_again(address):
        while not stopped.is_set():
            with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=address) as client:
                client.get("/health")
                while told.is_set() and not stopped.is_set():
                    client.get("/health")

    log = model.with_name("last.txt")
    with Server("-c", slow_to_accept, str(model), "--rate=0", log=log) as server, ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(ask_again_and_again, server.address)
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as first:
                time.sleep(0.5)
                server.process.send_signal(signal.SIGTERM)
                assert until_closed(first) == b""
            told.set()
            server.process.wait(15)
        finally:
            stopped.set()


def most_memory(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@pytest.mark.slow
@needs_proc
def test_large_malformed_and_slow_numbers_take_bounded_memory(model, record_property):
    """Ten at once of each kind; decimals in one list take most, as they are parsed before they are counted."""

    def fill(part, start=b'{"inputs":[', end=b"1]}"):
        return start + part * ((limits.SERVE_BYTES - len(start) - len(end)) // len(part)) + end

    bodies = [fill(part) for part in (b"0.5,", b"1,", b"1", b"null,", b" ", b"99999999999999999999,", b"\xff")]
    bodies += [fill(b"1,", end=b""), fill(b"1,", end=b"x]}"), fill(b"[", start=b""), fill(b"0", start=b'"')]
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with Server("-m", "pstn.serve", str(model), "--rate=0", log=model.with_name("numbers.txt")) as server:

        def ask(content):
            headers = {"content-type": "application/json"}
            return httpx.post(f"{server.address}/predict", content=content, headers=headers, timeout=300).status_code

        def ask_slowly(_):
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", server.port)) as connection,
            ):
                connection.sendall(head % limits.SERVE_BYTES + bytes(limits.SERVE_BYTES - 1))
                return until_closed(connection)[9:12]
            return b""

        with ThreadPoolExecutor(10) as pool:
            for content in bodies:
                statuses = set(pool.map(ask, [content] * 10))
                assert statuses & {400, 422}
                assert statuses <= {400, 422, 503}  # the last where too much waits
        with ThreadPoolExecutor(30) as pool:
            assert b"408" in (answers := set(pool.map(ask_slowly, range(30)))) <= {b"408", b"503", b""}, answers
        record_property("most memory under large, malformed and slow numbers", f"{most_memory(server) >> 20} MB")
        assert most_memory(server) < MOST_MEMORY


@pytest.mark.slow
@needs_proc
def test_large_images_at_once_take_bounded_memory(model):
    """Six of the largest that are decoded, each with transparency, which takes most."""
    upload = {"files": ("large.png", picture("RGBA", (4000, 4000)))}
    too_large = {"files": ("larger.png", picture("RGB", (9400, 9400)))}
    assert limits.SERVE_IMAGE_PIXELS == 4000 * 4000
    with Server("-m", "pstn.serve", str(model), "--rate=0", log=model.with_name("memory.txt")) as server:

        def ask(files):
            return httpx.post(f"{server.address}/predict/images", files=files, timeout=300).status_code

        def at_once(files):
            before = most_memory(server)
            with ThreadPoolExecutor(6) as pool:
                statuses = set(pool.map(ask, [files] * 6))
            return statuses, most_memory(server) - before

        assert ask({"files": ("small.png", picture())}) == 200
        statuses, grown = at_once(too_large)
        assert (statuses, grown < 64 << 20) == ({422}, True)
        statuses, grown = at_once(upload)
        assert statuses == {200}
        assert grown < 640 << 20  # one takes 250 MB
