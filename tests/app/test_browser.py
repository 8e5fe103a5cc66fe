"""The page as a visitor sees it, in a headless Chromium: `pstn app` runs as a process of its own."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from PIL import Image

import pstn

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60_000  # milliseconds; machines that run tests may be busy

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")]

# `pstn app`, in a Python that reports which hosts it connects to.
PSTN = """
import sys
def report(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1][0] if event == "socket.connect" else arguments[0]
        if host not in ("127.0.0.1", "localhost", None):
            print("Connected", event, host, flush=True)
sys.addaudithook(report)
from pstn.cli import main
main()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextlib.contextmanager
def running(folder, *options):
    """`pstn app` in `folder`: its address, once it listens."""
    port, log = free_port(), folder / "log.txt"
    environment = {**os.environ, "PSTN_CACHE": str(folder / "cache"), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PSTN, "app", "--port", str(port), *options],
            stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE / 1000
            while "The page is at" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    assert process.returncode == 0
    assert "Connected" not in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not list(folder.glob("pstn-app-*"))  # what a visitor gave it is gone with the page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextlib.contextmanager
def visited(browser, address, **options):
    """The page; at the end it has logged no error and contacted no other host."""
    errors, requests = [], []
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    yield page
    context.close()
    assert not errors
    assert requests
    assert not [url for url in requests if not url.startswith((address, "data:", "blob:"))]


@pytest.fixture
def models(tmp_path, digit_models):
    for name, model in digit_models.items():
        model.save_pretrained(tmp_path / "models" / name)
    return tmp_path / "models"


DARK = """([x, y]) => {
  const sheet = document.querySelector("#sketch canvas");
  const at = sheet.getContext("2d").getImageData(x * sheet.width, y * sheet.height, 1, 1).data;
  return at[3] > 128 && at[0] < 128;
}"""


def canvas_is_dark_at(page, x, y):
    return page.evaluate(DARK, [x, y])


def wait_for_change(page, selector, before):
    page.wait_for_function("([s, old]) => document.querySelector(s).innerHTML !== old", arg=[selector, before])
    return page.inner_html(selector)


def wait_for_answer(page, selector):
    page.wait_for_selector(f"{selector} svg", state="attached")
    return page.inner_html(selector)


def stroke(page):
    sheet = page.locator("#sketch canvas")
    sheet.scroll_into_view_if_needed()
    box = sheet.bounding_box()
    places = [(0.3, 0.2), (0.7, 0.2), (0.45, 0.85)]
    (first, *rest) = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*first)
    page.mouse.down()
    for place in rest:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


@pytest.mark.parametrize(
    "viewport", [{"width": 1280, "height": 900}, {"width": 390, "height": 844}], ids=lambda v: v["width"]
)
def test_a_visitor_draws_rotates_uploads_and_sees_the_pictures_change(browser, models, tmp_path, viewport):
    with running(tmp_path, "--models", str(models)) as address, visited(browser, address, viewport=viewport) as page:
        shown = wait_for_answer(page, "#digits-pictures")
        stroke(page)
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.wait_for_timeout(1000)  # the lifted pen sends the drawing once more
        shown = page.inner_html("#digits-pictures")
        page.locator("#turn input[type=range]").fill("60")
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.get_by_label("little data").click()
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.get_by_label("any pose").click()
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.locator(".again").first.click()
        shown = wait_for_change(page, "#digits-pictures", shown)

        (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
        with page.expect_file_chooser() as chooser:
            page.locator("#upload").click()
        chooser.value.set_files(tmp_path / "broken.png")
        page.get_by_text("does not open").wait_for()
        assert canvas_is_dark_at(page, 0.5, 0.2)  # the drawing is still there
        picture = Image.new("L", (200, 100), 255)
        picture.paste(0, (80, 20, 120, 80))
        picture.save(tmp_path / "block.png")
        with page.expect_file_chooser() as chooser:
            page.locator("#upload").click()
        chooser.value.set_files(tmp_path / "block.png")
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.wait_for_function(DARK, arg=[0.5, 0.5])  # in place of the drawing
        assert not canvas_is_dark_at(page, 0.5, 0.2)
        stroke(page)  # replaces the picture
        page.wait_for_function(f"place => !({DARK})(place)", arg=[0.43, 0.5])
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.wait_for_timeout(1000)
        shown = page.inner_html("#digits-pictures")
        page.get_by_role("button", name="3", exact=True).click()
        shown = wait_for_change(page, "#digits-pictures", shown)
        page.get_by_text("does not open").wait_for(state="detached")

        assert page.locator("[data-testid$='-confidence-set']:visible").count() == 9  # three for each network

        page.get_by_role("tab", name="Series").click()
        series = wait_for_answer(page, "#series-pictures")
        page.locator("#later input[type=range]").fill("2")
        wait_for_change(page, "#series-pictures", series)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_on_a_phone_the_picture_is_on_the_screen_while_a_slider_moves(browser, models, tmp_path):
    viewport = {"width": 390, "height": 844}
    with running(tmp_path, "--models", str(models)) as address, visited(browser, address, viewport=viewport) as page:
        wait_for_answer(page, "#digits-pictures")
        slider = page.locator("#turn input[type=range]")
        slider.scroll_into_view_if_needed()
        shown = page.inner_html("#digits-summary .boxes")
        slider.fill("90")
        wait_for_change(page, "#digits-summary .boxes", shown)
        picture, handle = page.locator("#digits-summary .boxes").bounding_box(), slider.bounding_box()
        assert picture["height"] >= 100
        assert picture["y"] + picture["height"] <= viewport["height"]
        assert handle["y"] + handle["height"] < page.locator("#digits-summary .summary").bounding_box()["y"]


@pytest.mark.parametrize("kind", ["image", "series"])
def test_a_model_of_ones_own(browser, tmp_path, kind):
    image = kind == "image"
    size, file = ((32, 24), tmp_path / "photo.png") if image else ((12,), tmp_path / "two.csv")
    model = pstn.nn.make_model("pstn", 3 if image else 1, size, 4, networks="auto")
    about = pstn.ModelMetadata(tuple("abcd"), 3 if image else 1, size)
    model.save_pretrained(tmp_path / "own", about=about)
    if image:
        Image.linear_gradient("L").convert("RGB").save(file)
    else:
        file.write_text(",".join(map(str, range(12))) + "\n" + ",".join(map(str, range(0, 24, 2))) + "\n")
    arguments = [] if image else [str(file)]
    with running(tmp_path, str(tmp_path / "own"), *arguments) as address, visited(browser, address) as page:
        if image:
            page.get_by_text("Upload a file to begin").wait_for()
            with page.expect_file_chooser() as chooser:
                page.locator("#upload").click()
            chooser.value.set_files(file)
        shown = wait_for_answer(page, "#own-pictures")
        page.locator(f"{'#turn' if image else '#later'} input[type=range]").fill("2")
        shown = wait_for_change(page, "#own-pictures", shown)
        if not image:
            page.locator("#next").click()
            wait_for_change(page, "#own-pictures", shown)
        assert page.locator("[data-testid$='-confidence-set']:visible").count() == 3
