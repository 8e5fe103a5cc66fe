"""CPAB on the CPU beside difw and libcpab: the same velocity fields, values and times, in one run.

The peers are no dependency of pstn. In an environment of their own:

    pip install torch numpy scipy ninja
    pip install --no-deps difw==0.0.31 libcpab==0.1.3
    PYTHONPATH=src python benchmarks/cpab_peers.py --out benchmarks/results/cpab_cpu.json

difw compiles its extension on the first call, which needs a C++ compiler; so does pstn with backend="inductor", which
is measured beside plain torch. Calls alternate between the libraries, so that whatever else the machine does falls on
both, and the ratio is the median of the ratios of neighbouring calls; all that is done several times over, and every
repetition is written down. Errors are those of the points on [0, 1], at a sample of them against SciPy's DOP853 with
short steps, at all of them against ours in float64.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from pstn.bench import time_in_turns
from pstn.transforms import CPAB
from recording import Stopwatch, write

SECONDS = 6.0  # of a round of turns
Work = Callable[[], Any]
Warp = Callable[[Tensor], Tensor]


def integrate(family: CPAB, theta: Tensor, points: Tensor) -> Tensor:
    """Where DOP853 takes points (N, ndim) of [-1, 1] under one theta; its own error estimate does not see kinks."""
    theta, shape = theta.double(), points.shape

    def velocity(_: float, place: np.ndarray) -> np.ndarray:
        return family.velocity(theta, torch.from_numpy(place).view(shape)).numpy().ravel()

    start = points.double().numpy().ravel()
    path = solve_ivp(velocity, (0, 1), start, method="DOP853", rtol=1e-10, atol=1e-11, max_step=0.002)
    return torch.from_numpy(path.y[:, -1]).view(shape)


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
    name: str, warps: dict[str, Warp], theta: Tensor, other: Tensor, family: CPAB, rounds: int
) -> dict[str, Any]:
    """Values and times of implementations of one warp; all give (B, N, ndim), the peer's on [0, 1]."""
    kinds = (("forward", forward), ("forward + backward", both))
    works = {
        f"{who} {what}": kind(warp, other if who == name else theta)
        for who, warp in warps.items()
        for what, kind in kinds
    }
    runs = [time_in_turns(works, SECONDS) for _ in range(rounds)]
    faster = {
        who: [
            statistics.median(b / a for a, b in zip(run[who], run[f"{name} forward + backward"], strict=True))
            for run in runs
        ]
        for who in works
        if who.startswith("pstn") and "backward" in who
    }
    return {
        "peer": name,
        **errors(name, warps, theta, other, family),
        "median_ms": {who: [1e3 * statistics.median(run[who]) for run in runs] for who in works},
        "faster_than_the_peer_by": faster,
    }


def errors(name: str, warps: dict[str, Warp], theta: Tensor, other: Tensor, family: CPAB) -> dict[str, Any]:
    """Largest errors on [0, 1] of ours and of the peer's."""
    ours = warps["pstn"]
    exact = (ours(theta.double()) + 1) / 2
    values = {who: warp(other) if who == name else (warp(theta) + 1) / 2 for who, warp in warps.items()}
    every = max(1, exact.shape[1] // 49)
    sample = (slice(0, 4), slice(None, None, every))
    start = ours(torch.zeros_like(theta[0], dtype=torch.float64))[::every]
    reference = (torch.stack([integrate(family, t, start) for t in theta[sample[0]]]) + 1) / 2

    def largest(difference: Tensor) -> float:
        return float(difference.abs().max())

    return {
        "largest_error_against_dop853": {who: largest(value[sample] - reference) for who, value in values.items()}
        | {"pstn in float64": largest(exact[sample] - reference)},
        "largest_error_against_pstn_in_float64": {who: largest(value - exact) for who, value in values.items()},
    }


def difw_line(scale: float, rounds: int) -> dict[str, Any]:
    """Batch 64, length 100, 10 cells."""
    import difw

    peer = difw.Cpab(tess_size=10, backend="pytorch", device="cpu", zero_boundary=True, basis="qr")
    points = (torch.arange(100) + 0.5) / 100
    family = CPAB(tess=10)
    theta = torch.randn(64, 9) * scale
    velocity = family.velocity(theta, 2 * points[:, None] - 1)[..., 0] / 2
    other = translate(lambda t: peer.calc_velocity(points, t), 9, velocity)

    fused = CPAB(tess=10, backend="inductor")

    def ours(t: Tensor) -> Tensor:
        return family.grid(t, 100)

    def theirs(t: Tensor) -> Tensor:
        return peer.transform_grid(points, t)[..., None]

    warps: dict[str, Warp] = {"pstn": ours, "pstn inductor": lambda t: fused.grid(t, 100), "difw": theirs}
    result = compare("difw", warps, theta, other, family, rounds)
    # The compiled extension is what is timed. Its values depend on the compiler (it is built with -Ofast); difw's own
    # implementation in plain torch says what it means to compute.
    peer.params.use_slow = True
    plain = float((theirs(other) - (ours(theta.double()) + 1) / 2).abs().max())
    case = {"case": "1-D, 10 cells, batch 64, length 100", "theta_scale": scale}
    return {**case, **result, "largest_difference_from_difw_in_plain_torch": plain}


def libcpab_plane(scale: float, rounds: int) -> dict[str, Any]:
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

    fused = CPAB(tess=(3, 3), backend="inductor")

    def ours(t: Tensor) -> Tensor:
        return family.grid(t, (28, 28)).flatten(-3, -2)

    def theirs(t: Tensor) -> Tensor:
        return peer.transform_grid(points, t).transpose(1, 2)

    other = translate(field, peer.get_theta_dim(), velocity)
    warps: dict[str, Warp] = {
        "pstn": ours,
        "pstn inductor": lambda t: fused.grid(t, (28, 28)).flatten(-3, -2),
        "libcpab": theirs,
    }
    result = compare("libcpab", warps, theta, other, family, rounds)
    return {"case": "2-D, 3x3 cells, batch 64, 28x28", "theta_scale": scale, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    watch, before = Stopwatch(), os.getloadavg()[0]
    rows = [difw_line(scale, arguments.rounds) for scale in (0.1, 0.5, 1.0)]
    rows += [libcpab_plane(scale, arguments.rounds) for scale in (0.1, 0.5, 1.0)]
    figures = {
        "what": "forward + backward through CPAB and a peer in turns; ratios are medians over neighbouring calls",
        "threads": arguments.threads,
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "rows": rows,
    }
    write(arguments.out, figures, seed=0, watch=watch, packages=("difw", "libcpab", "scipy"))


if __name__ == "__main__":
    main()
