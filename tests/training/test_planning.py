import pytest
import torch

import pstn
from pstn.training import Recipe
from pstn.training.planning import choose_compile, choose_groups, inputs_per_step

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_inputs_are_counted_with_the_samples_that_are_drawn():
    recipe = Recipe(batch_size=64, samples=10)
    assert inputs_per_step(pstn.nn.mnist_pstn(), recipe) == 640
    assert inputs_per_step(pstn.nn.mnist_pstn(), Recipe(batch_size=64)) == 64
    assert inputs_per_step(pstn.nn.mnist_stn(), recipe) == inputs_per_step(pstn.nn.mnist_cnn(), recipe) == 64


@pytest.mark.parametrize(("inputs", "groups"), [(8, 1), (640, 5)])
def test_models_that_fill_a_gpu_by_themselves_are_not_stacked(inputs, groups):
    assert choose_groups(5, CUDA, inputs) == groups


def test_short_runs_and_runs_on_the_cpu_are_not_compiled():
    assert not choose_compile(1000, CUDA)
    assert not choose_compile(10**9, CPU)
