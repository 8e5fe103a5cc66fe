"""The coordinates of all transformations: [-1, 1] along each axis, x first.

Convention:
    `align_corners=False`: -1 and 1 are the outer edges of the first and last pixel, so pixel i of n has its centre at
    (2i + 1)/n - 1. The last axis of a point is (x), (x, y) or (x, y, z); sizes are listed as tensors have them,
    (length), (height, width) or (depth, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pstn._checks import require_size, require_tensor

__all__ = ["base_grid", "cached_grid_points", "corner_points", "from_pixels", "to_pixels"]


def base_grid(size: Sequence[int], *, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """The coordinates of every pixel centre of an array of `size`.

    Args:
        size: spatial size, e.g. (height, width).
        dtype: dtype of the result.
        device: device of the result.

    Returns:
        (*size, ndim), last axis x first.

    Example:
        >>> base_grid((1, 2))
        tensor([[[-0.5000,  0.0000],
                 [ 0.5000,  0.0000]]])
    """
    axes = [(2 * torch.arange(n, dtype=dtype, device=device) + 1) / n - 1 for n in size]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], dim=-1)


_CACHE: dict[tuple[tuple[int, ...], torch.dtype, torch.device, bool], Tensor] = {}
_CACHE_SIZE = 64


def cached_grid_points(
    size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device, planes: bool = False
) -> Tensor:
    """The points of `base_grid`, (N, ndim), cached: not to be changed in place.

    Making them takes eight launches on a GPU, more time than the warp of a small batch. Points that were changed in
    place nevertheless, which torch counts in `_version`, are not returned again. With `planes` all x come before all y
    in memory, for maps that take one after the other.
    """
    if torch.compiler.is_compiling():
        return base_grid(size, dtype=dtype, device=device).flatten(0, -2)
    key = (size, dtype, device, planes)
    points = _CACHE.get(key)
    if points is None or points._version:
        with torch.inference_mode(False):  # or they could not be used in training later
            points = base_grid(size, dtype=dtype, device=device).flatten(0, -2)
            points = points.T.contiguous().T if planes else points
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if capturing or type(points) is not Tensor:
            return points  # part of a graph, or a fake tensor: not to be cached
        if len(_CACHE) >= _CACHE_SIZE:
            _CACHE.clear()
        _CACHE[key] = points
    return points


def corner_points(ndim: int, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """The corners of [-1, 1]^ndim, (2**ndim, ndim), in the order in which an outline is drawn.

    One dimension gives the two ends; two give top left, top right, bottom right, bottom left; three give that face at
    z = -1 and then at z = 1.

    Example:
        >>> corner_points(2).tolist()
        [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]
    """
    corners = [[-1.0], [1.0]]
    if ndim >= 2:
        corners = [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]
    if ndim == 3:
        corners = [[x, y, z] for z in (-1.0, 1.0) for x, y in corners]
    return torch.tensor(corners, dtype=dtype, device=device)


def to_pixels(points: Tensor, size: int | Sequence[int]) -> Tensor:
    """Turn coordinates in [-1, 1] into pixels of an array of `size`; whole numbers are pixel centres.

    Args:
        points: (..., ndim), x first.
        size: spatial size of the array, e.g. (height, width); or a number for a series.

    Returns:
        (..., ndim), x first, in pixels.

    Example:
        >>> to_pixels(torch.tensor([[-1.0, 0.0]]), (28, 28))
        tensor([[-0.5000, 13.5000]])
    """
    extent = _extent("points", points, size)
    return ((points + 1) * extent - 1) / 2


def from_pixels(pixels: Tensor, size: int | Sequence[int]) -> Tensor:
    """Turn pixels of an array of `size` into coordinates in [-1, 1]: the inverse of `to_pixels`.

    Args:
        pixels: (..., ndim), x first; whole numbers are pixel centres.
        size: spatial size of the array, e.g. (height, width); or a number for a series.

    Returns:
        (..., ndim), x first, in [-1, 1].

    Example:
        >>> from_pixels(torch.tensor([[13.5, 13.5]]), (28, 28))
        tensor([[0., 0.]])
    """
    extent = _extent("pixels", pixels, size)
    return (2 * pixels + 1) / extent - 1


def _extent(name: str, points: Tensor, size: int | Sequence[int]) -> Tensor:
    require_tensor(name, points)
    size = require_size("size", size, points.shape[-1])
    return torch.tensor(size[::-1], dtype=points.dtype, device=points.device)
