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
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    return {"commit": _commit(), "machine": machine, "versions": versions | {"python": platform.python_version()}}


def _commit() -> str:
    """The commit of the package, or $PSTN_COMMIT, for a copy of the files without a repository."""
    if commit := os.environ.get("PSTN_COMMIT"):
        return commit
    root, git = Path(__file__).parents[2], shutil.which("git")
    # Only the package's own repository is read. A package installed inside another project lies in that repository,
    # whose configuration may name programs for git to run.
    own = Path(__file__).parent == root / "src" / "pstn" and (root / ".git").exists()
    if not own or git is None or not Path(git).is_absolute():  # a program in the current folder is not run
        return "unknown"
    settings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings["GIT_CEILING_DIRECTORIES"] = str(root.parent)
    command = [git, "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=settings, check=False)
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
