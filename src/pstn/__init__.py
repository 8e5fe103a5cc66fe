"""Probabilistic Spatial Transformer Networks."""

from pstn.transforms import (
    CPAB,
    Affine,
    Compose,
    Crop,
    MatrixTransform,
    Rotation,
    Similarity,
    SmoothPrior,
    Transform,
    Translation,
    from_pixels,
    to_pixels,
)

__all__ = [
    "CPAB",
    "Affine",
    "Compose",
    "Crop",
    "MatrixTransform",
    "Rotation",
    "Similarity",
    "SmoothPrior",
    "Transform",
    "Translation",
    "from_pixels",
    "to_pixels",
]

__version__ = "0.1.0"
