"""Ridge regression on features: the layer, and the choice of its L2 term and scale."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn.functional import cross_entropy

from pstn.training import linear
from pstn.training.linear import fit_ridge


def examples(count=15, features=40, classes=3):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % classes
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    x[:, 0] += 1.5 * y
    return x, y


def ridge_of_sklearn(x, y, penalty):
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    return Ridge(penalty).fit(scaled.numpy(), 2 * np.eye(3)[y.numpy()] - 1), scaled.numpy()


@pytest.mark.parametrize("penalty", [0.1, 30.0])
def test_the_layer_is_ridge_regression_on_scaled_features(penalty, monkeypatch):
    monkeypatch.setattr(linear, "_RIDGE_PENALTIES", (penalty,))
    monkeypatch.setattr(linear, "_LOGITS", (2.5,))
    x, y = examples()
    model, scaled = ridge_of_sklearn(x, y, penalty)
    np.testing.assert_allclose(fit_ridge(x, y, 3)(x.float()).detach(), 2.5 * model.predict(scaled), atol=1e-4)


def test_penalty_and_scale_predict_left_out_examples_best():
    x, y = examples()
    x = (x - x.mean(0)) / x.std(0, correction=0)
    losses = {}
    for penalty in linear._RIDGE_PENALTIES:
        left_out = np.empty((15, 3))
        for i in range(15):
            kept = np.arange(15) != i
            model = Ridge(penalty).fit(x[kept].numpy(), 2 * np.eye(3)[y[kept].numpy()] - 1)
            left_out[i] = model.predict(x[i : i + 1].numpy())[0]
        for factor in linear._LOGITS:
            logits = torch.from_numpy(factor * left_out)
            losses[penalty, factor] = float(cross_entropy(logits, y, label_smoothing=1 / 17))
    penalty, factor = min(losses, key=losses.get)
    model, scaled = ridge_of_sklearn(x, y, penalty)
    np.testing.assert_allclose(fit_ridge(x, y, 3)(x.float()).detach(), factor * model.predict(scaled), atol=1e-3)


def test_probabilities_are_not_certain_where_all_examples_are_told_apart():
    x, y = torch.eye(2).repeat(10, 5), torch.arange(20) % 2
    probs = fit_ridge(x, y, 2)(x).softmax(1).detach()
    assert (probs.argmax(1) == y).all()
    assert 0.9 < float(probs.max()) < 0.99
