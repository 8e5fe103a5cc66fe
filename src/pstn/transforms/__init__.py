"""Families of transformations: from parameters theta to coordinates."""

from pstn.transforms.affine import Affine, Crop, Rotation, Similarity, Translation, read_scale
from pstn.transforms.base import MatrixTransform, Transform
from pstn.transforms.compose import Compose
from pstn.transforms.coordinates import base_grid, from_pixels, to_pixels
from pstn.transforms.cpab import CPAB, SmoothPrior
from pstn.transforms.registry import make_transform

__all__ = [
    "CPAB", "Affine", "Compose", "Crop", "MatrixTransform", "Rotation", "Similarity", "SmoothPrior", "Transform",
    "Translation", "base_grid", "from_pixels", "make_transform", "read_scale", "to_pixels",
]  # fmt: skip
