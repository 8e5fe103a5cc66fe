"""CPAB on a GPU: kernels against their twins, time of a forward and backward pass, and distance from the memory floor.

Run it on a machine with a GPU:

    PYTHONPATH=src python benchmarks/cpab_gpu.py --out benchmarks/results/cpab_gpu.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pstn.transforms import CPAB

# name, tessellation, output size, thetas, target in ms (None: for information)
CASES: list[tuple[str, Any, Any, int, float | None]] = [
    ("1-D, 131 points, 160 thetas", 10, 131, 160, 0.25),
    ("1-D, 131 points, 4096 thetas", 10, 131, 4096, 0.35),
    ("2-D 3x3, 28x28, 640 thetas", (3, 3), (28, 28), 640, 1.5),
    ("1-D, 1024 points, 65536 thetas", 10, 1024, 65536, None),
    ("2-D 3x3, 28x28, 16384 thetas", (3, 3), (28, 28), 16384, None),
]


def events(work: Callable[[], Any], repeats: int = 100) -> float:
    """Median time in ms between device events around the work, host overhead included where it is the bottleneck."""
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


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
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return events(graph.replay)


def passes(transform: CPAB, theta: Tensor, size: Any, grad: Tensor) -> Callable[[], Tensor]:
    """A forward and backward pass through `grid`."""

    def work() -> Tensor:
        (by_theta,) = torch.autograd.grad(transform.grid(theta, size), theta, grad)
        return by_theta

    return work


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
    return 2 * source.numel() * 4 / (events(lambda: target.copy_(source), 20) / 1e3)


def commit() -> str:
    """The commit that is measured, or "unknown" outside a checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(name: str, tess: Any, size: Any, thetas: int, target: float | None, speed: float) -> dict[str, Any]:
    torch.manual_seed(0)
    transform = CPAB(tess=tess).cuda()
    theta = (torch.randn(thetas, transform.dim, device="cuda") * 0.5).requires_grad_()
    grad = torch.randn_like(transform.grid(theta, size))
    work = passes(transform, theta, size, grad)
    small = thetas <= 4096
    row: dict[str, Any] = {"case": name, "target_ms": target, "eager_ms": events(work), "graph_ms": graphed(work)}
    row["eager_again_ms"] = events(work)
    row["eager_streamed_ms"] = streamed(work)
    # What autograd itself costs on this host: the smallest layer there is.
    layer, x = torch.nn.Linear(1, 1, device="cuda"), torch.ones(1, 1, device="cuda")
    one = torch.ones(1, 1, device="cuda")
    row["linear_layer_eager_ms"] = events(lambda: torch.autograd.grad(layer(x), layer.weight, one))
    row["floor_ms"] = floor_bytes(theta, grad, transform.ndim) / speed * 1e3
    row["graph_over_floor"] = row["graph_ms"] / row["floor_ms"]
    if small:
        twin = CPAB(tess=tess, backend="torch").cuda()
        row["twin_ms"] = events(passes(twin, theta, size, grad), 10)
        with torch.no_grad():
            row["forward_only_ms"] = events(lambda: transform.grid(theta, size))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default=None)
    arguments = parser.parse_args()
    begin = time.time()
    checks = {
        f"tess={tess}, scale={scale}": check(tess, size, scale)
        for tess, size in ((10, 131), ((3, 3), (28, 28)))
        for scale in (0.1, 1.0, 3.0)
    }
    speed = bandwidth()
    rows = [measure(*case, speed) for case in CASES]
    import triton

    result = {
        "commit": arguments.commit or commit(),
        "machine": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "seed": 0,
        "theta_scale": 0.5,
        "copy_bandwidth_bytes_per_s": speed,
        "against_the_twin_in_float64": checks,
        "forward_and_backward": rows,
        "wall_s": time.time() - begin,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
