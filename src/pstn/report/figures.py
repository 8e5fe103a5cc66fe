"""The figures. Each takes results of one experiment and returns a figure; `NothingToDraw` where they hold none of it.

They can be read in grey, by colour-blind readers, and in print: colours are Okabe and Ito's, chosen to differ in
lightness too, and each model has a marker, a line and a hatch of its own.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.data.images import without_tex
from pstn.report.results import Result, grouped
from pstn.report.statistics import median_and_deviation, summarise
from pstn.report.tables import Metric, Search, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
_SETTINGS: Any = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.fontsize": 8.5, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": INK, "axes.linewidth": 0.8, "axes.axisbelow": True, "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6, "text.color": INK, "axes.labelcolor": INK, "lines.linewidth": 1.5, "lines.markersize": 5.5,
    "hatch.linewidth": 0.6, "savefig.facecolor": "white", "svg.hashsalt": "pstn",  # the same figure is the same file
}  # fmt: skip
_CNN = {"color": "#E69F00", "marker": "s", "linestyle": "--"}
_STYLES: dict[str, dict[str, Any]] = {
    "CNN": _CNN, "NN": _CNN, "STN": {"color": "#009E73", "marker": "^", "linestyle": (0, (4, 1.5, 1, 1.5))},
    "P-STN": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
}  # fmt: skip
_HATCHES = {"CNN": "///", "NN": "///", "STN": "...", "P-STN": ""}
_MARKERS = "osD^v"
_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#D55E00", "#0072B2", INK)


class NothingToDraw(Exception):
    """The results hold nothing of what a figure shows."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for whatever is drawn and saved inside."""
    import matplotlib

    with without_tex(), matplotlib.rc_context(_SETTINGS):
        yield


def style_of(model: str) -> dict[str, Any]:
    """Keywords for `Axes.plot` and `Axes.errorbar`; the reference style for any model but the paper's."""
    return _STYLES.get(model, {"color": INK, "marker": "D", "linestyle": ":"})


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _panels(count: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure with `count` axes side by side."""
    figure = _new_figure(width, height)
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]


def _cells(results: Sequence[Result], *names: str, model: str = "") -> dict[tuple[str, str, str], list[Result]]:
    """The results whose figures have all of `names`, none empty, by data, model and variant, in the order they come."""
    own = (r for r in results if model in ("", r.model) and all(r.figure.get(n) not in (None, [], {}) for n in names))
    found = grouped(own, lambda r: (r.data, r.model, r.variant))
    if not found:
        raise NothingToDraw
    return found


def _first(results: Sequence[Result], *names: str, model: str = "") -> list[Result]:
    """The result with the lowest seed of each cell whose figures have all of `names`."""
    return [min(members, key=lambda r: r.seed) for members in _cells(results, *names, model=model).values()]


def _errorbar(axes: Axes, places: Iterable[float], numbers: Sequence[Sequence[Any]], **style: Any) -> None:
    """Points with their spread up and down; a number begins with its place and its spread, which may be unknown."""
    axes.errorbar(list(places), [n[0] for n in numbers], [n[1] or 0.0 for n in numbers], **style)


def _show_image(axes: Axes, pixels: Any) -> None:
    """Show an image, grey (H, W) or colour (H, W, 3), of whole numbers from 0 to 255; no axes around it."""
    axes.imshow(np.asarray(pixels, dtype=np.uint8), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _mosaic(images: npt.ArrayLike, gap: int = 2) -> npt.NDArray[np.uint8]:
    """(rows, columns, H, W) to a single image with white lines of `gap` pixels between the tiles."""
    tiles = np.pad(np.asarray(images, np.uint8), ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=255)
    rows, columns, height, width = tiles.shape
    return tiles.swapaxes(1, 2).reshape(rows * height, columns * width)[:-gap, :-gap]


def draw_reliability(results: Sequence[Result]) -> Figure:
    """Accuracy by confidence, one panel for each model and variant, all folds together.

    Results hold `reliability` with `confidence`, `accuracy` and `count` (bins,); empty bins hold null.
    """
    found = _cells(results, "reliability")
    figure = _new_figure(2.35 * len(found) + 0.3, 3.4)
    panels = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for (upper, lower), ((_, model, variant), members) in zip(panels.T, found.items(), strict=True):
        count, confidence, accuracy = (
            np.nan_to_num(np.array([m.figure["reliability"][name] for m in members], dtype=float))
            for name in ("count", "confidence", "accuracy")
        )
        total, share, style = np.maximum(count.sum(0), 1), count.sum(0) / count.sum(), style_of(model)
        confidence, accuracy = (count * confidence).sum(0) / total, (count * accuracy).sum(0) / total
        width, filled = 1 / len(share), share > 0
        left = np.arange(len(share)) * width
        bars: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.6}
        hatch = _HATCHES.get(model, "xxx")
        upper.bar(left[filled], accuracy[filled], width, color=style["color"], hatch=hatch, **bars)
        upper.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
        points = {"marker": style["marker"], "markersize": 3.5, "linewidth": 0.9}
        upper.plot(confidence[filled], accuracy[filled], color=INK, **points)
        errors = [m.metrics["ece10"] for m in members if "ece10" in m.metrics]
        note = f"\nECE {np.mean(errors):.4f}" if errors else ""
        upper.set(ylim=(0, 1.02), title=" ".join(filter(None, (model, variant))) + note)
        lower.bar(left, share, width, color="0.6", **bars)
        lower.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="confidence")
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("share")
    return figure


def draw_curves(results: Sequence[Result], *, tables: Sequence[Table], xlabel: str, log: bool = False) -> Figure:
    """A panel for each table, a curve for each of its columns, by the number in the heading of each row.

    A point is the mean ± one standard deviation of the runs, or of a robust table the median ± the median absolute
    deviation. Published numbers are hollow.

    Args:
        results: of the experiment.
        tables: whose lines to draw.
        xlabel: what the number in the rows' headings is.
        log: whether its axis is logarithmic, with a tick for each row.
    """
    from matplotlib.ticker import MaxNLocator

    quick = any(result.quick for result in results)
    figure, panels = _panels(len(tables), *((4.2 * len(tables), 3.4) if len(tables) > 1 else (6.4, 3.7)))
    if not any(line.values(results) for table in tables for line in table.lines):
        raise NothingToDraw
    for axes, table in zip(panels, tables, strict=True):
        lines, metric = [li for li in table.lines if not li.is_mean and li.values(results)], table.lines[0].metric
        places = {line: float(re.findall(r"[\d.]+", line.heading[0])[-1]) for line in lines}
        columns = grouped(lines, lambda line: line.heading[1])
        for number, (column, own) in enumerate(columns.items()):
            style = style_of("" if own[0].data == "upright" else own[0].model)
            if sum(other[0].model not in _STYLES for other in columns.values()) > 1 and own[0].model not in _STYLES:
                style |= {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            apart = 1.0 + 0.05 * (number - (len(columns) - 1) / 2) if log else 1.0  # points side by side
            ours = [(median_and_deviation if table.robust else summarise)(line.values(results)) for line in own]
            _errorbar(axes, [apart * places[line] for line in own], ours, capsize=2.5, label=column, **style)
            published = {1.12 * apart * places[line]: line.paper.summary for line in own if line.paper and not quick}
            hollow = {"linestyle": "", "markerfacecolor": "white"}
            if published:
                thin = {"elinewidth": 0.7, "capsize": 1.5, "markersize": 4.5}
                _errorbar(axes, published, list(published.values()), **style | hollow | thin)
        if not quick and any(line.paper for line in lines):
            axes.errorbar([], [], [], marker="o", color="0.4", label="the paper’s", **hollow)
        axes.set(xlabel=xlabel, ylabel=metric.label)
        axes.grid(axis="y")
        if log:
            ticks = sorted(set(places.values()))
            axes.set(xscale="log", xticks=ticks, xticklabels=[f"{tick:g}" for tick in ticks])
            _scale_by_error(axes, metric, axes.dataLim.y0, axes.dataLim.y1)
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].legend(loc="lower right" if log else "best")
    return figure


def _scale_by_error(axes: Axes, metric: Metric, lowest: float, highest: float) -> None:
    """Scale accuracies in percent by the logarithm of their errors: 97 and 98 are as far apart as 70 and 80."""
    if not (metric.higher_is_better and metric.scale == 100):
        return
    top = 100.1  # from here errors are counted: from 100, no error at all would be infinitely far up
    low, high = top - 1.2 * (top - lowest), top - (top - min(highest, 100)) / 1.2
    forward = lambda y: -np.log10(np.maximum(top - np.asarray(y, float), 0.01))  # noqa: E731
    axes.set_yscale("function", functions=(forward, lambda z: top - 10.0 ** -np.asarray(z, float)))
    _set_ticks(axes, (20, 40, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 100), low, high)


def _set_ticks(axes: Axes, ticks: Sequence[float], low: float, high: float) -> None:
    """Limit the vertical axis, and mark those of the ticks that lie within."""
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_ylim(low, high)


def draw_samples_at_test(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure:
    """Scores by the number S of samples in testing, independent or Sobol, mean ± one standard deviation over the runs.

    Results hold `samples` (n,) and, by the metric's name, a list as long.
    """
    found = _cells(results, "samples", *(metric.name for metric in metrics))
    figure, panels = _panels(len(metrics), 3.1 * len(metrics), 2.9)
    for axes, metric in zip(panels, metrics, strict=True):
        for (_, model, variant), members in found.items():
            samples, sobol = members[0].figure["samples"], variant.endswith("sobol")
            runs = metric.scale * np.array([m.figure[metric.name] for m in members if m.figure["samples"] == samples])
            label = f"{'Sobol' if sobol else 'independent'} samples, {len(runs)} run{'s' * (len(runs) > 1)}"
            curve = [summarise(scores) for scores in runs.T.tolist()]
            _errorbar(axes, samples, curve, capsize=2, label=label, **style_of("" if sobol else model))
        axes.set(xscale="log", xlabel="samples S in testing", ylabel=metric.label)
        axes.set_xticks(samples, [f"{s:g}" for s in samples])
        axes.minorticks_off()
        axes.grid(axis="y")
    panels[0].legend(loc="best")
    return figure


def draw_variants(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure:
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
        raise NothingToDraw
    # The model and the data are named where they differ.
    differ = [len({key[part] for variants in groups.values() for key in variants}) > 1 for part in (1, 2)]
    places, labels, position = [], [], 0.0
    for name, variants in groups.items():
        for key, members in variants.items():
            places.append((position, style_of(key[1]), members))
            labels.append(", ".join([f"{name} = {key[0]}", *(key[1 + k] for k in (0, 1) if differ[k])]))
            position += 1
        position += 0.6
    figure, panels = _panels(len(metrics), 3.4 + 2.2 * len(metrics), 0.26 * position + 0.9, sharey=True)
    for axes, metric in zip(panels, metrics, strict=True):
        for place, style, members in places:
            if values := [metric.scale * m.metrics[metric.name] for m in members if metric.name in m.metrics]:
                mean, std, _ = summarise(values)
                axes.errorbar(mean, place, xerr=std or 0.0, color=style["color"], marker=style["marker"], capsize=2)
        axes.set_xlabel(metric.label)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.08)
        axes.grid(axis="x")
    panels[0].set_yticks([place for place, _, _ in places], labels)
    panels[0].invert_yaxis()
    return figure


def draw_landscapes(results: Sequence[Result]) -> Figure:
    """For four images, the loss along one parameter: of the STN, and of the P-STN, which averages around it.

    Results hold `grid` (K,), `loss` (n, K) and `images` (n, H, W) as whole numbers from 0 to 255.
    """
    found = _first(results, "grid", "loss", "images")
    labels = {"angle": "angle (radians)", "translation": "shift (half widths)"}
    labels["translation, learned noise"] = f"{labels['translation']}, learned noise"
    data = list(dict.fromkeys(result.data for result in found))
    count = min(4, *(len(r.figure["loss"]) for r in found))
    figure = _new_figure(2.3 * count + 0.5, 2.9 * len(data))
    for block, name in zip(figure.subfigures(len(data), 1, squeeze=False)[:, 0], data, strict=True):
        own = [result for result in found if result.data == name]
        axes = block.subplots(2, count, squeeze=False, height_ratios=(1, 2.4))
        for image, (above, below) in enumerate(axes.T):
            above.set_axis_off()
            _show_image(above, own[0].figure["images"][image])
            for result in own:
                # A thin broken line over a broad one: both are seen where they run together, in grey too.
                style = style_of(result.model) | {"marker": "", "linewidth": 1.2, "zorder": 3}
                if result.model == "P-STN":
                    style |= {"linewidth": 3.2, "alpha": 0.55, "zorder": 2}
                below.plot(result.figure["grid"], result.figure["loss"][image], label=result.model, **style)
            below.set_xlabel(labels.get(name, name))
            below.set_ylim(bottom=0)
        axes[1, 0].set_ylabel("loss (nats)")
        axes[1, 0].legend(loc="best")
    return figure


def draw_angles(results: Sequence[Result]) -> Figure:
    """True against recovered angles, samples of the P-STN, and its variances by how well it localised.

    Results hold `angle_true` and `angle_mean` (N,), and for the P-STN `beta` (N,), `inputs` (n, H, W) and `warped`
    (n, S, H, W), images as whole numbers from 0 to 255.
    """
    (shown, *_) = _first(results, "angle_true", "angle_mean", "beta", "inputs", "warped", model="P-STN")
    models = sorted(_first(results, "angle_true", "angle_mean"), key=lambda result: result.model != "STN")
    figure, turn = _new_figure(9.6, 5.4), math.pi
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.9))[0]
    samples, variances = right.subplots(2, 1, height_ratios=(2.4, 1))
    _samples_in_columns(samples, shown)
    _variance_by_error(variances, shown)
    ticks = ([-turn, -turn / 2, 0, turn / 2, turn], ["−π", "−π/2", "0", "π/2", "π"])
    for axes, result in zip(left.subplots(len(models), 1, squeeze=False)[:, 0], models, strict=True):
        (true, recovered), style = _recovered_angles(result), style_of(result.model)
        axes.plot([-turn, turn], [-turn, turn], color=INK, linewidth=0.8, linestyle=":")
        wrapped = (recovered + turn) % (2 * turn) - turn
        axes.scatter(true, wrapped, s=5, color=style["color"], marker=style["marker"], alpha=0.55, linewidths=0)
        axes.set_xticks(*ticks)
        axes.set_yticks(*ticks)
        axes.set(xlim=(-turn, turn), ylim=(-turn, turn), aspect="equal")
        axes.set(title=f"{result.model}, seed {result.seed}", xlabel="true angle", ylabel="recovered angle")
    return figure


def _recovered_angles(result: Result) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
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
    worse, (low, high) = error > np.median(error), np.quantile(beta, [0.0, 0.995])
    edges = np.linspace(low, high, 25).tolist()
    axes.hist(beta[~worse], edges, color=style_of("P-STN")["color"], label="error below its median")
    axes.hist(beta[worse], edges, histtype="step", hatch="////", color=INK, label="error above its median")
    axes.set(xlabel="variance β of the localizer", ylabel="images")
    axes.legend(loc="upper right")


def draw_windows(results: Sequence[Result]) -> Figure:
    """Images with the windows that the P-STN sampled and, where results hold them, the samples below.

    Results hold `images` (n, H, W) or (n, H, W, 3) and `corners` (n, S, 4, 2) in pixels, x first; or `inputs`,
    `corners` and `warped` (n, S', h, w). Images are whole numbers from 0 to 255.
    """
    figure_of = _first(results, "corners", model="P-STN")[0].figure
    images, warped = figure_of.get("inputs") or figure_of["images"], figure_of.get("warped")
    figure = _new_figure(1.6 * len(images), 2.75 if warped else 1.6)
    axes = figure.subplots(2 if warped else 1, len(images), squeeze=False, height_ratios=(3, 2) if warped else None)
    for panel, image, corners in zip(axes[0], images, figure_of["corners"], strict=True):
        _show_image(panel, image)
        limits = {"xlim": panel.get_xlim(), "ylim": panel.get_ylim()}
        # Light on dark, so that they show on any background; what lies outside the image is cut off.
        for colour, width in (("#000000", 1.8), ("#ffd166", 0.9)):
            for box in corners:
                outline = np.asarray(box, float)
                panel.plot(*np.vstack([outline, outline[:1]]).T, color=colour, linewidth=width)
        panel.set(**limits)
    for panel, samples in zip(axes[1], np.asarray(warped), strict=True) if warped else ():
        blanks = np.full((-len(samples) % 3, *samples.shape[1:]), 255)
        _show_image(panel, _mosaic(np.concatenate([samples, blanks]).reshape(-1, 3, *samples.shape[1:])))
    if warped:
        axes[0, 0].set_ylabel("input")
        axes[1, 0].set_ylabel("samples")
    return figure


def draw_search(results: Sequence[Result], *, search: Search) -> Figure:
    """Validation scores by the value that was tried, mean ± one standard deviation, a line for each data set.

    The best mean of a line is filled, all that share it where several do; a ring marks what the paper chose. Values
    stand at equal distances, as they are tried: by factors, and 0.

    Args:
        results: of the search.
        search: what was tried on which data.
    """
    figure, panels = _panels(len(search.metrics), 4.3 * len(search.metrics), 4.0)
    for axes, metric in zip(panels, search.metrics, strict=True):
        trials = {data: search.scores(data, metric, results) for data in search.published}
        tried, seen = sorted({value for scores in trials.values() for value in scores}), []
        if not tried:
            raise NothingToDraw
        for number, (data, scores) in enumerate((data, scores) for data, scores in trials.items() if scores):
            style = {"color": _COLOURS[number % 6], "marker": "os^DvP"[number % 6]}
            curve = {v: summarise([metric.scale * run for run in runs]) for v, runs in scores.items()}
            seen += [summary.mean for summary in curve.values()]
            thin = {"elinewidth": 0.7, "capsize": 1.5, "markerfacecolor": "white", "label": data}
            _errorbar(axes, map(tried.index, curve), list(curve.values()), linestyle="-", **thin, **style)
            best, published = search.best(data, metric, results), search.published[data]
            axes.plot([*map(tried.index, best)], [curve[v].mean for v in best], **style, linestyle="", zorder=3)
            if published in curve:
                ring = {"markersize": 11, "color": style["color"], "markerfacecolor": "none"}
                axes.plot(tried.index(published), curve[published].mean, "o", **ring)
        axes.set_xticks(range(len(tried)), [f"{value:g}" for value in tried], rotation=45)
        axes.set(xlabel=search.name, ylabel=metric.label)
        axes.grid(axis="y")
        # The means must be in view; where training breaks down in some runs, the spread is wider than any page.
        if metric.higher_is_better:
            _scale_by_error(axes, metric, min(seen), max(seen))
        else:
            axes.set_yscale("log")
            ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
            _set_ticks(axes, ticks, min(seen) / 1.3, max(seen) * 1.3)
            axes.minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    handles += panels[0].plot([], [], "o", color="0.4")
    handles += panels[0].plot([], [], "o", color="0.4", markersize=10, markerfacecolor="none")
    figure.legend(handles, [*labels, "best", "the paper’s"], loc="outside lower center", ncols=4)
    return figure


def draw_series(results: Sequence[Result]) -> Figure:
    """A series of each data set above, and warped versions of it below.

    Results hold `series` (L,) and `warped` (S, L).
    """
    found = _first(results, "series", "warped")
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
        upper.plot(result.figure["series"], color=INK, linewidth=1.1)
        for version, (colour, line) in zip(result.figure["warped"], itertools.cycle(lines), strict=False):
            lower.plot(version, color=colour, linestyle=line, linewidth=1.1)
        for one in (upper, lower):
            one.set_axis_on()
            one.margins(x=0.01)
        upper.tick_params(labelbottom=False)
        upper.set(title=result.data, ylabel="series")
        lower.set(ylabel=f"{len(result.figure['warped'])} samples", xlabel="time step")
    return figure
