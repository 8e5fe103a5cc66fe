"""Wrapping a classifier that somebody already has."""

import math

import pytest
import torch
from torch import nn

import pstn
from refusals import refused


def backbone(channels=3):
    convolution = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def train_step(model, x, y):
    model.train()
    optimiser = torch.optim.SGD(model.parameter_groups(lr=1.0, localizer_factor=1.0))
    pstn.elbo_loss(model(x), y, kl_weight=0.1).backward()
    optimiser.step()


def test_a_frozen_classifier_stays_as_it_is():
    classifier = backbone()
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    model = pstn.wrap(classifier, transform="similarity", in_channels=3, freeze=True)
    start = model.layer.variance_head.last.bias.clone()
    train_step(model, torch.rand(6, 3, 40, 30), torch.arange(6) % 5)
    assert model.training
    assert not any(module.training for module in classifier.modules())
    assert all(p.grad is None for p in classifier.parameters())
    for name, tensor in classifier.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not torch.equal(start, model.layer.variance_head.last.bias)
    assert [group["name"] for group in model.parameter_groups(lr=1.0)] == ["localizer"]


def test_an_unfrozen_classifier_learns():
    classifier = backbone()
    before = classifier[6].weight.clone()
    model = pstn.wrap(classifier, in_channels=3, freeze=False)
    train_step(model, torch.rand(6, 3, 40, 30), torch.arange(6) % 5)
    assert classifier.training
    assert not torch.equal(before, classifier[6].weight)


def test_nearly_the_classifier_itself_at_the_start():
    classifier = backbone().eval()
    x = torch.rand(3, 3, 40, 30)
    model = pstn.wrap(classifier, in_channels=3, var_init=-30.0).eval()
    torch.testing.assert_close(model(x).log_probs, classifier(x).log_softmax(-1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("transform", "ndim"), [("rotation", 2), ("crop-log", 2), ("crop", 1), ("affine", 3)])
def test_families_by_name_in_every_dimension(transform, ndim):
    size = (70, 40, 20)[:ndim]
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(2 * math.prod(size), 3))
    model = pstn.wrap(classifier, transform, in_channels=2, ndim=ndim)
    assert model.eval()(torch.rand(2, 2, *size)).log_probs.shape == (2, 3)


def test_own_parts_and_sizes():
    localizer = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    model = pstn.wrap(backbone(), pstn.Crop(), localizer=localizer, size=(16, 16), test_samples=3, fill=(0.1, 0.2, 0.3))
    p = model.eval()(torch.rand(2, 3, 50, 50))
    assert p.theta.shape == (3, 2, 3)


def test_one_that_is_to_be_taught_starts_wide_and_learns_a_pose_without_labels():
    x = torch.zeros(64, 1, 12, 12)
    x[:, 0, 2:7, 5:7], x[:, 0, 5:7, 7:10] = 1.0, 0.6  # a bar with a foot on one side
    torch.manual_seed(0)
    options = {"in_channels": 1, "localizer_size": (12, 12), "taught": True}
    model = pstn.wrap(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), "rotation", **options)
    assert isinstance(model.layer.posterior, pstn.Mixture)
    before = {name: tensor.clone() for name, tensor in model.classifier.state_dict().items()}
    losses = []
    schedule = {"epochs": 8, "batch_size": 16, "lr": 2e-3, "on_epoch": lambda epoch: losses.append(epoch.loss)}
    pstn.fit(model, x, teach=pstn.data.RandomRotation(math.pi), **schedule)
    assert losses[-1] < math.log(2 * math.pi) - 0.5  # an even density over all angles
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.classifier.state_dict().items())
    own = pstn.wrap(backbone(), taught=True, posterior=pstn.Normal())
    assert isinstance(own.layer.posterior, pstn.Normal)


test_bad_settings_are_named = refused(
    (lambda: pstn.wrap(len), TypeError, "classifier"),
    (lambda: pstn.wrap(nn.Sequential(*backbone(), nn.Softmax(-1))), ValueError, "classifier"),
    (lambda: pstn.wrap(backbone(), "similarty"), ValueError, "transform"),
    (lambda: pstn.wrap(backbone(), localizer_size=0), ValueError, "localizer_size"),
    (lambda: pstn.wrap(backbone(), freeze="no"), TypeError, "freeze"),
    (lambda: pstn.wrap(backbone(), ndim=4), ValueError, "ndim"),
    (lambda: pstn.wrap(backbone(), in_channels=3)(torch.rand(2, 1, 40, 40)), ValueError, "x"),
)


def test_softmax_elsewhere_and_log_softmax_do_no_harm():
    x, classifier = torch.rand(2, 3, 40, 30), backbone()
    noise = torch.full((1, 2, 4), 0.5)
    plain = pstn.wrap(classifier).eval()
    logged = pstn.wrap(nn.Sequential(classifier, nn.LogSoftmax(-1))).eval()
    logged.layer = plain.layer
    torch.testing.assert_close(logged(x, noise=noise).log_probs, plain(x, noise=noise).log_probs)
    assert isinstance(pstn.wrap(nn.Sequential(nn.Softmax(1), classifier)), pstn.PSTN)
    assert isinstance(pstn.wrap(nn.Sequential()), pstn.PSTN)
