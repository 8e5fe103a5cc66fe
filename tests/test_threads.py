"""Small networks get one thread on the CPU, and torch has its own back afterwards."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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


def series_model(**options):
    return pstn.nn.make_model("pstn", 2, (60,), 3, **options), torch.rand(1, 2, 60)


MODELS = {
    "digits": lambda: (pstn.nn.mnist_pstn(), torch.rand(1, 1, 28, 28)),
    "photos": lambda: (pstn.nn.make_model("pstn", 3, (64, 64), 5, networks="auto"), torch.rand(1, 3, 64, 64)),
    "pretrained": lambda: (pstn.nn.BackboneClassifier(pstn.nn.Trunk(pstn.nn.EfficientNetLite0(None)), 5),
                           torch.rand(1, 3, 64, 64)),
    "series": series_model,
    "transposed": lambda: (torch.nn.ConvTranspose2d(3, 8, 4, stride=2), torch.rand(1, 3, 16, 16)),
    "inception": lambda: series_model(networks="inception"),
    "taught": lambda: (pstn.nn.make_model("pstn", 1, (28, 28), 10, taught=True), torch.rand(1, 1, 28, 28)),
}  # fmt: skip


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


@pytest.mark.parametrize("name", sorted(MODELS))
def test_multiplications_are_those_that_torch_counts(name):
    model, x = MODELS[name]()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.requires_grad_(False).eval()(x)
    assert count_multiplications(model, x) == pytest.approx(counter.get_total_flops() / 2, rel=0.05)


def test_counting_does_not_import_the_compiler():
    code = "import sys, torch, pstn; from pstn.threads import count_multiplications as count;"
    code += "count(pstn.nn.mnist_pstn(), torch.rand(1, 1, 28, 28)); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_posterior_that_all_inputs_share_is_counted():
    posterior = pstn.Global(pstn.StudentT())
    layer = pstn.SpatialTransformer(pstn.Rotation(), nn.Flatten(), (4, 4), posterior=posterior)
    model = pstn.PSTN(layer, nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), test_samples=2)
    assert count_multiplications(model, torch.rand(1, 1, 4, 4)) >= 2 * 16 * 3
