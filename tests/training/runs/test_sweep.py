"""The sweep: a population per shape, a study that several processes share."""

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pstn.defaults import default_kl_weight
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings
from pstn.training.runs.sweep import AUTHORS_KL_WEIGHTS, Study, parse_space, run_sweep
from pstn.training.tune import candidates
from small_runs import run_command

optuna = pytest.importorskip("optuna")


@pytest.fixture
def settings(tmp_path) -> TrainSettings:
    import numpy as np

    generator = np.random.default_rng(0)
    path = tmp_path / "small.npz"
    np.savez(path, x=generator.random((40, 16, 16, 1), np.float32), y=np.arange(40) % 3)
    return TrainSettings(data=str(path), epochs=1, groups=1)


def interrupt_the_second(monkeypatch) -> list[TrainSettings]:
    """Interrupt the training of the second population; returns a list that fills with the settings of each."""
    from pstn.training.runs import sweep as room

    real, trained = room.make_population, list[TrainSettings]()

    def make(settings, *rest):
        trained.append(settings)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(settings, *rest)

    monkeypatch.setattr(room, "make_population", make)
    return trained


@pytest.fixture
def populations(monkeypatch) -> list:
    """Fills with the populations that a sweep trains."""
    from pstn.training.runs import sweep as room

    real, made = room.make_population, []

    def spy(*given):
        made.append(real(*given))
        return made[-1]

    monkeypatch.setattr(room, "make_population", spy)
    return made


def test_the_authors_grid_is_the_preset_and_trains_as_one_population(settings, populations):
    result = run_sweep(settings, say=lambda _: None)
    assert [len(population.members) for population in populations] == [12]
    assert sorted(p["kl_weight"] for p, _ in result.table) == list(AUTHORS_KL_WEIGHTS)
    assert result.value == min(value for _, value in result.table)


@pytest.mark.parametrize("space", [{"kl_weight": ["auto"]}, {}], ids=["in the space", "in the settings"])
def test_auto_searches_w_the_factor_and_alpha_as_one_population_for_each_alpha(settings, space, populations, tmp_path):
    given = settings if space else settings.replace(kl_weight="auto")
    result = run_sweep(given, space, folder=tmp_path / "sweep", say=lambda _: None)
    wanted = candidates(default_kl_weight(40), settings.localizer_factor, settings.alpha)
    keys = ("kl_weight", "localizer_factor", "alpha")
    assert sorted(tuple(p[k] for k in keys) for p, _ in result.table) == sorted(
        tuple(getattr(trial, k) for k in keys) for trial in wanted
    )
    assert [len(population.members) for population in populations] == [6, 6]
    for population in populations:
        pairs = {(member.kl_weight, member.localizer_factor) for member in population.members}
        assert pairs == {(trial.kl_weight, trial.localizer_factor) for trial in wanted}
    assert {m.layer.posterior.alpha for p in populations for m in p.models()} == {trial.alpha for trial in wanted}
    chosen = TrainSettings.from_dict(read_settings(tmp_path / "sweep" / "best.yaml"))
    assert chosen.kl_weight == [result.best["kl_weight"]]
    assert (chosen.localizer_factor, chosen.alpha) == (result.best["localizer_factor"], result.best["alpha"])


@pytest.mark.parametrize("storage", ["journal.log", "sqlite"])
def test_several_processes_share_one_study(settings, tmp_path, storage):
    where = f"sqlite:///{tmp_path / 'sweep.db'}" if storage == "sqlite" else str(tmp_path / storage)
    space = {"kl_weight": [0.0, 1e-3], "samples": [1, 2]}
    first = run_sweep(settings, space, trials=2, storage=where, together=2, say=lambda _: None)
    assert len(first.table) == 2
    second = run_sweep(settings, space, trials=4, storage=where, together=2, say=lambda _: None)
    found = sorted((p["kl_weight"], p["samples"]) for p, _ in second.table)
    assert found == [(0.0, 1), (0.0, 2), (1e-3, 1), (1e-3, 2)]


@pytest.mark.parametrize("take_over", [True, False])
def test_what_was_interrupted_or_killed_is_trained_again(settings, tmp_path, monkeypatch, take_over):
    space, where, said = {"kl_weight": [0.0, 1e-3]}, str(tmp_path / "journal.log"), []
    with monkeypatch.context() as patch:
        patch.setattr("pstn.training.runs.sweep.make_population", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_sweep(settings, space, storage=where, say=lambda _: None)
    assert Study(space, where).claim(1)  # taken by a process that is then killed
    options = {"storage": where, "take_over": take_over, "say": said.append}
    result = run_sweep(settings, space, silence=99.0 if take_over else 0.3, **options)
    assert sorted(p["kl_weight"] for p, _ in result.table) == [0.0, 1e-3]
    assert sum("Waiting for 1 trials" in text for text in said) == (not take_over)


def test_a_sweep_keeps_its_study_and_goes_on(settings, tmp_path, monkeypatch):
    folder = tmp_path / "sweep"
    options = ("sweep", settings.data, "--epochs", 1, "--groups", 1, "--over", "kl_weight=0,1e-3,1e-2", "--out", folder)
    options = (*options, "--together", 1)
    trained = interrupt_the_second(monkeypatch)
    stopped = run_command(*options)
    assert stopped.exit_code == 130
    assert str(folder) in stopped.output
    assert len(json.loads((folder / "sweep.json").read_text())["table"]) == 1
    again = run_command(*options)
    assert again.exit_code == 0, again.output
    assert [s.kl_weight for s in trained] == [[0.0], [1e-3], [1e-2], [1e-3]]  # what was stopped comes last
    assert {p.name for p in folder.iterdir()} == {"study.log", "sweep.yaml", "sweep.json", "best.yaml"}
    found = json.loads((folder / "sweep.json").read_text())
    assert [row["validation_loss"] for row in found["table"]] == sorted(r["validation_loss"] for r in found["table"])
    chosen = TrainSettings.from_dict(read_settings(folder / "best.yaml"))
    assert chosen.kl_weight == [found["best"]["kl_weight"]] == [found["table"][0]["kl_weight"]]
    assert (chosen.data, chosen.epochs, chosen.to_dict()) == (settings.data, 1, found["chosen"])
    assert TrainSettings.from_dict(read_settings(folder / "sweep.yaml")).epochs == 1


def test_a_study_of_other_settings_is_refused(settings, tmp_path):
    where, space = str(tmp_path / "journal.log"), {"kl_weight": [0.0, 1e-3]}
    run_sweep(settings, space, trials=1, storage=where, say=lambda _: None)
    with pytest.raises(SettingsError, match=r"epochs of this study is 1, got 2.*another folder"):
        run_sweep(settings.replace(epochs=2), space, storage=where, say=lambda _: None)
    with pytest.raises(SettingsError, match="over of this study is"):
        run_sweep(settings, {"kl_weight": [0.0, 1.0]}, storage=where, say=lambda _: None)
    run_sweep(settings.replace(device="cpu"), space, storage=where, say=lambda _: None)


def test_a_number_of_trials_is_that_of_the_whole_study(settings, tmp_path):
    space, where = {"lr": (1e-4, 1e-2)}, str(tmp_path / "journal.log")
    for trials, wanted in ((2, 2), (3, 3), (3, 3)):
        result = run_sweep(settings, space, trials=trials, storage=where, together=2, say=lambda _: None)
        assert len({values["lr"] for values, _ in result.table}) == wanted


def test_a_model_that_broke_is_no_best_trial(settings):
    result = run_sweep(settings.replace(patience=3, epochs=2), {"lr": [1e30, 1e-3]}, say=lambda _: None)
    assert [p["lr"] for p, _ in result.table] == [1e-3]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"model": ["cnn", "vit"]}, "model must be one of cnn, stn, pstn, got 'vit'"),
        ({"models": [1, 2]}, "models cannot be searched"),
        ({"lr": (1e-2, 1e-4)}, "0 < LOW < HIGH"),
        ({"lr": (1e-4, 1e-3, 1e-2)}, "0 < LOW < HIGH"),
        ({"samples": (1.0, 8.0)}, "samples takes no range.*V1,V2.*whole number"),
        ({"batch_size": (8, 16)}, "batch_size takes no range"),
        ({"seed": (1, 50)}, "seed takes no range"),
    ],
)
def test_every_value_is_checked_before_anything_is_trained(settings, space, message, monkeypatch):
    monkeypatch.setattr("pstn.training.runs.sweep.make_population", lambda *_: pytest.fail("trained"))
    with pytest.raises(SettingsError, match=message):
        run_sweep(settings, space, trials=2, say=lambda _: None)


def test_ranges_and_mistakes(settings):
    assert parse_space(["lr=1e-4:1e-2", "model=cnn,stn"]) == {"lr": (1e-4, 1e-2), "model": ["cnn", "stn"]}
    with pytest.raises(SettingsError, match="did you mean 'kl_weight'"):
        run_sweep(settings, {"kl_weigth": [0.0]})
    with pytest.raises(SettingsError, match="trials must be given"):
        run_sweep(settings, {"lr": (1e-4, 1e-2)})
    with pytest.raises(SettingsError, match="NAME=V1,V2"):
        parse_space(["lr"])
    with pytest.raises(SettingsError, match="range of lr must be LOW:HIGH, two numbers, got 'a:b'"):
        parse_space(["lr=a:b"])
    result = run_sweep(settings, {"lr": (1e-4, 1e-2)}, trials=3, together=3, say=lambda _: None)
    assert all(1e-4 <= p["lr"] <= 1e-2 for p, _ in result.table)


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
    return [claim.params["kl_weight"] for claim in claims]


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
    drawn = [claim.params["lr"] for study in (first, second, Study(space, where)) for claim in study.claim(3)]
    assert len(set(drawn)) == 9


@pytest.mark.parametrize("second", [2.0, math.inf])
def test_a_trial_that_two_processes_trained_is_told_once(where, second):
    study = Study({"kl_weight": [0.0]}, where)
    [claim] = study.claim(1)
    other = Study({"kl_weight": [0.0]}, where)
    again = optuna.trial.Trial(other._study, claim._trial_id)
    assert study.tell(claim, 1.0)
    assert not other.tell(again, second)
    assert study.table() == [({"kl_weight": 0.0}, 1.0)]


def test_what_is_given_back_or_taken_over_is_there_again(where):
    study = Study(GRID, where)
    study.release(study.claim(1))
    assert weights(study.claim(9)) == [1e-3, 0.0]
    other = Study(GRID, where)
    assert (other.running, other.claim(9)) == (2, [])
    other.release()
    assert sorted(weights(other.claim(9))) == [0.0, 1e-3]


def test_an_interrupt_while_trials_are_taken_takes_none(where, monkeypatch):
    study, real = Study(GRID, where), Study._suggest
    seen = []

    def stop_at_the_second(self, trial):
        seen.append(trial)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "_suggest", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            study.claim(2)
    assert sorted(weights(Study(GRID, where).claim(9))) == [0.0, 1e-3]


def test_trials_of_a_silent_process_are_taken_over_and_those_of_a_living_one_are_not(where):
    living, killed, third = (Study(GRID, where) for _ in range(3))
    [_], [claim] = living.claim(1), killed.claim(1)
    with living.reporting(silence=0.4):
        end = time.monotonic() + 2.0
        while third.running == 2 and time.monotonic() < end:
            third.release_silent(silence=0.4)
            time.sleep(0.02)
        assert weights(third.claim(9)) == weights([claim])
    assert not killed.tell(claim, 0.0)


def test_what_a_process_gave_up_is_queued_by_another_if_it_was_killed_before_it_could(where):
    study, other = Study(GRID, where), Study(GRID, where)
    [claim] = study.claim(1)
    study._study.tell(claim, state=optuna.trial.TrialState.FAIL)
    assert sorted(weights(other.claim(9))) == [0.0, 1e-3]
