"""From a parameter to a scale: linear, as in the paper, or exponential, which cannot collapse or flip."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from pstn._checks import require_choice

__all__ = ["LOG_LIMIT", "ScaleKind", "initial_scale", "invert_scale", "read_scale", "require_scale_kind"]

ScaleKind = Literal["linear", "log"]

# Logarithmic scales are limited to [1/1000, 1000], so that an extreme sample neither overflows nor vanishes.
LOG_LIMIT = math.log(1000.0)


def require_scale_kind(kind: ScaleKind) -> ScaleKind:
    """Refuse anything but "linear" and "log"."""
    require_choice("scale", kind, ("linear", "log"))
    return kind


def read_scale(parameter: Tensor, kind: ScaleKind) -> Tensor:
    """The scale for a parameter, elementwise."""
    return parameter if kind == "linear" else torch.exp(parameter.clamp(-LOG_LIMIT, LOG_LIMIT))


def invert_scale(parameter: Tensor, kind: ScaleKind) -> Tensor:
    """The parameter of the inverse scale, elementwise."""
    return 1 / parameter if kind == "linear" else -parameter


def initial_scale(kind: ScaleKind) -> float:
    """The parameter of scale 1."""
    return 1.0 if kind == "linear" else 0.0
