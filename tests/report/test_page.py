from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from made_up_results import make_results
from pstn.cli import app
from pstn.experiments import EXPERIMENTS, INTRODUCTION, TITLE
from pstn.report.figures import style_of
from pstn.report.page import make_section, update_pages, write_report
from pstn.report.results import Result

STUDIES = tuple(experiment for experiment in EXPERIMENTS.values() if not experiment.extra)
# All that are declared, and those of the searches, which draw themselves.
FIGURES = {spec.name for study in STUDIES for spec in study.figures} | {
    study.search.experiment for study in STUDIES if study.search
}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PLAIN = tuple(dataclasses.replace(study, figures=()) for study in STUDIES)


def write(folder, results):
    for result in results:
        result.write(folder)
    return folder


def of(experiment, *, seed=0, **changes):
    return [dataclasses.replace(r, **changes) for r in make_results(seed) if r.experiment == experiment]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write(tmp_path_factory.mktemp("results"), make_results())


@pytest.fixture(scope="module")
def report(results, tmp_path_factory):
    """The whole of it; drawing all figures takes ten seconds."""
    out = tmp_path_factory.mktemp("report")
    return write_report(results, STUDIES, out, title=TITLE, introduction=INTRODUCTION), out


@pytest.fixture(scope="module")
def plain(results, tmp_path_factory):
    """All of it but the figures."""
    out = tmp_path_factory.mktemp("plain")
    return write_report(results, PLAIN, out, title=TITLE, introduction=INTRODUCTION), out


class Page(HTMLParser):
    """Collects what a page refers to, and checks that its tags close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.links, self.ids = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.images += [given] if tag == "img" else []
        self.links += [given["href"]] if tag == "a" else []
        self.ids += [given["id"]] if "id" in given else []
        assert tag not in ("script", "link", "iframe")
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_html_holds_everything_and_asks_for_nothing(report):
    text = (report[1] / "report.html").read_text()
    page = Page(text)
    assert len(page.images) == len(FIGURES)
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and image["alt"] for image in page.images)
    assert set(page.links) == {f"#{study.name}" for study in STUDIES} <= {f"#{name}" for name in page.ids}
    assert "http" not in re.sub(r'src="data:[^"]*"', "", text)


@pytest.mark.slow
def test_every_figure_is_there_as_png_and_svg_and_the_markdown_shows_it(report):
    folder = report[1] / "figures"
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    shown = re.findall(r"!\[[^\]]+\]\(figures/([^)]+)\.png\)", (report[1] / "report.md").read_text())
    assert sorted(shown) == sorted(FIGURES)


@pytest.mark.slow
def test_text_in_figures_is_at_least_eight_points(report):
    from matplotlib.text import Text

    for section in report[0].sections:
        for spec, figure in section.figures:
            sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
            assert min(sizes, default=8) >= 8, spec.name


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_a_phone_scrolls_tables_and_figures_instead_of_squeezing_them(report):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (390, 1280):
            page = chromium.new_page(viewport={"width": width, "height": 844})
            page.goto((report[1] / "report.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            # In lines, as fonts differ in height and width.
            lines = "e => Math.floor(e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight))"
            assert max(page.evaluate(f"[...document.querySelectorAll('td')].map({lines})")) <= 8
            assert min(page.evaluate("[...document.querySelectorAll('figure img')].map(e => e.offsetWidth)")) > 500
            captions = "[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect().right)"
            assert max(page.evaluate(captions)) <= width
        chromium.close()


def test_tables_in_the_markdown_are_whole(plain):
    text = (plain[1] / "report.md").read_text()
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) > 30
    for block in blocks:
        lines = block.splitlines()
        assert set(lines[1]) == set("| -")
        assert len({line.count("|") for line in lines}) == 1, block
        assert len(lines) > 2
    assert "\n\n\n" not in text


def test_the_html_is_well_formed(plain):
    drawn = Page((plain[1] / "report.html").read_text()).images
    assert all(image["alt"].startswith("Validation scores by w") for image in drawn)  # the search draws itself


def test_models_can_be_told_apart_without_colour():
    looks = [style_of(model) for model in ("CNN", "STN", "P-STN", "reference")]
    assert len({style.marker for style in looks}) == len({str(style.line) for style in looks}) == 4

    def grey(colour):
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    shades = sorted(grey(style.colour) for style in looks)
    assert min(b - a for a, b in itertools.pairwise(shades)) > 10


def test_whole_runs_leave_nothing_missing_and_every_cell_in_a_table(plain):
    text = (plain[1] / "report.md").read_text()
    assert "missing |" not in text
    assert "are missing" not in text
    assert "In no table" not in text
    assert all(found == wanted for found, wanted in (section.runs for section in plain[0].sections))


def test_part_of_the_runs_is_reported_as_such(tmp_path):
    kept = [r for r in make_results() if r.experiment == "mnist-subsets" and r.data == "MNIST30" and r.seed < 3]
    write(tmp_path / "results", kept)
    report = write_report(tmp_path / "results", STUDIES, tmp_path / "out", title=TITLE, introduction=INTRODUCTION)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "(3 of 5 runs)" in text
    assert "| MNIST100 | missing" in text
    assert "No results yet: all 20 runs are missing. `pstn reproduce calibration` makes them." in text
    assert [path.name for path in report.files if path.suffix == ".png"] == ["mnist-subsets.png"]


def test_quick_runs_carry_a_banner_and_no_published_number(tmp_path):
    write(tmp_path / "results", of("mnist-subsets", quick=True))
    write_report(tmp_path / "results", STUDIES, tmp_path / "out", title=TITLE, introduction=INTRODUCTION)
    for name in ("report.html", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "Quick runs: not the paper’s setting" in text
        assert "92.70" not in text


def test_experiments_that_the_report_does_not_know_are_named(tmp_path):
    Result("novel", "P-STN", "A", 0, metrics={"accuracy": 0.5}).write(tmp_path / "results")
    write_report(tmp_path / "results", PLAIN, tmp_path / "out", title=TITLE, introduction=INTRODUCTION)
    assert "1 results of novel are not shown" in (tmp_path / "out" / "report.md").read_text()


def test_the_same_results_give_the_same_files(tmp_path):
    write(tmp_path / "results", of("failure-mode"))
    study = [s for s in STUDIES if s.name == "failure-mode"]
    first, second = (
        write_report(tmp_path / "results", study, tmp_path / name, title=TITLE, introduction=INTRODUCTION).files
        for name in ("one", "two")
    )
    assert [p.name for p in first] == ["failure-mode.png", "failure-mode.svg", "report.html", "report.md"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_what_is_measured_goes_between_the_marks_and_prose_stays(tmp_path):
    pages, page = tmp_path / "docs", tmp_path / "docs" / "calibration.md"
    results = write(tmp_path / "results", of("calibration"))
    update_pages(results, PLAIN, pages)
    made = page.read_text()
    assert made.startswith("# Calibration on MNIST100\n")
    page.write_text("Our words.\n\n" + made + "\nMore words.\n")
    before = page.read_text()
    update_pages(results, PLAIN, pages)
    assert page.read_text() == before
    update_pages(write(tmp_path / "other", of("calibration", seed=1)), PLAIN, pages)
    assert page.read_text() != before
    assert page.read_text().startswith("Our words.\n")
    assert page.read_text().endswith("\nMore words.\n")


def test_pages_without_marks_are_refused_and_quick_runs_left_out(tmp_path):
    write(tmp_path / "results", of("calibration", quick=True))
    update_pages(tmp_path / "results", PLAIN, tmp_path / "docs")
    assert "No results yet" in (tmp_path / "docs" / "calibration.md").read_text()
    (tmp_path / "docs" / "calibration.md").write_text("# Only prose\n")
    with pytest.raises(ValueError, match=r"calibration\.md has no place for what was measured: add the lines"):
        update_pages(tmp_path / "results", PLAIN, tmp_path / "docs")


def test_the_command_says_how_it_went(tmp_path):
    worse = of("failure-mode", metrics={"accuracy": 0.5, "angle_variance": 0.0})
    better = [dataclasses.replace(r, metrics={"accuracy": 0.9}) if r.model == "STN" else r for r in worse]
    results = write(tmp_path / "results", better)
    done = CliRunner().invoke(app, ["report", str(results), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "failure-mode     100 of 100 runs, 0 of 5 claimed orders hold, 0 significantly" in done.output
    assert "does not hold: P-STN ahead of STN, 3 layers, accuracy (%)" in done.output
    assert f"Written: {tmp_path / 'out' / 'report.html'}" in done.output


@pytest.mark.parametrize("made", [False, True])
def test_an_empty_folder_is_an_error_that_says_what_to_do(tmp_path, made):
    folder = tmp_path / "results"
    if made:
        folder.mkdir()
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "no result files in" in done.output
    assert "pstn reproduce" in done.output
    assert not (tmp_path / "out").exists()


def test_figures_are_drawn_from_whatever_part_of_the_runs_is_there():
    full = [r for r in make_results() if r.seed == 0]
    for study in STUDIES:
        own = [r for r in full if r.experiment == study.name]
        make_section(study, [r for r in own if r.model == "P-STN"])
        make_section(study, [dataclasses.replace(r, figure={}) for r in own if r.model != "P-STN"])
