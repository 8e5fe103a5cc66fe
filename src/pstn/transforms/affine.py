"""The families of affine maps: rotation, similarity, translation, crop, and any affine map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor

from pstn._checks import require_choice, require_positive_number
from pstn.transforms.base import MatrixTransform, invert_matrix

__all__ = ["Affine", "Crop", "Rotation", "Similarity", "Translation", "read_scale"]

ScaleKind = Literal["linear", "log"]
# Logarithmic scales are limited to [1/1000, 1000], so that an extreme sample neither overflows nor vanishes.
LOG_LIMIT = math.log(1000.0)


def read_scale(parameter: Tensor, kind: ScaleKind) -> Tensor:
    """The scale for a parameter, elementwise.

    Args:
        parameter: any shape.
        kind: "linear", the parameter itself, as in the paper; or "log", its exponential, which cannot collapse or flip
            and is limited to [1/1000, 1000].

    Example:
        >>> read_scale(torch.tensor([0.0, 100.0]), "log")
        tensor([1.0000e+00, 1.0000e+03])
    """
    return parameter if kind == "linear" else torch.exp(parameter.clamp(-LOG_LIMIT, LOG_LIMIT))


def _invert_scale(parameter: Tensor, kind: ScaleKind) -> Tensor:
    """The parameter of the inverse scale, elementwise."""
    return 1 / parameter if kind == "linear" else -parameter


def _scale_parameter(scale: Tensor, kind: ScaleKind) -> Tensor:
    """The inverse of `read_scale`, elementwise."""
    return scale if kind == "linear" else torch.log(scale)


def _angle_of(matrix: Tensor, aspect: Sequence[float]) -> Tensor:
    """The angle (...) of a scaled rotation (..., 2, 2 or 3): see `rotation_matrix`."""
    return torch.atan2(matrix[..., 1, 0] * (aspect[1] / aspect[0]), matrix[..., 0, 0])


def rotation_matrix(angle: Tensor, aspect: Sequence[float]) -> Tensor:
    """The matrix that rotates an input of extents `aspect` rigidly, in coordinates normalised to [-1, 1].

    On a square it is [[cos, -sin], [sin, cos]]. Otherwise a unit of x is longer than a unit of y by the aspect ratio
    a, and the off-diagonal entries are multiplied by 1/a and a.

    Args:
        angle: (...), in radians.
        aspect: (width, height) of the input.

    Returns:
        (..., 2, 2).
    """
    ratio = aspect[0] / aspect[1]
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = [torch.stack([cos, -sin / ratio], dim=-1), torch.stack([sin * ratio, cos], dim=-1)]
    return torch.stack(rows, dim=-2)


class _BuiltIn(MatrixTransform):
    """Sets what every family has, from `names` and the accepted numbers of axes."""

    def __init__(self, ndim: int, accepted: tuple[int, ...], names: Sequence[str], initial: Sequence[float]) -> None:
        super().__init__()
        require_choice(f"ndim of {type(self).__name__}", ndim, accepted)
        self.ndim, self.dim, self.names = ndim, len(names), tuple(names)
        self._initial, self._shown = tuple(initial), ("scale", "ndim") if len(accepted) > 1 else ("scale",)

    @property
    def circular(self) -> tuple[bool, ...]:
        """For each parameter, whether it is an angle."""
        return tuple(name == "angle" for name in self.names)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown if hasattr(self, name))

    def initial(self) -> Tensor:
        """The identity, or the centre for a fixed scale other than 1, (D,)."""
        return torch.tensor(self._initial)


@final
class Rotation(_BuiltIn):
    """Rotation about the centre, with theta = (angle), in radians.

    A warp with angle r is undone by a warp with -r.

    Args:
        ndim: 2; rotations in space have other parameters.

    Example:
        >>> Rotation().identity()
        tensor([0.])
    """

    def __init__(self, ndim: int = 2) -> None:
        super().__init__(ndim, (2,), ("angle",), (0.0,))

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The opposite angle, (..., 1)."""
        return -self._checked_theta(theta)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        linear = rotation_matrix(theta[..., 0], aspect)
        return torch.cat([linear, torch.zeros_like(linear[..., :1])], dim=-1)

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        return _angle_of(matrix, aspect)[..., None]


@final
class Similarity(_BuiltIn):
    """Rotation, isotropic scale and shift, the paper's Eq. 1, with theta = (angle, scale, tx, ty).

    Both the cosine and the sine terms are scaled, as in the equation; the authors' published code scales the cosines
    only, which is not a similarity.

    Args:
        scale: "linear", as in the paper; or "log", s = exp(parameter), which cannot collapse or flip.
        ndim: 2.

    Example:
        >>> Similarity().identity()
        tensor([0., 1., 0., 0.])
    """

    def __init__(self, scale: ScaleKind = "linear", ndim: int = 2) -> None:
        require_choice("scale", scale, ("linear", "log"))
        super().__init__(ndim, (2,), ("angle", "scale", "tx", "ty"), (0.0, float(scale == "linear"), 0.0, 0.0))
        self.scale: ScaleKind = scale

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse similarity, (..., 4). The shift depends on the aspect where the input is not square."""
        theta = self._checked_theta(theta)
        angle, raw, shift = theta[..., :1], theta[..., 1:2], theta[..., 2:]
        inverse_rotation = rotation_matrix(-angle[..., 0], self._checked_aspect(aspect))
        back = -(inverse_rotation * shift[..., None, :]).sum(-1) / read_scale(raw, self.scale)
        return torch.cat([-angle, _invert_scale(raw, self.scale), back], dim=-1)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        linear = read_scale(theta[..., 1, None, None], self.scale) * rotation_matrix(theta[..., 0], aspect)
        return torch.cat([linear, theta[..., 2:, None]], dim=-1)

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        determinant = matrix[..., 0, 0] * matrix[..., 1, 1] - matrix[..., 0, 1] * matrix[..., 1, 0]
        scale = _scale_parameter(determinant.sqrt(), self.scale)
        return torch.cat([torch.stack([_angle_of(matrix, aspect), scale], dim=-1), matrix[..., 2]], dim=-1)


@final
class Translation(_BuiltIn):
    """A crop of fixed size that moves: p -> scale * p + t, with theta = t.

    With a scale other than 1 no theta gives the identity, and the inverse of a map is not in the family: `identity`
    and `inverse` raise ValueError, while `apply_inverse` works. A localizer starts at the centre.

    Args:
        scale: the fixed size of the crop relative to the input, above 0.
        ndim: 1, 2 or 3.

    Example:
        >>> t = Translation(scale=0.5)
        >>> t.corners(torch.tensor([0.5, 0.5])).tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """

    def __init__(self, scale: float = 0.5, ndim: int = 2) -> None:
        super().__init__(ndim, (1, 2, 3), ("tx", "ty", "tz")[:ndim], (0.0,) * ndim)
        self.scale = require_positive_number("scale", scale)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The opposite shift, (..., D); only where the scale is 1."""
        if self.scale != 1:
            raise ValueError(f"{self} has no inverse in its family: use scale=1, Crop, or apply_inverse on points")
        return -self._checked_theta(theta)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        linear = self.scale * torch.eye(self.ndim, dtype=theta.dtype, device=theta.device)
        return torch.cat([linear.expand(*theta.shape[:-1], -1, -1), theta[..., None]], dim=-1)

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        return matrix[..., self.ndim]


@final
class Crop(_BuiltIn):
    """Scale and shift, p -> s * p + t, with theta = (scale, tx[, ty[, tz]]).

    Args:
        scale: "linear", the parameter is s itself and may pass through 0; or "log", s = exp(parameter), which cannot
            collapse or flip.
        ndim: 1, 2 or 3.

    Example:
        >>> Crop().matrix(torch.tensor([0.5, 0.25, 0.0]))
        tensor([[0.5000, 0.0000, 0.2500],
                [0.0000, 0.5000, 0.0000]])
    """

    def __init__(self, scale: ScaleKind = "linear", ndim: int = 2) -> None:
        require_choice("scale", scale, ("linear", "log"))
        names, shift = ("scale", "tx", "ty", "tz")[: 1 + ndim], (0.0,) * ndim
        super().__init__(ndim, (1, 2, 3), names, (float(scale == "linear"), *shift))
        self.scale: ScaleKind = scale

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of p -> (p - t) / s, (..., D)."""
        theta = self._checked_theta(theta)
        raw, shift = theta[..., :1], theta[..., 1:]
        return torch.cat([_invert_scale(raw, self.scale), -shift / read_scale(raw, self.scale)], dim=-1)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        scale = read_scale(theta[..., 0, None, None], self.scale)
        linear = scale * torch.eye(self.ndim, dtype=theta.dtype, device=theta.device)
        return torch.cat([linear, theta[..., 1:, None]], dim=-1)

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        return torch.cat([_scale_parameter(matrix[..., 0, :1], self.scale), matrix[..., self.ndim]], dim=-1)


@final
class Affine(_BuiltIn):
    """Any affine map, with theta the entries of [A | t] row by row, as `torch.nn.functional.affine_grid` has them.

    Args:
        ndim: 2 (6 parameters) or 3 (12 parameters). In one dimension it would be `Crop(ndim=1)`.

    Example:
        >>> Affine().identity()
        tensor([1., 0., 0., 0., 1., 0.])
    """

    def __init__(self, ndim: int = 2) -> None:
        names: list[str] = []
        for row in range(ndim):
            names += [f"a{row + 1}{column + 1}" for column in range(ndim)] + [f"t{'xyz'[row : row + 1]}"]
        initial = [float(row == column) for row in range(ndim) for column in range(ndim + 1)]
        super().__init__(ndim, (2, 3), names, initial)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse map, (..., D); not finite where the matrix is singular."""
        return invert_matrix(self._matrix(self._checked_theta(theta), ())).flatten(-2)

    def _matrix(self, theta: Tensor, aspect: Sequence[float]) -> Tensor:
        return theta.unflatten(-1, (self.ndim, self.ndim + 1))

    def _from_matrix(self, matrix: Tensor, aspect: Sequence[float]) -> Tensor:
        return matrix.flatten(-2)
