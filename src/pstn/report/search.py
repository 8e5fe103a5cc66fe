"""What was chosen on validation data: the trials, the best of them, and what the paper chose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pstn.report.results import Result
from pstn.report.study import Metric, Search
from pstn.report.tables import MISSING, Cell, TableView

__all__ = ["chosen", "trials", "unsearched", "view_search"]


def trials(search: Search, data: str, metric: Metric, results: Sequence[Result]) -> dict[float, list[float]]:
    """The scores of every value that was tried on a data set, a run each, from the smallest value on."""
    found: dict[float, list[float]] = {}
    for r in _on(search, data, results):
        name, _, value = r.variant.partition("=")
        if name == search.name and metric.name in r.metrics:
            found.setdefault(float(value), []).append(r.metrics[metric.name])
    return dict(sorted(found.items()))


def chosen(search: Search, data: str, metric: Metric, results: Sequence[Result]) -> list[float]:
    """The value with the best mean on validation data, or the values that share it; empty where there are no trials."""
    means = {value: statistics.fmean(runs) for value, runs in trials(search, data, metric, results).items()}
    best = (max if metric.higher_is_better else min)(means.values(), default=math.nan)
    return [value for value, mean in means.items() if math.isclose(mean, best)]


def unsearched(search: Search, results: Sequence[Result], runs: int) -> tuple[str, ...]:
    """The data sets on which not every value was tried in every run, in words.

    Args:
        search: which values on which data.
        results: what there is.
        runs: how many seeds each value should have.
    """
    wanted = {(value, seed) for value in search.values for seed in range(runs)}
    lacking = []
    for data in search.published:
        own = _on(search, data, results)
        missing = wanted - {(float(r.variant.partition("=")[2]), r.seed) for r in own}
        if missing:
            lacking.append(f"{data}: {len(missing)} of {len(wanted)} runs" if own else data)
    return tuple(lacking)


def _on(search: Search, data: str, results: Sequence[Result]) -> list[Result]:
    """The search's results on a data set."""
    return [r for r in results if (r.experiment, r.data) == (search.experiment, data)]


def view_search(search: Search, results: Sequence[Result], runs: int) -> TableView:
    """For each data set, what validation chooses and what the paper chose; the arguments are those of `unsearched`."""
    rows = []
    for data, published in search.published.items():
        own = _on(search, data, results)
        values = sorted({float(r.variant.partition("=")[2]) for r in own})
        choices = [chosen(search, data, metric, results) for metric in search.metrics]
        rows.append([
            Cell(data), *(_choice(best, values) for best in choices),
            Cell(f"{published:g}", tone="quiet"), Cell(_listed(values)), Cell(str(len({r.seed for r in own}))),
        ])  # fmt: skip
    header = ["data", *(f"best {m.label}" for m in search.metrics), "the paper’s", "tried", "runs of each"]
    missing = unsearched(search, results, runs)
    notes = [f"`pstn reproduce {search.experiment}` runs what is missing."] if missing else []
    return TableView(f"{search.name}, chosen on validation data", header, rows, notes)


def _choice(best: Sequence[float], values: Sequence[float]) -> Cell:
    if not best:
        return Cell(MISSING, tone="quiet")
    return Cell("all alike" if len(best) == len(values) > 1 else _listed(best))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
