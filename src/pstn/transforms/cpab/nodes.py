"""From theta to the velocities at the nodes of a tessellation."""

from __future__ import annotations

from torch import Tensor

__all__ = ["node_velocities"]


def node_velocities(theta: Tensor, nodal: Tensor) -> Tensor:
    """The velocities at the nodes, with all the digits of theta's dtype.

    Args:
        theta: (..., D), or (G, S, D).
        nodal: (K, D), or (G, K, D).

    Returns:
        (..., K), or (G, S, K).
    """
    if theta.device.type == "mps":  # which has no float64
        return (theta[..., None, :] * nodal.unsqueeze(-3)).sum(-1)
    # In float32, TF32 and autocast would round a product of matrices to a few bits; neither touches float64.
    return (theta.double() @ nodal.double().mT).to(theta.dtype)
