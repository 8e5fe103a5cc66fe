"""The composition of families as one family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from pstn.transforms.base import Transform

__all__ = ["Compose"]


@final
class Compose(Transform):
    """Warps one after another, e.g. similarity then CPAB, with theta concatenated in that order.

    `Compose(a, b)` with theta (theta_a, theta_b) warps an input by a and then the result by b, but interpolates the
    input only once, so that no detail is lost in between.

    Convention:
        A grid maps output to input coordinates, so points are mapped by the last family first:
        Compose(a, b) maps p to a(b(p)). Coordinates are in [-1, 1] with `align_corners=False`, x first.

    Args:
        *transforms: two or more families with the same number of axes, as arguments or as one list.

    Shape:
        theta (..., D) with D the sum of the families' own.

    Example:
        >>> from pstn.transforms.cpab import CPAB
        >>> from pstn.transforms.affine import Similarity
        >>> c = Compose(Similarity(), CPAB(tess=(3, 3)))
        >>> c.dim, c.names[:5]
        (38, ('0.angle', '0.scale', '0.tx', '0.ty', '1.theta0'))
    """

    def __init__(self, *transforms: Transform | Sequence[Transform]) -> None:
        super().__init__()
        listed = transforms[0] if len(transforms) == 1 and isinstance(transforms[0], (list, tuple)) else transforms
        for index, transform in enumerate(listed):
            if not isinstance(transform, Transform):
                raise TypeError(f"transforms[{index}] must be a Transform, got {type(transform).__name__}")
        families = cast(Sequence[Transform], listed)
        axes = [family.ndim for family in families]
        if len(axes) < 2 or len(set(axes)) > 1:
            raise ValueError(f"transforms must hold at least 2 families with the same ndim, got {axes}")
        self.transforms = nn.ModuleList(families)
        self.ndim = axes[0]
        self.dim = sum(family.dim for family in families)
        self.names = tuple(f"{i}.{name}" for i, family in enumerate(families) for name in family.names)

    @property
    def circular(self) -> tuple[bool, ...]:
        """Which parameters are angles, (D,)."""
        return tuple(angle for part in self._parts() for angle in part.circular)

    def initial(self) -> Tensor:
        """The initial theta of every family, (D,)."""
        return torch.cat([part.initial() for part in self._parts()])

    def inverse(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """Not in the family: the inverse composes the inverses in the opposite order.

        Raises:
            ValueError: always; `apply_inverse` inverts the map on points, `reversed` gives the family of the inverses.
        """
        raise ValueError("Compose has no inverse in the same order: use apply_inverse, or reversed and inverse_theta")

    def reversed(self) -> Compose:
        """The family of the inverses: the same families in the opposite order; see `inverse_theta`."""
        return Compose(*self._parts()[::-1])

    def inverse_theta(self, theta: Tensor, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The theta under which `reversed()` is the inverse of this map, (..., D)."""
        theta = self._checked_theta(theta)
        pairs = zip(self._parts(), self._split(theta), strict=True)
        return torch.cat([part.inverse(own, aspect=aspect) for part, own in pairs][::-1], dim=-1)

    def _parts(self) -> list[Transform]:
        return [cast(Transform, part) for part in self.transforms]

    def _split(self, theta: Tensor) -> tuple[Tensor, ...]:
        return theta.split([part.dim for part in self._parts()], dim=-1)

    def _map(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        for part, own in zip(self._parts()[::-1], self._split(theta)[::-1], strict=True):
            points = part._map(own, points, aspect)
        return points

    def _unmap(self, theta: Tensor, points: Tensor, aspect: Sequence[float]) -> Tensor:
        for part, own in zip(self._parts(), self._split(theta), strict=True):
            points = part._unmap(own, points, aspect)
        return points
