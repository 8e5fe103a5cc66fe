"""Predictions for files: the same answers as the model's own, where it looked, and little memory."""

import csv
import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import pstn
import pstn.data
from pstn import predict as room
from pstn.cli import app
from pstn.nn import About
from pstn.predict import Answer, predict_files, write_answers


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def trained_a_little():
    torch.manual_seed(0)
    model = pstn.nn.mnist_pstn(fill=(0 - 0.1307) / 0.3081)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * torch.randn_like(parameter)
    return model


ABOUT = About(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), data="digits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained_a_little().save_pretrained(tmp_path_factory.mktemp("model"), about=ABOUT)


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


def test_asking_leaves_the_mode_as_it_was(folder, images):
    model = pstn.from_pretrained(folder).train()
    model.classifier.eval()
    list(predict_files(model, [images]))
    assert (model.training, model.layer.training, model.classifier.training) == (True, True, False)


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


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_batch_holds_something(folder, images, size):
    model = pstn.from_pretrained(folder)
    with pytest.raises((ValueError, TypeError), match=r"batch_size must be .*at least 1"):
        list(predict_files(model, [images], batch_size=size))
    with pytest.raises((ValueError, TypeError), match=r"batch_size must be .*at least 1"):
        list(room.read_items([images], ABOUT, batch_size=size))


def test_a_cnn_looks_nowhere(tmp_path, images):
    pstn.nn.mnist_cnn().save_pretrained(tmp_path, about=ABOUT)
    [answer] = predict_files(pstn.from_pretrained(tmp_path), [images / "0.png"])
    assert (answer.box, answer.mutual_information) == (None, 0.0)
    table = list(csv.DictReader(io.StringIO(run("predict", tmp_path, images / "0.png").stdout)))
    assert table[0]["x1"] == ""


def test_a_cnn_without_finite_answers_is_refused(tmp_path, images):
    pstn.nn.mnist_cnn().save_pretrained(tmp_path, about=ABOUT)
    model = pstn.from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e30)  # finite, as what is loaded has to be
    with pytest.raises(ValueError, match="logits must be finite"):
        list(predict_files(model, [images / "0.png"]))


def test_files_are_read_as_they_are_needed(folder, tmp_path, monkeypatch):
    for i in range(40):
        Image.new("L", (28, 28), i).save(tmp_path / f"{i:02d}.png")
    read = []
    real = room.read_image
    monkeypatch.setattr(room, "read_image", lambda path, *rest: read.append(path) or real(path, *rest))
    answers = predict_files(pstn.from_pretrained(folder), [tmp_path], batch_size=5)
    next(answers)
    assert len(read) <= 10
    assert len(list(answers)) == 39


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


def test_show_says_that_it_draws_the_first_twenty(folder, images, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("pstn.report.pictures.draw_samples", lambda out, model, x, **rest: drawn.update(x=x))
    for count, told in ((20, False), (21, True)):
        done = run("show", folder, *[images / "0.png"] * count, "--out", tmp_path / "looks.png")
        assert ("the first 20 inputs are drawn" in done.stderr) == told
        assert (done.exit_code, len(drawn["x"])) == (0, 20)


def test_evaluate_finds_classes_by_name_and_prepares_images(folder, images, tmp_path):
    """Digits in folders named by class, larger and in colour: the score is that of the same digits as tensors."""
    digits = pstn.data.load_digits("test")
    for i in range(60):
        place = tmp_path / "data" / "test" / str(int(digits.y[i]))
        place.mkdir(parents=True, exist_ok=True)
        pixels = (digits.x[i, 0] * 255).byte().numpy()
        Image.fromarray(pixels).convert("RGB").save(place / f"{i}.png")
    (tmp_path / "data" / "test").rename(tmp_path / "data" / "train")
    import shutil

    shutil.copytree(tmp_path / "data" / "train", tmp_path / "data" / "test")
    found = run("evaluate", folder, tmp_path / "data", "--samples", 2, "--json")
    assert found.exit_code == 0, found.output
    from pstn.training.runs.run import score_models

    x = ABOUT.prepare(digits.x[:60])
    order = sorted(range(60), key=lambda i: (str(int(digits.y[i])), f"{i}.png"))
    wanted = score_models([pstn.from_pretrained(folder)], x[order], digits.y[:60][order], samples=2, seeds=[0])
    assert json.loads(found.output)["nll"] == pytest.approx(wanted["nll"], rel=1e-4)


def flow(data, out, *options):
    done = run("train", data, "--out", out, "--epochs", 1, "--json", *options)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["models"] == [str(out / "model-0")]
    return pstn.from_pretrained(out)


def test_train_means_one_thing_for_a_name_a_folder_and_a_file(tmp_path, images):
    by_name = flow("digits", tmp_path / "name", "--train-size", 16, "--model", "cnn")
    assert by_name.about.mean == (0.1307,)
    assert by_name.about.classes == tuple("0123456789")
    digits = pstn.data.load_digits("test")
    for i in range(40):
        place = tmp_path / "photos" / ("even" if digits.y[i] % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.x[i, 0] * 255).byte().numpy()).resize((40 + i, 44)).save(place / f"{i}.png")
    by_folder = flow(tmp_path / "photos", tmp_path / "folder", "--size", 20)
    assert (by_folder.about.classes, by_folder.about.size) == (("even", "odd"), (20, 20))
    generator = np.random.default_rng(0)
    rows = [",".join([("up", "down")[i % 2], *map(str, generator.normal(size=24))]) for i in range(24)]
    (tmp_path / "series.csv").write_text("\n".join(rows))
    by_file = flow(tmp_path / "series.csv", tmp_path / "file", "--test-samples", 2)
    assert (by_file.about.classes, by_file.about.size) == (("down", "up"), (24,))
    assert type(by_file.layer.transform) is pstn.CPAB
    for out, given in (("name", images / "0.png"), ("folder", images), ("file", tmp_path / "series.csv")):
        lines = run("predict", tmp_path / out, given, "--json").stdout.splitlines()
        assert len(lines) == {"name": 1, "folder": 7, "file": 24}[out]
    unlabelled = tmp_path / "values.csv"
    unlabelled.write_text("\n".join(row.partition(",")[2] for row in rows))
    with_labels, without = (
        [
            json.loads(line)["probabilities"]
            for line in run("predict", tmp_path / "file", p, "--json").stdout.splitlines()
        ]
        for p in (tmp_path / "series.csv", unlabelled)
    )
    assert with_labels == without
    assert run("evaluate", tmp_path / "folder", "--json").exit_code == 0
    assert run("show", tmp_path / "file", unlabelled, "--out", tmp_path / "s.png").exit_code == 0


@pytest.fixture(scope="module")
def resampling(tmp_path_factory):
    torch.manual_seed(0)
    about = About(("1", "2"), 1, (5,), policy="resample")
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
    flow(tmp_path / "series.csv", tmp_path / "run", "--policy", "resample", "--model", "cnn")
    shorter = "\n".join(row.rsplit(",", 7)[0] for row in rows)
    (tmp_path / "shorter.csv").write_text(shorter)
    done = run("predict", tmp_path / "run", tmp_path / "shorter.csv", "--json")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 24), done.output
    for model in (tmp_path / "run", tmp_path / "run" / "model-0"):
        found = run("evaluate", model, tmp_path / "shorter.csv")
        assert found.exit_code == 0, found.output


def test_a_model_saved_before_there_were_policies_loads(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    del config["about"]["policy"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert pstn.from_pretrained(tmp_path).about == ABOUT


def test_hidden_folders_are_left_out(folder, images, tmp_path):
    hidden = tmp_path / "a" / ".ipynb_checkpoints"
    hidden.mkdir(parents=True)
    for place in (hidden / "0.png", tmp_path / "a" / "0.png"):
        place.write_bytes((images / "0.png").read_bytes())
    [answer] = predict_files(pstn.from_pretrained(folder), [tmp_path])
    assert answer.input == str(tmp_path / "a" / "0.png")


def test_a_run_whose_data_are_elsewhere_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("\n".join(f"{'ud'[i % 2]},{i},{i * i},1,2,3,4,5" for i in range(24)))
    flow("mine.csv", tmp_path / "run", "--model", "cnn")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for model in (tmp_path / "run", tmp_path / "run" / "model-0"):
        found = run("evaluate", model)
        assert found.exit_code == 2
        assert "'mine.csv'" in found.stderr
        assert "DATA" in found.stderr
        assert f"pstn evaluate {model} DATA" in found.stderr
        assert run("evaluate", model, tmp_path / "mine.csv").exit_code == 0


@pytest.mark.parametrize("command", ["predict", "show"])
def test_a_file_that_cannot_be_written_is_called_as_the_user_called_it(command, folder, images, tmp_path):
    (tmp_path / "taken.png").mkdir()
    done = run(command, folder, images / "0.png", "--out", tmp_path / "taken.png")
    assert done.exit_code == 2
    assert f"error: {tmp_path / 'taken.png'}: " in done.stderr
    assert "draft" not in done.stderr


def test_show_goes_on_past_what_cannot_be_read(folder, images, tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("not an image")
    drawn = {}
    monkeypatch.setattr("pstn.report.pictures.draw_samples", lambda out, model, x, **rest: drawn.update(rest, x=x))
    done = run("show", folder, tmp_path / "text.png", images / "0.png", "--out", tmp_path / "looks.png")
    assert done.exit_code == 2
    assert "text.png" in done.stderr
    assert "1 input(s) could not be read, 1 were drawn" in done.stderr
    assert (len(drawn["x"]), drawn["names"]) == (1, ["0.png"])


def test_answers_that_are_not_numbers_are_null_in_json():
    broken = Answer("a.png", "cat", (math.nan, math.nan), math.nan, 0.0, ((math.inf, 1.0),))
    written = io.StringIO()
    write_answers(written, [broken], About(("cat", "dog"), 1), as_json=True)
    told = json.loads(written.getvalue(), parse_constant=pytest.fail)
    assert (told["probabilities"], told["box"]) == ({"cat": None, "dog": None}, [[None, 1.0]])


@pytest.mark.parametrize("command", ["predict", "show"])
def test_a_seed_that_torch_cannot_take_is_refused_by_name(command, folder, images):
    found = run(command, folder, images, "--seed", 2**64)
    assert found.exit_code == 2
    assert f"error: seed must lie between -9223372036854775808 and 18446744073709551615, got {2**64}" in found.output
