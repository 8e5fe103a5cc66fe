"""The base classes of transformations: parameters theta in, coordinates out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pstn._checks import overwritable, require_floating, require_size
from pstn.transforms.coordinates import cached_grid_points, corner_points

__all__ = ["MatrixTransform", "Transform"]


class Transform(nn.Module, ABC):
    """A family of maps from output coordinates to input coordinates, with parameters theta.

    A family implements four methods: `initial`, `inverse`, `_map` and `_unmap`. Grids, boxes and the rest follow from
    these. Families are modules so that constants such as a CPAB basis follow a model's device and are saved with it;
    they have no trainable parameters.

    Convention:
        Coordinates are in [-1, 1] with `align_corners=False`, x first. A map takes output coordinates to input
        coordinates, so a warp by theta is undone by a warp by `inverse(theta)`. `aspect` holds the extents of the
        input along (x, y, z), in any unit: rotating families need it to rotate rigidly on an input that is not square.
        `grid` takes it from the output's size when it is not given; all other methods then assume a square input.

    Attributes:
        ndim: how many spatial axes the family acts on.
        dim: D, how many parameters it has.
        names: a name for each parameter, for plots and messages.
    """

    ndim: int
    dim: int
    names: tuple[str, ...]
    _by_planes = False  # whether `_map` takes one coordinate of all points after the other

    @abstractmethod
    def initial(self) -> Tensor:
        """The theta at which a localizer starts, (D,): the identity, or the centred member of a family without one."""

    @abstractmethod
    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The theta of the inverse map, (..., D) -> (..., D). A family not closed under inversion raises ValueError."""

    @abstractmethod
    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        """Map `points` (..., N, ndim) under `theta` (..., D); leading axes broadcast; both are at least float32.

        The points are shared by all grids of a size and must not be changed in place.
        """

    @abstractmethod
    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        """Map `points` backwards: the inverse of `_map`, also where the family has no theta for it."""

    @property
    def circular(self) -> tuple[bool, ...]:
        """For each parameter, whether it is an angle in radians, with period 2 pi."""
        return (False,) * self.dim

    @property
    def has_identity(self) -> bool:
        """Whether the family contains the map that changes nothing."""
        base = corner_points(self.ndim, dtype=torch.float64)
        theta = self.initial().double()
        return bool(torch.allclose(self._map(theta, base, (1.0,) * self.ndim), base, atol=1e-9))

    def identity(self) -> Tensor:
        """The theta that changes nothing, (D,).

        Raises:
            ValueError: if the family has no identity.
        """
        start = self.initial()
        if start.device.type != "meta" and not self.has_identity:  # on "meta" there are no values to compare
            raise ValueError(f"{self} has no identity: no theta of this family leaves the input unchanged")
        return start

    def grid(self, theta: Tensor, size: int | Sequence[int], *, aspect: Sequence[float] | None = None) -> Tensor:
        """The input coordinates that each pixel of an output of `size` reads.

        Args:
            theta: (..., D).
            size: spatial size of the output, e.g. (height, width).
            aspect: extents of the input along (x, y, z); that of `size` when not given.

        Returns:
            (..., *size, ndim), at least float32, x first: what `torch.nn.functional.grid_sample` takes.
        """
        size = require_size("size", size, self.ndim)
        theta = self._checked_theta(theta)
        base = cached_grid_points(size, dtype=theta.dtype, device=theta.device, planes=self._by_planes)
        aspect = size[::-1] if aspect is None else self._checked_aspect(aspect)
        mapped = self._map(theta, base, aspect)
        if not torch.compiler.is_compiling() and base._version:
            owner = f"_map of {type(self).__name__} (or of a part of it)"
            raise RuntimeError(f"{owner} must not change its points in place, as other grids share them")
        return mapped if self.ndim == 1 else mapped.unflatten(-2, size)

    def apply(
        self, theta: Tensor | Callable[[nn.Module], Any], points: Tensor | None = None, *,
        aspect: Sequence[float] | None = None,
    ) -> Any:  # fmt: skip
        """Map output coordinates to input coordinates: the same map as `grid`, on given points.

        Args:
            theta: (..., D).
            points: (..., N, ndim) in [-1, 1], x first; leading axes broadcast with theta's.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, ndim).

        `torch.nn.Module.apply(fn)`, which has the same name and one argument, still works.
        """
        if points is None:
            if isinstance(theta, Tensor):
                raise TypeError(f"apply needs points of shape (..., N, {self.ndim}) besides theta")
            return super().apply(theta)
        theta = self._checked_theta(theta)
        return self._map(theta, self._checked_points(points, theta.dtype), self._checked_aspect(aspect))

    def apply_inverse(self, theta: Tensor, points: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Map input coordinates to output coordinates: the position of a point of the input after the warp.

        Also works for families without an `inverse`, if the map itself is invertible.

        Args:
            theta: (..., D).
            points: (..., N, ndim) in [-1, 1], x first.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, ndim).
        """
        theta = self._checked_theta(theta)
        return self._unmap(theta, self._checked_points(points, theta.dtype), self._checked_aspect(aspect))

    def corners(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The box that theta reads: the output's corners in input coordinates, in the order of an outline.

        Args:
            theta: (..., D).
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., 2**ndim, ndim); `pstn.to_pixels` turns it into pixels.
        """
        theta = self._checked_theta(theta)
        frame = corner_points(self.ndim, dtype=theta.dtype, device=theta.device)
        return self._map(theta, frame, self._checked_aspect(aspect))

    def warp_boxes(self, theta: Tensor, boxes: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Map boxes of the input to the warped output: the smallest axis-aligned boxes around their corners.

        Affine maps keep edges straight, so that the result contains the whole box. Other maps may bend an edge beyond
        its corners: where that matters, map points along the edges with `apply_inverse`.

        Args:
            theta: (..., D).
            boxes: (..., N, 2 * ndim), lower corner then upper corner, in [-1, 1], x first.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, 2 * ndim).
        """
        return self._move_boxes(self._unmap, theta, boxes, aspect)

    def unwarp_boxes(self, theta: Tensor, boxes: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Map boxes of the warped output to the input: the opposite of `warp_boxes`, for every family.

        Args:
            theta: (..., D).
            boxes: (..., N, 2 * ndim), lower corner then upper corner, in [-1, 1], x first.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, 2 * ndim).

        Example:
            >>> pstn.Crop().unwarp_boxes(torch.tensor([0.5, 0.25, 0.0]), torch.tensor([[-1.0, -1.0, 1.0, 1.0]]))
            tensor([[-0.2500, -0.5000,  0.7500,  0.5000]])
        """
        return self._move_boxes(self._map, theta, boxes, aspect)

    def _move_boxes(
        self, move: Callable[..., Tensor], theta: Tensor, boxes: Tensor, aspect: Sequence[float] | None
    ) -> Tensor:
        theta = self._checked_theta(theta)
        boxes = _checked_points("boxes", boxes, 2 * self.ndim).to(theta.dtype)
        lower, upper = boxes[..., None, : self.ndim], boxes[..., None, self.ndim :]
        unit = (corner_points(self.ndim, dtype=theta.dtype, device=theta.device) + 1) / 2
        corners = lower + (upper - lower) * unit  # (..., N, 2**ndim, ndim)
        moved = move(theta, corners.flatten(-3, -2), self._checked_aspect(aspect))
        moved = moved.unflatten(-2, corners.shape[-3:-1])
        return torch.cat([moved.amin(-2), moved.amax(-2)], dim=-1)

    def _checked_theta(self, theta: Any) -> Tensor:
        require_floating("theta", theta)
        if theta.dim() < 1 or theta.shape[-1] != self.dim:
            expected = f"(..., {self.dim}) for {self}, that is ({', '.join(self.names)})"
            raise ValueError(f"theta must have shape {expected}, got {tuple(theta.shape)}")
        return theta if theta.dtype in (torch.float32, torch.float64) else theta.float()

    def _checked_points(self, points: Any, dtype: torch.dtype) -> Tensor:
        points = _checked_points("points", points, self.ndim)
        return points.to(torch.promote_types(points.dtype, dtype))

    def _checked_aspect(self, aspect: Sequence[float] | None) -> Sequence[float]:
        if aspect is None:
            return (1.0,) * self.ndim
        if not (isinstance(aspect, Sequence) and len(aspect) == self.ndim and all(map(_is_extent, aspect))):
            raise ValueError(f"aspect must hold {self.ndim} finite numbers above 0, along (x, y, z), got {aspect!r}")
        return aspect


class MatrixTransform(Transform):
    """A family of affine maps, p -> A p + t: `_matrix` gives [A | t], and `_map` and `_unmap` follow."""

    _by_planes = True

    @abstractmethod
    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        """[A | t] of shape (..., ndim, ndim + 1) for a checked `theta` (..., D)."""

    def matrix(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The matrix [A | t] of the map, (..., ndim, ndim + 1): what `torch.nn.functional.affine_grid` takes.

        Args:
            theta: (..., D).
            aspect: extents of the input along (x, y, z); square when not given.
        """
        return self._matrix(self._checked_theta(theta), self._checked_aspect(aspect))

    def from_matrix(self, matrix: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The theta (..., D) whose `matrix` this is, for a matrix (..., ndim, ndim + 1) of a map within the family.

        What the family cannot represent is ignored: compare `matrix(theta)` where that may happen. A family of your own
        needs this method only to be taught with a random transform of another family.

        Args:
            matrix: [A | t], as `matrix` returns it.
            aspect: as there.

        Example:
            >>> pstn.Similarity().from_matrix(pstn.Rotation().matrix(torch.tensor([0.5])))
            tensor([0.5000, 1.0000, 0.0000, 0.0000])
        """
        require_floating("matrix", matrix)
        if matrix.shape[-2:] != (self.ndim, self.ndim + 1):
            expected = f"(..., {self.ndim}, {self.ndim + 1}) for {self}"
            raise ValueError(f"matrix must have shape {expected}, got {tuple(matrix.shape)}")
        return self._from_matrix(matrix, self._checked_aspect(aspect))

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        """Theta (..., D) of a checked matrix."""
        raise ValueError(f"{self} cannot tell theta from a matrix: implement _from_matrix")

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        # One plane of coordinates (all x, all y, …) after another, which is several times faster than pairs, and by
        # products and sums, not a matmul: autocast and TF32 would round them to a few bits.
        matrix = self._matrix(theta, aspect)
        missing = max(0, points.dim() - matrix.dim())  # leading axes of points that theta lacks
        # Contiguous rows make contiguous planes, which a warp reads without a copy.
        rows = matrix[(None,) * missing].movedim(-2, 0).contiguous()[..., None]
        planes = rows[..., self.ndim, :]
        for axis in range(self.ndim):
            if axis > 0 and overwritable(planes):
                planes.addcmul_(rows[..., axis, :], points[..., axis])
            else:
                planes = torch.addcmul(planes, rows[..., axis, :], points[..., axis])
        return planes.movedim(0, -1)

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        inverse = invert_matrix(self._matrix(theta, aspect))
        moved = (inverse[..., None, :, : self.ndim] * points[..., None, :]).sum(-1)
        return moved + inverse[..., None, :, self.ndim]


def invert_matrix(matrix: Tensor) -> Tensor:
    """[A | t] of the inverse map, (..., n, n + 1) for n up to 3; not finite where A is singular.

    In closed form, by cofactors: a solver would not be captured as a CUDA graph, and could be slower.

    Example:
        >>> invert_matrix(torch.tensor([[2.0, 1.0]]))
        tensor([[ 0.5000, -0.5000]])
    """
    linear, shift = matrix[..., :-1], matrix[..., -1]
    rows = linear.unbind(-2)
    if len(rows) == 1:
        adjugate = torch.ones_like(linear)
    elif len(rows) == 2:
        (a, b), (c, d) = (row.unbind(-1) for row in rows)
        adjugate = torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)
    else:
        crossed = [torch.linalg.cross(rows[(k + 1) % 3], rows[(k + 2) % 3]) for k in range(3)]
        adjugate = torch.stack(crossed, -1)
    determinant = (rows[0] * adjugate[..., 0]).sum(-1)
    inverse = adjugate / determinant[..., None, None]
    return torch.cat([inverse, -(inverse * shift[..., None, :]).sum(-1, keepdim=True)], dim=-1)


def _checked_points(name: str, points: Any, width: int) -> Tensor:
    require_floating(name, points)
    if points.dim() < 2 or points.shape[-1] != width:
        raise ValueError(f"{name} must have shape (..., N, {width}), got {tuple(points.shape)}")
    return cast(Tensor, points)


def _is_extent(value: Any) -> bool:
    if isinstance(value, (int, float, np.integer, np.floating)):
        return bool(0 < value < math.inf)
    return isinstance(value, (torch.SymInt, torch.SymFloat, Tensor))  # symbols for a number while tracing
