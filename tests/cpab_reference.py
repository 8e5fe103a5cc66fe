"""CPAB written the slow, plain way, from the definition: the reference for the tests."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from pstn.transforms import CPAB


def cell_of(x, tess):
    """The index of the cell of a point of [0, 1]^d, in the order of B's rows."""
    if len(tess) == 1:
        return min(max(int(np.floor(x[0] * tess[0])), 0), tess[0] - 1)
    nx, ny = tess
    i = min(max(int(np.floor(x[0] * nx)), 0), nx - 1)
    j = min(max(int(np.floor(x[1] * ny)), 0), ny - 1)
    u, v = x[0] * nx - i - 0.5, x[1] * ny - j - 0.5
    side = (0 if u < 0 else 1) if abs(u) >= abs(v) else (2 if v < 0 else 3)
    return 4 * (j * nx + i) + side


def velocity(transform: CPAB, theta, p):
    """dp/dt in [-1, 1]: 2 v((p + 1) / 2) with v(x) = A_c [x; 1], taken from B's rows; outside, at the nearest point."""
    entries = (transform.basis.double().numpy() @ np.asarray(theta, dtype=np.float64)).reshape(
        -1, transform.ndim, transform.ndim + 1
    )
    x = np.clip((np.asarray(p, dtype=np.float64) + 1) / 2, 0, 1)
    return 2 * entries[cell_of(x, transform.tess)] @ np.append(x, 1.0)


def flow(transform: CPAB, theta, points, max_step=0.01):
    """Every point on its own by DOP853. Small steps, because its error estimate does not see kinks."""
    ends = [
        solve_ivp(
            lambda _, p: velocity(transform, theta, p),
            (0, 1),
            point,
            method="DOP853",
            rtol=1e-10,
            atol=1e-11,
            max_step=max_step,
        ).y[:, -1]
        for point in np.asarray(points, dtype=np.float64)
    ]
    return np.array(ends)
