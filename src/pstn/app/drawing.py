"""Looks as HTML: pictures as SVG, probabilities as bars, and words. Nothing in it comes from elsewhere.

HTML rather than a plotting library's images: it takes milliseconds, is sharp on every screen, folds into one column on
a phone, follows the page's dark mode, and can be read aloud.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from torch import Tensor

from pstn.app.looks import Answer, Look, Trio, boxes
from pstn.transforms.coordinates import base_grid

__all__ = ["draw_digit", "draw_progress", "draw_series"]

_NAMES = {"cnn": "CNN", "stn": "STN", "pstn": "P-STN"}
_DIGIT_WAYS = {
    "cnn": "reads the picture as it is.",
    "stn": "first turns, shifts and zooms the picture in one way, then reads it.",
    "pstn": "does so in ten ways, reads each, and averages the answers.",
}
_SERIES_WAYS = {
    "cnn": "reads the day as it is.",
    "stn": "first bends time in one way, then reads the day.",
    "pstn": "bends time in ten ways, reads each, and averages the answers.",
}


def draw_digit(trio: Trio, look: Look) -> str:
    """The whole of what the page shows of a digit."""
    return _page(
        _panel(
            "Where they looked",
            "Each <b class='ours'>orange frame</b> is one guess of the P-STN where the digit is, how large and how "
            "tilted; the <b class='theirs'>dashed blue one</b> is the STN's only guess. A thick edge is a frame's top.",
            _frames(trio, look),
        ),
        _panel(
            "What the P-STN saw",
            "The digit through each orange frame, and what the P-STN read in it.",
            _thumbs(look),
        ),
        _answers(trio, look, _DIGIT_WAYS, f"<img src='{_picture(look.shown)}' alt=''/>"),
    )


def draw_series(trio: Trio, look: Look) -> str:
    """The whole of what the page shows of a series."""
    shape = tuple(look.shown.shape[1:])
    here = base_grid(shape)[:, 0]
    hours = len(here) / 2
    bends, stn_bend = (
        (model.layer.grid(theta, shape)[..., 0] - here) * hours
        for model, theta in ((trio.pstn, look.theta), (trio.stn, look.stn_theta))
    )
    return _page(
        _panel(
            "What they saw",
            "The dark line is the day that you gave. Each <b class='ours'>orange line</b> is what the P-STN made of it "
            "by bending time in one way; the <b class='theirs'>dashed blue one</b> is the STN's.",
            _lines("Demand over the hours of a day", look.seen[:, 0], look.stn_seen[0, 0], look.shown[0]),
        ),
        _panel(
            "How they bent time",
            "At each hour, how many hours later or earlier they read the day. On the dark line, time is not bent.",
            _lines("Hours by which time was bent", bends, stn_bend[0], 0 * here, around_zero=True),
        ),
        _answers(trio, look, _SERIES_WAYS),
    )


def draw_progress(doing: str, fraction: float) -> str:
    """A progress bar with what is being done."""
    percent = round(100 * min(max(fraction, 0.0), 1.0))
    return (
        f"<div class='pstn-progress' role='progressbar' aria-valuenow='{percent}'>"
        f"<p>{escape(doing)}: {percent}%. This happens at the first start only.</p>"
        f"<div><span style='width:{percent}%'></span></div></div>"
    )


def _page(*panels: str) -> str:
    return f"<div class='pstn-look'>{''.join(panels)}</div>"


def _panel(title: str, sentence: str, content: str, kind: str = "") -> str:
    return f"<section class='{kind}'><h3>{title}</h3><p>{sentence}</p>{content}</section>"


def _picture(image: Tensor) -> str:
    """(1, H, W) from 0 to 1 as an address that holds the picture itself."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray((image[0].clamp(0, 1) * 255).round().byte().numpy()).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _frames(trio: Trio, look: Look) -> str:
    height, width = size = tuple(look.shown.shape[1:])
    outlines = "".join(_frame(box, "ours") for box in boxes(trio.pstn, look.theta, size).tolist())
    outlines += _frame(boxes(trio.stn, look.stn_theta, size)[0].tolist(), "theirs")
    around = 0.38 * max(size)
    # Whole numbers are the middles of pixels: the picture begins half a pixel before 0.
    view = f"{-around - 0.5:g} {-around - 0.5:g} {width + 2 * around:g} {height + 2 * around:g}"
    return (
        f"<svg class='frames' viewBox='{view}' role='img' aria-label='The digit, with the frames looked at'>"
        f"<image x='-0.5' y='-0.5' href='{_picture(look.shown)}' width='{width}' height='{height}'/>{outlines}</svg>"
    )


def _frame(corners: Sequence[Sequence[float]], kind: str) -> str:
    (x0, y0), (x1, y1) = corners[:2]
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)
    top = f"<line class='{kind} top' x1='{x0:.2f}' y1='{y0:.2f}' x2='{x1:.2f}' y2='{y1:.2f}'/>"
    return f"<polygon class='{kind}' points='{points}'/>{top}"


def _thumbs(look: Look) -> str:
    votes = look.answers["pstn"].votes
    best = look.answers["pstn"].best
    figures = [
        f"<figure class='{'' if vote == best else 'dissent'}'><img src='{_picture(image)}' alt='a look'>"
        f"<figcaption>{escape(vote)}</figcaption></figure>"
        for image, vote in zip(look.seen, votes, strict=True)
    ]
    return f"<div class='thumbs'>{''.join(figures)}</div>"


def _answers(trio: Trio, look: Look, ways: dict[str, str], about: str = "") -> str:
    """The answers, and their gist for narrow screens behind a picture of what it is about."""
    cards = "".join(_card(name, ways[name], answer, trio.accuracy(name)) for name, answer in look.answers.items())
    sentence = "They learned from the same few examples. The bars are the chances that each gives to each answer."
    gist = "".join(
        f"<span>{_NAMES[name]} <b>{escape(answer.best)}</b> {answer.sureness}</span>"
        for name, answer in look.answers.items()
    )
    verdicts = f"<div class='verdicts' aria-hidden='true'>{about}{gist}</div>"
    return _panel("What they say", sentence, f"<div class='cards'>{cards}</div>{verdicts}", "wide")


def _card(name: str, way: str, answer: Answer, accuracy: float | None) -> str:
    bars = "".join(
        f"<div class='bar{' best' if label == answer.best else ''}'><i>{chance:.0%}</i>"
        f"<span style='--chance:{chance:.3f}'></span><b>{escape(label)}</b></div>"
        for label, chance in zip(answer.classes, answer.probs, strict=True)
    )
    record = "" if accuracy is None else f"Right on {accuracy:.0%} of examples it had never seen."
    return (
        f"<div class='card' data-model='{name}'><p><b>{_NAMES[name]}</b> {way}</p>"
        f"<p class='says'>{escape(answer.best)} <small>{answer.sureness}</small></p>"
        f"<div class='bars'>{bars}</div><p>{escape(answer.reasons)}</p><p class='record'>{record}</p></div>"
    )


def _lines(title: str, ours: Tensor, theirs: Tensor, base: Tensor, *, around_zero: bool = False) -> str:
    """Series over the hours of a day; each (L,), `ours` (S, L)."""
    every = np.concatenate([ours.numpy().ravel(), theirs.numpy(), base.numpy()])
    low, high = float(every.min()), float(every.max())
    if around_zero:
        high = max(abs(low), abs(high), 1.0)
        low = -high
    span = max(high - low, 1e-6)
    width, height, last = 320, 170, len(base) - 1

    def path(values: Tensor, kind: str) -> str:
        heights = (height - 8 - (height - 16) * (values - low) / span).tolist()
        points = " ".join(f"{width * i / last:.1f},{y:.1f}" for i, y in enumerate(heights))
        return f"<polyline class='{kind}' points='{points}'/>"

    ticks = "".join(
        f"<line class='grid' x1='{width * h / last:.1f}' x2='{width * h / last:.1f}' y1='0' y2='{height}'/>"
        f"<text x='{width * h / last:.1f}' y='{height + 14}'>{h}:00</text>"
        for h in range(0, last + 1, 6)
    )
    scale = ""
    if around_zero:
        scale = f"<text class='side' x='4' y='14'>{high:.1f} h later</text>"
        scale += f"<text class='side' x='4' y='{height - 6}'>{high:.1f} h earlier</text>"
    curves = path(base, "base") + "".join(path(values, "ours") for values in ours) + path(theirs, "theirs")
    return (
        f"<svg class='lines' viewBox='-14 0 {width + 28} {height + 20}' role='img' aria-label='{title}'>"
        f"{ticks}{scale}{curves}</svg>"
    )
