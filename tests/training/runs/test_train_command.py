"""What `pstn train` and `pstn sweep` say, and to whom."""

import json

from pstn.training.runs.run import train
from pstn.training.runs.settings import TrainSettings, read_settings
from small_runs import run_command, small


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
    found = run_command("train", "digits", *options)
    assert found.exit_code == 0, found.output
    assert "note: the known set 'digits' is used; for the folder say ./digits" in found.stderr
    (tmp_path / "digits").rmdir()
    assert "note" not in run_command("evaluate", "run").stderr
