"""The gate: how probable it is that an input is to be left alone, and what that does to samples."""

import math

import pytest
import torch
from scipy import stats

import pstn


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
