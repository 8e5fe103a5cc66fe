"""CPAB in the plane, fused over points and thetas: each particle walks through its regions in registers.

The computation is that of `pstn.transforms.cpab.plane_flow`, which explains it; the names are the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.transforms.cpab.plane import HUGE
from pstn.transforms.cpab.plane_flow import MAX_PIECES
from pstn.transforms.cpab.regions import regions
from pstn.transforms.cpab.triton.launch import Launcher
from pstn.transforms.cpab.triton.plane_step import advance, load_region, locate, place

__all__ = ["flow2d_backward", "flow2d_forward"]

_HUGE = tl.constexpr(HUGE)
_MAX_PIECES = tl.constexpr(MAX_PIECES)
_BLOCK = 32  # one warp: particles of a block wait for the slowest of it


@triton.jit(
    do_not_specialize=["N", "stride"],
    do_not_specialize_on_alignment=["velocities", "points", "nodes", "functions", "across", "moved", "jacobian"],
)
def _forward(
    velocities,
    points,
    nodes,
    functions,
    across,
    moved,
    jacobian,
    N,
    stride,
    nx: tl.constexpr,
    ny: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    CLOSED: tl.constexpr,
    JACOBIAN: tl.constexpr,
):
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x0 = tl.load(points + s * stride * 2 + i * 2, mask=inside, other=0.0)
    y0 = tl.load(points + s * stride * 2 + i * 2 + 1, mask=inside, other=0.0)
    x, y = x0, y0
    region = locate(x, y, nx, ny)
    left = tl.where(inside, 1.0, 0.0)
    ja = tl.full([BLOCK], 1.0, tl.float32)
    jb = tl.zeros([BLOCK], tl.float32)
    jc = tl.zeros([BLOCK], tl.float32)
    jd = tl.full([BLOCK], 1.0, tl.float32)
    pieces = 0
    while (tl.max(left, axis=0) > 0) & (pieces < _MAX_PIECES):
        going = left > 0
        f00, f01, f02, f10, f11, f12, f20, f21, f22, n0, n1, n2, a, b, c, d, e, f = load_region(
            velocities, nodes, functions, region, s, NODES, going
        )
        trace = a + d
        det = a * d - b * c
        time, region, x, y, low, high = advance(
            across, region, x, y, left, going, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
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
        left = left - time
        pieces += 1
    if CLOSED:
        # Where it is NaN it stays so: bounds would hide that.
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
def _unwind(a, b, c, d, trace, det, t, low, high, first, second):
    """The adjoint after a time: the inverse of exp(t A), transposed, applied to it."""
    unit = 1.0 - det * low
    slope = t + trace * low - det * high
    shrink = tl.exp(-trace * t)
    one = ((unit + slope * d) * first - slope * c * second) * shrink
    two = ((unit + slope * a) * second - slope * b * first) * shrink
    return one, two


@triton.jit
def _quadrature(x, y, a, b, c, d, e, f, trace, det, t, first, second):
    """Place and adjoint within a piece."""
    px, py, low, high = place(x, y, a, b, c, d, e, f, trace, det, t)
    one, two = _unwind(a, b, c, d, trace, det, t, low, high, first, second)
    return px, py, one, two


@triton.jit
def _charge(sums, node, owned, along_x, along_y, constant, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc):
    """Add a node's share of a piece: its edge function times the adjoint, at three places with their weights."""
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
    grad,
    jacobian,
    velocities,
    points,
    nodes,
    functions,
    across,
    by_velocity,
    by_point,
    N,
    stride,
    nx: tl.constexpr,
    ny: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
):
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x = tl.load(points + s * stride * 2 + i * 2, mask=inside, other=0.0)
    y = tl.load(points + s * stride * 2 + i * 2 + 1, mask=inside, other=0.0)
    region = locate(x, y, nx, ny)
    at = s * N + i
    gx = tl.load(grad + at * 2, mask=inside, other=0.0)
    gy = tl.load(grad + at * 2 + 1, mask=inside, other=0.0)
    # The adjoint at the start: the Jacobian of the whole way, transposed, applied to the gradient at the end.
    first = tl.load(jacobian + at * 4, mask=inside, other=0.0) * gx
    second = tl.load(jacobian + at * 4 + 1, mask=inside, other=0.0) * gx
    first += tl.load(jacobian + at * 4 + 2, mask=inside, other=0.0) * gy
    second += tl.load(jacobian + at * 4 + 3, mask=inside, other=0.0) * gy
    if POINTS:
        tl.store(by_point + at * 2, first, mask=inside)
        tl.store(by_point + at * 2 + 1, second, mask=inside)
    left = tl.where(inside, 1.0, 0.0)
    sums = by_velocity + s * NODES * 2
    pieces = 0
    while (tl.max(left, axis=0) > 0) & (pieces < _MAX_PIECES):
        going = left > 0
        f00, f01, f02, f10, f11, f12, f20, f21, f22, n0, n1, n2, a, b, c, d, e, f = load_region(
            velocities, nodes, functions, region, s, NODES, going
        )
        trace = a + d
        det = a * d - b * c
        time, following, px, py, low, high = advance(
            across, region, x, y, left, going, f00, f01, f02, f10, f11, f12, f20, f21, f22, a, b, c, d, e, f, trace, det
        )
        # Gauss-Legendre quadrature with three places.
        xa, ya, oa, ta = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.1127016653792583, first, second)
        xb, yb, ob, tb = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.5, first, second)
        xc, yc, oc, tc = _quadrature(x, y, a, b, c, d, e, f, trace, det, time * 0.8872983346207417, first, second)
        oa, ob, oc = oa * time * (5 / 18), ob * time * (8 / 18), oc * time * (5 / 18)
        ta, tb, tc = ta * time * (5 / 18), tb * time * (8 / 18), tc * time * (5 / 18)
        _charge(sums, n0, going & (n0 < NODES), f00, f01, f02, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        _charge(sums, n1, going & (n1 < NODES), f10, f11, f12, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        _charge(sums, n2, going & (n2 < NODES), f20, f21, f22, xa, ya, oa, ta, xb, yb, ob, tb, xc, yc, oc, tc)
        one, two = _unwind(a, b, c, d, trace, det, time, low, high, first, second)
        first = tl.minimum(tl.maximum(one, -_HUGE), _HUGE)
        second = tl.minimum(tl.maximum(two, -_HUGE), _HUGE)
        x, y, region = px, py, following
        left = left - time
        pieces += 1


_launch_forward = Launcher(_forward, warps=1)
_launch_backward = Launcher(_backward, warps=1)


def flow2d_forward(
    velocities: Tensor, points: Tensor, nx: int, ny: int, closed: bool, jacobian: bool
) -> tuple[Tensor, Tensor]:
    """As `pstn.transforms.cpab.plane_flow.flow`, in float32; points may also be (1, N, 2) for all thetas."""
    size = points.shape[1]
    geometry = regions(nx, ny, closed, points.dtype, points.device)
    moved = points.new_empty((velocities.shape[0], size, 2))
    matrix = points.new_empty((velocities.shape[0], size, 4) if jacobian else 0)
    programs, numbers, constants = _sizes(velocities, points, nx, ny)
    arguments = (velocities, points, *geometry, moved, matrix, *numbers)
    _launch_forward(points.get_device(), programs, arguments, (*constants, closed, jacobian))
    return moved, matrix


def flow2d_backward(
    grad: Tensor,
    jacobian: Tensor,
    velocities: Tensor,
    points: Tensor,
    nx: int,
    ny: int,
    closed: bool,
    to_points: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to the nodes' velocities (S, K, 2) and, if asked for, to the points of each theta.

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
    """How many programs, the kernels' numbers, and the constants that both have."""
    thetas, nodes = velocities.shape[:2]
    size = points.shape[1]
    # All programs along one axis: the others hold 65,535 at most, which a picture of 1,500 pixels a side exceeds.
    return thetas * -(-size // _BLOCK), (size, 0 if points.shape[0] == 1 else size), (nx, ny, nodes, _BLOCK)
