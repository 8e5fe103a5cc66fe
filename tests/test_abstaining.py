"""Thresholds and conformal sets: against direct searches, and by simulated coverage."""

import csv
import io
import json
import math
from dataclasses import asdict, astuple

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from scipy.spatial import distance
from sklearn.linear_model import LogisticRegression
from torch import nn

import pstn
from pstn.abstaining import Abstention, Typicality
from pstn.nn.classifier import shared_noise
from pstn.predict import Item, ask
from pstn.serve import OnnxModel
from shared_models import edit_config, moved
from small_runs import run_command


def made_up(count, classes=5, seed=0, digits=12):
    """Probabilities, and labels drawn from sharper ones: a model that is not calibrated."""
    chance = np.random.default_rng(seed)
    logits = 2 * chance.standard_normal((count, classes))
    stated, true = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (logits, 1.7 * logits))
    y = (true.cumsum(1) > chance.random((count, 1))).argmax(1)
    return stated.round(digits), y


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


# Inputs unlike the training data


def with_theta(count, classes=4, seed=0, shift=0.0):
    """Answers, and samples of theta whose mean and spread depend on the class."""
    probs, y = made_up(count, classes, seed)
    chance = np.random.default_rng(seed + 1)
    means = 0.3 * y[:, None] + 0.1 * chance.standard_normal((count, 2)) + shift
    spread = np.exp(0.2 * chance.standard_normal((count, 2)) - 1)
    return probs, y, means + spread * np.array([-1.0, 0.0, 1.0])[:, None, None]


def test_the_score_is_made_of_mahalanobis_distances_and_odds():
    probs, y, theta = with_theta(300)
    found = Typicality.find(probs, y, theta)
    logs = np.log(probs)
    x = np.c_[logs - logs.mean(1, keepdims=True), theta.mean(0), np.log(theta.std(0))]
    rest = np.concatenate([x[y == k] - x[y == k].mean(0) for k in range(4)])
    scaled = rest.T @ rest / len(x) / np.outer(x.std(0), x.std(0))
    inverse = np.linalg.inv(scaled + 1e-3 * np.trace(scaled) / 8 * np.eye(8)) / np.outer(x.std(0), x.std(0))
    squares = [distance.cdist(x, x[y == k].mean(0)[None], "mahalanobis", VI=inverse)[:, 0] ** 2 for k in range(4)]
    terms = np.stack([np.log(np.min(squares, 0)), np.log((1 - probs.max(1)) / probs.max(1))], 1)
    wanted = ((terms - found.centre) / found.spread).sum(1)
    np.testing.assert_allclose(found.score(probs, theta), wanted, rtol=1e-5, atol=1e-5)


def test_new_examples_are_as_typical_as_held_out_ones_and_others_are_not():
    probs, y, theta = with_theta(600)
    found = Typicality.find(probs, y, theta)
    new, _, elsewhere = with_theta(2000, seed=5, shift=3.0)
    shares = found.share(*with_theta(2000, seed=5)[::2])
    for level in (0.1, 0.5, 0.9):
        assert (shares < level).mean() == pytest.approx(level, abs=0.06)
    assert (found.share(new, elsewhere) < 0.05).mean() > 0.9
    rule = Abstention(typicality=found)
    assert rule.score(new, new.argmax(1), elsewhere)["atypical"] > 0.9
    assert rule.describe(new[0], "abcd", elsewhere[:, 0])["typical"] < 0.05
    assert "typical" not in rule.describe(new[0], "abcd")  # without theta it cannot be said


def test_the_order_of_the_classes_does_not_matter():
    probs, y, theta = with_theta(400)
    cycle = np.argsort(np.argsort(y, kind="stable") % 100, kind="stable")  # classes take turns, as far as they go
    found = [Typicality.find(probs[o], y[o], theta[:, o]) for o in (np.argsort(y, kind="stable"), cycle)]
    new, _, moved_theta = with_theta(500, seed=5)
    np.testing.assert_allclose(*(one.share(new, moved_theta) for one in found), atol=0.1)
    turns = np.concatenate([np.flatnonzero(y % 2 == 0)[:120], np.flatnonzero(y % 2)[:120]]).reshape(2, -1).T.ravel()
    shares = Typicality.find(probs[turns], y[turns], theta[:, turns]).share(new, moved_theta)
    assert 0.02 < (shares < 0.1).mean() < 0.25  # each half would have had half of the classes


def test_constant_theta_says_nothing():
    probs, y, _ = with_theta(300)
    found = [Typicality.find(probs, y, theta) for theta in (None, np.ones((1, 300, 2)))]
    moved = np.ones((1, 300, 2)) + 1e-6
    np.testing.assert_allclose(found[0].share(probs), found[1].share(probs, moved), atol=0.02)


def test_it_is_found_from_enough_examples_of_few_enough_classes():
    assert Typicality.find(*with_theta(49)[:2]) is None
    assert Typicality.find(*with_theta(50)[:2]) is not None
    assert Typicality.find(np.full((60, 300), 1 / 300), np.arange(60)) is None


def test_it_is_the_same_after_it_was_written():
    rule = Abstention(0.9, 0.5, typicality=Typicality.find(*with_theta(100)))
    about = pstn.ModelMetadata(tuple("abcd"), 1, abstention=rule)
    assert pstn.ModelMetadata.from_config(json.loads(json.dumps(about.to_config()))) == about


@pytest.mark.parametrize(
    "change",
    [{"transform": [[1.0, 2.0]]}, {"means": []}, {"centre": [0.0]}, {"scores": []}, {"scores": "all"},
     {"means": [[math.nan] * 4]}, {"spread": None}, {"transform": np.eye(230).tolist(), "means": [[0.0] * 230]}],
)  # fmt: skip
def test_what_it_cannot_be_is_refused(change):
    held = asdict(Typicality.find(*with_theta(100)[:2]))
    with pytest.raises(ValueError, match="typicality"):
        Abstention(typicality={**held, **change})
    with pytest.raises(TypeError, match="typicality"):
        Abstention(typicality="yes")


# With models


def sharp_stn(scale=2.0):
    """An STN that leaves its input alone, whose logits are the input times `scale`."""
    layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), features=4, probabilistic=False)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        classifier[1].weight.copy_(scale * torch.eye(4))
    return pstn.STN(layer, classifier)


def drawn(count=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 4, generator=generator)
    y = torch.multinomial((2 * logits).softmax(-1), 1, generator=generator)[:, 0]
    return logits.reshape(-1, 1, 2, 2), y


def test_a_model_is_given_what_its_own_probabilities_lead_to():
    model, (x, y) = sharp_stn(), drawn()
    model.about = pstn.ModelMetadata(tuple("abcd"), 1, (2, 2))
    found = pstn.find_abstention(model, (x, y), accuracy=0.9, coverage=0.8)
    probs, theta = (2 * x.flatten(1)).softmax(-1), torch.tensor([0.0, 1, 0, 0]).expand(1, len(x), 4)
    wanted = Abstention.find(probs, y, accuracy=0.9, coverage=0.8, theta=theta)
    assert astuple(found)[:4] == pytest.approx(astuple(wanted)[:4], abs=1e-6)
    shares = [rule.typicality.share(probs, theta) for rule in (found, wanted)]
    np.testing.assert_allclose(*shares, atol=1e-3)
    assert model.about.abstention == found
    assert pstn.find_abstention(nn.Flatten(), (x, y), coverage=0.8).coverage == 0.8  # a model without metadata


def test_an_estimator_is_asked_for_its_probabilities():
    (x, y), names = drawn(), np.array(["one", "two", "three", "four"])
    estimator = LogisticRegression().fit(x.flatten(1), names[y])
    found = pstn.find_abstention(estimator, (x.flatten(1), names[y]), accuracy=0.6, coverage=0.8)
    index = np.searchsorted(estimator.classes_, names[y])
    wanted = Abstention.find(estimator.predict_proba(x.flatten(1)), index, accuracy=0.6, coverage=0.8)
    assert found == wanted
    with pytest.raises(ValueError, match="samples"):
        pstn.find_abstention(estimator, (x.flatten(1), names[y]), coverage=0.8, samples=2)
    with pytest.raises(ValueError, match="seven"):
        pstn.find_abstention(estimator, (x.flatten(1)[:1], ["seven"]), coverage=0.8)


def test_it_is_saved_and_read_by_those_who_know_of_none(tmp_path):
    rule = Abstention(0.99, 0.7, 0.9, 0.4)
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28), abstention=rule)
    folder = pstn.nn.mnist_cnn().save_pretrained(tmp_path, about=about)
    assert pstn.from_pretrained(folder).about == about
    assert "0.99" in (folder / "README.md").read_text()
    edit_config(folder, lambda config: config["about"].pop("abstention"))  # as earlier versions wrote it
    assert pstn.from_pretrained(folder).about.abstention is None


@pytest.mark.parametrize(
    "broken",
    [{"threshold": 3.0}, {"samples": 0}, {"samples": "all"}, {"accuracy": "high"}, {"other": 1}, [1], "always"],
)
def test_what_cannot_have_been_saved_is_refused(tmp_path, broken):
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28), abstention=Abstention(0.9, 0.5))
    folder = pstn.nn.mnist_cnn().save_pretrained(tmp_path, about=about)
    edit_config(folder, lambda config: config["about"].update(abstention=broken))
    with pytest.raises(ValueError, match=r"config\.json"):
        pstn.from_pretrained(folder)


def test_metadata_take_nothing_else():
    with pytest.raises(ValueError, match="abstention"):
        pstn.ModelMetadata(("a", "b"), 1, abstention={"accuracy": 0.9})


def test_a_run_finds_it_on_validation_examples_and_all_commands_use_it(tmp_path):
    digits, data, run = pstn.data.load_digits("test"), tmp_path / "digits.npz", tmp_path / "run"
    x, y = digits.x[:, 0].numpy(), digits.y.numpy()
    np.savez(data, x_train=x[:160], y_train=y[:160], x_test=x[160:360], y_test=y[160:360])
    options = ["--kind", "image", "--valid-fraction", 0.7, "--epochs", 2, "--models", 2, "--test-samples", 2]
    options += ["--accuracy", 0.12, "--coverage", 0.9, "--calibrate", "--patience", 0]
    done = run_command("train", data, *options, "--out", run)
    assert (done.exit_code, "early stopping" in done.stderr) == (0, False), done.output
    rules = [pstn.from_pretrained(run / f"model-{n}").about.abstention for n in range(2)]
    assert rules[0] != rules[1]
    assert [(rule.accuracy, rule.coverage) for rule in rules] == [(0.12, 0.9)] * 2

    held = json.loads(run_command("evaluate", run, "--json").stdout)
    assert held["set_coverage"] == pytest.approx([0.9] * 2, abs=0.1)
    assert all(1 < size < 10 for size in held["set_size"])
    assert all(0 < share <= 1 for share in held["answered"])
    assert 0 < min(held["risk_coverage_area"]) < max(held["risk_coverage_area"]) < 1
    assert all(0 <= share < 0.3 for share in held["atypical"])
    again = run_command("evaluate", run)
    assert again.stdout.splitlines()[1:4] == done.stdout.splitlines()[1:4]

    Image.fromarray((255 * digits.x[0, 0].numpy()).astype(np.uint8)).save(tmp_path / "one.png")
    answer = json.loads(run_command("predict", run / "model-0", tmp_path / "one.png", "--json").stdout)
    row = next(csv.DictReader(io.StringIO(run_command("predict", run / "model-0", tmp_path / "one.png").stdout)))
    values = list(answer["probabilities"].values())
    assert answer["abstain"] == (max(values) < rules[0].threshold)
    assert answer["set"] == [name for name, p in answer["probabilities"].items() if 1 - p <= rules[0].quantile]
    assert 0 <= answer["typical"] == float(row["typical"]) <= 1
    assert (row["abstain"], row["set"]) == (str(answer["abstain"]).lower(), " | ".join(answer["set"]))


def test_a_run_without_it_has_no_such_columns(tmp_path):
    about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    folder = pstn.nn.mnist_cnn().save_pretrained(tmp_path / "model", about=about)
    Image.new("L", (28, 28)).save(tmp_path / "one.png")
    written = run_command("predict", folder, tmp_path / "one.png").stdout
    assert not {"abstain", "set"} & set(written.splitlines()[0].split(","))
    answer = json.loads(run_command("predict", folder, tmp_path / "one.png", "--json").stdout)
    assert not {"abstain", "set"} & answer.keys()


def test_training_says_that_examples_are_used_twice(tmp_path):
    x, y = np.random.default_rng(0).random((80, 28, 28), np.float32), np.arange(80) % 2
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    options = ["--kind", "image", "--valid-fraction", 0.3, "--epochs", 1, "--coverage", 0.8, "--out", tmp_path / "run"]
    assert "early stopping" in run_command("train", tmp_path / "few.npz", *options).stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_was_found_for_some_samples_is_left_out_for_others_and_that_is_said(form, tmp_path):
    model, digits = moved(pstn.nn.mnist_pstn(), 0.02), pstn.data.load_digits("test")
    model.about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    rule = pstn.find_abstention(model, (digits.x[:60], digits.y[:60]), accuracy=0.15, coverage=0.9, samples=2)
    assert rule.samples == 2
    folder = model.save_pretrained(tmp_path / "model")
    Image.new("L", (28, 28)).save(tmp_path / "one.png")
    for samples in ((), ("--samples", 3), ("--samples", "modes"), ("--samples", 2)):
        done = run_command("predict", folder, tmp_path / "one.png", *samples, *form)
        own = samples == ("--samples", 2)
        assert (done.exit_code, "--samples 2" in done.stderr) == (0, not own), done.output
        found = next(csv.reader(io.StringIO(done.stdout))) if not form else json.loads(done.stdout)
        assert len({"abstain", "set", "typical"} & set(found)) == 3 * own


def test_what_was_found_for_modes_is_for_modes():
    model, digits = moved(pstn.nn.mnist_pstn(), 0.02), pstn.data.load_digits("test")
    model.about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    pstn.find_abstention(model, (digits.x[:60], digits.y[:60]), coverage=0.9, samples="modes")
    item = Item("one", (255 * digits.x[0]).byte(), (28, 28))
    assert [ask(model, [item], samples=samples)[0].set is None for samples in ("modes", 2)] == [False, True]


@pytest.mark.parametrize("setting", ["accuracy", "coverage"])
def test_a_run_needs_examples_to_find_it_on(tmp_path, setting):
    x, y = np.random.default_rng(0).random((20, 28, 28), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    options = ["--kind", "image", "--out", tmp_path / "run", f"--{setting}"]
    refused = run_command("train", tmp_path / "few.npz", *options, 0.9)
    assert (refused.exit_code, setting in refused.stderr, "valid_fraction" in refused.stderr) == (2, True, True)
    assert run_command("train", tmp_path / "few.npz", *options, 1).exit_code == 2


@pytest.mark.slow
def test_files_of_models_that_sample_have_it_and_others_do_not(tmp_path):
    torch.manual_seed(0)
    model, digits = moved(pstn.nn.mnist_pstn(), 0.02).eval(), pstn.data.load_digits("test")
    model.about = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    held = digits.x[:100], digits.y[:100]
    rule = pstn.find_abstention(model, held, accuracy=0.15, coverage=0.9, samples=2)
    sampled = OnnxModel(pstn.export.export_onnx(model, tmp_path / "two.onnx", samples=2))
    mean = OnnxModel(pstn.export.export_onnx(model, tmp_path / "mean.onnx"))
    x = digits.x[100:106]
    p = model(x, **shared_noise(model, len(x), 2))
    graph = onnxruntime.InferenceSession(tmp_path / "two.onnx")
    held = graph.run(["abstain", "set"], {"x": x.numpy(), "noise": shared_noise(model, len(x), 2)["noise"].numpy()})
    np.testing.assert_array_equal(held[0], rule.abstains(p.probs.detach()))
    np.testing.assert_array_equal(held[1], rule.sets(p.probs.detach()))
    for i, answer in enumerate(sampled.predict(x.numpy())):
        wanted = rule.describe(p.probs[i].detach(), model.about.classes, p.theta[:, i].detach())
        assert {name: answer[name] for name in ("abstain", "set")} == {
            name: wanted[name] for name in ("abstain", "set")
        }
        assert answer["typical"] == pytest.approx(wanted["typical"], abs=0.02)
    x = x.numpy()
    assert not {"abstain", "set"} & mean.predict(x)[0].keys()
