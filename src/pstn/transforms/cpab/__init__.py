"""CPAB: smooth, invertible warps that integrate a continuous piecewise-affine velocity field."""

from pstn.transforms.cpab.prior import SmoothPrior
from pstn.transforms.cpab.transform import CPAB

__all__ = ["CPAB", "SmoothPrior"]
