"""Digits that may be turned or not: how they are made, what is tried, and what is measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

import pstn
from pstn.experiments import per_input, reproduce
from pstn.experiments.per_input import CHOSEN, FULL, MODELS, SEARCH, SIZES, TRIALS, Settings
from pstn.experiments.runner import RunContext
from pstn.report.results import Result, read_results
from pstn.training.population.stack import require_one_shape
from small_experiment import quiet

RESULTS = Path(__file__).parents[2] / "results"


def bar_images(count):
    """White bars that lie flat: their orientation tells by how much they were turned, up to half a turn."""
    x = torch.zeros(count, 1, 29, 29)
    x[:, :, 13:16, 4:25] = 1
    return x


def orientation(x):
    """The angle of the principal axis of each image, in (-pi/2, pi/2]."""
    at = torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    mass = x[:, 0]
    xx = (mass * at[None, None, :] ** 2).sum((1, 2))
    yy = (mass * at[None, :, None] ** 2).sum((1, 2))
    xy = (mass * at[None, None, :] * at[None, :, None]).sum((1, 2))
    return torch.atan2(2 * xy, xx - yy) / 2


def test_six_and_nine_are_turned_by_at_most_thirty_degrees_and_the_others_by_any_angle():
    digits = pstn.data.load("digits", normalise=False).test
    y = torch.arange(400) % 10
    split = replace(digits, x=bar_images(len(y)), y=y)
    turned = orientation(per_input.turn(split, 0).x).abs()
    narrow = (y == 6) | (y == 9)
    assert float(turned[narrow].max()) < math.pi / 6 + 0.03
    assert float(turned[narrow].max()) > math.pi / 6 - 0.1
    # Of an angle that is uniform on the circle, two thirds are more than 30 degrees from lying flat.
    share = float((turned[~narrow] > math.pi / 6).float().mean())
    assert share == pytest.approx(2 / 3, abs=0.1)


def test_every_model_has_as_many_trials(tmp_path):
    cells = [cell for group in SEARCH.groups for cell in group.cells(RunContext(tmp_path))]
    assert len({cell.name for cell in cells}) == len(cells)
    for model in MODELS:
        assert len(set(per_input.trials_of(model))) == TRIALS
        for data in SIZES:
            assert sum((cell.model, cell.data) == (model, data) for cell in cells) == TRIALS
    assert {s.spread for s in per_input.trials_of("full circle")} == {FULL}


@pytest.mark.parametrize("group", SEARCH.groups, ids=lambda group: group.name)
def test_models_of_a_group_train_as_one_stack(group, tmp_path):
    trials = {(cell.model, cell.variant) for cell in group.cells(RunContext(tmp_path))}
    made = [
        per_input.make_network(model, per_input.trials_of(model)[int(variant.removeprefix("trial="))])
        for model, variant in trials
    ]
    require_one_shape(made)


@pytest.mark.parametrize("modes", [1, 4])
def test_the_posterior_starts_as_the_settings_say(modes):
    model = per_input.make_network("P-STN", Settings(modes=modes, spread=0.3))
    q = model.layer.localize(torch.zeros(1, 1, 28, 28))
    components = q.components if modes > 1 else q
    torch.testing.assert_close(components.scale, torch.full_like(components.scale, 0.3))
    if modes > 1:
        torch.testing.assert_close(q.log_weights[0], torch.tensor([per_input.FIRST, 0, 0, 0]).log_softmax(-1))
        assert float(q.mode.detach()) == pytest.approx(0, abs=1e-6)


def test_the_full_circle_is_uniform():
    model = per_input.make_network("full circle", Settings(spread=FULL))
    theta = model.layer(torch.zeros(1, 1, 28, 28), samples=2000, generator=torch.Generator().manual_seed(0)).theta
    assert stats.kstest(theta.flatten().numpy(), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 0.01
    assert not any(p.requires_grad for p in model.layer.parameters())


def test_validation_chooses_the_lowest_nll():
    found = [
        Result(SEARCH.name, "P-STN", "100 images", 10, f"trial={trial:02}", metrics={"valid_nll": v} if v else {})
        for trial, v in enumerate([0.5, None, 0.3, 0.4])
    ]
    chosen = per_input.choose_settings(found)
    assert Settings(**chosen["P-STN"]["100 images"]) == per_input.trials_of("P-STN")[2]


def test_a_quick_search_scores_6_and_9_apart(tmp_path):
    reproduce([SEARCH], quiet(tmp_path), cells=["*p-stn-trial=0[06]*"])
    found = read_results(tmp_path / "quick", SEARCH.name)
    assert len(found) == 4
    for result in found:
        assert {"valid_nll", "valid_accuracy_narrow", "valid_width_others"} <= set(result.metrics)
        assert 0 < result.metrics["valid_width_narrow"] <= 360


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
def test_the_committed_choice_is_that_of_the_committed_search():
    assert json.loads(CHOSEN.read_text()) == per_input.choose_settings(read_results(RESULTS, SEARCH.name))
