"""What is printed and written: no terminal escapes and no formulas from file names, class names and messages."""

import csv
import io
import json
import re
import warnings

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import pstn
from pstn.cli import app, echo, plain_errors
from pstn.data import DataError, DataWarning
from pstn.predict import Answer, write_answers
from pstn.text import printable

ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b31m\rred\u202egnp\x7f\x08"
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def answer(name, label="a"):
    return Answer(name, label, (0.75, 0.25), 0.5, 0.1, ((-1.0, -2.0),) * 4)


def rows(answers, classes=("a", "b")):
    stream = io.StringIO()
    write_answers(stream, answers, pstn.ModelMetadata(classes=classes, size=(8, 8), channels=1))
    return list(csv.reader(io.StringIO(stream.getvalue())))


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1+1", "-1+cmd|x", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "＝1"]
)
def test_formulas_from_file_names_do_not_reach_a_table(name):
    [head, row] = rows([answer(name, label=name)])
    for cell in row[:2]:
        assert cell.startswith("'")
    assert row[2:5] == ["0.75", "0.5", "0.1"]
    assert float(row[head.index("x1")]) == -1


def test_a_semicolon_starts_no_formula_and_plain_names_are_left_alone():
    assert not [cell for cell in rows([], classes=("=1+1", "@x"))[0] if cell[0] in "=+-@"]
    for name in ("photo;=1+1.png", "photo; @SUM(1)", ";+1"):
        assert ";" not in "".join(rows([answer(name, label=name)])[1][:2])
    for name in ("a;b.png", "a=b.png", "-1", "-1e5", "C:\\x.png", "'quoted'"):
        assert rows([answer(name, label=name)])[1][:2] == [name, name]


def test_terminal_escapes_do_not_reach_tables_or_json():
    for as_json in (False, True):
        stream = io.StringIO()
        about = pstn.ModelMetadata(classes=("a", "b"), size=(8, 8), channels=1)
        write_answers(stream, [answer(f"x{ESCAPE}.png", label=f"a{ESCAPE}")], about, as_json=as_json)
        assert not BAD.search(stream.getvalue())
    assert json.loads(stream.getvalue())["input"] == f"x{ESCAPE}.png"


def test_text_is_made_printable():
    assert printable("plain é 漢字 🙂\n\tx") == "plain é 漢字 🙂\n\tx"
    assert not BAD.search(printable(ESCAPE))
    assert printable("\x1b[31m") == "\\u001b[31m"
    assert printable("\udcff") == "\\udcff"
    assert printable("a\nb", lines=False) == "a\\nb"
    assert str(DataError("x\nerror: all is lost", "is empty")) == "x\\nerror: all is lost: is empty"


def test_terminal_escapes_in_messages_do_not_reach_the_terminal(capsys):
    def fail(error):
        with plain_errors():
            raise error

    for error in (ValueError(ESCAPE), FileNotFoundError(2, "missing", ESCAPE), DataError(ESCAPE, "x")):
        with pytest.raises(typer.Exit):
            fail(error)
    with plain_errors():
        warnings.warn(ESCAPE, DataWarning, stacklevel=1)
    echo(ESCAPE)
    shown = capsys.readouterr()
    assert "title" in shown.err
    assert "title" in shown.out
    assert not BAD.search(shown.err + shown.out)


@pytest.fixture
def hostile(tmp_path):
    """A folder of images and other files whose names hold escapes."""
    for label in ("a", f"b{ESCAPE}".replace("/", "")):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8)).save(tmp_path / "data" / label / f"{number}{ESCAPE}.png")
        (tmp_path / "data" / label / f"bad{ESCAPE}.png").write_bytes(b"x")
        (tmp_path / "data" / label / f"bad{ESCAPE}.npz").write_bytes(b"x")
        (tmp_path / "data" / label / f"out{ESCAPE}.png").symlink_to("/etc/passwd")
    return tmp_path / "data"


def test_terminal_escapes_from_file_names_do_not_reach_the_terminal(hostile, tmp_path):
    pstn.nn.mnist_pstn().save_pretrained(tmp_path / "model")
    run = CliRunner().invoke
    model = tmp_path / "model"
    for command in (
        ["data", "check", hostile], ["data", "check", hostile, "--json"], ["data", "get", f"ucr:{ESCAPE}"],
        ["data", "show", hostile, "--out", tmp_path / "x.png"], ["predict", model, hostile],
        ["predict", model, hostile, "--out", tmp_path / f"answers{ESCAPE}.csv"],
        ["show", model, hostile, "--out", tmp_path / f"samples{ESCAPE}.png"], ["evaluate", hostile],
        ["train", hostile, "--out", tmp_path / f"run{ESCAPE}"], ["predict", tmp_path / f"none{ESCAPE}", hostile],
    ):  # fmt: skip
        result = run(app, [str(word) for word in command])
        assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit), command
        assert not BAD.search(result.output), (command, BAD.search(result.output))
