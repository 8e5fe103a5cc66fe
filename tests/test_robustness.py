"""Mistakes through the command line: a clear message, a non-zero exit, never a traceback."""

import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import zlib

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
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_damaged_model_is_named(command, damage, model, digit, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)
    result = refused(run(command, folder, *([digit] if command == "predict" else [])), str(folder))
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["", "no-such-folder", "a/b/c", "\0", "../x", "~nobody", "http://example.org/model"])
def test_no_such_model(name, digit, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(run("predict", name, digit))


# Images


def saved(tmp_path, image, name):
    image.save(tmp_path / name)
    return tmp_path / name


def answer(loaded, path):
    [said] = predict_files(loaded, [path])
    return np.array(said.probabilities)


def test_every_kind_of_image_is_read_as_a_person_sees_it(loaded, digit, tmp_path):
    grey = Image.open(digit)
    levels = np.asarray(grey)
    expected = answer(loaded, digit)
    see_through = Image.fromarray(np.dstack([np.full_like(levels, 255)] * 3 + [levels]))  # white, where it is solid
    cyan = grey.convert("RGB").convert("CMYK")
    same = {
        "colour.png": grey.convert("RGB"), "palette.png": grey.convert("P"), "grey.gif": grey, "cmyk.tif": cyan,
        "bits16.png": Image.fromarray(levels.astype(np.uint16) * 257), "grey.webp": grey.convert("RGB"),
        "bits16.tif": Image.fromarray(levels.astype(np.uint16) * 257), "solid.png": grey.convert("RGBA"),
        "alpha.png": see_through, "grey-alpha.png": see_through.convert("LA"),
    }  # fmt: skip
    for name, image in same.items():
        options = {"lossless": True} if name.endswith("webp") else {}
        image.save(tmp_path / name, **options)
        np.testing.assert_allclose(answer(loaded, tmp_path / name), expected, atol=2e-3, err_msg=name)


def test_one_pixel_gets_an_answer(model, tmp_path):
    result = run("predict", model, saved(tmp_path, Image.new("L", (1, 1), 200), "one.png"), "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert sum(said["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(said["box"], [[0, 0], [1, 0], [1, 1], [0, 1]], atol=1e-5)


def write_black_png(path, width, height):
    """A valid PNG of one bit a pixel, made row by row."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compressobj(1)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))


@pytest.mark.parametrize("side", [20_000, 10_000])
def test_an_enormous_image_is_refused_without_being_decoded(side, model, tmp_path):
    write_black_png(tmp_path / "huge.png", side, side)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(run("predict", model, tmp_path / "huge.png"), "huge.png", "pixels, too many to decode safely")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 90_000  # kilobytes; decoded it would be 100,000 or more


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


def class_folders(root, **counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray((SEVEN * 255).byte().numpy()).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize(
    ("counts", "options", "words"),
    [
        ({"a": 5}, (), "'a'"),
        ({"a": 5, "b": 1}, (), "'b'"),
        ({}, (), "holds no folders"),
        ({"a": 2, "b": 2}, ("--batch-size", 8), "batch_size"),
        ({"a\nb": 5, "c": 5}, (), "can be printed"),
    ],
)
def test_folders_that_nothing_can_be_learned_from(counts, options, words, tmp_path):
    (tmp_path / "data").mkdir()
    data = class_folders(tmp_path / "data", **counts)
    refused(run("train", data, *options, "--epochs", 1, "--out", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


def test_images_of_other_sizes_are_named(tmp_path):
    mixed, train = class_folders(tmp_path / "mixed", a=5, b=5), ("--epochs", 1, "--out", tmp_path / "run")
    Image.new("L", (9, 9)).save(mixed / "a" / "9.png")
    refused(run("train", mixed, *train), "9.png", "size=")
    write_black_png(mixed / "a" / "9.png", 20_000, 20_000)
    refused(run("train", mixed, "--size", 28, *train), "9.png", "too many to decode safely")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,1,2,3,4\nb,1,x,3,4\n", ("line 2, column 3", "'x' is not a number")),
        ("a,1,2,3,4\nb,1,nan,3,4\na,1,2,3,4\nb,1,2,3,4\n", ("line 2", "missing", "--policy")),
        ("a,1,2,3,4\nb,1,2,3\na,1,2,3,4\nb,1,2,3,4\n", ("line 2", "length 3", "--policy")),
        ("a,1,2,3,4\nb,1,inf,3,4\n", ("line 2, column 3", "'inf' is not a finite number")),
        ("a,1,2,3,4\na,1,2,3,4\nb,1,2,3,4\n", ("'b'", "is the first row no header?")),
        ("", ("is empty",)),
    ],
)
def test_series_that_cannot_be_learned_from(text, words, tmp_path):
    (tmp_path / "series.csv").write_text(text)
    refused(run("train", tmp_path / "series.csv", "--epochs", 1, "--out", tmp_path / "run"), *words)


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
        "predict MODEL x.png --seed -1", "export MODEL --format tflite", "export MODEL --mean --samples 3",
        "export MODEL --samples two", "export MODEL --out /", "evaluate MODEL no-such-data", "nonsense",
    ],
)  # fmt: skip
def test_text_where_something_else_should_be(arguments, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(run(*(model if word == "MODEL" else word for word in arguments.split())))


def test_exit_codes_and_messages_of_the_real_command(model, digit, tmp_path):
    def real(*arguments):
        command = [sys.executable, "-m", "pstn.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"})

    done = real("predict", model, digit, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["input"] == str(digit)
    write_black_png(tmp_path / "huge.png", 12_000, 12_000)  # Pillow only warns of this one
    bad = real("predict", model, tmp_path / "huge.png")
    assert bad.returncode == 2
    assert "too many to decode safely" in bad.stderr
    assert "Traceback" not in bad.stderr
