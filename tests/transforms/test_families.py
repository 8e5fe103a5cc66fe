"""Invariants that hold for every family, in one loop; and against torch's own affine_grid."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import pstn
from families import FAMILIES, SIZES, SMOOTH_FAMILIES, near_identity
from pstn.transforms import base_grid

WITH_INVERSE = {name: f for name, f in FAMILIES.items() if f.has_identity}
EVERY = {**FAMILIES, **SMOOTH_FAMILIES}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
every_invertible_family = pytest.mark.parametrize("family", WITH_INVERSE.values(), ids=WITH_INVERSE.keys())


@every_family
def test_shapes_and_dtypes(family):
    size = SIZES[family.ndim]
    assert len(family.names) == family.dim
    for dtype, expected in [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ]:
        theta = near_identity(family, 3, 2).to(dtype)
        grid = family.grid(theta, size)
        assert grid.shape == (3, 2, *size, family.ndim)
        assert grid.dtype == expected
    points = torch.rand(3, 2, 11, family.ndim, dtype=torch.float64)
    assert family.apply(theta.double(), points).shape == points.shape
    assert family.corners(theta).shape == (3, 2, 2**family.ndim, family.ndim)


@pytest.mark.parametrize("family", EVERY.values(), ids=EVERY.keys())
def test_leading_axes_broadcast_either_way(family):
    theta, points = near_identity(family, 3), torch.rand(4, 3, 6, family.ndim, dtype=torch.float64) * 2 - 1
    for t, p in [(theta, points), (theta[0], points), (theta, points[0, 0]), (theta[:, None], points[:1, 0])]:
        lead = torch.broadcast_shapes(t.shape[:-1], p.shape[:-2])
        one_by_one = [
            family.apply(a, b)
            for a, b in zip(
                t.expand(*lead, -1).reshape(-1, family.dim),
                p.expand(*lead, -1, -1).reshape(-1, 6, family.ndim),
                strict=True,
            )
        ]
        expected = torch.stack(one_by_one).reshape(*lead, 6, family.ndim)
        torch.testing.assert_close(family.apply(t, p), expected, rtol=0, atol=1e-9)
        back = family.apply_inverse(t, family.apply(t, p))
        torch.testing.assert_close(back, p.expand(*lead, -1, -1), rtol=0, atol=1e-6)


@every_family
def test_grid_is_apply_on_pixel_centres(family):
    size = SIZES[family.ndim]
    theta = near_identity(family, 4)
    points = base_grid(size, dtype=torch.float64).flatten(0, -2)
    grid = family.grid(theta, size, aspect=(1.0,) * family.ndim).flatten(1, -2)
    torch.testing.assert_close(grid, family.apply(theta, points), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if f.ndim > 1], ids=str)
def test_grid_equals_affine_grid(family):
    size = SIZES[family.ndim]
    theta = near_identity(family, 4, dtype=torch.float32)
    expected = F.affine_grid(family.matrix(theta, aspect=size[::-1]), (4, 1, *size), align_corners=False)
    torch.testing.assert_close(family.grid(theta, size), expected, rtol=0, atol=1e-6)


def test_one_dimension_is_a_line():
    theta = torch.tensor([[0.5, 0.25], [-1.0, 0.0]], dtype=torch.float64)
    grid = pstn.Crop(ndim=1).grid(theta, 4)
    centres = torch.tensor([-0.75, -0.25, 0.25, 0.75], dtype=torch.float64)
    torch.testing.assert_close(grid[..., 0], torch.stack([0.5 * centres + 0.25, -centres]))


@every_invertible_family
def test_identity_changes_nothing(family):
    size = SIZES[family.ndim]
    grid = family.grid(family.identity(), size)
    torch.testing.assert_close(grid, base_grid(size), rtol=0, atol=1e-7)


@every_family
@given(seed=st.integers(0, 10**6))
def test_apply_inverse_undoes_apply(family, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = near_identity(family, 5, generator=generator)
    points = torch.rand(5, 7, family.ndim, dtype=torch.float64, generator=generator) * 2 - 1
    aspect = (1.7, 0.6, 1.2)[: family.ndim]
    there = family.apply(theta, points, aspect=aspect)
    torch.testing.assert_close(family.apply_inverse(theta, there, aspect=aspect), points, rtol=0, atol=1e-9)


@every_invertible_family
@given(seed=st.integers(0, 10**6))
def test_inverse_is_in_the_family(family, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = near_identity(family, 5, generator=generator)
    points = torch.rand(5, 7, family.ndim, dtype=torch.float64, generator=generator) * 2 - 1
    aspect = (1.7, 0.6, 1.2)[: family.ndim]
    back = family.apply(family.inverse(theta, aspect=aspect), points, aspect=aspect)
    torch.testing.assert_close(back, family.apply_inverse(theta, points, aspect=aspect), rtol=0, atol=1e-9)
    torch.testing.assert_close(family.inverse(family.inverse(theta, aspect=aspect), aspect=aspect), theta)


@every_family
@given(seed=st.integers(0, 10**6))
def test_composition_is_the_product_of_matrices(family, seed):
    generator = torch.Generator().manual_seed(seed)
    outer, inner = near_identity(family, 2, 5, generator=generator)
    points = torch.rand(5, 7, family.ndim, dtype=torch.float64, generator=generator) * 2 - 1
    bottom = torch.tensor([[0.0] * family.ndim + [1.0]], dtype=torch.float64).expand(5, 1, -1)
    product = torch.cat([family.matrix(outer), bottom], 1) @ torch.cat([family.matrix(inner), bottom], 1)
    homogeneous = torch.cat([points, torch.ones_like(points[..., :1])], -1)
    expected = (homogeneous @ product.mT)[..., : family.ndim]
    torch.testing.assert_close(family.apply(outer, family.apply(inner, points)), expected, rtol=0, atol=1e-10)


@every_family
def test_gradients(family):
    theta = near_identity(family, 2).requires_grad_()
    points = torch.rand(2, 3, family.ndim, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: family.grid(t, SIZES[family.ndim]), theta)
    assert torch.autograd.gradcheck(family.apply, (theta, points))
    assert torch.autograd.gradcheck(family.apply_inverse, (theta, points))
    if family.has_identity:
        assert torch.autograd.gradcheck(family.inverse, theta)


@every_family
def test_theta_of_the_wrong_width_is_refused(family):
    with pytest.raises(ValueError, match=rf"theta must have shape \(\.\.\., {family.dim}\)"):
        family.grid(torch.zeros(2, family.dim + 1), SIZES[family.ndim])


@every_family
def test_module_apply_still_visits_submodules(family):
    visited = []
    torch.nn.Sequential(family).apply(lambda module: visited.append(type(module).__name__))
    assert visited == [type(family).__name__, "Sequential"]


def test_translation_says_that_it_has_no_identity_or_inverse():
    crop = pstn.Translation()
    assert not crop.has_identity
    with pytest.raises(ValueError, match="no identity"):
        crop.identity()
    with pytest.raises(ValueError, match="no inverse"):
        crop.inverse(torch.zeros(2))
    torch.testing.assert_close(crop.initial(), torch.zeros(2))
    torch.testing.assert_close(
        pstn.Translation(scale=1.0).inverse(torch.tensor([0.1, 0.2])), torch.tensor([-0.1, -0.2])
    )


def test_similarity_is_equation_1():
    r, s, tx, ty = 0.7, 1.3, 0.2, -0.4
    expected = [[s * math.cos(r), -s * math.sin(r), tx], [s * math.sin(r), s * math.cos(r), ty]]
    matrix = pstn.Similarity().matrix(torch.tensor([r, s, tx, ty], dtype=torch.float64))
    torch.testing.assert_close(matrix, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("family", [pstn.Rotation(), pstn.Similarity()], ids=["rotation", "similarity"])
def test_a_rotation_is_rigid_on_an_input_that_is_not_square(family):
    size = (20, 50)
    theta = family.initial().double().clone()
    theta[0] = 0.8
    before = pstn.to_pixels(base_grid(size, dtype=torch.float64), size).flatten(0, 1)
    after = pstn.to_pixels(family.grid(theta, size), size).flatten(0, 1)
    torch.testing.assert_close(torch.cdist(after, after), torch.cdist(before, before), rtol=0, atol=1e-4)
    stretched = pstn.to_pixels(family.grid(theta, size, aspect=(1, 1)), size).flatten(0, 1)
    assert (torch.cdist(stretched, stretched) - torch.cdist(before, before)).abs().max() > 5


@given(raw=st.floats(-1e30, 1e30))
def test_a_logarithmic_scale_neither_collapses_nor_flips(raw):
    for family, theta in [
        (pstn.Crop(scale="log"), [raw, 0.0, 0.0]),
        (pstn.Similarity(scale="log"), [0.0, raw, 0.0, 0.0]),
    ]:
        scale = family.matrix(torch.tensor(theta))[0, 0]
        assert 9e-4 < scale < 1.1e3


def test_corners_are_the_box_that_a_theta_looks_at():
    corners = pstn.Crop().corners(torch.tensor([0.5, 0.25, -0.25]))
    torch.testing.assert_close(corners, torch.tensor([[-0.25, -0.75], [0.75, -0.75], [0.75, 0.25], [-0.25, 0.25]]))
    assert pstn.Crop(ndim=3).corners(torch.tensor([1.0, 0, 0, 0])).unique(dim=0).shape == (8, 3)


def test_pixels_and_back():
    points = torch.rand(5, 3, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(pstn.from_pixels(pstn.to_pixels(points, (4, 6, 9)), (4, 6, 9)), points)
    first_and_last = pstn.to_pixels(base_grid((1, 6)), (1, 6))[0, [0, -1], 0]
    torch.testing.assert_close(first_and_last, torch.tensor([0.0, 5.0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pstn.Affine(ndim=1), "ndim of Affine must be one of 2, 3, got 1"),
        (lambda: pstn.Crop(ndim=4), "ndim of Crop must be one of 1, 2, 3, got 4"),
        (lambda: pstn.Crop(scale="cubic"), "scale must be one of 'linear', 'log', got 'cubic'"),
        (lambda: pstn.Translation(scale=0.0), "scale must be a finite number above 0"),
        (lambda: pstn.Crop().grid(torch.zeros(3), (0, 4)), r"size\[0\] must be at least 1, got 0"),
        (lambda: pstn.Crop().grid(torch.zeros(3), (4,)), "size must hold 2 whole number"),
        (lambda: pstn.Crop().apply(torch.zeros(3), torch.zeros(5, 3)), r"points must have shape \(\.\.\., N, 2\)"),
        (lambda: pstn.Crop().grid(torch.zeros(3), (4, 4), aspect=(1.0, -1.0)), "aspect must hold 2 numbers above 0"),
        (lambda: pstn.Rotation(ndim=3), "ndim of Rotation must be one of 2, got 3"),
        (lambda: pstn.to_pixels(torch.zeros(3, 2), (28,)), "size must hold 2 numbers"),
        (lambda: pstn.Crop().corners(torch.zeros(3), aspect=2.0), "aspect must hold 2 numbers above 0"),
        (lambda: pstn.make_transform("similarity", ndim=1), "transform .* must be one of .*'crop'"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_apply_without_points_says_what_it_needs():
    with pytest.raises(TypeError, match=r"apply needs points of shape \(\.\.\., N, 2\)"):
        pstn.Similarity().apply(torch.zeros(4))


def test_integer_theta_is_refused():
    with pytest.raises(TypeError, match="theta must be a floating-point tensor"):
        pstn.Crop().grid(torch.zeros(3, dtype=torch.long), (4, 4))
