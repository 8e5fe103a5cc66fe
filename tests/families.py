"""Every family of transformations, with plausible thetas: the list that invariants are tested on."""

import torch

import pstn

FAMILIES = {
    "rotation": pstn.Rotation(), "translation": pstn.Translation(), "translation-1d": pstn.Translation(ndim=1),
    "translation-3d": pstn.Translation(ndim=3), "shift": pstn.Translation(scale=1.0), "crop": pstn.Crop(),
    "crop-log": pstn.Crop(scale="log"), "crop-1d": pstn.Crop(ndim=1), "crop-3d": pstn.Crop(ndim=3),
    "similarity": pstn.Similarity(), "similarity-log": pstn.Similarity(scale="log"), "affine": pstn.Affine(),
    "affine-3d": pstn.Affine(ndim=3),
}  # fmt: skip
# Families whose maps are not affine: the same invariants but those of matrices.
SMOOTH_FAMILIES = {
    "cpab-1d": pstn.CPAB(tess=5),
    "cpab-2d": pstn.CPAB(tess=(2, 2)),
    "similarity-then-cpab": pstn.Compose([pstn.Similarity(), pstn.CPAB(tess=(2, 2))]),
}
# Their theta cannot express the identity, nor an inverse.
WITHOUT_IDENTITY = {"translation", "translation-1d", "translation-3d"}
SIZES = {1: (9,), 2: (5, 7), 3: (3, 4, 5)}


def near_identity(family, *shape, spread=0.3, dtype=torch.float64, generator=None):
    """Thetas (*shape, D) within `spread` of the initial one, far from a singular map."""
    noise = torch.rand(*shape, family.dim, dtype=dtype, generator=generator) * 2 - 1
    return family.initial().to(dtype) + spread * noise
