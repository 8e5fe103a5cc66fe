import pytest
import torch

import pstn
from pstn.threads import choose_threads
from pstn.training import Population, Recipe
from pstn.training.population.planning import choose_compile, choose_conv, choose_groups, count_work

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


def test_short_runs_and_runs_on_the_cpu_are_not_compiled():
    assert not choose_compile(1000, CUDA)
    assert not choose_compile(10**9, CPU)


def test_counting_work_draws_no_random_numbers():
    model, x = pstn.nn.mnist_pstn(), torch.rand(1, 1, 28, 28)
    state = torch.random.get_rng_state()
    count_work(model, x, Recipe(batch_size=8))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_small_stacks_have_one_thread_unless_the_user_says_otherwise(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    x = torch.rand(1, 1, 28, 28)
    small = count_work(pstn.nn.mnist_pstn(), x, Recipe(batch_size=8))
    series = pstn.nn.SeriesClassifier(1, classes=14)
    large = count_work(series, torch.rand(1, 1, 131), Recipe(batch_size=16, samples=10))
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
        assert set(threads[1:]) == {1}  # the first counted the work
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_tf32_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="precision must be 'float32' or 'bf16' on cpu, got 'tf32'"):
        Population([pstn.nn.mnist_cnn()], torch.rand(8, 1, 28, 28), torch.arange(8), recipe=Recipe(precision="tf32"))


def test_values_that_stand_for_missing_ones_are_refused():
    x = torch.zeros(4, 1, 28, 28)
    x[0, 0, 0, 0] = 9.96921e36  # what netCDF writes where there is nothing
    with pytest.raises(
        ValueError, match=r"x must lie within 1e\+15, got up to 9\.96921e\+36: if that stands for missing"
    ):
        Population([pstn.nn.mnist_cnn()], x, torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_and_what_is_empty_is_refused(bad):
    x, y = torch.zeros(4, 1, 28, 28), torch.zeros(4, dtype=torch.long)
    x[3, 0, 5, 5] = bad
    with pytest.raises(ValueError, match="x must be finite"):
        Population([pstn.nn.mnist_cnn()], x, y)
    with pytest.raises(ValueError, match=r"x must hold examples, got shape \(0, 1, 28, 28\)"):
        Population([pstn.nn.mnist_cnn()], x[:0], y[:0])
