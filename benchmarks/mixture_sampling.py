"""How much longer samples of a mixture take than those of a Student-t of the same shape, eager and compiled."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import pstn

SAMPLES, BATCH, DIM, MODES = 10, 256, 4, 4


def microseconds(call: Callable[[], object], repeats: int = 200, rounds: int = 9) -> float:
    call()
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        found.append((time.perf_counter() - started) / repeats * 1e6)
    return min(found)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    print(f"S = {SAMPLES}, B = {BATCH}, D = {DIM}, {MODES} modes, one thread; microseconds")
    for alpha in (1.0, 2.0):
        one = pstn.Posterior(torch.randn(BATCH, DIM), torch.full((BATCH, DIM), 0.1), alpha)
        parts = pstn.Posterior(torch.randn(BATCH, MODES, DIM), torch.full((BATCH, MODES, DIM), 0.1), alpha)
        several = pstn.MixturePosterior(torch.randn(BATCH, MODES).log_softmax(-1), parts)
        for compiled in (False, True):
            torch.compiler.reset()
            figures = []
            for q in (one, several):
                noise = torch.rand(SAMPLES, BATCH, q.noise_width)
                sample: Callable[..., object] = torch.compile(q.weighted_sample) if compiled else q.weighted_sample
                figures.append(microseconds(lambda sample=sample, noise=noise: sample(noise=noise)))  # type: ignore[misc]
            way = "compiled" if compiled else "eager"
            print(f"alpha {alpha:g}, {way:8}  Student-t {figures[0]:6.0f}, mixture {figures[1]:6.0f}, ", end="")
            print(f"ratio {figures[1] / figures[0]:.2f}")


if __name__ == "__main__":
    main()
