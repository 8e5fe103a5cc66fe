"""examples/serve_onnx.py as a hostile client meets it, in a process whose memory is limited."""

import contextlib
import io
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'pstn[onnx]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'pstn[onnx]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_onnx.py"
START = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, ({2 << 30}, {2 << 30}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# The mean of each channel of an image, as probabilities.
TINY = """
<ir_version: 9, opset_import: ["": 18]>
tiny (float[1, 3, 12, 10] x) => (float[1, 3] probabilities, float[1] entropy)
{
    axes = Constant <value_ints = [2, 3]> ()
    mean = ReduceMean <keepdims = 0> (x, axes)
    probabilities = Softmax (mean)
    last = Constant <value_ints = [1]> ()
    entropy = ReduceMax <keepdims = 0> (probabilities, last)
}
"""
ABOUT = {"size": [12, 10], "channels": 3, "classes": ["red", "green", "blue"], "mean": [0.5] * 3, "std": [0.5] * 3}


def tiny_model(path):
    model = onnx.parser.parse_model(TINY)
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in ABOUT.items()})
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    command = [sys.executable, "-c", START, str(EXAMPLE), str(tiny_model(folder / "tiny.onnx")), str(free)]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while ask(free, picture()) is None:
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield free
        assert process.poll() is None, (folder / "log.txt").read_text()
        process.terminate()
        process.wait(timeout=30)
    assert "Traceback" not in (folder / "log.txt").read_text()


def picture(kind="PNG", mode="RGB", size=(20, 24)):
    stream = io.BytesIO()
    Image.new(mode, size, "red" if mode == "RGB" else 0).save(stream, kind)
    return stream.getvalue()


def ask(port, body, length=None):
    """The status and the answer; None where no server listens."""
    length = str(len(body) if length is None else length).encode()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n" % length + body)
                connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionRefusedError:
        return None
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def test_idle_connections_block_no_other(port):
    with contextlib.ExitStack() as stack:
        for number in range(10):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            idle.sendall(b"POST / HTTP/1.1\r\nContent-Le" * (number % 2))
        start = time.monotonic()
        status, answer = ask(port, picture("JPEG"))
        assert (status, answer["label"]) == (200, "red")
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("length", [-1, -(10**9), 10**12, "1e3", "", "0x10", "9" * 5000])
def test_a_length_that_is_negative_huge_or_no_number_is_refused_unread(port, length):
    assert ask(port, b"", length)[0] == 413


@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "WEBP", "PPM", "EPS", "PDF", "ICO", "TGA", "DDS"])
def test_other_formats_and_very_many_pixels_are_refused_undecoded(port, kind):
    assert ask(port, picture(kind))[0] == 400
    assert ask(port, picture(mode="1", size=(5_000, 9_000)))[0] == 400
    assert ask(port, picture())[0] == 200
