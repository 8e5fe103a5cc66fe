"""The figures. Each takes results of one experiment and returns a figure, or None where there is nothing to draw."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.report.results import Result
from pstn.report.statistics import median_and_deviation, summarise
from pstn.report.tables import Line, Metric, Search, Table, chosen, summary_of, trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "Look",
    "applied",
    "cells",
    "draw_angles",
    "draw_boxes",
    "draw_by_depth",
    "draw_by_size",
    "draw_landscapes",
    "draw_placed",
    "draw_reliability",
    "draw_samples_at_test",
    "draw_search",
    "draw_series",
    "draw_variants",
    "first",
    "holds",
    "look",
    "mosaic",
    "picture",
    "shades",
    "stretch_near_perfect",
]


INK = "#222222"
_GRID = "#d9d9d9"

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.6,
    "savefig.facecolor": "white",
    # The same figure is the same file.
    "svg.hashsalt": "pstn",
}


@dataclass(frozen=True)
class Look:
    """How one model is drawn."""

    colour: str
    marker: str
    line: Any
    hatch: str

    @property
    def curve(self) -> dict[str, Any]:
        """Keywords for `Axes.plot` and `Axes.errorbar`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line}


_LOOKS = {
    "CNN": Look("#E69F00", "s", "--", "///"),
    "NN": Look("#E69F00", "s", "--", "///"),
    "STN": Look("#009E73", "^", (0, (4, 1.5, 1, 1.5)), "..."),
    "P-STN": Look("#0072B2", "o", "-", ""),
}
_REFERENCE = Look(INK, "D", ":", "xxx")


def look(model: str) -> Look:
    """How a model is drawn; the reference look for any but the paper's three."""
    return _LOOKS.get(model, _REFERENCE)


_SHADES = ("#56B4E9", "#E69F00", "#009E73", "#D55E00", "#0072B2", "#222222")
_SHADE_MARKERS = ("o", "s", "^", "D", "v", "P")


def shades(count: int) -> list[Look]:
    """Looks for as many things of one kind, from light to dark; from the seventh on they repeat.

    Example:
        >>> [look.marker for look in shades(3)]
        ['o', 's', '^']
    """
    return [Look(_SHADES[at % 6], _SHADE_MARKERS[at % 6], "-", "") for at in range(count)]


@contextmanager
def applied() -> Iterator[None]:
    """The style, for whatever is drawn and saved inside."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def picture(axes: Axes, pixels: Any) -> None:
    """Show an image, grey (H, W) or colour (H, W, 3), of whole numbers from 0 to 255; no axes around it."""
    axes.imshow(np.asarray(pixels, dtype=np.uint8), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def mosaic(images: npt.ArrayLike, gap: int) -> npt.NDArray[np.uint8]:
    """Many images as one: (rows, columns, H, W) to a single image with white lines of `gap` pixels between them.

    Example:
        >>> mosaic(np.zeros((2, 3, 28, 28)), gap=2).shape
        (58, 88)
    """
    tiles = np.pad(np.asarray(images, np.uint8), ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=255)
    rows, columns, height, width = tiles.shape
    return tiles.swapaxes(1, 2).reshape(rows * height, columns * width)[:-gap, :-gap]


def holds(result: Result, *names: str) -> bool:
    """Whether a result's figure has all of `names`, none of them empty."""
    return all(result.figure.get(name) not in (None, [], {}) for name in names)


def cells(results: Sequence[Result], *names: str) -> dict[tuple[str, str, str], list[Result]]:
    """The results whose figures have all of `names`, by data, model and variant, in the order they come."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if holds(result, *names):
            found.setdefault((result.data, result.model, result.variant), []).append(result)
    return found


def first(results: Sequence[Result], *names: str, model: str | None = None) -> Result | None:
    """The result with the lowest seed whose figure has all of `names`; None where there is none."""
    having = [r for r in results if holds(r, *names) and model in (None, r.model)]
    return min(having, key=lambda r: r.seed, default=None)


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
        _reliability_panel(upper, lower, model, [m.figure["reliability"] for m in members])
        errors = [m.metrics["ece10"] for m in members if "ece10" in m.metrics]
        note = f"\nECE {np.mean(errors):.4f}" if errors else ""
        upper.set_title(" ".join(filter(None, (model, variant))) + note)
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("share")
    return figure


def _reliability_panel(upper: Axes, lower: Axes, model: str, curves: list[dict[str, Any]]) -> None:
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


def draw_by_size(results: Sequence[Result], *, table: Table) -> Figure | None:
    """Mean ± one standard deviation by the size in the data's name, ours beside the published (hollow).

    Args:
        results: of the experiment.
        table: whose lines to draw.
    """
    from matplotlib.figure import Figure

    lines = [line for line in table.lines if isinstance(line, Line)]
    if any(result.quick for result in results):  # never beside the published
        lines = [dataclasses.replace(line, paper=None) for line in lines if line.find(results)]
    models = list(dict.fromkeys(line.model for line in lines if line.find(results)))
    if not models:
        return None
    figure = Figure(figsize=(6.4, 3.7), layout="constrained")
    axes = figure.subplots()
    for at, model in enumerate(models):
        style, apart = look(model), 1.0 + 0.05 * (at - (len(models) - 1) / 2)
        mine = [line for line in lines if line.model == model]
        ours = [(_number(line.data), s) for line in mine if (s := summary_of(line, results))]
        published = [(_number(line.data), line.paper) for line in mine if line.paper]
        axes.errorbar(
            [apart * x for x, _ in ours], [s.mean for _, s in ours], [s.std or 0.0 for _, s in ours], capsize=2.5,
            label=model, **style.curve,
        )  # fmt: skip
        axes.errorbar(
            [1.12 * apart * x for x, _ in published], [p.mean for _, p in published],
            [p.std or 0.0 for _, p in published], linestyle="", marker=style.marker, color=style.colour,
            markerfacecolor="white", elinewidth=0.7, capsize=1.5, markersize=4.5,
        )  # fmt: skip
    if any(line.paper for line in lines):
        axes.errorbar([], [], [], linestyle="", marker="o", color="0.4", markerfacecolor="white", label="the paper’s")
    sizes = sorted({_number(line.data) for line in lines})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    stretch_near_perfect(axes, lines[0].metric, axes.dataLim.y0, axes.dataLim.y1)
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.set_xlabel("training images")
    axes.set_ylabel(lines[0].metric.label)
    axes.legend(loc="lower right")
    return figure


def stretch_near_perfect(axes: Axes, metric: Metric, lowest: float, highest: float) -> None:
    """Accuracies by the logarithm of their errors, so that 97 and 98 percent are as far apart as 70 and 80.

    Args:
        axes: with everything drawn.
        metric: what is drawn; others than accuracies in percent stay as they are.
        lowest: what must be in view.
        highest: likewise.
    """
    if not (metric.higher_is_better and metric.scale == 100):
        return
    top = 100.1  # from here errors are counted: from 100, no error at all would be infinitely far up
    low, high = top - 1.2 * (top - lowest), top - (top - min(highest, 100)) / 1.2
    axes.set_yscale(
        "function",
        functions=(
            lambda y: -np.log10(np.maximum(top - np.asarray(y, float), 0.01)),
            lambda z: top - 10.0 ** -np.asarray(z, float),
        ),
    )
    shown = [tick for tick in (20, 40, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 100) if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_ylim(low, high)


def _number(text: str) -> float:
    """The number that ends a name: 100 for "MNIST100"."""
    found = re.search(r"[\d.]+$", text)
    return float(found.group()) if found else float("nan")


def draw_by_depth(results: Sequence[Result], *, tables: Sequence[Table]) -> Figure | None:
    """Median ± median absolute deviation by the number that ends the variant: a panel for each table.

    Args:
        results: of the experiment.
        tables: whose lines to draw; a curve for each of their columns.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = [[line for line in table.lines if isinstance(line, Line) and line.find(results)] for table in tables]
    if not any(panels):
        return None
    figure = Figure(figsize=(4.2 * len(tables), 3.4), layout="constrained")
    for axes, lines in zip(figure.subplots(1, len(tables), squeeze=False)[0], panels, strict=True):
        for column in dict.fromkeys(line.heading[1] for line in lines):
            mine = [line for line in lines if line.heading[1] == column]
            middles, spreads = zip(*(median_and_deviation(line.find(results)) for line in mine), strict=True)
            style = look("reference" if mine[0].data == "upright" else mine[0].model)
            axes.errorbar(
                [_number(line.variant) for line in mine], middles, spreads, capsize=2.5, label=column, **style.curve
            )
        axes.set_xlabel("layers of the classifier")
        axes.set_ylabel(lines[0].metric.label if lines else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    figure.axes[0].legend(loc="best")
    return figure


def draw_samples_at_test(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure | None:
    """Scores by the number S of samples in testing, independent or Sobol, mean ± one standard deviation over the runs.

    Results hold `samples` (n,) and, by the metric's name, a list as long.
    """
    from matplotlib.figure import Figure

    found = cells(results, "samples", *(metric.name for metric in metrics))
    if not found:
        return None
    figure = Figure(figsize=(3.1 * len(metrics), 2.9), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for (_, model, variant), members in found.items():
            samples = members[0].figure["samples"]
            runs = metric.scale * np.array([m.figure[metric.name] for m in members if m.figure["samples"] == samples])
            spread = runs.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(samples))
            style = look("reference" if variant.endswith("sobol") else model)
            kind = "Sobol" if variant.endswith("sobol") else "independent"
            label = f"{kind} samples, {len(runs)} run{'s' * (len(runs) > 1)}"
            axes.errorbar(samples, runs.mean(0), spread, capsize=2, label=label, **style.curve)
        axes.set_xscale("log")
        axes.set_xticks(samples, [f"{s:g}" for s in samples])
        axes.minorticks_off()
        axes.set_xlabel("samples S in testing")
        axes.set_ylabel(metric.label)
        axes.grid(axis="y")
    figure.axes[0].legend(loc="best")
    return figure


def draw_variants(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure | None:
    """Every variant as a dot with its spread, grouped by what was varied, one panel for each metric."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    groups: dict[str, dict[tuple[str, str, str], list[Result]]] = {}
    for result in results:
        if "=" in result.variant and result.metrics:
            name, _, value = result.variant.partition("=")
            groups.setdefault(name, {}).setdefault((value, result.model, result.data), []).append(result)
    if not groups:
        return None
    # The model and the data are named where they differ.
    differ = [len({key[part] for variants in groups.values() for key in variants}) > 1 for part in (1, 2)]
    places, labels, at = [], [], 0.0
    for name, variants in groups.items():
        for key, members in variants.items():
            places.append((at, key, members))
            labels.append(", ".join([f"{name} = {key[0]}", *(key[1 + k] for k in (0, 1) if differ[k])]))
            at += 1
        at += 0.6
    figure = Figure(figsize=(3.4 + 2.2 * len(metrics), 0.26 * at + 0.9), layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for place, (_, model, _), members in places:
            values = [metric.scale * m.metrics[metric.name] for m in members if metric.name in m.metrics]
            if values:
                summary = summarise(values)
                axes.errorbar(summary.mean, place, xerr=summary.std or 0.0, color=look(model).colour,
                              marker=look(model).marker, capsize=2)  # fmt: skip
        axes.set_xlabel(metric.label)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.08)
        axes.grid(axis="x")
        axes.spines["left"].set_color(INK)
    panels[0].set_yticks([place for place, _, _ in places], labels)
    panels[0].invert_yaxis()
    return figure


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


def draw_search(results: Sequence[Result], *, search: Search) -> Figure | None:
    """Scores by the value that was tried, mean ± one standard deviation, a line for each data set.

    The best mean of a line is filled, all that share it where several do; a ring marks what the paper chose. Values
    stand at equal distances, as they are tried: by factors, and 0.
    """
    from matplotlib.figure import Figure

    found = [data for data in search.published if trials(search, data, search.metrics[0], results)]
    if not found:
        return None
    looks = dict(zip(found, shades(len(found)), strict=True))
    figure = Figure(figsize=(4.3 * len(search.metrics), 4.0), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(search.metrics), squeeze=False)[0], search.metrics, strict=True):
        _search_panel(axes, search, metric, looks, results)
    axes = figure.axes[0]
    axes.plot([], [], "o", color="0.4", label="best")
    axes.plot([], [], "o", color="0.4", markersize=10, markerfacecolor="none", label="the paper’s")
    lines, labels = axes.get_legend_handles_labels()
    named = sorted(zip(labels, lines, strict=True), key=lambda entry: entry[0] not in looks)  # the marks come last
    figure.legend([line for _, line in named], [label for label, _ in named], loc="outside lower center", ncols=4)
    return figure


def _search_panel(
    axes: Axes, search: Search, metric: Metric, looks: dict[str, Look], results: Sequence[Result]
) -> None:
    tried = sorted({value for data in looks for value in trials(search, data, metric, results)})
    place = {value: at for at, value in enumerate(tried)}
    seen: list[float] = []
    for data, style in looks.items():
        scores = {v: summarise(runs) for v, runs in trials(search, data, metric, results).items()}
        means = {value: metric.scale * score.mean for value, score in scores.items()}
        seen += means.values()
        axes.errorbar(
            [place[v] for v in scores], list(means.values()),
            [metric.scale * (score.std or 0.0) for score in scores.values()],
            elinewidth=0.7, capsize=1.5, markerfacecolor="white", label=data, **style.curve,
        )  # fmt: skip
        best, published = chosen(search, data, metric, results), search.published[data]
        axes.plot(
            [place[v] for v in best], [means[v] for v in best], marker=style.marker, linestyle="", color=style.colour,
            zorder=3,
        )  # fmt: skip
        if published in means:
            axes.plot(
                place[published], means[published], "o", markersize=11, color=style.colour, markerfacecolor="none"
            )
    axes.set_xticks(range(len(tried)), [f"{value:g}" for value in tried], rotation=45)
    axes.set_xlabel(search.name)
    axes.set_ylabel(metric.label)
    axes.grid(axis="y")
    # The means must be in view; where training breaks down in some runs, the spread is wider than any page.
    if metric.higher_is_better:
        stretch_near_perfect(axes, metric, min(seen), max(seen))
    else:
        _by_factors(axes, min(seen), max(seen))


def _by_factors(axes: Axes, lowest: float, highest: float) -> None:
    """A logarithmic scale with numbers that people read."""
    axes.set_yscale("log")
    axes.set_ylim(lowest / 1.3, highest * 1.3)
    ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if lowest / 1.3 <= tick <= highest * 1.3]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


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
