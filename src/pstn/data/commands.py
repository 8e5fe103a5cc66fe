"""The command line of the data sets: pstn data list | get | check | show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pstn.command_errors import echo, plain_errors
from pstn.data.check import check as check_path
from pstn.data.download import Progress as Report
from pstn.data.download import cache_folder, data_folder, expand, offline
from pstn.data.files import DataWarning
from pstn.data.images import contact_sheet
from pstn.data.registry import KNOWN, detect, find_known, load
from pstn.data.registry import get as get_set
from pstn.data.split import Splits
from pstn.text import printable

__all__ = ["app"]

app = typer.Typer(help="The data sets: what is known, fetch one, check a folder, look at one.", no_args_is_help=True)
_COLOURS = {
    "verified": "green",
    "readable": "default",
    "differs": "yellow",
    "damaged": "red",
    "skipped": "bright_black",
}


def _say(*pieces: str | tuple[str, str], stderr: bool = False) -> None:
    """Print text, some of it in colour; brackets in it are brackets, and lines are not broken."""
    plain = [printable(piece) if isinstance(piece, str) else piece for piece in pieces]
    Console(stderr=stderr).print(Text.assemble(*plain), soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)  # where it is no terminal, rich would leave an empty line there
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield report


_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list")
def list_sets(as_json: _Json = False) -> None:
    """List the data sets that are known by name, and where each one is.

    For example:  pstn data list --json
    """
    with plain_errors(DataWarning):
        if as_json:
            known = [{"name": k.name, "kind": k.kind, "what": k.what, "where": k.where()} for k in KNOWN.values()]
            echo(json.dumps(known))
            return
        rows = [(k.name, k.kind, k.what, k.where() or f"no; pstn data get {k.name}") for k in KNOWN.values()]
        if Console().is_terminal:
            table = Table(box=None, padding=(0, 2, 0, 0))
            for heading in ("name", "kind", "what", "here"):
                table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "kind"))
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            Console().print(table)
        else:
            echo("\n".join("\t".join(row) for row in rows))
        _say(f"\nlooked in $PSTN_DATA ({data_folder() or 'not set'}), then {cache_folder()}")
        _say("any other set of the UCR and UEA archives: pstn data get ucr:NAME")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name of `pstn data list`, or ucr:NAME.")], as_json: _Json = False
) -> None:
    """Fetch a data set into the cache, unless it is here already.

    For example:  pstn data get ucr:ECG200
    """
    with plain_errors(DataWarning):
        with _progress() as report:
            where = get_set(name, progress=report)
        if as_json:
            echo(json.dumps({"name": name, "where": where}))
        else:
            _say(f"{name} is in {where}")


@app.command("check")
def check(path: Annotated[Path, typer.Argument(help="A file or folder.")], as_json: _Json = False) -> None:
    """Verify every data file below PATH: checksums where they are on record, and that it can be read.

    For example:  pstn data check photos

    Text files (.csv, .txt) that are no tables of series are skipped, and named. The exit code is 1 where something is
    damaged. With --json there is one object a line.
    """
    tally: dict[str, int] = {}
    with plain_errors(DataWarning):
        for finding in check_path(path):
            tally[finding.status] = tally.get(finding.status, 0) + 1
            if as_json:
                echo(json.dumps({"path": str(finding.path), "status": finding.status, "note": finding.note}))
            else:
                _say((f"{finding.status:<9}", _COLOURS[finding.status]), f" {finding.path}: {finding.note}")
        if not tally.keys() - {"skipped"}:
            raise ValueError(f"{path} holds no file of a kind that pstn reads")
    if not as_json:
        _say(", ".join(f"{count} {status}" for status, count in tally.items()))
    if "damaged" in tally:
        raise typer.Exit(1)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name of `pstn data list`, ucr:NAME, a folder or a file.")],
    out: Annotated[Path | None, typer.Option(help="The PNG file to write; NAME.png where not given.")] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="How many examples.")] = 40,
    columns: Annotated[int, typer.Option(min=1, help="How many in a row.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the choice.")] = 0,
    kind: Annotated[str | None, typer.Option(help="Of an .npz file with three axes: image or series.")] = None,
    as_json: _Json = False,
) -> None:
    """Draw a contact sheet of a data set as a PNG file.

    For example:  pstn data show photos --out photos.png
    """
    with plain_errors(DataWarning):
        if part not in ("train", "validation", "test"):
            raise ValueError(f"part must be one of 'train', 'validation', 'test', got {part!r}")
        splits = _load(name, kind)
        data = getattr(splits, part)
        if data is None:
            raise ValueError(f"{name} has no {part} part: {splits.sizes()}")
        target = out or Path(f"{Path(name).name.replace(':', '-').split('.')[0]}.png")
        title = f"{Path(name).name}, {part}"
        written = contact_sheet(data, target, title=title, count=count, columns=columns, seed=seed)
        if as_json:
            echo(json.dumps({"written": str(written)}))
        else:
            _say(f"wrote {written}")


def _load(name: str, kind: str | None) -> Splits[Any]:
    """The data set to look at: fetched with a progress bar, and without large sources, which no sheet shows."""
    known = find_known(name)
    named = known is not None or name.startswith("ucr:")
    found = None if named else detect(expand(name))
    if kind is not None and found != "npz":
        raise ValueError(f"--kind is only for .npz files, got {name}")
    if named and not offline():
        with _progress() as report:
            get_set(name, progress=report)
    if found == "mtsd" or (known is not None and known.kind == "photos"):
        return load(name, source=None)
    return load(name) if kind is None else load(name, kind=kind)
