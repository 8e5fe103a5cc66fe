"""Ours beside the published: the difference, whether it is within the spread, and what a t-test says, in words."""

from __future__ import annotations

from dataclasses import dataclass

from pstn.report.statistics import LEVEL, Summary, one_more_run, welch
from pstn.report.study import Paper

__all__ = ["Verdict", "judge"]


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
