"""CPAB: smooth, invertible warps that integrate a continuous piecewise-affine velocity field."""

from pstn.transforms.cpab.transform import CPAB, SmoothPrior

__all__ = ["CPAB", "SmoothPrior"]
