"""What a prediction costs beyond its classifier: model(x) against the classifier alone on the S warped samples.

Both are timed turn by turn in one run, so that whatever else the machine does falls on both; the median of the ratios
is what counts.

    OMP_NUM_THREADS=2 python benchmarks/throughput.py
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
from recording import Stopwatch, write

SAMPLES, BATCHES, SEED = 10, (10, 100, 1000), 0


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(batch: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model = pstn.nn.mnist_pstn(fill=-0.42).eval()
    x = torch.rand(batch, 1, 28, 28)
    with torch.inference_mode():
        warped = model.layer(x, SAMPLES).warped.flatten(0, 1).contiguous()
        whole: list[float] = []
        alone: list[float] = []
        for turn in range(rounds + 3):
            pair = seconds(lambda: model(x, SAMPLES)), seconds(lambda: model.classifier(warped))
            if turn >= 3:  # the first turns fill caches
                whole.append(pair[0])
                alone.append(pair[1])
    ratios = [a / b for a, b in zip(whole, alone, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "batch": batch,
        "rounds": rounds,
        "inputs_per_s": round(batch / statistics.median(whole)),
        "classifier_alone_inputs_per_s": round(batch / statistics.median(alone)),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "throughput_cpu.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    watch = Stopwatch()
    figures = {
        "what": "model(x) of the P-STN of the MNIST experiments against its classifier alone on the S samples",
        "samples": SAMPLES,
        "size": [28, 28],
        "results": [measure(batch, options.rounds) for batch in BATCHES],
    }
    write(options.out, figures, seed=SEED, watch=watch)


if __name__ == "__main__":
    main()
