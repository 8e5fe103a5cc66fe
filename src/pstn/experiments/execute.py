"""Carrying out a group: train its models together, survive being stopped, test them, write a result each."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pstn._checks import NotFiniteError
from pstn.experiments.declare import Evaluation, Group, Probe, Task, Training
from pstn.experiments.fitting import Job, fit
from pstn.experiments.identity import digest, identity
from pstn.experiments.lab import Lab
from pstn.experiments.scores import Found, classify, predict
from pstn.files import FileError, parse_json, require_regular_file
from pstn.nn import TransformerClassifier
from pstn.provenance import provenance
from pstn.report.results import Result
from pstn.training import Failure, Member, Population, Recipe
from pstn.training.population.group import precision_flags
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, read_about, save_weights

__all__ = ["carry_out", "trained"]


Pair = tuple[str, int]
"""Variant and seed: which model of a group."""


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a training came to."""

    models: dict[Pair, nn.Module]
    """On the CPU."""
    recipe: Recipe
    seconds: float
    """Of each model: an equal share."""
    notes: dict[Pair, list[str]]
    """What went wrong with a model, for its results."""
    epochs: int


def carry_out(lab: Lab, pieces: Sequence[tuple[Group, Sequence[Result]]]) -> None:
    """Train groups side by side, measure what is wanted of each, and write a result for each cell.

    Args:
        lab: where.
        pieces: groups, with those of their cells whose results are missing.
    """
    trainings = [
        (group, _pairs_of(lab, group, wanted))
        for group, wanted in pieces
        if isinstance(group, Training) and not group.keep
    ]
    runs = dict(zip((g.name for g, _ in trainings), _train(lab, trainings), strict=True)) if trainings else {}
    for group, wanted in pieces:
        if isinstance(group, Evaluation):
            _evaluate(lab, group, wanted)
            continue
        run = _kept(lab, group) if group.keep else runs[group.name]
        for variant, seed in _pairs_of(lab, group, wanted):
            _test(lab, group, run, variant, seed, {cell.name for cell in wanted})
        _checkpoint(lab, group).unlink(missing_ok=True)
    if lab.device.type == "cuda":
        torch.cuda.empty_cache()


def _pairs_of(lab: Lab, group: Training, wanted: Sequence[Result]) -> list[Pair]:
    """The models that give the wanted cells."""
    names = {cell.name for cell in wanted}
    return [pair for pair in group.pairs(lab) if any(cell.name in names for cell in group.of_model(*pair))]


def trained(lab: Lab, group: Training, seed: int) -> nn.Module:
    """A copy of a model of a group whose weights are kept: trained now, unless it was before.

    Args:
        lab: where.
        group: declared with `keep=True`.
        seed: which of its models.
    """
    assert group.keep, group.name
    return copy.deepcopy(_kept(lab, group).models[next(iter(group.variants)), seed])


def _kept(lab: Lab, group: Training) -> _Run:
    return lab.keep(("trained", group.experiment, group.name), lambda: _load_or_train(lab, group))


def _load_or_train(lab: Lab, group: Training) -> _Run:
    from safetensors import safe_open

    pairs, recipe = group.pairs(lab), _recipe(lab, group)
    folder = lab.work / group.experiment
    paths = [folder / f"{group.of_model(*pair)[0].name}.weights.safetensors" for pair in pairs]
    models = {pair: _make(lab, group, pair[1]) for pair in pairs}
    origins = _identities(lab, group, recipe, models)
    held = [_about(path) for path in paths]
    if [about.get("identity") for about in held] != origins:
        (run,) = _train(lab, [(group, pairs)])
        for pair, path, origin in zip(pairs, paths, origins, strict=True):
            told = {"seconds": str(run.seconds), "notes": json.dumps(run.notes.get(pair, []))}
            save_weights(path, run.models[pair].state_dict(), {"identity": origin, **told})
        _checkpoint(lab, group).unlink(missing_ok=True)
        return run
    for pair, path in zip(pairs, paths, strict=True):
        with safe_open(str(path), framework="pt") as stream:
            models[pair].load_state_dict({name: stream.get_tensor(name) for name in stream.keys()})  # noqa: SIM118  # no dict
        models[pair].eval()
    notes = {pair: parse_json(about["notes"], path) for pair, about, path in zip(pairs, held, paths, strict=True)}
    return _Run(models, recipe, float(held[0]["seconds"]), notes, recipe.epochs)


def _about(path: Path) -> dict[str, str]:
    """What stands beside the weights in a file; nothing where there is none, or none that can be read."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return {}
    try:
        require_regular_file(path)
        with safe_open(str(path), framework="pt") as stream:
            return stream.metadata() or {}
    except (SafetensorError, FileError):
        return {}


def _identities(lab: Lab, group: Training, recipe: Recipe, untrained: dict[Pair, nn.Module]) -> list[str]:
    task = group.task(lab)
    members = _members(lab, group, task, list(untrained))
    return [identity(recipe, m, task, model) for m, model in zip(members, untrained.values(), strict=True)]


def _make(lab: Lab, group: Training, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return group.make(lab, seed)


def _recipe(lab: Lab, group: Training) -> Recipe:
    task = group.task(lab)
    subset = task.train(0)
    return lab.shorten(group.recipe, len(task.x) if subset is None else len(subset), whole=group.keep)


def _members(lab: Lab, group: Training, task: Task, pairs: Sequence[Pair]) -> list[Member]:
    lr = group.lr(lab) if callable(group.lr) else group.lr
    return [
        Member(seed, lr, group.localizer_factor, group.variants[variant], group.weight_decay, task.train(seed))
        for variant, seed in pairs
    ]


def _train(lab: Lab, trainings: Sequence[tuple[Training, list[Pair]]]) -> list[_Run]:
    """Train the models of each group that are asked for, or those that a stopped run has begun."""
    started = [_start(lab, group, pairs) for group, pairs in trainings]
    with ExitStack() as stack:
        for job, _ in started:
            stack.enter_context(job.population)
        fit(lab, [job for job, _ in started])
        times = [job.population.progress.seconds for job, _ in started]
        # Side by side they take as long as the longest: that time is shared out, so that the shares add up to it.
        share = max(times) / max(sum(times), 1e-9)
        runs = []
        for job, pairs in started:
            progress = job.population.progress
            made = dict(zip(pairs, job.population.models(), strict=True))
            seconds = progress.seconds * share / len(pairs)
            notes = {pairs[failure.model]: [_told(failure)] for failure in progress.failures}
            runs.append(_Run(made, job.population.recipe, seconds, notes, progress.epoch))
    return runs


def _told(failure: Failure) -> str:
    """Why a model was stopped, for its own results."""
    return (
        f"Stopped in training at step {failure.step}: loss {failure.loss:g}, gradient norm {failure.grad_norm:g}. "
        f"{failure.found} The weights are those before that step."
    )


def _start(lab: Lab, group: Training, pairs: list[Pair]) -> tuple[Job, list[Pair]]:
    """A population at its beginning, or where its checkpoint left it, and what its models are."""
    task, recipe = group.task(lab), _recipe(lab, group)
    held = _held(lab, group, recipe, pairs)
    pairs = pairs if held is None else held
    models = {pair: _make(lab, group, pair[1]) for pair in pairs}
    population = Population(
        list(models.values()), task.x, task.y, _members(lab, group, task, pairs), recipe, device=lab.device,
        compile=lab.compile or None,
        groups=None if group.stacked else len(models),
    )  # fmt: skip
    path = _checkpoint(lab, group)
    if held is not None:
        load_checkpoint(path, population)
    about = {"pairs": [list(pair) for pair in pairs], "identities": _identities(lab, group, recipe, models)}
    return Job(lab, group.name, population, path, about), pairs


def _checkpoint(lab: Lab, group: Training) -> Path:
    return lab.work / group.experiment / f"{group.name}.safetensors"


def _held(lab: Lab, group: Training, recipe: Recipe, pairs: list[Pair]) -> list[Pair] | None:
    """The models in the checkpoint of a stopped run, if it is one of this training; None where there is none."""
    path = _checkpoint(lab, group)
    if not path.exists():
        return None
    try:
        settings = read_about(path)["settings"]
        there = [(variant, seed) for variant, seed in settings["pairs"]]
        known = set(there) <= set(group.pairs(lab))
    except (CheckpointError, KeyError, TypeError, ValueError) as error:
        lab.say(f"{error}: starting anew")
        path.unlink()
        return None
    if known and set(pairs) <= set(there):
        models = {pair: _make(lab, group, pair[1]) for pair in there}
        if settings.get("identities") == _identities(lab, group, recipe, models):
            return there
    lab.say(f"{path} is of other settings: starting anew")
    path.unlink()
    return None


def _test(lab: Lab, group: Training, run: _Run, variant: str, seed: int, wanted: set[str]) -> None:
    """Test one model on each of its data sets, and write what is wanted."""
    model, given = run.models[variant, seed], group.of_model(variant, seed)
    for data, load in {group.data: group.task, **group.also}.items():
        cells = [c for c in given if c.data == data and c.name in wanted]
        if not cells:
            continue
        started, task = time.perf_counter(), load(lab)
        test = lab.few(task.test)
        notes = [*group.departures, *task.notes, *lab.departures(group.recipe, run.recipe)]
        notes += run.notes.get((variant, seed), [])
        try:
            metrics, figure = _measure(lab, group, dataclasses.replace(task, test=test), model, cells[0])
        except NotFiniteError as error:
            metrics, figure = {}, {}
            notes.append(_diverged(error))
        # One training and one test may fill several cells: each has its share, so that their sum is what it took.
        seconds = run.seconds / len(given) + (time.perf_counter() - started) / len(cells)
        settings = _settings(lab, group, run, model, variant, seed, len(test))
        for cell in cells:
            named = dataclasses.replace(cell, training=given[0].name)
            _write(lab, named, (metrics, figure), settings, notes, seconds)


def _measure(lab: Lab, group: Training, task: Task, model: nn.Module, cell: Result) -> Found:
    """The scores of a model and all else that its group measures."""
    with precision_flags(Recipe(), tune=True):
        answers = predict(model, task.test, seed=cell.seed, batch=task.batch)
        probe = Probe(lab, task, model, answers, cell)
        metrics: dict[str, float] = dict(classify(answers))
        figure: dict[str, Any] = {}
        for measure in group.measures:
            more, drawn = measure(probe)
            metrics |= more
            figure |= drawn
    return metrics, figure


def _diverged(error: NotFiniteError) -> str:
    return f"No numbers: this model diverged. When it was tested, {error}."


def _write(
    lab: Lab, cell: Result, found: Found, settings: dict[str, Any], departures: list[str], seconds: float
) -> None:
    measured, figure = found
    metrics = {name: value for name, value in measured.items() if math.isfinite(value)}
    departures = departures + [f"{name} is {measured[name]}: left out." for name in measured if name not in metrics]
    result = dataclasses.replace(
        cell, metrics=metrics, figure=figure, settings=settings, departures=departures, quick=lab.quick,
        seconds=round(seconds, 3), **lab.keep("provenance", provenance),
    )  # fmt: skip
    result.write(lab.folder)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or departures[-1]
    lab.say(f"  {cell.name}: {shown}")


def _settings(
    lab: Lab, group: Training, run: _Run, model: nn.Module, variant: str, seed: int, tests: int
) -> dict[str, Any]:
    task = group.task(lab)  # what it was trained on, whatever it is tested on
    member = _members(lab, group, task, [(variant, seed)])[0]
    subset = member.train
    recipe = {f.name: getattr(run.recipe, f.name) for f in dataclasses.fields(run.recipe)}
    recipe["augment"] = None if run.recipe.augment is None else repr(run.recipe.augment)
    settings: dict[str, Any] = {
        "source": task.name,
        "train_examples": len(task.x) if subset is None else len(subset),
        "test_examples": tests,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "recipe": recipe,
        "epochs_run": run.epochs,
        "lr": member.lr, "localizer_factor": member.localizer_factor, "kl_weight": member.kl_weight,
        "weight_decay": member.weight_decay,
    }  # fmt: skip
    if isinstance(model, TransformerClassifier):
        layer = model.layer
        drawn = (run.recipe.samples or model.train_samples) if layer.probabilistic else 1
        settings |= {
            "transform": type(layer.transform).__name__, "samples_train": drawn,
            "samples_test": model.test_samples, "sampling": layer.sampling,
            "alpha": getattr(layer.posterior, "alpha", 1.0),
            "precision": getattr(layer.posterior, "precision", "per-parameter"), "padding_mode": layer.padding_mode,
            "fill": layer.fill.tolist() if isinstance(layer.fill, Tensor) else layer.fill,
        }  # fmt: skip
    settings["network"] = {name: list(p.shape) for name, p in model.named_parameters()}
    settings["weights"] = digest(model.state_dict())  # for those who test the model again, later
    return settings


def _evaluate(lab: Lab, group: Evaluation, wanted: Sequence[Result]) -> None:
    for cell in wanted:
        started = time.perf_counter()
        notes = [*group.departures, *lab.departures(Recipe(), Recipe())]
        settings: dict[str, Any] = {}
        try:
            with precision_flags(Recipe(), tune=True):
                metrics, figure, settings = group.measure(lab, cell)
        except NotFiniteError as error:
            metrics, figure = {}, {}
            notes.append(_diverged(error))
        seconds = time.perf_counter() - started
        named = dataclasses.replace(cell, training=cell.name)
        _write(lab, named, (metrics, figure), settings, notes, seconds)
