"""The search for w, the localizer's factor and alpha: what it tries, how it scores, and what it says."""

import math

import pytest
import torch

import pstn
from pstn.defaults import ALPHA, default_kl_weight
from pstn.training import Failure, Member, Population, Recipe
from pstn.training.tune import Trial, Tuned, candidates, hold_out, set_alpha, tune

RECIPE = Recipe(epochs=4, batch_size=8, lr_step=3)


def make(seed):
    torch.manual_seed(seed)
    return pstn.nn.make_model("pstn", 1, (12, 12), 2, networks="auto", width=4, test_samples=3)


@pytest.fixture(scope="module")
def data():
    """Bright and dark images."""
    y = torch.arange(40) % 2
    return torch.randn(40, 1, 12, 12, generator=torch.Generator().manual_seed(0)) + y[:, None, None, None], y


@pytest.fixture(scope="module")
def tuned(data):
    return tune(make, *data, Member(seed=5, lr=3e-3, weight_decay=1e-3), RECIPE, hold_out(data[1], seed=5))


def test_every_combination_is_tried():
    made = candidates(1e-3, 0.1, 1.0)
    assert len(set(made)) == 12
    assert {round(t.kl_weight, 9) for t in made} == {1e-4, 1e-3, 1e-2}
    assert {t.alpha for t in candidates(1e-3, 0.1, 3.0)} == {1.0, 2.0, 3.0}
    assert {t.alpha for t in candidates(1e-3, 0.1, None)} == {None}
    assert Trial(1e-3, 0.1, 1.0, made[0].nll) in made


@pytest.mark.parametrize(("count", "splits"), [(1999, 3), (2000, 1)])
def test_few_data_are_divided_three_times(count, splits):
    parts = hold_out(torch.arange(count) % 10, 0.25)
    assert len(parts) == splits
    for train, valid in parts:
        assert sorted([*train.tolist(), *valid.tolist()]) == list(range(count))
        assert len(valid) == pytest.approx(count / 4, abs=1)
    assert len({tuple(valid.tolist()) for _, valid in parts}) == splits


def test_a_trial_scores_what_training_it_alone_would(data, tuned):
    """The worst and the best candidate, each trained by itself on each division."""
    for trial in (tuned.trials[0], tuned.trials[-1]):
        losses = []
        for k, (train, valid) in enumerate(hold_out(data[1], seed=5)):
            model, member = make(5 + k), Member(
                5 + k, 3e-3, trial.localizer_factor, trial.kl_weight, 1e-3, train, valid
            )  # fmt: skip
            set_alpha(model, trial.alpha)
            recipe = Recipe(epochs=2, batch_size=8, lr_step=2)
            with Population([model], *data, [member], recipe, groups=1, workers=False) as population:
                population.fit()
                losses += population.evaluate_members()["nll"]
        assert trial.nll == pytest.approx(sum(losses) / 3, rel=1e-3)


def test_the_lowest_loss_is_chosen_and_the_sentence_says_so(tuned):
    losses = [trial.nll for trial in tuned.trials]
    assert losses == sorted(losses)
    assert len(losses) == 12
    assert (tuned.splits, tuned.held_out) == (3, 8)
    assert tuned.default in tuned.trials
    assert (tuned.default.kl_weight, tuned.default.alpha) == (default_kl_weight(40), ALPHA)
    assert str(tuned.best) in str(tuned)
    assert f"{tuned.best.nll:.3f}" in str(tuned)
    assert f"{tuned.default.nll:.3f}" in str(tuned)


def test_parts_of_the_work_give_the_same(data, tuned):
    sizes = []

    def run(function, parts):
        sizes.extend(len(part) for part in parts)
        return [function(part) for part in parts]

    member = Member(seed=5, lr=3e-3, weight_decay=1e-3)
    shared = tune(make, *data, member, RECIPE, hold_out(data[1], seed=5), jobs=5, run=run)
    assert sizes == [6] * 6
    for trial in shared.trials:
        same = next(other for other in tuned.trials if str(other) == str(trial))
        assert trial.nll == pytest.approx(same.nll, rel=1e-3)


def test_what_fails_is_not_chosen(data, monkeypatch):
    real = Population.fit

    def fail_fast_localizers(population, on_round):
        progress = real(population, on_round)
        fast = [i for i, member in enumerate(population.members) if member.localizer_factor > 0.1]
        progress.failures += [Failure(i, 0, math.nan, 0.0) for i in fast]
        return progress

    monkeypatch.setattr(Population, "fit", fail_fast_localizers)
    found = tune(make, *data, Member(localizer_factor=0.1), Recipe(epochs=1, batch_size=8), hold_out(data[1]))
    assert found.best.localizer_factor == 0.1
    assert [math.isinf(t.nll) for t in found.trials] == [False] * 6 + [True] * 6


def test_nothing_to_hold_out_leaves_the_defaults():
    found = tune(make, torch.rand(2, 1, 12, 12), torch.tensor([0, 1]), Member(), RECIPE, hold_out(torch.tensor([0, 1])))
    assert found.trials == (found.default,)
    assert math.isnan(found.best.nll)
    assert "too few" in str(found)


def test_defaults_that_are_best_are_called_so():
    best = Trial(1e-3, 0.1, None, 0.5)
    assert str(Tuned((best, Trial(1e-2, 0.1, None, 0.6)), best, 400, 1)) == (
        "Chosen: kl_weight=0.001, localizer_factor=0.1, the defaults, with the lowest NLL of 2 settings on held-out "
        "examples, 0.500 (400)."
    )


def test_a_posterior_that_is_no_student_t_keeps_its_family(data):
    def normal(seed):
        layer = pstn.SpatialTransformer(
            pstn.Similarity(), pstn.nn.ConvLocalizer(1, (12, 12), (4,), 5), posterior=pstn.Normal()
        )
        return pstn.PSTN(layer, pstn.nn.ConvClassifier(1, (12, 12), 2, (4,), 8), test_samples=2)

    found = tune(normal, *data, Member(), Recipe(epochs=1, batch_size=8), hold_out(data[1]))
    assert {trial.alpha for trial in found.trials} == {None}
    assert len(found.trials) == 6


def test_a_schedule_is_refused(data):
    with pytest.raises(ValueError, match="kl_weight"):
        tune(make, *data, Member(kl_weight=lambda progress: 1e-3), RECIPE, hold_out(data[1]))
