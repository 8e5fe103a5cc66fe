import pytest
import torch

import pstn
from pstn.training import Recipe
from pstn.training.planning import choose_compile, choose_groups, count_work

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_work_is_counted_with_the_batch_and_the_samples_that_are_drawn():
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    x = torch.rand(1, 1, 28, 28)
    assert count_work(linear, x, Recipe(batch_size=8)) == 8 * 7840
    model = pstn.nn.mnist_pstn().train()
    once, ten = (count_work(model, x, Recipe(batch_size=64, samples=s)) for s in (1, 10))
    classifier = count_work(model.classifier, x, Recipe(batch_size=64))
    assert ten - once == 9 * classifier
    assert model.training


@pytest.mark.parametrize(("work", "groups"), [(4_000_000, 1), (600_000_000, 5)])
def test_models_that_fill_a_gpu_by_themselves_are_not_stacked(work, groups):
    assert choose_groups(5, CUDA, work) == groups


def test_short_runs_and_runs_on_the_cpu_are_not_compiled():
    assert not choose_compile(1000, CUDA)
    assert not choose_compile(10**9, CPU)
