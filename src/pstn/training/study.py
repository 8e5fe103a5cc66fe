"""A study that processes share: which trials there are, who trains them, and what came of them. optuna keeps it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from pstn.files import require_regular_file
from pstn.training.settings import SettingsError

__all__ = ["Claim", "Study"]

# Seconds after which a lock counts as left behind by a process that was killed; none is held for as long.
_LOCK_PATIENCE = 120


class Claim(NamedTuple):
    """A trial that this process has taken."""

    trial: Any
    values: dict[str, Any]


@final
class Study:
    """The trials of a search.

    A grid is queued, whole, when the study is made: whoever asks next, on any machine, takes the next combination.
    Where a range is searched, trials are made when they are asked for; the number of a trial is the seed of its
    values, so that no two processes draw the same.

    Args:
        space: by name, a list to choose from or a (low, high) range; a grid where every entry is a list.
        storage: None for memory; a URL such as sqlite:///sweep.db or postgresql://...; or a plain file, written as a
            journal that several processes and machines on one file system may share.
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
        self._lock_path = _lock_path(storage)
        self._states = optuna.trial.TrialState
        backend: Any = storage
        if storage is not None and "://" not in storage:
            from optuna.storages.journal import JournalFileBackend

            Path(storage).parent.mkdir(parents=True, exist_ok=True)
            if Path(storage).exists():
                require_regular_file(storage)
            backend = optuna.storages.JournalStorage(JournalFileBackend(storage))
        with self._alone():
            self._study = _patiently(
                lambda: optuna.create_study(storage=backend, study_name=name, direction="minimize", load_if_exists=True)
            )
            if about is not None:
                self._require_same(about)
            if self.is_grid:
                self._queue_what_is_missing()

    def claim(self, limit: int, trials: int | None = None) -> list[Claim]:
        """Trials for this process alone; of a grid, what others have not taken.

        Args:
            limit: how many at most.
            trials: how many the study is to have in all, those that are finished or with others counted.
        """
        taken: list[Claim] = []
        try:
            with self._alone():
                limit = limit if trials is None else min(limit, trials - self._begun())
                while len(taken) < limit and (not self.is_grid or self._trials(self._states.WAITING)):
                    trial = self._study.ask()
                    taken.append(Claim(trial, {}))
                    values = self._values(trial)
                    # Others may have taken the last one since we looked, so that this one was made up; or two that
                    # started at the same time both queued it, and the earlier of the two counts.
                    made_up = self.is_grid and "queued" not in trial.user_attrs
                    twin = self.is_grid and self._has_earlier_twin(trial, values)
                    if made_up or twin or not self._is_of_space(values):
                        self._study.tell(trial, state=self._states.PRUNED)
                        taken.pop()
                    else:
                        taken[-1] = Claim(trial, values)
        except BaseException:
            self.give_back(taken)
            raise
        return taken

    def tell(self, claim: Claim, value: float) -> bool:
        """Say what a trial came to; infinity or NaN for one that broke, which is not trained again.

        Returns:
            False where another process, which took the trial over, was first: its answer counts.
        """
        trial = claim.trial
        if trial.number not in {t.number for t in self._trials(self._states.RUNNING)}:
            return False
        if math.isfinite(value):
            self._study.tell(trial, value, skip_if_finished=True)
        else:
            trial.set_user_attr("broken", True)
            self._study.tell(trial, state=self._states.FAIL, skip_if_finished=True)
        return True

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Let trials that did not finish be taken again."""
        self._release({claim.trial.number for claim in claims})

    def take_over(self) -> None:
        """Let the trials that are with anybody be taken again."""
        self._release({t.number for t in self._trials(self._states.RUNNING)})

    @property
    def running(self) -> int:
        """How many trials are with anybody."""
        return len(self._trials(self._states.RUNNING))

    def table(self) -> list[tuple[dict[str, Any], float]]:
        """The finished trials, best first, whichever process trained them."""
        done = [t for t in self._trials() if t.value is not None and self._is_of_space(t.params)]
        return sorted(((dict(t.params), float(t.value)) for t in done), key=lambda row: row[1])

    def _is_of_space(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial has the names and values that are searched: a file from elsewhere may hold any others."""
        return values.keys() == self.space.keys() and all(
            any(type(value) is type(known) and value == known for known in accepted)
            if isinstance(accepted := self.space[name], list)
            else isinstance(value, float) and accepted[0] <= value <= accepted[1]
            for name, value in values.items()
        )

    def _release(self, numbers: set[int]) -> None:
        for trial in self._trials(self._states.RUNNING):
            if trial.number in numbers:
                self._study.tell(trial.number, state=self._states.FAIL, skip_if_finished=True)
                if self._is_of_space(trial.user_attrs.get("queued", {})):
                    self._queue(trial.user_attrs["queued"])

    def _trials(self, *states: Any) -> list[Any]:
        found: list[Any] = self._study.get_trials(deepcopy=False, states=states or None)
        return found

    def _values(self, trial: Any) -> dict[str, Any]:
        import optuna

        if not self.is_grid:
            self._study.sampler = optuna.samplers.TPESampler(seed=trial.number, constant_liar=True)
        return {
            name: trial.suggest_categorical(name, values)
            if isinstance(values, list)
            else trial.suggest_float(name, *values, log=True)
            for name, values in self.space.items()
        }

    def _begun(self) -> int:
        """How many trials are finished or with somebody; those that were given back are neither."""
        states = (self._states.COMPLETE, self._states.RUNNING)
        return sum(t.state in states or "broken" in t.user_attrs for t in self._trials())

    def _queue(self, values: dict[str, Any]) -> None:
        self._study.enqueue_trial(values, user_attrs={"queued": values})

    def _queue_what_is_missing(self) -> None:
        states = (self._states.WAITING, self._states.RUNNING, self._states.COMPLETE)
        known = [t.user_attrs.get("queued") for t in self._trials() if t.state in states or "broken" in t.user_attrs]
        for combination in itertools.product(*self.space.values()):
            values = dict(zip(self.space, combination, strict=True))
            if values not in known:
                self._queue(values)

    def _has_earlier_twin(self, trial: Any, values: dict[str, Any]) -> bool:
        live = self._trials(self._states.WAITING, self._states.RUNNING, self._states.COMPLETE)
        return any(t.number < trial.number and t.user_attrs.get("queued") == values for t in live)

    def _require_same(self, about: Mapping[str, Any]) -> None:
        known = self._study.user_attrs.get("about")
        if known is None:
            self._study.set_user_attr("about", about)
            return
        for name in about:
            if name in known and known[name] != about[name]:
                raise SettingsError(
                    f"{name} of this study is {known[name]}, got {about[name]}: a study goes on with its own "
                    "settings; leave it out, or give --out another folder to start anew"
                )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the other processes of the study out."""
        with nullcontext() if self._lock_path is None else _locked(self._lock_path):
            yield


def _lock_path(storage: str | None) -> Path | None:
    """What to lock for a study in a file; a database's server locks its rows by itself, SQLite cannot."""
    if storage is None:
        return None
    if "://" not in storage:
        return Path(f"{storage}.claim")
    from sqlalchemy.engine import make_url

    url = make_url(storage)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(f"{url.database}.claim")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from optuna.storages.journal import JournalFileOpenLock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileOpenLock(str(path), grace_period=_LOCK_PATIENCE)
    lock.acquire()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # somebody lost patience with it
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
