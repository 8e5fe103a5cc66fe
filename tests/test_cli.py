"""The command line: help, exit codes, messages, and what it imports."""

import json
import os
import shutil
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
from pstn.nn import ModelMetadata
from pstn.predict import predict_files

SEVEN = pstn.data.load_digits("test").x[7, 0]
ONE_STEP = ("--epochs", 1, "--train-size", 20)


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300", "TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    return result


def refused(result, *words, code=2):
    """The command ended with an exit code and a message that contains the words."""
    assert result.exit_code == code, result.output
    assert "error: " in result.stderr or "Error" in result.stderr  # the second is typer's, of options
    for word in words:
        assert str(word) in result.stderr
    return result


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


# The command as a whole


def test_version_and_the_help_of_every_command():
    assert run("--version").output.strip() == pstn.__version__
    commands = typer.main.get_command(app).commands
    assert len(commands) == 13
    assert all(command in run("--help").output for command in commands)
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
    folder = "de[/x]m[red]o"  # rich would read brackets as markup
    result = run("demo", "--out", folder, "--epochs", 1, "--images", 20)
    assert result.exit_code == 0, result.output
    for word in ("CNN", "STN", "P-STN", "accuracy", "NLL", "calibration error", "seconds"):
        assert word in result.output
    for word in (f"{folder}/looks.png", f"{folder}/cnn", f"pstn show {folder}/pstn IMAGE"):
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


def test_what_the_page_cannot_use_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # without a network it asks for 20 seconds
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(run("app", "--port", port), "port", port)
    refused(run("app", "--host", "203.0.113.7"), "--host", "203.0.113.7")
    refused(run("app", "--models", "nowhere"), "nowhere", "cnn, stn and pstn")
    refused(run("app", "nowhere/model"), "nowhere/model")
    refused(run("app", "model", "--models", "nowhere"), "--models")
    pstn.nn.mnist_pstn().save_pretrained(tmp_path / "model")
    refused(run("app", "model", "missing.png"), "missing.png")


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


def test_a_model_with_code_of_the_users_needs_permission_to_import_it(own_module, digit, monkeypatch):
    monkeypatch.setattr("pstn.export.export_program", lambda model, path, samples: path)
    assert run("train", "digits", *ONE_STEP, "--transform", f"{own_module}:Own", "--out", "run").exit_code == 0
    monkeypatch.delitem(sys.modules, own_module)
    refused(run("predict", "run", digit, "--allow", "no_such_module"), "--allow", "no_such_module")
    files = ["run", digit]
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


# Models, images and tables that cannot be used


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    about = ModelMetadata(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), data="digits")
    return pstn.nn.mnist_pstn().save_pretrained(tmp_path_factory.mktemp("model"), about=about)


@pytest.fixture(scope="module")
def series_model(tmp_path_factory):
    torch.manual_seed(0)
    network = pstn.nn.SeriesClassifier(1, 2, (4,), (3,))
    return network.save_pretrained(tmp_path_factory.mktemp("series"), about=ModelMetadata(("up", "down"), 1, (4,)))


@pytest.fixture
def digit(tmp_path):
    Image.fromarray((SEVEN * 255).byte().numpy()).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


# Models


def cut(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_named(name, model, digit, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    cut(folder, name)
    for command in (["predict", folder, digit], ["export", folder], ["evaluate", folder]):
        result = refused(run(*command), str(folder))
        assert len(result.stderr.strip().splitlines()) == 1


# Images


def test_every_kind_of_image_is_read_as_a_person_sees_it(model, digit, tmp_path):
    grey = Image.open(digit)
    levels = np.asarray(grey)
    see_through = Image.fromarray(np.dstack([np.full_like(levels, 255)] * 3 + [levels]))  # white, where it is solid
    same = {
        "colour.png": grey.convert("RGB"), "palette.png": grey.convert("P"), "alpha.png": see_through,
        "bits16.png": Image.fromarray(levels.astype(np.uint16) * 257), "grey-alpha.png": see_through.convert("LA"),
        "solid.png": grey.convert("RGBA"), "cmyk.tif": grey.convert("RGB").convert("CMYK"), "grey.gif": grey,
    }  # fmt: skip
    for name, image in same.items():
        image.save(tmp_path / name)
    first, *rest = predict_files(pstn.from_pretrained(model), [digit, *(tmp_path / name for name in same)])
    for answer in rest:
        np.testing.assert_allclose(answer.probabilities, first.probabilities, atol=2e-3, err_msg=answer.input)


def test_what_is_not_an_image_is_named_and_the_rest_is_answered(model, digit, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    cut_off = tmp_path / "cut.jpg"
    Image.new("RGB", (200, 200), "red").save(cut_off)
    cut_off.write_bytes(cut_off.read_bytes()[:300])
    out = tmp_path / "answers.csv"
    result = run("predict", model, digit, tmp_path / "text.png", cut_off, tmp_path / "none.png", "--out", out)
    refused(result, "text.png", "cut.jpg", "none.png", "3 input(s) could not be read, 1 were")
    assert len(out.read_text().splitlines()) == 2
    (tmp_path / "empty").mkdir()
    refused(run("predict", model, tmp_path / "empty"), "holds no images")
    refused(run("show", model, tmp_path / "text.png", "--out", tmp_path / "s.png"), "text.png")
    assert not (tmp_path / "s.png").exists()


# Training


def test_a_bad_row_is_named_and_the_rest_is_answered(series_model, tmp_path):
    rows = ["1,2,3,4"] * 90
    rows[6] = "1,two,3,4"
    rows[8] = "1,2,3"
    (tmp_path / "series.csv").write_text("\n".join(rows))
    out = tmp_path / "answers.csv"
    result = run("predict", series_model, tmp_path / "series.csv", "--out", out)
    refused(
        result, "line 7, column 2: 'two' is not a number", "line 9", "2 input(s) could not be read, 88 were answered"
    )
    assert len(out.read_text().splitlines()) == 89


def test_the_wrong_kind_of_input(model, series_model, digit, tmp_path):
    refused(run("predict", series_model, digit), "is not a table of series")
    (tmp_path / "series.csv").write_text("1,2,3,4\n")
    refused(run("predict", model, tmp_path / "series.csv"), "does not decode as an image")
    refused(run("show", series_model, tmp_path / "series.csv"), "looks at the whole input")
    refused(run("evaluate", model, tmp_path / "series.csv"))
    refused(run("evaluate", model, "ItalyPowerDemand"), "must hold examples of shape (1, 28, 28)")


@pytest.mark.parametrize(
    "arguments",
    [
        "train digits --epochs many", "train digits --kl-weight 1e-3,x", "train digits --model vit",
        "train digits --epochs 0", "train digits --transform twirl", "predict", "predict MODEL x.png --samples 0",
        "predict MODEL x.png --seed -1", "export MODEL --samples two", "export MODEL --out /",
        "evaluate MODEL no-such-data", "nonsense",
    ],
)  # fmt: skip
def test_text_where_something_else_should_be(arguments, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(run(*(model if a == "MODEL" else a for a in arguments.split())))


def test_exit_codes_and_messages_of_the_real_command(model, digit, tmp_path):
    command = [sys.executable, "-m", "pstn.cli", "predict", model, digit, tmp_path / "none.png", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"})
    assert done.returncode == 2
    assert json.loads(done.stdout)["input"] == str(digit)
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["error:"] * 2  # no warning, no traceback


def test_a_port_in_use_is_told_before_the_model_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", tmp_path / "no-model", "--port", port)
    assert done.exit_code == 2
    assert "--port" in done.output
    assert str(port) in done.output


def test_an_output_below_a_file_is_refused_by_its_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="folder cannot be made") as caught, write_atomically(tmp_path / "file" / "x.csv"):
        pass
    assert caught.value.filename == str(tmp_path / "file" / "x.csv")
