"""The HTML of the page is well-formed, complete, and contacts no other host."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import pstn
from pstn.app import as_set, compare
from pstn.app.page import draw_image, draw_series, summarise
from pstn.data import load_digits
from pstn.demo import LABELS


def parsed(html):
    return ElementTree.fromstring(f"<div>{html}</div>")


def of_class(tree, name, tag):
    return [node for node in tree.iter(tag) if name in node.get("class", "").split()]


@pytest.fixture
def digit():
    return load_digits("test").x[4]


def test_a_digit_shows_every_box_and_sample(digit_models, digit):
    found = compare(digit_models, digit)
    found["stn"] = found["stn"]._replace(theta=torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    tree = parsed(draw_image(digit_models, digit, found))
    assert len(of_class(tree, "pstn", "polygon")) == 10
    [box] = of_class(tree, "stn", "polygon")
    assert box.get("points") == "-0.50,-0.50 27.50,-0.50 27.50,27.50 -0.50,27.50"  # pixels
    assert [node.findtext("figcaption") for node in tree.iter("figure")] == list(found["pstn"].votes)


def test_a_model_of_ones_own_is_shown_alone(digit_models, series_models, digit):
    colours = torch.rand(3, 40, 30, generator=torch.Generator().manual_seed(0))
    own = {kind: pstn.nn.make_model(kind, 3, (40, 30), 4, networks="auto").eval() for kind in ("cnn", "stn", "pstn")}
    for kind, boxes in {"cnn": 0, "stn": 1, "pstn": 10}.items():
        own[kind].about = pstn.ModelMetadata(tuple("abcd"), 3, (40, 30))
        [(name, model)] = as_set(own[kind]).items()
        assert (name, model) == (kind, own[kind])
        found = compare({kind: model}, colours)
        tree = parsed(draw_image({kind: model}, colours, found, "photo"))
        assert len([*tree.iter("polygon")]) == len([*tree.iter("figure")]) == boxes
        assert "photo" in "".join(tree.itertext())
        assert len([*parsed(summarise({kind: model}, colours, found)).iter("b")]) == 1
        for models in (digit_models, series_models):
            single = {kind: models[kind]}
            shown = digit if models is digit_models else torch.zeros(1, 24)
            draw = draw_image if models is digit_models else draw_series
            parsed(draw(single, shown, compare(single, shown)))


def test_a_series_shows_every_sample_and_change_of_time(series_models):
    day, flat = torch.sin(torch.arange(24) / 3)[None], torch.zeros(1, 24)
    tree = parsed(draw_series(series_models, day, compare(series_models, day)))
    assert len(of_class(tree, "pstn", "polyline")) == 20
    assert len(of_class(tree, "stn", "polyline")) == 2
    assert "dark" not in "".join(tree.itertext())  # in dark mode the lines are light
    assert "nan" not in draw_series(series_models, flat, compare(series_models, flat))


def test_the_summary_has_every_answer_and_the_digit(digit_models, digit):
    found = compare(digit_models, digit)
    tree = parsed(summarise(digit_models, digit, found))
    shown = next(parsed(draw_image(digit_models, digit, found)).iter("image")).get("href")
    assert next(tree.iter("image")).get("href") == shown
    text = [" ".join("".join(node.itertext()).split()) for node in tree.iter("p")]
    assert text[:3] == [
        f"{LABELS[kind]}: {answer.best} ({answer.probs[answer.best]:.0%}, {answer.sureness})"
        for kind, answer in found.items()
    ]
    assert found["pstn"].explanation in text[3]
    assert "P-STN 92%" in text[3]
    digit_models["pstn"].about.metrics.clear()  # the accuracy may be unknown
    assert "P-STN 92%" not in summarise(digit_models, digit, found)


def test_the_summary_shows_what_was_read_as_the_answer(digit_models, digit):
    """On a phone one sample stands beside the answer: not one that was read as something else."""
    found = compare(digit_models, digit)
    best = found["pstn"].best
    other = next(name for name in found["pstn"].probs if name != best)
    for votes, number in (((other, other, best), 2), ((other,) * 3, 0)):  # the mean of all may be what none says
        found["pstn"] = found["pstn"]._replace(
            votes=votes, seen=torch.stack([torch.full((1, 4, 4), k / 4) for k in range(3)])
        )
        images = [node.get("src") for node in parsed(draw_image(digit_models, digit, found)).iter("img")]
        [shown] = parsed(summarise(digit_models, digit, found)).iter("img")
        assert shown.get("src") == images[number]


def test_class_names_are_text_and_not_code(digit_models, digit):
    names = tuple(f"<script>{k}</script>" for k in range(10))
    for model in digit_models.values():
        model.about = dataclasses.replace(model.about, classes=names)
    found = compare(digit_models, digit)
    for html in (draw_image(digit_models, digit, found), summarise(digit_models, digit, found)):
        assert "<script" not in html
        assert "&lt;script&gt;" in html
