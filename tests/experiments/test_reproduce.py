from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pstn.data import MissingDataError
from pstn.experiments import EXPERIMENTS, Lab, Shard, Stopped, choose, plan, reproduce
from pstn.experiments.declare import Experiment, Training, same
from pstn.experiments.execute import trained
from pstn.experiments.mnist_subsets import subset
from pstn.nn import mnist_cnn
from pstn.report.results import Result, read_results
from pstn.training import Recipe

SMALL = Training("small", "CNN", "MNIST30", subset(30), same(mnist_cnn), Recipe(epochs=2, batch_size=8))


def experiment(*groups):
    return Experiment("small", "a small one", needs=(), groups=groups)


def quiet(folder, **options):
    return Lab(folder, quick=True, say=lambda text: None, **options)


def test_shards_are_a_partition_of_the_cells(tmp_path):
    everything = choose(["all"], EXPERIMENTS, search=True)
    lab = Lab(tmp_path)
    whole = [cell.path("") for piece in plan(everything, lab) for cell in piece.cells]
    parts = [cell.path("") for i in range(1, 8) for piece in plan(everything, lab, Shard(i, 7)) for cell in piece.cells]
    assert len(set(whole)) == len(whole)
    assert sorted(parts) == sorted(whole)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/", "-1/2"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="shard must be i/n"):
        Shard.parse(text)


def test_groups_of_an_experiment_have_names_of_their_own():
    for held in EXPERIMENTS.values():
        names = [group.name for group in held.groups]
        assert len(set(names)) == len(names), held.name
        assert held.quick is None or set(held.quick) <= set(names), held.name
        assert {group.experiment for group in held.groups} == {held.name}


def test_searches_run_only_when_asked_for():
    assert not [e.name for e in choose(["all"], EXPERIMENTS) if e.name.endswith("-search")]
    named = [e.name for e in choose(["mnist-subsets"], EXPERIMENTS, search=True)]
    assert named == ["mnist-subsets", "mnist-subsets-search"]


def test_an_unknown_experiment_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of rotated-mnist.*got 'rotate'"):
        choose(["rotate"], EXPERIMENTS)


def test_a_quick_run_writes_whole_results_apart_from_the_others(tmp_path):
    assert reproduce([experiment(SMALL)], quiet(tmp_path)) == 2
    assert read_results(tmp_path) == []
    results = read_results(tmp_path / "quick")
    assert [r.seed for r in results] == [0, 1]
    for result in results:
        assert result.quick
        assert {"accuracy", "nll", "ece", "ece10"} <= result.metrics.keys()
        assert result.settings["parameters"] == 28_086
        assert "Not the paper's setting" in result.departures[0]
        assert result.versions["torch"] == torch.__version__.split("+")[0] or result.versions["torch"]
    assert not list(tmp_path.glob("quick/.work/small/*"))


def test_cells_that_are_there_are_not_run_again(tmp_path):
    lab = quiet(tmp_path)
    reproduce([experiment(SMALL)], lab)
    first, second = sorted(tmp_path.glob("quick/small/*.json"))
    before = first.read_text()
    second.unlink()
    assert reproduce([experiment(SMALL)], lab) == 1
    assert first.read_text() == before
    assert second.exists()


def test_a_broken_result_file_is_named_before_anything_runs(tmp_path):
    broken = Result("small", "CNN", "MNIST30", 0).path(tmp_path / "quick")
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    with pytest.raises(ValueError, match=r"mnist30-cnn-0\.json is not a result file"):
        reproduce([experiment(SMALL)], quiet(tmp_path))


def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    from pstn.experiments import execute

    keeping = replace(SMALL, keep=True)
    whole = trained(quiet(tmp_path / "whole"), keeping, 1).state_dict()
    fit = execute.Population.fit

    def interrupted(population, on_round):
        fit(population, until=1)
        execute.save_checkpoint(path, population, about)
        raise Stopped

    lab = quiet(tmp_path / "cut")
    path = execute._checkpoint(lab, keeping)
    recipe = lab.shorten(keeping.recipe, 30)
    about = {"pairs": [["", 0], ["", 1]], "recipe": repr(recipe)}
    monkeypatch.setattr(execute.Population, "fit", interrupted)
    with pytest.raises(Stopped):
        trained(lab, keeping, 1)
    assert path.exists()

    def resumed(population, on_round):
        assert population.progress.step == 1
        return fit(population, on_round)

    monkeypatch.setattr(execute.Population, "fit", resumed)
    after = trained(lab, keeping, 1).state_dict()
    assert not path.exists()
    assert all(torch.equal(after[name], tensor) for name, tensor in whole.items())


def test_a_checkpoint_of_other_settings_is_not_gone_on_with(tmp_path, monkeypatch):
    from pstn.experiments import execute

    lab, said = quiet(tmp_path), []
    lab.say = said.append
    path = execute._checkpoint(lab, SMALL)
    recipe = lab.shorten(SMALL.recipe, 30)
    monkeypatch.setattr(execute, "read_checkpoint", lambda p: ({}, {"settings": {"pairs": [["", 0]], "recipe": "x"}}))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert execute._held(lab, SMALL, recipe, [("", 0)]) is None
    assert "starting anew" in said[0]
    assert not path.exists()


def test_weights_that_are_kept_are_not_trained_twice(tmp_path, monkeypatch):
    from pstn.experiments import execute

    keeping = replace(SMALL, keep=True)
    first = trained(quiet(tmp_path), keeping, 0).state_dict()
    monkeypatch.setattr(execute, "_train", lambda *a: pytest.fail("trained again"))
    again = trained(quiet(tmp_path), keeping, 0).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_missing_data_is_an_early_error_that_says_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "nothing"))
    lab = Lab(tmp_path, say=lambda text: pytest.fail(text))
    with pytest.raises(MissingDataError, match="PSTN_DATA"):
        reproduce(choose(["mnist-subsets"], EXPERIMENTS), lab)


def test_shortened_epochs_take_their_schedule_along(tmp_path):
    lab = Lab(tmp_path, epochs_scale=0.1)
    declared = Recipe(epochs=600, lr_step=200)
    taken = lab.shorten(declared, 1000)
    assert (taken.epochs, taken.lr_step) == (60, 20)
    assert lab.departures(declared, taken) == [
        "Shortened: 60 epochs instead of 600, the learning rate's steps every 20 epochs."
    ]
    with pytest.raises(ValueError, match="epochs_scale"):
        Lab(tmp_path, epochs_scale=0)


def test_patterns_choose_cells(tmp_path):
    chosen = choose(["mnist-subsets", "calibration"], EXPERIMENTS)
    names = [c.name for p in plan(chosen, Lab(tmp_path), cells=["mnist100-stn-*"]) for c in p.cells]
    assert names == [f"mnist100-stn-{seed}" for seed in range(5)] * 2
    only = [c.experiment for p in plan(chosen, Lab(tmp_path), cells=["calibration/*"]) for c in p.cells]
    assert set(only) == {"calibration"}


def test_the_module_runs_without_the_command_lines_packages(tmp_path):
    blocked = "import sys; [sys.modules.__setitem__(n, None) for n in ('typer', 'rich', 'yaml', 'pooch', 'matplotlib')]"
    code = (
        f"{blocked}; sys.argv = ['x', 'mnist-subsets', '--quick', '--results', {str(tmp_path)!r}, '--device', 'cpu', "
        "'--cells', 'mnist30-cnn-0']; import runpy; runpy.run_module('pstn.experiments', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "not the paper's setting" in done.stdout
    (path,) = tmp_path.glob("quick/mnist-subsets/*.json")
    assert json.loads(path.read_text())["quick"] is True
