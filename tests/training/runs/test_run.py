"""Runs: settings, what a run writes, evaluating and resuming it."""

import json
import os
import signal

import pytest
import torch

import pstn
from pstn.data import RandomPlacement, RandomRotation, generate, load
from pstn.io import from_pretrained
from pstn.training import Population, RandomWarp
from pstn.training.runs.run import Source, choose, evaluate_run, make_about, make_population, prepare, train
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings, write_settings
from small_runs import fails, final_weights, run_command, same, small, succeeds


def test_settings_go_to_yaml_and_back(tmp_path):
    settings = TrainSettings(models=2, kl_weight=[1e-3, 3e-4], lr_step=10, compile=True)
    write_settings(tmp_path / "s.yaml", settings)
    assert TrainSettings.from_dict(read_settings(tmp_path / "s.yaml")) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "did you mean 'epochs'?"),
        ({"kl": 3}, "did you mean 'kl_weight'?"),
        ({"qqq": 3}, "known are data, out"),
        ({"epochs": "many"}, "epochs must be a whole number .*, got 'many'"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"batch-size": 3}, "did you mean 'batch_size'?"),
        ({"model": "vit"}, "model must be one of cnn, stn, pstn"),
        ({"kl_weight": [1, 2, 3]}, "one number or one for each of 1 models, got 3"),
        ({"kl_weight": "a"}, "kl_weight must be a number or one of auto, got 'a'"),
        ({"kl_weight": ["auto", 1], "models": 2}, "kl_weight must be auto alone"),
        ({"lr": []}, "lr must hold one number"),
        ({"valid_fraction": 1.5}, "valid_fraction must lie between"),
        ({"seed": 99999999999999999999}, "seed must lie between -9223372036854775808 and 18446744073709551615, got 9"),
        ({"seed": 2**64 - 2, "models": 3}, "seed must lie between .* and 18446744073709551613, got"),
        ({"groups": 0}, "groups must lie between"),
        ({"save_every": float("nan")}, "save_every must lie between"),
    ],
)
def test_settings_refuse_with_a_suggestion(values, message):
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        TrainSettings.from_dict(values)


def test_yaml_numbers_without_a_point_are_numbers(tmp_path):
    (tmp_path / "s.yaml").write_text("kl_weight: 1e-3\nlr: [1e-3]\nepochs: 5\n")
    settings = TrainSettings.from_dict(read_settings(tmp_path / "s.yaml"))
    assert (settings.kl_weight, settings.lr, settings.epochs) == ([1e-3], [1e-3], 5)


def test_auto_is_searched_before_the_run_and_its_settings_say_what_was_chosen(data, tmp_path):
    said = []
    wanted = small(data, tmp_path / "run").replace(kl_weight="auto", models=1, epochs=2)
    assert wanted.kl_weight == ["auto"]
    assert train(wanted, say=said.append).finished
    held = TrainSettings.from_dict(read_settings(tmp_path / "run" / "settings.yaml"))
    chosen, tuned = choose(wanted, prepare(wanted))
    assert (held.kl_weight, held.localizer_factor, held.alpha) == (
        [tuned.best.kl_weight], tuned.best.localizer_factor, tuned.best.alpha
    )  # fmt: skip
    assert chosen == wanted.replace(
        kl_weight=held.kl_weight, localizer_factor=held.localizer_factor, alpha=held.alpha
    )  # fmt: skip
    assert str(tuned) in said
    assert from_pretrained(tmp_path / "run" / "model-0").layer.posterior.alpha == tuned.best.alpha
    with pytest.raises(SettingsError, match="kl_weight"):
        train(wanted.replace(model="cnn"), overwrite=True, say=said.append)


def test_train_writes_a_whole_run_and_evaluate_agrees(data, tmp_path):
    outcome = train(small(data, tmp_path / "run"), say=lambda _: None)
    assert outcome.finished
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"settings.yaml", "checkpoint.safetensors", "results.json", "model-0", "model-1"} <= names
    resolved = small(data, tmp_path / "run").replace(compile=False, backbone="paper")
    assert TrainSettings.from_dict(read_settings(tmp_path / "run" / "settings.yaml")) == resolved
    assert evaluate_run(tmp_path / "run")[0] == outcome.scores
    assert json.loads((tmp_path / "run" / "results.json").read_text())["history"][-1]["epoch"] == 3


def test_a_run_with_an_augmentation_is_tested_under_it(data, tmp_path):
    outcome = train(small(data, tmp_path / "run", epochs=1, augment="placement"), say=lambda _: None)
    assert outcome.finished
    assert evaluate_run(tmp_path / "run")[0] == outcome.scores


def test_evaluate_reads_the_runs_own_data_as_training_did(tmp_path):
    rows = [[k % 2, *range(k, k + 10 + k % 3)] for k in range(24)]  # of unequal lengths
    for part in ("TRAIN", "TEST"):
        text = "\n".join("\t".join(map(str, row)) for row in rows)
        (tmp_path / f"Toy_{part}.tsv").write_text(text + "\n")
    data, out = tmp_path / "Toy_TRAIN.tsv", tmp_path / "run"
    options = ("--policy", "resample", "--epochs", 1, "--batch-size", 4, "--model", "cnn", "--out", out)
    succeeds("train", data, *options)
    own = succeeds("evaluate", out, "--json")
    alone = run_command("evaluate", out / "model-0", "--json")  # the model keeps the policy, too
    assert json.loads(alone.output) == json.loads(own.output)
    assert run_command("evaluate", out / "model-0", "--policy", "refuse").exit_code == 2
    assert "policy must be one of" in run_command("evaluate", out, "--policy", "guess").output


def test_evaluate_refuses_data_of_another_shape(data, tmp_path):
    import numpy as np

    train(small(data, tmp_path / "run", epochs=1), say=lambda _: None)
    for shape, classes, wanted in (((6, 20, 20, 1), 3, "examples of shape (1, 16, 16)"), ((6, 16, 16, 1), 5, "class")):
        x, y = np.random.default_rng(0).random(shape, np.float32), np.arange(6) % classes
        np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        fails("evaluate", tmp_path / "run", tmp_path / "other.npz", says=wanted)


def test_a_run_started_over_leaves_nothing_of_the_old_one(data, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    train(small(data, folder), say=lambda _: None)
    (folder / ".checkpoint.safetensors.abc.draft").write_text("half")

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Population, "fit", fail)
    with pytest.raises(KeyboardInterrupt):
        train(small(data, folder, model="cnn", models=1), overwrite=True, say=lambda _: None)
    assert {p.name for p in folder.iterdir()} == {"settings.yaml", "checkpoint.safetensors", "parts.json"}
    with pytest.raises(SettingsError, match="is not finished"):
        evaluate_run(folder)


def test_resuming_follows_the_checkpoint_not_a_settings_file_of_another_run(data, tmp_path):
    train(small(data, tmp_path / "run"), say=lambda _: None)
    before = final_weights(tmp_path / "run")
    # As after a kill between the settings and the checkpoint of a run that replaces this one.
    write_settings(tmp_path / "run" / "settings.yaml", small(data, tmp_path / "run", epochs=9))
    train(TrainSettings(out=str(tmp_path / "run")), resume=True, say=lambda _: None)
    assert same(before, final_weights(tmp_path / "run"))


def test_a_resumed_run_refuses_other_settings(data, tmp_path):
    out = tmp_path / "run"
    succeeds("train", data, "--out", out, "--epochs", 1, "--no-compile")
    fails("train", data, "--out", out, "--seed", 9, "--resume", says="seed is 0, got 9")
    succeeds("train", data, "--out", out, "--epochs", 1, "--resume")


def test_results_are_json_even_where_a_model_broke(data, tmp_path):
    outcome = train(small(data, tmp_path / "run", lr=[1e30], epochs=2), say=lambda _: None)
    assert len(outcome.problems) >= 2

    def refuse(text: str) -> None:
        pytest.fail(f"{text} is not JSON")

    json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=refuse)
    evaluated = run_command("evaluate", tmp_path / "run", "--json")
    assert json.loads(evaluated.stdout, parse_constant=refuse)["nll"] == [None, None]
    options = ("--lr", "1e15", "--model", "cnn", "--epochs", 2, "--out", tmp_path / "cnn", "--json")
    trained = run_command("train", data, *options)
    assert json.loads(trained.stdout, parse_constant=refuse)["scores"]["nll"] == [None]
    evaluated = run_command("evaluate", tmp_path / "cnn", "--json")
    assert json.loads(evaluated.stdout, parse_constant=refuse)["nll"] == [None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_save_and_say_how_to_go_on(data, tmp_path, monkeypatch, number):
    train(small(data, tmp_path / "whole"), say=lambda _: None)
    said: list[str] = []

    def press(self, completed, *_) -> None:
        if completed == 1:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr("pstn.training.progress.Bar.update", press)
        outcome = train(small(data, tmp_path / "cut"), say=said.append)
    assert not outcome.finished
    assert said[-1].endswith(f"pstn train --resume --out {tmp_path / 'cut'}")
    assert train(TrainSettings(out=str(tmp_path / "cut")), resume=True).finished
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "cut"))


def test_a_finished_run_that_is_resumed_says_that_nothing_is_left(data, tmp_path):
    out = tmp_path / "run"
    assert "done" not in succeeds("train", data, "--out", out, "--epochs", 1, "--no-compile").output
    assert "all of them are done" in succeeds("train", data, "--out", out, "--resume").output


def test_refusals_come_before_training(data, tmp_path):
    (tmp_path / "file").write_text("")
    fails("train", data, "--out", tmp_path / "file" / "run", "--epochs", 1, says="cannot write to the folder")
    found = run_command("train", data, "--out", tmp_path / "none", "--resume")
    assert "holds no run to resume" in found.output


def test_a_collapse_is_told_once_however_its_figures_move(data, tmp_path, monkeypatch):
    figures = iter(range(100))
    monkeypatch.setattr(
        "pstn.training.runs.run.collapses", lambda *_: [f"The scale has gone to nothing: 0.{next(figures)} is left."]
    )
    said: list[str] = []
    train(small(data, tmp_path / "run", models=1, save_every=0.0), say=said.append)
    told = [text for text in said if "scale" in text]
    assert told == ["Warning: model 0: The scale has gone to nothing: 0.0 is left."]


def test_a_run_is_taught_and_says_so(data, tmp_path):
    settings = small(data, tmp_path / "run", teach="rotation=1.5", teach_weight=0.5, lr_schedule="one-cycle")
    source = prepare(settings.replace(teach="rotation=1.5,keep=0.75"))
    assert source.size == (12, 12)
    assert source.x.shape[2:] == (16, 16)  # warped afresh in training
    assert source.test[0].shape[2:] == (12, 12)  # and once for the test
    outcome = train(settings, say=lambda _: None)
    model = pstn.from_pretrained(tmp_path / "run" / "model-0")
    assert isinstance(model.layer.transform, pstn.Rotation)
    assert isinstance(model.layer.localizer, pstn.nn.PoseLocalizer)
    expected = "labels, and aligned inputs warped by RandomRotation(limit=1.5)"
    assert model.about.supervision == expected
    assert f"- supervision: `{expected}`" in (tmp_path / "run" / "model-0" / "README.md").read_text()
    found = evaluate_run(tmp_path / "run")
    assert (found.scores["nll"], found.examples) == (pytest.approx(outcome.scores["nll"]), 6)
    untaught = make_about(small(data, tmp_path), prepare(small(data, tmp_path)), 0)
    assert untaught.supervision == "labels"


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"teach": "rotation", "augment": "rotation"}, "teach must"),
        ({"teach": "rotation", "model": "cnn"}, "teach must"),
        ({"teach": "rotation", "teach_weight": 0.0}, "teach_weight must"),
        ({"teach": "turning"}, "the name of a random transform must"),
        ({"teach": "similarity", "transform": "rotation"}, "teach must"),
        ({"teach": "rotation", "data": "rotated-digits"}, "teach must"),
        ({"lr_schedule": "one-cycle", "lr_step": 1}, "lr_schedule must"),
    ],
)
def test_what_cannot_be_taught_is_refused_before_training(data, tmp_path, values, match):
    with pytest.raises(ValueError, match=rf"^{match}"):
        train(small(**{"data": data, "out": tmp_path / "run", **values}), say=lambda _: None)
    assert not (tmp_path / "run").exists()


# What the command says


def test_commands_read_config_options_and_name_mistakes(data, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(f"data: {data}\nepochs: 9\nmodels: 2\nkl_weight: [1e-3, 1e-4]\n")
    out = tmp_path / "run"
    succeeds("train", "--config", config, "--epochs", 1, "--out", out)
    settings = TrainSettings.from_dict(read_settings(out / "settings.yaml"))
    assert (settings.epochs, settings.models, settings.kl_weight) == (1, 2, [1e-3, 1e-4])
    fails("train", "--config", config, "--out", out, says="holds a run already")
    scores = json.loads(run_command("evaluate", out, "--json").output)
    assert len(scores["nll"]) == 2
    config.write_text("epoch: 3\n")
    assert "did you mean 'epochs'?" in run_command("train", "--config", config).output


def test_progress_shows_on_a_terminal_and_is_quiet_elsewhere(data, tmp_path, monkeypatch, capsys):
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda answer=terminal: answer, raising=False)
        train(small(data, tmp_path / str(terminal), model="cnn"), say=lambda _: None)
        shown = capsys.readouterr().err
        assert ("epoch 3/3" in shown and "accuracy" in shown and "KL" in shown) == terminal


def test_a_log_shows_life_now_and_then_where_there_is_no_terminal(data, tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.training.runs.run._LINE_EVERY", 0.0)
    for quiet in (False, True):
        said: list[str] = []
        train(small(data, tmp_path / str(quiet), model="cnn"), say=said.append, quiet=quiet)
        assert any(line.startswith("epoch 3/3, loss ") for line in said) != quiet
        plan = f"{data}: 32 examples of 3 classes to learn from, 6 to test on.\nTraining 2 cnn for 3 epoch(s)."
        assert (plan in said) != quiet


def test_a_command_says_what_it_trains_and_json_is_quiet(data, tmp_path):
    options = ("--epochs", 15, "--model", "cnn", "--lr", 1e-2)  # enough for noise to be memorised
    found = run_command("train", data, "--out", tmp_path / "a run", *options)
    assert "32 examples of 3 classes to learn from, 6 to test on" in found.stderr
    assert "Training 1 cnn for 15 epoch(s)." in found.stderr
    assert "On 6 test examples:" in found.stdout
    assert f"Use it: pstn predict '{tmp_path / 'a run' / 'model-0'}' IMAGES" in found.stdout
    assert f"On 6 test examples of {data}:" in run_command("evaluate", tmp_path / "a run").stdout
    found = run_command("train", data, "--out", tmp_path / "b", *options, "--json")
    assert found.stderr == ""
    assert json.loads(found.stdout)["finished"]


def test_a_known_name_that_is_a_folder_too_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    options = ("--train-size", 10, "--epochs", 1, "--model", "cnn", "--out", "run")
    found = succeeds("train", "digits", *options)
    assert "note: the known set 'digits' is used; for the folder say ./digits" in found.stderr
    (tmp_path / "digits").rmdir()
    assert "note" not in run_command("evaluate", "run").stderr


# What a run trains on is what it is tested on


def test_a_generated_set_says_how_its_training_examples_are_changed():
    source = prepare(TrainSettings(data="rotated-digits"))
    assert source.augment == RandomWarp(RandomRotation())
    assert prepare(TrainSettings(data="rotated-digits", augment="rotation")).augment == source.augment
    assert prepare(TrainSettings(data="digits")).augment is None


def test_training_and_generated_sets_change_images_alike():
    digits = load("digits").train.take(range(5))
    for maker in (RandomRotation(1.0), RandomPlacement(64, 28, None)):
        u = torch.rand(5, maker.width, generator=torch.Generator().manual_seed(3))
        made = pstn.data.Generated(digits, maker, maker.theta(u)).all()
        assert torch.equal(made.x, RandomWarp(maker, digits.fill)(digits.x, u))


@pytest.mark.parametrize(("augment", "size"), [("rotation", (28, 28)), ("placement", (96, 96))])
def test_an_augmentation_changes_the_test_part_once(augment, size):
    source, plain = prepare(TrainSettings(augment=augment)), prepare(TrainSettings())
    assert source.size == size
    assert torch.equal(source.x, plain.x)  # drawn afresh at each access
    x, y = source.test
    assert torch.equal(x, prepare(TrainSettings(augment=augment)).test[0])
    assert torch.equal(y, plain.test[1])
    assert torch.equal(x, generate(load("digits").test, source.augment.random_transform, seed=0).all().x)


@pytest.mark.parametrize(
    ("data", "reason"), [("rotated-digits", "changes of its own"), ("ItalyPowerDemand", "no image")]
)
def test_an_augmentation_that_does_not_fit_is_refused(data, reason):
    with pytest.raises(ValueError, match=rf"augment must be 'none' for {data}.*{reason}"):
        prepare(TrainSettings(data=data, augment="placement"))


def test_the_policy_for_gaps_reaches_sets_of_the_archive(tmp_path, monkeypatch):
    rows = ["1\t0.0\t1.0\tNaN\t3.0", "2\t3.0\t2.0\t1.0\t0.0"]
    for part in ("TRAIN", "TEST"):
        (tmp_path / "ucr").mkdir(exist_ok=True)
        (tmp_path / "ucr" / f"Toy_{part}.tsv").write_text("\n".join(rows * 8) + "\n")
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="resample"):
        prepare(TrainSettings(data="ucr:Toy"))
    assert prepare(TrainSettings(data="ucr:Toy", policy="resample")).x[0, 0].isfinite().all()


def unbalanced(*counts: int) -> Source:
    """Images of two classes without a validation part, so many of each."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Source(torch.rand(len(y), 1, 16, 16), y, None, None, 0.0)


def test_validation_takes_its_part_of_every_class():
    source = unbalanced(90, 10)
    settings = TrainSettings(model="cnn", models=2, valid_fraction=0.2, groups=1)
    with make_population(settings, source) as population:
        for member in population.members:
            assert torch.bincount(source.y[member.valid]).tolist() == [18, 2]
            assert torch.bincount(source.y[member.train]).tolist() == [72, 8]
            assert sorted([*member.train.tolist(), *member.valid.tolist()]) == list(range(100))
        assert not torch.equal(population.members[0].valid, population.members[1].valid)


def test_a_validation_part_without_examples_is_refused():
    with pytest.raises(ValueError, match="valid_fraction"):
        make_population(TrainSettings(model="cnn", valid_fraction=0.01), unbalanced(10, 2))
