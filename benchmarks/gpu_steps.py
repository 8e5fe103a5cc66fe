"""Single models on a GPU: `pstn.fit` with and without graphs, street signs as the authors ran them, and a profile.

    python benchmarks/gpu_steps.py --data FOLDER --out gpu_steps.json [--only fit signs profile] [--warm]

- `fit`: milliseconds of a step of `pstn.fit`, one after another and replayed as graphs, and of the loop that a user
  would write with torch alone.
- `signs`: the paper's P-STN on street signs: two ResNet-18, batch 10, S = 10, crops of 1024x1024 of which the localizer
  sees 224x224 and the classifier warped images of 224x224. Milliseconds of a step, and the most memory it takes.
- `profile`: the kernels of a replayed step: how many there are, how long the device computes, how long the step takes.

FOLDER holds mnist/ and ucr/, as for training.py, whose models are those of `profile`. `--warm` takes two steps of
everything, to fill the compiler's cache.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import pstn
from pstn.data import RandomRotation
from pstn.training import Population, RandomWarp, Recipe, make_members
from recording import Stopwatch, write
from training import Bench

Row = dict[str, Any]


def synchronised(work: Callable[[], Any], steps: int) -> float:
    """Milliseconds of one of several steps in a row."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps * 1e3


def loop(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], None]:
    """The loop that a user would write with torch alone."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)

    def step() -> None:
        chosen = torch.randint(len(x), (batch,), device=x.device)
        optimiser.zero_grad()
        pstn.elbo_loss(model(x[chosen]), y[chosen], kl_weight=1e-3).backward()
        optimiser.step()

    return step


def fit_steps(bench: Bench, *, warm: bool) -> list[Row]:
    """The MNIST-subset P-STN, in batches of 8 and of 64."""
    x, y = (part.cuda() for part in bench.mnist(6400))
    rows = []
    for batch in (8, 64):
        row: Row = {"work": f"MNIST P-STN, batch {batch}, S = 1"}
        for name, capture in (("one after another", False), ("graphs", True)):
            model, ends = pstn.nn.mnist_pstn(fill=-0.42).cuda(), [time.perf_counter()]

            def ended(epoch: Any, ends: list[float] = ends) -> None:
                torch.cuda.synchronize()
                ends.append(time.perf_counter())

            options: Row = {"epochs": 2 if warm else 9, "batch_size": batch, "kl_weight": 1e-3, "restarts": 0}
            pstn.fit(model, (x, y), capture=capture, on_epoch=ended, **options)
            times = [1e3 * (b - a) / (len(x) // batch) for a, b in pairwise(ends)]
            row[f"{name}_ms"] = round(statistics.median(times[2:] or times), 4)
            row[f"{name}_first_epoch_s"] = round(ends[1] - ends[0], 2)
        plain = loop(pstn.nn.mnist_pstn(fill=-0.42).cuda().train(), x, y, batch)
        synchronised(plain, 50)
        row["plain_loop_ms"] = round(statistics.median(synchronised(plain, 100) for _ in range(1 if warm else 7)), 4)
        row["graphs_times_as_fast"] = round(row["one after another_ms"] / row["graphs_ms"], 2)
        rows.append(row)
        print(row, flush=True)
    return rows


def make_signs() -> tuple[pstn.PSTN, Tensor, Tensor, Tensor]:
    """Model, what the localizer sees, what is warped, and classes, in memory's order for convolutions."""
    from torchvision.models import resnet18  # type: ignore[import-not-found]

    torch.manual_seed(0)
    localizer, classifier = resnet18(), resnet18(num_classes=10)
    localizer.fc = nn.Identity()
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, (224, 224), alpha=1.0)
    model = pstn.PSTN(layer, classifier.requires_grad_(False), train_samples=10).cuda().train()
    source = torch.rand(10, 3, 1024, 1024, device="cuda").to(memory_format=torch.channels_last)
    small = nn.functional.interpolate(source, (224, 224), mode="bilinear", antialias=True)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, small, source, torch.arange(10, device="cuda")


# name: products in TF32, compiled, samples at a time, share of the activations that are kept for the backward pass
WAYS = {
    "float32": (False, False, None, 1.0),
    "TF32": (True, False, None, 1.0),
    "TF32, chunks of 2": (True, False, 2, 1.0),
    "TF32, chunks of 5": (True, False, 5, 1.0),
    "TF32, compiled": (True, True, None, 1.0),
    "TF32, compiled, half kept": (True, True, None, 0.5),
    "TF32, compiled, a fifth kept": (True, True, None, 0.2),
    "TF32, compiled, chunks of 5": (True, True, 5, 1.0),
}


def sign_step(name: str, *, warm: bool) -> Row:
    """One way to take a step."""
    import torch._functorch.config as functorch

    tf32, compiled, chunk, kept = WAYS[name]
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    model, small, source, y = make_signs()
    model.chunk_size = chunk
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)

    def loss(x: Tensor, source: Tensor, y: Tensor) -> Tensor:
        return pstn.elbo_loss(model(x, source=source), y, kl_weight=1e-7)

    call = torch.compile(loss, dynamic=False) if compiled else loss

    def step() -> None:
        optimiser.zero_grad()
        call(small, source, y).backward()
        optimiser.step()

    started = time.perf_counter()
    with functorch.patch(activation_memory_budget=kept):
        for _ in range(2 if warm else 5):
            step()
        torch.cuda.synchronize()
        ready = time.perf_counter() - started
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        times = [synchronised(step, 10) for _ in range(1 if warm else 5)]
    return {
        "way": name, "ms_per_step": round(statistics.median(times), 2), "ready_s": round(ready, 1),
        "peak_mb": round(torch.cuda.max_memory_allocated() / 2**20), "spread": round(max(times) / min(times) - 1, 3),
    }  # fmt: skip


def sign_steps(bench: Bench, *, warm: bool, ways: list[str]) -> list[Row]:
    """Each way, whatever becomes of the others."""
    rows: list[Row] = []
    for name in ways:
        try:
            rows.append(sign_step(name, warm=warm))
        except Exception:
            rows.append({"way": name, "failed": traceback.format_exc()[-800:]})
        print(rows[-1], flush=True)
    return rows


def kernels(population: Population, steps: int) -> Row:
    """What the device does in a step, by kernel."""
    population.fit(until=120)
    step = population.progress.step
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        population.fit(until=step + steps)
        torch.cuda.synchronize()
    found = [
        (event.key, event.count / steps, event.self_device_time_total / steps)
        for event in profiler.key_averages()
        if event.self_device_time_total > 0 and str(event.device_type).endswith("CUDA")
    ]
    found.sort(key=lambda row: -row[2])
    torch.cuda.synchronize()
    started, step = time.perf_counter(), population.progress.step
    population.fit(until=step + 10 * steps)
    torch.cuda.synchronize()
    return {
        "step_us": round((time.perf_counter() - started) / (10 * steps) * 1e6, 1),
        "kernels_in_a_step": round(sum(count for _, count, _ in found), 1),
        "device_us_in_a_step": round(sum(time for _, _, time in found), 1),
        "longest": [[key[:90], round(count, 2), round(time, 2)] for key, count, time in found[:45]],
    }


def profiles(bench: Bench, *, warm: bool) -> dict[str, Row]:
    """The steps of training.py: MNIST subsets with 1, 15 and 100 models, rotated MNIST, FaceAll."""
    import training as works

    rotate = RandomWarp(RandomRotation())
    x, y = bench.mnist(50_000)
    faces = works.read_tsv(bench.folder / "ucr" / "FaceAll_TRAIN.tsv.gz")
    cases: list[tuple[str, Callable[[], nn.Module], int, Any, Row]] = [
        ("subset, 1 model", works.mnist_pstn, 1, (x[:100], y[:100]), {"batch_size": 8}),
        ("subset, 15 models", works.mnist_pstn, 15, (x[:100], y[:100]), {"batch_size": 8}),
        ("subset, 100 models", works.mnist_pstn, 100, (x[:100], y[:100]), {"batch_size": 8}),
        ("rotated, TF32", works.rotated_pstn, 1, (x, y), {"batch_size": 64, "precision": "tf32", "augment": rotate}),
        ("FaceAll, TF32", works.series_pstn, 1, faces, {"batch_size": 16, "precision": "tf32"}),
    ]
    found: dict[str, Row] = {}
    for name, make, count, data, recipe in cases:
        used, members = Recipe(epochs=10**6, **recipe), make_members(count, kl_weight=1e-3, weight_decay=0.01)
        models = works.several(make, count)
        with Population(models, data[0], data[1], members, used, device="cuda", compile=True, groups=1) as p:
            if warm:
                p.fit(until=60)
                continue
            found[name] = kernels(p, 40)
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["fit", "signs", "profile"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    bench = Bench(argparse.Namespace(
        data=given.data, device="cuda", quick=False, compiled=True, plans=[], variants=[], warm=given.warm
    ))  # fmt: skip
    watch, result = Stopwatch(), Row()
    works: dict[str, Callable[[], Any]] = {
        "fit": lambda: fit_steps(bench, warm=given.warm),
        "signs": lambda: sign_steps(bench, warm=given.warm, ways=given.ways),
        "profile": lambda: profiles(bench, warm=given.warm),
    }
    for name in given.only:
        try:
            result[name] = works[name]()
        except Exception:  # the other measurements are worth having
            result[name] = traceback.format_exc()[-1500:]
            print(result[name], flush=True)
        write(given.out, result, seed=0, watch=watch)


if __name__ == "__main__":
    main()
