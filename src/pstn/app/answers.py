"""What the page answers to each thing that a visitor does. No gradio here: a test can ask as well."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from pstn.app.drawing import draw_digit, draw_progress, draw_series
from pstn.app.inputs import PictureError, move_digit, move_series, read_picture, read_sketch, to_digit
from pstn.app.looks import look
from pstn.app.models import Workshop, season_data
from pstn.data import load_digits

__all__ = ["Answers"]


@final
class Answers:
    """The page's answers, from the models of a workshop and the examples that ship with the package.

    Args:
        workshop: the models, perhaps still in the making.
    """

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._digits, self._days = load_digits("test"), season_data()

    def example(self, digit: int, turn: int) -> Tensor:
        """(1, 28, 28), a digit that no model has seen: another one at each turn."""
        return _pick(self._digits.x, self._digits.y, digit, turn)

    def day(self, season: int, turn: int) -> Tensor:
        """(1, 24), a day that no model has seen: another one at each turn."""
        return _pick(self._days.test_x, self._days.test_y, season, turn)

    def digit(self, base: Tensor, turn: float, right: float, down: float, size: float, seed: int) -> str:
        """A moved digit and what the models make of it, as HTML."""
        trio = self.workshop.digits
        if trio is None:
            return draw_progress(self.workshop.doing, self.workshop.fraction)
        return draw_digit(trio, look(trio, move_digit(base, turn, right, down, size), seed=seed))

    def series(self, base: Tensor, later: float, stretch: float, noise: float, seed: int) -> str:
        """A moved day and what the models make of it, as HTML."""
        trio = self.workshop.series
        if trio is None:
            return draw_progress(self.workshop.doing, self.workshop.fraction)
        return draw_series(trio, look(trio, move_series(base, later, stretch, noise, seed=seed), seed=seed))

    def drawn(self, ink: Any, base: Tensor) -> tuple[Tensor, str]:
        """The digit in a drawing, or the one before where there is none; `ink` is what sketch.js sends."""
        try:
            return to_digit(read_sketch(ink)), ""
        except PictureError as error:
            return base, str(error)

    def uploaded(self, path: str, base: Tensor) -> tuple[Tensor, str]:
        """The digit in a file, or the one before with a word on why not."""
        try:
            return to_digit(read_picture(path)), ""
        except PictureError as error:
            return base, str(error)


def _pick(x: Tensor, y: Tensor, label: int, turn: int) -> Tensor:
    mine = (y == label).nonzero()[:, 0]
    return x[mine[turn % len(mine)]]
