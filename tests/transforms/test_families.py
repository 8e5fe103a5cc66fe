"""Invariants of every family, in one loop; and a comparison with torch's affine_grid."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import pstn
from families import FAMILIES, SIZES, SMOOTH_FAMILIES, WITHOUT_IDENTITY, near_identity
from pstn.transforms import base_grid, coordinates
from pstn.transforms.base import invert_matrix
from pstn.transforms.coordinates import cached_grid_points
from refusals import refused

# By name, not by `has_identity`, which is under test.
WITH_INVERSE = {name: f for name, f in FAMILIES.items() if name not in WITHOUT_IDENTITY}
EVERY = {**FAMILIES, **SMOOTH_FAMILIES}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
every_invertible_family = pytest.mark.parametrize("family", WITH_INVERSE.values(), ids=WITH_INVERSE.keys())


def draw(family, seed, *lead):
    """Thetas (*lead, D), points (*lead, 7, ndim), and an aspect that is not square."""
    generator = torch.Generator().manual_seed(seed)
    theta = near_identity(family, *lead, generator=generator)
    points = torch.rand(*lead, 7, family.ndim, dtype=torch.float64, generator=generator) * 2 - 1
    return theta, points, (1.7, 0.6, 1.2)[: family.ndim]


@every_family
def test_shapes_and_dtypes(family):
    size, f32, f64 = SIZES[family.ndim], torch.float32, torch.float64
    assert len(family.names) == len(family.circular) == family.dim
    theta, points, _ = draw(family, 0, 3, 2)
    for dtype, expected in [(f64, f64), (f32, f32), (torch.bfloat16, f32)]:
        grid = family.grid(theta.to(dtype), size)
        assert grid.shape == (3, 2, *size, family.ndim)
        assert grid.dtype == family.corners(theta.to(dtype)).dtype == expected
    assert family.apply(theta, points).shape == points.shape
    assert family.corners(theta).shape == (3, 2, 2**family.ndim, family.ndim)
    with torch.device("meta"):  # as models are built before their weights are read
        assert type(family)(ndim=family.ndim).dim == family.dim
    with pytest.raises(ValueError, match=rf"^theta .*{family.dim}"):
        family.grid(torch.zeros(2, family.dim + 1), size)


@pytest.mark.parametrize("family", EVERY.values(), ids=EVERY.keys())
def test_leading_axes_broadcast_either_way(family):
    theta, points = near_identity(family, 3), torch.rand(4, 3, 6, family.ndim, dtype=torch.float64) * 2 - 1
    for t, p in [(theta, points), (theta[0], points), (theta, points[0, 0]), (theta[:, None], points[:1, 0])]:
        lead = torch.broadcast_shapes(t.shape[:-1], p.shape[:-2])
        whole = p.expand(*lead, -1, -1)
        pairs = zip(t.expand(*lead, -1).reshape(-1, family.dim), whole.reshape(-1, 6, family.ndim), strict=True)
        expected = torch.stack([family.apply(*pair) for pair in pairs]).reshape(whole.shape)
        torch.testing.assert_close(family.apply(t, p), expected, rtol=0, atol=1e-9)
        back = family.apply_inverse(t, family.apply(t, p))
        torch.testing.assert_close(back, whole, rtol=0, atol=1e-6)


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


@every_invertible_family
def test_identity_changes_nothing(family):
    size = SIZES[family.ndim]
    assert family.has_identity
    grid = family.grid(family.identity(), size)
    torch.testing.assert_close(grid, base_grid(size), rtol=0, atol=1e-7)


@every_family
def test_apply_inverse_undoes_apply(family):
    theta, points, aspect = draw(family, 0, 200)
    there = family.apply(theta, points, aspect=aspect)
    torch.testing.assert_close(family.apply_inverse(theta, there, aspect=aspect), points, rtol=0, atol=1e-9)


@every_invertible_family
def test_inverse_is_in_the_family(family):
    theta, points, aspect = draw(family, 0, 2, 100)
    inverse = family.inverse(theta, aspect=aspect)
    back = family.apply(inverse, points, aspect=aspect)
    torch.testing.assert_close(back, family.apply_inverse(theta, points, aspect=aspect), rtol=0, atol=1e-9)
    torch.testing.assert_close(family.inverse(inverse, aspect=aspect), theta)
    torch.testing.assert_close(family.inverse(inverse[0, 0], aspect=aspect), theta[0, 0])


@every_family
def test_composition_is_the_product_of_matrices(family):
    (outer, inner), (points, _), _ = draw(family, 0, 2, 100)
    bottom = torch.tensor([[0.0] * family.ndim + [1.0]], dtype=torch.float64).expand(100, 1, -1)
    product = torch.cat([family.matrix(outer), bottom], 1) @ torch.cat([family.matrix(inner), bottom], 1)
    expected = (F.pad(points, (0, 1), value=1.0) @ product.mT)[..., : family.ndim]
    torch.testing.assert_close(family.apply(outer, family.apply(inner, points)), expected, rtol=0, atol=1e-10)


@every_family
def test_gradients(family):
    theta = near_identity(family, 2).requires_grad_()
    points = torch.rand(2, 3, family.ndim, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: family.grid(t, SIZES[family.ndim]), theta)
    assert torch.autograd.gradcheck(family.apply, (theta, points))
    assert torch.autograd.gradcheck(family.apply_inverse, (theta, points))
    if family in WITH_INVERSE.values():
        assert torch.autograd.gradcheck(family.inverse, theta)


@pytest.mark.parametrize("family", EVERY.values(), ids=EVERY.keys())
def test_boxes_of_a_batch_contain_their_mapped_corners(family):
    """Every theta its own boxes, or boxes shared by all; the result touches a mapped corner on every side."""
    n = family.ndim
    theta, aspect = near_identity(family, 2, 3), (1.7, 0.6, 1.2)[:n]
    lower, upper = torch.rand(2, 2, 3, 4, n, dtype=torch.float64) * torch.tensor([-0.4, 0.4]).view(2, 1, 1, 1, 1)
    which = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n)
    corners = torch.where(which[:, None], upper[..., None, :, :], lower[..., None, :, :])  # (2, 3, 2**n, 4, n)
    mapped = family.apply_inverse(theta[:, :, None], corners, aspect=aspect)
    expected = torch.cat([mapped.amin(2), mapped.amax(2)], -1)
    boxes = torch.cat([lower, upper], -1)
    torch.testing.assert_close(family.warp_boxes(theta, boxes, aspect=aspect), expected)
    shared = family.warp_boxes(theta, boxes[0, 0], aspect=aspect)
    torch.testing.assert_close(shared[0, 0], expected[0, 0])
    assert shared.shape == expected.shape


def test_module_apply_still_visits_submodules():
    visited = []
    torch.nn.Sequential(pstn.Crop()).apply(lambda module: visited.append(type(module).__name__))
    assert visited == ["Crop", "Sequential"]


def test_a_translation_at_another_scale_has_no_identity_or_inverse():
    crop = pstn.Translation()
    assert not crop.has_identity
    with pytest.raises(ValueError, match="no identity"):
        crop.identity()
    with pytest.raises(ValueError, match="no inverse"):
        crop.inverse(torch.zeros(2))
    torch.testing.assert_close(crop.initial(), torch.zeros(2))


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
    stretched = pstn.to_pixels(family.grid(theta, size, aspect=(np.float64(1), 1)), size).flatten(0, 1)
    assert (torch.cdist(stretched, stretched) - torch.cdist(before, before)).abs().max() > 5


@given(raw=st.floats(-1e30, 1e30))
def test_a_logarithmic_scale_stays_positive_and_finite(raw):
    assert 9e-4 < pstn.Crop(scale="log").matrix(torch.tensor([raw, 0.0, 0.0]))[0, 0] < 1.1e3
    assert 9e-4 < pstn.Similarity(scale="log").matrix(torch.tensor([0.0, raw, 0.0, 0.0]))[0, 0] < 1.1e3


def test_corners_are_the_box_that_a_theta_reads():
    torch.testing.assert_close(pstn.Crop(ndim=1).corners(torch.tensor([0.5, 0.25])), torch.tensor([[-0.25], [0.75]]))
    corners = pstn.Crop().corners(torch.tensor([0.5, 0.25, -0.25]))
    torch.testing.assert_close(corners, torch.tensor([[-0.25, -0.75], [0.75, -0.75], [0.75, 0.25], [-0.25, 0.25]]))
    assert pstn.Crop(ndim=3).corners(torch.tensor([1.0, 0, 0, 0])).unique(dim=0).shape == (8, 3)


def test_pixels_and_back():
    points = torch.rand(5, 3, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(pstn.from_pixels(pstn.to_pixels(points, (4, 6, 9)), (4, 6, 9)), points)
    torch.testing.assert_close(pstn.to_pixels(base_grid((1, 6)), (1, 6))[0, [0, -1], 0], torch.tensor([0.0, 5.0]))
    for size in (28, np.int64(28), torch.Size([28])):
        torch.testing.assert_close(pstn.from_pixels(torch.tensor([[0], [27]]), size), base_grid((28,))[[0, -1]])


def whole_numbers(*shape):
    return torch.zeros(shape, dtype=torch.int64)


ASPECTS = [(1.0, -1.0), (math.inf, 2.0), (math.nan, 2.0), "ab", (None, 1), 2.0, (1.0, 1.0, 1.0)]


NAMES = {
    "rotation": [2], "similarity": [2], "similarity-log": [2], "translation": [1, 2, 3], "crop": [1, 2, 3],
    "crop-log": [1, 2, 3], "affine": [2, 3], "cpab": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize(("name", "ndims"), NAMES.items())
def test_a_name_stands_for_its_family_in_each_dimension(name, ndims):
    for ndim in (1, 2, 3):
        if ndim in ndims:
            family = pstn.make_transform(name, ndim)
            assert (type(family).__name__.lower(), family.ndim) == (name.removesuffix("-log"), ndim)
            assert (getattr(family, "scale", None) == "log") == name.endswith("-log")
        else:
            with pytest.raises(ValueError, match="transform"):
                pstn.make_transform(name, ndim)


test_bad_arguments_are_named = refused(
    (lambda: pstn.Affine(ndim=1), ValueError, "ndim of Affine"),
    (lambda: pstn.Crop(ndim=4), ValueError, "ndim of Crop"),
    (lambda: pstn.Rotation(ndim=3), ValueError, "ndim of Rotation"),
    (lambda: pstn.Crop(scale="cubic"), ValueError, "scale"),
    (lambda: pstn.Similarity(scale="cubic"), ValueError, "scale"),
    (lambda: pstn.Translation(scale=0.0), ValueError, "scale"),
    (lambda: pstn.Crop().grid(torch.zeros(3), (0, 4)), ValueError, r"size\[0\]"),
    (lambda: pstn.Crop().grid(torch.zeros(3), (4,)), ValueError, "size"),
    (lambda: pstn.to_pixels(torch.zeros(3, 2), 28), ValueError, "size"),
    (lambda: pstn.from_pixels(torch.zeros(3, 2), (28, 0)), ValueError, r"size\[1\]"),
    (lambda: pstn.Crop().apply(torch.zeros(3), torch.zeros(5, 3)), ValueError, "points"),
    (lambda: pstn.Crop().warp_boxes(torch.zeros(3), torch.zeros(5, 2)), ValueError, "boxes"),
    (lambda: pstn.make_transform("similarity", ndim=1), ValueError, "transform"),
    (lambda: pstn.make_transform("crop", ndim=4), ValueError, "ndim"),
    (lambda: pstn.Similarity().apply(torch.zeros(4)), TypeError, "apply needs points"),
    (lambda: pstn.Crop().grid(whole_numbers(3), (4, 4)), TypeError, "theta"),
    (lambda: pstn.Crop().apply(torch.zeros(3), whole_numbers(5, 2)), TypeError, "points"),
    (lambda: pstn.CPAB(tess=4).velocity(torch.zeros(3), whole_numbers(5, 1)), TypeError, "points"),
    (lambda: pstn.Crop().warp_boxes(torch.zeros(3), whole_numbers(5, 4)), TypeError, "boxes"),
    (lambda: pstn.to_pixels([[0.0]], 28), TypeError, "points"),
    (lambda: pstn.from_pixels(np.zeros((3, 1)), 28), TypeError, "pixels"),
    *[(lambda a=a: pstn.Similarity().corners(torch.zeros(4), aspect=a), ValueError, "aspect") for a in ASPECTS],
)


class Slide(pstn.Transform):
    """A user's own family, x -> x + theta, that may change the given points in place."""

    def __init__(self, in_place):
        super().__init__()
        self.ndim, self.dim, self.names, self.in_place = 2, 1, ("shift",), in_place

    def initial(self):
        return torch.zeros(1)

    def inverse(self, theta, *, aspect=None):
        return -theta

    def _map(self, theta, points, aspect):
        x, y = points.unbind(-1)
        if self.in_place:
            x += 0.5
        x = x + theta
        return torch.stack([x, y.expand_as(x)], dim=-1)

    def _unmap(self, theta, points, aspect):
        return self._map(-theta, points, aspect)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("family", [Slide(in_place=True), pstn.Compose(pstn.Crop(), Slide(in_place=True))])
def test_points_changed_in_place_are_an_error_and_affect_no_other_grid(mode, family):
    similarity = pstn.Similarity()
    before = similarity.grid(similarity.identity(), (5, 3))
    with mode(), pytest.raises(RuntimeError, match=type(family).__name__):
        family.grid(family.initial(), (5, 3))
    assert torch.equal(similarity.grid(similarity.identity(), (5, 3)), before)


def test_a_grid_changed_in_place_affects_no_other():
    class Whole(Slide):
        def _map(self, theta, points, aspect):
            return points

    Whole(False).grid(torch.zeros(1), (5, 3)).mul_(2)
    torch.testing.assert_close(Whole(False).grid(torch.zeros(1), (5, 3)), base_grid((5, 3)))


def test_the_points_of_a_grid_are_cached_unless_they_are_fake():
    with FakeTensorMode():
        pstn.Crop(ndim=1).grid(torch.zeros(2), 11)
    points_of = partial(cached_grid_points, dtype=torch.float32, device=torch.device("cpu"))
    coordinates._CACHE.clear()
    first = points_of((11,))
    torch.testing.assert_close(first, base_grid((11,)))
    for length in range(12, 11 + coordinates._CACHE_SIZE):
        points_of((length,))
    assert points_of((11,)) is first
    points_of((10,))
    assert len(coordinates._CACHE) == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_a_users_own_family_compiles(in_place):
    family, theta = Slide(in_place), torch.tensor([[0.1], [0.2]])
    compiled = torch.compile(lambda theta: family.grid(theta, (5, 3)), backend="eager", fullgraph=True)
    expected = base_grid((5, 3)) + torch.tensor([0.5 * in_place, 0.0])
    torch.testing.assert_close(compiled(torch.zeros(2, 1)), expected.expand(2, 5, 3, 2))
    if not in_place:
        torch.testing.assert_close(torch.vmap(lambda t: family.grid(t, (5, 3)))(theta), family.grid(theta, (5, 3)))


@pytest.mark.parametrize("aspect", [None, (7.0, 5.0, 3.0)])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_theta_is_told_from_its_matrix(family, aspect):
    theta = near_identity(family, 20, generator=torch.Generator().manual_seed(0))
    aspect = aspect and aspect[: family.ndim]
    found = family.from_matrix(family.matrix(theta, aspect=aspect), aspect=aspect)
    torch.testing.assert_close(found, theta)


def test_an_inverse_matrix_is_numpys():
    for n in (1, 2, 3):
        matrix = torch.randn(10, n, n + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        linear = np.linalg.inv(matrix[..., :n].numpy())
        expected = np.concatenate([linear, -linear @ matrix[..., n:].numpy()], -1)
        np.testing.assert_allclose(invert_matrix(matrix).numpy(), expected, rtol=1e-8)


def test_a_matrix_of_another_shape_or_a_family_that_reads_none_is_refused():
    class Mirror(pstn.MatrixTransform):
        ndim, dim, names = 2, 1, ("a",)

        def initial(self):
            return torch.zeros(1)

        def inverse(self, theta, *, aspect=None):
            return theta

        def _matrix(self, theta, aspect):
            return theta[..., None, None].expand(*theta.shape[:-1], 2, 3)

    with pytest.raises(ValueError, match="matrix must"):
        pstn.Affine().from_matrix(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="_from_matrix"):
        Mirror().from_matrix(torch.zeros(2, 3))
