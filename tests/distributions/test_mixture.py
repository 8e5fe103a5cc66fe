"""Mixtures, angles on the circle, and posteriors that inputs share, against independent references."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import pstn


def mixture(weights=(0.2, 0.5, 0.3), batch=4, dim=2, circular=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    k = len(weights)
    loc = torch.randn(batch, k, dim, generator=generator)
    beta = torch.rand(batch, k, dim, generator=generator) * 0.2 + 0.01
    log_weights = torch.tensor(weights).log().expand(batch, k).clone()
    return pstn.MixturePosterior(log_weights, pstn.Posterior(loc, beta, 2.0, circular=circular), circular)


def test_the_density_of_a_mixture_equals_torch_distributions():
    q = mixture()
    parts = torch.distributions.Independent(torch.distributions.StudentT(4.0, q.components.loc, q.components.scale), 1)
    reference = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=q.log_weights), parts)
    theta = torch.randn(5, 4, 2)
    torch.testing.assert_close(q.log_prob(theta).sum(-1), reference.log_prob(theta))
    torch.testing.assert_close(q.mean, reference.mean)


@pytest.mark.parametrize("scale", [0.05, 0.8, 3.0, 40.0])
@pytest.mark.parametrize("alpha", [1.0, 2.0, None])
def test_the_density_of_an_angle_is_that_of_the_circle(alpha, scale):
    loc = torch.tensor([[3.0]], dtype=torch.float64)
    spread = torch.tensor([[scale]], dtype=torch.float64)
    if alpha is None:
        q, reference = pstn.NormalPosterior(loc, spread, circular=(True,)), stats.norm(3.0, scale)
    else:
        q = pstn.Posterior(loc, alpha * spread.square(), alpha, circular=(True,))
        reference = stats.t(2 * alpha, 3.0, scale)
    for angle in (-3.1, -1.0, 0.0, 2.9):
        wound = reference.pdf(angle + 2 * math.pi * np.arange(-3000, 3001)).sum()
        density = q.log_prob(torch.tensor([[angle]], dtype=torch.float64)).exp().item()
        assert density == pytest.approx(wound, rel=5e-3)
        whole = torch.tensor([[angle + 2 * math.pi]], dtype=torch.float64)
        assert q.log_prob(whole).exp().item() == pytest.approx(density, rel=1e-9)


def test_the_joint_density_with_one_precision_integrates_to_one_over_the_circle():
    q = pstn.Posterior(
        torch.tensor([[2.8, 0.1]]).double(), torch.tensor([[0.09]]).double(), 1.5, circular=(True, False)
    )

    angle = torch.linspace(-math.pi, math.pi, 401).double()
    x = torch.linspace(-6, 6, 1201).double()
    density = q.log_prob(torch.stack(torch.meshgrid(angle, x, indexing="ij"), -1)).sum(-1).exp()
    total = torch.trapezoid(torch.trapezoid(density, x), angle).item()
    # What lies outside the window of the second parameter.
    outside = 2 * stats.t(3.0, 0.1, math.sqrt(0.09 / 1.5)).sf(6)
    assert total == pytest.approx(1 - outside, abs=4e-3)


def test_angles_of_samples_means_and_intervals_lie_on_the_circle():
    loc, beta = torch.tensor([[3.0, 5.0], [9.0, 0.0]]), torch.full((2, 2), 0.5)
    q = pstn.Posterior(loc, beta, circular=(True, False))
    theta = q.rsample(500, generator=torch.Generator().manual_seed(0))
    assert theta[..., 0].abs().max() <= math.pi + 1e-6 < theta[..., 1].abs().max()
    torch.testing.assert_close(q.mean, torch.tensor([[3.0, 5.0], [9.0 - 2 * math.pi, 0.0]]))
    low, high = q.interval(0.999)
    assert (high - low)[:, 0].tolist() == pytest.approx([2 * math.pi] * 2)
    wide = pstn.MixturePosterior(
        torch.tensor([[0.5, 0.5]]).log(),
        pstn.NormalPosterior(torch.tensor([[[3.0], [-3.0]]]), torch.full((1, 2, 1), 0.01), circular=(True,)),
        (True,),
    )
    assert abs(wide.mean.item()) == pytest.approx(math.pi, abs=1e-5)
    low, high = wide.interval(0.9)
    assert 0.25 < (high - low).item() < 0.35


@pytest.mark.parametrize(("samples", "counts"), [(10, [2, 5, 3]), (1, None), (4, None)])
def test_samples_are_stratified_over_the_modes(samples, counts):
    loc = torch.tensor([[[0.0], [10.0], [20.0]]]).expand(2000, 3, 1)
    log_weights = torch.tensor([0.2, 0.5, 0.3]).log().expand(2000, 3)
    apart = pstn.MixturePosterior(log_weights, pstn.NormalPosterior(loc, torch.full_like(loc, 0.1)))
    theta = apart.rsample(samples, generator=torch.Generator().manual_seed(1))
    picked = (theta[..., 0] / 10).round()
    shares = torch.stack([(picked == mode).float().sum(0) for mode in range(3)])
    if counts is not None:
        assert (shares == torch.tensor(counts)[:, None]).all()
    expected = samples * torch.tensor([0.2, 0.5, 0.3])
    assert ((shares - expected[:, None]).abs() < 1.001).all()
    torch.testing.assert_close(shares.mean(1), expected, atol=0.05, rtol=0.05)


def test_antithetic_pairs_fall_into_one_mode():
    loc = torch.tensor([[[0.0], [10.0]]])
    q = pstn.MixturePosterior(torch.tensor([[0.5, 0.5]]).log(), pstn.NormalPosterior(loc, torch.full((1, 2, 1), 0.1)))
    theta = q.rsample(8, method="antithetic", generator=torch.Generator().manual_seed(0))[:, 0, 0]
    centres = (theta / 10).round() * 10
    torch.testing.assert_close((theta - centres)[:4], -(theta - centres)[4:], atol=1e-5, rtol=0)
    assert torch.equal(centres[:4], centres[4:])


def test_the_gradient_with_respect_to_the_weights_equals_finite_differences():
    loc = torch.tensor([[[-1.0], [0.5], [2.0]]], dtype=torch.float64)
    scale = torch.full((1, 3, 1), 0.3, dtype=torch.float64)
    # Evenly spread noise: samples in the thousands stand for the expectation.
    even = torch.linspace(0, 1, 4003)[1:-1]
    shuffled = even[torch.randperm(4001, generator=torch.Generator().manual_seed(0))]
    noise = torch.stack([shuffled, even], -1)[:, None].double()

    def expectation(logits):
        q = pstn.MixturePosterior(logits.log_softmax(-1), pstn.NormalPosterior(loc, scale))
        theta, log_weights = q.weighted_from_noise(noise)
        return (log_weights.exp() * theta.square().sum(-1)).sum()

    logits = torch.tensor([[0.1, -0.3, 0.2]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(expectation(logits), logits)
    for mode in range(3):
        step = torch.zeros_like(logits)
        step[0, mode] = 0.05
        with torch.no_grad():
            difference = (expectation(logits + step) - expectation(logits - step)) / 0.1
        assert grad[0, mode].item() == pytest.approx(difference.item(), abs=0.03)
    second_moments = loc[0, :, 0].square() + 0.09
    probs = logits.detach().softmax(-1)[0]
    exact = probs * (second_moments - (probs * second_moments).sum())
    torch.testing.assert_close(grad[0], exact, atol=0.03, rtol=0.03)


def test_the_kl_bounds_that_of_the_mixture_from_above_and_is_exact_for_equal_components():
    prior = pstn.NormalPrior(0.0, 1.0)
    loc = torch.tensor([[[-1.0], [1.5]]])
    q = pstn.MixturePosterior(torch.tensor([[0.3, 0.7]]).log(), pstn.NormalPosterior(loc, torch.full((1, 2, 1), 0.4)))
    theta = q.rsample(20000, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Normal(0.0, 1.0)
    exact = (q.log_prob(theta) - reference.log_prob(theta)).mean()
    assert q.kl(prior).item() > exact.item()
    same = pstn.NormalPosterior(torch.full((1, 2, 1), 0.2), torch.full((1, 2, 1), 0.4))
    equal = pstn.MixturePosterior(torch.tensor([[0.5, 0.5]]).log(), same)
    one = pstn.NormalPosterior(torch.full((1, 1), 0.2), torch.full((1, 1), 0.4))
    torch.testing.assert_close(equal.kl(prior), one.kl(prior))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_regions_hold_theta_as_often_as_they_say(level):
    q = mixture(batch=800, circular=(True, False))
    theta = q.rsample(1, generator=torch.Generator().manual_seed(3))[0]
    assert q.contains(theta, level).float().mean().item() == pytest.approx(level, abs=0.035)
    region = q.region(level)
    assert region.inside.float().mean().item() == pytest.approx(level, abs=0.01)
    with pytest.raises(ValueError, match="level"):
        q.region(1.0)


def rotation_model(posterior, train_samples=2):
    torch.manual_seed(0)
    localizer = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.Tanh())
    layer = pstn.SpatialTransformer(pstn.Rotation(), localizer, features=8, posterior=posterior)
    return pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), train_samples=train_samples)


def test_modes_start_apart():
    family = pstn.Mixture(4, pstn.StudentT(alpha=2.0))
    q = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=4, posterior=family).localize(
        torch.rand(2, 1, 2, 2)
    )
    centres, log_weights = q.modes()
    torch.testing.assert_close(centres[0, 0], torch.tensor([0.0, 1.0, 0.0, 0.0]))
    angles = centres[:, 0, 0]
    assert sorted(angles.abs().tolist()) == pytest.approx([0.0, math.pi / 2, math.pi / 2, math.pi], abs=1e-5)
    assert (torch.pdist(centres[:, 0, 1:]) > 0.01).all()
    torch.testing.assert_close(log_weights, torch.full((4, 2), -math.log(4)))


def test_a_prediction_at_the_modes_weighs_them():
    model = rotation_model(pstn.Mixture(3)).eval()
    with torch.no_grad():
        model.layer.weights_head.last.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    x = torch.rand(5, 1, 12, 12)
    p = model(x, "modes")
    weights = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert p.theta.shape == (3, 5, 1)
    torch.testing.assert_close(p.probs, (weights[:, None, None] * p.sample_log_probs.exp()).sum(0))
    each = -(p.sample_log_probs.exp() * p.sample_log_probs).sum(-1)
    torch.testing.assert_close(p.mutual_information, p.entropy - (weights[:, None] * each).sum(0), atol=1e-6, rtol=0)
    assert rotation_model(pstn.StudentT()).eval()(x, "modes").theta.shape == (1, 5, 1)


def test_the_elbo_reaches_the_weights_of_the_modes():
    model = rotation_model(pstn.Mixture(3)).train()
    x, y = torch.rand(6, 1, 12, 12), torch.tensor([0, 1, 2, 0, 1, 2])
    pstn.elbo_loss(model(x), y, kl_weight=0.0).backward()
    assert model.layer.weights_head.last.bias.grad.abs().max() > 0


def test_a_global_posterior_does_not_ask_the_localizer():
    class Refusing(nn.Module):
        def forward(self, x):
            raise AssertionError

    layer = pstn.SpatialTransformer(pstn.Rotation(), Refusing(), posterior=pstn.Global(pstn.StudentT(2.0)))
    q = layer.localize(torch.rand(3, 1, 8, 8))
    assert q.loc.shape == (3, 1)
    q.rsample(2).sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad is not None} == {
        "shared.all_mean",
        "shared.all_variance",
    }


def test_a_hierarchical_posterior_shrinks_what_is_said_of_one_input():
    large, small = rotation_model(pstn.Hierarchical(shrink=1.0)), rotation_model(pstn.Hierarchical(shrink=0.1))
    x = torch.rand(4, 1, 12, 12)
    for model in (large, small):
        with torch.no_grad():
            model.layer.mean_head.last.weight.fill_(0.3)
            model.layer.shared.all_mean.fill_(0.5)
    at_large, at_small = large.layer.localize(x).loc - 0.5, small.layer.localize(x).loc - 0.5
    assert at_large.abs().max() > 0.01
    torch.testing.assert_close(at_small, 0.1 * at_large)


@pytest.mark.parametrize("family", [pstn.Mixture(2), pstn.Global(), pstn.Hierarchical(pstn.Mixture(2, pstn.Normal()))])
def test_a_model_with_such_a_posterior_is_saved_compiled_and_exported(family, tmp_path):
    torch.manual_seed(0)
    about = pstn.About(classes=tuple("0123456789"), size=(28, 28), channels=1)
    layer = pstn.SpatialTransformer(pstn.Rotation(), pstn.nn.ConvLocalizer(1, (28, 28)), posterior=family)
    model = pstn.PSTN(layer, pstn.nn.mnist_cnn(), test_samples=4).eval()
    x, noise = torch.rand(3, 1, 28, 28), torch.rand(4, 3, layer.noise_width).clamp(0.01, 0.99)
    expected = model(x, noise=noise)
    loaded = pstn.from_pretrained(model.save_pretrained(tmp_path / "model", about=about)).eval()
    assert repr(loaded.layer.posterior) == repr(family)
    torch.testing.assert_close(loaded(x, noise=noise).log_probs, expected.log_probs)
    compiled = torch.compile(lambda x, noise: model(x, noise=noise).log_probs, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, noise), expected.log_probs)
    path = pstn.export.export_onnx(loaded, tmp_path / "model.onnx", samples=4)
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    probs = session.run(["probabilities"], {"x": x.numpy(), "noise": noise.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(probs), expected.probs, atol=1e-5, rtol=1e-4)


def test_mixtures_of_what_has_no_mean_are_refused():
    with pytest.raises(TypeError, match="base"):
        pstn.Mixture(2, pstn.Mixture(2))
    with pytest.raises(ValueError, match="k "):
        pstn.Mixture(0)
    with pytest.raises(ValueError, match="mean"):
        pstn.Mixture(2, pstn.Global()).starts(pstn.Rotation())
