"""Calling modules that are not ours, with errors that name what was wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["call_on"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def call_on(role: str, module: nn.Module, x: Tensor) -> Any:
    """`module(x)`; if it fails over the number of channels, a ValueError says how many it takes.

    The channels that a foreign module wants are not known for sure, so they are only looked up to explain a failure.
    """
    if torch.compiler.is_compiling():
        return module(x)
    try:
        return module(x)
    except RuntimeError as error:
        wanted = next((m.in_channels for m in module.modules() if isinstance(m, _CONVOLUTIONS)), x.shape[1])
        if wanted == x.shape[1]:
            raise
        raise ValueError(
            f"x must have {wanted} channels for the {role}, got {x.shape[1]} in {tuple(x.shape)}"
        ) from error
