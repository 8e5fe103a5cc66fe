"""Which model to use: a CNN, an STN and a P-STN on the same data, compared on held-out examples.

Needs scipy, jinja2 and matplotlib: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pstn.files import to_json, write_atomically
from pstn.io import from_pretrained
from pstn.nn import PSTN, STN, Shareable
from pstn.report.figures import figure_style, style_of
from pstn.report.page import duration, make_templates
from pstn.report.pictures import draw_samples
from pstn.report.tables import Cell, TableView
from pstn.training.evaluate import predict_all
from pstn.training.restarts import chance_loss
from pstn.training.runs.run import (
    CHECKPOINT,
    HOW_TO_ADD_A_TEST,
    RESULTS,
    Source,
    make_about,
    make_population,
    make_run_model,
    model_folder,
    prepare,
    train,
)
from pstn.training.runs.settings import SettingsError, TrainSettings
from pstn.uncertainty import calibration_error, reliability_curve, risk_coverage_curve

__all__ = ["Comparison", "Scored", "compare_models", "judge"]

PAGE = "comparison.html"
LABELS = {"linear": "linear layer", "cnn": "CNN", "stn": "STN", "pstn": "P-STN"}
"""From the simplest to the one that costs most."""
_LEVEL, _DRAWS, _MISTAKES = 0.95, 4000, 6


class Scored(NamedTuple):
    """What one kind of model answered, with one seed or several."""

    kind: str
    """"linear", "cnn", "stn" or "pstn"."""
    log_probs: Tensor
    """(R, N, K), for R seeds and N held-out examples."""
    seconds: float
    """Of training, of all seeds together."""
    parameters: int
    failed: int = 0
    """How many of them broke or ended at chance."""

    @property
    def name(self) -> str:
        """For people."""
        return LABELS[self.kind]

    def right(self, y: Tensor) -> npt.NDArray[np.float64]:
        """(N,), how often each example was answered right, by the seeds."""
        values: npt.NDArray[np.float64] = (self.log_probs.argmax(-1) == y).double().mean(0).numpy()
        return values

    def loss(self, y: Tensor) -> npt.NDArray[np.float64]:
        """(N,), the mean negative log-likelihood of each example."""
        picked = self.log_probs.double().clamp_min(-100).gather(-1, y.expand(len(self.log_probs), -1)[..., None])
        values: npt.NDArray[np.float64] = -picked.squeeze(-1).mean(0).numpy()
        return values


class Interval(NamedTuple):
    """A mean over examples, and where a bootstrap over them puts it."""

    value: float
    low: float
    high: float


def bootstrap(values: npt.NDArray[np.float64], level: float = _LEVEL) -> Interval:
    """The mean of values of examples, with its bootstrap interval.

    Example:
        >>> bootstrap(np.ones(10))
        Interval(value=1.0, low=1.0, high=1.0)
    """
    from scipy import stats

    mean = float(values.mean())
    if values.min() == values.max():
        return Interval(mean, mean, mean)
    generator = np.random.default_rng(0)
    options = {"n_resamples": _DRAWS, "confidence_level": level, "method": "percentile", "rng": generator}
    found = stats.bootstrap((values,), np.mean, **options).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


class Judgement(NamedTuple):
    """Which model to use."""

    kind: str | None
    """None where none is better than chance."""
    sentence: str
    real: bool
    """Whether the difference between it and the best of the others is more than chance, in accuracy or in NLL."""


def judge(models: Sequence[Scored], y: Tensor, chance: float) -> Judgement:
    """Choose a model: of those that are not really worse than the best, in accuracy and then in NLL, the simplest.

    A difference is real where its paired bootstrap interval, over the held-out examples and corrected for the number
    of comparisons, leaves out 0.

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
    level = 1 - (1 - _LEVEL) / max(1, len(models) - 1)
    order = list(LABELS)
    models = sorted(models, key=lambda model: order.index(model.kind))
    usable = [m for m in models if bootstrap(m.right(y)).low > chance]
    if not usable:
        best = max(models, key=lambda model: model.right(y).mean())
        found = f"the best, the {best.name}, answers {best.right(y).mean():.1%} right"
        return Judgement(None, f"Use none of them: {found}, and the commonest class alone {chance:.1%}.", False)

    def gap(a: Scored, b: Scored, of: str) -> Interval:
        """By how much `a` is better than `b`."""
        values = {"accuracy": a.right(y) - b.right(y), "NLL": b.loss(y) - a.loss(y)}[of]
        return bootstrap(values, level)

    best = max(usable, key=lambda model: model.right(y).mean())
    level_in_accuracy = [m for m in usable if m is best or gap(best, m, "accuracy").low <= 0]
    surest = min(level_in_accuracy, key=lambda model: model.loss(y).mean())
    level_in_both = [m for m in level_in_accuracy if m is surest or gap(surest, m, "NLL").low <= 0]
    chosen = level_in_both[0]
    others = [m for m in models if m is not chosen]
    if not others:
        return Judgement(chosen.kind, f"Use the {chosen.name}: there is nothing to compare it with.", False)
    other = max(others, key=lambda model: (model.right(y).mean(), -model.loss(y).mean()))
    accuracy, nll = gap(chosen, other, "accuracy"), gap(chosen, other, "NLL")
    points = f"{abs(100 * accuracy.value):.1f} points {'above' if accuracy.value >= 0 else 'below'}"
    nats = f"{abs(nll.value):.3f} {'below' if nll.value >= 0 else 'above'}"
    better = [name for name, found in (("accuracy", accuracy), ("NLL", nll)) if found.low > 0]
    within = f"{100 * accuracy.low:+.1f} to {100 * accuracy.high:+.1f}"
    sentence = f"Use the {chosen.name}: its accuracy is {points} that of the {other.name} (difference from {within}), "
    sentence += f"and its NLL {nats} ({-nll.high:+.3f} to {-nll.low:+.3f})"
    if better:
        return Judgement(chosen.kind, f"{sentence}; the difference in {' and in '.join(better)} is real.", True)
    simplest = "it is the simplest of those that are as good" if len(level_in_both) > 1 else "it is not worse"
    return Judgement(chosen.kind, f"{sentence}; the difference is not more than chance, and {simplest}.", False)


class Comparison(NamedTuple):
    """What a comparison came to."""

    folder: Path
    finished: bool
    rows: list[dict[str, Any]]
    """The scores of each kind of model, as `results.json` has them."""
    chance: dict[str, float]
    """Accuracy and NLL of answering with the classes' frequencies."""
    judgement: Judgement | None = None
    examples: int = 0
    """How many the scores are over."""


def compare_models(
    settings: TrainSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Comparison:
    """Train a CNN, an STN and a P-STN on the same split, each with all seeds as one population, and compare them.

    On a pretrained network, a logistic regression on its features is compared too.

    Args:
        settings: as for one model; `model` is not used.
        resume: go on with a comparison that was stopped.
        overwrite: replace runs that are there already.
        say: where messages go.
        quiet: of messages, warnings alone.
    """
    folder = settings.folder  # refuses one within the data
    if not settings.out:
        folder = folder.with_name(f"{folder.name.removesuffix(settings.model)}comparison")
    make_templates()  # a missing package is reported before training
    source = prepare(settings)
    if source.test is None:
        raise SettingsError(f"data must have a test part to compare models on: {HOW_TO_ADD_A_TEST}")
    found: list[Scored] = []
    for kind in ("cnn", "stn", "pstn"):
        own = settings.replace(
            model=kind, out=str(folder / kind), kl_weight=settings.kl_weight if kind == "pstn" else [],
            calibrate=settings.calibrate and kind != "cnn",
        )  # fmt: skip
        begun = resume and (folder / kind / CHECKPOINT).exists()
        if not (begun and (folder / kind / RESULTS).exists()):
            outcome = train(own, resume=begun, overwrite=overwrite, say=say, quiet=quiet)
            if not outcome.finished:
                return Comparison(folder, False, [], {})
        found.append(_score_run(folder / kind, kind, source, settings))
    if source.backbone not in ("paper", "small"):
        found.insert(0, _fit_linear(folder / "linear", source, settings))
    y = source.test[1]
    train_y = source.y[source.train]
    commonest = float((y == int(torch.bincount(train_y).argmax())).double().mean())
    judgement = judge(found, y, commonest)
    rows = [_describe(model, y) for model in found]
    chance = {"accuracy": commonest, "nll": chance_loss(train_y)}
    results = {
        "data": settings.data, "examples": len(y), "classes": list(source.names), "chance": chance, "models": rows,
        "use": judgement.kind, "real": judgement.real, "sentence": judgement.sentence, "settings": settings.to_dict(),
    }  # fmt: skip
    with write_atomically(folder / RESULTS) as draft:
        draft.write_text(to_json(results, indent=1))
    _write_page(folder, results, found, source)
    return Comparison(folder, True, rows, chance, judgement, len(y))


def _score_run(folder: Path, kind: str, source: Source, settings: TrainSettings) -> Scored:
    from pstn.files import read_json

    held = read_json(folder / RESULTS)
    models = [from_pretrained(model_folder(folder, number)) for number in range(settings.models)]
    return _ask(models, kind, source, settings, float(held["seconds"]), len(held["failed"]))


def _ask(
    models: Sequence[Shareable], kind: str, source: Source, settings: TrainSettings, seconds: float, failed: int = 0
) -> Scored:
    assert source.test is not None
    answers = []
    for number, model in enumerate(models):
        generator = torch.Generator().manual_seed(settings.seed + number)
        answers.append(predict_all(model, source.test, samples=None, batch_size=100, generator=generator)[0])
    parameters = sum(p.numel() for p in models[0].parameters())
    return Scored(kind, torch.stack(answers), seconds, parameters, failed)


def _fit_linear(folder: Path, source: Source, settings: TrainSettings) -> Scored:
    """The logistic regression on the features of the pretrained network: where every model on it starts."""
    started = time.perf_counter()
    own = settings.replace(model="cnn", backbone_learns="none", kl_weight=[], calibrate=False)
    make_run_model(own, source, settings.seed)
    with make_population(own, source) as population:
        models: list[nn.Module] = [population.start(number).eval() for number in range(settings.models)]
    seconds = time.perf_counter() - started
    for number, model in enumerate(models):
        assert isinstance(model, Shareable)
        model.save_pretrained(folder / f"model-{number}", about=make_about(own, source, number))
    return _ask([model for model in models if isinstance(model, Shareable)], "linear", source, settings, seconds)


def _describe(model: Scored, y: Tensor) -> dict[str, Any]:
    """The scores of one kind of model: over all seeds, and for curves the probabilities' mean over them."""
    probs = model.log_probs.double().exp()
    mean, classes = probs.mean(0), probs.shape[-1]
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    confusion.index_put_((y, mean.argmax(-1)), torch.ones_like(y), accumulate=True)
    curve, risk = reliability_curve(mean, y), risk_coverage_curve(mean, y)
    surest = mean.max(-1).values.masked_fill(mean.argmax(-1) == y, -1).argsort(descending=True)
    mistakes = [int(i) for i in surest[:_MISTAKES] if int(mean[i].argmax()) != int(y[i])]
    recall = confusion.diagonal() / confusion.sum(1).clamp_min(1)
    precision = confusion.diagonal() / confusion.sum(0).clamp_min(1)
    return {
        "kind": model.kind, "name": model.name, "accuracy": bootstrap(model.right(y))._asdict(),
        "nll": bootstrap(model.loss(y))._asdict(),
        "ece": float(np.mean([float(calibration_error(p, y)) for p in probs])), "failed": model.failed,
        "seconds": model.seconds, "parameters": model.parameters, "seeds": len(probs),
        "recall": recall.tolist(), "precision": precision.tolist(), "confusion": confusion.tolist(),
        "reliability": {name: values.tolist() for name, values in curve._asdict().items()},
        "risk": {"coverage": risk.coverage.tolist(), "risk": risk.risk.tolist(), "area": float(risk.area)},
        "surest_mistakes": mistakes,
    }  # fmt: skip


# The page


def _percent(found: dict[str, float]) -> str:
    return f"{found['value']:.1%} ({found['low']:.1%} to {found['high']:.1%})"


def format_rows(rows: Sequence[dict[str, Any]], chance: dict[str, float]) -> tuple[list[str], list[list[str]]]:
    """The table: a header and lines of text, the last of which is what chance gives."""
    header = ["model", "accuracy", "NLL", "ECE", "parameters", "training"]
    lines = []
    for row in rows:
        nll = "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["nll"])
        failed = f", {row['failed']} of {row['seeds']} at chance" if row["failed"] else ""
        size, spent = f"{row['parameters']:,}", duration(row["seconds"])
        lines.append([row["name"] + failed, _percent(row["accuracy"]), nll, f"{row['ece']:.3f}", size, spent])
    return header, [*lines, ["chance", f"{chance['accuracy']:.1%}", f"{chance['nll']:.3f}", "", "", ""]]


def _write_page(folder: Path, results: dict[str, Any], found: Sequence[Scored], source: Source) -> None:
    header, lines = format_rows(results["models"], results["chance"])
    rows = [[Cell(text, strong=row["kind"] == results["use"]) for text in line]
            for row, line in zip(results["models"], lines, strict=False)]  # fmt: skip
    tables = [TableView(
        "All models", header, [*rows, [Cell(text, tone="quiet") for text in lines[-1]]],
        f"On {results['examples']:,} held-out examples, with 95% intervals of a bootstrap over them; "
        f"{found[0].log_probs.shape[0]} seed(s).",
    )]  # fmt: skip
    names = results["classes"]
    each = [[name, *(f"{row['recall'][k]:.0%} / {row['precision'][k]:.0%}" for row in results["models"])]
            for k, name in enumerate(names)]  # fmt: skip
    tables.append(TableView("Classes: recall / precision", ["class", *(r["name"] for r in results["models"])], each))
    shown = next((row for row in results["models"] if row["kind"] == results["use"]), results["models"][-1])
    counts = [[name, *map(str, line)] for name, line in zip(names, shown["confusion"], strict=True)]
    title = f"Confusion of the {shown['name']}: true classes in rows, answers in columns"
    tables.append(TableView(title, ["", *names], counts))
    images = {"Reliability, and risk against coverage": _draw_curves(results["models"])}
    with_windows = [row for row in results["models"] if row["kind"] in ("stn", "pstn")]
    row = next((row for row in with_windows if row is shown), with_windows[-1])
    if row["surest_mistakes"]:
        caption = f"The surest mistakes of the {row['name']}, with the windows that it looked at"
        images[caption] = _draw_mistakes(folder, row, source)
    page = (
        make_templates()
        .get_template("comparison.html")
        .render(
            title=f"Which model to use for {results['data']}",
            sentence=results["sentence"],
            tables=tables,
            images=images,
        )
    )
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


def _draw_mistakes(folder: Path, row: dict[str, Any], source: Source) -> str:
    assert source.test is not None
    model = from_pretrained(model_folder(folder / row["kind"], 0))
    assert isinstance(model, (PSTN, STN))
    assert model.about is not None
    x, y = (part[row["surest_mistakes"]] for part in source.test)
    path = draw_samples(
        folder / "mistakes.png", model, x, y, undo=model.about.undo, classes=model.about.classes,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return _embed(path.read_bytes())
