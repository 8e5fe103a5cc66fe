"""The spatial transformer layer: where it starts, what it reads, where it can stand."""

import pytest
import torch
from torch import nn

import pstn
from families import FAMILIES
from refusals import refused

SIZES = {1: (20,), 2: (12, 16), 3: (6, 8, 10)}


def flat_layer(family, **options):
    """A layer whose localizer is a flatten: F is found at the first forward pass."""
    return pstn.SpatialTransformer(family, nn.Flatten(), **options)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("probabilistic", [True, False])
def test_every_family_in_a_layer(family, probabilistic):
    x = torch.rand(3, 2, *SIZES[family.ndim])
    layer = flat_layer(family, size=(5, 6, 7)[: family.ndim], probabilistic=probabilistic)
    out = layer(x, samples=4)
    samples = 4 if probabilistic else 1
    assert out.warped.shape == (samples, 3, 2, *(5, 6, 7)[: family.ndim])
    assert out.theta.shape == (samples, 3, family.dim)
    torch.testing.assert_close(out.posterior.loc, family.initial().expand(3, -1))
    out.warped.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_starts_at_the_identity_with_the_variance_asked_for():
    x = torch.rand(3, 1, 12, 16)
    layer = flat_layer(pstn.Similarity(), var_init=-3.0)
    q = layer(x).posterior
    torch.testing.assert_close(q.beta, torch.full((3, 4), nn.functional.softplus(torch.tensor(-3.0)).item()))
    point = flat_layer(pstn.Similarity(), probabilistic=False)
    torch.testing.assert_close(point(x).warped[0], x, rtol=0, atol=1e-5)
    assert torch.equal(point(x).posterior.kl(), torch.zeros(3, 4))


class Opaque(nn.Module):
    """A localizer that tells nothing about itself."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 5, stride=2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.stem(x)).mean((2, 3))


@pytest.mark.parametrize(
    "make",
    [Opaque, lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU()), nn.Flatten],
    ids=["opaque", "sequential", "flatten"],
)
def test_the_width_is_found_without_drawing_random_numbers(make):
    x = torch.rand(2, 1, 12, 16)
    localizer = make().eval()
    state = torch.get_rng_state()
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, probabilistic=False)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(x).warped.sum().backward()
    assert torch.equal(state, torch.get_rng_state())
    before = layer.mean_head.last.weight.detach().clone()
    layer(x).warped.square().sum().backward()
    optimiser.step()
    assert layer.mean_head.last.weight.shape == (4, localizer(x).shape[1])
    assert not torch.equal(before, layer.mean_head.last.weight)


def test_a_width_found_late_can_be_saved_and_loaded():
    x = torch.rand(2, 1, 12, 16)
    layer = flat_layer(pstn.Similarity())
    layer(x)
    fresh = flat_layer(pstn.Similarity())
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(fresh.localize(x).loc, layer.localize(x).loc)


def test_hidden_heads():
    layer = pstn.SpatialTransformer(pstn.Rotation(), pstn.nn.ConvLocalizer(1, (28, 28), (28, 53)), hidden=20)
    assert sum(p.numel() for p in layer.parameters()) == pytest.approx(72_000, rel=0.03)
    torch.testing.assert_close(layer(torch.rand(2, 1, 28, 28)).posterior.loc, torch.zeros(2, 1))
    with pytest.raises(ValueError, match="hidden needs the width"):
        flat_layer(pstn.Rotation(), hidden=20)


def test_heads_read_in_full_precision_under_autocast():
    head = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=64).mean_head
    nn.init.normal_(head.last.weight)
    features = torch.randn(2, 64)
    expected = head(features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(features), expected)


def test_localizer_reads_low_resolution_and_the_warp_reads_the_source():
    seen = []
    localizer = nn.Sequential(nn.Flatten())
    localizer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    layer = pstn.SpatialTransformer(pstn.Crop(), localizer, size=(7, 9), localizer_size=(4, 4))
    out = layer(torch.rand(2, 3, 20, 30), samples=5, source=torch.rand(2, 6, 64, 96))
    assert seen == [(2, 3, 4, 4)]
    assert out.warped.shape == (5, 2, 6, 7, 9)


def test_a_rotation_uses_the_aspect_of_what_it_warps():
    layer = flat_layer(pstn.Rotation(), size=(10, 10), probabilistic=False)
    source = torch.rand(1, 1, 20, 50)
    theta = torch.full((1, 1, 1), torch.pi / 2)
    expected = pstn.Rotation().grid(theta, (10, 10), aspect=(50, 20))
    torch.testing.assert_close(layer.warp(source, theta), pstn.warp(source, expected))


def test_on_feature_maps_and_stacked():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pstn.SpatialTransformer(pstn.Similarity(), pstn.nn.ConvLocalizer(1, (28, 28)))
            self.stem = nn.Conv2d(1, 6, 3, padding=1)
            self.second = pstn.SpatialTransformer(pstn.Affine(), pstn.nn.ConvLocalizer(6, (28, 28)), size=(14, 14))
            self.head = nn.Linear(6 * 14 * 14, 3)

        def forward(self, x):
            first = self.first(x, samples=2)
            second = self.second(self.stem(first.warped.flatten(0, 1)), samples=3)
            logits = self.head(second.warped.flatten(2)).unflatten(1, (2, -1))
            return first, second, logits

    model = Deep()
    first, second, logits = model(torch.rand(4, 1, 28, 28))
    assert logits.shape == (3, 2, 4, 3)
    loss = logits.square().mean() + 1e-3 * (first.posterior.kl().mean() + second.posterior.kl().mean())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_fill_per_channel_moves_with_the_layer():
    layer = flat_layer(pstn.Translation(scale=1.0), probabilistic=False, fill=(0.5, -1.0))
    warped = layer.double().warp(torch.zeros(1, 2, 8, 8).double(), torch.tensor([[[10.0, 0.0]]]).double())
    torch.testing.assert_close(warped[0, 0, :, 0, 0], torch.tensor([0.5, -1.0]).double())
    assert "fill" not in layer.state_dict()


def test_sampling_method_noise_and_generator():
    layer = flat_layer(pstn.Crop(), sampling="antithetic")
    x = torch.rand(2, 1, 8, 8)
    theta = layer(x, samples=4, generator=torch.Generator().manual_seed(3)).theta
    torch.testing.assert_close(theta[:2] + theta[2:], 2 * layer.localize(x).loc.expand(2, 2, 3), rtol=1e-3, atol=1e-3)
    noise = torch.rand(5, 2, 3)
    assert torch.equal(layer(x, noise=noise).theta, layer.localize(x).rsample(noise=noise))


test_bad_input_is_named = refused(
    (lambda la, x: la(x[0]), ValueError, "x must"),
    (lambda la, x: la(x[:0]), ValueError, "x must"),
    (lambda la, x: la((x * 255).byte()), TypeError, "x must"),
    (lambda la, x: la(x.repeat(1, 3, 1, 1)), ValueError, "x must"),
    (lambda la, x: la(x * float("nan")), ValueError, "x must"),
    (lambda la, x: la(x, samples=0), ValueError, "samples must"),
    (lambda la, x: la(x, source=x[:1]), ValueError, "source must"),
    (lambda la, x: la(x, 10, noise=torch.rand(5, 2, 4)), ValueError, "samples must"),
    (lambda la, x: la(x, generator=0), TypeError, "generator must"),
    (lambda la, x: la(x, noise=[0.5]), TypeError, "noise must"),
    (lambda la, x: la(x, source=x * float("inf")), ValueError, "source must"),
    given=lambda: (pstn.nn.mnist_pstn().layer, torch.rand(2, 1, 28, 28)),
)


test_bad_settings_are_named = refused(
    (lambda: flat_layer(pstn.Crop(), size=0), ValueError, "size must"),
    (lambda: flat_layer(pstn.Crop(), size=(0, 3)), ValueError, r"size\[0\] must"),
    (lambda: flat_layer("crop"), TypeError, "transform must"),
    (lambda: pstn.SpatialTransformer(pstn.Crop(), len), TypeError, "localizer must"),
    (lambda: flat_layer(pstn.Crop(), features=0), ValueError, "features must"),
    (lambda: flat_layer(pstn.Crop(), alpha=0.1), ValueError, "alpha must"),
    (lambda: flat_layer(pstn.Crop(), var_init=float("nan")), ValueError, "var_init must"),
    (lambda: flat_layer(pstn.Crop(), fill="black"), TypeError, "fill must"),
    (lambda: pstn.nn.ConvLocalizer(1, (28, 28), filters=()), ValueError, "filters must"),
    (lambda: pstn.nn.ConvLocalizer(1, (9, 9, 9, 9)), ValueError, "axes in size must be one of 1, 2, 3, got 4"),
    (lambda: flat_layer(pstn.Crop(), mode="cubic"), ValueError, "mode must"),
    (lambda: flat_layer(pstn.Crop(), sampling="halton"), ValueError, "sampling must"),
    (lambda: pstn.nn.ConvLocalizer(1, (8, 8)), ValueError, "size must"),
    (lambda: pstn.nn.ConvLocalizer(1, (28, 28), filters=(3, 0)), ValueError, r"filters\[1\] must"),
    (lambda: pstn.nn.ConvLocalizer(1, (28, 28), filters=8), TypeError, "filters must"),
    (lambda: flat_layer(pstn.Crop(), probabilistic="no"), TypeError, "probabilistic must"),
)


def read(localizer, **options):
    return pstn.SpatialTransformer(pstn.Crop(), localizer, **options)(torch.rand(2, 1, 8, 8))


test_a_localizer_that_does_not_fit_is_named = refused(
    (lambda: read(nn.Flatten(), features=7), ValueError, "localizer"),
    (lambda: read(nn.Unflatten(1, (1, 1))), ValueError, "localizer"),
    (lambda: read(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten())), RuntimeError, "3 channels.*\nin the localizer"),
    (lambda: read(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()), RuntimeError, "\nin the localizer"),
)


@pytest.mark.parametrize("head", ["mean", "variance"])
def test_a_nan_posterior_says_which_head(head):
    layer = flat_layer(pstn.Crop())
    x = torch.rand(2, 1, 8, 8)
    layer(x)
    getattr(layer, f"{head}_head").last.bias.data[1] = float("nan")
    with pytest.raises(ValueError, match=f"the {head} head diverged"):
        layer(x)


def test_one_precision_per_input_takes_one_output_of_the_variance_head():
    layer = flat_layer(pstn.Similarity(), precision="per-input")
    out = layer(torch.rand(3, 1, 8, 8), samples=5)
    assert out.posterior.beta.shape == (3, 1)
    assert out.theta.shape == (5, 3, 4)
    (-out.theta.square().sum()).backward()
    assert layer.variance_head.last.bias.grad.abs().sum() > 0


def test_a_localizer_that_does_not_look_gives_every_input_the_same_posterior():
    layer = pstn.SpatialTransformer(pstn.Similarity(), pstn.nn.GlobalLocalizer(), var_init=-3.0)
    x = torch.rand(4, 1, 8, 8)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    (layer(x, samples=10).theta - 1).square().mean().backward()
    optimiser.step()
    q = layer.localize(x)
    assert (q.loc != pstn.Similarity().identity()).any()
    assert (q.loc == q.loc[:1]).all()
    assert (q.beta == q.beta[:1]).all()


@pytest.mark.parametrize("transform", [pstn.Similarity(), pstn.Affine(), pstn.Crop()], ids=repr)
def test_the_warp_reads_the_coordinates_of_all_samples_where_they_are(transform):
    layer = pstn.SpatialTransformer(transform, pstn.nn.ConvLocalizer(1, (12, 12), (2,)))
    theta = torch.randn(3, 5, transform.dim)
    grid = layer.grid(theta.transpose(0, 1), (12, 12))
    assert grid.reshape(5, 3 * 12, 12, 2).data_ptr() == grid.data_ptr()
