"""Predictions for files: the same answers as the model's own, where it looked, and little memory."""

import csv
import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import pstn
from pstn.nn import ModelMetadata
from pstn.predict import Answer, predict_files, write_answers
from pstn.training.runs.run import score_models
from shared_models import moved
from small_runs import run_command as run

ABOUT = ModelMetadata(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), data="digits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    model = moved(pstn.nn.mnist_pstn(fill=(0 - 0.1307) / 0.3081), 0.03)
    return model.save_pretrained(tmp_path_factory.mktemp("model"), about=ABOUT)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    digits = pstn.data.load_digits("test")
    (root / "inner").mkdir()
    for i in range(7):
        pixels = (digits.x[i, 0] * 255).byte().numpy()
        Image.fromarray(pixels).save(root / ("inner" if i > 4 else "") / f"{i}.png")
    (root / "notes.txt").write_text("not an image")
    return root


def test_answers_are_the_models_own(folder, images):
    model = pstn.from_pretrained(folder)
    answers = list(predict_files(model, [images], samples=4, seed=3, batch_size=3))
    assert [answer.input.rsplit("/", 1)[1] for answer in answers] == [f"{i}.png" for i in range(7)]
    x = ABOUT.prepare(pstn.data.load_digits("test").x[:7])
    noise = pstn.draw_noise(4, (1, 4), generator=torch.Generator().manual_seed(3)).expand(4, 7, 4)
    with torch.no_grad():
        p = model(x, noise=noise)
    torch.testing.assert_close(torch.tensor([a.probabilities for a in answers]), p.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.tensor([a.entropy for a in answers]), p.entropy, rtol=1e-4, atol=1e-5)
    mine = torch.tensor([a.mutual_information for a in answers])
    torch.testing.assert_close(mine, p.mutual_information, rtol=1e-3, atol=1e-5)
    assert [a.label for a in answers] == [str(k) for k in p.log_probs.argmax(-1).tolist()]


def test_the_box_is_in_pixels_of_the_file(folder, tmp_path):
    """The corners of the output, mapped by hand: scale and shift by what theta says, then from [-1, 1] to pixels."""
    model = pstn.from_pretrained(folder)
    with torch.no_grad():
        model.layer.mean_head.last.weight.zero_()
        model.layer.mean_head.last.bias.copy_(torch.tensor([0.0, 0.5, 0.25, -0.25]))
    Image.new("L", (200, 100)).save(tmp_path / "wide.png")
    [answer] = predict_files(model, [tmp_path / "wide.png"])
    by_hand = [[(sx * 0.5 + 0.25 + 1) / 2 * 200, (sy * 0.5 - 0.25 + 1) / 2 * 100]
               for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]  # fmt: skip
    np.testing.assert_allclose(answer.box, by_hand, atol=1e-3)


def test_an_answer_does_not_depend_on_its_neighbours(folder, images):
    model = pstn.from_pretrained(folder)
    together = list(predict_files(model, [images]))
    alone = [answer for i in range(5) for answer in predict_files(model, [images / f"{i}.png"])]
    for a, b in zip(together[:5], alone, strict=True):
        np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("batch_size", 2.5), ("samples", 0), ("seed", 2**64)])
def test_arguments_that_make_no_sense_are_named(folder, images, name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name} must"):
        list(predict_files(pstn.from_pretrained(folder), [images], **{name: value}))


def test_a_cnn_looks_nowhere(tmp_path, images):
    pstn.nn.mnist_cnn().save_pretrained(tmp_path, about=ABOUT)
    [answer] = predict_files(pstn.from_pretrained(tmp_path), [images / "0.png"])
    assert (answer.box, answer.mutual_information) == (None, 0.0)
    table = list(csv.DictReader(io.StringIO(run("predict", tmp_path, images / "0.png").stdout)))
    assert table[0]["x1"] == ""


def test_csv_and_json_say_the_same(folder, images, tmp_path):
    table = list(csv.DictReader(io.StringIO(run("predict", folder, images, "--samples", 3).stdout)))
    lines = [json.loads(line) for line in run("predict", folder, images, "--samples", 3, "--json").stdout.splitlines()]
    assert len(table) == len(lines) == 7
    for row, line in zip(table, lines, strict=True):
        assert (row["input"], row["label"]) == (line["input"], line["label"])
        assert float(row["p(3)"]) == pytest.approx(line["probabilities"]["3"], rel=1e-4)
        assert float(row["probability"]) == pytest.approx(max(line["probabilities"].values()), rel=1e-4)
        assert float(row["y3"]) == pytest.approx(line["box"][2][1], abs=0.01)
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    done = run("predict", folder, images, "--out", tmp_path / "new" / "answers.csv", "--samples", 3)
    assert done.exit_code == 0
    assert list(csv.DictReader(io.StringIO((tmp_path / "new" / "answers.csv").read_text()))) == table


def test_show_draws_a_picture(folder, images, tmp_path):
    done = run("show", folder, images / "0.png", images / "1.png", "--out", tmp_path / "looks.png", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"written": str(tmp_path / "looks.png"), "inputs": 2}
    with Image.open(tmp_path / "looks.png") as picture:
        assert picture.width > 400


def test_evaluate_finds_classes_by_name_and_prepares_images(folder, images, tmp_path):
    """Digits in folders named by class, larger and in colour: the score is that of the same digits as tensors."""
    digits = pstn.data.load_digits("test")
    for i in range(60):
        place = tmp_path / "data" / "train" / str(int(digits.y[i]))
        place.mkdir(parents=True, exist_ok=True)
        pixels = (digits.x[i, 0] * 255).byte().numpy()
        Image.fromarray(pixels).convert("RGB").save(place / f"{i}.png")
    shutil.copytree(tmp_path / "data" / "train", tmp_path / "data" / "test")
    found = run("evaluate", folder, tmp_path / "data", "--samples", 2, "--json")
    assert found.exit_code == 0, found.output
    x = ABOUT.prepare(digits.x[:60])
    order = sorted(range(60), key=lambda i: (str(int(digits.y[i])), f"{i}.png"))
    wanted = score_models([pstn.from_pretrained(folder)], x[order], digits.y[:60][order], samples=2, seeds=[0])
    assert json.loads(found.output)["nll"] == pytest.approx(wanted["nll"], rel=1e-4)


@pytest.fixture(scope="module")
def resampling(tmp_path_factory):
    torch.manual_seed(0)
    about = ModelMetadata(("1", "2"), 1, (5,), policy="resample")
    return pstn.nn.SeriesClassifier(1, 2, (4,), (3,)).save_pretrained(tmp_path_factory.mktemp("series"), about=about)


def probabilities(model, path, text):
    path.write_text(text)
    return [answer.probabilities for answer in predict_files(model, [path])]


def test_a_model_reads_series_by_the_policy_of_its_training(resampling, tmp_path):
    """Gaps and lengths by hand: interpolated between neighbours, and read at five points from end to end."""
    model = pstn.from_pretrained(resampling)
    whole = probabilities(model, tmp_path / "whole.csv", "0,1,2,3,4\n0,1,2,3,4\n0,1,2,3,4\n0,1,2,3,4\n")
    assert probabilities(model, tmp_path / "gaps.csv", "0,?,2,,4\n0,2,4\n0,4\n0,.5,1,1.5,2,2.5,3,3.5,4\n") == whole


def test_a_label_is_told_from_a_value_where_lengths_differ(resampling, tmp_path):
    model = pstn.from_pretrained(resampling)
    [wanted] = probabilities(model, tmp_path / "whole.csv", "0,1,2,3,4\n")
    for text in ("up,0,2,4\nup,0,4\n", "1,0,2,4\n2,0,4\n", "?,0,2,4\n2,0,4\n", "7,0,1,2,3,4\n7,0,1,2,3,4\n"):
        assert probabilities(model, tmp_path / "labelled.csv", text) == [wanted, wanted], text
    [ones] = probabilities(model, tmp_path / "ones.csv", "1,1,1,1,1\n")  # as long as the model takes: all of it values
    assert probabilities(model, tmp_path / "twos.csv", "0.5,1.5\n1,1\n")[1] == pytest.approx(ones)


def test_a_run_keeps_its_policy_for_predict_and_evaluate(tmp_path):
    generator = np.random.default_rng(0)
    lengths = [20 + i % 5 for i in range(24)]
    rows = [",".join([("up", "down")[i % 2], *map(str, generator.normal(size=n))]) for i, n in enumerate(lengths)]
    (tmp_path / "series.csv").write_text("\n".join(rows))
    options = ("--out", tmp_path / "run", "--epochs", 1, "--policy", "resample", "--model", "cnn", "--json")
    done = run("train", tmp_path / "series.csv", *options)
    assert json.loads(done.stdout)["models"] == [str(tmp_path / "run" / "model-0")]
    shorter = "\n".join(row.rsplit(",", 7)[0] for row in rows)
    (tmp_path / "shorter.csv").write_text(shorter)
    done = run("predict", tmp_path / "run", tmp_path / "shorter.csv", "--json")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 24), done.output
    for model in (tmp_path / "run", tmp_path / "run" / "model-0"):
        found = run("evaluate", model, tmp_path / "shorter.csv")
        assert found.exit_code == 0, found.output


def test_show_goes_on_past_what_cannot_be_read(folder, images, tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("not an image")
    drawn = {}
    monkeypatch.setattr("pstn.report.pictures.draw_samples", lambda out, model, x, **rest: drawn.update(rest, x=x))
    done = run("show", folder, tmp_path / "text.png", images / "0.png", "--out", tmp_path / "looks.png")
    assert done.exit_code == 2
    assert "text.png" in done.stderr
    assert "1 input(s) could not be read, 1 were drawn" in done.stderr
    assert (len(drawn["x"]), drawn["names"]) == (1, ["0.png"])


def test_show_draws_the_answers_of_predict(folder, images, tmp_path, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    inputs = [images / "0.png", images / "1.png"]
    assert run("show", folder, *inputs, "--seed", 1, "--out", tmp_path / "looks.png").exit_code == 0
    said = [text.get_text() for panel in drawn[0].axes for text in panel.texts]
    answers = [json.loads(line) for line in run("predict", folder, *inputs, "--seed", 1, "--json").stdout.splitlines()]
    assert [text.split("\n") for text in said] == [
        [
            f"{answer['label']}: {answer['probability']:.0%}",
            f"uncertainty {answer['entropy']:.2f}",
            f"{answer['mutual_information']:.2f} of it from where it looked",
        ]
        for answer in answers
    ]


def test_answers_that_are_not_numbers_are_null_in_json():
    broken = Answer("a.png", "cat", (math.nan, math.nan), math.nan, 0.0, ((math.inf, 1.0),))
    written = io.StringIO()
    write_answers(written, [broken], ModelMetadata(("cat", "dog"), 1), as_json=True)
    told = json.loads(written.getvalue(), parse_constant=pytest.fail)
    assert (told["probabilities"], told["box"]) == ({"cat": None, "dog": None}, [[None, 1.0]])
