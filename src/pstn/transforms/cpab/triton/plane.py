"""The flow in the plane, fused over points and thetas: each particle goes through its regions in registers.

The computation and the names are those of `pstn.transforms.cpab.plane`, which explains them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.transforms.cpab.plane import HUGE, MAX_STEPS, regions
from pstn.transforms.cpab.triton import Launcher

__all__ = ["flow_backward", "flow_forward"]

_HUGE = tl.constexpr(HUGE)
_MAX_STEPS = tl.constexpr(MAX_STEPS)
_TOLERANCE = tl.constexpr(1.9e-6)
_FAR = tl.constexpr(1e30)
_BLOCK = 32  # one warp: the particles of a block wait for the slowest of them


@triton.jit
def _series(t, trace, det):
    p = trace * t
    q = det * t * t
    y1 = p
    y2 = p * y1 - q
    y3 = p * y2 - q * y1
    y4 = p * y3 - q * y2
    y5 = p * y4 - q * y3
    y6 = p * y5 - q * y4
    low = 1 / 2 + y1 * (1 / 6) + y2 * (1 / 24) + y3 * (1 / 120) + y4 * (1 / 720) + y5 * (1 / 5040) + y6 * (1 / 40320)
    high = 1 / 6 + y1 * (1 / 24) + y2 * (1 / 120) + y3 * (1 / 720) + y4 * (1 / 5040) + y5 * (1 / 40320)
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
    px = (x + 1) * (nx / 2)
    py = (y + 1) * (ny / 2)
    i = tl.minimum(tl.maximum(px, 0.0), nx - 1.0).to(tl.int32)
    j = tl.minimum(tl.maximum(py, 0.0), ny - 1.0).to(tl.int32)
    u = px - i - 0.5
    v = py - j - 0.5
    side = tl.where(tl.abs(u) >= tl.abs(v), tl.where(u > 0, 1, 0), tl.where(v > 0, 3, 2))
    region = 4 * (j * nx + i) + side
    base = 4 * nx * ny
    beyond_x = (px < 0) | (px > nx)
    beyond_y = (py < 0) | (py > ny)
    right = tl.where(px > nx, 1, 0)
    low = tl.where(py > ny, 1, 0)
    region = tl.where(beyond_x, base + right * ny + j, region)
    region = tl.where(beyond_y, base + 2 * ny + low * nx + i, region)
    return tl.where(beyond_x & beyond_y, base + 2 * (nx + ny) + 2 * low + right, region)


@triton.jit
def _load_region(velocities, nodes, functions, region, s, NODES, mask):
    """Edge functions (by x, by y, constant), the nodes that they belong to, and the affine velocity."""
    at = functions + region * 9
    f00 = tl.load(at, mask=mask, other=0.0)
    f01 = tl.load(at + 1, mask=mask, other=0.0)
    f02 = tl.load(at + 2, mask=mask, other=0.0)
    f10 = tl.load(at + 3, mask=mask, other=0.0)
    f11 = tl.load(at + 4, mask=mask, other=0.0)
    f12 = tl.load(at + 5, mask=mask, other=0.0)
    f20 = tl.load(at + 6, mask=mask, other=0.0)
    f21 = tl.load(at + 7, mask=mask, other=0.0)
    f22 = tl.load(at + 8, mask=mask, other=0.0)
    n0 = tl.load(nodes + region * 3, mask=mask, other=0).to(tl.int32)
    n1 = tl.load(nodes + region * 3 + 1, mask=mask, other=0).to(tl.int32)
    n2 = tl.load(nodes + region * 3 + 2, mask=mask, other=0).to(tl.int32)
    v = velocities + s * NODES * 2
    x0 = tl.load(v + n0 * 2, mask=mask & (n0 < NODES), other=0.0)
    y0 = tl.load(v + n0 * 2 + 1, mask=mask & (n0 < NODES), other=0.0)
    x1 = tl.load(v + n1 * 2, mask=mask & (n1 < NODES), other=0.0)
    y1 = tl.load(v + n1 * 2 + 1, mask=mask & (n1 < NODES), other=0.0)
    x2 = tl.load(v + n2 * 2, mask=mask & (n2 < NODES), other=0.0)
    y2 = tl.load(v + n2 * 2 + 1, mask=mask & (n2 < NODES), other=0.0)
    a = x0 * f00 + x1 * f10 + x2 * f20
    b = x0 * f01 + x1 * f11 + x2 * f21
    e = x0 * f02 + x1 * f12 + x2 * f22
    c = y0 * f00 + y1 * f10 + y2 * f20
    d = y0 * f01 + y1 * f11 + y2 * f21
    f = y0 * f02 + y1 * f12 + y2 * f22
    return f00, f01, f02, f10, f11, f12, f20, f21, f22, n0, n1, n2, a, b, c, d, e, f


@triton.jit
def _position_after(x, y, a, b, c, d, e, f, trace, det, t):
    """The positions of particles after a time in their regions, and the series."""
    low, high = _series(t, trace, det)
    vx = a * x + b * y + e
    vy = c * x + d * y + f
    drift = t - det * high
    return x + drift * vx + low * (a * vx + b * vy), y + drift * vy + low * (c * vx + d * vy), low, high


@triton.jit
def _cubic_minimum(gain, fall, rise):
    """The minimum on [0, 1] of a cubic that changes by `gain`, with slopes `fall` < 0 at 0 and `rise` > 0 at 1."""
    half = 3 * gain - 2 * fall - rise
    root = tl.sqrt(tl.maximum(half * half - 3 * fall * (fall + rise - 2 * gain), 0.0))
    bottom = half + root
    return -fall / tl.where(bottom > 0, bottom, 1.0)


@triton.jit
def _crossing_time(f0, f1, f2, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, open_):
    """A guess of when a particle crosses an edge, or `_FAR`."""
    begin = f0 * x + f1 * y + f2
    fall = f0 * vx + f1 * vy
    rise = f0 * ux + f1 * uy
    end = f0 * px + f1 * py + f2
    out = (end < -_TOLERANCE) & open_
    turning = (fall < 0) & (rise > 0) & open_ & (end >= -_TOLERANCE)
    span = limit
    if tl.max(turning.to(tl.int32), axis=0) > 0:
        lowest = tl.where(turning, limit * _cubic_minimum(end - begin, limit * fall, limit * rise), limit)
        qx, qy, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, lowest)
        deepest = f0 * qx + f1 * qy + f2
        span = tl.where(turning, lowest, limit)
        end = tl.where(turning, deepest, end)
        out = out | (turning & (deepest < -_TOLERANCE))
    return _root(tl.maximum(begin, 0.0), fall, end, span, out)


@triton.jit
def _refine(is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, guess):
    """One step of Halley's method towards the time at which an edge function, one each, is 0."""
    g0 = tl.where(is0, f00, tl.where(is1, f10, f20))
    g1 = tl.where(is0, f01, tl.where(is1, f11, f21))
    g2 = tl.where(is0, f02, tl.where(is1, f12, f22))
    qx, qy, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, guess)
    wx = a * qx + b * qy + e
    wy = c * qx + d * qy + f
    value = g0 * qx + g1 * qy + g2
    slope = g0 * wx + g1 * wy
    bend = g0 * (a * wx + b * wy) + g1 * (c * wx + d * wy)
    bottom = 2 * slope * slope - value * bend
    sound = tl.abs(bottom) > 1e-30
    move = tl.where(sound, 2 * value * slope / tl.where(sound, bottom, 1.0), 0.0)
    return tl.maximum(guess - move, 0.0)


@triton.jit
def _advance(
    across, region, x, y, rest, mask, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
):
    """Advance to the first edge or by the longest step: time, next region, position and series."""
    norm = tl.maximum(tl.abs(a) + tl.abs(b), tl.abs(c) + tl.abs(d))
    limit = tl.minimum(rest, 0.5 / tl.maximum(norm, 1e-6))
    px, py, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, limit)
    vx = a * x + b * y + e
    vy = c * x + d * y + f
    ux = a * px + b * py + e
    uy = c * px + d * py + f
    r0 = tl.load(across + region * 3, mask=mask, other=-1).to(tl.int32)
    r1 = tl.load(across + region * 3 + 1, mask=mask, other=-1).to(tl.int32)
    r2 = tl.load(across + region * 3 + 2, mask=mask, other=-1).to(tl.int32)
    t0 = _crossing_time(f00, f01, f02, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r0 >= 0)
    t1 = _crossing_time(f10, f11, f12, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r1 >= 0)
    t2 = _crossing_time(f20, f21, f22, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r2 >= 0)
    first = tl.minimum(t0, tl.minimum(t1, t2))
    leaves = first < _FAR
    if tl.max(leaves.to(tl.int32), axis=0) > 0:
        is0 = t0 == first
        is1 = (t1 == first) & ~is0
        guess = tl.where(leaves, first, limit)
        time = _refine(is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, guess)
        time = tl.where(leaves, tl.minimum(time, limit), limit)
        px, py, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, time)
        # Near a corner the parabolas may indicate the wrong edge: stop at one that has been passed.
        v0 = tl.where(t0 < _FAR, f00 * px + f01 * py + f02, 0.0)
        v1 = tl.where(t1 < _FAR, f10 * px + f11 * py + f12, 0.0)
        v2 = tl.where(t2 < _FAR, f20 * px + f21 * py + f22, 0.0)
        deepest = tl.minimum(v0, tl.minimum(v1, v2))
        passed = deepest < -_TOLERANCE
        if tl.max(passed.to(tl.int32), axis=0) > 0:
            is0 = tl.where(passed, v0 == deepest, is0)
            is1 = tl.where(passed, (v1 == deepest) & ~is0, is1)
            back = _refine(
                is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, time
            )
            time = tl.where(passed, tl.minimum(back, time), time)
            px, py, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, time)
        next_region = tl.where(is0, r0, tl.where(is1, r1, r2))
        region = tl.where(leaves, next_region, region)
        limit = time
    return limit, region, px, py, low, high


@triton.jit(
    do_not_specialize=["N", "stride"],
    do_not_specialize_on_alignment=["velocities", "points", "nodes", "functions", "across", "moved", "jacobian"],
)
def _forward(
    velocities, points, nodes, functions, across, moved, jacobian,
    N, stride, nx: tl.constexpr, ny: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
    CLOSED: tl.constexpr, JACOBIAN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x0 = tl.load(points + s * stride * 2 + i * 2, mask=inside, other=0.0)
    y0 = tl.load(points + s * stride * 2 + i * 2 + 1, mask=inside, other=0.0)
    x, y = x0, y0
    region = _locate(x, y, nx, ny)
    rest = tl.where(inside, 1.0, 0.0)
    ja = tl.full([BLOCK], 1.0, tl.float32)
    jb = tl.zeros([BLOCK], tl.float32)
    jc = tl.zeros([BLOCK], tl.float32)
    jd = tl.full([BLOCK], 1.0, tl.float32)
    steps = 0
    while (tl.max(rest, axis=0) > 0) & (steps < _MAX_STEPS):
        mask = rest > 0
        f00, f01, f02, f10, f11, f12, f20, f21, f22, n0, n1, n2, a, b, c, d, e, f = _load_region(
            velocities, nodes, functions, region, s, NODES, mask
        )
        trace = a + d
        det = a * d - b * c
        time, region, x, y, low, high = _advance(
            across, region, x, y, rest, mask, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
        )
        if JACOBIAN:
            unit = 1.0 - det * low
            slope = time + trace * low - det * high
            p = unit + slope * a
            q = slope * b
            r = slope * c
            w = unit + slope * d
            ka = tl.minimum(tl.maximum(p * ja + q * jc, -_HUGE), _HUGE)
            kb = tl.minimum(tl.maximum(p * jb + q * jd, -_HUGE), _HUGE)
            kc = tl.minimum(tl.maximum(r * ja + w * jc, -_HUGE), _HUGE)
            kd = tl.minimum(tl.maximum(r * jb + w * jd, -_HUGE), _HUGE)
            ja, jb, jc, jd = ka, kb, kc, kd
        rest = rest - time
        steps += 1
    if CLOSED:
        # The bounds would hide NaN.
        x = tl.where(tl.abs(x0) >= 1, x0, tl.where(x == x, tl.minimum(tl.maximum(x, -1.0), 1.0), x))
        y = tl.where(tl.abs(y0) >= 1, y0, tl.where(y == y, tl.minimum(tl.maximum(y, -1.0), 1.0), y))
    at = s * N + i
    tl.store(moved + at * 2, x, mask=inside)
    tl.store(moved + at * 2 + 1, y, mask=inside)
    if JACOBIAN:
        tl.store(jacobian + at * 4, ja, mask=inside)
        tl.store(jacobian + at * 4 + 1, jb, mask=inside)
        tl.store(jacobian + at * 4 + 2, jc, mask=inside)
        tl.store(jacobian + at * 4 + 3, jd, mask=inside)


@triton.jit
def _adjoint_after(a, b, c, d, trace, det, t, low, high, first, second):
    """The adjoint after a time: the inverse of exp(t A), transposed, applied to it."""
    unit = 1.0 - det * low
    slope = t + trace * low - det * high
    decay = tl.exp(-trace * t)
    one = ((unit + slope * d) * first - slope * c * second) * decay
    two = ((unit + slope * a) * second - slope * b * first) * decay
    return one, two


@triton.jit
def _quadrature(x, y, a, b, c, d, e, f, trace, det, t, first, second):
    """Position and adjoint within a step."""
    px, py, low, high = _position_after(x, y, a, b, c, d, e, f, trace, det, t)
    one, two = _adjoint_after(a, b, c, d, trace, det, t, low, high, first, second)
    return px, py, one, two


@triton.jit
def _add_node_grads(sums, node, owned, along_x, along_y, constant, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc):
    """Add the gradient of a node: its edge function times the adjoint, at three positions with their weights."""
    ea = along_x * xa + along_y * ya + constant
    eb = along_x * xb + along_y * yb + constant
    ec = along_x * xc + along_y * yc + constant
    tl.atomic_add(sums + node * 2, ea * oa + eb * ob + ec * oc, mask=owned, sem="relaxed")
    tl.atomic_add(sums + node * 2 + 1, ea * ta + eb * tb + ec * tc, mask=owned, sem="relaxed")


@triton.jit(
    do_not_specialize=["N", "stride"],
    do_not_specialize_on_alignment=[
        *("grad", "jacobian", "velocities", "points", "nodes", "functions", "across", "by_velocity", "by_point")
    ],
)
def _backward(
    grad, jacobian, velocities, points, nodes, functions, across, by_velocity, by_point,
    N, stride, nx: tl.constexpr, ny: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x = tl.load(points + s * stride * 2 + i * 2, mask=inside, other=0.0)
    y = tl.load(points + s * stride * 2 + i * 2 + 1, mask=inside, other=0.0)
    region = _locate(x, y, nx, ny)
    at = s * N + i
    gx = tl.load(grad + at * 2, mask=inside, other=0.0)
    gy = tl.load(grad + at * 2 + 1, mask=inside, other=0.0)
    # The adjoint at the start: the Jacobian of the whole trajectory, transposed, applied to the gradient at the end.
    first = tl.load(jacobian + at * 4, mask=inside, other=0.0) * gx
    second = tl.load(jacobian + at * 4 + 1, mask=inside, other=0.0) * gx
    first += tl.load(jacobian + at * 4 + 2, mask=inside, other=0.0) * gy
    second += tl.load(jacobian + at * 4 + 3, mask=inside, other=0.0) * gy
    if POINTS:
        tl.store(by_point + at * 2, first, mask=inside)
        tl.store(by_point + at * 2 + 1, second, mask=inside)
    rest = tl.where(inside, 1.0, 0.0)
    sums = by_velocity + s * NODES * 2
    steps = 0
    while (tl.max(rest, axis=0) > 0) & (steps < _MAX_STEPS):
        mask = rest > 0
        f00, f01, f02, f10, f11, f12, f20, f21, f22, n0, n1, n2, a, b, c, d, e, f = _load_region(
            velocities, nodes, functions, region, s, NODES, mask
        )
        trace = a + d
        det = a * d - b * c
        time, next_region, px, py, low, high = _advance(
            across, region, x, y, rest, mask, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
        )
        # Gauss-Legendre quadrature with three nodes.
        xa, ya, oa, ta = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.1127016653792583, first, second)
        xb, yb, ob, tb = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.5, first, second)
        xc, yc, oc, tc = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.8872983346207417, first, second)
        oa, ob, oc = oa * time * (5 / 18), ob * time * (8 / 18), oc * time * (5 / 18)
        ta, tb, tc = ta * time * (5 / 18), tb * time * (8 / 18), tc * time * (5 / 18)
        _add_node_grads(sums, n0, mask & (n0 < NODES), f00, f01, f02, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        _add_node_grads(sums, n1, mask & (n1 < NODES), f10, f11, f12, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        _add_node_grads(sums, n2, mask & (n2 < NODES), f20, f21, f22, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        one, two = _adjoint_after(a, b, c, d, trace, det, time, low, high, first, second)
        first = tl.minimum(tl.maximum(one, -_HUGE), _HUGE)
        second = tl.minimum(tl.maximum(two, -_HUGE), _HUGE)
        x, y, region = px, py, next_region
        rest = rest - time
        steps += 1


_launch_forward = Launcher(_forward, warps=1)
_launch_backward = Launcher(_backward, warps=1)


def flow_forward(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool
) -> tuple[Tensor, Tensor]:
    """The moved points (S, N, 2) and, if asked for, the Jacobian (S, N, 4); shared points are (1, N, 2)."""
    size = points.shape[1]
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    moved = points.new_empty((velocities.shape[0], size, 2))
    matrix = points.new_empty((velocities.shape[0], size, 4) if jacobian else 0)
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
