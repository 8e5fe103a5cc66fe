"""A run: a folder with settings, checkpoints, and in the end weights and scores. It survives being killed."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pstn.data.files import cache_folder, expand
from pstn.data.registry import find_known
from pstn.files import inside, to_json, write_atomically
from pstn.io import require_modest
from pstn.nn import Shareable
from pstn.text import excerpt
from pstn.training.diagnose import look_for_collapses
from pstn.training.population import Population, Progress
from pstn.training.population.recipe import kl_weight_at
from pstn.training.progress import Display, Interrupt
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, read_about, require_room, save_checkpoint
from pstn.training.runs.settings import SettingsError, TrainSettings, write_settings
from pstn.training.runs.sources import Source, make_about, make_population, make_run_model, prepare

__all__ = ["Outcome", "is_own_run", "model_folder", "remember_run", "require_confirmed", "saved_settings", "train"]

CHECKPOINT, SETTINGS, RESULTS = "checkpoint.safetensors", "settings.yaml", "results.json"


@dataclass
class Outcome:
    """What a run came to."""

    folder: Path
    finished: bool
    scores: dict[str, list[float]] = field(default_factory=dict)
    """On the test set, one number per model; none where the data have no test part."""
    test_examples: int = 0
    """How many examples the scores are over."""
    takes: Literal["images", "series"] = "images"
    """What its models classify."""
    problems: list[str] = field(default_factory=list)
    """Models that broke, and collapses, each with what to try."""


def model_folder(run: Path, number: int) -> Path:
    """Where a finished run keeps a model: what `pstn.from_pretrained` takes; a link out of the run is refused."""
    return inside(run, f"model-{number}")


def train(
    settings: TrainSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Outcome:
    """Train what the settings describe, into its folder.

    Ctrl-C or SIGTERM saves and stops; `resume=True` goes on, as after any other end, to the same final weights.

    Args:
        settings: what to do.
        resume: go on with the run in the folder; its own saved settings count.
        overwrite: replace a run that is there already.
        say: where messages go.
        quiet: of messages, warnings alone and how to go on; else also what is trained and, without a terminal, a line
            every half minute.

    Raises:
        SettingsError: if there is a run already, or none to resume.
        ValueError: if the run to resume was trained on a path that neither `settings` name nor this user trained it on.
        CheckpointError: if the run to resume cannot be read.
        FileError: if a file or a model in the folder is a link that leads out of it.
        OSError: if the folder cannot be written or the disk is full, before training.
    """
    folder = settings.folder
    _refuse_links(folder)
    if resume:
        saved = saved_settings(folder)
        if saved.data != settings.data:
            again = shlex.join(["pstn", "train", "DATA", "--resume", "--out", str(folder)])
            require_confirmed(folder, saved.data, again)
        settings = saved
    elif (folder / CHECKPOINT).exists() and not overwrite:
        raise SettingsError(f"{folder} holds a run already: --resume goes on with it, --overwrite replaces it")
    source = prepare(settings)
    # A class whose name cannot be written, or a model that could not be loaded, is refused now, not after training.
    require_modest(make_run_model(settings, source, settings.seed), make_about(settings, source, 0))
    with make_population(settings, source) as population:
        require_room(folder, population)
        for draft in folder.glob(".*.draft"):  # of a process that was killed while it wrote
            draft.unlink(missing_ok=True)
        # The stacks too: elsewhere, with other cores, the same choice would round differently.
        settings = settings.replace(groups=len(population.groups), compile=population.compiles)
        if resume:
            load_checkpoint(folder / CHECKPOINT, population)
        else:
            _clear(folder)
            write_settings(folder / SETTINGS, settings)
            save_checkpoint(folder / CHECKPOINT, population, settings.to_dict())
        remember_run(folder, settings.data)
        if not quiet:
            say(_plan(settings, population, source))
        with Display(population, None if quiet else say) as display:
            problems, stopped = _fit(settings, folder, population, source, say, display)
        if stopped:
            again = shlex.join(["pstn", "train", "--resume", "--out", str(folder)])
            say(f"Stopped at epoch {population.progress.epoch} and saved. To go on: {again}")
            return Outcome(folder, False, problems=problems)
        return _finish(settings, folder, population, source, problems)


def saved_settings(folder: Path) -> TrainSettings:
    """The settings of the run in a folder, from its checkpoint: what it holds, it holds as a whole."""
    if not (folder / CHECKPOINT).exists():
        raise SettingsError(f"{folder} holds no run to resume: it has no {CHECKPOINT}")
    about = read_about(folder / CHECKPOINT)
    if not isinstance(about["settings"], dict) or not isinstance(about["members"], list):
        raise CheckpointError(f"{folder / CHECKPOINT} is not a checkpoint of a run: it holds no settings")
    settings = TrainSettings.from_dict({**about["settings"], "out": str(folder)})
    if settings.models != len(about["members"]):
        raise CheckpointError(
            f"{folder / CHECKPOINT} holds {len(about['members']):,} models, its settings say {settings.models:,}"
        )
    return settings


def _refuse_links(folder: Path) -> None:
    """Refuse links out of a run: what is read, replaced or removed there must be the run's own."""
    for name in (CHECKPOINT, SETTINGS, RESULTS, *(path.name for path in folder.glob("model-*"))):
        inside(folder, name)


def _clear(folder: Path) -> None:
    """Remove what another run left, its checkpoint first: nothing of it may pass for the new run's."""
    for path in (folder / CHECKPOINT, folder / RESULTS):
        path.unlink(missing_ok=True)
    for config in folder.glob("model-*/config.json"):
        if config.parent.is_symlink():  # to another model of this run
            continue
        for path in (config, config.with_name("model.safetensors"), config.with_name("README.md")):
            path.unlink(missing_ok=True)
        if not any(config.parent.iterdir()):
            config.parent.rmdir()


def _plan(settings: TrainSettings, population: Population, source: Source) -> str:
    """What is about to be trained, on what, in one or two lines."""
    member, recipe = population.members[0], population.recipe
    subset, valid = (0 if part is None else len(part) for part in (member.train, member.valid))
    parts = [f"{subset or len(source.x):,} examples of {source.classes} classes to learn from"]
    parts += [f"{valid:,} to validate on"] if recipe.validates and valid else []
    parts += ["none to test on" if source.test is None else f"{len(source.test[1]):,} to test on"]
    models = f"one {settings.model}" if settings.models == 1 else f"{settings.models} of {settings.model}"
    passes = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs:,} epochs"
    begun = f", from epoch {population.progress.epoch}" if population.progress.step else ""
    return f"{settings.data}: {', '.join(parts)}.\nTraining {models} for {passes}{begun}."


def _fit(
    settings: TrainSettings, folder: Path, population: Population, source: Source, say: Callable[[str], None],
    display: Display,
) -> tuple[list[str], bool]:  # fmt: skip
    """Train, save regularly, report each problem once; return the problems, and whether it was stopped."""
    reported: dict[str, str] = {}
    last = time.monotonic()
    with Interrupt() as interrupt:

        def save() -> None:
            save_checkpoint(folder / CHECKPOINT, population, settings.to_dict())
            for kind, problem in _problems(population, source).items():
                if kind not in reported:
                    reported[kind] = problem
                    say(f"Warning: {problem}")

        def on_round(progress: Progress) -> bool:
            nonlocal last
            display.update(progress)
            if interrupt.asked or time.monotonic() - last >= settings.save_every:
                save()
                last = time.monotonic()
            return interrupt.asked

        population.fit(on_round, seconds=max(0.05, min(2.0, settings.save_every)))
        stopped = interrupt.asked and population.progress.step < population.total_steps
        save()
    return list(reported.values()), stopped


def _problems(population: Population, source: Source) -> dict[str, str]:
    """Failures and collapses by kind: a collapse of a model is named once, however its figures move."""
    found = {f"failure of model {failure.model}": str(failure) for failure in population.progress.failures}
    epoch = population.progress.epoch
    if epoch >= 1:
        for number, model in enumerate(population.models()):
            member = population.members[number]
            pool = source.train if member.train is None else member.train
            for text in look_for_collapses(model, _seen(population, source.x[pool[:64]])):
                kind = re.split("[:(]", text)[0]  # figures come after it
                found[f"model {number}: {kind}"] = f"model {number}: {text}"
    return found


def _seen(population: Population, x: Any) -> Any:
    from pstn.training.population.noise import stream_keys, uniform

    augment = population.recipe.augment
    return (
        x if augment is None else augment(x, uniform(stream_keys([0], "evaluate"), 0, 1, (len(x), augment.width))[0, 0])
    )


def _finish(
    settings: TrainSettings, folder: Path, population: Population, source: Source, problems: list[str]
) -> Outcome:
    scores = {} if source.test is None else population.evaluate(*source.test)
    for number, model in enumerate(population.models()):
        metrics = {name: values[number] for name, values in scores.items()}
        kl_weight = kl_weight_at(population.members[number].kl_weight, 1.0)
        about = dataclasses.replace(make_about(settings, source, number, kl_weight), metrics=metrics)
        cast(Shareable, model).save_pretrained(model_folder(folder, number), about=about)
    results = {
        "settings": settings.to_dict(), "scores": scores, "problems": problems,
        "seconds": population.progress.seconds, "history": population.progress.history,
        "failures": [asdict(failure) for failure in population.progress.failures],
    }  # fmt: skip
    with write_atomically(folder / RESULTS) as draft:
        draft.write_text(to_json(results, indent=1))
    tested = 0 if source.test is None else len(source.test[1])
    return Outcome(folder, True, scores, tested, "series" if len(source.size) == 1 else "images", problems)


def remember_run(folder: Path, data: str) -> None:
    """Note in this user's cache that the run in a folder was trained on a path; without a cache nothing is noted.

    Example:
        >>> remember_run(Path("runs/mine"), "photos")
        >>> is_own_run(Path("runs/mine"), "photos"), is_own_run(Path("runs/mine"), "other")
        (True, False)
    """
    with suppress(OSError):
        note = _note(folder, data)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def is_own_run(folder: Path, data: str) -> bool:
    """Whether `remember_run` was called for the run in this folder and for this path, seen from the current folder."""
    return _note(folder, data).is_file()


def require_confirmed(folder: Path, data: str, command: str) -> None:
    """Refuse a path that only the files of a model or a run name, unless this user has trained them on it.

    Args:
        folder: of the model or the run.
        data: what its files name.
        command: that names the data, for the message.

    Raises:
        ValueError: it is a path, and not this user's own.

    Example:
        >>> require_confirmed(Path("runs/theirs"), "digits", "")
    """
    named = find_known(data) is not None or re.fullmatch(r"ucr:\w+", data) is not None
    if not named and not any(is_own_run(place, data) for place in (folder, folder.parent)):
        problem = f"{folder} says that it was trained on {excerpt(data)}, a path that is not opened unless you name it"
        raise ValueError(f"{problem}: {command}")


def _note(folder: Path, data: str) -> Path:
    pair = f"{folder.resolve()}\0{expand(data).resolve()}"
    return cache_folder() / "runs" / hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()
