"""The command `pstn reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register", "reproduce"]


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help='Experiments, or "all".')] = None,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = Path("results"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="About a minute on the shipped data: not the paper's setting.")
    ] = False,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Run the I-th of N parts, one for each machine.")] = "1/1",
    cells: Annotated[
        list[str] | None, typer.Option("--cells", "--only", help='Only cells that match, such as "mnist100-*".')
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the cells, and which are done.")] = False,
    search: Annotated[bool, typer.Option("--search", help="Search the KL weights on validation data too.")] = False,
    epochs_scale: Annotated[float, typer.Option(help="Shorten schedules by this factor; the results say so.")] = 1.0,
    compile: Annotated[bool, typer.Option("--compile", help="Fuse small GPU kernels before training.")] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|MODULE:NAME",
            help="For the traffic signs: ImageNet weights of ResNet-18 or EfficientNet-Lite0, or a network of yours.",
        ),
    ] = None,
    together: Annotated[int, typer.Option(help="Groups that train side by side on the device.")] = 1,
) -> None:
    """Run experiments of the paper, one result per cell; stop with Ctrl-C, go on with the same command."""
    from pstn.experiments.__main__ import run_command

    status = run_command(
        names or [],
        results,
        device,
        quick,
        shard,
        cells or [],
        show,
        search,
        epochs_scale,
        compile,
        backbone,
        together,
    )
    raise typer.Exit(status)


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(reproduce)
