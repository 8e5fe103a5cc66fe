"""examples/serve_onnx.py in a process whose memory is limited, and a client for it."""

import contextlib
import io
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import onnx
from PIL import Image

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_onnx.py"
MEMORY = 2 << 30  # bytes of address space
START = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def tiny_model(path):
    """A model of one layer: the mean of each channel of an image (1, 3, 12, 10), as probabilities."""
    make, real, whole = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [
        make.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        make.make_node("Softmax", ["mean"], ["probabilities"]),
        make.make_node("ReduceMax", ["probabilities", "last"], ["entropy"], keepdims=0),
    ]
    axes = [make.make_tensor("axes", whole, [2], [2, 3]), make.make_tensor("last", whole, [1], [1])]
    shapes = {"x": [1, 3, 12, 10], "probabilities": [1, 3], "entropy": [1]}
    x, *outputs = (make.make_tensor_value_info(name, real, shape) for name, shape in shapes.items())
    graph = make.make_graph(nodes, "tiny", [x], outputs, axes)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=9)
    described = {"size": [12, 10], "channels": 3, "classes": ["red", "green", "blue"]}
    described |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    make.set_model_props(model, {name: json.dumps(value) for name, value in described.items()})
    onnx.save(model, path)
    return path


@contextlib.contextmanager
def serving(folder):
    """Its port, while the example serves a tiny model."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    command = [sys.executable, "-c", START, str(EXAMPLE), str(tiny_model(folder / "tiny.onnx")), str(free)]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while ask(free, picture()) is None:
                assert process.poll() is None, (folder / "log.txt").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield free
            assert process.poll() is None, (folder / "log.txt").read_text()
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert "Traceback" not in (folder / "log.txt").read_text()


def picture(kind="PNG"):
    stream = io.BytesIO()
    Image.new("RGB", (20, 24), (250, 10, 10)).save(stream, kind)
    return stream.getvalue()


def request(body, length=None):
    length = str(len(body) if length is None else length).encode()
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n" % length + body


def ask(port, body, length=None):
    """The status and the answer; None where nobody listens."""
    try:
        answer = send(port, request(body, length))
    except ConnectionRefusedError:
        return None
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def send(port, content):
    """All that the server answers to some bytes, after which nothing more is sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        return b""
