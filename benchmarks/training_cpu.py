"""Five folds of MNIST100 P-STN on the CPU: trained together, against a plain eager loop over the same model.

Usage:
    python benchmarks/training_cpu.py --out results.json [--steps 300]

Both take the same model, data, batch size, optimiser and loss. The plain loop is what a first script would be:
autograd, `torch.optim.Adam`, one model after another. It runs before and after, with one thread and with all of them;
the fastest of its runs counts.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

import pstn
from pstn.data import load_digits
from pstn.training import Population, Recipe, make_members
from recording import Stopwatch, write

FILL = -0.1307 / 0.3081


def plain_rate(x: torch.Tensor, y: torch.Tensor, steps: int, threads: int) -> float:
    """Steps per second of one model in a plain loop."""
    torch.set_num_threads(threads)
    model = pstn.nn.mnist_pstn(fill=FILL).train()
    optimiser = torch.optim.Adam(model.parameter_groups(1e-3, weight_decay=0.01))
    started = 0.0
    for step in range(steps + 10):
        if step == 10:
            started = time.perf_counter()
        index = torch.randint(len(x), (8,))
        optimiser.zero_grad()
        pstn.elbo_loss(model(x[index]), y[index], 1e-3).backward()
        optimiser.step()
    return steps / (time.perf_counter() - started)


def population_rate(x: torch.Tensor, y: torch.Tensor, steps: int, compile: bool) -> tuple[float, dict[str, Any]]:
    """Model-steps per second of five models together, after the processes have started and traced."""
    subsets = [torch.arange(100 * fold, 100 * fold + 100) for fold in range(5)]
    torch.manual_seed(0)
    models = [pstn.nn.mnist_pstn(fill=FILL) for _ in range(5)]
    members = make_members(5, kl_weight=1e-3, weight_decay=0.01, train=subsets)
    begun = time.perf_counter()
    with Population(models, x, y, members, Recipe(epochs=10**4), compile=compile) as population:
        population.fit(until=40)
        ready = time.perf_counter() - begun
        started = time.perf_counter()
        population.fit(until=40 + steps)
        rate = 5 * steps / (time.perf_counter() - started)
        return rate, {"compile": compile, "groups": len(population.groups), "ready_s": round(ready, 1)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    digits = load_digits("train")
    x, y = (digits.x[:500] - 0.1307) / 0.3081, digits.y[:500]
    cores = os.cpu_count() or 1
    watch = Stopwatch()
    plain = {f"before, {t} thread(s)": plain_rate(x, y, arguments.steps, t) for t in (1, cores)}
    together, about = population_rate(x, y, arguments.steps, arguments.compile)
    plain |= {f"after, {t} thread(s)": plain_rate(x, y, arguments.steps, t) for t in (1, cores)}
    figures = {
        "load_average": os.getloadavg(),
        "plain_steps_per_s": {name: round(rate, 1) for name, rate in plain.items()},
        "together_model_steps_per_s": round(together, 1), **about,
        "times_faster": round(together / max(plain.values()), 2),
    }  # fmt: skip
    write(arguments.out, figures, seed=0, watch=watch)


if __name__ == "__main__":
    main()
