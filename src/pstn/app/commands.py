"""The command `pstn app`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pstn.command_errors import echo

__all__ = ["register"]


def app(
    models: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `pstn demo` wrote; when not given, pstn-demo if it is there, else trained here, once."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines of the network in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name under which visitors open the page, such as the machine's own; may be repeated. Addresses "
            "and localhost need none; requests to other names are refused."
        ),
    ] = None,
) -> None:
    """Serve a page for the browser: draw a digit, turn it, and see where three networks look and how sure they are.

    It prints the address to open, and runs until Ctrl-C. For example, with the models of `pstn demo`, for a phone too:

        pstn app --models pstn-demo --host 0.0.0.0

    Exit codes: 0 ended by Ctrl-C, 2 a mistake in what was given, or a port that is taken.
    """
    from pstn.app.serving import serve

    try:
        serve(models, host=host, port=port, names=name or (), say=echo)
    except (ValueError, OSError) as error:
        echo(f"pstn app: {error}", err=True)
        raise typer.Exit(2) from None


def register(application: typer.Typer) -> None:
    """Add the command to an application."""
    application.command()(app)
