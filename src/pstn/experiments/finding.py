"""Beyond the paper: finding a pose that was taught. Turned, posed and placed images, for classifiers that are frozen.

A classifier learns from upright images and is frozen. The paper's localizer learns to undo a pose from class labels,
through that classifier. Here it is taught the pose instead: upright images are warped at random, and the localizer
learns the posterior of what undoes it, without a label. The claims: behind a taught localizer the classifier is ahead
of one that is trained anew on posed images, several modes are ahead of one in likelihood, and with a gate images that
are upright already stay so.

Left: turned test digits, the posterior density of the angle that undoes each, and the digit under each mode of 2% or
more, with what the classifier reads and the weight of the mode. Right: how much more often than its level a region
holds the true pose, in points; thin, the runs; on the dotted line it is as often as stated.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from pstn.data import Generated, RandomRotation, RandomSimilarity, RandomTransform, balanced_indices, generate
from pstn.distributions import Gated, Mixture, NormalPrior, Point, PosteriorFamily, StudentT, ThetaDistribution
from pstn.experiments import placed_fashion, rotated_mnist, runner
from pstn.experiments.runner import ACCURACY, ECE, NLL
from pstn.nn import PSTN, STN, PoseLocalizer, SpatialTransformer, mnist_cnn
from pstn.report import Claim, FigureSpec, Line, Metric, Result, Table, figures
from pstn.report.results import RUNS
from pstn.training import RandomWarp, one_cycle
from pstn.training.population.recipe import Teaching
from pstn.transforms import Rotation, Similarity, Transform

NAME, SIZE = "finding", (28, 28)
ROTATION, POSE, PLACEMENT = RandomRotation(math.pi), RandomSimilarity(math.pi, 0.3, 0.3), placed_fashion.PLACEMENT
# Outside what was taught: rotations with a little scale and shift, and poses half as far again.
BEYOND = {"rotated": RandomSimilarity(math.pi, 0.15, 0.15), "posed": RandomSimilarity(math.pi, 0.45, 0.45)}
FEW = 1000
"""Upright images where few are to suffice."""
ANGLES = 12
"""Of the fixed test-time augmentation."""
LEVELS = (0.5, 0.9, 0.99)
ALPHA = 4.0
GATE = 0.65
"""How many inputs are taken to be upright already; chosen on validation images."""
BATCH = 256
STEPS = {"rotated": 9000, "posed": 15_000, "placed": 5000}
CANVAS_READ = (48, 48)
"""At which the localizer reads a canvas of 96 by 96."""

ALONE, FIXED, ANEW = "classifier alone", f"{ANGLES} fixed angles", "classifier trained anew"
ANEW_POSED, LARGER = f"{ANEW} on poses", f"larger {ANEW}"
PUBLISHED, CANONICAL, AT_MODES = "P-STN as published", "canonicalisation from labels", ", at the modes"
NOTE = (
    "At the modes: one weighted sample at the centre of each mode instead of ten samples; with one mode it is a point "
    "estimate, a learned canonicalisation. The classifier’s supervision is 50,000 upright images with labels."
)


# --- Data ------------------------------------------------------------------------------------------------------------


def _task(
    change: Callable[[Any], Any], name: str, context: runner.RunContext, *, source: str = "mnist", few: bool = False
) -> runner.Task:
    """Upright training images, 50,000 or `FEW` of them, and test images that `change` makes of upright ones."""
    train, _, test = context.data(source, normalise=False)

    def subset(seed: int) -> Tensor | None:
        return balanced_indices(train.y, min(FEW, len(train.y) // 2), fold=seed) if few else None

    return runner.Task(train.x, train.y, change(test), f"{name} {train.name}", subset, batch=500)


def _posed(random_transform: RandomTransform, test: Any) -> Any:
    return generate(test, random_transform, seed=0)


def _right_angles(test: Any) -> Any:
    """Each image turned by 90, 180 or 270 degrees: exactly, so that nothing is interpolated."""
    x = torch.stack([torch.rot90(test.x, turns, (-2, -1)) for turns in (1, 2, 3)])
    turns = torch.arange(len(test.x), device=test.x.device) % 3
    return replace(test, x=x[turns, torch.arange(len(turns), device=turns.device)])


def _resampled(test: Any) -> Any:
    """The rotated images, made by another resampler: bicubic at three times the size, then averaged down."""
    theta = generate(test, ROTATION, seed=0).theta
    assert theta is not None
    large = F.interpolate(test.x, scale_factor=3, mode="bicubic", align_corners=False)
    parts = zip(large.split(500), theta.split(500), strict=True)
    turned = [F.avg_pool2d(ROTATION.make(x, angle), 3).clamp(0, 1) for x, angle in parts]
    return replace(test, x=torch.cat(turned), theta=theta)


TASKS: dict[str, Callable[[runner.RunContext], runner.Task]] = {
    "upright": partial(_task, lambda test: test, "upright"),
    "rotated": partial(_task, partial(_posed, ROTATION), "rotated"),
    "posed": partial(_task, partial(_posed, POSE), "posed"),
    "right angles": partial(_task, _right_angles, "turned by right angles"),
    "another resampler": partial(_task, _resampled, "rotated, bicubic"),
    "beyond rotated": partial(_task, partial(_posed, BEYOND["rotated"]), "rotated, scaled and shifted"),
    "beyond posed": partial(_task, partial(_posed, BEYOND["posed"]), "posed beyond the taught range"),
    "few rotated": partial(_task, partial(_posed, ROTATION), "rotated", few=True),
    "garments": partial(_task, lambda test: test, "upright", source="fashion-mnist"),
    "placed": partial(_task, partial(_posed, PLACEMENT), "placed", source="fashion-mnist"),
}


def _tasks(*names: str) -> dict[str, Callable[[runner.RunContext], runner.Task]]:
    return {name: TASKS[name] for name in names}


# --- Models ----------------------------------------------------------------------------------------------------------

CLASSIFIER = replace(
    rotated_mnist.CLASSIFIER, experiment=NAME, model=ALONE, task=TASKS["upright"], departures=(), seeds=RUNS,
    also=_tasks("rotated", "posed"),
)  # fmt: skip
GARMENTS = replace(
    CLASSIFIER, data="garments", task=TASKS["garments"], also={}, weight_decay=placed_fashion.CLASSIFIER_DECAY
)
RANDOM: Mapping[str, RandomTransform] = {"rotated": ROTATION, "posed": POSE, "placed": PLACEMENT}
FAMILY: Mapping[str, Transform] = {"rotated": Rotation(), "posed": Similarity("log"), "placed": Similarity()}


def make_layer(data: str, posterior: PosteriorFamily) -> SpatialTransformer:
    """A layer with a localizer for the poses that are taught: a wider one for "posed", less detail for "placed".

    Example:
        >>> sum(p.numel() for p in make_layer("rotated", pstn.Mixture(4)).parameters())
        556304
    """
    filters, hidden = ((64, 128, 256), 512) if data == "posed" else ((32, 64, 128), 256)
    read = CANVAS_READ if data == "placed" else SIZE
    return SpatialTransformer(
        copy.deepcopy(FAMILY[data]), PoseLocalizer(1, read, filters, hidden=hidden), SIZE, posterior=posterior,
        localizer_size=CANVAS_READ if data == "placed" else None,
    )  # fmt: skip


def _make(data: str, modes: int, context: runner.RunContext, seed: int) -> PSTN:
    """A P-STN of ten samples in front of the seed's frozen classifier, with so many modes."""
    head = runner.trained(context, GARMENTS if data == "placed" else CLASSIFIER, seed).requires_grad_(False)
    # An angle has to start wide: from -5 some localizers stay at the uniform posterior.
    var_init = -5.0 if data == "placed" else 0.0
    posterior = Mixture(modes, StudentT(ALPHA, var_init=var_init))
    return PSTN(make_layer(data, posterior), head, train_samples=1, test_samples=10)


def _taught(data: str, modes: int, also: Sequence[str] = (), *, few: bool = False) -> runner.Training:
    """Localizers of so many modes that are taught a pose."""
    steps_per_epoch = (FEW if few else 50_000) // BATCH
    recipe = replace(
        runner.PAPER, epochs=-(-STEPS[data] // steps_per_epoch), batch_size=BATCH, lr_schedule=one_cycle,
        clip_norm=5.0, precision="tf32", teach=RANDOM[data],
    )  # fmt: skip
    return runner.Training(
        NAME, _taught_name(data, modes, few=few), data, TASKS["few rotated" if few else data],
        partial(_make, data, modes), recipe, lr=2e-3, localizer_factor=1.0, measures=(partial(pose, data),),
        also=_tasks(*also), keep=True, variants={"": None},
    )  # fmt: skip


def _taught_name(data: str, modes: int, *, few: bool = False) -> str:
    return f"taught{' poses' * (data == 'posed')}, {modes} mode{'s' * (modes > 1)}" + f", {FEW:,} images" * few


def _retrained(data: str, name: str, make: Callable[[], nn.Module] = mnist_cnn) -> runner.Training:
    """A classifier trained anew, on posed images, for as long as the one on upright images."""
    recipe = replace(rotated_mnist.SCHEDULE, augment=RandomWarp(RANDOM[data]))
    return runner.Training(
        NAME, name, data, TASKS[data], runner.same(make), recipe, lr=1e-3, weight_decay=1e-5,
        also=_tasks("upright"),
    )  # fmt: skip


def make_larger() -> nn.Module:
    """A classifier with as many weights as a taught localizer: its network, and a linear layer.

    Example:
        >>> sum(p.numel() for p in make_larger().parameters())
        554762
    """
    localizer = PoseLocalizer(1, SIZE)
    return nn.Sequential(localizer, nn.Linear(localizer.features, 10))


# --- Measures --------------------------------------------------------------------------------------------------------


def mode_scores(model: PSTN, test: Any) -> dict[str, float]:
    """Scores of predictions from one weighted sample at the centre of each mode."""
    found = runner.scores_of(model, test, samples="modes", batch=500)
    return {f"modes_{name}": value for name, value in found.items()}


def region_width(q: ThetaDistribution, level: float) -> Tensor:
    """How wide the region of a level is, (...): the side of a cube of its volume; with one parameter its length.

    The volume is the mean, over samples of q, of 1 / density inside the region and 0 outside it.

    Args:
        q: over theta (..., D).
        level: of the region.

    Example:
        >>> q = pstn.NormalPosterior(torch.zeros(1, 1), torch.ones(1, 1))
        >>> round(float(region_width(q, 0.9)), 1)  # 2 * 1.645
        3.3
    """
    region = q.region(level)
    volume = torch.where(region.inside, (-q.log_prob(region.theta).sum(-1)).exp(), 0.0).mean(0)
    return volume ** (1 / q.shape[-1])


def pose(data: str, tested: runner.ModelUnderTest) -> runner.Measured:
    """Scores at the modes, and where the true pose is known and within the taught range, how good the posterior is.

    A region of level q holds theta where fewer than q of the posterior's own samples have a higher density than theta.
    It is asked of images that are made as those that were taught.
    """
    test = tested.task.test
    device = test.batch([0]).x.device
    model = copy.deepcopy(tested.model).to(device).eval()
    assert isinstance(model, PSTN)
    metrics, layer = mode_scores(model, test), model.layer
    if tested.cell.data != data:
        return metrics, {}
    parts, teaching = [], Teaching(RANDOM[data], model)
    assert isinstance(test, Generated)
    assert test.theta is not None
    with torch.no_grad():
        for at in torch.arange(len(test), device=device).split(500):
            x, y = teaching.make(test.base.x[at], test.theta[at]), test.y[at]
            truth, q = RANDOM[data].undo(test.theta[at], layer.transform), layer.localize(x)
            density, others = q.log_prob(truth).sum(-1), q.log_prob(q.region(0.5).theta).sum(-1)
            off = (layer.transform.corners(q.mode) - layer.transform.corners(truth)).norm(dim=-1).mean(-1)
            hits = model.classifier(layer.warp(x, truth[None])[0]).argmax(-1) == y
            doubt = 1 - q.modes()[1].exp().amax(0)
            width = region_width(q, 0.9)
            parts.append(torch.stack([density, (others > density).float().mean(0), off, hits.float(), doubt, width]))
    density, level, off, hits, doubt, width = torch.cat(parts, dim=1)
    metrics |= {f"covered_{100 * wanted:.0f}": float((level < wanted).float().mean()) for wanted in LEVELS}
    metrics |= {
        "log_density": float(density.mean()), "window_error": float(off.median()),
        "perfect_accuracy": float(hits.mean()), "region_width": float(width.median()),
    }  # fmt: skip
    ticks = torch.arange(1, 20, device=device) / 20
    figure = {"covered": runner.rounded((level[:, None] < ticks).float().mean(0))}
    if tested.cell.seed == 0 and data == "rotated":
        shown = [*range(3), *doubt.topk(3).indices.tolist()]  # some as they come, and those with the most doubt
        figure |= examples_of(model, test.batch(shown).x)
    return metrics, figure


def examples_of(model: PSTN, x: Tensor) -> dict[str, Any]:
    """Inputs, the density of the angle that undoes each, and what the classifier reads at each mode."""
    angles = torch.linspace(-math.pi, math.pi, 181, device=x.device)
    with torch.no_grad():
        out = model.layer(x, samples="modes")
        density = out.posterior.log_prob(angles[:, None, None].expand(-1, len(x), 1)).sum(-1).exp()
        classes = model.classifier(out.warped.flatten(0, 1)).argmax(-1).unflatten(0, out.warped.shape[:2])
        assert out.log_weights is not None
    return {
        "inputs": runner.as_pixels(x[:, 0]), "warped": runner.as_pixels(out.warped[:, :, 0].transpose(0, 1)),
        "weights": runner.rounded(out.log_weights.exp().T), "classes": classes.T.tolist(),
        "density": runner.rounded(density.T, 3),
    }  # fmt: skip


def _gated(group: runner.Training, context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Scores of a taught model with a gate, which has nothing to learn."""
    task, model = TASKS[cell.data](context), runner.trained(context, group, cell.seed)
    assert isinstance(model, PSTN)
    settings = {"probability": GATE, "log_density": RANDOM[group.data].log_density()}
    layer = make_layer(group.data, Gated(model.layer.posterior, **settings))
    layer.load_state_dict(model.layer.state_dict())
    gated = PSTN(layer, model.classifier, test_samples=10).to(task.x.device).eval()
    scores = runner.scores_of(gated, task.test, seed=cell.seed, batch=task.batch)
    return scores | mode_scores(gated, task.test), {}, settings


def _over_angles(model: nn.Module, x: Tensor) -> Tensor:
    """Log-probabilities (B, K), averaged over fixed angles."""
    angles = torch.arange(ANGLES, device=x.device) * (2 * math.pi / ANGLES)
    turned = [ROTATION.make(x, angle.expand(len(x), 1)) for angle in angles]
    return torch.logsumexp(torch.stack([model(each).log_softmax(-1) for each in turned]), 0) - math.log(ANGLES)


def _fixed_angles(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """Test-time augmentation by fixed angles, with the temperature that suits rotated validation images best."""
    task, (_, validation, _) = TASKS[cell.data](context), context.data("mnist", normalise=False)
    model = runner.trained(context, CLASSIFIER, cell.seed).to(task.x.device).eval()

    def predict(test: Any) -> tuple[Tensor, Tensor]:
        batches = [test.batch(at) for at in torch.arange(len(test)).split(500)]
        return torch.cat([_over_angles(model, b.x) for b in batches]), torch.cat([b.y for b in batches])

    with torch.no_grad():
        held_out, y = predict(generate(validation, ROTATION, seed=1))
        losses = {t: float(F.cross_entropy(held_out / t, y)) for t in torch.logspace(-1, 1, 81).tolist()}
        temperature = min(losses, key=losses.__getitem__)
        log_probs, y = predict(task.test)
    found = runner.Predictions((log_probs / temperature).log_softmax(-1), y)
    return runner.classification_scores(found), {}, {"angles": ANGLES, "temperature": temperature}


# --- What people use -------------------------------------------------------------------------------------------------

# Localizers that learn from labels, through the frozen classifier: as many images as it learned from, a cycle each.
_FROM_LABELS = replace(
    rotated_mnist.ROTATING, epochs=20, batch_size=BATCH, lr_step=None, lr_schedule=one_cycle, clip_norm=5.0,
    precision="tf32",
)  # fmt: skip


def make_canonical() -> SpatialTransformer:
    """A layer that turns its input to where the classifier wants it: a point estimate, drawn to the identity.

    Example:
        >>> make_canonical()(torch.rand(2, 1, 28, 28)).warped.shape
        torch.Size([1, 2, 1, 28, 28])
    """
    return make_layer("rotated", Point(NormalPrior()))


FROM_LABELS = tuple(
    runner.Training(
        NAME, model, "rotated", TASKS["rotated"], runner.in_front_of(CLASSIFIER, layer), _FROM_LABELS,
        lr=1e-3, localizer_factor=1.0, weight_decay=1e-5, variants={"": kl_weight}, also=_tasks("upright"),
    )
    for model, layer, kl_weight in (
        (PUBLISHED, partial(rotated_mnist.make_layer, True), rotated_mnist.KL_WEIGHT), (CANONICAL, make_canonical, 1e-3)
    )
)  # fmt: skip


def _predictors(device: torch.device) -> dict[str, Callable[[Tensor], object]]:
    """By model what predicts, with untrained weights: they do not change what a prediction costs."""
    classifier = mnist_cnn().eval().to(device)

    def behind(layer: SpatialTransformer) -> PSTN:
        return PSTN(layer, classifier, test_samples=10).eval().to(device)

    one, four = Mixture(1, StudentT(ALPHA)), Mixture(4, StudentT(ALPHA))
    gate = Gated(four, probability=GATE, log_density=ROTATION.log_density())
    names = [_taught_name("rotated", 1), _taught_name("rotated", 4), f"{_taught_name('rotated', 4)}, gate"]
    sampled = {name: behind(make_layer("rotated", q)) for name, q in zip(names, (one, four, gate), strict=True)}
    return {
        ALONE: classifier, FIXED: partial(_over_angles, classifier), ANEW: classifier,
        LARGER: make_larger().eval().to(device), CANONICAL: STN(make_canonical(), classifier).eval().to(device),
        PUBLISHED: behind(rotated_mnist.make_layer(True)), **sampled,
        **{f"{name}{AT_MODES}": partial(model, samples="modes") for name, model in sampled.items()},
    }  # fmt: skip


def prediction_cost(predict: Callable[[Tensor], object], x: Tensor) -> tuple[float, float]:
    """Multiply-adds of convolutions and matrix products for each input, and seconds of a prediction of all of them.

    Args:
        predict: what is counted and measured; the median of ten calls, after two more each, on one core of a CPU.
        x: (B, C, *size).

    Example:
        >>> prediction_cost(nn.Linear(5, 3), torch.zeros(2, 5))[0]
        15.0
    """
    counter, timer = FlopCounterMode(display=False), Timer("predict(x)", globals={"predict": predict, "x": x})
    with counter:
        predict(x)
    return counter.get_total_flops() / 2 / len(x), statistics.median(timer.timeit(1).mean for _ in range(10))


def _cost(context: runner.RunContext, cell: Result) -> runner.Evaluated:
    """What a prediction of a model costs, its time beside that of the classifier alone."""
    predictors = _predictors(context.device)
    count = 4 if context.quick else BATCH if context.device.type == "cuda" else BATCH // 8
    x = torch.rand(count, 1, *SIZE, device=context.device)
    with torch.no_grad():
        (counted, seconds), (_, alone) = (prediction_cost(predictors[m], x) for m in (cell.model, ALONE))
    return {"multiply_adds": counted, "relative_time": seconds / alone}, {}, {"batch_size": count}


# --- The experiment --------------------------------------------------------------------------------------------------

ROTATED = {
    modes: _taught("rotated", modes, ("upright", "right angles", "another resampler", "beyond rotated"))
    for modes in (4, 1)
}
POSED = {modes: _taught("posed", modes, ("upright", "beyond posed")) for modes in (4, 1)}
PLACED = {modes: _taught("placed", modes) for modes in (1, 4)}
FEW_ROTATED = _taught("rotated", 4, ("upright",), few=True)
TAUGHT = (*ROTATED.values(), FEW_ROTATED, *POSED.values(), *PLACED.values())
_GATED = f"{ROTATED[4].model}, gate"
COMPARED = (
    ALONE, FIXED, ANEW, LARGER, CANONICAL, f"{ROTATED[1].model}{AT_MODES}", PUBLISHED, ROTATED[4].model,
    f"{ROTATED[4].model}{AT_MODES}", _GATED, f"{_GATED}{AT_MODES}",
)  # fmt: skip
"""The rows of the table of what people use."""
GATED = {
    g.data: [runner.Evaluation(NAME, f"{g.model}, gate", d, partial(_gated, g)) for d in (g.data, "upright")]
    for g in (ROTATED[4], POSED[4])
}
GROUPS: tuple[runner.Training | runner.Evaluation, ...] = (
    CLASSIFIER, ROTATED[4], *GATED["rotated"], _retrained("rotated", ANEW),
    *(runner.Evaluation(NAME, FIXED, data, _fixed_angles) for data in ("rotated", "upright")), FEW_ROTATED, ROTATED[1],
    POSED[4], *GATED["posed"], _retrained("posed", ANEW_POSED),
    GARMENTS, PLACED[1], POSED[1], PLACED[4], _retrained("rotated", LARGER, make_larger),
    *FROM_LABELS, *(runner.Evaluation(NAME, model, "cost", _cost) for model in COMPARED),
)  # fmt: skip

MODES = tuple(replace(metric, name=f"modes_{metric.name}") for metric in (ACCURACY, NLL, ECE))
QUALITY = (
    *(Metric(f"covered_{100 * q:.0f}", f"covered by {100 * q:.0f}% (%)", 100, 2, None) for q in LEVELS),
    Metric("log_density", "log-density of the true pose", higher_is_better=True),
    Metric("region_width", "width of the 90% region, median", higher_is_better=None),
    Metric("window_error", "error of the window, median", digits=4),
)  # fmt: skip
PERFECT = Metric("perfect_accuracy", "accuracy at the true pose (%)", 100, 2, True)
_UPRIGHT_AND = "the classifier’s; upright images without labels, any angle"
SUPERVISION = {
    ALONE: "upright images with labels",
    FIXED: "the classifier’s; rotated validation images with labels, for the temperature",
    **dict.fromkeys((ANEW, LARGER), "rotated images with labels"), ANEW_POSED: "posed images with labels",
    **{group.model: _UPRIGHT_AND for group in (*ROTATED.values(), FEW_ROTATED)},
    **{group.model: f"{_UPRIGHT_AND}, scale and shift" for group in POSED.values()},
}  # fmt: skip
SUPERVISION |= {f"{group.model}, gate": SUPERVISION[group.model] for group in (ROTATED[4], POSED[4])}
SUPERVISION |= dict.fromkeys((PUBLISHED, CANONICAL), "the classifier’s; rotated images with labels")
SUPERVISION |= {f"{name}{AT_MODES}": text for name, text in SUPERVISION.items()}
_PLACEMENT = "the classifier’s; unplaced images without labels, the placement"
# Teaching itself needs no classifier.
POSE_SUPERVISION = {
    f"{group.data}: {group.model}": text.removeprefix("the classifier’s; ")
    for group in TAUGHT
    for text in [_PLACEMENT if group.data == "placed" else SUPERVISION[group.model]]
}
COST = (
    Metric("multiply_adds", "multiply-adds of a prediction (million)", 1e-6, 2),
    Metric("relative_time", "time of a prediction (classifier alone: 1)", digits=1),
)


def _row(model: str, columns: Sequence[tuple[str, Metric]], also: Sequence[Metric] = ()) -> list[Line]:
    named = [(data, metric, f"{data}: {metric.label}") for data, metric in columns]
    named += [(columns[0][0], metric, f"{columns[0][0]}: {metric.label}, at the modes") for metric in also]
    return [Line(model, data, metric, row=model, column=name, rivals=name) for data, metric, name in named]


def _scores(title: str, data: str, models: Sequence[str], taught: Sequence[str]) -> Table:
    """Scores on posed and on upright images, a row for each model; of those that are taught, at the modes too."""
    columns = [(data, ACCURACY), (data, NLL), (data, ECE), ("upright", ACCURACY), ("upright", NLL)]
    shown = [line for m in (*models, *taught) for line in _row(m, columns, MODES[:2] if m in taught else ())]
    return Table(title, tuple(shown), row_label="model", beside={"supervision": SUPERVISION}, notes=(NOTE,))


def _against() -> Table:
    """What people use, and what is taught: scores and costs."""
    shown = []
    for row in COMPARED:
        accuracy, nll, ece = MODES if row.endswith(AT_MODES) else (ACCURACY, NLL, ECE)
        columns = [("upright", accuracy), ("rotated", accuracy), ("rotated", nll), ("rotated", ece)]
        lines = [(row.removesuffix(AT_MODES), data, metric, f"{data}: {metric.label}") for data, metric in columns]
        lines += [(row, "cost", metric, metric.label) for metric in COST]
        shown += [Line(model, data, m, row=row, column=name) for model, data, m, name in lines]
    return Table(
        "Against what people use", tuple(shown), row_label="model", bold=False, beside={"supervision": SUPERVISION},
        notes=(
            "Cost: multiply-adds of convolutions and linear layers for one image; the time is that of a GPU for a "
            f"batch of {BATCH} images, or of one core of a CPU for {BATCH // 8}.",
        ),
    )  # fmt: skip


_TAUGHT_ROTATED = (ROTATED[1].model, ROTATED[4].model, _GATED, FEW_ROTATED.model)
_TAUGHT_POSED = (POSED[1].model, POSED[4].model, f"{POSED[4].model}, gate")
TABLES = (
    _scores("Rotated MNIST", "rotated", (ALONE, FIXED, ANEW, LARGER), _TAUGHT_ROTATED),
    _against(),
    _scores("Any angle, scale and shift", "posed", (ALONE, ANEW_POSED), _TAUGHT_POSED),
    Table(
        "Placed FashionMNIST",
        tuple(
            line for group in PLACED.values()
            for line in _row(group.model, [("placed", metric) for metric in (ACCURACY, NLL, ECE, PERFECT)])
        ),
        row_label="model", beside={"supervision": {group.model: _PLACEMENT for group in PLACED.values()}},
    ),
    Table(
        "The pose itself",
        tuple(
            Line(group.model, group.data, metric, row=f"{group.data}: {group.model}", column=metric.label,
                 rivals=f"{group.data} {metric.label}")
            for group in TAUGHT for metric in QUALITY
        ),
        row_label="data and model",
        notes=(
            "Width: the side of a cube of the region’s volume in theta, whose angle is in radians; for an angle alone "
            "the length of the region.",
        ),
        beside={"supervision": POSE_SUPERVISION},
    ),
    Table(
        "Does anything but the pose give it away, and what was not taught?",
        tuple(
            Line(group.model, data, ACCURACY, row=group.model, column=data)
            for group in (*ROTATED.values(), *POSED.values()) for data in (group.data, *group.also) if data != "upright"
        ),
        row_label="model", bold=False, beside={"supervision": SUPERVISION},
    ),
)  # fmt: skip


CLAIMS = tuple(
    Claim(Line(better, data, metric), Line(worse, data, metric), paired=True)
    for better, worse, data in (
        (ROTATED[4].model, ANEW, "rotated"), (ROTATED[4].model, LARGER, "rotated"), (_GATED, ANEW, "upright"),
        (ROTATED[4].model, ROTATED[1].model, "rotated"), (POSED[4].model, ANEW_POSED, "posed"),
        (POSED[4].model, POSED[1].model, "posed"),
    ) for metric in (ACCURACY, NLL)
)  # fmt: skip
LEAST_WEIGHT = 0.02
"""Modes with less weight are not drawn."""


def draw(results: Sequence[Result]) -> figures.Figure:
    """Six turned digits, the density of what undoes each, what the classifier reads at the modes; then coverage."""
    shown = figures.first_of_cells(results, "density", model=ROTATED[4].model)[0].figure
    figure = figures.new_figure(9.5, 1.05 * len(shown["inputs"]))
    left, right = figure.subfigures(1, 2, width_ratios=(2.2, 1), squeeze=False)[0]
    count, modes = len(shown["inputs"]), len(shown["weights"][0])
    axes = left.subplots(count, 2 + modes, width_ratios=(1, 2.4, *[1] * modes), squeeze=False)
    angles = np.linspace(-180, 180, len(shown["density"][0]))
    for row, panels in enumerate(axes):
        panels[0].imshow(shown["inputs"][row], cmap="gray_r")
        panels[1].fill_between(angles, shown["density"][row], color="#3b6ea5", linewidth=0)
        panels[1].set(xlim=(-180, 180), yticks=[], xticks=[-180, 0, 180] if row == count - 1 else [])
        for panel, mode in zip(panels[2:], np.argsort(shown["weights"][row])[::-1], strict=True):
            weight = shown["weights"][row][mode]
            if weight < LEAST_WEIGHT:
                panel.set_visible(False)
                continue
            panel.imshow(shown["warped"][row][mode], cmap="gray_r")
            panel.set_title(f"{shown['classes'][row][mode]}: {weight:.0%}", fontsize=8, pad=2)
        for panel in (panels[0], *panels[2:]):
            panel.set(xticks=[], yticks=[])
    axes[0][0].set_title("input", fontsize=9)
    axes[0][1].set_title("density of the angle that undoes it", fontsize=9)
    ticks = np.arange(1, 20) / 20
    both = ((ROTATED[4], "any angle"), (POSED[4], "any angle, scale and shift"))
    for panel, (group, title) in zip(right.subplots(2, 1, sharex=True, sharey=True), both, strict=True):
        own = [r for r in results if (r.model, r.data) == (group.model, group.data)]
        covered = [r.figure["covered"] for r in own if "covered" in r.figure]
        off = 100 * (np.array(covered).reshape(-1, len(ticks)) - ticks)
        panel.axhline(0, color="0.4", linestyle=":")
        panel.plot(100 * ticks, off.T, color="#0072B2", linewidth=0.8, alpha=0.5)
        if len(off):
            panel.plot(100 * ticks, off.mean(0), color="#0072B2", linewidth=2.0)
        panel.set(title=title, ylabel="true poses inside (points more\nthan the level says)")
        panel.grid(alpha=0.4)
    panel.set(xlabel="level of the region (%)")
    return figure


FINDING = runner.Experiment(
    NAME, "Finding a pose that was taught", runner.description_of(__doc__),
    summary="Poses that a localizer was taught: turned, posed and placed images for frozen classifiers",
    needs=("mnist", "fashion-mnist"),
    groups=GROUPS,
    tables=TABLES,
    claims=CLAIMS,
    figures=(FigureSpec(NAME, runner.description_of(__doc__, 2), draw),),
    from_paper=False, holm=True, extra=True,
)  # fmt: skip
