"""The flow of a piecewise-affine velocity in the plane: exact in every region, from one region to the next.

In a region the velocity is A p + c, and the flow is a matrix exponential. With w = A v, tr and det of A,

    p(t) = p + (t - det B(t)) v + b(t) w,    exp(t A) = (1 - det b(t)) I + (t + tr b(t) - det B(t)) A,    B' = b,

where b and B are entire functions of t, tr and det, summed as Taylor series to the last digit. A particle
advances to the edge of its region or by a step with |A| t <= 1/2, whichever comes first. Within such a step each
edge function turns at most once, which tells whether the particle was outside in between.

The velocity is continuous across an edge, so an error in the time of crossing enters the end point as its square, and
the derivatives of those times not at all: the Jacobian is the product of the exponentials, and the gradient with
respect to the velocities at the nodes is the integral of the adjoint times the edge functions, by Gauss-Legendre
quadrature on each piece. The backward pass follows the particles again and keeps nothing per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pstn.transforms.cpab.plane import Step, Tables, Visit, derive, take_step
from pstn.transforms.cpab.regions import Regions, locate, regions

__all__ = ["MAX_PIECES", "flow", "pull_back", "velocity2d"]

# A particle under a wild theta may circle for ever; after so many pieces it stays where it is.
MAX_PIECES = 500


def velocity2d(velocities: Tensor, points: Tensor, nx: int, ny: int) -> Tensor:
    """The velocity at points, (..., K, 2) at the nodes and (..., N, 2) -> (..., N, 2)."""
    region = regions(nx, ny, False, points.dtype, points.device)
    where = locate(points[..., 0].detach(), points[..., 1].detach(), nx, ny)
    functions = region.functions[where]  # (..., N, 3, 3)
    shares = (functions[..., :2] * points[..., None, :]).sum(-1) + functions[..., 2]
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    nodes = region.nodes[where].flatten(-2)[..., None].expand(*where.shape[:-1], -1, 2)
    return (padded.gather(-2, nodes).unflatten(-2, (-1, 3)) * shares[..., None]).sum(-2)


def flow(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, step: Step = take_step
) -> tuple[Tensor, Tensor]:
    """Move points for unit time.

    Args:
        velocities: (S, K, 2), at the nodes.
        points: (S, N, 2), or (1, N, 2) for all thetas.
        nx: cells along x.
        ny: cells along y.
        closed: whether the velocity normal to the boundary is zero.
        jacobian: whether to return the Jacobian too.
        step: what takes a step; another that does what `take_step` does may be faster.

    Returns:
        (S, N, 2), and d moved / d points (S, N, 4), row by row; empty if not asked for.
    """
    lead = (len(velocities), points.shape[1])
    out = points.new_empty(2, math.prod(lead))
    if jacobian:
        matrix = out.new_tensor([[1.0, 0.0], [0.0, 1.0]])[..., None].repeat(1, 1, out.shape[1])
    else:
        matrix = out.new_empty(0, out.shape[1])
    end = torch.empty_like(matrix)
    _walk(velocities, points, nx, ny, closed, "grow" if jacobian else "move", matrix, step, ends=(out, end))
    moved = out.t().contiguous().view(*lead, 2)
    if closed:  # a wall: rounding is not to move a particle off it or through it
        moved = torch.where(points.abs() >= 1, points, moved.clamp(-1, 1))
    matrix = end.flatten(0, 1).t().contiguous().view(*lead, 4) if jacobian else points.new_empty(0)
    return moved, matrix


def pull_back(
    adjoint: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, step: Step = take_step
) -> Tensor:
    """The gradient with respect to the nodes' velocities, (S, K, 2).

    Args:
        adjoint: (S, N, 2), the gradient with respect to the points that the particles start from.
        velocities: as for `flow`.
        points: as for `flow`.
        nx: as for `flow`.
        ny: as for `flow`.
        closed: as for `flow`.
        step: as for `flow`.
    """
    nodes = velocities.shape[1] + 1
    total = velocities.new_zeros(2, velocities.shape[0] * nodes)
    owners = regions(nx, ny, closed, points.dtype, points.device).nodes.t().contiguous()

    def collect(row: Tensor, region: Tensor, shares: Tensor) -> None:
        index = (owners.index_select(1, region) + row * nodes).view(-1)
        for axis in (0, 1):
            total[axis].index_add_(0, index, shares[axis].view(-1))

    adjoint = adjoint.reshape(-1, 2).t().contiguous()
    _walk(velocities, points, nx, ny, closed, "adjoin", adjoint, step, collect=collect)
    return total.t().reshape(-1, nodes, 2)[:, :-1]


def _walk(
    velocities: Tensor,
    points: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    visit: Visit,
    carried: Tensor,
    step: Step,
    *,
    ends: tuple[Tensor, ...] = (),
    collect: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> None:
    """Take every particle from its point through its pieces.

    The place where a particle ends goes to the first tensor of `ends`, if there is one, and what it carries then,
    (..., m), to the second; `collect` gets which thetas and regions gradients for nodes belong to, and these.
    """
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    functions = geometry.functions.permute(2, 1, 0).reshape(9, -1)
    tables = Tables(_fields(velocities, geometry), functions, geometry.across.t().contiguous())
    thetas, each = len(velocities), points.shape[1]
    place = points.expand(thetas, -1, -1).reshape(-1, 2).t().contiguous()
    # Points that all thetas share are looked up once.
    region = locate(points[..., 0], points[..., 1], nx, ny).expand(thetas, -1).reshape(-1)
    who = torch.arange(thetas * each, device=points.device)
    row = who // max(1, each)
    left = torch.ones_like(place[0])
    for _ in range(MAX_PIECES):
        before = region
        region, left, place, carried, shares = step(tables, visit, row, region, left, place, carried)
        if collect is not None and shares is not None:
            collect(row, before, shares)
        going = (left > 0).nonzero()[:, 0]
        # Without time left a particle stays: to take a few along is cheaper than to copy all the others.
        if len(going) < 0.9 * len(who):
            for target, part in zip(ends, (place, carried), strict=False):
                target.index_copy_(-1, who, part)  # those that go on are written again
            state = (who, row, region, left, place, carried)
            who, row, region, left, place, carried = (part.index_select(-1, going) for part in state)
        if not len(going):
            break
    for target, part in zip(ends, (place, carried), strict=False):
        target.index_copy_(-1, who, part)


def _fields(velocities: Tensor, geometry: Regions) -> Tensor:
    """The columns of `_Field` for every theta and region, (9, S * R)."""
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    corners = padded[:, geometry.nodes]  # (S, R, 3, 2)
    # Products and sums, not a matmul: TF32 and autocast would round velocities to a few bits.
    affine = (corners[..., :, None] * geometry.functions[..., None, :]).sum(-3)  # (S, R, 2, 3)
    (a, b, e), (c, d, f) = (affine[..., axis, :].unbind(-1) for axis in (0, 1))
    columns = (a, c, b, d, e, f, *derive(a, b, c, d))
    return torch.stack([column.reshape(-1) for column in columns])
