"""Choosing w, or anything else, on validation data: optuna keeps the study, populations train its trials."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from pstn._checks import require_positive_int
from pstn.defaults import default_kl_weight
from pstn.files import inside, parse_json, require_regular_file, write_atomically
from pstn.limits import RESULT_BYTES
from pstn.processes import interrupts_held
from pstn.text import shorten
from pstn.training.runs.run import Source, make_population, prepare
from pstn.training.runs.settings import SettingsError, TrainSettings, write_settings
from pstn.training.tune import candidates

AUTHORS_KL_WEIGHTS = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The grid that the paper's authors searched."""

SILENCE = 120.0
"""Seconds after which a process that has reported nothing counts as killed."""

STUDY, SETTINGS, RESULTS, BEST = "study.log", "sweep.yaml", "sweep.json", "best.yaml"
# What may differ between machines that share a study: where and how fast trials are trained, not what they are.
_ANYWHERE = ("out", "device", "groups", "compile", "save_every")
# What models of one population may differ in; any other setting makes a population of its own.
_PER_MODEL = ("kl_weight", "lr", "localizer_factor", "seed")


@final
class Study:
    """The trials of a search, which processes share; optuna's storage decides who takes which trial.

    A grid is queued as a whole when the study is made: each process takes the next combination. Where a range is
    searched, trials are made when they are asked for; the number of a trial is the seed of its values, so that no two
    processes draw the same.

    A process says that it is alive by a number that it counts up in the study (`reporting`); another one that has seen
    no new number for a while takes its trials over (`release_silent`). Optuna's heartbeats are for `Study.optimize`
    and databases alone, and know nothing of a process that was killed before its first.

    Args:
        space: by name, a list to choose from or a (low, high) range; a grid where every entry is a list.
        storage: None for memory; a plain file, written as a journal that several processes and machines on one file
            system may share; or the URL of a database server. SQLite is for one process at a time.
        name: of the study.
        about: what its trials have in common, by name; a study that was made with anything else is refused.

    Example:
        >>> study = Study({"kl_weight": [0.0, 1e-3]})
        >>> [first, second] = study.claim(2)
        >>> study.tell(first, 0.7), study.tell(second, 0.6)
        (True, True)
        >>> study.table()
        [({'kl_weight': 0.001}, 0.6), ({'kl_weight': 0.0}, 0.7)]
    """

    def __init__(
        self,
        space: Mapping[str, Any],
        storage: str | None = None,
        name: str = "pstn",
        about: Mapping[str, Any] | None = None,
    ) -> None:
        import optuna

        self.space = dict(space)
        self.is_grid = all(isinstance(values, list) for values in space.values())
        self._states = optuna.trial.TrialState
        self._study = _open_study(storage, name)
        self._worker = uuid.uuid4().hex
        self._seen: dict[tuple[int, str], float] = {}
        if about is not None and "about" not in self._study.user_attrs:
            self._study.set_user_attr("about", dict(about))
        known = self._study.user_attrs.get("about", {})
        for key, value in (about or {}).items():
            if known.get(key, value) != value:
                raise SettingsError(
                    f"{key} of this study is {known[key]}, got {value}: a study continues with its own settings; "
                    "leave it out, or give --out another folder to start anew"
                )
        self._queue_missing()

    def claim(self, limit: int, trials: int | None = None) -> list[Any]:
        """Trials of optuna for this process alone, with values in `params`; of a grid, what others have not taken.

        Args:
            limit: how many at most.
            trials: how many the study is to have in all, including those that are finished or taken by others.
        """
        most, taken = math.inf if trials is None else trials, list[Any]()
        self._queue_missing()  # a process may have been killed right after it gave trials up
        try:
            while len(taken) < limit and len(self._counted()) < most:
                if self.is_grid and not self._trials(self._states.WAITING):
                    break
                trial = self._study.ask()
                taken.append(trial)  # before its values: an interrupt gives it back
                trial.set_user_attr("worker", self._worker)
                self._suggest(trial)
                earlier = [t for t in self._counted(waiting=True) if t.number < trial.number]
                if sum(t.state != self._states.WAITING for t in earlier) >= most:  # others asked at the same time
                    self.release([taken.pop()])
                    break
                # Others may have taken the last combination since we looked, so that optuna made this one up; or two
                # processes that started together both queued it, and the earlier one counts.
                queued = trial.user_attrs.get("queued")
                twin = self.is_grid and (queued is None or any(t.user_attrs.get("queued") == queued for t in earlier))
                if twin or not self._is_of_space(trial.params):
                    self._study.tell(taken.pop(), state=self._states.PRUNED)
        except BaseException:
            self.release(taken)
            raise
        return taken

    def tell(self, trial: Any, value: float) -> bool:
        """Record the result of a trial; infinity or NaN for one that failed, which is not trained again.

        Returns:
            False where another process, which took the trial over, was first: its result counts.
        """
        if trial.number not in {t.number for t in self._trials(self._states.RUNNING)}:
            return False
        if math.isfinite(value):
            return self._end(trial, value)
        trial.set_user_attr("broken", True)
        return self._end(trial)

    def _end(self, trial: Any, value: float | None = None) -> bool:
        """End a trial, without a value as failed; False where another process was first, between our look and this."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            state = self._states.FAIL if value is None else self._states.COMPLETE
            self._study.tell(trial.number, value, state=state)
        except UpdateFinishedTrialError:
            return False
        return True

    def release(self, trials: Sequence[Any] | None = None) -> None:
        """Let unfinished trials be taken again: these, or all that any process has taken."""
        numbers = None if trials is None else {trial.number for trial in trials}
        for trial in self._trials(self._states.RUNNING):
            if numbers is None or trial.number in numbers:
                self._end(trial)
        self._queue_missing()

    @contextmanager
    def reporting(self, silence: float = SILENCE) -> Iterator[None]:
        """Tell the other processes in the block that this one is alive, often enough for `release_silent`."""
        ended = threading.Event()

        def report() -> None:
            for count in itertools.count():
                with suppress(Exception):  # a server that is away for a moment: a later report may arrive
                    self._study.set_user_attr(f"alive {self._worker}", count)
                if ended.wait(silence / 8):
                    return

        thread = threading.Thread(target=report, daemon=True)
        with interrupts_held():  # a thread inherits it: signals are the main thread's to answer
            thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def release_silent(self, silence: float = SILENCE) -> None:
        """Let trials be taken again whose process was killed: it has reported nothing for so many seconds.

        Only this process's own clock counts, from when it first saw the last report.
        """
        now, reports = time.monotonic(), self._study.user_attrs
        others = [t for t in self._trials(self._states.RUNNING) if t.user_attrs.get("worker") != self._worker]
        marks = [(t.number, str(reports.get(f"alive {t.user_attrs.get('worker')}"))) for t in others]
        self._seen = {mark: self._seen.get(mark, now) for mark in marks}
        if silent := [t for t, mark in zip(others, marks, strict=True) if now - self._seen[mark] > silence]:
            self.release(silent)

    @property
    def running(self) -> int:
        """How many trials some process has taken."""
        return len(self._trials(self._states.RUNNING))

    def table(self) -> list[tuple[dict[str, Any], float]]:
        """The finished trials, best first, whichever process trained them."""
        done = [t for t in self._trials() if t.value is not None and self._is_of_space(t.params)]
        # Of equal losses, by the settings: in which order trials end depends on what was killed.
        return sorted(((dict(t.params), float(t.value)) for t in done), key=lambda row: (row[1], str(row[0])))

    def _trials(self, *states: Any) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False, states=states or None))

    def _counted(self, waiting: bool = False) -> list[Any]:
        """Trials that are finished or taken, or wait; those that were given back are none of these."""
        states = (self._states.COMPLETE, self._states.RUNNING, *([self._states.WAITING] if waiting else []))
        return [t for t in self._trials() if t.state in states or "broken" in t.user_attrs]

    def _queue_missing(self) -> None:
        """Queue the combinations of a grid that are neither finished nor taken nor queued."""
        if not self.is_grid:
            return
        present = [t.user_attrs.get("queued") for t in self._counted(waiting=True)]
        for combination in itertools.product(*self.space.values()):
            if (values := dict(zip(self.space, combination, strict=True))) not in present:
                self._study.enqueue_trial(values, user_attrs={"queued": values})

    def _suggest(self, trial: Any) -> None:
        import optuna

        if not self.is_grid:
            self._study.sampler = optuna.samplers.TPESampler(seed=trial.number, constant_liar=True)
        for name, values in self.space.items():
            if isinstance(values, list):
                trial.suggest_categorical(name, values)
            else:
                trial.suggest_float(name, *values, log=True)

    def _is_of_space(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial has the names and values that are searched: a file from elsewhere may hold any others."""

        def fits(value: Any, accepted: Any) -> bool:
            if isinstance(accepted, list):
                return any(type(value) is type(known) and value == known for known in accepted)
            return isinstance(value, float) and bool(accepted[0] <= value <= accepted[1])

        return values.keys() == self.space.keys() and all(fits(v, self.space[name]) for name, v in values.items())


def _open_study(storage: str | None, name: str) -> Any:
    """The study of optuna, made if there is none; one with values of other types than a sweep writes is refused."""
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import IntegrityError, ProgrammingError
    from sqlalchemy.pool import NullPool

    is_file, backend = storage is not None and "://" not in storage, cast(Any, storage)
    try:
        if storage is not None and is_file:
            Path(storage).parent.mkdir(parents=True, exist_ok=True)
            if Path(storage).exists() and require_regular_file(storage).stat().st_size > RESULT_BYTES:
                raise ValueError(f"it is longer than {RESULT_BYTES:,} bytes, which is the limit")
            backend = optuna.storages.JournalStorage(JournalFileBackend(storage))
        for wait in (0.2, 1.0, 5.0, None):
            try:
                if storage is not None and not is_file and not storage.startswith("sqlite"):
                    # No connection stays open while models train: servers allow few, and break those that are idle.
                    backend = optuna.storages.RDBStorage(storage, engine_kwargs={"poolclass": NullPool})
                given = {"storage": backend, "study_name": name, "direction": "minimize"}
                study: Any = optuna.create_study(**given, load_if_exists=True)
                break
            # Processes that start together on an empty server make its tables together, which some are refused.
            except (IntegrityError, ProgrammingError):
                if wait is None:
                    raise
                time.sleep(wait)
        if study.directions != [optuna.study.StudyDirection.MINIMIZE]:
            raise ValueError("it does not minimise one value")
        trials = study.get_trials(deepcopy=False)
        mappings = [study.user_attrs.get("about", {}), *(t.user_attrs.get("queued", {}) for t in trials)]
        if not all(isinstance(mapping, dict) for mapping in mappings):
            raise TypeError("a mapping is expected")
        if not all(isinstance(trial.value, (int, float, type(None))) for trial in trials):
            raise TypeError("the value of a trial is no number")
    except (OSError, MemoryError, ImportError):
        raise
    except Exception as error:  # optuna raises almost anything on damaged studies
        # The URL of a server may hold a password.
        where = f" in {storage}" if is_file else ""
        reason = shorten(f"{type(error).__name__}: {error}", 300)
        raise SettingsError(f"the study {name!r}{where} cannot be read ({reason})") from error
    return study


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
        name, _, values = text.partition("=")
        if not values:
            raise SettingsError(f"over must be NAME=V1,V2,... or NAME=LOW:HIGH, got {text!r}")
        low, is_range, high = values.partition(":")
        try:
            space[name] = (float(low), float(high)) if is_range else [_parse_value(v) for v in values.split(",")]
        except ValueError as error:
            raise SettingsError(f"the range of {name} must be LOW:HIGH, two numbers, got {values!r}") from error
    return space


def _parse_value(text: str) -> Any:
    try:
        return parse_json(text, "--over")
    except ValueError:
        return text


def _check_space(settings: TrainSettings, space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with every value as its setting wants it; refuses, before anything is trained, what does not fit."""
    checked: dict[str, Any] = {}
    for name, values in space.items():
        if name in ("models", "out"):
            raise SettingsError(f"{name} cannot be searched: a sweep decides it itself")
        if isinstance(values, tuple):
            if len(values) != 2 or not 0 < values[0] < values[1]:
                raise SettingsError(f"the range of {name} must be LOW:HIGH with 0 < LOW < HIGH, got {values}")
            try:
                settings.replace(**{name: values[0] + (values[1] - values[0]) / math.e})
            except SettingsError as error:
                raise SettingsError(f"{name} takes no range, only a list such as {name}=V1,V2: {error}") from error
        fitted = [getattr(settings.replace(**{name: value}), name) for value in values]
        checked[name] = type(values)(v[0] if isinstance(v, list) else v for v in fitted)
    return checked


def _auto_space(settings: TrainSettings) -> dict[str, list[Any]]:
    """The values of what `kl_weight="auto"` searches, around the defaults for so many examples."""
    examples = settings.train_size or len(prepare(settings).train)
    tried = candidates(default_kl_weight(examples), settings.localizer_factor, settings.alpha)
    names = ("kl_weight", "localizer_factor", "alpha")
    return {name: list(dict.fromkeys(getattr(trial, name) for trial in tried)) for name in names}


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
    silence: float = SILENCE,
    say: Callable[[str], None] = print,
) -> SweepResult:
    """Search for the settings with the lowest validation loss.

    Trials that differ only in what models of one population may differ in are trained together. A study that was
    stopped continues, if it is kept: what is finished is not trained again. At the end it waits for the trials of other
    processes, and trains those of a process that was killed again.

    Args:
        settings: of every trial, but for what is searched.
        space: by name, a list to choose from or a (low, high) range; the authors' KL weights when empty. For
            `kl_weight: ["auto"]`, here or in the settings, what `pstn.training.tune` tries: w, factor and alpha.
        trials: how many the study is to have in all; the whole grid when None.
        folder: where to keep the study (study.log), the settings of every trial (sweep.yaml), the table (sweep.json)
            and the settings that were chosen (best.yaml, for `pstn train --config`); nowhere when None.
        storage: see `Study`; in `folder`, if there is one, when None.
        study: its name.
        together: how many trials are asked for at a time.
        take_over: train again what other processes have taken, at once. Only where no other process runs this study.
        silence: seconds after which another process that has reported nothing counts as killed; for all the same.
        say: where messages go.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if settings.models != 1:
        raise SettingsError(f"models must be 1 in a sweep, where every trial is a model, got {settings.models}")
    require_positive_int("together", together)
    if trials is not None:
        require_positive_int("trials", trials)
    space = space or {"kl_weight": settings.kl_weight if "auto" in settings.kl_weight else list(AUTHORS_KL_WEIGHTS)}
    space = _check_space(settings, {**space, **_auto_space(settings)} if space.get("kl_weight") == ["auto"] else space)
    if trials is None and any(isinstance(values, tuple) for values in space.values()):
        raise SettingsError("trials must be given where a range is searched: it has no end of its own")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in (STUDY, SETTINGS, RESULTS, BEST):
            inside(Path(folder), name)  # a study is appended to, through a link too
        storage = storage or str(Path(folder) / STUDY)
    over = {name: list(v) if isinstance(v, list) else f"{v[0]:g}:{v[1]:g}" for name, v in space.items()}
    fixed = {name: value for name, value in settings.to_dict().items() if name not in (*_ANYWHERE, *space)}
    shared = Study(space, storage, study, {**fixed, "over": over})
    if take_over:
        shared.release()
    if folder is not None:
        write_settings(Path(folder) / SETTINGS, settings)
    with shared.reporting(silence):
        waiting = False
        while (left := shared.claim(together, trials)) or shared.running:
            if not left and not waiting:
                say(f"Waiting for {shared.running} trials of other processes, or until those have been silent for "
                    f"{silence:g} s. --take-over does not wait; Ctrl-C leaves them.")  # fmt: skip
            if not left:
                time.sleep(min(1.0, silence / 8))
            waiting = not left
            shared.release_silent(silence)
            try:
                while left:
                    # Those that may be trained as one population.
                    own = {name: value for name, value in left[0].params.items() if name not in _PER_MODEL}
                    claimed = [trial for trial in left if own.items() <= trial.params.items()]
                    losses = _losses(settings.replace(**own), [trial.params for trial in claimed])
                    for trial, loss in zip(claimed, losses, strict=True):
                        if shared.tell(trial, loss):
                            say(f"trial {trial.number}: validation loss {loss:.4f} with {json.dumps(trial.params)}")
                    left = [trial for trial in left if trial not in claimed]
                    _write(folder, settings, over, shared)
            except BaseException:
                shared.release(left)
                raise
    _write(folder, settings, over, shared)
    if not (table := shared.table()):
        raise SettingsError("no trial finished with a finite validation loss")
    return SweepResult(*table[0], table)


def _write(folder: str | Path | None, settings: TrainSettings, over: Mapping[str, Any], study: Study) -> None:
    """The table so far, and the settings that are best so far."""
    if folder is None or not (table := study.table()):
        return
    best, value = table[0]
    chosen = settings.replace(**best, out="")
    if chosen.patience:  # else what is chosen trains on all there is
        chosen = _with_validation(chosen, prepare(chosen))
    about = {
        "settings": settings.to_dict(), "over": over, "best": best, "value": value,
        "chosen": chosen.to_dict(), "table": [{**values, "validation_loss": loss} for values, loss in table],
    }  # fmt: skip
    with write_atomically(Path(folder) / RESULTS) as draft:
        draft.write_text(json.dumps(about, indent=1))
    write_settings(Path(folder) / BEST, chosen)


def _with_validation(settings: TrainSettings, source: Source) -> TrainSettings:
    """Settings that hold back a part of the training data, where there is nothing else to validate on."""
    holds_back = source.valid is None and not settings.valid_fraction
    return settings.replace(valid_fraction=0.2) if holds_back else settings


def _losses(settings: TrainSettings, values: Sequence[dict[str, Any]]) -> list[float]:
    """The validation loss of each trial, trained as one population."""
    source = prepare(settings)
    settings = _with_validation(settings, source)
    columns = {"lr": [v.get("lr", settings.lr[0]) for v in values]}
    factors = [v.get("localizer_factor", settings.localizer_factor) for v in values]
    if settings.kl_weight or "kl_weight" in values[0]:
        columns["kl_weight"] = [v["kl_weight"] if "kl_weight" in v else settings.kl_weight[0] for v in values]
    # Every trial has the same seed unless seeds are searched: the same subset, start and noise, so that only what is
    # searched differs.
    seeds = [int(v.get("seed", settings.seed)) for v in values]
    with make_population(settings.replace(models=len(values), **columns), source, seeds, factors) as population:
        best, stops = population.fit(lambda progress: None).best, population.recipe.patience is not None
        last = population.evaluate_members(samples=settings.test_samples)["nll"]
        failed = {failure.model for failure in population.progress.failures}
    # A run that is shorter than the time between validations has no best.
    lowest = [b if stops and math.isfinite(b) else v for b, v in zip(best, last, strict=True)]
    return [math.inf if model in failed else value for model, value in enumerate(lowest)]
