"""Probabilistic Spatial Transformer Networks."""

from pstn.transforms import (
    Affine,
    Crop,
    MatrixTransform,
    Rotation,
    Similarity,
    Transform,
    Translation,
    from_pixels,
    to_pixels,
)

__all__ = [
    "Affine",
    "Crop",
    "MatrixTransform",
    "Rotation",
    "Similarity",
    "Transform",
    "Translation",
    "from_pixels",
    "to_pixels",
]

__version__ = "0.1.0"
