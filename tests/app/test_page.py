"""The HTML of the page is well-formed, complete, and contacts no other host."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import torch

from pstn.app.core import compare
from pstn.app.page import draw_digit, draw_series, summarise
from pstn.data import load_digits


def parsed(html):
    return ElementTree.fromstring(f"<div>{html}</div>")


def of_class(tree, name, tag):
    return [node for node in tree.iter(tag) if name in node.get("class", "").split()]


def test_a_digit_shows_every_box_and_sample(digit_models):
    found = compare(digit_models, load_digits("test").x[4])
    tree = parsed(draw_digit(digit_models, found))
    assert len(of_class(tree, "pstn", "polygon")) == 10
    assert len(of_class(tree, "stn", "polygon")) == 1
    assert [node.findtext("figcaption") for node in tree.iter("figure")] == list(found.answers["pstn"].votes)


def test_a_box_is_drawn_in_pixels(digit_models):
    found = compare(digit_models, load_digits("test").x[4])._replace(stn_theta=torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    [box] = of_class(parsed(draw_digit(digit_models, found)), "stn", "polygon")
    assert box.get("points") == "-0.50,-0.50 27.50,-0.50 27.50,27.50 -0.50,27.50"


def test_a_series_shows_every_sample_and_change_of_time(series_models):
    found = compare(series_models, torch.sin(torch.arange(24) / 3)[None])
    tree = parsed(draw_series(series_models, found))
    assert len(of_class(tree, "pstn", "polyline")) == 20
    assert len(of_class(tree, "stn", "polyline")) == 2
    assert "nan" not in draw_series(series_models, compare(series_models, torch.zeros(1, 24)))


def test_the_summary_has_every_answer_and_the_digit(digit_models):
    found = compare(digit_models, load_digits("test").x[4])
    tree = parsed(summarise(digit_models, found))
    assert next(tree.iter("img")).get("src") == next(parsed(draw_digit(digit_models, found)).iter("image")).get("href")
    text = [" ".join("".join(node.itertext()).split()) for node in tree.iter("p")]
    expected = [
        f"{label} {found.answers[name].best} {found.answers[name].sureness}"
        for name, label in (("cnn", "CNN"), ("stn", "STN"), ("pstn", "P-STN"))
    ]
    assert text[:3] == expected
    assert found.answers["pstn"].explanation in text[3]
    assert "P-STN 92%" in text[3]
    digit_models.pstn.about.metrics.clear()  # the accuracy may be unknown
    assert "P-STN 92%" not in summarise(digit_models, found)


def test_class_names_are_text_and_not_code(digit_models):
    names = tuple(f"<script>{k}</script>" for k in range(10))
    for model in digit_models:
        model.about = dataclasses.replace(model.about, classes=names)
    found = compare(digit_models, torch.rand(1, 28, 28))
    for html in (draw_digit(digit_models, found), summarise(digit_models, found)):
        assert "<script" not in html
        assert "&lt;script&gt;" in html
