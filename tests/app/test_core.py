"""What the page says agrees with the models, which are shipped or loaded."""

import math

import pytest
import torch

import pstn
from pstn.app import Answer, compare, load_models, load_sets
from pstn.data import RandomSimilarity, load_digits, load_italy_power_demand
from pstn.io import ModelFileError


def answer(probs, votes=("a",), information=0.0):
    uncertainty = -sum(p * math.log(p) for p in probs if p > 0)
    return Answer(dict(zip("abcdefghij", probs, strict=False)), votes, uncertainty, information)


def test_answers_are_those_of_the_models(digit_models):
    digit = load_digits("test").x[3]
    found = compare(digit_models, digit, samples=4, seed=5)
    x = ((digit - 0.1307) / 0.3081)[None]
    with torch.no_grad():
        direct = digit_models["pstn"](x, 4, generator=torch.Generator().manual_seed(5))
        plain = digit_models["cnn"](x).softmax(-1)[0]
    ours = found["pstn"]
    torch.testing.assert_close(torch.tensor(list(ours.probs.values())), direct.probs[0])
    torch.testing.assert_close(torch.tensor(list(found["cnn"].probs.values())), plain)
    assert ours.entropy == pytest.approx(direct.entropy.item())
    assert ours.mutual_information == pytest.approx(direct.mutual_information.item(), abs=1e-6)
    assert [int(vote) for vote in ours.votes] == direct.sample_log_probs[:, 0].argmax(-1).tolist()
    assert len(found["stn"].votes) == len(found["cnn"].votes) == 1
    grid = digit_models["pstn"].layer.transform.grid(ours.theta, (28, 28))[:, None]
    torch.testing.assert_close(ours.seen, pstn.warp(digit[None], grid)[:, 0], atol=1e-5, rtol=0)


def test_the_same_seed_gives_the_same_samples(series_models):
    first, again, other = (compare(series_models, torch.ones(1, 24), samples=6, seed=seed) for seed in (1, 1, 2))
    assert first["pstn"].seen.shape == (6, 1, 24)
    assert torch.equal(first["pstn"].theta, again["pstn"].theta)
    assert not torch.equal(first["pstn"].theta, other["pstn"].theta)


@pytest.mark.parametrize(
    ("probs", "word"),
    [
        ([0.99] + [0.01 / 9] * 9, "sure"), ([0.946, 0.054], "sure"), ([0.81] + [0.19 / 9] * 9, "fairly sure"),
        ([0.75, 0.25], "fairly sure"), ([0.7] + [0.3 / 9] * 9, "unsure"), ([0.5, 0.5] + [0] * 8, "unsure"),
        ([0.6, 0.4], "unsure"), ([0.5, 0.5], "guessing"), ([0.4] + [0.6 / 9] * 9, "guessing"),
    ],
)  # fmt: skip
def test_sureness_goes_with_the_percentage_that_is_shown(probs, word):
    assert answer(probs).sureness == word


def test_an_explanation_counts_the_votes():
    assert answer([0.99, 0.01], ("a",) * 10).explanation.startswith("10 of 10 samples say a.")
    split = answer([0.6, 0.3, 0.1], ("a", "a", "b", "c", "a", "b"), information=0.1)
    assert split.explanation == "3 of 6 samples say a, 2 say b, 1 says c."
    assert len(answer([0.5, 0.5], ("a", "b"), information=0.6).explanation.split(". ")) == 2
    assert answer([0.6, 0.4]).explanation == ""


def save(models, folder):
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return folder


def test_shipped_models_read_digits_in_any_pose():
    models, test = load_sets()["poses"], load_digits("test")
    for kind in ("stn", "pstn"):  # one classifier, and before it what undoes a pose
        for name, value in models["cnn"].state_dict().items():
            assert torch.equal(models[kind].classifier.state_dict()[name], value)
    poses = RandomSimilarity()
    posed = poses.make(test.x[:200], poses.draw(200, generator=torch.Generator().manual_seed(3)))
    right = dict.fromkeys(models, 0)
    for digit, label in zip(posed, test.y.tolist(), strict=False):
        for kind, answer in compare(models, digit).items():
            right[kind] += answer.best == str(label)
    assert right["cnn"] < 80
    assert min(right["stn"], right["pstn"]) > 160


def test_shipped_models_of_little_data_score_as_their_cards_say(tmp_path, digit_models):
    sets, test, days = load_sets(), load_digits("test"), load_italy_power_demand(validation=0.0).test
    for name, data in (("digits", (test.x, test.y)), ("series", (days.x, days.y))):
        for model in sets[name].values():
            found = pstn.evaluate(
                model, [(model.about.prepare(data[0]), data[1])], generator=torch.Generator().manual_seed(0)
            )
            assert found.accuracy == pytest.approx(model.about.metrics["accuracy"], abs=0.003)
            assert found.accuracy > (0.8 if name == "digits" else 0.94)
    other = load_sets(save(digit_models, tmp_path / "other"))["digits"]
    assert torch.equal(*(next(models["cnn"].parameters()) for models in (other, digit_models)))
    assert load_sets(own=digit_models["stn"]) == {"own": {"stn": digit_models["stn"]}}


def test_folders_without_the_three_models_are_refused(tmp_path, digit_models, series_models):
    with pytest.raises(ModelFileError, match="cnn, stn and pstn"):
        load_sets(tmp_path.__class__("someone/something"))  # also a name on the Hub, which must not be asked
    with pytest.raises(ModelFileError, match="28 × 28"):
        load_models(save(series_models, tmp_path / "series"), (28, 28))
    folder = save(digit_models, tmp_path / "swapped")
    digit_models["cnn"].save_pretrained(folder / "pstn")
    with pytest.raises(ModelFileError, match="what their names say"):
        load_models(folder, (28, 28))
