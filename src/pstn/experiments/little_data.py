"""Beyond the paper: does a P-STN pay on little data, and which settings win? 30 to 10,000 images of two data sets.

Seven models with one classifier learn from 30 to 10,000 images of MNIST and FashionMNIST, each with 24 trials for its
settings. Is the P-STN inferior to none in accuracy, and ahead of all in NLL?

`SEARCH` scores the trials on validation images; `choose_settings` picks the best trial of each model on each data set,
and for each model one trial for all data sets, the defaults. `LITTLE_DATA` trains both on ten other folds and scores
them on test images.

Test NLL by the number of training images, as a multiple of the P-STN’s on the same fold: geometric mean and standard
deviation over the folds; above 1 the P-STN is ahead. Above: settings tuned for each data set; below: one setting of
each model for all.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from pstn.data import balanced_indices
from pstn.distributions import Hierarchical, Point, PosteriorFamily, StudentT
from pstn.experiments import runner
from pstn.experiments.mnist_subsets import BLACK, subset
from pstn.experiments.runner import ACCURACY, NLL, PAPER, SCORES, Experiment, Joint, RunContext
from pstn.experiments.time_series import series
from pstn.files import parse_json
from pstn.nn import (  # isort: split
    PSTN,
    STN,
    ConvLocalizer,
    GlobalLocalizer,
    SeriesClassifier,
    SeriesLocalizer,
    SpatialTransformer,
    mnist_cnn,
)

from pstn.report import Claim, FigureSpec, Line, Result, Table, figures
from pstn.report.results import grouped
from pstn.training import Member, Population, Recipe
from pstn.training.fit import fit
from pstn.training.population.trainer import choose_compile
from pstn.transforms import CPAB, Similarity

SIZES = (30, 100, 300, 1000, 3000, 10_000)
DATA = {
    f"{name}{size}": (source, size)
    for name, source in (("MNIST", "mnist"), ("FashionMNIST", "fashion-mnist"))
    for size in SIZES
}
"""Data set and number of training images by the name that the tables have."""
SERIES = ("FaceAll", "TwoPatterns", "PhalangesOutlinesCorrect")
"""Series that the defaults are chosen on too."""
MODELS = ("CNN", "STN", "fixed augmentation", "tuned augmentation", "global posterior", "P-STN as published", "P-STN")
TRIALS = 24
# The folds of the final runs, and the fold of the search, which is none of them.
FOLDS, SEARCH_FOLD = range(10), 10
# Of the validation images, how many score a trial.
SCORED = 5000
# Standard deviations of angle, scale and shift: of the fixed augmentation, and of the paper's posterior at the start.
FIXED, PAPER_START = (0.15, 0.1, 0.1), (0.082, 0.082, 0.082)

# 5,100 steps on up to 300 images, 3,000 of four times the batch on more. Data sets of different sizes train as one
# stack, so that an "epoch" is as many steps as the smallest of them allows, on a fresh draw from each. The learning
# rate falls to a tenth for the last quarter.
_SMALL = dataclasses.replace(PAPER, epochs=1700, steps_per_epoch=3, batch_size=8, lr_step=1275, precision="tf32")
_LARGE = dataclasses.replace(_SMALL, epochs=100, steps_per_epoch=30, batch_size=32, lr_step=75)
_SERIES = dataclasses.replace(_SMALL, epochs=40, steps_per_epoch=25, batch_size=16, lr_step=30)


@dataclass(frozen=True)
class Settings:
    """The settings of one model, relative to a training set of 100 examples.

    Args:
        lr: learning rate of the classifier.
        weight_decay: Adam's L2 term at 100 examples; it falls with the square root of their number.
        localizer_factor: what the learning rate is multiplied with for the localizer.
        kl_weight: w at 100 examples; it falls with their number to the power of 0.75.
        alpha: of the posterior.
        samples: S in training.
        shrink: where above 0, the posterior is a `pstn.Hierarchical` one: a part that all inputs share, and this times
            a part of each input's own.
        spread: standard deviations of angle, scale and shift: of the augmentation, or of the posterior at the start
            (scale sqrt(beta / alpha)).

    Example:
        >>> Settings(kl_weight=3e-4, weight_decay=0.01).at(10_000).weight_decay
        0.001
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    localizer_factor: float = 0.1
    kl_weight: float = 0.0
    alpha: float = 1.0
    samples: int = 1
    shrink: float = 0.0
    spread: tuple[float, float, float] = PAPER_START

    def at(self, size: int) -> Settings:
        """The settings for a training set of `size` examples."""
        ratio = 100 / size
        return dataclasses.replace(
            self, weight_decay=self.weight_decay * ratio**0.5, kl_weight=self.kl_weight * ratio**0.75
        )


# --- Trials ----------------------------------------------------------------------------------------------------------

_LR, _DECAY, _W = (3e-4, 3e-3), (1e-3, 3e-2), (2e-5, 2e-3)
_SPREADS = {"angle": (0.03, 0.4), "scale": (0.02, 0.2), "shift": (0.02, 0.2)}
_Space = tuple[Mapping[str, tuple[float, float]], Sequence[Mapping[str, Any]]]
# Ranges, searched on a logarithmic scale, and what each part of the trials has in common.
_FIRST: Mapping[str, _Space] = {
    "CNN": ({"lr": _LR, "weight_decay": _DECAY}, [{}]),
    "STN": ({"lr": (1e-4, 3e-3), "weight_decay": _DECAY, "localizer_factor": (1e-3, 0.3)}, [{}]),
    "fixed augmentation": ({"lr": _LR, "weight_decay": _DECAY}, [{"spread": FIXED}]),
    "tuned augmentation": ({"weight_decay": _DECAY, **_SPREADS}, [{"samples": 1}, {"samples": 4}]),
    "global posterior": (
        {"weight_decay": _DECAY, "kl_weight": _W, "localizer_factor": (0.03, 3.0), "start": (0.05, 0.2)},
        [{"alpha": 1.0}, {"alpha": 2.0}, {"alpha": 2.0, "samples": 4}],
    ),
    "P-STN as published": ({"weight_decay": _DECAY, "kl_weight": _W}, [{}]),
    "P-STN": (
        {"weight_decay": _DECAY, "kl_weight": _W, "localizer_factor": (1e-3, 0.03), "start": (0.05, 0.2)},
        [{"alpha": 1.0, "samples": 4}, {"alpha": 2.0}, {"alpha": 2.0, "samples": 4}],
    ),
}
# A second round, after the first was seen: the learning rate is searched for every model, four samples in training
# where that had won, and ours shares its posterior but for a small part, which lets the shared part learn fast.
_SECOND: Mapping[str, _Space] = {
    **{model: _FIRST[model] for model in ("CNN", "STN", "fixed augmentation")},
    "tuned augmentation": ({"lr": _LR, "weight_decay": _DECAY, **_SPREADS}, [{"samples": 4}]),
    "global posterior": ({"lr": _LR, **_FIRST["global posterior"][0]}, [{"alpha": 2.0, "samples": 4}]),
    "P-STN as published": ({"lr": _LR, "weight_decay": _DECAY, "kl_weight": _W}, [{}]),
    "P-STN": (
        {"lr": _LR, "weight_decay": _DECAY, "kl_weight": _W, "localizer_factor": (0.1, 3.0), "start": (0.05, 0.2)},
        [{"alpha": 2.0, "samples": 4, "shrink": 0.01}, {"alpha": 2.0, "samples": 4, "shrink": 0.1}],
    ),
}


def draw_trials(ranges: Mapping[str, tuple[float, float]], count: int, seed: int) -> list[dict[str, Any]]:
    """Points of a Sobol sequence within ranges, each searched on a logarithmic scale, by name.

    Example:
        >>> len(draw_trials({"lr": (3e-4, 3e-3)}, count=4, seed=0))
        4
    """
    points = SobolEngine(len(ranges), scramble=True, seed=seed).draw(count, dtype=torch.float64).tolist()
    values = [[float(f"{a * (b / a) ** u:.2g}") for u, (a, b) in zip(p, ranges.values(), strict=True)] for p in points]
    return [dict(zip(ranges, own, strict=True)) for own in values]


def trials_of(model: str) -> list[Settings]:
    """The settings that a model's trials have: for each part of both rounds, points of a Sobol sequence in its ranges.

    Example:
        >>> [len(trials_of(model)) for model in MODELS]
        [24, 24, 24, 24, 24, 24, 24]
    """
    rounds = [(ranges, shared, len(all_)) for ranges, all_ in (_FIRST[model], _SECOND[model]) for shared in all_]
    made = []
    for seed, (ranges, shared, parts) in enumerate(rounds):
        for values in draw_trials(ranges, TRIALS // 2 // parts, seed):
            if "start" in values:
                values["spread"] = (values.pop("start"),) * 3
            elif "angle" in values:
                values["spread"] = tuple(values.pop(name) for name in ("angle", "scale", "shift"))
            made.append(Settings(**shared, **values))
    return made


# --- Networks --------------------------------------------------------------------------------------------------------


def make_network(model: str, settings: Settings, *, length: int | None = None, classes: int = 10) -> nn.Module:
    """An untrained network: the CNN of Table 1, alone or behind a spatial transformer with the P-STN's localizer.

    Args:
        model: one of `MODELS`.
        settings: its alpha, samples and spread.
        length: L, for series: the networks that `pstn.nn.make_model` chooses for them; None for images of 28 by 28.
        classes: K.

    Example:
        >>> sum(p.numel() for p in make_network("P-STN", Settings(alpha=2.0)).parameters())
        32908
    """
    kernels = (8, 5, 3)
    # The classifier is made first: with one seed, all models start from the same weights of it.
    classifier = mnist_cnn() if length is None else SeriesClassifier(1, classes, (32, 64, 32), kernels)
    if model == "CNN":
        return classifier
    fixed = model.endswith("augmentation")
    if fixed or model == "global posterior":
        localizer: nn.Module = GlobalLocalizer()
    else:
        localizer = ConvLocalizer(1, (28, 28)) if length is None else SeriesLocalizer(1, (16, 32, 16), kernels)
    alpha = runner.GAUSSIAN_ALPHA if fixed else settings.alpha
    posterior: PosteriorFamily = StudentT(alpha) if model != "STN" else Point()
    posterior = Hierarchical(posterior, settings.shrink) if settings.shrink else posterior
    layer = SpatialTransformer(
        Similarity() if length is None else CPAB(tess=10), localizer, (28, 28) if length is None else (length,),
        posterior=posterior, fill=BLACK if length is None else 0.0,
        padding_mode="zeros" if length is None else "border",
    )  # fmt: skip
    if model == "STN":
        return STN(layer, classifier)
    with torch.no_grad():
        angle, scale, shift = settings.spread
        spreads = [angle, scale, shift, shift] if length is None else [angle] * layer.transform.dim
        start = layer.shared.get_parameter("all_variance") if settings.shrink else layer.variance_head.last.bias
        start.copy_(torch.tensor([runner.inverse_softplus(alpha * s**2) for s in spreads]))
    return PSTN(layer.requires_grad_(not fixed), classifier, train_samples=settings.samples, test_samples=10)


# --- Training --------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A model to train: the cell that its scores go to, and its settings."""

    cell: Result
    settings: Any


def search_jobs(
    experiment: str, data: Mapping[str, Iterable[str]], trials: Callable[[str], Sequence[Any]]
) -> Iterator[Job]:
    """The jobs of a search: each model with the settings of each of its trials on each of its data.

    Args:
        experiment: its name.
        data: names of data by model.
        trials: the settings of a model's trials.
    """
    for model, names in data.items():
        for number, settings in enumerate(trials(model)):
            for name in names:
                yield Job(Result(experiment, model, name, SEARCH_FOLD, f"trial={number:02}"), settings)


def _stack_of(job: Job) -> tuple[Any, ...]:
    """What models must have in common to train as one stack; the other five folds of large data come later."""
    model, data, settings = job.cell.model, job.cell.data, job.settings
    kind = "augmentation" if model.endswith("augmentation") else "P-STN" if model.startswith("P-STN") else model
    sampled = kind not in ("CNN", "STN")
    alpha = settings.alpha if sampled and kind != "augmentation" else 0.0
    size = data if data in SERIES else "small" if DATA[data][1] < 1000 else "large"
    size = "more" if size == "large" and 5 <= job.cell.seed < SEARCH_FOLD else size
    return kind, alpha, settings.samples if sampled else 1, settings.shrink, size


def _stacks(experiment: str, jobs: Iterable[Job], part: str) -> tuple[Joint, ...]:
    """The groups that train these jobs.

    Args:
        experiment: its name.
        jobs: what to train.
        part: what to score on, "validation" or "test".
    """
    made = []
    for (kind, alpha, samples, shrink, size), own in grouped(jobs, _stack_of).items():
        name = f"{kind}-{size}" if kind in ("CNN", "STN") else f"{kind}-{size}-alpha={alpha:g}-S={samples}"
        name += f"-shrink={shrink:g}" * (shrink > 0)
        cells, data = [job.cell for job in own], size if size in SERIES else ""
        made.append(Joint(experiment, name.replace(" ", "-").lower(), cells, partial(_run, own, part), data))
    return tuple(made)


class _Examples(NamedTuple):
    """All examples of a stack, with the places of what each data set holds out."""

    x: Tensor
    y: Tensor
    train: Mapping[str, Tensor]
    held_out: Mapping[str, Tensor]
    classes: int = 10


def _images(context: RunContext, part: str) -> _Examples:
    """Training images of both data sets, and what to score on: validation or test images."""

    def read() -> _Examples:
        parts, train, held_out, at = [], {}, {}, 0
        for source in dict.fromkeys(source for source, _ in DATA.values()):
            pool, validation, test = context.data(source, normalise=True)
            scored = test if part == "test" else validation.take(range(min(SCORED, len(validation))))
            train[source] = torch.arange(at, at + len(pool))
            held_out[source] = torch.arange(at + len(pool), at + len(pool) + len(scored))
            parts += [pool, scored]
            at += len(pool) + len(scored)
        return _Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), train, held_out)

    return context.cached(("little-data", part), read)


def _series(context: RunContext, name: str) -> _Examples:
    """Three quarters of a set's training part, and the last quarter to score on."""
    task = series(name, search=True)(context)
    scored, count = task.test.batch(range(len(task.test))), len(task.x)
    held_out = torch.arange(count, count + len(scored))
    x, y = torch.cat([task.x, scored.x]), torch.cat([task.y, scored.y])
    return _Examples(x, y, {name: torch.arange(count)}, {name: held_out}, task.classes)


@contextmanager
def train_stack(
    context: RunContext, members: Sequence[Member], networks: Sequence[Callable[[], nn.Module]], x: Tensor, y: Tensor,
    declared: Recipe, *, compile: bool,
) -> Iterator[Population]:  # fmt: skip
    """Train networks as one population, which stays open in the block.

    Args:
        context: of the run, which may shorten the recipe.
        members: what sets the models apart; all have examples of their own.
        networks: make each of them, with torch's random state set to its seed.
        x: all examples.
        y: their classes.
        declared: how to train.
        compile: whether to fuse small operations.
    """
    models = []
    for member, make in zip(members, networks, strict=True):
        with runner.seeded(None, member.seed):
            models.append(make())
    recipe = context.shorten(declared, min(len(member.train) for member in members if member.train is not None))
    options: dict[str, Any] = {"groups": 1, "workers": False, "compile": compile}
    with Population(models, x, y, members, recipe, device=context.device, **options) as population:
        seconds = population.fit().seconds
        context.log(f"  {len(models)} models, {population.total_steps:,} steps in {seconds:.1f} s")
        yield population


def computed(
    context: RunContext, population: Population, number: int, cell: Result, part: str, metrics: Mapping[str, float],
    settings: Mapping[str, Any], figure: Mapping[str, Any] | None = None,
) -> Result:  # fmt: skip
    """What model `number` gives for a cell; scored on validation data, its metrics are called so."""
    notes = [*context.departures, *(str(f) for f in population.progress.failures if f.model == number)]
    prefix = "valid_" if part == "validation" else ""
    drawn, scores = {} if prefix else dict(figure or {}), {f"{prefix}{name}": v for name, v in metrics.items()}
    return dataclasses.replace(cell, metrics=scores, settings=dict(settings), departures=notes, figure=drawn)


def _run(jobs: Sequence[Job], part: str, context: RunContext, cells: Sequence[Result]) -> Iterator[Result]:
    """Train those models of a stack whose cells are wanted, as one population, and score them.

    Where tuned and default settings are the same, one training fills both cells.
    """
    wanted = {cell.name for cell in cells}
    filled = grouped(
        (job for job in jobs if job.cell.name in wanted),
        lambda job: (job.cell.model, job.cell.data, job.cell.seed, job.settings),
    )
    jobs = [alike[0] for alike in filled.values()]
    size_class = _stack_of(jobs[0])[-1]
    examples = _series(context, size_class) if size_class in SERIES else _images(context, part)
    declared = {"small": _SMALL, "large": _LARGE, "more": _LARGE}.get(size_class, _SERIES)
    length = examples.x.shape[-1] if size_class in SERIES else None
    members, networks = [], []
    for job in jobs:
        source, size = DATA.get(job.cell.data, (job.cell.data, 0))
        pool, fold = examples.train[source], job.cell.seed
        subset = pool[balanced_indices(examples.y[pool.to(examples.y.device)], size, fold=fold)] if size else pool
        settings = job.settings.at(len(subset))
        rates = settings.lr, settings.localizer_factor, settings.kl_weight, settings.weight_decay
        members.append(Member(fold, *rates, subset, examples.held_out[source]))
        networks.append(partial(make_network, job.cell.model, settings, length=length, classes=examples.classes))
    # Fusing pays where a step is long.
    fused = context.compile and declared is _LARGE and choose_compile(10**9, context.device)
    with train_stack(context, members, networks, examples.x, examples.y, declared, compile=fused) as population:
        scores = population.evaluate_members(samples=10, batch=25)
    recipe = population.recipe
    for number, (job, member) in enumerate(zip(jobs, members, strict=True)):
        train, scored = (0 if held is None else len(held) for held in (member.train, member.valid))
        taken = {
            **dataclasses.asdict(job.settings), "relative_to": 100, "train_examples": train, "scored_examples": scored,
            "batch_size": recipe.batch_size, "steps": population.total_steps, "lr_step": recipe.lr_step,
            "steps_per_epoch": population.steps_per_epoch, "precision": recipe.precision,
        }  # fmt: skip
        metrics = {name: values[number] for name, values in scores.items()}
        for same in filled[job.cell.model, job.cell.data, job.cell.seed, job.settings]:
            yield computed(context, population, number, same.cell, part, metrics, taken)


# --- The search, and what it chooses ---------------------------------------------------------------------------------


_SEARCHED: dict[str, Iterable[str]] = {**dict.fromkeys(MODELS, DATA), "P-STN": (*DATA, *SERIES)}
SEARCH = Experiment(
    "little-data-search",
    "The search for settings on little data",
    summary="Settings of seven models on 30 to 10,000 images, and of the P-STN on three series, on validation data",
    needs=("mnist", "fashion-mnist", *SERIES),
    groups=_stacks("little-data-search", search_jobs("little-data-search", _SEARCHED, trials_of), "validation"),
    quick=("cnn-small", "augmentation-small-alpha=0-s=4", "p-stn-small-alpha=2-s=4", "p-stn-faceall-alpha=2-s=1"),
    extra=True,
)


def losses_of_trials(results: Iterable[Result]) -> dict[str, dict[str, dict[int, float]]]:
    """The validation NLL of each trial, by model, data and number; infinite for one that diverged."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for result in results:
        trials = found.setdefault(result.model, {}).setdefault(result.data, {})
        trials[int(result.variant.removeprefix("trial="))] = result.metrics.get("valid_nll", math.inf)
    return found


def choose_settings(results: Iterable[Result]) -> dict[str, dict[str, Any]]:
    """What the trials of a search choose, by validation NLL.

    Args:
        results: of `SEARCH`. A data set on which some trial of a model was not run does not count for its defaults.

    Returns:
        "tuned", by model and data set the settings of the trial with the lowest NLL; "defaults", by model those of the
        trial with the lowest geometric mean of the NLL over the data sets, of those with a posterior of each input's
        own; and "trials", by model and data set how many were run.
    """
    chosen: dict[str, dict[str, Any]] = {"tuned": {}, "defaults": {}, "trials": {}}
    for model, data in losses_of_trials(results).items():
        settings = [dataclasses.asdict(s) for s in trials_of(model)]
        chosen["tuned"][model] = {d: settings[min(nll, key=nll.__getitem__)] for d, nll in data.items() if d in DATA}
        whole = [nll for nll in data.values() if len(nll) == len(settings)]
        # A posterior that is held close to one for all cannot find anything: no default of the library.
        own = [trial for trial, values in enumerate(settings) if not values["shrink"]]
        best = min(own, key=lambda trial: statistics.fmean(math.log(nll[trial]) for nll in whole))
        chosen["defaults"][model] = settings[best]
        chosen["trials"][model] = {d: len(nll) for d, nll in data.items()}
    return chosen


# --- The comparison --------------------------------------------------------------------------------------------------

CHOSEN = files("pstn.experiments") / "little_data.json"
"""What the search chose, as `choose_settings` returns it: `scripts/choose_settings.py` writes it."""
TUNED, DEFAULT = "tuned", "default"
"""The variants: settings chosen on the validation images of each data set, and one choice for all of them."""


def _final_jobs() -> Iterator[Job]:
    chosen: dict[str, dict[str, Any]] = parse_json(CHOSEN.read_text(), "little_data.json")
    for model in chosen["defaults"]:
        for data, tuned in chosen[TUNED][model].items():
            for variant, values in ((TUNED, tuned), (DEFAULT, chosen["defaults"][model])):
                settings = Settings(**{**values, "spread": tuple(values["spread"])})
                for fold in FOLDS:
                    yield Job(Result("little-data", model, data, fold, variant), settings)


FITTED = "P-STN by pstn.fit"
"""The P-STN of these tables as the library makes and trains it where it is told nothing."""


def fitted(context: RunContext, seed: int) -> PSTN:
    """A P-STN that has learned from 100 digits of fold `seed` by the library's defaults alone."""
    task = subset(100)(context)
    index = task.train(seed)
    with runner.seeded(context, seed):
        classifier = mnist_cnn()
        layer = SpatialTransformer(Similarity(), ConvLocalizer(1, (28, 28)), (28, 28), fill=BLACK)
        model = PSTN(layer, classifier).to(context.device)
        return fit(model, (task.x[index], task.y[index]), epochs=1 if context.quick else None, progress=False)


def _measure_fitted(context: RunContext, cell: Result) -> runner.Evaluated:
    model, test = fitted(context, cell.seed), subset(100)(context).test
    return runner.scores_of(model, test, seed=cell.seed), {}, {"train_examples": 100, "scored_examples": len(test)}


WORDS = {TUNED: "settings tuned for each", DEFAULT: "one setting for all"}
OURS, OTHERS = MODELS[-1], MODELS[:-1]
_BY_HAND = {"fixed augmentation": ", spreads by hand"}
_NOTES = {
    TUNED: f"Tuned: of {TRIALS} settings the one with the lowest NLL on {SCORED:,} validation images of that data set, "
    "of a model that learned from another fold.",
    DEFAULT: f"One setting for all: of the same {TRIALS} the one with the lowest geometric mean of the NLL over all "
    "data sets. It uses no labels of a data set but the N. That it was chosen on these data sets, among others, "
    "favours all models alike.",
}


def _tables() -> Iterator[Table]:
    """A table for each variant, metric and source of images: models by number of images."""
    for variant in (TUNED, DEFAULT):
        labels = f"N labels{f', {SCORED:,} more for the settings' * (variant == TUNED)}"
        supervision = {model: labels + _BY_HAND.get(model, "") for model in (*MODELS, FITTED)}
        for metric in SCORES:
            for source in ("MNIST", "FashionMNIST"):
                shown = [
                    Line(model, f"{source}{size}", metric, variant, row=model, column=f"{size:,}",
                         rivals=f"{source}{size}")
                    for model in MODELS for size in SIZES
                ]  # fmt: skip
                if (variant, source) == (DEFAULT, "MNIST"):
                    shown.append(Line(FITTED, "MNIST100", metric, variant, row=FITTED, column="100", rivals=FITTED))
                notes = (_NOTES[variant],) if (metric, source) == (SCORES[-1], "FashionMNIST") else ()
                yield Table(f"{source}, {WORDS[variant]}", tuple(shown), "model", notes=notes,
                            beside={"supervision": supervision})  # fmt: skip


def _claims() -> Iterator[Claim]:
    """That ours is inferior to none in accuracy, and ahead of all in NLL, on every data set."""
    for variant in (TUNED, DEFAULT):
        for metric, margin, words in ((ACCURACY, 0.5, "at most 0.5 less accurate"), (NLL, None, "lower NLL")):
            for data in DATA:
                ours, *others = (Line(m, data, metric, variant, row=data, column=m) for m in (OURS, *OTHERS))
                for other in others:
                    yield Claim(ours, other, paired=True, margin=margin, table=f"{WORDS[variant]}: {words}")


def draw(results: Sequence[Result]) -> figures.Figure:
    """NLL over the P-STN's by the number of images, a panel for each source of images and variant."""
    colours = ("#E69F00", "#009E73", "#999999", "#CC79A7", "#D55E00", "#56B4E9", "#0072B2")
    if not results:
        raise figures.NothingToDraw
    figure = figures.new_figure(9.4, 7.4)
    panels = figure.subplots(2, 2, squeeze=False, sharey=True)
    for (variant, words), row in zip(WORDS.items(), panels, strict=True):
        for source, axes in zip(("MNIST", "FashionMNIST"), row, strict=True):
            ours = {size: Line(OURS, f"{source}{size}", NLL, variant).by_seed(results) for size in SIZES}
            axes.axhline(1.0, color=colours[-1], linewidth=2.2, label=OURS)
            for number, (model, colour) in enumerate(zip(OTHERS, colours, strict=False)):
                points = []
                for size in SIZES:
                    theirs = Line(model, f"{source}{size}", NLL, variant).by_seed(results)
                    logs = [math.log(theirs[seed] / nll) for seed, nll in ours[size].items() if seed in theirs]
                    if len(logs) > 1:
                        middle, spread = math.exp(statistics.fmean(logs)), math.exp(statistics.stdev(logs))
                        place = size * 1.07 ** (number - 2.5)  # side by side
                        points.append((place, middle, middle - middle / spread, middle * spread - middle))
                if points:
                    at, middles, lows, highs = zip(*points, strict=True)
                    style = {"color": colour, "markersize": 3, "linewidth": 0.9, "capsize": 1.5}
                    axes.errorbar(at, middles, [lows, highs], fmt="o-", label=model, **style)
            axes.set(xscale="log", yscale="log", title=f"{source}, {words}", xlabel="training images")
            axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
            ticks = (0.7, 1.0, 1.5, 2.0, 3.0)
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.grid(axis="y", alpha=0.4)
        row[0].set_ylabel(f"NLL, times the {OURS}’s")
    figure.legend(*panels[0][0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4)
    return figure


LITTLE_DATA = Experiment(
    "little-data", "Little data",
    runner.description_of(__doc__),
    summary="Beyond the paper: seven models on 30 to 10,000 images, ten folds, tuned and with one setting each",
    needs=("mnist", "fashion-mnist"),
    groups=(
        *_stacks("little-data", _final_jobs(), "test"),
        runner.Evaluation("little-data", FITTED, "MNIST100", _measure_fitted, DEFAULT, seeds=len(FOLDS)),
    ),
    quick=("cnn-small",), tables=tuple(_tables()), claims=tuple(_claims()),
    figures=(FigureSpec("little-data", runner.description_of(__doc__, 3), draw),),
    seeds=len(FOLDS), from_paper=False, holm=True, extra=True,
)  # fmt: skip
