"""`python -m pstn.experiments NAME`: the command `pstn reproduce` with nothing but torch, numpy and safetensors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from pstn.experiments import EXPERIMENTS, RunContext, Shard, Stopped, choose, plan, reproduce, traffic_signs
from pstn.experiments.runner import be_deterministic, done_cells, unavailable
from pstn.processes import safe_import_path
from pstn.text import printable
from pstn.training.population.trainer import make_device

__all__ = ["main"]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pstn reproduce",
        description="Run experiments of the paper, or of one's own, one result per cell; stop with Ctrl-C, resume with "
        "the same command.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help='experiments, "all", or MODULE:NAME for one of your own')
    add("--results", type=Path, default=Path("results"), help="folder of the result files")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--quick", action="store_true", help="about a minute on the shipped data: not the paper's setting")
    add("--shard", default="1/1", metavar="I/N", help="run the I-th of N parts, one for each machine")
    add("--cells", "--only", action="append", default=[], metavar="PATTERN", help='cells that match: "mnist100-*"')
    add("--list", action="store_true", help="show the cells, and which are done")
    add("--search", action="store_true", help="search the KL weights on validation data too")
    add("--compile", action="store_true", help="fuse small GPU kernels before training")
    add("--backbone", metavar="FILE|MODULE:NAME", help="for the traffic signs: ImageNet weights of ResNet-18 or "
        "EfficientNet-Lite0, or a network of yours")  # fmt: skip
    add("--deterministic", action="store_true", help="deterministic kernels on a GPU; not measured on one")
    add("--together", type=int, default=1, help="groups that train side by side on the device")
    return parser.parse_intermixed_args(arguments)


def _log(text: str) -> None:
    print(printable(text), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run experiments, or list them or their cells; returns the exit status.

    Args:
        arguments: of the command line; this process's when None.
    """
    given = _parse(arguments)
    if not given.names and not given.list:
        _log("\n".join(f"{e.name:22} {e.summary}" for e in EXPERIMENTS.values()))
        return 0
    try:
        if given.deterministic:
            be_deterministic()
        chosen = choose(given.names or ["all"], EXPERIMENTS, search=given.search)
        shard = Shard.parse(given.shard)
        network = None if given.backbone is None else traffic_signs.find_backbone(given.backbone)
        context = RunContext(
            given.results, make_device(given.device), given.quick, given.compile, network,
            given.together, log=_log,
        )  # fmt: skip
        if given.list:
            planned = plan(chosen, context, shard, given.cells)
            done = done_cells(context, planned)
            for cell in (cell for piece in planned for cell in piece.cells):
                _log(f"{'done' if cell.full_name in done else 'to do':6} {cell.full_name}")
            return 0
        if context.device.type == "cpu":
            # Networks this small lose more to handing work between threads than they gain.
            torch.set_num_threads(1)
        if given.quick:
            _log("A quick run on the data that ship with the package: this is not the paper's setting.")
        # "all" stands for the experiments whose data are available; one given by name reports what is missing.
        left_out = unavailable(chosen, context) if "all" in given.names else {}
        for name, data in left_out.items():
            _log(f"{name} is left out: {', '.join(data)} is not here and cannot be downloaded.")
        written = reproduce(chosen, context, shard, given.cells, left_out)
    except (ValueError, OSError) as error:
        print(printable(f"pstn reproduce: {error}"), file=sys.stderr)
        return 2
    except (Stopped, KeyboardInterrupt):
        _log("Stopped. Run the same command to resume.")
        return 130
    _log(f"{written} results written; what was asked for is in {context.folder}")
    return 0


if __name__ == "__main__":
    with safe_import_path():
        sys.exit(main())
