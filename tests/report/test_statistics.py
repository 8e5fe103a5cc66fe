from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pstn.report import Published, holm, non_inferiority, paired
from pstn.report.statistics import Summary, best, compare, median_and_deviation, one_more_run, summarise, welch

means, spreads, runs = st.floats(-100, 100), st.floats(1e-3, 50), st.integers(2, 30)
OURS, OTHERS = [0.91, 0.93, 0.90, 0.95, 0.92], [0.90, 0.90, 0.91, 0.92, 0.89]


@given(means, spreads, runs, means, spreads, runs)
def test_welch_is_scipys(mean, std, n, other_mean, other_std, m):
    reference = stats.ttest_ind_from_stats(mean, std, n, other_mean, other_std, m, equal_var=False).pvalue
    found = welch(Summary(mean, std, n), Summary(other_mean, other_std, m))
    assert found == pytest.approx(reference, rel=1e-9, abs=1e-300)


@given(means, spreads, runs, means)
def test_one_more_run_is_the_two_sample_test_with_one_run_on_the_other_side(mean, std, n, value):
    # With one run on the other side, the pooled standard deviation is ours.
    t = abs(mean - value) / (std * math.sqrt(1 / n + 1))
    assert one_more_run(Summary(mean, std, n), value) == pytest.approx(2 * stats.t.sf(t, n - 1), rel=1e-9, abs=1e-300)


def test_the_paired_test_is_that_of_the_differences_and_scipys():
    differences = [a - b for a, b in zip(OURS, OTHERS, strict=True)]
    t = (sum(differences) / 5) / (stats.tstd(differences) / math.sqrt(5))
    # The distribution function of Student's t with 4 degrees of freedom, in closed form.
    x = t / math.sqrt(1 + t**2 / 4)
    assert paired(OURS, OTHERS) == pytest.approx(2 * (0.5 - 3 / 8 * x * (1 - x**2 / 12)))
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
    found, m = holm(p_values), len(p_values)
    ordered = sorted(p_values)
    for p, adjusted in zip(p_values, found, strict=True):
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


def test_summaries_are_scipys():
    values = [0.3, 0.1, 0.7, 0.2, 0.25]
    assert summarise(values).std == pytest.approx(stats.tstd(values))
    assert median_and_deviation(values) == pytest.approx((0.25, stats.median_abs_deviation(values)))


@pytest.mark.parametrize(
    ("candidates", "higher_is_better", "bold"),
    [
        ([Summary(80.0, 1.0, 5), Summary(90.0, 1.0, 5)], True, {1}),
        ([Summary(80.0, 1.0, 5), Summary(90.0, 1.0, 5)], False, {0}),
        ([Summary(80.0, 1.0, 5), Summary(80.5, 1.0, 5)], True, set()),  # none is significantly behind
        # The last, for all its spread, is not bold above the second, which is significantly behind.
        ([Summary(90.0, 1.0, 5), Summary(80.0, 30.0, 5), Summary(85.0, 1.0, 5)], True, {0}),
        # A single run is never bold, and none is behind one.
        ([Summary(99.0, 0.1, 5), Summary(98.0, None, 1), Summary(90.0, 0.1, 5)], True, {0}),
        ([Summary(98.0, 0.1, 5), Summary(99.0, None, 1), Summary(90.0, 0.1, 5)], True, set()),
        ([None, Summary(90.0, 1.0, 5)], True, set()),
    ],
)
def test_bold_is_for_the_significantly_best(candidates, higher_is_better, bold):
    assert best(candidates, higher_is_better=higher_is_better) == bold


@pytest.mark.parametrize(
    ("ours", "printed", "higher_is_better", "words", "worse", "within"),
    [
        (Summary(93.0, 1.0, 5), "92.70 ± 0.74", True, "above", False, True),
        (Summary(95.0, 0.5, 5), "92.70 ± 0.74", True, "significantly above", False, False),
        (Summary(92.0, 1.0, 5), "92.70 ± 0.74", True, "not significantly below", False, True),
        (Summary(90.0, 0.5, 5), "92.70 ± 0.74", True, "significantly below", True, False),
        (Summary(92.7, 1.0, 5), "92.70 ± 0.74", True, "equal", False, True),
        (Summary(90.0, None, 1), "92.70 ± 0.74", True, "below; one run, no test", False, False),
        (Summary(0.05, 0.01, 5), "0.0567 ± 0.0065", False, "lower", False, False),
        (Summary(0.10, 0.01, 5), "0.0567 ± 0.0065", False, "significantly higher", True, False),
        (Summary(82.5, 1.0, 5), "82.98", True, "below, within our spread; no spread in the paper", False, None),
        (Summary(70.0, 1.0, 5), "82.98", True, "below, outside our spread; no spread in the paper", True, None),
        (Summary(80.0, None, 1), "82.98", True, "below, one run; no spread in the paper", False, None),
        (Summary(90.0, 1.0, 5), "17", None, "higher, outside our spread; no spread in the paper", False, None),
    ],
)
def test_a_verdict_says_which_side_and_whether_chance_explains_it(
    ours, printed, higher_is_better, words, worse, within
):
    verdict = compare(ours, Published(printed), higher_is_better=higher_is_better)
    assert (verdict.words, verdict.worse, verdict.within) == (words, worse, within)
