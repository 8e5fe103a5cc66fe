"""The command line of the data sets: pstn data list | get | check | show."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pstn.data.check import check as check_path
from pstn.data.download import Progress as Report
from pstn.data.errors import DataWarning
from pstn.data.known import KNOWN
from pstn.data.places import cache_folder, data_folder
from pstn.data.registry import get as get_set
from pstn.data.registry import load
from pstn.data.sheet import contact_sheet

__all__ = ["app"]

app = typer.Typer(help="The data sets: what is known, fetch one, check a folder, look at one.", no_args_is_help=True)
_COLOURS = {"verified": "green", "readable": "default", "differs": "yellow", "damaged": "red"}


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What is wrong with data or with a name is one message and exit code 1, not a traceback; warnings are notes."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            yield
        for warning in caught:
            Console(stderr=True).print(f"[yellow]note:[/yellow] {escape(str(warning.message))}", soft_wrap=True)
    except (ValueError, TypeError, ImportError, OSError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _progress() -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield report


@app.command("list")
def list_sets() -> None:
    """List the data sets that are known by name, and where each one lies."""
    console = Console()
    table = Table("name", "kind", "what", "here", box=None, padding=(0, 2, 0, 0))
    for known in KNOWN.values():
        where = known.where()
        here = escape(where) if where else f"[dim]no; pstn data get {known.name}[/dim]"
        table.add_row(known.name, known.kind, known.what, here)
    console.print(table)
    folder = data_folder()
    console.print(f"\nlooked in $PSTN_DATA ({folder if folder else 'not set'}), then {cache_folder()}", soft_wrap=True)
    console.print("any other set of the UCR and UEA archives: pstn data get ucr:NAME")


@app.command("get")
def get(name: Annotated[str, typer.Argument(help="A name of `pstn data list`, or ucr:NAME.")]) -> None:
    """Fetch a data set into the cache, unless it is here already."""
    with _plain_errors():
        with _progress() as report:
            where = get_set(name, progress=report)
        Console().print(f"{name} is in {where}", soft_wrap=True, highlight=False)


@app.command("check")
def check(path: Annotated[Path, typer.Argument(help="A file or folder.")]) -> None:
    """Verify every data file below PATH: checksums where they are on record, and that it can be read.

    The exit code is 1 where something is damaged.
    """
    console = Console()
    tally: dict[str, int] = {}
    with _plain_errors():
        for finding in check_path(path):
            tally[finding.status] = tally.get(finding.status, 0) + 1
            colour = _COLOURS[finding.status]
            line = f"[{colour}]{finding.status:<9}[/{colour}] {escape(str(finding.path))}: {escape(finding.note)}"
            console.print(line, soft_wrap=True, highlight=False)
        if not tally:
            raise ValueError(f"{path} holds no file of a kind that pstn reads")
    console.print(", ".join(f"{count} {status}" for status, count in tally.items()), highlight=False)
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
) -> None:
    """Draw a contact sheet of a data set as a PNG file."""
    with _plain_errors():
        if part not in ("train", "validation", "test"):
            raise ValueError(f"part must be one of 'train', 'validation', 'test', got {part!r}")
        splits = load(name)
        data = getattr(splits, part)
        if data is None:
            raise ValueError(f"{name} has no {part} part: {splits.sizes()}")
        target = out or Path(f"{Path(name).name.replace(':', '-').split('.')[0]}.png")
        title = f"{Path(name).name}, {part}"
        written = contact_sheet(data, target, title=title, count=count, columns=columns, seed=seed)
        Console().print(f"wrote {written}", soft_wrap=True, highlight=False)
