"""The page of the documentation that runs in the reader's browser gives the numbers that Python gives."""

import functools
import http.server
import runpy
import threading
from pathlib import Path

import pytest
import torch

import pstn
from pstn.app import SHIPPED, move_digit
from pstn.data import load_digits

from .test_browser import CHROMIUM, browser, visited  # noqa: F401

DOCS = Path(__file__).parents[2] / "docs"
RUNTIME = DOCS.parent / ".npm" / "node_modules" / "onnxruntime-web" / "dist"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
    pytest.mark.skipif(not RUNTIME.is_dir(), reason="needs onnxruntime-web: make browser"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    runpy.run_path(str(DOCS / "make_browser_page.py"))["assemble"](folder, RUNTIME)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def answer_at(page, degrees, way="samples"):
    page.wait_for_function("want => window.answer?.degrees === want[0] && answer.way === want[1]", arg=[degrees, way])
    return page.evaluate("window.answer")


@pytest.mark.parametrize(
    "viewport", [{"width": 1280, "height": 900}, {"width": 390, "height": 844}], ids=lambda v: v["width"]
)
def test_a_turned_digit_is_answered_as_in_python(browser, address, viewport):  # noqa: F811
    model, test = pstn.from_pretrained(SHIPPED / "poses" / "pstn"), load_digits("test")
    source = torch.Generator().manual_seed(0)  # that of the file's noise
    noise = pstn.noise.draw_noise(10, (1, model.layer.noise_width), method=model.layer.sampling, generator=source)
    with visited(browser, address, viewport=viewport) as page:
        answer_at(page, 120)
        page.get_by_role("button", name="7", exact=True).click()
        page.locator("#turn").fill("135")
        found = answer_at(page, 135)
        shown = move_digit((255 * test.x[test.y == 7][0]).round() / 255, turn=135)
        x = model.about.prepare(shown[None])
        with torch.no_grad():
            cnn, sampled = model.classifier(x).softmax(-1)[0], model(x, noise=noise).probs[0]
            theta = model.layer.localize(x).mode[None]
            mean = model.classifier(model.layer.warp(x, theta)[0]).softmax(-1)[0]
        torch.testing.assert_close(torch.tensor(found["shown"]), shown.flatten(), atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.tensor(found["cnn"]), cnn, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(found["pstn"]), sampled, atol=1e-4, rtol=0)
        assert page.locator("#frames polygon").count() == page.locator("#seen canvas").count() == 10
        page.locator("#way").select_option("mean")
        torch.testing.assert_close(torch.tensor(answer_at(page, 135, "mean")["pstn"]), mean, atol=1e-4, rtol=0)
        assert page.locator("#frames polygon").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_a_drawing_is_placed_like_a_digit(browser, address):  # noqa: F811
    with visited(browser, address) as page:
        page.locator("#turn").fill("0")
        before = answer_at(page, 0)["shown"]
        box = page.locator("#pad").bounding_box()
        page.mouse.move(box["x"] + 30, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 30, box["y"] + 90, steps=5)
        page.mouse.up()
        page.wait_for_function("old => JSON.stringify(answer.shown) !== JSON.stringify(old)", arg=before)
        digit = torch.tensor(page.evaluate("answer.shown")).view(28, 28)
        rows = (digit.sum(1) > 0.5).nonzero()[:, 0]
        assert 19 <= len(rows) <= 21
        assert abs((digit.sum(1) @ torch.arange(28.0) / digit.sum()).item() - 13.5) < 0.6
        assert abs((digit.sum(0) @ torch.arange(28.0) / digit.sum()).item() - 13.5) < 0.6
