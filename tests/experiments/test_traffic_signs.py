"""The traffic signs: windows and divisions, and the whole path on photos in MTSD's layout."""

from __future__ import annotations

import copy
import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import pstn
from data_files import mtsd_annotation, mtsd_box, save_image, write_mtsd
from pstn.data import MTSD_CLASSES, Box, Photo, Sign
from pstn.experiments import EXPERIMENTS, RunContext, reproduce, traffic_signs
from pstn.nn import Pretrained
from pstn.report.results import Result, read_results
from small_experiment import quiet

Image = pytest.importorskip("PIL.Image")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PLAIN = replace(traffic_signs.SMALL, mean=(0.0,) * 3, std=(1.0,) * 3)


def signs_of(x, boxes, group=None, test=None):
    number = torch.arange(len(x))
    group, test = (number if group is None else group), (number < 0 if test is None else test)
    return traffic_signs.Signs(x, boxes, torch.zeros_like(number), group, test, ("stop",))


def test_a_box_is_found_again_in_its_crop():
    # The crop runs from 50 to 200 and from 40 to 190, so a box from 100 to 150 is its middle third; at the photo's edge
    # the crop ends, and the box is no longer in the middle.
    for left, wanted in ((100.0, [-1 / 3, -1 / 3, 1 / 3, 1 / 3]), (0.0, [-1.0, -1 / 3, 0.0, 1 / 3])):
        box = Box(left, 90.0, left + 50, 140.0, "stop")
        sign = Sign(Photo("street", Path("street.jpg"), 600, 400, (box,)), box)
        assert traffic_signs.box_in_crop(sign, 50.0) == pytest.approx(wanted)
    others = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    torch.testing.assert_close(traffic_signs.overlap(others[:1].expand(3, 4), others), torch.tensor([1.0, 1 / 7, 0.0]))


def test_the_digits_of_a_quick_run_are_in_their_boxes(tmp_path):
    signs = traffic_signs.load_signs(quiet(tmp_path), traffic_signs.TEN)
    for image, (left, top, right, bottom) in zip(signs.x[:, 0], (signs.boxes + 1) * 32, strict=True):
        rows, columns = torch.nonzero(image).unbind(1)
        assert left <= columns.min() <= columns.max() < right
        assert top <= rows.min() <= rows.max() < bottom


def test_windows_are_where_they_should_be():
    torch.manual_seed(0)
    middle, half = 1.2 * torch.rand(500, 2) - 0.6, 0.05 + 0.3 * torch.rand(500, 2)
    boxes = torch.cat([middle - half, middle + half], dim=1)
    windows = traffic_signs.jittered(boxes)
    times = (windows[:, 2:] - windows[:, :2]) / (2 * half)
    torch.testing.assert_close(times[:, 0], times[:, 1])  # a box keeps its shape
    off = ((windows[:, 2:] + windows[:, :2]) / 2 - middle) / (2 * half)
    for values, low, high in ((times, 1.0, 4.0), (off, -0.4, 0.4)):
        assert values.min() == pytest.approx(low, abs=0.03)
        assert values.max() == pytest.approx(high, abs=0.03)
    windows = traffic_signs.random_window(boxes)
    assert (windows.abs() <= 1 + 1e-6).all()
    assert (windows[:, :2] <= boxes[:, :2] + 1e-6).all()
    assert (windows[:, 2:] >= boxes[:, 2:] - 1e-6).all()
    side = windows[:, 2:] - windows[:, :2]
    torch.testing.assert_close(side[:, 0], side[:, 1])
    assert side.min() == pytest.approx(1.0, abs=0.02)
    corners = pstn.Crop("log").corners(traffic_signs.as_crop(boxes))
    torch.testing.assert_close(corners.amin(1), middle - half.amax(1, keepdim=True))
    torch.testing.assert_close(corners.amax(1), middle + half.amax(1, keepdim=True))


def test_what_is_seen_through_a_window():
    x = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    x[..., 8:16, 16:24] = 255
    boxes = torch.tensor([[0.0, -0.5, 0.5, 0.0]])
    signs, index = signs_of(x, boxes), torch.tensor([0])
    seen = traffic_signs.Views(signs, index, lambda b: traffic_signs.around(1.0, b), 8, PLAIN).batch([0])
    torch.testing.assert_close(seen.x, torch.ones(1, 3, 8, 8))
    torch.testing.assert_close(seen.theta, torch.tensor([[-1.0, -1.0, 1.0, 1.0]]))
    twice = traffic_signs.Views(signs, index, lambda b: traffic_signs.around(2.0, b), 16, PLAIN)
    torch.testing.assert_close(twice.batch([0]).theta, torch.tensor([[-0.5, -0.5, 0.5, 0.5]]))
    ((_, target),) = traffic_signs.Epochs(twice, 1, taught=1.5)
    torch.testing.assert_close(target, torch.tensor([[math.log(0.75), 0.0, 0.0]]))
    # Of the middle half, the box is the upper right quarter.
    half = traffic_signs.Views(signs, index, lambda b: traffic_signs.constant(0.5, b), 16, PLAIN).batch([0])
    torch.testing.assert_close(half.theta, torch.tensor([[0.0, -1.0, 1.0, 0.0]]))
    torch.testing.assert_close(half.x[0, 0, :8, 8:], torch.ones(8, 8))
    assert half.x.sum() == 3 * 64
    whole = traffic_signs.Views(signs, index, None, 16, PLAIN).batch([0])
    assert whole.x.mean() == pytest.approx(64 / 32**2, rel=1e-3)
    # Outside of a crop lies black, as the network takes it.
    scaled = replace(PLAIN, mean=(0.5,) * 3, std=(0.25,) * 3)
    outside = traffic_signs.Views(signs, index, lambda b: b - 3, 8, scaled).batch([0])
    torch.testing.assert_close(outside.x, torch.full((1, 3, 8, 8), -2.0))


def test_photos_that_look_alike_are_found(tmp_path):
    random = np.random.default_rng(0)
    photos = [random.integers(0, 200, (60, 80, 3), dtype=np.uint8) for _ in range(2)]
    shown = [photos[0], photos[0] + 40, photos[0][:, ::-1], photos[1]]
    for number, pixels in enumerate(shown):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    looks = torch.stack([traffic_signs.look_of(tmp_path / f"{number}.png") for number in range(4)])
    first, brighter, mirrored, other = traffic_signs.group_alike(looks).tolist()
    assert first == brighter
    assert len({first, mirrored, other}) == 3
    # A chain: each differs from the next in two bits, the first from the last in six.
    chain = torch.stack([torch.arange(64) < 2 * number for number in range(4)])
    assert traffic_signs.group_alike(chain, most=2).tolist() == [0] * 4
    assert traffic_signs.group_alike(chain, most=1).tolist() == [0, 1, 2, 3]


def test_no_group_of_photos_is_on_two_sides():
    group = torch.randint(40, (300,), generator=torch.Generator().manual_seed(0))
    signs = signs_of(torch.zeros(300, 3, 1, 1), torch.zeros(300, 4), group, group % 5 == 0)
    seen = []
    for fold in (None, *range(traffic_signs.FOLDS)):
        train, held_out = signs.parts(fold)
        assert not set(group[train].tolist()) & set(group[held_out].tolist())
        assert not signs.test[train].any()
        if fold is not None:
            assert not signs.test[held_out].any()
            seen += held_out.tolist()
    assert sorted(seen) == signs.parts()[0].tolist()  # each training sign is held out once


def test_signs_are_the_same_from_a_file(tmp_path):
    x = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    signs = signs_of(x, torch.rand(5, 4), test=torch.arange(5) == 2)
    traffic_signs.save_signs(signs, tmp_path / "crops.npz")
    again = traffic_signs.read_stand_in(tmp_path / "crops.npz")
    assert all(torch.equal(one, other) for one, other in zip(signs[:-1], again[:-1], strict=True))
    assert again.classes == ("stop",)


def test_the_taught_loss_is_the_density_of_the_true_window():
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(
        pstn.Crop("log"), nn.Flatten(), (4, 4), features=48, posterior=pstn.StudentT(alpha=2.0)
    )
    x, target = torch.rand(3, 3, 4, 4), torch.randn(3, 3)
    prediction = pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(48, 2)))(x)
    loc, beta = (t.detach().double() for t in (prediction.posterior.mean, prediction.posterior.beta))
    wanted = stats.t.logpdf(target, 4.0, loc, (beta / 2).sqrt()).sum(-1).mean()
    assert float(traffic_signs.box_loss(prediction, target).detach()) == pytest.approx(-wanted, rel=1e-4)


def test_settings_are_those_with_the_best_mean_on_both_folds(tmp_path):
    context = RunContext(tmp_path)
    assert traffic_signs.choose(context, traffic_signs.TEN) is None

    def tried(model, settings, nlls, data=traffic_signs.TEN):
        for fold, nll in enumerate(nlls):
            cell = Result(traffic_signs.SEARCH_NAME, model, data, fold, str(settings), metrics={"nll": nll})
            cell.write(tmp_path)

    stn = [settings for model, settings in traffic_signs.TRIALS if model == "STN"]
    for settings, nlls in zip(stn, ([0.5, 0.9], [0.6, 0.7], [0.1]), strict=False):  # the last was cut off
        tried("STN", settings, nlls)
    classifiers = [settings for model, settings in traffic_signs.TRIALS if model == traffic_signs.TRUE]
    for settings, nll in zip(classifiers, (0.3, 0.4), strict=True):
        tried(traffic_signs.TRUE, settings, [nll, nll])
    for scale, data in ((0.22, traffic_signs.TEN), (0.27, traffic_signs.ALL)):
        tried(traffic_signs.CONSTANT, replace(traffic_signs.CLASSIFIER, start=scale), [1.0, 1.0], data)
    assert traffic_signs.choose(context, traffic_signs.MTSD) == traffic_signs.AUTHORS  # never what others chose
    for data, scale in ((traffic_signs.TEN, 0.22), (traffic_signs.ALL, 0.27)):
        chosen = traffic_signs.choose(context, data)
        assert chosen["STN"] == stn[1]
        assert chosen["P-STN"] == traffic_signs.DEFAULTS["P-STN"]  # not tried
        assert chosen[traffic_signs.CONSTANT] == replace(classifiers[0], start=scale)
        assert chosen[traffic_signs.AROUND] == replace(classifiers[0], times=1.5)
        assert chosen[traffic_signs.WHOLE] == chosen[traffic_signs.TRUE] == classifiers[0]


def test_the_interval_over_seeds_and_signs_has_the_right_width(monkeypatch):
    # Each number is that of its seed plus that of its group of three signs, so that the variance of the mean is
    # var(seeds) / S + var(groups) / G: either alone would be too narrow.
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bootstrap = runpy.run_path(str(BENCHMARKS / "sign_intervals.py"))["bootstrap"]
    random = np.random.default_rng(0)
    seeds, groups, group = random.normal(0, 0.5, 30), random.normal(0.1, 1.0, 60), np.arange(180) % 60
    mean, low, high, p = bootstrap(seeds[:, None] + groups[group], group)
    wanted = np.sqrt(seeds.var() / 30 + groups.var() / 60)
    assert mean == pytest.approx(seeds.mean() + groups.mean())
    assert (high - low) / (2 * 1.96) == pytest.approx(wanted, rel=0.05)
    assert p == pytest.approx(2 * stats.norm.sf(abs(mean) / wanted), abs=0.05)
    assert bootstrap(np.ones((4, 9)), np.arange(9))[:3] == (1.0, 1.0, 1.0)


def test_the_whole_path_on_photos_in_mtsds_layout(tmp_path, monkeypatch):
    """At the paper's sizes, with a tiny network: both parts are read, trained on as the authors did, and scored."""
    keys = {"train": [f"t{k}" for k in range(4)], "val": [f"v{k}" for k in range(2)]}
    annotations = {}
    for part in keys.values():
        for k, key in enumerate(part):
            label = MTSD_CLASSES[k % 2]
            annotations[key] = mtsd_annotation([mtsd_box(label, 180, 130, 220, 170)], width=400, height=300)
            save_image(tmp_path / "data/mtsd/images" / f"{key}.jpg", 400, 300, k)
    crowd = [mtsd_box(MTSD_CLASSES[0], 100, 100, 120, 120), mtsd_box("other-sign", 150, 100, 170, 120)]
    annotations["crowd"] = mtsd_annotation(crowd)
    save_image(tmp_path / "data/mtsd/images/crowd.jpg", 400, 300, 9)
    write_mtsd(tmp_path / "data/mtsd", annotations, {**keys, "train": [*keys["train"], "crowd"]})
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    trainings = []

    def fit(model, data, **options):
        trainings.append((model, data.size, options))
        return pstn.fit(model, data, **{**options, "epochs": 1})

    monkeypatch.setattr(traffic_signs, "fit", fit)
    network = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * 49, 8))
    tiny = Pretrained("tiny", lambda: copy.deepcopy(network), trained=False)
    network.features = 8
    context = RunContext(tmp_path / "results", backbone=tiny, log=lambda text: None)
    signs = traffic_signs.load_signs(context, traffic_signs.MTSD)
    assert signs.x.shape == (6, 3, 1024, 1024)  # the crowd is not isolated
    assert signs.classes == tuple(sorted(MTSD_CLASSES[:2]))
    assert [len(index) for index in signs.parts()] == [4, 2]
    reproduce([EXPERIMENTS["traffic-signs-mtsd"]], context, cells=["*-0"])
    found = {r.model: r for r in read_results(tmp_path / "results")}
    assert set(found) == set(traffic_signs.DEFAULTS)
    assert all(len(r.figure["hits"]) == 2 for r in found.values())
    assert all(r.metrics["nll"] == pytest.approx(np.mean(r.figure["losses"]), abs=1e-3) for r in found.values())
    assert not any("Not MTSD" in note for r in found.values() for note in r.departures)
    assert len(found["P-STN"].figure["images"][0]) < 3e5  # not at 1024 pixels
    localizers = {type(model): (model, options) for model, _, options in trainings if hasattr(model, "layer")}
    for kind, start in ((pstn.STN, 0.5), (pstn.PSTN, 1.0)):
        settings, (model, options) = found[kind.__name__.replace("PSTN", "P-STN")].settings, localizers[kind]
        assert (settings["lr"], settings["epochs"], settings["start"]) == (1e-5, 60, start)
        assert options["lr_schedule"] is traffic_signs.by_thirds
        if kind is pstn.STN:
            assert isinstance(model.layer.transform, pstn.Similarity)
            assert model.layer.localizer_size == (224, 224)
    assert (settings["kl_weight"], settings["alpha"]) == (1e-7, 1.0)
    assert {size for _, size, _ in trainings} == {4}  # batches of 10, of four signs
