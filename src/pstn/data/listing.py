"""Listing the files of a data folder: links stay inside, and nothing is listed twice."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pstn.data.errors import DataError, DataWarning, Refuse, raise_it

__all__ = ["Listing", "list_folder", "require_inside"]

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
