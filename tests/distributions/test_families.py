"""What every distribution over theta must do, against torch.distributions and scipy; families and priors in a layer."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn

import pstn
from refusals import refused

FAMILIES = {
    "student-t": pstn.StudentT(),
    "student-t, light tails": pstn.StudentT(alpha=2.5),
    "one precision": pstn.StudentT(precision="per-input"),
    "normal": pstn.Normal(),
    "normal, learned prior": pstn.Normal(prior=pstn.NormalPrior(scale=0.3, learned=True)),
    "student-t, normal prior": pstn.StudentT(alpha=3.0, prior=pstn.NormalPrior()),
    "mixture": pstn.Mixture(3, pstn.StudentT(alpha=2.0)),
    "mixture, one precision": pstn.Mixture(2, pstn.StudentT(precision="per-input")),
    "mixture of normals": pstn.Mixture(2, pstn.Normal(prior=pstn.NormalPrior(scale=0.3, learned=True))),
    "global": pstn.Global(),
    "global mixture": pstn.Global(pstn.Mixture(2, pstn.Normal())),
    "hierarchical": pstn.Hierarchical(shrink=0.2),
    "gated": pstn.Gated(pstn.Mixture(2), 0.3, log_density=-2.0),
    "point": pstn.Point(),
    "point, prior": pstn.Point(prior=pstn.NormalPrior(scale=0.5)),
}


def make_layer(family):
    torch.manual_seed(0)
    localizer = nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten())
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, size=(12, 12), features=64, posterior=family)
    with torch.no_grad():
        for name in layer.heads:
            layer.get_submodule(f"{name}_head").last.weight.normal_(0, 0.1)
    return layer


def images(count=5):
    return torch.rand(count, 1, 20, 20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_samples_scores_and_learns(name):
    layer = make_layer(FAMILIES[name])
    q = layer.localize(images())
    samples = 3 if layer.probabilistic else 1
    assert q.shape == q.mean.shape == q.mode.shape == (5, 4)
    theta, log_weights = q.weighted_sample(3, generator=torch.Generator().manual_seed(2))
    assert theta.shape == (samples, 5, 4)
    assert q.weighted or torch.allclose(log_weights.exp(), torch.full((samples, 5), 1 / samples))
    assert q.log_prob(theta).shape == theta.shape
    low, high = q.interval(0.5)
    assert (low <= high).all()
    assert isinstance(q, (pstn.MixturePosterior, pstn.GatedPosterior)) or ((low <= q.mode) & (q.mode <= high)).all()
    assert q.kl().shape[:-1] == (5,)
    (theta.sum() + q.kl().mean()).backward()
    asked = not isinstance(FAMILIES[name], pstn.Global)
    grads = [p.grad for name, p in layer.named_parameters() if asked or not name.startswith("localizer")]
    assert all(g is not None and g.isfinite().all() for g in grads)


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_are_a_function_of_noise_of_the_width_that_the_distribution_states(name):
    layer = make_layer(FAMILIES[name])
    q = layer.localize(images())
    assert layer.noise_width == q.noise_width
    noise = pstn.draw_noise(4, (5, q.noise_width), generator=torch.Generator().manual_seed(3))
    whole = q.rsample(noise=noise)
    assert torch.equal(whole, q.from_noise(noise[: whole.shape[0]]))
    if layer.probabilistic:
        if not isinstance(q, (pstn.MixturePosterior, pstn.GatedPosterior)):  # whose samples are stratified
            torch.testing.assert_close(whole, torch.cat([q.rsample(noise=part) for part in noise.split(1)]))
        with pytest.raises(ValueError, match="noise must"):
            q.rsample(noise=torch.rand(4, 5, q.noise_width + 1))


# Tracing takes a second for each: what others of the list are made of is traced there.
PARTS_OF_OTHERS = {"normal", "mixture, one precision", "mixture of normals", "global", "point"}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in PARTS_OF_OTHERS])
def test_every_distribution_passes_through_func_compile_and_export(name):
    layer = make_layer(FAMILIES[name]).eval()
    x, noise = images(), torch.rand(2, 5, layer.noise_width).clamp(0.01, 0.99)

    def theta_and_kl(x):
        q = layer.localize(x)
        return q.rsample(noise=noise), q.kl()

    expected = theta_and_kl(x)
    mapped = torch.func.vmap(lambda x: layer.localize(x[None]))(x)
    torch.testing.assert_close(mapped.mode[:, 0], layer.localize(x).mode)
    torch.compiler.reset()  # one function for all families would reach the limit on recompilations
    compiled = torch.compile(theta_and_kl, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(compiled, expected)

    class Exported(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, noise):
            return self.layer(x, samples=2, noise=noise)

    program = torch.export.export(Exported(), (x, noise))
    out = program.module()(x, noise)
    assert type(out.posterior) is type(layer.localize(x))
    torch.testing.assert_close(out.theta, expected[0])


@pytest.mark.parametrize("scale", [0.05, 2.0])
def test_the_normal_posterior_equals_torch_distributions(scale):
    loc, spread = torch.randn(6, 3), torch.rand(6, 3) * scale + 0.01
    q, reference = pstn.NormalPosterior(loc, spread), torch.distributions.Normal(loc, spread)
    theta = torch.randn(4, 6, 3)
    torch.testing.assert_close(q.log_prob(theta), reference.log_prob(theta))
    torch.testing.assert_close(q.entropy, reference.entropy())
    prior = torch.distributions.Normal(torch.tensor([0.1, 0.2, 0.3]), torch.tensor(0.7))
    expected = torch.distributions.kl_divergence(reference, prior)
    torch.testing.assert_close(q.kl(pstn.NormalPrior(prior.loc, 0.7)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(q.quantile(0.9), reference.icdf(torch.tensor(0.9)), rtol=1e-4, atol=1e-5)
    low, high = q.interval(0.8)
    torch.testing.assert_close(reference.cdf(high) - reference.cdf(low), torch.full((6, 3), 0.8), rtol=0, atol=1e-5)


def test_quantiles_of_the_normal_equal_scipys_and_have_its_slope():
    u = torch.cat([torch.logspace(-7, -0.31, 500, dtype=torch.float64), torch.tensor([0.075, 0.5]).double()])
    u = torch.cat([u, 1 - u]).requires_grad_()
    z = pstn.distributions.normal_quantile(u)
    torch.testing.assert_close(z.detach(), torch.from_numpy(stats.norm.ppf(u.detach().numpy())), rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(z.sum(), u)
    expected = torch.from_numpy(1 / stats.norm.pdf(z.detach().numpy()))
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 10.0])
def test_the_kl_of_a_student_t_from_a_normal_prior_equals_its_integral(alpha):
    loc, beta, mean, scale = 0.4, 0.09, 0.1, 0.8
    q = pstn.Posterior(torch.tensor([loc]).double(), torch.tensor([beta]).double(), alpha)
    reference, prior = stats.t(2 * alpha, loc, math.sqrt(beta / alpha)), stats.norm(mean, scale)

    def integrand(theta):
        return reference.pdf(theta) * (reference.logpdf(theta) - prior.logpdf(theta))

    expected = sum(integrate.quad(integrand, *ends, limit=500)[0] for ends in ((-math.inf, loc), (loc, math.inf)))
    assert q.kl(pstn.NormalPrior(mean, scale)).item() == pytest.approx(expected, rel=1e-5)
    assert q.variance.item() == pytest.approx(reference.var())
    assert q.entropy.item() == pytest.approx(reference.entropy(), rel=1e-6)


def test_the_joint_entropy_with_one_precision_equals_scipys():
    q = pstn.Posterior(torch.zeros(3).double(), torch.tensor([0.5]).double(), alpha=2.0)
    shape = torch.eye(3).double().numpy() * 0.25
    assert q.entropy.sum().item() == pytest.approx(float(stats.multivariate_t(shape=shape, df=4).entropy()), rel=1e-6)


def test_moments_that_do_not_exist_are_not_made_up():
    heavy = pstn.Posterior(torch.zeros(2), torch.ones(2), alpha=0.5)
    assert heavy.mean.isnan().all()
    assert torch.equal(heavy.mode, torch.zeros(2))
    assert pstn.Posterior(torch.zeros(2), torch.ones(2)).variance.isinf().all()


def test_a_point_under_a_normal_prior_pays_its_negative_log_density():
    q = pstn.PointPosterior(torch.randn(4, 3))
    expected = -torch.distributions.Normal(0.2, 0.5).log_prob(q.loc)
    torch.testing.assert_close(q.kl(pstn.NormalPrior(0.2, 0.5)), expected)


def test_a_normal_prior_is_of_scale_1_around_the_start_unless_said_otherwise():
    q = make_layer(pstn.Normal(prior=pstn.NormalPrior())).localize(images())
    prior = torch.distributions.Normal(pstn.Similarity().identity(), 1.0)
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(q.mean, q.variance.sqrt()), prior)
    torch.testing.assert_close(q.kl(), expected)


def test_a_learned_prior_moves_to_where_the_posteriors_are():
    layer = make_layer(pstn.Normal(prior=pstn.NormalPrior(scale=1.0, learned=True))).requires_grad_(False)
    layer.shared.requires_grad_(True)
    assert torch.equal(layer.shared.prior_loc, pstn.Similarity().identity())
    q = layer.localize(images(50))
    optimiser = torch.optim.Adam(layer.shared.parameters(), lr=0.02)
    for _ in range(400):
        optimiser.zero_grad()
        layer.localize(images(50)).kl().mean().backward()
        optimiser.step()
    # The best prior has the mean of the means, and the variance of the mixture of all posteriors.
    torch.testing.assert_close(layer.shared.prior_loc.detach(), q.mean.mean(0), rtol=0, atol=1e-2)
    variance = q.variance.mean(0) + q.mean.var(0, correction=0)
    torch.testing.assert_close(layer.shared.prior_log_scale.detach(), variance.sqrt().log(), rtol=0, atol=2e-2)


def test_a_fixed_prior_is_a_constant_of_the_layer():
    layer = make_layer(pstn.Normal(prior=pstn.NormalPrior(torch.tensor([0.0, 1.0, 0.5, 0.0]), 0.3)))
    assert not any("prior" in name for name, _ in layer.named_parameters())
    assert not any("prior" in name for name in layer.state_dict())
    assert layer.double().localize(images().double()).prior.loc.dtype == torch.float64


def flat(**options):
    return pstn.SpatialTransformer(pstn.Crop(), nn.Flatten(), **options)


def test_short_forms_say_the_same_as_a_family():
    short = flat(alpha=2.0, precision="per-input", var_init=-3.0)
    assert short.posterior == pstn.StudentT(2.0, "per-input", -3.0)
    assert flat(probabilistic=False).posterior == pstn.Point()
    assert flat().posterior == pstn.StudentT()


SHORT_FORMS = {"alpha": 1.0, "var_init": -5.0, "precision": "per-input", "probabilistic": False}
test_bad_arguments_are_named = refused(
    *[(lambda s=s: flat(posterior=pstn.StudentT(), **dict([s])), ValueError, s[0]) for s in SHORT_FORMS.items()],
    (lambda: flat(posterior="normal"), TypeError, "posterior"),
    (lambda: pstn.StudentT(alpha=0.1), ValueError, "alpha"),
    (lambda: pstn.StudentT(alpha=1.0, prior=pstn.NormalPrior()), ValueError, "alpha"),
    (lambda: pstn.StudentT(precision="both"), ValueError, "precision"),
    (lambda: pstn.Normal(var_init="a"), TypeError, "var_init"),
    (lambda: pstn.GammaPrior(alpha0=0.0), ValueError, "alpha0"),
    (lambda: pstn.NormalPrior(scale=-1.0), ValueError, "scale"),
    (lambda: make_layer(pstn.Normal(prior=pstn.NormalPrior(scale=torch.zeros(4)))), ValueError, "scale"),
    (lambda: pstn.NormalPrior(loc="a"), TypeError, "loc"),
    (lambda: pstn.NormalPosterior(torch.zeros(3), torch.zeros(3)), ValueError, "scale"),
    (lambda: pstn.NormalPosterior(torch.zeros(3), torch.ones(2)), ValueError, "scale"),
    (lambda: pstn.NormalPosterior(torch.zeros(3), torch.ones(3)).kl(pstn.GammaPrior()), TypeError, "GammaPrior"),
    (lambda: pstn.NormalPosterior(torch.zeros(3), torch.ones(3)).kl(pstn.NormalPrior()), ValueError, "loc"),
    (lambda: pstn.Posterior(torch.zeros(3), torch.ones(3)).kl(pstn.NoPrior(), alpha0=2.0), ValueError, "prior"),
    (lambda: pstn.Gated(pstn.Gated(pstn.Normal())), TypeError, "base"),
    *[(lambda p=p: pstn.Gated(pstn.Normal(), p), ValueError, "probability") for p in (0.0, 1.0, math.nan)],
    (lambda: pstn.Mixture(2, pstn.Mixture(2)), TypeError, "base"),
    (lambda: flat(posterior=pstn.Mixture(2, pstn.Gated(pstn.Normal()))), TypeError, "base"),
    (lambda: pstn.Mixture(0), ValueError, "k "),
    (lambda: pstn.Mixture(2, pstn.Global()).starts(pstn.Rotation()), ValueError, "mean"),
)


def test_models_of_different_families_do_not_stack():
    x, y = images(8), torch.arange(8) % 3
    head = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    models = [pstn.PSTN(make_layer(pstn.StudentT(alpha)), head) for alpha in (1.0, 2.0)]
    with pytest.raises(ValueError, match="posterior"):
        pstn.training.Population(models, x, y)


def test_transformations_say_which_parameters_are_angles():
    assert pstn.Rotation().circular == (True,)
    assert pstn.Similarity().circular == (True, False, False, False)
    assert pstn.Compose(pstn.Crop(), pstn.Rotation()).circular == (False, False, False, True)
    for family in (pstn.Affine(), pstn.Crop(ndim=3), pstn.Translation(), pstn.CPAB(tess=5)):
        assert family.circular == (False,) * family.dim
    # A full turn of an angle changes nothing.
    for family in (pstn.Rotation(), pstn.Similarity()):
        turn = 2 * math.pi * torch.tensor(family.circular).double()
        theta = family.initial().double() + 0.3
        torch.testing.assert_close(family.grid(theta, (5, 7)), family.grid(theta + turn, (5, 7)))
