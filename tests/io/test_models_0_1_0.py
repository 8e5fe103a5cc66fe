"""Model folders that pstn 0.1.0 wrote: they load, and compute what they computed then."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pstn

FOLDERS = Path(__file__).parents[1] / "fixtures" / "models-0.1.0"
NAMES = sorted(path.parent.name for path in FOLDERS.glob("*/config.json"))


def load_script():
    spec = importlib.util.spec_from_file_location("make_models_0_1_0", FOLDERS / "make.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(autouse=True)
def one_thread():
    """The files were written with one thread: more may sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def read_expected(name):
    """Inputs and outputs of a model, by name."""
    tensors = load_file(FOLDERS / name / "expected.safetensors")
    return [
        {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}
        for part in ("input", "output")
    ]


def check(model, inputs, expected):
    """Compare all outputs: to the bit where torch alone computes the same bits as when the files were written.

    Elsewhere (another torch, another processor) the warped noise differs by up to 1e-5.
    """
    script = load_script()
    here, then = script.compute_with_torch_alone(), load_file(FOLDERS / "torch-alone.safetensors")
    tolerance = 0.0 if all(torch.equal(here[key], then[key]) for key in then) else 5e-5
    outputs = script.compute_outputs(model, inputs["x"], inputs.get("noise"), inputs["target"])
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            outputs[name], value, atol=tolerance, rtol=tolerance, msg=lambda message, name=name: f"{name}: {message}"
        )


def test_every_model_of_the_script_has_a_folder():
    assert sorted(load_script().MODELS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_0_1_0_computes_the_same(name):
    inputs, expected = read_expected(name)
    model = pstn.from_pretrained(FOLDERS / name)
    check(model, inputs, expected)
    assert model.about.classes == ("first", "second", "third")
    assert model.about.policy == ("resample" if name == "pstn-series" else "refuse")
