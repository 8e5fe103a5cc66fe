"""CPAB on a GPU: kernels against their twins, time of a forward and backward pass, and distance from the memory floor.

Run it on a machine with a GPU:

    PYTHONPATH=src python benchmarks/cpab_gpu.py --out benchmarks/results/cpab_gpu.json

The eager call of a small case is the host's work, so what torch itself costs there is measured beside it, in turns: an
empty function of autograd and a linear layer of one weight, both forward and backward.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from graphs import captured
from pstn.transforms import CPAB
from recording import Stopwatch, write

# name, tessellation, output size, thetas, target in ms (None: for information)
CASES: list[tuple[str, Any, Any, int, float | None]] = [
    ("1-D, 131 points, 160 thetas", 10, 131, 160, 0.25),
    ("1-D, 131 points, 4096 thetas", 10, 131, 4096, 0.35),
    ("2-D 3x3, 28x28, 640 thetas", (3, 3), (28, 28), 640, 1.5),
    ("1-D, 1024 points, 65536 thetas", 10, 1024, 65536, None),
    ("2-D 3x3, 28x28, 16384 thetas", (3, 3), (28, 28), 16384, None),
]
ROUNDS = 5


def events(works: dict[str, Callable[[], Any]], repeats: int = 200) -> dict[str, float]:
    """Median times in ms between device events around each work, in turns; the host's time where that is longer."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 10):
        for name, work in works.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            if turn >= 10:  # the first turns warm up
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(taken) for name, taken in times.items()}


def streamed(work: Callable[[], Any], repeats: int = 300) -> float:
    """Mean time in ms of calls that follow one another, as in training: the host does not wait for the device."""
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats * 1e3


def graphed(work: Callable[[], Any]) -> float:
    """Median time in ms of a captured graph's replay: the device's own time."""
    return events({"replay": captured(work)})["replay"]


def passes(grid: Callable[[Tensor], Tensor], theta: Tensor, grad: Tensor) -> Callable[[], Tensor]:
    """A forward and backward pass."""

    def work() -> Tensor:
        (by_theta,) = torch.autograd.grad(grid(theta), theta, grad)
        return by_theta

    return work


def replayed(grid: Callable[[Tensor], Tensor], theta: Tensor) -> Callable[[Tensor], Tensor]:
    """`grid` with both its passes as graphs that autograd replays: what an eager loop can do about the host's time."""
    made = torch.cuda.make_graphed_callables(grid, (theta.detach().clone().requires_grad_(),))
    return cast("Callable[[Tensor], Tensor]", made)


def floor_bytes(theta: Tensor, grad: Tensor, ndim: int) -> int:
    """The fewest bytes through device memory: theta in twice, grid out, gradient of it in, gradient of theta out.

    In the plane the Jacobian goes out and comes in as well: it is saved so that no step has to be.
    """
    jacobian = 2 * grad.numel() * 2 if ndim == 2 else 0
    return 4 * (3 * theta.numel() + 2 * grad.numel() + jacobian)


def check(tess: Any, size: Any, scale: float) -> dict[str, float]:
    """Largest differences from the twin in float64 on the CPU, on fresh random thetas."""
    generator = torch.Generator().manual_seed(int(scale * 100))
    transform = CPAB(tess=tess)
    theta = torch.randn(16, transform.dim, generator=generator) * scale
    exact = theta.double().requires_grad_()
    grid = transform.grid(exact, size)
    grad = torch.randn(grid.shape, generator=generator)
    (by_exact,) = torch.autograd.grad(grid, exact, grad.double())
    moved = transform.cuda()
    fast = theta.cuda().requires_grad_()
    out = moved.grid(fast, size)
    (by_fast,) = torch.autograd.grad(out, fast, grad.cuda())
    return {
        "value": float((out.detach().cpu().double() - grid.detach()).abs().max()),
        "gradient_relative": float((by_fast.cpu().double() - by_exact).norm() / by_exact.norm()),
    }


def bandwidth() -> float:
    """Bytes per second of a large copy on the device, read and written."""
    source = torch.rand(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / (events({"copy": lambda: target.copy_(source)}, 20)["copy"] / 1e3)


class Empty(torch.autograd.Function):
    """The least that a function of autograd can do: make its output and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The output, not computed."""
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient, not computed."""
        return torch.empty_like(grad)


def bystanders() -> dict[str, Callable[[], Any]]:
    """What torch itself costs on this host."""
    one = torch.ones(1, 1, device="cuda")
    weight, layer = torch.ones(1, 1, device="cuda", requires_grad=True), torch.nn.Linear(1, 1, device="cuda")
    return {
        "empty_function": lambda: torch.autograd.grad(Empty.apply(weight), weight, one),
        "linear_layer": lambda: torch.autograd.grad(layer(one), layer.weight, one),
    }


class Case:
    """One row of the table: its works, ready to be timed."""

    def __init__(self, name: str, tess: Any, size: Any, thetas: int, target: float | None) -> None:
        torch.manual_seed(0)
        self.name, self.tess, self.size, self.thetas, self.target = name, tess, size, thetas, target
        self.transform = CPAB(tess=tess).cuda()
        self.theta = (torch.randn(thetas, self.transform.dim, device="cuda") * 0.5).requires_grad_()
        self.grad = torch.randn_like(self.grid(self.theta))
        self.work = passes(self.grid, self.theta, self.grad)
        self.replay = passes(replayed(self.grid, self.theta), self.theta, self.grad)

    def grid(self, theta: Tensor) -> Tensor:
        """The work."""
        return self.transform.grid(theta, self.size)

    def forward(self) -> None:
        """The work without gradients."""
        with torch.no_grad():
            self.grid(self.theta)

    def calls(self) -> dict[str, float]:
        """Times of single calls, which for small cases are the host's."""
        works = {"eager": self.work, "graphed_callable": self.replay, "forward_only": self.forward, **bystanders()}
        times = events(works) | {"eager_streamed": streamed(self.work)}
        with torch.autograd.set_multithreading_enabled(False):  # no handing over to autograd's own thread and back
            alone = events({"eager": self.work, **bystanders()}) | {"eager_streamed": streamed(self.work)}
        return times | {f"one_thread_{key}": value for key, value in alone.items()}

    def row(self, rounds: list[dict[str, float]], speed: float) -> dict[str, Any]:
        """All that is known of this case, given the times of its calls in some rounds."""
        times = {f"{key}_ms": statistics.median(times[key] for times in rounds) for key in rounds[0]}
        row: dict[str, Any] = {"case": self.name, "target_ms": self.target, **times}
        row["eager_rounds_ms"] = [times["eager"] for times in rounds]
        row["met"] = None if self.target is None else row["eager_ms"] <= self.target
        row["graphed_callable_streamed_ms"] = streamed(self.replay)
        row["graph_ms"] = graphed(self.work)
        row["floor_ms"] = floor_bytes(self.theta, self.grad, self.transform.ndim) / speed * 1e3
        row["graph_over_floor"] = row["graph_ms"] / row["floor_ms"]
        if self.thetas <= 4096:
            twin = CPAB(tess=self.tess, backend="torch").cuda()
            work = passes(lambda t: twin.grid(t, self.size), self.theta, self.grad)
            row["twin_ms"] = events({"twin": work}, 10)["twin"]
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    watch = Stopwatch()
    checks = {
        f"tess={tess}, scale={scale}": check(tess, size, scale)
        for tess, size in ((10, 131), ((3, 3), (28, 28)))
        for scale in (0.1, 1.0, 3.0)
    }
    speed = bandwidth()
    cases = [Case(*case) for case in CASES]
    # In rounds over the small cases, so that what else the host does falls on all; for large ones it matters little.
    taken: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    for turn in range(ROUNDS):
        for case in cases:
            if case.target is not None or turn == 0:
                taken[case.name].append(case.calls())
    figures = {
        "what": "forward and backward through CPAB.grid in ms, medians; of cases with a target, over "
        f"{ROUNDS} rounds; eager, as a graphed callable, forward only and the two bystanders in turns; "
        "streamed: calls in a row without waiting; graph: replay of one CUDA graph; "
        "one_thread: with torch.autograd.set_multithreading_enabled(False)",
        "theta_scale": 0.5,
        "copy_bandwidth_bytes_per_s": speed,
        "against_the_twin_in_float64": checks,
        "forward_and_backward": [case.row(taken[case.name], speed) for case in cases],
    }
    write(arguments.out, figures, seed=0, watch=watch, packages=("triton",))


if __name__ == "__main__":
    main()
