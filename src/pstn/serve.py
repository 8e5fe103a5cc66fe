"""An HTTP server for an exported model: onnxruntime, FastAPI and uvicorn, in processes that never load torch.

`pstn serve MODEL` exports a model and starts `python -m pstn.serve FILE`; a container needs the file alone.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import math
import os
import socket
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
import numpy.typing as npt
import onnxruntime
import prometheus_client
import uvicorn
from fastapi import FastAPI, HTTPException, UploadFile
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from pstn import limits
from pstn.decode import read_image
from pstn.files import DataError, parse_json

__all__ = ["OnnxModel", "create_app", "main", "serve"]

_SETTINGS = "PSTN_SERVE"  # what the processes of a server are told, in their environment
_FREE = ("/health", "/metrics")  # paths without a limit on their rate
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
            if boxes and "boxes" in out:
                answer["boxes"] = out["boxes"][:, i].tolist()
            answers.append(answer)
        return answers


class Inputs(BaseModel):
    """Numbers to classify."""

    inputs: Annotated[list[Any], Field(min_length=1)]
    """(B, C, *size), or (B, *size) for one channel: pixels from 0 to 1, or the values of series."""
    boxes: bool = False


class Predictions(BaseModel):
    """An answer for each input."""

    predictions: list[dict[str, Any]]


@final
class Guard:
    """Refuses requests that are too large, too slow or too many, before anything reads them.

    Args:
        app: what answers the others.
        most_bytes: of a request's body.
        seconds: that a body may take to arrive.
        rate: requests a second of one client, on average; 0 for any number. Each process counts its own.
    """

    def __init__(self, app: ASGIApp, *, most_bytes: int, seconds: float, rate: float) -> None:
        self.app, self.most_bytes, self.seconds, self.rate = app, most_bytes, seconds, rate
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body, or answer why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._require_rate(scope)
            async with asyncio.timeout(self.seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            refusal = HTTPException(408, f"the request must arrive within {self.seconds:g} seconds")
        except HTTPException as error:
            refusal = error
        else:
            messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return messages.pop() if messages else await receive()

            await self.app(scope, replay, send)
            return
        # The rest of a body that is too large is not read: the connection closes.
        headers = {"Connection": "close", **(refusal.headers or {})}
        await JSONResponse({"detail": refusal.detail}, refusal.status_code, headers)(scope, receive, send)

    def _require_rate(self, scope: Scope) -> None:
        if not self.rate or scope["path"] in _FREE:
            return
        client, now = (scope.get("client") or ("",))[0], time.monotonic()
        most = max(1.0, 2 * self.rate)  # a burst of two seconds
        tokens, last = self._clients.pop(client, (most, now))
        tokens = min(most, tokens + (now - last) * self.rate)
        self._clients[client] = (max(tokens - 1, 0.0), now)
        if len(self._clients) > _REMEMBERED:
            self._clients.popitem(last=False)
        if tokens < 1:
            raise HTTPException(429, f"at most {self.rate:g} requests a second", {"Retry-After": "1"})

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        too_large = HTTPException(413, f"the request must have at most {self.most_bytes:,} bytes")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.most_bytes:
            raise too_large
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "the client left before the request was complete")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.most_bytes:
                raise too_large
        return bytes(body)


def create_app(
    path: str | os.PathLike[str] | None = None,
    *,
    most_bytes: int = limits.SERVE_BYTES,
    seconds: float = limits.SERVE_BODY_SECONDS,
    rate: float = 0.0,
    names: list[str] | None = None,
) -> FastAPI:
    """The application: POST /predict and /predict/images, GET /, /health, /metrics, /docs and /openapi.json.

    Args:
        path: an ONNX file of `pstn export`; without it, all arguments are what `serve` has put into the environment.
        most_bytes: of a request's body.
        seconds: that a body may take to arrive.
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
        counted = None
    else:
        counted = registry
    requests = prometheus_client.Counter(
        "pstn_requests", "Requests by path and status", ["path", "status"], registry=counted
    )
    answered = prometheus_client.Counter("pstn_inputs", "Inputs that were classified", registry=counted)
    latency = prometheus_client.Histogram("pstn_request_seconds", "Time of a request", ["path"], registry=counted)

    app = FastAPI(title="pstn", description=f"A classifier of {kind}.", version=str(model.about.get("seed", 0)))
    routes = {"/", "/health", "/metrics", "/predict", "/predict/images", "/docs", "/openapi.json"}

    @app.middleware("http")
    async def measure(request: Any, call_next: Any) -> Any:
        path, started = request.url.path if request.url.path in routes else "other", time.perf_counter()
        response = await call_next(request)
        requests.labels(path, response.status_code).inc()
        latency.labels(path).observe(time.perf_counter() - started)
        return response

    def answer(x: npt.NDArray[Any], boxes: bool) -> Predictions:
        try:
            found = Predictions(predictions=model.predict(x, boxes=boxes))
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        answered.inc(len(x))
        return found

    def require_count(name: str, count: int) -> None:
        if count > limits.SERVE_INPUTS:
            raise HTTPException(422, f"{name} must be at most {limits.SERVE_INPUTS} at once, got {count}")

    @app.post("/predict", response_model=Predictions)
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

    @app.post("/predict/images", response_model=Predictions)
    def predict_images(files: list[UploadFile], boxes: bool = False) -> Predictions:
        """Classify image files, each resized to what the model takes."""
        if kind != "images":
            raise HTTPException(422, "files must be left out: this model takes series, POST /predict")
        require_count("files", len(files))
        pixels = []
        with tempfile.TemporaryDirectory() as folder:
            for number, file in enumerate(files):
                path = Path(folder) / str(number)
                path.write_bytes(file.file.read())
                try:
                    pixels.append(read_image(path, model.shape[0], (model.shape[1], model.shape[2]))[0])
                except DataError as error:
                    name = f"files[{number}]"
                    raise HTTPException(422, f"{name}: {str(error).replace(str(path), 'it')}") from None
                path.unlink()
        return answer(np.stack(pixels), boxes)

    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether the server is up."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Counts and times in Prometheus' format."""
        return PlainTextResponse(
            prometheus_client.generate_latest(registry), media_type=prometheus_client.CONTENT_TYPE_LATEST
        )

    @app.get("/", response_class=HTMLResponse)
    def card() -> str:
        """What the model is, for people."""
        return _card(model.about, kind)

    app.add_middleware(Guard, most_bytes=most_bytes, seconds=seconds, rate=rate)
    if names is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    return app


def _card(about: dict[str, Any], kind: str) -> str:
    """The page at /: what the file says of the model, and how to ask it."""
    size = " by ".join(map(str, about["size"]))
    facts = {
        "takes": f"{kind} of {size}, {about['channels']} channel{'s' * (about['channels'] > 1)}",
        "classes": ", ".join(about["classes"][:50]) + ", …" * (len(about["classes"]) > 50),
        "learned from": about.get("supervision", ""), "data": about.get("data", ""),
        "samples": about.get("samples", "the mean transformation"),
        **{name: f"{value:.4g}" for name, value in about.get("metrics", {}).items() if value is not None},
    }  # fmt: skip
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value
    )
    ask = "curl -F files=@photo.jpg ADDRESS/predict/images" if kind == "images" else "POST /predict"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>pstn</title>'
        '<meta name="viewport" content="width=device-width"><style>body{font:16px/1.5 sans-serif;max-width:44rem;'
        "margin:2rem auto;padding:0 1rem}th{text-align:left;vertical-align:top;padding-right:1rem;white-space:nowrap}"
        "code{background:#eee;padding:.2em}</style>"
        f"<h1>A classifier of {kind}</h1><table>{rows}</table><p><code>{ask}</code></p>"
        '<p><a href="docs">Try it</a> · <a href="openapi.json">OpenAPI</a> · <a href="metrics">Metrics</a></p></html>'
    )


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    rate: float = 0.0,
    most_bytes: int = limits.SERVE_BYTES,
    names: list[str] | None = None,
) -> None:
    """Serve an ONNX file until the process is stopped; requests that were accepted are answered first.

    Args:
        path: the file.
        host: address to listen on.
        port: port to listen on.
        workers: processes that answer.
        rate: requests a second of one client, on average; 0 for any number.
        most_bytes: of a request's body.
        names: by which clients may call this host; any when not given.
    """
    OnnxModel(path)  # refuse a file that cannot be served before a port is taken
    settings = {"path": str(Path(path).absolute()), "rate": rate, "most_bytes": most_bytes, "names": names}
    os.environ[_SETTINGS] = json.dumps(settings)
    with tempfile.TemporaryDirectory() as folder:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        config = uvicorn.Config(
            "pstn.serve:create_app", factory=True, host=host, port=port, workers=workers, log_level="warning",
            limit_concurrency=int(limits.SERVE_AT_ONCE), timeout_keep_alive=30, timeout_graceful_shutdown=30,
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
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second of one client; 0 for any number")
    parser.add_argument("--most-bytes", type=int, default=int(limits.SERVE_BYTES), help="of a request")
    parser.add_argument("--name", action="append", dest="names", help="host name by which clients may call it")
    serve(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
