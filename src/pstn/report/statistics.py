"""Means with their spreads, the t-tests that compare them, and what they say of a published number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pstn.distributions.quantiles import student_t_tails

__all__ = [
    "LEVEL",
    "Paper",
    "Summary",
    "Verdict",
    "best",
    "judge",
    "median_and_deviation",
    "one_more_run",
    "summarise",
    "welch",
]


# A difference is called significant below this p-value, as in the paper.
LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """What is known of several runs: mean, standard deviation (n - 1 in its denominator) and number.

    Args:
        mean: of the runs.
        std: None where it is unknown, as for a single run.
        runs: how many.
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


def welch(a: Summary, b: Summary) -> float | None:
    """The two-sided p-value of Welch's t-test: two means, spreads that may differ. None where a spread is unknown.

    Example:
        >>> round(welch(Summary(92.7, 0.74, 5), Summary(87.29, 0.58, 5)), 6)
        2e-06
    """
    if a.std is None or b.std is None or a.runs < 2 or b.runs < 2:
        return None
    u, v = a.std**2 / a.runs, b.std**2 / b.runs
    if u + v == 0:
        return 1.0 if a.mean == b.mean else 0.0
    df = (u + v) ** 2 / (u**2 / (a.runs - 1) + v**2 / (b.runs - 1))
    return student_t_tails((a.mean - b.mean) / math.sqrt(u + v), df)


def one_more_run(ours: Summary, value: float) -> float | None:
    """The two-sided p-value of `value` as one more run with our spread. None where our spread is unknown.

    This is the test to use against a number that was published without a spread: it is the two-sample t-test with one
    run on the other side, and it borrows our standard deviation for it.
    """
    if ours.std is None:
        return None
    if ours.std == 0:
        return 1.0 if ours.mean == value else 0.0
    return student_t_tails((ours.mean - value) / (ours.std * math.sqrt(1 + 1 / ours.runs)), ours.runs - 1)


def best(candidates: Sequence[Summary | None], *, higher_is_better: bool) -> set[int]:
    """Which candidates to set in bold: the best, and those behind it down to the first that is significantly worse.

    As in the paper, bold says "significantly better than the runner-up"; where several share the first place, all of
    them are bold, and where nobody is significantly behind, nobody is. Without a spread no claim is made: a single
    run is never bold, and where it is ahead of all others, nobody is.

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
    present = [(at, candidate) for at, candidate in enumerate(candidates) if candidate is not None]
    present.sort(key=lambda pair: pair[1].mean, reverse=higher_is_better)
    for place, (_, behind) in enumerate(present[1:], start=1):
        p = welch(present[0][1], behind)
        if p is not None and p < LEVEL:
            return {at for at, candidate in present[:place] if candidate.std is not None}
    return set()


@dataclass(frozen=True)
class Paper:
    """A published number, in the unit of its metric's label.

    Args:
        printed: as the paper prints it, with or without a standard deviation: "95.80 ± 0.33".
        bold: whether the paper prints it in bold.
        runs: how many it is the mean of.

    Example:
        >>> Paper("95.80 ± 0.33").summary
        Summary(mean=95.8, std=0.33, runs=5)
    """

    printed: str
    bold: bool = False
    runs: int = 5

    @property
    def mean(self) -> float:
        """The number."""
        return float(self.printed.partition("±")[0])

    @property
    def std(self) -> float | None:
        """Its standard deviation, where one is printed."""
        spread = self.printed.partition("±")[2]
        return float(spread) if spread else None

    @property
    def summary(self) -> Summary:
        """The same, for the tests."""
        return Summary(self.mean, self.std, self.runs)


@dataclass(frozen=True)
class Verdict:
    """How our runs compare with a published number.

    Args:
        words: for the reader.
        worse: whether ours are worse, beyond what chance explains.
        difference: ours minus the published, in the metric's unit.
        within: whether it is at most one published standard deviation; None where none was published.
        p: of the test; None where there can be none.
    """

    words: str
    worse: bool
    difference: float
    within: bool | None
    p: float | None


def judge(ours: Summary, paper: Paper, *, higher_is_better: bool | None) -> Verdict:
    """Compare our runs with a published number.

    With a published spread this is Welch's t-test. Without, the published number is taken for one more run with our
    own spread, and the words say so.

    Example:
        >>> judge(Summary(79.1, 4.8, 5), Paper("81.00 ± 3.92"), higher_is_better=True).words
        'not significantly below'
        >>> judge(Summary(79.1, 4.8, 5), Paper("81.00"), higher_is_better=True).words
        'below, within our spread; no spread in the paper'
    """
    difference = ours.mean - paper.mean
    side = _side(difference, higher_is_better)
    behind = higher_is_better is not None and difference != 0 and (difference > 0) != higher_is_better
    if paper.std is None:
        p = one_more_run(ours, paper.mean)
        spread = "one run" if p is None else f"{'within' if p >= LEVEL else 'outside'} our spread"
        words = f"{side}, {spread}; no spread in the paper"
        within = None
    else:
        p = welch(ours, paper.summary)
        within = abs(difference) <= paper.std
        if p is None:
            words = f"{side}; one run, no test"
        elif p < LEVEL:
            words = f"significantly {side}"
        else:
            words = f"not significantly {side}" if behind else side
    return Verdict(words, behind and p is not None and p < LEVEL, difference, within, p)


def _side(difference: float, higher_is_better: bool | None) -> str:
    """On which side ours are: scores stand above or below, losses are higher or lower."""
    if difference == 0:
        return "equal"
    above, below = ("above", "below") if higher_is_better else ("higher", "lower")
    return above if difference > 0 else below
