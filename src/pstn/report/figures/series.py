"""Series and their learned augmentations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pstn.report.figures.finding import cells
from pstn.report.results import Result
from pstn.report.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_series"]

_LINES = ("-", "--", ":", "-.")
_COLOURS = ("#0072B2", "#D55E00", INK, "#009E73")


def draw_series(results: Sequence[Result]) -> Figure | None:
    """A series of each data set above, and warped versions of it below.

    Results hold `series` (L,) and `warped` (S, L).
    """
    from matplotlib.figure import Figure

    found = [min(members, key=lambda r: r.seed) for members in cells(results, "series", "warped").values()]
    if not found:
        return None
    columns = min(3, len(found))
    blocks = -(-len(found) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.7 * blocks), layout="constrained")
    axes = figure.subplots(2 * blocks, columns, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    for at, result in enumerate(found):
        upper, lower = axes[2 * (at // columns), at % columns], axes[2 * (at // columns) + 1, at % columns]
        series, warped = np.ravel(result.figure["series"]), np.asarray(result.figure["warped"], float)
        warped = warped.reshape(len(warped), -1)
        upper.plot(series, color=INK, linewidth=1.1)
        for number, version in enumerate(warped):
            lower.plot(version, color=_COLOURS[number % 4], linestyle=_LINES[number % 4], linewidth=1.1)
        for one in (upper, lower):
            one.set_axis_on()
            one.margins(x=0.01)
        upper.tick_params(labelbottom=False)
        upper.set_title(result.data)
        upper.set_ylabel("series")
        lower.set_ylabel(f"{len(warped)} samples")
        lower.set_xlabel("time step")
    return figure
