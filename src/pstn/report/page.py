"""The report: one HTML page that holds everything, one Markdown page, and the figures as PNG and SVG.

Needs matplotlib and jinja2: `pip install 'pstn[report]'`.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.files import inside, write_atomically
from pstn.report.costs import costs_table
from pstn.report.results import Result, read_results
from pstn.report.section import Section, make_section, summary_table
from pstn.report.study import Study
from pstn.report.style import applied

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

__all__ = ["Report", "escape_markdown", "measured", "update_pages", "write_report"]

_FORMATS = ("png", "svg")
_BEGIN = "<!-- measured: written by `pstn report --docs`, not by hand -->"
_END = "<!-- measured: end -->"
# An underscore within a word, and < and & that start no tag and no character reference, mean nothing.
_SPECIAL = re.compile(r"<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|[\\`*\[\]|~{$]|(?<![^\W_])_|_(?![^\W_])")
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
