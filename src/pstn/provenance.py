"""The metadata of result files: the commit, the machine and the versions of a run."""

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


def provenance(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """The commit, the machine and the package versions of this run.

    Args:
        packages: packages to record besides torch and numpy.

    Example:
        >>> sorted(provenance())
        ['commit', 'machine', 'versions']
    """
    own = sys.modules["pstn"].__version__  # not imported, as this module is below the package in the layers
    versions = {"pstn": own} | {name: _version(name) for name in ("torch", "numpy", *packages)}
    return {"commit": _commit(), "machine": _machine(), "versions": versions | {"python": platform.python_version()}}


def _commit() -> str:
    """The commit of the package, or $PSTN_COMMIT, for a copy of the files without a repository."""
    if told := os.environ.get("PSTN_COMMIT"):
        return told
    root = Path(__file__).parents[2]
    # Only the package's own repository is read. A package installed inside another project lies in that repository,
    # whose configuration may name programs for git to run.
    if Path(__file__).parent != root / "src" / "pstn" or not (root / ".git").exists():
        return "unknown"
    try:
        return _git(root, "describe", "--always", "--dirty", "--abbrev=12") or "unknown"
    except OSError:  # no git on this machine
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    """The output of git for the repository at `root`; empty if there is none."""
    program = shutil.which("git")
    if program is None or not Path(program).is_absolute():  # a program in the current folder is not run
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
