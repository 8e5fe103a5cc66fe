"""The loss over transformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pstn.report.figures.finding import cells
from pstn.report.results import Result
from pstn.report.style import look, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_landscapes"]

_IMAGES = 4


def draw_landscapes(results: Sequence[Result]) -> Figure | None:
    """For several images, the loss along one parameter: of the STN, and of the P-STN, which averages around it.

    Results hold `grid` (K,), `loss` (n, K) and `images` (n, H, W) as whole numbers from 0 to 255.
    """
    from matplotlib.figure import Figure

    found = {key: min(members, key=lambda r: r.seed) for key, members in cells(results, "grid", "loss").items()}
    if not found:
        return None
    data = list(dict.fromkeys(key[0] for key in found))
    count = min(_IMAGES, *(len(r.figure["loss"]) for r in found.values()))
    figure = Figure(figsize=(2.3 * count + 0.5, 2.9 * len(data)), layout="constrained")
    for block, name in zip(figure.subfigures(len(data), 1, squeeze=False)[:, 0], data, strict=True):
        mine = [result for (of, _, _), result in found.items() if of == name]
        axes = block.subplots(2, count, squeeze=False, height_ratios=(1, 2.4))
        for image in range(count):
            axes[0, image].set_axis_off()
            if pictures := next((r.figure["images"] for r in mine if r.figure.get("images")), None):
                picture(axes[0, image], pictures[image])
            for result in mine:
                loss, style = np.asarray(result.figure["loss"][image], float), look(result.model)
                # A thin broken line over a broad one: both are seen where they run together, in grey too.
                broad = result.model == "P-STN"
                axes[1, image].plot(
                    result.figure["grid"], loss, color=style.colour, linestyle=style.line, label=result.model,
                    linewidth=3.2 if broad else 1.2, alpha=0.55 if broad else 1.0, zorder=2 if broad else 3,
                )  # fmt: skip
            axes[1, image].set_xlabel(_axis(name))
            axes[1, image].set_ylim(bottom=0)
        axes[1, 0].set_ylabel("loss (nats)")
        axes[1, 0].legend(loc="best")
    return figure


def _axis(data: str) -> str:
    return {"angle": "angle (radians)", "translation": "shift (half widths)"}.get(data, data)
