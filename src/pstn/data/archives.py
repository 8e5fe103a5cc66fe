"""Unpacking archives from strangers: nothing outside the folder, nothing but plain files, nothing without end."""

from __future__ import annotations

import errno
import io
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from pstn.data.errors import DataError
from pstn.data.files import MAX_RATIO, bounded_read, most_unpacked
from pstn.data.folders import whole_folder
from pstn.files import inside, require_regular_file
from pstn.limits import ARCHIVE_MEMBERS, TAR_HEADER_BYTES, ZIP_INDEX_BYTES

try:
    from lzma import LZMAError
except ImportError:  # Python can be built without it, and does not read .xz then
    LZMAError = EOFError  # type: ignore[misc,assignment]  # a stand-in: nothing raises the real one

__all__ = ["open_zip", "read_zip_member", "unpack_tar"]


_FOLDER_BYTES = 4096  # that a new folder takes on a disk


class _ZipFile(io.FileIO):
    """The file of a zip archive. Its index, which zipfile reads at once, may have a limited length only."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > ZIP_INDEX_BYTES:
            raise zipfile.BadZipFile(f"its index takes more than {ZIP_INDEX_BYTES:,} bytes")
        return super().read(-1 if size is None else size) or b""


@contextmanager
def open_zip(path: Path, kind: str = "a zip archive") -> Iterator[zipfile.ZipFile]:
    """A zip archive, open for as long as the block runs; what is wrong with its index is a DataError.

    Args:
        path: the file.
        kind: what it should be, for the message.
    """
    with ExitStack() as stack:
        try:
            require_regular_file(path, error=DataError)
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(_ZipFile(path))))
        except DataError:
            raise
        # NotImplementedError is for versions that do not exist; the others for offsets and names that make no sense.
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as error:
            raise DataError(path, f"is not {kind} ({error})") from error
        yield archive


def read_zip_member(archive: zipfile.ZipFile, member: str, path: Path, *, limit: int = 1 << 30) -> bytearray:
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
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error, OSError) as error:
        raise DataError(path, f"cannot be unpacked ({error})", place=member) from error
    if len(content) != info.file_size:
        raise DataError(path, f"holds {len(content):,} bytes, the index says {info.file_size:,}", place=member)
    return content


def unpack_tar(path: Path, target: Path, *, limit: int | None = None) -> Path:
    """Unpack a tar archive, plain or compressed, into the folder `target`, whole or not at all.

    Args:
        path: the archive.
        target: the folder to make. Where it exists the archive counts as unpacked.
        limit: the most bytes that may come out; what `most_unpacked` says where None.

    Raises:
        DataError: a member leads out of the folder, is a link or a device, occurs twice, or the archive is damaged.
    """
    if target.is_dir():
        return target
    if limit is None:
        limit = most_unpacked(path)
    try:
        with whole_folder(target) as work:
            _unpack_into(path, work, limit)
    except DataError:
        raise
    # tarfile raises ValueError for numbers that are none, OverflowError for large ones, RecursionError for headers of
    # headers.
    except (
        tarfile.TarError, EOFError, zlib.error, LZMAError, ValueError, OverflowError, RecursionError, OSError
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno not in (None, errno.ENAMETOOLONG):
            raise  # the disk's fault, not the archive's
        raise DataError(path, f"is not a whole tar archive ({error})") from error
    return target


class _StrictHeader(tarfile.TarInfo):
    """Takes a damaged or missing header for what it is, where tarfile takes it for the end of the archive.

    tarfile reads long names, comments and maps of sparse files whole, of any length: here they have a limit.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _StrictHeader:
        stream = archive.fileobj
        archive.fileobj = _HeaderStream(stream)  # type: ignore[assignment]  # it has what is needed
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the block of zeros that ends an archive
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        finally:
            archive.fileobj = stream


class _HeaderStream:
    """The stream of an archive while the headers of one file are read, which may take a limited number of bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left = stream, int(TAR_HEADER_BYTES)

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"the headers of a file take more than {TAR_HEADER_BYTES:,} bytes")
        return cast("bytes", self._stream.read(size))

    def seek(self, offset: int) -> int:
        return cast("int", self._stream.seek(offset))

    def tell(self) -> int:
        return cast("int", self._stream.tell())


def _unpack_into(path: Path, work: Path, limit: int) -> None:
    seen: set[str] = set()
    folders: set[Path] = set()
    left = limit
    with tarfile.open(path, tarinfo=_StrictHeader) as archive:
        for number, member in enumerate(archive):
            if number >= ARCHIVE_MEMBERS:
                raise DataError(path, f"holds more than {ARCHIVE_MEMBERS:,} files and folders, which is the limit")
            destination = inside(work, member.name, owner=path, error=DataError)
            if str(destination) in seen and not member.isdir():
                raise DataError(path, "occurs twice in the archive", place=member.name)
            left -= tarfile.BLOCKSIZE + (member.size if member.isreg() else 0)
            folder = destination if member.isdir() else destination.parent
            while folder != work and folder not in folders:
                folders.add(folder)
                folder, left = folder.parent, left - _FOLDER_BYTES
            if left < 0:
                raise DataError(path, f"unpacks to more than the limit of {limit:,} bytes", place=member.name)
            if member.isdir():
                _make(destination, path, member.name)
                continue
            if not member.isreg():
                raise DataError(
                    path, "is neither a file nor a folder: links and devices are refused", place=member.name
                )
            seen.add(str(destination))
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
