"""Servers in processes of their own, and a model for them that needs no torch."""

import json
import signal
import socket
import subprocess
import sys
import time

import httpx
import onnx

MOST_MEMORY = 1 << 30  # of a process of the server under what hostile clients send, in bytes


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """A server in a process of its own."""

    def __init__(self, *arguments, log, port=None):
        self.port, self.log = port or free_port(), log
        command = [sys.executable, *arguments, f"--port={self.port}"]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        self.address = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            try:
                httpx.get(f"{self.address}/health", timeout=5)
                return self
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


# The mean of each channel of an image, as probabilities.
TINY = """
<ir_version: 9, opset_import: ["": 18]>
tiny (float[N, 3, 12, 10] x) => (float[N, 3] probabilities, float[N] entropy)
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
