"""The page of speeds: what `pstn bench` measured and what benchmarks committed, each figure beside its peers.

Also the history that the figures are kept in, one JSON object per line, and what became slower since its last entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pstn.files import parse_json, read_json, read_text_file, write_atomically
from pstn.limits import JSON_BYTES
from pstn.report import figures
from pstn.report.page import make_templates, tidy
from pstn.report.tables import Cell, TableView

# What counts as a regression: this many times as slow as before.
_WORSE = 1.1
# Where a clone of the repository says which of its measurements belong on the page, with which peers.
COMMITTED = Path("benchmarks/page.json")


class Row(NamedTuple):
    """One piece of work, what it takes here and what its peers take."""

    what: str
    unit: str
    values: dict[str, float]
    """By name; that of this package is empty."""

    def times(self, peer: str) -> float | None:
        """How many times as long the peer takes; None where this package was not measured."""
        if (own := self.values.get("")) is None:
            return None
        return _times_as_long(self.unit, own, self.values[peer])


class Section(NamedTuple):
    """Rows of one machine or file, and where they are from."""

    title: str
    source: str
    rows: list[Row]

    @property
    def table(self) -> TableView:
        """A row for each peer, or one for work without any."""
        rows: list[list[Cell | str]] = []
        for row in self.rows:
            own = f"{_short(row.values[''])} {row.unit}" if "" in row.values else "–"
            for peer in [name for name in row.values if name] or [""]:
                times, figure = row.times(peer) if peer else None, f"{_short(row.values[peer])} {row.unit}"
                last = [peer, figure, "–" if times is None else f"{times:.3g} times"] if peer else ["–", "–", "–"]
                rows.append([row.what, Cell(own, strong=True), *last])
        return TableView(self.title, ["work", "pstn", "peer", "its figure", "as long as pstn"], rows, self.source)


def _short(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times_as_long(unit: str, before: float, after: float) -> float:
    return before / after if unit.endswith("/s") else after / before


def read_history(path: Path) -> list[dict[str, Any]]:
    """The records of a history, oldest first; none where there is no such file."""
    if not path.exists():
        return []
    return [parse_json(line, path) for line in read_text_file(path, JSON_BYTES).splitlines() if line.strip()]


def add_to_history(path: Path, record: Mapping[str, Any]) -> None:
    """Write the history with one more record at its end."""
    with write_atomically(path) as draft:
        draft.write_text("".join(json.dumps(each) + "\n" for each in [*read_history(path), record]), encoding="utf-8")


def latest(history: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The last record of each machine and device."""
    return {(record["machine"], record["device"]): record for record in history}


def find_regressions(record: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> list[str]:
    """What takes at least 10% longer than in the last entry of the same machine and device, a sentence each.

    Args:
        record: figures of now.
        history: earlier records.
    """
    before = latest(history).get((record["machine"], record["device"]))
    known = {(f["part"], f["what"], f["unit"]): f["value"] for f in (before or {}).get("figures", ()) if not f["peer"]}
    found = []
    for figure in (f for f in record["figures"] if not f["peer"]):
        was = known.get((figure["part"], figure["what"], figure["unit"]))
        if before and was and (times := _times_as_long(figure["unit"], was, figure["value"])) >= _WORSE:
            change = f"{_short(was)} -> {_short(figure['value'])} {figure['unit']}, {times:.2f} times as long"
            found.append(f"{figure['part']}: {figure['what']}: {change} as at {before['commit']} ({before['date']})")
    return found


def measured_section(record: Mapping[str, Any]) -> Section:
    """The figures of one record of `pstn bench`."""
    rows: dict[tuple[str, str], Row] = {}
    for figure in record["figures"]:
        row = rows.setdefault((figure["what"], figure["unit"]), Row(figure["what"], figure["unit"], {}))
        row.values[figure["peer"]] = figure["value"]
    absent = "".join(f" {name} does not import there." for name in record["absent"])
    title = f"`pstn bench` on {record['device']}: {record['machine']}"
    return Section(title, f"{_origin(record)}; load {record['load']}.{absent}", list(rows.values()))


def committed_sections(path: Path) -> list[Section]:
    """The measurements that a file such as `benchmarks/page.json` lists.

    It holds sections, each with a title and rows [what, unit, {name: number}]; a number is FILE:KEY/KEY/... of a result
    file in the folder `results` beside it, of several numbers the median. Whatever it names must be there.
    """
    sections, used = [], dict[str, Any]()

    def number(reference: str) -> float:
        name, _, keys = reference.partition(":")
        if name not in used:
            used[name] = read_json(path.parent / "results" / name)
        found = reduce(lambda held, key: held[int(key) if key.isdigit() else key], keys.split("/"), used[name])
        return median(found) if isinstance(found, list) else float(found)

    for section in read_json(path):
        used.clear()
        rows = [Row(what, unit, {n: number(at) for n, at in values.items()}) for what, unit, values in section["rows"]]
        source = "; ".join(f"`benchmarks/results/{name}`: {_origin(record)}" for name, record in used.items())
        sections.append(Section(section["title"], f"{source}.", rows))
    return sections


def sections_of(records: Iterable[Mapping[str, Any]], committed: Path) -> list[Section]:
    """What the page shows: the last record of each machine, and the committed measurements where they are at hand."""
    listed = committed_sections(committed) if committed.exists() else []
    return [*(measured_section(record) for record in latest(records).values()), *listed]


def _origin(record: Mapping[str, Any]) -> str:
    """When, where and with what something was measured."""
    date = record["date"] if "date" in record else f"committed {record['committed']}"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return f"{date}, {record['machine']}, commit {record['commit'][:12]}, {versions}"


def draw_sections(sections: Sequence[Section]) -> figures.Figure:
    """How many times as long as this package each peer takes, a panel for each section with peers."""
    bars = [(s, [(r, peer) for r in s.rows for peer in r.values if peer and "" in r.values]) for s in sections]
    bars = [(section, pairs) for section, pairs in bars if pairs]
    heights = [len(pairs) + 1.5 for _, pairs in bars]
    figure = figures.new_figure(9.5, 0.21 * sum(heights) + 0.8)
    panels = figure.subplots(len(bars), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (section, pairs) in zip(panels, bars, strict=True):
        times = [row.times(peer) or 1.0 for row, peer in pairs]
        colours = ["#0072B2" if value >= 1 else "#D55E00" for value in times]
        axes.barh(range(len(pairs)), [value - 1 for value in times], left=1, color=colours, height=0.7)
        for place, ((row, peer), value) in enumerate(zip(pairs, times, strict=True)):
            text = f"{_short(value)}× ({_short(row.values[peer])} and {_short(row.values[''])} {row.unit})"
            axes.annotate(text, (max(value, 1), place), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(range(len(pairs)), [f"{row.what}: {peer}" for row, peer in pairs], fontsize=7)
        axes.set(xscale="log", ylim=(len(pairs) - 0.4, -0.6))
        axes.set_title(section.title.replace("`", ""), loc="left")
        axes.axvline(1, color=figures.INK, linewidth=0.8)
    panels[-1].set_xlim(right=60 * panels[-1].get_xlim()[1])  # room for the numbers
    panels[-1].xaxis.set_major_formatter("{x:g}")
    panels[-1].set_xlabel("times as long as pstn: right of 1 the peer is slower, left of it faster")
    return figure


def speed_page(sections: Sequence[Section], picture: str) -> str:
    """The page in Markdown, with the picture at this address."""
    template = make_templates(markdown=True).get_template("speed.md")
    return tidy(template.render(sections=sections, picture=picture))


def write_speed_page(path: Path, sections: Sequence[Section]) -> list[Path]:
    """Write the page, and its picture into the folder `images` beside it.

    Args:
        path: of the page, Markdown.
        sections: what is on it, at least one with a peer.

    Returns:
        The paths of both.
    """
    picture = path.parent / "images" / f"{path.stem}.png"
    with figures.figure_style(), write_atomically(picture) as draft:
        draw_sections(sections).savefig(draft, format="png", dpi=130, metadata={"Software": None})
    with write_atomically(path) as draft:
        draft.write_text(speed_page(sections, f"images/{picture.name}"), encoding="utf-8")
    return [path, picture]
