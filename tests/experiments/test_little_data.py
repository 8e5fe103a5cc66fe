"""The comparison on little data: what is tried, what trains together, and what validation chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pstn.experiments.little_data import (
    CHOSEN,
    DATA,
    FIXED,
    MODELS,
    SEARCH,
    SERIES,
    TRIALS,
    Settings,
    choose_settings,
    make_network,
    trials_of,
)
from pstn.experiments.runner import RunContext
from pstn.report.results import Result, read_results
from pstn.training.population.stack import require_one_shape

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "experiments" / "little-data.md"


def classifier_of(model):
    return getattr(model, "classifier", model)


def scale_at_start(model):
    """The scale of the posterior for a blank image."""
    posterior = model.layer.localize(torch.zeros(1, 1, 28, 28))
    return (posterior.beta / posterior.alpha).sqrt()[0].tolist()


def test_every_model_has_as_many_trials_on_every_data_set(tmp_path):
    cells = [cell for group in SEARCH.groups for cell in group.cells(RunContext(tmp_path))]
    assert len({cell.name for cell in cells}) == len(cells)
    for model in MODELS:
        assert len(set(trials_of(model))) == TRIALS <= 24
        for data in (*DATA, *SERIES) if model == "P-STN" else DATA:
            assert sum((cell.model, cell.data) == (model, data) for cell in cells) == TRIALS


def test_what_is_searched():
    paper, ours = trials_of("P-STN as published"), trials_of("P-STN")
    assert {(s.localizer_factor, s.alpha, s.samples, s.shrink) for s in paper} == {(0.1, 1.0, 1, 0.0)}
    assert max(s.localizer_factor for s in ours if not s.shrink) <= 0.03
    assert {(s.alpha, s.samples) for s in ours if not s.shrink} == {(1.0, 4), (2.0, 1), (2.0, 4)}
    assert {s.shrink for s in ours} == {0.0, 0.01, 0.1}
    assert {s.spread for s in trials_of("fixed augmentation")} == {FIXED}
    assert len({s.spread for s in trials_of("tuned augmentation")}) == TRIALS


def test_a_shared_posterior_starts_at_the_same_spread():
    made = make_network("P-STN", Settings(alpha=2.0, shrink=0.1, spread=(0.2, 0.1, 0.05)))
    assert scale_at_start(made) == pytest.approx([0.2, 0.1, 0.05, 0.05], rel=1e-3)


def test_settings_follow_the_number_of_examples():
    settings = Settings(kl_weight=3e-4, weight_decay=0.01)
    assert settings.at(100) == settings
    assert settings.at(1600).kl_weight == pytest.approx(3e-4 / 8)
    assert settings.at(1600).weight_decay == pytest.approx(0.01 / 4)


def test_all_models_start_from_the_same_classifier():
    states = []
    for model in MODELS:
        torch.manual_seed(3)
        states.append(classifier_of(make_network(model, Settings())).state_dict())
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


@pytest.mark.parametrize("model", ["fixed augmentation", "global posterior", "P-STN"])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_spread_is_the_posteriors_scale_at_the_start(model, alpha):
    made = make_network(model, Settings(alpha=alpha, spread=(0.2, 0.1, 0.05)))
    assert scale_at_start(made) == pytest.approx([0.2, 0.1, 0.05, 0.05], rel=1e-3)
    assert all(p.requires_grad != (model == "fixed augmentation") for p in made.layer.parameters())


@pytest.mark.parametrize("group", [g for g in SEARCH.groups if not g.data], ids=lambda group: group.name)
def test_models_of_a_group_train_as_one_stack(group, tmp_path):
    cells = group.cells(RunContext(tmp_path))
    trials = {(cell.model, cell.variant) for cell in cells}
    require_one_shape([make_network(m, trials_of(m)[int(v.removeprefix("trial="))]) for m, v in trials])


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
    assert chosen["tuned"]["P-STN"]["MNIST30"]["shrink"] > 0
    assert chosen["defaults"]["P-STN"]["shrink"] == 0


def test_data_where_a_trial_was_not_run_do_not_count_for_the_defaults():
    found = made_up_search(MNIST30=[0.5, 0.1], MNIST1000=[0.01, 2.0])
    unfinished = [r for r in found if (r.data, r.variant) != ("MNIST1000", "trial=23")]
    assert Settings(**choose_settings(found)["defaults"]["P-STN"]) == trials_of("P-STN")[0]
    chosen = choose_settings(unfinished)
    assert Settings(**chosen["defaults"]["P-STN"]) == trials_of("P-STN")[1]
    assert chosen["trials"]["P-STN"] == {"MNIST30": 24, "MNIST1000": 23}
    assert Settings(**chosen["tuned"]["P-STN"]["MNIST1000"]) == trials_of("P-STN")[0]


def test_little_data_come_first_and_series_last():
    def place(name):
        return 0 if "-small" in name else 1 if "-large" in name else 2

    places = [place(group.name) for group in SEARCH.groups]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
def test_the_committed_choice_is_that_of_the_committed_search():
    assert json.loads(CHOSEN.read_text()) == json.loads(json.dumps(choose_settings(read_results(RESULTS, SEARCH.name))))
