"""One model and a loader: `pstn.fit` and `pstn.evaluate`."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import pstn
from pstn.data import Split
from pstn.training import Member, Population, Recipe
from pstn.training import fit as fitting
from refusals import refused


def bars(count=64):
    """Upright and lying bars, and their class: nothing that a small network cannot learn in a second."""
    y = torch.arange(count) % 2
    x = torch.zeros(count, 1, 12, 12)
    for i, lying in enumerate(y.tolist()):
        bar = x[i, 0] if lying else x[i, 0].T
        bar[3 + i // 2 % 6, 1:11] = 1.0
    return x, y


def classifier(dropout=0.0):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(150, 2)
    )


def wrapped(net, **options):
    return pstn.wrap(net, "rotation", in_channels=1, localizer_size=(16, 16), var_init=-2.0, **options)


def loader(batch_size=16):
    return DataLoader(TensorDataset(*bars()), batch_size=batch_size, shuffle=True)


def quiet_fit(model, data, **options):
    """Fit for a moment: too short to move the localizer, of which the watchdog warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The transformation is the identity")
        return pstn.fit(model, data, **options)


def test_a_plain_classifier_learns_and_comes_back_ready_for_use():
    net = classifier()
    losses = []
    assert pstn.fit(net, loader(), epochs=6, lr=1e-2, on_epoch=lambda epoch: losses.append(epoch.loss)) is net
    assert losses[-1] < losses[0] / 2
    assert not net.training
    assert pstn.evaluate(net, loader()).accuracy > 0.95


def test_a_wrapped_classifier_learns_to_turn_what_it_gets_and_the_classifier_stays_as_it_was():
    net = pstn.fit(classifier(dropout=0.5), loader(), epochs=6, lr=1e-2)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x, y = bars()
    turned = Split(pstn.warp(x, pstn.Rotation().grid(torch.ones(64, 1), (12, 12))), y, ("upright", "lying"))
    model = pstn.fit(wrapped(net, train_samples=4), turned, epochs=30, lr=1e-2, localizer_factor=1.0, batch_size=16)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert pstn.evaluate(net, turned).accuracy < 0.7
    assert pstn.evaluate(model, turned).accuracy > 0.9


def test_the_localizer_learns_slowly_beside_a_classifier_and_faster_alone(monkeypatch):
    seen = []
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda groups, **options: seen.append(groups) or adam(groups, **options))
    quiet_fit(wrapped(classifier(), freeze=False), loader(64), epochs=1, lr=1e-2)
    quiet_fit(wrapped(classifier(), freeze=True), loader(64), epochs=1, lr=1e-2)
    quiet_fit(wrapped(classifier(), freeze=True), loader(64), epochs=1, lr=1e-2, localizer_factor=0.5)
    rates = [{group["name"]: group["lr"] for group in groups} for groups in seen]
    assert rates == [{"localizer": 8e-5, "classifier": 1e-2}, {"localizer": 1e-3}, {"localizer": 5e-3}]


def test_what_was_seen_is_reported_each_epoch_and_may_stop_training():
    epochs = []

    def after_two(epoch):
        epochs.append(epoch)
        return epoch.number == 2

    quiet_fit(wrapped(classifier()), loader(), epochs=5, kl_weight=0.5, on_epoch=after_two)
    assert [epoch.number for epoch in epochs] == [1, 2]
    for epoch in epochs:
        assert epoch.loss == pytest.approx(epoch.nll + 0.5 * epoch.kl, rel=1e-5)
        assert 0 <= epoch.accuracy <= 1


def test_collapses_are_warned_of():
    with pytest.warns(UserWarning, match="identity for every input"):
        pstn.fit(wrapped(classifier()), loader(), epochs=1, lr=1e-9)


X, Y = bars()


@pytest.mark.parametrize(
    ("error", "message", "data"),
    [
        (ValueError, "data must last 2 passes", iter([(X, Y)])),
        (ValueError, "data holds no batches", []),
        (TypeError, "data must hold batches", [{"image": X, "label": Y}]),
        (TypeError, "data must hold batches", [X, Y]),
        (TypeError, "data must hold batches", [(X, ["up"] * 64)]),
        (TypeError, "data must hold batches", list(zip(X, Y, strict=True))),
        (TypeError, r"pass data\.as_float", Split((X * 255).byte(), Y, ("upright", "lying"))),
        (TypeError, "x must be a floating-point tensor", ((X * 255).byte(), Y)),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(error, message, data):
    with pytest.raises(error, match=message):
        pstn.fit(classifier(), data, epochs=2)


test_settings_that_cannot_be_are_refused = refused(
    (lambda: pstn.fit(classifier(), loader(), epochs=0), ValueError, "epochs"),
    (lambda: pstn.fit(wrapped(classifier()), loader(), kl_weight=-1.0), ValueError, "kl_weight"),
    (lambda: pstn.fit(wrapped(classifier()), bars(), kl_weight="best"), ValueError, "kl_weight"),
    (lambda: pstn.fit(classifier(), bars(), kl_weight="auto"), ValueError, "kl_weight"),
    (lambda: pstn.fit(pstn.nn.mnist_stn(), bars(), kl_weight="auto"), ValueError, "kl_weight"),
    (lambda: pstn.fit(classifier().requires_grad_(False), loader()), ValueError, "model"),
    (lambda: pstn.fit(len, loader()), TypeError, "model"),
    (lambda: pstn.fit(classifier(), loader(), capture=True), ValueError, "capture"),
    (lambda: pstn.fit(in_chunks(), bars(), capture=True), ValueError, "chunk_size"),
)


def in_chunks():
    model = wrapped(classifier())
    model.chunk_size = 1
    return model


@pytest.mark.parametrize("probabilistic", [True, False])
def test_scores_are_those_of_the_metrics_and_the_mode_stays(probabilistic):
    x, y = bars()
    model = wrapped(classifier()).train() if probabilistic else classifier().train()
    (model.layer if probabilistic else model[1]).eval()  # a part that its owner keeps so
    modes = [module.training for module in model.modules()]
    options = {"generator": torch.Generator().manual_seed(1)} if probabilistic else {}
    scores = pstn.evaluate(model, [(x, y)], **options)
    assert [module.training for module in model.modules()] == modes
    with torch.no_grad():
        if probabilistic:
            log_probs = model.eval()(x, generator=torch.Generator().manual_seed(1)).log_probs
        else:
            log_probs = model.eval()(x).log_softmax(-1)
    assert scores.accuracy == pytest.approx(float(pstn.accuracy(log_probs, y)))
    assert scores.nll == pytest.approx(float(pstn.negative_log_likelihood(log_probs, y)))
    assert scores.calibration_error == pytest.approx(float(pstn.calibration_error(log_probs.exp(), y)))


def test_a_set_with_all_its_parts_is_refused_as_walking_it_would_train_on_the_test_part():
    part = Split(*bars(), ("upright", "lying"))
    for use in (pstn.fit, pstn.evaluate):
        with pytest.raises(TypeError, match=r"pass one of them, such as data\.train"):
            use(classifier(), pstn.data.Splits(part, None, part))


def test_a_tuple_of_tensors_is_a_set():
    net = quiet_fit(classifier(), bars(), epochs=6, lr=1e-2, batch_size=16)
    assert pstn.evaluate(net, bars()) == pstn.evaluate(net, [bars()])
    assert pstn.evaluate(net, bars()).accuracy > 0.95
    scores = pstn.evaluate(pstn.nn.mnist_cnn(), pstn.data.load_digits("test"))
    assert scores.accuracy < 0.5


def test_a_data_loader_takes_a_split():
    part = Split(*bars(), ("upright", "lying"))
    x, y = next(iter(DataLoader(part, batch_size=8)))
    assert torch.equal(x, part.x[:8])
    assert torch.equal(y, part.y[:8])
    made = pstn.data.generate(part, pstn.data.RandomRotation(), seed=0)
    assert torch.equal(next(iter(DataLoader(made, batch_size=8)))[0], made.batch(range(8)).x)


def finite_value_infinite_gradient(prediction, y):
    """0, with a gradient that is not finite: the square root has none at 0."""
    return (0 * prediction.float()).sum().sqrt()


def infinite_value_finite_gradient(prediction, y):
    return prediction.float().sum() + math.inf


@pytest.mark.parametrize("loss", [finite_value_infinite_gradient, infinite_value_finite_gradient])
def test_a_loss_or_a_gradient_alone_that_is_not_finite_stops_training(loss):
    net = classifier()
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(FloatingPointError, match="epoch 1, batch 1"):
        pstn.fit(net, loader(), loss=loss, epochs=1)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def finite_in_three_batches(prediction, y):
    """Of batches of 16 out of 64 examples, the fourth has a loss that is infinite."""
    return nn.functional.cross_entropy(prediction.float(), y % 2) / (y < 48).all()


BATCHES = [(X[i], Y[i] + i // 2 * 2) for i in torch.arange(64).split(16)]  # labels tell the batches apart


def many_steps_at_a_time(monkeypatch, count):
    """As on a GPU: figures are read every so many steps, and the optimiser is fused."""
    monkeypatch.setitem(fitting._READ_EVERY, "cpu", count)
    make = fitting.make_optimiser
    monkeypatch.setattr(fitting, "make_optimiser", lambda *given, fused: make(*given, fused=True))


@pytest.mark.parametrize("count", [3, 4, 50])
def test_steps_whose_figures_are_read_later_are_the_same(monkeypatch, count):
    found = []
    for block in (1, count):
        with monkeypatch.context() as patch:
            many_steps_at_a_time(patch, block)
            torch.manual_seed(0)
            epochs = []
            net = quiet_fit(wrapped(classifier()), bars(), epochs=3, batch_size=10, on_epoch=epochs.append)
            found.append((epochs, net.state_dict()))
    assert [e._replace(loss=0, nll=0) for e in found[0][0]] == [e._replace(loss=0, nll=0) for e in found[1][0]]
    assert [e.loss for e in found[0][0]] == pytest.approx([e.loss for e in found[1][0]], rel=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(found[0][1].values(), found[1][1].values(), strict=True))


def test_a_step_that_fails_changes_no_weight_however_late_that_is_read(monkeypatch):
    start, weights = classifier(), []
    many_steps_at_a_time(monkeypatch, 1)
    good = pstn.fit(copy.deepcopy(start), BATCHES[:3], loss=finite_in_three_batches, epochs=1, weight_decay=0.1)
    many_steps_at_a_time(monkeypatch, 50)
    for data in ([*BATCHES, *BATCHES[:3]], BATCHES):
        net = copy.deepcopy(start)
        with pytest.raises(FloatingPointError, match=r"loss is inf .* in epoch 1, batch 4:"):
            pstn.fit(net, data, loss=finite_in_three_batches, epochs=1, weight_decay=0.1)
        weights.append(list(net.parameters()))
    for found in weights:
        assert all(torch.equal(a, b) for a, b in zip(found, good.parameters(), strict=True))


def test_after_the_first_epoch_nothing_waits_for_a_device(monkeypatch):
    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[-1] += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    many_steps_at_a_time(monkeypatch, 50)
    counts, model = [0], wrapped(classifier(), freeze=False)
    with Reads():
        quiet_fit(model, bars(), epochs=3, batch_size=8, on_epoch=lambda epoch: counts.append(0))
    first, second, third, _ = counts
    assert first >= 8
    assert second == third == 0


def test_captured_training_is_a_population_of_one():
    torch.manual_seed(1)
    start = wrapped(classifier(dropout=0.5), freeze=False)
    options = {"epochs": 6, "batch_size": 20, "lr": 1e-2, "clip_norm": 1.0, "weight_decay": 0.01}
    schedule = {"kl_weight": lambda done: 1e-3 * done, "lr_schedule": pstn.training.one_cycle}
    torch.manual_seed(2)
    seed, epochs = int(torch.randint(2**31, ())), []
    torch.manual_seed(2)
    model = quiet_fit(copy.deepcopy(start), bars(), **options, **schedule, capture=True, on_epoch=epochs.append)
    recipe = Recipe(6, 20, clip_norm=1.0, lr_schedule=pstn.training.one_cycle)
    member = Member(seed, lr=1e-2, kl_weight=schedule["kl_weight"], weight_decay=0.01)
    with Population([start], *bars(), [member], recipe) as population:
        history = population.fit().history
        expected = population.models()[0]
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), expected.state_dict().values(), strict=True)
    )
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters(), strict=True))
    assert [(e.number, e.loss, e.kl) for e in epochs] == [(h["epoch"], h["loss"][0], h["kl"][0]) for h in history]
    assert not model.training
    torch.manual_seed(2)
    again = quiet_fit(copy.deepcopy(start), bars(), **options, **schedule, capture=True)  # several epochs at a time
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_captured_step_that_fails_is_named_and_changes_no_weight():
    def loss(prediction, y):
        return prediction.float().sum() / (prediction.float().abs().sum() < 1e-3)

    net = classifier()
    before = copy.deepcopy(list(net.parameters()))
    with pytest.raises(FloatingPointError, match="epoch 1, batch 1:"):
        pstn.fit(net, bars(), loss=loss, epochs=2, batch_size=16, capture=True)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_clipping_bounds_the_step_and_weight_decay_pulls_to_zero():
    """With plain gradient descent in place of Adam, whose steps do not depend on the gradient's size."""
    steps = {}
    for clip_norm in (None, 1e-3):
        net = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
        seen = []
        net[1].weight.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p))
        pstn.fit(net, loader(), epochs=1, clip_norm=clip_norm)
        steps[clip_norm] = float(torch.cat([p.grad.flatten() for p in net.parameters()]).norm())
    assert steps[1e-3] <= 1.001e-3 < steps[None]
    decayed, plain = nn.Sequential(nn.Flatten(), nn.Linear(144, 2)), nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
    plain.load_state_dict(decayed.state_dict())
    for net, weight_decay in ((decayed, 10.0), (plain, 0.0)):
        pstn.fit(net, bars(), epochs=20, batch_size=16, weight_decay=weight_decay, lr=1e-2)
    assert decayed[1].weight.norm() < plain[1].weight.norm() / 2


def test_an_epoch_is_the_mean_over_examples_not_over_batches():
    x, y = bars(24)
    seen = []

    def own_loss(prediction, y):
        return 0 * prediction.sum() + y.float().mean()

    pstn.fit(classifier(), [(x[:16], y[:16] * 0), (x[16:], y[16:] * 0 + 1)], loss=own_loss, epochs=1,
             on_epoch=seen.append)  # fmt: skip
    assert seen[0].loss == pytest.approx(8 / 24)
    assert math.isnan(seen[0].nll)


def test_auto_searches_on_copies_and_trains_with_what_is_best(capsys):
    """What is best is known by the search itself, with the same seed; the model starts from its own weights."""
    start = in_chunks()  # which a population refuses
    members = []

    def loss(prediction, y, *, kl_weight):
        members.append(kl_weight)
        return pstn.elbo_loss(prediction, y, kl_weight=kl_weight)

    torch.manual_seed(3)
    model = quiet_fit(copy.deepcopy(start), bars(), epochs=2, batch_size=16, kl_weight="auto", loss=loss)
    assert len(model.tuned.trials) == 12
    assert model.tuned.held_out == 13
    assert model.layer.posterior.alpha == model.tuned.best.alpha
    assert members[-1] == model.tuned.best.kl_weight
    assert str(model.tuned) in capsys.readouterr().err
    assert model.chunk_size == 1
    assert start.layer.posterior.alpha == pstn.defaults.ALPHA
