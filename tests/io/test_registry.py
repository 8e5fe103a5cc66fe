"""Transformations, posteriors and networks of the user's own in models that are saved and loaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pstn
from pstn.io import registry
from shared_models import edit_config

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
