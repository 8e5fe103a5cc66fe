"""Running experiments: which cells are run, what a stopped run leaves, when another takes it up."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from pstn.cli import app
from pstn.data import MissingDataError
from pstn.experiments import EXPERIMENTS, RunContext, Shard, Stopped, choose, plan, reproduce, runner, trained
from pstn.experiments import __main__ as command
from pstn.experiments.mnist_subsets import subset
from pstn.experiments.rotated_mnist import rotated
from pstn.nn import mnist_cnn
from pstn.report.results import Result, read_results
from pstn.training import Recipe
from pstn.training.population import trainer
from pstn.training.population.stack import precision_flags
from small_experiment import SMALL, experiment, quiet

OTHER = replace(SMALL, data="MNIST100", task=subset(100))
KEPT = replace(SMALL, keep=True)


def equal_weights(one, two):
    return all(torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items())


def cell_names(chosen, context, *arguments, **options):
    return [cell.full_name for piece in plan(chosen, context, *arguments, **options) for cell in piece.cells]


def test_shards_are_a_partition_of_the_cells(tmp_path):
    everything, context = choose(["all"], EXPERIMENTS, search=True), RunContext(tmp_path)
    whole = cell_names(everything, context)
    parts = [name for index in range(1, 8) for name in cell_names(everything, context, Shard(index, 7))]
    assert len(set(whole)) == len(whole)
    assert sorted(parts) == sorted(whole)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/", "-1/2"])
def test_invalid_shards_are_refused(text):
    with pytest.raises(ValueError, match="shard"):
        Shard.parse(text)


def test_experiments_are_chosen_by_name_and_cells_by_patterns(tmp_path):
    assert not [e.name for e in choose(["all"], EXPERIMENTS) if e.name.endswith("-search")]
    named = [e.name for e in choose(["mnist-subsets"], EXPERIMENTS, search=True)]
    assert named == ["mnist-subsets", "mnist-subsets-search"]
    for name in ("rotate", "math:pi", "no_such_module:x"):
        with pytest.raises(ValueError, match=f"experiment.*{name}"):
            choose([name], EXPERIMENTS)
    chosen, context = choose(["mnist-subsets", "calibration"], EXPERIMENTS), RunContext(tmp_path)
    wanted = [f"{name}/mnist100-stn-{seed}" for name in ("mnist-subsets", "calibration") for seed in range(5)]
    assert cell_names(chosen, context, cells=["mnist100-stn-*"]) == wanted
    assert all(name.startswith("calibration/") for name in cell_names(chosen, context, cells=["calibration/*"]))


def test_an_experiment_may_have_another_number_of_seeds(tmp_path):
    chosen = [experiment(replace(SMALL, seeds=7), seeds=7)]
    assert cell_names(chosen, RunContext(tmp_path)) == [f"small/mnist30-cnn-{seed}" for seed in range(7)]
    assert len(cell_names(chosen, quiet(tmp_path))) == 2


def test_a_quick_run_writes_whole_results_apart_from_the_others(tmp_path):
    assert reproduce([experiment(SMALL)], quiet(tmp_path)) == 2
    assert read_results(tmp_path) == []
    results = read_results(tmp_path / "quick")
    assert [(r.seed, r.quick, r.settings["parameters"]) for r in results] == [(0, True, 28_086), (1, True, 28_086)]
    for result in results:
        assert {"accuracy", "nll", "ece", "ece10"} <= result.metrics.keys()
        assert "Not the paper's setting" in result.departures[0]
        assert result.versions["torch"] == torch.__version__
    assert not list(tmp_path.glob("quick/.work/small/*"))


def test_cells_that_are_there_are_not_run_again(tmp_path):
    context = quiet(tmp_path)
    reproduce([experiment(SMALL)], context)
    (shard,) = tmp_path.glob("quick/small.*.jsonl")
    first, second = shard.read_text().splitlines()
    shard.unlink()
    killed = shard.parent / "small.20200101T000000-1.jsonl"
    killed.write_text(f"{first}\n{second[:50]}")  # of a process that was killed
    assert reproduce([experiment(SMALL)], context) == 1
    kept, again = read_results(context.folder)
    assert (kept.to_line(), again.seed) == (first, json.loads(second)["seed"])
    assert reproduce([experiment(SMALL)], context) == 0


class Broken(torch.nn.Module):
    """A classifier whose loss explodes: its last bias has this value."""

    def __init__(self, value):
        super().__init__()
        self.inner = mnist_cnn()
        with torch.no_grad():
            self.inner.get_parameter(list(self.inner.state_dict())[-1]).fill_(0.0)[0] = value

    def forward(self, x):
        return self.inner(x)


def test_a_model_that_diverged_has_a_cell_that_says_so_and_its_neighbours_go_on(tmp_path):
    odd = {"odd": math.nan, "even": 2.0}  # what is not finite is left out
    group = replace(SMALL, make=lambda _, seed: Broken(math.inf if seed == 0 else 0.0), measures=(lambda _: (odd, {}),))
    context = quiet(tmp_path)
    assert reproduce([experiment(group, OTHER)], context) == 4
    broken, whole, *others = sorted(read_results(context.folder), key=lambda r: (r.data != "MNIST30", r.seed))
    assert (broken.metrics, broken.figure, broken.settings["parameters"]) == ({}, {}, 28_086)
    for note in ("No numbers: this model diverged.", "Stopped in training at step 0"):
        assert any(note in departure for departure in broken.departures)
    assert (whole.metrics["even"], "odd" in whole.metrics) == (2.0, False)
    assert whole.departures[-1].startswith("odd is nan")
    for result in (whole, *others):
        assert math.isfinite(result.metrics["nll"])
        assert not any("diverged" in note or "Stopped" in note for note in result.departures)


def test_the_time_on_the_clock_is_shared_by_the_cells_it_was_spent_on(tmp_path, monkeypatch):
    run = runner._Job.run

    def timed(job, interrupt):
        run(job, interrupt)
        job.population.progress.seconds = 300.0 if job.group is OTHER else 100.0

    monkeypatch.setattr(runner._Job, "run", timed)
    several = replace(SMALL, aliases=("again",), also={"rotated": rotated})  # four cells of each model
    reproduce([experiment(several, OTHER)], quiet(tmp_path, together=2))
    results = read_results(tmp_path / "quick")
    # The longer one ran 200 of its 300 seconds alone: together they took 300, not the mean of 200.
    assert 300 < sum(r.seconds for r in results) < 350
    own = [r for r in results if r.data != "MNIST100"]
    assert 75 < sum(r.seconds for r in own) < 100
    assert {(r.seed, r.training) for r in own} == {(0, "mnist30-cnn-0"), (1, "mnist30-cnn-1")}
    assert {(r.settings["source"], r.settings["train_examples"]) for r in own} == {("digits train", 30)}
    assert len(own) == 8


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("name", "cells", "missing"),
    [("time-series", ["faceall-cnn-*", "wafer-*"], "FaceAll, Wafer"), ("ablations", ["*dropout*"], "mnist")],
)
def test_missing_data_is_an_early_error_and_cells_need_their_own_alone(tmp_path, no_data, name, cells, missing):
    with pytest.raises(MissingDataError, match=f"{missing}: .*PSTN_DATA"):
        reproduce([EXPERIMENTS[name]], RunContext(tmp_path, log=pytest.fail), cells=cells)


def test_all_is_every_experiment_with_available_data(tmp_path, no_data, monkeypatch):
    everything, given = choose(["all"], EXPERIMENTS), []
    # Only what cannot be downloaded is skipped.
    assert runner.unavailable(everything, RunContext(tmp_path)) == {"traffic-signs": ["traffic-signs"]}
    assert runner.unavailable(everything, RunContext(tmp_path, quick=True)) == {}
    monkeypatch.setattr(command, "reproduce", lambda *arguments: given.append(set(arguments[-1])) or 0)
    for name in ("all", "traffic-signs"):
        assert command.main([name, "--results", str(tmp_path), "--device", "cpu"]) == 0
    assert given == [{"traffic-signs"}, set()]


def test_skipped_experiments_leave_the_shards_as_they_are(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(runner, "run_groups", lambda context, work: done.append([p.group.experiment for p in work]))
    both = [experiment(replace(SMALL, experiment=name), name=name) for name in ("first", "second")]
    for index in (2, 1):
        reproduce(both, quiet(tmp_path), Shard(index, 2), leave_out=["first"])
    assert done == [["second"]]


@pytest.mark.parametrize("blocked", ["file", "quick/.work"])
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_trained(tmp_path, blocked):
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("")
    with pytest.raises(OSError, match="--results"):
        reproduce([experiment(SMALL)], quiet(tmp_path / "file" if blocked == "file" else tmp_path, log=pytest.fail))


def test_an_empty_shard_is_no_error_but_a_pattern_without_cells_is(tmp_path):
    for cells in ([], ["*-cnn-*"]):
        assert reproduce([experiment(SMALL)], quiet(tmp_path), Shard(2, 2), cells) == 0
    for part in (Shard(1, 2), Shard(2, 2)):
        with pytest.raises(ValueError, match=r"mnist3-\*"):
            reproduce([experiment(SMALL)], quiet(tmp_path), part, ["mnist3-*"])


def test_the_module_runs_without_the_command_lines_packages(tmp_path):
    packages = ("typer", "rich", "yaml", "pooch", "matplotlib", "scipy", "jinja2")
    code = (
        f"import sys; [sys.modules.__setitem__(n, None) for n in {packages}]; sys.argv = ['x', 'mnist-subsets', "
        f"'--quick', '--results', {str(tmp_path)!r}, '--device', 'cpu', '--cells', 'mnist30-cnn-0']; import runpy; "
        "runpy.run_module('pstn.experiments', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(read_results(tmp_path / "quick")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_quick_run(name, tmp_path):
    context = quiet(tmp_path)
    assert reproduce(choose([name], EXPERIMENTS), context) > 0
    for result in read_results(context.folder, name):
        assert all(math.isfinite(value) for value in result.metrics.values()), result.name
        assert json.loads(json.dumps(result.figure, allow_nan=False)) == result.figure
    assert reproduce(choose([name], EXPERIMENTS), context) == 0


def test_the_command_lists_cells_and_names_mistakes(tmp_path):
    def listed(*options):
        return CliRunner().invoke(app, ["reproduce", "calibration", "--list", "--results", str(tmp_path), *options])

    first = listed("--shard", "1/6")
    assert first.exit_code == 0
    assert first.stdout.splitlines() == [f"to do  calibration/mnist100-cnn-{seed}" for seed in range(5)]
    shard = Result("calibration", "CNN", "MNIST100", 0).write(tmp_path)
    assert [line[:5] for line in listed("--cells", "mnist100-cnn-[01]").stdout.splitlines()] == ["done ", "to do"]
    shard.write_text("{\n")
    for options, named in (
        (("--shard", "4/3"), "shard"),
        (("--cells", "mnist3-*"), "mnist3-*"),
        ((), f"{shard}, line 1,"),
    ):
        wrong = listed(*options)
        assert wrong.exit_code == 2
        assert named in wrong.stderr
    names = CliRunner().invoke(app, ["reproduce"]).stdout
    assert all(f"\n{name} " in f"\n{names}" for name in EXPERIMENTS)


# --- What a run leaves in its work folder ----------------------------------------------------------------------------


@pytest.mark.parametrize(("together", "number"), [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_stopped_training_goes_on_to_the_same_results(tmp_path, together, number):
    groups, said = [experiment(SMALL, replace(OTHER, recipe=Recipe(epochs=1, batch_size=8)))], []

    def log(text):
        said.append(text)
        if "mnist30-cnn: 2 models" in text:
            signal.raise_signal(number)

    reproduce(groups, quiet(tmp_path / "whole"))
    context = quiet(tmp_path / "cut", together=together, log=log)
    with pytest.raises(Stopped):
        reproduce(groups, context)
    assert read_results(context.folder) == []
    assert (context.work / "small" / "mnist30-cnn.safetensors").exists()
    context.log, context.save_every = said.append, 0.0  # a checkpoint after every round, with a word about it
    assert reproduce(groups, context) == 4
    before, after = [int(t.split(", ")[1].split()[0]) for t in said if "mnist30-cnn: 2 models" in t]
    assert after < before
    assert any(text.endswith("%") for text in said)
    assert not list(context.work.rglob("*.safetensors"))
    for one, two in zip(read_results(tmp_path / "whole" / "quick"), read_results(context.folder), strict=True):
        assert one.metrics == two.metrics


def test_a_checkpoint_of_more_models_than_are_missing_is_taken_up(tmp_path, monkeypatch):
    context, said = quiet(tmp_path), []
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_test", lambda *a: pytest.exit("killed"))
        with pytest.raises(pytest.exit.Exception):
            reproduce([experiment(SMALL)], context)
    context.log = said.append
    assert reproduce([experiment(SMALL)], context, cells=["*-1"]) == 1
    assert any("2 models, 0 steps" in text for text in said)


def test_kept_groups_train_the_seeds_that_are_needed_alone(tmp_path):
    told = []
    reproduce([experiment(KEPT)], quiet(tmp_path, log=told.append), cells=["*-1"])
    assert any("1 models" in line for line in told)
    reproduce([experiment(KEPT)], quiet(tmp_path))
    assert [r.seed for r in read_results(tmp_path / "quick")] == [0, 1]


def test_deterministic_runs_choose_no_kernel_by_its_speed(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(trainer.shutil, "which", lambda name: name)
    monkeypatch.setattr(trainer.importlib.util, "find_spec", lambda name: name)
    before = torch.utils.deterministic.fill_uninitialized_memory
    gpu = torch.device("cuda")
    with precision_flags(Recipe(), tune=True):
        assert (torch.backends.cudnn.benchmark, trainer.choose_compile(10**9, gpu)) == (True, True)
    runner.be_deterministic()
    try:
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with precision_flags(Recipe(), tune=True):
            assert (torch.backends.cudnn.benchmark, trainer.choose_compile(10**9, gpu)) == (False, False)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before


def test_kept_weights_are_not_trained_twice_and_keep_what_became_of_them(tmp_path):
    keeping = replace(KEPT, make=lambda context, seed: Broken(1e30 if seed == 0 else 0.0))
    reproduce([experiment(keeping)], quiet(tmp_path))
    before, first = read_results(tmp_path / "quick"), trained(quiet(tmp_path), keeping, 1)
    for path in tmp_path.glob("quick/small.*.jsonl"):
        path.unlink()
    said = []
    context = quiet(tmp_path, log=said.append)
    reproduce([experiment(keeping)], context)
    assert any("2 models, 0 steps" in text for text in said)
    assert any("Stopped in training" in note for note in before[0].departures)
    assert [r.departures for r in read_results(tmp_path / "quick")] == [r.departures for r in before]
    assert equal_weights(first, trained(context, keeping, 1))


def other_files(context):
    """The same number of examples under the same name, from another copy of the data."""
    task = subset(30)(context)
    return replace(task, x=task.x.flip(0), y=task.y.flip(0))


def other_weights(context, seed):
    """As with a file of weights to start from: the same network, from other numbers."""
    network = mnist_cnn()
    with torch.no_grad():
        network.get_parameter(next(iter(network.state_dict()))).mul_(0.5)
    return network


@pytest.mark.parametrize(
    "change", [{"lr": 1e-4}, {"weight_decay": 0.1}, {"make": other_weights}, {"task": other_files}, {}]
)
def test_weights_are_trained_again_for_another_setting_start_or_data_or_a_damaged_file(tmp_path, change):
    first, said = trained(quiet(tmp_path), KEPT, 0), []
    if not change:
        (tmp_path / "quick" / ".work" / "small" / "mnist30-cnn.safetensors").write_bytes(b"junk")
    again = trained(quiet(tmp_path, log=said.append), replace(KEPT, **change), 0)
    assert equal_weights(first, again) == (not change)
    assert ("of other settings" if change else "is not a readable checkpoint") in said[0]
