"""Five costs on one core of a CPU, each beside a peer that takes turns with it.

Usage:
    OMP_NUM_THREADS=1 python benchmarks/cpu_speed.py --out results.json [--seconds 20] [--rounds 7]

- a prediction of ten images by the P-STN of the MNIST subsets, ten samples, beside its classifier on those samples, as
  it is and with torch's own pooling, and its parts: localizer, samples and warp, classifier;
- the same model as an ONNX file with ten samples, beside the classifier alone on ten times the batch;
- `pstn predict` on one image, beside a process that imports torch alone, with everything that Python does;
- `import pstn` with all its names read, beside the same;
- samples of a mixture of four Student-t, beside those of one Student-t, eager and compiled, with and without gradients.

All times are processor time of one thread. Ratios and differences are taken within a turn and medians over the turns:
other work on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image
from torch import nn

import pstn
from pstn.bench import time_in_turns
from pstn.export import export_onnx
from recording import Stopwatch, write

IMAGES, SAMPLES = 10, 10


def beside(ours: str, works: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Milliseconds of each function, and how often the others' time is in ours: medians of turns."""
    times = time_in_turns(works, seconds, clock=time.process_time)
    found = {f"{name}_ms": round(1e3 * median(values), 3) for name, values in times.items()}
    for name in works.keys() - {ours}:
        found[f"over_{name}"] = round(median(a / b for a, b in zip(times[ours], times[name], strict=True)), 3)
    return {**found, "turns": len(times[ours])}


def with_plain_pooling(network: nn.Module) -> nn.Module:
    """A copy that pools as torch does."""
    plain = copy.deepcopy(network)
    for module in plain.modules():
        for name, child in module.named_children():
            if type(child).__name__ == "_MaxPool":
                setattr(module, name, nn.MaxPool2d(2))
    return plain


def measure_prediction(model: pstn.PSTN, seconds: float) -> dict[str, float]:
    """A prediction, beside the classifier on the warped samples."""
    x = torch.rand(IMAGES, 1, 28, 28)
    with torch.inference_mode():
        warped = model.layer(x, SAMPLES).warped.flatten(0, 1).contiguous()
        works: dict[str, Callable[[], object]] = {
            "prediction": partial(model, x, SAMPLES), "classifier": partial(model.classifier, warped),
            "plain_classifier": partial(with_plain_pooling(model.classifier), warped),
            "localizer": partial(model.layer.localize, x), "layer": partial(model.layer, x, SAMPLES),
        }  # fmt: skip
        return beside("prediction", works, seconds)


def measure_onnx(model: pstn.PSTN, folder: Path, seconds: float) -> dict[str, float]:
    """The exported model, beside its classifier exported alone."""
    export_onnx(model, folder / "model.onnx", samples=SAMPLES)
    batch = torch.export.Dim("batch")
    example = (torch.rand(3, 1, 28, 28),)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(model.classifier, example, dynamic_shapes=({0: batch},), dynamo=True, verbose=False)
    assert program is not None
    program.save(folder / "classifier.onnx")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    whole, alone = (onnxruntime.InferenceSession(folder / f"{name}.onnx", settings) for name in ("model", "classifier"))
    x = np.random.default_rng(0).random((IMAGES, 1, 28, 28), np.float32)
    noise = np.random.default_rng(1).random((SAMPLES, IMAGES, model.layer.noise_width), np.float32)
    warped = np.random.default_rng(2).random((SAMPLES * IMAGES, 1, 28, 28), np.float32)
    works: dict[str, Callable[[], object]] = {
        "model": partial(whole.run, None, {"x": x, "noise": noise}),
        "classifier": partial(alone.run, None, {alone.get_inputs()[0].name: warped}),
    }
    return beside("model", works, seconds)


def processor_seconds(*command: str) -> float:
    """Of a new Python process with these arguments."""
    # As installed, where Python has compiled the modules before; the first round does that here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure_processes(model: pstn.PSTN, folder: Path, rounds: int) -> dict[str, float]:
    """Processor seconds of `pstn predict` and `import pstn` beyond importing torch."""
    model.save_pretrained(folder / "model")
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(folder / "one.png")
    commands = {
        "torch": ("-c", "import torch"),
        "import": ("-c", "import torch, pstn; pstn.PSTN"),
        "predict": ("-m", "pstn.cli", "predict", str(folder / "model"), str(folder / "one.png")),
    }
    spent = [{name: processor_seconds(*each) for name, each in commands.items()} for _ in range(rounds + 1)][1:]
    found = {"torch_s": median(turn["torch"] for turn in spent), "turns": rounds}
    for name in ("import", "predict"):
        found[f"{name}_beyond_torch_s"] = median(turn[name] - turn["torch"] for turn in spent)
    return {name: round(value, 3) for name, value in found.items()}


def measure_mixture(seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds for ten samples for each of 256 inputs, and how often the time of a Student-t is in a mixture's."""
    found = {}
    for compiled, alpha, dim, learns in product((False, True), (1.0, 2.0), (1, 4), (False, True)):
        one, several = (
            pstn.Posterior(torch.randn(*shape, dim).requires_grad_(learns), torch.full((*shape, dim), 0.1), alpha)
            for shape in ((256,), (256, 4))
        )
        mixture = pstn.MixturePosterior(torch.randn(256, 4).log_softmax(-1).requires_grad_(learns), several)
        works: dict[str, Callable[[], object]] = {}
        torch.compiler.reset()
        for name, q in {"mixture": mixture, "student_t": one}.items():
            noise = torch.rand(SAMPLES, 256, q.noise_width)
            sample = torch.compile(_sample, fullgraph=True) if compiled else _sample
            works[name] = partial(_draw, sample, q, noise, learns)
        times = time_in_turns(works, seconds, clock=time.process_time)
        name = f"{'compiled' if compiled else 'eager'}, alpha {alpha:g}, D {dim}{', with gradients' if learns else ''}"
        found[name] = {f"{key}_us": round(1e6 * median(values), 1) for key, values in times.items()}
        ratios = [a / b for a, b in zip(times["mixture"], times["student_t"], strict=True)]
        found[name] |= {"over_student_t": round(median(ratios), 2), "turns": len(ratios)}
    return found


def _sample(q: pstn.ThetaDistribution, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.weighted_sample(noise=noise)


def _draw(
    sample: Callable[..., tuple[torch.Tensor, torch.Tensor]], q: object, noise: torch.Tensor, learns: bool
) -> None:
    with torch.set_grad_enabled(learns):
        theta, log_weights = sample(q, noise)
    if learns:
        (theta.square().sum() + log_weights.sum()).backward()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each comparison of predictions")
    parser.add_argument("--rounds", type=int, default=7, help="of processes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watch, model = Stopwatch(), pstn.nn.mnist_pstn().eval()
    model.about = pstn.ModelMetadata(classes=tuple("0123456789"), size=(28, 28), channels=1)
    figures: dict[str, Any] = {"load_average": os.getloadavg(), "images": IMAGES, "samples": SAMPLES}
    figures["prediction"] = measure_prediction(model, given.seconds)
    with tempfile.TemporaryDirectory() as temporary:
        figures["processes"] = measure_processes(model, Path(temporary), given.rounds)
        figures["onnx"] = measure_onnx(model, Path(temporary), given.seconds)
    figures["mixture"] = measure_mixture(given.seconds / 10)
    write(given.out, figures, seed=0, watch=watch, packages=("onnxruntime",))


if __name__ == "__main__":
    main()
