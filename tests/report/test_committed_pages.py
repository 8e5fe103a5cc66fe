"""The pages in the docs say what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path

from pstn.experiments.studies import STUDIES
from pstn.report.page import measured

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "experiments"


def test_measured_parts_are_those_of_the_committed_results():
    sections, texts = measured(ROOT / "results", STUDIES)
    for name, text in texts.items():
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert text in page, f"{name}.md is stale: run `pstn report --docs docs/experiments`"
    for section in sections:
        for drawing, _ in section.figures:
            assert (PAGES / "images" / f"{drawing.name}.png").exists()


def test_every_experiment_has_a_page_with_the_command_that_runs_it():
    assert {page.stem for page in PAGES.glob("*.md")} == {study.experiment for study in STUDIES} | {"overview"}
    for study in STUDIES:
        text = (PAGES / f"{study.experiment}.md").read_text()
        assert study.command in text
        headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        assert headings == ["What is claimed", "How to run it", "What differs from the paper", "What we measured"]
