"""The pages in the docs say what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pstn.experiments import EXPERIMENTS, RunContext
from pstn.report.page import duration, measured
from pstn.report.results import read_results
from pstn.report.statistics import summarise, welch

ROOT = Path(__file__).parents[2]
PAGES, RESULTS = ROOT / "docs" / "experiments", ROOT / "results"
STUDIES = [experiment for experiment in EXPERIMENTS.values() if not experiment.extra]
BEYOND = [experiment for experiment in EXPERIMENTS.values() if experiment.extra and experiment.tables]

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no results")


@pytest.fixture(scope="module")
def pages():
    return measured(RESULTS, STUDIES)


def test_measured_parts_are_those_of_the_committed_results(pages):
    beyond = measured(RESULTS, BEYOND)
    sections, texts = [*pages[0], *beyond[0]], pages[1] | beyond[1]
    for name, text in texts.items():
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert text in page, f"{name}.md is stale: run `pstn report --docs docs/experiments`"
    assert all((PAGES / "images" / f"{spec.name}.png").exists() for section in sections for spec, _ in section.figures)


def test_committed_results_are_one_file_per_experiment_and_complete():
    results = read_results(RESULTS)
    assert {f"{r.experiment}.jsonl" for r in results} <= {path.name for path in RESULTS.iterdir()}
    for result in results:
        assert result.training, result.full_name
        assert not result.quick, result.full_name
        late = {s.removesuffix(" Noted after the run.") for s in result.departures} - set(result.departures)
        declared = [g.departures for g in EXPERIMENTS[result.experiment].groups if g.model == result.model]
        assert all(late <= set(departures) for departures in declared), result.full_name


def test_the_answer_on_the_ablations_page_is_that_of_the_results():
    def score(experiment, variant, metric):
        scale = 100 if metric == "accuracy" else 1
        found = read_results(RESULTS, experiment)
        return summarise([scale * r.metrics[metric] for r in found if r.variant == variant])

    page = " ".join((PAGES / "ablations.md").read_text(encoding="utf-8").split())
    answer, told = page.partition("**On MNIST100")[2].partition("<!--")[0], []
    for metric, digits in (("accuracy", 2), ("nll", 3), ("ece", 4)):
        variants = ("posterior=per-input", "posterior=global", "augmentation=fixed")
        ours, shared, fixed = (score("ablations", variant, metric) for variant in variants)
        told += [f"{each.mean:.{digits}f}" for each in (ours, shared, fixed)] + [f"p = {welch(ours, fixed):.3f}"]
        told += [f"p = {welch(ours, shared):.3f}"] if metric != "ece" else []
    assert welch(ours, shared) < 0.001
    calibrated = score("calibration", "w=0.0001", "ece")
    told += [f"{calibrated.mean:.4f}", f"p = {welch(calibrated, fixed):.3f}"]
    told += [f"{score('ablations', 'augmentation=none', 'accuracy').mean:.2f}"]
    assert [number for number in told if number not in answer] == []


def test_what_it_costs_is_what_the_overview_says(pages):
    found, wanted = (sum(counts) for counts in zip(*(section.runs for section in pages[0]), strict=True))
    seconds = sum(section.seconds for section in pages[0])
    text = " ".join((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").split())
    planned = [c.full_name for e in STUDIES for g in e.groups for c in g.cells(RunContext(RESULTS))]
    there = len(set(planned) & {r.full_name for r in read_results(RESULTS)})
    drawn = f"{there - found} of {len(planned) - wanted} that only a figure shows"
    assert f"{found} of the {wanted} runs that the tables want, and {drawn}" in text
    assert f"took {duration(seconds)} on one H200" in text


def test_every_experiment_has_a_page_with_the_command_that_runs_it():
    assert {page.stem for page in PAGES.glob("*.md")} == {study.name for study in (*STUDIES, *BEYOND)} | {"overview"}
    for study in (*STUDIES, *BEYOND):
        text = (PAGES / f"{study.name}.md").read_text()
        assert study.command in text
        headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        third = "The tasks" if study in BEYOND else "What differs from the paper"
        assert headings == ["What is claimed", "How to run it", third, "What we measured"]
