"""Tables as rows of cells, ready to be written as HTML or Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from pstn.report.results import Result
from pstn.report.statistics import best, median_and_deviation, summarise
from pstn.report.study import Line, Mean, Metric, Paper, Study, Table, summary_of
from pstn.report.verdict import judge

__all__ = ["MISSING", "Cell", "TableView", "p_value", "signed", "tables_of", "view_table"]

MISSING, DIVERGED = "missing", "diverged"
# Unbroken over lines: a mean stays with its spread.
_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Cell:
    """One cell: its text, whether it is bold, and its tone ("good", "bad", "quiet" or none); another one below it."""

    text: str
    strong: bool = False
    tone: str = ""
    below: Cell | None = None


@dataclass(frozen=True)
class TableView:
    """A table to be written: heading, rows of cells, sentences under it."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


def tables_of(study: Study, results: Sequence[Result]) -> list[Table]:
    """A study's tables: those it declares, and one for each group of variants."""
    if not study.by_variant:
        return list(study.tables)
    found = [(r.data, r.model, r.variant) for r in results if r.metrics and "=" in r.variant]
    groups: dict[str, dict[tuple[str, str, str], None]] = {}
    for cell in (*study.variants, *found):
        groups.setdefault(cell[-1].partition("=")[0], {})[cell] = None
    return [*study.tables, *(_variants_table(name, list(cells), study.by_variant) for name, cells in groups.items())]


def _variants_table(name: str, cells: list[tuple[str, str, str]], metrics: tuple[Metric, ...]) -> Table:
    """A row for each variant of one group, a column for each metric; variants on the same data are rivals."""
    differ = [len({cell[part] for cell in cells}) > 1 for part in (0, 1)]
    lines = tuple(
        Line(
            model, data, metric, variant,
            row=", ".join([variant.partition("=")[2], *(model,) * differ[1], *(data,) * differ[0]]),
            column=metric.label, rivals=f"{data} {metric.name}",
        )
        for data, model, variant in cells for metric in metrics
    )  # fmt: skip
    data, model, _ = cells[0]
    shared = [*(() if differ[1] else (model,)), *(() if differ[0] else (data,))]
    return Table(", ".join([name, *shared]), lines, row_label=name)


def view_table(table: Table, results: Sequence[Result], study: Study, *, beside_paper: bool = True) -> list[TableView]:
    """A table as readers see it: as a grid where it has rows and columns, and line by line beside the published.

    Args:
        table: what to show.
        results: of its study.
        study: says how many runs each cell should have, and which command runs them.
        beside_paper: false for runs that must not be compared with the paper.
    """
    shown = [line for line in table.lines if beside_paper or line.find(results)]
    if not shown:
        return []
    strong = _strong(table, shown, results)
    published = beside_paper and any(line.paper for line in shown)
    runs = study.runs if beside_paper else 0
    views = []
    if _is_grid(shown):
        views.append(_grid(table, shown, results, strong, runs, published))
    if published or not views:
        views.append(_list(table, shown, results, strong, runs, published))
        if len(views) > 1:
            views[-1] = dataclasses.replace(views[-1], title=f"{_title(table, shown)}: line by line beside the paper’s")
    if beside_paper:
        views[-1].notes.extend([*_missing_note(shown, results, study), *table.notes])
    return views


def _missing_note(lines: Sequence[Line | Mean], results: Sequence[Result], study: Study) -> list[str]:
    missing = sum(max(0, study.runs - len(line.among(results))) for line in lines if isinstance(line, Line))
    wanted = study.runs * sum(isinstance(line, Line) for line in lines)
    if not missing:
        return []
    return [f"{missing} of the {wanted} numbers under this table are missing. `{study.command}` runs what is missing."]


def _strong(table: Table, lines: Sequence[Line | Mean], results: Sequence[Result]) -> set[int]:
    """Positions of the lines to set in bold."""
    if not table.bold:
        return set()
    groups: dict[tuple[str, str], list[int]] = {}
    for at, line in enumerate(lines):
        groups.setdefault((line.rivals or line.heading[0], line.metric.name), []).append(at)
    strong = set()
    for members in groups.values():
        direction = lines[members[0]].metric.higher_is_better
        if direction is not None:
            summaries = [summary_of(lines[at], results) for at in members]
            strong |= {members[k] for k in best(summaries, higher_is_better=direction)}
    return strong


def _is_grid(lines: Sequence[Line | Mean]) -> bool:
    headings = {line.heading for line in lines}
    rows, columns = {row for row, _ in headings}, {column for _, column in headings}
    return len(headings) == len(lines) and len(rows) > 1 and len(columns) > 1


def _grid(
    table: Table, lines: Sequence[Line | Mean], results: Sequence[Result], strong: set[int], runs: int, published: bool
) -> TableView:
    """Rows by columns: ours, and below each the published."""
    columns = list(dict.fromkeys(line.heading[1] for line in lines))
    cells = {
        line.heading: _ours(table, line, results, at in strong, runs, _published(line.paper) if published else None)
        for at, line in enumerate(lines)
    }  # fmt: skip
    rows = [
        [Cell(row), *(cells.get((row, column), Cell("")) for column in columns)]
        for row in dict.fromkeys(line.heading[0] for line in lines)
    ]
    title = f"{_title(table, lines)}: {_spread(table)}{'; below it the paper’s' if published else ''}"
    return TableView(title, [table.row_label, *columns], rows)


def _title(table: Table, lines: Sequence[Line | Mean]) -> str:
    """With the measure, where it is the same for all."""
    measures = {line.metric.label for line in lines}
    return table.title if len(measures) > 1 else f"{table.title}, {measures.pop()}"


def _spread(table: Table) -> str:
    return "median ± median absolute deviation" if table.robust else "mean ± standard deviation"


def _ours(
    table: Table, line: Line | Mean, results: Sequence[Result], strong: bool, runs: int, below: Cell | None = None
) -> Cell:
    """Our number, saying so where runs are missing."""
    values = line.find(results)
    if not values:
        diverged = isinstance(line, Line) and any(not r.metrics for r in line.among(results))
        return Cell(DIVERGED if diverged else MISSING, tone="quiet", below=below)
    count = f" ({len(values)} of {runs} runs)" if len(values) < runs else ""
    return Cell(_value(values, line.metric, table.robust) + count, strong, below=below)


def _value(values: Sequence[float], metric: Metric, robust: bool) -> str:
    if robust:
        middle, spread = median_and_deviation(values)
        return f"{middle:.{metric.digits}f}{_PLUS_MINUS}{spread:.{metric.digits}f}"
    ours = summarise(values)
    return f"{ours.mean:.{metric.digits}f}" + ("" if ours.std is None else f"{_PLUS_MINUS}{ours.std:.{metric.digits}f}")


def _published(paper: Paper | None) -> Cell:
    return (
        Cell("–", tone="quiet")
        if paper is None
        else Cell(paper.printed.replace(" ± ", _PLUS_MINUS), paper.bold, "quiet")
    )


def _list(
    table: Table, lines: Sequence[Line | Mean], results: Sequence[Result], strong: set[int], runs: int, published: bool
) -> TableView:
    """One line for each number; beside the published with the difference and what a test says of it."""
    several = len({line.metric.name for line in lines}) > 1
    header = [table.row_label, "model", *(["measure"] if several else []), "ours", "runs"]
    if published:
        header += ["paper", "difference", "within the paper’s spread", "p", "verdict"]
    rows = []
    for at, line in enumerate(lines):
        row, column = line.heading
        cells = [Cell(row), Cell(column), *([Cell(line.metric.label)] if several else [])]
        count = len(line.find(results))
        cells += [
            _ours(table, line, results, at in strong, 0),
            Cell(f"{count}" if count >= runs else f"{count} of {runs}"),
        ]
        rows.append(cells + (_beside_paper(table, line, results) if published else []))
    return TableView(f"{_title(table, lines)}: {_spread(table)}", header, rows)


def _beside_paper(table: Table, line: Line | Mean, results: Sequence[Result]) -> list[Cell]:
    """The published number, the difference, whether it is within the published spread, p, and the verdict."""
    paper, ours = line.paper, summary_of(line, results)
    if paper is None:
        return [Cell("–", tone="quiet"), Cell(""), Cell(""), Cell(""), Cell("not in the paper", tone="quiet")]
    if ours is None:
        return [_published(paper), Cell(""), Cell(""), Cell(""), Cell(MISSING, tone="quiet")]
    verdict = judge(ours, paper, higher_is_better=line.metric.higher_is_better)
    difference = Cell(signed(verdict.difference, line.metric.digits))
    if reason := table.why_not(line, results):
        return [_published(paper), difference, Cell(""), Cell(""), Cell(f"not tested: {reason}", tone="quiet")]
    within = "–" if verdict.within is None else "yes" if verdict.within else "no"
    return [
        _published(paper), difference, Cell(within), Cell(p_value(verdict.p)),
        Cell(verdict.words, tone="bad" if verdict.worse else "good"),
    ]  # fmt: skip


def signed(value: float, digits: int) -> str:
    """A difference, with its sign."""
    # Adding 0 turns a negative zero into a positive one.
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def p_value(p: float | None) -> str:
    """A p-value as people write it."""
    return "–" if p is None else "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"
