"""Kill `train`, `sweep` and `reproduce` at random moments, go on, and compare with runs that were left alone.

Usage:
    nice python scripts/survival.py [--kills 100] [--seed 0] [--out survival.json]

Each run is a process of its own that gets SIGKILL at a random moment, up to four times, and is then started again as a
user would: `pstn train --resume`, the same `pstn sweep --take-over`, the same experiment. What it leaves must equal,
bit for bit, what a run left that nobody killed: weights, scores and history of `train`, the table and the chosen
settings of `sweep`, all records of `reproduce`. The data are digits that ship with the package; all runs use one
thread of the CPU. Moments are in seconds of processor time, so that they spread over a run on a busy machine too.

Processes are forked from this one, which has imported all they need: no kill is spent on imports. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

from pstn.cli import app
from pstn.data import load_digits
from pstn.experiments import Experiment, RunContext, Task, Training, reproduce, same
from pstn.files import write_atomically
from pstn.nn import mnist_cnn, mnist_pstn
from pstn.provenance import provenance
from pstn.report.results import read_results
from pstn.training import Recipe

PER_RUN = 4  # kills
SMALL = ["--batch-size", "10", "--device", "cpu", "--out"]


def train(folder: Path) -> None:
    """One model, a checkpoint every 50 ms."""
    if (folder / "checkpoint.safetensors").exists():
        app(["train", "--resume", "--out", str(folder)])
    else:
        app(["train", str(folder.parent / "digits.npz"), "--epochs", "6", "--save-every", "0.05", *SMALL, str(folder)])


def sweep(folder: Path) -> None:
    """Four trials, one at a time."""
    over = ["--over", "kl_weight=0,1e-4,1e-3,1e-2", "--together", "1", "--take-over"]
    app(["sweep", str(folder.parent / "digits.npz"), "--epochs", "2", *over, *SMALL, str(folder)])


def digits(context: RunContext) -> Task:
    """100 digits to train on, and 50 to test on."""
    train, _, test = context.data("digits")
    return Task(train.x[:100], train.y[:100], test.take(range(50)), "digits")


def experiment(folder: Path) -> None:
    """Two groups of two models each, a checkpoint every 50 ms."""
    groups = [
        Training("survival", name, "digits", digits, same(make), Recipe(epochs=5, batch_size=10), seeds=2)
        for name, make in (("CNN", mnist_cnn), ("P-STN", mnist_pstn))
    ]
    made = Experiment("survival", "Survival", "", groups=tuple(groups), seeds=2)
    reproduce([made], RunContext(folder, save_every=0.05))


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """The values but for those of these names."""
    return {name: value for name, value in values.items() if name not in names}


def left_by_train(folder: Path) -> Any:
    """The digests of the weights, and what results.json says but for times and places."""
    files = sorted(folder.glob("model-*/model.safetensors"))
    results = json.loads((folder / "results.json").read_text())
    history = [without(entry, "seconds") for entry in results["history"]]
    return [hashlib.sha256(f.read_bytes()).hexdigest() for f in files], results["scores"], history, results["problems"]


def left_by_sweep(folder: Path) -> Any:
    """The table and what was chosen."""
    found = json.loads((folder / "sweep.json").read_text())
    return found["table"], found["best"], found["value"], (folder / "best.yaml").read_text()


def left_by_experiment(folder: Path) -> Any:
    """The records, which hold a digest of the weights."""
    records = (asdict(result) for result in read_results(folder, "survival"))
    return [without(record, "commit", "machine", "versions", "seconds") for record in records]


COMMANDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "train": (train, left_by_train),
    "sweep": (sweep, left_by_sweep),
    "reproduce": (experiment, left_by_experiment),
}


def processor_seconds(process: int) -> float:
    """Of a process, so far; infinity once it has ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return float("inf") if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(work: Callable[[Path], None], folder: Path, limit: float | None) -> tuple[bool, float]:
    """Run a command in a process of its own, and kill it after so many seconds of processor time.

    Returns:
        Whether it was killed, and its processor time.
    """
    sys.stdout.flush()
    if (process := os.fork()) == 0:
        status = 1
        try:
            with (folder.parent / f"{folder.name}.txt").open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                work(folder)
                status = 0
        except SystemExit as done:
            status = done.code if isinstance(done.code, int) else 1
        finally:
            os._exit(status)
    if limit is not None:
        while processor_seconds(process) < limit:
            time.sleep(0.002)
        os.kill(process, signal.SIGKILL)  # one that has ended is not reaped yet
    _, status, used = os.wait4(process, 0)
    if status not in (0, signal.SIGKILL):
        raise RuntimeError(f"{folder.name} ended with {status}: {(folder.parent / f'{folder.name}.txt').read_text()}")
    return status == signal.SIGKILL, used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, go on, compare, write; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    moments, kills, runs, differing = random.Random(given.seed), Counter[str](), Counter[str](), list[str]()
    started, killed_after = time.perf_counter(), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(prefix="pstn-survival-") as temporary:
        os.environ["PSTN_CACHE"] = f"{temporary}/cache"
        few = load_digits("train")
        x, y = few.x[:150, 0, :, :, None].numpy(), few.y[:150].numpy()
        np.savez(f"{temporary}/digits.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
        length, expected = {}, {}
        for name, (work, left) in COMMANDS.items():
            with suppress(SystemExit), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                work(folder := Path(temporary) / name)  # imports what the processes need
            expected[name] = left(folder)
            _, length[name] = run(work, folder := Path(temporary) / f"{name}-whole", None)
            if left(folder) != expected[name]:
                differing.append(folder.name)
            print(f"{name}: {length[name]:.1f} s of processor time where nothing is killed", flush=True)
        while kills.total() < given.kills:
            name = min(COMMANDS, key=lambda name: kills[name])
            work, left = COMMANDS[name]
            folder, killed = Path(temporary) / f"{name}-{runs[name]}", True
            for attempt in range(PER_RUN + 1):
                # Of few kills, each command gets its share.
                more = attempt < PER_RUN and kills[name] < -(-given.kills // 3) and kills.total() < given.kills
                moment = moments.uniform(0.0, length[name]) if more else None
                killed, used = run(work, folder, moment)
                if not killed:
                    break
                kills[name] += 1
                killed_after.setdefault(name, []).append(round(used, 2))
            runs[name] += 1
            if left(folder) != expected[name]:
                differing.append(folder.name)
            print(f"{kills.total()} kills, {runs.total()} runs, {len(differing)} that differ", flush=True)
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures = {
        "kills": kills, "runs": runs, "differing": differing, "seed": given.seed,
        "seconds_of_a_run": {name: round(value, 2) for name, value in length.items()},
        "killed_after_s": killed_after, "wall_s": round(time.perf_counter() - started, 1),
        "processor_s": round(sum(used.ru_utime + used.ru_stime for used in spent), 1),
    }  # fmt: skip
    if given.out is not None:
        with write_atomically(given.out) as draft:
            draft.write_text(json.dumps({**provenance(("optuna",)), **figures}, indent=2) + "\n", encoding="utf-8")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
