"""Fused GPU kernels for CPAB, each with a plain-torch equivalent that defines what it computes.

The kernels are imported on first use, so that pstn works without Triton. On a machine without a GPU they run through
Triton's interpreter when `TRITON_INTERPRET=1` is set, which is how they are tested.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import Any

import torch

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def kernels_available(device: torch.device) -> bool:
    """Whether kernels can run on a device; on a CPU, through Triton's interpreter."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return _HAS_TRITON and (device.type == "cuda" or (device.type == "cpu" and interpreted))


class Launcher:
    """A Triton kernel, launched with little work on the host: Triton's own launch takes longer than a small warp.

    Triton's launch inspects the type, alignment and divisibility of every argument to find a compiled version. Here
    there is one version per set of constants, as the dtypes of tensors never change.

    Args:
        kernel: a function decorated by `kernel`, with the constants last in its signature.
        warps: number of warps per program.
    """

    def __init__(self, kernel: Any, warps: int) -> None:
        self._kernel, self._warps = kernel, warps
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, device: int, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        """Launch a number of programs on the device with this index."""
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(device, programs, arguments, constants)
        compiled = self._compiled.get((device, constants))
        if compiled is not None:
            compiled[programs, 1, 1](*arguments, *constants)
            return None
        compiled = self._kernel[(programs,)](*arguments, *constants, num_warps=self._warps)
        if compiled is not None:  # the interpreter compiles nothing
            self._compiled[device, constants] = compiled
        return None


def kernel(function: Any) -> Any:
    """Decorate a kernel for `Launcher`: as `triton.jit`, with one version for all numbers and alignments."""
    import triton

    plain = [name for name, p in inspect.signature(function).parameters.items() if p.annotation is p.empty]
    numbers = [name for name in plain if name in ("N", "group", "stride")]
    tensors = [name for name in plain if name not in numbers]
    return triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=tensors)


def next_power_of_two(count: int) -> int:
    """The smallest power of 2 that is at least `count`, without the overhead of Triton's own function."""
    return 1 << (count - 1).bit_length()
