"""What a report shows of an experiment, declared as data, and its tables as rows of cells."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pstn.report.results import Result
from pstn.report.statistics import LEVEL, Paper, Summary, best, judge, median_and_deviation, summarise, welch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "MISSING",
    "Cell",
    "CellKey",
    "Drawing",
    "Finding",
    "Line",
    "Mean",
    "Metric",
    "Order",
    "Search",
    "Study",
    "Table",
    "TableView",
    "check_order",
    "chosen",
    "p_value",
    "signed",
    "summary_of",
    "tables_of",
    "trials",
    "unsearched",
    "view_orders",
    "view_search",
    "view_table",
]


CellKey = tuple[str, str, str]
"""Model, data and variant, as in `Result`: a cell of a table, over all its runs."""

# Draws one figure from the results of a study, or returns None where they hold nothing to draw.
Draw = Callable[[Sequence[Result]], "Figure | None"]


@dataclass(frozen=True)
class Metric:
    """A number that results hold, and how to write it.

    Args:
        name: its key in `Result.metrics`.
        label: what readers call it, with its unit.
        scale: what to multiply it by: 100 for a fraction shown in percent.
        digits: after the point.
        higher_is_better: false for errors and losses; None where neither is better.
    """

    name: str
    label: str
    scale: float = 1.0
    digits: int = 3
    higher_is_better: bool | None = False


@dataclass(frozen=True)
class Line:
    """One number of a table: one metric of one model on one data set, over all its runs.

    Args:
        model: as in `Result`.
        data: as in `Result`.
        metric: which number.
        variant: as in `Result`.
        paper: what was published, if anything.
        row: heading of its row; the data's name when not given.
        column: heading of its column; the model's name, with the variant's, when not given.
        rivals: names those it competes with for bold; its row's heading when not given.
    """

    model: str
    data: str
    metric: Metric
    variant: str = ""
    paper: Paper | None = None
    row: str = ""
    column: str = ""
    rivals: str = ""

    @property
    def heading(self) -> tuple[str, str]:
        """Of its row and its column."""
        return self.row or self.data, self.column or " ".join(filter(None, (self.model, self.variant)))

    def among(self, results: Sequence[Result]) -> list[Result]:
        """Its runs among `results`, whatever they hold."""
        return [r for r in results if (r.model, r.data, r.variant) == (self.model, self.data, self.variant)]

    def by_seed(self, results: Sequence[Result]) -> dict[int, float]:
        """Its numbers among `results`, in the metric's unit, by seed."""
        name, scale = self.metric.name, self.metric.scale
        return {r.seed: scale * r.metrics[name] for r in self.among(results) if name in r.metrics}

    def find(self, results: Sequence[Result]) -> list[float]:
        """Its runs among `results`, in the metric's unit."""
        return list(self.by_seed(results).values())


@dataclass(frozen=True)
class Mean:
    """The mean of several lines, taken seed by seed: the bottom row of a table.

    Args:
        lines: whose mean.
        row: its heading.
        paper: what was published.
        rivals: names those it competes with for bold; its row's heading when not given.
    """

    lines: tuple[Line, ...]
    row: str
    paper: Paper | None = None
    rivals: str = ""

    @property
    def metric(self) -> Metric:
        """That of its lines."""
        return self.lines[0].metric

    @property
    def heading(self) -> tuple[str, str]:
        """Of its row and its column."""
        return self.row, self.lines[0].heading[1]

    def among(self, results: Sequence[Result]) -> list[Result]:
        """The runs of all its lines among `results`, whatever they hold."""
        return [result for line in self.lines for result in line.among(results)]

    def find(self, results: Sequence[Result]) -> list[float]:
        """The mean for each seed that all lines have."""
        runs = [line.by_seed(results) for line in self.lines]
        seeds = set.intersection(*(set(run) for run in runs))
        return [sum(run[seed] for run in runs) / len(runs) for seed in sorted(seeds)]


@dataclass(frozen=True)
class Table:
    """Numbers that stand together.

    Args:
        title: what they are.
        lines: in the order of their rows.
        row_label: what the rows' headings are.
        robust: show median ± median absolute deviation instead of mean ± standard deviation.
        bold: set the significantly best among rivals in bold.
        incomparable: by row, why its numbers cannot be tested against the published ones.
        incomparable_where: the same by a departure, for all rows whose results have it.
        notes: sentences under it.
    """

    title: str
    lines: tuple[Line | Mean, ...]
    row_label: str = "data"
    robust: bool = False
    bold: bool = True
    incomparable: dict[str, str] = field(default_factory=dict)
    incomparable_where: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def why_not(self, line: Line | Mean, results: Sequence[Result]) -> str | None:
        """Why a line cannot be tested against the published; None where it can."""
        if reason := self.incomparable.get(line.heading[0]):
            return reason
        for part in line.lines if isinstance(line, Mean) else (line,):
            if reason := self._why_not(part.among(results)):
                return f"{reason} ({part.data})" if isinstance(line, Mean) else reason
        return None

    def _why_not(self, results: Sequence[Result]) -> str | None:
        if any(result.shortened for result in results):
            return "fewer epochs"
        sentences = (sentence for result in results for sentence in result.departures)
        return next((self.incomparable_where[s] for s in sentences if s in self.incomparable_where), None)


@dataclass(frozen=True)
class Order:
    """A claim that one line is better than another.

    Args:
        better: the line that should be ahead.
        worse: the line that should be behind.
        robust: compare medians.
        comparable: false where the data are not the paper's, and its order is no more than a hint.
        claimed: false for one that is shown beside the paper's, and is not counted among them.
    """

    better: Line | Mean
    worse: Line | Mean
    robust: bool = False
    comparable: bool = True
    claimed: bool = True


@dataclass(frozen=True)
class Search:
    """A choice made on validation data, among variants called "NAME=VALUE".

    Args:
        experiment: whose results hold the trials.
        name: of what was searched, the part of the variant before "=".
        metrics: by which to choose, each on its own.
        published: by data, the value that the paper chose.
        values: all that are to be tried.
    """

    experiment: str
    name: str
    metrics: tuple[Metric, ...]
    published: dict[str, float]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Args:
        name: of its files.
        caption: what it shows.
        draw: makes it from results.
    """

    name: str
    caption: str
    draw: Draw


@dataclass(frozen=True)
class Study:
    """One experiment, as a section of the report.

    Args:
        experiment: its name, as in `Result`.
        title: for people.
        claim: what the paper says of it, in sentences.
        tables: its numbers.
        orders: what it claims to be better than what.
        drawings: its figures.
        search: a choice that was made on validation data beforehand.
        by_variant: the metrics to tabulate for every group of variants "GROUP=VALUE", one table each.
        variants: data, model and variant of the cells that these tables should have; others are added as they come.
        runs: how many seeds or folds each cell should have.
        watch: the models that must not be significantly worse than published.
    """

    experiment: str
    title: str
    claim: str
    tables: tuple[Table, ...] = ()
    orders: tuple[Order, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    search: Search | None = None
    by_variant: tuple[Metric, ...] = ()
    variants: tuple[tuple[str, str, str], ...] = ()
    runs: int = 5
    watch: tuple[str, ...] = ("P-STN",)

    @property
    def command(self) -> str:
        """What fills its missing cells."""
        return f"pstn reproduce {self.experiment}"


def summary_of(line: Line | Mean, results: Sequence[Result]) -> Summary | None:
    """Mean, spread and number of a line's runs; None where there is none."""
    values = line.find(results)
    return summarise(values) if values else None


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
