"""The sweep: a population per shape, a study that several processes share."""

import pytest

from pstn.training.settings import SettingsError, TrainSettings
from pstn.training.sweep import AUTHORS_KL_WEIGHTS, parse_space, run_sweep

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.fixture
def settings(tmp_path) -> TrainSettings:
    import numpy as np

    generator = np.random.default_rng(0)
    path = tmp_path / "small.npz"
    np.savez(path, x=generator.random((40, 16, 16, 1), np.float32), y=np.arange(40) % 3)
    return TrainSettings(data=str(path), epochs=1, groups=1)


def test_the_authors_grid_is_the_preset_and_trains_as_one_population(settings, monkeypatch):
    sizes = []
    from pstn.training import sweep as room

    real = room.make_population

    def spy(settings, source, seeds):
        sizes.append(settings.models)
        return real(settings, source, seeds)

    monkeypatch.setattr(room, "make_population", spy)
    result = run_sweep(settings, say=lambda _: None)
    assert sizes == [12]
    assert sorted(p["kl_weight"] for p, _ in result.table) == list(AUTHORS_KL_WEIGHTS)
    assert result.value == min(value for _, value in result.table)


@pytest.mark.parametrize("storage", ["journal.log", "sqlite"])
def test_several_processes_share_one_study(settings, tmp_path, storage):
    where = f"sqlite:///{tmp_path / 'sweep.db'}" if storage == "sqlite" else str(tmp_path / storage)
    space = {"kl_weight": [0.0, 1e-3], "samples": [1, 2]}
    first = run_sweep(settings, space, trials=2, storage=where, together=2, say=lambda _: None)
    assert len(first.table) == 2
    second = run_sweep(settings, space, trials=2, storage=where, together=2, say=lambda _: None)
    found = sorted((p["kl_weight"], p["samples"]) for p, _ in second.table)
    assert found == [(0.0, 1), (0.0, 2), (1e-3, 1), (1e-3, 2)]


def test_ranges_and_mistakes(settings):
    assert parse_space(["lr=1e-4:1e-2", "model=cnn,stn"]) == {"lr": (1e-4, 1e-2), "model": ["cnn", "stn"]}
    with pytest.raises(SettingsError, match="did you mean 'kl_weight'"):
        run_sweep(settings, {"kl_weigth": [0.0]})
    with pytest.raises(SettingsError, match="trials must be given"):
        run_sweep(settings, {"lr": (1e-4, 1e-2)})
    with pytest.raises(SettingsError, match="NAME=V1,V2"):
        parse_space(["lr"])
    result = run_sweep(settings, {"lr": (1e-4, 1e-2)}, trials=3, together=3, say=lambda _: None)
    assert all(1e-4 <= p["lr"] <= 1e-2 for p, _ in result.table)
