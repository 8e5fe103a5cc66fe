from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pstn.data import MissingDataError
from pstn.experiments import EXPERIMENTS, Lab, Shard, choose, plan, reproduce
from pstn.experiments import __main__ as command
from pstn.experiments.mnist_subsets import subset
from pstn.experiments.rotated_mnist import rotated
from pstn.experiments.runner import done_cells, out_of_reach
from pstn.nn import mnist_cnn
from pstn.report.results import Result, read_results
from pstn.training import Recipe
from small_experiment import SMALL, experiment, quiet


def test_shards_are_a_partition_of_the_cells(tmp_path):
    everything = choose(["all"], EXPERIMENTS, search=True)
    lab = Lab(tmp_path)
    whole = [cell.full_name for piece in plan(everything, lab) for cell in piece.cells]
    parts = [c.full_name for i in range(1, 8) for piece in plan(everything, lab, Shard(i, 7)) for c in piece.cells]
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
        assert result.versions["torch"] == torch.__version__
    assert not list(tmp_path.glob("quick/.work/small/*"))


def test_cells_that_are_there_are_not_run_again(tmp_path):
    lab = quiet(tmp_path)
    reproduce([experiment(SMALL)], lab)
    (shard,) = tmp_path.glob("quick/small.*.jsonl")
    first, second = shard.read_text().splitlines()
    shard.unlink()
    (shard.parent / "small.20200101T000000-1.jsonl").write_text(
        f"{first}\n{second[:50]}"
    )  # of a process that was killed
    assert reproduce([experiment(SMALL)], lab) == 1
    kept, again = read_results(lab.folder)
    assert kept.to_line() == first
    assert again.seed == json.loads(second)["seed"]
    assert reproduce([experiment(SMALL)], lab) == 0


def test_a_broken_result_file_is_named_before_anything_runs(tmp_path):
    broken = tmp_path / "quick" / "small.jsonl"
    broken.parent.mkdir(parents=True)
    broken.write_text("{\n")
    with pytest.raises(ValueError, match=r"small\.jsonl, line 1,"):
        reproduce([experiment(SMALL)], quiet(tmp_path))


class Broken(torch.nn.Module):
    """A classifier whose answers are not finite once it is asked anything."""

    def __init__(self, broken):
        super().__init__()
        self.inner = mnist_cnn()
        with torch.no_grad():
            self.inner.get_parameter(list(self.inner.state_dict())[-1]).fill_(math.inf if broken else 0.0)

    def forward(self, x):
        return self.inner(x)


def test_a_model_that_diverged_has_a_cell_that_says_so_and_its_neighbours_go_on(tmp_path):
    group = replace(SMALL, make=lambda lab, seed: Broken(broken=seed == 0))
    other = replace(SMALL, data="MNIST100", task=subset(100))
    lab = quiet(tmp_path)
    assert reproduce([experiment(group, other)], lab) == 4
    broken, whole, *others = sorted(read_results(lab.folder), key=lambda r: (r.data != "MNIST30", r.seed))
    assert broken.metrics == {}
    assert broken.figure == {}
    assert any(note.startswith("No numbers: this model diverged.") for note in broken.departures)
    assert any("Stopped in training at step 0" in note for note in broken.departures)
    for result in (whole, *others):
        assert math.isfinite(result.metrics["nll"])
        assert not any("diverged" in note or "Stopped" in note for note in result.departures)
    assert reproduce([experiment(group, other)], lab) == 0


def test_a_number_that_is_not_finite_is_left_out_and_named(tmp_path):
    group = replace(SMALL, measures=(lambda probe: ({"odd": math.nan, "even": 2.0}, {}),))
    reproduce([experiment(group)], quiet(tmp_path))
    for result in read_results(tmp_path / "quick"):
        assert result.metrics["even"] == 2.0
        assert "odd" not in result.metrics
        assert "odd is nan: left out." in result.departures


def test_what_became_of_a_kept_model_is_known_when_it_is_loaded_again(tmp_path):
    keeping = replace(SMALL, keep=True, make=lambda lab, seed: Broken(broken=seed == 0))
    reproduce([experiment(keeping)], quiet(tmp_path))
    before = read_results(tmp_path / "quick")
    for path in tmp_path.glob("quick/small.*.jsonl"):
        path.unlink()
    reproduce([experiment(keeping)], quiet(tmp_path))
    assert [r.departures for r in read_results(tmp_path / "quick")] == [r.departures for r in before]


def test_cells_of_one_training_share_its_time(tmp_path, monkeypatch):
    from pstn.experiments import runner

    train = runner._train
    monkeypatch.setattr(runner, "_train", lambda *a: [replace(run, seconds=600.0) for run in train(*a)])
    group = replace(SMALL, aliases=("again",), also={"MNIST100": subset(100)})
    reproduce([experiment(group)], quiet(tmp_path))
    results = [r for r in read_results(tmp_path / "quick") if r.seed == 0]
    assert len(results) == 4
    assert 600 < sum(r.seconds for r in results) < 700
    assert {r.training for r in results} == {"mnist30-cnn-0"}


def test_a_model_tested_on_other_data_says_what_it_was_trained_on(tmp_path):
    group = replace(SMALL, also={"rotated": rotated})
    reproduce([experiment(group)], quiet(tmp_path))
    results = read_results(tmp_path / "quick")
    assert {r.data for r in results} == {"MNIST30", "rotated"}
    assert {(r.settings["source"], r.settings["train_examples"]) for r in results} == {("digits train", 30)}


def test_groups_that_train_side_by_side_share_the_time_on_the_clock(tmp_path, monkeypatch):
    from pstn.experiments import runner

    fit = runner.fit

    def timed(lab, jobs):
        fit(lab, jobs)
        for job, seconds in zip(jobs, (100.0, 300.0), strict=True):
            job.population.progress.seconds = seconds

    monkeypatch.setattr(runner, "fit", timed)
    other = replace(SMALL, data="MNIST100", task=subset(100))
    reproduce([experiment(SMALL, other)], quiet(tmp_path, together=2))
    results = read_results(tmp_path / "quick")
    # The longer one ran 200 of its 300 seconds alone: together they took 300, not the mean of 200.
    assert 300 < sum(r.seconds for r in results) < 350
    assert 75 < sum(r.seconds for r in results if r.data == "MNIST30") < 100


def test_missing_data_is_an_early_error_that_says_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "nothing"))
    lab = Lab(tmp_path, say=lambda text: pytest.fail(text))
    with pytest.raises(MissingDataError, match="PSTN_DATA"):
        reproduce(choose(["mnist-subsets"], EXPERIMENTS), lab)


def test_cells_need_their_own_data_alone(tmp_path, monkeypatch):
    asked = []

    def stop(names):
        asked.extend(names)
        raise InterruptedError

    lab = Lab(tmp_path)
    monkeypatch.setattr(lab, "require_data", stop)
    with pytest.raises(InterruptedError):
        reproduce([EXPERIMENTS["time-series"]], lab, cells=["faceall-cnn-*", "wafer-*"])
    assert set(asked) == {"FaceAll", "Wafer"}
    asked.clear()
    with pytest.raises(InterruptedError):
        reproduce([EXPERIMENTS["ablations"]], lab, cells=["*dropout*"])
    assert set(asked) == set(EXPERIMENTS["ablations"].needs)


def test_all_is_all_that_can_be_had(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "nothing"))
    everything = choose(["all"], EXPERIMENTS)
    # What can be downloaded is the user's to get: only what cannot be is left out.
    assert out_of_reach(everything, Lab(tmp_path)) == {"traffic-signs": ["traffic-signs"]}
    assert out_of_reach(everything, Lab(tmp_path, quick=True)) == {}
    given = []
    monkeypatch.setattr(command, "reproduce", lambda *arguments: given.append(arguments[-1]) or 0)
    options = {
        "results": tmp_path, "device": "cpu", "quick": False, "shard": "1/1", "cells": [], "show": False,
        "search": False, "epochs_scale": 1.0, "compile": False, "backbone": None, "together": 1,
    }  # fmt: skip
    assert command.run_command(["all"], **options) == 0
    said = capsys.readouterr().out
    assert "traffic-signs is left out: traffic-signs cannot be downloaded, and is not here." in said
    assert "all that was asked for but traffic-signs is in" in said
    assert command.run_command(["traffic-signs"], **options) == 0
    assert [set(names) for names in given] == [{"traffic-signs"}, set()]


def test_what_is_left_out_keeps_its_share_of_the_work(tmp_path, monkeypatch):
    done = []
    module = sys.modules["pstn.experiments.runner"]  # the function has the same name
    monkeypatch.setattr(module, "carry_out", lambda lab, work: done.append([group.experiment for group, _ in work]))
    first, second = replace(SMALL, experiment="first"), replace(SMALL, experiment="second")
    both = [replace(experiment(first), name="first"), replace(experiment(second), name="second")]
    reproduce(both, quiet(tmp_path), Shard(2, 2), leave_out=["first"])
    reproduce(both, quiet(tmp_path), Shard(1, 2), leave_out=["first"])
    assert done == [["second"]]


def test_a_work_folder_that_is_a_file_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / ".work").write_text("")
    lab = quiet(tmp_path)
    lab.say = pytest.fail
    with pytest.raises(OSError, match="cannot write to the folder"):
        reproduce([experiment(SMALL)], lab)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "file").write_text("")
    lab = quiet(tmp_path / "file")
    lab.say = pytest.fail
    with pytest.raises(OSError, match=r"cannot write to the folder.*choose another with --results"):
        reproduce([experiment(SMALL)], lab)


def test_a_part_without_work_is_no_mistake_and_a_pattern_without_cells_is(tmp_path):
    lab, said = quiet(tmp_path), []
    lab.say = said.append
    assert reproduce([experiment(SMALL)], lab, Shard(2, 2)) == 0
    assert said == ["Part 2/2 has nothing to do."]
    assert reproduce([experiment(SMALL)], lab, Shard(2, 2), ["*-cnn-*"]) == 0
    for part in (Shard(1, 2), Shard(2, 2)):
        with pytest.raises(ValueError, match=r"no cell matches mnist3-\*: --list without"):
            reproduce([experiment(SMALL)], lab, part, ["mnist3-*"])


def test_shortened_epochs_take_their_schedule_along(tmp_path):
    lab = Lab(tmp_path, epochs_scale=0.1)
    declared = Recipe(epochs=600, lr_step=200)
    taken = lab.shorten(declared, 1000)
    assert (taken.epochs, taken.lr_step) == (60, 20)
    assert lab.departures(declared, taken) == [
        "Shortened: 60 epochs instead of 600, the learning rate's steps every 20 epochs."
    ]
    assert lab.shorten(declared, 1000, whole=True) == declared
    with pytest.raises(ValueError, match="epochs_scale"):
        Lab(tmp_path, epochs_scale=0)


def test_shortened_cells_are_done_for_those_who_shorten(tmp_path):
    pieces = plan([experiment(SMALL)], Lab(tmp_path))
    departures = Lab(tmp_path, epochs_scale=0.5).departures(Recipe(epochs=600), Recipe(epochs=300))
    for cell in pieces[0].cells:
        replace(cell, departures=departures).write(tmp_path)
    assert done_cells(Lab(tmp_path), pieces) == set()
    assert len(done_cells(Lab(tmp_path, epochs_scale=0.5), pieces)) == len(pieces[0].cells)


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
    (result,) = read_results(tmp_path / "quick")
    assert result.quick is True


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_quick_run(name, tmp_path):
    lab = quiet(tmp_path)
    assert reproduce(choose([name], EXPERIMENTS), lab) > 0
    for result in read_results(lab.folder, name):
        assert result.quick
        assert all(math.isfinite(value) for value in result.metrics.values()), result.name
        assert json.loads(json.dumps(result.figure, allow_nan=False)) == result.figure
    assert reproduce(choose([name], EXPERIMENTS), lab) == 0


def test_the_command_lists_cells_and_names_a_mistake(tmp_path):
    from typer.testing import CliRunner

    from pstn.commands import app

    listed = CliRunner().invoke(
        app, ["reproduce", "calibration", "--list", "--shard", "1/3", "--results", str(tmp_path)]
    )
    assert listed.exit_code == 0
    assert listed.stdout.splitlines() == [f"to do  calibration/mnist100-cnn-{seed}" for seed in range(5)]
    wrong = CliRunner().invoke(app, ["reproduce", "calibration", "--shard", "4/3", "--results", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "shard must be i/n" in wrong.stderr


def test_the_list_says_what_a_run_would_say(tmp_path):
    from typer.testing import CliRunner

    from pstn.commands import app

    def listed(*options):
        return CliRunner().invoke(app, ["reproduce", "calibration", "--list", "--results", str(tmp_path), *options])

    nothing = listed("--cells", "mnist3-*")
    assert nothing.exit_code == 2
    assert "no cell matches mnist3-*" in nothing.stderr
    shard = Result("calibration", "CNN", "MNIST100", 0).write(tmp_path)
    assert listed("--cells", "*-cnn-[01]").stdout.splitlines() == [
        "done   calibration/mnist100-cnn-0",
        "to do  calibration/mnist100-cnn-1",
    ]
    shard.write_text("{\n")
    damaged = listed()
    assert damaged.exit_code == 2
    assert f"{shard}, line 1," in damaged.stderr
