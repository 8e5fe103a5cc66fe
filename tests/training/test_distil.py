"""A student answers in one pass what its teacher answers on average over samples."""

import copy

import pytest
import torch
from torch import nn

import pstn
from refusals import refused


def kl(p, q):
    return (p * (p.log() - q.log())).sum(-1).mean().item()


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    train = pstn.data.load_digits("train")
    localizer = pstn.nn.ConvLocalizer(1, (28, 28), filters=(8, 14))
    layer = pstn.SpatialTransformer(pstn.Similarity(), localizer, size=(28, 28))
    model = pstn.PSTN(layer, pstn.nn.ConvClassifier(1, (28, 28), 10))
    return pstn.fit(
        model, (train.x[:100], train.y[:100]), epochs=50, kl_weight=3e-4, weight_decay=0.01, progress=False, restarts=0
    )


@pytest.mark.slow
def test_a_student_keeps_most_of_what_ten_samples_gain_over_one(teacher, tmp_path):
    torch.manual_seed(0)
    train, test = pstn.data.load_digits("train"), pstn.data.load_digits("test")
    before, generator = copy.deepcopy(teacher.state_dict()), torch.Generator().manual_seed(0)
    student = pstn.distil(teacher, train.x[:100], epochs=20, generator=generator, progress=False)
    torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)
    assert isinstance(student, pstn.STN)
    one, ten = (pstn.evaluate(teacher, test, samples=samples, generator=generator) for samples in (1, 10))
    found = pstn.evaluate(student, test)
    assert found.accuracy - one.accuracy > 0.8 * (ten.accuracy - one.accuracy) > 0
    assert one.nll - found.nll > 0.5 * (one.nll - ten.nll) > 0
    # The transformer is the teacher's, and the answers are nearer to its average than its own at the mode are.
    x = test.x[:300]
    torch.testing.assert_close(student.layer.localize(x).mode, teacher.layer.localize(x).mode)
    with torch.no_grad():
        averaged = teacher(train.x[:100], 50, generator=generator).probs
        alone, learned = (model(train.x[:100], "modes").probs for model in (teacher, student))
    assert kl(averaged, learned) < 0.5 * kl(averaged, alone)
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    loaded = pstn.from_pretrained(student.save_pretrained(tmp_path / "student", about=about))
    torch.testing.assert_close(loaded(x).log_probs, student(x).log_probs)
    path = pstn.export.export_onnx(loaded, tmp_path / "student.onnx")
    probs = pytest.importorskip("onnxruntime").InferenceSession(path).run(["probabilities"], {"x": x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(probs), student(x).probs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "family", [pstn.Mixture(3), pstn.Global(), pstn.Gated(pstn.Normal(), log_density=-2.0)], ids=repr
)
def test_any_family_is_distilled_and_a_frozen_classifier_learns(family):
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), features=144, posterior=family)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    model = pstn.PSTN(layer, pstn.nn.Frozen(classifier), test_samples=4).eval()
    x = torch.rand(10, 1, 12, 12)
    student = pstn.distil(model, [x[:5], x[5:]], epochs=2, lr=0.1, progress=False)
    assert repr(student.layer.posterior) == repr(pstn.AtMode(family))
    torch.testing.assert_close(student(x).theta[0], model.layer.localize(x).mode)
    assert (student.classifier[1].weight - classifier[1].weight).abs().max() > 0.01
    assert not any(parameter.requires_grad for parameter in classifier.parameters())


test_what_has_nothing_to_average_is_refused = refused(
    (lambda: pstn.distil(pstn.nn.mnist_stn(), torch.rand(2, 1, 28, 28)), TypeError, "model"),
    (lambda: pstn.distil(pstn.nn.mnist_pstn(), []), ValueError, "data"),
    (lambda: pstn.AtMode("mixture"), TypeError, "base"),
)
