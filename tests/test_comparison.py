"""Which model to use: the judgement on made-up answers, and the whole command on a small folder."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import pstn
from pstn.comparison import Scored, bootstrap, judge
from small_runs import run_command

Y = torch.arange(300) % 3


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
        ([scored("pstn", 0.81, offset=3), scored("cnn", 0.8), scored("linear", 0.8)], "linear", False),
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
    assert (found.kind, found.real) == (use, real)
    names = {"cnn": "CNN", "pstn": "P-STN", "linear": "linear layer", None: "none of them"}
    assert found.sentence.startswith(f"Use {'' if use is None else 'the '}{names[use]}")
    assert ("is real" in found.sentence) == real


def test_a_difference_that_chance_makes_is_seldom_called_real():
    generator, called = torch.Generator().manual_seed(0), 0
    for _ in range(40):
        models = []
        for kind in ("cnn", "stn", "pstn"):
            right = torch.rand(150, generator=generator) < 0.8
            probs = torch.full((150, 2), 0.2).scatter(1, (right != 1).long()[:, None], 0.8)
            models.append(Scored(kind, probs.log()[None], 1.0, 100))
        called += judge(models, torch.zeros(150, dtype=torch.long), 0.5).real
    assert called <= 6  # 40 draws at 5%: 2 on average


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


@pytest.mark.slow
def test_the_command_compares_and_writes_a_page(folder, tmp_path):
    options = ("--compare", "--epochs", 6, "--models", 2, "--out", tmp_path / "c<b>")
    found = run_command("train", folder, *options)
    assert found.exit_code == 0, found.output
    results = json.loads((tmp_path / "c<b>" / "results.json").read_text())
    assert [row["kind"] for row in results["models"]] == ["cnn", "stn", "pstn"]
    assert results["examples"] == 20
    assert results["chance"] == {"accuracy": 0.5, "nll": pytest.approx(np.log(2))}
    assert results["sentence"] in found.stdout.replace("\n", " ")
    page = (tmp_path / "c<b>" / "comparison.html").read_text()
    assert results["sentence"].replace("+", "&#43;") in page.replace("+", "&#43;")
    assert page.count("<img") >= 1
    for row in results["models"]:
        assert row["accuracy"]["low"] <= row["accuracy"]["value"] <= row["accuracy"]["high"]
        assert np.array(row["confusion"]).sum() == 20
        assert row["seeds"] == 2
        scores = json.loads((tmp_path / "c<b>" / row["kind"] / "results.json").read_text())["scores"]
        assert row["nll"]["value"] == pytest.approx(np.mean(scores["nll"]), abs=0.05)  # other samples
        assert row["name"] in page
        assert row["name"] in found.stdout
    again = run_command("train", folder, *options)
    assert again.exit_code == 2
    assert "holds a run already" in again.output
    resumed = run_command("train", folder, *options, "--resume", "--json")
    assert json.loads(resumed.stdout)["models"][0]["accuracy"] == results["models"][0]["accuracy"]
    assert pstn.from_pretrained(tmp_path / "c<b>" / "pstn" / "model-0").about.classes == ("above", "below")


def test_data_without_a_test_part_are_refused_before_training(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 16, 16, 1), np.float32), y=np.arange(8) % 2)
    found = run_command("train", tmp_path / "x.npz", "--compare", "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "test part" in found.output
