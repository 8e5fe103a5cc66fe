"""What a report shows of an experiment, declared as data, and its tables as rows of cells.

A `Study` names the numbers to show, what was published, and what is claimed. The report knows nothing else of the
paper: each experiment of `pstn.experiments` declares its own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pstn.report.results import RUNS, Result
from pstn.report.statistics import LEVEL, Published, Summary, best, compare, median_and_deviation, summarise, welch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "Claim", "FigureSpec", "Finding", "Line", "Metric", "Search", "Study", "Table", "TableView",
           "check_claim", "lines", "published_lines", "variant_tables", "view_claims", "view_search",
           "view_table"]  # fmt: skip

MISSING, DIVERGED = "missing", "diverged"
# Not broken over lines: a mean stays with its spread.
_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


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
    """One number of a table: one metric of one model, over all its runs.

    Args:
        model: as in `Result`.
        data: as in `Result`; several names stand for the mean over them, taken seed by seed.
        metric: which number.
        variant: as in `Result`.
        paper: what was published, if anything.
        row: heading of its row; the data's name when not given.
        column: heading of its column; the model's name, with the variant's, when not given.
        rivals: names the lines that it competes with for bold; its row's heading when not given.
    """

    model: str
    data: str | tuple[str, ...]
    metric: Metric
    variant: str = ""
    paper: Published | None = None
    row: str = ""
    column: str = ""
    rivals: str = ""

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean over several data sets."""
        return not isinstance(self.data, str)

    @property
    def heading(self) -> tuple[str, str]:
        """Of its row and its column."""
        return self.row or str(self.data), self.column or " ".join(filter(None, (self.model, self.variant)))

    def select(self, results: Sequence[Result]) -> list[Result]:
        """Its runs among `results`, whatever they hold."""
        data = (self.data,) if isinstance(self.data, str) else self.data
        return [r for r in results if (r.model, r.variant) == (self.model, self.variant) and r.data in data]

    def values(self, results: Sequence[Result]) -> list[float]:
        """Its number for each seed that has it on all of its data, in the metric's unit."""
        by_seed: dict[int, list[float]] = {}
        for result in self.select(results):
            if self.metric.name in result.metrics:
                by_seed.setdefault(result.seed, []).append(self.metric.scale * result.metrics[self.metric.name])
        wanted = len(self.data) if self.is_mean else 1
        return [sum(found) / wanted for found in by_seed.values() if len(found) == wanted]

    def summary(self, results: Sequence[Result]) -> Summary | None:
        """Mean, spread and number of its runs; None where there is none."""
        values = self.values(results)
        return summarise(values) if values else None


def lines(metric: Metric, models: Iterable[str], data: Iterable[str]) -> dict[tuple[str, str], Line]:
    """A line for every model on every data set, by (model, data)."""
    names = list(models)
    return {(model, name): Line(model, name, metric) for name in data for model in names}


def published_lines(metric: Metric, text: str) -> dict[tuple[str, str], Line]:
    """Lines with the numbers of a published table, by (model, data).

    Args:
        metric: of all its numbers.
        text: the table as it is printed: models in the first row, data in the first column, columns separated by two
            spaces or more, bold numbers between asterisks, "-" where there is none.

    Example:
        >>> found = published_lines(Metric("accuracy", "accuracy"), '''
        ...     data     CNN           P-STN
        ...     MNIST30  70.12 ± 2.46  *81.00 ± 3.92*
        ... ''')
        >>> found["P-STN", "MNIST30"].paper
        Published(text='81.00 ± 3.92', bold=True, runs=5)
    """
    (_, *models), *rows = [re.split(r"\s{2,}", row.strip()) for row in text.strip().splitlines()]
    return {
        (model, data): Line(model, data, metric, paper=Published(number.strip("*"), number.startswith("*")))
        for data, *numbers in rows
        for model, number in zip(models, numbers, strict=True)
        if number != "-"
    }


@dataclass(frozen=True)
class Table:
    """Numbers that stand together.

    Args:
        title: what they are.
        lines: in the order of their rows.
        row_label: what the rows' headings are.
        robust: show median ± median absolute deviation instead of mean ± standard deviation.
        bold: set the significantly best among rivals in bold.
        untested: why numbers cannot be tested against the published ones, by the heading of their row or by a departure
            of their results.
        notes: sentences under it.
    """

    title: str
    lines: tuple[Line, ...]
    row_label: str = "data"
    robust: bool = False
    bold: bool = True
    untested: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def why_untested(self, line: Line, results: Sequence[Result]) -> str | None:
        """Why a line cannot be tested against the published number; None where it can."""
        if reason := self.untested.get(line.heading[0]):
            return reason
        for result in line.select(results):
            reasons = (self.untested[sentence] for sentence in result.departures if sentence in self.untested)
            if reason := "fewer epochs" if result.shortened else next(reasons, None):
                return f"{reason} ({result.data})" if line.is_mean else reason
        return None


def variant_tables(cells: Iterable[tuple[str, str, str]], metrics: Sequence[Metric]) -> tuple[Table, ...]:
    """A table for every group of variants "GROUP=VALUE": a row for each variant, a column for each metric.

    Args:
        cells: data, model and variant.
        metrics: the columns. Variants on the same data compete for bold.

    Example:
        >>> [table.title for table in variant_tables([("A", "P-STN", "w=0"), ("A", "P-STN", "w=1")], [])]
        ['w, P-STN, A']
    """
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for cell in cells:
        groups.setdefault(cell[-1].partition("=")[0], []).append(cell)
    tables = []
    for group, members in groups.items():
        data, models = (list(dict.fromkeys(names)) for names in list(zip(*members, strict=True))[:2])
        shared = [names[0] for names in (models, data) if len(names) == 1]
        made = []
        for name, model, variant in members:
            row = [variant.partition("=")[2], *[model] * (len(models) > 1), *[name] * (len(data) > 1)]
            made += [
                Line(model, name, metric, variant, row=", ".join(row), column=metric.label, rivals=name)
                for metric in metrics
            ]
        tables.append(Table(", ".join([group, *shared]), tuple(made), row_label=group))
    return tuple(tables)


@dataclass(frozen=True)
class Claim:
    """A claim that one line is better than another.

    Args:
        better: the line that should be ahead.
        worse: the line that should be behind.
        robust: compare medians.
        comparable: false where the data are not the paper's, and its order is no more than a hint.
        claimed: false for one that is shown beside the paper's, and is not counted among them.
    """

    better: Line
    worse: Line
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
    published: Mapping[str, float]
    values: tuple[float, ...]

    def trials(self, data: str, metric: Metric, results: Sequence[Result]) -> dict[float, list[float]]:
        """The scores of every value that was tried on a data set, one for each run, by increasing value."""
        found: dict[float, list[float]] = {}
        for result in results:
            name, _, value = result.variant.partition("=")
            wanted = (result.experiment, result.data, name) == (self.experiment, data, self.name)
            if wanted and metric.name in result.metrics:
                found.setdefault(float(value), []).append(result.metrics[metric.name])
        return dict(sorted(found.items()))

    def best(self, data: str, metric: Metric, results: Sequence[Result]) -> list[float]:
        """The value with the best mean on validation data, or the values that share it; empty without trials."""
        means = {v: statistics.fmean(runs) for v, runs in self.trials(data, metric, results).items()}
        wanted = (max if metric.higher_is_better else min)(means.values(), default=math.nan)
        return [value for value, mean in means.items() if math.isclose(mean, wanted)]

    def missing(self, results: Sequence[Result]) -> list[str]:
        """The data sets on which not every value was tried in every run, in words."""
        wanted = {(value, seed) for value in self.values for seed in range(RUNS)}
        lacking = []
        for data in self.published:
            own = [r for r in results if (r.experiment, r.data) == (self.experiment, data)]
            if missing := wanted - {(float(r.variant.partition("=")[2]), r.seed) for r in own}:
                lacking.append(f"{data}: {len(missing)} of {len(wanted)} runs" if own else data)
        return lacking


@dataclass(frozen=True)
class FigureSpec:
    """A figure.

    Args:
        name: of its files.
        caption: what it shows.
        draw: makes it from the results of its experiment; returns None where they hold nothing to draw.
    """

    name: str
    caption: str
    draw: Callable[[Sequence[Result]], Figure | None]


@dataclass(frozen=True)
class Study:
    """One experiment, as a section of the report.

    Args:
        name: of the experiment, as in `Result`.
        title: for people.
        description: what is claimed, in sentences.
        tables: its numbers.
        claims: what is claimed to be better than what.
        figures: its figures.
        search: a choice that was made on validation data beforehand.
    """

    name: str
    title: str
    description: str = ""
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    search: Search | None = None

    @property
    def command(self) -> str:
        """What runs its missing cells."""
        return f"pstn reproduce {self.name}"

    @property
    def cells(self) -> list[tuple[str, str, str]]:
        """Model, data and variant of all that its tables show, in their order."""
        shown = [line for table in self.tables for line in table.lines]
        return list(
            dict.fromkeys((line.model, line.data, line.variant) for line in shown if isinstance(line.data, str))
        )


class Cell(NamedTuple):
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


def _quiet(text: str) -> Cell:
    return Cell(text, tone="quiet")


def view_table(table: Table, results: Sequence[Result], study: Study, *, beside_paper: bool = True) -> list[TableView]:
    """A table as readers see it: as a grid where it has rows and columns, and line by line beside the published.

    Args:
        table: what to show.
        results: of its study.
        study: says which command runs what is missing.
        beside_paper: false for runs that must not be compared with the paper.
    """
    shown = [line for line in table.lines if beside_paper or line.values(results)]
    if not shown:
        return []
    strong, runs = _significantly_best(table, shown, results), RUNS if beside_paper else 0
    published = beside_paper and any(line.paper for line in shown)
    metrics = list(dict.fromkeys(line.metric.label for line in shown))
    title = table.title if len(metrics) > 1 else f"{table.title}, {metrics[0]}"
    spread = "median ± median absolute deviation" if table.robust else "mean ± standard deviation"
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*(line.heading for line in shown), strict=True))
    is_grid = len({line.heading for line in shown}) == len(shown) and len(rows) > 1 and len(columns) > 1
    views = []
    if is_grid:
        cells = {
            line.heading: _ours(table, line, results, line in strong, runs, _printed(line) if published else None)
            for line in shown
        }
        body = [[Cell(row), *(cells.get((row, column), Cell("")) for column in columns)] for row in rows]
        below = "; below it the paper’s" if published else ""
        views.append(TableView(f"{title}: {spread}{below}", [table.row_label, *columns], body))
    if published or not is_grid:
        header = [table.row_label, "model", *["measure"] * (len(metrics) > 1), "ours", "runs"]
        header += ["paper", "difference", "within the paper’s spread", "p", "verdict"] * published
        body = []
        for line in shown:
            count = len(line.values(results))
            cells_of_line = [*map(Cell, line.heading), *[Cell(line.metric.label)] * (len(metrics) > 1)]
            cells_of_line += [_ours(table, line, results, line in strong, 0)]
            cells_of_line += [Cell(f"{count}" if count >= runs else f"{count} of {runs}")]
            body.append(cells_of_line + (_beside_paper(table, line, results) if published else []))
        views.append(TableView(f"{title}: {'line by line beside the paper’s' if is_grid else spread}", header, body))
    if beside_paper:
        own = [line for line in shown if not line.is_mean]
        if missing := sum(max(0, RUNS - len(line.select(results))) for line in own):
            told = f"{missing} of the {RUNS * len(own)} numbers under this table are missing."
            views[-1].notes.append(f"{told} `{study.command}` runs what is missing.")
        views[-1].notes.extend(table.notes)
    return views


def _significantly_best(table: Table, shown: Sequence[Line], results: Sequence[Result]) -> set[Line]:
    """The lines to set in bold."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in shown:
        if table.bold and line.metric.higher_is_better is not None:
            groups.setdefault((line.rivals or line.heading[0], line.metric.name), []).append(line)
    strong = set()
    for rivals in groups.values():
        direction = rivals[0].metric.higher_is_better is True
        strong |= {rivals[k] for k in best([line.summary(results) for line in rivals], higher_is_better=direction)}
    return strong


def _ours(
    table: Table, line: Line, results: Sequence[Result], strong: bool, runs: int, below: Cell | None = None
) -> Cell:
    """Our number, with the number of runs where some are missing."""
    values, digits = line.values(results), line.metric.digits
    if not values:
        diverged = not line.is_mean and any(not result.metrics for result in line.select(results))
        return Cell(DIVERGED if diverged else MISSING, tone="quiet", below=below)
    middle, spread, *_ = median_and_deviation(values) if table.robust else summarise(values)
    text = f"{middle:.{digits}f}" + ("" if spread is None else f"{_PLUS_MINUS}{spread:.{digits}f}")
    return Cell(text + (f" ({len(values)} of {runs} runs)" if len(values) < runs else ""), strong, below=below)


def _printed(line: Line) -> Cell:
    """The published number."""
    paper = line.paper
    return Cell(paper.text.replace(" ± ", _PLUS_MINUS), paper.bold, "quiet") if paper else _quiet("–")


def _beside_paper(table: Table, line: Line, results: Sequence[Result]) -> list[Cell]:
    """The published number, the difference, whether it is within the published spread, p, and the verdict."""
    ours, blank = line.summary(results), Cell("")
    if line.paper is None or ours is None:
        return [_printed(line), blank, blank, blank, _quiet(MISSING if line.paper else "not in the paper")]
    verdict = compare(ours, line.paper, higher_is_better=line.metric.higher_is_better)
    difference = Cell(_signed(verdict.difference, line.metric.digits))
    if reason := table.why_untested(line, results):
        return [_printed(line), difference, blank, blank, _quiet(f"not tested: {reason}")]
    within = {None: "–", True: "yes", False: "no"}[verdict.within]
    judged = Cell(verdict.words, tone="bad" if verdict.worse else "good")
    return [_printed(line), difference, Cell(within), Cell(_p_value(verdict.p)), judged]


def _signed(value: float, digits: int) -> str:
    # Adding 0 turns a negative zero into a positive one.
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _p_value(p: float | None) -> str:
    return "–" if p is None else "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


class Finding(NamedTuple):
    """What our results say of a claim.

    Args:
        holds: whether the better line is ahead; None where that cannot be said.
        words: for the reader.
        significant: whether the two lines differ significantly.
        p: of Welch's t-test between the two.
        difference: better minus worse, in the metric's unit.
    """

    holds: bool | None
    words: str
    significant: bool = False
    p: float | None = None
    difference: float = 0.0


def check_claim(claim: Claim, results: Sequence[Result]) -> Finding:
    """Whether the line that should be ahead is, in the means or, for a robust claim, in the medians."""
    better, worse = claim.better.values(results), claim.worse.values(results)
    if not better or not worse:
        return Finding(None, MISSING)
    if any(result.shortened for line in (claim.better, claim.worse) for result in line.select(results)):
        return Finding(None, "not tested: fewer epochs")
    centre = statistics.median if claim.robust else statistics.fmean
    difference = centre(better) - centre(worse)
    holds = difference > 0 if claim.better.metric.higher_is_better else difference < 0
    p = welch(summarise(better), summarise(worse))
    significant = p is not None and p < LEVEL
    if holds:
        words = "holds, significantly" if significant else "holds, not significantly"
    else:
        words = f"does not hold{': significantly' if significant else ', not significantly'} reversed"
    return Finding(holds, words, significant, p, difference)


def view_claims(claims: Sequence[Claim], results: Sequence[Result]) -> TableView | None:
    """A row for each claim; None where nothing is claimed."""
    if not claims:
        return None
    rows = []
    for claim in claims:
        finding, metric = check_claim(claim, results), claim.better.metric
        (row, ahead), (other, behind) = claim.better.heading, claim.worse.heading
        papers = [line.paper.summary.mean for line in (claim.better, claim.worse) if line.paper]
        rows.append([
            Cell(row if row == other else f"{row} / {other}"),
            Cell(f"{ahead} ahead of {behind}{'' if claim.claimed else ' (not a claim of the paper)'}"),
            Cell(metric.label),
            Cell("" if finding.holds is None else _signed(finding.difference, metric.digits)),
            _quiet(_signed(papers[0] - papers[1], metric.digits) if len(papers) == 2 else "–"),
            Cell(_p_value(finding.p)),
            Cell(finding.words, tone={None: "quiet", True: "good", False: "bad"}[finding.holds]),
        ])  # fmt: skip
    notes = []
    if not all(claim.comparable for claim in claims):
        notes.append("These are not the paper’s data: that its order holds here, or does not, says little about it.")
    if any(claim.robust for claim in claims):
        notes.append("The order is that of the medians; p is Welch’s, which compares means.")
    header = ["where", "claim", "measure", "difference, ours", "the paper’s", "p", "holds in ours?"]
    return TableView("The order that the paper claims", header, rows, notes)


def view_search(search: Search, results: Sequence[Result]) -> TableView:
    """For each data set, what validation chooses and what the paper chose."""
    rows = []
    for data, published in search.published.items():
        own = [r for r in results if (r.experiment, r.data) == (search.experiment, data)]
        tried = sorted({float(r.variant.partition("=")[2]) for r in own})
        chosen = [search.best(data, metric, results) for metric in search.metrics]
        rows.append([
            Cell(data),
            *(Cell("all alike" if len(c) == len(tried) > 1 else _listed(c)) if c else _quiet(MISSING) for c in chosen),
            _quiet(f"{published:g}"), Cell(_listed(tried)), Cell(str(len({r.seed for r in own}))),
        ])  # fmt: skip
    header = ["data", *(f"best {m.label}" for m in search.metrics), "the paper’s", "tried", "runs of each"]
    notes = [f"`pstn reproduce {search.experiment}` runs what is missing."] * bool(search.missing(results))
    return TableView(f"{search.name}, chosen on validation data", header, rows, notes)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
