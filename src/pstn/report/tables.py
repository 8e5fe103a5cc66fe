"""What a report shows of an experiment, declared as data, and its tables as rows of cells.

A `Study` names the numbers to show, what was published, and what is claimed. The report knows nothing else of the
paper: each experiment of `pstn.experiments` declares its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from pstn.report import statistics
from pstn.report.results import RUNS, Result, grouped
from pstn.report.statistics import LEVEL, Published, Summary, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "missing"
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

    def by_seed(self, results: Sequence[Result]) -> dict[int, float]:
        """Its number for each seed that has it on all of its data, in the metric's unit."""
        name, wanted = self.metric.name, len(self.data) if self.is_mean else 1
        runs = grouped((r for r in self.select(results) if name in r.metrics), lambda r: r.seed)
        return {
            seed: sum(self.metric.scale * r.metrics[name] for r in own) / wanted
            for seed, own in runs.items()
            if len(own) == wanted
        }

    def values(self, results: Sequence[Result]) -> list[float]:
        """The numbers of `by_seed`."""
        return list(self.by_seed(results).values())

    def summary(self, results: Sequence[Result]) -> Summary | None:
        """Mean, spread and number of its runs; None where there is none."""
        values = self.values(results)
        return statistics.summarise(values) if values else None


def lines(
    metric: Metric, models: Iterable[str], data: Iterable[str], variants: Iterable[str] = ("",), **headings: str
) -> Lines:
    """A line for every model on every data set in every variant, by (model, data) or (model, data, variant).

    Args:
        metric: of all of them.
        models: as in `Result`.
        data: as in `Result`.
        variants: as in `Result`.
        headings: `row`, `column` and `rivals` as in `Line`, where {model}, {data} and {variant} stand for the line's
            own and {value} for what follows "=" in its variant.

    Example:
        >>> shown = lines(Metric("nll", "NLL"), ["P-STN"], ["digits"], ["taught=no", "taught=yes"], column="{value}")
        >>> [line.heading for line in shown.values()]
        [('digits', 'no'), ('digits', 'yes')]
    """
    made = {}
    for name, variant, model in product(data, variants, models):
        own = {"model": model, "data": name, "variant": variant, "value": variant.partition("=")[2]}
        texts = {heading: text.format(**own) for heading, text in headings.items()}
        made[model, name, *filter(None, [variant])] = Line(model, name, metric, variant, None, **texts)
    return made


def published_lines(metric: Metric, text: str) -> Lines:
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


Lines = dict[tuple[str, ...], Line]
"""Lines by model and data, and by variant where they have one."""


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
        beside: further columns of a grid, such as {"supervision": {"CNN": "labels"}}: texts by the heading of a row.
    """

    title: str
    lines: tuple[Line, ...]
    row_label: str = "data"
    robust: bool = False
    bold: bool = True
    untested: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, title: str, *shown: Lines, **options: Any) -> Table:
        """The table of all of these lines.

        Args:
            title: what they are.
            shown: of `lines` or `published_lines`.
            options: the other arguments of `Table`.
        """
        return cls(title, tuple(line for each in shown for line in each.values()), **options)

    def judge(self, line: Line, results: Sequence[Result]) -> tuple[Verdict | None, str]:
        """How a line compares with its published number, if there are both, and why that is no test of it, if so."""
        ours = line.summary(results)
        if line.paper is None or ours is None:
            return None, MISSING if line.paper else "not in the paper"
        reasons = [self.untested[line.heading[0]]] if line.heading[0] in self.untested else []
        for result in line.select(results):
            where = f" ({result.data})" if line.is_mean else ""
            reasons += [self.untested[s] + where for s in result.departures if s in self.untested]
        verdict = statistics.compare(ours, line.paper, higher_is_better=line.metric.higher_is_better)
        return verdict, f"not tested: {reasons[0]}" if reasons else ""


def variant_tables(cells: Iterable[tuple[str, str, str]], metrics: Sequence[Metric]) -> tuple[Table, ...]:
    """A table for every group of variants "GROUP=VALUE": a row for each variant, a column for each metric.

    Args:
        cells: data, model and variant.
        metrics: the columns. Variants on the same data compete for bold.

    Example:
        >>> [table.title for table in variant_tables([("A", "P-STN", "w=0"), ("A", "P-STN", "w=1")], [])]
        ['w, P-STN, A']
    """
    tables = []
    for group, members in grouped(cells, lambda cell: cell[-1].partition("=")[0]).items():
        data, models = ({cell[part] for cell in members} for part in (0, 1))
        shared, made = [names.pop() for names in (models, data) if len(names) == 1], list[Line]()
        for name, model, variant in members:  # the names that all share stand in the title alone
            row = ", ".join([variant.partition("=")[2], *[model] * bool(models), *[name] * bool(data)])
            made += [Line(model, name, m, variant, row=row, column=m.label, rivals=name) for m in metrics]
        tables.append(Table(", ".join([group, *shared]), tuple(made), row_label=group))
    return tuple(tables)


@dataclass(frozen=True)
class Claim:
    """A claim that one line is better than another, or no worse by more than a margin.

    It is tested by Welch's t-test on the runs, or as its options say.

    Args:
        better: the line that should be ahead.
        worse: the line that should be behind.
        robust: compare medians.
        comparable: false where the data are not the paper's, and its order is no more than a hint.
        claimed: false for one that is shown beside the paper's, and is not counted among them.
        paired: the lines share their folds: test the differences of runs with the same seed.
        margin: how far `better` may be behind, in the metric's unit: a one-sided test that it is not worse than that.
        table: what the claim is one of: those of one table are corrected together, and shown as a grid.
    """

    better: Line
    worse: Line
    robust: bool = False
    comparable: bool = True
    claimed: bool = True
    paired: bool = False
    margin: float | None = None
    table: str = ""


def claim_order(shown: Lines, better: str, worse: str, **options: Any) -> tuple[Claim, ...]:
    """A claim for each data set, and variant, that one model is ahead of another.

    Args:
        shown: of `lines` or `published_lines`.
        better: the model that should be ahead.
        worse: the model that should be behind.
        options: the other arguments of `Claim`.

    Example:
        >>> shown = lines(Metric("nll", "NLL"), ["STN", "P-STN"], ["A", "B"])
        >>> len(claim_order(shown, "P-STN", "STN", paired=True))
        2
    """
    both = [key for model, *key in shown if model == better and (worse, *key) in shown]
    return tuple(Claim(shown[better, *key], shown[worse, *key], **options) for key in both)


@dataclass(frozen=True)
class Search:
    """A choice made on validation data, among variants called "NAME=VALUE".

    Args:
        experiment: whose results hold the trials.
        name: of what was searched, the part of the variant before "=".
        metrics: by which to choose, each on its own.
        published: by data, the value that the paper chose.
        values: all that are to be tried.
        shown: the largest that the figure shows.
    """

    experiment: str
    name: str
    metrics: tuple[Metric, ...]
    published: Mapping[str, float]
    values: tuple[float, ...]
    shown: float = math.inf

    def trials(self, data: str, results: Sequence[Result]) -> dict[float, list[Result]]:
        """The trials on a data set by the value that was tried, in increasing order."""
        own = (r for r in results if r.data == data)
        return dict(sorted(grouped(own, lambda r: float(r.variant.partition("=")[2])).items()))

    def scores(self, data: str, metric: Metric, results: Sequence[Result]) -> dict[float, list[float]]:
        """The scores of every value that was tried on a data set, one for each run, by increasing value."""
        trials = self.trials(data, results).items()
        found = {value: [r.metrics[metric.name] for r in runs if metric.name in r.metrics] for value, runs in trials}
        return {value: runs for value, runs in found.items() if runs}

    def best(self, data: str, metric: Metric, results: Sequence[Result]) -> list[float]:
        """The value with the best mean on validation data, or the values that share it; empty without trials."""
        means = {value: fmean(runs) for value, runs in self.scores(data, metric, results).items()}
        wanted = (max if metric.higher_is_better else min)(means.values(), default=math.nan)
        return [value for value, mean in means.items() if math.isclose(mean, wanted)]

    def missing(self, results: Sequence[Result]) -> list[str]:
        """The data sets on which not every value was tried in every run, in words."""
        wanted, lacking = {(value, seed) for value in self.values for seed in range(RUNS)}, []
        for data in self.published:
            done = {(value, r.seed) for value, runs in self.trials(data, results).items() for r in runs}
            if left := len(wanted - done):
                lacking.append(f"{data}: {left} of {len(wanted)} runs" if done else data)
        return lacking


@dataclass(frozen=True)
class FigureSpec:
    """A figure.

    Args:
        name: of its files.
        caption: what it shows.
        draw: makes it from the results of its experiment; raises `figures.NothingToDraw` where they hold none of it.
    """

    name: str
    caption: str
    draw: Callable[[Sequence[Result]], Figure]


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
        seeds: how many runs every cell has, numbered from 0.
        from_paper: whether the claims are the paper's; where they are not, their table does not mention it.
        holm: whether the p-values of the claims are corrected for their number, by Holm's method.
    """

    name: str
    title: str
    description: str = ""
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    search: Search | None = None
    seeds: int = RUNS
    from_paper: bool = True
    holm: bool = False

    @property
    def command(self) -> str:
        """What runs its missing cells."""
        return f"pstn reproduce {self.name}"

    @property
    def cells(self) -> list[tuple[str, str, str]]:
        """Model, data and variant of all that its tables show, in their order."""
        shown = (line for table in self.tables for line in table.lines)
        return list(dict.fromkeys((li.model, li.data, li.variant) for li in shown if isinstance(li.data, str)))


class Cell(NamedTuple):
    """One cell: its text, whether it is bold, and its tone ("good", "bad", "quiet" or none); another one below it."""

    text: str
    strong: bool = False
    tone: str = ""
    below: Cell | None = None


class TableView:
    """A table to be written: heading, rows of cells (a text is a plain cell), sentences under it."""

    def __init__(self, title: str, header: Sequence[str], rows: Iterable[Iterable[Cell | str]], *notes: str) -> None:
        self.title, self.header, self.notes = title, header, list(notes)
        self.rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]


def _quiet(text: str) -> Cell:
    return Cell(text, tone="quiet")


def view_table(table: Table, results: Sequence[Result], study: Study) -> list[TableView]:
    """A table as readers see it: as a grid where it has rows and columns, and line by line beside the published.

    Args:
        table: what to show.
        results: of its study.
        study: says how many runs there should be, and which command runs what is missing.
    """
    shown, strong = table.lines, _significantly_best(table, results)
    published = any(line.paper for line in shown)
    metrics = list(dict.fromkeys(line.metric.label for line in shown))
    title = table.title if len(metrics) > 1 else f"{table.title}, {metrics[0]}"
    spread = "median ± median absolute deviation" if table.robust else "mean ± standard deviation"
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*(line.heading for line in shown), strict=True))
    is_grid = len({line.heading for line in shown}) == len(shown) and len(rows) > 1 and len(columns) > 1
    views = []
    if is_grid:
        cells = {}
        for line in shown:
            below = _printed(line) if published else None
            cells[line.heading] = _ours(table, line, results, study.seeds)._replace(strong=line in strong, below=below)
        texts = {row: [text.get(row, "") for text in table.beside.values()] for row in rows}
        body = [[row, *texts[row], *(cells.get((row, column), "") for column in columns)] for row in rows]
        heading = f"{title}: {spread}{'; below it the paper’s' * published}"
        views.append(TableView(heading, [table.row_label, *table.beside, *columns], body))
    if published or not is_grid:
        # A grid holds the numbers that have nothing beside them. Its columns may be the measures.
        measured = all(line.heading[1] == line.metric.label for line in shown)
        named = [table.row_label, "measure"] if measured else [table.row_label, "model"]
        header = [*named, *["measure"] * (len(metrics) > 1 and not measured), "ours", "runs"]
        header += ["paper", "difference", "margin", "p, equivalence", "p, difference", "verdict"] * published
        body = []
        for line in shown:
            if is_grid and not line.paper:
                continue
            count, measure = len(line.values(results)), [line.metric.label] * (len(metrics) > 1 and not measured)
            ours = _ours(table, line, results)._replace(strong=line in strong)
            runs = f"{count}" if count >= study.seeds else f"{count} of {study.seeds}"
            beside = _beside_paper(table, line, results) if published else []
            body.append([*line.heading, *measure, ours, runs, *beside])
        views.append(TableView(f"{title}: {'line by line beside the paper’s' if is_grid else spread}", header, body))
    own = [line for line in shown if not line.is_mean]
    if missing := sum(max(0, study.seeds - len(line.select(results))) for line in own):
        note = f"{missing} of the {study.seeds * len(own)} numbers under this table are missing."
        views[-1].notes.append(f"{note} `{study.command}` runs what is missing.")
    views[-1].notes.extend(table.notes)
    return views


def _significantly_best(table: Table, results: Sequence[Result]) -> set[Line]:
    """The lines to set in bold."""
    compared = (line for line in table.lines if table.bold and line.metric.higher_is_better is not None)
    strong = set()
    for (_, metric), rivals in grouped(compared, lambda line: (line.rivals or line.heading[0], line.metric)).items():
        best = statistics.best([r.summary(results) for r in rivals], higher_is_better=metric.higher_is_better is True)
        strong |= {rivals[k] for k in best}
    return strong


def _ours(table: Table, line: Line, results: Sequence[Result], runs: int = 0) -> Cell:
    """Our number, with the number of runs where some are missing."""
    values, digits = line.values(results), line.metric.digits
    if not values:
        diverged = not line.is_mean and any(not result.metrics for result in line.select(results))
        return _quiet("diverged" if diverged else MISSING)
    middle, spread, *_ = (statistics.median_and_deviation if table.robust else statistics.summarise)(values)
    text = f"{middle:.{digits}f}" + ("" if spread is None else f"{_PLUS_MINUS}{spread:.{digits}f}")
    return Cell(text + (f" ({len(values)} of {runs} runs)" if len(values) < runs else ""))


def _printed(line: Line) -> Cell:
    """The published number."""
    paper = line.paper
    return Cell(paper.text.replace(" ± ", _PLUS_MINUS), paper.bold, "quiet") if paper else _quiet("–")


def _beside_paper(table: Table, line: Line, results: Sequence[Result]) -> list[Cell | str]:
    """The published number, the difference, the margin, p of both tests, and the verdict."""
    verdict, reason = table.judge(line, results)
    digits = line.metric.digits
    difference = _signed(verdict.difference, digits) if verdict else ""
    if verdict is None or reason:
        return [_printed(line), difference, "", "", "", _quiet(reason)]
    margin = "–" if verdict.margin is None else f"{verdict.margin:.{digits}f}"
    judged = Cell(verdict.words, tone={"worse": "bad", "undecided": "quiet"}.get(verdict.kind, "good"))
    return [_printed(line), difference, margin, _p_value(verdict.p_equivalence), _p_value(verdict.p), judged]


def _signed(value: float, digits: int) -> str:
    # Adding 0 turns a negative zero into a positive one.
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _p_value(p: float | None) -> str:
    return "–" if p is None else "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


class Finding(NamedTuple):
    """What our results say of a claim.

    Args:
        claim: what is claimed.
        ahead: whether the better line is ahead, or behind by less than the margin; None where runs are missing.
        p: of the test of the difference.
        difference: better minus worse, in the metric's unit.
    """

    claim: Claim
    ahead: bool | None
    p: float | None = None
    difference: float = 0.0

    @property
    def significant(self) -> bool:
        """Whether chance is an unlikely explanation."""
        return self.p is not None and self.p < LEVEL

    @property
    def words(self) -> str:
        """The finding, for the reader: a difference that chance explains is a tie, whichever is ahead."""
        if self.ahead is None:
            return MISSING
        if self.significant:
            return "holds" if self.ahead else "reversed"
        return "tie" if self.claim.margin is None else "not shown"


def check_claims(study: Study, results: Sequence[Result]) -> list[Finding]:
    """Whether the lines that should be ahead are, in the means or, for a robust claim, in the medians."""
    found = [_check_claim(claim, results) for claim in study.claims]
    for table in dict.fromkeys(claim.table for claim in study.claims if study.holm):
        own = [place for place, finding in enumerate(found) if finding.claim.table == table]
        for place, p in zip(own, statistics.holm([found[place].p for place in own]), strict=True):
            found[place] = found[place]._replace(p=p)
    return found


def _check_claim(claim: Claim, results: Sequence[Result]) -> Finding:
    runs = [line.by_seed(results) for line in (claim.better, claim.worse)]
    if claim.paired:
        runs = [{seed: run[seed] for seed in sorted(runs[0].keys() & runs[1].keys())} for run in runs]
    better, worse = (list(run.values()) for run in runs)
    if not better or not worse:
        return Finding(claim, None)
    centre, higher = median if claim.robust else fmean, claim.better.metric.higher_is_better is True
    difference, margin = centre(better) - centre(worse), claim.margin or 0.0
    ahead = difference > -margin if higher else difference < margin
    if claim.margin is not None:
        p = statistics.non_inferiority(better, worse, margin, higher_is_better=higher, by_fold=claim.paired)
    elif claim.paired:
        p = statistics.paired(better, worse)
    else:
        p = statistics.welch(statistics.summarise(better), statistics.summarise(worse))
    return Finding(claim, ahead, p, difference)


def view_claims(study: Study, results: Sequence[Result]) -> TableView:
    """A row for each claim, or for all claims of one table and place."""
    rows: list[list[Cell | str]] = []
    claims, findings = study.claims, check_claims(study, results)
    as_grid = any(claim.table for claim in claims)
    for finding in () if as_grid else findings:
        claim, metric = finding.claim, finding.claim.better.metric
        (row, ahead), (other, behind) = claim.better.heading, claim.worse.heading
        papers = [line.paper.summary.mean for line in (claim.better, claim.worse) if line.paper]
        published = _quiet(_signed(papers[0] - papers[1], metric.digits) if len(papers) == 2 else "–")
        order = "ahead of" if claim.margin is None else f"at most {claim.margin:g} worse than"
        rows.append([
            row if row == other else f"{row} / {other}",
            f"{ahead} {order} {behind}{'' if claim.claimed else ' (not a claim of the paper)'}", metric.label,
            "" if finding.ahead is None else _signed(finding.difference, metric.digits),
            *[published] * study.from_paper, _p_value(finding.p),
            Cell(finding.words, tone={"holds": "good", "reversed": "bad"}.get(finding.words, "quiet")),
        ])  # fmt: skip
    elsewhere = dict.fromkeys(claim.better.heading[0] for claim in claims if not claim.comparable)
    notes = {
        f"{', '.join(elsewhere)}: not the paper’s data; that its order holds here, or does not, says little about it.":
            bool(elsewhere),
        "The order is that of the medians; p is Welch’s, which compares means.": any(c.robust for c in claims),
        "p is of the paired t-test, on the runs that share a fold or a classifier.": any(c.paired for c in claims),
        "Against a margin, p is one-sided.": any(c.margin is not None for c in claims),
        "p is corrected for the number of claims, by Holm’s method.": study.holm,
    }  # fmt: skip
    published_too = ["the paper’s"] * study.from_paper
    header = ["where", "claim", "measure", "difference, ours", *published_too, "p", "in ours"]
    if as_grid:
        header, rows = _grid_of_claims(findings)
    title = "The order that the paper claims" if study.from_paper else "The order that is claimed"
    return TableView(title, header, rows, *(note for note, applies in notes.items() if applies))


def _grid_of_claims(findings: Sequence[Finding]) -> tuple[list[str], list[list[Cell | str]]]:
    """Header and rows: for each table and place the difference to each of the others, and p; bold where significant."""
    others = list(dict.fromkeys(finding.claim.worse.heading[1] for finding in findings))
    places: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        key = finding.claim.table, finding.claim.better.heading[0]
        places.setdefault(key, {})[finding.claim.worse.heading[1]] = finding
    rows: list[list[Cell | str]] = []
    for (table, place), found in places.items():
        cells = {}
        for other, f in found.items():
            text = f"{_signed(f.difference, f.claim.better.metric.digits)} ({_p_value(f.p)})"
            tone = {None: "quiet", True: "", False: "bad"}[f.ahead]
            cells[other] = Cell(MISSING if f.ahead is None else text, bool(f.ahead) and f.significant, tone)
        ahead, sure = {f.ahead for f in found.values()}, all(cell.strong for cell in cells.values())
        word = MISSING if None in ahead else "significantly" if sure else "no" if False in ahead else "yes"
        rows.append([table, place, *(cells.get(other, "") for other in others), Cell(word, sure)])
    return ["claim", "where", *others, "all"], rows


def view_search(search: Search, results: Sequence[Result]) -> TableView:
    """For each data set, what validation chooses and what the paper chose."""

    def listed(values: Iterable[float]) -> str:
        return ", ".join(f"{value:g}" for value in values)

    rows = []
    for data, published in search.published.items():
        trials = search.trials(data, results)
        chosen = [search.best(data, metric, results) for metric in search.metrics]
        best = ["all alike" if len(c) == len(trials) > 1 else listed(c) or _quiet(MISSING) for c in chosen]
        runs = len({r.seed for own in trials.values() for r in own})
        rows.append([data, *best, _quiet(f"{published:g}"), listed(trials), str(runs)])
    header = ["data", *(f"best {m.label}" for m in search.metrics), "the paper’s", "tried", "runs of each"]
    notes = [f"`pstn reproduce {search.experiment}` runs what is missing."] * bool(search.missing(results))
    return TableView(f"{search.name}, chosen on validation data", header, rows, *notes)
