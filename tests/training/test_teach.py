"""Teaching the pose: aligned inputs warped at random, and a layer that learns what undoes it."""

import copy
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pstn
from pstn.data import (
    Cropped,
    RandomAffine,
    RandomCPAB,
    RandomCrop,
    RandomPlacement,
    RandomRotation,
    RandomSimilarity,
    Split,
)
from pstn.data import RandomTranslation as Shift
from pstn.nn import PoseLocalizer
from pstn.objective import TrainingLoss, elbo_parts, pose_loss
from pstn.training import Member, Population, RandomWarp, Recipe, make_members, one_cycle
from pstn.training.diagnose import failed_models, train_again
from pstn.training.population.recipe import Teaching
from refusals import refused
from small_models import largest_difference, seeded, small_cnn, small_stn


def upright(count: int = 160, seed: int = 0) -> torch.Tensor:
    """A bar with a foot on one side, so that every angle can be told, with some noise."""
    x = torch.zeros(count, 1, 12, 12)
    x[:, 0, 2:7, 5:7] = 1.0
    x[:, 0, 5:7, 7:10] = 0.6
    return x + 0.05 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))


def pointer(transform=None, posterior=None, size=(12, 12)) -> pstn.PSTN:
    localizer = PoseLocalizer(1, size, filters=(8, 16), kernel=3, hidden=32)
    family = pstn.Mixture(2, pstn.StudentT(alpha=2.0, var_init=0.0)) if posterior is None else posterior
    classifier = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    layer = pstn.SpatialTransformer(transform or pstn.Rotation(), localizer, posterior=family, fill=0.1)
    model = pstn.PSTN(layer, classifier)
    model(torch.rand(2, 1, *size))
    return model


def found_error(model: nn.Module, random_transform, x: torch.Tensor, seed: int = 5) -> float:
    """The median distance, over inputs and parameters, from the posterior's mode to what undoes the transform."""
    u = torch.rand(len(x), random_transform.width, generator=torch.Generator().manual_seed(seed))
    warped, theta = Teaching(random_transform, model)(x, u)
    with torch.no_grad():
        difference = model.layer.localize(warped).mode - theta
    circular = torch.tensor(model.layer.transform.circular)
    wrapped = torch.remainder(difference + math.pi, 2 * math.pi) - math.pi
    return float(torch.where(circular, wrapped, difference).abs().median())


few_steps = pytest.mark.filterwarnings("ignore:The transformation is the identity", "ignore:.*The pose was not learned")


def test_a_layer_learns_what_undoes_a_rotation_and_says_how_sure_it_is():
    model, losses = seeded(pointer, 0), []
    assert found_error(model, RandomRotation(), upright(100, 1)) > 1.0
    trained = pstn.fit(
        model, upright(), teach=RandomRotation(), epochs=25, batch_size=20, lr=3e-3, lr_schedule=one_cycle,
        on_epoch=lambda epoch: losses.append(epoch) and None,
    )  # fmt: skip
    assert trained is model
    assert not model.training
    assert found_error(model, RandomRotation(), upright(100, 1)) < 0.15
    assert losses[-1].loss < losses[0].loss - 1.5
    assert all(math.isnan(v) for v in (losses[0].nll, losses[0].kl, losses[0].accuracy))
    warped, theta = Teaching(RandomRotation(), model)(upright(200, 2), torch.rand(200, 1))
    assert float(model.layer.localize(warped).contains(theta, 0.99).float().mean()) > 0.9


@few_steps
def test_the_classifier_is_neither_called_nor_changed():
    model = seeded(pointer, 0)
    before = copy.deepcopy(model.state_dict())
    model.classifier.register_forward_hook(lambda *_: pytest.fail("called"))
    data = (upright(40), torch.zeros(40, dtype=torch.int64))
    pstn.fit(model, data, teach=RandomRotation(), epochs=2, weight_decay=0.1)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.partition(".")[0] for name in changed} == {"layer"}
    assert "layer.localizer.body.0.weight" in changed
    assert all(parameter.requires_grad for parameter in model.parameters())


@few_steps
@pytest.mark.parametrize(
    "data",
    [
        upright(16),
        (upright(16), torch.zeros(16, dtype=torch.int64)),
        Split(upright(16), torch.zeros(16, dtype=torch.int64), ("a",)),
        DataLoader(TensorDataset(upright(16)), batch_size=8),
        DataLoader(TensorDataset(upright(16), torch.zeros(16)), batch_size=8),
        DataLoader(upright(16), batch_size=8),
    ],
    ids=["tensor", "pair", "set", "loader of (x,)", "loader of (x, y)", "loader of x"],
)
def test_aligned_data_comes_with_or_without_labels(data):
    seen = []
    pstn.fit(pointer(), data, teach=RandomRotation(), epochs=1, batch_size=8, on_epoch=seen.append)
    assert math.isfinite(seen[0].loss)


def test_with_labels_and_a_weight_both_losses_are_added():
    model, y, theta = seeded(pointer, 0), torch.arange(20) % 4, torch.linspace(-3, 3, 20)[:, None]
    prediction = model(upright(20))
    made = TrainingLoss(teaches=True, teach_weight=3.0)(prediction, y, 0.5, None, theta)
    task, taught = elbo_parts(prediction, y, 0.5), pose_loss(prediction.posterior, theta).mean()
    torch.testing.assert_close(made, task._replace(total=task.total + 3 * taught))
    before = copy.deepcopy(model.classifier.state_dict())
    pstn.fit(model, (upright(20), y), teach=RandomRotation(), teach_weight=3.0, epochs=1)
    assert not torch.equal(before["1.weight"], model.classifier.state_dict()["1.weight"])


@pytest.mark.parametrize(
    "family",
    [pstn.StudentT(alpha=2.0), pstn.Normal(), pstn.Mixture(3), pstn.Point(), pstn.Gated(pstn.Mixture(2))],
    ids=lambda family: type(family).__name__,
)
def test_the_gradient_of_the_loss_is_that_of_finite_differences(family):
    transform = pstn.Similarity("log")
    starts = {name: start.double() for name, start in family.starts(transform).items()}
    shared = {name: tensor.double() for name, tensor in family.shared(transform).items()}
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    numbers = [
        (start + 0.3 * torch.randn(3, len(start), dtype=torch.float64, generator=generator)).requires_grad_()
        for start in starts.values()
    ]

    def loss(*numbers):
        return pose_loss(family.build(transform, {**dict(zip(starts, numbers, strict=True)), **shared}), theta)

    assert torch.autograd.gradcheck(loss, numbers)


@pytest.mark.parametrize("random_transform", [RandomRotation(), RandomRotation(0.5)])
def test_a_pose_that_was_not_learned_is_reported(random_transform):
    blank = torch.full((8, 1, 12, 12), 0.1)  # as the layer's fill: every pose looks the same
    with pytest.warns(UserWarning, match="The pose was not learned"):
        pstn.fit(pointer(), blank, teach=random_transform, epochs=3, batch_size=8)


def taught_with_restarts(model, **options):
    """The model, and what changed in each restart."""
    settings = {"teach": RandomRotation(), "epochs": 25, "batch_size": 20, "lr": 0.03, **options}
    with pytest.warns(UserWarning, match="The pose was not learned") as said:
        pstn.fit(model, upright(), **settings)
    assert found_error(model, RandomRotation(), upright(100, 1)) < 0.4
    return [str(warning.message).partition("Training starts again with ")[2] for warning in said]


def test_a_pose_that_was_not_learned_is_taught_again_from_a_wide_start_then_slower():
    model = seeded(lambda: pointer(None, pstn.Mixture(1, pstn.StudentT(2.0, var_init=-4.3))), 0)
    said = taught_with_restarts(model)
    assert said == ["a wide start of the variance.", "a learning rate ten times lower."]
    assert model.layer.posterior.base.var_init == 0.0


def test_a_pose_is_taught_again_after_a_step_that_is_not_finite():
    steps = []

    def schedule(progress):
        steps.append(progress)
        return 1e30 if len(steps) == 5 else 1.0

    said = taught_with_restarts(seeded(pointer, 0), lr_schedule=schedule)
    assert said == ["a learning rate ten times lower."]
    assert 5 <= len(steps) - 25 * 8 <= 6
    steps.clear()
    with pytest.raises(ValueError, match="must be finite"):
        pstn.fit(pointer(), upright(), teach=RandomRotation(), lr_schedule=schedule, restarts=0)


def test_members_whose_pose_was_not_learned_are_reported_while_they_train_and_taught_again(monkeypatch):
    monkeypatch.setattr(failed_models, "__defaults__", (80,))  # steps after which a member is looked at
    monkeypatch.setattr("pstn.training.population.step._TRACE_AFTER", 1000)
    blank = torch.full((20, 1, 12, 12), 0.1)
    parts = torch.arange(180).split([160, 20])  # members 1 and 2 see the blank ones
    members = [Member(0, 3e-3, train=parts[0]), Member(1, 3e-3, train=parts[1]), Member(2, 1e30, train=parts[1])]
    recipe = Recipe(epochs=100, batch_size=20, steps_per_epoch=1, teach=RandomRotation())
    models = [seeded(pointer, seed) for seed in range(3)]
    population = Population(models, torch.cat([upright(), blank]), None, members, recipe, groups=1, workers=False)
    with pytest.warns(UserWarning, match="model") as said:
        population.fit(until=90)
    population.fit()  # a warning would be an error: each is told of once
    told = [str(warning.message) for warning in said]
    assert len(told) == 2
    assert re.match(r"model 2, step \d+ of 100: Training stopped at step", told[0])
    assert re.match(r"model 1, step [89]\d of 100: The pose was not learned", told[1])
    heard, lower = [], []

    def fit(second):
        lower.extend(member.lr for member in second.members)
        second.fit(lambda progress: None)

    mended, failed = train_again(population, 1, fit, heard.append)
    assert not mended
    assert failed.keys() == {1, 2}
    assert sorted(lower) == pytest.approx([3e-4, 1e29])
    assert ["a learning rate ten times lower" in text for text in heard] == [True] * 2


@pytest.mark.slow
def test_a_taught_step_compiles_as_one_graph():
    model = seeded(pointer, 0).train()
    teaching, x, u = Teaching(RandomRotation(), model), upright(8), torch.rand(8, 1)

    def loss(x, u):
        warped, theta = teaching(x, u)
        return pose_loss(model.layer.localize(warped), theta).mean()

    torch.compiler.reset()
    found = []
    for step in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        value = step(x, u)
        value.backward()
        found.append([value.detach(), *(p.grad.clone() for p in model.layer.parameters())])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.slow
def test_a_taught_step_of_a_population_compiles_as_one_graph(monkeypatch):
    whole = partial(torch.compile, fullgraph=True, backend="aot_eager")
    trained = []
    for compiled in (False, True):
        model, recipe = seeded(pointer, 0), Recipe(epochs=1, batch_size=20, teach=RandomRotation())
        population = Population([model], upright(40), recipe=recipe, compile=compiled, workers=False)
        monkeypatch.setattr("torch.compile", whole)
        population.fit()
        trained.append(population.models()[0])
    assert largest_difference(*trained) < 1e-6


def test_a_point_is_taught_by_the_distance_on_the_line_and_the_circle():
    q = pstn.PointPosterior(torch.tensor([[0.1, 0.5]]), circular=(True, False))
    near = float(pose_loss(q, torch.tensor([[0.1 + 2 * math.pi + 1e-2, 0.7]])))
    assert near == pytest.approx(1e-4 + 0.04, rel=1e-3)
    opposite = pose_loss(q, torch.tensor([[0.1 + math.pi, 0.5]]))
    assert float(opposite) == pytest.approx(4.0)  # the square of the circle's diameter


def test_a_classic_spatial_transformer_is_taught_too():
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Rotation(), PoseLocalizer(1, (12, 12), (8, 16), 3, 32), probabilistic=False)
    model, random_transform = pstn.STN(layer, small_cnn()), RandomRotation(1.0)
    before = found_error(model, random_transform, upright(100, 1))
    pstn.fit(model, upright(), teach=random_transform, epochs=20, batch_size=20, lr=3e-3)
    assert found_error(model, random_transform, upright(100, 1)) < before / 4


def blobs(size: tuple[int, ...], count: int = 128) -> torch.Tensor:
    """A smooth, lopsided bump in the middle of a series or a volume."""
    axes = torch.meshgrid(*[torch.linspace(-1, 1, n) for n in size], indexing="ij")
    bump = sum(torch.exp(-sum((axis - at) ** 2 for axis in axes) / 0.04) for at in (0.0, 0.25))
    noise = 0.05 * torch.rand(count, 1, *size, generator=torch.Generator().manual_seed(0))
    return bump + noise


@pytest.mark.parametrize(
    ("transform", "random_transform", "size"),
    [(pstn.CPAB(tess=3), None, (24,)), (pstn.Crop("log", ndim=3), RandomCrop(0.2, 0.4, ndim=3), (8, 8, 8))],
    ids=str,
)
def test_series_and_volumes_are_taught(transform, random_transform, size):
    random_transform = random_transform or RandomCPAB(transform, 1.0, 0.5)
    model = seeded(lambda: pointer(transform, pstn.Normal(var_init=-3.0), size), 0)
    before = found_error(model, random_transform, blobs(size))
    pstn.fit(model, blobs(size), teach=random_transform, epochs=25, batch_size=16, lr=2e-3, lr_schedule=one_cycle)
    assert found_error(model, random_transform, blobs(size)) < before / 2


def plain_steps(model: nn.Module, population: Population, x, member: Member, steps: int) -> nn.Module:
    """The same steps with autograd and Adam on the layer, by the population's noise."""
    model, recipe = copy.deepcopy(model).train(), population.recipe
    teaching = Teaching(recipe.teach, model)
    optimiser = torch.optim.Adam(model.layer.parameters(), member.lr, eps=recipe.eps, weight_decay=member.weight_decay)
    for step in range(steps):
        drawn = {name: t[0] for name, t in population.stacks[0].draw(step, 1).items()}
        assert "theta" not in drawn
        for group in optimiser.param_groups:
            group["lr"] = member.lr * one_cycle(step / (population.total_steps - 1))
        warped, theta = teaching(x[drawn["examples"][0, 0]], drawn["augment"][0, 0])
        optimiser.zero_grad()
        (-model.layer.localize(warped).log_prob(theta).sum(-1).mean()).backward()
        optimiser.step()
    return model.eval()


def test_a_population_takes_the_steps_of_a_plain_loop():
    x, recipe = upright(40), Recipe(epochs=2, batch_size=20, teach=RandomRotation(), lr_schedule=one_cycle, eps=1e-5)
    models = [seeded(pointer, seed) for seed in (0, 1)]
    members = make_members(2, lr=[1e-3, 2e-3], weight_decay=0.01)
    alone = [Population([model], x, None, [member], recipe) for model, member in zip(models, members, strict=True)]
    expected = [plain_steps(*given, x, m, 4) for given, m in zip(zip(models, alone, strict=True), members, strict=True)]
    together = Population(models, x, members=members, recipe=recipe, groups=1, workers=False)
    for population in (*alone, together):
        population.fit()
    for found in ([p.models()[0] for p in alone], together.models()):
        for model, other in zip(found, expected, strict=True):
            assert largest_difference(model, other) < 5e-5


def test_a_population_is_taught_and_validated():
    x, members = upright(), make_members(2, lr=3e-3, train=torch.arange(120), valid=torch.arange(120, 160))
    recipe = Recipe(30, 20, teach=RandomRotation(), lr_schedule=one_cycle, patience=9, validate_every=5)
    models = [seeded(pointer, seed) for seed in (0, 1)]
    population = Population(models, x, None, members, recipe, groups=1, workers=False)
    progress = population.fit()
    assert set(progress.history[-1]) == {"epoch", "loss", "grad_norm", "valid_loss"}
    validated = [epoch["valid_loss"] for epoch in progress.history if "valid_loss" in epoch]
    assert progress.best == [min(losses) for losses in zip(*validated, strict=True)]
    for trained, start in zip(population.models(), models, strict=True):
        assert found_error(trained, RandomRotation(), upright(100, 1)) < 0.2
        assert largest_difference(trained.classifier, start.classifier) == 0
    assert set(population.evaluate(x, torch.zeros(160, dtype=torch.int64))) == {"nll", "accuracy", "ece"}


def test_the_validation_loss_is_that_of_the_pose_by_a_fixed_draw():
    x, model = upright(40), seeded(pointer, 0)
    members = [Member(seed=0, valid=torch.arange(20, 40))]
    population = Population([model], x, None, members, Recipe(epochs=1, batch_size=20, teach=RandomRotation()))
    found = population.evaluate_members()["loss"]
    assert population.evaluate_members(batch=7)["loss"] == pytest.approx(found)
    from pstn.noise import stream_keys, uniform

    u = uniform(stream_keys([0], "validate"), 0, 20, (1,))[:, 0]
    warped, theta = Teaching(RandomRotation(), model)(x[20:], u)
    with torch.no_grad():
        expected = pose_loss(model.eval().layer.localize(warped), theta).mean()
    assert found[0] == pytest.approx(float(expected), abs=1e-5)


def test_a_population_learns_from_labels_too():
    x, y = upright(40), torch.arange(40) % 4
    recipe = Recipe(epochs=2, batch_size=20, teach=RandomRotation(), teach_weight=0.5, validate_every=1)
    members = make_members(2, kl_weight=[0.0, 0.1], valid=torch.arange(20))
    population = Population([seeded(small_pointer, s) for s in (0, 1)], x, y, members, recipe, groups=1, workers=False)
    history = population.fit().history[-1]
    assert {"nll", "kl", "accuracy", "valid_nll", "valid_accuracy"} < set(history)
    assert history["loss"][0] != pytest.approx(history["nll"][0], abs=1e-3)


def small_pointer() -> pstn.PSTN:
    return pstn.PSTN(pointer().layer, small_cnn())


@few_steps
def test_placements_and_crops_change_the_size_that_the_model_sees():
    model = pointer(pstn.Crop(), pstn.StudentT())
    seen = []
    pstn.fit(model, torch.rand(16, 1, 6, 6), teach=RandomPlacement(12, 6, None), epochs=1, on_epoch=seen.append)
    pstn.fit(pointer(), torch.rand(16, 1, 18, 18), teach=Cropped(RandomRotation(), 2 / 3), epochs=1)
    recipe = Recipe(epochs=1, batch_size=8, teach=RandomPlacement(12, 6, None))
    assert Population([model], torch.rand(16, 1, 6, 6), recipe=recipe).fit().step == 2


@few_steps
def test_the_schedule_moves_the_learning_rate():
    rates = []

    def schedule(progress):
        rates.append(progress)
        return 0.0

    model = seeded(pointer, 0)
    before = copy.deepcopy(model)
    pstn.fit(model, upright(32), teach=RandomRotation(), epochs=2, batch_size=8, lr_schedule=schedule)
    assert rates == pytest.approx([k / 7 for k in range(8)])
    assert largest_difference(model, before) == 0
    assert one_cycle(0.0) == pytest.approx(0.04)
    assert max(one_cycle(k / 100) for k in range(101)) == one_cycle(0.25) == 1.0
    assert one_cycle(0.5, warm_up=0.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"teach": "rotation"}, TypeError, "teach must"),
        ({"teach": RandomWarp(RandomRotation())}, TypeError, "teach must"),
        ({"teach": RandomSimilarity()}, ValueError, "teach must"),
        ({"teach": Shift(ndim=1)}, ValueError, "teach must"),
        ({"teach": RandomRotation(), "teach_weight": -1.0}, ValueError, "teach_weight must"),
        ({"teach_weight": 1.0}, ValueError, "teach_weight must"),
        ({"teach": RandomRotation(), "loss": pstn.elbo_loss}, ValueError, "loss must"),
    ],
)
def test_what_cannot_be_taught_is_refused(options, error, match):
    x, y = upright(16), torch.zeros(16, dtype=torch.int64)
    with pytest.raises(error, match=rf"^{match}"):
        pstn.fit(pointer(), (x, y), **options)
    with pytest.raises(error, match=rf"^{match}"):
        Population([pointer()], x, y, recipe=Recipe(**options))


X, TAUGHT = upright(16), {"teach": RandomRotation()}
test_teaching_needs_a_layer_and_uses_no_labels_and_no_kl = refused(
    (lambda: pstn.fit(small_cnn(), X, **TAUGHT), TypeError, "teach"),
    (lambda: Population([small_cnn()], X, recipe=Recipe(**TAUGHT)), TypeError, "teach"),
    (lambda: pstn.fit(pointer(), X, **TAUGHT, kl_weight=0.1), ValueError, "kl_weight"),
    (lambda: Population([pointer()], X, None, [Member(kl_weight=0.1)], Recipe(**TAUGHT)), ValueError, "kl_weight"),
    (lambda: Recipe(**TAUGHT, augment=RandomWarp(RandomRotation())), ValueError, "augment"),
    (lambda: Recipe(lr_schedule=one_cycle, lr_step=3), ValueError, "lr_schedule"),
    (lambda: pstn.fit(pointer(), [X], **TAUGHT, teach_weight=1.0), TypeError, "data"),
    (lambda: Population([pointer()], X, recipe=Recipe(**TAUGHT, teach_weight=1.0)), ValueError, "y"),
    (lambda: Population([small_stn()], torch.rand(16, 1, 12), recipe=Recipe(**TAUGHT)), ValueError, "teach"),
)


@pytest.mark.parametrize(("size", "axes"), [((20,), 1), ((12, 16), 2), ((8, 8, 8), 3)])
def test_the_larger_localizer_reads_series_images_and_volumes(size, axes):
    localizer = PoseLocalizer(2, size, filters=(4, 6), hidden=10)
    assert localizer(torch.rand(3, 2, *size)).shape == (3, localizer.features) == (3, 10)
    with pytest.raises(ValueError, match="x must"):
        localizer(torch.rand(3, 1, *size))
    with pytest.raises(ValueError, match="size must"):
        PoseLocalizer(2, (3,) * axes, filters=(4, 6))
    with pytest.raises(ValueError, match="kernel must"):
        PoseLocalizer(2, size, kernel=4)


@pytest.mark.parametrize(
    ("transform", "random_transform", "size"),
    [
        (pstn.Similarity(), Cropped(RandomSimilarity(scale=0.05, shift=0.05), 0.6), (20, 20)),
        (pstn.CPAB(tess=3), None, (12,)),
        (pstn.Affine(ndim=3), RandomAffine(ndim=3), (12, 12, 12)),
        (pstn.Crop(), RandomPlacement(12, 6, None), (6, 6)),
    ],
    ids=str,
)
def test_a_traced_step_takes_the_same_steps(transform, random_transform, size, monkeypatch):
    random_transform = random_transform or RandomCPAB(transform)
    seen, found, x = (12,) * len(size), [], torch.rand(8, 1, *size)
    for after in (0, 100):
        monkeypatch.setattr("pstn.training.population.step._TRACE_AFTER", after)
        models = [seeded(lambda: pointer(transform, None, seen), seed) for seed in (0, 1)]
        recipe = Recipe(epochs=1, batch_size=4, teach=random_transform)
        population = Population(models, x, recipe=recipe, groups=1, workers=False)
        population.fit()
        found.append(population.tensors()["rows"])
    assert torch.equal(*found)


def test_half_of_the_images_are_hardly_blurred_by_the_warp():
    """A localizer must not take sharp images, such as those that were never warped, for something it has not seen."""
    model, x, u = pstn.nn.mnist_pstn(fill=-0.5), upright(6, 1), torch.rand(6, 1)
    warped, theta = Teaching(RandomRotation(), model)(x, u)
    angle = (2 * u - 1) * math.pi
    turn = torch.stack([angle.cos(), -angle.sin(), 0 * angle, angle.sin(), angle.cos(), 0 * angle], -1).view(6, 2, 3)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    for part, mode in ((slice(3), "bilinear"), (slice(3, 6), "bicubic")):
        expected = F.grid_sample(x[part] + 0.5, grid[part], mode=mode, align_corners=False) - 0.5
        brightest = x[part].amax((1, 2, 3), keepdim=True)
        torch.testing.assert_close(warped[part], torch.minimum(expected.clamp(min=-0.5), brightest), rtol=0, atol=1e-5)
    torch.testing.assert_close(theta[:, :1], -angle)


def test_a_random_transform_of_the_users_need_not_know_how_to_interpolate():
    class Plain(RandomRotation):
        def make(self, x, theta, *, fill=0.0):
            return pstn.warp(x, self.grid(theta, x.shape[2:]), fill=fill)

    model, x, u = pstn.nn.mnist_pstn(), upright(4, 1), torch.rand(4, 1)
    plain = Plain()
    torch.testing.assert_close(Teaching(plain, model)(x, u)[0], plain.make(x, plain.theta(u)))
