"""What a prediction costs beyond its classifier: model(x) against the classifier alone on the S warped samples.

The two are timed turn by turn in one run, so that whatever else the machine does falls on both, and the median of the
ratios is what counts. Besides the wall time on all threads there is the processor's time on one: a busy machine, where
threads wait for each other, distorts the first and not the second.

    python benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pstn
from pstn.bench import time_in_turns
from recording import Stopwatch, write

SAMPLES, SEED, SECONDS = 10, 0, 6.0
BATCHES = (10, 100, 1000)


def measure(batch: int, clock: Callable[[], float]) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model = pstn.nn.mnist_pstn(fill=-0.42).eval()
    x = torch.rand(batch, 1, 28, 28)

    with torch.inference_mode():
        warped = model.layer(x, SAMPLES).warped.flatten(0, 1).contiguous()
        works = {"whole": lambda: model(x, SAMPLES), "alone": lambda: model.classifier(warped)}
        whole, alone = time_in_turns(works, SECONDS, clock=clock).values()
    ratios = [a / b for a, b in zip(whole, alone, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "inputs_per_s": round(batch / statistics.median(whole)),
        "classifier_alone_inputs_per_s": round(batch / statistics.median(alone)),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
        "ratio_of_fastest": round(min(whole) / min(alone), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "throughput_cpu.json")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    watch = Stopwatch()
    results = []
    for batch in BATCHES:
        torch.set_num_threads(options.threads)
        wall = measure(batch, time.perf_counter)
        torch.set_num_threads(1)
        results.append({"batch": batch, "wall": wall, "processor_one_thread": measure(batch, time.process_time)})
    torch.set_num_threads(options.threads)
    figures = {
        "what": "model(x) of the P-STN of the MNIST experiments against its classifier alone on the S samples",
        "samples": SAMPLES,
        "size": [28, 28],
        "load_average": round(os.getloadavg()[1], 1),
        "results": results,
    }
    write(options.out, figures, seed=SEED, watch=watch)


if __name__ == "__main__":
    main()
