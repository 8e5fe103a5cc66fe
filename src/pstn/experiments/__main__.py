"""`python -m pstn.experiments NAME`: the command `pstn reproduce` with nothing but torch, numpy and safetensors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pstn.experiments.invoke import run_command
from pstn.processes import safe_import_path

__all__ = ["main"]


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
