"""Untrusted model folders: what they may ask for is limited before anything is built."""

import json
import os
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import pstn
from data_files import refused
from pstn import limits
from pstn.io.models import ModelFileError
from pstn.io.registry import build
from pstn.nn import ConvClassifier, ConvLocalizer
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


def load_limited(folder):
    """Load a model with little memory, within seconds; what was raised."""
    code = """
    import time
    start = time.monotonic()
    try:
        pstn.from_pretrained(sys.argv[1])
    except ValueError as error:
        print(error)
    assert time.monotonic() - start < 5
    """
    done = run_limited(code, folder, memory=1 << 28, imports="import pstn.io, safetensors.torch")
    assert done.returncode == 0, done.stderr
    return done.stdout


def nested(depth, width=8):
    return CPAB if depth == 0 else {"type": "Compose", "transforms": [nested(depth - 1, width)] * width}


@pytest.mark.parametrize("transform", [nested(3), nested(12, 1)])
def test_nested_cpabs_are_refused_before_one_is_built(folder, transform):
    edit(folder, lambda c: c["model"]["layer"].update(transform=transform))
    message = load_limited(folder)
    assert "model must have at most" in message
    assert len(message) < 400


FINE, NEGATIVE = {**CPAB, "tess": [16, 16]}, {**CPAB, "tess": [-(10**5), 1]}
SERIES = {"type": "SeriesClassifier", "in_channels": 1, "classes": 2, "filters": [2], "kernels": [3], "dropout": 0.0}


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("layer", {"transform": {"type": "Compose", "transforms": [FINE] * 3}}, "512 cells"),
        ("layer", {"transform": {"type": "Compose", "transforms": [FINE, NEGATIVE]}}, "512 cells"),
        ("layer", {"size": [60_000, 60_000]}, "layer.size"),
        ("layer", {"localizer_size": [60_000, 60_000]}, "layer.localizer_size"),
        ("classifier", {**SERIES, "padded": True}, "classifier"),
        ("model", {"train_samples": 1 << 20}, "train_samples"),
        ("model", {"test_samples": 1 << 20}, "test_samples"),
        ("about", {"size": [150_000, 150_000]}, "size"),
    ],
)
def test_what_a_description_asks_for_is_limited(folder, part, values, message):
    def change(config):
        model = config["model"]
        {**config, **model}[part].update(values)

    edit(folder, change)
    start = time.monotonic()
    refused(message, pstn.from_pretrained, folder, error=ModelFileError)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("filters", "kernel", "message"), [([65536, 1], 1, "in a convolution"), ([8], 2048, "multiplications")]
)
def test_a_wide_convolution_of_few_weights_is_refused(folder, filters, kernel, message):
    size = [4096, 4096]
    head = {"type": "ConvClassifier", "in_channels": 1, "classes": 2, "dropout": 0.5, "size": size, "hidden": 1}
    model = {**head, "filters": filters, "kernel": kernel}
    edit(folder, lambda c: c.update(model=model, about={**c["about"], "size": size}))  # 1 TB for one image
    refused(message, pstn.from_pretrained, folder, error=ModelFileError)


def test_small_weights_cannot_ask_for_much_memory(folder):
    """The names and shapes in the file are compared with a model that is built without memory."""
    edit(folder, lambda c: c["model"]["classifier"].update(filters=[65536, 65536], kernel=2))
    assert f"{limits.MODEL_BYTES:,} bytes" in load_limited(folder)
    edit(folder, lambda c: c["model"]["classifier"].update(filters=[65536, 64], kernel=2))
    assert "model.safetensors belongs to another model" in load_limited(folder)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "complex64", "int64"])
def test_weights_of_other_types_are_refused(folder, dtype):
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name].to(getattr(torch, dtype))
    save_file(weights, folder / "model.safetensors")
    refused(rf"{name} must be of torch\.float32", pstn.from_pretrained, folder, error=ModelFileError)
    model = build(json.loads((folder / "config.json").read_text())["model"])
    refused(name, pstn.load_weights, model, folder / "model.safetensors", error=ModelFileError)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_named_pipe_in_a_model_folder_is_refused(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(name, pstn.from_pretrained, folder, error=ModelFileError)
