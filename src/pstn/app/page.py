"""The page of `pstn app`: gradio components around `pstn.app`. Needs `pstn[app]`.

gradio is imported when the page is opened, as it reads its settings then. Pictures are SVG in HTML: they take
milliseconds, are sharp on every screen, follow the dark mode, and need no file that gradio would have to serve.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ipaddress
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final
from urllib.parse import urlsplit

import torch
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from pstn import app, limits
from pstn.app import Answer, ModelSet
from pstn.data import Split, load_digits, load_italy_power_demand
from pstn.data.series import SERIES_SUFFIXES
from pstn.demo import LABELS
from pstn.files import parse_json
from pstn.nn import Shareable
from pstn.predict import require_about
from pstn.processes import require_free_port
from pstn.training.progress import sigterm_as_ctrl_c
from pstn.transforms import to_pixels
from pstn.transforms.coordinates import base_grid

if TYPE_CHECKING:
    import gradio as gr

_LABELS = dict[str, str](LABELS.items())
_WIDTH, _HEIGHT = 320, 170  # of a plot
# All of gradio's endpoints that the page uses; files, proxies, API descriptions and monitoring are not among them.
_READ = re.compile(
    r"/(|config/?|theme\.css|favicon\.ico|manifest\.json|robots\.txt|(assets|static)/[\w./-]+"
    r"|gradio_api/(info/?|app_id/?|theme\.css|startup-events|queue/data|upload_progress|heartbeat/\w+))"
)
_CALLS = ("/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")
_UPLOAD = "/gradio_api/upload"
_HOST = re.compile(r"[^/?#@\\\s]+")  # a name and a port alone: no path, user or query
_FORM_BYTES = 1 << 16  # overhead of a form with a file


@cache
def _html() -> Any:
    """The macros of page.html, which escape all text."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("pstn", "app"), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html").module


def draw_image(models: ModelSet, shown: Tensor, answers: Mapping[str, Answer], noun: str = "digit") -> str:
    """HTML of an image with the sampled boxes, and of what was seen through each."""
    kinds = _transforming(models)
    best = answers[kinds[0]] if kinds else None
    samples = [] if best is None else [*zip(map(_encode, best.seen), best.votes, strict=True)]
    return str(_html().image(noun, _frame(models, shown, answers), kinds, samples, best and best.best))


def _transforming(models: ModelSet) -> list[str]:
    """The kinds of the models that transform their input, the P-STN first."""
    return [kind for kind in ("pstn", "stn") if kind in models]


def _frame(models: ModelSet, shown: Tensor, answers: Mapping[str, Answer]) -> Any:
    """SVG of an image with the boxes of each model."""
    size, frames = tuple(shown.shape[1:]), []
    for kind in _transforming(models):
        corners = models[kind].layer.transform.corners(answers[kind].theta, aspect=size[::-1])
        frames += [(kind, [f"{x:.2f},{y:.2f}" for x, y in box]) for box in to_pixels(corners, size).tolist()]
    return _html().boxes(_encode(shown, 320), *size, frames)


def draw_series(
    models: ModelSet, shown: Tensor, answers: Mapping[str, Answer], noun: str = "day", unit: str = "h"
) -> str:
    """HTML of a series under the sampled transformations, and of how each transformed time."""
    shape, kinds = tuple(shown.shape[1:]), _transforming(models)
    times = base_grid(shape)[:, 0]
    delays = {"base": 0 * times[None]}
    for kind in kinds:
        delays[kind] = (models[kind].layer.grid(answers[kind].theta, shape)[..., 0] - times) * len(times) / 2
    limit = max(float(torch.cat(list(delays.values())).abs().max()), 1.0)
    changes = _WIDTH, _HEIGHT, _ticks(len(times), unit), _lines(delays, -limit, limit)
    return str(_html().series(noun, unit, _curves(models, shown, answers, unit), kinds, changes, f"{limit:.1f}"))


def _curves(models: ModelSet, shown: Tensor, answers: Mapping[str, Answer], unit: str = "h") -> Any:
    """SVG of a series, and of what each model's samples saw; channels lie over each other."""
    curves = {"base": shown, **{kind: answers[kind].seen.flatten(0, 1) for kind in _transforming(models)}}
    values = torch.cat(list(curves.values()))
    low, high = values.min().item(), values.max().item()
    return _html().plot("The series", _WIDTH, _HEIGHT, _ticks(shown.shape[-1], unit), _lines(curves, low, high))


def _ticks(length: int, unit: str) -> list[tuple[str, str]]:
    steps, suffix = range(0, length, max(1, length // 4)), ":00" if unit == "h" else ""
    return [(f"{_WIDTH * at / max(length - 1, 1):.1f}", f"{at}{suffix}") for at in steps]


def _lines(curves: Mapping[str, Tensor], low: float, high: float) -> list[tuple[str, str]]:
    """Class and points of a line for each row of (S, L), over the width of a plot from `low` to `high`."""
    lines = []
    for kind, values in curves.items():
        for row in (_HEIGHT - 8 - (_HEIGHT - 16) * (values - low) / max(high - low, 1e-6)).tolist():
            points = (f"{_WIDTH * i / max(len(row) - 1, 1):.1f},{y:.1f}" for i, y in enumerate(row))
            lines.append((kind, " ".join(points)))
    return lines


def _encode(image: Tensor, most: int = 160) -> str:
    """(C, H, W) from 0 to 1 as a data URL of at most `most` pixels a side."""
    from PIL import Image

    stream, pixels = io.BytesIO(), (image.clamp(0, 1) * 255).round().byte().numpy()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    picture.thumbnail((most, most))
    picture.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def summarise(
    models: ModelSet, shown: Tensor, answers: Mapping[str, Answer], note: str = "", data: str = "test data"
) -> str:
    """HTML of each model's answer and of how sure it is; on a phone it stays on the screen, with a picture.

    Args:
        models: the models.
        shown: the input.
        answers: to it.
        note: on the models.
        data: what their accuracy is of.
    """
    first = next(iter(_transforming(models)), None)
    image = shown.dim() == 3
    picture = (_frame if image else _curves)(models, shown, answers)
    seen = ""
    if image and first:  # a sample that was read as the answer, where there is one
        answer = answers[first]
        seen = _encode(answer.seen[answer.votes.index(answer.best) if answer.best in answer.votes else 0])
    metrics = {_LABELS[kind]: model.about.metrics for kind, model in models.items()}
    accuracies = [f"{label} {scores['accuracy']:.0%}" for label, scores in metrics.items() if "accuracy" in scores]
    labelled = [(_LABELS[kind], answer) for kind, answer in answers.items()]
    told = f"P-STN: {answers['pstn'].explanation}" if "pstn" in answers else ""
    return str(_html().summary(picture, seen, labelled, told, note, data, accuracies))


# What each set of models has learned, and what its accuracy is of.
_NOTES = {
    "poses": (
        "The classifier is the same in all three, and has learned upright digits; the STN and the P-STN were taught to "
        "put digits upright that are turned by any angle, shifted by up to 4 pixels, and up to 1.35 times as large or "
        "small.",
        "1,000 such digits",
    ),
    "digits": ("All three were trained on the same few upright digits.", "1,000 upright digits"),
    "series": ("All three were trained on the same 67 days.", "1,029 other days"),
    "own": (),
}


def build_page(sets: Mapping[str, ModelSet], examples: Tensor | None = None) -> gr.Blocks:
    """The page, ready to be launched.

    Args:
        sets: its models, by name; only a model of the user's own, where there is one.
        examples: (N, C, *size), inputs of that to begin with.
    """
    import gradio as gr

    own = sets.get("own")
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    def pick(x: Tensor, y: Tensor, label: int, number: int) -> Tensor:
        found = (y == label).nonzero()[:, 0]
        return x[found[number % len(found)]]

    def add_tab(
        name: str, modes: Mapping[str, str], move: Callable[..., Tensor], draw: Callable[..., str],
        first: Tensor | None, add_choices: Callable[[Any, Any], list[Any]],
        sliders: Sequence[tuple[str, str, float, float, float, float]],
    ) -> None:  # fmt: skip
        """Controls beside what the networks make of an example.

        Args:
            name: of the tab's elements.
            modes: label and name of each set of models that a visitor can choose.
            move: makes the input from the example, the sliders' values and `seed`.
            draw: makes the pictures.
            first: the example that is shown at first.
            add_choices: adds the components that change the example, and returns their events. It is given the states
                that hold the example and a number.
            sliders: identifier, label, lowest, highest, start and step of each.
        """
        base, seed, number = gr.State(first), gr.State(0), gr.State(0)
        start = next(iter(modes.values()))
        names = [_LABELS[kind] for kind in own or LABELS]
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                if len(modes) > 1:
                    mode: Any = gr.Radio([*modes.items()], value=start, label="What they have learned", elem_id="mode")
                else:
                    mode = gr.State(start)
                changes = add_choices(base, number)
                with gr.Row(elem_classes="sliders"):
                    moves = [
                        gr.Slider(low, high, start, step=step, label=label, elem_id=identifier)
                        for identifier, label, low, high, start, step in sliders
                    ]
                with gr.Row():
                    again = gr.Button("Draw new samples", size="sm", elem_classes="again", min_width=100)
                    reset = gr.Button("Reset", size="sm", min_width=100)
            with gr.Column(scale=2, min_width=300):
                pictures = gr.HTML(elem_id=f"{name}-pictures")
                gr.Markdown(
                    "#### What they say\nThe CNN reads the input as it is. The STN first transforms it in one way, the "
                    "P-STN in ten ways, whose answers it averages."
                    if len(names) > 1
                    else "#### What it says"
                )
                with gr.Row():
                    labels = [gr.Label(label=label, num_top_classes=3, min_width=200) for label in names]
                summary = gr.HTML(elem_id=f"{name}-summary")
        inputs, outputs = [base, mode, *moves, seed], [pictures, *labels, summary]

        def answer(base: Tensor | None, mode: str, *values: Any) -> list[Any]:
            if base is None:
                return ["<p>Upload a file to begin.</p>", *[None] * len(labels), ""]
            models, shown = sets[mode], move(base, *values[:-1], seed=values[-1])
            answers = app.compare(models, shown, seed=values[-1])
            probs = [answer.probs for answer in answers.values()]
            return [draw(models, shown, answers), *probs, summarise(models, shown, answers, *_NOTES[mode])]

        # Of several moves of a slider, the last one counts.
        moved = [slider.change for slider in moves] + ([mode.change] if len(modes) > 1 else [])
        gr.on(moved, answer, inputs, outputs, trigger_mode="always_last", **quiet)
        page.load(answer, inputs, outputs, **quiet)
        reset.click(lambda: [slider[4] for slider in sliders], None, moves, **quiet)
        for event in (again.click(lambda seed: seed + 1, seed, seed, **quiet), *changes):
            event.then(answer, inputs, outputs, **quiet)

    def add_upload(text: str, suffixes: list[str]) -> tuple[Any, Any]:
        """The button, and the place for what is wrong with a file."""
        return gr.UploadButton(text, file_types=suffixes, size="sm", elem_id="upload"), gr.Markdown("", elem_id="note")

    def add_digits(base: Any, number: Any) -> list[Any]:
        template, script = ((files("pstn.app") / name).read_text("utf-8") for name in ("sketch.html", "sketch.js"))
        # What is given in another way is drawn where a visitor draws; with a number, as the same may be given again.
        sketch = gr.HTML(
            value=_encode(1 - base.value), html_template=template, js_on_load=script, side=app.SKETCH_SIDE,
            elem_id="sketch",
        )  # fmt: skip
        upload, note = add_upload("or upload a picture", ["image"])
        gr.Markdown("or choose one that they have not seen; again for another:")
        with gr.Row(elem_classes="digit-keys"):
            keys = [gr.Button(str(digit), size="sm") for digit in range(10)]

        def drawn(event: gr.EventData, base: Tensor) -> tuple[Tensor, str]:
            try:
                return app.to_digit(app.read_sketch(getattr(event, "ink", None))), ""
            except app.PictureError as error:
                return base, str(error)

        def uploaded(path: str, base: Tensor, number: int) -> tuple[Tensor, str, Any, int]:
            try:
                grey = app.read_picture(path)
                picture = f"{_encode(torch.from_numpy(grey.copy())[None] / 255, 336)}#{number}"
                return app.to_digit(grey), "", picture, number + 1
            except app.PictureError as error:
                return base, str(error), gr.skip(), number

        def take(digit: int, number: int) -> tuple[Tensor, int, str, str]:
            found = pick(digits.x, digits.y, digit, number)
            return found, number + 1, "", f"{_encode(1 - found)}#{number}"

        drawn.__annotations__["event"] = gr.EventData  # gradio finds the event by the type of the argument
        return [
            sketch.input(drawn, base, [base, note], trigger_mode="always_last", **quiet),
            upload.upload(uploaded, [upload, base, number], [base, note, sketch, number], **quiet),
            *(
                key.click(partial(take, digit), number, [base, number, note, sketch], **quiet)
                for digit, key in enumerate(keys)
            ),
        ]

    def add_days(base: Any, number: Any) -> list[Any]:
        def take(season: int, number: int) -> tuple[Tensor, int]:
            return pick(days.x, days.y, season, number + 1), number + 1

        with gr.Row():
            keys = [gr.Button(f"Another {season} day", size="sm", min_width=100) for season in app.SEASONS]
        return [key.click(partial(take, season), number, [base, number], **quiet) for season, key in enumerate(keys)]

    def add_own(base: Any, number: Any) -> list[Any]:
        given = gr.State(None)  # what a visitor uploaded; the examples are not copied for each of them
        text, kinds = ("an image", ["image"]) if about.ndim == 2 else ("a table of series", [*SERIES_SUFFIXES])
        upload, note = add_upload(f"Upload {text}", kinds)
        following = gr.Button("Next", size="sm", elem_id="next")

        def uploaded(path: str, base: Tensor | None, given: Tensor | None) -> tuple[Any, Any, str, int]:
            try:
                found = app.read_examples(path, about)
                return found[0], found, "", 0
            except app.PictureError as error:
                return base, given, str(error), 0

        def take(given: Tensor | None, base: Tensor | None, number: int) -> tuple[Any, int]:
            found = examples if given is None else given
            return (base, 0) if found is None else (found[(number + 1) % len(found)], number + 1)

        return [
            upload.upload(uploaded, [upload, base, given], [base, given, note, number], **quiet),
            following.click(take, [given, base, number], [base, number], **quiet),
        ]

    turns = ("turn", "Rotate (degrees)", -180, 180, 0, 1)
    sizes = ("size", "Scale (times)", 0.4, 1.6, 1, 0.05)
    # Uploads are removed after an hour, and their folder when the page is closed.
    with gr.Blocks(title="pstn: where to look", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(
            "# Networks that learn where to look\n"
            "Turn or move the input, and see where they look, what they say and how sure they are. "
            "Nothing that you give leaves the computer that serves this page."
        )
        if own is not None:
            about = require_about(next(iter(own.values())))
            first, extent = None if examples is None else examples[0], about.size or (1,)
            if about.ndim == 2:
                add_tab(
                    "own", {"": "own"},
                    lambda x, turn, right, down, size, seed: app.move_digit(
                        x, turn, right * extent[-1] / 100, down * extent[0] / 100, size
                    ),
                    partial(draw_image, noun="image"), first, add_own,
                    [
                        turns, ("right", "Shift right (percent)", -50, 50, 0, 1),
                        ("down", "Shift down (percent)", -50, 50, 0, 1), sizes,
                    ],
                )  # fmt: skip
            else:
                most = max(1, extent[0] // 5)
                add_tab(
                    "own", {"": "own"}, app.move_series, partial(draw_series, noun="series", unit="steps"), first,
                    add_own,
                    [
                        ("later", "Delay (steps)", -most, most, 0, most / 20),
                        ("stretch", "Stretch (times)", 0.7, 1.4, 1, 0.05),
                        ("noise", "Noise (standard deviation)", 0, 1, 0, 0.05),
                    ],
                )  # fmt: skip
            return page.queue(max_size=limits.PAGE_QUEUED)
        digits, days = load_digits("test"), cast(Split, load_italy_power_demand(validation=0.0).test)
        with gr.Tab("Digit"):
            add_tab(
                "digits", {"any pose": "poses", "little data": "digits"},
                lambda *values, seed: app.move_digit(*values), draw_image, pick(digits.x, digits.y, 4, 0), add_digits,
                [
                    turns, ("right", "Shift right (pixels)", -10, 10, 0, 0.5),
                    ("down", "Shift down (pixels)", -10, 10, 0, 0.5), sizes,
                ],
            )  # fmt: skip
        with gr.Tab("Series"):
            gr.Markdown(
                "How much electricity Italy used, hour by hour, on one day. Was it in winter (October to March), when "
                "the lights go on early, or in summer (April to September)?"
            )
            add_tab(
                "series", {"": "series"}, app.move_series, draw_series, pick(days.x, days.y, 0, 0), add_days,
                [
                    ("later", "Delay (hours)", -4, 4, 0, 0.25), ("stretch", "Stretch (times)", 0.7, 1.4, 1, 0.05),
                    ("noise", "Noise (standard deviation)", 0, 1, 0, 0.05),
                ],
            )  # fmt: skip
    return page.queue(max_size=limits.PAGE_QUEUED)


@contextmanager
def open_page(
    sets: Mapping[str, ModelSet], *, examples: Tensor | None = None, host: str = "127.0.0.1", port: int = 7860,
    names: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Serve the page while the block runs; gives its address.

    Raises:
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    require_free_port(host, port)
    with tempfile.TemporaryDirectory(prefix="pstn-app-") as uploads:
        # gradio reads these when it is imported and when a file arrives.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=uploads)
        import gradio as gr

        # No fonts, links or scripts from other hosts.
        theme = gr.themes.Default(
            primary_hue="orange", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        )
        page = build_page(sets, examples)
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
    models: Path | None = None, *, own: Shareable | None = None, inputs: Sequence[Path] = (), host: str = "127.0.0.1",
    port: int = 7860, names: Sequence[str] = (), say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C.

    Args:
        models: a folder with models for digits, as `pstn demo` writes them, instead of those that are shipped.
        own: a classifier of images or series, such as `pstn.from_pretrained` returns, to show instead.
        inputs: files and folders with inputs of it to begin with.
        host: the address to listen on; "0.0.0.0" makes the page available to other machines.
        port: the port to listen on.
        names: host names under which visitors reach the page, besides `host` and localhost; requests to others are
            refused.
        say: where messages go.

    Raises:
        ModelFileError: there are no such models in `models`.
        DataError: one of `inputs` cannot be read.
        ValueError: the page cannot show `own`, the port is in use, or the address is not one of this machine's.
    """
    sets, examples = app.load_sets(models, own), None
    if own is None:
        torch.set_num_threads(1)  # more threads slow down networks this small
    elif inputs:
        examples = app.stack_examples(inputs, require_about(own))
    # SIGTERM as well leaves the block, which removes the uploads.
    with sigterm_as_ctrl_c(), open_page(sets, examples=examples, host=host, port=port, names=names) as address:
        say(f"The page is at {address} (Ctrl-C ends it).")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("Closed.")


@final
class Guard:
    """ASGI middleware that refuses requests which the page does not need, before gradio sees them.

    A request passes if its Host header names this page (a foreign site can make its own name point here, but cannot
    change that header), if its Origin, if any, is the page itself, if its endpoint is one that the page uses, and if
    its body is within the limits. Files that a request names must be uploads: gradio would download a URL.

    Args:
        app: the application that answers.
        host: the address that the server listens on.
        names: other names under which visitors reach it.
        uploads: the folder of uploaded files; the oldest are removed when there are too many.
    """

    def __init__(self, app: ASGIApp, *, host: str, names: Collection[str], uploads: Path) -> None:
        self.app = app
        self._address = _address(host)
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self._uploads = uploads.resolve()
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        self._active += 1
        try:
            if self._active > limits.PAGE_REQUESTS_AT_ONCE:
                raise HTTPException(503, "too many requests at once")
            await self.app(scope, await self._check(scope, receive), send)
        except HTTPException as refused:
            await PlainTextResponse(refused.detail, refused.status_code, {"Connection": "close"})(scope, receive, send)
        finally:
            self._active -= 1

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        """What the application reads from, if the request passes.

        Raises:
            HTTPException: it does not pass.
        """
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        self._require_own_site(headers.get("host", ""), headers.get("origin"))
        if method in ("GET", "HEAD") and _READ.fullmatch(path) and ".." not in path:
            return receive
        if method != "POST" or path not in (*_CALLS, _UPLOAD):
            raise HTTPException(404, "there is nothing here")
        most = limits.PAGE_FILE_BYTES + _FORM_BYTES if path == _UPLOAD else limits.PAGE_REQUEST_BYTES
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            raise HTTPException(413, f"the request must have at most {most} bytes")
        try:
            async with asyncio.timeout(limits.PAGE_BODY_SECONDS):
                body = await _read_body(receive, most)
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive") from None
        if path == _UPLOAD:
            self._remove_old_uploads()
        else:
            self._require_uploads(body)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay

    def _require_own_site(self, host: str, origin: str | None) -> None:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower() if _HOST.fullmatch(host) else ""
        except ValueError:
            name = ""
        address, own = _address(name), self._address
        # An address cannot be made to point elsewhere, as a name can.
        own_address = address and (address.is_loopback or (own and (own.is_unspecified or own == address)))
        if name not in self._names and not own_address:
            raise HTTPException(421, "this page does not serve that host name; `pstn app --name` adds one")
        if origin is not None and origin.partition("://")[2] != host:
            raise HTTPException(403, "requests from other sites are refused")

    def _require_uploads(self, body: bytes) -> None:
        """Refuse a call that names any file but an upload."""
        try:
            rest: list[Any] = [parse_json(body.decode(), "the request", limit=limits.PAGE_REQUEST_BYTES)]
        except ValueError:
            raise HTTPException(400, "the request must be JSON") from None
        while rest:
            value = rest.pop()
            if isinstance(value, list):
                rest.extend(value)
            elif isinstance(value, dict):
                rest.extend(value.values())
                path = value.get("path", str(self._uploads / "any"))
                try:
                    upload = self._uploads in Path(path).resolve().parents
                except (TypeError, ValueError, OSError):
                    upload = False
                if not upload:
                    raise HTTPException(400, "path must be that of an uploaded file")

    def _remove_old_uploads(self) -> None:
        with suppress(FileNotFoundError):  # gradio removes old files itself; the next upload tries again
            paths = [path for path in self._uploads.rglob("*") if path.is_file()]
            files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in paths)
            total = sum(size for _, size, _ in files)
            while total > limits.PAGE_UPLOADED_BYTES or len(files) > limits.PAGE_UPLOADED_FILES:
                _, size, path = files.pop(0)
                path.unlink(missing_ok=True)
                total -= size
                with suppress(OSError):  # each upload has a folder of its own, unless another file is in it
                    path.parent.rmdir()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


async def _read_body(receive: Receive, most: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise HTTPException(413, f"the request must have at most {most} bytes")
    return bytes(body)
