"""What every result file says of itself: what was measured, where, on which versions, from which seed, how long.

A benchmark makes a `Stopwatch` at its start and hands its figures to `write` at its end.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["Stopwatch", "write"]


class Stopwatch:
    """Runs from the moment it is made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def seconds(self) -> float:
        """Wall time so far."""
        return round(time.perf_counter() - self.start, 1)


def write(path: Path, figures: dict[str, Any], *, seed: int, watch: Stopwatch, packages: tuple[str, ...] = ()) -> None:
    """Write `figures` with their provenance as JSON, whole or not at all.

    Args:
        path: where the file goes.
        figures: what was measured.
        seed: what the run was seeded with.
        watch: started when the run began.
        packages: besides torch and numpy, those whose version matters.
    """
    record = {
        "commit": _commit(),
        "machine": _machine(),
        "versions": {name: _version(name) for name in ("torch", "numpy", *packages)}
        | {"python": platform.python_version()},
        "seed": seed,
        "wall_s": watch.seconds(),
        **figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
    print(json.dumps(record, indent=2))


def _commit() -> str:
    """The commit measured; $PSTN_COMMIT says it where only a copy of the files is at hand."""
    if told := os.environ.get("PSTN_COMMIT"):
        return told
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
