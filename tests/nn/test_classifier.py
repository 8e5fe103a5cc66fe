"""Classifiers: parameter counts, averaging, chunks, parameter groups."""

import copy
import shutil

import pytest
import torch
from torch import nn

import pstn
from largest_tensor import LargestTensor
from refusals import refused


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_of_the_paper():
    assert count(pstn.nn.mnist_cnn()) == 28_086
    assert count(pstn.nn.mnist_stn()) == 28_726
    assert count(pstn.nn.mnist_pstn()) == 26_662


def test_series_networks_have_about_1_2_million_parameters():
    alone = pstn.nn.SeriesClassifier(1, classes=14)
    localizer = pstn.nn.SeriesLocalizer(1)
    head = pstn.nn.SeriesClassifier(1, classes=14, filters=(196, 256, 256, 256, 64))
    assert count(alone) == pytest.approx(1.2e6, rel=0.01)
    assert count(localizer) + count(head) == pytest.approx(1.2e6, rel=0.01)
    for kernel_even in (pstn.nn.SeriesLocalizer(2), pstn.nn.SeriesClassifier(2, classes=3)):
        assert kernel_even(torch.randn(4, 2, 31)).shape[0] == 4


def test_networks_of_other_papers_have_as_many_parameters_as_published():
    # Without the last layer: Table 1 of "LITE: Light Inception with boosTing tEchniques" (Ismail-Fawaz et al., 2023).
    for network, expected in ((pstn.nn.InceptionClassifier, 420_192), (pstn.nn.ResNetClassifier, 504_000)):
        model = network(1, classes=5)
        assert count(model.body) == expected
        assert network(3, classes=5)(torch.randn(2, 3, 7)).shape == (2, 5)  # shorter than its kernels


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_an_inception_module_is_its_convolutions_side_by_side():
    module = pstn.nn.InceptionClassifier(2, 3, width=4, kernels=(6, 3), depth=1).eval().body[0]
    x = torch.randn(2, 2, 20)
    read = torch.nn.functional.conv1d(x, module.bottleneck.weight)
    wide = [torch.nn.functional.conv1d(read, conv[1].weight, padding="same") for conv in module.wide]
    pooled = module.pooled[1](torch.nn.functional.max_pool1d(x, 3, 1, 1))
    torch.testing.assert_close(module(x), module.norm(torch.cat([*wide, pooled], 1)).relu())


@pytest.mark.parametrize("size", [(29, 26), (28, 28), (13, 14, 15)])
def test_pooling_without_a_gradient_gives_what_it_gives_with_one(size):
    network = pstn.nn.ConvLocalizer(1, size, (4,), kernel=2)
    x = torch.randn(3, 1, *size)
    x[0, 0, 5, 5] = torch.nan
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pstn.nn.networks.max_pool2d", None)
        patch.setattr("pstn.nn.networks.max_pool3d", None)
        found = network(x)
        mapped = torch.func.vmap(network)(x[None])[0]
    for each in (found, mapped):
        torch.testing.assert_close(each, network(x).detach(), rtol=0, atol=0, equal_nan=True)
    assert found[0].isnan().any()


SERIES_NETWORKS = {
    "small": lambda: pstn.nn.SeriesClassifier(2, 3, (4, 6), (5, 3), dropout=0.0),
    "localizer": lambda: pstn.nn.SeriesLocalizer(2, (4, 6), (5, 3), dropout=0.0),
    "inception": lambda: pstn.nn.InceptionClassifier(2, 3, width=2, kernels=(6, 3), depth=4),
    "inception of one channel": lambda: pstn.nn.InceptionClassifier(1, 3, width=2, kernels=(6, 3), depth=1),
    "resnet": lambda: pstn.nn.ResNetClassifier(2, 3, filters=(4, 6, 6), kernels=(4, 3)),
}


@pytest.mark.parametrize("make", SERIES_NETWORKS.values(), ids=SERIES_NETWORKS)
def test_a_masked_network_reads_a_padded_series_as_the_network_reads_it_alone(make):
    torch.manual_seed(0)
    network = make()
    for norm in (part for part in network.modules() if isinstance(part, nn.BatchNorm1d)):
        norm.running_mean.normal_()
        norm.bias.data.normal_()  # so that zeros do not stay zeros
    masked, channels = pstn.nn.Masked(network).eval(), network.in_channels
    x, mask = torch.randn(3, channels, 20), torch.zeros(3, 1, 20)
    for number, length in enumerate((20, 13, 2)):
        mask[number, :, :length] = 1
        x[number, :, length:] = 1e6
        expected = network(x[number : number + 1, :, :length])
        torch.testing.assert_close(masked(torch.cat([x, mask], 1))[number : number + 1], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("make", SERIES_NETWORKS.values(), ids=SERIES_NETWORKS)
def test_padding_changes_neither_gradients_nor_running_statistics(make):
    torch.manual_seed(0)
    network, x = make().train(), torch.randn(4, make().in_channels, 20)
    other = copy.deepcopy(network)
    network(x).square().sum().backward()
    longer = torch.nn.functional.pad(torch.cat([x, torch.ones(4, 1, 20)], 1), (0, 9))
    pstn.nn.Masked(other)(longer).square().sum().backward()
    for ours, theirs in zip(other.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    for name, buffer in network.named_buffers():
        if "running" in name:
            torch.testing.assert_close(other.get_buffer(name), buffer, atol=1e-5, rtol=1e-5)


def test_unpadded_series_networks_are_plain_convolutions():
    torch.manual_seed(0)
    network = pstn.nn.SeriesClassifier(1, classes=3, filters=(4, 5), kernels=(8, 3), padded=False).eval()
    x = torch.randn(2, 1, 30)
    expected = x
    for conv, norm in ((network.body[1], network.body[2]), (network.body[5], network.body[6])):
        expected = norm(torch.nn.functional.conv1d(expected, conv.weight, conv.bias)).relu()
    assert expected.shape == (2, 5, 30 - 7 - 2)
    torch.testing.assert_close(network(x), network.head(expected.mean(2)))


def test_a_series_too_short_for_unpadded_networks_is_refused():
    for network in (pstn.nn.SeriesLocalizer(1, padded=False), pstn.nn.SeriesClassifier(1, 3, padded=False)):
        least = 1 + sum(kernel - 1 for kernel in network.kernels)
        assert network.eval()(torch.randn(2, 1, least)).shape[0] == 2
        with pytest.raises(ValueError, match=f"x must have at least {least} values, .* padded=True"):
            network(torch.randn(2, 1, least - 1))


@pytest.mark.parametrize(("series", "length"), [(400, 24), (1, 6000)])
def test_rocket_features_take_memory_for_some_series_and_biases_at_a_time(series, length):
    features = pstn.nn.RocketFeatures(1, dilations=(1, 2), counts=(80, 39))
    features.biases.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(series, 1, length, generator=torch.Generator().manual_seed(0))
    with LargestTensor() as largest:
        made = features(x)
    # Without parts the comparisons alone would be 42 * 80 values for each step of a series.
    assert largest.values <= max(1 << 22, made.numel())
    x = x[:3, :, :40]
    torch.testing.assert_close(features(x), features._read(x, 7), rtol=0, atol=0)
    by_hand = nn.functional.conv1d(x, features.kernels[:2], padding=4, dilation=1)
    torch.testing.assert_close(features(x)[:, 1], (by_hand[:, 0] > features.biases[1]).float().mean(-1))
    torch.testing.assert_close(features(x)[:, 80], (by_hand[:, 1, 4:-4] > features.biases[80]).float().mean(-1))


def test_prediction_is_the_mean_of_the_samples_probabilities():
    model = pstn.nn.mnist_pstn(var_init=0.0).eval()
    p = model(torch.rand(3, 1, 28, 28))
    assert p.sample_log_probs.shape == (10, 3, 10)
    assert p.theta.shape == (10, 3, 4)
    torch.testing.assert_close(p.probs, p.sample_log_probs.exp().mean(0))
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(3))
    torch.testing.assert_close(p.entropy, torch.distributions.Categorical(p.probs).entropy())
    expected = p.entropy - torch.distributions.Categorical(p.sample_log_probs.exp()).entropy().mean(0)
    torch.testing.assert_close(p.mutual_information, expected, rtol=1e-3, atol=1e-6)
    assert (p.mutual_information > 0).all()


def test_samples_by_mode():
    model = pstn.nn.mnist_pstn()
    x = torch.rand(2, 1, 28, 28)
    assert model.train()(x).theta.shape[0] == 1
    assert model.eval()(x).theta.shape[0] == 10
    assert model(x, samples=3).theta.shape[0] == 3
    assert model(x, noise=torch.rand(7, 2, 4)).theta.shape[0] == 7
    assert pstn.nn.mnist_stn()(x, samples=3).theta.shape[0] == 1
    with pytest.raises(ValueError, match="samples must"):
        model(x, samples=0)


@pytest.mark.parametrize("training", [True, False])
def test_chunks_change_nothing_but_memory(training):
    x, y, noise = torch.rand(3, 1, 28, 28), torch.arange(3), torch.rand(7, 3, 4)
    whole = pstn.nn.mnist_pstn(var_init=0.0).train(training)
    whole.classifier.head[2].p = 0.0
    results = []
    for chunk_size in (None, 1, 3, 7, 20):
        whole.chunk_size = chunk_size
        whole.zero_grad()
        p = whole(x, noise=noise)
        pstn.elbo_loss(p, y, kl_weight=1e-3).backward()
        results.append((p.sample_log_probs.detach(), [q.grad.clone() for q in whole.parameters()]))
    for log_probs, gradients in results[1:]:
        torch.testing.assert_close(log_probs, results[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, results[0][1], rtol=1e-3, atol=1e-5)


def test_a_hook_on_the_layer_hears_of_every_batch_whatever_its_size():
    model, heard = pstn.nn.mnist_pstn().eval(), []
    model.layer.register_forward_hook(lambda layer, given, output: heard.append(len(given[0])))
    with torch.no_grad():
        for size in (2, 50, 51, 120):
            model(torch.rand(size, 1, 28, 28))
    assert heard == [2, 50, 51, 120]


def test_chunks_bound_the_memory_kept_for_the_backward_pass():
    def kept(samples, chunk_size):
        storages = {}

        def note(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(0)
        model = pstn.nn.mnist_pstn()
        model.classifier.head[2].p = 0.0
        model.chunk_size = chunk_size
        call, y, noise = model, torch.arange(4), torch.rand(samples, 4, 4)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            prediction = call(torch.rand(4, 1, 28, 28), noise=noise)
        pstn.elbo_loss(prediction, y, kl_weight=1e-3).backward()
        return sum(storages.values()), [p.grad for p in model.parameters()]

    (whole, expected), (chunked, gradients) = kept(32, None), kept(32, 2)
    assert whole > 10 * chunked
    assert chunked < 2 * kept(4, 2)[0]
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-5)


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's CPU compiler needs a C++ compiler")


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=[pytest.mark.slow, needs_compiler])])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of torch itself
def test_dropout_is_the_same_when_a_chunk_is_recomputed(compiled):
    model = pstn.nn.mnist_pstn(var_init=0.0).double().train()
    model.chunk_size = 2
    torch.compiler.reset()
    call = torch.compile(model, fullgraph=True) if compiled else model
    x, y, noise = torch.rand(3, 1, 28, 28).double(), torch.arange(3), torch.rand(4, 3, 4).double()

    def loss():
        torch.manual_seed(11)
        return pstn.elbo_loss(call(x, noise=noise), y, kl_weight=1e-3)

    loss().backward()
    weight = model.classifier.head[0].weight  # before the dropout: its gradient has zeros where that dropped
    largest = divmod(int(weight.grad.abs().argmax()), weight.shape[1])
    gradient, change = weight.grad[largest].item(), []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight[largest] += step
        change.append(loss().item())  # with gradients, as the compiler's random numbers are others without
    assert gradient == pytest.approx((change[0] - change[1]) / 2e-5, rel=1e-4)


def test_parameter_groups():
    model = pstn.nn.mnist_pstn()
    localizer, classifier = model.parameter_groups(lr=1e-2, localizer_factor=0.1, weight_decay=0.01)
    assert localizer["lr"] == pytest.approx(1e-3)
    assert classifier["lr"] == 1e-2
    assert sum(p.numel() for g in (localizer, classifier) for p in g["params"]) == 26_662
    assert localizer["weight_decay"] == 0.01
    with pytest.raises(ValueError, match="localizer_factor must"):
        model.parameter_groups(lr=1e-2, localizer_factor=0.0)


def test_source_of_a_higher_resolution():
    layer = pstn.SpatialTransformer(pstn.Similarity(), pstn.nn.ConvLocalizer(1, (28, 28)), size=(28, 28))
    model = pstn.PSTN(layer, pstn.nn.ConvClassifier(3, (28, 28), classes=5)).eval()
    assert model(torch.rand(2, 1, 28, 28), source=torch.rand(2, 3, 100, 80)).log_probs.shape == (2, 5)
    with pytest.raises(ValueError, match="x must"):
        model(torch.rand(2, 1, 28, 28))
    foreign = pstn.PSTN(layer, nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()))
    with pytest.raises(RuntimeError, match=r"3 channels.*\nin the classifier"):
        foreign(torch.rand(2, 1, 28, 28))


def test_parameters_shared_by_localizer_and_classifier_are_in_one_group():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = pstn.wrap(nn.Sequential(body, nn.Linear(4, 3)), localizer=body, freeze=False)
    torch.optim.Adam(model.parameter_groups(lr=1e-3))
    localizer, classifier = model.parameter_groups(lr=1e-3)
    assert {id(p) for p in body.parameters()} <= {id(p) for p in localizer["params"]}
    assert len(classifier["params"]) == 2


class Returns(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


ENDS_IN_SOFTMAX = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)))
test_bad_settings_are_named = refused(
    (lambda: pstn.PSTN(nn.Flatten(), nn.Flatten()), TypeError, "layer must"),
    (lambda: pstn.PSTN(pstn.nn.mnist_pstn().layer, len), TypeError, "classifier must"),
    (lambda: pstn.PSTN(pstn.nn.mnist_pstn().layer, nn.Flatten(), 0), ValueError, "train_samples must"),
    (lambda: pstn.PSTN(pstn.nn.mnist_pstn().layer, nn.Flatten(), 1, 0), ValueError, "test_samples must"),
    (lambda: pstn.PSTN(pstn.nn.mnist_pstn().layer, nn.Flatten(), chunk_size=0), ValueError, "chunk_size must"),
    (lambda: pstn.STN(pstn.nn.mnist_pstn().layer, nn.Flatten()), ValueError, "probabilistic=False"),
    (lambda: pstn.PSTN(pstn.nn.mnist_pstn().layer, ENDS_IN_SOFTMAX), ValueError, "must return logits"),
    (lambda: pstn.STN(pstn.nn.mnist_stn().layer, ENDS_IN_SOFTMAX), ValueError, "must return logits"),
    (lambda: pstn.nn.ConvClassifier(1, (28, 28), 10, kernel=0), ValueError, "kernel must"),
    (lambda: pstn.nn.SeriesLocalizer(1, filters=(3, 4)), ValueError, "kernels must"),
    (lambda: pstn.nn.SeriesLocalizer(1, (), ()), ValueError, "filters must"),
    (lambda: pstn.nn.SeriesLocalizer(1, (3,), (0,)), ValueError, r"kernels\[0\] must"),
)


@pytest.mark.parametrize(
    "output", [torch.rand(2, 3, 4), torch.rand(3, 4), {"logits": 1}, torch.full((2, 3), torch.nan)]
)
def test_a_classifier_that_returns_no_logits_is_named(output):
    model = pstn.PSTN(pstn.nn.mnist_pstn().layer, Returns(output))
    with pytest.raises(ValueError, match=r"(classifier|logits) must"):
        model(torch.rand(2, 1, 28, 28))


def test_a_prediction_for_many_inputs_is_the_same_as_for_each():
    """On a CPU many samples are classified in portions: nobody may notice."""
    model = pstn.nn.mnist_pstn(fill=0.3).eval()
    x, noise = torch.rand(251, 1, 28, 28), torch.rand(3, 251, 4)
    sizes = []
    model.classifier.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    with torch.no_grad():
        together = model(x, noise=noise)
        assert sizes == [251, 251, 251]
        parts = [model(x[i : i + 60], noise=noise[:, i : i + 60]) for i in range(0, 251, 60)]
    torch.testing.assert_close(together.log_probs, torch.cat([p.log_probs for p in parts]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.theta, torch.cat([p.theta for p in parts], dim=1), rtol=1e-5, atol=1e-6)
    with_gradient = model(x[:5], noise=noise[:, :5])
    torch.testing.assert_close(with_gradient.log_probs.detach(), together.log_probs[:5], rtol=1e-4, atol=1e-5)
