"""Untrusted model folders: what they may ask for is limited before anything is built."""

import json
import os
import shutil
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
from shared_models import edit_config

CPAB = {"type": "CPAB", "tess": [4, 4], "zero_boundary": True, "volume_preserving": False}


@pytest.fixture
def folder(tmp_path):
    """A small model that warps with parameters of its own."""
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(1, (8, 8), (2,), 3))
    return pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(tmp_path / "model")


def load_limited(folder, *changes):
    """Load copies of a model, each changed, with little memory and within seconds; what was raised."""
    copies = [shutil.copytree(folder, folder.with_name(str(number))) for number in range(len(changes))]
    for copy, change in zip(copies, changes, strict=True):
        edit_config(copy, change)
    code = """
    import time
    for folder in sys.argv[1:]:
        start = time.monotonic()
        try:
            pstn.from_pretrained(folder)
        except ValueError as error:
            print(repr(str(error)))
        assert time.monotonic() - start < 5
    """
    done = run_limited(code, *copies, memory=1 << 28, imports="import pstn.io, safetensors.torch")
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == len(changes)
    return messages


def nested(depth, width=8):
    return CPAB if depth == 0 else {"type": "Compose", "transforms": [nested(depth - 1, width)] * width}


def test_nested_cpabs_are_refused_before_one_is_built(folder):
    changes = [lambda c, t=t: c["model"]["layer"].update(transform=t) for t in (nested(3), nested(12, 1))]
    for message in load_limited(folder, *changes):
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
        ("classifier", {"type": "InceptionClassifier", "width": 1 << 20}, "classifier"),
        ("model", {"train_samples": 1 << 20}, "train_samples"),
        ("model", {"test_samples": 1 << 20}, "test_samples"),
        ("about", {"size": [150_000, 150_000]}, "size"),
    ],
)
def test_what_a_description_asks_for_is_limited(folder, part, values, message):
    def change(config):
        model = config["model"]
        {**config, **model}[part].update(values)

    edit_config(folder, change)
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
    edit_config(folder, lambda c: c.update(model=model, about={**c["about"], "size": size}))  # 1 TB for one image
    refused(message, pstn.from_pretrained, folder, error=ModelFileError)


def test_small_weights_cannot_ask_for_much_memory(folder):
    """The names and shapes in the file are compared with a model that is built without memory."""
    changes = [
        lambda c, width=width: c["model"]["classifier"].update(filters=[65536, width], kernel=2)
        for width in (65536, 64)
    ]
    large, other = load_limited(folder, *changes)
    assert f"{limits.MODEL_BYTES:,} bytes" in large
    assert "model.safetensors belongs to another model" in other


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
