"""Where data lies on this machine: $PSTN_DATA first, then a cache of our own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pstn.data.errors import DataError

__all__ = ["cache_folder", "data_folder", "expand", "offline", "search_folders"]


def data_folder() -> Path | None:
    """The folder that $PSTN_DATA names, or None where it is not set. Nothing is ever written there.

    Example:
        >>> os.environ["PSTN_DATA"], before = "/somewhere", os.environ.get("PSTN_DATA", "")
        >>> data_folder().name
        'somewhere'
        >>> os.environ["PSTN_DATA"] = before
    """
    value = os.environ.get("PSTN_DATA", "").strip()
    return expand(value) if value else None


def cache_folder() -> Path:
    """Where downloads and decoded images are kept: $PSTN_CACHE, or the platform's cache folder of this user.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    value = os.environ.get("PSTN_CACHE", "").strip()
    if value:
        return expand(value)
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "pstn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "pstn" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "pstn"


def _home() -> Path:
    """This user's home; in a container, whose user may have none, a place for files that nobody has to keep."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())


def expand(path: str) -> Path:
    """The path with "~" or "~name" at its start replaced by that user's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(path, f"is in a home folder that is not known ({error})") from error


def offline() -> bool:
    """Whether $PSTN_OFFLINE asks that the network be left alone."""
    return os.environ.get("PSTN_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def search_folders(kind: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which the files of `kind` (e.g. "mnist") are looked for, in order.

    Args:
        kind: the name of the subfolder, e.g. "ucr".
        root: a folder of the caller's choice; then only `root/kind` and `root` itself are looked at.

    Example:
        >>> [f.as_posix() for f in search_folders("mnist", root="here")]
        ['here/mnist', 'here']
    """
    if root is not None:
        return [Path(root) / kind, Path(root)]
    given = data_folder()
    return ([given / kind] if given is not None else []) + [cache_folder() / kind]
