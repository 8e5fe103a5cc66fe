from __future__ import annotations

import dataclasses

import pytest

from pstn.report.figures import draw_search
from pstn.report.page import costs_table, make_section, summary_table
from pstn.report.results import Result
from pstn.report.tables import (
    Line,
    Mean,
    Metric,
    Order,
    Paper,
    Search,
    Study,
    Table,
    check_order,
    view_orders,
    view_search,
    view_table,
)

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
LOSS = Metric("nll", "NLL")
A = {model: Line(model, "A", ACCURACY, paper=Paper(p)) for model, p in (("STN", "80.0 ± 1.0"), ("P-STN", "90.0 ± 1.0"))}
B = {model: Line(model, "B", ACCURACY) for model in A}
TABLE = Table("Ours", (*A.values(), *B.values()))
STUDY = Study("made-up", "Made up", "A claim.", tables=(TABLE,), orders=(Order(A["P-STN"], A["STN"]),))
SEEDS = range(5)


def runs(model, data, values, **more):
    return [
        Result("made-up", model, data, seed, metrics={"accuracy": value / 100}, **more)
        for seed, value in enumerate(values)
    ]


FULL = [
    *runs("STN", "A", [79, 80, 81, 80, 80]), *runs("P-STN", "A", [89, 90, 91, 90, 90]),
    *runs("STN", "B", [50, 51, 52, 51, 50]), *runs("P-STN", "B", [50, 51, 52, 50, 51]),
]  # fmt: skip


def texts(view):
    return [[cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in view.rows]


def test_a_grid_shows_ours_over_the_papers_with_the_significantly_best_in_bold():
    grid, _ = view_table(TABLE, FULL, STUDY)
    assert grid.header == ["data", "STN", "P-STN"]
    assert texts(grid) == [["A", "80.00 ± 0.71", "90.00 ± 0.71"], ["B", "50.80 ± 0.84", "50.80 ± 0.84"]]
    assert [cell.strong for cell in grid.rows[0]] == [False, False, True]
    assert not any(cell.strong for cell in grid.rows[1])
    assert grid.rows[0][2].below.text.replace("\N{NO-BREAK SPACE}", " ") == "90.0 ± 1.0"
    assert grid.rows[1][2].below.text == "–"


def test_each_number_stands_beside_the_papers_with_difference_spread_p_and_verdict():
    _, lines = view_table(TABLE, [*FULL[5:10], *runs("STN", "A", [70, 71, 72, 71, 71])], STUDY)
    stn, pstn = texts(lines)[:2]
    assert stn == ["A", "STN", "71.00 ± 0.71", "5", "80.0 ± 1.0", "−9.00", "no", "< 0.001", "significantly below"]
    assert pstn == ["A", "P-STN", "90.00 ± 0.71", "5", "90.0 ± 1.0", "+0.00", "yes", "1.000", "equal"]
    assert [row[-1].tone for row in lines.rows[:2]] == ["bad", "good"]


def test_what_was_not_run_is_missing_and_never_zero():
    some = [*runs("STN", "A", [79, 80, 81]), *runs("P-STN", "A", [])]
    grid, lines = view_table(TABLE, some, STUDY)
    assert texts(grid) == [["A", "80.00 ± 1.00 (3 of 5 runs)", "missing"], ["B", "missing", "missing"]]
    assert texts(lines)[1][:4] == ["A", "P-STN", "missing", "0 of 5"]
    assert texts(lines)[1][-1] == "missing"
    assert "17 of the 20 numbers under this table are missing. `pstn reproduce made-up`" in lines.notes[0]
    assert make_section(STUDY, some).outcome.found == 3


def test_rows_that_cannot_be_compared_are_not_tested():
    table = dataclasses.replace(TABLE, incomparable={"A": "other data"})
    _, lines = view_table(table, FULL, STUDY)
    assert texts(lines)[0][-3:] == ["", "", "not tested: other data"]
    study = dataclasses.replace(STUDY, tables=(table,))
    assert make_section(study, runs("P-STN", "A", [10, 10, 11, 10, 10])).outcome.worse == ()


def test_rows_whose_results_say_so_are_not_tested_and_neither_is_a_mean_that_holds_them():
    mean = Mean((A["P-STN"], B["P-STN"]), "Mean", Paper("70.0"))
    table = dataclasses.replace(
        TABLE, lines=(A["P-STN"], B["P-STN"], mean), incomparable_where={"No test part.": "other test part"}
    )
    study = dataclasses.replace(STUDY, tables=(table,))
    worse = runs("P-STN", "A", [10, 10, 11, 10, 10])
    told = [dataclasses.replace(r, departures=["No test part."]) for r in worse]
    others = runs("P-STN", "B", [50, 51, 52, 50, 51])

    def verdicts(results):
        return {row[0]: row[-1] for row in texts(view_table(table, results, study)[-1])}

    assert verdicts([*worse, *others])["A"] == "significantly below"
    assert verdicts([*told, *others])["A"] == "not tested: other test part"
    assert verdicts([*told, *others])["Mean"] == "not tested: other test part (A)"
    assert make_section(study, [*worse, *others]).outcome.worse == ("P-STN, A, accuracy (%)",)
    assert make_section(study, [*told, *others]).outcome.worse == ()


def test_shortened_runs_are_not_tested():
    short = [
        dataclasses.replace(r, departures=["Shortened: 60 epochs instead of 600."])
        for r in runs("P-STN", "A", [10, 10, 11, 10, 10])
    ]
    _, lines = view_table(TABLE, short, STUDY)
    assert texts(lines)[1][-1] == "not tested: fewer epochs"
    assert make_section(STUDY, short).outcome.worse == ()


def test_the_summary_tells_what_was_tested_from_what_was_not():
    shortened = [dataclasses.replace(r, departures=["Shortened: 6 epochs instead of 60."]) for r in FULL]
    assert summary_table([make_section(STUDY, FULL)]).rows[0][2].text == "none of 1"
    assert summary_table([make_section(STUDY, shortened)]).rows[0][2].text == "not tested"
    assert summary_table([make_section(STUDY, [])]).rows[0][2].text == "–"
    unpublished = dataclasses.replace(STUDY, tables=(Table("Ours", tuple(B.values())),), orders=())
    assert summary_table([make_section(unpublished, FULL)]).rows[0][2].text == "–"


def test_a_run_that_diverged_is_not_missing_and_is_named():
    broken = Result("made-up", "P-STN", "A", 4, departures=["No numbers: it diverged."])
    results = [*FULL[:9], broken, *FULL[10:]]
    section = make_section(STUDY, results)
    assert texts(section.tables[0])[0][2] == "90.00 ± 0.82 (4 of 5 runs)"
    assert section.notes == ["1 run has no numbers: P-STN on A, seed 4. Where the runs leave the paper says why."]
    assert not any("missing" in note for view in section.tables for note in view.notes)
    assert section.departures == ["No numbers: it diverged. (P-STN on A, seed 4)"]
    lost = [dataclasses.replace(r, metrics={}) for r in FULL[5:10]]
    assert texts(make_section(STUDY, [*FULL[:5], *lost]).tables[0])[0][2] == "diverged"


def test_a_mean_row_is_taken_seed_by_seed_over_the_seeds_that_all_have():
    mean = Mean((A["STN"], B["STN"]), "Mean", Paper("65.0"))
    assert mean.find(FULL) == pytest.approx([64.5, 65.5, 66.5, 65.5, 65.0])
    assert mean.find([r for r in FULL if r.seed != 2 or r.data != "B"]) == pytest.approx([64.5, 65.5, 65.5, 65.0])
    assert mean.find(FULL[:5]) == []


def test_medians_are_shown_where_a_table_asks_for_them():
    table = dataclasses.replace(TABLE, robust=True, bold=False)
    grid, _ = view_table(table, runs("STN", "A", [1, 2, 3, 4, 90]), STUDY)
    assert texts(grid)[0][1] == "3.00 ± 1.00"


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
def test_a_claimed_order_holds_or_does_not(better, worse, words):
    results = [*runs("P-STN", "A", better), *runs("STN", "A", worse)]
    assert check_order(Order(A["P-STN"], A["STN"]), results).words == words
    assert view_orders([Order(A["P-STN"], A["STN"])], results).rows[0][-1].text == words


def test_the_lower_loss_is_ahead():
    lower, higher = Line("P-STN", "A", LOSS), Line("STN", "A", LOSS)
    results = [
        Result("made-up", m, "A", s, metrics={"nll": v + 0.01 * s})
        for m, v in (("STN", 2), ("P-STN", 1))
        for s in SEEDS
    ]
    assert check_order(Order(lower, higher), results).holds
    assert not check_order(Order(higher, lower), results).holds


def test_a_robust_order_compares_medians():
    results = [*runs("P-STN", "A", [90, 90, 90, 1, 1]), *runs("STN", "A", [80, 80, 80, 80, 80])]
    assert check_order(Order(A["P-STN"], A["STN"], robust=True), results).holds
    assert not check_order(Order(A["P-STN"], A["STN"]), results).holds


def test_shortened_runs_say_nothing_of_an_order():
    short = [dataclasses.replace(r, departures=["Shortened: 6 epochs instead of 60."]) for r in FULL]
    assert make_section(STUDY, FULL).outcome.claimed == len(STUDY.orders) > 0
    section = make_section(STUDY, short)
    assert section.outcome.claimed == 0
    assert {row[-1] for row in texts(section.orders)} == {"not tested: fewer epochs"}


def test_an_order_that_is_ours_is_shown_and_not_counted_as_the_papers():
    ours = dataclasses.replace(STUDY, orders=(*STUDY.orders, Order(A["P-STN"], A["STN"], claimed=False)))
    section = make_section(ours, FULL)
    assert section.outcome.claimed == len(STUDY.orders)
    assert len(section.orders.rows) == len(STUDY.orders) + 1
    assert texts(section.orders)[-1][1].endswith("(not a claim of the paper)")


VALIDATION = (Metric("valid_nll", "NLL"), Metric("valid_accuracy", "accuracy", scale=100, higher_is_better=True))
SEARCH = Search("made-up-search", "w", VALIDATION, {"A": 1e-3, "B": 0.0}, values=(0.0, 1e-4, 1e-3))
TRIALS = [
    Result(
        "made-up-search", "P-STN", "A", seed, f"w={w}", metrics={"valid_nll": nll, "valid_accuracy": accuracy},
        seconds=40.0,
    )
    for w, nll, accuracy in (("0.001", 0.4, 0.9), ("0", 0.5, 0.8), ("0.0001", 0.3, 0.7)) for seed in range(5)
]  # fmt: skip


def test_the_search_chooses_by_each_validation_score_and_says_what_it_tried():
    assert texts(view_search(SEARCH, TRIALS, runs=5)) == [
        ["A", "0.0001", "0.001", "0.001", "0, 0.0001, 0.001", "5"],
        ["B", "missing", "missing", "0", "", "0"],
    ]


def test_the_search_is_drawn_with_its_best_filled_and_the_papers_ringed():
    figure = draw_search(TRIALS, search=SEARCH)
    assert figure is not None
    for axes, best, score in zip(figure.axes, (1, 2), (0.3, 90), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.0001", "0.001"]
        points = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
        filled, ring = sorted(points, key=lambda line: line.get_markersize())
        assert (filled.get_xdata()[0], filled.get_ydata()[0]) == (best, pytest.approx(score))
        assert (ring.get_xdata()[0], ring.get_markerfacecolor()) == (2, "none")
    assert not any(axes.get_legend() for axes in figure.axes)  # it would lie on the lines
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "best", "the paper’s"]
    assert draw_search([], search=SEARCH) is None


def level(accuracy_at_zero: float) -> list[Result]:
    """The trials, all of them perfect, but for w = 0."""
    return [
        dataclasses.replace(t, metrics={**t.metrics, "valid_accuracy": accuracy_at_zero if t.variant == "w=0" else 1.0})
        for t in TRIALS
    ]


@pytest.mark.parametrize(("at_zero", "best"), [(1.0, "all alike"), (0.99, "0.0001, 0.001")])
def test_values_that_are_level_are_all_named(at_zero, best):
    assert texts(view_search(SEARCH, level(at_zero), runs=5))[0][2] == best


def test_what_is_perfect_is_drawn_within_the_frame_and_all_that_are_best_are_filled():
    figure = draw_search(level(0.9), search=SEARCH)
    assert figure is not None
    figure.draw_without_rendering()
    axes = figure.axes[1]
    low, high = (axes.transData.transform((0, y))[1] for y in axes.get_ylim())
    at = axes.transData.transform((0, 100))[1]
    assert low < at < high - 0.02 * (high - low)  # half a marker is above its middle
    filled = [x for line in axes.get_lines() if line.get_linestyle() == "None" for x in line.get_xdata()]
    assert {1, 2} <= set(filled)


def test_a_search_costs_on_top_of_the_tables():
    study = dataclasses.replace(STUDY, search=SEARCH)
    section = make_section(study, [*(dataclasses.replace(r, seconds=30.0) for r in FULL), *TRIALS])
    assert [drawing.name for drawing, _ in section.figures] == ["made-up-search"]
    assert texts(costs_table([section]))[1:] == [
        ["together", "20 of 20", "10 min", ""],
        ["Made up: the search for w", "15", "10 min", "B"],
    ]
    assert dict(section.origin)["time, all cells"] == "10 min, and 10 min for the search"
    assert texts(costs_table([make_section(study, FULL)]))[-1][1:] == ["0", "–", "all"]


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [
        (lambda trial: trial.variant == "w=0", "A: 5 of 15 runs; B"),
        (lambda trial: trial.variant == "w=0" and trial.seed == 1, "A: 1 of 15 runs; B"),
    ],
)
def test_a_search_that_left_out_values_or_seeds_says_so(left_out, missing):
    some = [trial for trial in TRIALS if not left_out(trial)]
    section = make_section(dataclasses.replace(STUDY, search=SEARCH), [*FULL, *some])
    assert texts(costs_table([section]))[-1][-1] == missing
    others = [dataclasses.replace(trial, data="B") for trial in TRIALS]
    note = "`pstn reproduce made-up-search` runs what is missing."
    assert view_search(SEARCH, [*some, *others], runs=5).notes == [note]
    assert view_search(SEARCH, [*TRIALS, *others], runs=5).notes == []
    beyond = [dataclasses.replace(trial, variant="w=1") for trial in TRIALS[:5]]  # makes up for none that was asked for
    assert view_search(SEARCH, [*some, *beyond, *others], runs=5).notes == [note]


def test_variants_are_grouped_by_what_is_varied():
    study = Study("ablations", "Ablations", "", by_variant=(ACCURACY,), variants=(("A", "P-STN", "noise=none"),))
    results = [
        Result("ablations", "P-STN", "A", seed, variant, metrics={"accuracy": value + 0.001 * seed})
        for variant, value in (("noise=gaussian", 0.8), ("noise=student-t", 0.9), ("dropout=off", 0.7))
        for seed in SEEDS
    ]
    noise, dropout = make_section(study, results).tables
    assert noise.title.startswith("noise, P-STN, A")
    assert [(row[0].text, row[-2].text == "missing", row[-2].strong) for row in noise.rows] == [
        ("none", True, False), ("gaussian", False, False), ("student-t", False, True),
    ]  # fmt: skip
    assert len(dropout.rows) == 1


def test_quick_runs_are_never_compared_with_the_paper():
    quick = [dataclasses.replace(r, quick=True, metrics={"accuracy": 0.123}) for r in FULL]
    section = make_section(STUDY, quick)
    assert section.quick
    assert section.orders is None
    assert section.outcome.worse == ()
    assert not any("paper" in word for view in section.tables for word in (*view.header, view.title))
    assert not any(cell.below for view in section.tables for row in view.rows for cell in row)


def test_beside_real_runs_quick_ones_are_set_apart():
    quick = dataclasses.replace(FULL[0], quick=True, seed=7, metrics={"accuracy": 0.0})
    section = make_section(STUDY, [*FULL, quick])
    assert not section.quick
    assert texts(section.tables[0])[0][1] == "80.00 ± 0.71"
    assert "1 quick runs" in section.notes[0]


def test_where_numbers_come_from_is_told_once_with_what_sets_cells_apart():
    told = {"commit": "abc", "machine": "H200", "versions": {"torch": "2.11"}, "seconds": 90.0}
    results = [
        *runs("STN", "A", [80, 80], departures=["Fewer epochs."], **told),
        *runs("P-STN", "A", [90, 90], departures=["Fewer epochs.", "One precision."], **{**told, "commit": "def"}),
    ]
    section = make_section(STUDY, results)
    assert section.departures == ["Fewer epochs.", "One precision. (P-STN)"]
    assert dict(section.origin) == {
        "cells": "4", "seeds": "0, 1", "time, all cells": "6 min", "machines": "H200",
        "commits": "abc (2 cells), def (2 cells)", "versions": "torch 2.11",
    }  # fmt: skip


def test_the_time_of_all_cells_is_the_sum_of_their_shares():
    cells = [Line("CNN", data, ACCURACY) for data in ("upright", "rotated")]
    study = Study("made-up", "", "", (Table("", tuple(cells)),))
    shares = [r for line in cells for r in runs("CNN", line.data, [80, 80], seconds=30.0)]
    assert make_section(study, shares).outcome.seconds == 120.0
    assert dict(make_section(study, shares).origin)["time, all cells"] == "2 min"


def test_the_summary_says_how_many_orders_hold_significantly_and_the_costs_what_is_missing():
    section = make_section(STUDY, FULL[:12])
    summary, costs = summary_table([section]), costs_table([section])
    assert summary.rows[0][3].text == "1 of 1, 1 significantly"
    assert [cell.text for cell in costs.rows[0]] == ["Made up", "12 of 20", "0 s", "B: STN (3 runs), P-STN"]
    assert costs.rows[-1][1].text == "12 of 20"
    near = [*runs("STN", "A", [80, 81, 82]), *runs("P-STN", "A", [80, 82, 82])]
    assert summary_table([make_section(STUDY, near)]).rows[0][3].text == "1 of 1, 0 significantly"


def test_cells_that_no_table_shows_are_named():
    section = make_section(STUDY, [*FULL, Result("made-up", "CNN", "C", 0, metrics={"accuracy": 0.5})])
    assert section.notes == ["In no table: CNN C (1)."]
