"""What is claimed to be better than what: do our results agree?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pstn.report.results import Result
from pstn.report.statistics import LEVEL, summarise, welch
from pstn.report.study import Order
from pstn.report.tables import MISSING, Cell, TableView, p_value, signed

__all__ = ["Finding", "check_order", "view_orders"]


@dataclass(frozen=True)
class Finding:
    """What our results say of a claimed order.

    Args:
        holds: whether the better is ahead; None where that cannot be said.
        p: of Welch's t-test between the two.
        difference: better minus worse, in the metric's unit.
        why_not: why it cannot be said.
    """

    holds: bool | None
    p: float | None = None
    difference: float = 0.0
    why_not: str = MISSING

    @property
    def sure(self) -> bool:
        """Whether the two differ significantly."""
        return self.p is not None and self.p < LEVEL

    @property
    def words(self) -> str:
        """For the reader."""
        if self.holds is None:
            return self.why_not
        if self.holds:
            return "holds, significantly" if self.sure else "holds, not significantly"
        return "does not hold: significantly reversed" if self.sure else "does not hold, not significantly reversed"


def check_order(order: Order, results: Sequence[Result]) -> Finding:
    """Whether the line that should be ahead is, in the means or, for a robust claim, in the medians."""
    better, worse = order.better.find(results), order.worse.find(results)
    if not better or not worse:
        return Finding(None)
    if any(result.shortened for line in (order.better, order.worse) for result in line.among(results)):
        return Finding(None, why_not="not tested: fewer epochs")
    centre = statistics.median if order.robust else statistics.fmean
    difference = centre(better) - centre(worse)
    ahead = difference > 0 if order.better.metric.higher_is_better else difference < 0
    return Finding(ahead, welch(summarise(better), summarise(worse)), difference)


def view_orders(orders: Sequence[Order], results: Sequence[Result]) -> TableView | None:
    """A line for each claimed order; None where nothing is claimed."""
    if not orders:
        return None
    rows = []
    for order in orders:
        finding, metric = check_order(order, results), order.better.metric
        (row, ahead), (other, behind) = order.better.heading, order.worse.heading
        claim = f"{ahead} ahead of {behind}{'' if order.claimed else ' (not a claim of the paper)'}"
        tone = "quiet" if finding.holds is None else "good" if finding.holds else "bad"
        rows.append([
            Cell(row if row == other else f"{row} / {other}"), Cell(claim), Cell(metric.label),
            Cell("" if finding.holds is None else signed(finding.difference, metric.digits)),
            Cell(signed(order.better.paper.mean - order.worse.paper.mean, metric.digits), tone="quiet")
            if order.better.paper and order.worse.paper else Cell("–", tone="quiet"),
            Cell(p_value(finding.p)), Cell(finding.words, tone=tone),
        ])  # fmt: skip
    notes = []
    if not all(order.comparable for order in orders):
        notes.append("These are not the paper’s data: that its order holds here, or does not, says little about it.")
    if any(order.robust for order in orders):
        notes.append("The order is that of the medians; p is Welch’s, which compares means.")
    header = ["where", "claim", "measure", "difference, ours", "the paper’s", "p", "holds in ours?"]
    return TableView("The order that the paper claims", header, rows, notes)
