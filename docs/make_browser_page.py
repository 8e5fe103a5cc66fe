"""Assemble the page that runs in the reader's browser, from docs/browser and npm's onnxruntime-web: `make browser`."""

from __future__ import annotations

import argparse
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pstn
from pstn.app import SHIPPED
from pstn.data import load_digits
from pstn.export import export_onnx

SOURCE = Path(__file__).parent / "browser"
INSTALLED = Path(__file__).parents[1] / ".npm" / "node_modules" / "onnxruntime-web" / "dist"
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
PAGE = ("index.html", "page.js", "digit.js")
SAMPLES = 10


def assemble(target: Path, runtime: Path) -> None:
    """Write the page, its models, ten digits and onnxruntime-web into a folder.

    Args:
        target: the folder.
        runtime: the folder `dist` of npm's onnxruntime-web.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in (*(SOURCE / name for name in PAGE), *(runtime / name for name in RUNTIME)):
        shutil.copy(path, target)
    model = pstn.from_pretrained(SHIPPED / "poses" / "pstn")
    cnn = model.classifier  # which the localizer was taught without
    cnn.about = model.about
    export_onnx(cnn, target / "cnn.onnx")
    export_onnx(model, target / "mean.onnx")
    samples = export_onnx(model, target / "samples.onnx", samples=SAMPLES)
    (target / "model.json").write_text(json.dumps({**_metadata(samples), "digits": _digits()}), encoding="utf-8")


def _metadata(path: Path) -> dict[str, Any]:
    """How input is prepared, the names of the classes, and noise."""
    import onnx

    properties = onnx.load(path).metadata_props
    return {entry.key: json.loads(entry.value) for entry in properties}


def _digits() -> list[str]:
    """The first test digit of each class, as base64 of 784 bytes."""
    test = load_digits("test")
    first = [test.x[test.y == digit][0] for digit in range(10)]
    return [base64.b64encode((255 * x).round().byte().numpy().tobytes()).decode() for x in first]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Assemble the page that runs in the reader's browser.")
    parser.add_argument("target", type=Path, help="folder to write, such as site/browser")
    parser.add_argument("--runtime", type=Path, default=INSTALLED, help="the folder dist of npm's onnxruntime-web")
    options = parser.parse_args()
    if not (options.runtime / RUNTIME[0]).is_file():
        parser.error(f"{options.runtime} has no {RUNTIME[0]}: run `make browser`")
    assemble(options.target, options.runtime)
    print(f"The page: {options.target / 'index.html'}, over HTTP: python -m http.server -d {options.target}")


if __name__ == "__main__":
    main()
