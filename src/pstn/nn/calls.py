"""Calling modules that are not ours, with errors that name what was wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["call_on"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def call_on(role: str, module: nn.Module, x: Tensor) -> Any:
    """`module(x)`; if it fails over the shape of its input, a ValueError says what it takes.

    What a foreign module wants is not known for sure, so its first layer is only looked at to explain a failure.
    """
    if torch.compiler.is_compiling():
        return module(x)
    try:
        return module(x)
    except RuntimeError as error:
        wanted = _wanted(module, x)
        if wanted is None:
            raise
        raise ValueError(f"x (or source) must have {wanted} for the {role}, which got {tuple(x.shape)}") from error


def _wanted(module: nn.Module, x: Tensor) -> str | None:
    first = next((m for m in module.modules() if isinstance(m, (*_CONVOLUTIONS, nn.Linear))), None)
    if isinstance(first, _CONVOLUTIONS) and first.in_channels != x.shape[1]:
        return f"{first.in_channels} channels"
    if isinstance(first, nn.Linear) and first.in_features != x[0].numel():
        return f"{first.in_features} values per input"
    return None
