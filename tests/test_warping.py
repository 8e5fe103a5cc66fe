"""The warp against torch's own grid_sample on repeated input, and what only it can do."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pstn
from families import SIZES, near_identity
from refusals import refused

IN_SIZES = {1: (12,), 2: (8, 11), 3: (5, 6, 7)}
FAMILY = {1: pstn.Crop(ndim=1), 2: pstn.Affine(), 3: pstn.Affine(ndim=3)}


def setting(ndim, samples=3, batch=2, channels=2, dtype=torch.float32):
    x = torch.randn(batch, channels, *IN_SIZES[ndim], dtype=dtype)
    grid = FAMILY[ndim].grid(near_identity(FAMILY[ndim], samples, batch, spread=0.5, dtype=dtype), SIZES[ndim])
    return x, grid


def on_repeated_input(x, grid, mode, padding_mode):
    """What anybody would write: S copies of the input. Series go through grid_sample as images of height 1."""
    samples, ndim = grid.shape[0], grid.shape[-1]
    repeated = x.repeat(samples, *[1] * (ndim + 1))
    flat = grid.flatten(0, 1)
    if ndim == 1:
        flat = torch.stack([flat[..., 0], torch.zeros_like(flat[..., 0])], -1)[:, None]
        read = F.grid_sample(repeated[:, :, None], flat, mode, padding_mode, align_corners=False)[:, :, 0]
    else:
        read = F.grid_sample(repeated, flat, mode, padding_mode, align_corners=False)
    return read.unflatten(0, (samples, -1))


@pytest.mark.parametrize(
    ("ndim", "mode"), [(n, m) for n in (1, 2, 3) for m in ("bilinear", "nearest")] + [(2, "bicubic")]
)
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_equals_grid_sample_on_repeated_input(ndim, mode, padding_mode):
    x, grid = setting(ndim)
    warped = pstn.warp(x, grid, mode=mode, padding_mode=padding_mode)
    assert warped.shape == (3, 2, 2, *SIZES[ndim])
    torch.testing.assert_close(warped, on_repeated_input(x, grid, mode, padding_mode), rtol=0, atol=1e-6)
    torch.testing.assert_close(pstn.warp(x, grid[0], mode=mode, padding_mode=padding_mode), warped[0])


def test_linear_along_a_series_is_numpys_interp():
    series = torch.randn(1, 1, 30, dtype=torch.float64)
    points = torch.rand(50, dtype=torch.float64) * 1.9 - 0.95
    ours = pstn.warp(series, points[None, None, :, None])[0, 0, 0]
    centres = pstn.transforms.base_grid((30,), dtype=torch.float64)[:, 0]
    expected = np.interp(points.numpy(), centres.numpy(), series[0, 0].numpy())
    torch.testing.assert_close(ours, torch.from_numpy(expected))


@pytest.mark.parametrize(("ndim", "mode"), [(1, "bilinear"), (2, "bilinear"), (3, "bilinear"), (2, "bicubic")])
@pytest.mark.parametrize("fill", [-9999.0, (0.7, -3.0), [1e20, -1e20], torch.tensor([1e20, 1.0])])
def test_fill_is_what_lies_outside(ndim, mode, fill):
    x, grid = setting(ndim)
    plain, covered = (pstn.warp(source, grid, mode=mode) for source in (x, torch.ones_like(x)))
    warped, inside = pstn.warp(x, grid, fill=fill, mode=mode), (covered - 1).abs() < 1e-6
    assert 0.1 < inside.float().mean() < 1
    torch.testing.assert_close(warped[inside], plain[inside], rtol=0, atol=1e-5)
    level = torch.as_tensor(fill).reshape(-1, *[1] * ndim).expand_as(warped)
    torch.testing.assert_close(pstn.warp(x, grid + 100, fill=fill, mode=mode), level)
    # Between the last pixel and the outside, `fill` blends in as zeros would.
    torch.testing.assert_close(warped, plain + (1 - covered) * level, rtol=1e-4, atol=1e-5 * level.abs().max().item())


@pytest.mark.parametrize("one", [np.float32(0.5), np.array(0.5)])
@pytest.mark.parametrize("two", [np.array([0.5, 1.0], np.float32), [np.float32(0.5), 1], [torch.tensor(0.5), 1.0]])
def test_fill_may_hold_numbers_of_any_library(one, two):
    x, grid = setting(2)
    for fill, same in ((one, 0.5), (two, (0.5, 1.0))):
        assert torch.equal(pstn.warp(x, 3 * grid, fill=fill), pstn.warp(x, 3 * grid, fill=same))


def test_labels_come_back_as_they_were_with_any_fill():
    labels = torch.arange(64.0).reshape(1, 1, 8, 8)
    family = pstn.Translation(scale=1.0)
    grid = family.grid(torch.tensor([[0.0, 0.0], [0.5, 0.0]])[:, None], (8, 8))
    still, moved = pstn.warp(labels, grid, fill=255.0, mode="nearest")
    assert torch.equal(still, labels)
    assert torch.equal(moved[..., :6], labels[..., 2:])
    assert torch.equal(moved[..., 6:], torch.full((1, 1, 8, 2), 255.0))


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("fill", [0.0, 1.5])
def test_gradients_for_grid_and_input(ndim, fill):
    x, grid = setting(ndim, samples=2, batch=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, grid: pstn.warp(x, grid, fill=fill), (x.requires_grad_(), grid.detach().requires_grad_())
    )


def test_masks_points_and_boxes_follow_the_image():
    family, size = pstn.Similarity(), (64, 64)
    theta = torch.tensor([0.5, 0.8, 0.1, -0.05])
    image = torch.zeros(1, 1, *size)
    image[..., 20:30, 34:40] = 1.0
    grid = family.grid(theta[None], size)
    seen, mask = pstn.warp(image, grid)[0, 0], pstn.warp(image, grid, mode="nearest")[0, 0]
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert ((seen > 0.5).float() - mask).abs().mean() < 0.02
    edges = torch.tensor([[34.0 - 0.5, 20.0 - 0.5], [39.0 + 0.5, 29.0 + 0.5]])
    box = pstn.from_pixels(edges, size).reshape(1, 4)
    moved = pstn.to_pixels(family.warp_boxes(theta, box).reshape(2, 2), size)
    rows, columns = torch.nonzero(mask, as_tuple=True)
    found = torch.tensor([[columns.min(), rows.min()], [columns.max(), rows.max()]]).float()
    assert (moved - found).abs().max() < 1.6
    centre = pstn.to_pixels(family.apply_inverse(theta, pstn.from_pixels(edges.mean(0, keepdim=True), size)), size)[0]
    expected = torch.stack([columns.float().mean(), rows.float().mean()])
    assert (centre - expected).abs().max() < 0.5


def test_dtypes():
    x, grid = setting(2)
    for dtype in (torch.float16, torch.bfloat16):
        warped = pstn.warp(x.to(dtype), grid)
        assert warped.dtype == dtype
        torch.testing.assert_close(warped.float(), pstn.warp(x.to(dtype).float(), grid), rtol=0.01, atol=0.01)
    assert pstn.warp(x, grid.double()).dtype == torch.float32
    assert pstn.warp(x.double(), grid).dtype == torch.float64


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("far", [1e3, 1e9, 1e30, 3e38])
def test_far_away_is_finite(padding_mode, far):
    x, grid = setting(2)
    grid = (grid.sign() * far).requires_grad_()
    warped = pstn.warp(x.requires_grad_(), grid, padding_mode=padding_mode)
    warped.sum().backward()
    assert warped.isfinite().all()
    assert grid.grad.isfinite().all()
    assert x.grad.isfinite().all()


PEAK = """
import resource, sys, torch, pstn
samples = int(sys.argv[1])
x = torch.rand(10, 3, 1024, 1024, requires_grad=True)
theta = torch.tensor([0.1, 0.5, 0.0, 0.0]).repeat(samples, 10, 1).requires_grad_()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pstn.warp(x, pstn.Similarity().grid(theta, (224, 224))).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux only")
def test_memory_grows_with_the_output_and_not_with_samples_times_source():
    def peak(samples):
        return float(subprocess.run([sys.executable, "-c", PEAK, str(samples)], capture_output=True, check=True).stdout)

    source, output = 10 * 3 * 1024**2 * 4 / 2**20, 10 * 3 * 224**2 * 4 / 2**20  # MiB: 120 and 5.7 per sample
    one, ten = peak(1), peak(10)
    # Measured: about 18 output sizes per sample, for grids, coordinates, values and their gradients.
    assert ten - one < 9 * 25 * output, f"{one:.0f} MiB at S = 1, {ten:.0f} MiB at S = 10"
    assert ten - one < 9 * 1.2 * source
    assert one < 4 * source


test_bad_arguments_are_named = refused(
    (lambda x, g: pstn.warp(x.long(), g), TypeError, "x must"),
    (lambda x, g: pstn.warp(x[0], g), ValueError, "grid must"),
    (lambda x, g: pstn.warp(x[0, 0], g), ValueError, "x must"),
    (lambda x, g: pstn.warp(x[:1], g), ValueError, "grid must"),
    (lambda x, g: pstn.warp(x[:0], g[:, :0]), ValueError, "must not be empty"),
    (lambda x, g: pstn.warp(x, g[..., :1]), ValueError, "grid must"),
    (lambda x, g: pstn.warp(x, g, mode="cubic"), ValueError, "mode must"),
    (lambda x, g: pstn.warp(x, g, fill=float("nan")), ValueError, "fill must"),
    (lambda x, g: pstn.warp(x, g, fill=np.array([0, np.nan])), ValueError, "fill must"),
    (lambda x, g: pstn.warp(x, g, fill=torch.tensor([0, np.nan])), ValueError, "fill must"),
    (lambda x, g: pstn.warp(x, g, fill=["a"]), TypeError, "fill must"),
    (lambda x, g: pstn.warp(x, g, fill=None), TypeError, "fill must"),
    (lambda x, g: pstn.warp(x, g, padding_mode="wrap"), ValueError, "padding_mode must"),
    (lambda x, g: pstn.warp(x, g, fill=1.0, padding_mode="border"), ValueError, "fill"),
    (lambda x, g: pstn.warp(x, g, fill=(1.0, 2.0, 3.0)), ValueError, "fill must"),
    (lambda x, g: pstn.warp(x[..., 0], g[..., 0, :1], mode="bicubic"), ValueError, "bicubic.* is for images"),
    given=lambda: setting(2),
)
