"""Files of data: where they are kept, downloads, and reading ones of unknown quality within limits."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from pstn import limits
from pstn.decode import decoding
from pstn.files import DataError, import_optional, inside, open_regular_file, read_json, require_regular_file

__all__ = ["DataError", "DataWarning", "MissingDataError", "cache_folder", "data_folder"]

LONGEST_LINE = 1 << 26
_CHUNK = 1 << 20
_LONGEST_HEADER = 1 << 16  # of a .npy file; numpy accepts fewer bytes
_MOST_AXES = 32  # of any version of numpy
_FOLDER_BYTES = 4096  # that a new folder takes on a disk


class MissingDataError(DataError):
    """A file that is needed and missing: the message says where it was looked for and how to get it."""


class DataWarning(UserWarning):
    """Data that is used although something about it differs from what is known of it."""


ErrorHandler = Callable[[DataError], None]
"""Called with the error of each file or row that cannot be used, which is then skipped."""


def raise_error(error: DataError) -> NoReturn:
    """The `ErrorHandler` that skips nothing: the first error is raised."""
    raise error


def most_unpacked(path: Path) -> int:
    """The most bytes that a compressed file or an archive may unpack to.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.gz"
        >>> _ = path.write_bytes(bytes(100))
        >>> most_unpacked(path) >> 20
        256
    """
    return max(limits.ARCHIVE_FREE_BYTES, limits.ARCHIVE_RATIO * path.stat().st_size)


@contextmanager
def open_stream(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a regular file, unpacked while reading where it is gzipped, whatever its name."""
    with open_regular_file(path) as file:
        if cast("io.BufferedReader", file).peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(path, f"the gzip stream is truncated or damaged ({error}): fetch the file again") from error


def bounded_read(stream: IO[bytes], count: int) -> bytearray:
    """Up to `count` bytes, read in small portions: memory grows with the content, not with the size declared."""
    out = bytearray()
    while portion := stream.read(min(_CHUNK, count - len(out))):
        out += portion
    return out


def read_lines(path: Path, *, limit: int) -> Iterator[tuple[int, str]]:
    r"""The numbered lines of a text file, plain or gzipped, one at a time. Only "\n" ends a line, as in editors.

    Args:
        path: UTF-8 text, with or without a byte-order mark.
        limit: the most bytes that it may hold.
    """
    with open_stream(path) as stream:
        left = limit = min(limit, most_unpacked(path))
        number = 0
        while line := stream.readline(min(left, LONGEST_LINE) + 1):
            number, left = number + 1, left - len(line)
            try:
                if left < 0 or len(line) > LONGEST_LINE:
                    raise ValueError(f"holds more than {limit:,} bytes of text, or {LONGEST_LINE:,} in one line")
                if b"\0" in line:
                    raise ValueError("is not a text file: it holds a zero byte")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except ValueError as error:  # UnicodeDecodeError is one
                raise DataError(path, str(error), place=f"line {number}") from error


def sha256_of_content(path: Path) -> str:
    """The SHA-256 of a file after unpacking: the same for a plain file and for any gzip of it."""
    digest, left = hashlib.sha256(), most_unpacked(path)
    with open_stream(path) as stream:
        while portion := stream.read(_CHUNK):
            digest.update(portion)
            left -= len(portion)
            if left < 0:
                raise DataError(path, f"unpacks to more than {most_unpacked(path):,} bytes, which is the limit")
    return digest.hexdigest()


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a .npy file, mapped copy-on-write: it takes memory only where it is read or changed."""
    if not path.is_file():
        raise DataError(path, "there is no such file")
    with decoding(path, "is not a .npy file"):
        content = np.memmap(path, mode="c")
    return parse_npy(content, path, "header")


def parse_npy(content: Any, path: Path, place: str) -> npt.NDArray[Any]:
    """An array from the bytes of a .npy file, without pickle, and only if they are as many as its header says.

    Args:
        content: the bytes.
        path: the file that holds them, for messages.
        place: where in it.
    """
    stream = io.BytesIO(content[:_LONGEST_HEADER])
    with decoding(path, "is not a .npy file", place):
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        raise DataError(path, "holds Python objects, which only pickle can read: it is refused", place=place)
    require_shape(shape, dtype, path, place)
    declared, held = dtype.itemsize * math.prod(shape), len(content) - stream.tell()
    if not dtype.itemsize or declared != held:
        raise DataError(path, f"declares {declared:,} bytes ({dtype}, {shape}), and holds {held:,}", place=place)
    # Without a copy where the values are in order: arrays may fill half of the memory.
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return np.require(flat.reshape(shape, order="F" if fortran else "C"), requirements=("ALIGNED", "WRITEABLE"))


def read_zip_array(archive: zipfile.ZipFile, name: str, path: Path, *, limit: int) -> npt.NDArray[Any]:
    """The array of an .npz file that has this name; the other arguments are those of `read_zip_member`."""
    member = f"{name}.npy"
    return parse_npy(read_zip_member(archive, member, path, limit=limit), path, member)


def require_shape(shape: tuple[Any, ...], dtype: np.dtype[Any], path: Path, place: str = "header") -> None:
    """Refuse the shape in a file's header where no array can have it: numpy counts in 64 bits, without empty axes."""
    whole = all(type(extent) is int and extent >= 0 for extent in shape)
    if not whole or len(shape) > _MOST_AXES or dtype.itemsize * math.prod(extent or 1 for extent in shape) >> 62:
        raise DataError(path, f"has more than {_MOST_AXES} axes, or extents that no array can have", place=place)


def identity(state: os.stat_result) -> tuple[int, int]:
    """What two names of one file have in common."""
    return state.st_dev, state.st_ino


class Listing:
    """The files and folders below a folder: each once, and none outside it.

    Links are followed as far as they stay below the root. A file or a folder that was listed already, by another name
    or as a second hard link, is skipped: it would put one picture into the training and the test part. Hidden files
    and folders are skipped, too: programs keep copies of images there.

    Args:
        root: the folder to stay in; it may itself be a link.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        >>> (root / "lion").symlink_to("cat")
        >>> listing = Listing(root)
        >>> [folder.name for folder in listing.entries(root)[0]], listing.repeated
        (['cat', 'dog'], 1)
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.outside = 0
        """Links that lead out of the root, and were skipped."""
        self.repeated = 0
        """Files and folders that were listed already, and were skipped."""
        self._real = os.path.realpath(root)
        self._seen: set[object] = set()
        self._safe: set[Path] = set()

    def entries(
        self, folder: Path, suffixes: tuple[str, ...] = (), on_error: ErrorHandler = raise_error
    ) -> tuple[list[Path], list[Path]]:
        """The folders and the files in a folder that were not listed yet, each in the order of names.

        Args:
            folder: where to look: the root or below it.
            suffixes: of the files, in small letters; ("",) for all.
            on_error: called where the folder cannot be read.
        """
        folders: list[Path] = []
        files: list[Path] = []
        try:
            # Where a link and what it leads to are both here, the link is the one to skip.
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: (entry.is_symlink(), entry.name))
        except OSError as error:
            on_error(DataError(folder, f"cannot be read ({error.strerror})"))
            return [], []
        for entry in entries:
            try:
                state: os.stat_result | None = entry.stat()
            except OSError:  # a link to nothing, or a circle of links
                state = None
            is_folder = state is not None and stat.S_ISDIR(state.st_mode)
            if entry.name.startswith(".") or not (is_folder or entry.name.lower().endswith(suffixes)):
                continue
            key = entry.path if state is None else identity(state)
            if entry.is_symlink() and not self._stays(entry):
                self.outside += 1
            elif key in self._seen:
                self.repeated += 1
            else:
                self._seen.add(key)
                (folders if is_folder else files).append(folder / entry.name)
        return sorted(folders), sorted(files)

    def files(self, folder: Path, suffixes: tuple[str, ...], on_error: ErrorHandler = raise_error) -> Iterator[Path]:
        """The files in a folder and in those below it, in the order of names; the arguments are those of `entries`."""
        waiting = [folder]
        while waiting:
            folders, files = self.entries(waiting.pop(), suffixes, on_error)
            yield from files
            waiting += reversed(folders)

    def require(self, path: Path) -> Path:
        """The path; a DataError where it leads out of the root."""
        if path.parent not in self._safe or path.is_symlink():
            if not (self._stays(path.parent) and self._stays(path)):
                raise DataError(path, f"leads out of the folder {self.root}, through a link: copy the target into it")
            self._safe.add(path.parent)
        return path

    def _stays(self, path: str | os.PathLike[str]) -> bool:
        real = os.path.realpath(path)
        return real == self._real or real.startswith(self._real.rstrip(os.sep) + os.sep)


@contextmanager
def list_folder(root: str | os.PathLike[str]) -> Iterator[Listing]:
    """A `Listing` that warns of what it skipped when the block ends, with an error or without.

    Args:
        root: the folder to stay in.
    """
    listing = Listing(root)
    try:
        yield listing
    finally:
        if listing.outside or listing.repeated:
            skipped = f"{listing.outside:,} link(s) that lead out of the folder and {listing.repeated:,} file(s) or"
            message = f"{root}: skipped are {skipped} folder(s) that are listed under another name"
            warnings.warn(DataWarning(message), stacklevel=3)


def require_inside(root: Path, path: Path) -> Path:
    """The path; a DataError where it is a link that leads out of `root`, or in a folder that does.

    Args:
        root: the folder to stay in; it may itself be a link.
        path: a path below it.

    Example:
        >>> require_inside(Path("data"), Path("data/train/1.png")).name
        '1.png'
    """
    return Listing(root).require(path)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target` to fill; it becomes `target` when the block ends without an error.

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
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".", ignore_cleanup_errors=True) as private:
        work = Path(private) / target.name
        work.mkdir()  # with the user's permissions
        yield work
        try:
            work.replace(target)
        except OSError:
            if not target.is_dir():
                raise


class _ZipFile(io.FileIO):
    """The file of a zip archive. Its index, which zipfile reads at once, has a limited length."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > limits.ZIP_INDEX_BYTES:
            raise zipfile.BadZipFile(f"its index takes more than {limits.ZIP_INDEX_BYTES:,} bytes")
        return super().read(-1 if size is None else size) or b""


@contextmanager
def open_zip(path: Path, kind: str = "a zip archive") -> Iterator[zipfile.ZipFile]:
    """A zip archive, open for as long as the block runs; what is wrong with its index is a DataError.

    Args:
        path: the file.
        kind: what it should be, for the message.
    """
    require_regular_file(path)
    with _ZipFile(path) as file:
        with decoding(path, f"is not {kind}"):
            archive = zipfile.ZipFile(file)
        with archive:
            yield archive


def read_zip_member(archive: zipfile.ZipFile, member: str, path: Path, *, limit: int = 1 << 30) -> bytearray:
    """One member of a zip archive, of at most `limit` bytes and exactly as many as the archive's index says.

    Args:
        archive: the open archive.
        member: the name within it.
        path: the archive's file, for messages.
        limit: the most bytes.
    """
    with decoding(path, "cannot be unpacked", member):
        info = archive.getinfo(member)
        if info.file_size > limit:
            raise DataError(path, f"declares {info.file_size:,} bytes, above the limit of {limit:,}", place=member)
        with archive.open(info) as stream:
            content = bounded_read(stream, info.file_size + 1)
    if len(content) != info.file_size:
        raise DataError(path, f"holds {len(content):,} bytes, the index says {info.file_size:,}", place=member)
    return content


def unpack_tar(path: Path, target: Path) -> Path:
    """Unpack a tar archive, plain or compressed, into the folder `target`, whole or not at all.

    Args:
        path: the archive.
        target: the folder to make. Where it exists the archive counts as unpacked.

    Raises:
        DataError: a member leads out of the folder, is a link or a device, occurs twice, or the archive is damaged.
    """
    if target.is_dir():
        return target
    with decoding(path, "is not a whole tar archive", writes=True), whole_folder(target) as work:
        _unpack_into(path, work)
    return target


class _HeaderStream:
    """The stream of an archive while the headers of one file are read, which may take a limited number of bytes."""

    def __init__(self, stream: Any) -> None:
        self.seek, self.tell = stream.seek, stream.tell
        self._stream, self._left = stream, int(limits.TAR_HEADER_BYTES)

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"the headers of a file take more than {limits.TAR_HEADER_BYTES:,} bytes")
        return cast("bytes", self._stream.read(size))


class _StrictHeader(tarfile.TarInfo):
    """Raises for a damaged or missing header, where tarfile takes it for the end of the archive.

    tarfile reads long names, comments and maps of sparse files whole, of any length: here they have a limit.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _StrictHeader:
        stream = archive.fileobj
        archive.fileobj = _HeaderStream(stream)  # type: ignore[assignment]
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the block of zeros that ends an archive
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        finally:
            archive.fileobj = stream


def _unpack_into(path: Path, work: Path) -> None:
    folders, files, left = {work}, 0, most_unpacked(path)
    with tarfile.open(path, tarinfo=_StrictHeader) as archive:
        for number, member in enumerate(archive):
            destination = inside(work, member.name, owner=path)
            folder = destination if member.isdir() else destination.parent
            left -= tarfile.BLOCKSIZE + (member.size if member.isreg() else 0)
            depth = len(PurePosixPath(member.name).parts)
            if folder not in folders:
                folders.add(folder)
                left -= _FOLDER_BYTES * depth
            problem = None
            if number >= limits.ARCHIVE_MEMBERS or depth > limits.ARCHIVE_DEPTH:
                problem = f"is beyond the limits: more than {limits.ARCHIVE_MEMBERS:,} members, or too deep in folders"
            elif not member.isdir() and not member.isreg():
                problem = "is neither a file nor a folder: links and devices are refused"
            elif left < 0:
                problem = f"unpacks to more than the limit of {most_unpacked(path):,} bytes"
            if problem is not None:
                raise DataError(path, problem, place=member.name)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if member.isreg():
                    files += 1
                    with destination.open("xb") as file:
                        shutil.copyfileobj(cast("IO[bytes]", archive.extractfile(member)), file)
            except (FileExistsError, NotADirectoryError) as error:
                raise DataError(path, "occurs twice, or is a file and a folder at once", place=member.name) from error
        # The checksum of a compressed stream is at its end, behind what tarfile reads.
        while left > 0 and (portion := cast("IO[bytes]", archive.fileobj).read(_CHUNK)):
            left -= len(portion)
    if not files:
        raise DataError(path, "holds no files")


Root = str | os.PathLike[str] | None
Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all where known)."""

_PORTION = 1 << 14  # bytes: less than a server at the lowest accepted rate sends within the timeout


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
    home = expand("~")
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "pstn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "pstn" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "pstn"


def expand(path: str) -> Path:
    """The path with "~" or "~name" at its start replaced by that user's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(path, f"is in a home folder that is not known ({error})") from error


def offline() -> bool:
    """Whether $PSTN_OFFLINE forbids the use of the network."""
    return os.environ.get("PSTN_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def search_folders(kind: str, root: Root = None) -> list[Path]:
    """The folders in which the files of `kind` (e.g. "mnist") are looked for, in order.

    Args:
        kind: the name of the subfolder, e.g. "ucr".
        root: a folder of the caller's choice; then only `root/kind` and `root` itself are searched.

    Example:
        >>> [f.as_posix() for f in search_folders("mnist", root="here")]
        ['here/mnist', 'here']
    """
    if root is not None:
        return [Path(root) / kind, Path(root)]
    given = data_folder()
    return ([given / kind] if given is not None else []) + [cache_folder() / kind]


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded: its name and folder here, its checksum, and the mirrors that serve it.

    Attributes:
        folder: subfolder of $PSTN_DATA and of the cache, e.g. "mnist".
        name: file name.
        urls: the mirrors, tried in order.
        sha256: of the file as served; None where the publisher does not fix it.
        size: in bytes; the most bytes to accept where the publisher does not fix it.
        content_sha256: of the file after unpacking, where known.
    """

    folder: str
    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    size: int = 1 << 31
    content_sha256: str | None = None


CHECKSUMS: dict[str, Any] = read_json(Path(__file__).parent / "offline" / "checksums.json")
"""The files of MNIST and FashionMNIST with their mirrors, and what is known of some sets of the UCR archive."""


def locate(
    kind: str, name: str, find: Callable[[Path], Path | None], *, advice: str, root: Root = None,
    obtain: Callable[[], object] | None = None,
) -> Path:  # fmt: skip
    """The path of a file or folder of data, downloaded first where it is missing.

    Args:
        kind: the subfolder of `search_folders`.
        name: of what is looked for, for the message.
        find: returns its path in one of these folders, or None.
        advice: how to get it, for the message.
        root: look here only, and do not download.
        obtain: downloads it into the cache; not called where $PSTN_OFFLINE forbids the use of the network.

    Raises:
        MissingDataError: it is missing, and downloading it failed or was not allowed; where it was looked for.
    """
    folders = search_folders(kind, root)
    for attempt in range(2):
        for folder in folders:
            if (path := find(folder)) is not None:
                return path if path == folder else require_inside(folder, path)
        if attempt or root is not None or obtain is None or offline():
            break
        try:
            obtain()
        except (DataError, ImportError) as error:
            advice = f"downloading it failed ({error}): try again later, or put it into one of these folders"
    places = ", ".join(map(str, folders))
    if root is None:
        places += "" if data_folder() else " ($PSTN_DATA is not set)"
        places += "; nothing is downloaded, as $PSTN_OFFLINE is set" if offline() else ""
    raise MissingDataError(name, f"is missing; looked in {places}; {advice}")


def locate_file(remote: RemoteFile, *, root: Root = None, fetch: bool = True, progress: Progress | None = None) -> Path:
    """The path of a file, as named or unpacked, downloaded into the cache first where it is missing.

    Args:
        remote: the file.
        root: look here only, and do not download.
        fetch: whether the network may be used; $PSTN_OFFLINE forbids it too.
        progress: called during a download.
    """

    def find(folder: Path) -> Path | None:
        paths = (folder / name for name in (remote.name, remote.name.removesuffix(".gz")))
        return next((path for path in paths if path.is_file()), None)

    def obtain() -> Path:
        return download(remote, cache_folder() / remote.folder, progress=progress)

    advice = f"to get it: pstn data get {remote.folder}"
    return locate(remote.folder, remote.name, find, advice=advice, root=root, obtain=obtain if fetch else None)


def download(
    remote: RemoteFile, folder: Path, *, progress: Progress | None = None, timeout: float = 20.0, pause: float = 1.0
) -> Path:
    """Download a file into `folder`, mirror by mirror, and return its path.

    pooch verifies the checksum and moves the file to its name. Each mirror is asked twice. A broken transfer is
    resumed, on the next mirror too, where a checksum is known; if the checksum is then wrong, the next request is for
    the whole file. A failed download leaves nothing behind; an interrupted one leaves a hidden ".part" file, which the
    next one continues.

    Args:
        remote: what to download.
        folder: where to put it. Processes that download the same file into it share the ".part" file: where no checksum
            is known, which would reveal a mixture, it must be a folder of this process alone.
        progress: called with the number of bytes so far, from another thread.
        timeout: seconds without a byte, or with fewer than `DOWNLOAD_RATE` a second, until a request is given up.
        pause: seconds to wait between two requests to a mirror.

    Raises:
        DataError: no mirror served the file; the message says what each one did.
    """
    pooch = import_optional("pooch", "pooch", "data")
    known_hash = None if remote.sha256 is None else f"sha256:{remote.sha256}"
    failures: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    transfer = _Transfer(folder / f".{remote.name}.part", remote, timeout, progress)
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # pooch reports each step on stderr
    try:
        for url in remote.urls:
            for attempt in range(2):
                time.sleep(pause * attempt)
                try:
                    return Path(pooch.retrieve(url, known_hash, remote.name, folder, downloader=transfer))
                except Exception as error:  # a wrong checksum; anything of the network or the disk
                    failures.append(f"{url}: {' '.join(str(error).split())[:200]}")
        raise DataError(folder / remote.name, "; ".join(dict.fromkeys(failures)))
    except Exception:  # but an interrupt leaves the part
        transfer.part.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            folder.rmdir()
        raise
    finally:
        logger.setLevel(level)


class _Transfer:
    """Downloads one URL for pooch: continues `part`, and renames it when it is complete.

    The transfer runs in a thread, as a server that sends single bytes restarts every timeout of a socket. Once it is
    given up, the thread writes nothing more and ends with its connection.
    """

    def __init__(self, part: Path, remote: RemoteFile, timeout: float, progress: Progress | None) -> None:
        self.part, self.remote, self.timeout, self.progress = part, remote, timeout, progress
        self.received = 0

    def __call__(self, url: str, output_file: str, pooch: Any = None, check_only: bool = False) -> None:
        errors: list[BaseException] = []
        given_up = threading.Event()

        def run() -> None:
            try:
                self._receive(url, given_up)
            except BaseException as error:  # raised again in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                before = self.received
                thread.join(self.timeout)
                if thread.is_alive() and self.received - before < limits.DOWNLOAD_RATE * self.timeout:
                    raise OSError("no answer within the time limit, or too few bytes a second")
        finally:
            given_up.set()
        for error in errors:
            raise error
        self.part.replace(output_file)  # pooch made a private file; the part obeys the user's umask

    def _receive(self, url: str, given_up: threading.Event) -> None:
        import requests

        start = self.part.stat().st_size if self.part.exists() and self.remote.sha256 is not None else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == 416:  # the part does not fit the file, or ranges are not served
                self.part.unlink(missing_ok=True)
            response.raise_for_status()
            done = start if response.status_code == 206 else 0
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdigit() else None
            with self.part.open("r+b" if self.part.exists() else "wb", buffering=0) as file:
                file.truncate(done)
                file.seek(done)
                # Undecoded: a .gz must not be unpacked because a server labels it so.
                for portion in response.raw.stream(_PORTION, decode_content=False):
                    if given_up.is_set():
                        return
                    file.write(portion)
                    done += len(portion)
                    self.received += len(portion)
                    if done > self.remote.size:
                        raise OSError(f"the server sends more than the {self.remote.size:,} bytes expected")
                    if self.progress is not None:
                        self.progress(self.remote.name, done, total)
