"""Reading files of unknown quality: errors, limits, listings, arrays, zip and tar archives."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import os
import shutil
import stat
import struct
import tarfile
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from pstn.files import FileError, inside, require_regular_file
from pstn.limits import ARCHIVE_FREE_BYTES, ARCHIVE_MEMBERS, ARCHIVE_RATIO, TAR_HEADER_BYTES, ZIP_INDEX_BYTES

__all__ = ["DataError", "DataWarning", "MissingDataError"]


class DataError(FileError):
    """A file of data that cannot be used as it is.

    Args:
        path: the file or folder at fault.
        problem: what is wrong with it, and what is accepted.
        place: where in it: a line, an offset, a key.

    Example:
        >>> print(DataError("FaceAll_TRAIN.tsv", "'abc' is not a number", place="line 3, column 2"))
        FaceAll_TRAIN.tsv: line 3, column 2: 'abc' is not a number
    """


Refuse = Callable[[DataError], None]
"""Told of what cannot be used, which is then left out."""


def raise_it(error: DataError) -> NoReturn:
    """The `Refuse` that leaves nothing out: the first error is raised."""
    raise error


class MissingDataError(DataError):
    """A file that is needed and is nowhere to be found: the message says where it was looked for and how to get it."""


class DataWarning(UserWarning):
    """Data that is used although something about it differs from what is on record."""


def require_package(name: str, purpose: str) -> str:
    """The message of an ImportError for an optional package: what it is for and how to install it."""
    return f"{purpose} needs {name}, which is not installed: pip install 'pstn[data]'"


# Deflate cannot expand a byte to more than 1,032: a header that promises more than that is a lie, known before reading.
MAX_RATIO = 1032
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_MOST_AXES = 32  # of any version of numpy
LONGEST_LINE = 1 << 26


def is_gzip(path: Path) -> bool:
    """Whether the file is gzipped, by its first two bytes: names lie more often than contents."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def most_unpacked(path: Path) -> int:
    """The most bytes that may come out of a compressed file or an archive: photos, numbers and text shrink by less.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.gz"
        >>> _ = path.write_bytes(bytes(100))
        >>> most_unpacked(path) >> 20
        256
    """
    return max(ARCHIVE_FREE_BYTES, ARCHIVE_RATIO * path.stat().st_size)


@contextlib.contextmanager
def open_stream(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of `path`, unpacked on the way where it is gzipped; what goes wrong on the way is a DataError."""
    try:
        if path.stat().st_size == 0:
            raise DataError(path, "is empty")
        with path.open("rb") as file:
            if file.peek(2)[:2] != _GZIP:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked)
    except EOFError as error:
        raise DataError(path, "the gzip stream ends too early: the file is truncated, fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(path, f"the gzip stream is damaged ({error}): fetch the file again") from error
    except IsADirectoryError as error:
        raise DataError(path, "is a folder, where a file is expected") from error


def bounded_read(stream: IO[bytes], count: int) -> bytearray:
    """Up to `count` bytes, taken in small portions: memory grows with what is there, not with what was promised."""
    out = bytearray()
    while len(out) < count:
        portion = stream.read(min(_CHUNK, count - len(out)))
        if not portion:
            break
        out += portion
    return out


def read_text(path: Path, *, limit: int) -> str:
    """A text file, plain or gzipped, of at most `limit` bytes, as UTF-8 with or without a byte-order mark."""
    with open_stream(path) as stream:
        limit = min(limit, most_unpacked(path))
        content = bounded_read(stream, limit + 1)
    if len(content) > limit:
        raise DataError(path, f"holds more than {limit:,} bytes of text, which is the limit")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not UTF-8 text ({error.reason})", place=f"byte {error.start}") from error


def read_lines(path: Path, *, limit: int) -> Iterator[tuple[int, str]]:
    r"""The numbered lines of a text file as for `read_text`, one at a time.

    Only "\n" ends a line, whatever else Unicode has for it: editors count lines so.
    """
    number = 0
    with open_stream(path) as stream:
        left = limit = min(limit, most_unpacked(path))
        while line := stream.readline(min(left, LONGEST_LINE) + 1):
            number += 1
            place = f"line {number}"
            left -= len(line)
            if left < 0:
                raise DataError(path, f"holds more than {limit:,} bytes of text, which is the limit", place=place)
            if len(line) > LONGEST_LINE:
                raise DataError(path, f"is longer than {LONGEST_LINE:,} bytes, which is the limit", place=place)
            if b"\0" in line:
                raise DataError(path, "is not a text file: it holds a zero byte", place=place)
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(path, f"is not UTF-8 text ({error.reason})", place=place) from error


def sha256_of_content(path: Path, *, limit: int = 1 << 34) -> str:
    """The SHA-256 of what is in a file, after unpacking: the same for a plain file and for any gzip of it."""
    digest, seen = hashlib.sha256(), 0
    with open_stream(path) as stream:
        limit = min(limit, most_unpacked(path))
        while portion := stream.read(_CHUNK):
            digest.update(portion)
            seen += len(portion)
            if seen > limit:
                raise DataError(path, f"unpacks to more than {limit:,} bytes, which is the limit")
    return digest.hexdigest()


def read_npy(path: Path, *, mmap: bool = False) -> npt.NDArray[Any]:
    """An array from a .npy file, without pickle, and only if the file is as long as its header says.

    Args:
        path: the file.
        mmap: map the file instead of reading it, copy-on-write: for arrays larger than memory.
    """
    if not path.is_file():
        raise DataError(path, "there is no such file")
    with path.open("rb") as file:
        shape, _, dtype, start = _npy_header(file, path, None)
    _check_npy_length(path, None, shape, dtype, path.stat().st_size - start)
    empty = 0 in shape
    return cast("npt.NDArray[Any]", np.load(path, allow_pickle=False, mmap_mode="c" if mmap and not empty else None))


def parse_npy(content: bytes | bytearray, path: Path, place: str) -> npt.NDArray[Any]:
    """An array from the bytes of a .npy file, without pickle; `path` and `place` are for messages."""
    shape, fortran, dtype, start = _npy_header(io.BytesIO(content), path, place)
    _check_npy_length(path, place, shape, dtype, len(content) - start)
    flat = np.frombuffer(content, dtype, offset=start)
    # Without a copy where the values lie as they should: arrays may fill half of the memory.
    return np.require(flat.reshape(shape, order="F" if fortran else "C"), requirements=("ALIGNED", "WRITEABLE"))


def _npy_header(stream: IO[bytes], path: Path, place: str | None) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except MemoryError:
        raise
    except Exception as error:  # the header is a Python literal, and its reader raises what evaluating one can raise
        raise DataError(path, f"is not a .npy file ({error})", place=place or "header") from error
    if not dtype.itemsize or len(shape) > _MOST_AXES:
        problem = f"has values of {dtype.itemsize} bytes and {len(shape)} axes: at least 1 and at most {_MOST_AXES}"
        raise DataError(path, f"{problem} are expected", place=place or "header")
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle can read: it is refused"
        raise DataError(path, problem, place=place or "header")
    return shape, fortran, dtype, stream.tell()


def _check_npy_length(path: Path, place: str | None, shape: tuple[int, ...], dtype: np.dtype[Any], held: int) -> None:
    promised = dtype.itemsize * math.prod(int(extent) for extent in shape)
    if promised != held or any(extent < 0 for extent in shape):
        problem = f"the header promises {promised:,} bytes ({dtype}, {shape}), the file holds {held:,}"
        raise DataError(path, problem, place=place or "header")


_LEADS_OUT = "leads out of the folder {}, through a link: copy what it leads to into the folder"


class Listing:
    """The files and folders below a folder: each once, and none outside it.

    Links are followed as far as they stay below the root. A file or a folder that was listed already, by another name
    or as a second hard link, is left out: it would put one picture into the training and the test part. Hidden files
    and folders are left out, too: programs keep copies of images there.

    Args:
        root: the folder to stay in; it may itself be a link.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        >>> (root / "lion").symlink_to("cat")
        >>> listing = Listing(root)
        >>> [folder.name for folder in listing.folders(root)], listing.repeated
        (['cat', 'dog'], 1)
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.outside = 0
        """Links that lead out of the root, and were left out."""
        self.repeated = 0
        """Files and folders that were listed already, and were left out."""
        self._real = os.path.realpath(root)
        self._inner = self._real.rstrip(os.sep) + os.sep
        self._seen: set[tuple[int, int]] = set()
        self._safe: set[str] = set()

    def folders(self, folder: Path, refuse: Refuse = raise_it) -> list[Path]:
        """The folders in a folder, in the order of names."""
        return self.entries(folder, (), refuse)[0]

    def files(self, folder: Path, suffixes: tuple[str, ...], refuse: Refuse = raise_it) -> Iterator[Path]:
        """The files in a folder and in those below it whose names end in one of `suffixes`, in the order of names.

        Args:
            folder: where to look: the root or below it.
            suffixes: in small letters.
            refuse: told of folders that cannot be read.
        """
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            folders, files = self.entries(place, suffixes, refuse)
            yield from files
            waiting += reversed(folders)

    def require(self, path: Path) -> Path:
        """The path, refused with a DataError where it leads out of the root."""
        folder = os.path.split(path)[0]
        if folder not in self._safe:
            if not self._stays(folder):
                raise DataError(folder, _LEADS_OUT.format(self.root))
            self._safe.add(folder)
        if path.is_symlink() and not self._stays(path):
            raise DataError(path, _LEADS_OUT.format(self.root))
        return path

    def find(self, path: Path) -> os.stat_result | None:
        """What the system says of a file below the root, None where there is none; see `require`."""
        folder = os.path.split(path)[0]
        if folder not in self._safe:
            self.require(path)
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                found = self.require(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def tell(self) -> None:
        """Warn of what was left out, if anything was."""
        told = []
        if self.outside:
            told.append(f"{self.outside:,} link(s) that lead out of the folder")
        if self.repeated:
            told.append(f"{self.repeated:,} file(s) or folder(s) that are listed under another name")
        if told:
            warnings.warn(DataWarning(f"{self.root}: left out are {' and '.join(told)}"), stacklevel=3)

    def _stays(self, path: str | os.PathLike[str]) -> bool:
        real = os.path.realpath(path)
        return real == self._real or real.startswith(self._inner)

    def entries(
        self, folder: Path, suffixes: tuple[str, ...], refuse: Refuse = raise_it
    ) -> tuple[list[Path], list[Path]]:
        """The folders and the files in a folder that were not listed yet, each in the order of names.

        Args:
            folder: where to look: the root or below it.
            suffixes: of the files, in small letters; ("",) for all.
            refuse: told of a folder that cannot be read.
        """
        folders: list[str] = []
        files: list[str] = []
        try:
            # What a link leads to is listed by its own name where both are here.
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: (entry.is_symlink(), entry.name))
            device = folder.stat().st_dev
        except OSError as error:
            refuse(DataError(folder, f"cannot be read ({error.strerror})"))
            return [], []
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            link = entry.is_symlink()
            is_folder = _is_folder(entry)
            if not is_folder and not name.lower().endswith(suffixes):
                continue
            if link and not self._stays(entry):
                self.outside += 1
                continue
            identity = _identity(entry) if link or is_folder else (device, entry.inode())
            if identity in self._seen:
                self.repeated += 1
                continue
            if identity is not None:
                self._seen.add(identity)
            (folders if is_folder else files).append(name)
        return [folder / name for name in sorted(folders)], [folder / name for name in sorted(files)]


@contextmanager
def list_folder(root: str | os.PathLike[str]) -> Iterator[Listing]:
    """A `Listing` that warns of what it left out when the block ends, with an error or without.

    Args:
        root: the folder to stay in.
    """
    listing = Listing(root)
    try:
        yield listing
    finally:
        listing.tell()


def require_inside(root: Path, path: Path) -> Path:
    """The path, refused with a DataError where it is a link that leads out of `root`, or in a folder that does.

    Args:
        root: the folder to stay in; it may itself be a link.
        path: a path below it.

    Example:
        >>> require_inside(Path("data"), Path("data/train/1.png")).name
        '1.png'
    """
    return Listing(root).require(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _identity(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """What is the same for all names of a file or folder; None for a link to nothing."""
    try:
        found = Path(entry).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


try:
    from lzma import LZMAError
except ImportError:  # Python can be built without it, and does not read .xz then
    LZMAError = EOFError  # type: ignore[misc,assignment]  # a stand-in: nothing raises the real one


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
        if isinstance(error, OSError) and error.errno is not None:
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
    left = limit
    with tarfile.open(path, tarinfo=_StrictHeader) as archive:
        for number, member in enumerate(archive):
            if number >= ARCHIVE_MEMBERS:
                raise DataError(path, f"holds more than {ARCHIVE_MEMBERS:,} files and folders, which is the limit")
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
            left -= member.size + tarfile.BLOCKSIZE
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


PART_NAMES = {"train": ("train", "training"), "validation": ("val", "valid", "validation"), "test": ("test", "testing")}
