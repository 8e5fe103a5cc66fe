"""Launches that cost the host little: Triton's own takes it longer than a small warp takes the device."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Launcher", "next_power_of_two"]


class Launcher:
    """A Triton kernel that is looked up by its constants alone.

    Triton's launch inspects every argument for the compiled version that fits its type, alignment and divisibility.
    Here one version per set of constants fits all: the kernel must be made with `do_not_specialize` for its numbers and
    `do_not_specialize_on_alignment` for its tensors, whose dtypes never change.

    Args:
        kernel: what `triton.jit` returned; arguments come first in its signature, constants last.
        warps: how many warps a program has.
    """

    def __init__(self, kernel: Any, warps: int) -> None:
        self._kernel, self._warps = kernel, warps
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, device: int, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        """Launch so many programs on a device, by its index."""
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


def next_power_of_two(count: int) -> int:
    """The smallest power of 2 that is at least `count`; Triton's own goes through wrappers that cost a launch."""
    return 1 << (count - 1).bit_length()
