"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.report.figures.finding import cells
from pstn.report.results import Result
from pstn.report.style import INK, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_reliability"]


def draw_reliability(results: Sequence[Result]) -> Figure | None:
    """Accuracy by confidence, one panel for each model and variant, all folds together.

    Results hold `reliability` with `confidence`, `accuracy` and `count` (bins,); empty bins hold null.
    """
    from matplotlib.figure import Figure

    found = cells(results, "reliability")
    if not found:
        return None
    figure = Figure(figsize=(2.35 * len(found) + 0.3, 3.4), layout="constrained")
    panels = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for (upper, lower), ((_, model, variant), members) in zip(panels.T, found.items(), strict=True):
        _panel(upper, lower, model, [m.figure["reliability"] for m in members])
        errors = [m.metrics["ece10"] for m in members if "ece10" in m.metrics]
        note = f"\nECE {np.mean(errors):.4f}" if errors else ""
        upper.set_title(" ".join(filter(None, (model, variant))) + note)
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("share")
    return figure


def _panel(upper: Axes, lower: Axes, model: str, curves: list[dict[str, Any]]) -> None:
    """Accuracy by confidence above, the share of the predictions with that confidence below."""
    confidence, accuracy, share = _pooled(curves)
    style = look(model)
    width = 1 / len(share)
    left = np.arange(len(share)) * width
    filled = share > 0
    upper.bar(
        left[filled], accuracy[filled], width, align="edge", color=style.colour, edgecolor="white", hatch=style.hatch,
        linewidth=0.6,
    )  # fmt: skip
    upper.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
    upper.plot(confidence[filled], accuracy[filled], color=INK, marker=style.marker, markersize=3.5, linewidth=0.9)
    upper.set_ylim(0, 1.02)
    lower.bar(left, share, width, align="edge", color="0.6", edgecolor="white", linewidth=0.6)
    lower.set_xlim(0, 1)
    lower.set_xticks([0, 0.5, 1])
    lower.set_xlabel("confidence")


def _pooled(
    curves: list[dict[str, Any]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Confidence and accuracy of each bin over all folds, and the share of predictions in it."""
    count = np.array([curve["count"] for curve in curves], float)
    confidence, accuracy = (
        np.nan_to_num(np.array([curve[name] for curve in curves], dtype=float)) for name in ("confidence", "accuracy")
    )
    total = np.maximum(count.sum(0), 1)
    return (count * confidence).sum(0) / total, (count * accuracy).sum(0) / total, count.sum(0) / count.sum()
