"""Transformations, posteriors and networks of the user's own in models that are saved and loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pstn
from pstn.io import registry
from refusals import refused
from shared_models import edit_config, moved

ABOUT = pstn.ModelMetadata(("a", "b", "c"), 1, (12, 12))


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(registry, "_REGISTERED", {})
    sys.modules.pop("foreign_parts", None)
    import foreign_parts

    yield foreign_parts
    sys.modules.pop("foreign_parts", None)


def make(parts):
    torch.manual_seed(0)
    options = {"size": (12, 12), "features": 3, "posterior": parts.Narrow(0.2)}
    layer = pstn.SpatialTransformer(parts.Shear(0.5), parts.Reader(144), **options)
    return pstn.PSTN(layer, parts.Reader(144, [5, 6]), 2, 4)


def answers(model, x):
    noise = torch.linspace(0.1, 0.9, 4 * len(x) * model.layer.noise_width).reshape(4, len(x), -1)
    return model.eval()(x, noise=noise).log_probs


def test_parts_of_ones_own_come_back_once_their_module_is_allowed(parts, tmp_path):
    model, x = make(parts), torch.rand(2, 1, 12, 12)
    folder = pstn.save_pretrained(model, tmp_path / "model", about=ABOUT)
    written = json.loads((folder / "config.json").read_text())["model"]
    assert written["layer"]["transform"] == {"type": "foreign_parts:Shear", "factor": 0.5}
    assert written["classifier"]["widths"] == [5, 6]
    loaded = pstn.from_pretrained(folder, allow=["foreign_parts"])
    assert torch.equal(answers(loaded, x), answers(model, x))
    assert loaded.layer.posterior == model.layer.posterior


def test_in_a_new_process_nothing_is_imported_that_is_not_allowed(parts, tmp_path):
    folder = pstn.save_pretrained(make(parts), tmp_path / "model", about=ABOUT)
    (tmp_path / "foreign_parts.py").write_text("raise SystemExit('imported')")
    code = """
import pstn, sys
for allowed in ([], ["foreign"], ["foreign_parts.sub"], ["os"]):
    try:
        pstn.from_pretrained(sys.argv[1], allow=allowed)
    except ValueError as error:
        assert "foreign_parts" in str(error)
        print("refused")
assert "foreign_parts" not in sys.modules
pstn.from_pretrained(sys.argv[1], allow=["foreign_parts"])
"""
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused"] * 4
    assert done.stderr.strip() == "imported"


def test_a_registered_class_is_found_by_its_name(parts, tmp_path):
    for cls in (parts.Shear, parts.Narrow, parts.Reader):
        assert pstn.register(cls) is cls
    model, x = make(parts), torch.rand(2, 1, 12, 12)
    folder = pstn.save_pretrained(model, tmp_path / "model", about=ABOUT)
    assert torch.equal(answers(pstn.from_pretrained(folder), x), answers(model, x))
    registry._REGISTERED.clear()
    with pytest.raises(pstn.io.ModelFileError, match="registers"):
        pstn.from_pretrained(folder)


def test_a_classifier_of_ones_own_is_wrapped_saved_and_loaded(parts, tmp_path):
    model = pstn.wrap(parts.Reader(144), in_channels=1, transform="similarity", freeze=True, size=(12, 12))
    x = torch.rand(2, 1, 12, 12)
    folder = pstn.save_pretrained(model, tmp_path / "model", about=ABOUT)
    loaded = pstn.from_pretrained(folder, allow=["foreign_parts"])
    assert torch.equal(answers(loaded, x), answers(model, x))
    assert not any(p.requires_grad for p in loaded.classifier.parameters())


def test_what_a_model_takes_must_be_said_where_its_description_does_not(parts, tmp_path):
    with pytest.raises(ValueError, match="about"):
        pstn.save_pretrained(make(parts), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "kind",
    ["foreign_parts:NOT_A_CLASS", "foreign_parts:nothing", "foreign_parts:Reader", "foreign_parts:", "Reader", "os:"],
)
def test_a_part_that_is_none_is_refused(parts, tmp_path, kind):
    folder = pstn.save_pretrained(make(parts), tmp_path / "model", about=ABOUT)
    edit_config(folder, lambda config: config["model"]["layer"]["transform"].update(type=kind))
    with pytest.raises(pstn.io.ModelFileError, match="transform"):
        pstn.from_pretrained(folder, allow=["foreign_parts", "os"])


def test_a_class_that_could_not_be_built_again_is_refused(parts):
    class Local(nn.Module):
        pass

    for module, name in ((parts.Forgetful(3), "width"), (Local(), "Local")):
        with pytest.raises(TypeError, match=name):
            registry.describe(module)


# Networks that their constructors make


def wrapped(parts, **arguments):
    torch.manual_seed(0)
    network = pstn.set_constructor(parts.make_network(**arguments), parts.make_network, **arguments)
    model = pstn.wrap(network, "rotation", in_channels=1, size=(12, 12), test_samples=4)
    return moved(model.train()), network  # so that its batch norm has statistics of its own


MAKER = "foreign_parts:make_network"


def test_a_network_that_a_function_made_comes_back_in_a_new_process(parts, tmp_path):
    model, network = wrapped(parts, classes=3, widths=[5])
    network.train()(torch.rand(4, 1, 12, 12))
    x, noise = torch.rand(2, 1, 12, 12), torch.rand(4, 2, model.layer.noise_width)
    folder = pstn.save_pretrained(model, tmp_path / "model", about=ABOUT)
    written = json.loads((folder / "config.json").read_text())["model"]["classifier"]["module"]
    assert written == {"type": MAKER, "classes": 3, "widths": [5]}
    card = (folder / "README.md").read_text()
    assert f'allow=["{MAKER}"]' in card
    assert f"--allow {MAKER}" in card
    torch.save((x, noise), tmp_path / "asked.pt")
    code = f"""
import pstn, sys, torch
x, noise = torch.load("asked.pt")
loaded = pstn.from_pretrained("model", allow=[{MAKER!r}])
assert type(loaded.classifier.module[0]) is torch.nn.Conv2d
assert not any(p.requires_grad for p in loaded.classifier.parameters())
torch.save(loaded(x, noise=noise).log_probs, "answers.pt")
"""
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    assert torch.equal(torch.load(tmp_path / "answers.pt"), model.eval()(x, noise=noise).log_probs)


def test_a_loaded_model_with_such_a_network_is_saved_again(parts, tmp_path):
    model, _ = wrapped(parts, classes=3)
    folder = pstn.save_pretrained(model, tmp_path / "a", about=ABOUT)
    again = pstn.save_pretrained(pstn.from_pretrained(folder, allow=[MAKER]), tmp_path / "b")
    assert json.loads((again / "config.json").read_text()) == json.loads((folder / "config.json").read_text())


def test_a_function_is_called_only_if_it_is_allowed_by_its_own_name(parts, tmp_path):
    folder = pstn.save_pretrained(wrapped(parts)[0], tmp_path / "model", about=ABOUT)
    for allowed in ([], ["foreign_parts"], ["foreign_parts:make_another"], ["foreign_parts:Reader"]):
        with pytest.raises(pstn.io.ModelFileError, match=MAKER):
            pstn.from_pretrained(folder, allow=allowed)
    target = tmp_path / "ran"
    change = {"type": "foreign_parts:make_another", "path": str(target)}
    edit_config(folder, lambda config: config["model"]["classifier"].update(module=change))
    with pytest.raises(pstn.io.ModelFileError, match="make_another"):
        pstn.from_pretrained(folder, allow=["foreign_parts", MAKER])
    assert not target.exists()
    with pytest.raises(pstn.io.ModelFileError, match="make_another"):  # it ran, and made no network
        pstn.from_pretrained(folder, allow=["foreign_parts:make_another"])


@pytest.mark.parametrize("kind", ["no_such_module:make", "foreign_parts:moved_elsewhere"])
def test_a_constructor_that_cannot_be_found_is_named(parts, tmp_path, kind):
    folder = pstn.save_pretrained(wrapped(parts)[0], tmp_path / "model", about=ABOUT)
    edit_config(folder, lambda config: config["model"]["classifier"]["module"].update(type=kind))
    with pytest.raises(pstn.io.ModelFileError, match=rf"{kind}.*cannot be found"):
        pstn.from_pretrained(folder, allow=[kind])


@pytest.mark.parametrize(
    ("make", "constructor"),
    [(lambda parts: parts.Forgetful(144), "foreign_parts:Forgetful"), (lambda parts: pstn.nn.mnist_cnn(), None)],
)
def test_classes_may_have_their_arguments_said_too(parts, tmp_path, make, constructor):
    arguments = {} if constructor is None else {"width": 144}
    network = pstn.set_constructor(make(parts), constructor or pstn.nn.mnist_cnn, **arguments)
    kind = constructor or "pstn.nn.factory:mnist_cnn"
    assert registry.describe(network) == {"type": kind, **arguments}
    about = pstn.ModelMetadata(tuple("abc") if constructor else tuple("0123456789"), 1, (12, 12))
    folder = pstn.save_pretrained(pstn.wrap(network, in_channels=1), tmp_path / "a", about=about)
    again = pstn.save_pretrained(pstn.from_pretrained(folder, allow=[kind]), tmp_path / "b")
    kinds = [json.loads((f / "config.json").read_text())["model"]["classifier"]["module"] for f in (folder, again)]
    assert kinds == [{"type": kind, **arguments}] * 2


test_a_constructor_that_will_not_do_is_refused = refused(
    (lambda parts: pstn.set_constructor(parts, parts.make_network), TypeError, "network"),
    (lambda parts: pstn.set_constructor(nn.Flatten(), lambda: nn.Flatten()), ValueError, "constructor"),
    (lambda parts: pstn.set_constructor(nn.Flatten(), "make_network"), ValueError, "constructor"),
    (lambda parts: pstn.set_constructor(nn.Flatten(), 3), TypeError, "constructor"),
    (lambda parts: pstn.set_constructor(nn.Flatten(), parts.make_network, classes=nn.Flatten), TypeError, "classes"),
    (lambda parts: pstn.set_constructor(nn.Flatten(), parts.make_network, type=3), ValueError, "type"),
    # What is refused when the model is saved, as its constructor makes another one or none.
    (lambda parts: save(parts.make_network(), parts.make_network, classes=2), ValueError, "model"),
    (lambda parts: save(parts.make_network(), parts.make_network, depth=2), ValueError, "depth"),
    (lambda parts: save(parts.make_network(), "foreign_parts:nothing"), ValueError, "foreign_parts:nothing"),
    (lambda parts: save(parts.make_network(), "no_such_module:f"), ValueError, "no_such_module:f"),
    (lambda parts: pstn.save_pretrained(pstn.wrap(parts.make_network(), in_channels=1), "m"), TypeError,
     "set_constructor"),
    given=lambda: [sys.modules["foreign_parts"]],
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("parts")


def save(network, constructor, **arguments):
    network = pstn.set_constructor(network, constructor, **arguments)
    pstn.save_pretrained(pstn.wrap(network, in_channels=1), "never", about=ABOUT)


def test_two_classes_of_one_name_are_refused(parts):
    pstn.register(parts.Reader)
    other = type("Reader", (nn.Module,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="Reader"):
        pstn.register(other)
    with pytest.raises(ValueError, match="PSTN"):
        pstn.register(type("PSTN", (nn.Module,), {"__module__": "elsewhere"}))
    with pytest.raises(TypeError, match="cls"):
        pstn.register(print)


@pytest.mark.parametrize("family", [pstn.Normal(), pstn.Point(pstn.NormalPrior(scale=0.5)), pstn.StudentT(2.0)])
def test_a_model_of_every_posterior_family_is_saved_and_loaded(family, tmp_path):
    layer = pstn.SpatialTransformer(pstn.Rotation(), pstn.nn.ConvLocalizer(1, (28, 28)), posterior=family)
    model = pstn.PSTN(layer, pstn.nn.mnist_cnn(), test_samples=2).eval()
    x = torch.rand(2, 1, 28, 28)
    loaded = pstn.from_pretrained(model.save_pretrained(tmp_path)).eval()
    assert torch.equal(loaded(x, "modes").log_probs, model(x, "modes").log_probs)
