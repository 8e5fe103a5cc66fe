"""What can be wrong with data, said so that the reader knows which file to open and where to look."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from pstn.files import FileError

__all__ = ["DataError", "DataWarning", "MissingDataError", "Refuse", "raise_it", "require_package"]


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
