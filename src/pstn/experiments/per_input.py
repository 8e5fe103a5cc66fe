"""Beyond the paper: when does it matter that each input has a posterior of its own? Digits that may be turned or not.

Digits are turned by any angle, but 6 and 9 by at most 30 degrees: upside down, a 6 is a 9. One augmentation for all
inputs has to choose between turning all digits much and telling 6 from 9. A posterior of each input's own need not: the
claim is that, learned from labels alone, it turns 6 and 9 less than the others, and is ahead of one posterior for all.

How wide the learned posterior of the angle is: the mean length of its 90% region for the test images of each digit, in
each of ten folds (small) and on average (large); grey: one posterior for all digits, mean ± one standard deviation. 6
and 9 are turned by at most 30° in the data, the others by any angle.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import nn

from pstn.data import RandomRotation, balanced_indices
from pstn.distributions import Mixture, StudentT
from pstn.experiments import runner
from pstn.experiments.finding import region_width
from pstn.experiments.little_data import Job, computed, draw_trials, losses_of_trials, search_jobs, train_stack
from pstn.experiments.runner import NLL, PAPER, SCORES
from pstn.files import parse_json
from pstn.nn import PSTN, ConvLocalizer, GlobalLocalizer, SpatialTransformer, mnist_cnn
from pstn.report import Claim, FigureSpec, Line, Metric, Result, Table, figures
from pstn.report.results import grouped
from pstn.training import Member
from pstn.transforms import Rotation

NAME, SEARCH_NAME = "per-input", "per-input-search"
SIZES = {"100 images": 100, "1,000 images": 1000}
MODELS = ("CNN", "full circle", "tuned augmentation", "global posterior", "P-STN")
NARROW, LIMIT = (6, 9), math.pi / 6
"""The digits that are turned by at most this."""
TRIALS, FOLDS, SCORED = 12, range(10), 5000
LEVEL = 0.9
"""Of the region whose width is measured."""
FULL = 10.0
"""A Gaussian of 10 radians is uniform on the circle."""
FIRST = 1.5
"""The logit of the mode at no turn at the start, where there are several; the others' is 0."""
RECIPE = replace(PAPER, epochs=1000, steps_per_epoch=3, batch_size=16, lr_step=750, precision="tf32")


class Settings(NamedTuple):
    """The settings of one model.

    Args:
        lr: learning rate of the classifier.
        weight_decay: Adam's L2 term.
        localizer_factor: what the learning rate is multiplied with for the localizer.
        kl_weight: w.
        modes: of the posterior.
        samples: S in training.
        spread: of the angle, in radians: of the augmentation, or of each mode of the posterior at the start.
    """

    lr: float = 1e-3
    weight_decay: float = 3e-3
    localizer_factor: float = 1.0
    kl_weight: float = 0.0
    modes: int = 1
    samples: int = 4
    spread: float = FULL


# --- Data ------------------------------------------------------------------------------------------------------------


def turn(split: Any, seed: int) -> Any:
    """A split whose images are each turned once: 6 and 9 by at most `LIMIT`, the others by any angle."""
    u = torch.rand(len(split), 1, generator=torch.Generator().manual_seed(seed)).to(split.x.device)
    narrow = torch.isin(split.y, torch.tensor(NARROW, device=split.y.device))[:, None]
    theta = (2 * u - 1) * torch.where(narrow, LIMIT, math.pi)
    parts = zip(split.x.split(5000), theta.split(5000), strict=True)
    return replace(split, x=torch.cat([RandomRotation().make(x, angle) for x, angle in parts]))


def _data(context: runner.RunContext, part: str) -> tuple[Any, Any]:
    """Training images, and what to score on: validation or test images."""

    def read() -> tuple[Any, Any]:
        train, validation, test = context.data("mnist", normalise=False)
        scored = test if part == "test" else validation.take(range(min(SCORED, len(validation))))
        return turn(train, 0), turn(scored, 2 if part == "test" else 1)

    return context.cached((NAME, part), read)


# --- Models ----------------------------------------------------------------------------------------------------------

_LR, _DECAY = (3e-4, 3e-3), (1e-4, 3e-2)
_LEARNED = {"weight_decay": _DECAY, "kl_weight": (3e-3, 0.5), "spread": (0.2, 1.0), "localizer_factor": (0.5, 8.0)}
# Ranges, searched on a logarithmic scale, and what each part of the trials has in common.
_SPACES: Mapping[str, tuple[Mapping[str, tuple[float, float]], Sequence[Mapping[str, Any]]]] = {
    "CNN": ({"lr": _LR, "weight_decay": _DECAY}, [{"samples": 1}]),
    "full circle": ({"lr": _LR, "weight_decay": _DECAY}, [{}]),
    "tuned augmentation": ({"weight_decay": _DECAY, "spread": (0.1, 3.0)}, [{}]),
    "global posterior": (_LEARNED, [{"modes": 1}, {"modes": 4}]),
    "P-STN": (_LEARNED, [{"modes": 1}, {"modes": 4}]),
}


def trials_of(model: str) -> list[Settings]:
    """The settings that a model's trials have: for each part of them, points of a Sobol sequence in its ranges.

    Example:
        >>> [len(trials_of(model)) for model in MODELS]
        [12, 12, 12, 12, 12]
    """
    ranges, parts = _SPACES[model]
    return [
        Settings(**shared, **values)
        for seed, shared in enumerate(parts)
        for values in draw_trials(ranges, TRIALS // len(parts), seed)
    ]


def make_network(model: str, settings: Settings) -> nn.Module:
    """An untrained network: the CNN of Table 1, alone or behind a layer that turns its input.

    Example:
        >>> out = make_network("P-STN", Settings(modes=4, spread=0.5))(torch.rand(2, 1, 28, 28))
        >>> out.log_weights.shape
        torch.Size([4, 2])
    """
    # The classifier is made first: with one seed, all models start from the same weights of it.
    classifier = mnist_cnn()
    if model == "CNN":
        return classifier
    learned = model in ("global posterior", "P-STN")
    base = StudentT(alpha=2.0 if learned else runner.GAUSSIAN_ALPHA, var_init=0.0)
    layer = SpatialTransformer(
        Rotation(), ConvLocalizer(1, (28, 28)) if model == "P-STN" else GlobalLocalizer(), (28, 28),
        posterior=Mixture(settings.modes, base) if settings.modes > 1 else base,
    )  # fmt: skip
    several = settings.modes > 1
    with torch.no_grad():
        variance = layer.get_parameter(f"{'each_' * several}variance_head.last.bias")
        variance.fill_(runner.inverse_softplus(base.alpha * settings.spread**2))
        if several:
            layer.get_parameter("weights_head.last.bias")[0] = FIRST
    return PSTN(layer.requires_grad_(learned), classifier, train_samples=settings.samples, test_samples=10)


# --- Training --------------------------------------------------------------------------------------------------------


def _stacks(experiment: str, jobs: Iterable[Job], part: str) -> tuple[runner.Joint, ...]:
    """The groups that train these jobs: by what models must have in common to train as one stack."""

    def name_of(job: Job) -> str:
        kind = "augmentation" if job.cell.model in MODELS[1:3] else job.cell.model
        return f"{kind.replace(' ', '-').lower()}-{job.settings.modes}"

    return tuple(
        runner.Joint(experiment, name, [job.cell for job in own], partial(_run, own, part))
        for name, own in grouped(jobs, name_of).items()
    )


def _run(jobs: Sequence[Job], part: str, context: runner.RunContext, cells: Sequence[Result]) -> Iterator[Result]:
    """Train those models of a stack whose cells are wanted, as one population, and score them."""
    wanted = {cell.name for cell in cells}
    jobs = [job for job in jobs if job.cell.name in wanted]
    train, scored = _data(context, part)
    members, networks = [], []
    for cell, settings in jobs:
        subset = balanced_indices(train.y, min(SIZES[cell.data], len(train.y) // 2), fold=cell.seed)
        rates = settings.lr, settings.localizer_factor, settings.kl_weight, settings.weight_decay
        members.append(Member(cell.seed, *rates, subset))
        networks.append(partial(make_network, cell.model, settings))
    with train_stack(context, members, networks, train.x, train.y, RECIPE, compile=context.compile) as population:
        trained, recipe = population.models(), runner.recipe_settings(population.recipe)
    for number, ((cell, settings), model) in enumerate(zip(jobs, trained, strict=True)):
        counts = {"train_examples": SIZES[cell.data], "scored_examples": len(scored)}
        metrics, figure = _scores(model, scored, cell.seed)
        taken = {**settings._asdict(), **counts, "recipe": recipe}
        yield computed(context, population, number, cell, part, metrics, taken, figure)


def _scores(model: nn.Module, scored: Any, seed: int) -> runner.Measured:
    """Scores, on 6 and 9 alone too, and how wide the posterior of the angle is, for each digit."""
    found = runner.predict(model, scored, seed=seed)
    narrow = torch.isin(found.y, torch.tensor(NARROW, device=found.y.device))
    hits = (found.log_probs.argmax(-1) == found.y).float()
    metrics = runner.classification_scores(found)
    metrics |= {"accuracy_narrow": float(hits[narrow].mean()), "accuracy_others": float(hits[~narrow].mean())}
    if not isinstance(model, PSTN):
        return metrics, {}
    model = model.to(scored.x.device)
    with torch.no_grad():
        widths = torch.cat([region_width(model.layer.localize(x), LEVEL) for x in scored.x.split(500)])
    degrees = widths * (180 / math.pi)
    metrics |= {"width_narrow": float(degrees[narrow].mean()), "width_others": float(degrees[~narrow].mean())}
    return metrics, {"width": [runner.rounded(degrees[found.y == digit].mean(), 2) for digit in range(10)]}


# --- The search, and what it chooses ---------------------------------------------------------------------------------


SEARCH = runner.Experiment(
    SEARCH_NAME,
    "The search for settings on digits that may be turned or not",
    summary="Settings of five models, on validation data",
    needs=("mnist",),
    groups=_stacks(SEARCH_NAME, search_jobs(SEARCH_NAME, dict.fromkeys(MODELS, SIZES), trials_of), "validation"),
    extra=True,
)


def choose_settings(results: Iterable[Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """By model and data the settings of the trial with the lowest validation NLL.

    Args:
        results: of `SEARCH`; a trial that diverged has no NLL.
    """
    return {
        model: {d: trials_of(model)[min(nll, key=nll.__getitem__)]._asdict() for d, nll in data.items()}
        for model, data in losses_of_trials(results).items()
    }


# --- The comparison --------------------------------------------------------------------------------------------------

CHOSEN = files("pstn.experiments") / "per_input.json"
"""What the search chose, as `choose_settings` returns it: `scripts/choose_settings.py` writes it."""


def _final_jobs() -> Iterator[Job]:
    for model, chosen in parse_json(CHOSEN.read_text(), "per_input.json").items():
        for data, settings in chosen.items():
            for fold in FOLDS:
                yield Job(Result(NAME, model, data, fold), Settings(**settings))


ON_NARROW = Metric("accuracy_narrow", "accuracy on 6 and 9 (%)", 100, 2, True)
ON_OTHERS = Metric("accuracy_others", "accuracy on the others (%)", 100, 2, True)
WIDTHS = (
    Metric("width_narrow", "width for 6 and 9 (°)", digits=0, higher_is_better=None),
    Metric("width_others", "width for the others (°)", digits=0, higher_is_better=None),
)
OURS, OTHERS = MODELS[-1], MODELS[:-1]
_LABELS = f"N labels, {SCORED:,} more for the settings"


def _tables() -> Iterator[Table]:
    for data in SIZES:
        shown = [
            Line(model, data, metric, row=model, column=metric.label, rivals=metric.label)
            for model in MODELS
            for metric in (*SCORES, ON_NARROW, ON_OTHERS, *(WIDTHS if model in MODELS[3:] else ()))
        ]
        notes = (
            f"Width: the mean length of the region that holds {LEVEL:.0%} of the posterior of the angle.",
            f"Settings: of {TRIALS} trials of each model the one with the lowest NLL on {SCORED:,} validation images.",
        )
        yield Table(data, tuple(shown), "model", notes=notes, beside={"supervision": dict.fromkeys(MODELS, _LABELS)})


def _claims() -> Iterator[Claim]:
    """That a posterior per input is ahead of each other model."""
    for data in SIZES:
        for metric in (SCORES[0], NLL):
            for other in OTHERS:
                ours, others = (Line(model, data, metric, row=data, column=model) for model in (OURS, other))
                yield Claim(ours, others, paired=True)


def draw(results: Sequence[Result]) -> figures.Figure:
    """How wide the posterior of the angle is, by digit: one panel for each number of images."""
    held = [result for result in results if "width" in result.figure and result.model in MODELS[3:]]
    if not held:
        raise figures.NothingToDraw
    figure = figures.new_figure(9.0, 3.4)
    for axes, data in zip(figure.subplots(1, len(SIZES), sharey=True), SIZES, strict=True):
        shared, own = (
            [r.figure["width"] for r in held if (r.model, r.data) == (model, data)] for model in (MODELS[3], OURS)
        )
        if shared:  # the same for all digits
            mean = statistics.fmean(width[0] for width in shared)
            spread = statistics.stdev(width[0] for width in shared) if len(shared) > 1 else 0.0
            axes.axhspan(mean - spread, mean + spread, color="0.8", label=MODELS[3])
            axes.axhline(mean, color="0.5")
        for digit, widths in enumerate(zip(*own, strict=True)):
            style = {"color": "#D55E00" if digit in NARROW else "#0072B2", "linestyle": ""}
            label = {0: f"{OURS}, turned by any angle", NARROW[0]: f"{OURS}, by at most 30°"}.get(digit)
            axes.plot([digit + 0.2] * len(widths), widths, ".", alpha=0.5, **style)
            axes.plot(digit - 0.1, statistics.fmean(widths), "o", label=label, **style)
        axes.set(title=data, xlabel="digit", xticks=range(10))
        axes.grid(axis="y")
    figure.axes[0].set_ylabel(f"width of the {LEVEL:.0%} region (°)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)
    return figure


PER_INPUT = runner.Experiment(
    NAME, "Where each input needs a posterior of its own", runner.description_of(__doc__),
    summary="Beyond the paper: 6 and 9 turned a little, other digits by any angle; per input against one for all",
    needs=("mnist",),
    groups=_stacks(NAME, _final_jobs(), "test"), tables=tuple(_tables()), claims=tuple(_claims()),
    figures=(FigureSpec(NAME, runner.description_of(__doc__, 2), draw),),
    seeds=len(FOLDS), from_paper=False, holm=True, extra=True,
)  # fmt: skip
