"""Thresholds and conformal sets: against direct searches, and by simulated coverage."""

import math

import numpy as np
import pytest

from pstn.abstaining import Abstention


def made_up(count, classes=5, seed=0, digits=12):
    """Probabilities, and labels drawn from sharper ones: a model that is not calibrated."""
    chance = np.random.default_rng(seed)
    logits = 2 * chance.standard_normal((count, classes))
    softmax = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)  # noqa: E731
    true = softmax(1.7 * logits)
    y = (true.cumsum(1) > chance.random((count, 1))).argmax(1)
    return softmax(logits).round(digits), y


@pytest.mark.parametrize("digits", [12, 2])  # two digits: many confidences are equal
@pytest.mark.parametrize("accuracy", [0.8, 0.9, 0.97])
def test_threshold_is_the_lowest_that_keeps_the_accuracy(accuracy, digits):
    probs, y = made_up(300, digits=digits)
    confidence, right = probs.max(1), probs.argmax(1) == y
    good = [c for c in np.unique(confidence) if right[confidence >= c].mean() >= accuracy]
    assert Abstention.find(probs, y, accuracy=accuracy).threshold == min(good)


def test_an_accuracy_out_of_reach_is_never_answered():
    found = Abstention.find([[0.9, 0.1], [1.0, 0.0]], [1, 1], accuracy=0.99)
    assert found.threshold == 2
    assert found.abstains([[1.0, 0.0]]).all()
    assert found.score([[1.0, 0.0]], [0]) == {"answered": 0.0, "accuracy_answered": None}


@pytest.mark.parametrize(("count", "coverage"), [(19, 0.9), (9, 0.9), (100, 0.95), (57, 0.8)])
def test_quantile_is_the_smallest_that_enough_examples_reach(count, coverage):
    probs, y = made_up(count, seed=1)
    missing = [1 - row[label] for row, label in zip(probs, y, strict=True)]
    enough = [m for m in missing if sum(other <= m for other in missing) / (count + 1) >= coverage - 1e-12]
    found = Abstention.find(probs, y, coverage=coverage)
    assert found.quantile == pytest.approx(min(enough), abs=0)
    assert found.score(probs, y)["set_coverage"] >= coverage


def test_too_few_examples_for_a_coverage_put_every_class_into_the_set():
    probs, y = made_up(8)
    assert Abstention.find(probs, y, coverage=0.9).sets(probs).all()


def test_sets_cover_as_stated_whatever_the_model():
    """With n held-out examples the coverage is Beta(k, n + 1 - k): its mean is k / (n + 1)."""
    count, coverage, repeats = 60, 0.9, 400
    shares = []
    for seed in range(repeats):
        probs, y = made_up(count + 500, seed=seed)
        found = Abstention.find(probs[:count], y[:count], coverage=coverage)
        shares.append(found.score(probs[count:], y[count:])["set_coverage"])
    k = math.ceil((count + 1) * coverage)
    spread = math.sqrt(k * (count + 1 - k) / ((count + 1) ** 2 * (count + 2)) + 0.09 / 500)
    assert np.mean(shares) == pytest.approx(k / (count + 1), abs=4 * spread / math.sqrt(repeats))


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({"accuracy": 1.0}, "accuracy"),
        ({"coverage": 0.0}, "coverage"),
        ({"coverage": True}, "coverage"),
        ({}, "accuracy"),
    ],
)
def test_what_cannot_be_wanted_is_refused(wanted, name):
    with pytest.raises(ValueError, match=name):
        Abstention.find([[0.9, 0.1]], [0], **wanted)


@pytest.mark.parametrize("field", ["threshold", "quantile"])
@pytest.mark.parametrize("value", [-0.1, math.nan, 2.1, "1", None])
def test_what_cannot_have_been_found_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Abstention(**{field: value})


def test_a_probability_at_the_threshold_is_answered():
    assert not Abstention(accuracy=0.9, threshold=0.7).abstains([0.7, 0.3])
