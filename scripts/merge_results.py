"""Merge the shards of finished runs into one file per experiment, as the repository keeps them.

    python scripts/merge_results.py [FOLDER]

Run it when no process writes to the folder: what is appended to a shard meanwhile would be lost.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from pstn.files import write_atomically
from pstn.report.results import read_results


def merge(folder: Path) -> int:
    """Write `NAME.jsonl` of each experiment, and remove its shards.

    Args:
        folder: of results.

    Returns:
        How many shards were merged.
    """
    shards = [path for path in folder.glob("[!.]*.jsonl") if "." in path.stem]
    for experiment, results in groupby(read_results(folder), key=lambda result: result.experiment):
        with write_atomically(folder / f"{experiment}.jsonl") as draft:
            draft.write_text("".join(f"{result.to_line()}\n" for result in results), encoding="utf-8")
    for shard in shards:
        shard.unlink()
    return len(shards)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Merge the shards of finished runs into one file per experiment.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="of results")
    print(f"{merge(parser.parse_args().folder)} shards merged")
