"""The plane cut into regions on which a two-dimensional CPAB velocity is affine, and which region lies across an edge.

The triangles of the tessellation cover [-1, 1]^2. Outside, the velocity is that of the nearest point of the square,
which is affine on a half-strip beyond each boundary edge and constant beyond each corner: with these,
4 nx ny + 2 (nx + ny) + 4 regions cover the plane. Each has three functions, affine in the place, that are positive
inside; the velocity is their combination of the velocities at three nodes:

    triangle    the barycentric coordinates, and its corners
    half-strip  the shares of the edge's two ends, and the distance from the edge, whose node has velocity 0
    corner      the distances along x and along y, whose nodes have velocity 0, and the constant 1
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pstn.transforms.cpab.basis import Array, Index, triangles

__all__ = ["Regions", "locate", "regions"]


class Regions(NamedTuple):
    """Geometry alone: nothing here depends on theta."""

    nodes: (
        Tensor  # (R, 3) which node each function belongs to; the last node, one past the tessellation's, has velocity 0
    )
    functions: Tensor  # (R, 3, 3): (d/dx, d/dy, constant)
    across: Tensor  # (R, 3) the region where a function falls below 0, or -1 for a wall


@lru_cache(maxsize=64)
def regions(nx: int, ny: int, closed: bool, dtype: torch.dtype, device: torch.device) -> Regions:
    """The regions of an nx by ny tessellation, on a device; `closed` makes the boundary of the square a wall."""
    with torch.inference_mode(False):  # kept between calls, for training too
        nodes, functions, across = _build(nx, ny)
        count = 4 * nx * ny
        if closed:
            inside = np.arange(len(across)) < count
            across[(across < count) != inside[:, None]] = -1
        return Regions(
            torch.from_numpy(nodes).to(device),
            torch.from_numpy(functions).to(device=device, dtype=dtype),
            torch.from_numpy(across).to(device),
        )


def locate(x: Tensor, y: Tensor, nx: int, ny: int) -> Tensor:
    """The region of each point, for x and y of one shape."""
    px, py = (x + 1) * (nx / 2), (y + 1) * (ny / 2)
    i, j = (axis.nan_to_num().clamp(0, n - 1).long() for axis, n in ((px, nx), (py, ny)))  # NaN is in some region
    u, v = px - i - 0.5, py - j - 0.5
    sideways = u.abs() >= v.abs()
    region = 4 * (j * nx + i) + torch.where(sideways, (u > 0).long(), 2 + (v > 0).long())
    beyond_x, beyond_y = (px < 0) | (px > nx), (py < 0) | (py > ny)
    right, low = (px > nx).long(), (py > ny).long()
    base = 4 * nx * ny
    region = torch.where(beyond_x, base + right * ny + j, region)
    region = torch.where(beyond_y, base + 2 * ny + low * nx + i, region)
    return torch.where(beyond_x & beyond_y, base + 2 * (nx + ny) + 2 * low + right, region)


def _build(nx: int, ny: int) -> tuple[Index, Array, Index]:
    place, cells = triangles(nx, ny)
    place = 2 * place - 1
    zero = len(place)
    strips, outward = _strips(nx, ny)
    corner_nodes = np.array([0, nx, ny * (nx + 1), ny * (nx + 1) + nx])

    matrix = np.concatenate([place[cells], np.ones((len(cells), 3, 1))], axis=2)
    functions = [np.round(np.linalg.inv(matrix).transpose(0, 2, 1), 9)]
    functions.append(np.stack([_strip(place[a], place[b], out) for (a, b), out in zip(strips, outward, strict=True)]))
    signs = np.array([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
    functions.append(np.array([[[sx, 0, -1], [0, sy, -1], [0, 0, 1]] for sx, sy in signs], dtype=np.float64))

    nodes = np.concatenate(
        [
            cells,
            np.concatenate([strips, np.full((len(strips), 1), zero)], axis=1),
            np.stack([np.full(4, zero), np.full(4, zero), corner_nodes], axis=1),
        ]
    )
    return nodes, np.concatenate(functions), _across(cells, strips, corner_nodes, nx, ny)


def _strips(nx: int, ny: int) -> tuple[Index, Array]:
    """The two nodes of every boundary edge, and the direction outward: left, right, top (small y), bottom."""
    rows, columns = np.arange(ny) * (nx + 1), np.arange(nx)
    left, top = np.stack([rows, rows + nx + 1], 1), np.stack([columns, columns + 1], 1)
    strips = np.concatenate([left, left + nx, top, top + ny * (nx + 1)])
    outward = np.repeat(np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]]), [ny, ny, nx, nx], axis=0)
    return strips, outward


def _strip(a: Array, b: Array, outward: Array) -> Array:
    """Shares of the ends of an edge, and distance from it, as functions (3, 3)."""
    along = (b - a) / np.sum((b - a) ** 2)
    share = np.array([*along, -along @ a])
    return np.stack([np.array([0.0, 0.0, 1.0]) - share, share, np.array([*outward, -outward @ a])])


def _across(cells: Index, strips: Index, corners: Index, nx: int, ny: int) -> Index:
    """Function k of a triangle is 0 on the edge opposite node k, and there the neighbour shares the other two nodes."""
    owner: dict[frozenset[int], list[int]] = {}
    for region, nodes in enumerate(cells):
        for k in range(3):
            owner.setdefault(frozenset(np.delete(nodes, k).tolist()), []).append(region)
    for s, nodes in enumerate(strips):
        owner[frozenset(nodes.tolist())].append(len(cells) + s)
    across = np.full((len(cells) + len(strips) + 4, 3), -1)
    for region, nodes in enumerate(cells):
        for k in range(3):
            pair = owner[frozenset(np.delete(nodes, k).tolist())]
            across[region, k] = pair[0] if pair[1] == region else pair[1]
    sideways = np.arange(len(strips)) < 2 * ny
    for s, nodes in enumerate(strips):
        region = len(cells) + s
        across[region, 2] = owner[frozenset(nodes.tolist())][0]
        for k in range(2):  # beyond node 1 - k lies the next strip of that side, or a corner
            node = nodes[1 - k]
            beyond = [t for t in range(len(strips)) if t != s and sideways[t] == sideways[s] and node in strips[t]]
            corner = len(cells) + len(strips) + int(np.argmax(corners == node))
            across[region, k] = len(cells) + beyond[0] if beyond else corner
            if not beyond:  # and back: the corner's distance along the edge's own axis falls to 0
                across[corner, 1 if sideways[s] else 0] = region
    return across
