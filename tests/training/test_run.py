"""Runs that survive: settings, checkpoints, resuming, commands."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

import pstn
from pstn.training import Population, Recipe, make_members
from pstn.training.checkpoint import CheckpointError, load_checkpoint, require_room, save_checkpoint
from pstn.training.commands import register
from pstn.training.evaluation import evaluate_models
from pstn.training.interrupt import Interrupt
from pstn.training.run import train
from pstn.training.runners import interrupts_held
from pstn.training.settings import SettingsError, TrainSettings, read_settings, write_settings

app = typer.Typer(pretty_exceptions_enable=False)
register(app)


def run_command(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Small images that an .npz file holds."""
    import numpy as np

    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    x, y = generator.random((32, 16, 16), np.float32)[..., None], np.arange(32) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return str(path)


def small(data: str, out: Path, **values) -> TrainSettings:
    return TrainSettings(data=data, out=str(out), **{"epochs": 3, "models": 2, "batch_size": 8, "groups": 1, **values})


def final_weights(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [load_file(folder / f"model-{i}" / "model.safetensors") for i in range(2)]


def same(a: list[dict[str, torch.Tensor]], b: list[dict[str, torch.Tensor]]) -> bool:
    return all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True))


def test_settings_go_to_yaml_and_back(tmp_path):
    settings = TrainSettings(models=2, kl_weight=[1e-3, 3e-4], lr_step=10, compile=True)
    write_settings(tmp_path / "s.yaml", settings)
    assert TrainSettings.from_dict(read_settings(tmp_path / "s.yaml")) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "'epoch' is not a setting; did you mean 'epochs'?"),
        ({"batch-size": 3}, "did you mean 'batch_size'?"),
        ({"qqq": 3}, "known are data, out"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"model": "vit"}, "model must be one of cnn, stn, pstn"),
        ({"kl_weight": [1, 2, 3]}, "one number or one for each of 1 models, got 3"),
        ({"valid_fraction": 1.5}, "below 1"),
    ],
)
def test_settings_refuse_with_a_suggestion(values, message):
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        TrainSettings.from_dict(values)


def test_yaml_numbers_without_a_point_are_numbers(tmp_path):
    (tmp_path / "s.yaml").write_text("kl_weight: 1e-3\nlr: [1e-3]\nepochs: 5\n")
    settings = TrainSettings.from_dict(read_settings(tmp_path / "s.yaml"))
    assert (settings.kl_weight, settings.lr, settings.epochs) == ([1e-3], [1e-3], 5)


def test_a_checkpoint_continues_to_the_same_bits(tmp_path):
    x, y = torch.rand(24, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 10
    torch.manual_seed(0)
    models = [pstn.nn.mnist_pstn() for _ in range(2)]
    members = make_members(2, kl_weight=1e-3, train=torch.arange(16), valid=torch.arange(16, 24))

    def fresh() -> Population:
        return Population(models, x, y, members, Recipe(epochs=3, patience=5), groups=1)

    whole = fresh()
    whole.fit()
    first = fresh()
    first.fit(until=3)  # in the middle of an epoch
    save_checkpoint(tmp_path / "c.safetensors", first, {"note": 1})
    second = fresh()
    load_checkpoint(tmp_path / "c.safetensors", second)
    second.fit()
    assert all(torch.equal(a, b) for a, b in zip(whole.tensors().values(), second.tensors().values(), strict=True))
    assert second.progress.best == whole.progress.best
    assert [e["loss"] for e in second.progress.history] == [pytest.approx(e["loss"]) for e in whole.progress.history]


def test_a_foreign_checkpoint_is_refused(tmp_path):
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    save_checkpoint(tmp_path / "c.safetensors", Population([pstn.nn.mnist_cnn()], x, y, recipe=Recipe(epochs=1)))
    other = Population([pstn.nn.mnist_cnn()], x, y, make_members(1, seed=[4]), Recipe(epochs=1))
    with pytest.raises(CheckpointError, match="belongs to other models"):
        load_checkpoint(tmp_path / "c.safetensors", other)
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "c.safetensors").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path / "half.safetensors", other)


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(tmp_path):
    x, y = torch.rand(32, 1, 28, 28), torch.arange(32) % 10
    path, model = tmp_path / "c.safetensors", pstn.nn.mnist_cnn()

    def made(x=x, y=y, weights=None, **values) -> Population:
        return Population([model], x, y, recipe=Recipe(**{"epochs": 1, **values}), weights=weights)

    save_checkpoint(path, made(lr_step=3))
    load_checkpoint(path, made(lr_step=3, epochs=5))  # only for longer
    with pytest.raises(CheckpointError, match=r"batch_size was 8, is 16.*clip_norm was None, is 1\.0"):
        load_checkpoint(path, made(lr_step=3, batch_size=16, clip_norm=1.0))
    with pytest.raises(CheckpointError, match="another training: lr_step was 3, is None"):
        load_checkpoint(path, made())
    flipped, relabelled = x.flip(0), y.roll(1)
    for other in (made(flipped, lr_step=3), made(x, relabelled, lr_step=3), made(weights=torch.ones(32), lr_step=3)):
        with pytest.raises(CheckpointError, match="another training: data was"):
            load_checkpoint(path, other)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    population = Population([pstn.nn.mnist_cnn()], x, y, recipe=Recipe(epochs=1))
    save_checkpoint(tmp_path / "c.safetensors", population)
    before = (tmp_path / "c.safetensors").read_bytes()
    population.fit()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "c.safetensors", population)
    assert (tmp_path / "c.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_train_writes_a_whole_run_and_evaluate_agrees(data, tmp_path):
    outcome = train(small(data, tmp_path / "run"), say=lambda _: None)
    assert outcome.finished
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"settings.yaml", "checkpoint.safetensors", "results.json", "model-0", "model-1"} <= names
    resolved = small(data, tmp_path / "run").replace(compile=False)
    assert TrainSettings.from_dict(read_settings(tmp_path / "run" / "settings.yaml")) == resolved
    assert evaluate_models(tmp_path / "run") == outcome.scores
    assert json.loads((tmp_path / "run" / "results.json").read_text())["history"][-1]["epoch"] == 3


@pytest.mark.parametrize("augment", ["rotation", "placement"])
def test_a_run_with_an_augmentation_is_tested_under_it(data, tmp_path, augment):
    outcome = train(small(data, tmp_path / "run", epochs=1, augment=augment), say=lambda _: None)
    assert outcome.finished
    assert evaluate_models(tmp_path / "run") == outcome.scores


def test_evaluate_reads_the_runs_own_data_as_training_did(tmp_path):
    rows = [[k % 2, *range(k, k + 10 + k % 3)] for k in range(24)]  # of unequal lengths
    for part in ("TRAIN", "TEST"):
        text = "\n".join("\t".join(map(str, row)) for row in rows)
        (tmp_path / f"Toy_{part}.tsv").write_text(text + "\n")
    data, out = tmp_path / "Toy_TRAIN.tsv", tmp_path / "run"
    options = ("--policy", "resample", "--epochs", 1, "--batch-size", 4, "--model", "cnn", "--out", out)
    assert run_command("train", data, *options).exit_code == 0
    own = run_command("evaluate", out, "--json")
    assert own.exit_code == 0, own.output
    alone = run_command("evaluate", out / "model-0", "--json")  # the model keeps the policy, too
    assert json.loads(alone.output) == json.loads(own.output)
    assert run_command("evaluate", out / "model-0", "--policy", "refuse").exit_code == 2
    assert "policy must be one of" in run_command("evaluate", out, "--policy", "guess").output


def test_a_model_that_takes_its_samples_in_chunks_is_scored(tmp_path):
    digits = pstn.data.load("digits").train
    about = pstn.About(digits.classes, 1, (28, 28), (digits.mean,), (digits.std,), data="digits")
    found = []
    for chunk in (None, 3):
        torch.manual_seed(0)
        model = pstn.wrap(pstn.nn.mnist_cnn(), in_channels=1, test_samples=4, chunk_size=chunk)
        model(digits.x[:2])
        found.append(evaluate_models(model.save_pretrained(tmp_path / str(chunk), about=about)))
    assert found[0] == found[1]


def test_evaluate_refuses_data_of_another_shape(data, tmp_path):
    import numpy as np

    train(small(data, tmp_path / "run", epochs=1), say=lambda _: None)
    for shape, classes, wanted in (((6, 20, 20, 1), 3, "examples of shape (1, 16, 16)"), ((6, 16, 16, 1), 5, "class")):
        x, y = np.random.default_rng(0).random(shape, np.float32), np.arange(6) % classes
        np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        found = run_command("evaluate", tmp_path / "run", tmp_path / "other.npz")
        assert found.exit_code == 2, found.output
        assert wanted in found.output.replace("\n", " ")


def test_evaluate_agrees_after_early_stopping(data, tmp_path):
    settings = small(data, tmp_path / "run", epochs=12, lr=[0.01], valid_fraction=0.25, patience=11)
    outcome = train(settings, say=lambda _: None)
    found = evaluate_models(tmp_path / "run")
    assert {name: pytest.approx(values) for name, values in found.items()} == outcome.scores


def test_a_run_started_over_leaves_nothing_of_the_old_one(data, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    train(small(data, folder), say=lambda _: None)
    (folder / ".checkpoint.safetensors.abc.draft").write_text("half")

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "fit", fail)
    with pytest.raises(KeyboardInterrupt):
        train(small(data, folder, model="cnn", models=1), overwrite=True, say=lambda _: None)
    assert {p.name for p in folder.iterdir()} == {"settings.yaml", "checkpoint.safetensors"}
    with pytest.raises(SettingsError, match="is not finished"):
        evaluate_models(folder)


def test_resuming_follows_the_checkpoint_not_a_settings_file_of_another_run(data, tmp_path):
    train(small(data, tmp_path / "run"), say=lambda _: None)
    before = final_weights(tmp_path / "run")
    # As after a kill between the settings and the checkpoint of a run that replaces this one.
    write_settings(tmp_path / "run" / "settings.yaml", small(data, tmp_path / "run", epochs=9))
    train(TrainSettings(out=str(tmp_path / "run")), resume=True, say=lambda _: None)
    assert same(before, final_weights(tmp_path / "run"))


def test_the_number_of_stacks_is_kept_with_the_run(data, tmp_path, monkeypatch):
    train(small(data, tmp_path / "run", groups=None), say=lambda _: None)
    chosen = read_settings(tmp_path / "run" / "settings.yaml")["groups"]
    monkeypatch.setattr("pstn.training.planning.count_cores", lambda: pytest.fail("chosen anew"))
    assert chosen in (1, 2)
    train(TrainSettings(out=str(tmp_path / "run")), resume=True, say=lambda _: None)


def test_a_resumed_run_refuses_other_settings(data, tmp_path):
    out = tmp_path / "run"
    assert run_command("train", data, "--out", out, "--epochs", 1, "--no-compile").exit_code == 0
    found = run_command("train", data, "--out", out, "--epochs", 9, "--resume")
    assert found.exit_code == 2
    assert "epochs of the run" in found.output
    assert "is 1, got 9" in found.output
    assert run_command("train", data, "--out", out, "--epochs", 1, "--resume").exit_code == 0


def test_results_are_json_even_where_a_model_broke(data, tmp_path):
    outcome = train(small(data, tmp_path / "run", lr=[1e30], epochs=2), say=lambda _: None)
    assert len(outcome.problems) >= 2

    def refuse(text: str) -> None:
        pytest.fail(f"{text} is not JSON")

    json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=refuse)


def test_ctrl_c_saves_and_says_how_to_go_on(data, tmp_path, monkeypatch):
    train(small(data, tmp_path / "whole"), say=lambda _: None)
    said: list[str] = []
    from pstn.training import run as room

    real = room.Display.update

    def press(self, progress) -> None:
        real(self, progress)
        if progress.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(room.Display, "update", press)
    outcome = train(small(data, tmp_path / "cut"), say=said.append)
    assert not outcome.finished
    assert said[-1].endswith(f"pstn train --resume --out {tmp_path / 'cut'}")
    monkeypatch.setattr(room.Display, "update", real)
    assert train(TrainSettings(out=str(tmp_path / "cut")), resume=True).finished
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "cut"))


def test_refusals_come_before_training(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    found = run_command("train", data, "--out", tmp_path / "file" / "run", "--epochs", 1)
    assert found.exit_code == 2
    assert "cannot write to the folder" in found.output
    found = run_command("train", data, "--out", tmp_path / "none", "--resume")
    assert "holds no run to resume" in found.output
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    monkeypatch.setattr(Population, "fit", lambda *_, **__: pytest.fail("trained"))
    found = run_command("train", data, "--out", tmp_path / "full", "--epochs", 1)
    assert found.exit_code == 1  # nothing that was given is wrong
    assert "0 MiB are free" in found.output


def test_early_stopping_needs_room_for_the_best_state_too(tmp_path, monkeypatch):
    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10

    def fresh() -> Population:
        members = make_members(12, valid=torch.arange(8))
        return Population([pstn.nn.mnist_cnn()] * 12, x, y, members, Recipe(epochs=1, patience=1), groups=1)

    population = fresh()
    population.fit()
    save_checkpoint(tmp_path / "after.safetensors", population)
    at_worst = 2 * (tmp_path / "after.safetensors").stat().st_size
    usage = type("Usage", (), {"free": at_worst})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="not trained"):
        require_room(tmp_path, fresh())


def test_commands_read_config_options_and_name_mistakes(data, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(f"data: {data}\nepochs: 9\nmodels: 2\nkl_weight: [1e-3, 1e-4]\n")
    out = tmp_path / "run"
    found = run_command("train", "--config", config, "--epochs", 1, "--out", out)
    assert found.exit_code == 0, found.output
    settings = TrainSettings.from_dict(read_settings(out / "settings.yaml"))
    assert (settings.epochs, settings.models, settings.kl_weight) == (1, 2, [1e-3, 1e-4])
    again = run_command("train", "--config", config, "--out", out)
    assert again.exit_code == 2
    assert "holds a run already" in again.output
    scores = json.loads(run_command("evaluate", out, "--json").output)
    assert len(scores["nll"]) == 2
    config.write_text("epoch: 3\n")
    assert "did you mean 'epochs'?" in run_command("train", "--config", config).output


def test_a_run_reports_collapses_once(data, tmp_path):
    said: list[str] = []
    outcome = train(small(data, tmp_path / "run", model="stn", lr=[1e-9], save_every=0.0), say=said.append)
    assert [text for text in outcome.problems if "identity for every input" in text and "model 0" in text]
    assert len(said) == len(set(said))


def test_a_model_that_cannot_be_looked_at_does_not_stop_the_run(data, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("loc of the posterior must be finite")

    monkeypatch.setattr("pstn.training.watchdog.collapses", fail)
    outcome = train(small(data, tmp_path / "run", models=1), say=lambda _: None)
    assert outcome.finished
    assert outcome.problems == [
        "model 0: Whether the transformation has collapsed cannot be told: loc of the posterior must be finite."
    ]


def test_a_collapse_is_told_once_however_its_figures_move(data, tmp_path, monkeypatch):
    figures = iter(range(100))
    monkeypatch.setattr(
        "pstn.training.watchdog.collapses", lambda *_: [f"The scale has gone to nothing: 0.{next(figures)} is left."]
    )
    said: list[str] = []
    train(small(data, tmp_path / "run", models=1, save_every=0.0), say=said.append)
    assert said[1:] == ["Warning: model 0: The scale has gone to nothing: 0.0 is left."]  # the first is the plan


def test_figures_are_of_the_models_that_have_not_broken():
    from pstn.training.population import Progress
    from pstn.training.progress import summary

    entry = {"loss": [1.0, float("nan")], "kl": [2.0, float("inf")], "accuracy": [0.5, 0.5]}
    assert summary(Progress(history=[entry]), 2) | {"speed": ""} == {
        "loss": "1.000", "KL": "2.00", "accuracy": "50.0%", "speed": "",
    }  # fmt: skip


def test_progress_shows_on_a_terminal_and_is_quiet_elsewhere(monkeypatch, capsys):
    import sys as system

    from pstn.training.progress import Display

    x, y = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    for terminal in (False, True):
        population = Population([pstn.nn.mnist_cnn()], x, y, recipe=Recipe(epochs=1))
        monkeypatch.setattr(system.stderr, "isatty", lambda answer=terminal: answer, raising=False)
        with Display(population) as display:
            population.fit(lambda progress, display=display: display.update(progress))
        shown = capsys.readouterr().err
        assert ("epoch 1/1" in shown and "accuracy" in shown and "KL" in shown) == terminal


def test_a_log_shows_life_now_and_then_where_there_is_no_terminal(data, tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.training.progress._LINE_EVERY", 0.0)
    for quiet in (False, True):
        said: list[str] = []
        train(small(data, tmp_path / str(quiet), model="cnn"), say=said.append, quiet=quiet)
        assert any(line.startswith("epoch 3/3, loss ") for line in said) != quiet
        plan = f"{data}: 32 examples of 3 classes to learn from, 6 to test on.\nTraining 2 of cnn for 3 epochs."
        assert (plan in said) != quiet


def test_lines_come_no_more_often_than_every_half_minute(data, tmp_path):
    said: list[str] = []
    train(small(data, tmp_path / "run", model="cnn", epochs=20), say=said.append)
    assert len(said) == 1


def test_a_command_says_what_it_trains_and_json_is_quiet(data, tmp_path):
    options = ("--epochs", 1, "--model", "cnn")
    found = run_command("train", data, "--out", tmp_path / "a run", *options)
    assert "32 examples of 3 classes to learn from, 6 to test on" in found.stderr
    assert "Training one cnn for 1 epoch." in found.stderr
    assert "On 6 test examples:" in found.stdout
    assert f"Use it: pstn predict '{tmp_path / 'a run' / 'model-0'}' IMAGES" in found.stdout
    assert "On 6 test examples:" in run_command("evaluate", tmp_path / "a run").stdout
    found = run_command("train", data, "--out", tmp_path / "b", *options, "--json")
    assert found.stderr == ""
    assert json.loads(found.stdout)["finished"]


def test_data_without_a_test_part_are_told_how_to_have_one(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "days.npz", x=rng.random((16, 24), np.float32), y=np.arange(16) % 2)
    options = ("--out", tmp_path / "run", "--epochs", 1, "--model", "cnn", "--kind", "series")
    found = run_command("train", tmp_path / "days.npz", *options)
    assert found.exit_code == 0, found.output
    assert "none to test on" in found.stderr
    assert "No scores, as the data have no test part: add " in found.stdout
    assert found.stdout.rstrip().endswith(" SERIES")
    found = run_command("evaluate", tmp_path / "run")
    assert found.exit_code == 2
    assert "has no test part: add a folder test" in found.stderr


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_what_to_train_on_must_be_said(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_command(command)
    assert found.exit_code == 2
    assert "DATA is missing: say what to train on" in found.stderr
    assert f"`pstn {command} digits`" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_which_run_to_go_on_with_must_be_said():
    found = run_command("train", "--resume")
    assert found.exit_code == 2
    assert "--resume needs the run to go on with: give --out FOLDER" in found.stderr


def test_a_known_name_that_is_a_folder_too_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    options = ("--train-size", 10, "--epochs", 1, "--model", "cnn", "--out", "run")
    found = run_command("train", "digits", *options)
    assert found.exit_code == 0, found.output
    assert "note: the known set 'digits' is used; for the folder say ./digits" in found.stderr
    (tmp_path / "digits").rmdir()
    assert "note" not in run_command("evaluate", "run").stderr


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_shows_defaults_and_choices(command):
    found = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    for text in ("[default: 100]", "[default: 0.001]", "One of cnn, stn, pstn. [default: pstn]", "float32, tf32, bf16"):
        assert text in found


def test_a_full_disk_behind_standard_output_is_one_line(data, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    code = "import typer; from pstn.training.commands import register; a = typer.Typer(); register(a); a()"
    options = ["train", data, "--out", str(tmp_path / "run"), "--epochs", "1", "--model", "cnn", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code, *options], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "error: [Errno 28] No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_a_process_starts_is_not_lost():
    with Interrupt() as interrupt:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked


@pytest.mark.slow
def test_ctrl_c_while_processes_start_saves_too(data, tmp_path):
    """A terminal sends Ctrl-C to every process: those that are still starting must leave the answer to the parent."""
    code = "import typer; from pstn.training.commands import register; a = typer.Typer(); register(a); a()"
    options = ["--epochs", "400", "--models", "2", "--groups", "2", "--batch-size", "8", "--save-every", "0.05"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", data, "--out", str(tmp_path / "run"), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "run" / "checkpoint.safetensors").exists():  # written right before training begins
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "To go on: pstn train --resume" in errors
    assert "Traceback" not in errors
    assert process.returncode == 130


KILLS = 10


@pytest.mark.slow
def test_kill_at_random_moments_loses_nothing(data, tmp_path):
    """Ten runs, each killed at a random moment and resumed: all end with the weights of a run left alone."""
    options = ["--epochs", "25", "--models", "2", "--batch-size", "8", "--groups", "1", "--save-every", "0.05"]
    code = "import typer; from pstn.training.commands import register; a = typer.Typer(); register(a); a()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, "train", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    begun = time.monotonic()
    assert start(data, "--out", str(tmp_path / "whole"), *options).wait() == 0
    length = time.monotonic() - begun
    moments, killed, resumed = random.Random(0), 0, 0
    for attempt in range(3 * KILLS):
        out = tmp_path / str(attempt)
        begun = time.monotonic()
        process = start(data, "--out", str(out), *options)
        try:
            # A run that ends before its moment says how fast the machine is just now; that one does not count.
            process.wait(moments.uniform(0.3, 1.0) * length)
            length = time.monotonic() - begun
            continue
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed += 1
        if (out / "checkpoint.safetensors").exists():
            resumed += 1
            assert start("--out", str(out), "--resume").wait() == 0
        else:
            assert start(data, "--out", str(out), *options).wait() == 0
        assert same(final_weights(tmp_path / "whole"), final_weights(out))
        if killed == KILLS:
            break
    assert killed == KILLS
    assert resumed > 0
