"""examples/serve_onnx.py as a hostile client meets it, in a process whose memory is limited."""

import io
import socket
import struct
import time
import zlib

import pytest
from PIL import Image

pytest.importorskip("onnx", reason="needs onnx: pip install 'pstn[onnx]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'pstn[onnx]'")

from security.example_server import ask, picture, serving


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as port:
        yield port


def test_idle_connections_block_nobody(port):
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(10)]
    try:
        for connection in idle[::2]:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Le")
        start = time.monotonic()
        status, answer = ask(port, picture())
        assert (status, answer["label"]) == (200, "red")
        assert time.monotonic() - start < 5
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("length", [-1, -(10**9), 10**12, "1e3", "", "0x10", "9" * 5000])
def test_a_length_that_is_negative_huge_or_no_number_is_refused_unread(port, length):
    start = time.monotonic()
    assert ask(port, b"", length)[0] == 413
    assert time.monotonic() - start < 5


def png_of(side):
    """A valid PNG of side x side black pixels, one bit each."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pack, row = zlib.compressobj(9), bytes(1 + (side + 7) // 8)
    data = b"".join(pack.compress(row) for _ in range(side)) + pack.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [13_000, 9_000, 5_000])
def test_a_png_of_very_many_pixels_is_refused_undecoded(port, side):
    assert ask(port, png_of(side))[0] == 400
    assert ask(port, picture())[0] == 200


@pytest.mark.parametrize(
    "kind", ["BMP", "GIF", "TIFF", "WEBP", "PPM", "EPS", "PDF", "ICO", "PCX", "TGA", "DDS", "SGI", "JPEG2000", "ICNS"]
)
def test_only_documented_formats_are_decoded(port, kind):
    stream = io.BytesIO()
    try:
        Image.new("RGB", (16, 16), "red").save(stream, kind)
    except (KeyError, OSError, ValueError):
        pytest.skip(f"this Pillow writes no {kind}")
    assert ask(port, stream.getvalue())[0] == 400
