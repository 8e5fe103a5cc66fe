"""The figures. Each takes results of one experiment and returns a figure, or None where there is nothing to draw.

They can be read in grey, by colour-blind readers, and in print: colours are Okabe and Ito's, chosen to differ in
lightness too, and each model has a marker, a line and a hatch of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.plotting import without_tex
from pstn.report.results import Result
from pstn.report.statistics import median_and_deviation, summarise
from pstn.report.tables import Line, Metric, Search, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Style", "draw_angles", "draw_boxes", "draw_by_depth", "draw_by_size", "draw_landscapes", "draw_placed",
           "draw_reliability", "draw_samples_at_test", "draw_search", "draw_series", "draw_variants", "figure_style",
           "style_of"]  # fmt: skip

INK = "#222222"
_SETTINGS: Any = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.fontsize": 8.5, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": INK, "axes.linewidth": 0.8, "axes.axisbelow": True, "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6, "text.color": INK, "axes.labelcolor": INK, "lines.linewidth": 1.5, "lines.markersize": 5.5,
    "hatch.linewidth": 0.6, "savefig.facecolor": "white", "svg.hashsalt": "pstn",  # the same figure is the same file
}  # fmt: skip
_Array = npt.NDArray[np.float64]


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for whatever is drawn and saved inside."""
    import matplotlib

    with without_tex(), matplotlib.rc_context(_SETTINGS):
        yield


@dataclass(frozen=True)
class Style:
    """How one model is drawn."""

    colour: str
    marker: str
    line: Any
    hatch: str = ""

    @property
    def curve(self) -> dict[str, Any]:
        """Keywords for `Axes.plot` and `Axes.errorbar`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line}


_STYLES = {
    "CNN": Style("#E69F00", "s", "--", "///"),
    "NN": Style("#E69F00", "s", "--", "///"),
    "STN": Style("#009E73", "^", (0, (4, 1.5, 1, 1.5)), "..."),
    "P-STN": Style("#0072B2", "o", "-"),
}
_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#D55E00", "#0072B2", INK)


def style_of(model: str) -> Style:
    """How a model is drawn; the reference style for any but the paper's."""
    return _STYLES.get(model, Style(INK, "D", ":", "xxx"))


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _cells(results: Sequence[Result], *names: str) -> dict[tuple[str, str, str], list[Result]]:
    """The results whose figures have all of `names`, none empty, by data, model and variant, in the order they come."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if all(result.figure.get(name) not in (None, [], {}) for name in names):
            found.setdefault((result.data, result.model, result.variant), []).append(result)
    return found


def _first(results: Sequence[Result], *names: str, model: str = "") -> Result | None:
    """The result with the lowest seed whose figure has all of `names`; None where there is none."""
    having = [r for members in _cells(results, *names).values() for r in members if model in ("", r.model)]
    return min(having, key=lambda r: r.seed, default=None)


def _show_image(axes: Axes, pixels: Any) -> None:
    """Show an image, grey (H, W) or colour (H, W, 3), of whole numbers from 0 to 255; no axes around it."""
    axes.imshow(np.asarray(pixels, dtype=np.uint8), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _mosaic(images: npt.ArrayLike, gap: int = 2) -> npt.NDArray[np.uint8]:
    """(rows, columns, H, W) to a single image with white lines of `gap` pixels between the tiles."""
    tiles = np.pad(np.asarray(images, np.uint8), ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=255)
    rows, columns, height, width = tiles.shape
    return tiles.swapaxes(1, 2).reshape(rows * height, columns * width)[:-gap, :-gap]


def _trailing_number(text: str) -> float:
    """The number that ends a name: 100 for "MNIST100"."""
    found = re.search(r"[\d.]+$", text)
    return float(found.group()) if found else float("nan")


def draw_reliability(results: Sequence[Result]) -> Figure | None:
    """Accuracy by confidence, one panel for each model and variant, all folds together.

    Results hold `reliability` with `confidence`, `accuracy` and `count` (bins,); empty bins hold null.
    """
    found = _cells(results, "reliability")
    if not found:
        return None
    figure = _new_figure(2.35 * len(found) + 0.3, 3.4)
    panels = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for (upper, lower), ((_, model, variant), members) in zip(panels.T, found.items(), strict=True):
        style = style_of(model)
        count, confidence, accuracy = (
            np.nan_to_num(np.array([m.figure["reliability"][name] for m in members], dtype=float))
            for name in ("count", "confidence", "accuracy")
        )
        total, share = np.maximum(count.sum(0), 1), count.sum(0) / count.sum()
        confidence, accuracy = (count * confidence).sum(0) / total, (count * accuracy).sum(0) / total
        width, filled = 1 / len(share), share > 0
        left = np.arange(len(share)) * width
        upper.bar(
            left[filled], accuracy[filled], width, align="edge", color=style.colour, edgecolor="white",
            hatch=style.hatch, linewidth=0.6,
        )  # fmt: skip
        upper.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
        upper.plot(confidence[filled], accuracy[filled], color=INK, marker=style.marker, markersize=3.5, linewidth=0.9)
        upper.set_ylim(0, 1.02)
        errors = [m.metrics["ece10"] for m in members if "ece10" in m.metrics]
        note = f"\nECE {np.mean(errors):.4f}" if errors else ""
        upper.set_title(" ".join(filter(None, (model, variant))) + note)
        lower.bar(left, share, width, align="edge", color="0.6", edgecolor="white", linewidth=0.6)
        lower.set_xlim(0, 1)
        lower.set_xticks([0, 0.5, 1])
        lower.set_xlabel("confidence")
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("share")
    return figure


def draw_by_size(results: Sequence[Result], *, table: Table) -> Figure | None:
    """Mean ± one standard deviation by the number that ends the data's name, ours beside the published (hollow).

    Args:
        results: of the experiment.
        table: whose lines to draw.
    """
    lines = [line for line in table.lines if isinstance(line.data, str)]
    beside_paper = not any(result.quick for result in results)
    if not beside_paper:
        lines = [line for line in lines if line.values(results)]
    models = list(dict.fromkeys(line.model for line in lines if line.values(results)))
    if not models:
        return None
    figure = _new_figure(6.4, 3.7)
    axes = figure.subplots()
    sizes = {line: _trailing_number(str(line.data)) for line in lines}
    for number, model in enumerate(models):
        style, apart = style_of(model), 1.0 + 0.05 * (number - (len(models) - 1) / 2)
        own = [line for line in lines if line.model == model]
        ours = [(sizes[line], summary) for line in own if (summary := line.summary(results))]
        published = [(sizes[line], line.paper.summary) for line in own if line.paper and beside_paper]
        axes.errorbar(
            [apart * x for x, _ in ours], [s.mean for _, s in ours], [s.std or 0.0 for _, s in ours], capsize=2.5,
            label=model, **style.curve,
        )  # fmt: skip
        axes.errorbar(
            [1.12 * apart * x for x, _ in published], [s.mean for _, s in published],
            [s.std or 0.0 for _, s in published], linestyle="", marker=style.marker, color=style.colour,
            markerfacecolor="white", elinewidth=0.7, capsize=1.5, markersize=4.5,
        )  # fmt: skip
    if beside_paper and any(line.paper for line in lines):
        axes.errorbar([], [], [], linestyle="", marker="o", color="0.4", markerfacecolor="white", label="the paper’s")
    axes.set_xscale("log")
    axes.set_xticks(sorted(set(sizes.values())), [f"{size:g}" for size in sorted(set(sizes.values()))])
    _scale_by_error(axes, lines[0].metric, axes.dataLim.y0, axes.dataLim.y1)
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.set_xlabel("training images")
    axes.set_ylabel(lines[0].metric.label)
    axes.legend(loc="lower right")
    return figure


def _scale_by_error(axes: Axes, metric: Metric, lowest: float, highest: float) -> None:
    """Scale accuracies in percent by the logarithm of their errors: 97 and 98 are as far apart as 70 and 80."""
    if not (metric.higher_is_better and metric.scale == 100):
        return
    top = 100.1  # from here errors are counted: from 100, no error at all would be infinitely far up
    low, high = top - 1.2 * (top - lowest), top - (top - min(highest, 100)) / 1.2
    forward = lambda y: -np.log10(np.maximum(top - np.asarray(y, float), 0.01))  # noqa: E731
    axes.set_yscale("function", functions=(forward, lambda z: top - 10.0 ** -np.asarray(z, float)))
    shown = [tick for tick in (20, 40, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 100) if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_ylim(low, high)


def draw_by_depth(results: Sequence[Result], *, tables: Sequence[Table]) -> Figure | None:
    """Median ± median absolute deviation by the number that ends the variant: a panel for each table.

    Args:
        results: of the experiment.
        tables: whose lines to draw; a curve for each of their columns.
    """
    from matplotlib.ticker import MaxNLocator

    panels = [[line for line in table.lines if line.values(results)] for table in tables]
    if not any(panels):
        return None
    figure = _new_figure(4.2 * len(tables), 3.4)
    for axes, lines in zip(figure.subplots(1, len(tables), squeeze=False)[0], panels, strict=True):
        columns: dict[str, list[Line]] = {}
        for line in lines:
            columns.setdefault(line.heading[1], []).append(line)
        for column, own in columns.items():
            middles, spreads = zip(*(median_and_deviation(line.values(results)) for line in own), strict=True)
            style, depths = style_of("" if own[0].data == "upright" else own[0].model), [line.variant for line in own]
            axes.errorbar(
                [_trailing_number(name) for name in depths], middles, spreads, capsize=2.5, label=column, **style.curve
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
    found = _cells(results, "samples", *(metric.name for metric in metrics))
    if not found:
        return None
    figure = _new_figure(3.1 * len(metrics), 2.9)
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for (_, model, variant), members in found.items():
            samples, sobol = members[0].figure["samples"], variant.endswith("sobol")
            runs = metric.scale * np.array([m.figure[metric.name] for m in members if m.figure["samples"] == samples])
            spread = runs.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(samples))
            label = f"{'Sobol' if sobol else 'independent'} samples, {len(runs)} run{'s' * (len(runs) > 1)}"
            curve = style_of("" if sobol else model).curve
            axes.errorbar(samples, runs.mean(0), spread, capsize=2, label=label, **curve)
        axes.set_xscale("log")
        axes.set_xticks(samples, [f"{s:g}" for s in samples])
        axes.minorticks_off()
        axes.set_xlabel("samples S in testing")
        axes.set_ylabel(metric.label)
        axes.grid(axis="y")
    figure.axes[0].legend(loc="best")
    return figure


def draw_variants(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure | None:
    """Every variant "GROUP=VALUE" as a dot with its spread, by group, one panel for each metric.

    Args:
        results: of the experiment.
        metrics: what to draw.
    """
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
    places, labels, position = [], [], 0.0
    for name, variants in groups.items():
        for key, members in variants.items():
            places.append((position, key, members))
            labels.append(", ".join([f"{name} = {key[0]}", *(key[1 + k] for k in (0, 1) if differ[k])]))
            position += 1
        position += 0.6
    figure = _new_figure(3.4 + 2.2 * len(metrics), 0.26 * position + 0.9)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for place, (_, model, _), members in places:
            if values := [metric.scale * m.metrics[metric.name] for m in members if metric.name in m.metrics]:
                summary, style = summarise(values), style_of(model)
                axes.errorbar(
                    summary.mean, place, xerr=summary.std or 0.0, color=style.colour, marker=style.marker, capsize=2
                )
        axes.set_xlabel(metric.label)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.08)
        axes.grid(axis="x")
        axes.spines["left"].set_color(INK)
    panels[0].set_yticks([place for place, _, _ in places], labels)
    panels[0].invert_yaxis()
    return figure


def draw_landscapes(results: Sequence[Result]) -> Figure | None:
    """For four images, the loss along one parameter: of the STN, and of the P-STN, which averages around it.

    Results hold `grid` (K,), `loss` (n, K) and `images` (n, H, W) as whole numbers from 0 to 255.
    """
    found = {key: min(members, key=lambda r: r.seed) for key, members in _cells(results, "grid", "loss").items()}
    if not found:
        return None
    labels = {"angle": "angle (radians)", "translation": "shift (half widths)"}
    data = list(dict.fromkeys(key[0] for key in found))
    count = min(4, *(len(r.figure["loss"]) for r in found.values()))
    figure = _new_figure(2.3 * count + 0.5, 2.9 * len(data))
    for block, name in zip(figure.subfigures(len(data), 1, squeeze=False)[:, 0], data, strict=True):
        own = [result for result in found.values() if result.data == name]
        axes = block.subplots(2, count, squeeze=False, height_ratios=(1, 2.4))
        for image in range(count):
            axes[0, image].set_axis_off()
            if pictures := next((r.figure["images"] for r in own if r.figure.get("images")), None):
                _show_image(axes[0, image], pictures[image])
            for result in own:
                loss, style = np.asarray(result.figure["loss"][image], float), style_of(result.model)
                # A thin broken line over a broad one: both are seen where they run together, in grey too.
                broad = result.model == "P-STN"
                axes[1, image].plot(
                    result.figure["grid"], loss, color=style.colour, linestyle=style.line, label=result.model,
                    linewidth=3.2 if broad else 1.2, alpha=0.55 if broad else 1.0, zorder=2 if broad else 3,
                )  # fmt: skip
            axes[1, image].set_xlabel(labels.get(name, name))
            axes[1, image].set_ylim(bottom=0)
        axes[1, 0].set_ylabel("loss (nats)")
        axes[1, 0].legend(loc="best")
    return figure


def draw_angles(results: Sequence[Result]) -> Figure | None:
    """True against recovered angles, samples of the P-STN, and its variances by how well it localised.

    Results hold `angle_true` and `angle_mean` (N,), and for the P-STN `beta` (N,), `inputs` (n, H, W) and `warped`
    (n, S, H, W), images as whole numbers from 0 to 255.
    """
    models = [found for name in ("STN", "P-STN") if (found := _first(results, "angle_true", "angle_mean", model=name))]
    if not models:
        return None
    shown, spread = _first(results, "inputs", "warped", model="P-STN"), _first(results, "angle_true", "beta")
    rest = [part for part in (shown, spread) if part]
    figure = _new_figure(*((9.6, 5.4) if rest else (3.4 * len(models), 3.2)))
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
    turn = math.pi
    ticks = ([-turn, -turn / 2, 0, turn / 2, turn], ["−π", "−π/2", "0", "π/2", "π"])
    for axes, result in zip(scatters.flat, models, strict=True):
        (true, recovered), style = _recovered_angles(result), style_of(result.model)
        axes.plot([-turn, turn], [-turn, turn], color=INK, linewidth=0.8, linestyle=":")
        wrapped = (recovered + turn) % (2 * turn) - turn
        axes.scatter(true, wrapped, s=5, color=style.colour, marker=style.marker, alpha=0.55, linewidths=0)
        axes.set_xticks(*ticks)
        axes.set_yticks(*ticks)
        axes.set_xlim(-turn, turn)
        axes.set_ylim(-turn, turn)
        axes.set_aspect("equal")
        axes.set_title(f"{result.model}, seed {result.seed}")
        axes.set_xlabel("true angle")
        axes.set_ylabel("recovered angle")
    return figure


def _recovered_angles(result: Result) -> tuple[_Array, _Array]:
    """True and recovered angles. A localizer's mean is the angle that undoes the rotation: its negative."""
    return np.asarray(result.figure["angle_true"], float), -np.asarray(result.figure["angle_mean"], float)


def _samples_in_columns(axes: Axes, result: Result) -> None:
    """A column for each image: the input above, what the classifier read below."""
    inputs, warped = np.asarray(result.figure["inputs"]), np.asarray(result.figure["warped"])
    height = inputs.shape[1]
    above, below = _mosaic(inputs[None]), _mosaic(warped.swapaxes(0, 1))
    _show_image(axes, np.vstack([above, np.full((height // 3, above.shape[1]), 255), below]))
    axes.set_yticks([height / 2, height + height // 3 + len(below) / 2], ["input", "samples"])
    axes.tick_params(length=0)


def _variance_by_error(axes: Axes, result: Result) -> None:
    """Histograms of beta for the better and the worse localised half."""
    true, recovered = _recovered_angles(result)
    error = np.abs(true - recovered) % math.pi  # the paper's error
    beta = np.asarray(result.figure["beta"], float).reshape(len(error), -1).mean(1)
    worse = error > np.median(error)
    low, high = np.quantile(beta, [0.0, 0.995])
    edges = np.linspace(low, high, 25).tolist()
    axes.hist(beta[~worse], edges, color=style_of("P-STN").colour, label="error below its median")
    axes.hist(beta[worse], edges, histtype="step", hatch="////", color=INK, label="error above its median")
    axes.set_xlabel("variance β of the localizer")
    axes.set_ylabel("images")
    axes.legend(loc="upper right")


def draw_placed(results: Sequence[Result]) -> Figure | None:
    """Inputs with the boxes that were sampled, and what the classifier read through them.

    Results hold `inputs` (n, H, W), `warped` (n, S, h, w), as whole numbers from 0 to 255, and `corners` (n, S', 4, 2)
    in pixels, x first.
    """
    result = _first(results, "inputs", "warped", model="P-STN")
    if result is None:
        return None
    inputs, corners = np.asarray(result.figure["inputs"]), result.figure.get("corners")
    figure = _new_figure(1.6 * len(inputs), 2.75)
    axes = figure.subplots(2, len(inputs), squeeze=False, height_ratios=(3, 2))
    for column, samples in enumerate(np.asarray(result.figure["warped"])):
        _show_image(axes[0, column], inputs[column])
        _draw_outlines(axes[0, column], [] if corners is None else corners[column])
        blanks = np.full((-len(samples) % 3, *samples.shape[1:]), 255)
        tiles = np.concatenate([samples, blanks]).reshape(-1, 3, *samples.shape[1:])
        _show_image(axes[1, column], _mosaic(tiles))
    axes[0, 0].set_ylabel("input")
    axes[1, 0].set_ylabel("samples")
    return figure


def draw_boxes(results: Sequence[Result]) -> Figure | None:
    """Photographs with the boxes that the P-STN sampled.

    Results hold `images`, each (H, W, 3) as whole numbers from 0 to 255, and `corners` (n, S, 4, 2) in pixels, x first.
    """
    result = _first(results, "images", "corners", model="P-STN")
    if result is None:
        return None
    images = result.figure["images"]
    columns = min(6, len(images))
    rows = math.ceil(len(images) / columns)
    figure = _new_figure(1.6 * columns, 1.6 * rows)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, image, corners in zip(figure.axes, images, result.figure["corners"], strict=False):
        _show_image(axes, image)
        _draw_outlines(axes, corners)
    return figure


def _draw_outlines(axes: Axes, corners: Any) -> None:
    """Outlines, light on dark so that they show on any background; what lies outside the image is cut off."""
    limits = axes.get_xlim(), axes.get_ylim()
    for colour, width in (("#000000", 1.8), ("#ffd166", 0.9)):
        for box in corners:
            outline = np.asarray(box, float).reshape(-1, 2)
            x, y = np.vstack([outline, outline[:1]]).T
            axes.plot(x, y, color=colour, linewidth=width, linestyle="-", marker="")
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])


def draw_search(results: Sequence[Result], *, search: Search) -> Figure | None:
    """Validation scores by the value that was tried, mean ± one standard deviation, a line for each data set.

    The best mean of a line is filled, all that share it where several do; a ring marks what the paper chose. Values
    stand at equal distances, as they are tried: by factors, and 0.

    Args:
        results: of the search.
        search: what was tried on which data.
    """
    found = [data for data in search.published if search.trials(data, search.metrics[0], results)]
    if not found:
        return None
    figure = _new_figure(4.3 * len(search.metrics), 4.0)
    for axes, metric in zip(figure.subplots(1, len(search.metrics), squeeze=False)[0], search.metrics, strict=True):
        trials = {data: search.trials(data, metric, results) for data in found}
        tried = sorted({value for scores in trials.values() for value in scores})
        seen: list[float] = []
        for number, (data, scores) in enumerate(trials.items()):
            style = Style(_COLOURS[number % 6], "os^DvP"[number % 6], "-")
            summaries = {value: summarise([metric.scale * run for run in runs]) for value, runs in scores.items()}
            seen += [summary.mean for summary in summaries.values()]
            axes.errorbar(
                [tried.index(value) for value in summaries], [summary.mean for summary in summaries.values()],
                [summary.std or 0.0 for summary in summaries.values()],
                elinewidth=0.7, capsize=1.5, markerfacecolor="white", label=data, **style.curve,
            )  # fmt: skip
            best, published = search.best(data, metric, results), search.published[data]
            heights = [summaries[value].mean for value in best]
            axes.plot([tried.index(v) for v in best], heights, **style.curve | {"linestyle": ""}, zorder=3)
            if published in summaries:
                place, height = tried.index(published), summaries[published].mean
                axes.plot(place, height, "o", markersize=11, color=style.colour, markerfacecolor="none")
        axes.set_xticks(range(len(tried)), [f"{value:g}" for value in tried], rotation=45)
        axes.set_xlabel(search.name)
        axes.set_ylabel(metric.label)
        axes.grid(axis="y")
        # The means must be in view; where training breaks down in some runs, the spread is wider than any page.
        if metric.higher_is_better:
            _scale_by_error(axes, metric, min(seen), max(seen))
        else:
            low, high = min(seen) / 1.3, max(seen) * 1.3
            axes.set_yscale("log")
            axes.set_ylim(low, high)
            ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
            shown = [tick for tick in ticks if low <= tick <= high]
            axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
            axes.minorticks_off()
    axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    handles += axes.plot([], [], "o", color="0.4") + axes.plot(
        [], [], "o", color="0.4", markersize=10, markerfacecolor="none"
    )
    figure.legend(handles, [*labels, "best", "the paper’s"], loc="outside lower center", ncols=4)
    return figure


def draw_series(results: Sequence[Result]) -> Figure | None:
    """A series of each data set above, and warped versions of it below.

    Results hold `series` (L,) and `warped` (S, L).
    """
    found = [min(members, key=lambda r: r.seed) for members in _cells(results, "series", "warped").values()]
    if not found:
        return None
    columns = min(3, len(found))
    blocks = math.ceil(len(found) / columns)
    figure = _new_figure(3.3 * columns, 2.7 * blocks)
    axes = figure.subplots(2 * blocks, columns, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    lines = (("#0072B2", "-"), ("#D55E00", "--"), (INK, ":"), ("#009E73", "-."))
    for number, result in enumerate(found):
        row, column = divmod(number, columns)
        upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
        warped = np.asarray(result.figure["warped"], float)
        upper.plot(np.ravel(result.figure["series"]), color=INK, linewidth=1.1)
        for sample, version in enumerate(warped.reshape(len(warped), -1)):
            colour, line = lines[sample % 4]
            lower.plot(version, color=colour, linestyle=line, linewidth=1.1)
        for one in (upper, lower):
            one.set_axis_on()
            one.margins(x=0.01)
        upper.tick_params(labelbottom=False)
        upper.set_title(result.data)
        upper.set_ylabel("series")
        lower.set_ylabel(f"{len(warped)} samples")
        lower.set_xlabel("time step")
    return figure
