"""What the page shows is sound HTML that asks nobody for anything."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import torch

from pstn.app.drawing import draw_digit, draw_progress, draw_series
from pstn.app.looks import look
from pstn.data import load_digits


def parsed(html):
    # An <img> without an end is the one thing here that HTML allows and XML does not.
    return ElementTree.fromstring(html.replace("alt='a look'>", "alt='a look'/>"))


def of_class(tree, name):
    return [node for node in tree.iter() if name in node.get("class", "").split()]


def test_a_digit_shows_every_frame_look_and_answer(digit_trio):
    seen = look(digit_trio, load_digits("test").x[4])
    tree = parsed(draw_digit(digit_trio, seen))
    assert len([node for node in of_class(tree, "ours") if node.tag == "polygon"]) == 10
    assert len([node for node in of_class(tree, "theirs") if node.tag == "polygon"]) == 1
    assert [node.findtext("figcaption") for node in tree.iter("figure")] == list(seen.answers["pstn"].votes)
    cards = of_class(tree, "card")
    assert [card.get("data-model") for card in cards] == ["cnn", "stn", "pstn"]
    for card, answer in zip(cards, seen.answers.values(), strict=True):
        chances = [float(span.get("style").removeprefix("--chance:")) for span in card.iter("span")]
        assert chances == [round(chance, 3) for chance in answer.probs]
        text = " ".join(card.itertext())
        assert answer.sureness in text
        assert answer.reasons in text
        assert "Right on 92%" in text


def test_a_series_shows_what_was_seen_and_how_time_was_bent(series_trio):
    seen = look(series_trio, torch.sin(torch.arange(24) / 3)[None])
    tree = parsed(draw_series(series_trio, seen))
    assert len([node for node in of_class(tree, "ours") if node.tag == "polyline"]) == 20
    assert "Right on" not in " ".join(tree.itertext())  # nobody noted a score


def test_the_answers_on_a_phone_come_with_the_digit_that_they_are_about(digit_trio):
    tree = parsed(draw_digit(digit_trio, look(digit_trio, load_digits("test").x[4])))
    (gist,) = of_class(tree, "verdicts")
    assert gist[0].get("src") == next(tree.iter("image")).get("href")
    assert [node.tag for node in gist] == ["img", "span", "span", "span"]


def test_a_flat_series_can_be_drawn(series_trio):
    assert "nan" not in draw_series(series_trio, look(series_trio, torch.zeros(1, 24)))


def test_nothing_is_asked_of_other_hosts(digit_trio, series_trio):
    html = draw_digit(digit_trio, look(digit_trio, torch.rand(1, 28, 28)))
    html += draw_series(series_trio, look(series_trio, torch.randn(1, 24)))
    assert "http" not in html
    assert "<script" not in html


def test_names_from_files_are_text_not_code(digit_trio):
    names = tuple(f"<script>{k}</script>" for k in range(10))
    for model in (digit_trio.cnn, digit_trio.stn, digit_trio.pstn):
        model.about = dataclasses.replace(model.about, classes=names)
    html = draw_digit(digit_trio, look(digit_trio, torch.rand(1, 28, 28)))
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_progress_says_what_is_done():
    tree = parsed(draw_progress("Training <b>", 0.256))
    assert tree.get("aria-valuenow") == "26"
    assert "Training <b>: 26%." in "".join(tree.itertext())
