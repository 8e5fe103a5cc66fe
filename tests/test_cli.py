"""The command line: help, exit codes, messages, and what it imports."""

import io
import json
import socket
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import pstn
from pstn.cli import app, main, plain_errors
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


COMMANDS = ["app", "bench", "demo", "evaluate", "export", "predict", "report", "reproduce", "show", "sweep", "train"]


@pytest.mark.parametrize("command", [*COMMANDS, "data list", "data get", "data check", "data show"])
def test_every_command_has_help(command):
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"{command} [" in result.output


def test_every_command_is_listed_here():
    assert sorted(typer.main.get_command(app).commands) == sorted([*COMMANDS, "data"])


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_shows_defaults_and_choices(command):
    found = run(command, "--help").output
    for text in ("[default: 0.001]", "One of cnn, stn, pstn. [default: pstn]", "float32, tf32, bf16"):
        assert text in found


def test_ctrl_c_while_a_command_is_imported_is_no_traceback():
    done = python("""
import sys
from pstn.cli import main
class Interrupter:
    def find_spec(self, name, *rest):
        if name == "pstn.demo":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupter())
sys.argv = ["pstn", "demo"]
main()
""")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_without_typer_the_command_says_what_to_install():
    done = python("import sys; sys.modules['typer'] = None; from pstn.cli import main; main()")
    assert done.returncode == 1
    assert "pip install 'pstn[cli]'" in done.stderr


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
        (NotADirectoryError(20, "Not a directory", "a.csv/b"), "a.csv/b: Not a directory", 2),
        (OSError(28, "No space left on device"), "No space left on device", 1),
        (ValueError("size must be 1"), "size must be 1", 2),
        (ValueError(), "ValueError", 2),
        (safetensors.SafetensorError("I/O error: No space left on device"), "No space left on device", 1),
        (MemoryError(), "memory", 1),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has\nmore"), "20.00 GiB", 1),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."), "4 bytes", 1),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."), "--batch-size", 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error, words, code, capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        raise error
    assert stopped.value.exit_code == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_memory_that_torch_cannot_allocate_is_no_traceback(capsys):
    with pytest.raises(typer.Exit) as stopped, plain_errors():
        torch.empty(1 << 60, dtype=torch.uint8)
    assert stopped.value.exit_code == 1
    assert "memory" in capsys.readouterr().err


@pytest.mark.parametrize(("byte", "value"), [(8, 99), (6, 1), (6, 32)])  # the method of compression, and its flags
def test_a_damaged_archive_is_no_traceback(byte, value, capsys):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("x.npy", b"1234")
    damaged = bytearray(written.getvalue())
    damaged[damaged.index(b"PK\x01\x02") + 2 + byte] = value
    damaged[byte] = value
    with pytest.raises(typer.Exit) as stopped, plain_errors(), zipfile.ZipFile(io.BytesIO(damaged)) as archive:
        archive.read("x.npy")
    assert stopped.value.exit_code == 1
    assert "archive" in capsys.readouterr().err


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
@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host):
    assert "--port" not in refused(run("app", "--host", host), "--host", host).output


@pytest.mark.usefixtures("_own_folders")
def test_a_folder_without_models_is_refused():
    refused(run("app", "--models", "nowhere"), "nowhere", "cnn, stn and pstn")


@pytest.mark.usefixtures("_own_folders")
def test_without_gradio_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "pstn.app.page", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = str(taken.getsockname()[1])
    monkeypatch.setattr(sys, "argv", ["pstn", "app", "--port", free])
    with pytest.raises(SystemExit, match=r"pip install 'pstn\[app\]'"):
        main()


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
    for command in (["predict", "run", "digit.png"], ["show", "run", "digit.png"], ["export", "run", "--out", "m.pt2"]):
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

    def fail():
        with write_atomically(target) as draft:
            draft.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_in_writing_names_the_file_and_not_the_draft(tmp_path):
    target = tmp_path / ("n" * 250)  # as long as a file name may be, but not with the ending of a draft
    with pytest.raises(OSError, match="n") as caught, write_atomically(target):
        pass
    assert caught.value.filename == str(target)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, write_atomically(tmp_path / "folder"):
        pass
    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
