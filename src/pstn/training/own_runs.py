"""Which runs this user has trained on which data: only of these is a path opened that their files name."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from pstn.data.places import cache_folder, expand
from pstn.data.registry import find_known
from pstn.text import excerpt

__all__ = ["is_own_run", "remember_run", "require_confirmed"]


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


def require_confirmed(folder: Path, data: str, command: str) -> None:
    """Refuse a path that only the files of a model or a run name, unless this user has trained them on it.

    Args:
        folder: of the model or the run.
        data: what its files name.
        command: that names the data, for the message.

    Raises:
        ValueError: it is a path, and not this user's own.

    Example:
        >>> require_confirmed(Path("runs/theirs"), "digits", "")
    """
    named = find_known(data) is not None or re.fullmatch(r"ucr:\w+", data) is not None
    if not named and not any(is_own_run(place, data) for place in (folder, folder.parent)):
        problem = f"{folder} says that it was trained on {excerpt(data)}, a path that is not opened unless you name it"
        raise ValueError(f"{problem}: {command}")


def _note(folder: Path, data: str) -> Path:
    pair = f"{folder.resolve()}\0{expand(data).resolve()}"
    return cache_folder() / "runs" / hashlib.sha256(pair.encode("utf-8", "surrogateescape")).hexdigest()
