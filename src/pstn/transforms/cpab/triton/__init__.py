"""Fused GPU kernels, each beside a plain-torch twin that defines what it computes.

Nothing here is imported until a kernel is asked for, so that pstn works where Triton does not. On a machine without a
GPU the kernels run through Triton's interpreter when `TRITON_INTERPRET=1` is set, which is how they are tested.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch

__all__ = ["interpreted", "kernels_available"]


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernels_available(device: torch.device) -> bool:
    """Whether kernels can run on a device."""
    return _has_triton() and (device.type == "cuda" or (device.type == "cpu" and interpreted()))
