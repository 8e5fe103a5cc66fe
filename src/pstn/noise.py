"""Uniform noise in (0, 1): the one place where randomness enters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pstn._checks import require_choice, require_positive_int

__all__ = [
    "SAMPLING_METHODS", "SOBOL_BITS", "Samples", "SamplingMethod", "draw_noise", "shift_digits", "uniform_bounds",
]  # fmt: skip

SamplingMethod = Literal["iid", "antithetic", "sobol"]
Samples = int | Literal["modes"]
"""How many samples a prediction takes, S; or one weighted sample at the centre of each mode."""

SAMPLING_METHODS: tuple[SamplingMethod, ...] = ("iid", "antithetic", "sobol")
SOBOL_BITS = 30

# Uniform noise is kept this far from 0 and 1: float32 cannot come closer to 1, and at 0 the quantile is infinite.
_MARGIN = 2.0**-24


def uniform_bounds(u: Tensor) -> Tensor:
    """`u` moved inside (0, 1) by at most 2**-24, at least float32: where every quantile is finite."""
    return u.to(torch.promote_types(u.dtype, torch.float32)).clamp(_MARGIN, 1 - _MARGIN)


def draw_noise(
    samples: int,
    shape: tuple[int, ...],
    *,
    method: SamplingMethod = "iid",
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
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
        half = _uniform((samples + 1) // 2, *shape, generator=generator, device=home)
        u = torch.cat([half, 1 - half])[:samples]
    else:
        u = _uniform(samples, *shape, generator=generator, device=home)
    return uniform_bounds(u).to(device)


def _require_shape(shape: Any, method: SamplingMethod) -> None:
    whole = (int, torch.SymInt, np.integer)
    if not isinstance(shape, Sequence) or not all(isinstance(extent, whole) for extent in shape):
        raise TypeError(f"shape must hold whole numbers, (..., D), got {shape!r}")
    if any(isinstance(extent, (int, np.integer)) and extent < 0 for extent in shape):
        raise ValueError(f"shape must hold no negative number, got {shape!r}")
    if method == "sobol" and len(shape) == 0:
        raise ValueError(f"shape must end in D for method 'sobol', whose points live in D dimensions, got {shape!r}")


def _uniform(*shape: int, generator: torch.Generator | None, device: torch.device | None) -> Tensor:
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
