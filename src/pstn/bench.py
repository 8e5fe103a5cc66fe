"""Benchmarks of predictions, training and warps on this machine.

A speed depends on the machine as much as on the program. So each measurement alternates with a reference in the same
run: a prediction with its classifier alone, a population with `pstn.fit`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from pstn._checks import require_choice, require_positive_number
from pstn.data import load_digits
from pstn.nn import mnist_pstn
from pstn.training import Population, Recipe, make_members
from pstn.training.fit import fit
from pstn.training.population.trainer import make_device
from pstn.transforms import CPAB, Similarity, Transform
from pstn.warping import warp

__all__ = ["PARTS", "Figure", "measure", "time_in_turns"]

SAMPLES, BATCH, FOLDS = 10, 8, 5
_STEPS = 20  # training steps per turn
_FEWEST_TURNS = 3


class Figure(NamedTuple):
    """One measurement.

    Attributes:
        part: the benchmark, a name in `PARTS`.
        what: was measured.
        value: the number.
        unit: of it.
    """

    part: str
    what: str
    value: float
    unit: str


def time_in_turns(
    works: Mapping[str, Callable[[], object]], seconds: float, device: torch.device | str = "cpu", *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:  # fmt: skip
    """Time several functions in turns, so that other load on the machine affects all of them equally.

    Args:
        works: the functions, by name.
        seconds: duration, after one turn that does not count; there are at least three turns.
        device: where the functions run; it is synchronised after each call.
        clock: returns the time in seconds; `time.process_time` measures processor time.

    Returns:
        The seconds of each call, by name.

    Example:
        >>> times = time_in_turns({"sum": lambda: torch.rand(100).sum()}, seconds=0.01)
        >>> len(times["sum"]) >= 3
        True
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    turn, end = 0, 0.0
    while turn <= _FEWEST_TURNS or time.perf_counter() < end:
        for name, work in works.items():
            begin = clock()
            work()
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize(device)
            if turn:  # the first turn fills caches, traces and compiles
                times[name].append(clock() - begin)
        if turn == 0:
            end = time.perf_counter() + seconds
        turn += 1
    return times


def measure(part: str, device: str = "cpu", seconds: float = 5.0) -> list[Figure]:
    """Run one of the benchmarks.

    Args:
        part: a name in `PARTS`.
        device: "auto" uses the GPU if there is one.
        seconds: duration of each comparison, after a first turn that does not count.
    """
    require_choice("part", part, tuple(PARTS))
    require_positive_number("seconds", seconds)
    return PARTS[part](make_device(device), seconds)


def _predictions(device: torch.device, seconds: float) -> list[Figure]:
    """The MNIST P-STN with ten samples, and its cost relative to its classifier alone on the same samples."""
    figures = []
    model = mnist_pstn().eval().to(device)
    for batch in (1, 100):
        x = torch.rand(batch, 1, 28, 28, device=device)
        with torch.inference_mode():
            warped = model.layer(x, SAMPLES).warped.flatten(0, 1).contiguous()
            works = {"model": partial(model, x, SAMPLES), "classifier": partial(model.classifier, warped)}
            times = time_in_turns(works, seconds, device)
        ratios = [a / b for a, b in zip(times["model"], times["classifier"], strict=True)]
        name = f"{batch} image(s) at a time"
        figures += [
            Figure("predict", name, batch / median(times["model"]), "images/s"),
            Figure("predict", f"{name}, cost beside the classifier alone", median(ratios), "times"),
        ]
    return figures


def _training(device: torch.device, seconds: float) -> list[Figure]:
    """The MNIST P-STN, batch size 8, on 100 digits: `pstn.fit`, one model and five models in a population."""
    digits = load_digits("train")
    x, y = digits.x[:500].to(device), digits.y[:500].to(device)
    model = mnist_pstn().to(device)

    def call_fit() -> None:
        batches = [(x[index], y[index]) for index in torch.randint(100, (_STEPS, BATCH), device=device)]
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # so few steps may not move the localizer
            fit(model, batches, epochs=1, kl_weight=1e-3, weight_decay=0.01, progress=False)

    def make_population(models: int) -> Population:
        subsets = [torch.arange(100 * fold, 100 * fold + 100) for fold in range(models)]
        members = make_members(models, kl_weight=1e-3, weight_decay=0.01, train=subsets)
        return Population([mnist_pstn() for _ in range(models)], x, y, members, Recipe(epochs=10**6, batch_size=BATCH))

    with make_population(1) as one, make_population(FOLDS) as several:
        works: dict[str, Callable[[], object]] = {
            "pstn.fit": call_fit,
            "one model": lambda: one.fit(until=one.progress.step + _STEPS),
            f"{FOLDS} models together": lambda: several.fit(until=several.progress.step + _STEPS),
        }
        times = time_in_turns(works, seconds, device)
    rates = {name: _STEPS / median(times[name]) * (FOLDS if "together" in name else 1) for name in works}
    return [Figure("train", name, rate, "model-steps/s") for name, rate in rates.items()]


def _warps(device: torch.device, seconds: float) -> list[Figure]:
    """Forward and backward through the warp of 64 inputs."""
    cases: dict[str, tuple[Transform, Tensor]] = {
        "64 images of 28×28, similarity": (Similarity(), torch.rand(64, 1, 28, 28, device=device)),
        "64 images of 28×28, CPAB of 3×3 cells": (CPAB(tess=(3, 3)), torch.rand(64, 1, 28, 28, device=device)),
        "64 series of length 100, CPAB of 10 cells": (CPAB(tess=10), torch.rand(64, 1, 100, device=device)),
    }

    def work(family: Transform, x: Tensor) -> Callable[[], None]:
        spread = 0.1 * torch.randn(len(x), family.dim, device=device)
        theta = (family.identity().to(device) + spread).requires_grad_()

        def warp_and_back() -> None:
            theta.grad = None
            warp(x, family.grid(theta, tuple(x.shape[2:]))).square().sum().backward()

        return warp_and_back

    times = time_in_turns({name: work(family.to(device), x) for name, (family, x) in cases.items()}, seconds, device)
    return [Figure("warp", name, 1e3 * median(each), "ms") for name, each in times.items()]


PARTS: dict[str, Callable[[torch.device, float], list[Figure]]]
PARTS = {"predict": _predictions, "train": _training, "warp": _warps}
"""The benchmarks, by name: functions of the device and the seconds that each comparison takes."""
