"""Ctrl-C that asks instead of tearing a step apart."""

from __future__ import annotations

import signal
import types
from typing import final

__all__ = ["Interrupt"]


@final
class Interrupt:
    """Turns the first Ctrl-C into a question, asked between rounds; a second one is the usual KeyboardInterrupt."""

    asked = False

    def __enter__(self) -> Interrupt:
        try:
            self._before = signal.signal(signal.SIGINT, self._ask)
        except ValueError:  # not in the main thread: Ctrl-C is somebody else's
            self._before = None
        return self

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
