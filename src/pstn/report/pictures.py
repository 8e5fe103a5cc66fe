"""Pictures of a model's samples. Needs matplotlib: `pip install 'pstn[plot]'`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pstn._deprecation import old_names
from pstn.data.images import without_tex
from pstn.files import write_atomically
from pstn.nn import PSTN, STN, Prediction
from pstn.nn.classifier import evaluating
from pstn.report.figures import new_figure
from pstn.transforms import to_pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__getattr__ = old_names(__name__, {"draw_looks": "draw_samples"})

_BOX = "#e8590c"


@without_tex()
def draw_samples(
    path: str | Path,
    model: PSTN | STN,
    x: Tensor,
    y: Tensor | None = None,
    *,
    samples: int = 6,
    undo: Callable[[Tensor], Tensor] | None = None,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Path:
    """Draw, for each image, the boxes that were sampled, what the classifier read through them, and its prediction.

    Args:
        path: where the picture goes; its ending says which format.
        model: the classifier, of images with one or three channels, or of series.
        x: (B, C, H, W) or (B, C, L), the inputs as the model takes them.
        y: (B,), the true classes, if known.
        samples: S, how many samples to draw.
        undo: turns what the model takes, (B, C, ...), into what a person should see, images from 0 to 1: the other
            way round than normalising, as `ModelMetadata.undo` does; leaves it as it is when not given.
        classes: the names of the classes, for the bars; their numbers when not given.
        names: of the inputs, to stand beside them.
        noise: (S, B, W), to use instead of drawing any, as many samples as it has.
        generator: where the randomness comes from.

    Returns:
        The path.
    """
    size = tuple(x.shape[2:])
    with evaluating(model), torch.no_grad():
        prediction = model(x, None if noise is not None else samples, noise=noise, generator=generator)
        read = model.layer.warp(x, prediction.theta)  # with the classifier's own outside, and undone after that
        # (S, B, 2**ndim, ndim), the corners in pixels of what each sample covers.
        corners = model.layer.transform.corners(prediction.theta, aspect=size[::-1])
        boxes = to_pixels(corners, size).cpu()
        if model.layer.masked:  # of what each series has before its end
            lengths = (x[:, -1] > 0.5).sum(-1)[:, None, None]
            boxes = (((corners + 1) * lengths - 1) / 2).cpu()
    if undo is not None:
        x, read = undo(x), undo(read.flatten(0, 1)).unflatten(0, read.shape[:2])
    tensors = {name: value.cpu() for name, value in prediction._asdict().items() if isinstance(value, Tensor)}
    prediction, count, rows = prediction._replace(**tensors), len(read), len(x)
    # How far boxes reach beyond the image, in its longer side, with a little air around them. At most half of it, so
    # that one box far away does not make the image small.
    beyond = torch.maximum(-boxes, boxes - torch.tensor(size[::-1], dtype=boxes.dtype)).max() / max(size)
    margin = float((beyond + 0.05).clamp(0.05, 0.5)) * max(size)
    # Samples stand in two rows, as high as the input together.
    lines, columns = min(count, 2), -(-count // 2)
    widths = [_aspect(size, margin), columns * _aspect(read.shape[3:]) / lines, 0.95]
    # Not pyplot's: whatever backend the caller uses stays as it is.
    figure = new_figure(2.1 * (sum(widths) + 0.2), 2.1 * rows + 0.5)
    grid = figure.add_gridspec(rows, 3, width_ratios=widths)
    for row in range(rows):
        first, last = (figure.add_subplot(grid[row, column]) for column in (0, 2))
        panels = grid[row, 1].subgridspec(lines, columns).subplots(squeeze=False)
        _draw_image(first, x[row])
        _draw_boxes(first, boxes[:, row], size, margin)
        if names is not None:
            # The end of a long name tells more than its beginning: IMG_0001, IMG_0002.
            whole = names[row]
            first.set_ylabel(_plain(whole if len(whole) <= 24 else "…" + whole[-23:]), fontsize=7)
        for number, panel in enumerate(panels.flat):
            if number < count:
                _draw_image(panel, read[number, row])
            else:
                panel.set_axis_off()
        _draw_prediction(last, prediction, row, None if y is None else int(y[row]), classes)
        if row == 0:
            first.set_title("input, with where it looked", fontsize=10, loc="left")
            panels[0, 0].set_title("what the classifier saw", fontsize=10, loc="left")
            last.set_title("answer", fontsize=10, loc="left")
    most = math.log(prediction.probs.shape[-1])
    explained = f"uncertainty: entropy of the answer in nats; {most:.2f} where all classes are equally probable"
    figure.supxlabel(explained + "; orange: the true class" * (y is not None), fontsize=8)
    target = Path(path)
    with write_atomically(target) as draft:
        figure.savefig(draft, dpi=130, format=target.suffix.lstrip(".") or "png")
    return target


def _aspect(size: Sequence[int], margin: float = 0.0) -> float:
    """Width by height of a panel for an image of this size; that of a series is free."""
    if len(size) == 1:
        return 1.0
    height, width = size
    return min(max((width + 2 * margin) / (height + 2 * margin), 0.5), 2.0)


def _draw_image(axes: Axes, image: Tensor) -> None:
    image = image.cpu()
    if image.dim() == 2:
        axes.plot(image.T.numpy(), linewidth=1.1)
    else:
        axes.imshow(image.clamp(0, 1).movedim(0, -1).expand(-1, -1, 3).numpy(), interpolation="nearest")
    axes.set(xticks=[], yticks=[], anchor="N")  # so that the headings of a row stand in one line


def _draw_boxes(axes: Axes, boxes: Tensor, size: tuple[int, ...], margin: float) -> None:
    far = (boxes < -margin) | (boxes > boxes.new_tensor(size[::-1]) + margin)
    cut = far.flatten(1).any(1).tolist()
    for corners, dashed in zip(boxes, cut, strict=True):
        style: dict[str, Any] = {"color": _BOX, "linewidth": 1.1, "linestyle": "--" if dashed else "-"}
        if len(size) == 1:
            for end in corners[:, 0].clamp(-margin, size[0] + margin).tolist():
                axes.axvline(end, alpha=0.5, **style)
        else:
            axes.plot(*torch.cat([corners, corners[:1]]).T.numpy(), alpha=0.8, **style)
    if any(cut):
        axes.set_xlabel(f"dashed: {sum(cut)} of {len(cut)} reach further", fontsize=8)
    axes.set(xlim=(-margin, size[-1] + margin), facecolor="white" if len(size) == 1 else "0.88")
    if len(size) == 2:
        axes.set_ylim(size[0] + margin, -margin)


def _plain(text: str) -> str:
    """Text as it is: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")


def _draw_prediction(
    axes: Axes, prediction: Prediction, row: int, truth: int | None, names: Sequence[str] | None
) -> None:
    probs = prediction.probs[row]
    classes, few, answer = range(len(probs)), len(probs) <= 10, int(probs.argmax())
    colours: list[Any] = [_BOX if k == truth else "0.55" for k in classes]
    axes.bar(classes, probs.numpy(), color=colours, width=min(0.8, 0.1 * len(probs)))
    axes.set(ylim=(0, 1.45), yticks=[], xticks=classes if few else [])  # the text stands above the bars
    if names is not None and few:
        slanted: dict[str, Any] = {"rotation": 35, "ha": "right"} if max(map(len, names)) > 2 else {}
        axes.set_xticklabels([_plain(name[:16]) for name in names], **slanted)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    best = str(answer) if names is None else _plain(names[answer][:16])
    said = [f"{best}: {probs[answer]:.0%}", f"uncertainty {prediction.entropy[row]:.2f}"]
    if len(prediction.theta) > 1:
        said.append(f"{prediction.mutual_information[row]:.2f} of it from where it looked")
    if truth not in (None, answer):
        said.insert(0, "wrong")
    axes.text(0.0, 0.99, "\n".join(said), transform=axes.transAxes, fontsize=8, va="top")
