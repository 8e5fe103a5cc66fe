"""How every command fails: one message on standard error and an exit code, never a traceback for a user's mistake.

Exit codes: 0, it is done; 2, something that was given cannot be used; 1, something else failed, such as a full disk.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from pstn.text import printable

__all__ = ["MISTAKE", "echo", "plain_errors"]

FAILURE, MISTAKE = 1, 2
_MISTAKES = (
    ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError,
    NotADirectoryError,
)  # fmt: skip
# Of torch, on the CPU, where it has no class for it.
_NO_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate memory|not enough memory)")


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, on standard error where `err`, without the control characters that names of files may hold."""
    typer.echo(printable(text), err=err)


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
            echo(f"note: {message}", err=True)

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
    except Exception as error:
        told = _failure(error)
        if told is None:  # a bug
            raise
        _stop(told, FAILURE)


def _failure(error: Exception) -> str | None:
    """What to tell of errors that others raise where the machine or a file fails; None for any other.

    A package that has not been imported has raised nothing: so it need not be imported to know its errors.
    """
    full_disk = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if full_disk is not None and isinstance(error, full_disk):
        return str(error)
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    out_of_memory = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    if (out_of_memory is not None and isinstance(error, out_of_memory)) or _NO_MEMORY.search(text):
        size = re.search(r"tried to allocate ([\d.]+ \w+)", text, re.IGNORECASE)
        wanted = f" for {size[1]} more" if size else ""
        return f"there is not enough memory{wanted}: try a smaller --batch-size or fewer --samples"
    if _raised_in(error).partition(".")[0] == "zipfile":
        return f"an archive (.npz or .zip) is damaged, or packed in a way that Python cannot read ({text}): get it anew"
    return None


def _raised_in(error: Exception) -> str:
    """The module whose line raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


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
    echo(f"error: {message}", err=True)
    raise typer.Exit(code) from None
