"""Where data is kept on this machine, and downloads that are checked, resumed and atomic."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pstn.data.files import DataError, MissingDataError, require_inside, require_package
from pstn.limits import DOWNLOAD_RATE

__all__ = ["cache_folder", "data_folder"]

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all where known)."""

_CHUNK = 1 << 14  # less than a server at the lowest accepted rate sends within the timeout
_IDLE = 60.0  # seconds without a write after which nobody is writing a part file


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


def search_folders(kind: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
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
        size: in bytes, where known.
        get: the name by which `pstn data get` fetches it.
        limit: the most bytes to accept where the size is not known.
        content_sha256: of the file after unpacking, where known.
    """

    folder: str
    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    size: int | None = None
    get: str = ""
    limit: int = 1 << 31
    content_sha256: str | None = None


def find_file(remote: RemoteFile, *, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The file where it already exists, as named or unpacked, or None."""
    for folder in search_folders(remote.folder, root):
        for name in (remote.name, remote.name.removesuffix(".gz")):
            if (folder / name).is_file():
                return require_inside(folder, folder / name)
    return None


def locate(
    remote: RemoteFile, *, root: str | os.PathLike[str] | None = None, fetch: bool = True,
    progress: Progress | None = None, find: Callable[[], Path | None] | None = None,
    obtain: Callable[[], object] | None = None,
) -> Path:  # fmt: skip
    """The path of the file, downloaded into the cache first where it is missing.

    Args:
        remote: the file.
        root: look here only, and do not download.
        fetch: whether the network may be used; $PSTN_OFFLINE forbids it too.
        progress: called during a download.
        find: returns the file where it exists already; `find_file` where None.
        obtain: downloads it; `download` where None.

    Raises:
        MissingDataError: the file is missing, and downloading it failed or was not allowed; where it was looked for.
    """
    find = find or (lambda: find_file(remote, root=root))
    obtain = obtain or (lambda: download(remote, cache_folder() / remote.folder, progress=progress))
    found, advice = find(), f"to get it: pstn data get {remote.get or remote.folder}"
    if found is None and root is None and fetch and not offline():
        try:
            obtain()
            found = find()
        except (DataError, ImportError) as error:
            reason = getattr(error, "problem", error)
            advice = f"downloading it failed: {reason}; try again later, or put it into one of these folders"
    if found is not None:
        return found
    places = ", ".join(map(str, search_folders(remote.folder, root)))
    if root is None:
        places += "" if data_folder() else " ($PSTN_DATA is not set)"
        places += "; nothing is downloaded, as $PSTN_OFFLINE is set" if offline() else ""
    raise MissingDataError(remote.name, f"is missing; looked in {places}; {advice}")


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
        folder: where to put it.
        progress: called with the number of bytes so far, from another thread.
        timeout: seconds without a byte, or with fewer than `DOWNLOAD_RATE` a second, until a request is given up.
        pause: seconds to wait between two requests to a mirror.

    Raises:
        DataError: no mirror served the file; the message says what each one did.
    """
    try:
        import pooch
    except ImportError as error:
        raise ImportError(require_package("pooch", "downloading data")) from error

    known_hash = None if remote.sha256 is None else f"sha256:{remote.sha256}"
    failures: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    transfer = _Transfer(_claim_part(folder, remote.name), remote, timeout, progress)
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # pooch reports each step on stderr
    try:
        for url in remote.urls:
            for attempt in range(2):
                time.sleep(pause * attempt)
                try:
                    return Path(pooch.retrieve(url, known_hash, remote.name, folder, downloader=transfer))
                except (ValueError, OSError) as error:  # a wrong checksum; anything of the network or the disk
                    failures.append(f"{url}: {' '.join(str(error).split())[:200]}")
        raise DataError(folder / remote.name, "; ".join(dict.fromkeys(failures)))
    except Exception:
        transfer.part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
        raise
    except BaseException:  # an interrupt: the next download may continue at once
        with contextlib.suppress(OSError):
            os.utime(transfer.part, (0, 0))
        raise
    finally:
        logger.setLevel(level)


def _claim_part(folder: Path, name: str) -> Path:
    """A part file for this download alone: one that a stopped process left, renamed, or a new one."""
    part = folder / f".{name}.{uuid.uuid4().hex}.part"
    for left in folder.glob(f".{name}.*part"):
        with contextlib.suppress(OSError):  # another process was faster
            if time.time() - left.stat().st_mtime > _IDLE:
                left.rename(part)
                break
    return part


class _Transfer:
    """Downloads one URL for pooch: continues `part`, and renames it when it is complete.

    The transfer runs in a thread, as a server that sends single bytes restarts every timeout of a socket. Once it is
    given up, the thread writes nothing more and ends with its connection.
    """

    def __init__(self, part: Path, remote: RemoteFile, timeout: float, progress: Progress | None) -> None:
        self.part, self.remote, self.timeout, self.progress = part, remote, timeout, progress
        self.received = 0

    def __call__(self, url: str, output_file: str, pooch: Any = None, check_only: bool = False) -> None:
        outcome: Future[None] = Future()
        given_up = threading.Event()
        threading.Thread(target=self._run, args=(url, given_up, outcome), daemon=True).start()
        try:
            before = self.received
            while not wait([outcome], self.timeout).done:
                if self.received - before < DOWNLOAD_RATE * self.timeout:
                    raise OSError("no answer within the time limit, or too few bytes a second")
                before = self.received
        finally:
            given_up.set()
        outcome.result()
        self.part.replace(output_file)  # pooch made a private file; the part obeys the user's umask

    def _run(self, url: str, given_up: threading.Event, outcome: Future[None]) -> None:
        try:
            self._receive(url, given_up)
            outcome.set_result(None)
        except BaseException as error:  # raised again in the thread that waits
            outcome.set_exception(error)

    def _receive(self, url: str, given_up: threading.Event) -> None:
        import requests
        import urllib3

        most = self.remote.limit if self.remote.size is None else self.remote.size
        start = self.part.stat().st_size if self.part.exists() and self.remote.sha256 is not None else 0
        start = start if start <= most else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == 416:  # the part does not fit the file, or ranges are not served
                self.part.unlink(missing_ok=True)
            response.raise_for_status()
            done = start if response.status_code == 206 else 0
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdigit() else self.remote.size
            with self.part.open("r+b" if self.part.exists() else "wb", buffering=0) as file:
                file.truncate(done)
                file.seek(done)
                try:
                    # Undecoded: a .gz must not be unpacked because a server labels it so.
                    for portion in response.raw.stream(_CHUNK, decode_content=False):
                        if given_up.is_set():
                            return
                        file.write(portion)
                        done += len(portion)
                        self.received += len(portion)
                        if done > most:
                            raise OSError(f"the server sends more than the {most:,} bytes expected")
                        if self.progress is not None:
                            self.progress(self.remote.name, done, total)
                except urllib3.exceptions.HTTPError as error:
                    raise OSError(str(error)) from error
        if total is not None and done < total:
            raise OSError(f"the connection closed after {done:,} of {total:,} bytes")
