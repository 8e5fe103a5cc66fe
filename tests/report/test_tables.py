from __future__ import annotations

from dataclasses import replace

import pytest

from pstn.report import Claim, Line, Metric, Published, Result, Search, Table, holm, non_inferiority, paired, tables
from pstn.report.figures import NothingToDraw, draw_curves, draw_differences, draw_search
from pstn.report.page import _costs_table, _summary_table, make_section
from pstn.report.tables import Study, check_claims, view_claims, view_search, view_table

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
A = {m: Line(m, "A", ACCURACY, paper=Published(p)) for m, p in (("STN", "80.0 ± 1.0"), ("P-STN", "90.0 ± 1.0"))}
B = {model: Line(model, "B", ACCURACY) for model in A}
CLAIM = Claim(A["P-STN"], A["STN"])
TABLE = Table("Ours", (*A.values(), *B.values()))
STUDY = Study("made-up", "Made up", "A claim.", tables=(TABLE,), claims=(CLAIM,))


def runs(model, data, values, **more):
    numbers = enumerate(values)
    return [Result("made-up", model, data, seed, metrics={"accuracy": v / 100}, **more) for seed, v in numbers]


STN_A, PSTN_A = runs("STN", "A", [79, 80, 81, 80, 80]), runs("P-STN", "A", [89, 90, 91, 90, 90])
STN_B, PSTN_B = runs("STN", "B", [50, 51, 52, 51, 50]), runs("P-STN", "B", [50, 51, 52, 50, 51])
FULL = [*STN_A, *PSTN_A, *STN_B, *PSTN_B]


def changed(results, **changes):
    return [replace(result, **changes) for result in results]


def texts(view):
    return [[cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in view.rows]


def test_each_number_stands_beside_the_papers_with_difference_spread_p_and_verdict():
    _, shown = view_table(TABLE, [*PSTN_A, *runs("STN", "A", [70, 71, 72, 71, 71])], STUDY)
    assert texts(shown)[:2] == [
        ["A", "STN", "71.00 ± 0.71", "5", "80.0 ± 1.0", "−9.00", "2.00", "1.000", "< 0.001", "below"],
        ["A", "P-STN", "90.00 ± 0.71", "5", "90.0 ± 1.0", "+0.00", "2.00", "0.006", "1.000", "agrees"],
    ]
    assert [row[-1].tone for row in shown.rows[:2]] == ["bad", "good"]


@pytest.mark.parametrize("seeds", [5, 10])
def test_what_was_not_run_is_missing_and_never_zero(seeds):
    some, study = runs("STN", "A", [79, 80, 81]), replace(STUDY, seeds=seeds)
    grid, shown = view_table(TABLE, some, study)
    assert texts(grid) == [["A", f"80.00 ± 1.00 (3 of {seeds} runs)", "missing"], ["B", "missing", "missing"]]
    assert texts(shown)[1][2:4] == ["missing", f"0 of {seeds}"]
    assert f"{4 * seeds - 3} of the {4 * seeds} numbers" in shown.notes[0]
    section = make_section(study, some)
    assert section.runs == (3, 4 * seeds)
    assert texts(_costs_table([section]))[0][-1] == f"{4 * seeds - 3} runs"


MEAN = Line("P-STN", ("A", "B"), ACCURACY, paper=Published("70.0"), row="Mean")


@pytest.mark.parametrize(
    ("untested", "reasons"),
    [
        ({}, None),
        ({"A": "other data"}, ("other data", None)),
        ({"No test part.": "other test part"}, ("other test part", "other test part (A)")),
    ],
)
def test_lines_that_cannot_be_compared_are_not_tested(untested, reasons):
    table = replace(TABLE, lines=(A["P-STN"], B["P-STN"], MEAN), untested=untested)
    results = [*runs("P-STN", "A", [10, 10, 11, 10, 10], departures=["No test part."]), *PSTN_B]
    verdicts = {row[0]: row[-1] for row in texts(view_table(table, results, STUDY)[-1])}
    section = make_section(replace(STUDY, tables=(table,)), results)
    assert verdicts["A"] == (f"not tested: {reasons[0]}" if reasons else "below")
    assert section.outcome[0] == ([] if reasons else ["P-STN, A, accuracy (%)"])
    if reasons:
        assert (verdicts["Mean"] == f"not tested: {reasons[1]}") == (reasons[1] is not None)


def test_the_summary_says_what_was_tested_and_how_many_claims_hold():
    untested = replace(STUDY, tables=(replace(TABLE, untested={"A": "other data"}),), claims=())
    unpublished = replace(STUDY, tables=(Table("Ours", tuple(B.values())),), claims=())
    ours = replace(STUDY, claims=(CLAIM, replace(CLAIM, claimed=False)))  # one that is shown and not counted
    near = [*runs("STN", "A", [80, 81, 82]), *runs("P-STN", "A", [80, 82, 82])]
    for study, results, tested, claims in (
        (ours, FULL, "1 agrees", "1 holds"), (STUDY, near, "1 worse; P-STN, A, accuracy (%)", "1 tie"),
        (untested, FULL, "not tested", "–"), (STUDY, [], "–", "–"), (unpublished, FULL, "–", "–"),
    ):  # fmt: skip
        row = _summary_table([make_section(study, results)]).rows[0]
        assert (row[2].text, row[3].text) == (tested, claims)


def test_a_run_that_diverged_is_not_missing_and_is_named():
    broken = Result("made-up", "P-STN", "A", 4, departures=["No numbers: it diverged."])
    section = make_section(STUDY, [*STN_A, *PSTN_A[:4], broken, *STN_B, *PSTN_B])
    assert texts(section.tables[0])[0][2] == "90.00 ± 0.82 (4 of 5 runs)"
    assert not any("missing" in note for view in section.tables for note in view.notes)
    assert section.departures == ["No numbers: it diverged. (P-STN on A, seed 4)"]
    assert texts(make_section(STUDY, [*STN_A, *changed(PSTN_A, metrics={})]).tables[0])[0][2] == "diverged"


def test_a_mean_is_taken_seed_by_seed_over_the_seeds_that_all_have():
    mean = replace(MEAN, model="STN")
    assert mean.values(FULL) == pytest.approx([64.5, 65.5, 66.5, 65.5, 65.0])
    assert mean.values([*STN_A, *STN_B[:2], *STN_B[3:]]) == pytest.approx([64.5, 65.5, 65.5, 65.0])
    assert mean.values(STN_A) == []


def test_a_published_table_is_read_as_it_is_printed():
    found = tables.published_lines(ACCURACY, "data  CNN  STN\nA b  1.0 ± 0.2  *3.0*\nC  -  4")
    printed = {key: (line.paper.text, line.paper.bold) for key, line in found.items()}
    assert printed == {("CNN", "A b"): ("1.0 ± 0.2", False), ("STN", "A b"): ("3.0", True), ("STN", "C"): ("4", False)}
    with pytest.raises(ValueError, match="zip"):
        tables.published_lines(ACCURACY, "data  CNN  STN\nA  1.0")


@pytest.mark.parametrize(
    ("better", "worse", "options", "words"),
    [
        ([90, 91, 92], [80, 81, 82], {}, "holds"),
        ([90, 91, 92], [90, 91, 91], {}, "tie"),
        ([90, 91, 91], [90, 91, 92], {}, "tie"),
        ([80, 81, 82], [90, 91, 92], {}, "reversed"),
        ([80, 81, 82], [], {}, "missing"),
        ([90, 90, 90, 1, 1], [80] * 5, {"robust": True}, "tie"),
        ([90, 90, 90, 1, 1], [80] * 5, {}, "tie"),
        ([61, 71, 82], [60, 70, 80], {"paired": True}, "tie"),
        ([61, 71, 81.1], [60, 70, 80], {"paired": True}, "holds"),
        ([80, 81, 82], [81, 82, 83], {"margin": 5.0}, "holds"),
        ([80, 81, 82], [81, 82, 83], {"margin": 1.5}, "not shown"),
        ([80, 81, 82], [81, 82, 83], {"margin": 0.5}, "not shown"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_claim_holds_is_reversed_or_a_tie(better, worse, options, words, sign):
    metric = replace(ACCURACY, higher_is_better=sign > 0)
    claim = Claim(*(Line(model, "A", metric) for model in ("P-STN", "STN")), **options)
    values = {"P-STN": better, "STN": worse}
    results = [result for model in values for result in runs(model, "A", [sign * v for v in values[model]])]
    view = view_claims(replace(STUDY, claims=(claim,)), results)
    assert view.rows[0][-1].text == words


def test_claims_are_tested_as_they_say_and_corrected_together():
    better, worse = [90, 91, 93, 92, 90], [89, 91, 91, 91, 90]
    results = [*runs("P-STN", "A", better), *runs("STN", "A", worse)[::-1]]
    claims = tuple(replace(CLAIM, **options) for options in ({"paired": True}, {"margin": 1.0}, {"comparable": False}))
    found = [finding.p for finding in check_claims(replace(STUDY, claims=claims), results)]
    assert found[:2] == pytest.approx([paired(better, worse), non_inferiority(better, worse, 1.0)])
    corrected = replace(STUDY, claims=claims, holm=True, from_paper=False)
    assert [finding.p for finding in check_claims(corrected, results)] == pytest.approx(holm(found))
    view = make_section(corrected, results).tables[-1]
    assert "paper" not in view.title + "".join(view.header)
    assert (len(view.notes), {len(row) for row in view.rows}) == (4, {len(view.header)})


def test_claims_of_a_table_are_corrected_together_and_shown_as_a_grid():
    better, worse = [90, 91, 93, 92, 90], {"STN": [89, 91, 91, 91, 90], "CNN": [70, 71, 73, 72, 70]}
    results = [*runs("P-STN", "A", better), *(r for model in worse for r in runs(model, "A", worse[model]))]
    pairs = [(Line("P-STN", "A", ACCURACY), Line(model, "A", ACCURACY)) for model in worse]
    claims = tuple(Claim(*pair, paired=True, table=table) for table in ("one", "two") for pair in pairs)
    study = replace(STUDY, claims=claims, holm=True, from_paper=False)
    corrected = holm([paired(better, values) for values in worse.values()])
    assert [finding.p for finding in check_claims(study, results)] == pytest.approx([*corrected, *corrected])
    without = view_claims(study, [r for r in results if r.model != "STN"])
    assert texts(without)[0][2:] == ["missing", "+20.00 (< 0.001)", "missing"]
    behind = view_claims(replace(study, claims=(Claim(*pairs[0][::-1], table="one"),)), results)
    assert behind.rows[0][-1].text == "no"
    assert behind.rows[0][2].tone == "bad"


VALIDATION = (Metric("valid_nll", "NLL"), Metric("valid_accuracy", "accuracy", scale=100, higher_is_better=True))
SEARCH = Search("made-up-search", "w", VALIDATION, {"A": 1e-3, "B": 0.0}, values=(0.0, 1e-4, 1e-3))
SCORES = {"0.001": {"valid_nll": 0.4, "valid_accuracy": 0.9}, "0": {"valid_nll": 0.5, "valid_accuracy": 0.8},
          "0.0001": {"valid_nll": 0.3, "valid_accuracy": 0.7}}  # fmt: skip
TRIALS = [
    Result("made-up-search", "P-STN", "A", seed, f"w={w}", metrics=metrics, seconds=40.0)
    for w, metrics in SCORES.items() for seed in range(5)
]  # fmt: skip


def perfect_but_for(accuracy_at_zero):
    scores = {"w=0": accuracy_at_zero}
    return [replace(t, metrics={**t.metrics, "valid_accuracy": scores.get(t.variant, 1.0)}) for t in TRIALS]


def test_the_search_chooses_by_each_validation_score_and_says_what_it_tried():
    assert texts(view_search(SEARCH, TRIALS)) == [
        ["A", "0.0001", "0.001", "0.001", "0, 0.0001, 0.001", "5"], ["B", "missing", "missing", "0", "", "0"],
    ]  # fmt: skip
    for at_zero, best in ((1.0, "all alike"), (0.99, "0.0001, 0.001")):
        assert texts(view_search(SEARCH, perfect_but_for(at_zero)))[0][2] == best


def test_the_search_is_drawn_with_its_best_filled_and_the_papers_ringed():
    two = [*TRIALS, *(replace(t, data="B", metrics={"valid_nll": t.seed + 0.1}) for t in TRIALS)]
    figure = draw_search(two, search=replace(SEARCH, shown=1e-3))
    assert [axes.get_title() for axes in figure.axes] == ["A", "B"]
    for axes, (best, score), chosen in zip(figure.axes, ((1, 0.3), (0, 2.1)), (2, 0), strict=True):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1e-4", "0.001"]
        dots, line, *points = axes.get_lines()
        assert len(dots.get_xdata()) == 15  # every run
        assert list(line.get_xdata()) == [0, 1, 2]
        assert list(line.get_ydata()) == ([0.5, 0.3, 0.4] if best else [2.1] * 3)  # medians
        filled, ring = sorted((p for p in points if len(p.get_xdata())), key=lambda line: line.get_markersize())
        assert (filled.get_xdata()[0], filled.get_ydata()[0]) == (best, pytest.approx(score))
        assert (ring.get_xdata()[0], ring.get_markerfacecolor()) == (chosen, "none")
    (axes,) = draw_search(TRIALS, search=replace(SEARCH, shown=1e-4)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1e-4"]
    with pytest.raises(NothingToDraw):
        draw_search([], search=SEARCH)
    # Perfect scores are within the frame, and all that are best are filled.
    (axes,) = draw_search(perfect_but_for(0.9), search=replace(SEARCH, metrics=VALIDATION[1:])).axes
    assert axes.get_ylim()[0] < 100 < axes.get_ylim()[1]
    filled = [x for line in axes.get_lines()[2:] if line.get_linestyle() == "None" for x in line.get_xdata()]
    assert {1, 2} <= set(filled)


def test_runs_of_two_kinds_are_drawn_one_by_one_where_a_table_is_robust():
    values = {1: [0.5, 0.5, 0.0, 0.0, 0.4], 2: [0.0] * 4 + [30.0]}
    runs = [Result("e", "P-STN", f"{n}", s, metrics={"v": v}) for n, own in values.items() for s, v in enumerate(own)]
    table = Table("t", tuple(Line("P-STN", f"{n}", Metric("v", "variance")) for n in values), robust=True)
    (axes,) = draw_curves(runs, tables=(table,), xlabel="layers").axes
    dots, line = axes.get_lines()
    assert sorted(dots.get_ydata()) == sorted(v for own in values.values() for v in own)
    assert list(line.get_ydata()) == [0.4, 0.0]
    assert axes.get_yscale() == "symlog"  # one run far above the medians does not set the scale


def test_curves_of_differences_are_taken_seed_by_seed():
    shown = [Line(m, f"S={s}", ACCURACY, row=f"{s}", column=m) for m in ("iid", "sobol") for s in (1, 2)]
    runs = [Result("e", li.model, li.data, k, metrics={"accuracy": 0.5 + 0.1 * k + 0.01 * n})
            for n, li in enumerate(shown) for k in range(3)]  # fmt: skip
    table = Table("t", tuple(shown))
    (axes,) = draw_curves(runs, tables=(table,), xlabel="S", log=True, minus=("1", "iid")).axes
    points = {line.get_label(): list(line[0].get_ydata()) for line in axes.containers}
    assert points == {"iid": [pytest.approx(1.0)], "sobol": [pytest.approx(2.0), pytest.approx(3.0)]}
    spreads = [bars.get_segments() for line in axes.containers for bars in line[2]]
    assert max(abs(high[1] - low[1]) for own in spreads for low, high in own) < 1e-9  # that of the seeds is gone


def test_differences_are_drawn_run_by_run():
    better, worse = (Line(m, "A", ACCURACY, column=m) for m in ("P-STN", "CNN"))
    scores = {"P-STN": [0.9, 0.8, 0.7], "CNN": [0.8, 0.85]}
    runs = [Result("e", m, "A", s, metrics={"accuracy": v}) for m, own in scores.items() for s, v in enumerate(own)]
    (axes,) = draw_differences(runs, claims=[Claim(better, worse)], metrics=[ACCURACY]).axes
    dots, mean, _ = axes.get_lines()
    assert list(dots.get_xdata()) == pytest.approx([10.0, -5.0])  # the third has no partner
    assert mean.get_xdata()[0] == pytest.approx(2.5)
    assert axes.get_yticklabels()[0].get_text() == "P-STN\nminus CNN"
    with pytest.raises(NothingToDraw):
        draw_differences([], claims=[Claim(better, worse)], metrics=[ACCURACY])


def test_what_it_took_names_what_was_not_run():
    for results, row in (([*FULL, *TRIALS], ["15", "10 min", "B"]), (FULL, ["0", "–", "all"])):
        section = make_section(replace(STUDY, search=SEARCH), results)
        assert texts(_costs_table([section]))[-1] == ["Made up: the search for w", *row]


@pytest.mark.parametrize("seeds", [(1,), range(5)])
def test_a_search_that_left_out_values_or_seeds_says_so(seeds):
    some = [trial for trial in TRIALS if trial.variant != "w=0" or trial.seed not in seeds]
    assert SEARCH.missing(some) == [f"A: {len(seeds)} of 15 runs", "B"]
    others = changed(TRIALS, data="B")
    beyond = changed(TRIALS[:5], variant="w=1")  # makes up for none that was asked for
    for trials, count in (([*some, *others], 1), ([*TRIALS, *others], 0), ([*some, *beyond, *others], 1)):
        assert len(view_search(SEARCH, trials).notes) == count
