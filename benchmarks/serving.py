"""Requests a second and their times: `python -m pstn.serve`, beside a plain FastAPI app around the same ONNX file.

Usage:
    python benchmarks/serving.py OUT.json [--seconds 8] [--rounds 5]

Both run in two processes of uvicorn with one thread of onnxruntime for each batch, and take turns. Every request has
one image of 28x28 as JSON; the model is the P-STN of the MNIST subsets with ten samples, untrained. The plain app has
no limits, metrics or checks: `plain` below is all of it. It runs once more in a single process: with several, uvicorn
leaves Nagle's algorithm on, which makes a lone client wait 40 ms for each answer. The clients run on the same machine
and take a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI

import pstn
from pstn.export import export_onnx
from recording import Stopwatch, write

SAMPLES, WORKERS, CLIENTS = 10, 2, (1, 200)


def plain() -> FastAPI:
    """What one would write: no more than a session and a function."""
    import onnxruntime
    from pydantic import BaseModel

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
    width = session.get_inputs()[1].shape[-1]
    noise = np.random.default_rng(0).random((SAMPLES, 1, width), np.float32)
    app = FastAPI()

    class Inputs(BaseModel):
        inputs: list[Any]

    def predict(asked: Inputs) -> dict[str, Any]:
        x = np.asarray(asked.inputs, np.float32)
        names = ["probabilities", "entropy", "mutual_information"]
        found = session.run(names, {"x": x, "noise": noise.repeat(len(x), 1)})
        return {name: values.tolist() for name, values in zip(names, found, strict=True)}

    predict.__annotations__["asked"] = Inputs
    app.post("/predict")(predict)
    return app


async def ask_again_and_again(port: int, request: bytes, until: float, times: list[float]) -> None:
    """One client: the next request when the last is answered, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"refused: {head!r}")
        times.append(time.perf_counter() - start)
    writer.close()


async def load(port: int, request: bytes, clients: int, seconds: float) -> dict[str, float]:
    """Figures of so many clients at once."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(ask_again_and_again(port, request, until, times) for _ in range(clients)))
    p50, p99 = np.percentile(times, [50, 99])
    return {"requests_per_second": len(times) / seconds, "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99}


def measure(command: list[str], model: Path, request: bytes, seconds: float) -> dict[int, dict[str, float]]:
    """Start a server, ask it, stop it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {**os.environ, "MODEL": str(model), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, f"--port={port}"], env=environment, cwd=Path(__file__).parent)
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio.run(load(port, request, 20, 2.0))  # until all processes are warm
        return {clients: asyncio.run(load(port, request, clients, seconds)) for clients in CLIENTS}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    watch, load_before = Stopwatch(), os.getloadavg()[0]
    torch.manual_seed(0)
    localizer = pstn.nn.ConvLocalizer(1, (28, 28))
    network = pstn.nn.ConvClassifier(1, (28, 28), 10)
    made = pstn.PSTN(pstn.SpatialTransformer(pstn.Similarity(), localizer), network, test_samples=SAMPLES)
    made.about = pstn.nn.ModelMetadata(tuple("0123456789"), 1, (28, 28))
    pixels = np.random.default_rng(0).random((1, 1, 28, 28)).round(3).tolist()
    body = json.dumps({"inputs": pixels}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    rounds: list[dict[str, dict[int, dict[str, float]]]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = export_onnx(made, Path(folder) / "model.onnx", samples=SAMPLES)
        two = f"--workers={WORKERS}"
        plain_app = [sys.executable, "-m", "uvicorn", "serving:plain", "--factory", "--log-level=warning"]
        commands = {
            "pstn": [sys.executable, "-m", "pstn.serve", str(model), two, "--rate=0"],
            "plain": [*plain_app, two],
            "plain, one process": plain_app,
        }
        for number in range(given.rounds):
            order = list(commands)[:: 1 if number % 2 == 0 else -1]
            rounds.append({name: measure(commands[name], model, head.encode() + body, given.seconds) for name in order})
    rows = []
    for clients in CLIENTS:
        for name in commands:
            found = [each[name][clients] for each in rounds]
            medians = {key: round(statistics.median(row[key] for row in found), 2) for key in found[0]}
            rows.append({"server": name, "clients": clients, **medians})
    ratios = {
        f"{peer}, {clients}": {
            key: round(statistics.median(each["pstn"][clients][key] / each[peer][clients][key] for each in rounds), 3)
            for key in ("requests_per_second", "p99_ms")
        }
        for peer in list(commands)[1:]
        for clients in CLIENTS
    }
    figures = {
        "seconds": given.seconds, "rounds": given.rounds, "workers": WORKERS, "samples": SAMPLES,
        "cores": os.cpu_count(), "load_before": round(load_before, 2), "load_after": round(os.getloadavg()[0], 2),
        "medians": rows, "pstn_over": ratios, "all": rounds,
    }  # fmt: skip
    write(given.out, figures, seed=0, watch=watch, packages=("onnxruntime", "fastapi", "uvicorn"))


if __name__ == "__main__":
    main()
