from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pstn.report.statistics import (
    Published,
    Summary,
    best,
    compare,
    median_and_deviation,
    one_more_run,
    summarise,
    welch,
)

means, spreads, runs = st.floats(-100, 100), st.floats(1e-3, 50), st.integers(2, 30)


@given(means, spreads, runs, means, spreads, runs)
def test_welch_is_scipys(mean, std, n, other_mean, other_std, m):
    reference = stats.ttest_ind_from_stats(mean, std, n, other_mean, other_std, m, equal_var=False).pvalue
    assert welch(Summary(mean, std, n), Summary(other_mean, other_std, m)) == pytest.approx(
        reference, rel=1e-9, abs=1e-300
    )


@given(means, spreads, runs, means)
def test_one_more_run_is_the_two_sample_test_with_one_run_on_the_other_side(mean, std, n, value):
    # With one run the pooled standard deviation is ours.
    reference = stats.ttest_ind_from_stats(mean, std, n, value, 0.0, 1, equal_var=True).pvalue
    assert one_more_run(Summary(mean, std, n), value) == pytest.approx(reference, rel=1e-9, abs=1e-300)


def test_no_spread_means_no_test():
    single, several = summarise([3.0]), summarise([1.0, 2.0])
    assert single == Summary(3.0, None, 1)
    assert welch(single, several) is welch(several, single) is one_more_run(single, 2.0) is None


def test_runs_that_all_gave_the_same_differ_if_at_all_then_surely():
    same = Summary(1.0, 0.0, 5)
    assert welch(same, same) == one_more_run(same, 1.0) == 1.0
    assert welch(same, Summary(0.9, 0.0, 5)) == one_more_run(same, 0.9) == 0.0


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
        ([Summary(80.0, None, 1), Summary(90.0, None, 1)], True, set()),  # no spread, no claim
        # The last, for all its spread, is not bold above the second, which is significantly behind.
        ([Summary(90.0, 1.0, 5), Summary(80.0, 30.0, 5), Summary(85.0, 1.0, 5)], True, {0}),
        # A single run is never bold, and none is behind one.
        ([Summary(99.0, 0.1, 5), Summary(98.0, None, 1), Summary(90.0, 0.1, 5)], True, {0}),
        ([Summary(98.0, 0.1, 5), Summary(99.0, None, 1), Summary(90.0, 0.1, 5)], True, set()),
        ([None, Summary(90.0, 1.0, 5)], True, set()),
        ([None, None], True, set()),
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
        (Summary(0.06, 0.01, 5), "0.0567 ± 0.0065", False, "not significantly higher", False, True),
        (Summary(0.10, 0.01, 5), "0.0567 ± 0.0065", False, "significantly higher", True, False),
        (Summary(83.5, 1.0, 5), "82.98", True, "above, within our spread; no spread in the paper", False, None),
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
