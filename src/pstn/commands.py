"""The commands of `pstn`, one function each; what they do lives in the rooms they call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pstn.app.commands import register as register_page
from pstn.data.commands import app as data_app
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
register_page(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pstn import __version__

        typer.echo(__version__)
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
    out: Annotated[Path, typer.Option(help="Folder for the picture and the weights.")] = Path("pstn-demo"),
    images: Annotated[int, typer.Option(help="Training images, a multiple of 10.")] = 100,
    epochs: Annotated[int, typer.Option(help="Passes over them; the paper has 600.", min=1)] = 300,
    seed: Annotated[int, typer.Option(help="Of the subset, the weights, the batches and the samples.")] = 0,
) -> None:
    """Train a CNN, an STN and a P-STN on 100 real digits, compare them, draw what the P-STN looks at."""
    import torch

    from pstn.demo import run_demo

    # Networks this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    try:
        run_demo(out, images=images, epochs=epochs, seed=seed)
    except (ValueError, OSError) as error:
        typer.echo(f"pstn demo: {error}", err=True)
        raise typer.Exit(2) from None
