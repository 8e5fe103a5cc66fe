"""Ctrl-C, and the SIGTERM that clusters send before they kill, as a question instead of a torn step."""

from __future__ import annotations

import signal
import types
from contextlib import suppress
from typing import Any, final

__all__ = ["Interrupt"]


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
            signal.signal(number, before)
