"""What a transformation is: parameters theta in, coordinates out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pstn._checks import overwritable, require_choice, require_floating, require_size
from pstn.transforms.coordinates import corner_points, standing_points

__all__ = ["MatrixTransform", "Transform", "require_ndim"]


class Transform(nn.Module, ABC):
    """A family of maps from output coordinates to input coordinates, with parameters theta.

    A family says what theta means in four methods: `initial`, `inverse`, `_map` and `_unmap`. Grids, boxes and the
    rest follow from these. Families are modules only so that constants such as a CPAB basis travel with a model's
    device and checkpoint; they hold no trainable parameters.

    Convention:
        Coordinates are in [-1, 1] with `align_corners=False`, x first. A map takes output coordinates to input
        coordinates, so a warp by theta is undone by a warp by `inverse(theta)`. `aspect` holds the extents of the
        input along (x, y, z), in any unit: rotating families need it to rotate rigidly on an input that is not square.
        `grid` takes it from the output's size when it is not given; everything else then takes the input for square.

    Attributes:
        ndim: how many spatial axes the family acts on.
        dim: D, how many parameters it has.
        names: what each parameter is called, for plots and messages.
    """

    ndim: int
    dim: int
    names: tuple[str, ...]

    @abstractmethod
    def initial(self) -> Tensor:
        """The theta at which a localizer starts, (D,): the identity, or the centred member of a family without one."""

    @abstractmethod
    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The theta of the inverse map, (..., D) -> (..., D). A family not closed under inversion raises ValueError."""

    @abstractmethod
    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        """Map `points` (..., N, ndim) under `theta` (..., D); leading axes broadcast; both are at least float32.

        The points are shared by all grids of a size: make new ones, and do not change these in place.
        """

    @abstractmethod
    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        """Map `points` backwards: the inverse of `_map`, also where the family has no theta for it."""

    @property
    def circular(self) -> tuple[bool, ...]:
        """For each parameter of theta, whether it is an angle in radians, the same after a full turn."""
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
        if not self.has_identity:
            raise ValueError(f"{self} has no identity: no theta of this family leaves the input as it is")
        return self.initial()

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
        base = standing_points(size, dtype=theta.dtype, device=theta.device)
        aspect = size[::-1] if aspect is None else self._checked_aspect(aspect)
        mapped = self._map(theta, base, aspect)
        if not torch.compiler.is_compiling() and base._version:
            raise RuntimeError(
                f"_map of {type(self).__name__} (or of a part of it) must not change its points in place, which other "
                "grids share: write x = x + shift, not x += shift"
            )
        return mapped if self.ndim == 1 else mapped.unflatten(-2, size)

    def apply(
        self,
        theta: Tensor | Callable[[nn.Module], Any],
        points: Tensor | None = None,
        *,
        aspect: Sequence[float] | None = None,
    ) -> Any:
        """Map output coordinates to input coordinates, the same map as `grid` on points of your own.

        Args:
            theta: (..., D).
            points: (..., N, ndim) in [-1, 1], x first; leading axes broadcast with theta's.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, ndim).

        `torch.nn.Module.apply(fn)`, which visits submodules and shares the name, still works: it has one argument.
        """
        if points is None:
            if isinstance(theta, Tensor):
                raise TypeError(f"apply needs points of shape (..., N, {self.ndim}) besides theta")
            return super().apply(theta)
        theta = self._checked_theta(theta)
        return self._map(theta, self._checked_points(points, theta.dtype), self._checked_aspect(aspect))

    def apply_inverse(self, theta: Tensor, points: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Map input coordinates to output coordinates: where a point of the input is seen after the warp.

        Works for families without an `inverse` too, as long as the map itself can be inverted.

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
        """The box that theta looks at: the output's corners in input coordinates, in an order that draws.

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
        """Where boxes drawn on the input are in the warped output, as the smallest upright boxes around their corners.

        Affine maps keep edges straight, so that these hold all of what was in the box. Others may bend an edge out
        beyond its corners: map points along the edges with `apply_inverse` where that matters.

        Args:
            theta: (..., D).
            boxes: (..., N, 2 * ndim), lower corner then upper corner, in [-1, 1], x first.
            aspect: extents of the input along (x, y, z); square when not given.

        Returns:
            (..., N, 2 * ndim).
        """
        theta = self._checked_theta(theta)
        require_floating("boxes", boxes)
        if boxes.dim() < 2 or boxes.shape[-1] != 2 * self.ndim:
            raise ValueError(f"boxes must have shape (..., N, {2 * self.ndim}), got {tuple(boxes.shape)}")
        boxes = boxes.to(theta.dtype)
        lower, upper = boxes[..., None, : self.ndim], boxes[..., None, self.ndim :]
        unit = (corner_points(self.ndim, dtype=theta.dtype, device=theta.device) + 1) / 2
        corners = lower + (upper - lower) * unit  # (..., N, 2**ndim, ndim)
        moved = self._unmap(theta, corners.flatten(-3, -2), self._checked_aspect(aspect))
        moved = moved.unflatten(-2, corners.shape[-3:-1])
        return torch.cat([moved.amin(-2), moved.amax(-2)], dim=-1)

    def _checked_theta(self, theta: Any) -> Tensor:
        require_floating("theta", theta)
        if theta.dim() < 1 or theta.shape[-1] != self.dim:
            raise ValueError(
                f"theta must have shape (..., {self.dim}) for {self}, that is ({', '.join(self.names)}), "
                f"got {tuple(theta.shape)}"
            )
        return _at_least_float32(theta)

    def _checked_points(self, points: Any, dtype: torch.dtype) -> Tensor:
        require_floating("points", points)
        if points.dim() < 2 or points.shape[-1] != self.ndim:
            raise ValueError(f"points must have shape (..., N, {self.ndim}), got {tuple(points.shape)}")
        return points.to(torch.promote_types(points.dtype, dtype))

    def _checked_aspect(self, aspect: Sequence[float] | None) -> Sequence[float]:
        if aspect is None:
            return (1.0,) * self.ndim
        if (
            not isinstance(aspect, Sequence)
            or len(aspect) != self.ndim
            or not all(_is_extent(extent) for extent in aspect)
        ):
            raise ValueError(f"aspect must hold {self.ndim} finite numbers above 0, along (x, y, z), got {aspect!r}")
        return aspect


class MatrixTransform(Transform):
    """A family whose maps are affine, p -> A p + t: it only has to say how theta fills the matrix [A | t]."""

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

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        # Coordinates are made one plane (all x, all y, …) after another, which is several times faster than pairs, and
        # by products and sums, not a matmul: autocast and TF32 would round them to a few bits.
        matrix = self._matrix(theta, aspect)
        missing = max(0, points.dim() - matrix.dim())  # leading axes that points have and theta has not
        # Contiguous rows make contiguous planes, which a warp reads where they are.
        rows = matrix[(None,) * missing].movedim(-2, 0).contiguous()[..., None]
        planes = rows[..., self.ndim, :]
        for axis in range(self.ndim):
            if axis > 0 and overwritable(planes):
                planes.addcmul_(rows[..., axis, :], points[..., axis])
            else:
                planes = torch.addcmul(planes, rows[..., axis, :], points[..., axis])
        return planes.movedim(0, -1)

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        matrix = self._matrix(theta, aspect)
        # inv_ex does not stop to look whether the matrix is singular; a singular one gives no finite coordinates.
        inverse, _ = torch.linalg.inv_ex(matrix[..., : self.ndim])
        shifted = points - matrix[..., None, :, self.ndim]
        return (inverse[..., None, :, :] * shifted[..., None, :]).sum(-1)


def require_ndim(family: str, ndim: int, accepted: Sequence[int]) -> int:
    """Refuse a number of axes that `family` does not have."""
    require_choice(f"ndim of {family}", ndim, accepted)
    return ndim


def _is_extent(value: Any) -> bool:
    if isinstance(value, (int, float, np.integer, np.floating)):
        return bool(0 < value < math.inf)
    return isinstance(value, (torch.SymInt, torch.SymFloat, Tensor))  # stand for a number while a graph is made


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
