"""What an experiment of the paper takes by the clock, in one piece, from an empty folder to its last result.

It runs `python -m pstn.experiments` in a process of its own, so that starting, loading data, training and testing all
count; kernels that were compiled on this machine before are not compiled again. What follows `--` goes to that command.

    PSTN_DATA=... python benchmarks/wall_time.py mnist-subsets --out wall_time.json -- --together 3
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from pstn.experiments import EXPERIMENTS, RunContext
from pstn.report.results import Result, read_results
from recording import Stopwatch, write


def accuracies(results: list[Result]) -> dict[str, dict[str, float]]:
    """The mean accuracy of each model on each data set, over its runs that have one."""
    groups: dict[str, list[float]] = {}
    for result in results:
        if "accuracy" in result.metrics:
            groups.setdefault(result.name.rsplit("-", 1)[0], []).append(result.metrics["accuracy"])
    return {name: {"runs": len(found), "accuracy": round(mean(found), 4)} for name, found in sorted(groups.items())}


def run(name: str, options: list[str], folder: Path) -> dict[str, Any]:
    """One experiment, into an empty folder."""
    command = ["-m", "pstn.experiments", name, "--results", str(folder), *options]
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True)
    seconds = round(time.perf_counter() - started, 1)
    results = read_results(folder)
    wanted = {cell.name for group in EXPERIMENTS[name].groups for cell in group.cells(RunContext(folder))}
    if missing := wanted - {result.name for result in results}:
        raise SystemExit(f"{name} ended without {', '.join(sorted(missing))}: this is not what all of it takes")
    return {"experiment": name, "seconds": seconds, "results": len(results), "by_model": accuracies(results)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--out", type=Path, required=True)
    given, options = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, options = given[:at], given[at + 1 :]
    arguments = parser.parse_args(given)
    watch, rows = Stopwatch(), []
    for name in arguments.experiments:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(name, options, Path(folder)))
        # After every experiment: what was measured so far is not lost if the run is cut off.
        what = "wall time of experiments, each in one piece from an empty folder"
        write(arguments.out, {"what": what, "options": options, "rows": rows}, seed=0, watch=watch)


if __name__ == "__main__":
    main()
