"""CPAB on the CPU beside difw and libcpab: the same velocity fields, values and times, in one run.

The peers are no dependency of pstn. In an environment of their own:

    pip install torch numpy difw==0.0.31 libcpab==0.1.3 ninja
    PYTHONPATH=src python benchmarks/cpab_peers.py --out benchmarks/results/cpab_cpu.json

difw compiles its extension on the first call, which needs a C++ compiler. Times are medians of calls that alternate
between the libraries, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pstn.transforms import CPAB

Work = Callable[[], Any]
Warp = Callable[[Tensor], Tensor]


def alternate(works: dict[str, Work], repeats: int) -> dict[str, dict[str, float]]:
    """Median and fastest time of each work in ms, after a fifth as many calls to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    warm = max(1, repeats // 5)
    for step in range(repeats + warm):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            if step >= warm:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: {"median": statistics.median(values), "fastest": min(values)} for name, values in times.items()}


def translate(velocity: Callable[[Tensor], Tensor], dim: int, ours: Tensor) -> Tensor:
    """A peer's theta for our velocity field: velocities are linear in theta, so least squares finds it exactly."""
    columns = velocity(torch.eye(dim)).flatten(1).double().T
    solution = torch.linalg.lstsq(columns, ours.flatten(1).double().T)
    residual = (columns @ solution.solution - ours.flatten(1).double().T).abs().max()
    if residual > 1e-4:
        raise RuntimeError(f"the peer's fields do not contain ours: residual {residual:.2e}")
    return solution.solution.T.float().contiguous()


def forward(transform: Callable[[Tensor], Tensor], theta: Tensor) -> Work:
    def work() -> None:
        with torch.no_grad():
            transform(theta)

    return work


def both(transform: Callable[[Tensor], Tensor], theta: Tensor) -> Work:
    theta = theta.clone().requires_grad_()

    def work() -> None:
        theta.grad = None
        transform(theta).square().sum().backward()

    return work


def compare(
    name: str, ours: Warp, peer: Warp, theta: Tensor, other: Tensor, exact: Tensor, repeats: int
) -> dict[str, Any]:
    """Values and times of two implementations of one warp; `exact` is ours in float64, on [0, 1]."""
    kinds = (("forward", forward), ("forward + backward", both))
    works = {
        f"{who} {what}": kind(warp, t)
        for who, warp, t in (("pstn", ours, theta), (name, peer, other))
        for what, kind in kinds
    }
    if name == "difw":  # which compiles on its first call: so can we
        works["pstn compiled, forward + backward"] = both(torch.compile(ours, fullgraph=True), theta)
    times = alternate(works, repeats)
    peers = times[f"{name} forward + backward"]
    faster = {
        who: {key: peers[key] / own[key] for key in peers}
        for who, own in times.items()
        if who.startswith("pstn") and "backward" in who
    }
    return {
        "peer": name,
        "largest_error": {
            "pstn": float(((ours(theta) + 1) / 2 - exact).abs().max()),
            name: float((peer(other) - exact).abs().max()),
        },
        "times_ms": times,
        "faster_than_the_peer_by": faster,
    }


def difw_line(scale: float, repeats: int) -> dict[str, Any]:
    """Batch 64, length 100, 10 cells."""
    import difw

    peer = difw.Cpab(tess_size=10, backend="pytorch", device="cpu", zero_boundary=True, basis="qr")
    points = (torch.arange(100) + 0.5) / 100
    family = CPAB(tess=10)
    theta = torch.randn(64, 9) * scale
    velocity = family.velocity(theta, 2 * points[:, None] - 1)[..., 0] / 2
    other = translate(lambda t: peer.calc_velocity(points, t), 9, velocity)
    exact = (family.grid(theta.double(), 100)[..., 0] + 1) / 2
    result = compare(
        "difw",
        lambda t: family.grid(t, 100)[..., 0],
        lambda t: peer.transform_grid(points, t),
        *(theta, other, exact, repeats),
    )
    # The compiled extension is what is timed. Its values depend on the compiler (it is built with -Ofast); difw's own
    # implementation in plain torch says what it means to compute.
    peer.params.use_slow = True
    plain = float((peer.transform_grid(points, other) - exact).abs().max())
    return {
        "case": "1-D, 10 cells, batch 64, length 100",
        "theta_scale": scale,
        **result,
        "largest_difference_from_difw_in_plain_torch": plain,
    }


def libcpab_plane(scale: float, repeats: int) -> dict[str, Any]:
    """Batch 64, 28 by 28, 3 by 3 cells."""
    from libcpab import Cpab

    peer = Cpab([3, 3], zero_boundary=True)
    family = CPAB(tess=(3, 3))
    base = (family.grid(family.identity(), (28, 28)).flatten(0, 1) + 1) / 2  # (784, 2)
    theta = torch.randn(64, 34) * scale
    velocity = family.velocity(theta, 2 * base - 1) / 2  # (64, 784, 2)
    points = base.T.contiguous()

    def field(parameters: Tensor) -> Tensor:
        return torch.stack([torch.as_tensor(peer.calc_vectorfield(points, p[None])).view(2, -1).T for p in parameters])

    other = translate(field, peer.get_theta_dim(), velocity)
    exact = (family.grid(theta.double(), (28, 28)).flatten(1, 2) + 1) / 2
    result = compare(
        "libcpab",
        lambda t: family.grid(t, (28, 28)).flatten(1, 2),
        lambda t: peer.transform_grid(points, t).transpose(1, 2),
        *(theta, other, exact, repeats),
    )
    return {"case": "2-D, 3x3 cells, batch 64, 28x28", "theta_scale": scale, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    begin = time.time()
    rows = [difw_line(scale, 200) for scale in (0.1, 0.5, 1.0)]
    rows += [libcpab_plane(scale, 5) for scale in (0.1, 0.5, 1.0)]
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "commit": done.stdout.strip() or "unknown",
        "machine": f"{platform.processor() or platform.machine()}, {arguments.threads} threads",
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("torch", "difw", "libcpab")},
        "seed": 0,
        "rows": rows,
        "wall_s": time.time() - begin,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
