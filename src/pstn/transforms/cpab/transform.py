"""CPAB: smooth, invertible warps of series and images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor

from pstn._checks import require_bool, require_positive_int
from pstn.transforms.base import Transform
from pstn.transforms.cpab.basis import make_basis
from pstn.transforms.cpab.line_autograd import velocity1d
from pstn.transforms.cpab.nodes import node_velocities
from pstn.transforms.cpab.operations import Backend, flow_line, flow_plane, require_backend
from pstn.transforms.cpab.plane_flow import velocity2d

__all__ = ["CPAB"]


@final
class CPAB(Transform):
    """Diffeomorphisms that integrate a continuous piecewise-affine velocity field (Freifeld et al. 2017).

    On the unit domain [0, 1]^ndim the velocity in cell c is v(x) = A_c [x; 1]. The entries of all A_c, row by row and
    cell after cell, are B theta, with orthonormal columns of B. The map takes a point to where it is carried in unit
    time. theta = 0 is the identity, -theta the inverse.

    On the line the flow and its gradient are in closed form. In the plane, where each cell of the grid is cut into four
    triangles by its diagonals, the flow is exact in each triangle up to rounding, and memory does not grow with the
    number of triangles that are crossed. A wild theta is harmless: with a zero boundary the map stays finite, in the
    plane for float32 thetas up to 1e19. There a point that has gone through 500 pieces stays where it is.

    Convention:
        Points and grids are in [-1, 1] with `align_corners=False`, x first; a grid maps output to input coordinates.
        `velocity` is dp/dt there, 2 v((p + 1) / 2). Outside the domain the velocity is that of its nearest point, so
        that the map is defined and continuous everywhere. With a zero boundary it is the identity outside, on the line;
        in the plane each side is mapped to itself, and outside a point moves along with the nearest point of the side.

    Args:
        tess: how many cells, a number for series or one per axis (x, y) for images.
        zero_boundary: whether the velocity normal to the boundary is zero, so that the domain is mapped to itself.
        volume_preserving: whether the velocity has no divergence, so that areas are kept; in the plane only.
        backend: "auto" picks a Triton kernel on CUDA and plain torch elsewhere; "torch" and "triton" insist. "inductor"
            lets torch's compiler fuse the work on a CPU, which takes a C++ compiler and up to a minute at the first
            call.

    Shape:
        theta (..., D), points (..., N, ndim); D = 9 for 10 cells on the line, 34 for 3 by 3 cells in the plane.

    Example:
        >>> c = CPAB(tess=10)
        >>> c.dim, c.grid(c.identity(), size=4).flatten().tolist()
        (9, [-0.75, -0.25, 0.25, 0.75])
        >>> CPAB(tess=(3, 3)).dim
        34
    """

    basis: Tensor
    _nodal: Tensor

    def __init__(
        self,
        tess: int | Sequence[int] = 10,
        *,
        zero_boundary: bool = True,
        volume_preserving: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.tess = _require_tess(tess)
        self.zero_boundary = require_bool("zero_boundary", zero_boundary)
        self.volume_preserving = require_bool("volume_preserving", volume_preserving)
        self.backend: Backend = require_backend(backend)
        self.ndim = len(self.tess)
        if volume_preserving and self.ndim == 1:
            raise ValueError("volume_preserving must be False for series: on the line it leaves the identity alone")
        basis = make_basis(self.tess, zero_boundary, volume_preserving)
        self.dim = basis.entries.shape[1]
        if self.dim == 0:
            raise ValueError(
                f"tess must leave at least one parameter, got {tess!r} with zero_boundary={zero_boundary}, "
                f"volume_preserving={volume_preserving}: use more cells, "
                + ("at least 2" if self.ndim == 1 else "at least (2, 1)")
            )
        self.names = tuple(f"theta{k}" for k in range(self.dim))
        self.register_buffer("basis", torch.from_numpy(basis.entries))
        self._to_nodes = torch.from_numpy(_read_nodes(basis.entries, basis.nodal))
        self.register_buffer("_nodal", torch.from_numpy(2 * basis.nodal), persistent=False)

    def initial(self) -> Tensor:
        """The identity, (D,)."""
        return torch.zeros(self.dim)

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Theta of the inverse map, -theta, (..., D)."""
        return -self._checked_theta(theta)

    def velocity(self, theta: Tensor, points: Tensor) -> Tensor:
        """The velocity dp/dt at points, in the coordinates of the interface.

        Args:
            theta: (..., D).
            points: (..., N, ndim) in [-1, 1], x first; leading axes broadcast with theta's.

        Returns:
            (..., N, ndim).

        Example:
            >>> CPAB(tess=2).velocity(torch.ones(1), torch.tensor([[-1.0], [0.0], [1.0]])).flatten()
            tensor([0.0000, 0.5774, 0.0000])
        """
        theta = self._checked_theta(theta)
        points = self._checked_points(points, theta.dtype)
        lead = torch.broadcast_shapes(theta.shape[:-1], points.shape[:-2])
        nodes = node_velocities(theta, self._nodal).to(points.dtype)
        points = points.expand(*lead, *points.shape[-2:])
        if self.ndim == 1:
            return velocity1d(nodes.expand(*lead, -1), points[..., 0])[..., None]
        return velocity2d(nodes.unflatten(-1, (-1, 2)).expand(*lead, -1, -1), points, *self._cells())

    def flow(self, theta: Tensor, points: Tensor, t: float | Tensor = 1.0) -> Tensor:
        """Where points are at a time t: 0 leaves them, 1 is the map itself, negative times run backwards.

        Args:
            theta: (..., D).
            points: (..., N, ndim) in [-1, 1], x first; leading axes broadcast with theta's.
            t: a number, or a tensor whose axes broadcast with theta's leading ones, for paths.

        Returns:
            (..., N, ndim).

        Example:
            >>> c, theta = CPAB(tess=2), torch.ones(1)
            >>> c.flow(theta, torch.zeros(1, 1), t=torch.tensor([0.0, 0.5, 1.0])).flatten()
            tensor([0.0000, 0.2507, 0.4386])
        """
        theta = self._checked_theta(theta)
        _refuse_lists("t", t)
        time = t[..., None].to(theta) if isinstance(t, Tensor) else t
        # The velocity does not depend on time: a time t under v is a time 1 under t v.
        return cast(Tensor, self.apply(theta * time, points))

    def nodes(self, theta: Tensor) -> Tensor:
        """The velocities at the vertices of the tessellation, (..., K, ndim), in the coordinates of the interface."""
        theta = self._checked_theta(theta)
        return node_velocities(theta, self._nodal).unflatten(-1, (-1, self.ndim))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        tess = self.tess[0] if self.ndim == 1 else self.tess
        flags = "".join(f", {name}={value}" for name, value in self._flags())
        return f"tess={tess}{flags}"

    def _flags(self) -> list[tuple[str, Any]]:
        given = {"zero_boundary": True, "volume_preserving": False, "backend": "auto"}
        return [(name, getattr(self, name)) for name, usual in given.items() if getattr(self, name) != usual]

    def _cells(self) -> tuple[int, int]:
        return self.tess[0], self.tess[1]

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        if theta.dtype != points.dtype:
            theta = theta.to(torch.promote_types(theta.dtype, points.dtype))
            points = points.to(theta.dtype)
        if self.ndim == 1:
            return flow_line(theta, self._nodal, points, self.zero_boundary, self.backend)
        return flow_plane(theta, self._nodal, points, self._cells(), self.zero_boundary, self.backend)

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        return self._map(-theta, points, aspect)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CPAB:
        # The basis follows the model's device and never its precision: half a digit of B would move every warp. A
        # device without float64 takes it in float32.
        probe = fn(torch.empty(0, dtype=torch.float32, device=self.basis.device))
        double = torch.float32 if probe.device.type == "mps" else torch.float64
        for name in ("basis", "_nodal"):
            old = self._buffers[name]
            assert old is not None
            empty = probe.device.type != "meta" and old.device.type == "meta"
            self._buffers[name] = (
                torch.empty_like(old, dtype=double, device=probe.device) if empty else old.to(probe.device, double)
            )
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # The checkpoint's basis says what its theta means.
        basis = self.basis.detach().double().cpu()
        self._nodal = (2 * (self._to_nodes @ basis)).to(self._nodal)


def _read_nodes(entries: Any, nodal: Any) -> Any:
    """The matrix that reads velocities at the nodes off the affine entries: nodal = matrix @ entries."""
    return nodal @ entries.T


def _require_tess(tess: Any) -> tuple[int, ...]:
    if isinstance(tess, (list, tuple)):
        if len(tess) not in (1, 2):
            raise ValueError(f"tess must be a whole number or hold 1 or 2 of them, (x, y), got {tess!r}")
        return tuple(require_positive_int(f"tess[{axis}]", cells) for axis, cells in enumerate(tess))
    return (require_positive_int("tess", tess),)


def _refuse_lists(name: str, value: Any) -> None:
    # Arrays of numpy would go through theta's axes, not through its own.
    if not isinstance(value, (int, float, Tensor)) and getattr(value, "ndim", 1) != 0:
        raise TypeError(f"{name} must be a number or a tensor of them, got {value!r}")
