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

_INK, _PALE, _NEITHER = "#222222", "#8fb8d4", "0.5"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Warps that an interval is taken from, bars of classes that can be read, and classes that a legend can name.
_FOR_INTERVAL, _BARS, _NAMED = 200, 12, 20


def plot(
    model: Any, x: ArrayLike | Tensor, y: ArrayLike | None = None, *, samples: int = 20, channel: int = 0
) -> Figure:
    """Draw what a model does with one series, or what an aligner does with many; needs matplotlib.

    For a classifier: the series with its warped versions; how many steps ahead the most probable warp reads, with the
    interval that holds 90% of the warps; and the probabilities of the classes, as `predict_proba` gives them, of more
    than 12 classes the highest. For a `pstn.SeriesAligner`: the series before and after, with the average of each class
    and its band; and the warps.

    Args:
        model: a fitted `pstn.PSTNClassifier`, `pstn.STNClassifier` or `pstn.SeriesAligner`, one of the estimators in
            `pstn.estimators.aeon`, or a `pstn.PSTN` or STN.
        x: for a classifier one series (L,) or (C, L), in the estimator's axes; for an aligner several, (N, ...).
        y: (N,), labels of an aligner's series, for their colours.
        samples: S, how many warped versions to draw.
        channel: which of several channels to draw, counted from 0.

    Returns:
        A figure: `figure.savefig("series.png")`.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.arange(20) % 2
        >>> figure = pstn.plot(pstn.PSTNClassifier("cpab", epochs=1).fit(X, y), X[0])
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['series', 'steps ahead', 'class']
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
            return _draw_alignment(aligner, x, y, channel)
        return _draw_prediction(model, x, samples, channel)


def _draw_prediction(model: Any, x: Any, samples: int, channel: int) -> Figure:
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
            wanted = estimator.layout_.shape
            if np.ndim(x) != len(wanted):
                raise ValueError(f"x must be one series of shape {wanted}, got {np.shape(x)}")
            inputs, names = next(estimator._batches(np.asarray(x)[None])), estimator.classes_
            prediction = estimator._predict(inputs)
        layer, generator = network.layer, torch.Generator().manual_seed(0)
        warped = layer(inputs, samples, generator=generator).warped
        posterior = layer.localize(inputs)
        drawn = posterior.rsample(_FOR_INTERVAL, generator=generator)
        likeliest, ahead = (_ahead(layer, theta, inputs) for theta in (posterior.mode[None], drawn))
    restore = (lambda t: t.cpu().numpy()) if names is None else estimator._in_units
    series, versions = restore(inputs)[0], restore(warped)[:, 0]
    if names is None and layer.masked:  # without the mask
        series, versions = series[:-1], versions[:, :-1]
    label = _name_channel(channel, len(series))
    log_probs = torch.log_softmax(prediction, -1) if isinstance(prediction, Tensor) else prediction.log_probs
    probabilities = log_probs[0].exp().cpu().numpy()
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 2.2, 1.6))
    left.plot(versions[:, channel].T, color=_PALE, linewidth=0.7, alpha=0.7)
    left.plot(series[channel], color=_INK, linewidth=1.4)
    left.plot([], [], color=_INK, label="input")
    left.plot([], [], color=_PALE, label=f"{len(versions)} samples" if len(versions) > 1 else "warped")
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)  # a dense series fills the axes
    left.set(xlabel="time step", ylabel=label)
    low, high = np.quantile(ahead, (0.05, 0.95), axis=0)
    _draw_warp(middle, likeliest[0], low, high, _COLOURS[0])
    _finish_warps(middle)
    middle.set_title("most probable warp, 90% interval" if len(versions) > 1 else "warp")
    _draw_probabilities(right, probabilities, range(len(probabilities)) if names is None else names)
    return figure


def _name_channel(channel: int, channels: int) -> str:
    """The label of the axis that shows this one."""
    if not 0 <= channel < channels:
        raise ValueError(f"channel must be one of 0 to {channels - 1}, got {channel!r}")
    if channels == 1:
        return "series"
    return f"series, channel {channel} of 0 to {channels - 1}" if channel else f"series, first of {channels} channels"


def _draw_probabilities(axes: Axes, probabilities: NDArray[np.float32], names: Any) -> None:
    """Horizontal bars, whose names do not run into each other; those of many classes are the highest."""
    shown = np.arange(len(probabilities))
    if len(shown) > _BARS:
        shown = np.argsort(-probabilities, kind="stable")[:_BARS]
        axes.set_title(f"{_BARS} of {len(probabilities)} classes")
    axes.barh(range(len(shown)), probabilities[shown], color=_COLOURS[0])
    axes.set_yticks(range(len(shown)), [str(names[k]) for k in shown])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="probability", ylabel="class")


def _ahead(layer: SpatialTransformer, theta: Tensor, x: Tensor) -> NDArray[np.float32]:
    """How many steps ahead of itself each step of a series (1, C, L) reads, (S, L); NaN behind its end."""
    length = x.shape[-1]
    grid = layer.real_grid(theta, x) if layer.masked else layer.transform.grid(theta, length)
    ahead = (grid[:, 0, :, 0].cpu().numpy() + 1) * (length / 2) - 0.5 - np.arange(length)
    return np.where(x[0, -1].cpu().numpy() > 0.5, ahead, np.nan) if layer.masked else ahead


def _draw_warp(axes: Axes, curve: Any, low: Any, high: Any, colour: str, *, strength: float = 1.0) -> None:
    """A warp with its interval; `strength` fades it among many."""
    steps = np.arange(len(curve))
    axes.fill_between(steps, low, high, color=colour, alpha=0.25 * strength**2, linewidth=0)
    axes.plot(steps, curve, color=colour, linewidth=1.2 * strength, alpha=strength)


def _finish_warps(axes: Axes) -> None:
    """The line of no warp, names, and an axis of at least a step: smaller warps are seen to be small."""
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    low, high = axes.get_ylim()
    axes.set(xlabel="time step of the output", ylabel="steps ahead", ylim=(min(low, -0.5), max(high, 0.5)))


def _colours(count: int) -> list[str]:
    """One for each class, all different."""
    import matplotlib

    if count <= len(_COLOURS):
        return list(_COLOURS[:count])
    ramp = matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, count))
    return [matplotlib.colors.to_hex(colour) for colour in ramp]


def _draw_alignment(aligner: Any, x: Any, y: Any, channel: int) -> Figure:
    from matplotlib.figure import Figure

    after, warps, averages = aligner.transform(x), aligner.warps(x), aligner.class_averages()
    label = _name_channel(channel, aligner.layout_.channels)
    parts = aligner._read(x), after, averages.mean, averages.low, averages.high
    before, after, mean, low, high = (aligner.layout_.channels_first(part)[:, channel] for part in parts)
    if y is not None and len(np.asarray(y)) != len(before):
        raise ValueError(f"y must hold one label for each series, {len(before)}, got {len(np.asarray(y))}")
    known = list(averages.classes)
    palette = _colours(len(known))
    one = palette[0] if len(known) == 1 else _NEITHER
    labels = [None] * len(before) if y is None else np.asarray(y).tolist()
    colours = [palette[known.index(each)] if each in known else one for each in labels]
    figure = Figure(figsize=(10.0, 3.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    steps, strength = np.arange(before.shape[-1]), min(1.0, max(0.35, 10 / len(before)))
    for own, aligned, curve, lower, upper, colour in zip(
        before, after, warps.mode, warps.low, warps.high, colours, strict=True
    ):
        left.plot(own, color=colour, linewidth=0.6, alpha=0.5)
        middle.plot(aligned, color=colour, linewidth=0.6, alpha=0.35)
        _draw_warp(right, curve - steps, lower - steps, upper - steps, colour, strength=strength)
    for number, name in enumerate(known):
        middle.fill_between(steps, low[number], high[number], color=palette[number], alpha=0.15, linewidth=0)
        named = str(name) if len(known) > 1 else "average"
        middle.plot(mean[number], color=palette[number], linewidth=1.8, label=named)
    _finish_warps(right)
    if len(known) <= _NAMED:
        figure.legend(loc="outside right upper", title="average of class" if len(known) > 1 else None)
    left.set(title="before", xlabel="time step", ylabel=label)
    middle.set(title="aligned", xlabel="time step in warped time", ylim=left.get_ylim())
    right.set(title="warps with 90% intervals", xlabel="time step in warped time")
    return figure
