"""Small networks get one thread on the CPU, and torch has its own back afterwards."""

import pytest
import torch
from torch import nn

import pstn
from pstn.threads import count_multiplications, suit_threads, using_threads


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watch(nn.Module):
    """A classifier that writes down how many threads it was run with."""

    def __init__(self, width):
        super().__init__()
        self.seen = []
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.Linear(width, 3))

    def forward(self, x):
        self.seen.append(torch.get_num_threads())
        return self.layers(x)


def test_training_counts_the_samples_of_training_and_a_prediction_its_own():
    model, x = pstn.nn.mnist_pstn(), torch.rand(16, 1, 28, 28)
    found = {}
    for training in (True, False):
        with using_threads(None):
            suit_threads(model.train(training), x)
            found[training] = torch.get_num_threads()
    assert (model.train_samples, model.test_samples) == (1, 10)
    assert found == {True: 1, False: 2}


def batches():
    return [(torch.rand(16, 1, 2, 2), torch.arange(16) % 3)] * 2


@pytest.mark.parametrize(("width", "threads"), [(8, 1), (400_000, 2)])
def test_fit_and_evaluate_choose_threads_by_the_work_and_restore_them(width, threads):
    model = Watch(width)
    pstn.fit(model, batches(), epochs=1)
    assert model.seen[-2:] == [threads] * 2
    assert torch.get_num_threads() == 2
    pstn.evaluate(model, batches())
    assert model.seen[-2:] == [threads] * 2
    assert torch.get_num_threads() == 2


def test_threads_are_restored_when_training_fails():
    def fail(prediction, y):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        pstn.fit(Watch(8), batches(), epochs=1, loss=fail)
    assert torch.get_num_threads() == 2


def test_a_number_of_the_users_is_left_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    model = Watch(8)
    pstn.fit(model, batches(), epochs=1)
    assert model.seen[-1] == 2


def test_counting_the_work_draws_no_random_numbers_and_changes_no_statistics():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with using_threads(None):
        suit_threads(model, torch.rand(4, 1, 2, 2, generator=torch.Generator()))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def test_a_posterior_that_all_inputs_share_is_counted():
    posterior = pstn.Global(pstn.StudentT())
    layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), (4, 4), posterior=posterior)
    model = pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), test_samples=2)
    assert count_multiplications(model, torch.rand(1, 1, 4, 4)) >= 2 * 16 * 3
