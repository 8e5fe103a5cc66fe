"""Carrying out a group: train its models together, survive being stopped, test them, write a result each."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pstn.experiments.declare import Evaluation, Group, Probe, Task, Training
from pstn.experiments.fitting import Job, fit
from pstn.experiments.lab import Lab
from pstn.experiments.scores import classify, predict
from pstn.nn import TransformerClassifier
from pstn.provenance import provenance
from pstn.report.results import Result
from pstn.training import Member, Population, Recipe
from pstn.training.checkpoint import load_checkpoint, read_checkpoint, save_weights
from pstn.training.group import precision_flags

__all__ = ["carry_out", "trained"]


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a training came to."""

    models: dict[tuple[str, int], nn.Module]
    """By variant and seed, on the CPU."""
    recipe: Recipe
    seconds: float
    """Of each model: an equal share."""
    notes: list[str]
    epochs: int


def carry_out(lab: Lab, pieces: Sequence[tuple[Group, Sequence[Result]]]) -> None:
    """Train groups side by side, measure what is wanted of each, and write a result file for each cell.

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


def _pairs_of(lab: Lab, group: Training, wanted: Sequence[Result]) -> list[tuple[str, int]]:
    """Variant and seed of the models that give the wanted cells."""
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

    pairs = group.pairs(lab)
    folder = lab.work / group.experiment
    paths = [folder / f"{group.of_model(*pair)[0].name}.weights.safetensors" for pair in pairs]
    recipe = _recipe(lab, group)
    if not all(_is_of(path, recipe) for path in paths):
        (run,) = _train(lab, [(group, pairs)])
        for pair, path in zip(pairs, paths, strict=True):
            about = {"recipe": repr(run.recipe), "seconds": str(run.seconds)}
            save_weights(path, run.models[pair].state_dict(), about)
        _checkpoint(lab, group).unlink(missing_ok=True)
        return run
    models, seconds = {}, 0.0
    for pair, path in zip(pairs, paths, strict=True):
        model = _make(lab, group, pair[1])
        with safe_open(str(path), framework="pt") as stream:
            seconds = float((stream.metadata() or {})["seconds"])
            model.load_state_dict({name: stream.get_tensor(name) for name in stream.keys()})  # noqa: SIM118
        models[pair] = model.eval()
    return _Run(models, recipe, seconds, [], recipe.epochs)


def _is_of(path: Path, recipe: Recipe) -> bool:
    """Whether a file of weights is there and was trained by this recipe."""
    from safetensors import safe_open

    if not path.exists():
        return False
    with safe_open(str(path), framework="pt") as stream:
        return (stream.metadata() or {}).get("recipe") == repr(recipe)


def _make(lab: Lab, group: Training, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return group.make(lab, seed)


def _recipe(lab: Lab, group: Training) -> Recipe:
    task = group.task(lab)
    subset = task.train(0)
    return lab.shorten(group.recipe, len(task.x) if subset is None else len(subset), whole=group.keep)


def _members(lab: Lab, group: Training, task: Task, pairs: Sequence[tuple[str, int]]) -> list[Member]:
    lr = group.lr(lab) if callable(group.lr) else group.lr
    return [
        Member(seed, lr, group.localizer_lr, group.variants[variant], group.weight_decay, task.train(seed))
        for variant, seed in pairs
    ]


def _train(lab: Lab, trainings: Sequence[tuple[Training, list[tuple[str, int]]]]) -> list[_Run]:
    """Train the models of each group that are asked for, or those that a stopped run has begun."""
    started = [_start(lab, group, pairs) for group, pairs in trainings]
    with ExitStack() as stack:
        for job, _ in started:
            stack.enter_context(job.population)
        fit(lab, [job for job, _ in started])
        runs = []
        for job, pairs in started:
            progress = job.population.progress
            made = dict(zip(pairs, job.population.models(), strict=True))
            seconds = progress.seconds / len(pairs) / len(started)
            notes = [str(failure) for failure in progress.failures]
            runs.append(_Run(made, job.population.recipe, seconds, notes, progress.epoch))
    return runs


def _start(lab: Lab, group: Training, pairs: list[tuple[str, int]]) -> tuple[Job, list[tuple[str, int]]]:
    """A population at its beginning, or where its checkpoint left it, and what its models are."""
    task, recipe = group.task(lab), _recipe(lab, group)
    held = _held(lab, group, recipe, pairs)
    pairs = pairs if held is None else held
    models = [_make(lab, group, seed) for _, seed in pairs]
    population = Population(
        models, task.x, task.y, _members(lab, group, task, pairs), recipe, device=lab.device,
        compile=lab.compile or None,
        groups=None if group.stacked else len(models),
    )  # fmt: skip
    path = _checkpoint(lab, group)
    if held is not None:
        load_checkpoint(path, population)
    about = {"pairs": [list(pair) for pair in pairs], "recipe": repr(recipe)}
    return Job(lab, group.name, population, path, about), pairs


def _checkpoint(lab: Lab, group: Training) -> Path:
    return lab.work / group.experiment / f"{group.name}.safetensors"


def _held(lab: Lab, group: Training, recipe: Recipe, pairs: list[tuple[str, int]]) -> list[tuple[str, int]] | None:
    """The models in the checkpoint of a stopped run, if it is one of this training; None where there is none."""
    path = _checkpoint(lab, group)
    if not path.exists():
        return None
    settings = read_checkpoint(path)[1]["settings"]
    there = [(variant, seed) for variant, seed in settings["pairs"]]
    if settings["recipe"] != repr(recipe) or not set(pairs) <= set(there):
        lab.say(f"{path} is of other settings: starting anew")
        path.unlink()
        return None
    return there


def _test(lab: Lab, group: Training, run: _Run, variant: str, seed: int, wanted: set[str]) -> None:
    """Test one model on each of its data sets, and write what is wanted."""
    model = run.models[variant, seed]
    for data, load in {group.data: group.task, **group.also}.items():
        cells = [c for c in group.of_model(variant, seed) if c.data == data and c.name in wanted]
        if not cells:
            continue
        started, task = time.perf_counter(), load(lab)
        test = lab.few(task.test)
        with precision_flags(Recipe()):
            answers = predict(model, test, seed=seed, batch=task.batch)
            probe = Probe(lab, dataclasses.replace(task, test=test), model, answers, cells[0])
            metrics: dict[str, float] = dict(classify(answers))
            figure: dict[str, Any] = {}
            for measure in group.measures:
                more, drawn = measure(probe)
                metrics |= more
                figure |= drawn
        seconds = run.seconds + time.perf_counter() - started
        settings = _settings(lab, group, run, task, model, variant, seed, len(test))
        departures = [*group.departures, *task.notes, *lab.departures(group.recipe, run.recipe), *run.notes]
        for cell in cells:
            _write(lab, cell, metrics, figure, settings, departures, seconds)


def _write(
    lab: Lab, cell: Result, metrics: dict[str, float], figure: dict[str, Any], settings: dict[str, Any],
    departures: list[str], seconds: float,
) -> None:  # fmt: skip
    result = dataclasses.replace(
        cell, metrics=metrics, figure=figure, settings=settings, departures=departures, quick=lab.quick,
        seconds=round(seconds, 3), **lab.keep("provenance", provenance),
    )  # fmt: skip
    result.write(lab.folder)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    lab.say(f"  {cell.name}: {shown}")


def _settings(
    lab: Lab, group: Training, run: _Run, task: Task, model: nn.Module, variant: str, seed: int, tests: int
) -> dict[str, Any]:
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
        "lr": member.lr, "localizer_lr": member.localizer_lr, "kl_weight": member.kl_weight,
        "weight_decay": member.weight_decay,
    }  # fmt: skip
    if isinstance(model, TransformerClassifier):
        layer = model.layer
        drawn = (run.recipe.samples or model.train_samples) if layer.probabilistic else 1
        settings |= {
            "transform": type(layer.transform).__name__, "samples_train": drawn,
            "samples_test": model.test_samples, "alpha": layer.alpha, "sampling": layer.sampling,
        }  # fmt: skip
    settings["network"] = {name: list(p.shape) for name, p in model.named_parameters()}
    return settings


def _evaluate(lab: Lab, group: Evaluation, wanted: Sequence[Result]) -> None:
    for cell in wanted:
        started = time.perf_counter()
        with precision_flags(Recipe()):
            metrics, figure, settings = group.measure(lab, cell)
        quick = lab.departures(Recipe(), Recipe())
        seconds = time.perf_counter() - started
        _write(lab, cell, metrics, figure, settings, [*group.departures, *quick], seconds)
