"""Answer over HTTP with a model that `pstn export` wrote: numpy, onnxruntime and Pillow, no torch.

python serve_onnx.py model.onnx image.png     # one answer
python serve_onnx.py model.onnx               # serves: curl --data-binary @image.png http://127.0.0.1:8000
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
meta = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}


def answer(stream: str | io.BytesIO) -> dict[str, str | float]:
    """What the model says of an image."""
    image = Image.open(stream).convert("L" if meta["channels"] == 1 else "RGB").resize(meta["size"][::-1])
    x = np.asarray(image, np.float32).reshape(*meta["size"], -1) / 255  # (H, W, C)
    x = (x - np.float32(meta["mean"])) / np.float32(meta["std"])
    feed = {"x": x.transpose(2, 0, 1)[None]}
    if "samples" in meta:  # where it looks is random, and the randomness is ours to choose
        feed["noise"] = np.random.default_rng(0).random((meta["samples"], 1, meta["theta_dim"]), np.float32)
    out = dict(zip((o.name for o in session.get_outputs()), session.run(None, feed), strict=True))
    label = meta["classes"][int(out["probabilities"].argmax())]
    return {"label": label, "probability": float(out["probabilities"].max()), "entropy": float(out["entropy"][0])}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            length = min(int(self.headers["Content-Length"]), 10_000_000)
            code, said = 200, answer(io.BytesIO(self.rfile.read(length)))
        except Exception as error:  # whatever was sent, the server stays up
            code, said = 400, {"error": str(error)}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())


if len(sys.argv) > 2 and not sys.argv[2].isdigit():
    print(json.dumps(answer(sys.argv[2])))
else:
    HTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler).serve_forever()
