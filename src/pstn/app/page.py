"""The page of `pstn app`: gradio components around `pstn.app.core`. Needs `pstn[app]`.

gradio is imported when the page is opened, as it reads its settings then. Pictures are SVG in HTML: they take
milliseconds, are sharp on every screen, follow the dark mode, and need no file that gradio would have to serve.
"""

from __future__ import annotations

import base64
import errno
import io
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pstn import limits
from pstn.app import core
from pstn.app.core import Comparison, ModelCache, ModelSet
from pstn.data import load_digits
from pstn.training.progress import sigterm_as_ctrl_c
from pstn.transforms import to_pixels
from pstn.transforms.coordinates import base_grid

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["build_page", "draw_digit", "draw_progress", "draw_series", "open_page", "serve", "summarise"]

_LABELS = {"cnn": "CNN", "stn": "STN", "pstn": "P-STN"}
_SHEET = (
    "<div class='sheet'><p>Draw a digit:</p><button>clear</button>"
    "<canvas width='336' height='336' role='img' aria-label='Canvas to draw on'></canvas></div>"
)


def draw_digit(models: ModelSet, comparison: Comparison) -> str:
    """HTML of a digit with the sampled boxes, and of what was seen through each."""
    height, width = size = tuple(comparison.shown.shape[1:])

    def outline(model: Any, theta: Tensor, kind: str) -> str:
        text = ""
        for corners in to_pixels(model.layer.transform.corners(theta, aspect=size[::-1]), size).tolist():
            points = [f"{x:.2f},{y:.2f}" for x, y in corners]
            text += f"<polygon class='{kind}' points='{' '.join(points)}'/>"
            text += f"<polyline class='{kind} top' points='{points[0]} {points[1]}'/>"
        return text

    margin = 0.38 * max(size)
    # Whole numbers are the centres of pixels, so that the image starts half a pixel before 0.
    view = f"{-margin - 0.5:g} {-margin - 0.5:g} {width + 2 * margin:g} {height + 2 * margin:g}"
    boxes = outline(models.pstn, comparison.theta, "pstn") + outline(models.stn, comparison.stn_theta, "stn")
    answer = comparison.answers["pstn"]
    thumbs = "".join(
        f"<figure class='{'' if vote == answer.best else 'dissent'}'><img src='{_encode(image)}' alt='one sample'/>"
        f"<figcaption>{escape(vote)}</figcaption></figure>"
        for image, vote in zip(comparison.seen, answer.votes, strict=True)
    )
    return _panels(
        ("Where they looked",
         "Each <b class='pstn'>orange frame</b> is one sample of where the P-STN thinks the digit is, how large and "
         "how tilted; the <b class='stn'>dashed blue one</b> is the only guess of the STN. A thick edge is the top.",
         f"<svg class='boxes' viewBox='{view}' role='img' aria-label='The digit and the frames'><image x='-0.5' "
         f"y='-0.5' href='{_encode(comparison.shown)}' width='{width}' height='{height}'/>{boxes}</svg>"),
        ("What the P-STN saw", "The digit through each orange frame, and what the P-STN read in it.",
         f"<div class='thumbs'>{thumbs}</div>"),
    )  # fmt: skip


def draw_series(models: ModelSet, comparison: Comparison) -> str:
    """HTML of a series under the sampled transformations, and of how each transformed time."""
    shape = tuple(comparison.shown.shape[1:])
    hours = base_grid(shape)[:, 0]
    delays, stn_delay = (
        (model.layer.grid(theta, shape)[..., 0] - hours) * len(hours) / 2
        for model, theta in ((models.pstn, comparison.theta), (models.stn, comparison.stn_theta))
    )
    limit = max(float(delays.abs().max()), float(stn_delay.abs().max()), 1.0)
    values = torch.cat([comparison.shown, comparison.seen[:, 0], comparison.stn_seen[:, 0]])
    return _panels(
        ("What they saw",
         "The dark line is the day that you gave. Each <b class='pstn'>orange line</b> is the day under one sample of "
         "the P-STN's transformation of time; the <b class='stn'>dashed blue one</b> is that of the STN.",
         _plot("Demand over the hours of a day", comparison.seen[:, 0], comparison.stn_seen[0, 0], comparison.shown[0],
               values.min().item(), values.max().item())),
        ("How they transformed time",
         "At each hour, how many hours later or earlier they read the day. The dark line is no change.",
         _plot("Change of time in hours", delays, stn_delay[0], 0 * hours, -limit, limit,
               f"<text class='side' x='4' y='14'>{limit:.1f} h later</text>"
               f"<text class='side' x='4' y='164'>{limit:.1f} h earlier</text>")),
    )  # fmt: skip


def _plot(title: str, ours: Tensor, stn: Tensor, base: Tensor, low: float, high: float, extra: str = "") -> str:
    """SVG of series over the hours of a day: `ours` (S, L), the others (L,)."""
    width, height, last = 320, 170, len(base) - 1

    def line(values: Tensor, kind: str) -> str:
        heights = (height - 8 - (height - 16) * (values - low) / max(high - low, 1e-6)).tolist()
        points = " ".join(f"{width * i / last:.1f},{y:.1f}" for i, y in enumerate(heights))
        return f"<polyline class='{kind}' points='{points}'/>"

    lines = line(base, "base") + "".join(line(values, "pstn") for values in ours) + line(stn, "stn")
    for hour in range(0, last + 1, 6):
        x = f"{width * hour / last:.1f}"
        extra += f"<polyline class='grid' points='{x},0 {x},{height}'/><text x='{x}' y='{height + 14}'>{hour}:00</text>"
    view = f"-14 0 {width + 28} {height + 20}"
    return f"<svg class='lines' viewBox='{view}' role='img' aria-label='{title}'>{extra}{lines}</svg>"


def _panels(*panels: tuple[str, str, str]) -> str:
    sections = (f"<section><h3>{title}</h3><p>{text}</p>{content}</section>" for title, text, content in panels)
    return f"<div class='panels'>{''.join(sections)}</div>"


def _encode(image: Tensor) -> str:
    """(1, H, W) from 0 to 1 as a data URL."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray((image[0].clamp(0, 1) * 255).round().byte().numpy()).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def summarise(models: ModelSet, comparison: Comparison) -> str:
    """HTML of each model's answer and of how sure it is; on a phone it stays at the bottom of the screen."""
    image = f"<img src='{_encode(comparison.shown)}' alt=''/>" if comparison.shown.dim() == 3 else ""
    answers, accuracies = "", []
    for name, answer in comparison.answers.items():
        answers += f"<p><b>{_LABELS[name]}</b> {escape(answer.best)} <span>{answer.sureness}</span></p>"
        about = getattr(models, name).about
        if about is not None and "accuracy" in about.metrics:
            accuracies.append(f"{_LABELS[name]} {about.metrics['accuracy']:.0%}")
    text = f"P-STN: {comparison.answers['pstn'].explanation}"
    if accuracies:
        text += f" Accuracy on test data: {', '.join(accuracies)}."
    return f"<div class='summary'>{image}{answers}</div><p class='explanation'>{escape(text)}</p>"


def draw_progress(status: str, fraction: float) -> str:
    """HTML of a progress bar."""
    percent = round(100 * min(max(fraction, 0.0), 1.0))
    return (
        f"<div class='training' role='progressbar' aria-valuenow='{percent}'><p>{escape(status)}: {percent}%. This "
        f"happens at the first start only.</p><div><span style='width:{percent}%'></span></div></div>"
    )


def build_page(cache: ModelCache) -> gr.Blocks:
    """The page, ready to be launched."""
    import gradio as gr

    digits, days = load_digits("test"), core.season_data()
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    def pick(x: Tensor, y: Tensor, label: int, number: int) -> Tensor:
        found = (y == label).nonzero()[:, 0]
        return x[found[number % len(found)]]

    def read(base: Tensor, reader: Callable[[], Any]) -> tuple[Tensor, str]:
        """The digit that a visitor gave, or the one before with a message."""
        try:
            return core.to_digit(reader()), ""
        except core.PictureError as error:
            return base, str(error)

    def add_controls(*sliders: tuple[str, str, float, float, float, float]) -> tuple[list[Any], Any]:
        """Sliders (identifier, label, lowest, highest, start, step), and buttons to draw new samples and to reset."""
        with gr.Row(elem_classes="sliders"):
            made = [
                gr.Slider(low, high, start, step=step, label=label, elem_id=identifier)
                for identifier, label, low, high, start, step in sliders
            ]
        with gr.Row():
            again = gr.Button("Draw new samples", size="sm", elem_classes="again", min_width=100)
            reset = gr.Button("Reset", size="sm", min_width=100)
        reset.click(lambda: [slider[4] for slider in sliders], None, made, **quiet)
        return made, again

    def add_answers(name: str) -> list[Any]:
        """The components that show the answers to one input."""
        pictures = gr.HTML(elem_id=f"{name}-pictures")
        gr.Markdown(
            "#### What they say\nThe CNN reads the input as it is. The STN first transforms it in one way, the P-STN "
            "in ten ways, whose answers it averages. All three were trained on the same few examples."
        )
        with gr.Row():
            labels = [gr.Label(label=label, num_top_classes=3, min_width=200) for label in _LABELS.values()]
        return [pictures, *labels, gr.HTML(elem_id=f"{name}-summary")]

    def connect(
        name: str, move: Callable[..., Tensor], draw: Callable[..., str], inputs: list[Any], again: Any,
        outputs: list[Any],
    ) -> Callable[[Any], Any]:  # fmt: skip
        """Answer when the page is opened, when a slider or button asks for it, and when the models are ready.

        Args:
            name: of the models.
            move: makes the input from the values of `inputs`.
            draw: makes the pictures.
            inputs: the example, the sliders, and the seed of the samples.
            again: the button for new samples.
            outputs: as `add_answers` made them.

        Returns:
            A function that makes the answer follow an event which changes the example.
        """

        def answer(*values: Any) -> list[Any]:
            if name not in cache.ready:
                return [draw_progress(cache.status, cache.fraction), None, None, None, ""]
            comparison = core.compare(cache.ready[name], move(*values), seed=values[-1])
            labels = [answer.probs for answer in comparison.answers.values()]
            return [draw(cache.ready[name], comparison), *labels, summarise(cache.ready[name], comparison)]

        def check(*values: Any) -> list[Any]:
            return [*answer(*values), gr.Timer(active=name not in cache.ready)]

        sliders = [component.change for component in inputs if isinstance(component, gr.Slider)]
        gr.on(sliders, answer, inputs, outputs, trigger_mode="always_last", **quiet)  # only the last move counts
        page.load(answer, inputs, outputs, **quiet)
        timer = gr.Timer(1.0, active=name not in cache.ready)
        timer.tick(check, inputs, [*outputs, timer], **quiet)
        again.click(lambda seed: seed + 1, inputs[-1], inputs[-1], **quiet).then(answer, inputs, outputs, **quiet)
        return lambda event: event.then(answer, inputs, outputs, **quiet)

    # Uploads are removed after an hour, and their folder when the page is closed.
    with gr.Blocks(title="pstn: where to look", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(
            "# Networks that learn where to look\n"
            "Give them a digit or a series, move it, and see where they look, what they say and how sure they are. "
            "Nothing that you give leaves the computer that serves this page."
        )
        with gr.Tab("Digit"), gr.Row():
            base, seed, number = gr.State(pick(digits.x, digits.y, 7, 0)), gr.State(0), gr.State(0)
            with gr.Column(scale=1, min_width=300):
                script = (files("pstn.app") / "sketch.js").read_text(encoding="utf-8")
                sketch = gr.HTML(
                    value=0, html_template=_SHEET, js_on_load=script, side=core.SKETCH_SIDE, elem_id="sketch"
                )
                upload = gr.UploadButton("or upload a picture", file_types=["image"], size="sm", elem_id="upload")
                note = gr.Markdown("", elem_id="note")
                gr.Markdown("or choose one that they have not seen; again for another:")
                with gr.Row(elem_classes="digit-keys"):
                    keys = [gr.Button(str(digit), size="sm") for digit in range(10)]
                moves, again = add_controls(
                    ("turn", "Rotate (degrees)", -180, 180, 0, 1),
                    ("right", "Shift right (pixels)", -10, 10, 0, 0.5),
                    ("down", "Shift down (pixels)", -10, 10, 0, 0.5),
                    ("size", "Scale (times)", 0.4, 1.6, 1, 0.05),
                )
            with gr.Column(scale=2, min_width=300):
                outputs = add_answers("digits")
        follow = connect(
            "digits", lambda *values: core.move_digit(*values[:-1]), draw_digit, [base, *moves, seed], again, outputs
        )

        def drawn(event: gr.EventData, base: Tensor) -> tuple[Tensor, str]:
            return read(base, lambda: core.read_sketch(getattr(event, "ink", None)))

        # gradio finds the event by the type of the argument.
        drawn.__annotations__["event"] = gr.EventData
        follow(sketch.input(drawn, base, [base, note], trigger_mode="always_last", **quiet))
        uploaded = upload.upload(
            lambda path, base: read(base, lambda: core.read_picture(path)), [upload, base], [base, note], **quiet
        )
        follow(uploaded)
        for digit, key in enumerate(keys):

            def take(number: int, digit: int = digit) -> tuple[Tensor, int, str, int]:
                return pick(digits.x, digits.y, digit, number), number + 1, "", number + 1

            # The canvas is cleared when its value changes: it no longer shows what is classified.
            follow(key.click(take, number, [base, number, note, sketch], **quiet))

        with gr.Tab("Series"):
            gr.Markdown(
                "How much electricity Italy used, hour by hour, on one day. Was it in winter (October to March), when "
                "the lights go on early, or in summer (April to September)?"
            )
            with gr.Row():
                base, seed = gr.State(pick(days.test_x, days.test_y, 0, 0)), gr.State(0)
                with gr.Column(scale=1, min_width=300):
                    with gr.Row():
                        keys = [gr.Button(f"Another {season} day", size="sm", min_width=100) for season in core.SEASONS]
                    moves, again = add_controls(
                        ("later", "Delay (hours)", -4, 4, 0, 0.25),
                        ("stretch", "Stretch (times)", 0.7, 1.4, 1, 0.05),
                        ("noise", "Noise (standard deviation)", 0, 1, 0, 0.05),
                    )
                with gr.Column(scale=2, min_width=300):
                    outputs = add_answers("series")
        follow = connect(
            "series", lambda *values: core.move_series(*values[:-1], seed=values[-1]), draw_series,
            [base, *moves, seed], again, outputs,
        )  # fmt: skip
        for season, key in enumerate(keys):

            def take_day(number: int, season: int = season) -> tuple[Tensor, int]:
                return pick(days.test_x, days.test_y, season, number + 1), number + 1

            follow(key.click(take_day, number, [base, number], **quiet))
    return page.queue(max_size=limits.PAGE_QUEUED)


@contextmanager
def open_page(
    cache: ModelCache, *, host: str = "127.0.0.1", port: int = 7860, names: Sequence[str] = ()
) -> Iterator[str]:
    """Serve the page while the block runs; gives its address.

    Raises:
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ValueError(
                    "--host must be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them, got "
                    f"{host} ({error.strerror})"
                ) from None
            other = port + 1 if port >= 1024 else 7860  # lower ports are for the system
            raise ValueError(f"port {port} of {host} cannot be used ({error.strerror}): try --port {other}") from None
    with tempfile.TemporaryDirectory(prefix="pstn-app-") as uploads:
        # gradio reads these when it is imported and when a file arrives.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=uploads)
        import gradio as gr
        from starlette.middleware import Middleware

        from pstn.app.guard import Guard

        # No fonts, links or scripts from other hosts.
        theme = gr.themes.Default(
            primary_hue="orange", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        )
        page = build_page(cache)
        try:
            _, address, _ = page.launch(
                server_name=host, server_port=port, share=False, prevent_thread_lock=True, quiet=True, show_error=False,
                max_file_size=limits.PAGE_FILE_BYTES, state_session_capacity=limits.PAGE_SESSIONS, ssr_mode=False,
                mcp_server=False, enable_monitoring=False, run_history=False, inbrowser=False, footer_links=[],
                theme=theme, css=(files("pstn.app") / "page.css").read_text(encoding="utf-8"),
                app_kwargs={"middleware": [Middleware(Guard, host=host, names=names, uploads=Path(uploads))]},
            )  # fmt: skip
            yield address
        finally:
            page.close(verbose=False)


def serve(
    models: Path | None = None, *, host: str = "127.0.0.1", port: int = 7860, names: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C; missing models are trained meanwhile.

    Args:
        models: a folder with the models for digits, as `pstn demo` writes them.
        host: the address to listen on; "0.0.0.0" makes the page available to other machines.
        port: the port to listen on.
        names: host names under which visitors reach the page, besides `host` and localhost; requests to others are
            refused.
        say: where messages go.

    Raises:
        ModelFileError: there are no such models in `models`.
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    torch.set_num_threads(1)  # more threads slow down networks this small
    cache = ModelCache(models)
    # SIGTERM as well leaves the block, which removes the uploads.
    with sigterm_as_ctrl_c(), open_page(cache, host=host, port=port, names=names) as address:
        say(f"The page is at {address} (Ctrl-C ends it).")
        try:
            cache.train(say)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("Closed.")
