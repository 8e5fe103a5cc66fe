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
PAGES = ROOT / "docs" / "experiments"
STUDIES = [experiment for experiment in EXPERIMENTS.values() if not experiment.extra]

pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="a source distribution has no results")


def test_measured_parts_are_those_of_the_committed_results():
    sections, texts = measured(ROOT / "results", STUDIES)
    for name, text in texts.items():
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert text in page, f"{name}.md is stale: run `pstn report --docs docs/experiments`"
    for section in sections:
        for spec, _ in section.figures:
            assert (PAGES / "images" / f"{spec.name}.png").exists()


def test_committed_results_are_one_file_per_experiment_and_complete():
    folder = ROOT / "results"
    results = read_results(folder)
    assert {f"{r.experiment}.jsonl" for r in results} <= {path.name for path in folder.iterdir()}
    for result in results:
        assert result.training, result.full_name
        assert not result.quick, result.full_name
        late = [
            s.removesuffix(" Noted after the run.") for s in result.departures if s.endswith("Noted after the run.")
        ]
        declared = [g.departures for g in EXPERIMENTS[result.experiment].groups if g.model == result.model]
        assert all(sentence in departures for sentence in late for departures in declared), result.full_name


def test_the_answer_on_the_ablations_page_is_that_of_the_results():
    results = read_results(ROOT / "results", "ablations")

    def score(variant, metric):
        scale = 100 if metric == "accuracy" else 1
        return summarise([scale * r.metrics[metric] for r in results if r.variant == variant])

    page = " ".join((PAGES / "ablations.md").read_text(encoding="utf-8").split())
    answer = page.partition("**On MNIST100")[2].partition("<!--")[0]
    ours = {
        name: (score("posterior=per-input", name), score("posterior=global", name), score("augmentation=fixed", name))
        for name in ("accuracy", "nll", "ece")
    }
    digits = {"accuracy": 2, "nll": 3, "ece": 4}
    told = [f"{ours[name][at].mean:.{digits[name]}f}" for name in ours for at in (0, 1)]
    told += [f"{ours['accuracy'][2].mean:.2f}", f"{ours['nll'][2].mean:.3f}"]
    told += [f"p = {welch(ours[name][0], ours[name][at]):.3f}" for name, at in (("accuracy", 1), ("nll", 1))]
    told += [f"p = {welch(ours[name][0], ours[name][2]):.3f}" for name in ours]
    told += [f"{score('augmentation=none', 'accuracy').mean:.2f}"]
    assert welch(*ours["ece"][:2]) < 0.001
    calibrated = summarise(
        [r.metrics["ece"] for r in read_results(ROOT / "results", "calibration") if r.variant == "w=0.0001"]
    )
    told += [f"{calibrated.mean:.4f}", f"{ours['ece'][2].mean:.4f}", f"p = {welch(calibrated, ours['ece'][2]):.3f}"]
    for number in told:
        assert number in answer, number


def test_what_it_costs_is_what_the_overview_says():
    sections, _ = measured(ROOT / "results", STUDIES)
    found, wanted = (sum(counts) for counts in zip(*(section.runs for section in sections), strict=True))
    seconds = sum(section.seconds for section in sections)
    text = " ".join((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").split())
    planned = [
        c for e in EXPERIMENTS.values() if not e.extra for g in e.groups for c in g.cells(RunContext(ROOT / "results"))
    ]
    there = len({c.full_name for c in planned} & {r.full_name for r in read_results(ROOT / "results")})
    drawn = f"{there - found} of {len(planned) - wanted} that only a figure shows"
    assert f"{found} of the {wanted} runs that the tables want, and {drawn}" in text
    assert f"took {duration(seconds)} on one H200" in text


def test_every_experiment_has_a_page_with_the_command_that_runs_it():
    assert {page.stem for page in PAGES.glob("*.md")} == {study.name for study in STUDIES} | {"overview"}
    for study in STUDIES:
        text = (PAGES / f"{study.name}.md").read_text()
        assert study.command in text
        headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        assert headings == ["What is claimed", "How to run it", "What differs from the paper", "What we measured"]
