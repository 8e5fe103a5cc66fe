"""Which runs this user has trained on which data: only of these is a path opened that their files name."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pstn.data.download import cache_folder, expand

__all__ = ["is_own_run", "remember_run"]


def remember_run(folder: Path, data: str) -> None:
    """Note in this user's cache that the run in a folder was trained on a path; without a cache nothing is noted.

    Example:
        >>> remember_run(Path("runs/mine"), "photos")
        >>> is_own_run(Path("runs/mine"), "photos"), is_own_run(Path("runs/mine"), "other")
        (True, False)
    """
    with suppress(OSError):
        note = _note(folder, data)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def is_own_run(folder: Path, data: str) -> bool:
    """Whether `remember_run` was called for the run in this folder and for this path, seen from the current folder."""
    return _note(folder, data).is_file()


def _note(folder: Path, data: str) -> Path:
    pair = f"{folder.resolve()}\0{expand(data).resolve()}"
    return cache_folder() / "runs" / hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()
