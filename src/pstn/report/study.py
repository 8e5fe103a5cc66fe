"""What a report is told about an experiment: which numbers to show, what was published, what is claimed.

A study is data. The report knows nothing of the paper; whoever knows it writes studies (`pstn.experiments.studies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pstn.report.results import Result
from pstn.report.statistics import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "CellKey",
    "Drawing",
    "Line",
    "Mean",
    "Metric",
    "Order",
    "Paper",
    "Search",
    "Study",
    "Table",
    "summary_of",
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
