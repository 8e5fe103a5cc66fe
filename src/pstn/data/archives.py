"""Unpacking archives from strangers: nothing outside the folder, nothing but plain files, nothing without end."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, cast

from pstn.data.errors import DataError
from pstn.data.files import MAX_RATIO, bounded_read
from pstn.data.folders import whole_folder
from pstn.files import inside

try:
    from lzma import LZMAError
except ImportError:  # Python can be built without it, and does not read .xz then
    LZMAError = EOFError  # type: ignore[misc,assignment]  # a stand-in: nothing raises the real one

__all__ = ["read_zip_member", "unpack_tar"]

# Photos hardly shrink, and their labels not by this much: what grows more is there to fill a disk.
_RATIO, _FREELY = 100, 1 << 28


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


def unpack_tar(path: Path, target: Path, *, limit: int | None = None) -> Path:
    """Unpack a tar archive, plain or compressed, into the folder `target`, whole or not at all.

    Args:
        path: the archive.
        target: the folder to make. Where it exists the archive counts as unpacked.
        limit: the most bytes that may come out; a hundred times the archive's size, and at least 256 MiB, where None.

    Raises:
        DataError: a member leads out of the folder, is a link or a device, occurs twice, or the archive is damaged.
    """
    if target.is_dir():
        return target
    if limit is None:
        limit = max(_FREELY, _RATIO * path.stat().st_size)
    try:
        with whole_folder(target) as work:
            _unpack_into(path, work, limit)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the archive's
        raise DataError(path, f"is not a whole tar archive ({error})") from error
    return target


class _StrictHeader(tarfile.TarInfo):
    """Takes a damaged or missing header for what it is, where tarfile takes it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _StrictHeader:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the block of zeros that ends an archive
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def _unpack_into(path: Path, work: Path, limit: int) -> None:
    seen: set[str] = set()
    left = limit
    with tarfile.open(path, tarinfo=_StrictHeader) as archive:
        for member in archive:
            destination = inside(work, member.name, owner=path, error=DataError)
            if member.isdir():
                _make(destination, path, member.name)
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
            _make(destination.parent, path, member.name)
            if destination.is_dir():
                raise DataError(path, "is a file and a folder at once", place=member.name)
            with destination.open("wb") as file:
                shutil.copyfileobj(content, file)  # type: ignore[arg-type]  # a regular member always has content
        # The checksum of a compressed stream is at its end, behind what tarfile cares to read.
        rest = cast("IO[bytes]", archive.fileobj)
        while left > 0 and (portion := rest.read(1 << 20)):
            left -= len(portion)
    if not seen:
        raise DataError(path, "holds no files")


def _make(folder: Path, path: Path, member: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(path, "is a file and a folder at once", place=member) from error
