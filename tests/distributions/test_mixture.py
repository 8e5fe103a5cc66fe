"""Mixtures, gates, angles on the circle, and posteriors that inputs share, against independent references."""

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


def apart(weights, batch=1):
    """Narrow normals around 0, 10, 20, ..."""
    loc = 10 * torch.arange(len(weights)).float()[:, None].expand(batch, -1, 1)
    log_weights = torch.tensor(weights).log().expand(batch, -1)
    return pstn.MixturePosterior(log_weights, pstn.NormalPosterior(loc, torch.full_like(loc, 0.1)))


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


@pytest.mark.parametrize("beta", [0.09, 1.5])  # with the second, whole turns matter
def test_the_joint_density_with_one_precision_integrates_to_one_over_the_circle(beta):
    q = pstn.Posterior(
        torch.tensor([[2.8, 0.1]]).double(), torch.tensor([[beta]]).double(), 1.5, circular=(True, False)
    )

    angle = torch.linspace(-math.pi, math.pi, 401).double()
    x = torch.linspace(-6, 6, 1201).double()
    density = q.log_prob(torch.stack(torch.meshgrid(angle, x, indexing="ij"), -1)).sum(-1).exp()
    total = torch.trapezoid(torch.trapezoid(density, x), angle).item()
    # What lies outside the window of the second parameter.
    outside = 2 * stats.t(3.0, 0.1, math.sqrt(beta / 1.5)).sf(6)
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
    theta = apart((0.2, 0.5, 0.3), 2000).rsample(samples, generator=torch.Generator().manual_seed(1))
    picked = (theta[..., 0] / 10).round()
    shares = torch.stack([(picked == mode).float().sum(0) for mode in range(3)])
    if counts is not None:
        assert (shares == torch.tensor(counts)[:, None]).all()
    expected = samples * torch.tensor([0.2, 0.5, 0.3])
    assert ((shares - expected[:, None]).abs() < 1.001).all()
    torch.testing.assert_close(shares.mean(1), expected, atol=0.05, rtol=0.05)


def test_antithetic_pairs_fall_into_one_mode():
    theta = apart((0.5, 0.5)).rsample(8, method="antithetic", generator=torch.Generator().manual_seed(0))[:, 0, 0]
    centres = (theta / 10).round() * 10
    torch.testing.assert_close((theta - centres)[:4], -(theta - centres)[4:], atol=1e-5, rtol=0)
    assert torch.equal(centres[:4], centres[4:])


@pytest.mark.parametrize(("samples", "method"), [(1, "iid"), (3, "antithetic"), (4, "sobol")])
def test_the_gradient_of_the_elbo_equals_finite_differences_of_its_exact_value(samples, method):
    loc, scale, count = np.array([-1.0, 0.5, 2.0]), 0.3, 40_000
    start = np.array([0.1, -0.3, 0.2])

    def log_likelihood(theta):
        return -np.log1p(np.exp(-2 * theta))

    # The expectation under each component, by quadrature on +-8 deviations.
    grid = np.linspace(-8, 8, 4001)
    each = [np.trapezoid(stats.norm.pdf(grid) * log_likelihood(mean + scale * grid), grid) for mean in loc]

    def exact(logits):
        weights = np.exp(logits) / np.exp(logits).sum()
        return -(weights * each).sum()

    steps = 1e-5 * np.eye(3)
    expected = [(exact(start + step) - exact(start - step)) / 2e-5 for step in steps]

    logits = torch.tensor(start, requires_grad=True)
    components = pstn.NormalPosterior(torch.tensor(loc)[:, None].expand(count, 3, 1), torch.full((count, 3, 1), scale))
    q = pstn.MixturePosterior(logits.log_softmax(-1).expand(count, 3), components)
    theta, log_weights = q.weighted_sample(samples, method, generator=torch.Generator().manual_seed(0))
    out = pstn.TransformerOutput(theta, theta, q, log_weights)
    loss = pstn.elbo_loss(
        out, None, kl_weight=0.0, log_likelihood=lambda out, y: -torch.log1p(torch.exp(-2 * out.theta[..., 0]))
    )
    loss.backward()
    assert loss.item() == pytest.approx(exact(start), abs=0.015)
    torch.testing.assert_close(logits.grad, torch.tensor(expected), atol=0.01, rtol=0)


def test_the_kl_of_equal_components_is_that_of_one():
    prior = pstn.NormalPrior(0.0, 1.0)
    same = pstn.NormalPosterior(torch.full((1, 2, 1), 0.2), torch.full((1, 2, 1), 0.4))
    equal = pstn.MixturePosterior(torch.tensor([[0.5, 0.5]]).log(), same)
    one = pstn.NormalPosterior(torch.full((1, 1), 0.2), torch.full((1, 1), 0.4))
    torch.testing.assert_close(equal.kl(prior), one.kl(prior))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_kl_bounds_that_of_student_t_mixtures_in_two_dimensions(seed):
    q, prior = mixture(batch=1, seed=seed), pstn.NormalPrior(0.0, 1.0)
    theta = q.rsample(20000, generator=torch.Generator().manual_seed(0))
    exact = (q.log_prob(theta) - torch.distributions.Normal(0.0, 1.0).log_prob(theta)).sum(-1)
    bound = q.kl(prior).sum(-1)
    # The bound is too high by the mean entropy of the component given theta, at most log K.
    assert exact.mean() - 4 * exact.std() / 141 < bound.item() < exact.mean() + 4 * exact.std() / 141 + math.log(3)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("dim", [1, 4])
def test_regions_of_every_family_cover_as_often_as_they_say(level, dim):
    torch.manual_seed(0)
    circular = (True, *[False] * (dim - 1))
    loc, spread = torch.randn(50, dim), torch.rand(50, dim) * 0.3 + 0.01
    families = [
        pstn.Posterior(loc, spread, 1.0, circular=circular), pstn.NormalPosterior(loc, spread, circular=circular),
        pstn.Posterior(loc, spread[:, :1], 2.0, circular=circular), mixture(batch=50, dim=dim, circular=circular),
    ]  # fmt: skip
    for q in families:
        inside = q.contains(q.rsample(400), level).float().mean().item()
        assert inside == pytest.approx(level, abs=0.005 if level == 0.99 else 0.015)
        assert q.region(level).inside.float().mean().item() == pytest.approx(level, abs=0.01)
        with pytest.raises(ValueError, match="level"):
            q.region(1.0)


@pytest.mark.parametrize("method", ["iid", "antithetic", "sobol"])
def test_samples_over_several_modes_vary_less_than_independent_ones(method):
    """The variance of a mean over S = 8 samples, against independent components and independent noise."""
    q = mixture(batch=1, dim=2)
    wide = pstn.MixturePosterior(
        q.log_weights.expand(4000, 3),
        pstn.Posterior(q.components.loc.expand(4000, 3, 2), q.components.beta.expand(4000, 3, 2), 2.0),
    )
    generator = torch.Generator().manual_seed(0)
    found = wide.rsample(8, method, generator=generator).mean(0).var(0)
    alone = torch.stack([wide.rsample(1, generator=generator)[0] for _ in range(8)])
    independent = alone.mean(0).var(0)
    assert (found < {"iid": 0.6, "antithetic": 0.25, "sobol": 0.25}[method] * independent).all()
    torch.testing.assert_close(wide.rsample(8, method).mean((0, 1)), wide.mean[0], atol=0.02, rtol=0)


def test_a_prediction_in_chunks_weighs_the_samples_as_the_whole_does():
    model = weighted_model(pstn.Gated(pstn.Mixture(3)))
    x = torch.rand(5, 1, 12, 12)
    noise = pstn.draw_noise(7, (5, model.layer.noise_width), generator=torch.Generator().manual_seed(0))
    for samples in (None, "modes"):
        given = {"noise": noise} if samples is None else {"samples": samples}
        predictions = []
        for model.chunk_size in (100, 2):
            predictions.append(model(x, **given))
        whole, parts = predictions
        for name in ("log_probs", "mutual_information", "log_weights"):
            torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_one_compiled_program_takes_any_number_of_samples():
    q = mixture(circular=(True, False))

    def sample(noise):
        return q.weighted_sample(noise.shape[0], noise=noise)

    def backend(graph, inputs):
        programs.append(graph)
        return graph.forward

    torch.compiler.reset()
    programs = []
    compiled = torch.compile(sample, fullgraph=True, dynamic=True, backend=backend)
    for samples in (7, 5, 10):
        noise = pstn.draw_noise(samples, (4, 3))
        torch.testing.assert_close(compiled(noise), sample(noise))
    assert len(programs) == 1


FAMILIES = [
    pstn.Mixture(2), pstn.Global(pstn.Mixture(2)), pstn.Hierarchical(), pstn.Gated(pstn.Mixture(2), log_density=-1.8),
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_a_population_of_such_models_trains_as_each_alone_does(family):
    x = torch.rand(16, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    y, recipe = torch.arange(16) % 3, pstn.training.Recipe(epochs=2, batch_size=8)
    models = [rotation_model(family) for _ in range(2)]
    members = pstn.training.make_members(2, lr=1e-2, kl_weight=1e-2)
    together = pstn.training.Population(models, x, y, members, recipe, groups=1)
    together.fit()
    alone = pstn.training.Population(models[1:], x, y, members[1:], recipe)
    alone.fit()
    torch.testing.assert_close(together.models()[1].state_dict(), alone.models()[0].state_dict(), atol=1e-5, rtol=1e-4)
    assert any((a != b).any() for a, b in zip(models[1].parameters(), alone.models()[0].parameters(), strict=True))
    found = together.evaluate(x, y, "modes")["nll"][1]
    assert found == pytest.approx(pstn.evaluate(together.models()[1], (x, y), samples="modes").nll, rel=1e-4)


def weighted_model(family):
    """A model whose three modes weigh as softmax(0, 1, 2)."""
    model = rotation_model(family).eval()
    model.layer.weights_head.last.bias.data = torch.tensor([0.0, 1.0, 2.0])
    return model


def rotation_model(posterior, train_samples=2):
    torch.manual_seed(0)
    localizer = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.Tanh())
    layer = pstn.SpatialTransformer(pstn.Rotation(), localizer, features=8, posterior=posterior)
    return pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), train_samples=train_samples)


def test_modes_start_apart():
    family = pstn.Mixture(4, pstn.StudentT(alpha=2.0))
    layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=4, posterior=family)
    centres, log_weights = layer.localize(torch.rand(2, 1, 2, 2)).modes()
    torch.testing.assert_close(centres[0, 0], torch.tensor([0.0, 1.0, 0.0, 0.0]))
    angles = centres[:, 0, 0]
    assert sorted(angles.abs().tolist()) == pytest.approx([0.0, math.pi / 2, math.pi / 2, math.pi], abs=1e-5)
    assert (torch.pdist(centres[:, 0, 1:]) > 0.01).all()
    torch.testing.assert_close(log_weights, torch.full((4, 2), -math.log(4)))


def test_a_prediction_at_the_modes_weighs_them():
    model = weighted_model(pstn.Mixture(3))
    x = torch.rand(5, 1, 12, 12)
    p = model(x, "modes")
    weights = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert p.theta.shape == (3, 5, 1)
    torch.testing.assert_close(p.probs, (weights[:, None, None] * p.sample_log_probs.exp()).sum(0))
    each = -(p.sample_log_probs.exp() * p.sample_log_probs).sum(-1)
    torch.testing.assert_close(p.mutual_information, p.entropy - (weights[:, None] * each).sum(0), atol=1e-6, rtol=0)
    assert rotation_model(pstn.StudentT()).eval()(x, "modes").theta.shape == (1, 5, 1)


def test_a_global_posterior_does_not_ask_the_localizer():
    class Refusing(nn.Module):
        def forward(self, x):
            raise AssertionError

    layer = pstn.SpatialTransformer(pstn.Rotation(), Refusing(), posterior=pstn.Global(pstn.StudentT(2.0)))
    q = layer.localize(torch.rand(3, 1, 8, 8))
    assert q.loc.shape == (3, 1)
    q.rsample(2).sum().backward()
    learning = {name for name, p in layer.named_parameters() if p.grad is not None}
    assert learning == {"shared.all_mean", "shared.all_variance"}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "exported"),
    [(pstn.Mixture(2), "modes"), (pstn.Global(), 4), (pstn.Hierarchical(pstn.Mixture(2, pstn.Normal())), 4),
     (pstn.Gated(pstn.Mixture(2)), 4), (pstn.Gated(pstn.Mixture(2)), "modes")],
)  # fmt: skip
def test_a_model_with_such_a_posterior_is_saved_compiled_and_exported(family, exported, tmp_path):
    torch.manual_seed(0)
    about = pstn.ModelMetadata(classes=tuple("0123456789"), size=(28, 28), channels=1)
    layer = pstn.SpatialTransformer(pstn.Rotation(), pstn.nn.ConvLocalizer(1, (28, 28)), posterior=family)
    model = pstn.PSTN(layer, pstn.nn.mnist_cnn(), test_samples=4).eval()
    x, noise = torch.rand(3, 1, 28, 28), torch.rand(4, 3, layer.noise_width).clamp(0.01, 0.99)
    expected = model(x, noise=noise)
    loaded = pstn.from_pretrained(model.save_pretrained(tmp_path / "model", about=about)).eval()
    assert repr(loaded.layer.posterior) == repr(family)
    torch.testing.assert_close(loaded(x, noise=noise).log_probs, expected.log_probs)
    compiled = torch.compile(lambda x, noise: model(x, noise=noise).log_probs, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, noise), expected.log_probs)
    path = pstn.export.export_onnx(loaded, tmp_path / "model.onnx", samples=exported)
    given, wanted = {"x": x.numpy()}, model(x, "modes")
    if exported != "modes":
        given, wanted = {**given, "noise": noise.numpy()}, expected
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    found = session.run(["probabilities", "mutual_information"], given)
    for own, other in zip(found, (wanted.probs, wanted.mutual_information), strict=True):
        torch.testing.assert_close(torch.from_numpy(own), other, atol=1e-5, rtol=1e-4)


def gated(angles, scale=0.1, probability=0.5):
    family = pstn.Gated(pstn.Normal(), probability, log_density=-math.log(2 * math.pi))
    numbers = {"mean": torch.tensor(angles)[:, None], "variance": torch.full((len(angles), 1), scale**2).expm1().log()}
    shared = {"prior_loc": torch.zeros(1), "prior_log_scale": torch.zeros(1), "identity": torch.zeros(1)}
    return family.build(pstn.Rotation(), {**numbers, **shared})


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_gate_is_bayes_rule(probability):
    q = gated([0.0, 0.15, 1.0], probability=probability)
    upright = probability * stats.norm(0, 0.1).pdf([0.0, 0.15, 1.0])
    turned = (1 - probability) / (2 * math.pi)
    torch.testing.assert_close(
        q.logit.sigmoid().double(), torch.tensor(upright / (upright + turned)), atol=1e-4, rtol=1e-3
    )


def test_samples_and_modes_are_gated_by_their_share():
    q = gated([0.2, 1.0])
    share = q.logit.sigmoid()
    theta = q.rsample(1000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close((theta[..., 0] == 0).float().mean(0), share, atol=2e-3, rtol=0)
    centres, log_weights = q.modes()
    torch.testing.assert_close(centres[..., 0], torch.tensor([[0.0, 0.0], [0.2, 1.0]]))
    torch.testing.assert_close(log_weights.exp(), torch.stack([share, 1 - share]))
    assert (q.mode[0, 0] == 0) == (share[0] > 0.5)
    assert q.mode[1].item() == 1.0


def test_what_a_gate_leaves_is_spread_over_the_modes_as_without_it():
    weights = torch.tensor([0.2, 0.5, 0.3])
    loc = torch.tensor([[[10.0], [20.0], [30.0]]]).expand(500, 3, 1)
    base = pstn.MixturePosterior(weights.log().expand(500, 3), pstn.NormalPosterior(loc, torch.full_like(loc, 0.1)))
    q = pstn.GatedPosterior(base, torch.zeros(500), torch.zeros(1))
    for samples in (4, 20):
        theta = q.rsample(samples, generator=torch.Generator().manual_seed(0))[..., 0]
        shares = torch.stack([((theta / 10).round() == mode).float().mean(0) for mode in range(4)], -1)
        expected = torch.cat([torch.tensor([0.5]), 0.5 * weights])
        torch.testing.assert_close(shares.mean(0), expected, atol=0.02, rtol=0)
        assert ((shares - expected).abs() * samples < 1.001).all()


@pytest.mark.parametrize("mixed", [False, True])
def test_the_weights_carry_the_gradients_of_the_gate_and_of_the_modes(mixed):
    logits = torch.tensor([[0.3, -0.4]], dtype=torch.float64, requires_grad=True)
    logit = torch.tensor([0.2], dtype=torch.float64, requires_grad=True)
    loc = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    base = pstn.NormalPosterior(loc, torch.full_like(loc, 0.1))
    squares, given = (logits.softmax(-1) * (loc[..., 0] ** 2 + 0.01)).sum(-1), (logits, logit)
    if mixed:
        base = pstn.MixturePosterior(logits.log_softmax(-1), base)
    else:
        base, squares, given = pstn.NormalPosterior(loc[:, 0], torch.full_like(loc[:, 0], 0.1)), 1.01, (logit,)
    noise = pstn.draw_noise(4000, (1, base.noise_width + 1), generator=torch.Generator().manual_seed(0)).double()
    theta, log_weights = pstn.GatedPosterior(base, logit, torch.zeros(1).double()).weighted_from_noise(noise)
    found = torch.autograd.grad((log_weights.exp() * theta.square().sum(-1)).sum(), given, retain_graph=True)
    # E[theta^2], of which the identity has 0.
    expected = torch.autograd.grad(((1 - logit.sigmoid()) * squares).sum(), given)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)


def test_the_mean_is_that_of_many_samples():
    circular = (True, False)
    base = pstn.NormalPosterior(torch.tensor([[3.0, 1.0]]), torch.full((1, 2), 0.1), circular)
    q = pstn.GatedPosterior(base, torch.tensor([0.4]), torch.tensor([-2.5, -2.0]), circular)
    theta = q.rsample(20_000, generator=torch.Generator().manual_seed(0))
    direction = torch.atan2(theta[..., 0].sin().mean(0), theta[..., 0].cos().mean(0))
    torch.testing.assert_close(q.mean, torch.stack([direction, theta[..., 1].mean(0)], -1), atol=0.01, rtol=0)


def test_an_interval_holds_the_identity_by_its_share():
    q = gated([1.0], scale=0.1)
    q = pstn.GatedPosterior(q.base, torch.tensor([1.0]), torch.zeros(1), (True,))
    low, high = q.interval(0.9)
    theta = q.rsample(4000, generator=torch.Generator().manual_seed(1))
    assert ((low - 1e-6 <= theta) & (theta <= high + 1e-6)).float().mean().item() == pytest.approx(0.95, abs=0.05)
    assert low.item() == pytest.approx(0.0, abs=1e-6)
