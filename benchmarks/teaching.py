"""What teaching costs: samples of a mixture beside those of a Student-t, and a taught step of rotated digits.

Samples are S = 10 for 256 inputs and 4 parameters, of 4 modes, without gradients: one call after another, compiled, and
on a GPU also as CUDA graphs, in turns. The step is that of the experiment `finding`: a batch of 256 digits, 4 modes, a
population of one model, as it is and compiled. The images are the digits that ship with the package.

    python benchmarks/teaching.py --out benchmarks/results/teaching_NAME.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pstn
from graphs import captured
from pstn.experiments import finding
from pstn.training import Population, make_members
from recording import Stopwatch, write
from rotated_batch import measure
from training import rate

SAMPLES, BATCH, DIM, MODES = 10, 256, 4, 4


@torch.no_grad()
def sampling(device: torch.device, alpha: float, rounds: int) -> dict[str, Any]:
    """Microseconds of drawing samples, and how many times as long the mixture's take."""
    loc, beta = torch.randn(BATCH, MODES, DIM, device=device), torch.full((BATCH, MODES, DIM), 0.1, device=device)
    one = pstn.Posterior(loc[:, 0], beta[:, 0], alpha)
    weights = torch.randn(BATCH, MODES, device=device).log_softmax(-1)
    several = pstn.MixturePosterior(weights, pstn.Posterior(loc, beta, alpha))

    def draw(q: pstn.ThetaDistribution, *, compiled: bool) -> Callable[[], object]:
        noise = torch.rand(SAMPLES, BATCH, q.noise_width, device=device)
        sample = torch.compile(q.weighted_sample, fullgraph=True) if compiled else q.weighted_sample
        return lambda: sample(noise=noise)

    found: dict[str, Any] = {}
    for compiled in (False, True):
        torch.compiler.reset()
        works = {name: draw(q, compiled=compiled) for name, q in (("student_t", one), ("mixture", several))}
        ways = {"compiled" if compiled else "eager": works}
        if device.type == "cuda":
            measure(works, device, 1, 1)  # compiles before the capture
            ways[f"{next(iter(ways))}, as a graph"] = {name: captured(work) for name, work in works.items()}
        for way, timed in ways.items():
            times = measure(timed, device, rounds, 20)
            found[way] = {**times, "ratio": round(times["mixture"] / times["student_t"], 2)}
    return found


def taught_step(device: torch.device, seconds: float, *, compiled: bool) -> dict[str, Any]:
    """Milliseconds of a step in a population of one."""
    x = pstn.data.load("digits", normalise=False).train.x
    layer = finding.make_layer("rotated", pstn.Mixture(MODES, pstn.StudentT(finding.ALPHA)))
    model = pstn.PSTN(layer, pstn.nn.mnist_cnn().requires_grad_(False))
    recipe = replace(
        finding.ROTATED[MODES].recipe, epochs=10**6, precision="tf32" if device.type == "cuda" else "float32"
    )
    members = make_members(1, lr=2e-3, kl_weight=None, localizer_factor=1.0)
    with Population([model], x, None, members, recipe, device=device, compile=compiled, workers=False) as population:
        return {"compile": compiled, **rate(population, seconds, 2000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of three stretches of steps")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device, watch = torch.device(options.device), Stopwatch()
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(1)
    result: dict[str, Any] = {
        "what": f"microseconds of S = {SAMPLES} samples, {BATCH} inputs, {DIM} parameters, {MODES} modes; and a taught "
        f"step of rotated digits, batch {BATCH}, {MODES} modes, one model",
        "sampling": {f"alpha={alpha:g}": sampling(device, alpha, options.rounds) for alpha in (1.0, 2.0)},
        "taught_step": [taught_step(device, options.seconds, compiled=compiled) for compiled in (False, True)],
    }
    write(options.out, result, seed=0, watch=watch)


if __name__ == "__main__":
    main()
