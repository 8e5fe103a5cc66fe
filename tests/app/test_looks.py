"""What the page says agrees with what the models say."""

import math

import pytest
import torch

import pstn
from pstn.app.looks import Answer, boxes, look
from pstn.data import load_digits


def answer(probs, votes=("a",), doubt_from_looking=0.0):
    doubt = -sum(p * math.log(p) for p in probs if p > 0)
    return Answer(tuple("abcdefghij")[: len(probs)], tuple(probs), votes, doubt, doubt_from_looking)


def test_answers_are_those_of_the_models(digit_trio):
    digit = load_digits("test").x[3]
    seen = look(digit_trio, digit, samples=4, seed=5)
    x = ((digit - 0.1307) / 0.3081)[None]
    with torch.no_grad():
        direct = digit_trio.pstn(x, 4, generator=torch.Generator().manual_seed(5))
        plain = digit_trio.cnn(x).softmax(-1)[0]
    pstn_answer = seen.answers["pstn"]
    torch.testing.assert_close(torch.tensor(pstn_answer.probs), direct.probs[0])
    torch.testing.assert_close(torch.tensor(seen.answers["cnn"].probs), plain)
    assert pstn_answer.doubt == pytest.approx(direct.entropy.item())
    assert pstn_answer.doubt_from_looking == pytest.approx(direct.mutual_information.item(), abs=1e-6)
    assert [int(vote) for vote in pstn_answer.votes] == direct.sample_log_probs[:, 0].argmax(-1).tolist()
    assert len(seen.answers["stn"].votes) == len(seen.answers["cnn"].votes) == 1


def test_what_was_seen_is_the_digit_through_the_frames(digit_trio):
    digit = load_digits("test").x[3]
    seen = look(digit_trio, digit, samples=4)
    expected = pstn.warp(digit[None], digit_trio.pstn.layer.transform.grid(seen.theta, (28, 28))[:, None])[:, 0]
    torch.testing.assert_close(seen.seen, expected, atol=1e-5, rtol=0)
    identity = pstn.Similarity().identity()[None]
    whole = [[-0.5, -0.5], [27.5, -0.5], [27.5, 27.5], [-0.5, 27.5]]
    assert boxes(digit_trio.pstn, identity, (28, 28))[0].tolist() == whole


def test_the_same_seed_looks_at_the_same_places(digit_trio):
    digit = load_digits("test").x[0]
    first, again, other = (look(digit_trio, digit, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.theta, again.theta)
    assert not torch.equal(first.theta, other.theta)


def test_a_series_is_read_as_well(series_trio):
    seen = look(series_trio, torch.randn(1, 24), samples=6)
    assert seen.seen.shape == (6, 1, 24)
    assert sum(seen.answers["pstn"].probs) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("probs", "word"),
    [
        ([0.99] + [0.01 / 9] * 9, "sure"),
        ([0.9, 0.1], "fairly sure"),
        ([0.75, 0.25], "unsure"),
        ([0.5, 0.5] + [0] * 8, "unsure"),
        ([0.73] + [0.03] * 9, "unsure"),  # the rest is spread over all the others, yet none of them comes near
        ([0.5, 0.5], "guessing"),
        ([0.4] + [0.6 / 9] * 9, "guessing"),
        ([0.1] * 10, "guessing"),
    ],
)
def test_sureness_in_words(probs, word):
    assert answer(probs).sureness == word


def test_reasons_count_the_looks():
    assert answer([0.99, 0.01], ("a",) * 10).reasons == "All 10 looks say a."
    split = answer([0.6, 0.3, 0.1], ("a", "a", "b", "c", "a", "b"), doubt_from_looking=0.1)
    assert split.reasons == "3 of 6 looks say a, 2 say b, 1 says c."
    torn = answer([0.5, 0.5], ("a", "b"), doubt_from_looking=0.6)
    assert torn.reasons.endswith("not knowing where to look.")
    assert answer([0.6, 0.4]).reasons == ""
