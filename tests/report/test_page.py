from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from made_up_results import make_results
from pstn.cli import app
from pstn.experiments import EXPERIMENTS
from pstn.report.figures import style_of
from pstn.report.page import make_section, update_pages, write_report
from pstn.report.results import Result, grouped, read_results

STUDIES = tuple(experiment for experiment in EXPERIMENTS.values() if not experiment.extra)
FIGURES = {spec.name for study in STUDIES for spec in study.figures}
FIGURES |= {study.search.experiment for study in STUDIES if study.search}  # which draw themselves
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RESULTS = Path(__file__).parents[2] / "results"
PLAIN = tuple(replace(study, figures=()) for study in STUDIES)


def write(folder, results):
    folder.mkdir(exist_ok=True)
    for experiment, own in grouped(results, lambda r: r.experiment).items():
        (folder / f"{experiment}.jsonl").write_text("".join(f"{r.to_line()}\n" for r in own))
    return folder


def of(experiment, *, seed=0, **changes):
    return [replace(r, **changes) for r in make_results(seed) if r.experiment == experiment]


def make_report(results, studies, out):
    """The report, with the text of its two pages."""
    report = write_report(results, studies, out, title="Title", introduction="Introduction.")
    return report, *((out / name).read_text() for name in ("report.html", "report.md"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write(tmp_path_factory.mktemp("results"), make_results())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """That of the committed results, with all figures: drawing them takes ten seconds."""
    if not RESULTS.exists():
        pytest.skip("a source distribution has no results")
    return make_report(RESULTS, STUDIES, tmp_path_factory.mktemp("report"))


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
    page = Page(report[1])
    assert len(page.images) == len(FIGURES)
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and image["alt"] for image in page.images)
    assert set(page.links) == {f"#{study.name}" for study in STUDIES} <= {f"#{name}" for name in page.ids}
    assert "http" not in re.sub(r'src="data:[^"]*"', "", report[1])


@pytest.mark.slow
def test_every_figure_is_there_as_png_and_svg_and_the_markdown_shows_it(report):
    from matplotlib.text import Text

    drawn = report[0].files[:-2]
    assert {path.name for path in drawn} == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert all(path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml") for path in drawn)
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in drawn if path.suffix == ".svg")
    assert set(re.findall(r"!\[[^\]]+\]\(figures/([^)]+)\.png\)", report[2])) == FIGURES
    for spec, figure in (pair for section in report[0].sections for pair in section.figures):
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
            page.goto(report[0].files[-2].as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            # In lines, as fonts differ in height and width.
            lines = "e => Math.floor(e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight))"
            assert max(page.evaluate(f"[...document.querySelectorAll('td')].map({lines})")) <= 8
            assert min(page.evaluate("[...document.querySelectorAll('figure img')].map(e => e.offsetWidth)")) > 500
            captions = "[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect().right)"
            assert max(page.evaluate(captions)) <= width
        chromium.close()


def test_tables_are_whole_and_whole_runs_leave_nothing_missing(results, tmp_path):
    report, html, text = make_report(results, PLAIN, tmp_path)
    assert all(image["alt"].startswith("Validation NLL by w") for image in Page(html).images)  # drawn by the search
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)]
    assert len(blocks) > 30
    for _, rule, *rows in blocks:
        assert {line.count("|") for line in rows} == {rule.count("|")}
        assert set(rule) == set("| -")
    assert not any(words in text for words in ("missing |", "are missing", "\n\n\n"))
    assert all(found == wanted for found, wanted in (section.runs for section in report.sections))


def test_models_can_be_told_apart_without_colour():
    styles = [style_of(model) for model in ("CNN", "STN", "P-STN", "reference")]
    assert all(len({str(style[part]) for style in styles}) == 4 for part in ("marker", "linestyle"))
    rgb = ([int(style["color"][k : k + 2], 16) for k in (1, 3, 5)] for style in styles)
    shades = sorted(0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue in rgb)
    assert min(b - a for a, b in itertools.pairwise(shades)) > 10


def test_missing_runs_and_unknown_experiments_are_reported(tmp_path):
    kept = [r for r in of("mnist-subsets") if r.data == "MNIST30" and r.seed < 3]
    write(tmp_path / "results", [*kept, Result("novel", "P-STN", "A", 0, metrics={"accuracy": 0.5})])
    report, _, text = make_report(tmp_path / "results", STUDIES, tmp_path / "out")
    assert "(3 of 5 runs)" in text
    assert "| MNIST100 | missing" in text
    assert "No results yet: all 50 runs are missing. `pstn reproduce calibration` makes them." in text
    assert "1 results of novel are not shown" in text
    assert [path.name for path in report.files if path.suffix == ".png"] == ["mnist-subsets.png"]


def test_quick_runs_are_not_reported(tmp_path):
    quick = of("mnist-subsets", quick=True, metrics={"accuracy": 0.123})
    with pytest.raises(ValueError, match="results"):
        make_report(write(tmp_path / "results", quick), STUDIES[3:4], tmp_path / "out")
    both = write(tmp_path / "both", [*of("mnist-subsets")[1:], *quick[:1]])
    report, *_ = make_report(both, STUDIES[3:4], tmp_path / "out")
    assert report.sections[0].runs == (74, 75)


def test_what_is_measured_goes_between_the_marks_and_prose_stays(tmp_path):
    pages, page = tmp_path / "docs", tmp_path / "docs" / "calibration.md"
    update_pages(write(tmp_path / "quick", of("calibration", quick=True)), PLAIN, pages)
    assert "No results yet" in page.read_text()
    results = write(tmp_path / "results", of("calibration"))
    update_pages(results, PLAIN, pages)
    made = page.read_text()
    assert made.startswith("# Calibration on MNIST100\n")
    before = "Our words.\n\n" + made + "\nMore words.\n"
    page.write_text(before)
    update_pages(results, PLAIN, pages)
    assert page.read_text() == before
    update_pages(write(tmp_path / "other", of("calibration", seed=1)), PLAIN, pages)
    assert page.read_text() != before
    assert (page.read_text()[:11], page.read_text()[-13:]) == ("Our words.\n", "\nMore words.\n")
    page.write_text("# Only prose\n")
    with pytest.raises(ValueError, match=r"calibration\.md"):
        update_pages(results, PLAIN, pages)


def test_the_command_says_how_it_went_and_the_same_results_give_the_same_files(tmp_path):
    def report(out, *options):
        return CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--out", str(tmp_path / out), *options])

    empty = report("none")
    assert (empty.exit_code, "pstn reproduce" in empty.output, (tmp_path / "none").exists()) == (2, True, False)
    worse = of("failure-mode", metrics={"accuracy": 0.5, "angle_variance": 0.0})
    write(tmp_path / "results", [replace(r, metrics={"accuracy": 0.9}) if r.model == "STN" else r for r in worse])
    done, again = report("one"), report("two", "--experiment", "failure-mode")
    assert done.exit_code == again.exit_code == 0
    assert "failure-mode     100 of 100 runs, claimed orders: 5 reversed" in done.output
    assert "reversed: P-STN ahead of STN, 3 layers, accuracy (%)" in done.output
    assert f"Written: {tmp_path / 'one' / 'report.html'}" in done.output
    for name in ("failure-mode.png", "failure-mode.svg"):
        assert len({(tmp_path / out / "figures" / name).read_bytes() for out in ("one", "two")}) == 1


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")
def test_figures_are_drawn_from_whatever_part_of_the_runs_is_there():
    for study in STUDIES:
        own = [r for r in read_results(RESULTS, study.name) if r.seed == 0]
        make_section(study, [r for r in own if r.model == "P-STN"])
        make_section(study, [replace(r, figure={}) for r in own if r.model != "P-STN"])
