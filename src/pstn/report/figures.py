"""The figures. Each takes results of one experiment and returns a figure; `NothingToDraw` where they hold none of it.

They can be read in grey, by colour-blind readers, and in print: colours are Okabe and Ito's, chosen to differ in
lightness too, and each model has a marker, a line and a hatch of its own.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pstn.data.images import without_tex
from pstn.report.results import Result, grouped
from pstn.report.statistics import Summary, summarise
from pstn.report.tables import Claim, Metric, Search, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

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
_FEW = 50  # predictions, of which a share says little
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


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _panels(count: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure with `count` axes side by side."""
    figure = new_figure(width, height)
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]


def _cells(results: Sequence[Result], *names: str, model: str = "") -> dict[tuple[str, str, str], list[Result]]:
    """The results whose figures have all of `names`, none empty, by data, model and variant, in the order they come."""
    own = (r for r in results if model in ("", r.model) and all(r.figure.get(n) not in (None, [], {}) for n in names))
    found = grouped(own, lambda r: (r.data, r.model, r.variant))
    if not found:
        raise NothingToDraw
    return found


def first_of_cells(results: Sequence[Result], *names: str, model: str = "") -> list[Result]:
    """The result with the lowest seed of each cell whose figures have all of `names`; of one model, or of all.

    Raises:
        NothingToDraw: there is none.
    """
    return [min(members, key=lambda r: r.seed) for members in _cells(results, *names, model=model).values()]


def _errorbar(axes: Axes, numbers: Mapping[float, Summary], **style: Any) -> None:
    """Points with their spread, which may be unknown, up and down, by their place."""
    axes.errorbar(list(numbers), [n.mean for n in numbers.values()], [n.std or 0.0 for n in numbers.values()], **style)


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

    Bins with few predictions are pale. Results hold `reliability` with `confidence`, `accuracy` and `count` (bins,);
    empty bins hold null.
    """
    found = _cells(results, "reliability")
    figure = new_figure(2.35 * len(found) + 0.3, 3.4)
    panels = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for (upper, lower), ((_, model, variant), members) in zip(panels.T, found.items(), strict=True):
        count, confidence, accuracy = (
            np.nan_to_num(np.array([m.figure["reliability"][name] for m in members], dtype=float))
            for name in ("count", "confidence", "accuracy")
        )
        total, share, style = np.maximum(count.sum(0), 1), count.sum(0) / count.sum(), style_of(model)
        confidence, accuracy = (count * confidence).sum(0) / total, (count * accuracy).sum(0) / total
        width, filled, few = 1 / len(share), share > 0, count.sum(0) < _FEW
        left = np.arange(len(share)) * width
        bars: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.6}
        hatch = _HATCHES.get(model, "xxx")
        for shown, alpha in ((filled & ~few, 1.0), (filled & few, 0.25)):
            upper.bar(left[shown], accuracy[shown], width, color=style["color"], hatch=hatch, alpha=alpha, **bars)
        upper.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
        points = {"marker": style["marker"], "markersize": 3.5, "linewidth": 0.9}
        upper.plot(confidence[filled & ~few], accuracy[filled & ~few], color=INK, **points)
        errors = [m.metrics["ece10"] for m in members if "ece10" in m.metrics]
        note = f"\nECE {np.mean(errors):.4f}" if errors else ""
        upper.set(ylim=(0, 1.02), title=" ".join(filter(None, (model, variant))) + note)
        lower.bar(left, share, width, color="0.6", **bars)
        lower.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="confidence")
    panels[0, 0].set_ylabel("accuracy")
    panels[1, 0].set_ylabel("share")
    return figure


def draw_curves(
    results: Sequence[Result], *, tables: Sequence[Table], xlabel: str, log: bool = False,
    minus: tuple[str, str] | None = None,
) -> Figure:  # fmt: skip
    """A panel for each table, a curve for each of its columns, by the number in the heading of each row.

    A point is the mean ± one standard deviation of the runs, or of a robust table the median, with each run as a small
    dot: where runs fall into two kinds, no bar says so. Published numbers are hollow.

    Args:
        results: of the experiment.
        tables: whose lines to draw.
        xlabel: what the number in the rows' headings is.
        log: whether its axis is logarithmic, with a tick for each row.
        minus: row and column of the line of each table that the others are compared with, seed by seed; none when None.
    """
    from matplotlib.ticker import MaxNLocator

    figure, panels = _panels(len(tables), *((4.2 * len(tables), 3.4) if len(tables) > 1 else (6.4, 3.7)))
    if not any(line.values(results) for table in tables for line in table.lines):
        raise NothingToDraw
    for axes, table in zip(panels, tables, strict=True):
        lines, metric = [li for li in table.lines if not li.is_mean and li.values(results)], table.lines[0].metric
        places = {line: float(re.findall(r"[\d.]+", line.heading[0])[-1]) for line in lines}
        columns, base = grouped(lines, lambda line: line.heading[1]), None
        if minus is not None:
            base = next(line for line in lines if line.heading == minus)
            axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
        for number, (column, own) in enumerate(columns.items()):
            style = style_of("" if own[0].data == "upright" else own[0].model)
            if sum(other[0].model not in _STYLES for other in columns.values()) > 1 and own[0].model not in _STYLES:
                style |= {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            apart = 1.0 + 0.05 * (number - (len(columns) - 1) / 2) if log else 1.0  # points side by side
            values = {apart * places[line]: line.values(results) for line in own}
            if base is not None:
                runs_of = {apart * places[line]: line.by_seed(results) for line in own if line is not base}
                first = base.by_seed(results)
                values = {at: [v - first[k] for k, v in runs.items() if k in first] for at, runs in runs_of.items()}
            if table.robust:
                dots = style | {"linestyle": "", "markersize": 3.5, "alpha": 0.5, "markeredgewidth": 0}
                aside = 0.12 + 0.06 * number
                axes.plot(*zip(*((at + aside, v) for at, runs in values.items() for v in runs), strict=True), **dots)
                middle = [median(runs) for runs in values.values()]
                axes.plot(list(values), middle, label=column, **style)
                if max(max(runs) for runs in values.values()) > 10 * max(middle) > 0:  # one run far from all others
                    axes.set_yscale("symlog", linthresh=0.01)
            else:
                summaries = {at: summarise(runs) for at, runs in values.items()}
                _errorbar(axes, summaries, capsize=2.5, label=column, **style)
            published = {1.12 * apart * places[line]: line.paper.summary for line in own if line.paper}
            hollow = {"linestyle": "", "markerfacecolor": "white"}
            if published:
                thin = {"elinewidth": 0.7, "capsize": 1.5, "markersize": 4.5}
                _errorbar(axes, published, **style | hollow | thin)
        if any(line.paper for line in lines):
            axes.errorbar([], [], [], marker="o", color="0.4", label="the paper’s", **hollow)
        axes.set(xlabel=xlabel, ylabel=metric.label if base is None else f"{metric.label}, difference")
        axes.grid(axis="y")
        if log:
            ticks = sorted(set(places.values()))
            # "3e-4" is narrower than "0.0003".
            labels = [f"{tick:g}" if tick >= 1e-3 else f"{tick:.0e}".replace("e-0", "e-") for tick in ticks]
            axes.set(xscale="log", xticks=ticks, xticklabels=labels)
            if base is None:
                _scale_by_error(axes, metric, axes.dataLim.y0, axes.dataLim.y1)
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1 if log else 0].legend(loc="lower right" if len(panels) == 1 and log else "best")
    return figure


def _scale_by_error(axes: Axes, metric: Metric, lowest: float, highest: float) -> None:
    """Scale accuracies in percent by the logarithm of their errors: 97 and 98 are as far apart as 70 and 80."""
    if not (metric.higher_is_better and metric.scale == 100):
        return
    top = 100.1  # from here errors are counted: from 100, no error at all would be infinitely far up
    low, high = top - 1.2 * (top - lowest), top - (top - min(highest, 100)) / 1.2
    to_error, back = lambda y: -np.log10(np.maximum(top - y, 0.01)), lambda z: top - 10.0**-z
    axes.set_yscale("function", functions=(to_error, back))
    ticks: Sequence[float] = (20, 40, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 100)
    if sum(low <= tick <= high for tick in ticks) < 3:
        ticks = range(math.ceil(low), math.floor(high) + 1)
    _set_ticks(axes, ticks, low, high)


def _set_ticks(axes: Axes, ticks: Sequence[float], low: float, high: float) -> None:
    """Limit the vertical axis, and mark those of the ticks that lie within."""
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_ylim(low, high)


def draw_sobol_gain(results: Sequence[Result], *, metrics: Sequence[Metric]) -> Figure:
    """Scores with Sobol samples minus those with independent ones, by their number S, of the same trained models.

    Results hold `samples` (n,) and, by the metric's name, a list as long; the variant of one ends with "sobol". Two
    are of the same models if they have the same seed and commit.
    """
    found = _cells(results, "samples", *(metric.name for metric in metrics))
    pairs = grouped((r for own in found.values() for r in own), lambda r: (r.model, r.data, r.seed, r.commit)).values()
    both = [sorted(pair, key=lambda r: r.variant.endswith("sobol")) for pair in pairs if len(pair) == 2]
    if not both:
        raise NothingToDraw
    figure, panels = _panels(len(metrics), 3.1 * len(metrics), 2.9)
    samples, style = both[0][0].figure["samples"], style_of("P-STN")
    for axes, metric in zip(panels, metrics, strict=True):
        gains = metric.scale * np.array([np.subtract(*(r.figure[metric.name] for r in pair[::-1])) for pair in both])
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
        axes.plot(samples, gains.T, color=style["color"], linewidth=0.8, alpha=0.5)
        axes.plot(samples, gains.mean(0), **style)
        axes.set(xscale="log", xlabel="samples S in testing", ylabel=f"{metric.label}, difference")
        axes.set_xticks(samples, [f"{s:g}" for s in samples])
        axes.minorticks_off()
        axes.grid(axis="y")
    return figure


def draw_differences(results: Sequence[Result], *, claims: Sequence[Claim], metrics: Sequence[Metric]) -> Figure:
    """One line of each claim minus the other, run by run: a row for each pair, a panel for each metric.

    Small dots are the runs that share a seed, the large one is their mean. The better side is shaded.

    Args:
        results: of the experiment.
        claims: the pairs; those of one pair of headings, with their metrics, share a row.
        metrics: the panels.
    """
    pairs = grouped(claims, lambda claim: (claim.better.heading[1], claim.worse.heading[1]))
    figure, panels = _panels(len(metrics), 2.4 + 2.5 * len(metrics), 0.4 * len(pairs) + 0.9, sharey=True)
    drawn = False
    for axes, metric in zip(panels, metrics, strict=True):
        for row, own in enumerate(pairs.values()):
            for claim in (claim for claim in own if claim.better.metric == metric):
                better, worse = claim.better.by_seed(results), claim.worse.by_seed(results)
                if gains := [better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())]:
                    style, drawn = {"color": style_of("P-STN")["color"], "linestyle": ""}, True
                    axes.plot(gains, [row + 0.22] * len(gains), ".", alpha=0.5, **style)
                    axes.plot(fmean(gains), row - 0.08, "o", **style)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        low, high = axes.get_xlim()
        axes.axvspan(*((0, high) if metric.higher_is_better else (low, 0)), color="0.94", zorder=0)
        axes.set(xlim=(low, high), xlabel=f"{metric.label}, difference")
        axes.grid(axis="x")
    if not drawn:
        raise NothingToDraw
    panels[0].set_yticks(range(len(pairs)), [f"{better}\nminus {worse}" for better, worse in pairs])
    panels[0].invert_yaxis()
    return figure


def draw_landscapes(results: Sequence[Result]) -> Figure:
    """For four images, the loss along one parameter: of the STN, and of the P-STN, which averages around it.

    Results hold `grid` (K,), `loss` (n, K) and `images` (n, H, W) as whole numbers from 0 to 255.
    """
    found = first_of_cells(results, "grid", "loss", "images")
    by_data = grouped(found, lambda result: result.data)
    count = min(4, *(len(r.figure["loss"]) for r in found))
    figure = new_figure(2.3 * count + 0.5, 2.9 * len(by_data))
    blocks = figure.subfigures(len(by_data), 1, squeeze=False)[:, 0]
    for block, (name, own) in zip(blocks, by_data.items(), strict=True):
        label = name.replace("angle", "angle (radians)").replace("translation", "shift (half widths)")
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
            below.set_xlabel(label)
            below.set_ylim(bottom=0)
            if name == "angle" and len(own) == 2:
                losses = (np.asarray(r.figure["loss"][image]) for r in own)
                _zoom_on_dip(below, np.asarray(own[0].figure["grid"]), *losses)
        axes[1, 0].set_ylabel("loss (nats)")
        axes[1, 0].legend(loc="best")
    return figure


def _zoom_on_dip(axes: Axes, at: npt.NDArray[Any], *losses: npt.NDArray[Any]) -> None:
    """Show what surrounds the dip of one curve that the other fills most: over all angles the two look the same."""
    lower, upper = sorted(losses, key=lambda loss: float(np.abs(np.diff(loss, 2)).sum()), reverse=True)
    place = at[int((upper - lower)[12:-12].argmax()) + 12]
    near = np.abs(at - place) <= 0.4
    low, high = lower[near].min(), max(loss[near].max() for loss in losses)
    axes.set(xlim=(place - 0.4, place + 0.4), ylim=(max(0.0, low - 0.1 * (high - low)), high + 0.1 * (high - low)))


def draw_angles(results: Sequence[Result]) -> Figure:
    """True against recovered angles, images turned by the P-STN, and its variances by how well it localised.

    Results hold `angle_true` and `angle_mean` (N,), and for the P-STN `beta` (N,), `inputs` (n, H, W), `warped`
    (n, 1 + S, H, W), under the mean and S samples, images as whole numbers from 0 to 255, their place `index` among the
    N, `labels` and, in degrees, `left_over` (n,), and where they are known `answers`.
    """
    names = ("angle_true", "beta", "inputs", "warped", "labels", "left_over", "index")
    (shown, *_) = first_of_cells(results, *names, model="P-STN")
    models = sorted(first_of_cells(results, "angle_true", "angle_mean"), key=lambda result: result.model != "STN")
    figure, turn = new_figure(9.6, 5.8), math.pi
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.9))[0]
    samples, variances = right.subplots(2, 1, height_ratios=(1.9, 1))
    _turned_in_columns(samples, shown)
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


def _turned_in_columns(axes: Axes, result: Result) -> None:
    """A column for each image: the input, turned by the mean and by the true angle, its class, and what is left."""
    from scipy.ndimage import rotate

    shown = result.figure
    inputs, mean = np.asarray(shown["inputs"], float), np.asarray(shown["warped"])[:, 0]
    angles = np.degrees(np.asarray(shown["angle_true"], float))[shown["index"]]
    upright = [rotate(x, -angle, reshape=False, order=1) for x, angle in zip(inputs, angles, strict=True)]
    _show_image(axes, _mosaic(np.stack([inputs, mean, np.clip(upright, 0, 255)])))
    count, height, width = inputs.shape
    axes.set_yticks([(height + 2) * k + height / 2 for k in range(3)], ["input", "turned by\nthe mean", "upright"])
    answers = [f", answer {answer}" for answer in shown.get("answers", ())] or [""] * count
    told = zip(shown["labels"], answers, shown["left_over"], strict=True)
    words = [f"{label}{answer}\n{abs(left):.0f}°" for label, answer, left in told]
    axes.set_xticks([(width + 2) * k + width / 2 for k in range(count)], words)
    axes.set_xlabel("class, and the angle that is left over")
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


def draw_windows(results: Sequence[Result], *, chosen: Sequence[int] | None = None) -> Figure:
    """Images with the windows that the P-STN sampled, and beside each the samples.

    Results hold `inputs` (n, H, W), `corners` (n, S, 4, 2) in pixels, x first, and `warped` (n, S', h, w). Images are
    whole numbers from 0 to 255.

    Args:
        results: of the experiment.
        chosen: which of the images; all when None.
    """
    shown = first_of_cells(results, "inputs", "corners", "warped", model="P-STN")[0].figure
    rows = range(len(shown["inputs"])) if chosen is None else chosen
    figure = new_figure(8.6, 1.55 * len(rows))
    panels = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 5))
    for (panel, beside), row in zip(panels, rows, strict=True):
        _show_image(panel, shown["inputs"][row])
        limits = {"xlim": panel.get_xlim(), "ylim": panel.get_ylim()}
        # Light on dark, so that they show on any background; what lies outside the image is cut off.
        for colour, width in (("#000000", 1.8), ("#ffd166", 0.9)):
            for box in shown["corners"][row]:
                outline = np.asarray(box, float)
                panel.plot(*np.vstack([outline, outline[:1]]).T, color=colour, linewidth=width)
        panel.set(**limits)
        _show_image(beside, _mosaic(np.asarray(shown["warped"][row])[None]))
    panels[0, 0].set_title("input, ten windows")
    panels[0, 1].set_title("what the classifier sees through five of them")
    return figure


def draw_search(results: Sequence[Result], *, search: Search) -> Figure:
    """The first validation score by the value that was tried: a panel for each data set, a small dot for each run.

    The line is the median. The value with the best mean is filled; a ring marks what the paper chose. Values stand at
    equal distances, as they are tried: by factors, and 0. Where training breaks down, at large values, runs lie beyond
    the panel.

    Args:
        results: of the search.
        search: what was tried on which data.
    """
    metric = search.metrics[0]
    trials = {data: scores for data in search.published if (scores := search.scores(data, metric, results))}
    if not trials:
        raise NothingToDraw
    figure, panels = _panels(len(trials), 2.0 * len(trials) + 0.4, 2.9)
    for number, (axes, (data, scores)) in enumerate(zip(panels, trials.items(), strict=True)):
        runs = {v: [metric.scale * run for run in own] for v, own in scores.items() if v <= search.shown}
        middle, places = {v: median(own) for v, own in runs.items()}, {v: place for place, v in enumerate(runs)}
        style = {"color": _COLOURS[number % 6], "marker": "o"}
        dots = {"linestyle": "", "markersize": 3, "alpha": 0.5, "markeredgewidth": 0}
        axes.plot(*zip(*((places[v], run) for v, own in runs.items() for run in own), strict=True), **style | dots)
        axes.plot(list(places.values()), list(middle.values()), markerfacecolor="white", **style)
        best, published = [v for v in search.best(data, metric, results) if v in runs], search.published[data]
        axes.plot([places[v] for v in best], [middle[v] for v in best], linestyle="", zorder=3, **style)
        if published in runs:
            ring = {"markersize": 11, "color": INK, "markerfacecolor": "none"}
            axes.plot(places[published], middle[published], "o", **ring)
        labels = [f"{v:g}" if v >= 1e-3 or v == 0 else f"{v:.0e}".replace("e-0", "e-") for v in runs]
        axes.set_xticks(range(len(runs)), labels, rotation=90)
        axes.set_title(data, fontsize=8)
        axes.set_xlabel(search.name)
        axes.grid(axis="y")
        low, high = min(min(own) for own in runs.values()), max(middle.values())
        if metric.higher_is_better:
            _scale_by_error(axes, metric, low, high)
        else:
            axes.set_yscale("log")
            digits = (1, 2, 5) if high > 3 * low else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)
            _set_ticks(axes, [d * 10.0**power for power in range(-5, 3) for d in digits], low / 1.15, high * 1.3)
            axes.minorticks_off()
    panels[0].set_ylabel(metric.label)
    handles = panels[0].plot([], [], "o", color="0.4")
    handles += panels[0].plot([], [], "o", color=INK, markersize=10, markerfacecolor="none")
    figure.legend(handles, ["best mean", "the paper’s"], loc="outside lower center", ncols=2)
    return figure


def draw_series(results: Sequence[Result]) -> Figure:
    """A series of each data set above, and warped versions of it below.

    Results hold `series` (L,) and `warped` (S, L).
    """
    found = first_of_cells(results, "series", "warped")
    columns = min(3, len(found))
    blocks = math.ceil(len(found) / columns)
    figure = new_figure(3.3 * columns, 2.7 * blocks)
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
