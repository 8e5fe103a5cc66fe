"""What the runs took: wall time, with nothing counted twice, and what is still missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstn.report.results import Result
from pstn.report.study import CellKey
from pstn.report.tables import Cell, TableView

if TYPE_CHECKING:
    from pstn.report.section import Section

__all__ = ["costs_table", "duration", "missing_cells", "wall_time"]


def wall_time(results: Sequence[Result]) -> float:
    """Seconds of all results together: each holds its share of the training that gave it."""
    return sum(r.seconds for r in results)


def duration(seconds: float) -> str:
    """A wall time for people.

    Example:
        >>> duration(8125.0)
        '2 h 15 min'
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def missing_cells(cells: Sequence[CellKey], results: Sequence[Result], runs: int) -> str:
    """Which cells lack runs, by data; empty where none does.

    Args:
        cells: model, data and variant of all that there should be.
        results: what there is.
        runs: how many seeds each should have.

    Example:
        >>> missing_cells([("STN", "A", ""), ("P-STN", "A", "")], [Result("x", "STN", "A", 0)], runs=2)
        'A: STN (1 run), P-STN'
    """
    lacking: dict[str, list[str]] = {}
    for model, data, variant in cells:
        there = len({r.seed for r in results if (r.model, r.data, r.variant) == (model, data, variant)})
        if there < runs:
            count = f" ({runs - there} run{'s' * (runs - there > 1)})" if there else ""
            lacking.setdefault(data, []).append(" ".join(filter(None, (model, variant))) + count)
    return "; ".join(f"{data}: {', '.join(names)}" for data, names in lacking.items())


def costs_table(sections: Sequence[Section]) -> TableView:
    """A line for each study that has been run in full or in part, or not at all: what it took, what is missing."""
    rows, machines = [], dict[str, None]()
    for section in sections:
        outcome = section.outcome
        machines |= dict.fromkeys(outcome.machines)
        rows.append([
            Cell(section.study.title), Cell(f"{outcome.found} of {outcome.wanted}"),
            Cell(duration(outcome.seconds) if outcome.found else "–"),
            Cell((outcome.missing if outcome.found else "all") or "none", tone="" if outcome.missing else "quiet"),
        ])  # fmt: skip
    total = [sum(getattr(section.outcome, name) for section in sections) for name in ("found", "wanted", "seconds")]
    rows.append([Cell("together"), Cell(f"{total[0]:.0f} of {total[1]:.0f}"), Cell(duration(total[2])), Cell("")])
    rows += [_search_row(section) for section in sections if section.study.search]
    notes = [
        f"Measured on: {', '.join(machines) or 'nothing yet'}. The time is that of training and testing what is there; "
        "reading data and starting up are not in it, and what is missing was not guessed. Models that train together "
        "share their time, and a training that fills several cells is counted once. Searches are on top."
    ]
    return TableView("What it took", ["experiment", "runs", "wall time", "not run yet"], rows, notes)


def _search_row(section: Section) -> list[Cell]:
    outcome, search = section.outcome, section.study.search
    assert search is not None
    lacking = "; ".join(outcome.unsearched) if outcome.searched else "all"
    return [
        Cell(f"{section.study.title}: the search for {search.name}"), Cell(str(outcome.searched)),
        Cell(duration(outcome.search_seconds) if outcome.searched else "–"),
        Cell(lacking or "none", tone="" if lacking else "quiet"),
    ]  # fmt: skip
