"""Means with their spreads, the t-tests that compare them, and the comparison with a published number.

The tests are scipy's: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEVEL = 0.05
"""A difference is called significant below this p-value, as in the paper."""


class Summary(NamedTuple):
    """Several runs in three numbers.

    Args:
        mean: of the runs.
        std: their standard deviation, n - 1 in its denominator; None where it is unknown, as for a single run.
        runs: their number.
    """

    mean: float
    std: float | None
    runs: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and number of `values`, at least one.

    Example:
        >>> summarise([1.0, 2.0, 3.0])
        Summary(mean=2.0, std=1.0, runs=3)
    """
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def median_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the median absolute deviation from it.

    Example:
        >>> median_and_deviation([1.0, 2.0, 9.0])
        (2.0, 1.0)
    """
    middle = statistics.median(values)
    return middle, statistics.median(abs(value - middle) for value in values)


def _t_test(a: Summary, b: Summary, *, equal_var: bool) -> float:
    from scipy import stats

    if not a.std and not b.std:  # scipy divides by zero here
        return float(a.mean == b.mean)
    return float(stats.ttest_ind_from_stats(*a, *b, equal_var=equal_var).pvalue)


def welch(a: Summary, b: Summary) -> float | None:
    """The two-sided p-value of Welch's t-test: two means, spreads that may differ. None where a spread is unknown.

    Example:
        >>> round(welch(Summary(92.7, 0.74, 5), Summary(87.29, 0.58, 5)), 6)
        2e-06
    """
    return None if a.std is None or b.std is None else _t_test(a, b, equal_var=False)


def one_more_run(ours: Summary, value: float) -> float | None:
    """The two-sided p-value of `value` as one more run with our spread. None where our spread is unknown.

    This is the test against a number that was published without a spread: the two-sample t-test with one run on the
    other side, whose standard deviation is taken to be ours.
    """
    return None if ours.std is None else _t_test(ours, Summary(value, 0.0, 1), equal_var=True)


def paired(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The two-sided p-value of the paired t-test: runs that share their folds. None for fewer than two pairs.

    Args:
        a: the runs of one model, by fold.
        b: those of the other, on the same folds in the same order.

    Example:
        >>> round(paired([0.9, 0.8, 0.7], [0.8, 0.69, 0.61]), 3)
        0.003
    """
    from scipy import stats

    mean, std, runs = summarise([x - y for x, y in zip(a, b, strict=True)]) if a else Summary(0.0, None, 0)
    if std is None:
        return None
    return float(2 * stats.t.sf(abs(mean) / (std / math.sqrt(runs)), runs - 1)) if std else float(mean == 0)


def non_inferiority(
    a: Sequence[float], b: Sequence[float], margin: float, *, higher_is_better: bool = True, by_fold: bool = False
) -> float | None:
    """The one-sided p-value against "a is worse than b by at least `margin`". None where a spread is unknown.

    Below `LEVEL` it is shown that `a` is at most `margin` worse than `b`.

    Args:
        a: the runs that should be no worse.
        b: the runs that they are compared with.
        margin: the largest loss that is acceptable, in the unit of the runs, not negative.
        higher_is_better: false for errors and losses.
        by_fold: the runs share their folds, in the same order: test their differences, as `paired` does; otherwise the
            test is Welch's.

    Example:
        >>> non_inferiority([0.90, 0.91, 0.92], [0.91, 0.92, 0.92], margin=0.05) < 0.01
        True
    """
    if not margin >= 0:
        raise ValueError(f"margin must not be negative, got {margin}")
    sign = 1 if higher_is_better else -1
    moved, other = [sign * value + margin for value in a], [sign * value for value in b]
    if not moved or not other:
        return None
    p = paired(moved, other) if by_fold else welch(summarise(moved), summarise(other))
    if p is None:
        return None
    return p / 2 if statistics.fmean(moved) > statistics.fmean(other) else 1 - p / 2


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of the p-values of one table, so that the level is that of a false finding anywhere in it.

    Args:
        p_values: of the tests; None, where there was none, stays None and does not count.

    Example:
        >>> holm([0.01, None, 0.04, 0.03])
        [0.03, None, 0.06, 0.06]
    """
    adjusted, tested = list(p_values), [(p, place) for place, p in enumerate(p_values) if p is not None]
    highest = 0.0
    for rank, (p, place) in enumerate(sorted(tested)):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[place] = highest
    return adjusted


def best(candidates: Sequence[Summary | None], *, higher_is_better: bool) -> set[int]:
    """Which candidates to set in bold: the best, and those behind it down to the first that is significantly worse.

    As in the paper, bold says "significantly better than the runner-up"; where several share the first place, all of
    them are bold, and where none is significantly behind, none is. Without a spread no claim is made: a single run is
    never bold, and where it is ahead of all others, none is.

    Args:
        candidates: what is compared; None is missing and does not take part.
        higher_is_better: false for errors and losses.

    Returns:
        Their positions.

    Example:
        >>> cnn, stn, pstn = Summary(97.48, 0.21, 5), Summary(94.71, 0.22, 5), Summary(97.33, 0.17, 5)
        >>> best([cnn, stn, pstn], higher_is_better=True)
        {0, 2}
    """
    present = [(position, candidate) for position, candidate in enumerate(candidates) if candidate is not None]
    present.sort(key=lambda pair: pair[1].mean, reverse=higher_is_better)
    for place, (_, behind) in enumerate(present[1:], start=1):
        p = welch(present[0][1], behind)
        if p is not None and p < LEVEL:
            return {position for position, candidate in present[:place] if candidate.std is not None}
    return set()


@dataclass(frozen=True)
class Published:
    """A published number, in the unit of its metric's label.

    Args:
        text: as the paper prints it, with or without a standard deviation: "95.80 ± 0.33".
        bold: whether the paper prints it in bold.
        runs: how many it is the mean of.

    Example:
        >>> Published("95.80 ± 0.33").summary
        Summary(mean=95.8, std=0.33, runs=5)
    """

    text: str
    bold: bool = False
    runs: int = 5

    @property
    def summary(self) -> Summary:
        """Its mean, its standard deviation where one is printed, and its number of runs."""
        mean, _, std = self.text.partition("±")
        return Summary(float(mean), float(std) if std else None, self.runs)


class Verdict(NamedTuple):
    """How our runs compare with a published number.

    Args:
        words: for the reader.
        worse: whether ours are significantly worse.
        difference: ours minus the published, in the metric's unit.
        within: whether it is at most one published standard deviation; None where none was published.
        p: of the test; None where there can be none.
    """

    words: str
    worse: bool
    difference: float
    within: bool | None
    p: float | None


def compare(ours: Summary, paper: Published, *, higher_is_better: bool | None) -> Verdict:
    """Compare our runs with a published number.

    With a published spread this is Welch's t-test. Without, the published number counts as one more run with our own
    spread, and the words say so.

    Args:
        ours: our runs.
        paper: the published number.
        higher_is_better: false for errors and losses; None where neither is better.

    Example:
        >>> compare(Summary(79.1, 4.8, 5), Published("81.00 ± 3.92"), higher_is_better=True).words
        'not significantly below'
        >>> compare(Summary(79.1, 4.8, 5), Published("81.00"), higher_is_better=True).words
        'below, within our spread; no spread in the paper'
    """
    mean, std, _ = paper.summary
    difference = ours.mean - mean
    above, below = ("above", "below") if higher_is_better else ("higher", "lower")
    side = "equal" if difference == 0 else above if difference > 0 else below
    behind = higher_is_better is not None and difference != 0 and (difference > 0) != higher_is_better
    p = one_more_run(ours, mean) if std is None else welch(ours, paper.summary)
    significant = p is not None and p < LEVEL
    if std is None:
        spread = "one run" if p is None else f"{'outside' if significant else 'within'} our spread"
        words = f"{side}, {spread}; no spread in the paper"
    elif p is None:
        words = f"{side}; one run, no test"
    else:
        words = f"significantly {side}" if significant else f"not significantly {side}" if behind else side
    return Verdict(words, behind and significant, difference, None if std is None else abs(difference) <= std, p)
