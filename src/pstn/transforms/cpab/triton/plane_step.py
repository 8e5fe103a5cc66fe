"""A step of the walk in the plane: every particle of a block to the edge of its region, or as far as the series reach.

The computation is that of `pstn.transforms.cpab.plane`, which explains it; the names are the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["advance", "load_region", "locate", "place"]

_TOLERANCE = tl.constexpr(1.9e-6)
_FAR = tl.constexpr(1e30)


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
    """When the parabola through a value and slope at 0 and a negative value at `span` falls to 0."""
    square = tl.where(out, span * span, 1.0)
    bend = (end - start - fall * span) / square
    root = tl.sqrt(tl.maximum(fall * fall - 4 * bend * start, 0.0))
    rising = fall > 0
    top = tl.where(rising, fall + root, 2 * start)
    bottom = tl.where(rising, -2 * bend, root - fall)
    time = tl.where(bottom > 0, top / tl.where(bottom > 0, bottom, 1.0), 0.0)
    return tl.where(out, tl.minimum(tl.maximum(time, 0.0), span), _FAR)


@triton.jit
def locate(x, y, nx, ny):
    """The region of each point, as `pstn.transforms.cpab.regions.locate`."""
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
def load_region(velocities, nodes, functions, region, s, NODES, mask):
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
def place(x, y, a, b, c, d, e, f, trace, det, t):
    """Where particles are after a time in their regions, and the series."""
    low, high = _series(t, trace, det)
    vx = a * x + b * y + e
    vy = c * x + d * y + f
    drift = t - det * high
    return x + drift * vx + low * (a * vx + b * vy), y + drift * vy + low * (c * vx + d * vy), low, high


@triton.jit
def _lowest_point(gain, fall, rise):
    """Where on [0, 1] a cubic is lowest that changes by `gain`, with slopes `fall` < 0 at 0 and `rise` > 0 at 1."""
    half = 3 * gain - 2 * fall - rise
    root = tl.sqrt(tl.maximum(half * half - 3 * fall * (fall + rise - 2 * gain), 0.0))
    bottom = half + root
    return -fall / tl.where(bottom > 0, bottom, 1.0)


@triton.jit
def _edge(f0, f1, f2, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, open_):
    """A guess of when a particle crosses an edge, or `_FAR`."""
    begin = f0 * x + f1 * y + f2
    fall = f0 * vx + f1 * vy
    rise = f0 * ux + f1 * uy
    end = f0 * px + f1 * py + f2
    out = (end < -_TOLERANCE) & open_
    turning = (fall < 0) & (rise > 0) & open_ & (end >= -_TOLERANCE)
    span = limit
    if tl.max(turning.to(tl.int32), axis=0) > 0:
        lowest = tl.where(turning, limit * _lowest_point(end - begin, limit * fall, limit * rise), limit)
        qx, qy, low, high = place(x, y, a, b, c, d, e, f, trace, det, lowest)
        deepest = f0 * qx + f1 * qy + f2
        span = tl.where(turning, lowest, limit)
        end = tl.where(turning, deepest, end)
        out = out | (turning & (deepest < -_TOLERANCE))
    return _root(tl.maximum(begin, 0.0), fall, end, span, out)


@triton.jit
def _polish(is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, guess):
    """One step of Halley's method towards the time at which an edge function, one each, is 0."""
    g0 = tl.where(is0, f00, tl.where(is1, f10, f20))
    g1 = tl.where(is0, f01, tl.where(is1, f11, f21))
    g2 = tl.where(is0, f02, tl.where(is1, f12, f22))
    qx, qy, low, high = place(x, y, a, b, c, d, e, f, trace, det, guess)
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
def advance(
    across, region, x, y, left, mask, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
):
    """Advance to the first edge or by the longest step: time, next region, place and series."""
    norm = tl.maximum(tl.abs(a) + tl.abs(b), tl.abs(c) + tl.abs(d))
    limit = tl.minimum(left, 0.5 / tl.maximum(norm, 1e-6))
    px, py, low, high = place(x, y, a, b, c, d, e, f, trace, det, limit)
    vx = a * x + b * y + e
    vy = c * x + d * y + f
    ux = a * px + b * py + e
    uy = c * px + d * py + f
    r0 = tl.load(across + region * 3, mask=mask, other=-1).to(tl.int32)
    r1 = tl.load(across + region * 3 + 1, mask=mask, other=-1).to(tl.int32)
    r2 = tl.load(across + region * 3 + 2, mask=mask, other=-1).to(tl.int32)
    t0 = _edge(f00, f01, f02, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r0 >= 0)
    t1 = _edge(f10, f11, f12, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r1 >= 0)
    t2 = _edge(f20, f21, f22, x, y, vx, vy, px, py, ux, uy, a, b, c, d, e, f, trace, det, limit, r2 >= 0)
    first = tl.minimum(t0, tl.minimum(t1, t2))
    leaves = first < _FAR
    if tl.max(leaves.to(tl.int32), axis=0) > 0:
        is0 = t0 == first
        is1 = (t1 == first) & ~is0
        guess = tl.where(leaves, first, limit)
        time = _polish(is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, guess)
        time = tl.where(leaves, tl.minimum(time, limit), limit)
        px, py, low, high = place(x, y, a, b, c, d, e, f, trace, det, time)
        # Near a corner the parabolas may tell the wrong edge: a particle stops at one that it has passed already.
        v0 = tl.where(t0 < _FAR, f00 * px + f01 * py + f02, 0.0)
        v1 = tl.where(t1 < _FAR, f10 * px + f11 * py + f12, 0.0)
        v2 = tl.where(t2 < _FAR, f20 * px + f21 * py + f22, 0.0)
        deepest = tl.minimum(v0, tl.minimum(v1, v2))
        passed = deepest < -_TOLERANCE
        if tl.max(passed.to(tl.int32), axis=0) > 0:
            is0 = tl.where(passed, v0 == deepest, is0)
            is1 = tl.where(passed, (v1 == deepest) & ~is0, is1)
            back = _polish(
                is0, is1, f00, f01, f02, f10, f11, f12, f20, f21, f22, x, y, a, b, c, d, e, f, trace, det, time
            )
            time = tl.where(passed, tl.minimum(back, time), time)
            px, py, low, high = place(x, y, a, b, c, d, e, f, trace, det, time)
        following = tl.where(is0, r0, tl.where(is1, r1, r2))
        region = tl.where(leaves, following, region)
        limit = time
    return limit, region, px, py, low, high
