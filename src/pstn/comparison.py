"""Which model to use, by held-out examples: a CNN, an STN and a P-STN on the same data; or ways to help a classifier.

`compare_models` is `pstn train --compare`, and `compare` is for a classifier that is there already. Both need scipy;
the page of the first also needs jinja2 and matplotlib: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import io
import math
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pstn._checks import require_bool, require_positive_int
from pstn.data import RandomTransform, Split, generate, make_random_transform
from pstn.defaults import LR, TEST_SAMPLES, default_batch_size, default_epochs
from pstn.files import inside, read_json, to_json, write_atomically
from pstn.io import from_pretrained
from pstn.nn import PSTN, STN, Shareable, wrap
from pstn.nn.classifier import require_classifier
from pstn.report.figures import figure_style, style_of
from pstn.report.page import duration, make_templates
from pstn.report.pictures import draw_samples
from pstn.report.tables import Cell, TableView
from pstn.training.diagnose import chance_loss
from pstn.training.evaluate import find_temperature, predict_all, read_batches, require_data
from pstn.training.fit import fit
from pstn.training.population.recipe import Teaching, one_cycle
from pstn.training.runs import run as runs
from pstn.training.runs.run import CHECKPOINT, RESULTS, Parts, Source
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings, write_settings
from pstn.uncertainty import calibration_error, log_mean_exp, reliability_curve, risk_coverage_curve

if TYPE_CHECKING:
    from pstn.training.evaluate import Batches
    from pstn.warping import Fill

__all__ = [
    "ClassifierComparison", "Comparison", "FixedAugmentation", "Scored", "Table", "compare", "compare_models", "judge",
]  # fmt: skip

COMPARISON, PAGE, LINEAR = "comparison.yaml", "comparison.html", "linear"
KINDS: tuple[Literal["cnn", "stn", "pstn"], ...] = ("cnn", "stn", "pstn")
LABELS = {
    "linear": "linear layer", "cnn": "CNN", "stn": "STN", "pstn": "P-STN",
    "classifier": "classifier as it is", "retrained": "retrained classifier", "augmented": "test-time augmentation",
    "wrapped": "wrapped classifier",
}  # fmt: skip
"""From the simplest to the one that costs most."""
RELEVANT = {"accuracy": 0.005, "NLL": 0.01}
"""The smallest differences that matter: half a point of accuracy, and 0.01 nats."""
Verdict = Literal["real", "as good", "undecided"]
_LEVEL, _DRAWS, _MISTAKES = 0.95, 4000, 6
_AT_ONCE = 10_000_000  # numbers that a bootstrap draws at a time
_GOLDEN = (1 + 5**0.5) / 2
_READ_AS_IT_IS = 48  # up to this extent a localizer that is taught reads inputs at their own size


class Scored(NamedTuple):
    """What one kind of model answered, with one seed or several."""

    kind: str
    """"linear", "cnn", "stn" or "pstn"."""
    log_probs: Tensor
    """(R, N, K), for R seeds and N held-out examples."""
    seconds: float
    """Of training, of all seeds together."""
    parameters: int
    failed: tuple[int, ...] = ()
    """Seeds that broke or ended at chance, by number. One that broke answers with the frequencies of the classes."""
    per_input: float | None = None
    """Seconds of a prediction for one input, where they were measured."""
    settings: str = ""
    """What was chosen on validation data, where something was."""
    epochs: int | None = None
    """Passes over the data, where it was trained in passes."""

    @property
    def usable(self) -> int | None:
        """The first seed that did not fail."""
        return min(set(range(len(self.log_probs))) - set(self.failed), default=None)

    def right(self, y: Tensor) -> npt.NDArray[np.float64]:
        """(N,), how often each example was answered right, by the seeds."""
        return (self.log_probs.argmax(-1) == y).double().mean(0).numpy()

    def loss(self, y: Tensor) -> npt.NDArray[np.float64]:
        """(N,), the mean negative log-likelihood of each example."""
        picked = self.log_probs.double().clamp_min(-100).gather(-1, y.expand(len(self.log_probs), -1)[..., None])
        return -picked.squeeze(-1).mean(0).numpy()


class Interval(NamedTuple):
    """A mean over examples, and where a bootstrap over them puts it."""

    value: float
    low: float
    high: float


def bootstrap(
    values: npt.NDArray[np.float64], level: float = _LEVEL, bounds: tuple[float, float] | None = None
) -> Interval:
    """The mean of values of examples, with its bootstrap interval.

    Args:
        values: (N,).
        level: how often the interval is to hold the mean.
        bounds: between which values lie, where they are shares or differences of shares. If all are the same, the
            bootstrap sees no spread; then as many others may lie at a bound as the exact interval of a share (Clopper
            and Pearson) allows for none of N.

    Example:
        >>> bootstrap(np.ones(10))
        Interval(value=1.0, low=1.0, high=1.0)
        >>> round(bootstrap(np.ones(10), bounds=(0, 1)).low, 3)
        0.692
    """
    from scipy import stats

    mean = float(values.mean())
    if values.min() == values.max():
        low, high = bounds or (mean, mean)
        others = 1 - ((1 - level) / 2) ** (1 / len(values))
        return Interval(mean, mean - others * (mean - low), mean + others * (high - mean))
    options = {"n_resamples": _DRAWS, "confidence_level": level, "method": "percentile"}
    options |= {"rng": np.random.default_rng(0), "batch": max(1, _AT_ONCE // len(values))}
    found = stats.bootstrap((values,), np.mean, **options).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


class Judgement(NamedTuple):
    """Which model to use."""

    kind: str | None
    """None where none is better than chance."""
    sentence: str
    verdict: Verdict = "undecided"
    """What its difference to the best of the others is: "real" if it is really better, in accuracy or in NLL."""


def _verdict(found: Interval, of: str) -> Verdict:
    """Real if it is beyond chance and large enough to matter; as good if none that matters is likely."""
    value, low, high = found
    if abs(value) >= RELEVANT[of] and (low > 0 or high < 0):
        return "real"
    return "as good" if -RELEVANT[of] < low and high < RELEVANT[of] else "undecided"


def _describe_gap(found: Interval, of: str) -> str:
    scale, places, unit = (100, 1, " points") if of == "accuracy" else (-1, 3, "")  # the lower the better
    value, *ends = (round(scale * number, places) + 0.0 for number in found)  # without a negative zero
    much = f"{abs(value):.{places}f}{unit} {'higher' if value > 0 else 'lower'}" if value else "the same"
    within = " to ".join(f"{end:+.{places}f}" for end in sorted(ends)) + ("" if value else unit)
    told = {"real": "the difference is real", "as good": "no difference that matters", "undecided": "undecided"}
    return f"its {of} is {much} ({within}): {told[_verdict(found, of)]}"


def judge(models: Sequence[Scored], y: Tensor, chance: float) -> Judgement:
    """Choose, of the models that no other beats, first in accuracy, then in NLL, the one with the lowest NLL.

    A simpler one that is as good is chosen instead. Of two models, the paired bootstrap interval of their difference
    over the held-out examples, corrected for the number of pairs, decides. A difference is real if the interval leaves
    out 0 and if it is at least as large as `RELEVANT` says; models are as good as each other if the whole interval is
    smaller; anything else is undecided.

    Args:
        models: their answers.
        y: (N,), the classes.
        chance: the accuracy of always answering with the commonest class.

    Example:
        >>> y = torch.arange(200) % 2
        >>> good, bad = (torch.tensor([[p, 1 - p], [1 - p, p]]).log()[y][None] for p in (0.9, 0.55))
        >>> judge([Scored("cnn", bad, 1.0, 10), Scored("pstn", good, 1.0, 10)], y, 0.5).kind
        'pstn'
    """
    models = sorted(models, key=lambda model: list(LABELS).index(model.kind))
    level = 1 - (1 - _LEVEL) / max(1, math.comb(len(models), 2))
    right, loss = ({m.kind: getattr(m, name)(y) for m in models} for name in ("right", "loss"))
    usable = [m for m in models if m.usable is not None and bootstrap(right[m.kind], bounds=(0, 1)).low > chance]
    if not usable:
        first = max(models, key=lambda model: right[model.kind].mean())
        found = f"the best, the {LABELS[first.kind]}, answers {right[first.kind].mean():.1%} right"
        few = f"; {len(y):,} test examples are too few to call that better"
        few = few if first.usable is not None and right[first.kind].mean() > chance else ""
        return Judgement(None, f"Use none of them: {found}, and the commonest class alone {chance:.1%}{few}.")

    @functools.cache
    def gap(a: str, b: str, of: str) -> Interval:
        """By how much the first kind is better than the second."""
        if of == "accuracy":
            return bootstrap(right[a] - right[b], level, bounds=(-1, 1))
        return bootstrap(loss[b] - loss[a], level)

    def beats(a: str, b: str, of: str) -> bool:
        return gap(a, b, of).value > 0 and _verdict(gap(a, b, of), of) == "real"

    def as_good(a: str, b: str) -> bool:
        return all(_verdict(gap(a, b, of), of) == "as good" for of in RELEVANT)

    best = [model.kind for model in usable]
    for of in RELEVANT:
        best = [kind for kind in best if not any(beats(other, kind, of) for other in best if other != kind)]
    lowest = min(best, key=lambda kind: loss[kind].mean())
    chosen = next(kind for kind in best if kind == lowest or as_good(lowest, kind))
    use, others = f"Use the {LABELS[chosen]}", [model.kind for model in models if model.kind != chosen]
    if not others:
        return Judgement(chosen, f"{use}: there is nothing to compare it with.")
    other = max(others, key=lambda kind: (right[kind].mean(), -loss[kind].mean()))
    verdict: Verdict = "as good" if as_good(chosen, other) else "undecided"
    if any(beats(chosen, other, of) for of in RELEVANT):
        verdict = "real"
    elif chosen == lowest:
        use += ", with the lowest NLL of those that none beats"
    else:
        use += ", the simplest that is as good as the one with the lowest NLL"
    beside = "" if len(others) == 1 else ", the most accurate of the others"
    gaps = "; ".join(_describe_gap(gap(chosen, other, of), of) for of in RELEVANT)
    end = "; more test examples are needed to decide" if verdict == "undecided" else ""
    return Judgement(chosen, f"{use}. Beside the {LABELS[other]}{beside}, {gaps}{end}.", verdict)


class Comparison(NamedTuple):
    """What a comparison came to."""

    folder: Path
    table: Table | None = None
    """The scores of each kind of model, as `results.json` has them; None if it was stopped."""
    model: Path | None = None
    """The folder of the model to use."""
    takes: Literal["images", "series"] = "images"
    """What it classifies."""


def comparison_folder(settings: TrainSettings) -> Path:
    """Where a comparison goes: the folder that is given, or runs/DATA-comparison; never into the data."""
    folder = settings.folder
    return folder if settings.out else folder.with_name(f"{folder.name.removesuffix(settings.model)}comparison")


def saved_comparison(folder: Path) -> TrainSettings:
    """The settings of the comparison in a folder."""
    path = inside(folder, COMPARISON)
    if not path.exists():
        raise SettingsError(f"{folder} holds no comparison to resume: it has no {COMPARISON}")
    return TrainSettings.from_dict({**read_settings(path), "out": str(folder)})


def compare_models(
    settings: TrainSettings, *, resume: bool = False, overwrite: bool = False, say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Comparison:  # fmt: skip
    """Train a CNN, an STN and a P-STN on the same split, each with all seeds as one population, and compare them.

    On a pretrained network, a logistic regression on its features is compared too.

    Args:
        settings: as for one model; `model` is not used.
        resume: go on with a comparison that was stopped, with its own settings.
        overwrite: replace a comparison that is there already.
        say: where messages go.
        quiet: of messages, warnings alone.
    """
    folder = comparison_folder(settings)
    settings = settings.replace(out=str(folder))
    go_on = ["--compare", "--resume", "--out", str(folder)]
    if settings.teach:
        raise SettingsError("--teach must be left out with --compare: a CNN has no transformation to be taught")
    if resume:
        saved = saved_comparison(folder)
        if saved.data != settings.data:
            runs.require_confirmed(folder, saved.data, shlex.join(["pstn", "train", "DATA", *go_on]))
        settings = saved
    make_templates()  # a missing package is reported before training
    source = runs.prepare(settings)
    if source.test is None:
        raise SettingsError(f"data must have a test part to compare models on: {runs.HOW_TO_ADD_A_TEST}")
    places = {kind: inside(folder, kind) for kind in (LINEAR, *KINDS)}
    if any(Parts.load(place) not in (None, source.parts) for place in places.values() if resume):
        raise SettingsError(f"the examples of {settings.data} have changed since {folder} was begun: --overwrite")
    settings = settings.replace(backbone=source.backbone)

    def own(kind: Literal["cnn", "stn", "pstn"]) -> TrainSettings:
        kl_weight, calibrate = settings.kl_weight if kind == "pstn" else [], settings.calibrate and kind != "cnn"
        return settings.replace(model=kind, out=str(places[kind]), kl_weight=kl_weight, calibrate=calibrate)

    if not resume:
        begun, compared = [p for p in (folder, *places.values()) if (p / CHECKPOINT).exists()], folder / COMPARISON
        if begun or compared.exists():
            runs.make_population(own("pstn"), source).close()  # whatever else is wrong is said first
            if folder in begun or not compared.exists():
                raise SettingsError(f"{begun[0]} holds a run already: choose another --out for the comparison")
            if not overwrite:
                raise SettingsError(f"{folder} holds a comparison already: --resume or --overwrite it")
        for place in places.values():
            runs.clear_run(place)
    for name in (RESULTS, PAGE):  # those of other models would pass for these
        inside(folder, name).unlink(missing_ok=True)
    write_settings(inside(folder, COMPARISON), settings)
    runs.remember_run(folder, settings.data)
    found: list[Scored] = []
    for kind in KINDS:
        run = places[kind]
        if not (run / RESULTS).exists():
            again, held = shlex.join(["pstn", "train", *go_on]), (run / CHECKPOINT).exists()
            if not runs.train(own(kind), resume=held, say=say, quiet=quiet, go_on=again, source=source).finished:
                return Comparison(folder)
        found.append(_score_run(run, kind, source, settings))
    if source.backbone not in ("paper", "small"):
        found.insert(0, _fit_linear(places[LINEAR], source, own("cnn")))
    table = _judge_all(found, source.test[1], source.y[source.train])
    use, model = table.judgement.kind, None
    if use is not None:
        model = f"{use}/model-{next(each.usable for each in found if each.kind == use)}"
    results = {
        "data": settings.data, "examples": table.examples, "classes": list(source.names), "chance": table.chance,
        "models": table.rows, "use": use, "model": model, "verdict": table.judgement.verdict,
        "sentence": table.judgement.sentence, "settings": settings.to_dict(),
    }  # fmt: skip
    with write_atomically(folder / RESULTS) as draft:
        draft.write_text(to_json(results, indent=1))
    _write_page(folder, results, found, source)
    takes: Literal["images", "series"] = "series" if len(source.size) == 1 else "images"
    return Comparison(folder, table, None if model is None else folder / model, takes)


def _score_run(folder: Path, kind: str, source: Source, settings: TrainSettings) -> Scored:
    held = read_json(folder / RESULTS)
    models = [from_pretrained(runs.model_folder(folder, number)) for number in range(settings.models)]
    broke = {failure["model"] for failure in held["failures"]}.intersection(held["failed"])
    scored = _ask(models, kind, source, settings, float(held["seconds"]), broke)
    failed = tuple(sorted({*scored.failed, *held["failed"]}))
    return scored._replace(failed=failed, epochs=len(held["history"]))


def _ask(
    models: Sequence[Shareable], kind: str, source: Source, settings: TrainSettings, seconds: float,
    broke: Collection[int] = (),
) -> Scored:  # fmt: skip
    assert source.test is not None
    seeds = [settings.seed + number for number in range(len(models))]
    log_probs = torch.stack(runs.predict_models(models, source.test[0], seeds=seeds)).cpu()
    broken = sorted({*broke, *log_probs.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()})
    log_probs[broken] = (torch.bincount(source.y[source.train], minlength=source.classes) / len(source.train)).log()
    return Scored(kind, log_probs, seconds, sum(p.numel() for p in models[0].parameters()), tuple(broken))


def _fit_linear(folder: Path, source: Source, settings: TrainSettings) -> Scored:
    """The logistic regression on the features of the pretrained network: where every model on it starts."""
    started = time.perf_counter()
    own = settings.replace(out=str(folder), backbone_learns="none")
    with runs.make_population(own, source) as population:
        models = [cast(Shareable, population.start(number).eval()) for number in range(settings.models)]
    seconds = time.perf_counter() - started
    for number, model in enumerate(models):
        model.save_pretrained(runs.model_folder(folder, number), about=runs.make_about(own, source, number))
    write_settings(folder / runs.SETTINGS, own)  # as of a run: which examples it is scored on
    if source.parts is not None:
        source.parts.save(folder)
    runs.remember_run(folder, settings.data)
    return _ask(models, "linear", source, settings, seconds)


class Table(NamedTuple):
    """The scores of several kinds of models on one set of examples."""

    rows: list[dict[str, Any]]
    """Of each kind of model, as `results.json` of `pstn train --compare` has them."""
    chance: dict[str, float]
    """Accuracy and NLL of answering with the classes' frequencies."""
    judgement: Judgement
    examples: int

    def __str__(self) -> str:
        header, rows = format_rows(self.rows, self.chance)
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows)]
        return "\n".join([*lines, self.judgement.sentence])


def _judge_all(found: Sequence[Scored], y: Tensor, train_y: Tensor) -> Table:
    commonest = float((y == int(torch.bincount(train_y).argmax())).double().mean())
    chance = {"accuracy": commonest, "nll": chance_loss(train_y)}
    return Table([_describe(model, y) for model in found], chance, judge(found, y, commonest), len(y))


def _describe(model: Scored, y: Tensor) -> dict[str, Any]:
    """The scores of one kind of model: over all seeds, and for curves the probabilities' mean over them."""
    probs = model.log_probs.double().exp()
    mean, classes = probs.mean(0), probs.shape[-1]
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    confusion.index_put_((y, mean.argmax(-1)), torch.ones_like(y), accumulate=True)
    curve, risk = reliability_curve(mean, y), risk_coverage_curve(mean, y)
    drawn = probs[model.usable or 0]  # of one seed, whose windows can be drawn
    surest = drawn.max(-1).values.masked_fill(drawn.argmax(-1) == y, -1).argsort(descending=True)
    mistakes = [int(i) for i in surest[:_MISTAKES] if int(drawn[i].argmax()) != int(y[i])]
    recall = confusion.diagonal() / confusion.sum(1).clamp_min(1)
    precision = confusion.diagonal() / confusion.sum(0).clamp_min(1)
    return {
        "kind": model.kind, "name": LABELS[model.kind], "accuracy": bootstrap(model.right(y), bounds=(0, 1))._asdict(),
        "nll": bootstrap(model.loss(y))._asdict(),
        "ece": float(np.mean([float(calibration_error(p, y)) for p in probs])), "failed": list(model.failed),
        "seconds": model.seconds, "parameters": model.parameters, "seeds": len(probs), "epochs": model.epochs,
        "seconds_per_input": model.per_input, "settings": model.settings,
        "recall": recall.tolist(), "precision": precision.tolist(), "confusion": confusion.tolist(),
        "reliability": {name: values.tolist() for name, values in curve._asdict().items()},
        "risk": {"coverage": risk.coverage.tolist(), "risk": risk.risk.tolist(), "area": float(risk.area)},
        "surest_mistakes": mistakes,
    }  # fmt: skip


# A classifier that is there already


@final
class FixedAugmentation(nn.Module):
    """A classifier whose probabilities are averaged over the same transformations of every input.

    Args:
        classifier: (N, C, *size) -> logits (N, K).
        poses: whose transformations they are.
        samples: S, how many; the first is the middle of the range, and the others are spread evenly over it.
        spread: how much of the range they cover, above 0 and at most 1.
        fill: what lies outside the input.

    Example:
        >>> model = FixedAugmentation(pstn.nn.mnist_cnn(), pstn.data.RandomRotation(0.5), 3, 1.0)
        >>> model.theta.T, model(torch.rand(2, 1, 28, 28)).shape
        (tensor([[ 0.0000,  0.3333, -0.3333]]), torch.Size([2, 10]))
    """

    theta: Tensor

    def __init__(
        self, classifier: nn.Module, poses: RandomTransform, samples: int, spread: float, fill: Fill = 0.0
    ) -> None:
        super().__init__()
        self.classifier, self.poses, self.fill = classifier, poses, fill
        # A lattice of even steps along the first axis, and of powers of the golden ratio along the others.
        steps = torch.tensor([1 / samples, *(_GOLDEN**-power for power in range(1, poses.width))])
        noise = (0.5 + torch.arange(samples)[:, None] * steps) % 1
        self.register_buffer("theta", poses.theta((0.5 + spread * (noise - 0.5)).clamp(0.01)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *size) -> log-probabilities (B, K)."""
        warped = (self.poses.make(x, theta.expand(len(x), -1), fill=self.fill) for theta in self.theta)
        return log_mean_exp(torch.stack([self.classifier(each).log_softmax(-1) for each in warped]))


class ClassifierComparison(NamedTuple):
    """What `compare` found. Printing it prints a table for each test set, with a sentence: which to use."""

    tables: dict[str, Table]
    """By test set: "as given", and "transformed"."""
    models: dict[str, nn.Module]
    """By kind, in evaluation mode: "classifier", "augmented", "retrained" and "wrapped", a `pstn.PSTN` with its
    temperature. The others return log-probabilities or logits without theirs, which is in `settings`."""
    settings: dict[str, dict[str, float]]
    """By kind: what was chosen on validation data."""
    budget: str
    """What each of them was given."""

    @property
    def use(self) -> str | None:
        """The kind of model to use: on transformed test data where they were asked for; None if all are at chance."""
        return list(self.tables.values())[-1].judgement.kind

    def __str__(self) -> str:
        tables = (f"Test data {name} ({table.examples:,}):\n{table}" for name, table in self.tables.items())
        return "\n\n".join([*tables, f"Each had {self.budget}. Intervals: 95%, a bootstrap over the test data."])


def compare(
    classifier: nn.Module, train: Batches, validation: Batches, test: Batches, poses: RandomTransform | str, *,
    teach: bool = True, transformed: bool = True, epochs: int | None = None, tries: int = 3,
    samples: int = TEST_SAMPLES, fill: float | tuple[float, ...] | None = None, seed: int = 0, progress: bool = True,
) -> ClassifierComparison:  # fmt: skip
    """Compare what can be done for a classifier whose inputs come in other poses than those that it learned from.

    - the classifier as it is;
    - fixed test-time augmentation: the same `samples` transformations of every input, averaged;
    - retraining: a copy learns on from training data that are transformed anew in every epoch;
    - wrapping: the classifier stays as it is, behind a localizer that learns the pose (`pstn.wrap`).

    Each has the same number of settings to try and the same epochs: how wide the fixed transformations are spread, the
    learning rate of retraining and of teaching, the localizer's factor of fitting. The setting and a temperature for
    the averaged probabilities come from validation data; test data are used once. The classifier is not changed.

    Needs scipy. All data are held in memory.

    Args:
        classifier: any module (N, C, *size) -> logits (N, K).
        train: labelled examples, as `pstn.fit` takes them.
        validation: others, for the settings.
        test: others, for the table.
        poses: a random transform that says which poses to expect, e.g. `pstn.data.RandomRotation(math.pi)`, or its
            text, "rotation=3.14".
        teach: teach the wrapped model the pose of training inputs, which are aligned then; otherwise it is fitted to
            their labels, as they are transformed for retraining.
        transformed: choose settings on transformed validation data, and score transformed test data as well as those
            given. False where validation and test data are already as in use.
        epochs: passes over the training data for each setting; chosen by their number when None.
        tries: how many settings each may try.
        samples: S, of a prediction with fixed transformations and of the wrapped model.
        fill: what lies outside the inputs; that of the training data when None.
        seed: of everything that is random.
        progress: whether a terminal shows how far it is.

    Example:
        >>> digits = pstn.data.load("digits", normalise=False)
        >>> parts = (part.take(range(60)) for part in digits)
        >>> found = pstn.compare(pstn.nn.mnist_cnn(), *parts, "rotation=1.0", epochs=1, tries=1)
        >>> list(found.models)
        ['classifier', 'retrained', 'augmented', 'wrapped']
    """
    require_classifier(classifier)
    for name, flag in (("teach", teach), ("transformed", transformed)):
        require_bool(name, flag)
    require_positive_int("tries", tries)
    require_positive_int("samples", samples)
    learned, held_out, tested = (_in_memory(classifier, part, fill) for part in (train, validation, test))
    random_transform, outside = make_random_transform(poses, learned.ndim), learned.fill
    if random_transform.make(learned.x[:1], random_transform.draw(1)).shape != learned.x[:1].shape:
        raise ValueError(f"poses must keep the size of the inputs, got {random_transform}")
    posed, batch_size = generate(learned, random_transform), default_batch_size(len(learned), learned.x.shape[2:])
    epochs = default_epochs(len(learned), batch_size) if epochs is None else require_positive_int("epochs", epochs)
    # A setting that fails is one that was tried: all have the same budget.
    options: dict[str, Any] = {
        "epochs": epochs, "batch_size": batch_size, "lr_schedule": one_cycle, "progress": progress, "restarts": 0,
    }  # fmt: skip

    def start() -> PSTN:
        size = tuple(learned.x.shape[2:])
        return wrap(
            copy.deepcopy(classifier), copy.deepcopy(random_transform.transform), learned.x.shape[1],
            ndim=learned.ndim, test_samples=samples, taught=teach, fill=outside,
            localizer_size=size if teach and max(size) <= _READ_AS_IT_IS else None,
        )  # fmt: skip

    if teach:  # refused before the first of them is trained
        with _seeded(seed):
            Teaching(random_transform, start()).check(learned.x[:1])
    steps = range(tries)
    rates, factors = [LR / 10 ** (k / 2) for k in steps], [1 / 10 ** (k / 2) for k in steps]
    ways: dict[str, tuple[str, list[float], Callable[[float], nn.Module]]] = {
        "classifier": ("", [0.0], lambda _: copy.deepcopy(classifier)),
        "retrained": ("lr", rates, lambda lr: fit(
            copy.deepcopy(classifier).requires_grad_(True), posed, lr=lr, **options)),
        "augmented": ("spread", [2.0**-k for k in steps], lambda spread: FixedAugmentation(
            copy.deepcopy(classifier), random_transform, samples, spread, outside)),
        "wrapped": ("lr", [2 * rate for rate in rates], lambda lr: fit(
            start(), learned, teach=random_transform, lr=lr, **options)) if teach else
        ("localizer_factor", factors, lambda factor: fit(start(), posed, localizer_factor=factor, **options)),
    }  # fmt: skip
    tests, chosen_on = {"as given": tested}, held_out
    if transformed:
        tests["transformed"] = generate(tested, random_transform, seed=2 * seed).all()
        chosen_on = generate(held_out, random_transform, seed=2 * seed + 1).all()
    models, settings, found = dict[str, nn.Module](), dict[str, dict[str, float]](), dict[str, list[Scored]]()
    for kind, (name, values, make) in ways.items():
        started = time.perf_counter()
        model, value, temperature = _choose(kind, values, make, chosen_on, seed)
        seconds = time.perf_counter() - started
        models[kind], settings[kind] = model.eval(), {**({name: value} if name else {}), "temperature": temperature}
        words = ", ".join(f"{name} {value:.2g}" for name, value in settings[kind].items())
        for part, data in tests.items():
            started = time.perf_counter()
            answers = (_ask_alone(model, data, seed) / temperature).log_softmax(-1)[None]
            spent, size = (time.perf_counter() - started) / len(data), sum(p.numel() for p in model.parameters())
            found.setdefault(part, []).append(Scored(kind, answers, seconds, size, per_input=spent, settings=words))
        if isinstance(model, PSTN):
            model.temperature = temperature
    tables = {part: _judge_all(found[part], data.y.cpu(), learned.y.cpu()) for part, data in tests.items()}
    return ClassifierComparison(tables, models, settings, f"{tries} setting(s) of {epochs} epoch(s) to try")


def _in_memory(model: nn.Module, data: Batches, fill: float | tuple[float, ...] | None) -> Split:
    """Data as `fit` takes them, as one set."""
    data = require_data(data)
    if not isinstance(data, Split):
        x, y = (torch.cat(part) for part in zip(*read_batches(model, data, 500, shuffle=False), strict=True))
        data = Split(x, y, getattr(data, "classes", ()), fill=getattr(data, "fill", 0.0))
    return data if fill is None else dataclasses.replace(data, fill=fill)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU as well
        yield


def _ask_alone(model: nn.Module, data: Split, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return predict_all(model, data, samples=None, batch_size=100, generator=generator)[0].cpu()


def _choose(
    kind: str, values: Sequence[float], make: Callable[[float], nn.Module], data: Split, seed: int
) -> tuple[nn.Module, float, float]:
    """Of the models that `make` makes of the values the one with the lowest NLL on `data`; its value; a temperature."""
    best: tuple[nn.Module, float, float] | None = None
    lowest = math.inf
    for value in values:
        with _seeded(seed), warnings.catch_warnings(), suppress(FloatingPointError):
            warnings.simplefilter("ignore", UserWarning)  # of a collapse: that setting is not chosen
            model = make(value)
            if isinstance(model, PSTN):
                model.temperature = 1.0
            log_probs, y = _ask_alone(model, data, seed), data.y.cpu()
            temperature = find_temperature(log_probs, y)
            loss = float(nn.functional.cross_entropy(log_probs.double() / temperature, y))
            if loss < lowest:
                best, lowest = (model, value, temperature), loss
    if best is None:
        raise FloatingPointError(f"the {LABELS[kind]} broke with each of its settings: look at the data")
    return best


# The page


def format_rows(rows: Sequence[dict[str, Any]], chance: dict[str, float]) -> tuple[list[str], list[list[str]]]:
    """The table: a header and lines of text, the last of which is what chance gives."""
    header = ["model", "accuracy", "NLL", "ECE", "parameters", "training"]
    timed = any(row["seconds_per_input"] is not None for row in rows)
    header += ["an input", "settings"] * timed
    lines = []
    for row in rows:
        nll = "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["nll"])
        failed = f", {len(row['failed'])} of {row['seeds']} failed" if row["failed"] else ""
        size, spent = f"{row['parameters']:,}", duration(row["seconds"])
        more = [f"{1000 * row['seconds_per_input']:.2g} ms", row["settings"]] if timed else []
        share = "{value:.1%} ({low:.1%} to {high:.1%})".format(**row["accuracy"])
        lines.append([row["name"] + failed, share, nll, f"{row['ece']:.3f}", size, spent, *more])
    last = ["chance", f"{chance['accuracy']:.1%}", f"{chance['nll']:.3f}"]
    return header, [*lines, last + [""] * (len(header) - len(last))]


def _write_page(folder: Path, results: dict[str, Any], found: Sequence[Scored], source: Source) -> None:
    header, lines = format_rows(results["models"], results["chance"])
    rows = [[Cell(text, strong=row["kind"] == results["use"]) for text in line]
            for row, line in zip(results["models"], lines, strict=False)]  # fmt: skip
    tables = [TableView(
        "All models", header, [*rows, [Cell(text, tone="quiet") for text in lines[-1]]],
        f"On {results['examples']:,} held-out examples, with 95% intervals of a bootstrap over them; "
        f"{found[0].log_probs.shape[0]} seed(s). NLL and ECE say how good the probabilities are: the lower the better.",
    )]  # fmt: skip
    names = results["classes"]
    each = [[name, *(f"{row['recall'][k]:.0%} / {row['precision'][k]:.0%}" for row in results["models"])]
            for k, name in enumerate(names)]  # fmt: skip
    tables.append(TableView("Classes: recall / precision", ["class", *(r["name"] for r in results["models"])], each))
    shown = next((row for row in results["models"] if row["kind"] == results["use"]), results["models"][-1])
    counts = [[name, *map(str, line)] for name, line in zip(names, shown["confusion"], strict=True)]
    caption = f"Confusion of the {shown['name']}: true classes in rows, answers in columns"
    tables.append(TableView(caption, ["", *names], counts))
    images = {"Reliability, and risk against coverage": _draw_curves(results["models"])}
    usable = {each.kind: each.usable for each in found if each.kind in ("stn", "pstn") and each.usable is not None}
    drawn = [row for row in results["models"] if row["kind"] in usable and row["surest_mistakes"]]
    if drawn:
        row = shown if shown in drawn else drawn[-1]
        caption = f"The surest mistakes of the {row['name']}, with the windows that it looked at"
        model = from_pretrained(runs.model_folder(folder / row["kind"], usable[row["kind"]]))
        images[caption] = _draw_mistakes(model, row["surest_mistakes"], source)
    title, template = f"Which model to use for {results['data']}", make_templates().get_template("comparison.html")
    page = template.render(title=title, sentence=results["sentence"], tables=tables, images=images)
    with write_atomically(folder / PAGE) as draft:
        draft.write_text(page, encoding="utf-8")


def _embed(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _draw_curves(rows: Sequence[dict[str, Any]]) -> str:
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for row in rows:
            style = style_of(row["name"])
            bins = [b for b, weight in enumerate(row["reliability"]["weight"]) if weight > 0]
            confidence, accuracy = ([row["reliability"][n][b] for b in bins] for n in ("confidence", "accuracy"))
            left.plot(confidence, accuracy, **style, label=row["name"])
            line = {name: value for name, value in style.items() if name != "marker"}
            label = f"{row['name']}, area {row['risk']['area']:.3f}"
            right.plot(row["risk"]["coverage"], row["risk"]["risk"], **line, label=label)
        left.plot([0, 1], [0, 1], color="0.5", linestyle=":", linewidth=1)
        left.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        right.set(xlabel="coverage: share that is answered", ylabel="risk: share of wrong answers", xlim=(0, 1))
        left.legend(fontsize=8)
        right.legend(fontsize=8)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=130)
    return _embed(stream.getvalue())


def _draw_mistakes(model: Shareable, mistakes: Sequence[int], source: Source) -> str:
    assert source.test is not None
    assert isinstance(model, (PSTN, STN))
    assert model.about is not None
    x, y = (part[list(mistakes)] for part in source.test)
    with TemporaryDirectory() as folder:
        path = draw_samples(
            Path(folder) / "mistakes.png", model, x, y, undo=model.about.undo, classes=model.about.classes,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return _embed(path.read_bytes())
