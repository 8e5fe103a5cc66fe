"""Python processes: their memory, and what they import: nothing from the current folder, or what was asked for.

`multiprocessing` starts its workers and helper processes as `python -c ...`, which puts the current folder first on
their import path, and a folder of data may contain a `multiprocessing.py`.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from typing import Any

_VARIABLE = "PYTHONSAFEPATH"
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


class UnsafePathError(RuntimeError):
    """Python processes would import from the current folder."""


@contextmanager
def safe_import_path() -> Iterator[None]:
    """Python processes started in the block do not import from the current folder.

    Raises:
        UnsafePathError: Python was started with -E and without -P, so that they would ignore the setting.

    Example:
        >>> import subprocess, sys
        >>> with safe_import_path():
        ...     shown = subprocess.run([sys.executable, "-c", "import sys; print('' in sys.path)"], capture_output=True)
        >>> shown.stdout.strip()
        b'False'
    """
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise UnsafePathError("Python was started with -E, and its processes would import from this folder: add -P")
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        os.environ.update({} if before is None else {_VARIABLE: before})


def is_object_name(text: str) -> bool:
    """Whether a text has the form "MODULE:NAME".

    Example:
        >>> is_object_name("my_networks:small"), is_object_name("weights.pth"), is_object_name("C:/weights.pth")
        (True, False, False)
    """
    return re.fullmatch(r"[\w.]+:\w+", text) is not None


def import_object(name: str, argument: str) -> Any:
    """Import the object called "MODULE:NAME", from the current folder if it is there.

    Call it with what a user typed, never with a name from a file.

    Args:
        name: a module and the name of an object in it.
        argument: what the user gave it for, for messages.

    Raises:
        ValueError: it cannot be imported.

    Example:
        >>> import_object("math:pi", "constant")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{argument} {name} cannot be imported: {error}") from error
    finally:
        sys.path.remove("")


class _Process(SpawnProcess):
    def start(self) -> None:
        with safe_import_path():
            super().start()


class _Context(SpawnContext):
    Process = _Process


def spawn_context() -> SpawnContext:
    """The `multiprocessing` context in which this package starts its workers.

    Example:
        >>> spawn_context().get_start_method()
        'spawn'
    """
    return _Context()


def loader_context() -> BaseContext | None:
    """The `multiprocessing_context` of a DataLoader with workers: the platform's start method, with a safe import path.

    The helper processes of `multiprocessing` are started here.
    """
    method = multiprocessing.get_start_method()
    with safe_import_path():
        if hasattr(signal, "pthread_sigmask"):  # not on Windows, which has none of them
            resource_tracker.ensure_running()
        if method == "forkserver":
            forkserver.ensure_running()
    return spawn_context() if method == "spawn" else None


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block; signals that are ignored would be lost."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    with safe_import_path():
        resource_tracker.ensure_running()  # if it started in the block, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where it runs on glibc.

    glibc returns every large block to the system, which then clears the pages of the next one: in training steps with
    large tensors on a CPU that can take longer than the arithmetic. The process stays as large as it ever was.
    """
    with suppress(OSError, TypeError, AttributeError):  # other systems have no such function
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_TRIM_THRESHOLD, -1)


def require_free_port(host: str, port: int) -> None:
    """Refuse an address that a server could not listen on.

    Args:
        host: a name or an address of this machine.
        port: from 1.

    Raises:
        ValueError: the port is in use, or the address is not one of this machine's.
    """
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"cannot listen on --host {host} --port {port}: {reason}; try another") from None
