"""The server: the answers of `pstn predict`, without torch, and refusals that cost little."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import pstn
from pstn import limits
from pstn.decode import read_image
from pstn.export import export_onnx
from pstn.framing import Framing
from pstn.nn import ConvClassifier, ConvLocalizer, ModelMetadata, SeriesClassifier, SeriesLocalizer
from pstn.noise import draw_noise
from pstn.predict import predict_files
from pstn.serve import Guard, OnnxModel, create_app, main
from served import ABOUT, MOST_MEMORY, Server, tiny_model
from shared_models import moved
from small_runs import run_command

JSON = {"content-type": "application/json"}
NUMBERS = {"inputs": np.full((1, 3, 12, 10), 0.5).tolist()}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(pstn.Similarity(), ConvLocalizer(3, (12, 10), (3,), 3), fill=(0.1, 0.2, 0.3))
    made = moved(pstn.PSTN(layer, ConvClassifier(3, (12, 10), 2, (3,), 4, 3), test_samples=4), 0.05)
    made.about = ModelMetadata(("cat", "<dog>"), 3, (12, 10), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), supervision="labels")
    made.about = replace(made.about, framing=Framing(0.6, "bilinear"), metrics={"accuracy": 0.93, "ece": 0.0233})
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
     [[[[0.5] * 10] * 12] * 2], [[[[0.5] * 10] * 12] * 3] * (limits.SERVE_INPUTS + 1)],
    ids=["empty", "shape", "text", "no list", "null", "nan", "inf", "channels", "many"],
)  # fmt: skip
def test_numbers_that_cannot_be_used_are_refused(unlimited, inputs):
    content = json.dumps({"inputs": inputs})
    response = unlimited.post("/predict", content=content, headers=JSON)
    assert response.status_code == 422
    assert "inputs" in response.text


@pytest.mark.parametrize("content", [b"", b"no image", photo()[:60], b"GIF89a" + bytes(50)])
def test_files_that_do_not_decode_are_refused(client, content):
    response = client.post("/predict/images", files=upload(photo(), content))
    assert response.status_code == 422
    assert "files[1]" in response.json()["detail"]
    assert "/tmp" not in response.text


def test_malformed_requests(client):
    assert client.post("/predict", content=b"{", headers=JSON).status_code == 422
    assert client.post("/predict/images", data={"x": "1"}).status_code == 422
    deep = client.post("/predict", content=b"[" * 99_000, headers=JSON)
    assert (deep.status_code, deep.json()["detail"][:6]) == (422, "inputs")  # before it is parsed
    assert client.get("/predict").status_code == 405
    assert client.get("/nothing").status_code == 404


def test_large_requests_are_refused(client):
    assert client.post("/predict", content=bytes(100_001)).status_code == 413


def guarded(**settings):
    """What asks a guard, the bodies that its application reads, and what it counts."""
    seen, counted = [], []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def count(path, status, seconds):
        counted.append((path, status))

    standard = {"most_bytes": 100, "seconds": 5.0, "rate": 0.0, "count": count, "check": lambda *_: None}
    guard = Guard(**{"app": app, **standard, **settings})

    async def ask(receive, client="1.2.3.4", method="POST"):
        sent = []
        scope = {"type": "http", "path": "/predict", "headers": [], "client": (client, 1), "method": method}

        async def send(message):
            sent.append(message)

        await guard(scope, receive, send)
        return sent[0]["status"]

    return ask, seen, counted


async def short():
    return {"type": "http.request", "body": b"body", "more_body": False}


def test_slow_requests_are_given_up():
    ask, seen, counted = guarded(seconds=0.05)

    async def never():
        await asyncio.sleep(60)

    started = time.monotonic()
    assert asyncio.run(ask(never)) == 408
    assert time.monotonic() - started < 5
    assert (seen, counted) == ([], [("/predict", 408)])


def test_a_body_without_an_end_is_not_read_on():
    ask, seen, _ = guarded()
    parts = []

    async def endless():
        parts.append(1)
        return {"type": "http.request", "body": bytes(30), "more_body": True}

    assert asyncio.run(ask(endless)) == 413
    assert (len(parts), seen) == (4, [])


def test_a_client_that_asks_too_often_is_refused_and_another_is_not():
    ask, seen, counted = guarded(rate=0.5)

    async def several():
        return [await ask(short) for _ in range(3)], await ask(short, client="5.6.7.8")

    assert asyncio.run(several()) == ([200, 429, 429], 200)
    assert seen == [b"body"] * 2
    assert [status for _, status in counted] == [200, 429, 429, 200]


@pytest.mark.parametrize("asked", [25, 40, 1000])  # a second
def test_a_client_above_the_limit_is_answered_at_the_limit(asked, monkeypatch):
    clock = iter(np.arange(0, 20, 1 / asked))
    monkeypatch.setattr("pstn.serve.time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.time))
    ask, *_ = guarded(rate=20.0)

    async def twenty_seconds():
        return [await ask(short) for _ in range(20 * asked)]

    last = asyncio.run(twenty_seconds())[10 * asked :]
    assert last.count(200) == pytest.approx(10 * 20, abs=1)


def test_any_rate_without_a_limit():
    ask, *_ = guarded(rate=0.0)

    async def many():
        return {await ask(short) for _ in range(200)}

    assert asyncio.run(many()) == {200}


def crowd(count, *, slowly=False, **settings):
    """Statuses of as many requests at once as `count`, and one that only asks; and how many were answered at once."""
    active, most = 0, 0

    async def app(scope, receive, send):
        nonlocal active, most
        active += scope["method"] == "POST"
        most = max(most, active)
        await asyncio.sleep(60 if slowly and scope["method"] == "POST" else 0)
        active -= scope["method"] == "POST"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    ask, _, _ = guarded(app=app, **settings)

    async def all_of_them():
        posts = [asyncio.create_task(ask(short)) for _ in range(count)]
        await asyncio.sleep(0)
        only_asks = await ask(short, method="GET")
        done, rest = await asyncio.wait(posts, timeout=1 if slowly else 30)
        for task in rest:
            task.cancel()
        return [task.result() for task in done], only_asks

    return *asyncio.run(all_of_them()), most


def test_few_requests_are_worked_on_at_once_and_the_others_wait():
    assert crowd(20) == ([200] * 20, 200, limits.SERVE_TURNS)


def test_what_waits_for_long_or_is_too_much_is_refused(monkeypatch):
    assert crowd(5, slowly=True, seconds=0.1) == ([503] * 3, 200, limits.SERVE_TURNS)
    monkeypatch.setattr(limits, "SERVE_HELD", 10)  # two requests of 4 bytes, and the one that only asks has 4, too
    assert crowd(4, slowly=True, most_bytes=8)[0] == [503] * 2


def test_refused_requests_are_counted(file):
    with TestClient(create_app(file, most_bytes=100, rate=0.5, names=["own.example"])) as client:
        statuses = [
            client.post("/predict", content=bytes(101), headers={"host": "own.example"}).status_code,
            client.post("/predict", content=b"{}", headers={"host": "own.example"}).status_code,
        ]
        text = client.get("/metrics", headers={"host": "own.example"}).text
        client.get("/health")
        found = client.get("/metrics", headers={"host": "own.example"}).text
    assert statuses == [413, 429]
    assert all(f'pstn_requests_total{{path="/predict",status="{status}"}} 1.0' in text for status in statuses)
    assert 'pstn_requests_total{path="/health",status="400"} 1.0' in found


def test_images_of_many_pixels_are_refused_undecoded(client, monkeypatch):
    monkeypatch.setattr(limits, "SERVE_IMAGE_PIXELS", 31 * 22)
    monkeypatch.setattr(limits, "SERVE_PIXELS", 2 * 31 * 22)
    decoded = []
    monkeypatch.setattr("pstn.serve.read_image", lambda *given: decoded.append(given) or read_image(*given))
    assert client.post("/predict/images", files=upload(photo(), photo())).status_code == 200
    for large in (upload(photo(size=(31, 23))), upload(photo(), photo(), photo())):
        response = client.post("/predict/images", files=large)
        assert response.status_code == 422
        assert f"files[{len(large) - 1}]" in response.text
    assert len(decoded) == 4


def test_many_inputs_are_classified_in_parts(file, monkeypatch):
    x = np.random.default_rng(0).random((7, 3, 12, 10))
    together = OnnxModel(file)
    monkeypatch.setattr("pstn.serve._VALUES", 3 * 4 * 360)
    assert OnnxModel(file).together == 3 < together.together
    with TestClient(create_app(file)) as parts:
        found = parts.post("/predict", json={"inputs": x.tolist()}).json()["predictions"]
    expected = together.predict(x)
    assert [f["label"] for f in found] == [e["label"] for e in expected]
    np.testing.assert_allclose([f["probability"] for f in found], [e["probability"] for e in expected], atol=1e-5)


def test_a_refusal_does_not_send_the_request_back(client):
    response = client.post("/predict", json={"inputs": "x" * 50_000})
    assert (response.status_code, len(response.text) < 1_000) == (422, True)


def test_the_server_is_for_this_machine_alone_and_has_one_rate_unless_told_otherwise(file, monkeypatch):
    told = []
    monkeypatch.setattr("pstn.serve.serve", lambda path, **settings: told.append(settings))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    main([str(file)])
    monkeypatch.setattr("os.execv", lambda _, command: main(command[3:]))
    assert run_command("serve", file).exit_code == 0
    assert [(found["host"], found["rate"]) for found in told] == [("127.0.0.1", limits.SERVE_RATE)] * 2


def test_health_metrics_and_the_card(client):
    assert client.get("/health").json() == {"status": "ok"}
    client.post("/predict/images", files=upload(photo()))
    text = client.get("/metrics").text
    assert 'pstn_requests_total{path="/predict/images",status="200"}' in text
    assert "pstn_request_seconds_bucket" in text
    page = client.get("/").text
    assert "&lt;dog&gt;" in page
    assert "labels" in page
    assert "<th>accuracy</th><td>0.93</td>" in page
    assert "<th>ece</th><td>0.0233</td>" in page
    assert "http" not in page  # nothing comes from elsewhere
    form = re.search(
        '<form action="(.*?)" method="post" enctype="multipart/form-data"><input type="file" name="(.*?)"', page
    )
    answer = client.post(f"/{form[1]}", files=[(form[2], ("a.png", photo()))])
    assert answer.status_code == 200


def test_the_interface_says_what_an_answer_holds_and_when_there_is_none(client):
    interface = client.get("/openapi.json").json()
    assert interface["info"]["version"] == pstn.__version__
    parts = interface["components"]["schemas"]
    assert parts["Predictions"]["properties"]["predictions"]["items"] == {"$ref": "#/components/schemas/Answer"}
    for path, request in (("/predict", {"json": NUMBERS}), ("/predict/images?boxes=true", {"files": upload(photo())})):
        stated = interface["paths"][path.partition("?")[0]]["post"]["responses"]
        assert {"200", "408", "413", "422", "429", "503"} <= stated.keys()
        [answer] = client.post(path, **request).json()["predictions"]
        assert {"label", "probability", "probabilities", "entropy", "mutual_information"} <= answer.keys()
        assert answer.keys() <= parts["Answer"]["properties"].keys()
        assert None not in answer.values()
        assert ("boxes" in answer) == ("boxes" in path)


@pytest.mark.parametrize(("options", "wanted"), [((), [200, 429]), (("--proxy=127.0.0.1",), [200, 200])])
def test_the_address_that_counts_is_the_connections_unless_a_proxy_says_another(options, wanted, tmp_path):
    command = ("-m", "pstn.serve", str(tiny_model(tmp_path / "tiny.onnx")), "--rate=0.1", *options)
    with Server(*command, log=tmp_path / "log") as server:
        addresses = [{"x-forwarded-for": f"1.2.3.{number}"} for number in range(2)]
        assert [httpx.get(server.address, headers=headers).status_code for headers in addresses] == wanted


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


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_command_serves_a_model_folder(model, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    folder = pstn.save_pretrained(model, tmp_path / "model")
    with Server("-m", "pstn.cli", "serve", str(folder), "--rate=0", log=tmp_path / "log") as server:
        answer = httpx.post(f"{server.address}/predict/images", files=upload(photo()), timeout=30).json()
        assert answer["predictions"][0]["label"] in model.about.classes
    assert server.process.returncode in (0, -signal.SIGTERM)
    assert list((tmp_path / "cache").rglob("*.onnx")) == []
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert [name for name in left if name.startswith(("pstn", "tmp"))] == []


OWN_NETWORK = """
from torch import nn


def make(classes, width=4):
    layers = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width, classes))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of a wrapped classifier, which a function of the user's made; photos; and the answers to expect."""
    name = f"own_network_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    make = import_module(name).make
    torch.manual_seed(0)
    network = pstn.set_constructor(make(2), make, classes=2)
    network.train()(torch.rand(8, 3, 12, 10))  # so that its batch norm has statistics of its own
    wrapped = moved(pstn.wrap(network, "similarity", in_channels=3, test_samples=4), 0.02)
    wrapped.temperature = 1.3
    about = ModelMetadata(("cat", "dog"), 3, (12, 10), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    folder = pstn.save_pretrained(wrapped, tmp_path / "model", about=about)
    photos = []
    for seed in range(3):
        photos.append(tmp_path / f"{seed}.png")
        photos[-1].write_bytes(photo(seed))
    monkeypatch.delitem(sys.modules, name)
    wrapped.about = about
    return folder, f"{name}:make", photos, list(predict_files(wrapped, photos))


def check_answers(response, expected):
    assert response.status_code == 200, response.text
    for found, answer in zip(response.json()["predictions"], expected, strict=True):
        assert found["label"] == answer.label
        assert list(found["probabilities"].values()) == pytest.approx(answer.probabilities, abs=1e-5)
        assert found["mutual_information"] == pytest.approx(answer.mutual_information, abs=1e-5)


def test_the_command_predicts_with_a_wrapped_classifier_of_ones_own(own):
    folder, allowed, photos, expected = own
    refused = run_command("predict", folder, photos[0])
    assert (refused.exit_code, allowed in refused.output) == (2, True)
    answer = json.loads(run_command("predict", folder, photos[0], "--allow", allowed, "--json").stdout)
    assert answer["label"] == expected[0].label
    assert answer["probability"] == pytest.approx(max(expected[0].probabilities), abs=1e-5)


@pytest.mark.slow
def test_a_wrapped_classifier_of_ones_own_is_exported_and_served(own, tmp_path):
    folder, allowed, photos, expected = own
    assert run_command("export", folder, "--out", "model.onnx", "--allow", allowed).exit_code == 0
    assert "" not in sys.path
    with TestClient(create_app(tmp_path / "model.onnx")) as client:
        check_answers(client.post("/predict/images", files=upload(*(p.read_bytes() for p in photos))), expected)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_command_serves_a_wrapped_classifier_of_ones_own(own, tmp_path):
    folder, allowed, photos, expected = own
    with Server("-m", "pstn.cli", "serve", str(folder), "--allow", allowed, log=tmp_path / "log") as server:
        files = upload(*(path.read_bytes() for path in photos))
        check_answers(httpx.post(f"{server.address}/predict/images", files=files, timeout=30), expected)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_two_hundred_clients_for_twenty_seconds(file, tmp_path, record_property):
    """No error; the report has the requests a second and the 99th percentile."""

    async def client(port, until, times):
        # Not httpx: with so many connections most of the time would be its own.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (started := time.monotonic()) < until:
            writer.write(head + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            assert answer.startswith(b"http/1.1 200"), answer
            times.append(time.monotonic() - started)
        writer.close()

    async def everybody(port):
        times: list[float] = []
        until = time.monotonic() + 20
        await asyncio.gather(*(client(port, until, times) for _ in range(200)))
        return times

    body = json.dumps(NUMBERS).encode()
    lines = "POST /predict HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    with Server("-m", "pstn.serve", str(file), "--workers=2", "--rate=0", log=tmp_path / "log") as server:
        with httpx.Client(base_url=server.address, headers=JSON) as alone:
            answers = [alone.post("/predict", content=body) for _ in range(30)]
        assert {answer.status_code for answer in answers} == {200}
        alone_times = [answer.elapsed.total_seconds() for answer in answers]
        assert min(alone_times) < 0.03  # no answer waits 40 ms for an acknowledgement
        times = np.sort(asyncio.run(everybody(server.port)))
        text = httpx.get(f"{server.address}/metrics").text
    counted = [
        line for line in text.splitlines() if line.startswith('pstn_requests_total{path="/predict",status="200"}')
    ]
    assert float(counted[0].split()[-1]) == len(answers) + len(times)  # both processes' together
    p99 = 1e3 * times[int(0.99 * len(times))]
    record_property("200 clients", f"{len(times) / 20:.0f} requests a second, p99 {p99:.0f} ms")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_every_client_sees_an_answer_or_an_error_of_a_server_that_is_killed(tmp_path):
    """Killed under load, started again, stopped under load, started again."""
    command = ("-m", "pstn.serve", str(tiny_model(tmp_path / "tiny.onnx")), "--workers=2", "--rate=0")
    stopped, answers, errors = threading.Event(), Counter(), Counter()

    def client(number):
        body = json.dumps({"inputs": [[[[float(number % 3 == c)] * 10] * 12 for c in range(3)]]})
        with httpx.Client(timeout=30, headers=JSON) as session:
            while not stopped.is_set():
                try:
                    response = session.post(f"{address}/predict", content=body)
                except httpx.TimeoutException:
                    errors["neither"] += 1
                except httpx.TransportError:
                    errors["seen"] += 1
                    time.sleep(0.05)
                else:
                    label = response.json()["predictions"][0]["label"] if response.status_code == 200 else None
                    answers[label == ABOUT["classes"][number % 3]] += 1

    def answered_since(before):
        until = time.monotonic() + 60
        while answers[True] < before + 100 and time.monotonic() < until:
            time.sleep(0.05)
        return answers[True] >= before + 100

    with ThreadPoolExecutor(20) as clients:
        port = None
        try:
            for number in range(3):
                with Server(*command, port=port, log=tmp_path / f"{number}.txt") as server:
                    port, address = server.port, server.address
                    if number == 0:
                        running = [clients.submit(client, n) for n in range(20)]
                    assert answered_since(answers[True])
                    if number == 0:
                        os.killpg(server.process.pid, signal.SIGKILL)  # its workers, too; the others are stopped
        finally:
            stopped.set()
        for each in running:
            each.result()
    assert errors["seen"] > 0
    assert (answers[False], errors["neither"]) == (0, 0)


def test_the_container_is_well_formed():
    yaml = pytest.importorskip("yaml")
    deploy = Path(__file__).parents[1] / "deploy"
    hadolint = Path(sys.executable).with_name("hadolint")
    if hadolint.exists():
        subprocess.run([hadolint, deploy / "Dockerfile"], check=True)
    [service] = yaml.safe_load((deploy / "compose.yaml").read_text())["services"].values()
    assert (deploy / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    workers = int(re.search(r'"--workers", "(\d+)"', (deploy / "Dockerfile").read_text())[1])
    assert int(re.fullmatch(r"(\d+)m", service["mem_limit"])[1]) << 20 >= workers * MOST_MEMORY + (256 << 20)
    copied = [line.split()[1:-1] for line in (deploy / "Dockerfile").read_text().splitlines() if line[:4] == "COPY"]
    assert all((deploy.parent / name).exists() for names in copied for name in names)
    project = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]
    needed = {re.split("[>=]", each)[0] for each in ["numpy", "hatchling", *project["optional-dependencies"]["serve"]]}
    install = (deploy / "Dockerfile").read_text().partition("-c constraints.txt ")[2].partition("&&")[0]
    assert set(install.replace("\\", "").split()) == needed
