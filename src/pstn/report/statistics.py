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


def _t_test(a: Summary, b: Summary, *, equal_var: bool = False, alternative: str = "two-sided") -> float:
    from scipy import stats

    if not a.std and not b.std:  # scipy divides by zero here
        return float(a.mean == b.mean if alternative == "two-sided" else a.mean <= b.mean)
    return float(stats.ttest_ind_from_stats(*a, *b, equal_var=equal_var, alternative=alternative).pvalue)


def welch(a: Summary, b: Summary) -> float | None:
    """The two-sided p-value of Welch's t-test: two means, spreads that may differ. None where a spread is unknown.

    Example:
        >>> round(welch(Summary(92.7, 0.74, 5), Summary(87.29, 0.58, 5)), 6)
        2e-06
    """
    return None if a.std is None or b.std is None else _t_test(a, b)


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


def equivalence(a: Summary, b: Summary, margin: float) -> float | None:
    """The p-value of two one-sided tests (TOST) against "the means differ by at least `margin`", spreads unequal.

    Below `LEVEL` it is shown that the means are less than `margin` apart. That is the same as the 90% confidence
    interval of Welch's for their difference lying within the margins. None where a spread is unknown.

    Args:
        a: some runs.
        b: others.
        margin: the smallest difference that matters, in the unit of the runs, not negative.

    Example:
        >>> round(equivalence(Summary(92.5, 0.8, 5), Summary(92.7, 0.8, 5), margin=1.5), 3)
        0.017
        >>> round(equivalence(Summary(91.5, 0.8, 5), Summary(92.7, 0.8, 5), margin=1.5), 3)
        0.285
    """
    if not margin >= 0:
        raise ValueError(f"margin must not be negative, got {margin}")
    if a.std is None or b.std is None:
        return None
    # Of the two one-sided p-values the larger, that of the side on which the difference is.
    left = margin - abs(a.mean - b.mean)
    return _t_test(a._replace(mean=left), b._replace(mean=0.0), alternative="greater")


def equivalence_by_fold(a: Sequence[float], b: Sequence[float], margin: float) -> float | None:
    """The p-value of two one-sided paired t-tests (TOST) against "the means differ by at least `margin`".

    As `equivalence`, for runs that share their folds: what is tested is the mean of their differences. None for fewer
    than two pairs.

    Args:
        a: the runs of one model, by fold.
        b: those of the other, on the same folds in the same order.
        margin: the smallest difference that matters, in the unit of the runs, not negative.

    Example:
        >>> round(equivalence_by_fold([92.1, 91.0, 93.2], [92.3, 91.1, 93.1], margin=0.5), 3)
        0.02
    """
    sides = (non_inferiority(a, b, margin, higher_is_better=higher, by_fold=True) for higher in (True, False))
    found = [p for p in sides if p is not None]
    return max(found, default=None)


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
        """Its mean, its standard deviation as printed, if it is, and its number of runs."""
        mean, _, std = self.text.partition("±")
        return Summary(float(mean), float(std) if std else None, self.runs)

    @property
    def sample(self) -> Summary:
        """The same with n - 1 in the denominator of the standard deviation, as in ours: the authors' code divides by n.

        Example:
            >>> round(Published("95.80 ± 0.33").sample.std, 3)
            0.369
        """
        mean, std, runs = self.summary
        return Summary(mean, None if std is None else std * math.sqrt(runs / (runs - 1)), runs)


class Verdict(NamedTuple):
    """How our runs compare with a published number.

    Args:
        kind: "agrees", "worse", "better", "differs" (where neither is better) or "undecided".
        words: for the reader.
        difference: ours minus the published, in the metric's unit.
        margin: two published standard deviations; None where none was published.
        p_equivalence: of the test that the difference is smaller than the margin; None where there can be none.
        p: of the test that there is a difference; None where there can be none.
    """

    kind: str
    words: str
    difference: float
    margin: float | None
    p_equivalence: float | None
    p: float | None


def compare(ours: Summary, paper: Published, *, higher_is_better: bool | None) -> Verdict:
    """Compare our runs with a published number: do they agree, differ, or is that undecided?

    They agree if it is shown that the means are less than two published standard deviations apart (`equivalence`).
    If it is not, and there is a significant difference (Welch's t-test), ours are worse or better; if neither is shown,
    the verdict is "undecided". A significant difference that is surely smaller than the margin is agreement. Without a
    published spread there is no margin, and agreement cannot be shown: the published number then counts as one more run
    with our own spread, and ours differ or are undecided.

    Args:
        ours: our runs.
        paper: the published number.
        higher_is_better: false for errors and losses; None where neither is better.

    Example:
        >>> compare(Summary(80.6, 3.2, 5), Published("81.00 ± 3.92"), higher_is_better=True).words
        'agrees'
        >>> compare(Summary(77.1, 4.8, 5), Published("81.00 ± 3.92"), higher_is_better=True).words
        'undecided'
        >>> compare(Summary(79.1, 4.8, 5), Published("81.00"), higher_is_better=True).words
        'undecided: within our spread; no spread in the paper'
    """
    published = paper.sample
    difference, std = ours.mean - published.mean, paper.summary.std
    above, below = {True: ("above", "below"), False: ("worse", "better"), None: ("higher", "lower")}[higher_is_better]
    margin = None if std is None else 2 * std
    p_equivalence = None if margin is None else equivalence(ours, published, margin)
    p = one_more_run(ours, published.mean) if std is None else welch(ours, published)
    kind, words = "undecided", "undecided"
    if p_equivalence is not None and p_equivalence < LEVEL:
        kind = words = "agrees"
    elif p is not None and p < LEVEL:
        words = above if difference > 0 else below
        kind = "differs" if higher_is_better is None else "better" if (difference > 0) == higher_is_better else "worse"
    if p is None:
        words += ": one run"
    elif std is None:
        words += f": {'outside' if p < LEVEL else 'within'} our spread"
    words += "; no spread in the paper" * (std is None)
    return Verdict(kind, words, difference, margin, p_equivalence, p)
