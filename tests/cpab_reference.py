"""CPAB from its definition, by a general-purpose integrator: the reference for the tests."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from pstn.transforms import CPAB


def cells_of(x, tess):
    """The cells of points (N, d) of [0, 1]^d, in the order of B's rows."""
    index = np.clip(np.floor(x * tess), 0, np.array(tess) - 1).astype(int)
    if len(tess) == 1:
        return index[:, 0]
    u, v = (x * tess - index - 0.5).T
    side = np.where(np.abs(u) >= np.abs(v), np.where(u < 0, 0, 1), np.where(v < 0, 2, 3))
    return 4 * (index[:, 1] * tess[0] + index[:, 0]) + side


def velocity(transform: CPAB, theta, points):
    """dp/dt in [-1, 1] at points (N, d): 2 v((p + 1) / 2) with v(x) = A_c [x; 1]; outside, at the nearest point."""
    entries = transform.basis.double().numpy() @ np.asarray(theta, dtype=np.float64)
    x = np.clip((np.asarray(points, dtype=np.float64) + 1) / 2, 0, 1)
    affine = entries.reshape(-1, transform.ndim, transform.ndim + 1)[cells_of(x, transform.tess)]
    return 2 * np.einsum("nij,nj->ni", affine, np.concatenate([x, np.ones((len(x), 1))], axis=1))


def flow(transform: CPAB, theta, points, max_step=0.01):
    """Points (N, d) after unit time, by DOP853; with small steps, as its error estimate does not account for kinks."""
    points = np.asarray(points, dtype=np.float64)
    solution = solve_ivp(
        lambda _, p: velocity(transform, theta, p.reshape(points.shape)).ravel(),
        (0, 1),
        points.ravel(),
        method="DOP853",
        rtol=1e-10,
        atol=1e-11,
        max_step=max_step,
    )
    return solution.y[:, -1].reshape(points.shape)
