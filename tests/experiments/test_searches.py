"""The comparisons with a search of their own, on little data and per input: what is tried, trained and chosen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

import pstn
from pstn.experiments import little_data, per_input, reproduce
from pstn.experiments.little_data import DATA, TRIALS, Settings, choose_settings, make_network, trials_of
from pstn.experiments.runner import RunContext
from pstn.report.results import Result, read_results
from pstn.training.population.stack import require_one_shape
from small_experiment import quiet

RESULTS = Path(__file__).parents[2] / "results"
BOTH = (little_data, per_input)


def classifier_of(model):
    return getattr(model, "classifier", model)


def scale_at_start(model):
    """The scale of the posterior for a blank image."""
    posterior = model.layer.localize(torch.zeros(1, 1, 28, 28))
    return (posterior.beta / posterior.alpha).sqrt()[0].tolist()


def data_of(module, model):
    if module is per_input:
        return per_input.SIZES
    return (*DATA, *little_data.SERIES) if model == "P-STN" else DATA


@pytest.mark.parametrize("module", BOTH)
def test_every_model_has_as_many_trials_on_every_data_set(tmp_path, module):
    cells = [cell for group in module.SEARCH.groups for cell in group.cells(RunContext(tmp_path))]
    assert len({cell.name for cell in cells}) == len(cells)
    for model in module.MODELS:
        assert len(set(module.trials_of(model))) == module.TRIALS <= 24
        for data in data_of(module, model):
            assert sum((cell.model, cell.data) == (model, data) for cell in cells) == module.TRIALS


def test_settings_follow_the_number_of_examples():
    settings = Settings(kl_weight=3e-4, weight_decay=0.01)
    assert settings.at(100) == settings
    assert settings.at(1600).kl_weight == pytest.approx(3e-4 / 8)
    assert settings.at(1600).weight_decay == pytest.approx(0.01 / 4)


def test_all_models_start_from_the_same_classifier():
    states = []
    for model in little_data.MODELS:
        torch.manual_seed(3)
        states.append(classifier_of(make_network(model, Settings())).state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


@pytest.mark.parametrize("model", ["fixed augmentation", "global posterior", "P-STN"])
@pytest.mark.parametrize(("alpha", "shrink"), [(1.0, 0.0), (2.0, 0.0), (2.0, 0.1)])
def test_the_spread_is_the_posteriors_scale_at_the_start(model, alpha, shrink):
    shrink *= model == "P-STN"
    made = make_network(model, Settings(alpha=alpha, shrink=shrink, spread=(0.2, 0.1, 0.05)))
    assert scale_at_start(made) == pytest.approx([0.2, 0.1, 0.05, 0.05], rel=1e-3)
    assert all(p.requires_grad != (model == "fixed augmentation") for p in made.layer.parameters())


STACKS = [(module, group) for module in BOTH for group in module.SEARCH.groups if not group.data]


@pytest.mark.parametrize(("module", "group"), STACKS, ids=lambda part: getattr(part, "name", None))
def test_models_of_a_group_train_as_one_stack(module, group, tmp_path):
    trials = {(cell.model, cell.variant) for cell in group.cells(RunContext(tmp_path))}
    made = [module.make_network(m, module.trials_of(m)[int(v.removeprefix("trial="))]) for m, v in trials]
    require_one_shape(made)


def made_up_search(**nll):
    """Results of all trials of the P-STN: the NLL of the first ones by data set, 3.0 for all others."""
    return [
        Result("little-data-search", "P-STN", data, 10, f"trial={trial:02}", metrics={"valid_nll": v} if v else {})
        for data, values in nll.items()
        for trial, v in enumerate([*values, *[3.0] * (TRIALS - len(values))])
    ]


def test_validation_chooses_the_lowest_nll():
    """Trial 1 is best on one data set, trial 2 over all; trial 3 is best on the other and diverged on the first."""
    found = made_up_search(MNIST30=[0.5, 0.1, 0.3, None], FashionMNIST30=[0.5, 2.0, 0.3, 0.01])
    chosen, trials = choose_settings(found), trials_of("P-STN")
    assert Settings(**chosen["tuned"]["P-STN"]["MNIST30"]) == trials[1]
    assert Settings(**chosen["tuned"]["P-STN"]["FashionMNIST30"]) == trials[3]
    assert Settings(**chosen["defaults"]["P-STN"]) == trials[2]


def test_a_posterior_that_is_held_close_to_one_for_all_is_no_default():
    shared = next(at for at, settings in enumerate(trials_of("P-STN")) if settings.shrink)
    chosen = choose_settings(made_up_search(MNIST30=[0.5] * shared + [0.1]))
    assert chosen["tuned"]["P-STN"]["MNIST30"]["shrink"] > 0 == chosen["defaults"]["P-STN"]["shrink"]


def test_data_where_a_trial_was_not_run_do_not_count_for_the_defaults():
    found = made_up_search(MNIST30=[0.5, 0.1], MNIST1000=[0.01, 2.0])
    unfinished = [r for r in found if (r.data, r.variant) != ("MNIST1000", "trial=23")]
    assert Settings(**choose_settings(found)["defaults"]["P-STN"]) == trials_of("P-STN")[0]
    chosen = choose_settings(unfinished)
    assert Settings(**chosen["defaults"]["P-STN"]) == trials_of("P-STN")[1]
    assert chosen["trials"]["P-STN"] == {"MNIST30": 24, "MNIST1000": 23}
    assert Settings(**chosen["tuned"]["P-STN"]["MNIST1000"]) == trials_of("P-STN")[0]


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
@pytest.mark.parametrize("module", BOTH)
def test_the_committed_choice_is_that_of_the_committed_search(module):
    chosen = module.choose_settings(read_results(RESULTS, module.SEARCH.name))
    assert json.loads(module.CHOSEN.read_text()) == json.loads(json.dumps(chosen))


# --- Digits that may be turned or not --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("modes", [1, 4])
def test_the_posterior_starts_as_the_settings_say(modes):
    model = per_input.make_network("P-STN", per_input.Settings(modes=modes, spread=0.3))
    q = model.layer.localize(torch.zeros(1, 1, 28, 28))
    components = q.components if modes > 1 else q
    torch.testing.assert_close(components.scale, torch.full_like(components.scale, 0.3))
    if modes > 1:
        torch.testing.assert_close(q.log_weights[0], torch.tensor([per_input.FIRST, 0, 0, 0]).log_softmax(-1))
        assert float(q.mode.detach()) == pytest.approx(0, abs=1e-6)


def test_the_full_circle_is_uniform():
    assert {s.spread for s in per_input.trials_of("full circle")} == {per_input.FULL}
    model = per_input.make_network("full circle", per_input.Settings(spread=per_input.FULL))
    theta = model.layer(torch.zeros(1, 1, 28, 28), samples=2000, generator=torch.Generator().manual_seed(0)).theta
    assert stats.kstest(theta.flatten().numpy(), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 0.01
    assert not any(p.requires_grad for p in model.layer.parameters())


def test_a_quick_search_scores_6_and_9_apart(tmp_path):
    reproduce([per_input.SEARCH], quiet(tmp_path), cells=["*p-stn-trial=0[06]*"])
    found = read_results(tmp_path / "quick", per_input.SEARCH.name)
    assert len(found) == 4
    for result in found:
        assert {"valid_nll", "valid_accuracy_narrow", "valid_width_others"} <= set(result.metrics)
        assert 0 < result.metrics["valid_width_narrow"] <= 360


def test_a_trial_that_diverged_is_not_chosen():
    found = [
        Result(per_input.SEARCH.name, "P-STN", "100 images", 10, f"trial={k:02}", metrics={"valid_nll": v} if v else {})
        for k, v in enumerate([0.5, None, 0.3, 0.4])
    ]
    chosen = per_input.choose_settings(found)
    assert per_input.Settings(**chosen["P-STN"]["100 images"]) == per_input.trials_of("P-STN")[2]
