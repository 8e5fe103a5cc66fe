"""Serve an exported model of images over HTTP with numpy, onnxruntime and Pillow, without torch.

python serve_onnx.py model.onnx image.png     # one answer
python serve_onnx.py model.onnx               # serves: curl --data-binary @image.png http://127.0.0.1:8000
"""

import argparse
import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG")
MOST_BYTES, MOST_PIXELS = 10_000_000, 16_000_000  # of an image
MOST_CONNECTIONS, SECONDS = 16, 20  # at once, and for each
connections, decoding = threading.BoundedSemaphore(MOST_CONNECTIONS), threading.Lock()

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=Path)
parser.add_argument("image", nargs="?", default="8000", help="an image, or the port to serve on")
given = parser.parse_args()
if not given.model.is_file():
    parser.error(f"there is no file {given.model}")
# For CPAB transformations of series, this optimiser of onnxruntime 1.31 crashes.
session = onnxruntime.InferenceSession(given.model, disabled_optimizers=["NchwcTransformer"])
meta = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
if len(meta["size"]) != 2:
    parser.error(f"{given.model} takes series, but this example reads images")


def answer(stream: str | io.BytesIO) -> dict[str, str | float]:
    """The model's answer for an image."""
    opened = Image.open(stream, formats=FORMATS)
    if opened.width * opened.height > MOST_PIXELS:
        raise ValueError(f"at most {MOST_PIXELS:,} pixels are expected")
    image = ImageOps.exif_transpose(opened)
    if image.mode[0] in "IF":
        raise ValueError("8 bits a channel are expected")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image.convert("RGBA"))
    image = image.convert("L" if meta["channels"] == 1 else "RGB").resize(meta["size"][::-1])
    x = np.asarray(image, np.float32).reshape(*meta["size"], -1) / 255  # (H, W, C)
    x = (x - np.float32(meta["mean"])) / np.float32(meta["std"])
    feed: dict[str, Any] = {"x": x.transpose(2, 0, 1)[None]}
    if "samples" in meta:  # the noise of the sampled transformations is an input
        feed["noise"] = np.random.default_rng(0).random((meta["samples"], 1, meta["theta_dim"]), np.float32)
    out = dict(zip((o.name for o in session.get_outputs()), session.run(None, feed), strict=True))
    label = meta["classes"][int(out["probabilities"].argmax())]
    return {"label": label, "probability": float(out["probabilities"].max()), "entropy": float(out["entropy"][0])}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = self.headers["Content-Length"] or ""
        code: int = 413
        said: dict[str, Any] = {"error": f"Content-Length must be given, from 0 to {MOST_BYTES}"}
        if length.isdecimal() and len(length) < 20 and int(length) <= MOST_BYTES:
            content = io.BytesIO(self.rfile.read(int(length)))
            try:
                with decoding:  # one image in memory at a time
                    code, said = 200, answer(content)
            except Exception:  # invalid input must not stop the server
                code, said = 400, {"error": f"an image is expected: {', '.join(FORMATS)}, 8 bits a channel"}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())


class Server(ThreadingHTTPServer):
    def process_request(self, request: Any, client_address: Any) -> None:
        if connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        cut_off = threading.Timer(SECONDS, request.shutdown, [socket.SHUT_RD])
        cut_off.start()
        try:
            self.finish_request(request, client_address)
        except OSError:  # the client went away
            pass
        finally:
            cut_off.cancel()
            self.shutdown_request(request)
            connections.release()


if given.image.isdigit():
    Server(("127.0.0.1", int(given.image)), Handler).serve_forever()
try:
    print(json.dumps(answer(given.image)))
except (OSError, ValueError) as error:
    parser.error(f"{given.image} cannot be read: {error}")
