"""Unpacking archives from strangers: nothing outside the folder, nothing but plain files, nothing without end."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, cast

from pstn.data.errors import DataError
from pstn.data.files import MAX_RATIO, bounded_read
from pstn.data.places import inside

__all__ = ["read_zip_member", "unpack_tar"]


def read_zip_member(archive: zipfile.ZipFile, member: str, path: Path, *, limit: int = 1 << 30) -> bytes:
    """One member of a zip archive, of at most `limit` bytes and exactly as many as the archive's index says.

    Args:
        archive: the open archive.
        member: the name within it.
        path: the archive's file, for messages.
        limit: the most bytes.
    """
    info = archive.getinfo(member)
    if info.file_size > min(limit, (info.compress_size + 1) * MAX_RATIO):
        raise DataError(
            path, f"promises {info.file_size:,} bytes, above what can be or the limit of {limit:,}", place=member
        )
    try:
        with archive.open(info) as stream:
            content = bounded_read(stream, info.file_size + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise DataError(path, f"cannot be unpacked ({error})", place=member) from error
    if len(content) != info.file_size:
        raise DataError(path, f"holds {len(content):,} bytes, the index says {info.file_size:,}", place=member)
    return bytes(content)


def unpack_tar(path: Path, target: Path, *, limit: int = 1 << 36) -> Path:
    """Unpack a tar archive, plain or compressed, into the folder `target`, whole or not at all.

    Args:
        path: the archive.
        target: the folder to make. Where it exists the archive counts as unpacked.
        limit: the most bytes that may come out.

    Raises:
        DataError: a member leads out of the folder, is a link or a device, occurs twice, or the archive is damaged.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        _unpack_into(path, work, limit)
        if target.is_dir():  # another process was faster
            return target
        work.replace(target)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the archive's
        raise DataError(path, f"is not a whole tar archive ({error})") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _unpack_into(path: Path, work: Path, limit: int) -> None:
    seen: set[str] = set()
    left = limit
    with tarfile.open(path) as archive:
        for member in archive:
            destination = inside(work, member.name, owner=path)
            if member.isdir():
                destination.mkdir(parents=True, exist_ok=True)
                continue
            if not member.isreg():
                raise DataError(
                    path, "is neither a file nor a folder: links and devices are refused", place=member.name
                )
            if str(destination) in seen:
                raise DataError(path, "occurs twice in the archive", place=member.name)
            seen.add(str(destination))
            left -= member.size
            if left < 0:
                raise DataError(path, f"unpacks to more than the limit of {limit:,} bytes", place=member.name)
            content = archive.extractfile(member)
            destination.parent.mkdir(parents=True, exist_ok=True)
            with destination.open("wb") as file:
                shutil.copyfileobj(content, file)  # type: ignore[arg-type]  # a regular member always has content
        # The checksum of a compressed stream is at its end, behind what tarfile cares to read.
        rest = cast("IO[bytes]", archive.fileobj)
        while left > 0 and (portion := rest.read(1 << 20)):
            left -= len(portion)
    if not seen:
        raise DataError(path, "holds no files")
