"""Mistakes through the command line: a clear message, a non-zero exit, never a traceback."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import pstn
from pstn.cli import app
from pstn.nn import About
from pstn.predict import predict_files

SEVEN = pstn.data.load_digits("test").x[7, 0]


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    return result


def refused(result, *words, code=2):
    assert result.exit_code == code, result.output
    assert "error: " in result.stderr or "Error" in result.stderr  # the second is typer's, of options
    for word in words:
        assert word in result.stderr
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    about = About(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), data="digits")
    return pstn.nn.mnist_pstn().save_pretrained(tmp_path_factory.mktemp("model"), about=about)


@pytest.fixture(scope="module")
def series_model(tmp_path_factory):
    torch.manual_seed(0)
    network = pstn.nn.SeriesClassifier(1, 2, (4,), (3,))
    return network.save_pretrained(tmp_path_factory.mktemp("series"), about=About(("up", "down"), 1, (4,)))


@pytest.fixture(scope="module")
def loaded(model):
    return pstn.from_pretrained(model)


@pytest.fixture
def digit(tmp_path):
    Image.fromarray((SEVEN * 255).byte().numpy()).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


# Models


def cut(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "half the weights": lambda f: cut(f, "model.safetensors"),
    "half the description": lambda f: cut(f, "config.json"),
    "no description": lambda f: (f / "config.json").unlink(),
    "a pickle": lambda f: (f / "model.safetensors").write_bytes(pickle.dumps({"a": 1})),
    "a foreign description": lambda f: (f / "config.json").write_text('{"model_type": "bert"}'),
    "empty weights": lambda f: (f / "model.safetensors").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_model_is_named(damage, model, digit, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    damage(folder)
    for command in (["predict", folder, digit], ["export", folder], ["evaluate", folder]):
        result = refused(run(*command), str(folder))
        assert len(result.stderr.strip().splitlines()) == 1


# Images


def answer(loaded, path):
    [said] = predict_files(loaded, [path])
    return np.array(said.probabilities)


def test_every_kind_of_image_is_read_as_a_person_sees_it(loaded, digit, tmp_path):
    grey = Image.open(digit)
    levels = np.asarray(grey)
    expected = answer(loaded, digit)
    see_through = Image.fromarray(np.dstack([np.full_like(levels, 255)] * 3 + [levels]))  # white, where it is solid
    same = {
        "colour.png": grey.convert("RGB"), "palette.png": grey.convert("P"), "alpha.png": see_through,
        "bits16.png": Image.fromarray(levels.astype(np.uint16) * 257), "grey-alpha.png": see_through.convert("LA"),
        "solid.png": grey.convert("RGBA"), "cmyk.tif": grey.convert("RGB").convert("CMYK"), "grey.gif": grey,
    }  # fmt: skip
    for name, image in same.items():
        image.save(tmp_path / name)
        np.testing.assert_allclose(answer(loaded, tmp_path / name), expected, atol=2e-3, err_msg=name)


def test_what_is_not_an_image_is_named_and_the_rest_is_answered(model, digit, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    cut_off = tmp_path / "cut.jpg"
    Image.new("RGB", (200, 200), "red").save(cut_off)
    cut_off.write_bytes(cut_off.read_bytes()[:300])
    out = tmp_path / "answers.csv"
    result = run("predict", model, digit, tmp_path / "text.png", cut_off, tmp_path / "none.png", "--out", out)
    refused(result, "text.png", "cut.jpg", "none.png: there is no such image", "3 input(s) could not be read, 1 were")
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
    def real(*arguments):
        command = [sys.executable, "-m", "pstn.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"})

    done = real("predict", model, digit, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["input"] == str(digit)
    bad = real("predict", model, tmp_path / "none.png")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
