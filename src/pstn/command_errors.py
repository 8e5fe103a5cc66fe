"""How every command fails: one message on standard error and an exit code, never a traceback for a user's mistake.

Exit codes: 0, it is done; 2, something that was given cannot be used; 1, something else failed, such as a full disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

__all__ = ["MISTAKE", "plain_errors"]

FAILURE, MISTAKE = 1, 2
_MISTAKES = (
    ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError,
    NotADirectoryError,
)  # fmt: skip


@contextmanager
def plain_errors(notes: type[Warning] = UserWarning) -> Iterator[None]:
    """Turn what goes wrong in the block into a message and an exit code.

    Args:
        notes: the kind of warnings to show, as notes; others are for developers.
    """

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if issubclass(category, notes):
            typer.echo(f"note: {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", notes)
            warnings.showwarning = show
            yield
    except BrokenPipeError:  # whoever read the output has seen enough; typer knows what to do
        raise
    except ModuleNotFoundError:  # pstn.cli says which extra to install
        raise
    except _MISTAKES as error:
        _stop(_words(error) or type(error).__name__, MISTAKE)
    except (OSError, MemoryError) as error:
        _stop(_words(error) or "there is not enough memory", FAILURE)


def _words(error: BaseException) -> str:
    """What to tell: of the system's errors, the file and what is wrong with it, without their numbers."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    name = error.filename2 or error.filename  # of two, the second is where it was to go
    if not isinstance(name, str):
        return str(error)
    advice = "; you may not read or write there" if isinstance(error, PermissionError) else ""
    return f"{name}: {error.strerror}{advice}"


def _stop(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code) from None
