"""What a run shows while it trains: a bar on a terminal, with rich; anywhere else a line now and then, if asked for."""

from __future__ import annotations

import math
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, final

from pstn.training.population.trainer import Progress


def summary(progress: Progress, models: int) -> dict[str, str]:
    """The latest figures as text: means over the models that have not failed.

    Example:
        >>> summary(Progress(), models=1)
        {}
    """
    if not progress.history:
        return {}
    last, broken = progress.history[-1], {failure.model for failure in progress.failures}
    shown = {"speed": f"{progress.step * models / max(progress.seconds, 1e-9):,.0f} steps/s"}
    for name, label, form in (("accuracy", "accuracy", ".1%"), ("kl", "KL", ".2f"), ("loss", "loss", ".3f")):
        values = [v for model, v in enumerate(last.get(name, ())) if model not in broken and math.isfinite(v)]
        if values:
            shown = {label: format(sum(values) / len(values), form), **shown}
    return shown


@final
class Bar:
    """A progress bar on a terminal where rich is installed; quiet elsewhere.

    Args:
        total: how much there is to do.
        completed: how much of it is done already.
        shown: False for none at all.
    """

    def __init__(self, total: float, completed: float = 0, *, shown: bool = True) -> None:
        self._bar: Any = None
        if shown and sys.stderr is not None and sys.stderr.isatty():  # None in services
            with suppress(ImportError):
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

                columns = (BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
                self._bar = Progress("{task.description}", *columns, console=Console(stderr=True))
                self._task = self._bar.add_task("training", total=total, completed=completed, figures="")

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    @property
    def shown(self) -> bool:
        """Whether it is displayed."""
        return self._bar is not None

    def update(self, completed: float, description: str, figures: Mapping[str, str]) -> None:
        """Show how much is done; without figures, the last ones stay."""
        if self._bar is not None:
            words = "  ".join(f"{name} {value}" for name, value in figures.items())
            options = {"figures": words} if words else {}
            self._bar.update(self._task, completed=completed, description=description, **options)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@final
class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a question, asked between rounds; the next is a KeyboardInterrupt."""

    asked = False

    def __enter__(self) -> Interrupt:
        self._before: dict[signal.Signals, Any] = {}
        with suppress(ValueError):  # not in the main thread: signals cannot be handled here
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
    except ValueError:  # not in the main thread: signals cannot be handled here
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
