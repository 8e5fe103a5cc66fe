"""The population trainer: the same steps together, alone, and as a plain loop over one model takes them."""

import copy

import pytest
import torch
from torch import nn

import pstn
from pstn.training import Member, Population, RandomPlacement, RandomRotation, Recipe, make_members

# Sums of float32 are taken in another order when models are stacked. Adam turns any gradient, however small, into a
# step of full size, even one that is zero but for rounding (a bias in front of batch norm): EPS keeps such steps small.
# A parameter moves by about 4e-3 in the four steps compared.
TOLERANCE, EPS = 2e-5, 1e-5


def small_cnn() -> nn.Module:
    return pstn.nn.ConvClassifier(1, (12, 12), classes=4, filters=(3, 4), hidden=6, kernel=3)


def small_layer(**options) -> pstn.SpatialTransformer:
    localizer = pstn.nn.ConvLocalizer(1, (12, 12), filters=(2, 3), kernel=3)
    return pstn.SpatialTransformer(pstn.Similarity(), localizer, **options)


def small_pstn() -> pstn.PSTN:
    return pstn.PSTN(small_layer(), small_cnn())


def small_stn() -> pstn.STN:
    return pstn.STN(small_layer(probabilistic=False), small_cnn())


def series_pstn() -> pstn.PSTN:
    localizer = pstn.nn.SeriesLocalizer(1, filters=(6, 5, 4), kernels=(7, 5, 3))
    layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), localizer, size=(24,))
    classifier = pstn.nn.SeriesClassifier(1, classes=3, filters=(5, 6, 6, 5, 4), kernels=(7, 7, 5, 5, 3))
    return pstn.PSTN(layer, classifier, train_samples=3)


def images(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 12, 12, generator=generator), torch.arange(count) % 4


def series(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 24, generator=generator), torch.arange(count) % 3


def seeded(make, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def largest_difference(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((p.double() - q.double()).abs().max()) for p, q in pairs)


def plain_loop(model: nn.Module, x, y, member: Member, recipe: Recipe, steps: int) -> nn.Module:
    """The same training with autograd and torch.optim, for one model; noise is taken from the trainer's streams."""
    population = Population([model], x, y, [member], recipe)
    noise, spe = population.groups[0], population.steps_per_epoch
    model = copy.deepcopy(model).train()
    if isinstance(model, (pstn.PSTN, pstn.STN)):
        groups = model.parameter_groups(
            member.lr, localizer_factor=member.localizer_lr, weight_decay=member.weight_decay
        )
    else:
        groups = [{"params": model.parameters(), "lr": member.lr, "weight_decay": member.weight_decay}]
    optimiser = torch.optim.Adam(groups, eps=recipe.eps)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, recipe.lr_step or 10**9, recipe.lr_gamma)
    masks: list[torch.Tensor] = []

    def drop(module: nn.Dropout, args, output):
        return args[0] * (masks.pop(0) >= module.p) / (1 - module.p)

    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(drop)
    for step in range(steps):
        drawn = noise.draw(step, 1).step(0)
        optimiser.zero_grad()
        for part in range(recipe.accumulate):
            masks = [u[0, part] for u in drawn.dropout]
            index = drawn.examples[0, part]
            xb = x[index] if recipe.augment is None else recipe.augment(x[index], drawn.augment[0, part])
            if isinstance(model, (pstn.PSTN, pstn.STN)):
                options = {} if drawn.theta is None else {"noise": drawn.theta[0, part]}
                loss = pstn.elbo_loss(model(xb, **options), y[index], member.kl_weight)
            else:
                loss = nn.functional.cross_entropy(model(xb), y[index])
            (loss / recipe.accumulate).backward()
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimiser.step()
        if (step + 1) % spe == 0:
            schedule.step()
    return model.eval()


def recipe(epochs: int = 2, batch_size: int = 8, **options) -> Recipe:
    return Recipe(epochs=epochs, batch_size=batch_size, eps=EPS, **options)


CASES = {
    "pstn": (small_pstn, images, recipe()),
    "stn": (small_stn, images, recipe()),
    "cnn": (small_cnn, images, recipe()),
    "batch norm": (series_pstn, series, recipe()),
    "schedule": (small_cnn, images, recipe(epochs=3, batch_size=20, lr_step=1)),
    "accumulated": (small_pstn, images, recipe(epochs=3, accumulate=2)),
    "clipped": (small_pstn, images, recipe(clip_norm=0.1)),
    "samples": (small_pstn, images, recipe(samples=3)),
    "rotated": (small_cnn, images, recipe(augment=RandomRotation())),
}


@pytest.mark.parametrize("case", CASES)
def test_takes_the_steps_of_a_plain_loop(case):
    make, data, recipe = CASES[case]
    (x, y), model = data(), seeded(make, 0)
    member = Member(seed=5, kl_weight=1e-3, weight_decay=0.01)
    with Population([model], x, y, [member], recipe) as population:
        steps = min(4, population.total_steps)
        population.fit(until=steps)
        (trained,) = population.models()
    assert largest_difference(trained, plain_loop(model, x, y, member, recipe, steps)) < TOLERANCE


@pytest.mark.parametrize("case", ["pstn", "cnn", "batch norm"])
@pytest.mark.parametrize("groups", [1, 2])
def test_together_equals_alone(case, groups):
    make, data, _ = CASES[case]
    x, y = data()
    models = [seeded(make, i) for i in range(3)]
    subsets = [torch.arange(40), torch.arange(5, 38), torch.arange(0, 40).flip(0)[:35]]
    members = make_members(3, seed=[7, 8, 9], kl_weight=[0.0, 1e-3, 1e-2], lr=[1e-3, 3e-4, 1e-3], train=subsets)
    shared = recipe(steps_per_epoch=4)
    together = Population(models, x, y, members, shared, groups=groups, workers=False)
    together.fit(until=4)
    for model, member, trained in zip(models, members, together.models(), strict=True):
        alone = Population([model], x, y, [member], shared)
        alone.fit(until=4)
        assert largest_difference(trained, alone.models()[0]) < TOLERANCE


def test_cutting_a_run_into_calls_changes_nothing():
    x, y = images()
    models = [seeded(small_pstn, i) for i in range(2)]
    whole = Population(models, x, y, recipe=Recipe(epochs=2), groups=1)
    whole.fit()
    cut = Population(models, x, y, recipe=Recipe(epochs=2), groups=1)
    for until in (1, 3, 7, 10):
        cut.fit(until=until)
    assert all(torch.equal(a, b) for a, b in zip(whole.tensors().values(), cut.tensors().values(), strict=True))


@pytest.mark.parametrize("case", ["pstn", "batch norm", "accumulated"])
def test_tracing_changes_no_bit(case, monkeypatch):
    make, data, recipe = CASES[case]
    (x, y), models = data(), [seeded(make, i) for i in range(2)]
    plain = Population(models, x, y, recipe=recipe, groups=1)
    plain.fit(until=4)
    monkeypatch.setattr("pstn.training.runners._TRACE_AFTER", 1)
    traced = Population(models, x, y, recipe=recipe, groups=1)
    traced.fit(until=4)
    assert all(torch.equal(a, b) for a, b in zip(plain.tensors().values(), traced.tensors().values(), strict=True))


@pytest.mark.slow
def test_processes_of_their_own_change_no_bit():
    x, y = images(16)
    models, rows = [seeded(small_pstn, i) for i in range(3)], []
    for workers in (False, True):
        with Population(models, x, y, recipe=recipe(epochs=30), groups=2, workers=workers) as population:
            population.fit()
            rows.append(population.tensors())
    assert all(torch.equal(a, b) for a, b in zip(rows[0].values(), rows[1].values(), strict=True))


def test_frozen_parts_stay_and_shared_ones_are_held_once():
    x, y = images(16)
    classifier = seeded(small_cnn, 0)
    models = [pstn.wrap(copy.deepcopy(classifier), in_channels=1) for _ in range(2)]
    population = Population(models, x, y, make_members(2, lr=1e-2), Recipe(epochs=1, batch_size=8), groups=1)
    assert all(name.startswith("layer.") for name in population.groups[0].stack.names)
    assert any(name.startswith("classifier.") for name in population.groups[0].stack.shared)
    population.fit()
    trained = population.models()[0]
    assert largest_difference(trained.classifier.module, classifier) == 0
    assert largest_difference(trained.layer, models[0].layer) > 1e-4


def test_a_broken_model_leaves_its_neighbours_untouched():
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(3)]
    members, recipe = make_members(3, kl_weight=1e-3), Recipe(epochs=3, batch_size=8)
    healthy = Population(models, x, y, members, recipe, groups=1)
    healthy.fit()
    hurt = Population(models, x, y, members, recipe, groups=1)
    hurt.fit(until=3)
    before = hurt.models()[1]
    with torch.no_grad():  # a weight of infinity makes the mean head's output NaN at the next step
        at = hurt.groups[0].stack.offsets[hurt.groups[0].stack.names.index("layer.mean_head.last.bias")]
        hurt.groups[0].state.rows[1, at] = float("inf")
    hurt.fit()
    for i in (0, 2):
        assert largest_difference(hurt.models()[i], healthy.models()[i]) == 0
    assert hurt.alive == [True, False, True]
    (failure,) = hurt.progress.failures
    assert (failure.model, failure.step) == (1, 3)
    assert "mean_head" in failure.found
    hurt.groups[0].state.rows[1, at] = before.layer.mean_head.last.bias[0]
    assert largest_difference(hurt.models()[1], before) == 0


def test_an_exploding_loss_reports_step_head_and_theta():
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(2)]
    population = Population(models, x, y, make_members(2, kl_weight=[0.0, 1.0]), Recipe(epochs=1, loss_limit=100.0))
    population.fit()
    (failure,) = population.progress.failures
    assert (failure.model, failure.step) == (1, 0)
    assert failure.loss > 100
    assert "Theta's mean over the batch was (0, 1, 0, 0)" in str(failure)
    assert "exceeded its limit" in str(failure)


def test_early_stopping_is_per_model_and_keeps_the_best():
    x, y = images(24)
    models = [seeded(small_cnn, i) for i in range(2)]
    train, valid = torch.arange(16), torch.arange(16, 24)
    members = make_members(2, lr=[1e-9, 1e-3], train=train, valid=valid)
    population = Population(models, x, y, members, Recipe(epochs=8, batch_size=8, patience=2), groups=1)
    progress = population.fit()
    losses = torch.tensor([entry["valid_nll"] for entry in progress.history])
    assert progress.best == pytest.approx(losses.min(0).values.tolist())
    stopped = [i for i, alive in enumerate(population.alive) if not alive]
    assert stopped, "random labels: somebody must stop improving"
    with torch.no_grad():
        nll = float(nn.functional.cross_entropy(population.models()[stopped[0]](x[valid]), y[valid]))
    assert nll == pytest.approx(progress.best[stopped[0]], abs=1e-5)


def test_precision_switches_are_put_back():
    from pstn.training.group import precision_flags

    cuda = torch.backends.cuda.matmul
    before = (cuda.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)
    with precision_flags(Recipe(precision="tf32"), tune=True):
        assert (cuda.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == (True, True, True)
    assert (cuda.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_bf16_trains_close_to_float32():
    x, y = images(16)
    model = seeded(small_pstn, 0)
    losses = {}
    for precision in ("float32", "bf16"):
        population = Population([model], x, y, recipe=Recipe(epochs=4, precision=precision))
        losses[precision] = [entry["loss"][0] for entry in population.fit().history]
    assert losses["bf16"] != losses["float32"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.02)


def test_placement_puts_images_where_the_noise_says():
    x = torch.rand(2, 1, 4, 4)
    placed = RandomPlacement(12, span=8, fill=-1.0)(x, torch.tensor([[0.0, 0.999], [0.5, 0.25]]))
    assert torch.equal(placed[0, :, 0:4, 7:11], x[0])
    assert torch.equal(placed[1, :, 4:8, 2:6], x[1])
    assert int((placed != -1).sum()) == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": [Member()]}, "one entry for each of 2 models"),
        ({"y": torch.zeros(40)}, "y must be int64"),
        ({"recipe": Recipe(batch_size=64)}, "must not exceed the smallest training subset"),
        ({"members": [Member(train=torch.arange(50)), Member()]}, "must index 40 examples"),
        ({"models": [small_cnn(), small_pstn()]}, "must have one shape"),
        ({"groups": 3}, "between 1 and the number of models"),
        ({"members": [Member(train=torch.arange(8)), Member()]}, "pass steps_per_epoch"),
    ],
)
def test_refuses_what_cannot_train_together(change, message):
    x, y = images()
    arguments = {"models": [small_cnn(), small_cnn()], "x": x, "y": y, **change}
    with pytest.raises(ValueError, match=message):
        Population(**arguments)


def test_models_that_draw_their_own_noise_are_refused():
    x, y = images(8)
    model = nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(784, 10))
    with pytest.raises(ValueError, match="draws random numbers by itself"):
        Population([model], x, y)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 3, 5),
        nn.Conv2d(2, 3, (3, 4), stride=2, padding=1, bias=False),
        nn.Conv1d(2, 3, 8, padding="same"),
        nn.Conv1d(2, 3, 3, padding="valid"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolution_as_a_matrix_product_is_the_same(conv):
    from torch.func import functional_call, grad, vmap

    from pstn.training.convolution import MatmulConv

    torch.manual_seed(0)
    x = torch.randn(3, 4, 2, *[11] * (conv.weight.dim() - 2))
    stacked = {k: torch.stack([p.detach() + i for i in range(3)]) for k, p in conv.named_parameters()}

    def loss(module):
        return lambda p, x: functional_call(module, p, (x,)).sin().sum()

    expected = vmap(grad(loss(conv), argnums=(0, 1)))(stacked, x)
    found = vmap(grad(loss(MatmulConv(conv)), argnums=(0, 1)))(stacked, x)
    for name in stacked:
        torch.testing.assert_close(found[0][name], expected[0][name], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["pstn", "batch norm"])
def test_both_kinds_of_convolution_take_the_same_steps(case):
    make, data, recipe = CASES[case]
    (x, y), models = data(), [seeded(make, i) for i in range(2)]
    rows = []
    for conv in ("library", "matmul"):
        population = Population(models, x, y, recipe=recipe, groups=1, conv=conv)
        population.fit(until=4)
        rows.append(population.models()[1])
    assert largest_difference(*rows) < TOLERANCE


def test_weights_count_examples_as_often_as_they_say():
    x, y = images(8)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    weights = torch.tensor([2.0, 2, 2, 2, 0, 0, 0, 0])
    weighted = Population([linear], x, y, recipe=Recipe(epochs=5, batch_size=8), weights=weights)
    halved = Population([linear], x[:4], y[:4], recipe=Recipe(epochs=5, batch_size=4))
    weighted.fit()
    halved.fit()
    assert largest_difference(weighted.models()[0], linear) > 1e-3
    assert largest_difference(weighted.models()[0], halved.models()[0]) < 1e-6


@pytest.mark.parametrize("count", [1, 2])
def test_an_example_of_weight_zero_changes_nothing(count):
    x, y = images(16)
    weights = (torch.arange(16) % 2).float()
    other = torch.where(weights[:, None, None, None] > 0, x, 1 - x)
    trained = []
    for data in (x, other):
        models = [seeded(small_pstn, seed) for seed in range(count)]
        members = make_members(count, kl_weight=0.1)
        population = Population(models, data, y, members, Recipe(epochs=3, batch_size=8), weights=weights, groups=1)
        population.fit()
        trained.append(population.models())
    assert all(largest_difference(a, b) < 1e-6 for a, b in zip(*trained, strict=True))
    unweighted = Population([seeded(small_pstn, 0)], x, y, make_members(1, kl_weight=0.1), Recipe(3, 8))
    unweighted.fit()
    assert largest_difference(unweighted.models()[0], trained[0][0]) > 1e-4


@pytest.mark.parametrize("weights", [torch.ones(7), torch.ones(8).long(), -torch.ones(8), torch.full((8,), torch.nan)])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be"):
        Population([small_cnn()], *images(8), weights=weights)
