"""What every result file says of itself: which commit measured it, on which machine, with which versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["provenance"]


def provenance(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """The commit, the machine and the versions of this run, for a result file.

    Args:
        packages: besides torch and numpy, those whose version matters.

    Example:
        >>> sorted(provenance())
        ['commit', 'machine', 'versions']
    """
    own = sys.modules["pstn"].__version__  # not imported: that would turn the layers upside down
    versions = {"pstn": own} | {name: _version(name) for name in ("torch", "numpy", *packages)}
    return {
        "commit": _commit(),
        "machine": _machine(),
        "versions": versions | {"python": platform.python_version()},
    }


def _commit() -> str:
    """The commit measured; $PSTN_COMMIT says it where only a copy of the files is at hand."""
    if told := os.environ.get("PSTN_COMMIT"):
        return told
    root = Path(__file__).parents[2]
    # Only the package's own repository is asked. Installed inside somebody's project, the package lies in theirs, whose
    # settings may name programs for git to run.
    if Path(__file__).parent != root / "src" / "pstn" or not (root / ".git").exists():
        return "unknown"
    try:
        return _git(root, "describe", "--always", "--dirty", "--abbrev=12") or "unknown"
    except OSError:  # no git on this machine
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    """What git says of the repository at `root`; nothing where that is none."""
    program = shutil.which("git")
    if program is None or not Path(program).is_absolute():  # one in the current folder is not ours to run
        return ""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own["GIT_CEILING_DIRECTORIES"] = str(root.parent)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=root, env=own, check=False)
    return done.stdout.strip()


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
