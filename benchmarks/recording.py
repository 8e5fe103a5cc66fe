"""How a benchmark writes its figures: a `Stopwatch` at its start, `write` at its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pstn.files import write_atomically
from pstn.provenance import provenance

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
    when = {"date": time.strftime("%Y-%m-%d"), "wall_s": watch.seconds()}
    record = {**provenance(packages), "seed": seed, **when, **figures}
    text = json.dumps(record, indent=2)
    with write_atomically(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
    print(text)
