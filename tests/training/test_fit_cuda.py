"""`pstn.fit` on a GPU: steps that are replayed as graphs, and steps whose figures are read later."""

import copy
import math
import warnings

import pytest
import torch

import pstn
from pstn.training import fit as fitting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
X, Y = torch.rand(80, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 10


def quiet_fit(model, data, **options):
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # noise teaches nothing
        return pstn.fit(model, data, batch_size=8, restarts=0, kl_weight=1e-3, **options)


def test_a_long_training_is_captured_and_takes_the_steps_of_the_cpu(monkeypatch):
    captured = []
    replay = fitting._replay_steps
    monkeypatch.setattr(
        fitting, "_replay_steps", lambda *given, **options: captured.append(1) or replay(*given, **options)
    )
    start, found = pstn.nn.mnist_pstn(), []
    for device, options in (("cpu", {"capture": True}), ("cuda", {"capture": True})):
        torch.manual_seed(0)
        model = quiet_fit(copy.deepcopy(start).to(device), (X, Y), epochs=1, **options)
        found.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    off = (found[0] - found[1]).abs()
    assert float((off > 2e-5).float().mean()) < 1e-3
    captured.clear()
    losses = []
    quiet_fit(copy.deepcopy(start).cuda(), (X, Y), epochs=60, on_epoch=lambda epoch: losses.append(epoch.loss))
    assert captured
    assert len(losses) == 60
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("epochs", [1, 60])
def test_what_cannot_be_replayed_is_trained_step_by_step(epochs):
    hooked, heard = pstn.nn.mnist_pstn().cuda(), []
    hooked.layer.register_forward_hook(lambda *given: heard.append(1))
    quiet_fit(hooked, (X, Y), epochs=epochs)
    assert len(heard) >= 10 * epochs
    chunked = pstn.nn.mnist_pstn().cuda()
    chunked.chunk_size = 1
    quiet_fit(chunked, (X, Y), epochs=epochs)


def test_a_step_that_fails_is_named_and_changes_no_weight():
    def loss(prediction, y):
        return torch.where((y >= 72).any(), math.inf, 1.0) * prediction.log_probs.mean()

    batches, start = [(X[i], i) for i in torch.arange(80).split(8)], pstn.nn.mnist_pstn().cuda()
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        expected = pstn.fit(copy.deepcopy(start), batches[:9], loss=loss, epochs=1)
        torch.manual_seed(0)
        model = copy.deepcopy(start)
        with pytest.raises(FloatingPointError, match="epoch 1, batch 10:"):
            pstn.fit(model, [*batches, *batches[:5]], loss=loss, epochs=1)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))
