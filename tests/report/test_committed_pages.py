"""The committed results are complete, and every experiment has its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pstn.experiments import EXPERIMENTS
from pstn.report.page import update_pages
from pstn.report.results import read_results

ROOT = Path(__file__).parents[2]
PAGES, RESULTS = ROOT / "docs" / "experiments", ROOT / "results"
STUDIES = [experiment for experiment in EXPERIMENTS.values() if not experiment.extra]
BEYOND = [experiment for experiment in EXPERIMENTS.values() if experiment.extra and experiment.tables]

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")


def test_committed_results_are_one_file_per_experiment_and_complete():
    results = read_results(RESULTS)
    assert {f"{r.experiment}.jsonl" for r in results} <= {path.name for path in RESULTS.iterdir()}
    for result in results:
        assert result.training, result.full_name
        assert not result.quick, result.full_name
        late = {s.removesuffix(" Noted after the run.") for s in result.departures} - set(result.departures)
        groups = [g for g in EXPERIMENTS[result.experiment].groups if getattr(g, "model", "") == result.model]
        assert not late or any(late <= set(group.departures) for group in groups), result.full_name


def test_every_experiment_has_a_page_with_the_command_that_runs_it():
    wanted = {study.name for study in (*STUDIES, *BEYOND)} | {"overview", "claims"}
    assert {page.stem for page in PAGES.glob("*.md")} == wanted
    for study in (*STUDIES, *BEYOND):
        text = (PAGES / f"{study.name}.md").read_text()
        assert study.command in text
        headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        third = "The tasks" if study in BEYOND else "What differs from the paper"
        assert headings == ["What is claimed", "How to run it", third, "What we measured"]


@pytest.mark.slow
def test_drawing_the_figures_again_gives_the_same_sizes(tmp_path):
    """The bytes of renderings differ between machines; `test_docs.py` compares the text of the pages."""
    update_pages(RESULTS, [*STUDIES, *BEYOND], tmp_path)
    made, kept = ({p.name: p.read_bytes()[16:24] for p in folder.glob("images/*")} for folder in (tmp_path, PAGES))
    assert made == kept
