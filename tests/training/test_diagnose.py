"""The known collapses are named, with what to try; a healthy model is left in peace."""

import pytest
import torch

import pstn
from pstn.training import collapses


def make(loc: list[float], var: float) -> pstn.PSTN:
    model = pstn.nn.mnist_pstn()
    with torch.no_grad():
        model.layer.mean_head.last.bias.copy_(torch.tensor(loc))
        model.layer.mean_head.last.weight.normal_(0, 0.01)
        model.layer.variance_head.last.bias.fill_(var)
    return model


X = torch.rand(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_a_healthy_model_has_none():
    assert collapses(make([0.1, 0.9, 0.0, 0.1], -3.0), X) == []


def test_samples_around_the_identity_are_fine_beside_a_classifier_that_learns():
    model = make([0.0, 1.0, 0.0, 0.0], -3.0)
    with torch.no_grad():
        model.layer.mean_head.last.weight.zero_()
    assert collapses(model, X) == []
    model.classifier.requires_grad_(False)
    (found,) = collapses(model, X)
    assert "identity for every input" in found


@pytest.mark.parametrize(
    ("loc", "var", "words"),
    [
        ([0.0, 0.001, 0.0, 0.0], -3.0, "scale has gone to nothing"),
        ([0.0, 30.0, 0.0, 0.0], -3.0, "looks far outside"),
        ([0.2, 1.0, 0.0, 0.0], -20.0, "variance has gone to nothing"),
        ([0.2, 1.0, 0.0, 0.0], 0.5413, "posterior is the prior"),
        ([0.2, 1.0, 0.0, 0.0], 5.0, "wider than the prior"),
    ],
)
def test_collapses_are_named_with_what_to_try(loc, var, words):
    model = make(loc, var)
    with torch.no_grad():
        model.layer.mean_head.last.weight.mul_(0.01)
    found = collapses(model, X)
    assert len(found) == 1
    assert words in found[0]
    assert "Try " in found[0]


def test_what_cannot_be_looked_at_is_told_to_whoever_trains():
    (found,) = collapses(make([float("nan")] * 4, -3.0), X)
    assert found.startswith("The check for a collapsed transformation failed: loc of the posterior")
