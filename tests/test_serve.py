"""The server: the answers of `pstn predict`, without torch, and refusals that cost little."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import pstn
from pstn.export import export_onnx
from pstn.limits import SERVE_INPUTS
from pstn.nn import ConvClassifier, ConvLocalizer, ModelMetadata, SeriesClassifier, SeriesLocalizer
from pstn.noise import draw_noise
from pstn.predict import predict_files
from pstn.serve import Guard, OnnxModel, create_app
from shared_models import moved


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(3, (12, 10), (3,), 3), fill=(0.1, 0.2, 0.3))
    made = moved(pstn.PSTN(layer, ConvClassifier(3, (12, 10), 2, (3,), 4, 3), test_samples=4), 0.05)
    made.about = ModelMetadata(("cat", "<dog>"), 3, (12, 10), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), supervision="labels")
    return made


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    return export_onnx(model, tmp_path_factory.mktemp("served") / "model.onnx", samples=4)


@pytest.fixture(scope="module")
def unlimited(file):
    with TestClient(create_app(file)) as client:
        yield client


@pytest.fixture(scope="module")
def client(file):
    with TestClient(create_app(file, most_bytes=100_000)) as client:
        yield client


def photo(seed=0, size=(31, 22)):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def upload(*contents):
    return [("files", (f"{n}.png", content)) for n, content in enumerate(contents)]


def test_answers_are_those_of_predict(model, client, tmp_path):
    paths = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, path in enumerate(paths):
        path.write_bytes(photo(seed))
    expected = list(predict_files(model, paths))
    response = client.post("/predict/images", files=upload(*(path.read_bytes() for path in paths)))
    assert response.status_code == 200, response.text
    for found, answer in zip(response.json()["predictions"], expected, strict=True):
        assert found["label"] == answer.label
        assert list(found["probabilities"].values()) == pytest.approx(answer.probabilities, abs=1e-5)
        assert found["entropy"] == pytest.approx(answer.entropy, abs=1e-5)
        assert found["mutual_information"] == pytest.approx(answer.mutual_information, abs=1e-5)
        assert "boxes" not in found


def test_numbers_are_classified_as_the_model_does(model, client):
    x = torch.rand(2, 3, 12, 10, generator=torch.Generator().manual_seed(1))
    response = client.post("/predict", json={"inputs": x.tolist(), "boxes": True})
    found = response.json()["predictions"]
    noise = draw_noise(4, (1, model.layer.noise_width), generator=torch.Generator().manual_seed(0)).expand(-1, 2, -1)
    with torch.no_grad():
        expected = model(model.about.prepare(x), noise=noise).probs
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in found], expected, atol=1e-5)
    assert np.shape([row["boxes"] for row in found]) == (2, 4, 4, 2)
    alone = client.post("/predict", json={"inputs": x[1:].tolist()}).json()["predictions"]
    assert alone[0]["probability"] == pytest.approx(found[1]["probability"], abs=1e-6)  # neighbours do not matter


def test_one_channel_may_be_left_out_and_series_are_taken(tmp_path):
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), SeriesLocalizer(1, (3, 4), (5, 3)), size=(20,))
    made = moved(pstn.PSTN(layer, SeriesClassifier(1, 3, (3, 4), (4, 3))), 0.05)
    made.about = ModelMetadata(tuple("abc"), 1, (20,))
    with TestClient(create_app(export_onnx(made, tmp_path / "series.onnx", samples=2))) as client:
        x = torch.rand(2, 1, 20)
        flat, full = (client.post("/predict", json={"inputs": v.tolist()}).json() for v in (x[:, 0], x))
        assert flat == full
        refused = client.post("/predict/images", files=upload(photo()))
        assert (refused.status_code, "files" in refused.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    "inputs",
    [[], [[1, 2]], [[[["a"]]]], "text", None, [[[[float("nan")] * 10] * 12] * 3], [[[[1e39] * 10] * 12] * 3],
     [[[[0.5] * 10] * 12] * 2], [[[[0.5] * 10] * 12] * 3] * (SERVE_INPUTS + 1)],
    ids=["empty", "shape", "text", "no list", "null", "nan", "inf", "channels", "many"],
)  # fmt: skip
def test_numbers_that_cannot_be_used_are_refused(unlimited, inputs):
    content = json.dumps({"inputs": inputs})
    response = unlimited.post("/predict", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert "inputs" in response.text


@pytest.mark.parametrize("content", [b"", b"no image", photo()[:60], b"GIF89a" + bytes(50)])
def test_files_that_do_not_decode_are_refused(client, content):
    response = client.post("/predict/images", files=upload(photo(), content))
    assert response.status_code == 422
    assert "files[1]" in response.json()["detail"]
    assert "/tmp" not in response.text


def test_malformed_requests(client):
    assert client.post("/predict", content=b"{", headers={"content-type": "application/json"}).status_code == 422
    assert client.post("/predict/images", data={"x": "1"}).status_code == 422
    assert client.get("/predict").status_code == 405
    assert client.get("/nothing").status_code == 404


def test_large_requests_are_refused(client):
    assert client.post("/predict", content=bytes(100_001)).status_code == 413


def guarded(**settings):
    """A guard's answer to one request after another: (status, body that the application read)."""
    seen = []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(app, **{"most_bytes": 100, "seconds": 5.0, "rate": 0.0, **settings})

    async def ask(receive, client="1.2.3.4"):
        sent = []
        scope = {"type": "http", "path": "/predict", "headers": [], "client": (client, 1), "method": "POST"}

        async def send(message):
            sent.append(message)

        await guard(scope, receive, send)
        return sent[0]["status"]

    return ask, seen


async def short():
    return {"type": "http.request", "body": b"body", "more_body": False}


def test_slow_requests_are_given_up():
    ask, seen = guarded(seconds=0.05)

    async def never():
        await asyncio.sleep(60)

    started = time.monotonic()
    assert asyncio.run(ask(never)) == 408
    assert time.monotonic() - started < 5
    assert not seen


def test_a_body_without_an_end_is_not_read_on():
    ask, seen = guarded()
    parts = []

    async def endless():
        parts.append(1)
        return {"type": "http.request", "body": bytes(30), "more_body": True}

    assert asyncio.run(ask(endless)) == 413
    assert (len(parts), seen) == (4, [])


def test_a_client_that_asks_too_often_is_refused_and_another_is_not():
    ask, seen = guarded(rate=0.5)

    async def several():
        return [await ask(short) for _ in range(3)], await ask(short, client="5.6.7.8")

    assert asyncio.run(several()) == ([200, 429, 429], 200)
    assert seen == [b"body"] * 2


def test_any_rate_without_a_limit():
    ask, _ = guarded(rate=0.0)

    async def many():
        return {await ask(short) for _ in range(200)}

    assert asyncio.run(many()) == {200}


def test_health_metrics_and_the_card(client):
    assert client.get("/health").json() == {"status": "ok"}
    client.post("/predict/images", files=upload(photo()))
    text = client.get("/metrics").text
    assert 'pstn_requests_total{path="/predict/images",status="200"}' in text
    assert "pstn_request_seconds_bucket" in text
    page = client.get("/").text
    assert "&lt;dog&gt;" in page
    assert "labels" in page
    assert "/predict/images" in client.get("/openapi.json").json()["paths"]


def test_host_names(file):
    with TestClient(create_app(file, names=["own.example"])) as client:
        assert client.get("/health").status_code == 400
        assert client.get("/health", headers={"host": "own.example"}).status_code == 200


def test_a_file_that_is_no_model_is_refused(tmp_path):
    import onnx

    with pytest.raises(FileNotFoundError, match="MODEL"):
        OnnxModel(tmp_path / "none.onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([], "nothing", [value], [value])
    other = tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), other)
    with pytest.raises(ValueError, match="MODEL"):
        OnnxModel(other)


def test_the_process_never_loads_torch(file):
    code = (
        "import sys; from starlette.testclient import TestClient; from pstn.serve import create_app\n"
        "client = TestClient(create_app(sys.argv[1]))\n"
        "x = [[[[0.5] * 10] * 12] * 3]\n"
        "assert client.post('/predict', json={'inputs': x}).status_code == 200\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(file)], check=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """A server in a process of its own."""

    def __init__(self, *arguments, log):
        self.port, self.log = free_port(), log
        command = [sys.executable, *arguments, f"--port={self.port}"]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        self.address = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            try:
                httpx.get(f"{self.address}/health", timeout=5)
                return self
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_command_serves_a_model_folder(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    folder = pstn.save_pretrained(model, tmp_path / "model")
    with Server("-m", "pstn.cli", "serve", str(folder), "--rate=0", log=tmp_path / "log") as server:
        answer = httpx.post(f"{server.address}/predict/images", files=upload(photo()), timeout=30).json()
        assert answer["predictions"][0]["label"] in model.about.classes
    assert server.process.returncode in (0, -signal.SIGTERM)
    assert Path(tmp_path / "cache" / "served").is_dir()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_two_hundred_clients_for_twenty_seconds(file, tmp_path):
    """No error; the requests a second and the 99th percentile are printed."""

    async def client(session, until, times):
        while time.monotonic() < until:
            started = time.monotonic()
            response = await session.post("/predict", content=body, headers={"content-type": "application/json"})
            assert response.status_code == 200, response.text
            times.append(time.monotonic() - started)

    async def everybody(address):
        times: list[float] = []
        most = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=most) as session:
            until = time.monotonic() + 20
            await asyncio.gather(*(client(session, until, times) for _ in range(200)))
        return times

    body = json.dumps({"inputs": np.full((1, 3, 12, 10), 0.5).tolist()})
    with Server("-m", "pstn.serve", str(file), "--workers=2", log=tmp_path / "log") as server:
        with httpx.Client(base_url=server.address) as alone:
            alone_times = [alone.post("/predict", content=body).elapsed.total_seconds() for _ in range(30)]
        assert min(alone_times) < 0.03  # no answer waits 40 ms for an acknowledgement
        times = np.sort(asyncio.run(everybody(server.address)))
        text = httpx.get(f"{server.address}/metrics").text
    counted = [
        line for line in text.splitlines() if line.startswith('pstn_requests_total{path="/predict",status="200"}')
    ]
    assert float(counted[0].split()[-1]) == len(times)  # both processes' together
    print(f"{len(times) / 20:.0f} requests a second, p99 {1e3 * times[int(0.99 * len(times))]:.0f} ms")


def test_the_container_is_well_formed():
    yaml = pytest.importorskip("yaml")
    deploy = Path(__file__).parents[1] / "deploy"
    hadolint = Path(sys.executable).with_name("hadolint")
    if hadolint.exists():
        subprocess.run([hadolint, deploy / "Dockerfile"], check=True)
    [service] = yaml.safe_load((deploy / "compose.yaml").read_text())["services"].values()
    assert (deploy / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    copied = [line.split()[1:-1] for line in (deploy / "Dockerfile").read_text().splitlines() if line[:4] == "COPY"]
    assert all((deploy.parent / name).exists() for names in copied for name in names)
