"""Calibration and scores against definitions written out by hand in numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pstn
from pstn import uncertainty
from refusals import refused


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
    # No minus sign before 0.
    for log_probs in (torch.tensor([0.0, -math.inf]), torch.zeros(1), torch.tensor([[0.0, -200.0]])):
        assert not pstn.entropy(log_probs).signbit().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_log_probs_may_be_rounded_to_just_above_0(dtype):
    certain = torch.tensor([0.0, -50.0], dtype=dtype).expand(1, 2)
    log_probs = certain + 4 * torch.finfo(dtype).eps
    assert pstn.negative_log_likelihood(log_probs, torch.tensor([0])).item() == pytest.approx(0, abs=0.1)
    assert pstn.entropy(log_probs).item() == pytest.approx(0, abs=0.1)
    assert pstn.entropy(uncertainty.log_mean_exp(certain.expand(1000, 1, 2))).item() == pytest.approx(0, abs=0.1)


def test_entropy_under_vmap_and_in_a_graph():
    probs = torch.rand(3, 4)
    torch.testing.assert_close(torch.vmap(pstn.entropy)(probs.log()), pstn.entropy(probs.log()))
    program = torch.export.export(_Entropy(), (probs.log(),)).module()
    torch.testing.assert_close(program(probs.log()), pstn.entropy(probs.log()))
    compiled = torch.compile(pstn.entropy, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(probs.log()), pstn.entropy(probs.log()))


class _Entropy(torch.nn.Module):
    def forward(self, log_probs):
        return pstn.entropy(log_probs)


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


test_bad_arguments_are_named = refused(
    (lambda p, y: pstn.calibration_error(p, y, bins=0), ValueError, "bins"),
    (lambda p, y: pstn.calibration_error(p.log(), y), ValueError, "probs"),
    (lambda p, y: pstn.calibration_error(p[0], y), ValueError, r"must have shape \(N, K\)"),
    (lambda p, y: pstn.calibration_error(p[:0], y[:0]), ValueError, "y"),
    (lambda p, y: pstn.brier_score(p, y + 1), ValueError, "y"),
    (lambda p, y: pstn.brier_score(1.015 * p, y), ValueError, "probs"),  # 1.005 p would be rounding
    (lambda p, y: pstn.brier_score(p * float("nan"), y), ValueError, "probs"),
    (lambda p, y: pstn.accuracy(p * float("nan"), y), ValueError, "probs"),
    (lambda p, y: pstn.negative_log_likelihood(p * float("nan"), y), ValueError, "log_probs"),
    (lambda p, y: pstn.accuracy(p, y[:-1]), ValueError, "y"),
    (pstn.negative_log_likelihood, ValueError, r"log_probs must"),
    (lambda p, y: pstn.entropy(p), ValueError, r"log_probs must"),
    (lambda p, y: pstn.entropy(torch.tensor([1e-3, -9.0])), ValueError, "log_probs must"),
    (lambda p, y: pstn.mutual_information(p[None]), ValueError, "sample_log_probs must"),
    (lambda p, y: pstn.entropy(torch.zeros(3).long()), TypeError, "log_probs"),
    given=lambda: (*random_case(0),),
)


@pytest.mark.parametrize("given", [[[-0.5, -0.5]], np.full((1, 2), -0.5), None])
def test_what_is_no_tensor_is_refused(given):
    scores = ["accuracy", "brier_score", "calibration_error", "negative_log_likelihood", "reliability_curve"]
    for name in (*scores, "entropy", "log_mean_exp", "mutual_information"):
        arguments = (given, torch.tensor([0])) if name in scores else (given,)
        with pytest.raises(TypeError, match=rf"probs must be a torch\.Tensor, got {type(given).__name__}"):
            getattr(uncertainty, name)(*arguments)


def test_accuracy_of_votes():
    assert pstn.accuracy(torch.tensor([[3, 7], [6, 4]]), torch.tensor([1, 1])) == 0.5


def test_risk_at_a_coverage_is_the_share_of_wrong_answers_among_the_surest():
    generator = torch.Generator().manual_seed(0)
    probs, y = torch.rand(50, 4, generator=generator).softmax(-1), torch.randint(4, (50,), generator=generator)
    curve = pstn.risk_coverage_curve(probs, y)
    confidence, answer = probs.numpy().max(1), probs.numpy().argmax(1)
    order = np.argsort(-confidence, kind="stable")
    for k in (1, 7, 50):
        kept = order[:k]
        assert float(curve.coverage[k - 1]) == pytest.approx(k / 50)
        assert float(curve.risk[k - 1]) == pytest.approx((answer[kept] != y.numpy()[kept]).mean())
        assert float(curve.confidence[k - 1]) == pytest.approx(confidence[kept].min())
    assert float(curve.area) == pytest.approx(float(curve.risk.mean()))
