"""Model folders that pstn 0.1.0 wrote: they load, and compute what they computed then.

They were made at commit 34d060f, by a script `make.py` beside them that is in the history, and cannot be made again
with later code. Each folder holds a model and `expected.safetensors`: an input, uniform noise, and what the model
computed from these two. `torch-alone.safetensors` holds what torch computed there without pstn.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pstn

FOLDERS = Path(__file__).parents[1] / "fixtures" / "models-0.1.0"
NAMES = sorted(path.parent.name for path in FOLDERS.glob("*/config.json"))


def compute_outputs(model, x, noise, target):
    """All that is compared, by name."""
    with torch.no_grad():
        out = model(x) if noise is None else model(x, noise=noise)
        if isinstance(out, torch.Tensor):
            return {"logits": out, "loss": nn.functional.cross_entropy(out, target)}
        return {
            "log_probs": out.log_probs,
            "sample_log_probs": out.sample_log_probs,
            "theta": out.theta,
            "mean": out.posterior.loc,
            "warped": model.layer.warp(x, out.theta),
            "loss": pstn.elbo_loss(out, target, kl_weight=0.5),
        }


def compute_with_torch_alone():
    """What torch computes here, without pstn: where a bit of it differs, outputs of models differ too."""
    x = torch.linspace(-2, 2, 6 * 2 * 6 * 7).sin().reshape(6, 2, 6, 7)
    weight = torch.linspace(-1, 1, 4 * 2 * 9).cos().reshape(4, 2, 3, 3)
    images = nn.functional.conv2d(x, weight)
    bias = torch.linspace(-0.3, 0.4, 3)
    one_channel = nn.functional.conv2d(x[:, :1], weight[:3, :1], bias)
    series = nn.functional.conv1d(x.flatten(2), weight.flatten(2)[:, :, :5])
    features = images.flatten(1) @ torch.linspace(-1, 1, 80 * 6).reshape(80, 6)
    grid = torch.tanh(features[:, None, None, :2] / 50) * torch.linspace(-1, 1, 30).reshape(1, 5, 6, 1)
    level = x[0].abs() + 0.1
    return {
        "images": images, "one_channel": one_channel, "series": series, "features": features,
        "log_probs": features.log_softmax(-1),
        "functions": torch.stack([level.exp(), level.log1p(), level.rsqrt(), level.sin()]),
        "softplus": nn.functional.softplus(x[0]), "warped": nn.functional.grid_sample(x, grid, align_corners=False),
    }  # fmt: skip


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
    here, then = compute_with_torch_alone(), load_file(FOLDERS / "torch-alone.safetensors")
    tolerance = 0.0 if all(torch.equal(here[key], then[key]) for key in then) else 5e-5
    outputs = compute_outputs(model, inputs["x"], inputs.get("noise"), inputs["target"])
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            outputs[name], value, atol=tolerance, rtol=tolerance, msg=lambda message, name=name: f"{name}: {message}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_0_1_0_computes_the_same(name):
    assert len(NAMES) == 21
    inputs, expected = read_expected(name)
    model = pstn.from_pretrained(FOLDERS / name)
    check(model, inputs, expected)
    assert model.about.classes == ("first", "second", "third")
    assert model.about.policy == ("resample" if name == "pstn-series" else "refuse")
