"""Writing files so that a reader finds the whole of one, or the old one, and never a part; files of tensors."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["load_safetensors", "require_writable", "sha256_of", "to_json", "write_atomically"]


def load_safetensors(extra: str) -> ModuleType:
    """The package safetensors with its part for torch, or an error that says how to install it.

    Args:
        extra: that brings it, for whoever calls.

    Example:
        >>> load_safetensors("hub").torch.load(load_safetensors("hub").torch.save({"a": torch.ones(1)}))
        {'a': tensor([1.])}
    """
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this needs safetensors, which is not installed: pip install 'pstn[{extra}]'", name="safetensors"
        ) from error
    return safetensors


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Give a draft beside `path` to write to; it takes the place of `path` when the block ends well.

    Args:
        path: where the file goes; its folder is made if need be.

    Yields:
        The draft's path. It is removed if the block raises.

    Raises:
        OSError: it cannot be written; the error names `path`, as nobody but this function knows of a draft.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "folder" / "note.txt"
        >>> with write_atomically(target) as draft:
        ...     _ = draft.write_text("whole")
        >>> target.read_text(), [p.name for p in target.parent.iterdir()]
        ('whole', ['note.txt'])
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".draft")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("rb+") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes private files; a result is as readable as anything else its owner writes.
        draft.chmod(0o666 & ~_UMASK)
        draft.replace(target)
    except OSError as error:
        if str(error.filename) != name:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        draft.unlink(missing_ok=True)


def require_writable(folder: Path, option: str = "--out") -> None:
    """Make a folder, and refuse it if nothing can be written there: to be asked before long work, not after it.

    Args:
        folder: where something will be written.
        option: of the command line, that chooses another one.

    Raises:
        OSError: with what is wrong and what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"\0")
        probe.unlink()
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise OSError(
            error.errno, f"cannot write to the folder ({reason}); choose another with {option}", str(folder)
        ) from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as it lies on disk."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while portion := stream.read(1 << 20):
            digest.update(portion)
    return digest.hexdigest()


def to_json(value: Any, **options: Any) -> str:
    """JSON with null for every NaN and infinity, of which a model that broke leaves some: JSON has neither.

    Args:
        value: as `json.dumps` takes it.
        options: of `json.dumps`.

    Example:
        >>> to_json({"nll": [0.5, float("nan")]})
        '{"nll": [0.5, null]}'
    """
    return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


# Read once: it can only be read by changing it, for all threads, some of which may be making files.
_UMASK = _read_umask()
