import pytest
import torch

import pstn
from pstn.threads import choose_threads, count_multiplications
from pstn.training import Population, Recipe
from pstn.training.population.trainer import choose_conv, choose_groups

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(("work", "groups"), [(4_000_000, 1), (600_000_000, 5)])
def test_models_that_fill_a_gpu_by_themselves_are_not_stacked(work, groups):
    assert choose_groups(5, CUDA, work, Recipe()) == groups


@pytest.mark.parametrize(
    ("stacked", "device", "work", "precision", "kind"),
    [
        (5, CUDA, 4_000_000, "tf32", "matmul"),
        (5, CPU, 0, "float32", "rows"),
        (1, CPU, 0, "float32", "library"),
        (1, CUDA, 6_000_000, "tf32", "library"),
        (1, CUDA, 600_000_000, "tf32", "blocks"),
        (1, CUDA, 600_000_000, "float32", "library"),
    ],
)
def test_how_convolutions_are_computed(stacked, device, work, precision, kind):
    assert choose_conv(stacked, device, work, Recipe(precision=precision)) == kind


def test_small_stacks_have_one_thread_unless_the_user_says_otherwise(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    small = 8 * count_multiplications(pstn.nn.mnist_pstn(), torch.rand(1, 1, 28, 28), samples=1)
    large = 16 * count_multiplications(pstn.nn.SeriesClassifier(1, classes=14), torch.rand(1, 1, 131))
    assert (choose_threads(small), choose_threads(large)) == (1, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(small) is None


def test_a_population_steps_with_those_threads_and_gives_them_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    threads, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        model.register_forward_hook(lambda *_: threads.append(torch.get_num_threads()))
        population = Population([model], torch.rand(16, 1, 28, 28), torch.arange(16) % 10, recipe=Recipe(epochs=1))
        threads.clear()
        population.fit()
        assert threads
        assert set(threads) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), 9.96921e36])  # the last is what netCDF writes for a gap
def test_what_is_not_finite_and_what_is_empty_is_refused(bad):
    x, y = torch.zeros(4, 1, 28, 28), torch.zeros(4, dtype=torch.long)
    x[3, 0, 5, 5] = bad
    with pytest.raises(ValueError, match="x must be finite"):
        Population([pstn.nn.mnist_cnn()], x, y)
    with pytest.raises(ValueError, match=r"x must hold examples, got shape \(0, 1, 28, 28\)"):
        Population([pstn.nn.mnist_cnn()], x[:0], y[:0])
