"""Tessellations, and the basis of continuous piecewise-affine velocity fields on them: what theta means in CPAB.

A continuous piecewise-affine field is determined by its values at the vertices of the tessellation, so continuity
needs no constraints: the hat functions of the free vertex values span the space. Their affine entries, stacked over the
cells, are orthonormalised in a fixed order, which gives one basis B with B'B = I, the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Basis:
    """A basis of velocity fields on the unit domain [0, 1]^ndim.

    Attributes:
        entries: B, (cells * ndim * (ndim + 1), D), orthonormal columns: B @ theta holds the entries of A_c, row by row,
            cell after cell, with v(x) = A_c [x; 1].
        nodal: (nodes * ndim, D): the velocities at the vertices, (node, axis) row by row.
        centres: (cells, ndim), the centre of each cell, for priors that decay with distance.
    """

    entries: Array
    nodal: Array
    centres: Array


def make_basis(tess: Sequence[int], zero_boundary: bool, volume_preserving: bool) -> Basis:
    """The basis of a tessellation of one or two axes.

    Vertices are ordered as rows of a grid, x fastest, then (in two dimensions) the centres of the cells in the same
    order; the free values of a vertex come in the order x, y. Triangles of a cell are ordered left, right, top (small
    y), bottom.

    Args:
        tess: how many cells along x (and y).
        zero_boundary: whether the velocity normal to the boundary is zero on it.
        volume_preserving: whether the divergence is zero in every cell.
    """
    ndim, index = len(tess), np.arange(tess[0])
    if ndim == 1:
        nodes, cells = np.linspace(0.0, 1.0, tess[0] + 1)[:, None], np.stack([index, index + 1], axis=1)
    else:
        nodes, cells = triangles(tess[0], tess[1])
    free = np.ones(nodes.shape, dtype=bool)
    if zero_boundary:
        free &= (nodes != 0) & (nodes != 1)
    values = np.eye(nodes.size)[:, free.ravel()]  # (nodes * ndim, free): one hat function per column
    if volume_preserving:
        entries = _entries(nodes, cells, values).reshape(len(cells), ndim, ndim + 1, -1)
        values = values @ _null_space(np.einsum("caak->ck", entries[:, :, :ndim]))  # of the divergence in every cell
    entries = _entries(nodes, cells, values)
    # QR alone leaves the signs of the columns to the library. Dividing by R keeps entries that are zero in every field
    # exactly zero.
    upper = np.linalg.qr(entries).R
    upper = upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]
    inverse = np.linalg.inv(upper)
    centres = nodes[cells].mean(axis=1).reshape(-1, ndim)
    return Basis(entries=entries @ inverse, nodal=values @ inverse, centres=centres)


def node_velocities(theta: Tensor, nodal: Tensor) -> Tensor:
    """The velocities at the nodes of the tessellation, to the full precision of theta's dtype.

    Args:
        theta: (..., D).
        nodal: (K, D), velocities at the nodes per unit of theta; or (G, K, D) for G groups of consecutive thetas.

    Returns:
        (..., K).
    """
    if nodal.dim() == 3:
        groups = theta.reshape(len(nodal), math.prod(theta.shape[:-1]) // max(1, len(nodal)), theta.shape[-1])
        return _product(groups, nodal).view(*theta.shape[:-1], nodal.shape[-2])
    return _product(theta, nodal)


def _product(theta: Tensor, nodal: Tensor) -> Tensor:
    if theta.device.type == "mps":  # which has no float64
        return (theta[..., None, :] * nodal.unsqueeze(-3)).sum(-1)
    # In float32, TF32 and autocast would round a product of matrices to a few bits; neither affects float64.
    return (theta.double() @ nodal.double().mT).to(theta.dtype)


def triangles(nx: int, ny: int) -> tuple[Array, Index]:
    """Vertices and cells (4 * nx * ny, 3) of the unit square, each rectangle split into four by its diagonals."""
    x, y = np.linspace(0.0, 1.0, nx + 1), np.linspace(0.0, 1.0, ny + 1)
    corners = np.stack([np.tile(x, ny + 1), np.repeat(y, nx + 1)], axis=1)
    middle = np.stack([np.tile((x[1:] + x[:-1]) / 2, ny), np.repeat((y[1:] + y[:-1]) / 2, nx)], axis=1)
    row, column = np.divmod(np.arange(nx * ny), nx)
    low = row * (nx + 1) + column
    high = low + nx + 1
    centre = len(corners) + np.arange(nx * ny)
    sides = [(low, high), (low + 1, high + 1), (low, low + 1), (high, high + 1)]
    cells = np.stack([np.stack([centre, a, b], axis=1) for a, b in sides], axis=1)
    return np.concatenate([corners, middle]), cells.reshape(-1, 3)


def _entries(nodes: Array, cells: Index, values: Array) -> Array:
    """The affine entries (cells * ndim * (ndim + 1), K) of the fields with vertex values (nodes * ndim, K)."""
    ndim = nodes.shape[1]
    at = nodes[cells]  # (cells, ndim + 1, ndim)
    solve = np.linalg.inv(np.concatenate([at, np.ones((*at.shape[:2], 1))], axis=2))
    # The vertices of a regular grid have simple coordinates: rounding the noise away keeps exact zeros zero.
    solve = np.round(solve, 12)
    velocity = values.reshape(*nodes.shape, -1)[cells]  # (cells, ndim + 1, ndim, K)
    return np.einsum("cij,cjak->caik", solve, velocity).reshape(len(cells) * ndim * (ndim + 1), -1)


def _null_space(matrix: Array) -> Array:
    """A basis of the null space of `matrix`, by reduced row echelon form.

    That form is unique for a given order of the columns; a basis from a singular value decomposition is not.
    """
    form = matrix.copy()
    pivots: list[int] = []
    for column in range(form.shape[1]):
        done = len(pivots)
        if done == form.shape[0]:
            break
        best = done + int(np.argmax(np.abs(form[done:, column])))
        if abs(form[best, column]) < 1e-9:
            continue
        form[[done, best]] = form[[best, done]]
        form[done] /= form[done, column]
        others = np.arange(form.shape[0]) != done
        form[others] -= np.outer(form[others, column], form[done])
        pivots.append(column)
    free = [column for column in range(form.shape[1]) if column not in pivots]
    basis = np.zeros((form.shape[1], len(free)))
    basis[free, np.arange(len(free))] = 1.0
    basis[pivots] = -form[: len(pivots), free]
    return basis
