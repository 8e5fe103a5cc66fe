"""The answer of an exported model of images for one of them, with numpy, onnxruntime and Pillow alone.

python predict_onnx.py model.onnx image.png

`python -m pstn.serve model.onnx` answers over HTTP.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=Path)
parser.add_argument("image", type=Path)
given = parser.parse_args()
for path in (given.model, given.image):
    if not path.is_file():
        parser.error(f"there is no file {path}")
# For CPAB transformations of series, this optimiser of onnxruntime 1.31 crashes.
session = onnxruntime.InferenceSession(given.model, disabled_optimizers=["NchwcTransformer"])
meta = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
if len(meta["size"]) != 2:
    parser.error(f"{given.model} takes series, but this example reads images")

image = ImageOps.exif_transpose(Image.open(given.image, formats=("PNG", "JPEG")))
if image.mode[0] in "IF":
    parser.error(f"{given.image} must have 8 bits a channel")
if image.has_transparency_data:
    image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image.convert("RGBA"))
image, (height, width) = image.convert("L" if meta["channels"] == 1 else "RGB"), meta["size"]
# The whole image, or as much of its middle as the model was trained to see.
framing = meta.get("framing", {"crop": None, "interpolation": "bicubic"})
wide, high = image.size
if framing["crop"] is not None:
    scale = framing["crop"] * min(wide / width, high / height)
    wide, high = scale * width, scale * height
left, top = (image.width - wide) / 2, (image.height - high) / 2
how = Image.Resampling[framing["interpolation"].upper()]
image = image.resize((width, height), how, (left, top, left + wide, top + high))
x = np.asarray(image, np.float32).reshape(*meta["size"], -1) / 255  # (H, W, C)
x = (x - np.float32(meta["mean"])) / np.float32(meta["std"])
feed: dict[str, Any] = {"x": x.transpose(2, 0, 1)[None]}
if "noise_width" in meta:  # the noise of the sampled transformations is an input; the file has that of `pstn predict`
    shape = meta["samples"], 1, meta["noise_width"]
    noise = meta.get("noise") or np.random.default_rng(0).random(shape)
    feed["noise"] = np.asarray(noise, np.float32).reshape(shape)
out = dict(zip((o.name for o in session.get_outputs()), session.run(None, feed), strict=True))
label = meta["classes"][int(out["probabilities"].argmax())]
answer = {"label": label, "probability": out["probabilities"].max().item(), "entropy": out["entropy"].item()}
if "abstain" in out:  # the model was trained with --accuracy
    answer["abstain"] = out["abstain"].item()
if "set" in out:  # with --coverage
    answer["set"] = [name for name, held in zip(meta["classes"], out["set"][0], strict=True) if held]
print(json.dumps(answer))
