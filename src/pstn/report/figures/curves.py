"""Scores against what was varied: the size of the data, the depth of the classifier, the samples, the variant."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pstn.report.figures.finding import cells
from pstn.report.results import Result
from pstn.report.statistics import median_and_deviation, summarise
from pstn.report.study import Line, Metric, Table, summary_of
from pstn.report.style import INK, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_by_depth", "draw_by_size", "draw_samples_at_test", "draw_variants", "stretch_near_perfect"]


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
