"""Maps and boxes back in the input's frame: against scipy, closed forms, and every family."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import nn

import pstn
from families import FAMILIES, SMOOTH_FAMILIES, near_identity
from refusals import refused

SIZES = {1: (64,), 2: (40, 56), 3: (12, 14, 16)}


def layer_of(family, **options):
    return pstn.SpatialTransformer(family, nn.Flatten(), **options)


def smooth(size):
    """A smooth map, of which interpolation loses little: (1, 1, *size)."""
    axes = [torch.linspace(0, 3, n) for n in size]
    return sum(torch.sin(a + k) for k, a in enumerate(torch.meshgrid(*axes, indexing="ij")))[None, None]


@pytest.mark.parametrize("name", [*FAMILIES, *SMOOTH_FAMILIES])
def test_every_family_brings_back_what_it_warped(name):
    family = {**FAMILIES, **SMOOTH_FAMILIES}[name]
    layer, x = layer_of(family), smooth(SIZES[family.ndim])
    theta = near_identity(family, 3, 1, spread=0.1, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    back = layer.unwarp(layer.warp(x, theta), theta)
    inner = (back.seen > 0.999)[0, 0]
    # Beside an edge the warp has read what lies outside.
    inner = torch.from_numpy(ndimage.binary_erosion(inner.numpy(), iterations=2))
    assert inner.sum() > 10
    error = (back.mean - x)[0, 0][inner].abs()
    assert error.mean() < 0.02
    assert back.spread[0, 0][inner].mean() < 0.02


@pytest.mark.parametrize("angle", [0.4, -2.0])
def test_a_similarity_on_an_image_that_is_not_square_agrees_with_scipy(angle):
    height, width, scale, (tx, ty) = 30, 50, 0.8, (0.1, -0.2)
    heat = np.random.default_rng(0).random((height, width))
    heat = ndimage.gaussian_filter(heat, 2)
    layer = layer_of(pstn.Similarity())
    theta = torch.tensor([[[angle, scale, tx, ty]]])
    back = layer.unwarp(torch.tensor(heat[None, None, None], dtype=torch.float32), theta)
    # In pixels the map is p -> scale * R (p - c) + c + shift, from the sample to the input; rows first.
    cos, sin = math.cos(angle), math.sin(angle)
    forward = scale * np.array([[cos, sin], [-sin, cos]])  # (y, x) of [[cos, -sin], [sin, cos]] on (x, y)
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    shift = np.array([ty * height / 2, tx * width / 2])
    inverse = np.linalg.inv(forward)
    offset = centre - inverse @ (centre + shift)
    expected = ndimage.affine_transform(heat, inverse, offset, order=1, mode="constant", cval=np.nan)
    known = ~np.isnan(expected)
    assert known.mean() > 0.3
    np.testing.assert_allclose(back.mean[0, 0].numpy()[known], expected[known], atol=1e-4)
    assert (back.seen[0, 0].numpy()[known] == 1).all()


def test_samples_are_weighted_and_pixels_that_none_sees_are_filled():
    layer = layer_of(pstn.Translation(scale=1.0, ndim=1))
    maps = torch.tensor([1.0, 5.0]).view(2, 1, 1, 1).expand(2, 1, 1, 8)
    theta = torch.tensor([[[0.0]], [[1.0]]])  # the second sample shows the right half of the input on its left
    back = layer.unwarp(maps, theta, log_weights=torch.tensor([[0.25], [0.75]]).log())
    torch.testing.assert_close(back.mean[0, 0], torch.tensor([1.0] * 4 + [4.0] * 4))
    torch.testing.assert_close(back.spread[0, 0], torch.tensor([0.0] * 4 + [math.sqrt(3.0)] * 4))
    torch.testing.assert_close(back.seen[0, 0], torch.tensor([0.25] * 4 + [1.0] * 4))
    for given, fill in (({"fill": -9.0}, -9.0), ({}, 0.0)):
        alone = layer.unwarp(maps[1:], theta[1:], **given)
        torch.testing.assert_close(alone.mean[0, 0], torch.tensor([fill] * 4 + [5.0] * 4))


def test_boxes_come_back_with_their_spread():
    layer = layer_of(pstn.Rotation(), size=(10, 10))
    boxes = torch.tensor([-0.5, -0.25, 0.5, 0.25]).expand(2, 1, 1, 4)
    theta = torch.tensor([[[0.0]], [[math.pi / 2]]])
    back = layer.unwarp(boxes, theta, size=(20, 40), boxes=True)
    # A quarter turn of an input twice as wide as high: half a width along x is a whole height along y.
    turned = torch.tensor([-0.125, -1.0, 0.125, 1.0])
    torch.testing.assert_close(back.mean[0, 0], (boxes[0, 0, 0] + turned) / 2)
    torch.testing.assert_close(back.spread[0, 0], (boxes[0, 0, 0] - turned).abs() / 2)


def test_boxes_go_there_and_back():
    family, box = pstn.Crop(), torch.tensor([[-0.2, 0.0, 0.3, 0.4]])
    theta = torch.tensor([0.5, 0.1, -0.1])
    torch.testing.assert_close(family.unwarp_boxes(theta, family.warp_boxes(theta, box)), box)


class OneWay(pstn.Transform):
    """A family whose map has no inverse."""

    ndim, dim, names = 2, 1, ("a",)

    def initial(self):
        return torch.zeros(1)

    def inverse(self, theta, *, aspect=None):
        raise ValueError("none")

    def _map(self, theta, points, aspect):
        return points + 0 * theta[..., None, :]

    def _unmap(self, theta, points, aspect):
        raise NotImplementedError("no inverse")


START = pstn.Similarity().identity()
test_refusals = refused(
    (lambda la, m, t: layer_of(OneWay()).unwarp(m, t[..., :1]), ValueError, "OneWay"),
    (lambda la, m, t: la.unwarp(m, 0 * t), ValueError, "Similarity"),
    (lambda la, m, t: la.unwarp(m[0], t), ValueError, "output"),
    (lambda la, m, t: la.unwarp(m, t[:1]), ValueError, "theta"),
    (lambda la, m, t: la.unwarp(m, t, log_weights=torch.zeros(2)), ValueError, "log_weights"),
    (lambda la, m, t: layer_of(la.transform, size=6).unwarp(m, t), ValueError, "size"),
    given=lambda: (
        layer_of(pstn.Similarity()),
        torch.rand(2, 1, 1, 6, 6),
        torch.tensor([0.0, 1, 0, 0]).expand(2, 1, 4),
    ),
)
