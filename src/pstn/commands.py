"""The commands of `pstn`, one function each; what they do lives in the rooms they call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pstn.app.commands import register as register_page
from pstn.command_errors import echo, plain_errors
from pstn.data.commands import app as data_app
from pstn.model_commands import register as register_models
from pstn.training.commands import register as register_training

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Probabilistic spatial transformer networks: models that learn where to look, and know how sure they are.",
)


app.add_typer(data_app, name="data", help="Data sets: what is known, fetch one, verify files, look at them.")

register_training(app)
register_models(app)
register_page(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pstn import __version__

        echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the models.")] = Path("pstn-demo"),
    images: Annotated[int, typer.Option(help="Training images, a multiple of 10.")] = 100,
    epochs: Annotated[int, typer.Option(help="Passes over them; the paper has 600.", min=1)] = 300,
    seed: Annotated[int, typer.Option(help="Of the subset, the weights, the batches and the samples.")] = 0,
) -> None:
    """Train a CNN, an STN and a P-STN on 100 real digits, compare them, draw what the P-STN looks at.

    For example, quickly, and then asking one of the models:

        pstn demo --epochs 50

        pstn show pstn-demo/pstn IMAGE

    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    import torch

    from pstn.demo import run_demo

    # Networks this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    with plain_errors():
        run_demo(out, images=images, epochs=epochs, seed=seed)


@app.command()
def bench(
    parts: Annotated[list[str] | None, typer.Argument(help="predict, train or warp; all of them by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    seconds: Annotated[float, typer.Option(help="How long each comparison goes on.", min=0.01)] = 5.0,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the figures, with machine and versions.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print that instead of a table.")] = False,
) -> None:
    """Measure predictions, training and warps on this machine, about half a minute in all.

    For example, training alone, without the GPU:

        pstn bench train --device cpu

    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    import json

    from pstn.bench import PARTS, measure
    from pstn.files import write_atomically
    from pstn.provenance import provenance

    with plain_errors():
        figures = []
        for part in parts or PARTS:
            figures += measure(part, device, seconds)
            if not as_json:
                for figure in (f for f in figures if f.part == part):
                    echo(f"{figure.part:8}  {figure.what:58}  {figure.value:10,.2f} {figure.unit}")
        record = {**provenance(), "device": device, "figures": [figure._asdict() for figure in figures]}
        if as_json:
            echo(json.dumps(record))
        if out is not None:
            with write_atomically(out) as draft:
                draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def reproduce(context: typer.Context) -> None:
    """Run experiments of the paper, one result per cell; stop with Ctrl-C, go on with the same command."""
    from pstn.experiments.__main__ import main

    raise typer.Exit(main(context.args))


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder of result files, as `pstn reproduce` writes them.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the two pages and the figures.")] = Path("report"),
    docs: Annotated[
        Path | None, typer.Option(help="Write the measured part of the pages in this folder instead of a report.")
    ] = None,
    experiment: Annotated[
        list[str] | None, typer.Option(help="Only this one: a name, or MODULE:NAME for one of your own.")
    ] = None,
) -> None:
    """Turn result files into one page of tables beside the paper's and figures, as HTML and as Markdown."""
    from pstn.experiments import EXPERIMENTS, INTRODUCTION, TITLE, choose
    from pstn.report.page import update_pages, write_report

    with plain_errors():
        chosen = choose(experiment or ["all"], EXPERIMENTS)
        title = ", ".join(e.title for e in chosen) if experiment else TITLE
        if docs is None:
            introduction = "" if experiment else INTRODUCTION
            done = write_report(results, chosen, out, title=title, introduction=introduction)
        else:
            done = update_pages(results, chosen, docs)
    for line in (line for section in done.sections for line in section.summary):
        echo(line)
    echo(f"Written: {', '.join(str(path) for path in done.files if path.suffix in ('.html', '.md'))}")
