"""CPAB: smooth, invertible warps of series and images, and a prior over theta that prefers smooth velocity fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, final

import torch
from torch import Tensor, nn

from pstn._checks import require_bool, require_choice, require_floating, require_positive_int, require_positive_number
from pstn.transforms.base import Transform
from pstn.transforms.cpab.autograd import broadcast
from pstn.transforms.cpab.basis import make_basis, node_velocities
from pstn.transforms.cpab.line import flow_line, velocity_on_line
from pstn.transforms.cpab.plane import flow_plane, velocity_in_plane
from pstn.transforms.cpab.triton import kernels_available

__all__ = ["CPAB", "SmoothPrior"]

Backend = Literal["auto", "torch", "triton", "inductor"]


@final
class CPAB(Transform):
    """Diffeomorphisms that integrate a continuous piecewise-affine velocity field (Freifeld et al. 2017).

    On the unit domain [0, 1]^ndim the velocity in cell c is v(x) = A_c [x; 1]. The entries of all A_c, row by row and
    cell after cell, are B theta, with orthonormal columns of B. The map takes a point to its position after unit time.
    theta = 0 is the identity, -theta the inverse.

    On the line the flow and its gradient are in closed form. In the plane, where each cell of the grid is split into
    four triangles by its diagonals, the flow is exact in each triangle up to rounding, and memory does not grow with
    the number of triangles that are crossed. With a zero boundary the map stays finite for extreme thetas, in the plane
    for float32 thetas up to 1e19. There a point stops after 500 steps.

    Convention:
        Points and grids are in [-1, 1] with `align_corners=False`, x first; a grid maps output to input coordinates.
        `velocity` is dp/dt there, 2 v((p + 1) / 2). Outside the domain the velocity is that of its nearest point, so
        that the map is defined and continuous everywhere. With a zero boundary it is the identity outside, on the line;
        in the plane each side is mapped to itself, and outside a point moves like the nearest point of the side.

    Args:
        tess: how many cells, a number for series or one per axis (x, y) for images.
        zero_boundary: whether the velocity normal to the boundary is zero, so that the domain is mapped to itself.
        volume_preserving: whether the velocity has no divergence, so that areas are kept; in the plane only.
        backend: "auto" uses a Triton kernel on CUDA and plain torch elsewhere; "torch" and "triton" force one.
            "inductor" lets torch's compiler fuse the operations on a CPU, which needs a C++ compiler and up to a minute
            at the first call.

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
        self, tess: int | Sequence[int] = 10, *, zero_boundary: bool = True, volume_preserving: bool = False,
        backend: Backend = "auto",
    ) -> None:  # fmt: skip
        super().__init__()
        self.tess = _require_tess(tess)
        self.zero_boundary = require_bool("zero_boundary", zero_boundary)
        self.volume_preserving = require_bool("volume_preserving", volume_preserving)
        require_choice("backend", backend, ("auto", "torch", "triton", "inductor"))
        self.backend: Backend = backend
        self.ndim = len(self.tess)
        if volume_preserving and self.ndim == 1:
            raise ValueError("volume_preserving must be False for series: only the identity preserves lengths")
        basis = make_basis(self.tess, zero_boundary, volume_preserving)
        self.dim = basis.entries.shape[1]
        if self.dim == 0:
            raise ValueError(f"tess must leave at least one parameter, got {tess!r}: use at least 2 cells, or (2, 1)")
        self.names = tuple(f"theta{k}" for k in range(self.dim))
        self.register_buffer("basis", torch.from_numpy(basis.entries))
        self._to_nodes = torch.from_numpy(basis.nodal @ basis.entries.T)  # nodal = to_nodes @ entries
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
            return velocity_on_line(nodes.expand(*lead, -1), points[..., 0])[..., None]
        return velocity_in_plane(nodes.unflatten(-1, (-1, 2)).expand(*lead, -1, -1), points, *self.tess)

    def flow(self, theta: Tensor, points: Tensor, t: float | Tensor = 1.0) -> Tensor:
        """The positions of points at a time t: 0 is the identity, 1 the map itself, negative times run backwards.

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
        time: Any = t[..., None].to(theta) if isinstance(t, Tensor) else t
        # The axes of a numpy array would be taken for those of theta.
        if not isinstance(time, (int, float, Tensor)) and getattr(time, "ndim", 1) != 0:
            raise TypeError(f"t must be a number or a tensor of them, got {t!r}")
        # The velocity v does not depend on time: the flow of v for a time t is that of t v for unit time.
        return cast(Tensor, self.apply(theta * time, points))

    def nodes(self, theta: Tensor) -> Tensor:
        """The velocities at the vertices of the tessellation, (..., K, ndim), in the coordinates of the interface."""
        theta = self._checked_theta(theta)
        return node_velocities(theta, self._nodal).unflatten(-1, (-1, self.ndim))

    def extra_repr(self) -> str:
        """The settings, for printing."""
        defaults = {"zero_boundary": True, "volume_preserving": False, "backend": "auto"}
        changed = {name: getattr(self, name) for name, value in defaults.items() if getattr(self, name) != value}
        settings = {"tess": self.tess[0] if self.ndim == 1 else self.tess} | changed
        return ", ".join(f"{name}={value}" for name, value in settings.items())

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        if theta.dtype != points.dtype:
            theta = theta.to(torch.promote_types(theta.dtype, points.dtype))
            points = points.to(theta.dtype)
        backend = self._choose_backend(points)
        theta, points = broadcast(theta, points)
        if self.ndim == 1:
            return flow_line(theta, self._nodal, points, self.zero_boundary, backend)
        return flow_plane(theta, self._nodal, points, (self.tess[0], self.tess[1]), self.zero_boundary, backend)

    def _choose_backend(self, points: Tensor) -> str:
        backend, usable = self.backend, kernels_available(points.device)
        if backend == "auto":
            # In the plane the kernel adds up gradients in no fixed order.
            unordered = self.ndim == 2 and torch.are_deterministic_algorithms_enabled()
            backend = "triton" if points.is_cuda and usable and not unordered else "torch"
        elif (backend == "triton" and not usable) or (backend == "inductor" and points.device.type != "cpu"):
            needs = "CUDA and the triton package" if backend == "triton" else "a CPU"
            raise ValueError(f'backend="{backend}" needs {needs}, got tensors on {points.device}: use backend="auto"')
        return "torch" if backend == "triton" and points.dtype != torch.float32 else backend  # kernels have no float64

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        return self._map(-theta, points, aspect)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CPAB:
        # The basis follows the model's device and never its precision: rounding B would change every warp. On a device
        # without float64 it is in float32.
        probe = fn(torch.empty(0, dtype=torch.float32, device=self.basis.device))
        double = torch.float32 if probe.device.type == "mps" else torch.float64
        for name in ("basis", "_nodal"):
            old = getattr(self, name)
            if old.device.type == "meta":
                self._buffers[name] = torch.empty_like(old, dtype=double, device=probe.device)
            else:
                self._buffers[name] = old.to(probe.device, double)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # The basis of the checkpoint defines the meaning of its theta.
        basis = self.basis.detach().double().cpu()
        self._nodal = (2 * (self._to_nodes @ basis)).to(self._nodal)


def _require_tess(tess: Any) -> tuple[int, ...]:
    if isinstance(tess, (list, tuple)):
        if len(tess) not in (1, 2):
            raise ValueError(f"tess must be a whole number or hold 1 or 2 of them, (x, y), got {tess!r}")
        return tuple(require_positive_int(f"tess[{axis}]", cells) for axis, cells in enumerate(tess))
    return (require_positive_int("tess", tess),)


@final
class SmoothPrior(nn.Module):
    """A normal prior over theta whose fields vary slowly: neighbouring cells have similar velocities.

    The entries of the affine maps A_c get the covariance scale^2 exp(-d^2 / (2 length^2)) between the same entry of two
    cells whose centres are d apart on the unit domain, and 0 between different entries; theta gets B' of it B.

    Args:
        transform: the family.
        scale: standard deviation of an entry of A_c, above 0.
        length: the distance on the unit domain over which cells are correlated, above 0. Short lengths give each
            parameter the same variance, long ones keep only fields that are nearly affine over the whole domain.

    Example:
        >>> prior = SmoothPrior(CPAB(tess=10), scale=0.5, length=0.2)
        >>> prior.sample(3, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 9])
    """

    covariance: Tensor
    factor: Tensor

    def __init__(self, transform: CPAB, scale: float = 0.5, length: float = 0.2) -> None:
        super().__init__()
        if not isinstance(transform, CPAB):
            raise TypeError(f"transform must be a CPAB, got {type(transform).__name__}")
        self.scale = require_positive_number("scale", scale)
        self.length = require_positive_number("length", length)
        settings = transform.tess, transform.zero_boundary, transform.volume_preserving
        centres = torch.from_numpy(make_basis(*settings).centres)
        basis = transform.basis.detach().double().cpu()
        square = (centres[:, None] - centres).square().sum(-1)
        cells = torch.exp(-square / (2 * self.length**2))
        entries = basis.shape[0] // len(centres)
        stacked = basis.view(-1, entries, transform.dim)
        mixed = torch.einsum("ced,cb,bef->df", stacked, cells, stacked)
        covariance = self.scale**2 * (mixed + mixed.mT) / 2
        # Kept in float64, whatever the module is cast to: directions that the prior all but excludes have variances far
        # below float32's rounding of the others.
        self._values, self._vectors = values, vectors = torch.linalg.eigh(covariance)
        self.register_buffer("covariance", covariance.float())
        # The symmetric root: unlike a Cholesky factor it exists where the covariance is singular.
        self.register_buffer("factor", ((vectors * values.clamp(min=0).sqrt()) @ vectors.mT).float())

    def sample(
        self, samples: int = 1, *, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Sample thetas.

        Args:
            samples: how many.
            generator: the source of randomness; torch's global one when not given.
            noise: standard normal samples (..., D) to use instead, with `samples` then unused.

        Returns:
            (samples, D), or the shape of `noise`.
        """
        if noise is None:
            shape = (require_positive_int("samples", samples), len(self.factor))
            noise = torch.randn(shape, generator=generator, device=self.factor.device)
        self._require_width("noise", noise)
        return (noise[..., None, :].float() * self.factor.float()).sum(-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log density up to a constant, (..., D) -> (...): minus half a squared length.

        Directions with less than 1e-12 of the largest variance, which occur for long lengths, are ignored.
        """
        self._require_width("theta", theta)
        values, vectors = self._values.to(theta.device), self._vectors.to(theta.device)
        kept = values > values.max() * 1e-12
        rotated = (theta.double()[..., None] * vectors).sum(-2)
        return -(rotated.square() * torch.where(kept, 1 / values.clamp(min=1e-30), 0.0)).sum(-1).to(theta.dtype) / 2

    def _require_width(self, name: str, tensor: Tensor) -> None:
        require_floating(name, tensor)
        # A width of 1 would broadcast.
        if tensor.dim() < 1 or tensor.shape[-1] != len(self.factor):
            raise ValueError(f"{name} must have shape (..., {len(self.factor)}), got {tuple(tensor.shape)}")

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"scale={self.scale}, length={self.length}"
