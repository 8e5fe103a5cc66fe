"""Pictures of what a model does with series: the input, its warped versions, the warp, the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pstn import _checks
from pstn.nn import SpatialTransformer
from pstn.nn.classifier import TransformerModel, evaluating, shared_noise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

_INK, _PALE = "#222222", "#8fb8d4"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot(model: Any, x: ArrayLike | Tensor, y: ArrayLike | None = None, *, samples: int = 20) -> Figure:
    """Draw what a model does with one series, or what an aligner does with many; needs matplotlib.

    For a classifier: the series with its warped versions; how many steps ahead each version reads, with the interval
    that holds 90% of the warps; and the probabilities of the classes, as `predict_proba` gives them. For a
    `pstn.SeriesAligner`: the series before and after, with the average of each class and its band; and the warps. Of
    several channels it shows the first.

    Args:
        model: a fitted `pstn.PSTNClassifier`, `pstn.STNClassifier` or `pstn.SeriesAligner`, one of the estimators in
            `pstn.estimators.aeon`, or a `pstn.PSTN` or STN.
        x: for a classifier one series (L,) or (C, L), in the estimator's axes; for an aligner several, (N, ...).
        y: (N,), labels of an aligner's series, for their colours.
        samples: S, how many warps to draw.

    Returns:
        A figure: `figure.savefig("series.png")`.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.arange(20) % 2
        >>> figure = pstn.plot(pstn.PSTNClassifier("cpab", epochs=1).fit(X, y), X[0])
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['series', 'steps ahead', 'probability']
    """
    _checks.require_positive_int("samples", samples)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'pstn[plot]'") from error
    from pstn.report.figures import figure_style

    with figure_style():
        aligner = getattr(model, "estimator_", model)  # aeon's estimators hold those of scikit-learn
        if hasattr(aligner, "warps"):
            return _draw_alignment(aligner, x, y)
        return _draw_prediction(model, x, samples)


def _draw_prediction(model: Any, x: Any, samples: int) -> Figure:
    from matplotlib.figure import Figure

    estimator = getattr(model, "estimator_", model)
    network = getattr(estimator, "model_", estimator)
    if not isinstance(network, TransformerModel) or network.layer.transform.ndim != 1:
        raise TypeError(f"model must be a classifier of series with a spatial transformer, got {model!r:.80}")
    with torch.no_grad(), evaluating(network):
        if network is model:
            given = torch.as_tensor(x, dtype=torch.float32)
            inputs, names = given.reshape(1, -1, given.shape[-1]), None
            prediction = network(inputs, **shared_noise(network, 1))
        else:
            inputs, names = next(estimator._batches(model._read(np.asarray(x)[None]))), estimator.classes_
            prediction = estimator._predict(inputs)
        out = network.layer(inputs, samples, generator=torch.Generator().manual_seed(0))
        ahead = _ahead(network.layer, out.theta, inputs)
    restore = (lambda t: t.cpu().numpy()) if names is None else estimator._in_units
    series, warped = restore(inputs)[0], restore(out.warped)[:, 0]
    log_probs = torch.log_softmax(prediction, -1) if isinstance(prediction, Tensor) else prediction.log_probs
    probabilities = log_probs[0].exp().cpu().numpy()
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 2, 1.4))
    for channel, own in enumerate(series):
        left.plot(warped[:, channel].T, color=_PALE, linewidth=0.7, alpha=0.7)
        left.plot(own, color=_INK, linewidth=1.4)
    left.plot([], [], color=_INK, label="input")
    left.plot([], [], color=_PALE, label=f"{len(warped)} samples")
    left.legend(loc="best")
    left.set(xlabel="time step", ylabel="series")
    low, high = np.quantile(ahead, (0.05, 0.95), axis=0)
    _draw_warp(middle, np.median(ahead, axis=0), low, high, _COLOURS[0])
    labels = [str(name) for name in (range(len(probabilities)) if names is None else names)]
    right.bar(labels, probabilities, color=_COLOURS[0])
    right.set(ylim=(0, 1), xlabel="class", ylabel="probability")
    return figure


def _ahead(layer: SpatialTransformer, theta: Tensor, x: Tensor) -> NDArray[np.float32]:
    """How many steps ahead of itself each step of a series (1, C, L) reads, (S, L)."""
    length = x.shape[-1]
    grid = layer.real_grid(theta, x) if layer.masked else layer.transform.grid(theta, length)
    return (grid[:, 0, :, 0].cpu().numpy() + 1) * (length / 2) - 0.5 - np.arange(length)


def _draw_warp(axes: Axes, curve: Any, low: Any, high: Any, colour: str) -> None:
    steps = np.arange(len(curve))
    axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(steps, curve, color=colour, linewidth=1.2)
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.set(xlabel="time step of the output", ylabel="steps ahead")


def _draw_alignment(aligner: Any, x: Any, y: Any) -> Figure:
    from matplotlib.figure import Figure

    after, warps, averages = aligner.transform(x), aligner.warps(x), aligner.class_averages()
    axes_last = aligner.layout_.channels_first
    before = axes_last(aligner._read(x))[:, 0]
    after, mean, low, high = (axes_last(part)[:, 0] for part in (after, averages.mean, averages.low, averages.high))
    labels = np.zeros(len(before), np.int64) if y is None else np.asarray(y)
    if len(labels) != len(before):
        raise ValueError(f"y must hold one label for each series, {len(before)}, got {len(labels)}")
    known = list(averages.classes)
    colours = [_COLOURS[known.index(label) % 6 if label in known else 0] for label in labels.tolist()]
    figure = Figure(figsize=(10.0, 3.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    steps = np.arange(before.shape[-1])
    for own, aligned, curve, lower, upper, colour in zip(
        before, after, warps.mode, warps.low, warps.high, colours, strict=True
    ):
        left.plot(own, color=colour, linewidth=0.6, alpha=0.5)
        middle.plot(aligned, color=colour, linewidth=0.6, alpha=0.35)
        _draw_warp(right, curve - steps, lower - steps, upper - steps, colour)
    for number, name in enumerate(known):
        colour = _COLOURS[number % 6]
        middle.fill_between(steps, low[number], high[number], color=colour, alpha=0.15, linewidth=0)
        label = str(name) if len(known) > 1 else "average"
        middle.plot(mean[number], color=colour, linewidth=1.8, label=label)
    middle.legend(loc="best", title="average of class" if len(known) > 1 else None)
    shown = "series" if aligner.layout_.channels == 1 else f"series, first of {aligner.layout_.channels} channels"
    left.set(title="before", xlabel="time step", ylabel=shown)
    middle.set(title="aligned", xlabel="time step in warped time", ylim=left.get_ylim())
    right.set(title="warps with 90% intervals")
    return figure
