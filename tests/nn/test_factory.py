"""The one function that makes networks for data of a given shape."""

import pytest
import torch

import pstn
from pstn.nn import make_model
from refusals import refused


@pytest.mark.parametrize("kind", ["cnn", "stn", "pstn"])
@pytest.mark.parametrize("size", [(8, 8), (9, 31), (28, 28), (64, 48), (224, 224), (1,), (24,)], ids=str)
def test_networks_suit_inputs_of_any_size(kind, size):
    model = make_model(kind, 3, size, 5, networks="auto").eval()
    output = model(torch.rand(2, 3, *size))
    assert (output if kind == "cnn" else output.log_probs).shape == (2, 5)
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


def test_larger_images_have_deeper_networks_and_a_localizer_that_reads_them_reduced():
    small, large = (make_model("pstn", 1, (side, side), 2, networks="auto") for side in (28, 64))
    assert len(large.classifier.filters) > len(small.classifier.filters)
    assert small.layer.localizer.size == (28, 28)
    assert large.layer.localizer.size == (32, 32)


@pytest.mark.parametrize("make", [pstn.nn.mnist_stn, pstn.nn.mnist_pstn])
def test_a_seed_draws_the_weights_of_the_paper_s_networks_localizer_first(make):
    torch.manual_seed(3)
    model = make()
    torch.manual_seed(3)
    localizer = pstn.nn.ConvLocalizer(1, (28, 28), (12, 18) if make is pstn.nn.mnist_stn else (8, 14))
    classifier = pstn.nn.ConvClassifier(1, (28, 28), 10, (10, 20), 50)
    assert torch.equal(model.layer.localizer.body[0].weight, localizer.body[0].weight)
    assert torch.equal(model.classifier.head[3].weight, classifier.head[3].weight)


def test_a_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (make_model("pstn", 1, (28, 28), 10, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.classifier.head[0].weight, again.classifier.head[0].weight)
    assert not torch.equal(first.classifier.head[0].weight, other.classifier.head[0].weight)


def test_defaults_and_options_reach_the_layer():
    assert isinstance(make_model("pstn", 1, (28, 28), 2).layer.transform, pstn.Similarity)
    assert isinstance(make_model("pstn", 1, (24,), 2).layer.transform, pstn.CPAB)
    model = make_model("pstn", 1, (28, 28), 2, "crop", fill=None, samples=2, test_samples=3, networks="auto", width=7)
    assert (model.train_samples, model.test_samples, model.classifier.filters[0]) == (2, 3, 7)
    assert isinstance(model.layer.transform, pstn.Crop)
    assert model.layer.padding_mode == "border"


@pytest.mark.parametrize("networks", ["inception", "resnet"])
def test_networks_of_other_papers_classify_series(networks):
    model = make_model("pstn", 2, (30,), 3, networks=networks).eval()
    assert type(model.classifier).__name__.lower().startswith(networks)
    assert model(torch.rand(2, 2, 30)).log_probs.shape == (2, 3)


test_what_cannot_be_made_is_named = refused(
    (lambda: make_model("rnn", 1, (28, 28), 2), ValueError, "kind"),
    (lambda: make_model("cnn", 1, (28, 28), 2, networks="large"), ValueError, "networks"),
    (lambda: make_model("cnn", 1, (28, 28), 2, networks="inception"), ValueError, "networks"),
    (lambda: make_model("stn", 1, (28, 28), 2, "twist"), ValueError, "transform"),
    (lambda: make_model("stn", 1, (24,), 2, pstn.Similarity()), ValueError, "transform"),
)
