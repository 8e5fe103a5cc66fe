"""Angles: parameters of theta that live on a circle, with period 2 pi."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby, product

import torch
from torch import Tensor

_PERIOD = 2 * math.pi
# How many turns to either side a density on the circle adds up; what lies beyond them is spread evenly.
TURNS = (-2, -1, 0, 1, 2)
REACH = (len(TURNS) / 2) * _PERIOD


def wrap_angle(angle: Tensor) -> Tensor:
    """`angle` moved by whole turns to within [-pi, pi], unchanged where it lies there.

    Example:
        >>> wrap_angle(torch.tensor([0.5, 3.5]))
        tensor([ 0.5000, -2.7832])
    """
    return angle - _PERIOD * torch.round(angle / _PERIOD)


def by_kind(theta: Tensor, circular: tuple[bool, ...], on_circle: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """`theta` (..., D) with `on_circle(part, *parts of others)` in place of those parameters that are angles.

    Slices instead of a mask: a mask would be copied to the device at each call.
    """
    if not any(circular):
        return theta
    parts, at = [], 0
    for angle, run in groupby(circular):
        end = at + len(list(run))
        part = theta[..., at:end]
        parts.append(on_circle(part, *(other[..., at:end] for other in others)) if angle else part)
        at = end
    return torch.cat(parts, dim=-1)


def wrap(theta: Tensor, circular: tuple[bool, ...]) -> Tensor:
    """Theta (..., D) with its angles within [-pi, pi]."""
    return by_kind(theta, circular, wrap_angle)


def turns(circular: tuple[bool, ...], like: Tensor) -> Tensor:
    """Every combination of whole turns of the angles, (combinations, D), in radians; the first is none."""
    choices = [sorted(TURNS, key=abs) if angle else [0] for angle in circular]
    return _PERIOD * torch.tensor(list(product(*choices)), dtype=like.dtype, device=like.device)


def sum_over_turns(log_density: Callable[[Tensor], Tensor], difference: Tensor, tail: Tensor) -> Tensor:
    """The log-density on the circle of a variable on the line.

    Args:
        log_density: of the difference from the centre, on the line, elementwise.
        difference: from the centre, (..., n).
        tail: (..., n), the density on the circle of what lies further out than `REACH`.
    """
    nearest = wrap_angle(difference)
    near = torch.stack([log_density(nearest + _PERIOD * turn) for turn in TURNS])
    return torch.logaddexp(torch.logsumexp(near, dim=0), torch.log(tail.clamp_min(1e-30)))
