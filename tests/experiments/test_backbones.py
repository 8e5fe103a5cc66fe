from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from data_files import REAL
from pstn.experiments import Lab, backbones, traffic_signs
from pstn.experiments.backbones import (
    EFFICIENTNET,
    RESNET,
    SMALL,
    EfficientNetLite0,
    default_backbone,
    find_backbone,
    has_resnet,
    make_small,
    published_name,
)
from pstn.experiments.runner import identity
from pstn.nn import SpatialTransformer
from pstn.training import Member

WEIGHTS = Path(REAL, "weights", "efficientnet-lite0-57934424.pth")


@pytest.fixture
def lite_weights() -> dict[str, torch.Tensor]:
    """As they are published, but for their numbers."""
    torch.manual_seed(0)
    return {published_name(name): tensor for name, tensor in EfficientNetLite0(1000).state_dict().items()}


@pytest.fixture
def lite_file(lite_weights, tmp_path) -> Path:
    torch.save(lite_weights, tmp_path / "lite0.pth")
    return tmp_path / "lite0.pth"


class TinyResNet(nn.Module):
    """Has the first and the last layer of ResNet-18 alone."""

    def __init__(self, weights: None = None) -> None:
        super().__init__()
        self.conv1, self.bn1, self.fc = nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64), nn.Linear(512, 1000)


@pytest.fixture
def torchvision(monkeypatch) -> None:
    """A torchvision that imports, wherever the tests run."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.resnet18 = TinyResNet
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_efficientnet_has_the_size_that_is_published():
    assert sum(p.numel() for p in EfficientNetLite0(1000).parameters()) == 4_652_008
    # Of the published file: 296 tensors, of which these are the first and the last.
    names = [published_name(name) for name in EfficientNetLite0(1000).state_dict()]
    assert len(set(names)) == 296
    assert (names[0], names[-1]) == ("_conv_stem.weight", "_fc.bias")
    assert "_blocks.0._expand_conv.weight" not in names
    assert {"_blocks.15._expand_conv.weight", "_blocks.15._bn2.num_batches_tracked", "_bn1.running_var"} < set(names)


@pytest.mark.parametrize("size", [(224, 224), (97, 130), (33, 64)])
def test_efficientnet_halves_sides_five_times_and_rounds_up(size):
    network = EfficientNetLite0(None).eval()
    seen = []
    network.head.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    with torch.no_grad():
        assert network(torch.rand(1, 3, *size)).shape == (1, 1280)
        assert EfficientNetLite0(7).eval()(torch.rand(2, 3, *size)).shape == (2, 7)
    assert seen == [(1, 1280, *(-(-side // 32) for side in size))]


@pytest.mark.parametrize(("side", "first"), [(6, 0), (7, -1)])
def test_padding_is_tensorflows(side, first):
    # "SAME" with a kernel of 3 and a stride of 2: an even side has no padding before it, an odd one has a pixel.
    stem = EfficientNetLite0(None).stem
    nn.init.zeros_(stem.conv.weight)
    with torch.no_grad():
        stem.conv.weight[:, 0, 0, 0] = 1  # reads the upper left pixel under the kernel
    x = torch.arange(1.0, side * side + 1).view(1, 1, side, side).expand(1, 3, side, side)
    read = stem.conv(stem.border(x))[0, 0]
    places = range(first, side - 1, 2)
    wanted = [[0.0 if min(row, col) < 0 else x[0, 0, row, col].item() for col in places] for row in places]
    assert read.tolist() == wanted


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_of_efficientnet_is_known_by_its_names(lite_weights, tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(lite_weights, path)
    found = find_backbone(path)
    assert found.name == "EfficientNet-Lite0"
    # (x - 127) / 128 of pixels from 0 to 255, so that black is -127 / 128.
    assert found.black == pytest.approx([-127 / 128] * 3)
    classifier, localizer = found.make(10), found.make(None)
    for name, tensor in localizer.state_dict().items():
        assert torch.equal(tensor, lite_weights[published_name(name)])
        assert torch.equal(classifier.state_dict()[name], tensor)
    assert classifier.fc.weight.shape == (10, 1280)
    assert localizer.features == 1280


def test_a_file_of_resnet_is_known_by_its_names(torchvision, tmp_path):
    torch.manual_seed(0)
    weights = {k: v for k, v in TinyResNet().state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(weights, tmp_path / "resnet.pth")
    found = find_backbone(tmp_path / "resnet.pth")
    assert (found.name, found.mean, found.std) == (RESNET.name, RESNET.mean, RESNET.std)
    assert torch.equal(found.make(10).conv1.weight, weights["conv1.weight"])
    assert found.make(None).features == 512
    torch.save({**weights, "layer1.2.conv1.weight": torch.zeros(1)}, tmp_path / "resnet.pth")
    with pytest.raises(ValueError, match=r"layer1\.2\.conv1\.weight does not fit ResNet-18"):
        find_backbone(tmp_path / "resnet.pth")


@pytest.mark.skipif(not has_resnet(), reason="torchvision does not import")
def test_weights_of_torchvisions_resnet_are_taken(tmp_path):
    weights = backbones.make_resnet(1000).state_dict()
    torch.save(weights, tmp_path / "resnet.pth")
    made = find_backbone(tmp_path / "resnet.pth").make(None).state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in made.items())


def test_without_a_file_nothing_changes(torchvision, monkeypatch):
    assert default_backbone() is RESNET
    monkeypatch.setattr(backbones, "has_resnet", lambda: False)
    assert default_backbone() is SMALL


def test_resnet_weights_without_torchvision_say_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(backbones, "has_resnet", lambda: False)
    torch.save(TinyResNet().state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(ValueError, match="weights of ResNet-18, for which torchvision must import"):
        find_backbone(tmp_path / "resnet.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_foreign_files_are_refused(lite_weights, tmp_path, suffix):
    both = "ResNet-18 or EfficientNet-Lite0"
    path, save = tmp_path / f"weights{suffix}", save_file if suffix == ".safetensors" else torch.save
    with pytest.raises(ValueError, match=f"{both}.*there is none"):
        find_backbone(path)
    path.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=f"{both}.*cannot be read"):
        find_backbone(path)
    save(make_small(10).state_dict(), path)
    with pytest.raises(ValueError, match=f"{both}.*other names"):
        find_backbone(path)
    # Lite1 has more blocks, Lite2 is wider; a file may also be cut off.
    save({**lite_weights, "_blocks.16._bn1.weight": torch.ones(320)}, path)
    with pytest.raises(ValueError, match=rf"{both}.*_blocks\.16\._bn1\.weight does not fit EfficientNet-Lite0"):
        find_backbone(path)
    save({**lite_weights, "_blocks.0._bn2.bias": torch.ones(24)}, path)
    with pytest.raises(ValueError, match=r"_blocks\.0\._bn2\.bias does not fit"):
        find_backbone(path)
    save({name: tensor for name, tensor in lite_weights.items() if name != "_bn1.bias"}, path)
    with pytest.raises(ValueError, match=r"_bn1\.bias does not fit"):
        find_backbone(path)


def test_what_is_not_tensors_by_name_is_refused(lite_weights, tmp_path):
    for content in (torch.ones(3), {"state_dict": lite_weights}, {}):
        torch.save(content, tmp_path / "weights.pth")
        with pytest.raises(ValueError, match="something else than tensors by name"):
            find_backbone(tmp_path / "weights.pth")


def test_reading_a_file_draws_no_random_numbers(lite_file):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    find_backbone(lite_file)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_experiment_follows_its_backbone(lite_file, tmp_path):
    lab = Lab(tmp_path, backbone=find_backbone(lite_file))
    assert traffic_signs._equipment(lab) == ("EfficientNet-Lite0 with ImageNet weights in place of ResNet-18.",)
    assert traffic_signs._lr(lab) == 1e-4
    layer = traffic_signs._layer(lab, probabilistic=True)
    assert isinstance(layer, SpatialTransformer)
    assert isinstance(layer.localizer, EfficientNetLite0)
    torch.testing.assert_close(layer.fill, torch.full((3,), -127 / 128))
    assert sum(p.numel() for p in layer.mean_head.parameters()) == 1281 * 4
    scratch = Lab(tmp_path)
    assert traffic_signs._equipment(scratch)[-1].startswith("No ImageNet weights")
    assert traffic_signs._lr(scratch) == 1e-3


def test_photos_are_scaled_as_the_backbone_wants_them_and_back_for_the_figure(lite_file, tmp_path, monkeypatch):
    from pstn.data import Box, Photo, Sign, Split

    box = Box(40.0, 40.0, 60.0, 60.0, "stop")
    sign = Sign(Photo("street", Path("street.jpg"), 100, 100, (box,)), box)
    grey = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    monkeypatch.setattr(traffic_signs, "_signs", lambda lab: {"train": [sign], "test": [sign]})
    monkeypatch.setattr(traffic_signs, "make_signs", lambda *a, **k: Split(grey, torch.zeros(1).long(), ("stop",), "x"))
    lab = Lab(tmp_path, backbone=find_backbone(lite_file))
    task = traffic_signs.wide(lab)
    torch.testing.assert_close(task.x, torch.full_like(task.x, (200 - 127) / 128))
    model = nn.Module()
    model.layer = traffic_signs._layer(lab, probabilistic=True).eval()
    probe = traffic_signs.Probe(lab, task, model, None, None)
    drawn = traffic_signs._windows(probe, count=1, side=8)
    assert (torch.tensor(drawn["images"]) == 200).all()


def test_a_training_from_other_weights_is_another_one(lite_weights, lite_file, tmp_path):
    torch.save({**lite_weights, "_bn1.bias": torch.ones(1280)}, tmp_path / "other.pth")

    def told(path: Path) -> str:
        torch.manual_seed(0)
        task = dataclasses.replace(TASK, notes=traffic_signs._equipment(Lab(tmp_path, backbone=find_backbone(path))))
        return identity(traffic_signs.RECIPE, Member(), task, find_backbone(path).make(10))

    assert told(lite_file) == told(lite_file)
    assert told(lite_file) != told(tmp_path / "other.pth")


MINE = """
from torch import nn
from pstn.experiments.backbones import Backbone

def tiny(outputs):
    body = [nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*body, *([] if outputs is None else [nn.Linear(4, outputs)]))
    network.features = 4
    return network

learned = Backbone("Tiny", tiny, mean=(0.5,) * 3, std=(0.5,) * 3, pretrained=True)
picture = lambda outputs: nn.Conv2d(3, outputs or 4, 3)
number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's, called by a new name each time: Python imports a name once."""
    monkeypatch.chdir(tmp_path)
    name = f"mine_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MINE)
    return name


def test_a_network_of_the_users_is_taken(mine, tmp_path):
    scratch, learned = find_backbone(f"{mine}:tiny"), find_backbone(f"{mine}:learned")
    assert (scratch.name, learned.name) == ("tiny", "Tiny")
    lab = Lab(tmp_path, backbone=learned)
    assert traffic_signs._equipment(lab) == ("Tiny with ImageNet weights in place of ResNet-18.",)
    assert traffic_signs._lr(lab) == 1e-4
    assert traffic_signs._layer(lab, probabilistic=True).localizer.features == 4
    notes = traffic_signs._equipment(Lab(tmp_path, backbone=scratch))
    assert notes[0] == "tiny in place of ResNet-18."
    assert notes[1].startswith("No ImageNet weights")
    assert "" not in sys.path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("picture", r"must make networks .* make \(2, 3, 62, 62\) for 3 outputs and \(2, 4, 62, 62\) for None"),
        ("number", "must be a Backbone or a function"),
        ("nothing", "cannot be imported: .*nothing"),
    ],
)
def test_what_is_no_network_of_the_users_is_refused(mine, name, message):
    with pytest.raises(ValueError, match=message):
        find_backbone(f"{mine}:{name}")
    with pytest.raises(ValueError, match="cannot be imported"):
        find_backbone("no_such_module:network")


TASK = traffic_signs.Task(torch.zeros(1, 3, 8, 8), torch.zeros(1), None, "none")


@pytest.mark.skipif(not (REAL and WEIGHTS.is_file()), reason="PSTN_DATA has no weights of EfficientNet-Lite0")
def test_the_published_weights_of_efficientnet_are_taken():
    weights = torch.load(WEIGHTS, weights_only=True)
    found = find_backbone(WEIGHTS)
    assert found.name == EFFICIENTNET.name
    network = found.make(1000).eval()
    network.fc.load_state_dict({name: weights[f"_fc.{name}"] for name in ("weight", "bias")})
    # By efficientnet_lite_pytorch 0.1.0: the largest answers to a ramp of greys.
    ramp = torch.linspace(-1, 1, 224).expand(1, 3, 224, 224)
    with torch.no_grad():
        values, classes = network(ramp)[0].topk(3)
    assert classes.tolist() == [534, 499, 901]
    torch.testing.assert_close(values, torch.tensor([6.08351, 5.54088, 4.9812]), atol=1e-4, rtol=0)
