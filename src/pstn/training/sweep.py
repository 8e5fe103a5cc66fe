"""Choosing w, or anything else, on validation data: optuna asks, populations answer."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pstn.files import write_atomically
from pstn.training.build import make_population
from pstn.training.settings import SettingsError, TrainSettings, write_settings
from pstn.training.sources import prepare

__all__ = ["AUTHORS_KL_WEIGHTS", "SweepResult", "open_study", "parse_space", "run_sweep"]

AUTHORS_KL_WEIGHTS = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The grid that the paper's authors searched."""

STUDY, SETTINGS, RESULTS, BEST = "study.log", "sweep.yaml", "sweep.json", "best.yaml"
# What may differ between machines that share a study: where and how fast, not what.
_ANYWHERE = ("out", "device", "groups", "compile", "save_every")

# What models of one population may differ in; any other setting makes a population of its own.
_PER_MODEL = ("kl_weight", "lr", "seed")

Space = Mapping[str, "Sequence[Any] | tuple[float, float]"]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found."""

    best: dict[str, Any]
    value: float
    """The lowest validation loss: mean negative log-likelihood."""
    table: list[tuple[dict[str, Any], float]]
    """All finished trials of the study, best first, whichever machine ran them."""


def parse_space(texts: Sequence[str]) -> dict[str, Any]:
    """What to search, from NAME=V1,V2,... (a list to choose from) or NAME=LOW:HIGH (a logarithmic range).

    Example:
        >>> parse_space(["kl_weight=0,1e-3", "lr=1e-4:1e-2"])
        {'kl_weight': [0, 0.001], 'lr': (0.0001, 0.01)}
    """
    space: dict[str, Any] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not separator or not values:
            raise SettingsError(f"over must be NAME=V1,V2,... or NAME=LOW:HIGH, got {text!r}")
        if ":" in values:
            low, high = (float(v) for v in values.split(":", 1))
            space[name] = (low, high)
        else:
            space[name] = [_read(v) for v in values.split(",")]
    return space


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def open_study(space: Mapping[str, Any], storage: str | None, name: str, about: Mapping[str, Any] | None = None) -> Any:
    """The study called `name`, made if need be.

    Args:
        space: what to search; a grid where every entry is a list.
        storage: None for memory; a URL such as sqlite:///sweep.db or postgresql://...; or a plain file, written as a
            journal that several processes and machines on one file system may share.
        name: of the study.
        about: what its trials have in common, by name; a study that was made with anything else is refused.
    """
    import optuna

    grid = _is_grid(space)
    sampler: Any = None if grid else optuna.samplers.TPESampler(seed=0, constant_liar=True)
    backend: Any = storage
    if storage is not None and "://" not in storage:
        Path(storage).parent.mkdir(parents=True, exist_ok=True)
        from optuna.storages.journal import JournalFileBackend

        backend = optuna.storages.JournalStorage(JournalFileBackend(storage))
    with _one_at_a_time(storage):
        made = _patiently(
            lambda: optuna.create_study(
                storage=backend, study_name=name, sampler=sampler, direction="minimize", load_if_exists=True
            )
        )
        if about is not None:
            _require_same(made, about)
        if grid:
            # Queued rather than sampled: whoever asks next, on any machine, takes the next combination.
            for combination in itertools.product(*space.values()):
                _queue(made, dict(zip(space, combination, strict=True)), skip_if_exists=True)
    return made


@contextmanager
def _one_at_a_time(storage: str | None) -> Iterator[None]:
    """Keep the other processes of a study out; only SQLite needs it, which cannot lock the row of a trial."""
    if storage is None or not storage.startswith("sqlite:///"):
        yield
        return
    from optuna.storages.journal import JournalFileOpenLock
    from sqlalchemy.engine import make_url

    lock = JournalFileOpenLock(str(make_url(storage).database))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _patiently(create: Callable[[], Any]) -> Any:
    """Make or open a study; who starts together with others may find a database's tables half made, and tries again."""
    for pause in (0.2, 0.5, 1.0, 2.0):
        try:
            return create()
        except Exception as error:
            if not type(error).__module__.startswith(("sqlalchemy", "optuna")):
                raise
            time.sleep(pause)
    return create()


def _queue(study: Any, values: dict[str, Any], *, skip_if_exists: bool = False) -> None:
    study.enqueue_trial(values, user_attrs={"queued": values}, skip_if_exists=skip_if_exists)


def _claim(
    study: Any, space: Mapping[str, Any], limit: int, *, trials: int | None = None, storage: str | None = None
) -> list[tuple[Any, dict[str, Any]]]:
    """Up to `limit` trials for this process alone, while the study has fewer than `trials`; of a grid, what is left."""
    from optuna.trial import TrialState

    grid, asked = _is_grid(space), list[tuple[Any, dict[str, Any]]]()
    with _one_at_a_time(storage):
        limit = limit if trials is None else min(limit, trials - _begun(study))
        while len(asked) < limit and (not grid or study.get_trials(deepcopy=False, states=(TrialState.WAITING,))):
            trial = study.ask()
            values = {name: _suggest(trial, name, choices) for name, choices in space.items()}
            # Others may have taken the last one since we looked, so that this one was made up; or two that started at
            # the same time both queued it, and the earlier of the two counts.
            if grid and ("queued" not in trial.user_attrs or _has_earlier_twin(study, trial.number, values)):
                study.tell(trial, state=TrialState.PRUNED)
                continue
            asked.append((trial, values))
    return asked


def _has_earlier_twin(study: Any, number: int, values: dict[str, Any]) -> bool:
    from optuna.trial import TrialState

    live = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)
    earlier = [t for t in study.get_trials(deepcopy=False, states=live) if t.number < number]
    return any(t.user_attrs.get("queued") == values for t in earlier)


def _give_back(study: Any, numbers: Sequence[int]) -> None:
    """Let trials that did not finish be taken again."""
    from optuna.trial import TrialState

    known = {t.number: t for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))}
    for number in known.keys() & set(numbers):
        study.tell(number, state=TrialState.FAIL)
        if "queued" in known[number].user_attrs:
            _queue(study, known[number].user_attrs["queued"])


def _is_grid(space: Mapping[str, Any]) -> bool:
    return all(isinstance(values, list) for values in space.values())


def _checked(settings: TrainSettings, space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with every value as its setting wants it; refuses, before anything is trained, what does not fit."""
    found: dict[str, Any] = {}
    for name, values in space.items():
        if name in ("models", "out"):
            raise SettingsError(f"{name} cannot be searched: a sweep decides it itself")
        if isinstance(values, tuple) and not 0 < values[0] < values[1]:
            raise SettingsError(f"the range of {name} must be LOW:HIGH with 0 < LOW < HIGH, got {values}")
        fitted = [getattr(settings.replace(**{name: value}), name) for value in values]
        found[name] = type(values)(v[0] if isinstance(v, list) else v for v in fitted)
    return found


def run_sweep(
    settings: TrainSettings,
    space: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    folder: str | Path | None = None,
    storage: str | None = None,
    study: str = "pstn",
    together: int = 12,
    take_over: bool = False,
    say: Callable[[str], None] = print,
) -> SweepResult:
    """Search for the settings with the lowest validation loss.

    Trials that differ only in what models of one population may differ in are trained together. A study that was
    stopped goes on, if it is kept: what is finished is not trained again.

    Args:
        settings: of every trial, but for what is searched.
        space: by name, a list to choose from or a (low, high) range; the authors' KL weights when empty.
        trials: how many the study is to have in all; the whole grid when None.
        folder: where to keep the study (study.log), the settings of every trial (sweep.yaml), the table (sweep.json)
            and the settings that were chosen (best.yaml, for `pstn train --config`); nowhere when None.
        storage: see `open_study`; in `folder`, if there is one, when None.
        study: its name.
        together: how many trials are asked for at a time.
        take_over: train again what processes that were killed had taken. Only where no other process runs this study.
        say: where messages go.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if settings.models != 1:
        raise SettingsError(f"models must be 1 in a sweep, where every trial is a model, got {settings.models}")
    space = _checked(settings, space or {"kl_weight": list(AUTHORS_KL_WEIGHTS)})
    if trials is None and not _is_grid(space):
        raise SettingsError("trials must be given where a range is searched: it has no end of its own")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        storage = storage or str(Path(folder) / STUDY)
    made, running = open_study(space, storage, study, _in_common(settings, space)), optuna.trial.TrialState.RUNNING
    if take_over:
        _give_back(made, [t.number for t in made.get_trials(deepcopy=False, states=(running,))])
    if folder is not None:
        write_settings(Path(folder) / SETTINGS, settings)
    while asked := _claim(made, space, together, trials=trials, storage=storage):
        try:
            found = _train_all(settings, asked)
        except BaseException:
            _give_back(made, [trial.number for trial, _ in asked])
            raise
        _tell(made, found, say)
        if folder is not None:
            _write(Path(folder), settings, space, made)
    if others := len(made.get_trials(deepcopy=False, states=(running,))):
        say(f"{others} trials are with other processes. If those were killed: --take-over trains them again.")
    return _result(made)


def _tell(study: Any, found: Sequence[tuple[Any, float]], say: Callable[[str], None]) -> None:
    from optuna.trial import TrialState

    for trial, value in found:
        # Trials that were taken over from a process that lives after all are trained twice: the first answer counts.
        if math.isfinite(value):
            study.tell(trial, value, skip_if_finished=True)
        else:
            trial.set_user_attr("broken", True)  # finished all the same: it is not to be trained again
            study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        say(f"trial {trial.number}: validation loss {value:.4f} with {json.dumps(trial.params)}")


def _in_common(settings: TrainSettings, space: Mapping[str, Any]) -> dict[str, Any]:
    """What the losses of a study's trials can be compared by."""
    fixed = {name: value for name, value in settings.to_dict().items() if name not in (*_ANYWHERE, *space)}
    return {**fixed, "over": _as_texts(space)}


def _require_same(study: Any, about: Mapping[str, Any]) -> None:
    known = study.user_attrs.get("about")
    if known is None:
        study.set_user_attr("about", about)
        return
    for name in about:
        if known.get(name) != about[name]:
            raise SettingsError(
                f"{name} of this study is {known.get(name)}, got {about[name]}: a study goes on with its own "
                "settings; leave it out, or give --out another folder to start anew"
            )


def _as_texts(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, list) else f"{v[0]:g}:{v[1]:g}" for name, v in space.items()}


def _begun(study: Any) -> int:
    """How many trials of a study are finished or with somebody; those that were given back are neither."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.RUNNING)
    return sum(t.state in states or "broken" in t.user_attrs for t in study.get_trials(deepcopy=False))


def _write(folder: Path, settings: TrainSettings, space: Mapping[str, Any], study: Any) -> None:
    """The table so far, and the settings that are best so far."""
    if not _done(study):
        return
    result = _result(study)
    chosen = settings.replace(**result.best, out="")
    about = {
        "settings": settings.to_dict(), "over": _as_texts(space), "best": result.best, "value": result.value,
        "chosen": chosen.to_dict(), "table": [{**values, "validation_loss": loss} for values, loss in result.table],
    }  # fmt: skip
    with write_atomically(folder / RESULTS) as draft:
        draft.write_text(json.dumps(about, indent=1))
    write_settings(folder / BEST, chosen)


def _done(study: Any) -> list[Any]:
    return [t for t in study.get_trials(deepcopy=False) if t.value is not None]


def _result(study: Any) -> SweepResult:
    done = _done(study)
    if not done:
        raise SettingsError("no trial finished with a finite validation loss")
    table = sorted(((dict(t.params), float(t.value)) for t in done), key=lambda row: row[1])
    return SweepResult(table[0][0], table[0][1], table)


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    return trial.suggest_float(name, values[0], values[1], log=True)


def _train_all(settings: TrainSettings, asked: Sequence[tuple[Any, dict[str, Any]]]) -> list[tuple[Any, float]]:
    """The validation loss of each trial; those that may are trained as one population."""
    shapes: dict[str, list[tuple[Any, dict[str, Any]]]] = {}
    for trial, values in asked:
        rest = {name: value for name, value in values.items() if name not in _PER_MODEL}
        shapes.setdefault(json.dumps(rest, sort_keys=True), []).append((trial, values))
    found: list[tuple[Any, float]] = []
    for rest_text, trials in shapes.items():
        common = settings.replace(**json.loads(rest_text))
        found += zip([t for t, _ in trials], _losses(common, [v for _, v in trials]), strict=True)
    return found


def _losses(settings: TrainSettings, values: Sequence[dict[str, Any]]) -> list[float]:
    source = prepare(settings)
    if source.valid is None and settings.valid_fraction == 0:
        settings = settings.replace(valid_fraction=0.2)
    columns = {
        "kl_weight": [v.get("kl_weight", settings.kl_weight[0]) for v in values],
        "lr": [v.get("lr", settings.lr[0]) for v in values],
    }
    # Every trial has the same seed unless seeds are searched: the same subset, start and noise, so that only what is
    # searched differs.
    seeds = [int(v.get("seed", settings.seed)) for v in values]
    many = settings.replace(models=len(values), **columns)
    with make_population(many, source, seeds) as population:
        population.fit()
        best = population.progress.best
        scores = population.evaluate_members(samples=settings.test_samples)["nll"]
        failed = {failure.model for failure in population.progress.failures}
    chosen = best if settings.patience is not None else scores
    return [math.inf if model in failed else value for model, value in enumerate(chosen)]
