"""The population trainer: the steps of a plain loop, together and alone; planning, validation, weights, refusals."""

import copy
import math
import operator

import pytest
import torch
from torch import nn

import pstn
from pstn.data import RandomPlacement, RandomRotation
from pstn.threads import choose_threads, count_multiplications
from pstn.training import Member, Population, RandomWarp, Recipe, make_members
from pstn.training.population import step
from pstn.training.population.stack import precision_flags
from pstn.training.population.trainer import choose_conv, choose_groups
from pstn.training.runs.checkpoint import load_checkpoint, save_checkpoint
from small_models import (
    CASES,
    TOLERANCE,
    images,
    largest_difference,
    plain_loop,
    recipe,
    seeded,
    small_cnn,
    small_layer,
    small_pstn,
    without_dropout,
)


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


@pytest.mark.parametrize(("case", "groups"), [("pstn", 1), ("cnn", 2), ("batch norm", 2)])
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


@pytest.mark.parametrize("workers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_was_cut_off_goes_on_from_a_checkpoint_only(tmp_path, monkeypatch, workers):
    x, y = images()
    models = [seeded(small_pstn, i) for i in range(2)]

    def make() -> Population:
        return Population(models, x, y, recipe=Recipe(epochs=2), groups=2, workers=workers)

    with make() as whole, make() as cut:
        whole.fit()
        cut.fit(until=4)
        save_checkpoint(tmp_path / "c.safetensors", cut)
        with monkeypatch.context() as patch:
            patch.setattr(type(cut._runners[1]), "collect", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                cut.fit()
        with pytest.raises(RuntimeError, match=r"in the middle of a round.*load a checkpoint"):
            cut.fit()
        load_checkpoint(tmp_path / "c.safetensors", cut)
        cut.fit()
        assert cut.progress.history == whole.progress.history
        assert all(torch.equal(a, b) for a, b in zip(whole.tensors().values(), cut.tensors().values(), strict=True))


@pytest.mark.parametrize("case", ["batch norm", "accumulated"])
def test_tracing_changes_no_bit(case, monkeypatch):
    make, data, recipe = CASES[case]
    (x, y), models = data(), [seeded(make, i) for i in range(2)]
    plain = Population(models, x, y, recipe=recipe, groups=1)
    plain.fit(until=4)
    monkeypatch.setattr("pstn.training.population.step._TRACE_AFTER", 1)
    traced = Population(models, x, y, recipe=recipe, groups=1)
    traced.fit(until=4)
    assert all(torch.equal(a, b) for a, b in zip(plain.tensors().values(), traced.tensors().values(), strict=True))


def test_a_compiled_run_is_compiled_from_its_first_step(monkeypatch):
    """Its sums may be taken in another order: resumed at any step, it has to take the same."""
    compiled = []
    monkeypatch.setattr(step, "trace", lambda plain, *_, compile: compiled.append(compile) or plain)
    Population([small_cnn()], *images(8), recipe=Recipe(epochs=1, batch_size=8), compile=True).fit()
    assert compiled == [True]


def test_folding_leaves_alone_what_is_written_into():
    from torch import fx

    from pstn.training.population.step import fold_constants

    aten, graph = torch.ops.aten, fx.Graph()
    x = graph.placeholder("x")
    base = graph.call_function(aten.zeros.default, ([4],), {"pin_memory": False})
    parts = graph.call_function(aten.split.Tensor, (base, 2))
    first = graph.call_function(operator.getitem, (parts, 0))
    graph.call_function(aten.add_.Tensor, (first, x))
    out = graph.call_function(aten.zeros.default, ([2],))
    graph.call_function(aten.add.out, (x, x), {"out": out})
    launched = graph.call_function(aten.zeros.default, ([2],))
    graph.call_function(_launch, (launched, x))
    constant = graph.call_function(aten.add.Tensor, (graph.call_function(aten.ones.default, ([2],)), 1))
    graph.output((base, out, launched, constant))
    program = fx.GraphModule(nn.Module(), graph)
    fold_constants(program)
    for _ in range(2):
        found = program(torch.ones(2))
        assert [t.tolist() for t in found] == [[1, 1, 0, 0], [2, 2], [7, 7], [2, 2]]
    assert [n.op for n in program.graph.nodes if n.name.startswith("_folded")] == ["get_attr"]


def _launch(out: torch.Tensor, x: torch.Tensor) -> None:
    out.add_(7 * x)


@pytest.mark.slow
def test_processes_of_their_own_change_no_bit(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)  # so that this process takes one thread for them, as the others do
    x, y = images(16)
    models, rows = [seeded(small_pstn, i) for i in range(3)], []
    for workers in (False, True):
        with Population(models, x, y, recipe=recipe(epochs=30), groups=2, workers=workers) as population:
            population.fit()
            rows.append(population.tensors())
    assert all(torch.equal(a, b) for a, b in zip(rows[0].values(), rows[1].values(), strict=True))


def test_noise_is_drawn_for_as_many_steps_as_a_block_holds(monkeypatch):
    x, y = images(16)
    population = Population([seeded(small_pstn, 0)], x, y, recipe=recipe(epochs=4), workers=False)
    (stack,), counts = population.stacks, []
    draw = stack.draw
    monkeypatch.setitem(step._BLOCK, "cpu", 3 * stack.noise_per_step)
    monkeypatch.setattr(stack, "draw", lambda start, count: counts.append(count) or draw(start, count))
    population.fit(until=8)
    assert max(counts) == 3
    assert sum(counts) == 8


class _Doubled(torch.autograd.Function):
    """Without a rule for vmap."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class _Doubles(nn.Module):
    def forward(self, x):
        return _Doubled.apply(x)


def test_a_model_alone_may_hold_what_cannot_be_stacked():
    x, y = images(16)
    population = Population([nn.Sequential(nn.Flatten(), nn.Linear(144, 4), _Doubles())], x, y, recipe=recipe(epochs=1))
    assert all(math.isfinite(loss) for loss in population.fit().history[-1]["loss"])


def test_gradients_shorter_than_clip_norm_are_left_as_they_are():
    x, y = images(16)
    rows = []
    for clip_norm in (None, 1e6):
        population = Population([seeded(small_pstn, 0)], x, y, recipe=recipe(clip_norm=clip_norm))
        population.fit(until=2)
        rows.append(population.tensors()["rows"])
    assert torch.equal(*rows)


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
        bias = hurt.stacks[0].parameters(hurt.stacks[0].state["rows"])["layer.mean_head.last.bias"][1]
        bias[0] = float("inf")
    with pytest.warns(UserWarning, match="model 1, step . of 6: Training stopped at step 3: the loss was nan"):
        hurt.fit()
    for i in (0, 2):
        assert largest_difference(hurt.models()[i], healthy.models()[i]) == 0
    assert hurt.alive == [True, False, True]
    (failure,) = hurt.progress.failures
    assert (failure.model, failure.step) == (1, 3)
    with torch.no_grad():
        bias[0] = before.layer.mean_head.last.bias[0]
    assert largest_difference(hurt.models()[1], before) == 0


def test_an_exploding_loss_is_reported_with_its_step():
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(2)]
    population = Population(models, x, y, make_members(2, kl_weight=[0.0, 1.0]), Recipe(epochs=1, loss_limit=100.0))
    with pytest.warns(UserWarning, match="model 1, step . of 2: Training stopped at step 0"):
        population.fit()
    (failure,) = population.progress.failures
    assert (failure.model, failure.step) == (1, 0)
    assert failure.loss > 100


@pytest.mark.parametrize("count", [1, 5])
def test_bf16_trains_however_many_models_there_are(count):
    x, y = images(16)
    models = [seeded(small_pstn, seed) for seed in range(count)]
    population = Population(models, x, y, recipe=Recipe(epochs=1, precision="bf16"), workers=False)
    assert all(math.isfinite(loss) for loss in population.fit().history[-1]["loss"])
    if count > 1:
        with pytest.raises(ValueError, match="groups must"):
            Population(models, x, y, recipe=Recipe(epochs=1, precision="bf16"), groups=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": [Member()]}, "one entry for each of 2 models"),
        ({"y": torch.zeros(40)}, "y must be classes, int64"),
        ({"recipe": Recipe(batch_size=64)}, "batch_size times accumulate must be at most 40"),
        ({"recipe": Recipe(batch_size=1, accumulate=64)}, "batch_size times accumulate must be at most 40"),
        ({"members": [Member(train=torch.arange(50)), Member()]}, "must index 40 examples"),
        ({"models": [small_cnn(), small_pstn()]}, "must have one shape"),
        ({"groups": 3}, "between 1 and the number of models"),
        ({"conv": "block"}, "conv must be"),
        ({"recipe": Recipe(precision="tf32")}, "precision must be"),
        ({"models": [nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(144, 4))] * 2}, "draws random numbers"),
        ({"members": [Member(train=torch.arange(8)), Member()]}, "steps_per_epoch must be given"),
        (
            {"members": [Member(), Member(train=torch.arange(8))], "recipe": Recipe(batch_size=16)},
            "batch_size times accumulate must be at most 8",
        ),
        ({"recipe": Recipe(patience=2)}, "patience needs examples to validate on"),
        ({"recipe": Recipe(validate_every=2)}, "validate_every needs examples to validate on"),
        ({"y": torch.arange(40) % 5}, "y must hold classes from 0 to 3.*got 0 to 4"),
        ({"y": torch.arange(40) % 4 - 1}, "got -1 to 2"),
        ({"models": [small_cnn(), without_dropout(small_cnn())]}, "model 1 differs from model 0 in .*p'"),
        ({"models": [small_pstn(), pstn.PSTN(small_layer(fill=1.0), small_cnn())]}, "in 'layer.fill', 1.0 against 0.0"),
    ],
)
def test_refuses_what_cannot_train_together(change, message):
    x, y = images()
    arguments = {"models": [small_cnn(), small_cnn()], "x": x, "y": y, **change}
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        Population(**arguments)
    assert torch.equal(torch.get_rng_state(), state)


def test_models_with_batch_norm_on_features_are_scored():
    from pstn.training.runs.run import score_models

    x, y = images(12)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(model(x), y))
    assert score_models([model], x, y)["nll"][0] == pytest.approx(expected, abs=1e-6)


def test_dropout_and_batch_norm_of_a_frozen_part_stay_as_they_are():
    x, y = images(16)
    classifier = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)
    )
    models = [seeded(lambda: pstn.wrap(copy.deepcopy(classifier), in_channels=1), i) for i in range(2)]
    population = Population(models, x, y, make_members(2, lr=1e-2), Recipe(epochs=2, batch_size=8), groups=1)
    assert population.stacks[0].dropout == []
    population.fit()
    for trained in population.models():
        assert largest_difference(trained.classifier.module, classifier) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_training_inside_no_grad_takes_the_same_steps(count):
    x, y = images(16)
    made = [
        Population([seeded(small_pstn, i) for i in range(count)], x, y, recipe=Recipe(2, 8), groups=1) for _ in "ab"
    ]
    made[0].fit()
    with torch.no_grad():
        made[1].fit()
    assert all(torch.equal(a, b) for a, b in zip(*(p.tensors().values() for p in made), strict=True))
    assert float(made[0].tensors()["square"].sum()) > 0


def finite_value_infinite_gradient(prediction, y):
    return (0 * prediction.log_probs).sum().sqrt()


def infinite_value_finite_gradient(prediction, y):
    return prediction.log_probs.sum() + float("inf")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("loss", [finite_value_infinite_gradient, infinite_value_finite_gradient])
def test_a_loss_or_a_gradient_alone_that_is_not_finite_stops_a_model(count, loss):
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(count)]
    with Population(models, x, y, recipe=Recipe(2, 8, loss=loss), groups=1) as population:
        before = population.tensors()["rows"].clone()
        with pytest.warns(UserWarning, match="Training stopped at step 0.*(inf|nan)") as said:
            progress = population.fit()
    assert len(said) == count
    assert [failure.model for failure in progress.failures] == list(range(count))
    assert all(failure.step == 0 for failure in progress.failures)
    assert torch.equal(population.tensors()["rows"], before)


def test_populations_that_end_in_another_order_than_they_began_leave_the_switches_as_they_were():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    found = []
    first, second = (precision_flags(Recipe(precision=precision)) for precision in ("float32", "tf32"))
    for move in (first.__enter__, second.__enter__, first.__exit__, second.__exit__):
        found.append((matmul.allow_tf32, cudnn.allow_tf32))
        move(*[None] * 3 * (move.__name__ == "__exit__"))
    assert found[1:] == [(False, False), (True, True), (True, True)]
    assert (matmul.allow_tf32, cudnn.allow_tf32) == found[0]


CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(("work", "groups"), [(4_000_000, 1), (600_000_000, 5)])
def test_models_that_fill_a_gpu_by_themselves_are_not_stacked(work, groups):
    assert choose_groups(5, CUDA, work, Recipe()) == groups


@pytest.mark.parametrize(
    ("stacked", "device", "work", "precision", "kind"),
    [
        (5, CUDA, 4_000_000, "tf32", "matmul"),
        (5, CPU, 0, "float32", "rows"),
        (1, CPU, 0, "float32", "library"),
        (1, CUDA, 6_000_000, "tf32", "library"),
        (1, CUDA, 600_000_000, "tf32", "blocks"),
        (1, CUDA, 600_000_000, "float32", "library"),
    ],
)
def test_how_convolutions_are_computed(stacked, device, work, precision, kind):
    assert choose_conv(stacked, device, work, Recipe(precision=precision)) == kind


def test_small_stacks_have_one_thread_unless_the_user_says_otherwise(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    small = 8 * count_multiplications(pstn.nn.mnist_pstn(), torch.rand(1, 1, 28, 28), samples=1)
    large = 16 * count_multiplications(pstn.nn.SeriesClassifier(1, classes=14), torch.rand(1, 1, 131))
    assert (choose_threads(small), choose_threads(large)) == (1, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(small) is None


def test_a_population_steps_with_those_threads_and_gives_them_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    threads, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        model.register_forward_hook(lambda *_: threads.append(torch.get_num_threads()))
        population = Population([model], torch.rand(16, 1, 28, 28), torch.arange(16) % 10, recipe=Recipe(epochs=1))
        threads.clear()
        population.fit()
        assert threads
        assert set(threads) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), 9.96921e36])  # the last is what netCDF writes for a gap
def test_what_is_not_finite_and_what_is_empty_is_refused(bad):
    x, y = torch.zeros(4, 1, 28, 28), torch.zeros(4, dtype=torch.long)
    x[3, 0, 5, 5] = bad
    with pytest.raises(ValueError, match="x must"):
        Population([pstn.nn.mnist_cnn()], x, y)
    with pytest.raises(ValueError, match="x must"):
        Population([pstn.nn.mnist_cnn()], x[:0], y[:0])


def test_early_stopping_is_per_model_and_keeps_the_best():
    x, y = images(24)
    models = [seeded(small_cnn, i) for i in range(2)]
    train, valid = torch.arange(16), torch.arange(16, 24)
    members = make_members(2, lr=[1e-9, 1e-3], train=train, valid=valid)
    population = Population(models, x, y, members, Recipe(epochs=8, batch_size=8, patience=2), groups=1)
    start = torch.tensor(population.evaluate_members()["nll"])
    with pytest.warns(UserWarning, match="at chance"):
        progress = population.fit()
    losses = torch.tensor([entry["valid_nll"] for entry in progress.history])
    assert progress.best == pytest.approx(torch.cat([start[None], losses]).min(0).values.tolist())
    stopped = [i for i, alive in enumerate(population.alive) if not alive]
    assert stopped, "random labels: somebody must stop improving"
    with torch.no_grad():
        nll = float(nn.functional.cross_entropy(population.models()[stopped[0]](x[valid]), y[valid]))
    assert nll == pytest.approx(progress.best[stopped[0]], abs=1e-5)


def test_early_stopping_keeps_a_start_that_training_makes_worse():
    x, y = images(24)
    members = make_members(1, lr=1.0, train=torch.arange(16), valid=torch.arange(16, 24))
    population = Population([seeded(small_cnn, 0)], x, y, members, Recipe(epochs=4, batch_size=8, patience=2))
    [before] = population.evaluate_members()["nll"]
    progress = population.fit(lambda progress: None)
    assert min(entry["valid_nll"][0] for entry in progress.history) > before
    assert population.evaluate(x[16:], y[16:])["nll"] == pytest.approx([before])


def test_validation_does_not_hang_on_neighbours_or_batches():
    x, y = images(16)
    models = [seeded(small_pstn, i) for i in range(2)]
    members = make_members(2, train=torch.arange(8), valid=[torch.arange(8, 12), torch.arange(8, 16)])
    together = Population(models, x, y, members, recipe(), groups=1)
    expected = together.evaluate_members()["nll"]
    for i in range(2):
        alone = Population([models[i]], x, y, [members[i]], recipe()).evaluate_members()["nll"]
        assert alone == pytest.approx([expected[i]], abs=1e-6)
    assert together.evaluate_members(batch=3)["nll"] == pytest.approx(expected, abs=1e-6)
    assert together.evaluate(x, y, batch=5)["nll"] == pytest.approx(together.evaluate(x, y)["nll"], abs=1e-6)


def test_validation_examples_are_changed_as_training_examples_are():
    x, y = images(16)
    members = make_members(2, train=torch.arange(8), valid=torch.arange(8, 16))
    models = [nn.Sequential(nn.Flatten(), nn.Linear(400, 4)) for _ in range(2)]
    augment = RandomWarp(RandomPlacement(20, 12, None))
    placed = Population(models, x, y, members, Recipe(epochs=1, patience=1, augment=augment), groups=1)
    placed.fit()
    assert placed.evaluate_members() == placed.evaluate_members()
    model = seeded(small_cnn, 0)
    upright, rotated = (
        Population([model], x, y, members[:1], Recipe(epochs=1, augment=augment)).evaluate_members()["nll"][0]
        for augment in (None, RandomWarp(RandomRotation()))
    )
    assert upright != rotated


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
    with pytest.raises(ValueError, match="weights must"):
        Population([small_cnn()], *images(8), weights=weights)


@pytest.mark.parametrize(
    ("count", "side", "size"),
    [(1000, 28, 64), (768, 128, 64), (500, 224, 41), (600, 224, 41), (120, 512, 8), (24, 1024, 2)],
)
def test_batches_are_smaller_where_images_are_large(count, side, size, monkeypatch):
    x, y = torch.zeros(count, 1, side, side), torch.zeros(count, dtype=torch.int64)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))
    assert Population([net], x, y).recipe.batch_size == size
    steps = []
    monkeypatch.setattr("pstn.training.fit._take_steps", lambda model, data, member, recipe, *_: steps.append(recipe))
    with pytest.raises(TypeError):  # nothing was trained
        pstn.fit(net, (x, y), epochs=1, progress=False)
    assert steps[0].batch_size == size
