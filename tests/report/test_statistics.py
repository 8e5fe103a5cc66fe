from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pstn.report.statistics import Summary, best, median_and_deviation, one_more_run, summarise, welch

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
        ([Summary(80.0, 1.0, 5), Summary(80.5, 1.0, 5)], True, set()),  # nobody is significantly behind
        ([Summary(80.0, None, 1), Summary(90.0, None, 1)], True, set()),  # no spread, no claim
        # The last, for all its spread, is not bold above the second, which is significantly behind.
        ([Summary(90.0, 1.0, 5), Summary(80.0, 30.0, 5), Summary(85.0, 1.0, 5)], True, {0}),
        # A single run is never bold, and nobody is behind one.
        ([Summary(99.0, 0.1, 5), Summary(98.0, None, 1), Summary(90.0, 0.1, 5)], True, {0}),
        ([Summary(98.0, 0.1, 5), Summary(99.0, None, 1), Summary(90.0, 0.1, 5)], True, set()),
        ([None, Summary(90.0, 1.0, 5)], True, set()),
        ([None, None], True, set()),
    ],
)
def test_bold_is_for_those_whom_nobody_beats_while_they_beat_somebody(candidates, higher_is_better, bold):
    assert best(candidates, higher_is_better=higher_is_better) == bold


def test_far_tails_do_not_underflow_to_nonsense():
    p = welch(Summary(1e6, 1e-3, 5), Summary(0.0, 1e-3, 5))
    assert p is not None
    assert 0 <= p < 1e-20
    assert not math.isnan(p)
