"""Ctrl-C, and the SIGTERM that clusters send before they kill, as a question instead of a torn step."""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

__all__ = ["Interrupt", "sigterm_as_ctrl_c"]


@final
class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a question, asked between rounds; the next is a KeyboardInterrupt."""

    asked = False

    def __enter__(self) -> Interrupt:
        self._before: dict[signal.Signals, Any] = {}
        with suppress(ValueError):  # not in the main thread: signals are somebody else's
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            if before is not None:  # else it is not Python's, and cannot be put back
                signal.signal(number, before)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, for work that tidies up after that."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not in the main thread: signals are somebody else's
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
