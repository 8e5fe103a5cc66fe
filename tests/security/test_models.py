"""Model folders of strangers: what they may ask for is limited before anything is built."""

import json
import os
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import pstn
from pstn import limits
from pstn.io.models import ModelFileError
from pstn.io.registry import build
from pstn.nn import About, ConvClassifier, ConvLocalizer, GlobalLocalizer
from security.limited import run_limited

CPAB = {"type": "CPAB", "tess": [4, 4], "zero_boundary": True, "volume_preserving": False}


@pytest.fixture
def folder(tmp_path):
    """A small model that warps with parameters of its own."""
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(1, (8, 8), (2,), 3))
    return pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(tmp_path / "model")


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def described(folder):
    """The model that a folder describes, without its weights."""
    return build(json.loads((folder / "config.json").read_text())["model"])


def load_limited(folder, memory=1 << 28, seconds=60):
    """Load a model with little memory; how long it took, and what was raised."""
    code = "import time, sys; start = time.monotonic(); error = ''\n"
    code += "try:\n    pstn.from_pretrained(sys.argv[1])\nexcept ValueError as raised:\n    error = str(raised)\n"
    code += "print(time.monotonic() - start); print(error)"
    done = run_limited(code, folder, memory=memory, seconds=seconds, imports="import pstn.io, safetensors.torch")
    assert done.returncode == 0, done.stderr
    took, message = done.stdout.split("\n", 1)
    return float(took), message.strip()


def nested(depth, width=8):
    return CPAB if depth == 0 else {"type": "Compose", "transforms": [nested(depth - 1, width)] * width}


@pytest.mark.parametrize("transform", [nested(3), nested(2), nested(12, 1)])
def test_nested_cpabs_are_refused_before_one_is_built(folder, transform):
    edit(folder, lambda c: c["model"]["layer"].update(transform=transform))
    took, message = load_limited(folder)
    assert "model must have at most" in message
    assert len(message) < 400
    assert took < 5


def test_cells_are_counted_in_all(folder):
    fine = {**CPAB, "tess": [16, 16]}
    edit(folder, lambda c: c["model"]["layer"].update(transform={"type": "Compose", "transforms": [fine] * 3}))
    start = time.monotonic()
    with pytest.raises(ModelFileError, match="512 cells"):
        pstn.from_pretrained(folder)
    below = {**CPAB, "tess": [-100_000, 1]}
    edit(folder, lambda c: c["model"]["layer"].update(transform={"type": "Compose", "transforms": [fine, below]}))
    with pytest.raises(ModelFileError, match="512 cells"):
        pstn.from_pretrained(folder)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("name", ["train_samples", "test_samples"])
def test_the_samples_of_a_model_are_limited(folder, name):
    edit(folder, lambda c: c["model"].update({name: 1 << 20}))
    with pytest.raises(ModelFileError, match=name):
        pstn.from_pretrained(folder)


def test_samples_channels_and_pixels_are_limited_together(folder):
    edit(folder, lambda c: c["model"].update(test_samples=1 << 16))
    pstn.from_pretrained(folder)  # 64 pixels each
    edit(folder, lambda c: c["model"]["layer"].update(size=[64, 64]))
    edit(folder, lambda c: c["model"]["classifier"].update(size=[64, 64]))
    with pytest.raises(ModelFileError, match=f"{limits.MODEL_VALUES:,} numbers"):
        pstn.from_pretrained(folder)


@pytest.mark.parametrize("size", [[150_000, 150_000], [1 << 24, 2]])
def test_the_pixels_of_about_are_limited(tmp_path, size):
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(1, (8, 8), (2,), 3), (8, 8), localizer_size=(8, 8))
    folder = pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(tmp_path)
    edit(folder, lambda c: c["about"].update(size=size))
    took, message = load_limited(folder)
    assert "size must have at most" in message
    assert took < 5
    with pytest.raises(ValueError, match="size"):
        About(("a", "b"), 1, tuple(size))


@pytest.mark.parametrize("name", ["size", "localizer_size"])
def test_the_pixels_of_a_layer_are_limited(folder, name):
    edit(folder, lambda c: c["model"]["layer"].update({name: [60_000, 60_000]}))
    took, message = load_limited(folder)
    assert f"layer.{name} must have at most" in message
    assert took < 5


def test_small_weights_cannot_ask_for_much_memory(folder):
    """The names and shapes in the file are compared with a model that is built without memory."""
    edit(folder, lambda c: c["model"]["classifier"].update(filters=[65536, 65536], kernel=2))
    took, message = load_limited(folder)
    assert f"{limits.MODEL_BYTES:,} bytes" in message
    edit(folder, lambda c: c["model"]["classifier"].update(filters=[65536, 64], kernel=2))
    took, message = load_limited(folder)
    assert "model.safetensors belongs to another model" in message
    assert took < 5


def test_a_sparse_file_of_weights_is_refused_before_it_is_read(tmp_path):
    """28.8 GB of zeros take 19 kB on a disk."""
    layer = pstn.SpatialTransformer(pstn.Similarity(), GlobalLocalizer())
    folder = pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(tmp_path / "m")
    width = 60_000
    edit(folder, lambda c: c["model"]["classifier"].update(filters=[width, width], kernel=2))
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in described(folder).state_dict().items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * shape.numel()]}
        at += 4 * shape.numel()
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    took, message = load_limited(folder)
    assert "bytes of weights" in message
    assert took < 5


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "complex64", "int64"])
def test_weights_of_other_types_are_refused(folder, dtype):
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name].to(getattr(torch, dtype))
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=rf"{name} must be of torch\.float32"):
        pstn.from_pretrained(folder)
    with pytest.raises(ModelFileError, match=name):
        pstn.load_weights(described(folder), folder / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_named_pipe_in_a_model_folder_is_refused(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelFileError, match=name):
        pstn.from_pretrained(folder)


def test_a_named_pipe_is_refused_as_weights(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ModelFileError, match="regular"):
        pstn.load_weights(torch.nn.Linear(1, 1), tmp_path / "pipe.safetensors")


def test_duplicate_keys_in_a_description_are_refused(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"format"', '"format": "x", "format"', 1))
    with pytest.raises(ModelFileError, match="'format' occurs twice"):
        pstn.from_pretrained(folder)


def test_a_message_repeats_only_a_part_of_a_value(folder):
    for change in (
        lambda c: c["model"].update(type="x" * 10**6), lambda c: c.update(format=["x" * 10**6]),
        lambda c: c["model"]["layer"].update(fill=[[0] * 10**6]), lambda c: c["about"].update(mean=list(range(10**5))),
        lambda c: c["about"].update(metrics=["x" * 10**6]), lambda c: c.update({"x" * 10**6: 1}),
        lambda c: c["model"].update({"x" * 10**6: 1}), lambda c: c["about"].update({"x" * 10**6: 1}),
        lambda c: c["model"].update(test_samples=10**4000), lambda c: c["about"].update(size=[10**4000]),
    ):  # fmt: skip
        original = (folder / "config.json").read_text()
        edit(folder, change)
        with pytest.raises(ModelFileError) as caught:
            pstn.from_pretrained(folder)
        assert len(str(caught.value)) < 1000
        (folder / "config.json").write_text(original)


WIDE = {"filters": [65536, 1], "kernel": 1, "hidden": 1, "size": [2048, 2048]}


def test_a_wide_convolution_of_few_weights_is_refused(folder):
    head = {"type": "ConvClassifier", "in_channels": 1, "classes": 2, "dropout": 0.5, **WIDE}
    edit(folder, lambda c: c.update(model=head, about={**c["about"], "size": WIDE["size"]}))  # 1 TB for one image
    with pytest.raises(ModelFileError, match="in a convolution"):
        pstn.from_pretrained(folder)


def test_a_wide_convolution_of_series_is_refused():
    about = About(("a", "b"), 1, (1 << 20,))
    with pytest.raises(ValueError, match="in a convolution"):
        pstn.nn.SeriesClassifier(1, 2, (4096,), (1,)).save_pretrained("unused", about=about)


def test_a_model_that_would_compute_for_minutes_is_refused(folder):
    slow = {"filters": [8], "kernel": 2048, "hidden": 1, "size": [4096, 4096]}
    head = {"type": "ConvClassifier", "in_channels": 1, "classes": 2, "dropout": 0.5, **slow}
    edit(folder, lambda c: c.update(model=head, about={**c["about"], "size": slow["size"]}))
    with pytest.raises(ModelFileError, match="multiplications"):
        pstn.from_pretrained(folder)
