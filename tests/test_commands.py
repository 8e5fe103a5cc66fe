"""The command line as a person uses it."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import pstn
from pstn.commands import app
from pstn.files import write_atomically


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_help_and_version():
    assert "demo" in run("--help").output
    assert run("--version").output.strip() == pstn.__version__


@pytest.mark.parametrize(
    ("found", "command"), [pytest.param("/usr/bin/pstn", "pstn", marks=pytest.mark.slow), (None, ".venv/bin/pstn")]
)
def test_demo_prints_a_table_and_saves_a_picture_and_models(tmp_path, monkeypatch, found, command):
    monkeypatch.setattr("shutil.which", lambda name: found)
    monkeypatch.setattr("sys.argv", [".venv/bin/pstn", "demo"])
    result = run("demo", "--out", str(tmp_path), "--epochs", "1", "--images", "20")
    assert result.exit_code == 0, result.output
    for word in ("CNN", "STN", "P-STN", "accuracy", "NLL", "calibration error", "seconds"):
        assert word in result.output
    assert f"yours:{command}show{tmp_path}/pstn" in "".join(result.output.split())  # what to do next
    assert (tmp_path / "looks.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cnn", "looks.png", "pstn", "stn"]
    for name in ("cnn", "stn", "pstn"):
        about = pstn.from_pretrained(tmp_path / name).about
        assert about.metrics.keys() == {"accuracy", "nll", "ece"}
        assert f"{about.metrics['accuracy']:.1%}" in result.output


def test_demo_prints_brackets_in_paths_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pstn.demo.shutil.which", lambda _: None)
    monkeypatch.setattr("sys.argv", ["[red]/pstn", "demo"])
    result = run("demo", "--out", "de[/x]m[red]o", "--epochs", "1", "--images", "10")
    assert result.exit_code == 0, result.output
    assert "de[/x]m[red]o/looks.png" in result.output
    assert "The three models: de[/x]m[red]o/cnn" in result.output
    assert "[red]/pstn show de[/x]m[red]o/pstn IMAGE" in result.output


def test_a_mistake_is_one_line_and_a_non_zero_exit(tmp_path):
    result = run("demo", "--out", str(tmp_path), "--images", "7")
    assert result.exit_code == 2
    assert "images must be a multiple of 10" in result.output
    (tmp_path / "file").touch()
    result = run("demo", "--out", str(tmp_path), "--seed", "99999999999999999999")
    assert result.exit_code == 2
    assert "seed must lie between" in result.output
    result = run("demo", "--out", str(tmp_path / "file"), "--epochs", "1", "--images", "10")
    assert result.exit_code == 2
    assert "file" in result.output


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.demo.train", lambda *_, **__: pytest.fail("trained"))
    (tmp_path / "file").touch()
    result = run("demo", "--out", str(tmp_path / "file" / "demo"))
    assert result.exit_code == 2
    assert "cannot write to the folder" in result.output


def test_ctrl_c_while_commands_are_imported_is_no_traceback():
    code = """
import sys
from pstn.cli import main
class Press:
    def find_spec(self, name, *rest):
        if name == "pstn.commands":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Press())
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_without_typer_it_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from pstn.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'pstn[cli]'" in done.stderr


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
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


def test_what_cannot_be_written_is_named_without_the_draft(tmp_path):
    target = tmp_path / ("n" * 250)  # a name that a file may have, but not with a draft's ending
    with pytest.raises(OSError, match="n") as caught, write_atomically(target):
        pass
    assert caught.value.filename == str(target)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, write_atomically(tmp_path / "folder"):
        pass
    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
