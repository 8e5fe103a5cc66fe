"""What a run leaves in its work folder, and when another takes it up."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pstn.experiments import Lab, Stopped, reproduce
from pstn.experiments.mnist_subsets import subset
from pstn.experiments.runner import Job, trained
from pstn.nn import mnist_cnn
from pstn.report.results import read_results
from pstn.training import Progress, Recipe
from small_experiment import SMALL, experiment, quiet


@pytest.mark.parametrize(("together", "number"), [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_stopped_training_goes_on_to_the_same_results(tmp_path, together, number):
    other = replace(SMALL, data="MNIST100", task=subset(100), recipe=Recipe(epochs=1, batch_size=8))
    groups = [experiment(SMALL, other)]
    reproduce(groups, quiet(tmp_path / "whole"))
    said = []

    def press_once(text):
        said.append(text)
        if "mnist30-cnn: 2 models" in text:
            signal.raise_signal(number)

    lab = quiet(tmp_path / "cut", together=together)
    lab.say = press_once
    with pytest.raises(Stopped):
        reproduce(groups, lab)
    assert read_results(lab.folder) == []
    assert (lab.work / "small" / "mnist30-cnn.safetensors").exists()
    lab.say = said.append
    assert reproduce(groups, lab) == 4
    before, after = [int(t.split(", ")[1].split()[0]) for t in said if "mnist30-cnn: 2 models" in t]
    assert after < before
    assert not list(lab.work.rglob("*.safetensors"))
    for one, two in zip(read_results(tmp_path / "whole" / "quick"), read_results(lab.folder), strict=True):
        assert one.metrics == two.metrics


def test_a_checkpoint_of_other_settings_is_not_gone_on_with(tmp_path, monkeypatch):
    from pstn.experiments import runner

    lab, said = quiet(tmp_path), []
    lab.say = said.append
    path = runner._checkpoint(lab, SMALL)
    recipe = lab.shorten(SMALL.recipe, 30)
    monkeypatch.setattr(runner, "read_about", lambda p: {"settings": {"pairs": [["", 0]], "recipe": "x"}})
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert runner._held(lab, SMALL, recipe, [("", 0)]) is None
    assert "starting anew" in said[0]
    assert not path.exists()


def test_weights_that_are_kept_are_not_trained_twice(tmp_path, monkeypatch):
    from pstn.experiments import runner

    keeping = replace(SMALL, keep=True)
    first = trained(quiet(tmp_path), keeping, 0).state_dict()
    monkeypatch.setattr(runner, "_train", lambda *a: pytest.fail("trained again"))
    again = trained(quiet(tmp_path), keeping, 0).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_what_is_damaged_in_the_work_folder_is_trained_again(tmp_path):
    keeping, lab, said = replace(SMALL, keep=True), quiet(tmp_path), []
    first = trained(lab, keeping, 0).state_dict()
    (lab.work / "small" / "mnist30-cnn-0.weights.safetensors").write_bytes(b"junk")
    (lab.work / "small" / "mnist30-cnn.safetensors").write_bytes(b"junk")
    lab = quiet(tmp_path)
    lab.say = said.append
    again = trained(lab, keeping, 0).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert "is not a readable checkpoint" in said[0]
    assert "starting anew" in said[0]


def test_weights_that_are_kept_are_trained_again_for_another_setting_start_or_data(tmp_path):
    keeping = replace(SMALL, keep=True)
    first = trained(quiet(tmp_path), keeping, 0).state_dict()
    for changed in (
        replace(keeping, lr=1e-4),
        replace(keeping, weight_decay=0.1),
        replace(keeping, make=lambda lab, seed: started_elsewhere()),
        replace(keeping, task=other_files),
    ):
        again = trained(quiet(tmp_path), changed, 0).state_dict()
        assert not all(torch.equal(first[name], again[name]) for name in first)
        trained(quiet(tmp_path), keeping, 0)


def other_files(lab):
    """The same number of examples under the same name, from another copy of the data."""
    task = subset(30)(lab)
    return replace(task, x=task.x.flip(0), y=task.y.flip(0))


def started_elsewhere():
    """As with a file of weights to start from: the same network, from other numbers."""
    network = mnist_cnn()
    with torch.no_grad():
        network.get_parameter(next(iter(network.state_dict()))).mul_(0.5)
    return network


def test_a_checkpoint_of_another_learning_rate_is_not_gone_on_with(tmp_path):
    def press(text):
        if "2 models" in text:
            signal.raise_signal(signal.SIGINT)

    lab = quiet(tmp_path)
    lab.say = press
    with pytest.raises(Stopped):
        reproduce([experiment(SMALL)], lab)
    said = []
    lab.say = said.append
    assert reproduce([experiment(replace(SMALL, lr=1e-4))], lab) == 2
    assert any("is of other settings: starting anew" in text for text in said)
    assert {r.settings["lr"] for r in read_results(lab.folder)} == {1e-4}


def test_what_is_to_go_is_told_from_the_speed_after_the_first_round(tmp_path, monkeypatch):
    clock, told = iter((0.0, 100.0, 110.0, 125.0)), []  # made; 100 s to compile, then 10 steps a second
    monkeypatch.setattr("pstn.experiments.runner.time.monotonic", lambda: next(clock))
    population = SimpleNamespace(total_steps=1001, progress=Progress())
    job = Job(Lab(tmp_path, say=told.append, save_every=1e9), "a", population, tmp_path / "checkpoint", {})
    for step in (1, 101, 251):
        population.progress.step = step
        assert not job.look(population.progress, asked=False)
    assert told == ["  a: 25%, 10 steps/s, 75 s to go"]
