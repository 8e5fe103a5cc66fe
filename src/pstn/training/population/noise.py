"""Counter-based noise: every number is a function of (seed, stream, position), on any device and in any order.

A model's noise therefore does not depend on how many models train beside it, on the device, or on where a run was
interrupted: there is no generator state to lose. Positions are hashed with the finaliser of SplitMix64 (Steele, Lea
and Flood 2014), twice, with the stream's key in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pstn.noise import SOBOL_BITS, SamplingMethod, shift_digits

STREAMS = {"order": 1, "theta": 2, "dropout": 3, "augment": 4, "evaluate": 5, "validate": 6}
"""The noise streams of one model; each has a key of its own."""

_MASK = (1 << 64) - 1
_GAMMA, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same 64 bits: torch has no unsigned arithmetic."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(z: Tensor) -> Tensor:
    """SplitMix64 of int64 tensors, (...) -> (...). Shifts of negative numbers copy the sign: mask it off."""
    z = z + _signed(_GAMMA)
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(_MUL1)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(_MUL2)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def stream_keys(seeds: Sequence[int], stream: str, *, device: torch.device | None = None) -> Tensor:
    """One key per seed for a stream, int64 (N,).

    Example:
        >>> stream_keys([0, 1], "theta").shape
        torch.Size([2])
    """
    return _mix(_mix(torch.tensor([_signed(seed) for seed in seeds])) + STREAMS[stream]).to(device)


def random_bits(keys: Tensor, counters: Tensor) -> Tensor:
    """64 random bits for each key at each counter; the two broadcast.

    Args:
        keys: int64, from `stream_keys`.
        counters: int64 positions in the stream.

    Returns:
        int64, the broadcast shape.
    """
    return _mix(_mix(counters) ^ keys)


def uniform(keys: Tensor, start: int, count: int, shape: Sequence[int], method: SamplingMethod = "iid") -> Tensor:
    """Uniform noise in [0, 1) for `count` steps from step `start`.

    Args:
        keys: (N,), one per model.
        start: the first step.
        count: how many steps.
        shape: of the noise of one model in one step; with "antithetic" and "sobol" (..., S, B, D).
        method: how the S values of one input relate: see `pstn.draw_noise`.

    Returns:
        (count, N, *shape), float32, multiples of 2**-24.

    Example:
        >>> u = uniform(stream_keys([0, 1], "theta"), start=0, count=10, shape=(3,))
        >>> bool((u[4:6] == uniform(stream_keys([0, 1], "theta"), start=4, count=2, shape=(3,))).all())
        True
    """
    if method != "iid":
        return _related(keys, start, count, shape, method)
    width = math.prod(shape)
    steps = torch.arange(start, start + count, device=keys.device) * width
    counters = steps[:, None, None] + torch.arange(width, device=keys.device)
    bits = random_bits(keys[:, None], counters)
    return (((bits >> 40) & 0xFFFFFF).float() * 2.0**-24).reshape(count, keys.shape[0], *shape)


def _related(keys: Tensor, start: int, count: int, shape: Sequence[int], method: SamplingMethod) -> Tensor:
    *lead, samples, batch, dim = shape
    if method == "antithetic":
        half = uniform(keys, start, count, (*lead, (samples + 1) // 2, batch, dim))
        return torch.cat([half, 1 - 2.0**-24 - half], dim=-3)[..., :samples, :, :]
    # One scrambled Sobol set serves all; each input shifts its digits by a random amount of its own.
    points = SobolEngine(dim, scramble=True, seed=0).draw(samples, dtype=torch.float64)
    shift = (uniform(keys, start, count, (*lead, 1, batch, dim)).double() * 2**SOBOL_BITS).long()
    return shift_digits(points.to(keys.device)[:, None], shift)


class BatchOrder:
    """Which examples each model sees at each step: a fresh permutation of its own subset in every epoch.

    The last incomplete batch of an epoch is left out; permutations differ, so nothing is left out for long.

    Args:
        seeds: one per model.
        subsets: one int64 tensor of example indices per model; lengths may differ.
        batch: examples per step.
        steps_per_epoch: at most `len(subset) // batch` of every subset.
        device: where the indices are wanted.

    Example:
        >>> order = BatchOrder([0], [torch.arange(10)], batch=5, steps_per_epoch=2)
        >>> sorted(order.draw(0, 2).flatten().tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        seeds: Sequence[int],
        subsets: Sequence[Tensor],
        batch: int,
        steps_per_epoch: int,
        device: torch.device | None = None,
    ) -> None:
        longest = max(len(subset) for subset in subsets)
        self._batch, self._steps = batch, steps_per_epoch
        self._keys = stream_keys(seeds, "order", device=device)
        self._table = torch.zeros(len(subsets), longest, dtype=torch.int64, device=device)
        self._beyond = torch.ones(len(subsets), longest, dtype=torch.bool, device=device)
        for row, subset in enumerate(subsets):
            self._table[row, : len(subset)] = subset.to(self._table)
            self._beyond[row, : len(subset)] = False
        self._epoch, self._kept = -1, self._table

    def draw(self, start: int, count: int) -> Tensor:
        """Example indices of `count` steps from step `start`: (count, N, batch)."""
        parts, step = [], start
        while step < start + count:
            epoch, offset = divmod(step, self._steps)
            take = min(self._steps - offset, start + count - step)
            rows = self._epoch_batches(epoch)[:, offset * self._batch : (offset + take) * self._batch]
            parts.append(rows.reshape(rows.shape[0], take, self._batch).transpose(0, 1))
            step += take
        return torch.cat(parts)

    def _epoch_batches(self, epoch: int) -> Tensor:
        """This epoch's order of every model's subset, (N, longest); entries beyond a subset come last."""
        if epoch != self._epoch:
            # An epoch's counters start at a multiple of 2**32, so that they do not depend on the length of any subset.
            counters = (epoch << 32) + torch.arange(self._table.shape[1], device=self._table.device)
            sort_keys = random_bits(self._keys[:, None], counters)
            sort_keys = sort_keys.masked_fill(self._beyond, torch.iinfo(torch.int64).max)
            self._kept = self._table.gather(1, sort_keys.argsort(dim=1, stable=True))
            self._epoch = epoch
        return self._kept
