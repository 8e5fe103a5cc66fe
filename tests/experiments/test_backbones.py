from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from data_files import REAL
from pstn.experiments import RunContext, traffic_signs
from pstn.experiments.traffic_signs import RESNET, SMALL, EfficientNetLite0, Network, find_backbone

WEIGHTS = Path(REAL, "weights", "efficientnet-lite0-57934424.pth")


@pytest.fixture(scope="module")
def lite_weights() -> dict[str, torch.Tensor]:
    """As they are published, but for their numbers."""
    return EfficientNetLite0(1000).state_dict()


class TinyResNet(nn.Module):
    """Has the first and the last layer of ResNet-18 alone."""

    def __init__(self, weights: None = None) -> None:
        super().__init__()
        self.conv1, self.bn1, self.fc = nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64), nn.Linear(512, 1000)


def test_efficientnet_has_the_published_size_and_names(lite_weights):
    assert sum(p.numel() for p in EfficientNetLite0(1000).parameters()) == 4_652_008
    # Of the published file: 296 tensors, of which these are the first and the last.
    assert len(lite_weights) == 296
    assert (next(iter(lite_weights)), list(lite_weights)[-1]) == ("_conv_stem.weight", "_fc.bias")
    assert "_blocks.0._expand_conv.weight" not in lite_weights
    assert {"_blocks.15._expand_conv.weight", "_blocks.15._bn2.num_batches_tracked"} < lite_weights.keys()


@pytest.mark.parametrize(("side", "first"), [(6, 0), (7, -1)])
def test_padding_is_tensorflows(side, first):
    # "SAME" with a kernel of 3 and a stride of 2: an even side has no padding before it, an odd one has a pixel.
    stem = EfficientNetLite0(None)._conv_stem
    nn.init.zeros_(stem.weight)
    with torch.no_grad():
        stem.weight[:, 0, 0, 0] = 1  # reads the upper left pixel under the kernel
    x = torch.arange(1.0, side * side + 1).view(1, 1, side, side).expand(1, 3, side, side)
    places = range(first, side - 1, 2)
    wanted = [[0.0 if min(row, col) < 0 else x[0, 0, row, col].item() for col in places] for row in places]
    assert stem._conv_forward(x, stem.weight, None)[0, 0].tolist() == wanted


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_of_efficientnet_is_known_by_its_names(lite_weights, tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(lite_weights, path)
    before = torch.get_rng_state()
    found = find_backbone(path)
    assert torch.equal(torch.get_rng_state(), before)  # no random numbers were drawn
    assert (found.name, found.trained) == ("EfficientNet-Lite0", True)
    # (x - 127) / 128 of pixels from 0 to 255, so that black is -127 / 128.
    assert traffic_signs._black(found) == pytest.approx([-127 / 128] * 3)
    for name, tensor in found.make().state_dict().items():
        assert torch.equal(tensor, lite_weights[name])
    classifier, localizer = Network(found, 10), Network(found, None)
    assert (classifier.head.weight.shape, localizer.features) == ((10, 1280), 1280)
    assert classifier(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_a_file_of_resnet_is_known_by_its_names(monkeypatch, tmp_path):
    models = ModuleType("torchvision.models")
    models.resnet18 = TinyResNet
    for name, module in (("torchvision", ModuleType("torchvision")), ("torchvision.models", models)):
        monkeypatch.setitem(sys.modules, name, module)
    weights = {k: v for k, v in TinyResNet().state_dict().items() if not k.endswith("num_batches_tracked")}
    path = tmp_path / "resnet.pth"
    torch.save(weights, path)
    found = find_backbone(path)
    assert (found.name, found.mean, found.std) == (RESNET.name, RESNET.mean, RESNET.std)
    assert torch.equal(found.make().conv1.weight, weights["conv1.weight"])
    assert found.make().features == 512
    assert traffic_signs._backbone(RunContext(tmp_path)) is RESNET
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    assert traffic_signs._backbone(RunContext(tmp_path)) is SMALL
    with pytest.raises(ValueError, match="torchvision"):
        find_backbone(path)


@pytest.mark.skipif(not traffic_signs._has_resnet(), reason="torchvision does not import")
def test_weights_of_torchvisions_resnet_are_taken(tmp_path):
    weights = RESNET.make().state_dict()
    torch.save(weights, tmp_path / "resnet.pth")
    made = find_backbone(tmp_path / "resnet.pth").make().state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in made.items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda weights: SMALL.make().state_dict(), ""),
        # Lite1 has more blocks, Lite2 is wider.
        (lambda weights: {**weights, "_blocks.16._bn1.weight": torch.ones(320)}, r"_blocks\.16\._bn1\.weight"),
        (lambda weights: {**weights, "_blocks.0._bn2.bias": torch.ones(24)}, r"_blocks\.0\._bn2\.bias"),
        (lambda weights: {"state_dict": weights}, ""), (None, ""),
    ],
)  # fmt: skip
def test_files_of_other_weights_are_refused(lite_weights, tmp_path, change, named):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"junk")
    if change is not None:
        torch.save(change(lite_weights), path)
    with pytest.raises(ValueError, match=f"backbone.*{named}"):
        find_backbone(path)


MINE = """
from torch import nn
from pstn.nn import Pretrained

def tiny():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.features = 4
    return network

scratch = Pretrained("Tiny", tiny, mean=(0.5,) * 3, std=(0.5,) * 3, trained=False)
"""


def test_the_experiment_follows_its_backbone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = f"mine_{tmp_path.name}"  # a new name each time: Python imports a name once
    (tmp_path / f"{mine}.py").write_text(MINE)
    learned, scratch = (RunContext(tmp_path, backbone=find_backbone(f"{mine}:{n}")) for n in ("tiny", "scratch"))
    (with_weights,), (without, from_scratch) = (traffic_signs._equipment(c) for c in (learned, scratch))
    assert with_weights.startswith(f"{mine}:tiny with ImageNet weights")
    assert without.startswith("Tiny in place")
    assert from_scratch.startswith("No ImageNet weights")
    assert Network(learned.backbone, None).features == 4


@pytest.mark.skipif(not (REAL and WEIGHTS.is_file()), reason="PSTN_DATA has no weights of EfficientNet-Lite0")
def test_the_published_weights_of_efficientnet_are_taken():
    weights = torch.load(WEIGHTS, weights_only=True)
    network = Network(find_backbone(WEIGHTS), 1000).eval()
    network.head.load_state_dict({name: weights[f"_fc.{name}"] for name in ("weight", "bias")})
    # By efficientnet_lite_pytorch 0.1.0: the largest answers to a ramp of greys.
    ramp = torch.linspace(-1, 1, 224).expand(1, 3, 224, 224)
    with torch.no_grad():
        values, classes = network(ramp)[0].topk(3)
    assert classes.tolist() == [534, 499, 901]
    torch.testing.assert_close(values, torch.tensor([6.08351, 5.54088, 4.9812]), atol=1e-4, rtol=0)
