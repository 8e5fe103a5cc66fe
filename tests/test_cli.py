"""The command line: help, exit codes, messages, and what it imports."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import pstn
from pstn.cli import app, plain_errors
from pstn.files import write_atomically

ONE_STEP = ("--epochs", 1, "--train-size", 20)


def run(*arguments, columns=300):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})


def refused(result, *words, code=2):
    """The command ended with one line that contains the words."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert str(word) in result.stderr
    return result


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


# The command as a whole


def test_help_and_version():
    assert "demo" in run("--help").output
    assert run("--version").output.strip() == pstn.__version__


def test_every_command_has_help():
    commands = typer.main.get_command(app).commands
    assert len(commands) == 12
    for command in [*commands, "data list", "data get", "data check", "data show"]:
        result = run(*command.split(), "--help")
        assert result.exit_code == 0, command
        assert f"{command} [" in result.output


def test_help_imports_no_optional_package_but_its_own():
    done = python("""
import sys
from pstn.cli import app
app(["--help"], standalone_mode=False)
optional = "matplotlib PIL pooch yaml gradio optuna lightning sklearn onnx jinja2 scipy".split()
print([name for name in optional if name in sys.modules], file=sys.stderr)
""")
    assert done.stderr.strip() == "[]"


# Errors


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (PermissionError(13, "Permission denied", "a.png"), "a.png: Permission denied", 2),
        (OSError(18, "Invalid cross-device link", ".draft", None, "b.csv"), "b.csv: Invalid cross-device link", 1),
        (OSError(28, "No space left on device"), "No space left on device", 1),
        (ValueError("size must be 1"), "size must be 1", 2),
        (ValueError(), "ValueError", 2),
        (safetensors.SafetensorError("I/O error: No space left on device"), "No space left on device", 1),
        (MemoryError(), "memory", 1),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has\nmore"), "20.00 GiB", 1),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."), "4 bytes", 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error, words, code, capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        raise error
    assert stopped.value.exit_code == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes differ"), NotImplementedError("later"), KeyError("x"), BrokenPipeError()]
)
def test_a_bug_stays_a_traceback(error):
    with pytest.raises(type(error)), plain_errors():
        raise error


# The demo


def test_demo_prints_a_table_and_saves_a_picture_and_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", ["[red]/pstn", "demo"])
    folder = "de[/x]m[red]o"  # rich would read brackets as markup
    result = run("demo", "--out", folder, "--epochs", 1, "--images", 20)
    assert result.exit_code == 0, result.output
    for word in ("CNN", "STN", "P-STN", "accuracy", "NLL", "calibration error", "seconds"):
        assert word in result.output
    for word in (f"{folder}/looks.png", f"{folder}/cnn", f"[red]/pstn show {folder}/pstn IMAGE"):
        assert word in result.output
    assert (tmp_path / folder / "looks.png").read_bytes().startswith(b"\x89PNG")
    for name in ("cnn", "stn", "pstn"):
        about = pstn.from_pretrained(tmp_path / folder / name).about
        assert about.metrics.keys() == {"accuracy", "nll", "ece"}
        assert f"{about.metrics['accuracy']:.1%}" in result.output


@pytest.mark.parametrize(
    ("options", "word"), [(("--images", 7), "images"), (("--seed", 10**20), "seed"), (("--out", "file/demo"), "--out")]
)
def test_mistakes_are_refused_before_training(options, word, tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.demo.train", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    refused(run("demo", *options), word)


# The page


@pytest.fixture
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_own_folders")
def test_a_port_in_use_is_refused_before_training():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(run("app", "--port", port), "port", port)


@pytest.mark.usefixtures("_own_folders")
def test_what_the_page_cannot_use_is_refused():
    refused(run("app", "--host", "203.0.113.7"), "--host", "203.0.113.7")
    refused(run("app", "--models", "nowhere"), "nowhere", "cnn, stn and pstn")


# The data


@pytest.mark.parametrize("options", [("--size", 20), ("--kind", "series")])
@pytest.mark.parametrize("form", ["name", "folder", "file"])
def test_options_apply_to_names_folders_and_files_alike_or_are_refused(form, options, tmp_path):
    digits = pstn.data.load_digits("test")
    data = "digits"
    if form == "file":
        data = tmp_path / "digits.npz"
        np.savez(data, x=digits.x[:40, 0, :, :, None].numpy(), y=digits.y[:40].numpy())
    if form == "folder":
        data = tmp_path / "digits"
        for number, (x, y) in enumerate(zip(digits.x[:40], digits.y[:40], strict=True)):
            (data / str(int(y))).mkdir(parents=True, exist_ok=True)
            Image.fromarray((x[0] * 255).byte().numpy()).save(data / str(int(y)) / f"{number}.png")
    result = run("train", data, "--epochs", 1, "--model", "cnn", "--out", tmp_path / "run", *options)
    if (form, options[0]) == ("folder", "--size"):
        assert result.exit_code == 0, result.output
        assert pstn.from_pretrained(tmp_path / "run").about.size == (20, 20)
    else:
        refused(result, options[0].removeprefix("--"))


# A transformation of the user's


MODULE = """
import pstn
tilt = pstn.Compose([pstn.Rotation(), pstn.Translation()])
shift = pstn.Translation
line = pstn.CPAB(tess=4)
number = 7
class Own(pstn.Rotation): pass
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The name of a module in the current folder, from which nothing else is imported."""
    name = f"families_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


@pytest.mark.parametrize(("name", "family"), [("tilt", "Compose"), ("shift", "Translation")])
def test_a_transformation_is_imported_from_the_current_folder(own_module, name, family):
    result = run("train", "digits", *ONE_STEP, "--transform", f"{own_module}:{name}", "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    assert type(pstn.from_pretrained("run").layer.transform).__name__ == family
    assert "" not in sys.path
    assert json.loads(result.stdout)["finished"]


def test_a_model_with_code_of_the_users_needs_permission_to_import_it(own_module, tmp_path, monkeypatch):
    options = ("--transform", f"{own_module}:Own", "--out", "run")
    assert run("train", "digits", *ONE_STEP, *options).exit_code == 0
    monkeypatch.delitem(sys.modules, own_module)
    digit = torch.zeros(28, 28, dtype=torch.uint8).numpy()
    Image.fromarray(digit).save(tmp_path / "digit.png")
    refused(run("predict", "run", "digit.png", "--allow", "no_such_module"), "--allow", "no_such_module")
    files = ["run", "digit.png"]
    for command in (["predict", *files], ["show", *files], ["export", "run", "--out", "m.pt2"], ["evaluate", "run"]):
        refused(run(*command), own_module)
        assert run(*command, "--allow", own_module).exit_code == 0
    assert "" not in sys.path


@pytest.mark.parametrize("name", ["number", "nothing", "line"])
def test_a_transformation_that_cannot_be_used_is_refused(own_module, name, tmp_path):
    refused(run("train", "digits", *ONE_STEP, "--transform", f"{own_module}:{name}", "--out", "run"), name)
    assert not (tmp_path / "run").exists()


def test_a_settings_file_imports_no_code(own_module, tmp_path):
    (tmp_path / "settings.yaml").write_text(f"data: digits\ntransform: {own_module}:tilt\n")
    refused(run("train", "--config", "settings.yaml", "--out", "run"), "transform", own_module)
    assert own_module not in sys.modules


# Writing files


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    target = tmp_path / "note.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), write_atomically(target) as draft:
        _ = draft.write_text("half") / 0
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
