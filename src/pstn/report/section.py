"""A section of the report: one study's tables, figures and origins, from the results that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pstn.report.claims import check_order, view_orders
from pstn.report.costs import duration, missing_cells, wall_time
from pstn.report.figures.search import draw_search
from pstn.report.results import Result
from pstn.report.search import unsearched, view_search
from pstn.report.study import CellKey, Drawing, Line, Search, Study, summary_of
from pstn.report.style import applied
from pstn.report.tables import Cell, TableView, tables_of, view_table
from pstn.report.verdict import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Outcome", "Section", "make_section"]


@dataclass(frozen=True)
class Outcome:
    """A study in one line.

    Args:
        found: how many of the runs that its tables want are there.
        wanted: how many there should be.
        tested: how many of the watched numbers were tested against published ones.
        worse: which of those are significantly worse.
        held: how many of the claimed orders hold.
        sure: how many of those significantly.
        reversed: which do not.
        claimed: how many of them can be checked.
        seconds: wall time of all its cells.
        missing: which runs are not there, in words.
        machines: that it was run on.
        searched: how many runs its search has, if there is one.
        search_seconds: their wall time.
        unsearched: what the search has left out, by data set.
    """

    found: int
    wanted: int
    tested: int
    worse: tuple[str, ...]
    held: int
    sure: int
    reversed: tuple[str, ...]
    claimed: int
    seconds: float
    missing: str
    machines: tuple[str, ...]
    searched: int
    search_seconds: float
    unsearched: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """What the templates write of one study.

    Args:
        study: the experiment.
        quick: whether these are minute-long runs, which are never compared with the paper.
        tables: all of its tables.
        orders: the claimed orders, if any are claimed and the runs may be compared.
        figures: its figures and what they show.
        origin: seeds, time, machines, commits, versions.
        departures: where the runs leave the paper's settings.
        notes: what else the reader must know.
        outcome: the study in one line.
    """

    study: Study
    quick: bool
    tables: list[TableView]
    orders: TableView | None
    figures: list[tuple[Drawing, Figure]]
    origin: list[tuple[str, str]]
    departures: list[str]
    notes: list[str]
    outcome: Outcome


def make_section(study: Study, results: Sequence[Result]) -> Section:
    """Gather one study's section.

    Args:
        study: the experiment.
        results: of any experiments; the study takes its own.
    """
    own = _in_order(study, [r for r in results if r.experiment == study.experiment])
    searched = [r for r in results if study.search and r.experiment == study.search.experiment and not r.quick]
    full = [r for r in own if not r.quick]
    quick = bool(own) and not full
    used = own if quick else full
    shown = tables_of(study, used) if used else []
    tables = [view for table in shown for view in view_table(table, used, study, beside_paper=not quick)]
    if study.search and (full or searched):
        tables.append(view_search(study.search, searched, study.runs))
    return Section(
        study=study,
        quick=quick,
        tables=tables,
        orders=view_orders(study.orders, full) if full else None,
        figures=_draw(study, used, searched),
        origin=_origin(used, searched),
        departures=_departures(used),
        notes=_notes(study, own, used),
        outcome=_outcome(study, [] if quick else full, searched),
    )


def _cells(study: Study, results: Sequence[Result]) -> list[CellKey]:
    """Model, data and variant of all that the study's tables show, in their order."""
    lines = [line for table in tables_of(study, results) for line in table.lines]
    return [(line.model, line.data, line.variant) for line in lines if isinstance(line, Line)]


def _in_order(study: Study, results: Sequence[Result]) -> list[Result]:
    """The results in the order of the study's tables, so that figures have it too."""
    cells = _cells(study, results)
    place = {cell: at for at, cell in reversed(list(enumerate(cells)))}
    return sorted(results, key=lambda r: place.get((r.model, r.data, r.variant), len(cells)))


def _draw(study: Study, results: Sequence[Result], searched: Sequence[Result]) -> list[tuple[Drawing, Figure]]:
    drawn = []
    with applied():
        for drawing in study.drawings:
            drawn.append((drawing, _try(study, drawing, results)))
        if study.search:
            drawing = _search_drawing(study.search)
            drawn.append((drawing, _try(study, drawing, searched)))
    return [(drawing, figure) for drawing, figure in drawn if figure is not None]


def _try(study: Study, drawing: Drawing, results: Sequence[Result]) -> Figure | None:
    """Draw a figure.

    Raises:
        ValueError: the results do not hold what it shows, naming the experiment.
    """
    try:
        return drawing.draw(results)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"the figure {drawing.name} of {study.experiment} cannot be drawn from its result files: {error}"
        ) from error


def _search_drawing(search: Search) -> Drawing:
    return Drawing(
        search.experiment,
        f"Validation scores by {search.name}, mean ± one standard deviation over the runs; filled: the best, ring: the "
        "paper’s choice.",
        partial(draw_search, search=search),
    )


def _outcome(study: Study, results: Sequence[Result], searched: Sequence[Result]) -> Outcome:
    cells = dict.fromkeys(_cells(study, results))
    seeds = [{r.seed for r in results if (r.model, r.data, r.variant) == cell} for cell in cells]
    findings = [(order, check_order(order, results)) for order in study.orders if order.claimed]
    tested = _tested(study, results)
    return Outcome(
        found=sum(min(len(present), study.runs) for present in seeds),
        wanted=study.runs * len(cells),
        tested=len(tested),
        worse=tuple(name for name, verdict in tested if verdict.worse),
        held=sum(finding.holds is True for _, finding in findings),
        sure=sum(finding.holds is True and finding.sure for _, finding in findings),
        reversed=tuple(
            f"{order.better.heading[1]} ahead of {order.worse.heading[1]}, {order.better.heading[0]}, "
            f"{order.better.metric.label}"
            for order, finding in findings
            if finding.holds is False
        ),
        claimed=sum(finding.holds is not None for _, finding in findings),
        seconds=wall_time(results),
        missing=missing_cells(list(cells), results, study.runs),
        machines=tuple(dict.fromkeys(r.machine for r in (*results, *searched))),
        searched=len(searched),
        search_seconds=wall_time(searched),
        unsearched=unsearched(study.search, searched, study.runs) if study.search else (),
    )


def _tested(study: Study, results: Sequence[Result]) -> list[tuple[str, Verdict]]:
    """The watched numbers that may be tested against published ones, by name, and what the test says."""
    found = []
    for table in study.tables:
        for line in table.lines:
            (row, column), ours = line.heading, summary_of(line, results)
            watched = isinstance(line, Line) and line.model in study.watch
            if watched and ours and line.paper and not table.why_not(line, results):
                basis = "" if line.paper.std is not None else " (against our own spread)"
                verdict = judge(ours, line.paper, higher_is_better=line.metric.higher_is_better)
                found.append((f"{column}, {row}, {line.metric.label}{basis}", verdict))
    return found


def _notes(study: Study, own: Sequence[Result], used: Sequence[Result]) -> list[str]:
    notes = []
    if not used:
        wanted = study.runs * len(set(_cells(study, [])))
        notes.append(f"No results yet: all {wanted} runs are missing. `{study.command}` makes them.")
    if set_apart := len(own) - len(used):
        notes.append(f"{set_apart} quick runs are in the folder; they are not the paper’s setting and not shown.")
    if lost := [r for r in used if not r.metrics]:
        named = ", ".join(_named(r) for r in lost)
        verb = "run has" if len(lost) == 1 else "runs have"
        notes.append(f"{len(lost)} {verb} no numbers: {named}. Where the runs leave the paper says why.")
    shown = set(_cells(study, used))
    others = Counter(
        " ".join(filter(None, (r.model, r.variant, r.data)))
        for r in used
        if (r.model, r.data, r.variant) not in shown and not r.figure
    )
    if others:
        notes.append("In no table: " + ", ".join(f"{name} ({n})" for name, n in others.items()) + ".")
    return notes


def _named(result: Result) -> str:
    what = " ".join(filter(None, (result.model, result.variant)))
    return f"{what} on {result.data}, seed {result.seed}"


def _origin(used: Sequence[Result], searched: Sequence[Result]) -> list[tuple[str, str]]:
    """Where the numbers come from, as pairs of a heading and its text."""
    results = [*used, *searched]
    if not results:
        return []
    apart = f", and {duration(wall_time(searched))} for the search" if searched else ""
    versions = [f"{name} {version}" for r in results for name, version in r.versions.items()]
    return [
        ("cells", f"{len(used)}{f', and {len(searched)} of the search' if searched else ''}"),
        ("seeds", ", ".join(str(seed) for seed in sorted({r.seed for r in results}))),
        ("time, all cells", duration(wall_time(used)) + apart),
        ("machines", _counted([r.machine for r in results])),
        ("commits", _counted([r.commit for r in results])),
        ("versions", ", ".join(sorted(set(versions)))),
    ]


def _counted(names: Sequence[str]) -> str:
    """The different names; with the number of cells where they differ."""
    counts = Counter(names)
    return ", ".join(name if len(counts) == 1 else f"{name} ({n} cells)" for name, n in counts.most_common())


def _departures(results: Sequence[Result]) -> list[str]:
    """Each departure once; with the cells it is true of where it is not all."""
    where: dict[str, list[Result]] = {}
    for r in results:
        for sentence in dict.fromkeys(r.departures):
            where.setdefault(sentence, []).append(r)
    return [
        sentence if len(cells) == len(results) else f"{sentence} ({_scope(cells, results)})"
        for sentence, cells in where.items()
    ]


def _scope(cells: Sequence[Result], results: Sequence[Result]) -> str:
    """Which models and data these cells are of: only what sets them apart from the others is named."""

    def different(name: str) -> list[str]:
        return list(dict.fromkeys(str(getattr(r, name)) for r in cells if getattr(r, name) != ""))

    def all_of(*names: str) -> bool:
        kinds = {tuple(getattr(r, name) for name in names) for r in cells}
        return len(cells) == sum(tuple(getattr(r, name) for name in names) in kinds for r in results)

    models, data = ", ".join(different("model")), ", ".join(different("data"))
    if all_of("model"):
        return models
    if all_of("data"):
        return data
    parts = [f"{models} on {data}"]
    if not all_of("model", "data"):
        parts += different("variant")
    if not all_of("model", "data", "variant"):
        parts.append(f"seed {', '.join(different('seed'))}")
    return ", ".join(parts)


def summary_table(sections: Sequence[Section]) -> TableView:
    """One line for each study."""
    rows = []
    for section in sections:
        outcome, study = section.outcome, section.study
        if section.quick:
            state = [Cell("quick runs only", tone="quiet"), Cell("not compared", tone="quiet"), Cell("–", tone="quiet")]
        else:
            orders = f"{outcome.held} of {outcome.claimed}, {outcome.sure} significantly" if outcome.claimed else "–"
            untested = "not tested" if outcome.found and _has_paper(study) else "–"
            worse = "; ".join(outcome.worse) or (f"none of {outcome.tested}" if outcome.tested else untested)
            state = [
                Cell(f"{outcome.found} of {outcome.wanted}"), Cell(worse, tone="bad" if outcome.worse else ""),
                Cell(orders, tone="bad" if outcome.reversed else ""),
            ]  # fmt: skip
        rows.append([Cell(study.title), *state])
    header = ["experiment", "runs", "P-STN significantly worse than the paper", "claimed orders that hold"]
    return TableView("All experiments", header, rows)


def _has_paper(study: Study) -> bool:
    return any(line.paper for table in study.tables for line in table.lines)
