"""An HTTP server for an exported model: onnxruntime, FastAPI and uvicorn, in processes that never load torch.

`pstn serve MODEL` exports a model and starts `python -m pstn.serve FILE`; a container needs the file alone.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import ipaddress
import json
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import numpy.typing as npt
import onnxruntime
import prometheus_client
import uvicorn
from fastapi import FastAPI, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.supervisors import Multiprocess

from pstn import __version__, limits
from pstn.abstaining import Abstention
from pstn.decode import image_size, read_image
from pstn.files import DataError, parse_json
from pstn.framing import Framing

__all__ = ["OnnxModel", "create_app", "main", "serve"]

_SETTINGS = "PSTN_SERVE"  # what the processes of a server are told, in their environment
_FREE = ("/health", "/metrics")  # paths without a limit on their rate
_VALUES = 1 << 22  # numbers in all samples of the inputs that are classified together: 16 MB
_REFUSALS = {
    408: "The request took too long to arrive", 413: "The request is too large",
    429: "Too many requests of this client", 503: "The server has more to do than it can",
}  # fmt: skip
_REMEMBERED = 10_000  # clients whose rate is watched; the longest silent are forgotten


@final
class OnnxModel:
    """A model in an ONNX file of `pstn export`, run by onnxruntime.

    Args:
        path: the file.
        threads: of onnxruntime for one batch.

    Attributes:
        about: what the file says of the model: classes, channels, size, mean, std, ...
        shape: (C, *size) of an input.
        together: how many inputs are classified together, so that memory is bounded.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if not Path(path).is_file():
            raise FileNotFoundError(f"MODEL must be a file of `pstn export`, got {path}")
        # onnxruntime 1.31 crashes while it optimises a CPAB transformation of series otherwise.
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["NchwcTransformer"]
        )
        found = self._session.get_modelmeta().custom_metadata_map
        if not {"classes", "channels", "size"} <= found.keys():
            raise ValueError(f"MODEL must be a file of `pstn export`, which says what it takes; {path} does not")
        self.about: dict[str, Any] = {name: parse_json(text, name) for name, text in found.items()}
        self.shape: tuple[int, ...] = (self.about["channels"], *self.about["size"])
        self.framing = Framing(**self.about.get("framing", {}))
        samples = self.about.get("samples")
        self.together = max(1, _VALUES // (math.prod(self.shape) * (samples if isinstance(samples, int) else 1)))
        rule = self.about.get("abstention")
        self._rule = None if rule is None else Abstention(**rule)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._noise = self._own_noise() if "noise_width" in self.about else None

    def _own_noise(self) -> npt.NDArray[np.float32]:
        """The noise of all inputs, (S, 1, W): that of `pstn predict` where the file has it."""
        shape = self.about["samples"], 1, self.about["noise_width"]
        if "noise" in self.about:
            return np.asarray(self.about["noise"], np.float32).reshape(shape)
        return np.random.default_rng(0).uniform(1e-6, 1 - 1e-6, shape).astype(np.float32)

    def prepare(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Inputs (B, C, *size) as the model takes them; whole-number pixels are divided by 255 first."""
        values = x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)
        per_channel = (-1, *[1] * (len(self.shape) - 1))
        mean, std = (np.asarray(self.about[name], np.float32).reshape(per_channel) for name in ("mean", "std"))
        return ((values - mean) / std).astype(np.float32)

    def predict(self, x: npt.NDArray[Any], *, boxes: bool = False) -> list[dict[str, Any]]:
        """Answers for inputs (B, C, *size): label, probabilities, entropy, and what else the file computes.

        Args:
            x: pixels as uint8, or numbers.
            boxes: whether the answers have the corners of every sample's window, in [-1, 1], x first.
        """
        feed = {"x": self.prepare(x)}
        if self._noise is not None:
            feed["noise"] = np.repeat(self._noise, len(x), axis=1)
        out = dict(zip(self._outputs, self._session.run(None, feed), strict=True))
        classes, answers = self.about["classes"], []
        for i, row in enumerate(out["probabilities"].tolist()):
            if not all(map(math.isfinite, row)):
                raise ValueError("inputs must be of the kind that the model has learned; its answer is not finite")
            best = max(range(len(row)), key=row.__getitem__)
            answer = {
                "label": classes[best], "probability": row[best], "probabilities": dict(zip(classes, row, strict=True)),
                "entropy": float(out["entropy"][i]),
            }  # fmt: skip
            if "mutual_information" in out:
                answer["mutual_information"] = float(out["mutual_information"][i])
            if self._rule is not None:
                samples = "theta" in out and self.about.get("samples") != "modes"
                answer |= self._rule.describe(row, classes, out["theta"][:, i] if samples else None)
            if boxes and "boxes" in out:
                answer["boxes"] = out["boxes"][:, i].tolist()
            answers.append(answer)
        return answers


class Inputs(BaseModel):
    """Numbers to classify."""

    inputs: Annotated[list[Any], Field(min_length=1)]
    """(B, C, *size), or (B, *size) for one channel: pixels from 0 to 1, or the values of series."""
    boxes: bool = False


class Answer(BaseModel):
    """What the model says of one input; what its file does not compute is left out."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    """The most probable class."""
    probability: float
    """Of that class."""
    probabilities: dict[str, float]
    """Of every class."""
    entropy: float
    """The total uncertainty, in nats."""
    mutual_information: float | None = None
    """The part of it that comes from where to look, in nats."""
    abstain: bool | None = None
    """Whether the model should not answer."""
    set: list[str] | None = None
    """The classes that cannot be ruled out."""
    typical: float | None = None
    """The share of held-out examples that are less typical: near 0 for inputs unlike the training data."""
    boxes: list[list[list[float]]] | None = None
    """The corners of every sample's window, in [-1, 1], x first, where `boxes` was asked for."""


class Predictions(BaseModel):
    """An answer for each input."""

    predictions: list[Answer]


@final
class Guard:
    """Refuses requests that are too large, too slow or too many, before anything reads them, and counts all of them.

    Args:
        app: what answers the others.
        most_bytes: of a request's body.
        seconds: that a body may take to arrive, and then wait for its turn.
        rate: requests a second of one client, on average; 0 for any number. Each process counts its own.
        count: is told the path, the status and the seconds of every request, refused or not.
        check: is told the path and the body of a request, and may refuse it by an HTTPException.
    """

    def __init__(
        self, app: ASGIApp, *, most_bytes: int, seconds: float, rate: float,
        count: Callable[[str, int, float], None], check: Callable[[str, bytearray], None],
    ) -> None:  # fmt: skip
        self.app, self.most_bytes, self.seconds, self.rate = app, most_bytes, seconds, rate
        self.count, self.check = count, check
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when
        self._turns = asyncio.Semaphore(limits.SERVE_TURNS)
        self._held = 0  # bytes of the bodies of all requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body, or answer why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started, body = 500, time.perf_counter(), bytearray()

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._require_rate(scope)
            async with self._limit(408, f"the request must arrive within {self.seconds:g} seconds"):
                await self._read(scope, receive, body)
            self.check(scope["path"], body)
            if scope["method"] != "POST":
                await self.app(scope, _replay(body, receive), noted)
                return
            async with self._limit(503, "the server has more to do than it can", {"Retry-After": "5"}):
                await self._turns.acquire()
            try:
                await self.app(scope, _replay(body, receive), noted)
            finally:
                self._turns.release()
        except HTTPException as refusal:
            # The rest of a body that is too large is not read: the connection closes.
            headers = {"Connection": "close", **(refusal.headers or {})}
            await JSONResponse({"detail": refusal.detail}, refusal.status_code, headers)(scope, receive, noted)
        finally:
            self._held -= len(body)
            self.count(scope["path"], status, time.perf_counter() - started)

    @asynccontextmanager
    async def _limit(self, status: int, detail: str, headers: dict[str, str] | None = None) -> AsyncIterator[None]:
        """Answer with this status where the block takes longer than a request may."""
        try:
            async with asyncio.timeout(self.seconds):
                yield
        except TimeoutError:
            raise HTTPException(status, detail, headers) from None

    def _require_rate(self, scope: Scope) -> None:
        if not self.rate or scope["path"] in _FREE:
            return
        client, now = (scope.get("client") or ("",))[0], time.monotonic()
        most = max(1.0, 2 * self.rate)  # a burst of two seconds
        tokens, last = self._clients.pop(client, (most, now))
        tokens = min(most, tokens + (now - last) * self.rate)
        self._clients[client] = (tokens - 1 if tokens >= 1 else tokens, now)  # a refusal costs nothing
        if len(self._clients) > _REMEMBERED:
            self._clients.popitem(last=False)
        if tokens < 1:
            raise HTTPException(429, f"at most {self.rate:g} requests a second", {"Retry-After": "1"})

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> None:
        too_large = HTTPException(413, f"the request must have at most {self.most_bytes:,} bytes")
        length, most_held = dict(scope["headers"]).get(b"content-length", b"0"), max(limits.SERVE_HELD, self.most_bytes)
        if not length.isdigit() or int(length[:20]) > self.most_bytes:
            raise too_large
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "the client left before the request was complete")
            part, more = message.get("body", b""), message.get("more_body", False)
            if len(body) + len(part) > self.most_bytes:
                raise too_large
            if part and self._held + len(part) > most_held:
                raise HTTPException(503, "the server has more to do than it can", {"Retry-After": "5"})
            body += part
            self._held += len(part)


def _replay(body: bytearray, receive: Receive) -> Receive:
    """What an application reads from, of a request whose body was read."""
    messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, but it closes connections that are silent, for which uvicorn waits for ever, or too late."""

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request; where all connections are taken, the one that has waited longest makes room."""
        super().connection_made(transport)
        # uvicorn tells connections that it stops, but not those that are being accepted then, and waits for all.
        if getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "should_exit", False):
            self.shutdown()
            return
        self._wait()
        if len(self.connections) >= limits.SERVE_AT_ONCE:
            waiting = [c for c in self.connections if isinstance(c, Protocol) and c.waits and c is not self]
            if waiting:
                longest = min(waiting, key=lambda connection: connection._since)
                self.connections.discard(longest)  # now: several connections may be made before it is lost
                longest.transport.abort()

    @property
    def waits(self) -> bool:
        """Whether there is no request that is not answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(limits.SERVE_SECONDS, self._close_if_waiting, self.cycle)

    def _close_if_waiting(self, last: object) -> None:
        if self.cycle is last and self.waits:
            self.transport.abort()  # a close would wait until the client has read the last answer


def create_app(
    path: str | os.PathLike[str] | None = None, *, most_bytes: int = limits.SERVE_BYTES,
    seconds: float = limits.SERVE_SECONDS, rate: float = limits.SERVE_RATE, names: list[str] | None = None,
) -> FastAPI:  # fmt: skip
    """The application: POST /predict and /predict/images, GET /, /health, /metrics, /docs and /openapi.json.

    Args:
        path: an ONNX file of `pstn export`; without it, all arguments are what `serve` has put into the environment.
        most_bytes: of a request's body.
        seconds: that a body may take to arrive, and then wait for its turn.
        rate: requests a second of one client, on average; 0 for any number.
        names: by which clients may call this host; any when not given.
    """
    if path is None:
        return create_app(**parse_json(os.environ[_SETTINGS], _SETTINGS))
    model = OnnxModel(path)
    kind = "images" if len(model.shape) == 3 else "series"
    registry = prometheus_client.CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client.multiprocess import MultiProcessCollector

        MultiProcessCollector(registry)
        own: dict[str, Any] = {"registry": None}
    else:
        own = {"registry": registry}
    requests = prometheus_client.Counter("pstn_requests", "Requests by path and status", ["path", "status"], **own)
    answered = prometheus_client.Counter("pstn_inputs", "Inputs that were classified", **own)
    latency = prometheus_client.Histogram("pstn_request_seconds", "Time of a request", ["path"], **own)

    app = FastAPI(title="pstn", description=f"A classifier of {kind}.", version=__version__)
    routes = {"/", "/health", "/metrics", "/predict", "/predict/images", "/docs", "/openapi.json"}

    def count(path: str, status: int, seconds: float) -> None:
        path = path if path in routes else "other"
        requests.labels(path, status).inc()
        latency.labels(path).observe(seconds)

    # Lists and texts take twenty times the memory of what is sent, and seconds to parse; numbers take little.
    lists = sum(math.prod(model.shape[:n]) for n in range(len(model.shape)))
    most_marks = limits.SERVE_INPUTS * lists + 100

    def check(path: str, body: bytearray) -> None:
        if path == "/predict" and sum(map(body.count, (b"[", b"{", b'"'))) > most_marks:
            raise HTTPException(422, f"inputs must be at most {limits.SERVE_INPUTS}, of {lists} lists each")

    @app.exception_handler(RequestValidationError)
    def explain(_: Request, error: RequestValidationError) -> JSONResponse:
        """What is wrong with a request, without the request itself, which FastAPI would send back."""
        found = [{name: problem[name] for name in ("type", "loc", "msg")} for problem in error.errors()]
        return JSONResponse({"detail": found}, 422)

    def answer(inputs: Iterable[npt.NDArray[Any]], boxes: bool) -> Predictions:
        found, rest = list[dict[str, Any]](), iter(inputs)
        while some := list(islice(rest, model.together)):
            try:
                found += model.predict(np.stack(some), boxes=boxes)
            except ValueError as error:
                raise HTTPException(422, str(error)) from None
        answered.inc(len(found))
        return Predictions.model_validate({"predictions": found})

    def require_count(name: str, count: int) -> None:
        if count > limits.SERVE_INPUTS:
            raise HTTPException(422, f"{name} must be at most {limits.SERVE_INPUTS} at once, got {count}")

    refusals: dict[int | str, dict[str, Any]] = {status: {"description": why} for status, why in _REFUSALS.items()}
    post = partial(app.post, response_model=Predictions, response_model_exclude_unset=True, responses=refusals)

    @post("/predict")
    def predict(asked: Inputs) -> Predictions:
        """Classify numbers: pixels from 0 to 1, or series."""
        require_count("inputs", len(asked.inputs))
        shape = " or ".join(str(("B", *s)) for s in {model.shape, model.shape[model.shape[0] == 1 :]})
        try:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                x = np.asarray(asked.inputs, dtype=np.float32)
        except (ValueError, TypeError, OverflowError):
            raise HTTPException(422, f"inputs must be lists of numbers, {shape}") from None
        if x.shape[1:] == model.shape[1:] and model.shape[0] == 1:
            x = x[:, None]
        if x.shape[1:] != model.shape or not np.isfinite(x).all():
            raise HTTPException(422, f"inputs must be finite numbers of shape {shape}, got {x.shape}")
        return answer(x, asked.boxes)

    @post("/predict/images")
    def predict_images(files: list[UploadFile], boxes: bool = False) -> Predictions:
        """Classify image files, each resized to what the model takes."""
        if kind != "images":
            raise HTTPException(422, "files must be left out: this model takes series, POST /predict")
        require_count("files", len(files))
        with tempfile.TemporaryDirectory() as folder:
            return answer(decoded(files, Path(folder)), boxes)

    def decoded(files: list[UploadFile], folder: Path) -> Iterator[npt.NDArray[np.uint8]]:
        left = int(limits.SERVE_PIXELS)
        for number, file in enumerate(files):
            path = folder / str(number)
            path.write_bytes(file.file.read())
            try:
                width, height = image_size(path)
                left -= width * height
                if width * height > limits.SERVE_IMAGE_PIXELS or left < 0:
                    most = f"{limits.SERVE_IMAGE_PIXELS:,} pixels each and {limits.SERVE_PIXELS:,} in all"
                    raise DataError(path, f"has {width}x{height} pixels, and images may have {most}")
                pixels = read_image(path, model.shape[0], (model.shape[1], model.shape[2]), model.framing)[0]
            except DataError as error:
                raise HTTPException(422, f"files[{number}]: {str(error).replace(f'{path}:', 'it')}") from None
            path.unlink()
            yield pixels

    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether the server is up."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Counts and times in Prometheus' format."""
        text, kind = prometheus_client.generate_latest(registry), prometheus_client.CONTENT_TYPE_LATEST
        return PlainTextResponse(text, media_type=kind)

    @app.get("/", response_class=HTMLResponse)
    def card() -> str:
        """What the model is, for people."""
        return _card(model.about, kind)

    if names is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    app.add_middleware(Guard, most_bytes=most_bytes, seconds=seconds, rate=rate, count=count, check=check)
    return app


def _card(about: dict[str, Any], kind: str) -> str:
    """The page at /: what the file says of the model, and how to ask it."""
    size = " by ".join(map(str, about["size"]))
    facts = {
        "takes": f"{kind} of {size}, {about['channels']} channel{'s' * (about['channels'] > 1)}",
        "classes": ", ".join(about["classes"][:50]) + ", …" * (len(about["classes"]) > 50),
        "learned from": about.get("supervision", ""), "data": about.get("data", ""),
        "samples": about.get("samples", "the mean transformation"),
        "abstention": Abstention(**rule) if (rule := about.get("abstention")) else "",
    }  # fmt: skip
    scores = {name: f"{value:.4g}" for name, value in about.get("metrics", {}).items() if value is not None}
    form = (
        '<h2>Try it</h2><form action="predict/images" method="post" enctype="multipart/form-data">'
        '<input type="file" name="files" accept="image/*" multiple required> <button>Classify</button></form>'
    )
    ask = "curl -F files=@photo.jpg ADDRESS/predict/images" if kind == "images" else "POST /predict"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>pstn</title>'
        '<meta name="viewport" content="width=device-width"><style>body{font:16px/1.5 sans-serif;max-width:44rem;'
        "margin:2rem auto;padding:0 1rem}th{text-align:left;padding-right:1rem}td,th{vertical-align:top}"
        "code{background:#eee;padding:.2em}</style>"
        f"<h1>A classifier of {kind}</h1>{_table(facts)}{'<h2>Scores</h2>' * bool(scores)}{_table(scores)}"
        f"{form * (kind == 'images')}<p><code>{ask}</code></p>"
        '<p><a href="docs">Interface</a> · <a href="openapi.json">OpenAPI</a> · <a href="metrics">Metrics</a></p>'
        "</html>"
    )


def _table(facts: dict[str, Any]) -> str:
    cells = ((html.escape(name), html.escape(str(value))) for name, value in facts.items() if value)
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"


def serve(
    path: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 8000, workers: int = 1,
    rate: float = limits.SERVE_RATE, most_bytes: int = limits.SERVE_BYTES, names: list[str] | None = None,
    proxies: list[str] | None = None,
) -> None:  # fmt: skip
    """Serve an ONNX file until the process is stopped; requests that were accepted are answered first.

    Args:
        path: the file.
        host: address to listen on.
        port: port to listen on.
        workers: processes that answer.
        rate: requests a second of one client, on average; 0 for any number.
        most_bytes: of a request's body.
        names: by which clients may call this host; any when not given.
        proxies: addresses or networks whose X-Forwarded-For is believed; none when not given.
    """
    OnnxModel(path)  # refuse a file that cannot be served before a port is taken
    settings = {"path": str(Path(path).absolute()), "rate": rate, "most_bytes": most_bytes, "names": names}
    os.environ[_SETTINGS] = json.dumps(settings)
    with tempfile.TemporaryDirectory() as folder:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        config = uvicorn.Config(
            "pstn.serve:create_app", factory=True, host=host, port=port, workers=workers, log_level="warning",
            http="pstn.serve:Protocol", ws="none", limit_concurrency=int(limits.SERVE_AT_ONCE),
            timeout_keep_alive=int(limits.SERVE_SECONDS), timeout_graceful_shutdown=int(limits.SERVE_SECONDS),
            proxy_headers=proxies is not None, forwarded_allow_ips=proxies,  # uvicorn would believe this machine's
        )  # fmt: skip
        listening, server = config.bind_socket(), uvicorn.Server(config)
        # Connections take it over. Without it a short answer waits 40 ms, for a client that waits for the rest of it.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            server.run(sockets=[listening])


def main(arguments: list[str] | None = None) -> None:
    """`python -m pstn.serve FILE`, without torch."""
    parser = argparse.ArgumentParser(prog="python -m pstn.serve", description="Serve an ONNX file of `pstn export`.")
    parser.add_argument("path", metavar="FILE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1, help="processes that answer")
    rate_help = "requests a second of one client, on average; 0 for any number; %(default)s by default"
    parser.add_argument("--rate", type=float, default=float(limits.SERVE_RATE), help=rate_help)
    parser.add_argument("--most-bytes", type=int, default=int(limits.SERVE_BYTES), help="of a request")
    parser.add_argument("--name", action="append", dest="names", help="host name by which clients may call it")
    proxy_help = "address or network of a proxy that says by X-Forwarded-For who the client is"
    parser.add_argument("--proxy", action="append", dest="proxies", type=_network, help=proxy_help)
    parser.add_argument("--temporary", action="store_true", help="in the end, remove FILE and its folder")
    given = vars(parser.parse_args(arguments))
    temporary = given.pop("temporary")
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn repeats them when it has stopped
        signal.signal(number, lambda *_: sys.exit())
    try:
        serve(**given)
    finally:
        if temporary:
            with suppress(OSError):
                Path(given["path"]).unlink()
                Path(given["path"]).parent.rmdir()


def _network(text: str) -> str:
    return str(ipaddress.ip_network(text))


if __name__ == "__main__":
    main()
