"""The posterior against scipy and torch.distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import pstn
from pstn.distributions.student_t import student_t_quantile
from refusals import refused


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0, 1.5, 3.0, 50.0])
def test_quantiles_equal_scipys(alpha):
    u = torch.cat([torch.logspace(-7, -0.31, 500, dtype=torch.float64), torch.tensor([0.5])])
    u = torch.cat([u, 1 - u])
    expected = torch.from_numpy(stats.t.ppf(u.numpy(), 2 * alpha))
    error = (student_t_quantile(u, 2 * alpha) - expected).abs() / (1 + expected.abs())
    assert error.max() < 1e-7
    q = pstn.Posterior(torch.full((3,), 2.0, dtype=torch.float64), torch.full((3,), 0.3, dtype=torch.float64), alpha)
    expected = stats.t.ppf(0.9, 2 * alpha, loc=2.0, scale=math.sqrt(0.3 / alpha))
    torch.testing.assert_close(q.quantile(0.9), torch.full((3,), expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["iid", "antithetic", "sobol"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
def test_samples_are_student_t(method, alpha):
    beta = 0.04
    q = pstn.Posterior(torch.full((2000, 2), 0.3), torch.full((2000, 2), beta), alpha)
    theta = q.rsample(10, method=method, generator=generator())
    # One sample per input, so that what is tested is independent whatever the method.
    for sample in (0, 7):
        result = stats.kstest(theta[sample, :, 1].numpy(), "t", args=(2 * alpha, 0.3, math.sqrt(beta / alpha)))
        assert result.pvalue > 0.01, result


@pytest.mark.parametrize("method", ["antithetic", "sobol"])
def test_structured_samples_average_better_than_independent_ones(method):
    def spread(method):
        u = pstn.draw_noise(16, (500, 3), method=method, generator=generator())
        return (u.mean(0) - 0.5).square().mean()

    assert spread(method) < spread("iid") / 3


def test_antithetic_samples_mirror():
    q = pstn.Posterior(torch.randn(4, 3), torch.rand(4, 3) + 0.1)
    theta = q.rsample(6, method="antithetic", generator=generator())
    torch.testing.assert_close(theta[:3] + theta[3:], (2 * q.loc).expand(3, 4, 3), rtol=1e-3, atol=1e-3)
    assert q.rsample(5, method="antithetic").shape == (5, 4, 3)


@pytest.mark.parametrize("method", ["iid", "antithetic", "sobol"])
def test_exact_under_a_seed(method):
    q = pstn.Posterior(torch.randn(4, 3), torch.rand(4, 3) + 0.1)
    draws = [q.rsample(8, method=method, generator=generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    torch.manual_seed(5)
    first = q.rsample(8, method=method)
    torch.manual_seed(5)
    assert torch.equal(first, q.rsample(8, method=method))


def test_exporting_leaves_nothing_behind():
    class Draw(torch.nn.Module):
        def forward(self, loc, beta, noise):
            return pstn.Posterior(loc, beta, 2.75).rsample(noise=noise)

    torch.export.export(Draw(), (torch.zeros(2, 3), torch.ones(2, 3), torch.rand(4, 2, 3)))
    theta = pstn.Posterior(torch.zeros(2, 3), torch.ones(2, 3), 2.75).rsample(4)
    assert theta.numpy().shape == (4, 2, 3)


def test_one_compiled_function_serves_every_alpha():
    loc, beta, noise = torch.randn(2, 3), torch.rand(2, 3) + 0.1, torch.rand(4, 2, 3)

    def draw(alpha):
        return pstn.Posterior(loc, beta, alpha).rsample(noise=noise)

    compiled = torch.compile(draw, backend="eager", fullgraph=True, dynamic=True)
    for alpha in (1.5, 2.5, 0.7):
        torch.testing.assert_close(compiled(alpha), draw(alpha))


def test_the_caller_can_pass_the_noise():
    q = pstn.Posterior(torch.randn(4, 3), torch.rand(4, 3) + 0.1)
    noise = pstn.draw_noise(6, (4, 3), generator=generator())
    theta = q.rsample(6, noise=noise)
    assert torch.equal(theta, q.rsample(6, generator=generator()))
    assert torch.equal(theta, torch.cat([q.rsample(noise=part) for part in noise.split(2)]))
    torch.testing.assert_close(q.rsample(noise=torch.full((1, 4, 3), 0.5))[0], q.loc)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 2.3])
@pytest.mark.parametrize(("alpha0", "beta0"), [(1.0, 1.0), (0.5, 2.0), (3.0, 0.1)])
def test_kl_equals_torch_distributions(alpha, alpha0, beta0):
    beta = torch.logspace(-4, 3, 20, dtype=torch.float64)
    ours = pstn.Posterior(torch.zeros_like(beta), beta, alpha).kl(alpha0, beta0)
    gamma = torch.distributions.Gamma
    expected = torch.distributions.kl_divergence(gamma(torch.tensor(alpha).double(), beta), gamma(alpha0, beta0))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    assert (ours > -1e-12).all()


def test_log_prob_equals_torch_distributions():
    q = pstn.Posterior(torch.randn(5, 3), torch.rand(5, 3) + 0.1, alpha=1.5)
    theta = torch.randn(7, 5, 3)
    expected = torch.distributions.StudentT(q.df, q.loc, q.scale).log_prob(theta)
    torch.testing.assert_close(q.log_prob(theta), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_parameters_are_held_in_float32_at_least(dtype):
    q = pstn.Posterior(torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype))
    assert q.loc.dtype == q.beta.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_intervals_hold_what_they_promise(alpha):
    q = pstn.Posterior(torch.randn(3), torch.rand(3) + 0.1, alpha)
    low, high = q.interval(0.8)
    theta = q.rsample(20_000, generator=generator())
    share = ((theta > low) & (theta < high)).float().mean(0)
    torch.testing.assert_close(share, torch.full((3,), 0.8), rtol=0, atol=0.02)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_gradients_reach_loc_and_beta(alpha):
    loc = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    beta = (torch.rand(2, 3, dtype=torch.float64) + 0.1).requires_grad_()
    noise = torch.rand(4, 2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: pstn.Posterior(a, b, alpha).rsample(noise=noise), (loc, beta))
    assert torch.autograd.gradcheck(lambda b: pstn.Posterior(loc, b, alpha).kl(), beta)


def test_a_point_posterior_has_one_sample_and_no_kl():
    q = pstn.PointPosterior(torch.randn(4, 3))
    assert torch.equal(q.rsample(10), q.loc[None])
    assert torch.equal(q.region().theta, q.loc[None])
    assert torch.equal(q.kl(), torch.zeros(4, 3))
    low, high = q.interval()
    assert torch.equal(low, high)


@given(beta=st.floats(1e-30, 1e12), u=st.sampled_from([0.0, 1e-45, 1e-30, 2**-24, 0.5, 1 - 2**-24, 1.0]))
def test_noise_at_the_ends_of_the_interval_is_finite(beta, u):
    loc, b = torch.zeros(1, 1, requires_grad=True), torch.full((1, 1), beta, requires_grad=True)
    q = pstn.Posterior(loc, b)
    theta = q.rsample(noise=torch.full((1, 1, 1), u))
    (theta.sum() + q.kl().sum()).backward()
    assert theta.isfinite().all()
    assert theta.abs().max() <= 2900 * math.sqrt(beta) + 1e-6
    assert loc.grad.isfinite().all()
    # d theta / d beta = t / (2 sqrt(beta)) and d KL / d beta ~ 1/beta**2 leave float32 only where they must.
    assert b.grad.isfinite().all() or beta < 1e-18


test_bad_arguments_are_named = refused(
    (lambda: pstn.Posterior(torch.zeros(3), torch.zeros(3)), ValueError, "beta"),
    (lambda: pstn.Posterior(torch.zeros(3), -torch.ones(3)), ValueError, "beta"),
    (lambda: pstn.Posterior(torch.zeros(3), torch.ones(4)), ValueError, "loc and beta must have one shape"),
    (lambda: pstn.Posterior(torch.zeros(3), torch.ones(3), 0.0), ValueError, "alpha"),
    (lambda: pstn.Posterior(torch.zeros(3), torch.ones(3), 0.1), ValueError, "alpha"),
    (lambda: pstn.Posterior(torch.zeros(3).long(), torch.ones(3)), TypeError, "loc"),
    (lambda: pstn.Posterior(torch.full((3,), float("nan")), torch.ones(3)), ValueError, "mean head"),
    (lambda: pstn.Posterior(torch.zeros(3), torch.full((3,), float("nan"))), ValueError, "variance head"),
    (lambda: pstn.PointPosterior(torch.full((3,), float("inf"))), ValueError, "mean head"),
    (lambda: pstn.PointPosterior(torch.zeros(3).long()), TypeError, "loc must"),
    (lambda: good().rsample(0), ValueError, "samples"),
    (lambda: good().rsample(2.5), TypeError, "samples"),
    (lambda: good().rsample(2, method="halton"), ValueError, "method"),
    (lambda: good().rsample(2, noise=torch.rand(2, 4)), ValueError, "noise"),
    (lambda: good().rsample(1, noise=torch.full((1, 3), 2.0)), ValueError, "noise"),
    (lambda: good().kl(alpha0=0.0), ValueError, "alpha0"),
    (lambda: good().quantile(1.5), ValueError, "probability"),
    (lambda: pstn.PointPosterior(torch.zeros(3)).quantile(1.5), ValueError, "probability"),
    (lambda: pstn.PointPosterior(torch.zeros(3)).rsample(method="z"), ValueError, "method"),
    (lambda: pstn.PointPosterior(torch.zeros(3)).rsample(0), ValueError, "samples"),
    (lambda: good().interval(1.0), ValueError, "level"),
)


def good():
    return pstn.Posterior(torch.zeros(3), torch.ones(3))


def shared_precision(alpha=1.0, count=4000):
    """Three parameters with one precision per input."""
    return pstn.Posterior(torch.zeros(count, 3), torch.full((count, 1), 0.5), alpha)


def test_one_precision_makes_parameters_go_far_out_together():
    # The squared length of D parameters with one precision, over D and the squared scale, is F(D, 2 alpha).
    theta = shared_precision(alpha=2.0).rsample(1, generator=generator())[0]
    length = theta.square().sum(-1) / 3 / (0.5 / 2.0)
    assert stats.kstest(length.numpy(), "f", args=(3, 4)).pvalue > 0.01
    apart = pstn.Posterior(torch.zeros(4000, 3), torch.full((4000, 3), 0.5), 2.0)
    length = apart.rsample(1, generator=generator())[0].square().sum(-1) / 3 / (0.5 / 2.0)
    assert stats.kstest(length.numpy(), "f", args=(3, 4)).pvalue < 0.01


@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_the_density_with_one_precision_is_the_multivariate_students(alpha):
    q = pstn.Posterior(torch.tensor([[0.1, -0.2, 0.3]]), torch.tensor([[0.4]]), alpha)
    theta = torch.tensor([[0.5, -1.0, 2.0]])
    far = torch.tensor([[1.0, 5000.0]])
    one = pstn.Posterior(torch.zeros(1, 2), torch.ones(1, 1), alpha)
    wanted = stats.multivariate_t([0.0, 0.0], 1 / alpha, df=2 * alpha).logpdf(far.numpy())
    assert float(one.log_prob(far).sum()) == pytest.approx(float(wanted), rel=1e-5)  # in float32: no difference of sums
    expected = stats.multivariate_t(q.loc[0].numpy(), 0.4 / alpha, df=2 * alpha).logpdf(theta[0].numpy())
    assert float(q.log_prob(theta).sum()) == pytest.approx(expected, rel=1e-5)


def test_one_precision_has_one_divergence():
    q = shared_precision(count=5)
    each = pstn.Posterior(torch.zeros(5, 3), torch.full((5, 3), 0.5))
    assert q.kl().shape == (5, 1)
    torch.testing.assert_close(q.kl().mean(), each.kl().mean())


@pytest.mark.parametrize("theta", [torch.zeros(8, 1), torch.zeros(8, 3), torch.tensor(0.0), [0.0] * 4], ids=range(4))
def test_a_density_is_of_thetas_as_wide_as_loc(theta):
    with pytest.raises(ValueError, match="theta must"):
        pstn.Posterior(torch.zeros(8, 4), torch.ones(8, 4)).log_prob(theta)
