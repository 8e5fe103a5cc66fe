"""The declarations against the settings of the authors' runs, the committed results, and the paper's tables."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pstn
from pstn.experiments import EXPERIMENTS, Experiment, RunContext, Training, calibration, mnist_subsets, prior
from pstn.experiments import placed_fashion as placed
from pstn.experiments import rotated_mnist as rotating
from pstn.experiments import time_series as series
from pstn.experiments.runner import recipe_settings, transformer_model
from pstn.nn import Pretrained
from pstn.report.results import read_results
from pstn.report.statistics import best
from small_experiment import SMALL, quiet

RESULTS = Path(__file__).parents[2] / "results"
SIZES = {"CNN": 28_086, "STN": 28_726, "P-STN": 26_662}
STUDIES = [held for held in EXPERIMENTS.values() if not held.extra or held.name == "ablations"]
CONTEXT = RunContext(RESULTS, backbone=Pretrained("pretrained", nn.Identity))


def group(experiment, name) -> Training:
    (found,) = [g for g in EXPERIMENTS[experiment].groups if g.name == name]
    return found


def count(module):
    return sum(p.numel() for p in module.parameters())


def cells(experiment):
    """The cells that `pstn reproduce` runs."""
    return [c for g in EXPERIMENTS[experiment].groups for c in g.cells(CONTEXT)]


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_those_of_the_committed_results(name):
    """A changed default of the library changes no published number."""
    held = {result.name: result.settings for result in read_results(RESULTS, name)}
    for each in (g for g in EXPERIMENTS[name].groups if isinstance(g, Training)):
        for cell in (cell for cell in each.cells(CONTEXT) if cell.name in held):
            settings = held[cell.name]
            recipe = {key: recipe_settings(each.recipe)[key] for key in settings["recipe"]}
            assert json.loads(json.dumps(recipe)) == settings["recipe"]
            weight = each.variants.get(cell.variant, next(iter(each.variants.values())))
            lr = each.lr(CONTEXT) if callable(each.lr) else each.lr
            names = ("lr", "localizer_factor", "weight_decay", "kl_weight")
            assert [lr, each.localizer_factor, each.weight_decay, weight] == [settings[key] for key in names]


@pytest.mark.parametrize("model", SIZES)
def test_mnist_subsets(model):
    made = group("mnist-subsets", f"mnist100-{model.lower()}").make(CONTEXT, 0)
    assert count(made) == SIZES[model]
    if model != "CNN":  # the authors' STN starts at 0.5
        assert made.layer.mean_head.last.bias.tolist() == [0.0, 1.0, 0.0, 0.0]
    if model == "STN":
        other = group("mnist-stn-start", "mnist100-stn").make(CONTEXT, 0)
        assert other.layer.mean_head.last.bias.tolist() == [0.0, 0.5, 0.0, 0.0]
        assert count(other) == SIZES[model]


def test_table_1_takes_the_authors_folds_where_they_are_found(tmp_path, monkeypatch):
    y = torch.arange(10).repeat(10)
    images = pstn.data.Split(y.view(-1, 1, 1, 1).float(), y, tuple("0123456789"), name="all")
    asked = []

    def data(self, name, **settings):
        asked.append(settings.get("validation"))
        return images, images, images.take(range(7))

    monkeypatch.setattr(RunContext, "data", data)
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    read = group("mnist-subsets", "mnist30-cnn").task
    own = read(RunContext(tmp_path))
    assert (own.name, len(own.train(1)), asked) == ("all", 30, [None])
    assert own.notes == mnist_subsets.OWN_FOLDS.groups[0].departures  # the results say that the draw is our own
    second = group("mnist30-seeds", "mnist30-fold-2-cnn").task
    assert second(RunContext(tmp_path)).train(0).tolist() == own.train(2).tolist()
    (tmp_path / "mnist").mkdir()
    folds = {f"MNIST30_fold_{fold}": np.arange(fold, fold + 30) for fold in range(5)}
    np.savez(tmp_path / "mnist" / "authors_folds.npz", **folds)
    authors = read(RunContext(tmp_path))
    assert (authors.name, authors.notes, len(authors.test)) == ("all, the authors' folds", (), 7)
    assert authors.train(3).tolist() == list(range(3, 33))
    assert [second(RunContext(tmp_path)).train(seed).tolist() for seed in (0, 3)] == [list(range(2, 32))] * 2
    assert asked[-1] == 0  # they count in all 60,000 training images
    assert read(RunContext(tmp_path, quick=True)).notes


def test_the_prior_is_all_that_changes_in_its_sweep():
    table_1 = mnist_subsets.make_pstn()
    for each in EXPERIMENTS["prior"].groups:
        made = each.make(CONTEXT, 0)
        assert {n: p.shape for n, p in made.named_parameters()} == {n: p.shape for n, p in table_1.named_parameters()}
        assert made.layer.variance_head.last.bias.tolist() == [-5.0] * 4
        assert f"beta0={made.layer.posterior.prior.beta0:g}" == each.model
        assert prior.FIXED in each.variants.values()


def test_placed_fashion(tmp_path):
    for probabilistic in (False, True):
        assert count(rotating.make_layer(probabilistic)) == pytest.approx(72_000, rel=0.02)
        layer = placed.make_layer(probabilistic=probabilistic)
        assert count(layer) == pytest.approx(193_000, rel=0.01)
        assert layer.mean_head.last.bias.tolist() == pytest.approx([0.0, 0.7, 0.0, 0.0])
        assert layer.fill == 0
        # A black canvas has no effect on the localizer, nor on the hidden layers of its heads.
        assert layer.localizer(torch.zeros(1, 1, 96, 96)).abs().max() == 0
        heads = [layer.mean_head, *([layer.variance_head] if probabilistic else [])]
        assert all(head.first.bias.abs().max() == 0 for head in heads)
    context = quiet(tmp_path)
    task = placed.placed(context)
    assert (placed.upright(context).x.min(), task.x.min()) == (0, 0)  # nothing is normalised
    # The theta of the paper's text: no rotation, half of the canvas, some place on it.
    batch = task.test.batch(range(20))
    wanted = pstn.Similarity().inverse(batch.theta)
    assert wanted[:, 0].abs().max() == 0
    assert wanted[:, 1].tolist() == pytest.approx([0.5] * 20)
    assert batch.x.shape == (20, 1, 96, 96)


def test_placed_fashion_as_the_authors_ran_it(tmp_path):
    def group(model):
        return next(g for g in placed.PLACED_FASHION.groups if (g.model, *g.variants) == (model, placed.AUTHORS))

    context = quiet(tmp_path)
    for model, start in (("STN", 0.5), ("P-STN", 1.0)):
        layer = group(model).make(context, 0).layer
        assert layer.mean_head.last.bias.tolist() == [0.0, start, 0.0, 0.0]
        assert layer.localizer(torch.zeros(1, 1, 96, 96)).abs().max() > 0  # biases start at random
        assert layer.fill == 0  # although black is not 0 after normalising
    assert layer.variance_head.last.bias.tolist() == [-20.0] * 4
    assert {group(model).weight_decay for model in ("CNN", "STN", "P-STN")} == {1e-5}
    task, recipe = group("P-STN").task(context), group("P-STN").recipe
    black = -0.1307 / 0.3081
    assert float(task.x.min()) == pytest.approx(black)
    assert float(group("CNN").task(context).x.min()) == 0  # the classifier learned from images that are not normalised
    batch = task.test.batch(range(20))
    assert pstn.Similarity().inverse(batch.theta)[:, 1].tolist() == pytest.approx([28 / 96] * 20)
    assert recipe.augment(task.x[:2], torch.rand(2, 2)).amin() == pytest.approx(black)
    assert float(batch.x.min()) == pytest.approx(black)
    assert {(g.recipe.epochs, g.recipe.lr_step) for g in placed.LONG.groups} == {(600, 200)}


def test_time_series():
    def layers(module, kind):
        return sum(isinstance(part, kind) for part in module.modules())

    for model, convolutions in (("CNN", 5), ("STN", 8), ("P-STN", 8)):
        made = series.make_model(model, 14, 131)
        assert (layers(made, nn.Conv1d), layers(made, nn.ZeroPad1d)) == (convolutions, 0)
        assert count(made) == pytest.approx(1.2e6, rel=0.01)
    # The shipped set has 24 values: one fewer than five kernels without padding need.
    assert [layers(series.make_model("CNN", 2, length), nn.ZeroPad1d) for length in (24, 25)] == [5, 0]
    assert (made.layer.transform.dim, made.layer.padding_mode) == (9, "border")
    assert made.layer.mean_head.last.bias.tolist() == pytest.approx([1e-5] * 9)


@pytest.mark.parametrize("search", [False, True])
def test_a_set_without_its_test_part_is_split_and_noted(tmp_path, monkeypatch, search):
    train, validation, test = pstn.data.load("ItalyPowerDemand", validation=0.25)
    parts = {"Wafer": (train, validation, test), "UWaveGestureLibraryX": (train, validation, None)}
    monkeypatch.setattr(RunContext, "data", lambda self, name, **settings: parts[name])
    whole, without = (series.series(name, search=search)(RunContext(tmp_path)) for name in parts)
    assert (whole.notes, without.notes) == ((), () if search else (series.NO_TEST,))
    assert len(whole.test) == len(validation if search else test)
    assert len(without.test) == pytest.approx(len(train) / 4 if search else len(validation), abs=1)
    assert len(without.x) + (len(without.test) if search else 0) == len(train)


@pytest.mark.parametrize("widths", [(784, 10), (784, 128, 10), (784, 256, 128, 10), (784, 256, 256, 128, 10),
                                    (784, 256, 256, 128, 128, 10)])  # fmt: skip
def test_classifiers_of_the_failure_mode_have_the_authors_widths_and_train_with_their_localizers(widths):
    kinds = ("upright-nn", "rotated-nn", "rotated-stn", "rotated-p-stn")
    made = [group("failure-mode", f"{kind}-depth={len(widths) - 1}").make(CONTEXT, 0) for kind in kinds]
    assert all(p.requires_grad for model in made for p in model.parameters())
    assert (made[-1].train_samples, made[-1].layer.variance_head.last.bias.tolist()) == (10, [-3.0])
    for stages in ([*made[0]], [*made[1]], [*made[2].classifier], [*made[3].classifier]):
        linear = [m for m in stages if isinstance(m, nn.Linear)]
        assert (linear[0].in_features, *(m.out_features for m in linear)) == widths
        assert [m.p for m in stages if isinstance(m, nn.Dropout)] == [0.5] * (len(widths) - 2)


@pytest.mark.parametrize("dropout", [True, False])
def test_a_frozen_classifier_drops_units_in_training_unless_it_is_told_not_to(tmp_path, dropout):
    model = rotating.make_model(probabilistic=True, dropout=dropout)(quiet(tmp_path), 0).train()
    assert not any(p.requires_grad for p in model.classifier.parameters())
    assert [m.training for m in model.classifier.modules() if type(m).__name__ == "Dropout"] == [dropout]


def test_every_experiment_says_what_it_is_and_what_it_needs():
    for name, held in EXPERIMENTS.items():
        names = [each.name for each in held.groups]
        assert (held.name, len(set(names))) == (name, len(names))
        assert all((held.title, held.summary, held.needs)), name
        assert set(held.quick or ()) <= set(names), name
    for wrong in ({"seeds": 3}, {"name": "other"}):
        with pytest.raises(ValueError, match="groups"):
            Experiment(**{"name": "small", "title": "small", "groups": (SMALL,)} | wrong)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_what_is_reported_is_what_is_run(study):
    run = {(c.model, c.data, c.variant) for c in cells(study.name)}
    assert set(study.cells) <= run
    assert {variant.split("-sobol")[0] for _, _, variant in run - set(study.cells)} <= {"test-samples"}
    for claim in study.claims:
        if claim.better.paper and claim.worse.paper:
            difference = claim.better.paper.summary.mean - claim.worse.paper.summary.mean
            assert (difference > 0) == claim.better.metric.higher_is_better, claim
    if study.search:
        searched = cells(study.search.experiment)
        assert {c.data for c in searched} == set(study.search.published)
        grid = [0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1]  # the authors'
        assert list(study.search.values) == grid
        for each in EXPERIMENTS[study.search.experiment].groups:
            assert dict(each.variants) == {f"w={value:g}": value for value in grid}


@pytest.mark.parametrize("table", [mnist_subsets.PUBLISHED, series.PUBLISHED, calibration.PUBLISHED])
def test_our_rule_for_bold_gives_the_papers_bold(table):
    for data in {line.data for line in table.values()}:
        row = [line for line in table.values() if line.data == data]
        bold = {at for at, line in enumerate(row) if line.paper.bold}
        higher = row[0].metric.higher_is_better
        assert best([line.paper.summary for line in row], higher_is_better=higher) == bold, data


def test_the_papers_mean_row_is_the_mean_of_its_rows():
    for model, line in series.MEAN.items():
        rows = [line.paper.summary.mean for (of, _), line in series.PUBLISHED.items() if of == model]
        assert line.paper.summary.mean == pytest.approx(statistics.fmean(rows), abs=0.01)


@pytest.mark.parametrize(
    ("make", "start", "samples"),
    [
        (lambda: mnist_subsets.make_pstn(), -5.0, 1), (lambda: series.make_model("P-STN", 2, 60), -5.0, 10),
        (lambda: transformer_model(rotating.make_layer(True), nn.Flatten()), -3.0, 10),
        (lambda: transformer_model(placed.make_layer(probabilistic=True), nn.Flatten()), -5.0, 10),
    ],
)  # fmt: skip
def test_no_default_changes_the_posteriors_of_the_paper(make, start, samples):
    model = make()
    assert (model.layer.posterior.alpha, model.train_samples) == (1.0, samples)
    assert model.layer.variance_head.last.bias.tolist() == pytest.approx([start] * model.layer.transform.dim)
