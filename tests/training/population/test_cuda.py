"""The trainer on a GPU: the same steps as on the CPU, stacked and alone."""

import copy

import pytest
import torch
from torch import nn

import pstn
from pstn.training import Population, Recipe, make_members

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(models, device: str, steps: int = 5, **options) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 1, 28, 28, generator=generator), torch.arange(40) % 10
    members = make_members(len(models), kl_weight=1e-3, weight_decay=0.01)
    with Population(models, x, y, members, Recipe(epochs=10), device=device, workers=False, **options) as population:
        population.fit(until=steps)
        return population.tensors()["rows"]


def assert_same_steps(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Adam divides by the size of a gradient: where that is all rounding, a step may differ, and is a step at most."""
    off = (found - expected).abs()
    assert float((off > 2e-5).float().mean()) < 1e-3
    assert float(off.max()) < 1e-3


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("conv", ["library", "matmul"])
def test_graphs_take_the_steps_of_the_cpu(groups, conv):
    torch.manual_seed(0)
    models = [pstn.nn.mnist_pstn() for _ in range(3)]
    expected = train(models, "cpu", groups=1)
    found = train(models, "cuda", groups=groups, conv=conv)
    assert_same_steps(found, expected)


def test_stacks_whose_frozen_parts_differ_do_not_share_a_program():
    torch.manual_seed(0)
    classifiers = [pstn.nn.mnist_cnn() for _ in range(3)]
    # The first two have one classifier, held once; the other two one each.
    models = [pstn.wrap(copy.deepcopy(classifiers[k]), in_channels=1) for k in (0, 0, 1, 2)]
    expected = train(models, "cpu", groups=1)
    found = train(models, "cuda", groups=2)
    assert_same_steps(found, expected)


def test_hidden_randomness_is_refused_on_the_device_too():
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(784, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(nn.functional.dropout(x.flatten(1), 0.5, self.training))

    with pytest.raises(ValueError, match="draws random numbers by itself"):
        train([Drops()], "cuda")
