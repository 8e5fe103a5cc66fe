"""What validation says of every value that was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstn.report.figures.curves import stretch_near_perfect
from pstn.report.results import Result
from pstn.report.search import chosen, trials
from pstn.report.statistics import summarise
from pstn.report.study import Metric, Search
from pstn.report.style import Look, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_search"]


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
        _panel(axes, search, metric, looks, results)
    axes = figure.axes[0]
    axes.plot([], [], "o", color="0.4", label="best")
    axes.plot([], [], "o", color="0.4", markersize=10, markerfacecolor="none", label="the paper’s")
    lines, labels = axes.get_legend_handles_labels()
    named = sorted(zip(labels, lines, strict=True), key=lambda entry: entry[0] not in looks)  # the marks come last
    figure.legend([line for _, line in named], [label for label, _ in named], loc="outside lower center", ncols=4)
    return figure


def _panel(axes: Axes, search: Search, metric: Metric, looks: dict[str, Look], results: Sequence[Result]) -> None:
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
