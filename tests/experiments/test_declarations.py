"""The declarations against the settings of the authors' runs, number by number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pstn
from pstn.experiments import EXPERIMENTS, Lab
from pstn.experiments import placed_fashion as placed
from pstn.experiments import rotated_mnist as rotating
from pstn.experiments import time_series as series
from pstn.experiments.failure_mode import make_classifier
from pstn.experiments.runner import Training

SIZES = {"CNN": 28_086, "STN": 28_726, "P-STN": 26_662}


def group(experiment, name) -> Training:
    (found,) = [g for g in EXPERIMENTS[experiment].groups if g.name == name]
    return found


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("size", [30, 100, 1000, 3000, 10_000])
@pytest.mark.parametrize("model", SIZES)
def test_mnist_subsets(size, model, tmp_path):
    cell = group("mnist-subsets", f"mnist{size}-{model.lower()}")
    assert count(cell.make(Lab(tmp_path), 0)) == SIZES[model]
    recipe = cell.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.lr_step, recipe.precision) == (600, 8, None, "float32")
    assert (cell.lr, cell.localizer_factor, cell.weight_decay) == (1e-4 if model == "STN" else 1e-3, 0.1, 0.01)
    weights = {30: 1e-3, 100: 3e-4, 1000: 1e-4, 3000: 3e-5, 10_000: 1e-5}
    assert list(cell.variants.values()) == [weights[size] if model == "P-STN" else 0.0]
    assert len(cell.cells(Lab(tmp_path))) == 5
    told = " ".join(cell.departures)
    assert "draw of our own" in told
    if model == "P-STN":
        assert cell.make(Lab(tmp_path), 0).layer.variance_head.last.bias.tolist() == [-5.0] * 4
        assert "One precision per parameter" in told
    if model != "CNN":
        # The authors' STN starts at 0.5, and their matrix scales half of its terms.
        assert cell.make(Lab(tmp_path), 0).layer.mean_head.last.bias.tolist() == [0.0, 1.0, 0.0, 0.0]
        assert ("The STN starts at the identity" in told) == (model == "STN")
        assert "Eq. 1" in told
        assert "is black" in told


def test_the_search_has_the_authors_grid():
    grid = [0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1]
    for name in ("mnist-subsets-search", "time-series-search"):
        for each in EXPERIMENTS[name].groups:
            assert list(each.variants.values()) == grid
            assert list(each.variants)[1] == "w=1e-05"


def test_calibration_has_two_weights_of_one_training(tmp_path):
    names = [cell.variant for cell in group("calibration", "mnist100-p-stn-w=0.0003").cells(Lab(tmp_path))]
    assert names == ["w=0.0003"] * 5 + ["w=0.0001"] * 5


def test_rotated_mnist():
    assert count(rotating.make_layer(probabilistic=False)) == pytest.approx(72_000, rel=0.02)
    assert count(rotating.make_layer(probabilistic=True)) == pytest.approx(72_000, rel=0.02)
    for name in ("rotated-stn", "rotated-p-stn"):
        cell = group("rotated-mnist", name)
        assert (cell.lr, cell.localizer_factor, cell.weight_decay) == (1e-3, 1.0, 1e-5)
        assert (cell.recipe.batch_size, cell.recipe.lr_step, cell.recipe.lr_gamma, cell.recipe.samples) == (
            64, 10, 0.1, 10,
        )  # fmt: skip
        check_spent_schedule(cell)
    check_spent_schedule(rotating.CLASSIFIER)
    assert rotating.make_layer(probabilistic=True).variance_head.last.bias.tolist() == [-3.0]
    assert list(rotating.PSTN_GROUP.variants.values()) == [3e-5]
    assert rotating.CLASSIFIER.recipe.augment is None


def check_spent_schedule(cell, epochs=40):
    """The authors run 100 epochs; after 40 of them the learning rate is a ten-thousandth."""
    assert (cell.recipe.epochs, cell.recipe.lr_step, cell.recipe.lr_gamma) == (epochs, 10, 0.1)
    assert cell.recipe.lr_factor(epochs) == pytest.approx(0.1 ** (epochs // 10))
    assert any(f"{epochs} epochs instead of 100" in sentence for sentence in cell.departures)


def test_what_is_known_of_no_run_of_the_authors_is_declared():
    for cell in EXPERIMENTS["failure-mode"].groups:
        assert (cell.lr, cell.weight_decay) == (1e-3, 1e-5)
        assert any("weight decay (1e-5)" in sentence for sentence in cell.departures)
    for cell in EXPERIMENTS["placed-fashion"].groups:
        assert cell.weight_decay == (1e-3 if cell is placed.CLASSIFIER else 1e-5)
        assert any("neither is known" in sentence for sentence in cell.departures)
    for cell in EXPERIMENTS["traffic-signs"].groups:
        assert cell.weight_decay == 0
        assert any("There is no weight decay" in sentence for sentence in cell.departures)


def test_placed_fashion(tmp_path):
    for probabilistic in (False, True):
        layer = placed.make_layer(probabilistic=probabilistic)
        assert count(layer) == pytest.approx(193_000, rel=0.01)
        assert layer.mean_head.last.bias.tolist() == pytest.approx([0.0, 0.7, 0.0, 0.0])
        assert layer.fill == 0
        # A black canvas says nothing to the localizer, and nothing to the hidden layers of its heads.
        assert layer.localizer(torch.zeros(1, 1, 96, 96)).abs().max() == 0
        heads = [layer.mean_head, *([layer.variance_head] if probabilistic else [])]
        assert all(head.first.bias.abs().max() == 0 for head in heads)
    recipe = placed.PSTN_GROUP.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.lr_step, recipe.samples) == (60, 64, 20, 10)
    assert any("a tenth of the authors'" in sentence for sentence in placed.PSTN_GROUP.departures)
    lab = Lab(tmp_path, quick=True)
    task = placed.placed(lab)
    assert (placed.upright(lab).x.min(), task.x.min(), recipe.augment.fill) == (0, 0, 0)  # nothing is normalised
    # The theta of the paper's text: no rotation, half of the canvas, some place on it.
    wanted = pstn.Similarity().inverse(task.test.batch(range(20)).theta)
    assert wanted[:, 0].abs().max() == 0
    assert wanted[:, 1].tolist() == pytest.approx([0.5] * 20)
    assert task.test.batch(range(2)).x.shape == (2, 1, 96, 96)
    assert (placed.PSTN_GROUP.lr, placed.PSTN_GROUP.localizer_factor) == (1e-3, 0.1)
    assert list(placed.PSTN_GROUP.variants.values()) == [3e-5]
    assert (placed.CLASSIFIER.recipe.epochs, placed.CLASSIFIER.recipe.lr_step) == (100, 50)
    assert placed.make_layer(probabilistic=True).variance_head.last.bias.tolist() == [-5.0] * 4
    assert any("softplus(-5)" in sentence for sentence in placed.PSTN_GROUP.departures)
    for group in (placed.STN_GROUP, placed.PSTN_GROUP):
        assert any("start at 0.7 of the canvas" in sentence for sentence in group.departures)


def layers(module: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(part, kind) for part in module.modules())


def test_time_series():
    for module, convolutions in (
        (series.make_cnn(14, 131), 5),
        (series.make_stn(14, 131), 8),
        (series.make_pstn(14, 131), 8),
    ):
        assert layers(module, nn.Conv1d) == convolutions
        assert layers(module, nn.ZeroPad1d) == 0
        assert count(module) == pytest.approx(1.2e6, rel=0.01)
    assert series.make_pstn(14, 131).layer.padding_mode == "border"
    # The shipped set has 24 values: one fewer than five kernels without padding need.
    assert [layers(series.make_cnn(2, length), nn.ZeroPad1d) for length in (24, 25)] == [5, 0]
    weights = {
        "faceall": 1e-4, "wafer": 1e-5, "uwavegesturelibraryx": 1e-3, "twopatterns": 0.0,
        "phalangesoutlinescorrect": 1e-4,
    }  # fmt: skip
    for name, weight in weights.items():
        cell = group("time-series", f"{name}-p-stn")
        assert list(cell.variants.values()) == [weight]
        assert (cell.recipe.epochs, cell.recipe.batch_size, cell.recipe.samples) == (200, 16, 10)
        assert (cell.lr, cell.localizer_factor, cell.weight_decay, cell.recipe.lr_step) == (1e-3, 0.1, 0.0, None)
    layer = series.make_pstn(14, 131).get_submodule("layer")
    assert layer.transform.dim == 9
    assert layer.mean_head.last.bias.tolist() == pytest.approx([1e-5] * 9)
    assert layer.variance_head.last.bias.tolist() == [-5.0] * 9


def test_failure_mode_has_five_depths_of_four_kinds(tmp_path):
    names = {(g.model, g.data, next(iter(g.variants))) for g in EXPERIMENTS["failure-mode"].groups}
    assert len(names) == 20
    model = group("failure-mode", "rotated-p-stn-depth=3").make(Lab(tmp_path), 0)
    assert all(p.requires_grad for p in model.parameters())
    assert model.train_samples == 10
    assert model.layer.variance_head.last.bias.tolist() == [-3.0]
    for cell in EXPERIMENTS["failure-mode"].groups:
        check_spent_schedule(cell, 30)
        assert (cell.recipe.batch_size, cell.localizer_factor) == (64, 0.1)
        assert cell.recipe.samples == (None if cell.data == "upright" else 10)
        assert list(cell.variants.values()) == [3e-5 if cell.model == "P-STN" else 0.0]


@pytest.mark.parametrize(
    ("depth", "widths"),
    [(1, [784, 10]), (2, [784, 128, 10]), (3, [784, 256, 128, 10]), (4, [784, 256, 256, 128, 10]),
     (5, [784, 256, 256, 128, 128, 10])],
)  # fmt: skip
def test_classifiers_of_the_failure_mode_have_the_authors_widths(depth, widths):
    linear = [m for m in make_classifier(depth) if isinstance(m, nn.Linear)]
    assert [linear[0].in_features, *(m.out_features for m in linear)] == widths
    assert [m.p for m in make_classifier(depth) if isinstance(m, nn.Dropout)] == [0.5] * (depth - 1)


def test_a_set_without_its_test_part_is_named_as_such_and_one_with_it_is_not(tmp_path):
    train, validation, test = pstn.data.load("ItalyPowerDemand", validation=0.25)

    class Shelf(Lab):
        def data(self, name, **settings):
            return (train, validation, test if name == "Wafer" else None)

    whole, without = (series.series(name)(Shelf(tmp_path)) for name in ("Wafer", "UWaveGestureLibraryX"))
    assert whole.notes == ()
    assert len(whole.test) == len(test)
    assert without.notes == (series.NO_TEST,)
    assert len(without.test) == len(validation)
    for cell in EXPERIMENTS["time-series"].groups:
        assert series.NO_TEST not in cell.departures


def test_a_frozen_classifier_drops_units_in_training_unless_it_is_told_not_to(tmp_path):
    lab = Lab(tmp_path, quick=True, say=lambda text: None)
    active = rotating.make_pstn(lab, 0).train()
    silent = rotating.make_pstn(lab, 0, dropout=False).train()
    for model, expected in ((active, True), (silent, False)):
        assert not any(p.requires_grad for p in model.classifier.parameters())
        dropouts = [m.training for m in model.classifier.modules() if type(m).__name__ == "Dropout"]
        assert dropouts == [expected]


def test_every_experiment_says_what_it_is_and_what_it_needs():
    for name, held in EXPERIMENTS.items():
        assert held.name == name
        assert held.title
        assert held.needs
