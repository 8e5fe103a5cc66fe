"""Models in folders: they come back as they were, and nothing foreign or damaged gets in."""

import copy
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import pstn
from pstn.io import ModelFileError
from pstn.io.registry import _PARTS, describe
from pstn.nn import (
    BackboneClassifier,
    ConvClassifier,
    ConvLocalizer,
    EfficientNetLite0,
    Frozen,
    InceptionClassifier,
    ModelMetadata,
    PoseLocalizer,
    ResNetClassifier,
    RocketFeatures,
    SeriesClassifier,
    SeriesLocalizer,
    Trunk,
)
from shared_models import answers, edit_config, moved

IMAGE, SERIES = (3, 20, 24), (2, 30)


def image_pstn(transform, classifier=None, channels=3, **options):
    layer = pstn.SpatialTransformer(transform, ConvLocalizer(channels, (20, 24), (4, 5), 3), (16, 18), **options)
    return pstn.PSTN(layer, classifier or ConvClassifier(channels, (16, 18), 4, (4, 5), 7, 3), 2, 5)


def series_pstn():
    layer = pstn.SpatialTransformer(pstn.CPAB(tess=6), SeriesLocalizer(2, (4, 6), (5, 3)), hidden=8, sampling="sobol")
    return pstn.PSTN(layer, SeriesClassifier(2, 3, (4, 6), (4, 3), 0.1), chunk_size=3)


def masked_pstn():
    localizer = pstn.nn.Masked(SeriesLocalizer(2, (4, 6), (5, 3)))
    layer = pstn.SpatialTransformer(pstn.CPAB(tess=6), localizer, padding_mode="border", masked=True)
    return pstn.PSTN(layer, pstn.nn.Masked(SeriesClassifier(2, 3, (4, 6), (4, 3), 0.1)))


def reading_small():
    layer = pstn.SpatialTransformer(pstn.Crop("log"), ConvLocalizer(1, (16, 16), (4,)), localizer_size=(16, 16))
    return pstn.PSTN(layer, ConvClassifier(1, (40, 40), 3, (4,), 5))


def finding():
    layer = pstn.SpatialTransformer(pstn.Crop(), PoseLocalizer(1, (8, 12), (3, 4), 3, 6))
    return pstn.PSTN(layer, ConvClassifier(1, (8, 12), 3, (4,), 5))


def learned_augmentation():
    layer = pstn.SpatialTransformer(pstn.Affine(), pstn.nn.GlobalLocalizer())
    return pstn.PSTN(layer, ConvClassifier(2, (16, 18), 3, (4,), 5))


MODELS = {
    "cnn": (pstn.nn.mnist_cnn, (1, 28, 28)),
    "stn": (pstn.nn.mnist_stn, (1, 28, 28)),
    "pstn": (pstn.nn.mnist_pstn, (1, 28, 28)),
    "fill per channel": (lambda: image_pstn(pstn.Similarity("log"), fill=(0.1, -0.2, 0.3), alpha=1.5), IMAGE),
    "one fill of numpy's": (lambda: image_pstn(pstn.Crop(), fill=np.float32(0.5)), IMAGE),
    "border": (lambda: image_pstn(pstn.Affine(), padding_mode="border", mode="bicubic"), IMAGE),
    "composed": (lambda: image_pstn(pstn.Compose(pstn.Rotation(), pstn.CPAB(tess=(2, 2)))), IMAGE),
    "translation": (lambda: image_pstn(pstn.Translation(0.7), sampling="antithetic"), IMAGE),
    "frozen": (lambda: image_pstn(pstn.Crop(), Frozen(ConvClassifier(3, (16, 18), 4, (4,), 7, 3))), IMAGE),
    "larger localizer": (finding, (1, 8, 12)),
    "small reading": (reading_small, (1, 40, 40)),
    "one precision per input": (lambda: image_pstn(pstn.Similarity(), precision="per-input"), IMAGE),
    "one posterior for all inputs": (learned_augmentation, (2, 16, 18)),
    "series": (series_pstn, SERIES),
    "series cnn": (lambda: SeriesClassifier(2, 3, (4, 6), (4, 3)), SERIES),
    "inception": (lambda: InceptionClassifier(2, 3, 2, (4, 3), 4), SERIES),
    "resnet": (lambda: ResNetClassifier(2, 3, (4, 6), (4, 3)), SERIES),
    "on random features": (lambda: BackboneClassifier(Trunk(RocketFeatures(2, (1, 3), (2, 1))), 3), SERIES),
    "on a pretrained network": (lambda: BackboneClassifier(Trunk(EfficientNetLite0(None)), 3), (3, 32, 32)),
    "with a mask": (masked_pstn, (3, 30)),
    "unpadded": (lambda: SeriesClassifier(2, 3, (4, 6), (4, 3), padded=False), SERIES),
}
every_model = pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS.keys())


@every_model
def test_a_model_comes_back_as_it_was(make, shape, tmp_path):
    model, x = moved(make()), torch.rand(3, *shape)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean += 0.3
    torch.manual_seed(11)
    expected_state = torch.random.get_rng_state()
    loaded = pstn.from_pretrained(model.save_pretrained(tmp_path))
    assert torch.equal(torch.random.get_rng_state(), expected_state)
    assert type(loaded) is type(model)
    assert describe(loaded) == describe(model)
    assert torch.equal(answers(loaded, x), answers(model, x))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


def test_every_public_module_is_in_a_model_that_comes_back():
    saved = {type(module) for make, _ in MODELS.values() for module in make().modules()}
    public = (getattr(pstn.nn, name) for name in pstn.nn.__all__)
    modules = {thing for thing in public if inspect.isclass(thing) and issubclass(thing, nn.Module)}
    bases = {pstn.nn.Shareable, pstn.nn.TransformerModel, pstn.nn.TransformerClassifier}
    needs_timm = {pstn.nn.TimmNetwork}  # see nn/test_backbones.py
    assert modules - bases - needs_timm <= saved


def test_every_argument_of_a_part_is_described():
    needless = {
        # Short forms of posterior.
        "SpatialTransformer": {"probabilistic", "alpha", "var_init", "precision"},
        "Rotation": {"ndim"}, "Similarity": {"ndim"},  # 2 and nothing else
        "CPAB": {"backend"},  # the machine's, not the model's
        "TimmNetwork": {"pretrained"},  # a saved model has weights of its own
    }  # fmt: skip
    for name, part in _PARTS.items():
        taken = set(inspect.signature(part.cls).parameters) - {"args", "kwargs"}  # a module without an __init__
        assert set(part.fields.split()) == taken - needless.get(name, set()), name


def test_what_belongs_to_a_model_travels_with_it(tmp_path):
    names = tuple(f"clé {i}" for i in range(10))
    about = ModelMetadata(
        names, 1, (28, 28), (0.1307,), (0.3081,), 3e-4, 7, "digits", {"accuracy": 0.9, "nll": float("nan")}
    )
    pstn.nn.mnist_pstn().save_pretrained(tmp_path, about=about)
    model = pstn.PSTN.from_pretrained(tmp_path)
    assert model.about.classes == names
    assert model.about.metrics["accuracy"] == 0.9
    pixels = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    prepared = model.about.prepare(pixels)
    torch.testing.assert_close(prepared, (pixels / 255 - 0.1307) / 0.3081)
    torch.testing.assert_close(model.about.undo(prepared), pixels / 255)
    model.save_pretrained(tmp_path / "again")
    assert pstn.from_pretrained(tmp_path / "again").about.data == "digits"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", ("a",)), ("channels", 3), ("size", (32, 32)), ("classes", ("a",) * 10),
        ("classes", (*"abcdefghi", "j\n")), ("std", (0.0,)), ("mean", (0.0, 1.0)),
    ],
)  # fmt: skip
def test_a_false_description_is_refused_before_anything_is_written(name, value, tmp_path):
    good = {"classes": tuple("0123456789"), "channels": 1, "size": (28, 28)}
    with pytest.raises(ValueError, match=name):
        pstn.nn.mnist_pstn().save_pretrained(tmp_path / "out", about=ModelMetadata(**{**good, name: value}))
    assert not (tmp_path / "out").exists()


def test_foreign_parts_are_refused_and_their_weights_still_travel(tmp_path):
    def make():
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 3))
        return pstn.wrap(backbone, in_channels=1)

    model = moved(make())
    with pytest.raises(TypeError, match="Sequential"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other, x = make().eval(), torch.rand(2, 1, 28, 28)
    pstn.load_weights(other, tmp_path / "w.safetensors")
    assert torch.equal(answers(other, x), answers(model, x))


def test_a_model_changed_after_it_was_built_is_refused(tmp_path):
    model = pstn.nn.mnist_cnn()
    model.head[3] = nn.Linear(52, 11)
    with pytest.raises(ValueError, match="changed after it was built"):
        model.save_pretrained(tmp_path)


def test_parts_that_share_their_weights_are_refused_until_they_do_not(tmp_path):
    classifier = ConvClassifier(1, (28, 28), 3, (4, 5), 7, 3)
    model = pstn.PSTN(pstn.SpatialTransformer(pstn.Crop(), classifier.body), classifier)
    with pytest.raises(ValueError, match="are one tensor"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    model.layer.localizer = copy.deepcopy(classifier.body)
    back, x = pstn.from_pretrained(model.save_pretrained(tmp_path / "out")), torch.rand(2, 1, 28, 28)
    assert torch.equal(answers(back, x), answers(model.eval(), x))


def test_weights_that_do_not_fit_leave_the_model_alone(tmp_path):
    model = pstn.nn.mnist_cnn()
    before = copy.deepcopy(model.state_dict())
    good = {name: tensor + 1 for name, tensor in before.items()}
    renamed = {name.replace("head.3", "head.9"): tensor for name, tensor in good.items()}
    for bad, message in (
        (renamed, r"head\.3\.bias is missing"),
        ({**good, "head.3.bias": torch.zeros(11)}, r"head\.3\.bias must have shape \(10,\), got \(11,\)"),
        ({**good, "head.3.bias": torch.full((10,), torch.nan)}, r"head\.3\.bias holds NaN"),
        ({**good, "head.3.bias": torch.zeros(10, dtype=torch.int64)}, r"head\.3\.bias must be of torch\.float32"),
    ):
        save_file(bad, tmp_path / "w.safetensors")
        with pytest.raises(ModelFileError, match=message):
            pstn.load_weights(model, tmp_path / "w.safetensors")
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Mine:
    """What a pickle would run."""

    def __reduce__(self):
        return (exec, ("import pstn; pstn.taken_over = True",))


def test_nothing_in_a_pickle_is_executed(folder):
    for write in (pickle.dump, torch.save):
        with (folder / "model.safetensors").open("wb") as stream:
            write({"head": Mine()}, stream)
        with pytest.raises(ModelFileError, match="not a readable safetensors file"):
            pstn.from_pretrained(folder)
    assert not hasattr(pstn, "taken_over")


def test_a_description_cannot_name_code_nor_ask_for_the_machines_memory(folder):
    original = (folder / "config.json").read_text()
    for change, message in (
        (lambda c: c["model"].update(type="os.system"), r"model is 'os\.system'"),
            (lambda c: c["model"].update(type="os:system"), r"model is 'os:system'.*allow"),
        (lambda c: c["model"]["layer"].update(localizer={"type": "Sequential"}), "layer.localizer is 'Sequential'"),
        (lambda c: c["model"]["layer"].update(transform={"type": "PSTN"}), "layer.transform must be one of Rotation"),
        (lambda c: c["model"]["classifier"].update(hidden=1 << 20, classes=1 << 20), "number of classes"),
        (lambda c: c["model"]["classifier"].update(hidden=1 << 20), "must have shape"),
        (lambda c: c["model"]["classifier"].update(hidden=1 << 40), "hidden must be a whole number from 1 to 1048576"),
        (lambda c: c["model"].update(extra=1), "model.extra is unknown in a PSTN"),
        (lambda c: c["model"].pop("train_samples"), "model.train_samples is missing"),
        (lambda c: c["model"]["layer"].update(transform={"type": "CPAB", "tess": [17, 17], "zero_boundary": True,
                                                         "volume_preserving": False}), "at most 256 cells"),
        (lambda c: c.update(format="pstn 2"), "format must be 'pstn 1'"),
        (lambda c: c.update(more=1), "does not describe a model"),
        (lambda c: c.update(weights_sha256="0"), "is not the file that config.json beside it was written with"),
        (lambda c: c["about"].update(mean=["x"]), "mean must be one finite number"),
    ):  # fmt: skip
        (folder / "config.json").write_text(original)
        edit_config(folder, change)
        with pytest.raises(ModelFileError, match=message):
            pstn.from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "[", "[]", "1", '{"format": NaN}', "[" * 100_000, "\x00", "null"])
def test_a_description_that_is_not_one(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        pstn.from_pretrained(folder)


def test_missing_files_and_folders_are_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match=r"there is no folder no/where.*pip install 'pstn\[hub\]'"):
        pstn.from_pretrained("no/where")
    for nowhere in (tmp_path / "none" / "at" / "all", folder / "config.json"):
        with pytest.raises(ModelFileError, match="there is no folder"):
            pstn.from_pretrained(nowhere)
    with pytest.raises(ModelFileError, match="holds a PSTN, not a STN"):
        pstn.STN.from_pretrained(folder)
    pstn.from_pretrained(folder)  # needs no huggingface_hub
    assert type(pstn.from_pretrained(folder.parent)) is pstn.PSTN  # the only model in there
    pstn.nn.mnist_cnn().save_pretrained(folder.parent / "second")
    with pytest.raises(ModelFileError, match="holds 2 models"):
        pstn.from_pretrained(folder.parent)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"has no model\.safetensors"):
        pstn.from_pretrained(folder)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(1, (8, 8), (2,), 3))
    folder = tmp_path_factory.mktemp("pristine")
    pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(folder)
    return folder


@given(data=st.data())
def test_any_change_of_the_weights_is_refused(pristine, data, tmp_path_factory):
    content = bytearray((pristine / "model.safetensors").read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[start : start + 4] = data.draw(st.binary(max_size=8))
    else:
        del content[start:]
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "config.json").write_bytes((pristine / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(content)
    if bytes(content) == (pristine / "model.safetensors").read_bytes():
        pstn.from_pretrained(folder)
        return
    with pytest.raises(ModelFileError):
        pstn.from_pretrained(folder)


def test_the_card_of_a_series_model_speaks_of_series(tmp_path):
    network = pstn.nn.SeriesClassifier(1, 2, (4,), (3,))
    card = (network.save_pretrained(tmp_path, about=ModelMetadata(("a", "b"), 1, (24,))) / "README.md").read_text()
    assert "series (B, C, L)" in card
    assert "image" not in card


@pytest.mark.slow
def test_loading_imports_no_sympy(tmp_path):
    """It takes a second, and torch imports it for some operations on the meta device."""
    pstn.nn.mnist_pstn().save_pretrained(tmp_path)
    code = f"import sys, pstn; pstn.from_pretrained({str(tmp_path)!r}); print('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
