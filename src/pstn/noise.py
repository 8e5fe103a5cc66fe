"""Uniform noise in (0, 1): the one place where randomness enters.

`draw_noise` draws from a generator. In training noise is counter-based: every number is a function of (seed, stream,
position), on any device and in any order. A model's noise therefore does not depend on how many models train beside it,
on the device, or on where a run was interrupted: there is no generator state to lose. Positions are hashed with the
finaliser of SplitMix64 (Steele, Lea and Flood 2014), twice, with the stream's key in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pstn._checks import require_choice, require_positive_int

__all__ = [
    "SAMPLING_METHODS", "STREAMS", "BatchOrder", "Samples", "SamplingMethod", "draw_noise", "shift_digits",
    "stream_keys", "uniform", "uniform_bounds",
]  # fmt: skip

SamplingMethod = Literal["iid", "antithetic", "sobol"]
Samples = int | Literal["modes"]
"""How many samples a prediction takes, S; or one weighted sample at the centre of each mode."""

SAMPLING_METHODS: tuple[SamplingMethod, ...] = ("iid", "antithetic", "sobol")
SOBOL_BITS = 30

# Uniform noise is kept this far from 0 and 1: float32 cannot come closer to 1, and at 0 the quantile is infinite.
_MARGIN = 2.0**-24

STREAMS = {"order": 1, "theta": 2, "dropout": 3, "augment": 4, "evaluate": 5, "validate": 6}
"""The noise streams of one model; each has a key of its own."""

_MASK = (1 << 64) - 1
_GAMMA, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def uniform_bounds(u: Tensor) -> Tensor:
    """`u` moved inside (0, 1) by at most 2**-24, at least float32: where every quantile is finite."""
    return u.to(torch.promote_types(u.dtype, torch.float32)).clamp(_MARGIN, 1 - _MARGIN)


def draw_noise(
    samples: int, shape: tuple[int, ...], *, method: SamplingMethod = "iid", generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:  # fmt: skip
    """Uniform noise strictly inside (0, 1), float32.

    Every method gives each value the uniform distribution; they differ in how the S values of one input relate.
    "iid": not at all. "antithetic": the second half mirrors the first, u and 1 - u. "sobol": the S points of an input
    fill the unit cube evenly, scrambled and then shifted (digitally) by a fresh random amount for each input.

    Args:
        samples: S, at least 1.
        shape: (..., D) of one sample; Sobol points live in D dimensions.
        method: "iid", "antithetic" or "sobol".
        generator: where the randomness comes from; torch's global generator when not given. A generator of another
            device is drawn from there and the noise then moved.
        device: where the noise is wanted.

    Returns:
        (S, *shape).

    Example:
        >>> draw_noise(10, (8, 4), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([10, 8, 4])
    """
    require_positive_int("samples", samples)
    require_choice("method", method, SAMPLING_METHODS)
    _require_shape(shape, method)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {generator!r}")
    if torch.compiler.is_compiling() and (method == "sobol" or generator is not None):
        raise ValueError("a graph can draw neither Sobol points nor from a generator: draw outside it and pass noise=")
    home = device if generator is None else generator.device
    if method == "sobol":
        u = _sobol(samples, shape, generator, home)
    elif method == "antithetic":
        half = _rand((samples + 1) // 2, *shape, generator=generator, device=home)
        u = torch.cat([half, 1 - half])[:samples]
    else:
        u = _rand(samples, *shape, generator=generator, device=home)
    return uniform_bounds(u).to(device)


def _require_shape(shape: Any, method: SamplingMethod) -> None:
    whole = (int, torch.SymInt, np.integer)
    if not isinstance(shape, Sequence) or not all(isinstance(extent, whole) for extent in shape):
        raise TypeError(f"shape must hold whole numbers, (..., D), got {shape!r}")
    if any(isinstance(extent, (int, np.integer)) and extent < 0 for extent in shape):
        raise ValueError(f"shape must hold no negative number, got {shape!r}")
    if method == "sobol" and len(shape) == 0:
        raise ValueError(f"shape must end in D for method 'sobol', whose points live in D dimensions, got {shape!r}")


def _rand(*shape: int, generator: torch.Generator | None, device: torch.device | None) -> Tensor:
    # Passing generator=None on picks an overload of torch.rand that does not compile with dynamic shapes.
    if generator is None:
        return torch.rand(*shape, device=device, dtype=torch.float32)
    return torch.rand(*shape, generator=generator, device=device, dtype=torch.float32)


def _sobol(
    samples: int, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device | None
) -> Tensor:
    """One scrambled Sobol sequence for all inputs, moved for each by a random digital shift (exclusive or)."""
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    engine = SobolEngine(shape[-1], scramble=True, seed=seed)
    points = engine.draw(samples, dtype=torch.float64)
    points = points.to(device).reshape(samples, *[1] * (len(shape) - 1), shape[-1])
    return shift_digits(points, torch.randint(2**SOBOL_BITS, shape, generator=generator, device=device))


def shift_digits(points: Tensor, shift: Tensor) -> Tensor:
    """Sobol points moved by a random digital shift, exclusive or, which keeps them as evenly spread as they were.

    Args:
        points: (..., D) in [0, 1), float64.
        shift: (..., D), whole numbers below 2**30; the two broadcast.

    Returns:
        (..., D), float32, in the middles of cells of width 2**-30.

    Example:
        >>> shift_digits(torch.tensor([0.0, 0.5]).double(), torch.tensor(1 << 29))
        tensor([5.0000e-01, 4.6566e-10])
    """
    digits = (points * 2**SOBOL_BITS).long()
    return ((digits ^ shift).double() + 0.5).div(2**SOBOL_BITS).float()


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
        self, seeds: Sequence[int], subsets: Sequence[Tensor], batch: int, steps_per_epoch: int,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
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
