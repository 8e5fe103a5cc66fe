"""Five folds of MNIST100 P-STN on the CPU: trained together, against a plain eager loop over the same model.

Usage:
    python benchmarks/training_cpu.py --out results.json [--rounds 15] [--compile]

All take the same model, data, batch size, optimiser and loss. The plain loop is what a first script would be: autograd,
`torch.optim.Adam`, one model after another, with one thread and with all of them; the faster of the two counts. The
ways take turns, round after round, so that other work on the machine meets them alike. Ratios are taken within a round;
medians over the rounds are what counts. Starting processes, tracing and compiling are not part of a round.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

import pstn
from pstn.data import load_digits
from pstn.training import Population, Recipe, make_members
from pstn.training.planning import count_cores
from recording import Stopwatch, write

FILL = -0.1307 / 0.3081
FOLDS = 5


def plain_loop(x: torch.Tensor, y: torch.Tensor, threads: int) -> Callable[[int], int]:
    """What takes steps with one model in a plain loop, and says how many model-steps that were."""
    model = pstn.nn.mnist_pstn(fill=FILL).train()
    optimiser = torch.optim.Adam(model.parameter_groups(1e-3, weight_decay=0.01))

    def go(steps: int) -> int:
        torch.set_num_threads(threads)
        for _ in range(steps):
            index = torch.randint(len(x), (8,))
            optimiser.zero_grad()
            pstn.elbo_loss(model(x[index]), y[index], 1e-3).backward()
            optimiser.step()
        return steps

    return go


def together(x: torch.Tensor, y: torch.Tensor, stack: ExitStack, compile: bool) -> Callable[[int], int]:
    """The same for five models together."""
    subsets = [torch.arange(100 * fold, 100 * fold + 100) for fold in range(FOLDS)]
    torch.manual_seed(0)
    models = [pstn.nn.mnist_pstn(fill=FILL) for _ in range(FOLDS)]
    members = make_members(FOLDS, kl_weight=1e-3, weight_decay=0.01, train=subsets)
    recipe = Recipe(epochs=10**4)
    population = stack.enter_context(Population(models, x, y, members, recipe, compile=compile))

    def go(steps: int) -> int:
        population.fit(until=population.progress.step + steps)
        return FOLDS * steps

    return go


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each way in a round")
    parser.add_argument("--compile", action="store_true", help="measure a compiled population too")
    arguments = parser.parse_args()
    digits = load_digits("train")
    x, y = (digits.x[:500] - 0.1307) / 0.3081, digits.y[:500]
    cores, watch, ready = count_cores(), Stopwatch(), {}
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ways = {f"plain, {threads} thread(s)": plain_loop(x, y, threads) for threads in sorted({1, cores})}
        ways["together"] = together(x, y, stack, compile=False)
        if arguments.compile:
            ways["together, compiled"] = together(x, y, stack, compile=True)
        for name, go in ways.items():
            started = time.perf_counter()
            go(40)
            ready[name] = round(time.perf_counter() - started, 1)
        for _ in range(arguments.rounds):
            for name, go in ways.items():
                started = time.perf_counter()
                taken = go(arguments.steps)
                rates.setdefault(name, []).append(taken / (time.perf_counter() - started))
    figures: dict[str, Any] = {
        "load_average": os.getloadavg(), "rounds": arguments.rounds, "steps": arguments.steps,
        "seconds_for_the_first_40_steps": ready,
        "model_steps_per_s": {name: round(median(values), 1) for name, values in rates.items()},
        "times_faster_than_the_faster_plain_loop": {},
    }  # fmt: skip
    plain = [values for name, values in rates.items() if name.startswith("plain")]
    for name in [name for name in rates if name.startswith("together")]:
        ratios = [rate / max(others) for rate, *others in zip(rates[name], *plain, strict=True)]
        figures["times_faster_than_the_faster_plain_loop"][name] = {
            "median": round(median(ratios), 2), "lowest": round(min(ratios), 2), "highest": round(max(ratios), 2),
        }  # fmt: skip
    write(arguments.out, figures, seed=0, watch=watch)


if __name__ == "__main__":
    main()
