"""Benchmarks of predictions, training and warps on this machine.

A speed depends on the machine as much as on the program. So each measurement alternates with its peers in the same
run: a prediction with its classifier alone and with fixed test-time augmentation, training with a plain loop, a warp
with plain torch and, where it is installed, kornia. `pstn.report.speed` makes a page of the figures.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import require_choice, require_positive_number
from pstn.data import load_digits
from pstn.nn import mnist_pstn
from pstn.objective import elbo_loss
from pstn.provenance import provenance
from pstn.training import Population, Recipe, make_members
from pstn.training.fit import fit
from pstn.training.population.trainer import make_device
from pstn.transforms import CPAB, Similarity, Transform
from pstn.warping import warp

__all__ = ["PARTS", "Figure", "make_record", "measure", "time_in_turns"]

Name = TypeVar("Name")
SAMPLES, BATCH, FOLDS = 10, 8, 5
_STEPS = 20  # training steps per turn
_FEWEST_TURNS = 3
# glibc gives free memory back to the system where there is more than twice the largest block that was freed so far, of
# those below 32 MB. To get it anew can take as long as the work that is timed.
_KEPT_BYTES = 28 << 20


class Figure(NamedTuple):
    """One measurement.

    Attributes:
        part: the benchmark, a name in `PARTS`.
        what: was measured.
        value: the number.
        unit: of it; the more the better if it is per second, the less the better otherwise.
        peer: what was measured instead of this package; empty for the package.
    """

    part: str
    what: str
    value: float
    unit: str
    peer: str = ""


def time_in_turns(
    works: Mapping[Name, Callable[[], object]], seconds: float, device: torch.device | str = "cpu", *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, list[float]]:  # fmt: skip
    """Time several functions in turns, so that other load on the machine affects all of them equally.

    The process keeps the memory of their results on a CPU, as one does that has handled larger ones before. Otherwise
    it would depend on the history of the process which of the functions has to get its memory anew.

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
    times: dict[Name, list[float]] = {name: [] for name in works}
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)
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


def make_record(parts: Sequence[str], device: str = "cpu", seconds: float = 5.0) -> dict[str, Any]:
    """The figures of some benchmarks with when and where they were taken, as JSON files have them.

    Args:
        parts: names in `PARTS`.
        device: as in `measure`.
        seconds: likewise.
    """
    figures = [figure._asdict() for part in parts for figure in measure(part, device, seconds)]
    absent = [] if import_kornia() else ["kornia"]
    now = {"date": time.strftime("%Y-%m-%d"), "device": str(make_device(device)), "load": round(os.getloadavg()[1], 1)}
    return {**now, **provenance(), "absent": absent, "figures": figures}


def import_kornia() -> Callable[..., Tensor] | None:
    """The warp of kornia, (x, matrices (B, 3, 3), size) -> warped; None where it is absent or does not import."""
    try:
        from kornia.geometry.transform import homography_warp
    except (ImportError, RuntimeError):  # the second from a torchvision that does not fit torch
        return None
    return homography_warp


def _predictions(device: torch.device, seconds: float) -> list[Figure]:
    """The MNIST P-STN with ten samples, its classifier alone on the same samples, and that under ten fixed warps."""
    figures = []
    model = mnist_pstn().eval().to(device)
    fixed = model.layer.transform.identity().to(device) + 0.15 * torch.randn(SAMPLES, 4, device=device)
    for batch in (1, 10, 100):
        x = torch.rand(batch, 1, 28, 28, device=device)
        matrices = Similarity().matrix(fixed.repeat_interleave(batch, 0))

        def augmented(x: Tensor = x, matrices: Tensor = matrices) -> Tensor:
            grid = F.affine_grid(matrices, [len(matrices), 1, 28, 28], align_corners=False)
            logits = model.classifier(F.grid_sample(x.repeat(SAMPLES, 1, 1, 1), grid, align_corners=False))
            return logits.softmax(-1).unflatten(0, (SAMPLES, -1)).mean(0)

        with torch.inference_mode():
            warped = model.layer(x, SAMPLES).warped.flatten(0, 1).contiguous()
            works: dict[str, Callable[[], object]] = {
                "": partial(model, x, SAMPLES),
                "its classifier alone": partial(model.classifier, warped),
                "fixed test-time augmentation": augmented,
            }
            times = time_in_turns(works, seconds, device)
        ratios = [a / b for a, b in zip(times[""], times["its classifier alone"], strict=True)]
        name = "one image at a time" if batch == 1 else f"{batch} images at a time"
        figures += [Figure("predict", name, batch / median(each), "images/s", peer) for peer, each in times.items()]
        figures.append(Figure("predict", f"{name}, over the classifier's time", median(ratios), "times"))
    return figures


def _training(device: torch.device, seconds: float) -> list[Figure]:
    """The MNIST P-STN, batch size 8, on 100 digits: a plain loop, `pstn.fit`, one model and five in a population."""
    digits = load_digits("train")
    x, y = digits.x[:500].to(device), digits.y[:500].to(device)
    plain, fitted = (mnist_pstn().to(device).train() for _ in range(2))
    adam = torch.optim.Adam(plain.parameter_groups(1e-3, weight_decay=0.01))

    def batches() -> list[tuple[Tensor, Tensor]]:
        return [(x[index], y[index]) for index in torch.randint(100, (_STEPS, BATCH), device=device)]

    def loop() -> None:
        for inputs, labels in batches():
            adam.zero_grad()
            elbo_loss(plain(inputs), labels, 1e-3).backward()
            adam.step()

    def call_fit() -> None:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # so few steps may not move the localizer
            fit(fitted, batches(), epochs=1, kl_weight=1e-3, weight_decay=0.01, progress=False)

    def make_population(models: int) -> Population:
        subsets = [torch.arange(100 * fold, 100 * fold + 100) for fold in range(models)]
        members = make_members(models, kl_weight=1e-3, weight_decay=0.01, train=subsets)
        return Population([mnist_pstn() for _ in range(models)], x, y, members, Recipe(epochs=10**6, batch_size=BATCH))

    together = f"{FOLDS} models in a population"
    with make_population(1) as one, make_population(FOLDS) as several:
        works: dict[str, Callable[[], object]] = {
            "plain": loop,
            "one model, pstn.fit": call_fit,
            "one model in a population": lambda: one.fit(until=one.progress.step + _STEPS),
            together: lambda: several.fit(until=several.progress.step + _STEPS),
        }
        times = time_in_turns(works, seconds, device)
    rates = {name: _STEPS / median(times[name]) * (FOLDS if name == together else 1) for name in works}
    reference, unit = rates.pop("plain"), "model-steps/s"
    ours = [Figure("train", name, rate, unit) for name, rate in rates.items()]
    return ours + [Figure("train", name, reference, unit, "a plain loop, model by model") for name in rates]


def _warps(device: torch.device, seconds: float) -> list[Figure]:
    """Forward and backward through the warp of 64 inputs."""
    similarity, image = Similarity(), torch.rand(64, 1, 28, 28, device=device)
    ten = f"{SAMPLES} similarities each of 64 images of 28×28"
    cases: dict[str, tuple[Transform, Tensor, int]] = {
        "64 images of 28×28, similarity": (similarity, image, 1),
        ten: (similarity, image, SAMPLES),
        "64 images of 28×28, CPAB of 3×3 cells": (CPAB(tess=(3, 3)), image, 1),
        "64 series of length 100, CPAB of 10 cells": (CPAB(tess=10), torch.rand(64, 1, 100, device=device), 1),
    }

    def ours(family: Transform, x: Tensor, theta: Tensor) -> Tensor:
        return warp(x, family.grid(theta, tuple(x.shape[2:])))

    def in_torch(family: Transform, x: Tensor, theta: Tensor) -> Tensor:
        matrices = similarity.matrix(theta.flatten(0, 1))
        grid = F.affine_grid(matrices, [len(matrices), *x.shape[1:]], align_corners=False)
        return F.grid_sample(x.repeat(len(theta), 1, 1, 1), grid, align_corners=False)

    kornia = import_kornia()

    def in_kornia(family: Transform, x: Tensor, theta: Tensor) -> Tensor:
        assert kornia is not None
        matrices = F.pad(similarity.matrix(theta.flatten(0, 1)), (0, 0, 0, 1)) + last
        return kornia(x.repeat(len(theta), 1, 1, 1), matrices, tuple(x.shape[2:]))

    last = torch.zeros(3, 3, device=device)
    last[2, 2] = 1

    def work(way: Callable[..., Tensor], family: Transform, x: Tensor, samples: int) -> Callable[[], None]:
        spread = 0.1 * torch.randn(samples, len(x), family.dim, device=device)
        theta = (family.identity().to(device) + spread).requires_grad_()

        def warp_and_back() -> None:
            theta.grad = None
            way(family, x, theta).square().sum().backward()

        return warp_and_back

    peers = {"": ours, "plain torch": in_torch, **({"kornia": in_kornia} if kornia else {})}
    works = {
        (what, peer): work(way, family.to(device), x, samples)
        for what, (family, x, samples) in cases.items()
        for peer, way in peers.items()
        if not peer or family is similarity
    }
    times = time_in_turns(works, seconds, device)
    return [Figure("warp", what, 1e3 * median(each), "ms", peer) for (what, peer), each in times.items()]


PARTS: dict[str, Callable[[torch.device, float], list[Figure]]]
PARTS = {"predict": _predictions, "train": _training, "warp": _warps}
"""The benchmarks, by name: functions of the device and the seconds that each comparison takes."""
