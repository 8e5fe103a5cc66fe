"""Calibration and scores against definitions written out by hand in numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pstn


def random_case(seed, n=200, classes=4):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(n, classes, generator=generator, dtype=torch.float64).softmax(-1)
    return probs, torch.randint(classes, (n,), generator=generator)


def calibration_by_hand(probs, y, bins):
    """A loop over bins [k/bins, (k + 1)/bins), the last one closed."""
    confidence, predicted = probs.max(1), probs.argmax(1)
    total = 0.0
    for k in range(bins):
        inside = (confidence >= k / bins) & ((confidence < (k + 1) / bins) | (k == bins - 1))
        if inside.any():
            gap = abs(confidence[inside].mean() - (predicted[inside] == y[inside]).mean())
            total += gap * inside.mean()
    return total


@given(seed=st.integers(0, 10**6), bins=st.integers(1, 40))
def test_calibration_error_equals_the_loop(seed, bins):
    probs, y = random_case(seed)
    expected = calibration_by_hand(probs.numpy(), y.numpy(), bins)
    assert pstn.calibration_error(probs, y, bins).item() == pytest.approx(expected, abs=1e-9)


def test_a_confidence_of_one_falls_into_the_last_bin():
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    y = torch.tensor([0, 1, 0, 1])
    curve = pstn.reliability_curve(probs, y, bins=10)
    assert curve.weight[-1] == 1
    assert curve.accuracy[-1] == 0.75
    assert pstn.calibration_error(probs, y).item() == pytest.approx(0.25)


@pytest.mark.parametrize("bins", [3, 10, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_confidence_on_an_edge_belongs_to_the_bin_above(bins, dtype):
    for k in range(math.ceil(bins / 2), bins):
        confidence = torch.tensor(k / bins, dtype=dtype)
        curve = pstn.reliability_curve(torch.stack([confidence, 1 - confidence])[None], torch.tensor([0]), bins)
        assert curve.weight.argmax() == k


def test_the_curve_adds_up():
    probs, y = random_case(1)
    curve = pstn.reliability_curve(probs, y)
    assert curve.weight.sum().item() == pytest.approx(1)
    assert (curve.accuracy * curve.weight).nansum().item() == pytest.approx(pstn.accuracy(probs, y).item())
    assert curve.confidence[0].isnan()
    assert curve.weight[0] == 0


@given(seed=st.integers(0, 10**6))
def test_scores_by_hand(seed):
    probs, y = random_case(seed)
    rows = np.arange(len(y))
    one_hot = np.eye(4)[y.numpy()]
    brier = ((probs.numpy() - one_hot) ** 2).sum(1).mean()
    assert pstn.brier_score(probs, y).item() == pytest.approx(brier)
    nll = -np.log(probs.numpy()[rows, y.numpy()]).mean()
    assert pstn.negative_log_likelihood(probs.log(), y).item() == pytest.approx(nll)


def test_entropy_of_certain_and_uniform():
    assert pstn.entropy(torch.tensor([0.0, -math.inf, -math.inf])).item() == 0
    assert pstn.entropy(torch.full((5,), 0.2).log()).item() == pytest.approx(math.log(5))


def test_gradients_stay_finite_where_a_probability_underflows():
    logits = torch.tensor([[[0.0, -200.0, 1.0]], [[-300.0, 0.0, 0.0]]], requires_grad=True)
    log_probs = logits.log_softmax(-1)
    (pstn.entropy(log_probs).sum() + pstn.mutual_information(log_probs).sum()).backward()
    assert logits.grad.isfinite().all()
    smooth = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pstn.entropy(x.log_softmax(-1)), smooth)
    assert torch.autograd.gradcheck(lambda x: pstn.mutual_information(x.log_softmax(-1)), smooth)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_dtype(dtype):
    probs, y = random_case(2)
    for score in (pstn.calibration_error, pstn.brier_score, pstn.accuracy):
        assert score(probs, y.to(dtype)) == score(probs, y)
    assert pstn.negative_log_likelihood(probs.log(), y.to(dtype)) == pstn.negative_log_likelihood(probs.log(), y)


def test_mutual_information_is_the_disagreement():
    agreeing = torch.tensor([0.7, 0.3]).log().expand(6, 1, 2)
    assert pstn.mutual_information(agreeing).item() == pytest.approx(0, abs=1e-6)
    opposed = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()[:, None]
    assert pstn.mutual_information(opposed).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, y: pstn.calibration_error(p, y, bins=0), ValueError, "bins must be at least 1"),
        (lambda p, y: pstn.calibration_error(p.log(), y), ValueError, "probs must hold probabilities that add up to 1"),
        (lambda p, y: pstn.calibration_error(p[0], y), ValueError, r"must have shape \(N, K\)"),
        (lambda p, y: pstn.calibration_error(p[:0], y[:0]), ValueError, "y must not be empty"),
        (lambda p, y: pstn.brier_score(p, y + 1), ValueError, "y must hold class indices from 0 to 3"),
        (lambda p, y: pstn.brier_score(p * float("nan"), y), ValueError, "probs must be finite"),
        (lambda p, y: pstn.accuracy(p * float("nan"), y), ValueError, "probs must not hold NaN"),
        (lambda p, y: pstn.negative_log_likelihood(p * float("nan"), y), ValueError, "log_probs must not hold NaN"),
        (lambda p, y: pstn.accuracy(p, y[:-1]), ValueError, r"y must have shape \(200,\)"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(*random_case(0))
