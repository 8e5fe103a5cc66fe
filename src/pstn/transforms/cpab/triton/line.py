"""The flow on the line, fused over points and thetas: one launch forward, one launch backward.

The computation and the names are those of `pstn.transforms.cpab.line`, which explains them. Tables of cells are held in
registers, which for tens of cells is faster than memory.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.transforms.cpab.triton import Launcher, kernel, next_power_of_two

Shape = tuple[int, ...]
_NEVER = tl.constexpr(1.25)
_TINY = tl.constexpr(1e-20)
_INSTANT = tl.constexpr(1e-14)
_LOG_MAX = tl.constexpr(60.0)


@triton.jit
def _expm1(z):
    # Triton's exp is approximate, which near 0 would leave no digits of exp(z) - 1.
    near = 1.0 + z * (1 / 8) * (1.0 + z * (1 / 9))
    near = 1.0 + z * (1 / 6) * (1.0 + z * (1 / 7) * near)
    near = z * (1.0 + z * (1 / 2) * (1.0 + z * (1 / 3) * (1.0 + z * (1 / 4) * (1.0 + z * (1 / 5) * near))))
    return tl.where(tl.abs(z) < 0.5, near, tl.exp(z) - 1.0)


@triton.jit
def _log1p(z):
    s = z / (2.0 + z)
    q = s * s
    near = 2.0 * s * (1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13)))))))
    return tl.where(tl.abs(z) < 0.5, near, tl.log(tl.maximum(1.0 + z, 1e-30)))


@triton.jit
def _integrals(slope, time):
    z = tl.minimum(tl.maximum(-slope * time, -_LOG_MAX), _LOG_MAX)
    first = _expm1(z) / z
    near = 0.5 + z * (1 / 6 + z * (1 / 24 + z * (1 / 120 + z * (1 / 720))))
    second = tl.where(tl.abs(z) < 0.1, near, (first - 1.0) / z)
    return time * first, time * time * second


@triton.jit
def _sum_by_cell(index, values, k):
    return tl.sum(tl.where(index[:, None] == k[None, :], values[:, None], 0.0), axis=0)


@triton.jit
def _split_between_ends(weight, by_time, entry, slope, time):
    """The gradient of a stretch within a cell, by the velocities at the cell's two ends; by_time is weight * speed."""
    decay, lag = _integrals(slope, time)
    base = weight * decay
    right = by_time * lag + base * entry
    return base - right, right


@triton.jit
def _tables(theta, nodal, s, group, n: tl.constexpr, D: tl.constexpr, K: tl.constexpr, DP: tl.constexpr):
    """Left velocity, slope, crossing and border time of every cell, and the rows of the basis at both its ends."""
    k = tl.arange(0, K)
    d = tl.arange(0, DP)
    parameters = tl.load(theta + s * D + d, mask=d < D, other=0.0)
    base = nodal + (s // group) * (n + 1) * D
    row_left, row_right = tl.minimum(tl.maximum(k - 1, 0), n), tl.minimum(k, n)
    mask = (d < D)[None, :] & (k < n + 3)[:, None]
    left_rows = tl.load(base + row_left[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    right_rows = tl.load(base + row_right[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    left = tl.sum(left_rows * parameters[None, :], axis=1) * (n / 2)
    right = tl.sum(right_rows * parameters[None, :], axis=1) * (n / 2)
    rise = right - left
    slope = tl.where(tl.abs(rise) < _TINY, tl.where(rise < 0, -_TINY, _TINY), rise)
    crossed = (k >= 1) & (k <= n) & (left * right > 0)
    crossing = tl.abs(_log1p(tl.where(crossed, slope / tl.where(crossed, left, 1.0), 0.0)) / slope)
    crossing = tl.where(crossed & (crossing < _NEVER), crossing, _NEVER)
    borders = tl.cumsum(crossing, axis=0) - crossing
    return k, left, slope, crossing, borders, left_rows, right_rows


@triton.jit
def _trajectory(x, k, left, slope, borders, n: tl.constexpr, CLOSED: tl.constexpr):
    start = x * (n / 2) + (n / 2 + 1)
    within = tl.where(start > 0, tl.minimum(start, n + 1.0), 0.0)  # 0 for NaN, which is no index
    first = within.to(tl.int32)
    if CLOSED:
        start = within
    start = start - first
    a = tl.gather(slope, first, axis=0)
    u = tl.gather(left, first, axis=0) + a * start
    rightward = u > 0
    right_end = tl.where(rightward, 1.0, 0.0)
    entry_end = 1.0 - right_end
    safe = tl.where(u == 0, 1.0, u)
    ratio = (right_end - start) * a / safe
    exit_time = _log1p(tl.where(ratio > -1.0, ratio, 0.0)) / a
    crosses = (ratio > -1.0) & (u != 0) & (exit_time >= 0) & (exit_time <= 1)
    if not CLOSED:
        crosses = crosses & (first != tl.where(rightward, n + 1, 0))
    exit_time = tl.where(crosses, tl.maximum(exit_time, _INSTANT), 1.0)
    sign = right_end - entry_end
    now = tl.gather(borders, first + rightward.to(tl.int32), axis=0) + sign * (1.0 - exit_time)
    before = now - entry_end * 1.9e-6
    inner = (k >= 1) & (k <= n + 1)
    passed = tl.sum(((before[:, None] >= borders[None, :]) & inner[None, :]).to(tl.int32), axis=1)
    last = tl.where(crosses, passed, first)
    time = (now - tl.gather(borders, last + 1 - rightward.to(tl.int32), axis=0)) * sign
    time = tl.where(crosses, tl.maximum(time, _INSTANT), 1.0)
    return first, start, u, entry_end, crosses, last, exit_time, time


@kernel
def _forward(
    theta, nodal, points, out,
    N, group, stride,
    n: tl.constexpr, D: tl.constexpr, CLOSED: tl.constexpr, K: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK)
    s = (tl.program_id(0) // blocks).to(tl.int64)
    k, left, slope, crossing, borders, left_rows, right_rows = _tables(theta, nodal, s, group, n, D, K, DP)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(points + s * stride + i, mask=i < N, other=0.0)
    first, start, u, entry_end, crosses, last, exit_time, time = _trajectory(x, k, left, slope, borders, n, CLOSED)
    a = tl.gather(slope, last, axis=0)
    v = tl.gather(left, last, axis=0)
    root = -v / a
    has_root = (root >= 0) & (root <= 1)
    anchor = tl.where(has_root, root, entry_end)
    speed = tl.where(has_root, 0.0, v + a * entry_end)
    less_one = _expm1(tl.minimum(a * time, _LOG_MAX))
    entry = tl.where(crosses, entry_end, start)
    end = anchor + (entry - anchor) * (less_one + 1.0) + speed * (less_one / a)
    end = tl.where(last > 0, tl.maximum(end, 0.0), end)
    end = tl.where(last <= n, tl.minimum(end, 1.0), end)
    moved = (end + last) * (2 / n) - (1 + 2 / n)
    if CLOSED:
        moved = tl.minimum(tl.maximum(moved, -1.0), 1.0)
    moved = tl.where(tl.abs(u) <= 10 * _TINY, x, moved)
    moved = tl.where(u == u, moved, u)  # bounds hide NaN
    tl.store(out + s * N + i, moved, mask=i < N)


@kernel
def _backward(
    grad, theta, nodal, points, by_theta, by_point,
    N, group, stride,
    n: tl.constexpr, D: tl.constexpr, CLOSED: tl.constexpr, K: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    k, left, slope, crossing, borders, left_rows, right_rows = _tables(theta, nodal, s, group, n, D, K, DP)
    by_left, by_right, times = tl.zeros([K], tl.float32), tl.zeros([K], tl.float32), tl.zeros([K], tl.float32)
    for offset in range(0, N, BLOCK):
        i = offset + tl.arange(0, BLOCK)
        x = tl.load(points + s * stride + i, mask=i < N, other=0.0)
        g = tl.load(grad + s * N + i, mask=i < N, other=0.0)
        first, start, u, entry_end, crosses, last, exit_time, time = _trajectory(x, k, left, slope, borders, n, CLOSED)
        a = tl.gather(slope, last, axis=0)
        entry = tl.where(crosses, entry_end, start)
        speed = tl.gather(left, last, axis=0) + a * entry
        # 1 / (1 + less_one) would leave no digits where the flow expands, and divide by 0.
        growth = tl.exp(-tl.minimum(tl.maximum(-a * time, -_LOG_MAX), _LOG_MAX))
        arrival = speed * growth
        stretch = tl.where(crosses, arrival / tl.where(crosses, u, 1.0), growth)
        if POINTS:
            tl.store(by_point + s * N + i, g * stretch, mask=i < N)
        at_left, at_right = _split_between_ends(g * growth, g * growth * speed, entry, a, time)
        by_left += _sum_by_cell(last, at_left, k)
        by_right += _sum_by_cell(last, at_right, k)
        weight = tl.where(crosses, g * stretch, 0.0)
        a = tl.gather(slope, first, axis=0)
        at_left, at_right = _split_between_ends(weight, weight * u, start, a, exit_time)
        by_left += _sum_by_cell(first, at_left, k)
        by_right += _sum_by_cell(first, at_right, k)
        begin, end = tl.minimum(first, last) + 1, tl.maximum(first, last)
        by_time = tl.where(crosses, g * arrival, 0.0)
        between = (begin[:, None] <= k[None, :]) & (k[None, :] < end[:, None])
        times += tl.sum(tl.where(between, by_time[:, None], 0.0), axis=0)
    crossed = crossing < _NEVER
    entry = tl.where(left < 0, 1.0, 0.0)
    speed = tl.where(crossed, left + slope * entry, 1.0)
    weight = tl.where(crossed, times, 0.0) / speed
    at_left, at_right = _split_between_ends(weight, weight * speed, entry, slope, crossing)
    by_left += at_left
    by_right += at_right
    d = tl.arange(0, DP)
    total = tl.sum(by_left[:, None] * left_rows + by_right[:, None] * right_rows, axis=0)
    tl.store(by_theta + s * D + d, total, mask=d < D)


_launch_forward = Launcher(_forward, warps=4)
_launch_backward = Launcher(_backward, warps=4)


def flow_forward(theta: Tensor, nodal: Tensor, points: Tensor, closed: bool) -> Tensor:
    """Move points for unit time. All tensors are contiguous and, but for nodal in float64, in float32.

    Args:
        theta: (..., D).
        nodal: (n + 1, D), velocities at the nodes per unit of theta; (G, n + 1, D) for G groups of consecutive thetas.
        points: (..., N, 1), or (N, 1) shared by all thetas.
        closed: whether the velocity is zero at both ends.

    Returns:
        (..., N, 1).
    """
    shape, _, programs, numbers, constants = _plan(theta.shape, nodal.shape, points.shape, closed)
    out = theta.new_empty(shape)
    _launch_forward(theta.get_device(), programs, (theta, nodal, points, out, *numbers), constants)
    return out


def flow_backward(
    grad: Tensor, theta: Tensor, nodal: Tensor, points: Tensor, closed: bool, to_points: bool
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to theta (..., D) and, if asked for, to the points of each theta (..., N, 1)."""
    by_theta = torch.empty_like(theta)
    by_point = torch.empty_like(grad) if to_points else by_theta  # not written to unless asked for
    _, programs, _, numbers, constants = _plan(theta.shape, nodal.shape, points.shape, closed)
    arguments = (grad, theta, nodal, points, by_theta, by_point, *numbers)
    _launch_backward(theta.get_device(), programs, arguments, (*constants, to_points))
    return by_theta, by_point if to_points else theta.new_empty(0)


@lru_cache(maxsize=256)  # for a small call this would be a tenth of the host's time
def _plan(theta: Shape, nodal: Shape, points: Shape, closed: bool) -> tuple[Shape, int, int, Shape, Shape]:
    """The shape of the moved points, how many thetas and blocks of points, and the numbers and constants of kernels."""
    *lead, d = theta
    nodes, size, thetas = nodal[-2], points[-2], math.prod(lead)
    group = thetas // math.prod(nodal[:-2])  # how many thetas share a basis
    stride = 0 if len(points) == 2 else size
    block = min(256, next_power_of_two(size))
    constants = (nodes - 1, d, closed, next_power_of_two(nodes + 2), next_power_of_two(d), block)
    return ((*lead, size, 1), thetas, thetas * -(-size // block), (size, group, stride), constants)
