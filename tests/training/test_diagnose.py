"""Training that collapses is noticed and named, with what to try, and started again with more care."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import pstn
from pstn.training.diagnose import chance_loss, collapses, failed_models, fatal_collapse, start_carefully, train_again
from pstn.training.runs.run import train
from pstn.training.runs.settings import TrainSettings
from small_runs import run_command


def bars(count=64):
    """A narrow bright bar or a wide dim one, of the same sum: to be told apart, it must be seen."""
    y = torch.arange(count) % 2
    x = torch.zeros(count, 1, 12, 12)
    x[y == 0, :, 2:10, 2:5], x[y == 1, :, 2:10, 2:8] = 1.0, 0.5
    return x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), y


def model(transform=None, posterior=None, seed=0):
    torch.manual_seed(seed)
    localizer = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU())
    layer = pstn.SpatialTransformer(
        transform or pstn.Similarity(), localizer, size=(12, 12), features=8, posterior=posterior
    )
    return pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(144, 2)))


def convolutional(transform, posterior):
    torch.manual_seed(0)
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(4,), kernel=3)
    layer = pstn.SpatialTransformer(transform, localizer, size=(12, 12), posterior=posterior)
    return pstn.PSTN(layer, pstn.nn.ConvClassifier(1, (12, 12), 2, (4,), hidden=8, kernel=3))


def settings(**more):
    return {"epochs": 40, "batch_size": 8, "lr": 3e-3, "kl_weight": 1e-3, "progress": False, **more}


def test_the_loss_at_chance_is_the_entropy_of_the_classes():
    y = torch.tensor([0] * 7 + [1] * 2 + [2])
    assert chance_loss(y) == pytest.approx(stats.entropy([0.7, 0.2, 0.1]))
    weights = torch.tensor([1.0] * 7 + [3.5] * 2 + [7.0])
    assert chance_loss(y, weights) == pytest.approx(math.log(3))


def test_a_collapse_is_noticed_and_mended_by_restarts():
    x, y = bars()
    epochs = []
    with pytest.warns(UserWarning, match="chance") as said:
        made = pstn.fit(model(), (x, y), **settings(localizer_factor=300.0, on_epoch=epochs.append))
    assert all("starts again" in str(warning.message) for warning in said)
    assert epochs[-1].nll < 0.3 < 0.6 < epochs[24].nll
    assert made.layer.transform.scale == "log"
    assert pstn.evaluate(made, (x, y)).accuracy > 0.95
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pstn.fit(model(), (x, y), **settings(localizer_factor=300.0, restarts=0))
    assert "Training failed" in str(said[0].message)


def test_a_healthy_training_is_not_disturbed():
    x, y = bars()
    epochs = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = pstn.fit(model(), (x, y), **settings(localizer_factor=0.1, on_epoch=epochs.append))
    assert len(epochs) == 40
    assert made.layer.transform.scale == "linear"


def test_what_cannot_be_learned_ends_at_chance_without_a_restart_of_a_plain_classifier():
    y = torch.randint(2, (64,), generator=torch.Generator().manual_seed(0))
    plain, epochs = nn.Sequential(nn.Flatten(), nn.Linear(144, 2)), []
    with pytest.warns(UserWarning, match="chance") as said:
        pstn.fit(plain, (torch.ones(64, 1, 12, 12), y), **settings(on_epoch=epochs.append))
    assert len(said) == 1
    assert len(epochs) == 40


@pytest.mark.parametrize(
    "posterior",
    [None, pstn.Mixture(2), pstn.Global(), pstn.Hierarchical(pstn.Mixture(2, pstn.Normal())), pstn.Point()],
    ids=repr,
)
def test_a_careful_model_starts_where_one_that_was_made_so_does(posterior, tmp_path):
    changed = convolutional(pstn.Compose(pstn.Crop(), pstn.Rotation()), posterior)
    assert "logarithmic" in start_carefully(changed, 0.01, None, teaches=False)[0]
    wanted = convolutional(pstn.Compose(pstn.Crop("log"), pstn.Rotation()), posterior)
    assert repr(changed) == repr(wanted)
    torch.testing.assert_close(changed.state_dict(), wanted.state_dict())
    said = start_carefully(changed, 0.01, None, teaches=False)[0]
    assert ("variance" in said) == (posterior != pstn.Point())
    assert "slower" in said
    x = torch.rand(3, 1, 12, 12)
    before, after = wanted.layer.localize(x), changed.layer.localize(x)
    torch.testing.assert_close(after.mode, before.mode)
    if posterior != pstn.Point():
        widths = [(high - low)[0, 0].item() for low, high in (before.interval(0.5), after.interval(0.5))]
        assert widths[1] < 0.75 * widths[0]
    about = pstn.ModelMetadata(("a", "b"), 1, (12, 12))
    loaded = pstn.from_pretrained(pstn.save_pretrained(changed, tmp_path, about=about))
    torch.testing.assert_close(loaded.layer.localize(x).mode, after.mode)


def test_a_layer_that_was_trained_keeps_its_scale():
    trained = model()
    with torch.no_grad():
        trained.layer.mean_head.last.weight.fill_(0.1)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    assert start_carefully(trained, 0.01, None, teaches=False)[0] == "a localizer ten times slower"
    torch.testing.assert_close(trained.state_dict(), before)


def population(factors, **recipe):
    x, y = bars()
    members = pstn.training.make_members(len(factors), lr=3e-3, kl_weight=1e-3, localizer_factor=list(factors))
    made = pstn.training.Population(
        [model(seed=i) for i in range(len(factors))], x, y, members,
        pstn.training.Recipe(epochs=40, batch_size=8), groups=1,
    )  # fmt: skip
    made.fit(lambda progress: None)
    return made


def test_members_that_failed_are_trained_again_and_the_others_left_alone():
    first = population([0.1, 100.0])
    assert list(failed_models(first)) == [1]
    healthy = first.models()[0].state_dict()
    said = []
    mended, failed = train_again(first, 2, lambda second: second.fit() and None, said.append)
    assert not failed
    assert list(mended) == [1]
    assert said[0].startswith("model 1")
    second, place = mended[1]
    assert second.models()[place].layer.transform.scale == "log"
    assert second.evaluate(*bars())["accuracy"][place] > 0.95
    torch.testing.assert_close(first.models()[0].state_dict(), healthy, rtol=0, atol=0)
    assert train_again(first, 0, lambda second: None, said.append).failed.keys() == {1}


def test_a_window_that_shows_nothing_is_named_for_every_family():
    x, _ = bars()
    for posterior in (None, pstn.Mixture(2), pstn.Gated(pstn.Normal()), pstn.Point()):
        blind = model(pstn.Translation(scale=1.0), posterior)
        head = blind.layer.get_submodule(f"{blind.layer.heads[0]}_head")
        with torch.no_grad():
            head.last.bias.fill_(-5.0)
            head.last.weight.normal_(0, 1e-3)
        if not isinstance(posterior, pstn.Gated):
            assert "shows nothing" in fatal_collapse(blind, x)
            assert any("shows nothing" in text for text in collapses(blind, x))
    wide = model(pstn.Translation(scale=1.0), pstn.Mixture(2))
    with torch.no_grad():
        wide.layer.each_variance_head.last.bias.fill_(5.0)
    assert "wider than the prior" in fatal_collapse(wide, x)


@pytest.mark.slow
def test_an_estimator_restarts_and_is_pickled_as_it_ended():
    import pickle

    x, y = bars()
    options = {
        "kind": "image", "kl_weight": 1e-3, "epochs": 40, "batch_size": 8, "random_state": 0, "learning_rate": 3e-3
    }  # fmt: skip
    made = pstn.PSTNClassifier("similarity", localizer_factor=100.0, **options)
    with pytest.warns(ConvergenceWarning, match="starts again"):
        made.fit(x[:, 0].numpy(), y.numpy())
    assert made.score(x[:, 0].numpy(), y.numpy()) > 0.9
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_allclose(again.predict_proba(x[:, 0].numpy()), made.predict_proba(x[:, 0].numpy()), rtol=1e-5)
    with pytest.raises(ValueError, match="restarts"):
        pstn.PSTNClassifier(restarts=-1, **options).fit(x[:, 0].numpy(), y.numpy())


def saved(folder, x, y):
    path = folder / "data.npz"
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    return path


def run_options(folder):
    chosen = {"kind": "image", "epochs": 40, "batch-size": 8, "lr": 3e-3, "kl-weight": 1e-3, "out": folder / "run"}
    return [part for name, value in chosen.items() for part in (f"--{name}", value)]


def test_a_hopeless_run_says_chance_and_exits_with_an_error(tmp_path):
    y = torch.arange(64) % 2
    data = saved(tmp_path, torch.ones(64, 16, 16, 1), y)
    done = run_command("train", data, *run_options(tmp_path), "--restarts", 1)
    assert done.exit_code == 1
    assert "at chance" in done.stderr.splitlines()[-1]
    assert "starts again" in done.stderr
    assert "Use it" not in done.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["failed"] == [0]


@pytest.mark.slow
def test_a_run_trains_the_model_that_failed_again(tmp_path):
    x, y = bars()
    x = nn.functional.interpolate(x, size=16).movedim(1, -1)
    data, said = saved(tmp_path, x, y), []
    chosen = TrainSettings(
        data=str(data), kind="image", epochs=40, batch_size=8, lr=[3e-3], kl_weight=[1e-3], models=2,
        groups=1, localizer_factor=30.0, out=str(tmp_path / "run"),
    )  # fmt: skip
    outcome = train(chosen, say=said.append)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 1 in results["restarted"]
    assert outcome.failed == results["failed"] == []
    scales = [pstn.from_pretrained(tmp_path / "run" / f"model-{n}").layer.transform.scale for n in range(2)]
    assert scales == ["log" if number in results["restarted"] else "linear" for number in range(2)]
    assert min(outcome.scores["accuracy"]) > 0.9
    assert any("starts again" in text for text in outcome.problems)


# The known collapses


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
