"""What localizers look at: recovered angles, warped samples, boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.report.figures.finding import first
from pstn.report.results import Result
from pstn.report.style import INK, look, mosaic, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_angles", "draw_boxes", "draw_placed"]

_Array = npt.NDArray[np.float64]

_BOX, _SHADOW = "#ffd166", "#000000"
_TURNS = ([-math.pi, -math.pi / 2, 0, math.pi / 2, math.pi], ["−π", "−π/2", "0", "π/2", "π"])


def draw_angles(results: Sequence[Result]) -> Figure | None:
    """True against recovered angles, samples of the P-STN, and its variances by how well it localised.

    Results hold `angle_true` and `angle_mean` (N,), and for the P-STN `beta` (N,), `inputs` (n, H, W) and `warped`
    (n, S, H, W), images as whole numbers from 0 to 255.
    """
    from matplotlib.figure import Figure

    models = [found for name in ("STN", "P-STN") if (found := first(results, "angle_true", "angle_mean", model=name))]
    if not models:
        return None
    shown, spread = first(results, "inputs", "warped", model="P-STN"), first(results, "angle_true", "beta")
    rest = [part for part in (shown, spread) if part]
    figure = Figure(figsize=(9.6, 5.4) if rest else (3.4 * len(models), 3.2), layout="constrained")
    if not rest:
        scatters = figure.subplots(1, len(models), squeeze=False)
    else:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.9))[0]
        scatters = left.subplots(len(models), 1, squeeze=False)
        panels = right.subplots(len(rest), 1, squeeze=False, height_ratios=(2.4, 1)[: len(rest)])[:, 0]
        if shown:
            _samples_in_columns(panels[0], shown)
        if spread:
            _variance_by_error(panels[-1], spread)
    for axes, result in zip(scatters.flat, models, strict=True):
        _scatter_angles(axes, result)
    return figure


def _recovered(result: Result) -> tuple[_Array, _Array]:
    """True and recovered angles. A localizer's mean is the angle that undoes the rotation: its negative."""
    return np.asarray(result.figure["angle_true"], float), -np.asarray(result.figure["angle_mean"], float)


def _wrapped(angle: _Array) -> _Array:
    return (angle + math.pi) % (2 * math.pi) - math.pi


def _scatter_angles(axes: Axes, result: Result) -> None:
    true, recovered = _recovered(result)
    style = look(result.model)
    axes.plot([-math.pi, math.pi], [-math.pi, math.pi], color=INK, linewidth=0.8, linestyle=":")
    axes.scatter(true, _wrapped(recovered), s=5, color=style.colour, marker=style.marker, alpha=0.55, linewidths=0)
    axes.set_xticks(*_TURNS)
    axes.set_yticks(*_TURNS)
    axes.set_xlim(-math.pi, math.pi)
    axes.set_ylim(-math.pi, math.pi)
    axes.set_aspect("equal")
    axes.set_title(f"{result.model}, seed {result.seed}")
    axes.set_xlabel("true angle")
    axes.set_ylabel("recovered angle")


def _samples_in_columns(axes: Axes, result: Result) -> None:
    """A column for each image: the input above, what the classifier saw below."""
    inputs, warped = np.asarray(result.figure["inputs"]), np.asarray(result.figure["warped"])
    height = inputs.shape[1]
    apart = height // 3
    above = mosaic(inputs[None], gap=2)
    below = mosaic(warped.swapaxes(0, 1), gap=2)
    space = np.full((apart, above.shape[1]), 255)
    picture(axes, np.vstack([above, space, below]))
    axes.set_yticks([height / 2, height + apart + len(below) / 2], ["input", "samples"])
    axes.tick_params(length=0)


def _variance_by_error(axes: Axes, result: Result) -> None:
    """Histograms of beta for the better and the worse localised half."""
    true, recovered = _recovered(result)
    error = np.abs(true - recovered) % math.pi  # the paper's error
    beta = np.asarray(result.figure["beta"], float).reshape(len(error), -1).mean(1)
    worse = error > np.median(error)
    low, high = np.quantile(beta, [0.0, 0.995])
    edges = np.linspace(low, high, 25).tolist()
    axes.hist(beta[~worse], edges, color=look("P-STN").colour, label="error below its median")
    axes.hist(beta[worse], edges, histtype="step", hatch="////", color=INK, label="error above its median")
    axes.set_xlabel("variance β of the localizer")
    axes.set_ylabel("images")
    axes.legend(loc="upper right")


def draw_placed(results: Sequence[Result]) -> Figure | None:
    """Inputs with the boxes that were sampled, and what the classifier saw through them.

    Results hold `inputs` (n, H, W), `warped` (n, S, h, w), as whole numbers from 0 to 255, and `corners` (n, S', 4, 2)
    in pixels, x first.
    """
    from matplotlib.figure import Figure

    result = first(results, "inputs", "warped", model="P-STN")
    if result is None:
        return None
    inputs, warped = np.asarray(result.figure["inputs"]), np.asarray(result.figure["warped"])
    corners = result.figure.get("corners")
    figure = Figure(figsize=(1.6 * len(inputs), 2.75), layout="constrained")
    axes = figure.subplots(2, len(inputs), squeeze=False, height_ratios=(3, 2))
    for column, samples in enumerate(warped):
        picture(axes[0, column], inputs[column])
        _boxes(axes[0, column], [] if corners is None else corners[column])
        blanks = np.full((-len(samples) % 3, *samples.shape[1:]), 255)
        picture(axes[1, column], mosaic(np.concatenate([samples, blanks]).reshape(-1, 3, *samples.shape[1:]), gap=2))
    axes[0, 0].set_ylabel("input")
    axes[1, 0].set_ylabel("samples")
    return figure


def draw_boxes(results: Sequence[Result]) -> Figure | None:
    """Photographs with the boxes that the P-STN sampled.

    Results hold `images`, each (H, W, 3) as whole numbers from 0 to 255, and `corners` (n, S, 4, 2) in pixels, x first.
    """
    from matplotlib.figure import Figure

    result = first(results, "images", "corners", model="P-STN")
    if result is None:
        return None
    images = result.figure["images"]
    columns = min(6, len(images))
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.6 * columns, 1.6 * rows), layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, image, corners in zip(figure.axes, images, result.figure["corners"], strict=False):
        picture(axes, image)
        _boxes(axes, corners)
    return figure


def _boxes(axes: Axes, corners: Any) -> None:
    """Outlines, light on dark so that they show on any background; what lies outside the image is cut off."""
    outlines = [np.asarray(box, float).reshape(-1, 2) for box in corners]
    limits = axes.get_xlim(), axes.get_ylim()
    for colour, width in ((_SHADOW, 1.8), (_BOX, 0.9)):
        for box in outlines:
            x, y = np.vstack([box, box[:1]]).T
            axes.plot(x, y, color=colour, linewidth=width, linestyle="-", marker="")
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
