"""The report: one HTML page that holds everything, one Markdown page, and the figures as PNG and SVG.

Needs matplotlib and jinja2: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.files import inside, write_atomically
from pstn.report.figures import applied, draw_search
from pstn.report.results import Result, read_results
from pstn.report.statistics import Verdict, judge
from pstn.report.tables import (
    Cell,
    CellKey,
    Drawing,
    Line,
    Search,
    Study,
    TableView,
    check_order,
    summary_of,
    tables_of,
    unsearched,
    view_orders,
    view_search,
    view_table,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

__all__ = [
    "Outcome",
    "Report",
    "Section",
    "costs_table",
    "duration",
    "escape_markdown",
    "make_section",
    "measured",
    "missing_cells",
    "outcome_in_words",
    "update_pages",
    "wall_time",
    "write_report",
]


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


def outcome_in_words(report: Report) -> list[str]:
    """One line for each experiment, and one more for each thing that went the wrong way."""
    said = []
    for section in report.sections:
        outcome, name = section.outcome, section.study.experiment
        if section.quick:
            said.append(f"{name:16} quick runs only: not the paper's setting, not compared with it")
            continue
        orders = f", {outcome.held} of {outcome.claimed} claimed orders hold, {outcome.sure} significantly"
        said.append(f"{name:16} {outcome.found} of {outcome.wanted} runs{orders if outcome.claimed else ''}")
        said += [f"{'':16} significantly worse than the paper: {what}" for what in outcome.worse]
        said += [f"{'':16} does not hold: {what}" for what in outcome.reversed]
    return said


_FORMATS = ("png", "svg")
_BEGIN = "<!-- measured: written by `pstn report --docs`, not by hand -->"
_END = "<!-- measured: end -->"
# An underscore within a word, and < and & that start no tag and no character reference, mean nothing.
_SPECIAL = re.compile(r"<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
_READING = (
    "Ours are mean ± standard deviation over seeds or folds (n − 1 in the denominator). The paper does not say which "
    "denominator it took; its ± is used as it stands, with five runs.",
    "Bold: significantly better than the runner-up under a two-sample t-test (Welch’s, p < 0.05), as in the paper; "
    "models that share the first place are all bold, and where all of them share it, none is. The paper’s bold is the "
    "paper’s own.",
    "p, beside a published spread: Welch’s t-test on means, standard deviations and runs. Where the paper gives no "
    "spread, its number is taken for one more run with our spread, and the verdict says so: that test knows nothing of "
    "how far the paper’s runs lay apart.",
    "“Within the paper’s spread”: at most one published standard deviation away.",
    "“Missing” is a cell that was not run, never a zero.",
)


@dataclass(frozen=True)
class Report:
    """What a report found, and the files it wrote."""

    sections: list[Section]
    files: list[Path]


def write_report(
    results: str | Path, studies: Sequence[Study], out: str | Path, *, title: str, introduction: str
) -> Report:
    """Write `report.html`, `report.md` and `figures/` from the result files of a folder.

    Args:
        results: folder of result files.
        studies: what to show, in this order.
        out: folder to write to; made if need be.
        title: of the page.
        introduction: what is reproduced, in sentences.

    Raises:
        ValueError: when there are no result files, or one cannot be read.
    """
    found = read_results(results)
    if not found:
        raise ValueError(
            f"no result files in {results}. `pstn reproduce NAME` makes them; a quick run's are in its folder quick"
        )
    environment = _templates()  # what is missing is missed before figures are drawn
    sections = [make_section(study, found) for study in studies]
    target = Path(out)
    files = _save_figures(sections, target / "figures", _FORMATS)
    page = {
        "title": title,
        "introduction": introduction,
        "reading": _READING,
        "sections": sections,
        "summary": summary_table(sections),
        "costs": costs_table(sections),
        "notes": _strangers(found, studies),
        "quick": any(section.quick for section in sections),
    }
    embedded = {path.stem: _data_uri(path) for path in files if path.suffix == ".svg"}
    files.append(_write(target / "report.html", environment.get_template("report.html").render(page, images=embedded)))
    links = {path.stem: f"figures/{path.name}" for path in files if path.suffix == ".png"}
    files.append(
        _write(target / "report.md", _tidy(_markdown_templates().get_template("report.md").render(page, images=links)))
    )
    return Report(sections, files)


def update_pages(results: str | Path, studies: Sequence[Study], pages: str | Path) -> Report:
    """Write the measured part of each experiment's page, between two marks; all else on the pages stays as it is.

    Quick runs are left out: what they measure is nothing to publish. A page that is missing is made.

    Args:
        results: folder of result files; it may be empty, and the pages then say so.
        studies: an experiment each.
        pages: folder with a page for each study, called after its experiment, and an `overview.md`.
    """
    target = Path(pages)
    sections, texts = measured(results, studies)
    files = _save_figures(sections, target / "images", ("png",))
    titles = {study.experiment: study.title for study in studies} | {"overview": "All experiments"}
    files += [_write_block(target / f"{name}.md", titles[name], text) for name, text in texts.items()]
    return Report(sections, files)


def measured(results: str | Path, studies: Sequence[Study]) -> tuple[list[Section], dict[str, str]]:
    """The sections of all but quick runs, and what `update_pages` writes on each page, by the page's name."""
    found = [r for r in read_results(results) if not r.quick]
    sections = [make_section(study, found) for study in studies]
    page = _markdown_templates().get_template("measured.md")
    texts = {
        section.study.experiment: _tidy(
            page.render(section=section, images={d.name: f"images/{d.name}.png" for d, _ in section.figures})
        )
        for section in sections
    }
    overview = {"summary": summary_table(sections), "costs": costs_table(sections)}
    texts["overview"] = _tidy(_markdown_templates().get_template("summary.md").render(overview))
    return sections, texts


def _write_block(path: Path, title: str, text: str) -> Path:
    """Put `text` between the marks of a page."""
    page = path.read_text(encoding="utf-8") if path.exists() else f"# {title}\n\n{_BEGIN}\n{_END}\n"
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for what was measured: add the lines\n{_BEGIN}\n{_END}")
    return _write(path, f"{before}{_BEGIN}\n\n{text}\n{_END}{after}")


def _tidy(markdown: str) -> str:
    """One blank line at most, none at the ends: templates leave more."""
    return re.sub(r"\n{3,}", "\n\n", markdown).strip() + "\n"


def _strangers(results: Sequence[Result], studies: Sequence[Study]) -> list[str]:
    """What the folder holds of experiments that the report knows nothing of."""
    known = {s.experiment for s in studies} | {s.search.experiment for s in studies if s.search}
    counts = Counter(r.experiment for r in results if r.experiment not in known)
    return [
        f"{n} results of {name} are not shown: the report does not know this experiment." for name, n in counts.items()
    ]


def _save_figures(sections: Sequence[Section], folder: Path, formats: Sequence[str]) -> list[Path]:
    files = []
    inside(folder.parent, folder.name)
    for section in sections:
        for drawing, figure in section.figures:
            if section.quick:
                figure.suptitle("Quick run: not the paper’s setting", fontsize=9, color="0.35")
            for kind in formats:
                files.append(folder / f"{drawing.name}.{kind}")
                _save(figure, files[-1])
    return files


def _save(figure: Figure, path: Path) -> None:
    """Save a figure: the same bytes for the same figure."""
    kind = path.suffix.removeprefix(".")
    unsigned: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    with applied(), write_atomically(path) as draft:
        figure.savefig(draft, format=kind, dpi=150, metadata=unsigned)
        figure.set_layout_engine("none")  # it is laid out now; the next format need not do it again


def _data_uri(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _write(path: Path, text: str) -> Path:
    with write_atomically(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def escape_markdown(text: str) -> str:
    r"""Text as one line of Markdown that shows it as it is; `quoted` commands stay code.

    Result files may come from anybody: no HTML, link, heading, fence or table cell of theirs may take effect.

    Example:
        >>> print(escape_markdown("<b>[x](javascript:y)</b> `a <b>`"))
        &lt;b>\[x\](javascript:y)&lt;/b> `a <b>`
    """
    line = re.sub(r"[\0-\x20\x7f-\x9f\u2028\u2029]+", " ", text).strip()
    parts = re.split(r"(?<!`)(`[^`]+`)(?!`)", line)
    parts[::2] = [_SPECIAL.sub(_escaped, part) for part in parts[::2]]
    parts[1::2] = [code.replace("|", "\\|") for code in parts[1::2]]
    # What starts a heading, a quotation, a list or a rule does so at the start of a line.
    return re.sub(r"^([#>]|[+=-](?=[ =-]|$)|\d+(?=[.)]( |$)))", _escaped_start, "".join(parts))


def _escaped(found: re.Match[str]) -> str:
    return {"<": "&lt;", "&": "&amp;"}.get(found[0], "\\" + found[0])


def _escaped_start(found: re.Match[str]) -> str:
    return found[0] + "\\" if found[0].isdecimal() else "\\" + found[0]


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pstn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = _code
    return environment


def _markdown_templates() -> Environment:
    """Templates of Markdown: whatever they are given is text."""
    from markupsafe import Markup

    def escaped(value: Any) -> Any:
        return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))

    return _templates().overlay(finalize=escaped)


def _code(text: str) -> Any:
    """Text with its `quoted` commands as code, for HTML."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
