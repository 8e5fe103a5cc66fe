"""Folders that a reader finds whole or not at all."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_folder"]


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target` to fill; it becomes `target` when the block ends well.

    Where another process has made `target` in the meantime, that one stays.

    Args:
        target: the folder to make; the one above it is made if need be.

    Yields:
        The folder to fill. It is removed if the block raises.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "new"
        >>> with whole_folder(target) as work:
        ...     _ = (work / "note.txt").write_text("whole")
        >>> [path.name for path in target.iterdir()]
        ['note.txt']
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    work.mkdir()  # with the user's permissions, where mkdtemp would make a private folder
    try:
        yield work
        try:
            work.replace(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
