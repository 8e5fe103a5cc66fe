"""The temperature that fits held-out data, against scipy."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import pstn
from small_runs import fails, succeeds


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


@pytest.mark.slow
def test_exported_programs_have_the_temperature_that_fits_what_they_average(tmp_path):
    session = pytest.importorskip("onnxruntime").InferenceSession
    x = torch.rand(3, 1, 28, 28)
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    stn = pstn.STN(pstn.nn.mnist_stn().layer, pstn.nn.mnist_cnn(), temperature=2.5).eval()
    pstn_ = pstn.PSTN(pstn.nn.mnist_pstn().layer, pstn.nn.mnist_cnn(), temperature=2.5).eval()
    noise = torch.rand(4, 3, pstn_.layer.noise_width).clamp(0.01, 0.99)
    cases = [
        (stn, None, {}, stn(x).probs),
        (pstn_, 4, {"noise": noise.numpy()}, pstn_(x, noise=noise).probs),
        (pstn_, "modes", {}, pstn_(x, "modes").probs),
        (pstn_, None, {}, pstn_(x, "modes").sample_log_probs[0].exp()),
    ]
    for number, (model, samples, given, wanted) in enumerate(cases):
        model.about = about
        path = pstn.export.export_onnx(model, tmp_path / f"{number}.onnx", samples=samples)
        found = session(path).run(["probabilities"], {"x": x.numpy(), **given})[0]
        torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-5, rtol=1e-4)


def test_an_estimator_is_calibrated_and_keeps_its_temperature_when_pickled():
    generator = np.random.default_rng(0)
    X, y = generator.random((60, 12, 12)), np.repeat(["a", "b"], 30)
    X[30:, :6] += 0.3
    noisy = np.where(generator.random(60) < 0.3, y[::-1], y)
    made = pstn.PSTNClassifier("similarity", kind="image", epochs=20, kl_weight=1e-3, random_state=0).fit(X, y)
    before, answers = made.predict_log_proba(X), made.predict(X)
    assert made.calibrate(X, noisy) is made
    after, index = made.predict_log_proba(X), (noisy == "b").astype(int)
    assert made.model_.temperature > 1.05
    nll = [-log[np.arange(60), index].mean() for log in (before, after)]
    assert nll[1] < nll[0]
    assert (made.predict(X) == answers).all()
    np.testing.assert_allclose(pickle.loads(pickle.dumps(made)).predict_log_proba(X), after, atol=1e-5)


def test_a_run_is_calibrated_on_its_validation_examples(tmp_path):
    options = ["--train-size", 40, "--epochs", 2, "--models", 2, "--out", tmp_path / "run", "--test-samples", 2]
    done = succeeds("train", "digits", *options, "--calibrate")
    models = [pstn.from_pretrained(tmp_path / "run" / f"model-{number}") for number in range(2)]
    assert len({model.temperature for model in models} | {1.0}) == 3
    again = succeeds("evaluate", tmp_path / "run")
    assert again.stdout.splitlines()[1:4] == done.stdout.splitlines()[1:4]
    fails("train", "digits", "--model", "cnn", "--calibrate", "--out", tmp_path / "none", says="calibrate")


@pytest.mark.parametrize(("side", "images"), [(28, 250), (224, 55), (2048, 1)])
def test_large_images_are_scored_a_few_at_a_time(side, images):
    net, seen = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)), []
    model = pstn.wrap(net, "rotation", in_channels=3, localizer_size=(16, 16), test_samples=4)
    net.register_forward_hook(lambda module, given, output: seen.append(len(given[0])))
    count = min(250, 2 * images)
    data = torch.rand(1, 3, side, side).expand(count, 3, side, side), torch.arange(count) % 2
    pstn.find_abstention(model, data, accuracy=0.9)
    pstn.calibrate(model, data)
    pstn.evaluate(net, data)
    assert max(seen) == images if side > 28 else sorted(set(seen)) == [250, 500]
