"""What `pstn reproduce` does, whichever way its options were read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pstn.experiments import EXPERIMENTS, Experiment, Lab, Shard, Stopped, choose, plan, reproduce
from pstn.experiments.backbones import find_backbone
from pstn.experiments.reproduce import done_cells, out_of_reach
from pstn.text import printable
from pstn.training.population.planning import make_device

__all__ = ["run_command"]


def _say(text: str) -> None:
    print(printable(text), flush=True)


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
    backbone: str | None,
    together: int,
) -> int:
    """Run experiments, or list their cells; returns the exit status. See `pstn reproduce --help` for the options."""
    if not names and not show:
        _say("\n".join(f"{e.name:22} {e.title}" for e in EXPERIMENTS.values()))
        return 0
    try:
        chosen = choose(names or ["all"], EXPERIMENTS, search=search)
        part = Shard.parse(shard)
        network = None if backbone is None else find_backbone(backbone)
        lab = Lab(results, make_device(device), quick, epochs_scale, compile, network, together, say=_say)
        if show:
            _list(lab, part, chosen, cells)
            return 0
        if lab.device.type == "cpu":
            # Networks this small lose more to handing work between threads than they gain.
            torch.set_num_threads(1)
        if quick:
            _say("A quick run on the data that ship with the package: this is not the paper's setting.")
        # Who asks for one of these by name is told what is missing; "all" is all that can be had.
        left_out = out_of_reach(chosen, lab) if "all" in names else {}
        for name, data in left_out.items():
            _say(f"{name} is left out: {', '.join(data)} cannot be downloaded, and is not here.")
        written = reproduce(chosen, lab, part, cells, left_out)
    except (ValueError, OSError) as error:
        print(printable(f"pstn reproduce: {error}"), file=sys.stderr)
        return 2
    except (Stopped, KeyboardInterrupt):
        _say("Stopped. The same command goes on from here.")
        return 130
    but = f" but {', '.join(left_out)}" if left_out else ""
    _say(f"{written} results written; all that was asked for{but} is in {lab.folder}")
    if quick:
        _say("This was not the paper's setting: the numbers show only that it runs.")
    return 0


def _list(lab: Lab, shard: Shard, chosen: Sequence[Experiment], cells: Sequence[str]) -> None:
    pieces = plan(chosen, lab, shard, cells)
    done = done_cells(lab, pieces)
    for piece in pieces:
        for cell in piece.cells:
            _say(f"{'done' if cell.full_name in done else 'to do':6} {cell.full_name}")
