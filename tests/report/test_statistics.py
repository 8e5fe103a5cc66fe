from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pstn.report import Published, holm, non_inferiority, paired
from pstn.report.statistics import (
    Summary,
    best,
    compare,
    equivalence,
    equivalence_by_fold,
    median_and_deviation,
    one_more_run,
    summarise,
    welch,
)

OURS, OTHERS = [0.91, 0.93, 0.90, 0.95, 0.92], [0.90, 0.90, 0.91, 0.92, 0.89]


def test_summaries_and_welchs_test_of_them_are_scipys_of_the_runs():
    assert summarise(OURS) == pytest.approx((stats.tmean(OURS), stats.tstd(OURS), 5))
    assert median_and_deviation(OURS) == pytest.approx((0.92, stats.median_abs_deviation(OURS)))
    for other in (OTHERS, OTHERS[:3], [0.5, 0.9]):
        reference = stats.ttest_ind(OURS, other, equal_var=False).pvalue
        assert welch(summarise(OURS), summarise(other)) == pytest.approx(reference)


@given(st.floats(-100, 100), st.floats(1e-3, 50), st.integers(2, 30), st.floats(-100, 100))
def test_one_more_run_is_the_two_sample_test_with_one_run_on_the_other_side(mean, std, n, value):
    # With one run on the other side, the pooled standard deviation is ours.
    t = abs(mean - value) / (std * math.sqrt(1 / n + 1))
    assert one_more_run(Summary(mean, std, n), value) == pytest.approx(2 * stats.t.sf(t, n - 1), rel=1e-9, abs=1e-300)


def test_the_paired_test_is_scipys():
    assert paired(OURS, OTHERS) == pytest.approx(stats.ttest_rel(OURS, OTHERS).pvalue)
    assert paired(OURS, OTHERS) < welch(summarise(OURS), summarise(OTHERS))  # folds that are hard are hard for both
    with pytest.raises(ValueError, match="zip"):
        paired(OURS, OTHERS[:4])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("margin", [0.0, 0.01, 0.2])
def test_non_inferiority_is_the_one_sided_test_of_the_shifted_runs(sign, margin):
    side, options = "greater" if sign > 0 else "less", {"higher_is_better": sign > 0}
    for first, second in ((OTHERS, OURS), (OURS, OTHERS)):
        a, b = [sign * value for value in first], [sign * value for value in second]
        moved = [value + sign * margin for value in a]
        welchs = stats.ttest_ind(moved, b, equal_var=False, alternative=side).pvalue
        assert non_inferiority(a, b, margin, **options) == pytest.approx(welchs)
        by_fold = stats.ttest_rel(moved, b, alternative=side).pvalue
        assert non_inferiority(a, b, margin, by_fold=True, **options) == pytest.approx(by_fold)
    with pytest.raises(ValueError, match="margin"):
        non_inferiority(OURS, OTHERS, -0.1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_multiplies_the_kth_smallest_by_the_number_left(p_values):
    ordered, m = sorted(p_values), len(p_values)
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        # Closed form: the largest of (m - k) p_k over all that are no larger.
        assert adjusted == max(min(1.0, (m - k) * q) for k, q in enumerate(ordered) if q <= p)
    assert holm([0.01, None]) == [0.01, None]


def test_no_spread_means_no_test_and_equal_runs_differ_surely_if_at_all():
    single, several, same = summarise([3.0]), summarise([1.0, 2.0]), Summary(1.0, 0.0, 5)
    assert single == Summary(3.0, None, 1)
    assert welch(single, several) is welch(several, single) is one_more_run(single, 2.0) is paired([1.0], [2.0]) is None
    assert paired([], []) is non_inferiority([], [], 0.1) is non_inferiority([1.0], [1.0], 0.1) is None
    assert welch(same, same) == one_more_run(same, 1.0) == paired([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch(same, Summary(0.9, 0.0, 5)) == one_more_run(same, 0.9) == paired([2.0, 2.0], [1.0, 1.0]) == 0.0


@pytest.mark.parametrize(
    ("candidates", "higher_is_better", "bold"),
    [
        ([(80.0, 1.0), (90.0, 1.0)], True, {1}),
        ([(80.0, 1.0), (90.0, 1.0)], False, {0}),
        ([(80.0, 1.0), (80.5, 1.0)], True, set()),  # none is significantly behind
        # The second, for all its spread, is not bold above the third, which is significantly behind.
        ([(90.0, 1.0), (80.0, 30.0), (85.0, 1.0)], True, {0}),
        # A single run is never bold, and none is behind one.
        ([(99.0, 0.1), (98.0, None), (90.0, 0.1)], True, {0}),
        ([(98.0, 0.1), (99.0, None), (90.0, 0.1)], True, set()),
        ([None, (90.0, 1.0)], True, set()),
    ],
)
def test_bold_is_for_the_significantly_best(candidates, higher_is_better, bold):
    summaries = [pair and Summary(*pair, 5 if pair[1] else 1) for pair in candidates]
    assert best(summaries, higher_is_better=higher_is_better) == bold


@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.lists(st.floats(-10, 10), min_size=2, max_size=6),
    st.floats(0, 20),
)  # fmt: skip
def test_equivalence_is_two_one_sided_tests_of_scipys(a, b, margin):
    first, second = summarise(a), summarise(b)
    assume(first.std > 1e-3 and second.std > 1e-3)
    options = {"equal_var": False}
    above = stats.ttest_ind([x + margin for x in a], b, alternative="greater", **options).pvalue
    below = stats.ttest_ind([x - margin for x in a], b, alternative="less", **options).pvalue
    found = equivalence(first, second, margin)
    assert found == pytest.approx(max(above, below), rel=1e-6, abs=1e-12)
    low, high = stats.ttest_ind(a, b, **options).confidence_interval(0.9)
    if abs(found - 0.05) > 1e-6:
        assert (found < 0.05) == (-margin < low and high < margin)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=6), st.floats(0, 20))
def test_equivalence_by_fold_is_two_one_sided_tests_of_the_differences(pairs, margin):
    a, b = zip(*pairs, strict=True)
    differences = np.subtract(a, b)
    assume(differences.std() > 1e-3)
    sides = ((-margin, "greater"), (margin, "less"))
    wanted = max(stats.ttest_1samp(differences, at, alternative=side).pvalue for at, side in sides)
    assert equivalence_by_fold(a, b, margin) == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert equivalence_by_fold(a[:1], b[:1], margin) is None


def test_equivalence_where_there_is_no_spread():
    unit = Summary(0.0, 1.0, 5)
    assert equivalence(unit, unit, 0.0) == 0.5
    assert equivalence(Summary(1.0, None, 1), unit, 1.0) is equivalence(unit, Summary(1.0, None, 1), 1.0) is None
    same = Summary(1.0, 0.0, 5)
    assert (equivalence(same, same, 0.1), equivalence(same, Summary(1.5, 0.0, 5), 0.1)) == (0.0, 1.0)
    one_sided = equivalence(same, Summary(1.0, 0.5, 5), 0.4)  # a spread on one side alone: a one-sample test
    assert one_sided == pytest.approx(stats.t.sf(0.4 / (0.5 / math.sqrt(5)), 4))
    with pytest.raises(ValueError, match="margin"):
        equivalence(unit, unit, -1.0)


def test_the_papers_spread_is_divided_by_n_and_ours_by_one_less():
    runs = [1.0, 2.0, 3.0, 4.0, 6.0]
    printed = Published(f"{np.mean(runs)} ± {np.std(runs)}")
    assert printed.sample == pytest.approx(summarise(runs))
    assert Published("3.0").sample == Summary(3.0, None, 5)


SPREAD, NONE = "92.70 ± 0.74", "82.98"


@pytest.mark.parametrize(
    ("mean", "std", "printed", "higher_is_better", "kind", "words"),
    [
        (92.7, 0.8, SPREAD, True, "agrees", "agrees"),
        (92.3, 0.5, SPREAD, True, "agrees", "agrees"),
        (92.28, 1.29, SPREAD, True, "undecided", "undecided"),  # no difference is shown, and no agreement
        (91.4, 0.5, SPREAD, True, "worse", "below"),
        (95.0, 0.5, SPREAD, True, "better", "above"),
        (90.0, None, SPREAD, True, "undecided", "undecided: one run"),
        (90.0, 1.0, SPREAD, False, "better", "better"),
        (95.0, 1.0, SPREAD, False, "worse", "worse"),
        (82.98, 1.0, NONE, True, "undecided", "undecided: within our spread; no spread in the paper"),
        (70.0, 1.0, NONE, True, "worse", "below: outside our spread; no spread in the paper"),
        (80.0, None, NONE, True, "undecided", "undecided: one run; no spread in the paper"),
        (90.0, 1.0, NONE, None, "differs", "higher: outside our spread; no spread in the paper"),
    ],
)
def test_a_verdict_is_agreement_a_difference_or_neither(mean, std, printed, higher_is_better, kind, words):
    ours, paper = Summary(mean, std, 5 if std else 1), Published(printed)
    verdict = compare(ours, paper, higher_is_better=higher_is_better)
    assert (verdict.kind, verdict.words) == (kind, words)
    if printed == NONE:
        assert (verdict.margin, verdict.p_equivalence, verdict.p) == (None, None, one_more_run(ours, 82.98))
    else:  # two standard deviations as printed
        assert verdict.margin == 2 * paper.summary.std
        assert verdict.p == welch(ours, paper.sample)


def test_a_difference_that_is_there_and_too_small_to_matter_is_agreement():
    verdict = compare(Summary(92.4, 0.1, 5), Published("92.70 ± 0.5", runs=100), higher_is_better=True)
    assert verdict.p < 0.05
    assert verdict.kind == "agrees"
