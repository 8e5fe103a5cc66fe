"""What a batch of rotated digits costs, beside the training step that uses it.

The P-STN is that of the paper's rotated-MNIST experiment: 10 samples, batch 64, a frozen classifier. Data and model are
on the same device. Both are timed step by step, and on a GPU also as CUDA graphs, in turns, so that both meet the same
machine. The images are the digits that ship with the package.

    python benchmarks/rotated_batch.py --out benchmarks/results/rotated_batch_NAME.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pstn
from graphs import captured
from pstn.data import Generated, load
from recording import Stopwatch, write

BATCH, SAMPLES = 64, 10


def rotated_mnist_pstn() -> pstn.PSTN:
    """The paper's P-STN for rotated MNIST, its classifier frozen."""
    localizer = pstn.nn.ConvLocalizer(1, (28, 28), filters=(28, 53))
    layer = pstn.SpatialTransformer(pstn.Rotation(), localizer, (28, 28), hidden=20, var_init=-3.0)
    return pstn.PSTN(layer, pstn.nn.mnist_cnn().requires_grad_(False), train_samples=SAMPLES)


def make_work(device: torch.device) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """(make a batch, train on one) on `device`; the second has its batch ready."""
    torch.manual_seed(0)
    data: Generated = load("rotated-digits").train.to(device)
    index = torch.randint(len(data), (BATCH,), device=device)
    ready = data.batch(index)
    model = rotated_mnist_pstn().to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-5, capturable=device.type == "cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        pstn.elbo_loss(model(ready.x), ready.y, kl_weight=3e-5).backward()
        optimiser.step()

    return lambda: data.batch(index), step


def measure(works: dict[str, Callable[[], Any]], device: torch.device, rounds: int, repeats: int) -> dict[str, float]:
    """The median time of each, in microseconds, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 3):
        for name, work in works.items():
            _wait(device)
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            _wait(device)
            if turn >= 3:  # the first turns warm up
                times[name].append((time.perf_counter() - start) / repeats * 1e6)
    return {name: round(statistics.median(taken), 1) for name, taken in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device)
    watch = Stopwatch()
    if device.type == "cpu":
        torch.set_num_threads(1)
    make, step = make_work(device)
    modes = {"eager": {"batch": make, "step": step}}
    if device.type == "cuda":
        modes["cuda_graph"] = {"batch": captured(make), "step": captured(step)}
    result: dict[str, Any] = {
        "what": f"rotated batch of {BATCH} against a P-STN training step, S = {SAMPLES}, microseconds, median"
    }
    for mode, works in modes.items():
        times = measure(works, device, options.rounds, options.repeats)
        result[mode] = {**times, "share": round(times["batch"] / times["step"], 4)}
    write(options.out, result, seed=0, watch=watch)


if __name__ == "__main__":
    main()
