"""The gradio page: thin wiring between what a visitor touches and the functions that answer. Needs `pstn[app]`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import gradio as gr
from torch import Tensor

from pstn.app.answers import Answers
from pstn.app.inputs import SKETCH_SIDE
from pstn.app.models import SEASONS, Workshop
from pstn.limits import PAGE_QUEUED

__all__ = ["LAUNCH", "build_page"]

_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]
_SHEET = (
    "<div class='sheet'><p>Draw a digit:</p><button>clear</button>"
    "<canvas width='336' height='336' role='img' aria-label='Sheet to draw on'></canvas></div>"
)


def _read(name: str) -> str:
    return (files("pstn.app") / name).read_text(encoding="utf-8")


# What gradio takes when it starts, and not when the page is made. No fonts, no links and no code of other hosts.
LAUNCH: dict[str, Any] = {
    "theme": gr.themes.Default(primary_hue="orange", font=_FONTS, font_mono=_MONO),
    "css": _read("page.css"),
    "footer_links": [],
}


def build_page(workshop: Workshop) -> gr.Blocks:
    """The page, ready to be launched with the settings in `LAUNCH`."""
    answers = Answers(workshop)
    # What visitors drew is removed after an hour; the folder itself goes when the page is closed.
    with gr.Blocks(title="pstn: where to look", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(
            "# Networks that learn where to look\n"
            "Give them something, turn it and shift it, and see where they look, what they say and how sure they are. "
            "Nothing that you give leaves the computer that serves this page."
        )
        with gr.Tab("Digit"):
            _digit_tab(page, answers)
        with gr.Tab("Series"):
            _series_tab(page, answers)
    return page.queue(max_size=PAGE_QUEUED)


def _live(page: gr.Blocks, moved: list[Any], answer: Any, inputs: list[Any], output: gr.HTML) -> None:
    """Answer whenever one of `moved` does; while an answer is being made, only the last move counts."""
    gr.on(
        [component.change for component in moved], answer, inputs, output,
        trigger_mode="always_last", show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    page.load(answer, inputs, output, show_progress="hidden", api_visibility="private")


def _until_ready(answers: Answers, name: str, answer: Any, inputs: list[Any], output: gr.HTML) -> None:
    """Ask again every second until the models are there."""
    timer = gr.Timer(1.0, active=getattr(answers.workshop, name) is None)

    def tick(*values: Any) -> tuple[str, gr.Timer]:
        ready = getattr(answers.workshop, name) is not None
        return answer(*values), gr.Timer(active=not ready)

    timer.tick(tick, inputs, [output, timer], show_progress="hidden", api_visibility="private")


def _digit_tab(page: gr.Blocks, answers: Answers) -> None:
    base, seed, turns = gr.State(answers.example(7, 0)), gr.State(0), gr.State(0)
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            sketch = gr.HTML(
                value=0, html_template=_SHEET, js_on_load=_read("sketch.js"), side=SKETCH_SIDE, elem_id="sketch"
            )
            upload = gr.UploadButton("or upload a picture of one", file_types=["image"], size="sm", elem_id="upload")
            note = gr.Markdown("", elem_id="note", elem_classes="pstn-note")
            gr.Markdown("or take one that they have not seen, and again for another:")
            with gr.Row(elem_classes="digit-keys"):
                keys = [gr.Button(str(digit), size="sm") for digit in range(10)]
            with gr.Row(elem_classes="sliders"):
                turn = gr.Slider(-180, 180, 0, step=1, label="Turn (degrees)", elem_id="turn")
                size = gr.Slider(0.4, 1.6, 1, step=0.05, label="Size (times)", elem_id="size")
                right = gr.Slider(-10, 10, 0, step=0.5, label="Shift right (pixels)", elem_id="right")
                down = gr.Slider(-10, 10, 0, step=0.5, label="Shift down (pixels)", elem_id="down")
            with gr.Row():
                again = gr.Button("Look again, at other places", size="sm", elem_id="again", min_width=100)
                reset = gr.Button("Put it back", size="sm", elem_id="reset", min_width=100)
        with gr.Column(scale=2, min_width=300):
            shown = gr.HTML(elem_id="digit-look")
    inputs = [base, turn, right, down, size, seed]
    _live(page, [turn, right, down, size], answers.digit, inputs, shown)
    _until_ready(answers, "digits", answers.digit, inputs, shown)

    def drawn(event: gr.EventData, base: Tensor) -> tuple[Tensor, str]:
        return answers.drawn(getattr(event, "ink", None), base)

    sketch.input(drawn, base, [base, note], trigger_mode="always_last", **quiet).then(
        answers.digit, inputs, shown, **quiet
    )
    upload.upload(answers.uploaded, [upload, base], [base, note], **quiet).then(answers.digit, inputs, shown, **quiet)
    for digit, key in enumerate(keys):

        def take(turns: int, digit: int = digit) -> tuple[Tensor, int, str, int]:
            return answers.example(digit, turns), turns + 1, "", turns + 1

        # The sheet is cleared when its value changes: what it shows is no longer what is read.
        key.click(take, turns, [base, turns, note, sketch], **quiet).then(answers.digit, inputs, shown, **quiet)
    again.click(lambda seed: seed + 1, seed, seed, **quiet).then(answers.digit, inputs, shown, **quiet)
    reset.click(lambda: (0, 0, 0, 1), None, [turn, right, down, size], **quiet)


def _series_tab(page: gr.Blocks, answers: Answers) -> None:
    base, seed, turns = gr.State(answers.day(0, 0)), gr.State(0), gr.State(1)
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    gr.Markdown(
        "How much electricity Italy used, hour by hour, on one day. Was it in winter (October to March), when the "
        "lights go on early, or in summer (April to September)?"
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            with gr.Row():
                days = [gr.Button(f"Another {season} day", size="sm", min_width=100) for season in SEASONS]
            with gr.Row(elem_classes="sliders"):
                later = gr.Slider(-4, 4, 0, step=0.25, label="It all happens later (hours)", elem_id="later")
                stretch = gr.Slider(0.7, 1.4, 1, step=0.05, label="It all takes longer (times)", elem_id="stretch")
                noise = gr.Slider(0, 1, 0, step=0.05, label="Noise (none to much)", elem_id="noise")
            with gr.Row():
                again = gr.Button("Look again, in other ways", size="sm", min_width=100)
                reset = gr.Button("Put it back", size="sm", min_width=100)
        with gr.Column(scale=2, min_width=300):
            shown = gr.HTML(elem_id="series-look")
    inputs = [base, later, stretch, noise, seed]
    _live(page, [later, stretch, noise], answers.series, inputs, shown)
    _until_ready(answers, "series", answers.series, inputs, shown)
    for season, button in enumerate(days):
        button.click(
            lambda turns, season=season: (answers.day(season, turns), turns + 1), turns, [base, turns], **quiet
        ).then(answers.series, inputs, shown, **quiet)
    again.click(lambda seed: seed + 1, seed, seed, **quiet).then(answers.series, inputs, shown, **quiet)
    reset.click(lambda: (0, 1, 0), None, [later, stretch, noise], **quiet)
