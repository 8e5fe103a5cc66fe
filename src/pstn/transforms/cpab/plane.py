"""The flow in the plane: exact in every region, from one region to the next.

The triangles of the tessellation cover [-1, 1]^2. Outside, the velocity is that of the nearest point of the square,
which is affine on a half-strip beyond each boundary edge and constant beyond each corner: with these,
4 nx ny + 2 (nx + ny) + 4 regions cover the plane. Each has three edge functions, affine in the position, that are
positive inside; the velocity is their combination of the velocities at three nodes:

    triangle    the barycentric coordinates, and its corners
    half-strip  the weights of the edge's two ends, and the distance from the edge, whose node has velocity 0
    corner      the distances along x and along y, whose nodes have velocity 0, and the constant 1

In a region the velocity is A p + c, and the flow is a matrix exponential. With w = A v, tr and det of A,

    p(t) = p + (t - det B(t)) v + b(t) w,    exp(t A) = (1 - det b(t)) I + (t + tr b(t) - det B(t)) A,    B' = b,

where b and B are entire functions of t, tr and det, summed as Taylor series to the last digit. A particle
advances to the edge of its region or by a step with |A| t <= 1/2, whichever comes first. Within such a step each
edge function has at most one extremum, which shows whether the particle was outside in between.

The velocity is continuous across an edge, so an error in the time of crossing enters the end point as its square, and
the derivatives of those times do not enter at all: the Jacobian is the product of the exponentials, and the gradient
with respect to the velocities at the nodes is the integral of the adjoint times the edge functions, by Gauss-Legendre
quadrature on each step. The backward pass integrates the particles again and stores nothing per step.

Tensors of particles have them along the last axis: x and y, or the three edges, are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pstn.transforms.cpab.autograd import Operation
from pstn.transforms.cpab.basis import Array, Index, node_velocities, triangles

# Under an extreme theta a particle may circle forever; after so many steps it stops.
MAX_STEPS = 500
# Derivatives under an extreme theta are limited to this, beyond any use, so that they stay finite in float32.
HUGE = 1e15
# Nodes and weights of Gauss-Legendre quadrature on [0, 1].
QUADRATURE = ((0.5 - math.sqrt(0.15), 5 / 18), (0.5, 8 / 18), (0.5 + math.sqrt(0.15), 5 / 18))


def flow_plane(
    theta: Tensor, nodal: Tensor, points: Tensor, tess: tuple[int, int], closed: bool, backend: str
) -> Tensor:
    """Move points in the plane for unit time.

    Args:
        theta: (..., D).
        nodal: (K * 2, D), velocities at the nodes per unit of theta, in float64.
        points: (..., N, 2), in theta's dtype and with the same leading axes, or (N, 2) shared by all thetas.
        tess: cells along x and y.
        closed: whether the velocity normal to the boundary is zero.
        backend: "torch", "triton" or "inductor".

    Returns:
        (..., N, 2).
    """
    return _operation(theta.contiguous(), nodal, points.contiguous(), *tess, closed, torch.is_grad_enabled(), backend)


def velocity_in_plane(velocities: Tensor, points: Tensor, nx: int, ny: int) -> Tensor:
    """The velocity at points.

    Args:
        velocities: (..., K, 2), at the nodes.
        points: (..., N, 2).
        nx: cells along x.
        ny: cells along y.

    Returns:
        (..., N, 2).
    """
    geometry = regions(nx, ny, False, points.dtype, points.device)
    region = locate(points[..., 0].detach(), points[..., 1].detach(), nx, ny)
    functions = geometry.functions[region]  # (..., N, 3, 3)
    weights = (functions[..., :2] * points[..., None, :]).sum(-1) + functions[..., 2]
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    nodes = geometry.nodes[region].flatten(-2)[..., None].expand(*region.shape[:-1], -1, 2)
    return (padded.gather(-2, nodes).unflatten(-2, (-1, 3)) * weights[..., None]).sum(-2)


# ------------------------------------------------------------------------------------------------------ regions


class Regions(NamedTuple):
    """The geometry of R regions, which does not depend on theta."""

    nodes: Tensor  # (R, 3) node of each edge function; the last one, after the tessellation's, has velocity 0
    functions: Tensor  # (R, 3, 3): (d/dx, d/dy, constant)
    across: Tensor  # (R, 3) the region where an edge function is negative, or -1 at a closed boundary


@lru_cache(maxsize=64)
def regions(nx: int, ny: int, closed: bool, dtype: torch.dtype, device: torch.device) -> Regions:
    """The regions of an nx by ny tessellation; with `closed`, no particle crosses the boundary of the square."""
    with torch.inference_mode(False):  # cached, and used in training too
        nodes, functions, centres = (torch.from_numpy(table) for table in _build(nx, ny))
        # The region beyond an edge is that of a point just beyond it.
        slopes = functions[..., :2]
        values = (slopes * centres[:, None]).sum(-1) + functions[..., 2]
        beyond = centres[:, None] - slopes * ((values + 1e-6) / slopes.square().sum(-1))[..., None]
        across = locate(beyond[..., 0].nan_to_num(), beyond[..., 1].nan_to_num(), nx, ny)
        across[-4:, 2] = -1  # a corner's third function is constant
        inside = torch.arange(len(nodes)) < 4 * nx * ny
        if closed:
            across[inside[across] != inside[:, None]] = -1
        return Regions(nodes.to(device), functions.to(device, dtype), across.to(device))


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


def _build(nx: int, ny: int) -> tuple[Index, Array, Array]:
    """The first two tables of `Regions`, and a point in each region, (R, 2)."""
    position, cells = triangles(nx, ny)
    position = 2 * position - 1
    # The two nodes of every boundary edge, and the direction outward: left, right, top (small y), bottom.
    rows, columns = np.arange(ny) * (nx + 1), np.arange(nx)
    left, top = np.stack([rows, rows + nx + 1], 1), np.stack([columns, columns + 1], 1)
    strips = np.concatenate([left, left + nx, top, top + ny * (nx + 1)])
    outward = np.repeat(np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]]), [ny, ny, nx, nx], axis=0)
    corners = np.array([0, nx, ny * (nx + 1), ny * (nx + 1) + nx])

    inverse: Array = np.linalg.inv(np.concatenate([position[cells], np.ones((len(cells), 3, 1))], axis=2))
    functions = [
        np.round(inverse.transpose(0, 2, 1), 9),
        np.stack([_strip(position[a], position[b], out) for (a, b), out in zip(strips, outward, strict=True)]),
        np.array([[[sx, 0, -1], [0, sy, -1], [0, 0, 1]] for sy in (-1.0, 1.0) for sx in (-1.0, 1.0)]),
    ]
    zero = len(position)  # the node with velocity 0
    nodes = [cells, np.insert(strips, 2, zero, axis=1), np.insert(corners[:, None], [0, 0], zero, axis=1)]
    centres = [position[cells].mean(1), position[strips].mean(1) + outward, 2 * position[corners]]
    return np.concatenate(nodes), np.concatenate(functions), np.concatenate(centres)


def _strip(a: Array, b: Array, outward: Array) -> Array:
    """Weights of the ends of an edge, and distance from it, as functions (3, 3)."""
    along = (b - a) / np.sum((b - a) ** 2)
    weight = np.array([*along, -along @ a])
    return np.stack([np.array([0.0, 0.0, 1.0]) - weight, weight, np.array([*outward, -outward @ a])])


# -------------------------------------------------------------------------------------------------- integration

# What is integrated along with the position: nothing, the Jacobian so far, or the adjoint.
Carried = Literal["nothing", "jacobian", "adjoint"]
# Region, remaining time, position and what is carried after a step; with an adjoint, the node gradients (2, 3, m).
StepResult = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


class Tables(NamedTuple):
    """What a step looks up."""

    fields: Tensor  # (9, S * R) the columns of `Field`, for every theta and region
    functions: Tensor  # (9, R) the edge functions: three slopes along x, three along y, three constants
    across: Tensor  # (3, R) the region beyond each edge, or -1


Step = Callable[..., StepResult]


def _integrate(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, kind: Carried, carried: Tensor, step: Step, *,
    ends: tuple[Tensor, ...] = (), collect: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> None:  # fmt: skip
    """Integrate every particle from its point, step by step.

    Args:
        velocities: (S, K, 2), at the nodes.
        points: (S, N, 2), or (1, N, 2) shared by all thetas.
        nx: cells along x.
        ny: cells along y.
        closed: whether the velocity normal to the boundary is zero.
        kind: what is integrated along with the position.
        carried: (..., S * N), its value at the start.
        step: what takes a step; one that does what `take_step` does may be faster.
        ends: receive the final positions (2, S * N), and the final value of what is carried.
        collect: called with the thetas, the regions and the gradients of the nodes of each step.
    """
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    functions = geometry.functions.permute(2, 1, 0).reshape(9, -1)
    tables = Tables(_fields(velocities, geometry), functions, geometry.across.t().contiguous())
    thetas, each = len(velocities), points.shape[1]
    position = points.expand(thetas, -1, -1).reshape(-1, 2).t().contiguous()
    # Shared points are located once.
    region = locate(points[..., 0], points[..., 1], nx, ny).expand(thetas, -1).reshape(-1)
    particle = torch.arange(thetas * each, device=points.device)
    row = particle // max(1, each)
    remaining = torch.ones_like(position[0])
    for _ in range(MAX_STEPS):
        before = region
        region, remaining, position, carried, grads = step(tables, kind, row, region, remaining, position, carried)
        if collect is not None and grads is not None:
            collect(row, before, grads)
        moving = (remaining > 0).nonzero()[:, 0]
        # Without remaining time a particle does not move: to keep a few of those is cheaper than to copy the others.
        if len(moving) < 0.9 * len(particle):
            for target, part in zip(ends, (position, carried), strict=False):
                target.index_copy_(-1, particle, part)  # the moving ones are overwritten later
            state = (particle, row, region, remaining, position, carried)
            particle, row, region, remaining, position, carried = (part.index_select(-1, moving) for part in state)
        if not len(moving):
            break
    for target, part in zip(ends, (position, carried), strict=False):
        target.index_copy_(-1, particle, part)


def _fields(velocities: Tensor, geometry: Regions) -> Tensor:
    """The columns of `Field` for every theta and region, (9, S * R)."""
    padded = torch.nn.functional.pad(velocities, (0, 0, 0, 1))
    corners = padded[:, geometry.nodes]  # (S, R, 3, 2)
    # Products and sums, not a matmul: TF32 and autocast would round velocities to a few bits.
    affine = (corners[..., :, None] * geometry.functions[..., None, :]).sum(-3)  # (S, R, 2, 3)
    (a, b, e), (c, d, f) = (affine[..., axis, :].unbind(-1) for axis in (0, 1))
    columns = (a, c, b, d, e, f, *derive(a, b, c, d))
    return torch.stack([column.reshape(-1) for column in columns])


class Field(NamedTuple):
    """Affine velocities, one per particle: v = first x + second y + constant, so that A = [first | second]."""

    first: Tensor  # (2, m)
    second: Tensor  # (2, m)
    constant: Tensor  # (2, m)
    trace: Tensor  # (m,)
    det: Tensor  # (m,)
    longest: Tensor  # (m,) the longest step

    def at(self, position: Tensor) -> Tensor:
        """The velocity at a position."""
        return torch.addcmul(torch.addcmul(self.constant, self.first, position[0]), self.second, position[1])

    def times(self, vector: Tensor) -> Tensor:
        """A applied to a vector."""
        return torch.addcmul(self.first * vector[0], self.second, vector[1])

    def after(self, position: Tensor, time: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The position after a time in the region, and b and B then."""
        low, high = series(time, self.trace, self.det)
        return self.move(position, self.at(position), time, low, high), (low, high)

    def move(self, position: Tensor, velocity: Tensor, time: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The position after a time, given the velocity at the start and the series."""
        drift = torch.addcmul(time, self.det, high, value=-1)
        return torch.addcmul(torch.addcmul(position, drift, velocity), low, self.times(velocity))

    def select(self, index: Tensor) -> Field:
        """The velocities of some particles."""
        return Field(*(column.index_select(-1, index) for column in self))


def derive(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Trace and determinant of A = [[a, b], [c, d]], and the longest step for the series, |A| t = 1/2."""
    norm = torch.maximum(a.abs() + b.abs(), c.abs() + d.abs())
    return a + d, a * d - b * c, 0.5 / norm.clamp(min=1e-6)


def edge_tolerance(dtype: torch.dtype) -> float:
    """An edge function below this means that a particle is outside."""
    return -16 * torch.finfo(dtype).eps


def series(time: Tensor, trace: Tensor, det: Tensor) -> tuple[Tensor, Tensor]:
    """b(t) and B(t) of the module's docstring, for |A| t up to 1/2."""
    before, square = trace * time, time * time
    low, high = (before * (1 / 6)).add_(0.5), (before * (1 / 24)).add_(1 / 6)
    first, second = before, det * square
    term = torch.addcmul(-second, first, first)
    low.add_(term, alpha=1 / 24)
    for k in range(3, 13 if time.dtype == torch.float64 else 7):  # of high one term fewer matters
        high.add_(term, alpha=1 / math.factorial(k + 2))
        before, term = term, torch.addcmul(first * term, second, before, value=-1)
        low.add_(term, alpha=1 / math.factorial(k + 2))
    return low.mul_(square), high.mul_(square).mul_(time)


def cubic_minimum(gain: Tensor, fall: Tensor, rise: Tensor) -> Tensor:
    """The minimum on [0, 1] of a cubic that changes by `gain`, with slopes `fall` < 0 at 0 and `rise` > 0 at 1.

    A parabola through the slopes alone would be too inaccurate: an edge crossed briefly would be missed.
    """
    half = 3 * gain - 2 * fall - rise
    root = (half * half - 3 * fall * (fall + rise - 2 * gain)).clamp(min=0).sqrt()
    return -fall / (half + root)


def _value(functions: Tensor, position: Tensor) -> Tensor:
    """The edge functions at a position, (3, m)."""
    return torch.addcmul(torch.addcmul(functions[6:], functions[:3], position[0]), functions[3:6], position[1])


def _slope(functions: Tensor, direction: Tensor) -> Tensor:
    """The derivatives of the edge functions along a direction, (3, m)."""
    return torch.addcmul(functions[:3] * direction[0], functions[3:6], direction[1])


def take_step(
    tables: Tables, kind: Carried, row: Tensor, region: Tensor, remaining: Tensor, position: Tensor, carried: Tensor
) -> StepResult:
    """Take each particle to the edge of its region, or by the longest step.

    Args:
        tables: what to look up.
        kind: what is carried.
        row: (m,), which theta.
        region: (m,).
        remaining: (m,), the remaining time.
        position: (2, m).
        carried: (2, 2, m), the Jacobian; (2, m), the adjoint; or unused.
    """
    columns = tables.fields.index_select(1, torch.add(region, row, alpha=tables.functions.shape[1]))
    field = Field(columns[:2], columns[2:4], columns[4:6], *columns[6:].unbind(0))
    functions, beyond = tables.functions.index_select(1, region), tables.across.index_select(1, region)
    limit = torch.minimum(remaining, field.longest)
    time, after, end, sums = _advance(functions, beyond, field, position, limit, region)
    grads = None
    if kind == "jacobian":
        carried = update_jacobian(field, carried, time, *sums)
    elif kind == "adjoint":
        grads, carried = update_adjoint(functions, field, position, carried, time, *sums)
    return after, remaining - time, end, carried, grads


def _advance(
    functions: Tensor, beyond: Tensor, field: Field, position: Tensor, limit: Tensor, region: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Advance to the first edge, or by `limit`: the time, the region and position then, and the series."""
    low, high = series(limit, field.trace, field.det)
    velocity = field.at(position)
    end = field.move(position, velocity, limit, low, high)
    values = _value(functions, end)
    open_ = beyond >= 0
    out = (values < edge_tolerance(position.dtype)) & open_
    fall, rise = _slope(functions, velocity), _slope(functions, field.at(end))
    # Outwards at the start and inwards at the end: it may have been outside in between.
    turning = (fall < 0) & (rise > 0) & ~out & open_
    some = (out | turning).any(0).nonzero()[:, 0]
    if not len(some):
        return limit, region, end, (low, high)
    edges = _Edges(*(part.index_select(1, some) for part in (functions, out, turning, fall, rise, values)))
    field, position, latest = field.select(some), position.index_select(1, some), limit.index_select(0, some)
    (time, edge, there, sums), leaves = _find_exit(edges, field, position, latest)
    following = beyond.index_select(1, some).gather(0, edge[None])[0]
    following = torch.where(leaves, following, region.index_select(0, some))
    new = (time, following, there, *sums)
    old = (limit, region, end, low, high)
    time, region, end, low, high = (o.index_copy(-1, some, n) for o, n in zip(old, new, strict=True))
    return time, region, end, (low, high)


class _Edges(NamedTuple):
    """The edge functions of particles that may leave, (3, m) each but for the functions themselves, (9, m)."""

    functions: Tensor
    out: Tensor  # below 0 at the end of the step
    turning: Tensor  # may have been below 0 in between
    fall: Tensor  # slope at the start
    rise: Tensor  # slope at the end
    values: Tensor  # value at the end


# When and at which edge particles stop, the position then, and the series.
Stop = tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]


def _find_exit(edges: _Edges, field: Field, position: Tensor, limit: Tensor) -> tuple[Stop, Tensor]:
    """Where particles stop, and whether they leave; the time is `limit` for those that do not."""
    functions, out, turning, fall, rise, values = edges
    span = limit.expand(3, -1)
    edge, who = turning.nonzero(as_tuple=True)
    if len(who):
        own, latest, start = field.select(who), limit.index_select(0, who), position.index_select(1, who)
        gain = values[edge, who] - _at_edge(functions, edge, who, start)
        lowest = latest * cubic_minimum(gain, latest * fall[edge, who], latest * rise[edge, who])
        deepest = _at_edge(functions, edge, who, own.after(start, lowest)[0])
        span, values = span.contiguous().index_put((edge, who), lowest), values.index_put((edge, who), deepest)
        out = out.index_put((edge, who), deepest < edge_tolerance(position.dtype))
    guess, edge = quadratic_root(_value(functions, position).clamp_(min=0), fall, values, span, out).min(0)
    leaves = out.any(0)
    time = _refine(functions, edge, field, position, torch.minimum(guess, limit))
    time = torch.where(leaves, torch.minimum(time, limit), limit)
    stop = (time, edge, *field.after(position, time))
    return _stop_earlier(functions, out, field, position, stop), leaves


def _stop_earlier(functions: Tensor, out: Tensor, field: Field, position: Tensor, stop: Stop) -> Stop:
    """Stop particles at an edge that they have passed: near a corner the parabolas may indicate the wrong edge."""
    time, edge, there, sums = stop
    deepest, passed = _value(functions, there).masked_fill_(~out, 0).min(0)
    some = (deepest < edge_tolerance(position.dtype)).nonzero()[:, 0]
    if not len(some):
        return stop
    functions, field, position = functions.index_select(1, some), field.select(some), position.index_select(1, some)
    late, passed = time.index_select(0, some), passed.index_select(0, some)
    early = torch.minimum(_refine(functions, passed, field, position, late), late)
    end, new_sums = field.after(position, early)
    new, old = (early, passed, end, *new_sums), (time, edge, there, *sums)
    time, edge, there, low, high = (o.index_copy(-1, some, n) for o, n in zip(old, new, strict=True))
    return time, edge, there, (low, high)


def _at_edge(functions: Tensor, edge: Tensor, who: Tensor, position: Tensor) -> Tensor:
    """One edge function each of some particles, at a position (2, k) of theirs."""
    along_x, along_y, constant = functions.view(3, 3, -1)[:, edge, who].unbind(0)
    return torch.addcmul(torch.addcmul(constant, along_x, position[0]), along_y, position[1])


def quadratic_root(start: Tensor, fall: Tensor, end: Tensor, span: Tensor, out: Tensor) -> Tensor:
    """When the parabola with a value and slope at 0 and a negative value at `span` reaches 0; infinite if not `out`."""
    bend = (end - start - fall * span) / (span * span)
    root = (fall * fall - 4 * bend * start).clamp_(min=0).sqrt_()
    time = torch.where(fall > 0, (fall + root) / (-2 * bend), 2 * start / (root - fall))
    return torch.minimum(time.nan_to_num_(nan=0.0).clamp_(min=0), span).masked_fill_(~out, math.inf)


def _refine(functions: Tensor, edge: Tensor, field: Field, position: Tensor, guess: Tensor) -> Tensor:
    """One step of Halley's method towards the time at which an edge function, one each, is 0."""
    shape = functions.view(3, 3, -1).gather(1, edge.expand(3, 1, -1))[:, 0]
    position, _ = field.after(position, guess)
    velocity = field.at(position)
    acceleration = field.times(velocity)
    value = torch.addcmul(torch.addcmul(shape[2], shape[0], position[0]), shape[1], position[1])
    slope = torch.addcmul(shape[0] * velocity[0], shape[1], velocity[1])
    bend = torch.addcmul(shape[0] * acceleration[0], shape[1], acceleration[1])
    move = 2 * value * slope / (2 * slope * slope - value * bend)
    return (guess - move.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)).clamp(min=0)


def update_jacobian(field: Field, matrix: Tensor, time: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The Jacobian (2, 2, m) after a step: exp(t A) times the one before."""
    unit = torch.addcmul(torch.ones_like(low), field.det, low, value=-1)
    slope = torch.addcmul(torch.addcmul(time, field.trace, low), field.det, high, value=-1)
    product = torch.addcmul(field.first[:, None] * matrix[0], field.second[:, None], matrix[1])
    return torch.addcmul(unit * matrix, slope, product).clamp_(-HUGE, HUGE)


def update_adjoint(
    functions: Tensor, field: Field, position: Tensor, adjoint: Tensor, time: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of a step with respect to its three nodes, (2, 3, m), and the adjoint (2, m) after it.

    Both the position and the adjoint are combinations of two fixed vectors with coefficients that depend on time, so
    that six integrals of scalars suffice.
    """
    still, drifted, bent = (torch.zeros_like(adjoint) for _ in range(3))  # of the adjoint, and of its image below
    for node, weight in QUADRATURE:
        part = time * node
        part_low, part_high = series(part, field.trace, field.det)
        drift, coefficients = _coefficients(field, part, part_low, part_high)
        still.add_(coefficients, alpha=weight)
        drifted.addcmul_(coefficients, drift, value=weight)
        bent.addcmul_(coefficients, part_low, value=weight)
    # The adjugate of A, transposed, applied to the adjoint: the trace times it, less A transposed.
    image = field.trace * adjoint - torch.stack([(field.first * adjoint).sum(0), (field.second * adjoint).sum(0)])
    velocity = field.at(position)
    values = _value(functions, position), _slope(functions, velocity), _slope(functions, field.times(velocity))
    (a, b, c), integrals = (value * time for value in values), (still, drifted, bent)
    # (2, 1, m) each
    first, second, third = (torch.addcmul(unit * adjoint, turn, image)[:, None] for unit, turn in integrals)
    grads = (first * a).addcmul_(second, b).addcmul_(third, c)
    _, (unit, turn) = _coefficients(field, time, low, high)
    return grads, torch.addcmul(unit * adjoint, turn, image).clamp_(-HUGE, HUGE)


def _coefficients(field: Field, time: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficient of v in the position after a time, and (2, m), of the adjoint and its image in the adjoint."""
    drift = torch.addcmul(time, field.det, high, value=-1)
    decay = torch.exp(field.trace * -time)
    unit = torch.addcmul(torch.ones_like(low), field.det, low, value=-1)
    return drift, torch.stack([unit, torch.addcmul(drift, field.trace, low)]).mul_(decay)


# ---------------------------------------------------------------------------------------------------- operation


@cache
def _step(backend: str) -> Step:
    """`take_step`; with "inductor" compiled, on its first call for each kind of carried value and dtype."""
    if backend == "torch":
        return take_step
    from pstn.transforms.cpab import inductor

    # Without fullgraph=True, a function with too many compiled versions runs uncompiled instead of raising.
    compiled = torch.compile(inductor.take_step, dynamic=True)

    def step(tables: Tables, kind: Carried, row: Tensor, *state: Any) -> StepResult:
        # The last few particles are faster without the compiler, which would also compile again for 0 and for 1.
        return (compiled if row.shape[0] >= 64 else take_step)(tables, kind, row, *state)

    return step


def _run(
    theta: Tensor, nodal: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The moved points, their Jacobian (..., N, 4), if asked for, and the velocities at the nodes, (..., K)."""
    velocities = node_velocities(theta, nodal)
    flat, flat_points = _flat(velocities, points)
    shape = (*theta.shape[:-1], points.shape[-2])
    if way == "triton":
        from pstn.transforms.cpab.triton.plane import flow_forward

        moved, matrix = flow_forward(flat, flat_points, nx, ny, closed, jacobian)
        return moved.view(*shape, 2), matrix.view(*shape, 4) if jacobian else matrix, velocities
    out = points.new_empty(2, math.prod(shape))
    matrix = points.new_empty(0, out.shape[1])
    if jacobian:
        matrix = out.new_tensor([[1.0, 0.0], [0.0, 1.0]])[..., None].repeat(1, 1, out.shape[1])
    end = torch.empty_like(matrix)
    kind: Carried = "jacobian" if jacobian else "nothing"
    _integrate(flat, flat_points, nx, ny, closed, kind, matrix, _step(way), ends=(out, end))
    moved = out.t().contiguous().view(*shape, 2)
    if closed:  # rounding must not move a particle off the boundary or across it
        moved = torch.where(points.abs() >= 1, points, moved.clamp(-1, 1))
    return moved, end.flatten(0, 1).t().contiguous().view(*shape, 4) if jacobian else points.new_empty(0), velocities


def _pull(
    grad: Tensor, matrix: Tensor, velocities: Tensor, nodal: Tensor, points: Tensor,
    to_theta: bool, to_points: bool, nx: int, ny: int, closed: bool, jacobian: bool, way: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    none = grad.new_empty(0)
    if way == "triton" and to_theta:
        from pstn.transforms.cpab.triton.plane import flow_backward

        flat, flat_points = _flat(velocities, points)
        tensors = grad.reshape(len(flat), -1, 2).contiguous(), matrix.view(len(flat), -1, 4), flat, flat_points
        by_velocity, by_point = flow_backward(*tensors, nx, ny, closed, to_points)
    else:
        # The gradient with respect to the start of a particle, from the one with respect to its end and the Jacobian.
        by_point = torch.addcmul(matrix[..., :2] * grad[..., :1], matrix[..., 2:], grad[..., 1:])
        if not to_theta:
            return none, by_point if to_points else none
        by_velocity = _node_grads(by_point, *_flat(velocities, points), nx, ny, closed, _step(way))
    by_theta = node_velocities(by_velocity.reshape(velocities.shape), nodal.mT)
    return by_theta, by_point.view(grad.shape) if to_points else none


def _node_grads(
    adjoint: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, step: Step
) -> Tensor:
    """The gradient with respect to the velocities at the nodes, (S, K, 2), from that at the start (..., N, 2)."""
    nodes = velocities.shape[1] + 1
    total = velocities.new_zeros(2, len(velocities) * nodes)
    owners = regions(nx, ny, closed, points.dtype, points.device).nodes.t().contiguous()

    def collect(row: Tensor, region: Tensor, grads: Tensor) -> None:
        index = (owners.index_select(1, region) + row * nodes).view(-1)
        for axis in (0, 1):
            total[axis].index_add_(0, index, grads[axis].view(-1))

    adjoint = adjoint.reshape(-1, 2).t().contiguous()
    _integrate(velocities, points, nx, ny, closed, "adjoint", adjoint, step, collect=collect)
    return total.t().reshape(-1, nodes, 2)[:, :-1]


def _flat(velocities: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Velocities (S, K, 2) at the nodes, and points (S, N, 2), or (1, N, 2) shared by all thetas."""
    thetas, shared = math.prod(velocities.shape[:-1]), math.prod(points.shape[:-2])
    return velocities.view(thetas, velocities.shape[-1] // 2, 2), points.view(shared, *points.shape[-2:])


def _fake(
    theta: Tensor, nodal: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool, way: str
) -> tuple[Tensor, Tensor, Tensor]:
    lead, size = theta.shape[:-1], points.shape[-2]
    matrix = theta.new_empty((*lead, size, 4) if jacobian else 0)
    return theta.new_empty(*lead, size, 2), matrix, theta.new_empty(*lead, nodal.shape[-2])


_operation = Operation(_run, _pull, name="pstn::cpab_plane", fake=_fake)
