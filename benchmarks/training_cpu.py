"""Five folds of MNIST100 P-STN on the CPU: trained together, against a plain eager loop over the same model.

Usage:
    python benchmarks/training_cpu.py --out results.json [--rounds 15] [--compile]

All take the same model, data, batch size, optimiser and loss. The plain loop is what a first script would be: autograd,
`torch.optim.Adam`, one model after another, with one thread and with all of them; the faster of the two counts. The
ways take turns, round after round, so that other work on the machine meets them alike. Ratios are taken within a round;
medians over the rounds are what counts. Starting processes, tracing and compiling are not part of a round.

Beside the rates stands the processor time of a model-step on one core, in this process, of a plain loop and of a stack
of three: what a machine that others use too changes little.
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
from pstn.training.population.trainer import count_cores
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


def together(
    x: torch.Tensor, y: torch.Tensor, stack: ExitStack, *, compile: bool, models: int = FOLDS, groups: int | None = None
) -> Callable[[int], int]:
    """The same for several models together."""
    subsets = [torch.arange(100 * fold, 100 * fold + 100) for fold in range(models)]
    torch.manual_seed(0)
    starts = [pstn.nn.mnist_pstn(fill=FILL) for _ in range(models)]
    members = make_members(models, kl_weight=1e-3, weight_decay=0.01, train=subsets)
    recipe = Recipe(epochs=10**4)
    population = stack.enter_context(Population(starts, x, y, members, recipe, compile=compile, groups=groups))

    def go(steps: int) -> int:
        population.fit(until=population.progress.step + steps)
        return models * steps

    return go


def processor_ms(x: torch.Tensor, y: torch.Tensor, rounds: int, steps: int, compile: bool) -> dict[str, float]:
    """Median milliseconds of processor time that a model-step takes on one core."""
    with ExitStack() as stack:
        ways = {"plain": plain_loop(x, y, 1), "stack of 3": together(x, y, stack, compile=False, models=3, groups=1)}
        if compile:
            ways["stack of 3, compiled"] = together(x, y, stack, compile=True, models=3, groups=1)
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, go in ways.items():
                torch.set_num_threads(1)
                started = time.process_time()
                taken = go(steps)
                if turn:  # the first also traces
                    spent[name].append(1e3 * (time.process_time() - started) / taken)
    return {name: round(median(values), 2) for name, values in spent.items()}


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
        "processor_ms_per_model_step": processor_ms(x, y, arguments.rounds, arguments.steps, arguments.compile),
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
