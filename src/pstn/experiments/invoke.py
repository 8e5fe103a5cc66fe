"""What `pstn reproduce` does, whichever way its options were read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pstn.experiments import EXPERIMENTS, Experiment, Lab, Shard, Stopped, choose, plan, reproduce
from pstn.experiments.reproduce import done_cells
from pstn.training.build import make_device

__all__ = ["run_command"]


def _say(text: str) -> None:
    print(text, flush=True)


def run_command(
    names: Sequence[str],
    results: Path,
    device: str,
    quick: bool,
    shard: str,
    cells: Sequence[str],
    show: bool,
    search: bool,
    epochs_scale: float,
    compile: bool,
    backbone: Path | None,
    together: int,
) -> int:
    """Run experiments, or list their cells; returns the exit status. See `pstn reproduce --help` for the options."""
    if not names and not show:
        _say("\n".join(f"{e.name:22} {e.title}" for e in EXPERIMENTS.values()))
        return 0
    try:
        chosen = choose(names or ["all"], EXPERIMENTS, search=search)
        part = Shard.parse(shard)
        lab = Lab(results, make_device(device), quick, epochs_scale, compile, backbone, together, say=_say)
        if show:
            _list(lab, part, chosen, cells)
            return 0
        if lab.device.type == "cpu":
            # Networks this small lose more to handing work between threads than they gain.
            torch.set_num_threads(1)
        if quick:
            _say("A quick run on the data that ship with the package: this is not the paper's setting.")
        written = reproduce(chosen, lab, part, cells)
    except (ValueError, OSError) as error:
        print(f"pstn reproduce: {error}", file=sys.stderr)
        return 2
    except (Stopped, KeyboardInterrupt):
        _say("Stopped. The same command goes on from here.")
        return 130
    _say(f"{written} results written; all that was asked for is in {lab.folder}")
    if quick:
        _say("This was not the paper's setting: the numbers show only that it runs.")
    return 0


def _list(lab: Lab, shard: Shard, chosen: Sequence[Experiment], cells: Sequence[str]) -> None:
    pieces = plan(chosen, lab, shard, cells)
    done = done_cells(lab, pieces)
    for piece in pieces:
        for cell in piece.cells:
            _say(f"{'done' if cell.path(lab.folder) in done else 'to do':6} {cell.experiment}/{cell.name}")
