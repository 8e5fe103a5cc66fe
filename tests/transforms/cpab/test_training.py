"""A P-STN with CPAB on the line trains end to end: eager, with autocast, compiled and under vmap."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.func import grad_and_value as differentiate

import pstn

STEPS, SAMPLES, BATCH, LENGTH = 40, 2, 16, 32


def make(seed):
    torch.manual_seed(seed)
    localizer = nn.Sequential(nn.Conv1d(1, 4, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
    classifier = nn.Sequential(nn.Conv1d(1, 4, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * LENGTH, 2))
    layer = pstn.SpatialTransformer(pstn.CPAB(tess=5), localizer, size=LENGTH, features=16)
    return pstn.PSTN(layer, classifier, train_samples=SAMPLES)


def batches(steps):
    """Bumps, one or two of them, moved and stretched at random, with the noise of the samples."""
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(-1, 1, LENGTH)
    for _ in range(steps):
        y = torch.arange(BATCH) % 2
        centre, width = torch.rand(2, BATCH, 1, generator=generator) * torch.tensor([0.4, 0.1])[:, None, None]
        apart = 0.3 * y[:, None]
        bumps = sum(torch.exp(-(((axis - centre - side * apart) / (0.1 + width)) ** 2)) for side in (-1, 1))
        yield bumps[:, None], y, torch.rand(SAMPLES, BATCH, 4, generator=generator)


def step_loss(model, x, y, noise):
    return pstn.elbo_loss(model(x, noise=noise), y, kl_weight=1e-3)


def train(model, loss_of):
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for x, y, noise in batches(STEPS):
        loss = loss_of(model, x, y, noise)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def decreases(losses):
    return sum(losses[-5:]) < 0.6 * sum(losses[:5])


def layer_changed(model, before):
    """The gradient reached the distribution of theta: the layer's own parameters changed too."""
    pairs = zip(model.layer.parameters(), before.layer.parameters(), strict=True)
    return all(not torch.equal(new, old) for new, old in pairs)


def autocast(model, x, y, noise):
    with torch.autocast("cpu", torch.bfloat16):
        return step_loss(model, x, y, noise)


@pytest.mark.parametrize("loss_of", [step_loss, autocast])
def test_eager(loss_of):
    model = make(0)
    before = copy.deepcopy(model)
    assert decreases(train(model, loss_of))
    assert layer_changed(model, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
def test_compiled():
    torch._dynamo.reset()
    model, eager = make(0), make(0)
    losses = train(model, torch.compile(step_loss, fullgraph=True))
    assert decreases(losses)
    assert losses == pytest.approx(train(eager, step_loss), abs=2e-2)


def test_several_models_under_vmap():
    models = [make(seed) for seed in range(3)]
    alone = train(make(1), step_loss)
    parameters, buffers = stack_module_state(models)
    parameters = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
    optimiser = torch.optim.Adam(parameters.values(), lr=1e-2)

    def loss_of(own, constants, x, y, noise):
        p = functional_call(models[0], (own, constants), (x,), {"noise": noise})
        return pstn.elbo_loss(p, y, kl_weight=1e-3)

    together = []
    for batch in batches(STEPS):
        gradients, losses = vmap(differentiate(loss_of), (0, 0, None, None, None))(parameters, buffers, *batch)
        for name, tensor in parameters.items():
            tensor.grad = gradients[name].detach()
        optimiser.step()
        together.append(losses.detach())
    together = torch.stack(together)
    assert all(decreases(together[:, k].tolist()) for k in range(3))
    assert together[:, 1].tolist() == pytest.approx(alone, abs=2e-2)


def test_extreme_thetas_give_finite_gradients():
    """Theta of scale 100 in float32: the loss and its gradients stay finite."""
    model = make(0)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter.normal_(0, 10)
    x, y, noise = next(batches(1))
    prediction = model(x, noise=noise)
    assert prediction.theta.abs().max() > 100
    pstn.elbo_loss(prediction, y, kl_weight=1e-3).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
