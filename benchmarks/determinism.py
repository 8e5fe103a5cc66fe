"""What is the same in every run on a GPU, with and without `pstn reproduce --deterministic`, and what that costs.

Each training is done twice from the same seeds, in both modes; the digests of all trained weights are compared. Every
mode has a process of its own, as cuBLAS reads its settings once. The time is that of training alone.

    PSTN_DATA=... python benchmarks/determinism.py --device cuda --out determinism.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pstn.experiments import EXPERIMENTS, RunContext, Training, runner
from recording import Stopwatch, write

# Experiment, group and epochs: enough to see whether runs part and how fast they are.
TRAININGS = (
    ("mnist-subsets", "mnist100-p-stn", 200),
    ("failure-mode", "rotated-p-stn-depth=2", 1),
    ("time-series", "faceall-p-stn", 5),
)


def train(experiment: str, name: str, epochs: int, device: torch.device) -> list[dict[str, Any]]:
    """The models of a group, trained twice from the start: digests of their weights, and the time of each training."""
    (group,) = [g for g in EXPERIMENTS[experiment].groups if isinstance(g, Training) and g.name == name]
    group, runs = replace(group, recipe=replace(group.recipe, epochs=epochs)), []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            context = RunContext(Path(folder), device, log=lambda text: None)
            (job,) = runner._train(context, [(group, group.models(context))])
        digests = [runner.digest(model.state_dict()) for model in job.models.values()]
        runs.append({"seconds": round(job.seconds * len(digests), 2), "digests": digests})
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mode", choices=("default", "deterministic"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.mode:
        if given.mode == "deterministic":
            runner.be_deterministic()
        found = {" ".join(map(str, each[:2])): train(*each, torch.device(given.device)) for each in TRAININGS}
        given.out.write_text(json.dumps(found))
        return
    watch, rows, modes = Stopwatch(), [], {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("default", "deterministic"):
            path = Path(folder) / mode
            command = [sys.executable, __file__, "--device", given.device, "--mode", mode, "--out", str(path)]
            subprocess.run(command, check=True)
            modes[mode] = json.loads(path.read_text())
    for (experiment, group, epochs), name in zip(TRAININGS, modes["default"], strict=True):
        row: dict[str, Any] = {"experiment": experiment, "group": group, "epochs": epochs}
        for mode, held in modes.items():
            first, second = held[name]
            same = sum(a == b for a, b in zip(first["digests"], second["digests"], strict=True))
            row[mode] = {
                "models": len(first["digests"]), "same_weights": same, "seconds": [first["seconds"], second["seconds"]]
            }  # fmt: skip
        rows.append(row)
    write(
        given.out, {"what": "trained twice: same weights, and seconds of training", "rows": rows}, seed=0, watch=watch
    )


if __name__ == "__main__":
    main()
