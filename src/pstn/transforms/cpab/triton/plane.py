"""The flow in the plane, fused over points and thetas: each particle goes through its regions in registers.

The computation and the names are those of `pstn.transforms.cpab.plane`, which explains them. An edge function is the
tuple (d/dx, d/dy, constant); a field is (a, b, c, d, e, f, trace, det), with A = [[a, b], [c, d]] and constant (e, f).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.transforms.cpab.plane import HUGE, MAX_STEPS, QUADRATURE, regions
from pstn.transforms.cpab.triton import Launcher, kernel

_HUGE = tl.constexpr(HUGE)
_MAX_STEPS = tl.constexpr(MAX_STEPS)
_QUADRATURE = tl.constexpr(QUADRATURE)
_TOLERANCE = tl.constexpr(1.9e-6)
_FAR = tl.constexpr(1e30)
_BLOCK = 32  # one warp: the particles of a block wait for the slowest of them


@triton.jit
def _series(t, trace, det):
    p = trace * t
    q = det * t * t
    y2 = p * p - q
    y3 = p * y2 - q * p
    y4 = p * y3 - q * y2
    y5 = p * y4 - q * y3
    y6 = p * y5 - q * y4
    low = 1 / 2 + p * (1 / 6) + y2 * (1 / 24) + y3 * (1 / 120) + y4 * (1 / 720) + y5 * (1 / 5040) + y6 * (1 / 40320)
    high = 1 / 6 + p * (1 / 24) + y2 * (1 / 120) + y3 * (1 / 720) + y4 * (1 / 5040) + y5 * (1 / 40320)
    return t * t * low, t * t * t * high


@triton.jit
def _root(start, fall, end, span, out):
    """When the parabola with a value and slope at 0 and a negative value at `span` reaches 0."""
    square = tl.where(out, span * span, 1.0)
    bend = (end - start - fall * span) / square
    root = tl.sqrt(tl.maximum(fall * fall - 4 * bend * start, 0.0))
    rising = fall > 0
    top = tl.where(rising, fall + root, 2 * start)
    bottom = tl.where(rising, -2 * bend, root - fall)
    time = tl.where(bottom > 0, top / tl.where(bottom > 0, bottom, 1.0), 0.0)
    return tl.where(out, tl.minimum(tl.maximum(time, 0.0), span), _FAR)


@triton.jit
def _locate(x, y, nx, ny):
    """The region of each point, as `pstn.transforms.cpab.plane.locate`."""
    px, py = (x + 1) * (nx / 2), (y + 1) * (ny / 2)
    i = tl.minimum(tl.maximum(px, 0.0), nx - 1.0).to(tl.int32)
    j = tl.minimum(tl.maximum(py, 0.0), ny - 1.0).to(tl.int32)
    u, v = px - i - 0.5, py - j - 0.5
    side = tl.where(tl.abs(u) >= tl.abs(v), tl.where(u > 0, 1, 0), tl.where(v > 0, 3, 2))
    region = 4 * (j * nx + i) + side
    base = 4 * nx * ny
    beyond_x, beyond_y = (px < 0) | (px > nx), (py < 0) | (py > ny)
    right, low = tl.where(px > nx, 1, 0), tl.where(py > ny, 1, 0)
    region = tl.where(beyond_x, base + right * ny + j, region)
    region = tl.where(beyond_y, base + 2 * ny + low * nx + i, region)
    return tl.where(beyond_x & beyond_y, base + 2 * (nx + ny) + 2 * low + right, region)


@triton.jit
def _load2(pointer, mask):
    return tl.load(pointer, mask=mask, other=0.0), tl.load(pointer + 1, mask=mask, other=0.0)


@triton.jit
def _load3(pointer, mask, other):
    one, two = tl.load(pointer, mask=mask, other=other), tl.load(pointer + 1, mask=mask, other=other)
    return one, two, tl.load(pointer + 2, mask=mask, other=other)


@triton.jit
def _load_region(velocities, nodes, functions, region, s, NODES, mask):
    """The edge functions, the nodes that they belong to, and the field."""
    at = functions + region * 9
    edges = _load3(at, mask, 0.0), _load3(at + 3, mask, 0.0), _load3(at + 6, mask, 0.0)
    n0, n1, n2 = _load3(nodes + region * 3, mask, 0)
    n0, n1, n2 = n0.to(tl.int32), n1.to(tl.int32), n2.to(tl.int32)
    v = velocities + s * NODES * 2
    x0, y0 = _load2(v + n0 * 2, mask & (n0 < NODES))
    x1, y1 = _load2(v + n1 * 2, mask & (n1 < NODES))
    x2, y2 = _load2(v + n2 * 2, mask & (n2 < NODES))
    a, b, e = _combine(x0, x1, x2, edges)
    c, d, f = _combine(y0, y1, y2, edges)
    return edges, (n0, n1, n2), (a, b, c, d, e, f, a + d, a * d - b * c)


@triton.jit
def _combine(v0, v1, v2, edges):
    """The edge functions, each times the velocity of its node along one axis."""
    f0, f1, f2 = edges
    by_x = v0 * f0[0] + v1 * f1[0] + v2 * f2[0]
    by_y = v0 * f0[1] + v1 * f1[1] + v2 * f2[1]
    return by_x, by_y, v0 * f0[2] + v1 * f1[2] + v2 * f2[2]


@triton.jit
def _value(edge, x, y):
    return edge[0] * x + edge[1] * y + edge[2]


@triton.jit
def _slope(edge, u, v):
    return edge[0] * u + edge[1] * v


@triton.jit
def _velocity(field, x, y):
    return field[0] * x + field[1] * y + field[4], field[2] * x + field[3] * y + field[5]


@triton.jit
def _times(field, u, v):
    """A applied to a vector."""
    return field[0] * u + field[1] * v, field[2] * u + field[3] * v


@triton.jit
def _position_after(x, y, field, t):
    """The positions of particles after a time in their regions, and the series."""
    low, high = _series(t, field[6], field[7])
    vx, vy = _velocity(field, x, y)
    wx, wy = _times(field, vx, vy)
    drift = t - field[7] * high
    return x + drift * vx + low * wx, y + drift * vy + low * wy, low, high


@triton.jit
def _cubic_minimum(gain, fall, rise):
    """The minimum on [0, 1] of a cubic that changes by `gain`, with slopes `fall` < 0 at 0 and `rise` > 0 at 1."""
    half = 3 * gain - 2 * fall - rise
    root = tl.sqrt(tl.maximum(half * half - 3 * fall * (fall + rise - 2 * gain), 0.0))
    bottom = half + root
    return -fall / tl.where(bottom > 0, bottom, 1.0)


@triton.jit
def _crossing_time(edge, x, y, px, py, field, limit, open_):
    """A guess of when a particle crosses an edge on its way from (x, y) to (px, py), or `_FAR`."""
    vx, vy = _velocity(field, x, y)
    ux, uy = _velocity(field, px, py)
    begin, end = _value(edge, x, y), _value(edge, px, py)
    fall, rise = _slope(edge, vx, vy), _slope(edge, ux, uy)
    out = (end < -_TOLERANCE) & open_
    turning = (fall < 0) & (rise > 0) & open_ & (end >= -_TOLERANCE)
    span = limit
    if tl.max(turning.to(tl.int32), axis=0) > 0:
        lowest = tl.where(turning, limit * _cubic_minimum(end - begin, limit * fall, limit * rise), limit)
        qx, qy, low, high = _position_after(x, y, field, lowest)
        deepest = _value(edge, qx, qy)
        span = tl.where(turning, lowest, limit)
        end = tl.where(turning, deepest, end)
        out = out | (turning & (deepest < -_TOLERANCE))
    return _root(tl.maximum(begin, 0.0), fall, end, span, out)


@triton.jit
def _refine(is0, is1, edges, x, y, field, guess):
    """One step of Halley's method towards the time at which an edge function, one each, is 0."""
    f0, f1, f2 = edges
    g0 = tl.where(is0, f0[0], tl.where(is1, f1[0], f2[0]))
    g1 = tl.where(is0, f0[1], tl.where(is1, f1[1], f2[1]))
    g2 = tl.where(is0, f0[2], tl.where(is1, f1[2], f2[2]))
    qx, qy, low, high = _position_after(x, y, field, guess)
    wx, wy = _velocity(field, qx, qy)
    bx, by = _times(field, wx, wy)
    value = g0 * qx + g1 * qy + g2
    slope = g0 * wx + g1 * wy
    bottom = 2 * slope * slope - value * (g0 * bx + g1 * by)
    valid = tl.abs(bottom) > 1e-30
    move = tl.where(valid, 2 * value * slope / tl.where(valid, bottom, 1.0), 0.0)
    return tl.maximum(guess - move, 0.0)


@triton.jit
def _advance(across, region, x, y, rest, mask, edges, field):
    """Advance to the first edge or by the longest step: time, next region, position and series."""
    f0, f1, f2 = edges
    norm = tl.maximum(tl.abs(field[0]) + tl.abs(field[1]), tl.abs(field[2]) + tl.abs(field[3]))
    limit = tl.minimum(rest, 0.5 / tl.maximum(norm, 1e-6))
    px, py, low, high = _position_after(x, y, field, limit)
    r0, r1, r2 = _load3(across + region * 3, mask, -1)
    r0, r1, r2 = r0.to(tl.int32), r1.to(tl.int32), r2.to(tl.int32)
    t0 = _crossing_time(f0, x, y, px, py, field, limit, r0 >= 0)
    t1 = _crossing_time(f1, x, y, px, py, field, limit, r1 >= 0)
    t2 = _crossing_time(f2, x, y, px, py, field, limit, r2 >= 0)
    first = tl.minimum(t0, tl.minimum(t1, t2))
    leaves = first < _FAR
    if tl.max(leaves.to(tl.int32), axis=0) > 0:
        is0 = t0 == first
        is1 = (t1 == first) & ~is0
        time = _refine(is0, is1, edges, x, y, field, tl.where(leaves, first, limit))
        time = tl.where(leaves, tl.minimum(time, limit), limit)
        px, py, low, high = _position_after(x, y, field, time)
        # Near a corner the parabolas may indicate the wrong edge: stop at one that has been passed.
        v0 = tl.where(t0 < _FAR, _value(f0, px, py), 0.0)
        v1 = tl.where(t1 < _FAR, _value(f1, px, py), 0.0)
        v2 = tl.where(t2 < _FAR, _value(f2, px, py), 0.0)
        deepest = tl.minimum(v0, tl.minimum(v1, v2))
        passed = deepest < -_TOLERANCE
        if tl.max(passed.to(tl.int32), axis=0) > 0:
            is0 = tl.where(passed, v0 == deepest, is0)
            is1 = tl.where(passed, (v1 == deepest) & ~is0, is1)
            back = _refine(is0, is1, edges, x, y, field, time)
            time = tl.where(passed, tl.minimum(back, time), time)
            px, py, low, high = _position_after(x, y, field, time)
        region = tl.where(leaves, tl.where(is0, r0, tl.where(is1, r1, r2)), region)
        limit = time
    return limit, region, px, py, low, high


@triton.jit
def _bounded(value):
    return tl.minimum(tl.maximum(value, -_HUGE), _HUGE)


@triton.jit
def _on_square(start, end):
    """The end of a coordinate that cannot leave the square; the bounds would hide NaN."""
    return tl.where(tl.abs(start) >= 1, start, tl.where(end == end, tl.minimum(tl.maximum(end, -1.0), 1.0), end))


@kernel
def _forward(
    velocities, points, nodes, functions, across, moved, jacobian,
    N, stride, nx: tl.constexpr, ny: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
    CLOSED: tl.constexpr, JACOBIAN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x0, y0 = _load2(points + s * stride * 2 + i * 2, inside)
    x, y = x0, y0
    region = _locate(x, y, nx, ny)
    rest = tl.where(inside, 1.0, 0.0)
    ja, jb = tl.full([BLOCK], 1.0, tl.float32), tl.zeros([BLOCK], tl.float32)
    jc, jd = tl.zeros([BLOCK], tl.float32), tl.full([BLOCK], 1.0, tl.float32)
    steps = 0
    while (tl.max(rest, axis=0) > 0) & (steps < _MAX_STEPS):
        mask = rest > 0
        edges, owners, field = _load_region(velocities, nodes, functions, region, s, NODES, mask)
        time, region, x, y, low, high = _advance(across, region, x, y, rest, mask, edges, field)
        if JACOBIAN:
            unit = 1.0 - field[7] * low
            slope = time + field[6] * low - field[7] * high
            p, q = unit + slope * field[0], slope * field[1]
            r, w = slope * field[2], unit + slope * field[3]
            ka, kb = _bounded(p * ja + q * jc), _bounded(p * jb + q * jd)
            jc, jd = _bounded(r * ja + w * jc), _bounded(r * jb + w * jd)
            ja, jb = ka, kb
        rest = rest - time
        steps += 1
    if CLOSED:
        x, y = _on_square(x0, x), _on_square(y0, y)
    at = s * N + i
    tl.store(moved + at * 2, x, mask=inside)
    tl.store(moved + at * 2 + 1, y, mask=inside)
    if JACOBIAN:
        tl.store(jacobian + at * 4, ja, mask=inside)
        tl.store(jacobian + at * 4 + 1, jb, mask=inside)
        tl.store(jacobian + at * 4 + 2, jc, mask=inside)
        tl.store(jacobian + at * 4 + 3, jd, mask=inside)


@triton.jit
def _adjoint_after(field, t, low, high, first, second):
    """The adjoint after a time: the inverse of exp(t A), transposed, applied to it."""
    unit = 1.0 - field[7] * low
    slope = t + field[6] * low - field[7] * high
    decay = tl.exp(-field[6] * t)
    one = ((unit + slope * field[3]) * first - slope * field[2] * second) * decay
    return one, ((unit + slope * field[0]) * second - slope * field[1] * first) * decay


@triton.jit
def _quadrature(x, y, field, time, first, second, k: tl.constexpr):
    """Position, and adjoint times its weight, at a node of the quadrature within a step."""
    t = time * _QUADRATURE[k][0]
    px, py, low, high = _position_after(x, y, field, t)
    one, two = _adjoint_after(field, t, low, high, first, second)
    return px, py, one * time * _QUADRATURE[k][1], two * time * _QUADRATURE[k][1]


@triton.jit
def _add_node_grads(sums, node, owned, edge, qa, qb, qc):
    """Add the gradient of a node: its edge function times the adjoint, at three positions with their weights."""
    ea, eb, ec = _value(edge, qa[0], qa[1]), _value(edge, qb[0], qb[1]), _value(edge, qc[0], qc[1])
    tl.atomic_add(sums + node * 2, ea * qa[2] + eb * qb[2] + ec * qc[2], mask=owned, sem="relaxed")
    tl.atomic_add(sums + node * 2 + 1, ea * qa[3] + eb * qb[3] + ec * qc[3], mask=owned, sem="relaxed")


@kernel
def _backward(
    grad, jacobian, velocities, points, nodes, functions, across, by_velocity, by_point,
    N, stride, nx: tl.constexpr, ny: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x, y = _load2(points + s * stride * 2 + i * 2, inside)
    region = _locate(x, y, nx, ny)
    at = s * N + i
    gx, gy = _load2(grad + at * 2, inside)
    # The adjoint at the start: the Jacobian of the whole trajectory, transposed, applied to the gradient at the end.
    ja, jb = _load2(jacobian + at * 4, inside)
    jc, jd = _load2(jacobian + at * 4 + 2, inside)
    first, second = ja * gx + jc * gy, jb * gx + jd * gy
    if POINTS:
        tl.store(by_point + at * 2, first, mask=inside)
        tl.store(by_point + at * 2 + 1, second, mask=inside)
    rest = tl.where(inside, 1.0, 0.0)
    sums = by_velocity + s * NODES * 2
    steps = 0
    while (tl.max(rest, axis=0) > 0) & (steps < _MAX_STEPS):
        mask = rest > 0
        edges, owners, field = _load_region(velocities, nodes, functions, region, s, NODES, mask)
        time, next_region, px, py, low, high = _advance(across, region, x, y, rest, mask, edges, field)
        qa = _quadrature(x, y, field, time, first, second, 0)
        qb = _quadrature(x, y, field, time, first, second, 1)
        qc = _quadrature(x, y, field, time, first, second, 2)
        for k in tl.static_range(3):
            _add_node_grads(sums, owners[k], mask & (owners[k] < NODES), edges[k], qa, qb, qc)
        one, two = _adjoint_after(field, time, low, high, first, second)
        first, second = _bounded(one), _bounded(two)
        x, y, region = px, py, next_region
        rest = rest - time
        steps += 1


_launch_forward = Launcher(_forward, warps=1)
_launch_backward = Launcher(_backward, warps=1)


def flow_forward(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool
) -> tuple[Tensor, Tensor]:
    """The moved points (S, N, 2) and, if asked for, the Jacobian (S, N, 4); shared points are (1, N, 2)."""
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    moved = points.new_empty((len(velocities), points.shape[1], 2))
    matrix = points.new_empty((*moved.shape[:2], 4) if jacobian else 0)
    programs, numbers, constants = _sizes(velocities, points, nx, ny)
    arguments = (velocities, points, *geometry, moved, matrix, *numbers)
    _launch_forward(points.get_device(), programs, arguments, (*constants, closed, jacobian))
    return moved, matrix


def flow_backward(
    grad: Tensor, jacobian: Tensor, velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to the velocities at the nodes (S, K, 2) and, if asked for, to the points (S, N, 2).

    The gradient of the moved points is (S, N, 2); the Jacobian, (S, N, 4), is that of the forward pass.
    """
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    by_velocity = torch.zeros_like(velocities)
    by_point = torch.empty_like(grad) if to_points else points.new_empty(0)
    programs, numbers, constants = _sizes(velocities, points, nx, ny)
    arguments = (grad, jacobian, velocities, points, *geometry, by_velocity, by_point, *numbers)
    _launch_backward(points.get_device(), programs, arguments, (*constants, to_points))
    return by_velocity, by_point


def _sizes(velocities: Tensor, points: Tensor, nx: int, ny: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """How many programs, and the numbers and constants that both kernels take."""
    thetas, nodes = velocities.shape[:2]
    size = points.shape[1]
    # All programs along one axis: the others are limited to 65,535, which an image of 1,500 pixels a side exceeds.
    return thetas * -(-size // _BLOCK), (size, 0 if points.shape[0] == 1 else size), (nx, ny, nodes, _BLOCK)
