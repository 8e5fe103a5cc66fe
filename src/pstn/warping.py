"""Read an input through sampling grids, many grids per input without copying the input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pstn import _checks

__all__ = ["Fill", "InterpolationMode", "PaddingMode", "read_with_fill", "require_modes", "warp"]

InterpolationMode = Literal["bilinear", "nearest", "bicubic"]
PaddingMode = Literal["zeros", "border", "reflection"]
Fill = float | Sequence[float] | Tensor | np.number[Any] | npt.NDArray[Any]

_LEVELS = (int, float, np.integer, np.floating, Tensor)

# Far outside the input all coordinates read the same, but beyond float32's whole numbers grid_sample's arithmetic
# turns into infinity minus infinity. Nobody looks a million image widths away.
_FAR = 1e6

# What inputs are like, normalised or from 0 to 255: a fill beyond that, such as -9999 for "no data", takes more care.
_USUAL = 256.0
# How far the weights of pixels may be from adding up to 1.
_ROUNDING = 1e-5

# Before torch 2.13, vmap over grid_sample's backward pass fails where the input needs no gradient.
_VMAP_WANTS_INPUT_GRADIENT = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


def warp(
    x: Tensor, grid: Tensor, fill: Fill = 0.0, *, mode: InterpolationMode = "bilinear",
    padding_mode: PaddingMode = "zeros",
) -> Tensor:  # fmt: skip
    """Sample `x` at the coordinates in `grid`: series, images and volumes alike.

    S grids per input are read in one pass; the input is neither repeated nor, in the backward pass, accumulated in S
    copies. The same grid warps whatever belongs to the input: masks with `mode="nearest"`, labels, depth.

    Convention:
        `grid` holds input coordinates for each output pixel, in [-1, 1] with `align_corners=False`, x first. So the
        grid maps output to input, and an output of any size can be read from an input of any size.

    Args:
        x: (B, C, *in), floating point.
        grid: (S, B, *out, ndim), or (B, *out, ndim) for one grid per input.
        fill: what lies outside the input, one number or one per channel; with `padding_mode="zeros"` only. After
            normalisation black is not 0: pass the background's value. One far from all values of the input, such as
            -9999, leaves those as exact as any other if it is a number or a tensor on the CPU.
        mode: "bilinear" (linear along a series, trilinear in a volume), "nearest", or "bicubic" (images only).
        padding_mode: "zeros" (reads `fill` outside), "border" (the nearest pixel) or "reflection".

    Returns:
        (S, B, C, *out), or (B, C, *out) for a grid without S, in the dtype of `x`.

    Example:
        >>> x = torch.rand(2, 3, 28, 28)
        >>> grid = pstn.Similarity().grid(torch.tensor([0.0, 0.5, 0.0, 0.0]).expand(10, 2, 4), size=(14, 14))
        >>> pstn.warp(x, grid).shape
        torch.Size([10, 2, 3, 14, 14])
    """
    samples = _check_shapes(x, grid)
    ndim = grid.shape[-1]
    fill = require_modes(mode, padding_mode, fill, ndim)
    if not samples:
        return warp(x, grid[None], fill=fill, mode=mode, padding_mode=padding_mode)[0]

    dtype = torch.promote_types(torch.promote_types(x.dtype, grid.dtype), torch.float32)
    source, coordinates = x.to(dtype), grid.to(dtype).clamp(-_FAR, _FAR)
    if _VMAP_WANTS_INPUT_GRADIENT and not torch.compiler.is_compiling() and _checks.is_transformed(grid):
        source = source + 0 * coordinates.flatten()[0]
    read = partial(_read_samples, grid=coordinates, mode=mode, padding_mode=padding_mode)
    return read_with_fill(read, source, fill, mode).to(x.dtype)


def read_with_fill(read: Callable[[Tensor], Tensor], source: Tensor, fill: Fill, mode: str = "bilinear") -> Tensor:
    """What `read` makes of `source` (B, C, *in), with `fill` where it reads zeros outside the input.

    Args:
        read: (B, C, *in) -> (S, B, C, *out), linear in its input, with zeros outside of it where there is a fill.
        source: floating point.
        fill: as `require_modes` returns it.
        mode: what `read` does.
    """
    level = _fill_level(fill, source)
    if level is None:
        return read(source)
    if mode == "nearest":
        # Labels must come back as they were, to the last bit.
        inside = read(torch.ones_like(source[:, :1]))
        return torch.where(inside > 0.5, read(source), level)
    if _is_far_off(fill):
        # Of x - fill nothing would be left of x. Where the input is read alone, `fill` has no part.
        outside = 1 - read(torch.ones_like(source[:, :1]))
        found = read(source)
        return torch.where(outside.abs() < _ROUNDING, found, found + level * outside)
    # Zero outside of (x - fill) is `fill` outside of x: as cheap as padding with zeros.
    found = read(source - level)
    return found.add_(level) if _checks.overwritable(found) else found + level


def _read_samples(source: Tensor, grid: Tensor, mode: str, padding_mode: str) -> Tensor:
    """grid_sample for (S, B, *out, ndim): S lies beside the first output axis, so the input is read where it is."""
    ndim, (samples, batch, *out) = grid.shape[-1], grid.shape[:-1]
    if ndim == 1:
        # A series is an image of height 1, and S takes the place of the height.
        flat = torch.cat([grid, torch.zeros_like(grid)], dim=-1).transpose(0, 1)
        source = source[:, :, None]
    else:
        flat = grid.transpose(0, 1).reshape(batch, samples * out[0], *out[1:], ndim)
    read = F.grid_sample(source, flat, mode=mode, padding_mode=padding_mode, align_corners=False)
    return read.reshape(batch, source.shape[1], samples, *out).movedim(2, 0)


def require_modes(mode: Any, padding_mode: Any, fill: Any, ndim: int) -> Fill:
    """Refuse interpolation settings that do not exist or do not go together; return `fill` without numpy's types."""
    _checks.require_choice("mode", mode, ("bilinear", "nearest", "bicubic"))
    _checks.require_choice("padding_mode", padding_mode, ("zeros", "border", "reflection"))
    if mode == "bicubic" and ndim != 2:
        raise ValueError(f"mode='bicubic' is for images, got {ndim} spatial axis/axes: use 'bilinear' or 'nearest'")
    level = _require_fill(fill)
    if padding_mode != "zeros" and not (isinstance(level, (int, float)) and level == 0):
        raise ValueError(f"fill is for padding_mode='zeros' alone, got padding_mode={padding_mode!r}")
    return level


def _require_fill(fill: Any) -> Fill:
    level: Fill = _checks.plain(fill)
    values = level if isinstance(level, Sequence) else (level,)
    if isinstance(level, (str, bytes)) or not all(isinstance(v, _LEVELS) for v in values):
        raise TypeError(f"fill must be one number or one per channel, got {fill!r}")
    for value in values:
        if not isinstance(value, Tensor):
            if not -math.inf < value < math.inf:
                raise ValueError(f"fill must be finite, got {fill}")
        elif value.device.type == "cpu":  # elsewhere each warp would wait for the device to be read
            _checks.require_finite("fill", value, "pass the background's value")
    return level


def _fill_level(fill: Fill, source: Tensor) -> Tensor | None:
    """`fill` shaped to broadcast over (B, C, *in), or None where it is _checks.plain zero."""
    if isinstance(fill, (int, float)):
        return torch.full((), float(fill), dtype=source.dtype, device=source.device) if fill != 0 else None
    level = torch.as_tensor(fill, dtype=source.dtype, device=source.device)
    # Not `in`: with dynamic shapes the compiler finds no number in a tuple.
    if level.dim() > 1 or (level.dim() == 1 and level.shape[0] != 1 and level.shape[0] != source.shape[1]):
        raise ValueError(f"fill must be one number or {source.shape[1]}, one per channel, got {tuple(level.shape)}")
    return level.reshape(-1, *[1] * (source.dim() - 2))


def _is_far_off(fill: Fill) -> bool:
    """Whether `fill` is of another size than inputs are; a tensor is asked only where that waits for nothing."""
    if isinstance(fill, Tensor):
        return _checks.can_inspect_values(fill) and fill.device.type == "cpu" and bool((fill.abs() > _USUAL).any())
    values: Sequence[Any] = fill if isinstance(fill, Sequence) else (fill,)
    return any(_is_far_off(v) if isinstance(v, Tensor) else abs(v) > _USUAL for v in values)


def _check_shapes(x: Any, grid: Any) -> bool:
    """Refuse what cannot be warped; return whether the grid has an axis of samples."""
    _checks.require_floating("x", x)
    _checks.require_floating("grid", grid)
    ndim = x.dim() - 2
    if ndim not in (1, 2, 3):
        raise ValueError(f"x must have shape (B, C, *size) with 1, 2 or 3 spatial axes, got {tuple(x.shape)}")
    if grid.dim() not in (ndim + 2, ndim + 3) or grid.shape[-1] != ndim:
        raise ValueError(f"grid must have shape (S, B, *out, {ndim}) or (B, *out, {ndim}), got {tuple(grid.shape)}")
    if grid.shape[-ndim - 2] != x.shape[0]:
        raise ValueError(f"grid must have the batch size of x, {x.shape[0]}, got shape {tuple(grid.shape)}")
    if 0 in x.shape or 0 in grid.shape:
        raise ValueError(f"x and grid must not be empty, got {tuple(x.shape)} and {tuple(grid.shape)}")
    return grid.dim() == ndim + 3
