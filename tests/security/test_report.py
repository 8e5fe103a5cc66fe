"""The report of untrusted result files: text stays text in Markdown and in HTML, and damaged files are named."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from made_up_results import make_results
from pstn.experiments import EXPERIMENTS
from pstn.report.page import escape_markdown, write_report
from pstn.report.results import read_results

markdown_it = pytest.importorskip("markdown_it", reason="needs markdown-it-py, which myst-parser brings")

PLAIN = tuple(dataclasses.replace(study, figures=(), search=None) for study in EXPERIMENTS.values())
HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[click](javascript:alert(1))", "``` js\n<script>",
    "![x](javascript:alert(1))", "<javascript:alert(1)>", "[a]: javascript:alert(1)", "`code` <b>`<i>`</b> `` <u> `",
    "~~~\n<script>", "x\n\n<script>alert(1)</script>\n\n    code", "<!-- measured: end -->", "| a | <b> |",
    "\\[x](javascript:alert(1)) \\<b>", "&lt;script&gt; &#60;b&#62; &colon;", "</td></table><svg/onload=alert(1)>",
    "# heading", "> quote", "- list", "1. list", "***", "a *b* __c__ _d_", "---", "===", "+", "12)",
]  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        assert not [name for name, _ in attributes if name.startswith("on")]


def rendered(markdown):
    """As a renderer shows it that lets raw HTML through."""
    return markdown_it.MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_shown_as_it_is(text):
    for page in (
        f"{escape_markdown(text)}\n",
        f"- {escape_markdown(text)}\n",
        f"| a |\n| --- |\n| {escape_markdown(text)} |\n",
    ):
        found = Tags(rendered(page))
        assert found.tags <= {"p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code"}
        assert not found.links


@pytest.fixture(scope="module")
def hostile_results(tmp_path_factory):
    """Result files whose every text is hostile."""
    folder = tmp_path_factory.mktemp("results")
    of = [r for r in make_results() if r.experiment in ("mnist-subsets", "calibration", "ablations")]
    for number, result in enumerate(of):
        text = HOSTILE[number % len(HOSTILE)].replace("\n", " ")
        changed = dataclasses.replace(
            result, departures=HOSTILE, machine=text, commit=text, versions={text: text}, figure={},
            variant=f"w={text}" if number % 2 else result.variant,
        )  # fmt: skip
        changed.write(folder)
    dataclasses.replace(of[0], experiment="another", model=HOSTILE[0], data=HOSTILE[2]).write(folder)
    return folder


def test_raw_html_and_javascript_links_in_result_files_stay_text(hostile_results, tmp_path):
    write_report(hostile_results, PLAIN, tmp_path, title="Title", introduction="Introduction.")
    for page in (rendered((tmp_path / "report.md").read_text()), (tmp_path / "report.html").read_text()):
        found = Tags(page)
        assert not found.tags & {"script", "img", "svg", "iframe", "b", "i", "u", "object"}
        assert not [link for link in found.links if not link.startswith("#")]
        assert "alert(1)" in page


@pytest.mark.parametrize(
    "changes",
    [
        {"departures": 5}, {"departures": "text"}, {"departures": [1]}, {"machine": {}}, {"commit": None},
        {"versions": {"a": 1}}, {"versions": []}, {"seconds": "1"}, {"seconds": float("nan")}, {"quick": "no"},
        {"variant": 1}, {"variant": "$\\frac$"}, {"model": "a\x1b[31m"}, {"data": "a\nb"}, {"figure": []},
        {"settings": None}, {"training": 3}, {"model": []}, {"metrics": {"accuracy": True}}, {"metrics": None},
    ],
)  # fmt: skip
def test_a_result_of_wrong_types_is_named(changes, tmp_path):
    whole = dataclasses.asdict(make_results()[0]) | changes
    path = tmp_path / f"{make_results()[0].experiment}.jsonl"
    path.write_text(json.dumps(whole) + "\n")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_results(tmp_path)
