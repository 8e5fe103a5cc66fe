"""Starting processes of Python: none of them imports anything from the current folder.

Python is started as `python -c ...` by `multiprocessing`, for workers and for its own helpers, and then has the current
folder first on its import path: a folder of data may hold a `multiprocessing.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess

__all__ = ["interrupts_held", "loader_context", "safe_import_path", "spawn_context"]

_VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_import_path() -> Iterator[None]:
    """Processes of Python that are started in the block do not import from the current folder.

    Raises:
        RuntimeError: Python was started with -E and without -P, so that they cannot be told.

    Example:
        >>> import subprocess, sys
        >>> with safe_import_path():
        ...     shown = subprocess.run([sys.executable, "-c", "import sys; print('' in sys.path)"], capture_output=True)
        >>> shown.stdout.strip()
        b'False'
    """
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise RuntimeError("Python was started with -E, and its processes would import from this folder: add -P")
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


class _Process(SpawnProcess):
    def start(self) -> None:
        with safe_import_path():
            super().start()


class _Context(SpawnContext):
    Process = _Process


def spawn_context() -> SpawnContext:
    """The context of `multiprocessing` in which this package starts its workers.

    Example:
        >>> spawn_context().get_start_method()
        'spawn'
    """
    return _Context()


def loader_context() -> BaseContext | None:
    """What to pass to a DataLoader with workers as `multiprocessing_context`: the platform's own way, with care.

    The helpers that `multiprocessing` has beside the workers are started here.
    """
    method = multiprocessing.get_start_method()
    with safe_import_path():
        if hasattr(signal, "pthread_sigmask"):  # not on Windows, which has none of them
            resource_tracker.ensure_running()
        if method == "forkserver":
            from multiprocessing import forkserver

            forkserver.ensure_running()
    return spawn_context() if method == "spawn" else None


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is over. Ignored for so long, they would be lost."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    with safe_import_path():
        resource_tracker.ensure_running()  # else it is started in the block, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
