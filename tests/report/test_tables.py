from __future__ import annotations

import dataclasses

import pytest

from pstn.report.figures import draw_search
from pstn.report.page import _costs_table, _summary_table, make_section
from pstn.report.results import Result
from pstn.report.statistics import Published
from pstn.report.tables import (
    Claim,
    Line,
    Metric,
    Search,
    Study,
    Table,
    check_claim,
    published_lines,
    variant_tables,
    view_claims,
    view_search,
    view_table,
)

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
LOSS = Metric("nll", "NLL")
A = {m: Line(m, "A", ACCURACY, paper=Published(p)) for m, p in (("STN", "80.0 ± 1.0"), ("P-STN", "90.0 ± 1.0"))}
B = {model: Line(model, "B", ACCURACY) for model in A}
CLAIM = Claim(A["P-STN"], A["STN"])
TABLE = Table("Ours", (*A.values(), *B.values()))
STUDY = Study("made-up", "Made up", "A claim.", tables=(TABLE,), claims=(CLAIM,))


def runs(model, data, values, **more):
    return [
        Result("made-up", model, data, seed, metrics={"accuracy": value / 100}, **more)
        for seed, value in enumerate(values)
    ]


FULL = [
    *runs("STN", "A", [79, 80, 81, 80, 80]), *runs("P-STN", "A", [89, 90, 91, 90, 90]),
    *runs("STN", "B", [50, 51, 52, 51, 50]), *runs("P-STN", "B", [50, 51, 52, 50, 51]),
]  # fmt: skip
WORSE = runs("P-STN", "A", [10, 10, 11, 10, 10])


def changed(results, **changes):
    return [dataclasses.replace(result, **changes) for result in results]


def study(**changes):
    return dataclasses.replace(STUDY, **changes)


def texts(view):
    return [[cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in view.rows]


def test_a_grid_shows_ours_over_the_papers_with_the_significantly_best_in_bold():
    grid, _ = view_table(TABLE, FULL, STUDY)
    assert grid.header == ["data", "STN", "P-STN"]
    assert texts(grid) == [["A", "80.00 ± 0.71", "90.00 ± 0.71"], ["B", "50.80 ± 0.84", "50.80 ± 0.84"]]
    assert [[cell.strong for cell in row] for row in grid.rows] == [[False, False, True], [False] * 3]
    assert grid.rows[0][2].below.text.replace("\N{NO-BREAK SPACE}", " ") == "90.0 ± 1.0"
    assert grid.rows[1][2].below.text == "–"


def test_each_number_stands_beside_the_papers_with_difference_spread_p_and_verdict():
    _, shown = view_table(TABLE, [*FULL[5:10], *runs("STN", "A", [70, 71, 72, 71, 71])], STUDY)
    stn, pstn = texts(shown)[:2]
    assert stn == ["A", "STN", "71.00 ± 0.71", "5", "80.0 ± 1.0", "−9.00", "no", "< 0.001", "significantly below"]
    assert pstn == ["A", "P-STN", "90.00 ± 0.71", "5", "90.0 ± 1.0", "+0.00", "yes", "1.000", "equal"]
    assert [row[-1].tone for row in shown.rows[:2]] == ["bad", "good"]


def test_what_was_not_run_is_missing_and_never_zero():
    some = runs("STN", "A", [79, 80, 81])
    grid, shown = view_table(TABLE, some, STUDY)
    assert texts(grid) == [["A", "80.00 ± 1.00 (3 of 5 runs)", "missing"], ["B", "missing", "missing"]]
    assert texts(shown)[1][:4] == ["A", "P-STN", "missing", "0 of 5"]
    assert texts(shown)[1][-1] == "missing"
    assert "17 of the 20 numbers" in shown.notes[0]
    assert make_section(STUDY, some).runs == (3, 20)


MEAN = Line("P-STN", ("A", "B"), ACCURACY, paper=Published("70.0"), row="Mean")


@pytest.mark.parametrize(
    ("untested", "departure", "reasons"),
    [
        ({}, "Another.", None),
        ({"A": "other data"}, "Another.", ("other data", None)),
        ({"No test part.": "other test part"}, "No test part.", ("other test part", "other test part (A)")),
        ({}, "Shortened: 60 epochs instead of 600.", ("fewer epochs", "fewer epochs (A)")),
    ],
)
def test_lines_that_cannot_be_compared_are_not_tested(untested, departure, reasons):
    table = dataclasses.replace(TABLE, lines=(A["P-STN"], B["P-STN"], MEAN), untested=untested)
    results = [*changed(WORSE, departures=[departure]), *FULL[15:]]
    verdicts = {row[0]: row[-1] for row in texts(view_table(table, results, STUDY)[-1])}
    worse = make_section(study(tables=(table,)), results).worse
    if reasons is None:
        assert verdicts["A"] == "significantly below"
        assert worse == ["P-STN, A, accuracy (%)"]
    else:
        assert verdicts["A"] == f"not tested: {reasons[0]}"
        assert (verdicts["Mean"] == f"not tested: {reasons[1]}") == (reasons[1] is not None)
        assert worse == []


def test_the_summary_tells_what_was_tested_from_what_was_not():
    shortened = changed(FULL, departures=["Shortened: 6 epochs instead of 60."])
    unpublished = study(tables=(Table("Ours", tuple(B.values())),), claims=())
    cases = ((STUDY, FULL, "none of 1"), (STUDY, shortened, "not tested"), (STUDY, [], "–"), (unpublished, FULL, "–"))
    for given, results, words in cases:
        assert _summary_table([make_section(given, results)]).rows[0][2].text == words


def test_a_run_that_diverged_is_not_missing_and_is_named():
    broken = Result("made-up", "P-STN", "A", 4, departures=["No numbers: it diverged."])
    section = make_section(STUDY, [*FULL[:9], broken, *FULL[10:]])
    assert texts(section.tables[0])[0][2] == "90.00 ± 0.82 (4 of 5 runs)"
    assert section.notes[0].startswith("1 run has no numbers: P-STN on A, seed 4.")
    assert not any("missing" in note for view in section.tables for note in view.notes)
    assert section.departures == ["No numbers: it diverged. (P-STN on A, seed 4)"]
    lost = changed(FULL[5:10], metrics={})
    assert texts(make_section(STUDY, [*FULL[:5], *lost]).tables[0])[0][2] == "diverged"


def test_a_mean_is_taken_seed_by_seed_over_the_seeds_that_all_have():
    mean = Line("STN", ("A", "B"), ACCURACY, row="Mean")
    assert mean.values(FULL) == pytest.approx([64.5, 65.5, 66.5, 65.5, 65.0])
    assert mean.values([r for r in FULL if r.seed != 2 or r.data != "B"]) == pytest.approx([64.5, 65.5, 65.5, 65.0])
    assert mean.values(FULL[:5]) == []


def test_medians_are_shown_where_a_table_asks_for_them():
    table = dataclasses.replace(TABLE, robust=True, bold=False)
    grid, _ = view_table(table, runs("STN", "A", [1, 2, 3, 4, 90]), STUDY)
    assert texts(grid)[0][1] == "3.00 ± 1.00"


def test_a_published_table_is_read_as_it_is_printed():
    found = published_lines(ACCURACY, "data  CNN  STN\nA b  1.0 ± 0.2  *3.0*\nC  -  4")
    assert {key: (line.paper.text, line.paper.bold) for key, line in found.items()} == {
        ("CNN", "A b"): ("1.0 ± 0.2", False), ("STN", "A b"): ("3.0", True), ("STN", "C"): ("4", False),
    }  # fmt: skip
    with pytest.raises(ValueError, match="zip"):
        published_lines(ACCURACY, "data  CNN  STN\nA  1.0")


@pytest.mark.parametrize(
    ("better", "worse", "words"),
    [
        ([90, 91, 92], [80, 81, 82], "holds, significantly"),
        ([90, 91, 92], [90, 91, 91], "holds, not significantly"),
        ([90, 91, 91], [90, 91, 92], "does not hold, not significantly reversed"),
        ([80, 81, 82], [90, 91, 92], "does not hold: significantly reversed"),
        ([80, 81, 82], [], "missing"),
    ],
)
def test_a_claim_holds_or_does_not(better, worse, words):
    results = [*runs("P-STN", "A", better), *runs("STN", "A", worse)]
    assert check_claim(CLAIM, results).words == words
    assert view_claims([CLAIM], results).rows[0][-1].text == words


def test_the_lower_loss_is_ahead_and_a_robust_claim_compares_medians():
    lower, higher = Line("P-STN", "A", LOSS), Line("STN", "A", LOSS)
    results = [
        Result("", m, "A", s, metrics={"nll": v + 0.01 * s}) for m, v in (("STN", 2), ("P-STN", 1)) for s in (0, 1)
    ]
    assert check_claim(Claim(lower, higher), results).holds
    assert not check_claim(Claim(higher, lower), results).holds
    skewed = [*runs("P-STN", "A", [90, 90, 90, 1, 1]), *runs("STN", "A", [80, 80, 80, 80, 80])]
    assert check_claim(dataclasses.replace(CLAIM, robust=True), skewed).holds
    assert not check_claim(CLAIM, skewed).holds


def test_claims_are_counted_if_they_are_the_papers_and_not_of_shortened_runs():
    ours = study(claims=(CLAIM, dataclasses.replace(CLAIM, claimed=False, comparable=False)))
    section = make_section(ours, FULL)
    assert (len(section.findings), len(section.claims.rows), len(section.claims.notes)) == (1, 2, 1)
    section = make_section(STUDY, changed(FULL, departures=["Shortened: 6 epochs instead of 60."]))
    assert section.findings == []
    assert {row[-1] for row in texts(section.claims)} == {"not tested: fewer epochs"}


VALIDATION = (Metric("valid_nll", "NLL"), Metric("valid_accuracy", "accuracy", scale=100, higher_is_better=True))
SEARCH = Search("made-up-search", "w", VALIDATION, {"A": 1e-3, "B": 0.0}, values=(0.0, 1e-4, 1e-3))
TRIALS = [
    Result(
        "made-up-search", "P-STN", "A", seed, f"w={w}", metrics={"valid_nll": nll, "valid_accuracy": accuracy},
        seconds=40.0,
    )
    for w, nll, accuracy in (("0.001", 0.4, 0.9), ("0", 0.5, 0.8), ("0.0001", 0.3, 0.7)) for seed in range(5)
]  # fmt: skip


def level(accuracy_at_zero: float) -> list[Result]:
    """The trials, all of them perfect, but for w = 0."""
    return [
        dataclasses.replace(t, metrics={**t.metrics, "valid_accuracy": accuracy_at_zero if t.variant == "w=0" else 1.0})
        for t in TRIALS
    ]


def test_the_search_chooses_by_each_validation_score_and_says_what_it_tried():
    assert texts(view_search(SEARCH, TRIALS)) == [
        ["A", "0.0001", "0.001", "0.001", "0, 0.0001, 0.001", "5"],
        ["B", "missing", "missing", "0", "", "0"],
    ]
    for at_zero, best in ((1.0, "all alike"), (0.99, "0.0001, 0.001")):
        assert texts(view_search(SEARCH, level(at_zero)))[0][2] == best


def test_the_search_is_drawn_with_its_best_filled_and_the_papers_ringed():
    figure = draw_search(TRIALS, search=SEARCH)
    for axes, best, score in zip(figure.axes, (1, 2), (0.3, 90), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.0001", "0.001"]
        points = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
        filled, ring = sorted(points, key=lambda line: line.get_markersize())
        assert (filled.get_xdata()[0], filled.get_ydata()[0]) == (best, pytest.approx(score))
        assert (ring.get_xdata()[0], ring.get_markerfacecolor()) == (2, "none")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "best", "the paper’s"]
    assert draw_search([], search=SEARCH) is None


def test_perfect_scores_are_drawn_within_the_frame_and_all_that_are_best_are_filled():
    figure = draw_search(level(0.9), search=SEARCH)
    figure.draw_without_rendering()
    axes = figure.axes[1]
    low, high = (axes.transData.transform((0, y))[1] for y in axes.get_ylim())
    assert low < axes.transData.transform((0, 100))[1] < high - 0.02 * (high - low)  # with half a marker above it
    filled = [x for line in axes.get_lines() if line.get_linestyle() == "None" for x in line.get_xdata()]
    assert {1, 2} <= set(filled)


def test_a_search_costs_on_top_of_the_tables():
    with_search = study(search=SEARCH)
    section = make_section(with_search, [*changed(FULL, seconds=30.0), *TRIALS])
    assert [spec.name for spec, _ in section.figures] == ["made-up-search"]
    assert texts(_costs_table([section]))[1:] == [
        ["together", "20 of 20", "10 min", ""],
        ["Made up: the search for w", "15", "10 min", "B"],
    ]
    assert dict(section.origin)["time, all cells"] == "10 min, and 10 min for the search"
    assert texts(_costs_table([make_section(with_search, FULL)]))[-1][1:] == ["0", "–", "all"]


@pytest.mark.parametrize("seeds", [(1,), range(5)])
def test_a_search_that_left_out_values_or_seeds_says_so(seeds):
    some = [trial for trial in TRIALS if trial.variant != "w=0" or trial.seed not in seeds]
    section = make_section(study(search=SEARCH), [*FULL, *some])
    assert texts(_costs_table([section]))[-1][-1] == f"A: {len(seeds)} of 15 runs; B"
    others = changed(TRIALS, data="B")
    beyond = changed(TRIALS[:5], variant="w=1")  # makes up for none that was asked for
    for trials, count in (([*some, *others], 1), ([*TRIALS, *others], 0), ([*some, *beyond, *others], 1)):
        assert len(view_search(SEARCH, trials).notes) == count


def test_variants_are_grouped_by_what_is_varied():
    cells = [("A", "P-STN", f"noise={value}") for value in ("none", "gaussian", "student-t")]
    tables = variant_tables([*cells, ("A", "P-STN", "dropout=off"), ("B", "STN", "dropout=on")], [ACCURACY])
    results = [
        Result("ablations", "P-STN", "A", seed, variant, metrics={"accuracy": value + 0.001 * seed})
        for variant, value in (("noise=gaussian", 0.8), ("noise=student-t", 0.9), ("dropout=off", 0.7))
        for seed in range(5)
    ]
    noise, dropout = make_section(Study("ablations", "Ablations", tables=tables), results).tables
    assert noise.title.startswith("noise, P-STN, A")
    assert [(row[0].text, row[-2].text == "missing", row[-2].strong) for row in noise.rows] == [
        ("none", True, False), ("gaussian", False, False), ("student-t", False, True),
    ]  # fmt: skip
    assert [row[0].text for row in dropout.rows] == ["off, P-STN, A", "on, STN, B"]


def test_quick_runs_are_never_compared_with_the_paper():
    section = make_section(STUDY, changed(FULL, quick=True, metrics={"accuracy": 0.123}))
    assert section.quick
    assert section.claims is None
    assert section.worse == []
    assert not any("paper" in word for view in section.tables for word in (*view.header, view.title))
    assert not any(cell.below for view in section.tables for row in view.rows for cell in row)
    beside = make_section(STUDY, [*FULL, *changed(FULL[:1], quick=True, seed=7)])
    assert not beside.quick
    assert texts(beside.tables[0])[0][1] == "80.00 ± 0.71"
    assert "1 quick runs" in beside.notes[0]


def test_where_numbers_come_from_is_told_once_with_what_sets_cells_apart():
    told = {"commit": "abc", "machine": "H200", "versions": {"torch": "2.11"}, "seconds": 90.0}
    results = [
        *runs("STN", "A", [80, 80], departures=["Fewer epochs."], **told),
        *runs("P-STN", "A", [90, 90], departures=["Fewer epochs.", "One precision."], **{**told, "commit": "def"}),
    ]
    section = make_section(STUDY, results)
    assert section.departures == ["Fewer epochs.", "One precision. (P-STN)"]
    assert section.seconds == 360
    assert dict(section.origin) == {
        "cells": "4", "seeds": "0, 1", "time, all cells": "6 min", "machines": "H200",
        "commits": "abc (2 cells), def (2 cells)", "versions": "torch 2.11",
    }  # fmt: skip


def test_the_summary_says_how_many_claims_hold_significantly_and_the_costs_what_is_missing():
    section = make_section(STUDY, FULL[:12])
    costs = texts(_costs_table([section]))
    assert _summary_table([section]).rows[0][3].text == "1 of 1, 1 significantly"
    assert costs[0] == ["Made up", "12 of 20", "0 s", "B: STN (3 runs), P-STN"]
    assert costs[-1][1] == "12 of 20"
    near = [*runs("STN", "A", [80, 81, 82]), *runs("P-STN", "A", [80, 82, 82])]
    assert _summary_table([make_section(STUDY, near)]).rows[0][3].text == "1 of 1, 0 significantly"


def test_cells_that_no_table_shows_are_named():
    section = make_section(STUDY, [*FULL, Result("made-up", "CNN", "C", 0, metrics={"accuracy": 0.5})])
    assert section.notes == ["In no table: CNN C (1)."]
