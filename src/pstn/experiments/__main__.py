"""`python -m pstn.experiments NAME`: the command `pstn reproduce` with nothing but torch, numpy and safetensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pstn.experiments import EXPERIMENTS, Experiment, Lab, Shard, Stopped, choose, plan, reproduce
from pstn.experiments.backbones import find_backbone
from pstn.experiments.reproduce import done_cells, out_of_reach
from pstn.processes import safe_import_path
from pstn.text import printable
from pstn.training.population.planning import make_device

__all__ = ["main", "run_command"]


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


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m pstn.experiments", description="Run experiments of the paper.")
    parser.add_argument("names", nargs="*", metavar="NAME", help='experiments, or "all"')
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the result files")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    parser.add_argument("--quick", action="store_true", help="a minute on the shipped data: not the paper's setting")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="run the I-th of N parts")
    parser.add_argument(
        "--cells", "--only", action="append", default=[], metavar="PATTERN", help="only cells that match"
    )
    parser.add_argument("--list", action="store_true", dest="show", help="show the cells, and which are done")
    parser.add_argument("--search", action="store_true", help="search the KL weights on validation data too")
    parser.add_argument("--epochs-scale", type=float, default=1.0, help="shorten schedules by this factor")
    parser.add_argument("--compile", action="store_true", help="fuse small GPU kernels before training")
    parser.add_argument(
        "--backbone",
        metavar="FILE|MODULE:NAME",
        help="for the traffic signs: ImageNet weights of ResNet-18 or EfficientNet-Lite0, or a network of yours",
    )
    parser.add_argument("--together", type=int, default=1, help="groups that train side by side on the device")
    with safe_import_path():
        return run_command(**vars(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
