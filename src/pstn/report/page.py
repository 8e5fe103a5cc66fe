"""The report: one HTML page that holds everything, one Markdown page, and the figures as PNG and SVG.

Needs matplotlib, jinja2 and scipy: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pstn.files import inside, write_atomically
from pstn.report import figures, tables
from pstn.report.results import Result, grouped, read_results
from pstn.report.statistics import Verdict
from pstn.report.tables import Cell, FigureSpec, Study, TableView

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

_BEGIN = "<!-- measured: written by `pstn report --docs`, not by hand -->"
_END = "<!-- measured: end -->"
# An underscore within a word, and < and & that start no tag and no character reference, mean nothing.
_SPECIAL = re.compile(r"<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|[\\`*\[\]|~{$]|(?<![^\W_])_|_(?![^\W_])")


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


@dataclass(frozen=True)
class Section:
    """What the templates write of one study.

    Args:
        study: the experiment.
        results: its results.
        searched: those of its search.
        notes: what the reader must know beforehand.
        figures: its figures and what they show.
    """

    study: Study
    results: list[Result]
    searched: list[Result]
    notes: list[str]
    figures: list[tuple[FigureSpec, Figure]]

    @property
    def tables(self) -> list[TableView]:
        """All of its tables: the numbers, what a search chose, what is claimed."""
        study, views = self.study, list[TableView]()
        if self.results:
            views += [view for table in study.tables for view in tables.view_table(table, self.results, study)]
        if study.search and (self.results or self.searched):
            views.append(tables.view_search(study.search, self.searched))
        if self.results and study.claims:
            views.append(tables.view_claims(study, self.results))
        return views

    @property
    def runs(self) -> tuple[int, int]:
        """How many of the runs that its tables want are there, and how many there should be."""
        found, cells = grouped(self.results, lambda r: (r.model, r.data, r.variant)), self.study.cells
        done = [min(self.study.seeds, len({r.seed for r in found.get(cell, ())})) for cell in cells]
        return sum(done), self.study.seeds * len(cells)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The P-STN's numbers that may be tested against published ones, by name, and what the test says."""
        found = {}
        for table in self.study.tables:
            for line in (line for line in table.lines if line.model == "P-STN" and not line.is_mean):
                verdict, reason = table.judge(line, self.results)
                if verdict and not reason:
                    basis = "" if verdict.margin is not None else " (against our own spread)"
                    found[f"{line.heading[1]}, {line.heading[0]}, {line.metric.label}{basis}"] = verdict
        return found

    @property
    def outcome(self) -> tuple[list[str], list[str], str]:
        """Numbers worse than the paper's, claims that are reversed, and what became of all claims, in words."""
        worse = [name for name, verdict in self.verdicts.items() if verdict.kind == "worse"]
        found = [f for f in tables.check_claims(self.study, self.results) if f.claim.claimed and f.ahead is not None]
        lines = [(f.claim.better, f.claim.worse) for f in found if f.words == "reversed"]
        lost = [f"{a.heading[1]} ahead of {b.heading[1]}, {a.heading[0]}, {a.metric.label}" for a, b in lines]
        return worse, lost, _tally(f.words for f in found)

    @property
    def summary(self) -> list[str]:
        """The study in one line for the terminal, and one more for each thing that went the wrong way."""
        worse, lost, claims = self.outcome
        claims = f", claimed orders: {claims}" if claims else ""
        return [
            f"{self.study.name:16} {'{} of {}'.format(*self.runs)} runs{claims}",
            *(f"{'':16} worse than the paper: {what}" for what in worse),
            *(f"{'':16} reversed: {what}" for what in lost),
        ]

    @property
    def departures(self) -> list[str]:
        """Each departure from the paper once; with the cells it is true of where it is not all."""
        sentences = dict.fromkeys(sentence for r in self.results for sentence in r.departures)
        return [s + _scope([r for r in self.results if s in r.departures], self.results) for s in sentences]

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Where the numbers come from: seeds, time, machines, commits, versions."""
        results, search = [*self.results, *self.searched], bool(self.searched)
        # Each holds its share of the training that gave it.
        spent, searched = (duration(sum(r.seconds for r in own)) for own in (self.results, self.searched))
        versions = {f"{name} {version}" for r in results for name, version in r.versions.items()}
        rows = [
            ("cells", f"{len(self.results)}{f', and {len(self.searched)} of the search' * search}"),
            ("seeds", ", ".join(map(str, sorted({r.seed for r in results})))),
            ("time, all cells", f"{spent}{f', and {searched} for the search' * search}"),
            ("machines", _counted(r.machine for r in results)),
            ("commits", _counted(r.commit for r in results)),
            ("versions", ", ".join(sorted(versions))),
        ]
        return rows if results else []


def _tally(words: Iterable[str]) -> str:
    """How many of each, the most frequent first: "9 hold, 3 tie"."""
    plural = {"holds": "hold", "agrees": "agree"}
    return ", ".join(f"{n} {word if n == 1 else plural.get(word, word)}" for word, n in Counter(words).most_common())


def _counted(names: Iterable[str]) -> str:
    """The different names; with the number of cells where they differ."""
    counts = Counter(names)
    return ", ".join(name if len(counts) == 1 else f"{name} ({n} cells)" for name, n in counts.most_common())


def _scope(cells: Sequence[Result], results: Sequence[Result]) -> str:
    """Which models and data these cells are of, in brackets: only what sets them apart from the others is named."""
    parts = ("model", "data", "variant", "seed")
    for names in ((), parts[:1], parts[1:2], parts[:2], parts[:3], parts):
        kinds = {tuple(getattr(r, name) for name in names) for r in cells}
        if sum(tuple(getattr(r, name) for name in names) in kinds for r in results) == len(cells):
            break
    found = {n: ", ".join(dict.fromkeys(str(getattr(r, n)) for r in cells if getattr(r, n) != "")) for n in names}
    seeds = f"seed {found['seed']}" if "seed" in found else ""
    words = [" on ".join(found[n] for n in parts[:2] if n in found), found.get("variant"), seeds]
    return f" ({', '.join(filter(None, words))})" if names else ""


def make_section(study: Study, results: Sequence[Result]) -> Section:
    """One study's section.

    Args:
        study: the experiment.
        results: of any experiments; the study takes its own.

    Raises:
        ValueError: the results do not hold what a figure shows, naming the experiment.
    """
    ranks = {cell: rank for rank, cell in enumerate(study.cells)}
    used, notes, search = [r for r in results if r.experiment == study.name], [], study.search
    # In the order of the tables, so that figures have it too.
    used.sort(key=lambda r: ranks.get((r.model, r.data, r.variant), len(ranks)))
    searched = [r for r in results if search and r.experiment == search.experiment]
    if not used:
        notes.append(f"No results yet: all {study.seeds * len(ranks)} runs are missing. `{study.command}` makes them.")
    drawn = [(spec, _draw(spec, used, study)) for spec in study.figures]
    if search:
        shown = "" if search.shown == math.inf else f" up to {search.shown:g}"
        label = search.metrics[0].label
        text = f"{label[0].upper()}{label[1:]} by {search.name}{shown}: each run, and the median as a line; "
        text += "filled: the best mean, ring: the paper’s choice."
        spec = FigureSpec(search.experiment, text, partial(figures.draw_search, search=search))
        drawn.append((spec, _draw(spec, searched, study)))
    return Section(study, used, searched, notes, [(spec, figure) for spec, figure in drawn if figure])


def _draw(spec: FigureSpec, results: Sequence[Result], study: Study) -> Figure | None:
    try:
        with figures.figure_style():
            return spec.draw(results)
    except figures.NothingToDraw:
        return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the figure {spec.name} of {study.name} cannot be drawn from its results: {error}") from error


def _summary_table(sections: Sequence[Section]) -> TableView:
    """One row for each study."""
    rows = []
    for section in sections:
        worse, lost, claims = section.outcome
        published = any(line.paper for table in section.study.tables for line in table.lines)
        untested = "not tested" if section.runs[0] and published else "–"
        judged = "; ".join([_tally(verdict.kind for verdict in section.verdicts.values()) or untested, *worse])
        cells = Cell(judged, tone="bad" * bool(worse)), Cell(claims or "–", tone="bad" * bool(lost))
        rows.append([Cell(section.study.title), Cell("{} of {}".format(*section.runs)), *cells])
    header = ["experiment", "runs", "P-STN’s numbers beside the paper’s own", "claimed orders, in ours"]
    return TableView("All experiments", header, rows)


def _costs_table(sections: Sequence[Section]) -> TableView:
    """What each study took, with nothing counted twice, and what of it is still missing; the searches below."""
    results = [r for s in sections for r in (*s.results, *s.searched)]
    main = Counter(r.machine for r in results).most_common(1)[0][0] if results else ""

    def spent(own: Iterable[Result]) -> str:
        """The time on the machine that ran most; that on others beside it."""
        times = {main: 0.0}
        for r in own:
            times[r.machine] = times.get(r.machine, 0.0) + r.seconds
        elsewhere = [f"{duration(seconds)} on {machine}" for machine, seconds in times.items() if machine != main]
        return ", and ".join([duration(times[main]), *elsewhere])

    def row(title: str, runs: str, own: Sequence[Result], missing: str) -> list[Cell | str]:
        return [title, runs, spent(own), missing or Cell("none", tone="quiet")] if own else [title, runs, "–", "all"]

    rows = []
    for section in sections:
        done, all_ = section.runs
        missing = f"{all_ - done} runs" if all_ > done else ""
        rows.append(row(section.study.title, f"{done} of {all_}", section.results, missing))
    found, wanted = (sum(counts) for counts in zip(*(section.runs for section in sections), strict=True))
    rows.append(["together", f"{found} of {wanted}", spent(r for s in sections for r in s.results), ""])
    for s in sections:
        if search := s.study.search:
            title, missing = f"{s.study.title}: the search for {search.name}", "; ".join(search.missing(s.searched))
            rows.append(row(title, str(len(s.searched)), s.searched, missing))
    machines = [machine for machine, _ in Counter(r.machine for r in results).most_common()]
    note = (
        f"Measured on: {', '.join(machines) or 'nothing yet'}. The time is that of training and testing what is there; "
        "reading data and starting up are not in it, and what is missing was not guessed. Models that train together "
        "share their time, and a training that fills several cells is counted once. Searches are on top."
    )
    return TableView("What it took", ["experiment", "runs", "wall time", "not run yet"], rows, note)


class Report(NamedTuple):
    """What a report found, and the files it wrote."""

    sections: list[Section]
    files: list[Path]


def write_report(
    results: str | Path, studies: Sequence[Study], out: str | Path, *, title: str, introduction: str
) -> Report:
    """Write `report.html`, `report.md` and `figures/` from the result files of a folder; quick runs are left out.

    Args:
        results: folder of result files.
        studies: what to show, in this order.
        out: folder to write to; made if need be.
        title: of the page.
        introduction: what is reproduced, in sentences.

    Raises:
        ValueError: when there are no results of whole runs, or a file cannot be read.
    """
    found = _read(results)
    if not found:
        raise ValueError(f"results must be a folder of whole runs, got none in {results}: see `pstn reproduce`")
    # A missing package is reported before figures are drawn.
    html, markdown = make_templates(), make_templates(markdown=True)
    sections = [make_section(study, found) for study in studies]
    files = _save_figures(sections, Path(out) / "figures", ("png", "svg"))
    known = {name for s in studies for name in (s.name, s.search and s.search.experiment)}
    page = {
        "title": title, "introduction": introduction, "sections": sections, "summary": _summary_table(sections),
        "costs": _costs_table(sections), "unknown": Counter(r.experiment for r in found if r.experiment not in known),
    }  # fmt: skip
    start = "data:image/svg+xml;base64,"
    embedded = {p.stem: start + base64.b64encode(p.read_bytes()).decode() for p in files if p.suffix == ".svg"}
    links = {path.stem: f"figures/{path.name}" for path in files if path.suffix == ".png"}
    files += [
        _write(Path(out) / "report.html", html.get_template("report.html").render(page, images=embedded)),
        _write(Path(out) / "report.md", tidy(markdown.get_template("report.md").render(page, images=links))),
    ]
    return Report(sections, files)


def update_pages(results: str | Path, studies: Sequence[Study], pages: str | Path) -> Report:
    """Write the measured part of each experiment's page, between two marks; all else on the pages stays as it is.

    A page that is missing is made.

    Args:
        results: folder of result files; it may be empty, and the pages then say so.
        studies: an experiment each.
        pages: folder with a page for each study, called after its experiment, and an `overview.md` of the paper's.

    Raises:
        ValueError: when a page lacks the marks.
    """
    sections, texts = measured(results, studies)
    files = _save_figures(sections, Path(pages) / "images", ("png",))
    titles = {study.name: study.title for study in studies} | {"overview": "All experiments"}
    for name, text in texts.items():
        path = Path(pages) / f"{name}.md"
        page = path.read_text(encoding="utf-8") if path.exists() else f"# {titles[name]}\n\n{_BEGIN}\n{_END}\n"
        before, begin, rest = page.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        if not begin or not end:
            raise ValueError(f"{path} has no place for what was measured: add the lines\n{_BEGIN}\n{_END}")
        files.append(_write(path, f"{before}{_BEGIN}\n\n{text}\n{_END}{after}"))
    return Report(sections, files)


def _read(folder: str | Path) -> list[Result]:
    """The results of a folder but those of quick runs: what they measure is nothing to publish."""
    return [result for result in read_results(folder) if not result.quick]


def measured(results: str | Path, studies: Sequence[Study]) -> tuple[list[Section], dict[str, str]]:
    """The sections of all but quick runs, and what `update_pages` writes on each page, by the page's name."""
    found = _read(results)
    sections, templates = [make_section(study, found) for study in studies], make_templates(markdown=True)
    texts = {}
    for section in sections:
        images = {spec.name: f"images/{spec.name}.png" for spec, _ in section.figures}
        texts[section.study.name] = tidy(templates.get_template("measured.md").render(section=section, images=images))
    if paper := [section for section in sections if section.study.from_paper]:
        overview = {"summary": _summary_table(paper), "costs": _costs_table(paper)}
        texts["overview"] = tidy(templates.get_template("summary.md").render(overview))
    return sections, texts


def tidy(markdown: str) -> str:
    r"""One blank line at most, none at the ends: templates leave more.

    Example:
        >>> tidy("a\n\n\n\nb\n\n")
        'a\n\nb\n'
    """
    return re.sub(r"\n{3,}", "\n\n", markdown).strip() + "\n"


def _save_figures(sections: Sequence[Section], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Save all figures: the same bytes for the same figure."""
    files = []
    inside(folder.parent, folder.name)
    for section in sections:
        for spec, figure in section.figures:
            for kind in formats:
                files.append(folder / f"{spec.name}.{kind}")
                unsigned: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
                with figures.figure_style(), write_atomically(files[-1]) as draft:
                    figure.savefig(draft, format=kind, dpi=150, metadata=unsigned)
                figure.set_layout_engine("none")  # it is laid out now; the next format need not do it again
    return files


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
    escapes = {"<": "&lt;", "&": "&amp;"}
    parts[::2] = [_SPECIAL.sub(lambda found: escapes.get(found[0], "\\" + found[0]), part) for part in parts[::2]]
    parts[1::2] = [code.replace("|", "\\|") for code in parts[1::2]]
    # A heading, a quotation, a list or a rule starts at the start of a line; the number of a list ends before its dot.
    line = re.sub(r"^(?=[#>]|[+=-](?:[ =-]|$))", r"\\", "".join(parts))
    return re.sub(r"^(\d+)(?=[.)](?: |$))", r"\1\\", line)


def make_templates(*, markdown: bool = False) -> Environment:
    """The templates of HTML or of Markdown; whatever they are given is text, and is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        """Text with its `quoted` commands as code, for HTML."""
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    def escaped(value: Any) -> Any:
        return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))

    environment = Environment(
        loader=PackageLoader("pstn.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["code"] = code
    return environment.overlay(finalize=escaped) if markdown else environment
