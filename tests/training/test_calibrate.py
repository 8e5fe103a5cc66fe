"""The temperature that fits held-out data, against scipy."""

import math

import pytest
import torch
from scipy import optimize
from torch import nn

import pstn


def overconfident(scale, temperature=1.0):
    """An STN that leaves its input alone, whose logits are the input times `scale`."""
    layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=4, probabilistic=False)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        classifier[1].weight.copy_(scale * torch.eye(4))
    return pstn.STN(layer, classifier, temperature=temperature)


def data(count=2000):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 4, generator=generator)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return logits.reshape(-1, 1, 2, 2), y


def test_the_temperature_undoes_logits_that_are_too_large():
    x, y = data()
    model = overconfident(3.0)
    before = pstn.evaluate(model, (x, y))
    temperature = pstn.calibrate(model, (x, y))

    def nll(log_t):
        return nn.functional.cross_entropy(3.0 * x.flatten(1).double() / math.exp(log_t), y).item()

    expected = math.exp(optimize.minimize_scalar(nll, bounds=(-3, 3), method="bounded").x)
    assert temperature == model.temperature == pytest.approx(expected, rel=1e-3)
    assert temperature == pytest.approx(3.0, rel=0.15)
    after = pstn.evaluate(model, (x, y))
    assert after.accuracy == before.accuracy
    assert after.nll < before.nll
    assert after.calibration_error < 0.5 * before.calibration_error


def test_the_temperature_is_saved_and_refused_where_it_makes_no_sense(tmp_path):
    layer = pstn.nn.mnist_pstn().layer
    model = pstn.PSTN(layer, pstn.nn.mnist_cnn(), temperature=1.7)
    x = torch.rand(2, 1, 28, 28)
    loaded = pstn.from_pretrained(model.save_pretrained(tmp_path))
    assert loaded.temperature == 1.7
    noise = torch.rand(3, 2, layer.noise_width).clamp(0.01, 0.99)
    expected = model.eval()(x, noise=noise)
    torch.testing.assert_close(loaded.eval()(x, noise=noise).log_probs, expected.log_probs)
    plain = expected.sample_log_probs.exp().mean(0)
    torch.testing.assert_close(expected.probs, (plain.log() / 1.7).softmax(-1))
    with pytest.raises(ValueError, match="temperature"):
        pstn.PSTN(layer, pstn.nn.mnist_cnn(), temperature=0.0)
    with pytest.raises(TypeError, match="model"):
        pstn.calibrate(nn.Linear(2, 2), (x, torch.zeros(2, dtype=torch.long)))
