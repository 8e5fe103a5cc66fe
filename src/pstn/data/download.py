"""Where data is kept on this machine, and downloads that are checked, resumed and atomic."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pstn.data.files import DataError, MissingDataError, require_inside, require_package
from pstn.limits import DOWNLOAD_RATE

__all__ = ["cache_folder", "data_folder"]


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


Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all where known)."""
_CHUNK = 1 << 14  # what a server at the lowest rate sends within the timeout


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be fetched: its name and folder here, its checksum, and the mirrors that serve it.

    Attributes:
        folder: subfolder of $PSTN_DATA and of the cache, e.g. "mnist".
        name: file name.
        urls: the mirrors, tried in order.
        sha256: of the file as served; None where the publisher does not fix it.
        size: in bytes, where known: for the progress bar, and to refuse a download that does not end.
        limit: the most bytes to accept where the size is not known.
        get: the name by which `pstn data get` fetches it.
    """

    folder: str
    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    size: int | None = None
    get: str = ""
    limit: int = 1 << 31

    @property
    def most(self) -> int:
        """The most bytes that may arrive."""
        return self.limit if self.size is None else self.size


def find_file(remote: RemoteFile, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The file where it already lies, as named or unpacked, or None."""
    names = [remote.name] + ([remote.name.removesuffix(".gz")] if remote.name.endswith(".gz") else [])
    for folder in search_folders(remote.folder, root):
        for name in names:
            if (folder / name).is_file():
                return require_inside(folder, folder / name)
    return None


def locate(
    remote: RemoteFile,
    *,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The file where it lies, fetched into the cache first where it lies nowhere.

    Args:
        remote: the file.
        root: look here only, and do not fetch.
        fetch: whether the network may be used; $PSTN_OFFLINE forbids it too.
        progress: told how far a download is.

    Raises:
        MissingDataError: the file is nowhere, and it could not be, or was not to be, fetched.
    """
    found = find_file(remote, root=root)
    if found is not None:
        return found
    failure = ""
    if root is None and fetch and not offline():
        try:
            return download(remote, cache_folder() / remote.folder, progress=progress)
        except (DataError, ImportError) as error:
            failure = str(getattr(error, "problem", error))
    raise missing(remote, root, failure)


def missing(remote: RemoteFile, root: str | os.PathLike[str] | None, failure: str = "") -> MissingDataError:
    """The error for a file that is nowhere: which file, where it was looked for, and how to get it.

    Args:
        remote: the file.
        root: the one folder it was looked for in, if it was one.
        failure: why downloading it failed, if that was tried.
    """
    places = ", ".join(str(folder) for folder in search_folders(remote.folder, root))
    if root is None and not os.environ.get("PSTN_DATA", "").strip():
        places += " ($PSTN_DATA is not set)"
    if root is None and offline():
        places += "; nothing is fetched, as $PSTN_OFFLINE asks"
    if failure:  # what would only try the same again is no advice
        advice = f"downloading it failed: {failure}; try again later, or put it into a folder that is looked in"
    else:
        advice = f"to get it: pstn data get {remote.get or remote.folder}"
    return MissingDataError(remote.name, f"is missing; looked in {places}; {advice}")


def download(
    remote: RemoteFile,
    folder: Path,
    *,
    progress: Progress | None = None,
    timeout: float = 20.0,
    rounds: int = 2,
    pause: float = 1.0,
) -> Path:
    """Fetch a file into `folder`, mirror by mirror, and return its path.

    A connection that breaks is taken up again where it broke, on the next mirror too, as long as a checksum guards the
    result; where the pieces turn out not to fit together, the mirror is asked for the whole file. A download that
    fails for good leaves nothing behind; one whose process was stopped leaves a hidden ".part" file that the next one
    continues. The file appears under its name only once its checksum is right.

    Args:
        remote: what to fetch.
        folder: where to put it.
        progress: told how far it is.
        timeout: seconds without a byte, or with fewer than `DOWNLOAD_RATE` a second, after which a mirror counts as
            stalled.
        rounds: how often to go through the mirrors.
        pause: seconds to wait between rounds.

    Raises:
        DataError: no mirror served the file; the message says what each one did.
    """
    try:
        import pooch
    except ImportError as error:
        raise ImportError(require_package("pooch", "downloading data")) from error

    known = None if remote.sha256 is None else f"sha256:{remote.sha256}"
    reasons: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    with _tidy(folder), _part_file(folder, remote.name) as part, _quiet(pooch.get_logger()):
        for turn in range(rounds):
            if turn:
                time.sleep(pause)
            for url in remote.urls:
                fetcher = _Fetcher(part, remote, timeout, progress)
                for _ in range(2):
                    try:
                        return Path(pooch.retrieve(url, known, remote.name, folder, downloader=fetcher))
                    except (_Broken, ValueError, OSError) as error:
                        reasons.append(f"{url}: {' '.join(str(error).split())}")
                        # A wrong checksum may be the fault of the piece that was there before: this mirror has not
                        # been heard yet. The piece is gone, so that the second try is for the whole.
                        if not (isinstance(error, ValueError) and fetcher.continued):
                            break
        raise DataError(folder / remote.name, "; ".join(dict.fromkeys(reasons)))


class _Broken(Exception):
    """A transfer that did not finish."""


_TOO_SLOW = "no answer within the time limit, or a trickle of bytes"


class _Fetcher:
    """What pooch calls to fetch one URL: it continues `part`, and hands it over when complete."""

    def __init__(self, part: Path, remote: RemoteFile, timeout: float, progress: Progress | None) -> None:
        self.part, self.remote, self.timeout, self.progress = part, remote, timeout, progress
        self.continued = False  # whether the last call added to what another one had fetched

    def __call__(self, url: str, output_file: str, pooch: Any = None, check_only: bool = False) -> None:
        import requests
        import urllib3

        done = self.part.stat().st_size if self.part.exists() else 0
        if self.remote.sha256 is None or done > self.remote.most:
            done = 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        try:
            with contextlib.closing(_Arrival(url, headers, self.timeout)) as arrival:
                response = arrival.response()
                if response.status_code == 416 and done:  # the part does not fit the file, or parts are not served
                    self.part.unlink()
                    return self(url, output_file, pooch)
                response.raise_for_status()
                self.continued = done > 0 and response.status_code == 206
                self._store(arrival, response, done if self.continued else 0)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _Broken(_reason(error)) from error
        # pooch made its temporary file private; a data file should obey the user's umask, as the part does.
        self.part.replace(output_file)

    def _store(self, arrival: _Arrival, response: Any, start: int) -> None:
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else self.remote.size
        done = start
        with self.part.open("r+b" if self.part.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            for portion in arrival.portions():
                file.write(portion)
                done += len(portion)
                if done > self.remote.most:
                    raise _Broken(f"the server sends more than the {self.remote.most:,} bytes expected")
                if self.progress is not None:
                    self.progress(self.remote.name, done, total)
        if total is not None and done < total:
            raise _Broken(f"the connection closed after {done:,} of {total:,} bytes")


class _Arrival:
    """What a server sends, read in a thread: a server that drips bytes restarts every timeout of a socket.

    Whoever waits here gives up in time, whatever the thread waits for; the thread itself writes nothing, and ends with
    the connection or the process.
    """

    def __init__(self, url: str, headers: dict[str, str], timeout: float) -> None:
        self._timeout = timeout
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=64)
        self._closed = threading.Event()
        threading.Thread(target=self._read, args=(url, headers), daemon=True).start()

    def response(self) -> Any:
        """The response, with its headers; they may take as long as three timeouts."""
        return self._next(3 * self._timeout)

    def portions(self) -> Iterator[bytes]:
        """The content, as long as it arrives at the lowest rate at least."""
        begun, count = time.monotonic(), 0
        while (portion := self._next(begun + self._timeout - time.monotonic())) is not None:
            yield portion
            count += len(portion)
            if time.monotonic() - begun > self._timeout:
                if count < DOWNLOAD_RATE * self._timeout:
                    raise _Broken(_TOO_SLOW)
                begun, count = time.monotonic(), 0

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _next(self, seconds: float) -> Any:
        try:
            found = self._queue.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            raise _Broken(_TOO_SLOW) from None
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self, url: str, headers: dict[str, str]) -> None:
        import requests

        try:
            with requests.get(url, headers=headers, stream=True, timeout=self._timeout) as response:
                self._put(response)
                # As served: a .gz must not be unpacked on the way because a server labels it so.
                for portion in response.raw.stream(_CHUNK, decode_content=False):
                    self._put(portion)
                    if self._closed.is_set():
                        return
                self._put(None)
        except Exception as error:  # for the one who waits
            self._put(error)

    def _put(self, item: Any) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                return self._queue.put(item, timeout=0.1)


@contextlib.contextmanager
def _tidy(folder: Path) -> Iterator[None]:
    """Remove the folder again where a failure leaves it empty."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


@contextlib.contextmanager
def _part_file(folder: Path, name: str) -> Iterator[Path]:
    """Where an unfinished download lives. It survives a stopped process, so that the next one can continue."""
    shared = folder / f".{name}.part"
    with _lock(folder / f".{name}.lock") as owned:
        part = shared if owned else folder / f".{name}.{os.getpid()}-{threading.get_ident()}.part"
        try:
            yield part
        except BaseException as error:
            if not owned or isinstance(error, Exception):
                part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether this process alone holds `path`. Where files cannot be locked, nobody does, and parts are not shared."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    file: IO[bytes] = path.open("wb")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed by its last holder between our opening and our locking it.
            held = os.fstat(file.fileno()).st_ino == path.stat().st_ino
        except OSError:
            held = False
        if not held:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
    finally:
        file.close()


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Pooch reports each step on stderr; our progress bar and messages say it already."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error: Exception) -> str:
    """The first sentence of a network error: the rest is a chain of object addresses."""
    text = str(error)
    for cause, words in (
        ("timed out", "no answer within the time limit"),
        ("Name or service not known", "the host name does not resolve: no network?"),
        ("NameResolutionError", "the host name does not resolve: no network?"),
        ("Connection refused", "connection refused"),
        ("IncompleteRead", "the connection closed before the file was complete"),
        ("Connection reset", "the connection was reset"),
    ):
        if cause in text:
            return words
    return text[:200] or type(error).__name__
