"""A study that processes share: each trial is taken once, told once, and given back when it was not finished."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pstn.training.runs.sweep import Claim, Study

optuna = pytest.importorskip("optuna")
GRID = {"kl_weight": [0.0, 1e-3]}


@pytest.fixture(params=["journal", "sqlite"])
def where(request, tmp_path) -> str:
    return str(tmp_path / "journal.log") if request.param == "journal" else f"sqlite:///{tmp_path / 'sweep.db'}"


def together(work, count: int = 4) -> list:
    """What threads come back with that start at the same time."""
    start = threading.Barrier(count)

    def run(_: int) -> list:
        start.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        return [found for part in pool.map(run, range(count)) for found in part]


def weights(claims) -> list[float]:
    return [claim.values["kl_weight"] for claim in claims]


def test_who_starts_at_the_same_time_takes_each_combination_once(tmp_path):
    where = str(tmp_path / "journal.log")
    space = {"kl_weight": [float(w) for w in range(12)]}

    def take_all() -> list[float]:
        study, mine = Study(space, where), []
        while taken := study.claim(1):
            mine += weights(taken)
        return mine

    assert sorted(together(take_all)) == space["kl_weight"]


def test_who_starts_at_the_same_time_takes_no_more_than_were_asked_for(tmp_path):
    where = str(tmp_path / "journal.log")
    assert len(together(lambda: Study(GRID, where).claim(4, trials=1))) == 1


def test_processes_draw_different_values_from_a_range(where):
    space = {"lr": (1e-4, 1e-2)}
    first, second = Study(space, where), Study(space, where)
    drawn = [claim.values["lr"] for study in (first, second, Study(space, where)) for claim in study.claim(3)]
    assert len(set(drawn)) == 9


def test_the_values_of_a_study_can_be_drawn_again():
    space = {"lr": (1e-4, 1e-2)}
    once, again = ([claim.values for claim in Study(space).claim(3)] for _ in range(2))
    assert once == again


def test_combinations_that_differ_in_the_last_digit_are_all_there():
    assert weights(Study({"kl_weight": [100000, 100001, 100002]}).claim(9)) == [100000, 100001, 100002]


def test_a_combination_that_two_queued_at_once_is_taken_once(tmp_path):
    where = str(tmp_path / "journal.log")
    ours, theirs = Study(GRID, where), Study(GRID, where)
    theirs._queue({"kl_weight": 0.0})
    real, taken = ours._study.ask, []

    def ask_too_late():
        if not taken:
            taken.extend(theirs.claim(3))
        return real()

    ours._study.ask = ask_too_late
    assert ours.claim(3) == []
    assert weights(taken) == [0.0, 1e-3]


@pytest.mark.parametrize("second", [2.0, math.inf])
def test_a_trial_that_two_processes_trained_is_told_once(where, second):
    study = Study({"kl_weight": [0.0]}, where)
    [claim] = study.claim(1)
    other = Study({"kl_weight": [0.0]}, where)
    again = Claim(optuna.trial.Trial(other._study, claim.trial._trial_id), claim.values)
    assert study.tell(claim, 1.0)
    assert not other.tell(again, second)
    assert study.table() == [({"kl_weight": 0.0}, 1.0)]


def test_a_trial_that_broke_is_finished():
    study = Study(GRID)
    first, second = study.claim(2)
    study.tell(first, math.nan)
    study.tell(second, 0.5)
    assert (study.table(), study.running, study.claim(9)) == ([({"kl_weight": 1e-3}, 0.5)], 0, [])


def test_what_is_given_back_or_taken_over_is_there_again(where):
    study = Study(GRID, where)
    study.give_back(study.claim(1))
    assert weights(study.claim(9)) == [1e-3, 0.0]
    other = Study(GRID, where)
    assert (other.running, other.claim(9)) == (2, [])
    other.take_over()
    assert sorted(weights(other.claim(9))) == [0.0, 1e-3]


def test_an_interrupt_while_trials_are_taken_takes_none(where, monkeypatch):
    study, real = Study(GRID, where), Study._draw
    seen = []

    def stop_at_the_second(self, trial):
        seen.append(trial)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "_draw", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            study.claim(2)
    assert sorted(weights(Study(GRID, where).claim(9))) == [0.0, 1e-3]


def test_a_combination_that_was_lost_on_the_way_back_is_queued_anew(where, monkeypatch):
    study = Study(GRID, where)
    taken = study.claim(1)
    with monkeypatch.context() as patch:
        patch.setattr(Study, "_queue", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.give_back(taken)
    assert sorted(weights(Study(GRID, where).claim(9))) == [0.0, 1e-3]


def test_a_grid_is_queued_once(where, monkeypatch):
    Study(GRID, where)
    monkeypatch.setattr(Study, "_queue", lambda *_: pytest.fail("queued again"))
    assert len(Study(GRID, where).claim(9)) == 2
