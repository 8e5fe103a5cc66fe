"""Early stopping and validation of populations, and examples that count more than others."""

import pytest
import torch
from torch import nn

from pstn.data import RandomPlacement, RandomRotation
from pstn.training import Population, RandomWarp, Recipe, make_members
from small_models import images, largest_difference, recipe, seeded, small_cnn, small_pstn


def test_early_stopping_is_per_model_and_keeps_the_best():
    x, y = images(24)
    models = [seeded(small_cnn, i) for i in range(2)]
    train, valid = torch.arange(16), torch.arange(16, 24)
    members = make_members(2, lr=[1e-9, 1e-3], train=train, valid=valid)
    population = Population(models, x, y, members, Recipe(epochs=8, batch_size=8, patience=2), groups=1)
    progress = population.fit()
    losses = torch.tensor([entry["valid_nll"] for entry in progress.history])
    assert progress.best == pytest.approx(losses.min(0).values.tolist())
    stopped = [i for i, alive in enumerate(population.alive) if not alive]
    assert stopped, "random labels: somebody must stop improving"
    with torch.no_grad():
        nll = float(nn.functional.cross_entropy(population.models()[stopped[0]](x[valid]), y[valid]))
    assert nll == pytest.approx(progress.best[stopped[0]], abs=1e-5)


def test_validation_does_not_hang_on_neighbours_or_batches():
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(2)]
    members = make_members(2, train=torch.arange(8), valid=[torch.arange(8, 12), torch.arange(8, 16)])
    together = Population(models, x, y, members, recipe(), groups=1)
    expected = together.evaluate_members()["nll"]
    for i in range(2):
        alone = Population([models[i]], x, y, [members[i]], recipe()).evaluate_members()["nll"]
        assert alone == pytest.approx([expected[i]], abs=1e-6)
    assert together.evaluate_members(batch=3)["nll"] == pytest.approx(expected, abs=1e-6)
    assert together.evaluate(x, y, batch=5)["nll"] == pytest.approx(together.evaluate(x, y)["nll"], abs=1e-6)


def test_evaluating_many_models_takes_fewer_examples_at_a_time(monkeypatch):
    from pstn.training.population.stack import Stack

    (x, y), models, seen = images(16), [seeded(small_pstn, i) for i in range(2)], []
    real = Stack.predict

    def spy(self, module, state, x, *arguments):
        seen.append(len(x))
        return real(self, module, state, x, *arguments)

    population = Population(models, x, y, recipe=recipe(), groups=1)
    expected = population.evaluate(x, y)["nll"]
    monkeypatch.setattr(Stack, "predict", spy)
    # Two models, ten samples, 144 pixels: room for six examples.
    monkeypatch.setattr("pstn.training.population.stack._INPUT", {"cpu": 2 * 10 * 144 * 6})
    assert population.evaluate(x, y)["nll"] == pytest.approx(expected, abs=1e-6)
    assert seen == [6, 6, 4]


def test_validation_examples_are_changed_as_training_examples_are():
    x, y = images(16)
    members = make_members(2, train=torch.arange(8), valid=torch.arange(8, 16))
    models = [nn.Sequential(nn.Flatten(), nn.Linear(400, 4)) for _ in range(2)]
    augment = RandomWarp(RandomPlacement(20, 12, None))
    placed = Population(models, x, y, members, Recipe(epochs=1, patience=1, augment=augment), groups=1)
    placed.fit()
    assert placed.evaluate_members() == placed.evaluate_members()
    model = seeded(small_cnn, 0)
    upright, rotated = (
        Population([model], x, y, members[:1], Recipe(epochs=1, augment=augment)).evaluate_members()["nll"][0]
        for augment in (None, RandomWarp(RandomRotation()))
    )
    assert upright != rotated


def test_weights_count_examples_as_often_as_they_say():
    x, y = images(8)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    weights = torch.tensor([2.0, 2, 2, 2, 0, 0, 0, 0])
    weighted = Population([linear], x, y, recipe=Recipe(epochs=5, batch_size=8), weights=weights)
    halved = Population([linear], x[:4], y[:4], recipe=Recipe(epochs=5, batch_size=4))
    weighted.fit()
    halved.fit()
    assert largest_difference(weighted.models()[0], linear) > 1e-3
    assert largest_difference(weighted.models()[0], halved.models()[0]) < 1e-6


@pytest.mark.parametrize("count", [1, 2])
def test_an_example_of_weight_zero_changes_nothing(count):
    x, y = images(16)
    weights = (torch.arange(16) % 2).float()
    other = torch.where(weights[:, None, None, None] > 0, x, 1 - x)
    trained = []
    for data in (x, other):
        models = [seeded(small_pstn, seed) for seed in range(count)]
        members = make_members(count, kl_weight=0.1)
        population = Population(models, data, y, members, Recipe(epochs=3, batch_size=8), weights=weights, groups=1)
        population.fit()
        trained.append(population.models())
    assert all(largest_difference(a, b) < 1e-6 for a, b in zip(*trained, strict=True))
    unweighted = Population([seeded(small_pstn, 0)], x, y, make_members(1, kl_weight=0.1), Recipe(3, 8))
    unweighted.fit()
    assert largest_difference(unweighted.models()[0], trained[0][0]) > 1e-4


@pytest.mark.parametrize("weights", [torch.ones(7), torch.ones(8).long(), -torch.ones(8), torch.full((8,), torch.nan)])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be"):
        Population([small_cnn()], *images(8), weights=weights)
