"""Compose: order, inverse, gradients, and theta's layout."""

import pytest
import torch

from pstn import CPAB, Affine, Compose, Crop, Rotation, Similarity
from refusals import refused

FAMILIES = [
    Compose(Similarity(), CPAB(tess=(3, 3))),
    Compose(CPAB(tess=10), Crop(ndim=1)),
    Compose(Rotation(), Crop(), CPAB(tess=(2, 2))),
    Compose(Compose(Rotation(), Crop()), Affine()),
]


def draw(transform):
    """Thetas (3, D), and points (3, 11, ndim)."""
    generator = torch.Generator().manual_seed(0)
    theta = transform.initial().double() + 0.2 * torch.randn(3, transform.dim, generator=generator, dtype=torch.float64)
    return theta, torch.rand(3, 11, transform.ndim, generator=generator, dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("transform", FAMILIES, ids=str)
def test_the_last_family_is_applied_to_points_first(transform):
    theta, p = draw(transform)
    expected, end = p, transform.dim
    for part in reversed(transform.transforms):
        expected = part.apply(theta[:, end - part.dim : end], expected)
        end -= part.dim
    assert end == 0
    assert torch.allclose(transform.apply(theta, p), expected, atol=1e-12)


@pytest.mark.parametrize("kind", [list, tuple])
def test_families_may_be_given_as_one_list(kind):
    assert str(Compose(kind([Rotation(), Crop()]))) == str(Compose(Rotation(), Crop()))


def test_warping_twice_is_warping_by_the_composition():
    """Warp by the first family, then the result by the second: up to the blur of reading twice, the same image."""
    torch.manual_seed(0)
    first, second = Similarity(), CPAB(tess=(3, 3))
    axis = torch.linspace(-1, 1, 128)
    image = torch.exp(-4 * ((axis[:, None] - 0.2) ** 2 + (axis[None] + 0.1) ** 2))[None, None]
    a, b = torch.tensor([[0.3, 0.9, 0.1, -0.05]]), torch.randn(1, 34) * 0.2

    def warp(x, grid):
        return torch.nn.functional.grid_sample(x, grid, align_corners=False, padding_mode="border")

    twice = warp(warp(image, first.grid(a, (128, 128))), second.grid(b, (128, 128)))
    once = warp(image, Compose(first, second).grid(torch.cat([a, b], dim=-1), (128, 128)))
    assert (twice - once).abs().max() < 0.01
    assert (twice - image).abs().max() > 0.1


@pytest.mark.parametrize("transform", FAMILIES, ids=str)
def test_inverse_identity_and_gradients(transform):
    theta, p = draw(transform)
    there = transform.apply(theta, p)
    assert torch.allclose(transform.apply_inverse(theta, there), p, atol=1e-7)
    with pytest.raises(ValueError, match="reversed"):
        transform.inverse(theta)
    if not isinstance(transform.transforms[0], Compose):
        assert torch.allclose(transform.reversed().apply(transform.inverse_theta(theta), there), p, atol=1e-7)
        assert torch.equal(transform.inverse_theta(theta[0]), transform.inverse_theta(theta)[0])
    assert torch.allclose(transform.apply(transform.identity().double(), p), p, atol=1e-9)
    inputs = theta.requires_grad_(), p.requires_grad_()
    assert torch.autograd.gradcheck(transform.apply, inputs, fast_mode=True, atol=1e-5)


test_bad_families_are_refused = refused(
    (lambda: Compose(CPAB(tess=10), Similarity()), ValueError, "transforms"),
    (lambda: Compose(Similarity()), ValueError, "transforms"),
    (lambda: Compose(Similarity(), torch.nn.Linear(2, 2)), TypeError, r"transforms\[1\]"),
)
