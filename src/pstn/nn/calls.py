"""Calling modules that are not ours, with errors that name what was wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["call_on"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OVER_PRECISION = ("same dtype", "should be the same", "expected scalar type")  # as torch puts it
_PASSING = (nn.Sequential, nn.Flatten, nn.Identity)  # what leaves the values of its input as they are


def call_on(role: str, module: nn.Module, x: Tensor) -> Any:
    """`module(x)`; if it fails over the shape or the precision of its input, the error says what it takes.

    What a foreign module wants is not known for sure, so its first layer is only looked at to explain a failure.

    Args:
        role: of the module, for the message.
        module: anybody's.
        x: its input.
    """
    if torch.compiler.is_compiling():
        return module(x)
    try:
        return module(x)
    except torch.OutOfMemoryError:
        raise
    except ValueError as error:
        if type(error) is not ValueError:  # of a kind that somebody may wait for
            raise
        raise ValueError(f"in the {role}: {error}") from error
    except RuntimeError as error:
        precision = next((p.dtype for p in module.parameters() if p.is_floating_point()), x.dtype)
        mixed = precision != x.dtype and not torch.is_autocast_enabled(x.device.type)
        if mixed and any(words in str(error) for words in _OVER_PRECISION):
            raise TypeError(
                f"x (or source) must be of the precision of the {role}, {precision}, got {x.dtype}: convert it, "
                f"x.to({precision}), or the model, model.to({x.dtype}): {error}"
            ) from error
        wanted = _wanted(module, x)
        if wanted is None:
            raise
        raise ValueError(
            f"x (or source) must have {wanted} for the {role}, which got {tuple(x.shape)}: {error}"
        ) from error


def _wanted(module: nn.Module, x: Tensor) -> str | None:
    layers = [m for m in module.modules() if not isinstance(m, _PASSING)]
    first = next((m for m in layers if isinstance(m, (*_CONVOLUTIONS, nn.Linear))), None)
    if first is None or first.weight.dtype != x.dtype or first.weight.device != x.device:
        return None  # the failure may be over that
    if isinstance(first, _CONVOLUTIONS) and first.in_channels != x.shape[1]:
        return f"{first.in_channels} channels"
    # After anything else, or in a forward pass that is somebody's own, a linear layer need not see the input's values.
    if isinstance(first, nn.Linear) and first is layers[0] and first.in_features != x[0].numel():
        return f"{first.in_features} values per input"
    return None
