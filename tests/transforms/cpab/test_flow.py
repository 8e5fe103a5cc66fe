"""CPAB's maps and gradients, against an independent integrator and against the properties of a flow."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from cpab_reference import flow, velocity
from pstn import CPAB
from pstn.transforms.cpab import line

LINE = [CPAB(tess=10), CPAB(tess=3), CPAB(tess=10, zero_boundary=False), CPAB(tess=40)]
PLANE = [CPAB(tess=(3, 3)), CPAB(tess=(2, 3), zero_boundary=False), CPAB(tess=(3, 3), volume_preserving=True)]
FAMILIES = LINE + PLANE
# A family, the scale and seed of a theta, and a start whose trajectory passes close to a vertex.
# The last one enters and leaves a triangle within a step.
PAST_CORNERS = [
    (1, 1.0, 40, (1.5867094, 0.0008212)),
    (0, 3.0, 31, (-0.107759, -0.640544)),
    (0, 3.0, 25, (0.0860735366, -0.112683402)),
]


def named(transform):
    return str(transform)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_integrals_of_a_cell_keep_their_digits_near_a_speed_without_slope(dtype, rtol):
    z = torch.cat([torch.logspace(-3, 0, 200, dtype=dtype), -torch.logspace(-3, 0, 200, dtype=dtype)])
    exact = z.numpy().astype(np.longdouble)
    first, second = line._integrals(z.clone(), torch.ones_like(z))
    np.testing.assert_allclose(first.numpy(), np.expm1(exact) / exact, rtol=rtol)
    np.testing.assert_allclose(second.numpy(), (np.expm1(exact) - exact) / exact**2, rtol=rtol)


def draw(transform, scale, seed, count=None, dtype=torch.float64):
    shape = (transform.dim,) if count is None else (count, transform.dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * scale


def scatter(transform, count, seed, reach=1.2):
    points = torch.rand(count, transform.ndim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * points - 1) * reach


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_velocity_follows_the_definition(transform):
    theta, points = draw(transform, 1.0, 0), scatter(transform, 50, 1)
    assert np.allclose(transform.velocity(theta, points), velocity(transform, theta, points), atol=1e-12)


@pytest.mark.parametrize("transform", LINE, ids=named)
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_line_against_dop853(transform, scale):
    # Both precisions get the same numbers, so that only the arithmetic differs.
    theta = draw(transform, scale, int(scale * 10)).float().double()
    points = torch.cat([scatter(transform, 4, 2), torch.linspace(-1, 1, 3)[:, None]]).float().double()
    expected = flow(transform, theta.numpy(), points.numpy(), max_step=0.004)
    assert np.abs(transform.apply(theta, points).numpy() - expected).max() < 1e-6
    assert np.abs(transform.apply(theta.float(), points.float()).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("transform", PLANE, ids=named)
@pytest.mark.parametrize(("scale", "tolerance"), [(0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-4)])
def test_plane_against_dop853(transform, scale, tolerance):
    theta, points = draw(transform, scale, int(scale * 10)), scatter(transform, 5, 3)
    points[0], points[1] = torch.tensor([0.0, 0.0]), torch.tensor([1 / 3, -1 / 3])
    expected = flow(transform, theta.numpy(), points.numpy())
    assert np.abs(transform.apply(theta, points).numpy() - expected).max() < tolerance / 10
    assert np.abs(transform.apply(theta.float(), points.float()).numpy() - expected).max() < tolerance


@pytest.mark.parametrize(("which", "scale", "seed", "point"), PAST_CORNERS)
def test_plane_past_a_corner_against_dop853(which, scale, seed, point):
    """Close to a vertex, where two edges are crossed almost at once, the right one comes first."""
    transform, points = PLANE[which], torch.tensor([point], dtype=torch.float64)
    theta = draw(transform, scale, seed)
    expected = flow(transform, theta.numpy(), points.numpy(), max_step=0.002)
    assert np.abs(transform.apply(theta, points).numpy() - expected).max() < 1e-7


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_gradients(transform, scale):
    theta = draw(transform, scale, 5, count=2).requires_grad_()
    reach = 0.97 if transform.zero_boundary else 1.1
    points = scatter(transform, 6, 6, reach).expand(2, -1, -1).clone().requires_grad_()
    assert gradcheck(transform.apply, (theta, points), fast_mode=transform.ndim == 2, atol=1e-5)


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_gradients_at_cell_borders(transform):
    """On the nodes of the tessellation and on its diagonals the map is differentiable, as the velocity is not 0."""
    theta = draw(transform, 1.0, 8).requires_grad_()
    axis = torch.linspace(-1, 1, transform.tess[0] + 1, dtype=torch.float64)[1:-1]
    points = axis[:, None].expand(-1, transform.ndim).clone()
    if transform.ndim == 2:
        points = torch.cat([points, torch.tensor([[0.1, 0.1], [-0.2, 0.2], [0.0, 1 / 3]], dtype=torch.float64)])
    fast = transform.ndim == 2
    assert gradcheck(transform.apply, (theta, points.requires_grad_()), fast_mode=fast, atol=1e-5)


def test_gradients_in_cells_of_zero_slope():
    """A constant velocity across a cell, entered from both sides, and no velocity at all."""
    transform = CPAB(tess=5)
    nodes = torch.tensor([[0.0, 0.2, 0.2, 0.2, -0.1, 0.0], [0.0, 0.3, 0.0, 0.0, 0.3, 0.0], [0.0] * 6]).double()
    # theta from the velocities at the inner nodes, by solving what `nodes` computes.
    matrix = transform.nodes(torch.eye(4, dtype=torch.float64))[..., 0].T[1:-1]
    theta = torch.linalg.solve(matrix, nodes[:, 1:-1].T).T
    theta = torch.where(theta.abs() < 1e-15, 0.0, theta).contiguous().requires_grad_()
    assert torch.allclose(transform.nodes(theta)[..., 0], nodes, atol=1e-12)
    points = torch.tensor([-0.95, -0.5, -0.3, 0.05, 0.1, 0.45, 0.8], dtype=torch.float64)[:, None].requires_grad_()
    assert gradcheck(transform.apply, (theta[:1], points), atol=1e-6)
    # Where the velocity is 0 on a border the map has a kink in theta: either side is a derivative.
    apart = points.detach()[[0, 1, 5, 6]].requires_grad_()
    assert gradcheck(lambda p: transform.apply(theta.detach(), p), (apart,), atol=1e-6)


@pytest.mark.parametrize("speed", [-0.5, 0.5, 1.0])
def test_particles_that_end_on_a_border_have_a_gradient(speed):
    """A constant velocity that takes every node exactly to another node in unit time."""
    transform, points = CPAB(tess=4, zero_boundary=False), torch.linspace(-1, 1, 5)[:, None]
    matrix = transform.nodes(torch.eye(5, dtype=torch.float64))[..., 0].T
    theta = torch.linalg.solve(matrix, torch.full((5,), speed, dtype=torch.float64))
    inputs = theta.float().requires_grad_()
    moved = transform.apply(inputs, points)
    assert torch.allclose(moved, points + speed, atol=1e-6)
    moved.sum().backward()
    up, down = (transform.apply(theta + s * 1e-4, points.double()).sum() for s in (1, -1))
    assert inputs.grad.sum().item() == pytest.approx((up - down).item() / 2e-4, rel=1e-3)


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_values_are_the_same_without_gradients(transform):
    theta = draw(transform, 1.0, 1, count=2, dtype=torch.float32).requires_grad_()
    points = scatter(transform, 9, 2).float()
    recorded = transform.apply(theta, points)
    with torch.no_grad():
        assert torch.equal(transform.apply(theta, points), recorded)
        assert transform.apply(theta[:0], points).shape == (0, 9, transform.ndim)
        assert transform.apply(theta, points[:0]).shape == (2, 0, transform.ndim)
        assert torch.allclose(transform.apply(transform.identity(), points), points, atol=1e-6)


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_flow_for_other_times(transform):
    """Half the time twice is the whole; a tensor of times gives a trajectory; negative times run backwards."""
    for times in (np.linspace(0, 1, 9), [0.5, 1.0]):
        with pytest.raises(TypeError, match=r"^t "):
            transform.flow(draw(transform, 1.0, 1), scatter(transform, 20, 2), times)
    theta, points = draw(transform, 1.0, 1), scatter(transform, 20, 2)
    half = transform.flow(theta, points, t=0.5)
    whole = transform.apply(theta, points)
    assert torch.allclose(transform.flow(theta, half, t=0.5), whole, atol=1e-8)
    path = transform.flow(theta, points, t=torch.tensor([0.0, 0.5, 1.0]))
    assert torch.allclose(path, torch.stack([points, half, whole]), atol=1e-8)
    assert torch.allclose(transform.flow(theta, whole, t=-1.0), points, atol=1e-8)


scales = st.sampled_from([0.03, 0.3, 1.0, 3.0])
seeds = st.integers(0, 2**31 - 1)
lines, planes = st.sampled_from(LINE), st.sampled_from(PLANE)
fast = settings(max_examples=20, deadline=None)


@fast
@given(lines, scales, seeds, st.sampled_from([torch.float32, torch.float64]))
def test_monotone(transform, scale, seed, dtype):
    points = scatter(transform, 200, seed).sort(dim=0).values.to(dtype)
    moved = transform.apply(draw(transform, scale, seed, dtype=dtype), points)[:, 0]
    assert (moved.diff() >= 0).all()


@fast
@given(st.sampled_from(FAMILIES), st.sampled_from([0.03, 0.3, 1.0]), seeds)
def test_inverse(transform, scale, seed):
    theta, points = draw(transform, scale, seed), scatter(transform, 50, seed)
    there = transform.apply(theta, points)
    assert torch.allclose(transform.apply(transform.inverse(theta), there), points, atol=1e-5)
    assert torch.allclose(transform.apply_inverse(theta, there), points, atol=1e-5)


@fast
@given(planes, st.sampled_from([0.03, 0.3, 1.0]), seeds)
def test_positive_jacobian(transform, scale, seed):
    """By differences of the map itself, not by its own derivative."""
    theta, points, step = draw(transform, scale, seed), scatter(transform, 40, seed, reach=0.99), 1e-6
    shifts = torch.tensor([[step, 0.0], [-step, 0.0], [0.0, step], [0.0, -step]], dtype=torch.float64)
    right, left, down, up = transform.apply(theta, points + shifts[:, None])
    jacobian = torch.stack([right - left, down - up], dim=-1) / (2 * step)
    assert (torch.linalg.det(jacobian) > 0).all()
    if transform.volume_preserving:
        assert torch.allclose(torch.linalg.det(jacobian), torch.ones(40, dtype=torch.float64), atol=1e-4)


@fast
@given(scales, seeds, st.sampled_from([torch.float32, torch.float64]))
def test_boundary_is_mapped_to_itself(scale, seed, dtype):
    for transform in (PLANE[0], PLANE[2]):
        theta, along = draw(transform, scale, seed, dtype=dtype), torch.linspace(-1, 1, 23, dtype=dtype)
        for axis in (0, 1):
            for side in (-1.0, 1.0):
                points = torch.stack([along, torch.full_like(along, side)][:: 1 if axis else -1], dim=-1)
                moved = transform.apply(theta, points)
                assert (moved[:, axis] == side).all()
                assert (moved[:, 1 - axis].diff() >= 0).all()
                assert moved.abs().max() <= 1
    ends = LINE[0].apply(draw(LINE[0], scale, seed, dtype=dtype), torch.tensor([[-1.0], [1.0]], dtype=dtype))
    assert ends.flatten().tolist() == [-1.0, 1.0]


@fast
@given(scales, seeds)
def test_outside(scale, seed):
    """On the line nothing moves; in the plane a point moves like the nearest point of the side."""
    points = torch.tensor([-7.0, -1.5, -1.0000001, 1.0000001, 2.0, 1e6])[:, None]
    assert torch.equal(LINE[0].apply(draw(LINE[0], scale, seed, dtype=torch.float32), points), points)
    transform, theta = PLANE[0], draw(PLANE[0], scale, seed)
    points = scatter(transform, 60, seed, reach=3.0)
    nearest = points.clamp(-1, 1)
    assert torch.allclose(transform.apply(theta, points) - points, transform.apply(theta, nearest) - nearest, atol=1e-7)


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_mixed_precision_is_promoted(transform):
    theta, points = draw(transform, 1.0, 0, dtype=torch.float32), scatter(transform, 9, 1)
    assert torch.equal(transform.apply(theta, points), transform.apply(theta.double(), points))


# At 1e3 in the plane, derivatives exceed float32.
@pytest.mark.parametrize(("tess", "scale"), [(10, 100.0), (10, 1e4), ((3, 3), 100.0), ((3, 3), 1e3)])
def test_an_extreme_theta_stays_finite(tess, scale):
    transform = CPAB(tess)
    line = transform.ndim == 1
    theta = draw(transform, scale, 0, count=300 if line else 2, dtype=torch.float32).requires_grad_()
    points = torch.linspace(-1.1, 1.1, 301)[:, None] if line else scatter(transform, 16, 0, reach=1.0).float()
    moved = transform.apply(theta, points.requires_grad_())
    assert moved.abs().max() <= max(1.0, points.abs().max())
    assert not line or (moved[..., 0].diff() >= 0).all()
    moved.square().sum().backward()
    assert torch.isfinite(theta.grad).all()
    assert torch.isfinite(points.grad).all()


@pytest.mark.parametrize("transform", FAMILIES, ids=named)
def test_nan_stays_nan(transform):
    """A NaN in theta or in a point gives NaN there and does not affect the rest."""
    theta, points = draw(transform, 0.3, 0, count=2), scatter(transform, 5, 1)
    expected = transform.apply(theta, points)
    theta[0, 0], points[2] = math.nan, math.nan
    moved = transform.apply(theta, points)
    assert moved[0].isnan().any()
    assert moved[1, 2].isnan().all()
    assert torch.equal(moved[1, [0, 1, 3, 4]], expected[1, [0, 1, 3, 4]])


def test_memory_does_not_grow_with_the_number_of_steps():
    """What is saved for the backward pass does not depend on how many steps a flow takes."""
    transform = CPAB(tess=(3, 3))

    def saved(scale):
        theta = draw(transform, scale, 0, count=2, dtype=torch.float32).requires_grad_()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            transform.grid(theta, (6, 6))
        return sum(sizes)

    assert saved(0.1) == saved(10.0)
