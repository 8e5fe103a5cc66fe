"""The ELBO, term by term."""

import numpy as np
import pytest
import torch
from torch import nn

import pstn
from refusals import refused


def prediction(samples=5, batch=6, classes=4, width=3):
    log_probs = torch.randn(samples, batch, classes).log_softmax(-1)
    posterior = pstn.Posterior(torch.randn(batch, width), torch.rand(batch, width) + 0.1)
    mean = log_probs.logsumexp(0) - torch.tensor(float(samples)).log()
    return pstn.Prediction(mean, log_probs, torch.randn(samples, batch, width), posterior)


def test_equals_its_two_terms():
    p, y = prediction(), torch.tensor([0, 1, 2, 3, 0, 1])
    likelihood = sum(nn.functional.nll_loss(sample, y) for sample in p.sample_log_probs) / 5
    gamma = torch.distributions.Gamma
    kl = torch.distributions.kl_divergence(gamma(torch.tensor(1.0), p.posterior.beta), gamma(1.0, 1.0)).mean()
    torch.testing.assert_close(pstn.elbo_loss(p, y, kl_weight=0.3), likelihood + 0.3 * kl)
    torch.testing.assert_close(pstn.elbo_loss(p, y, kl_weight=0.0), likelihood)
    torch.testing.assert_close(pstn.elbo_loss(p, y.int(), kl_weight=torch.tensor(0.3)), likelihood + 0.3 * kl)
    for prior in ({"alpha0": 2.0, "beta0": 0.5}, {"alpha0": 2.0}, {"beta0": 0.5}):
        wanted = gamma(prior.get("alpha0", 1.0), prior.get("beta0", 1.0))
        other = torch.distributions.kl_divergence(gamma(torch.tensor(1.0), p.posterior.beta), wanted).mean()
        torch.testing.assert_close(pstn.elbo_loss(p, y, 0.3, **prior), likelihood + 0.3 * other)


@pytest.mark.parametrize("weight", [np.float32(0.5), np.float64(0.5), np.int64(2)])
def test_the_weight_may_be_a_number_of_numpys(weight):
    p, y = prediction(), torch.tensor([0, 1, 2, 3, 0, 1])
    loss = pstn.elbo_loss(p, y, weight)
    assert isinstance(loss, torch.Tensor)
    torch.testing.assert_close(loss, pstn.elbo_loss(p, y, float(weight)))


def test_of_an_stn_is_the_cross_entropy():
    model, x, y = pstn.nn.mnist_stn().eval(), torch.rand(3, 1, 28, 28), torch.arange(3)
    p = model(x)
    torch.testing.assert_close(pstn.elbo_loss(p, y, kl_weight=1.0), nn.functional.nll_loss(p.log_probs, y))


def test_any_other_task_through_its_log_likelihood():
    layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), nn.Flatten(), features=30)
    x, y, head = torch.randn(8, 1, 30), torch.randn(8), nn.Linear(30, 1)
    out = layer(x, samples=4)

    def gaussian(out, y):
        return torch.distributions.Normal(head(out.warped)[..., 0, 0], 0.5).log_prob(y)

    loss = pstn.elbo_loss(out, y, kl_weight=0.1, log_likelihood=gaussian)
    torch.testing.assert_close(loss, -gaussian(out, y).mean() + 0.1 * out.posterior.kl().mean())
    loss.backward()
    assert layer.variance_head.last.bias.grad.abs().sum() > 0


def test_a_target_that_cannot_be_has_an_infinite_loss():
    impossible = torch.zeros(5, 6)
    impossible[0, 0] = -torch.inf
    assert pstn.elbo_loss(prediction(), None, 0.1, log_likelihood=lambda p, y: impossible).item() == torch.inf


def returns(value):
    return lambda prediction, y: value


test_bad_arguments_are_named = refused(
    (lambda p, y: pstn.elbo_loss(p, y, -1.0), ValueError, "kl_weight must"),
    (lambda p, y: pstn.elbo_loss(p, y, float("nan")), ValueError, "kl_weight must"),
    (lambda p, y: pstn.elbo_loss(p, y, None), TypeError, "kl_weight must"),
    (lambda p, y: pstn.elbo_loss(p, y, torch.rand(3)), ValueError, "kl_weight"),
    (lambda p, y: pstn.elbo_loss(p, y, torch.tensor(float("nan"))), ValueError, "kl_weight must"),
    (lambda p, y: pstn.elbo_loss(p, y[:3], 0.1), ValueError, "y"),
    (lambda p, y: pstn.elbo_loss(p, y.float(), 0.1), TypeError, "y must"),
    (lambda p, y: pstn.elbo_loss(p, y + 9, 0.1), ValueError, "y"),
    (lambda p, y: pstn.elbo_loss(p, [0] * 6, 0.1), TypeError, "y"),
    (lambda p, y: pstn.elbo_loss(p, y, 0.1, log_likelihood=returns(torch.zeros(6))), ValueError, "log_likelihood must"),
    (lambda p, y: pstn.elbo_loss(p, y, 0.1, log_likelihood=returns(torch.full((1, 6), torch.nan))), ValueError, "NaN"),
    (lambda p, y: pstn.elbo_loss(p, y, 0.1, log_likelihood=returns(-1.5)), TypeError, "log_likelihood returns must"),
    (lambda p, y: pstn.elbo_loss(p.log_probs, y, 1.0), TypeError, "prediction must"),
    (lambda p, y: pstn.elbo_loss(None, y, 1.0), TypeError, "prediction must"),
    (lambda p, y: pstn.elbo_loss(pstn.TransformerOutput(*p[1:4]), y, 1.0), TypeError, "prediction must"),
    (lambda p, y: pstn.elbo_loss(y, y, 1.0, log_likelihood=returns(torch.zeros(1, 6))), TypeError, "prediction must"),
    given=lambda: (prediction(), torch.tensor([0, 1, 2, 3, 0, 1])),
)
