"""Pictures of a model's samples. Needs matplotlib: `pip install 'pstn[plot]'`."""

from __future__ import annotations

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
        generator: where the randomness comes from.

    Returns:
        The path.
    """
    # A Figure of its own, not pyplot's: whatever backend the caller uses stays as it is.
    from matplotlib.figure import Figure

    size = tuple(x.shape[2:])
    with evaluating(model), torch.no_grad():
        prediction = model(x, samples, generator=generator)
        read = model.layer.warp(x, prediction.theta)  # with the classifier's own outside, and undone after that
        # (S, B, 2**ndim, ndim), the corners in pixels of what each sample covers.
        boxes = to_pixels(model.layer.transform.corners(prediction.theta, aspect=size[::-1]), size).cpu()
    if undo is not None:
        x, read = undo(x), undo(read.flatten(0, 1)).unflatten(0, read.shape[:2])
    tensors = {name: value.cpu() for name, value in prediction._asdict().items() if isinstance(value, Tensor)}
    prediction, count, rows = prediction._replace(**tensors), len(read), len(x)
    # How far boxes reach beyond the image, in its longer side, with a little air around them. At most half of it, so
    # that one box far away does not make the image small.
    beyond = torch.maximum(-boxes, boxes - torch.tensor(size[::-1], dtype=boxes.dtype)).max() / max(size)
    margin = float((beyond + 0.05).clamp(0.05, 0.5)) * max(size)
    figure = Figure(figsize=(1.35 * (count + 4.3), 2.5 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, count + 2, squeeze=False, width_ratios=[2.2] + [1.0] * count + [1.9])
    for row, (first, *panels, last) in enumerate(axes):
        _draw_image(first, x[row])
        _draw_boxes(first, boxes[:, row], size, margin)
        if names is not None:
            # The end of a long name tells more than its beginning: IMG_0001, IMG_0002.
            whole = names[row]
            first.set_ylabel(_plain(whole if len(whole) <= 24 else "…" + whole[-23:]), fontsize=7)
        for panel, image in zip(panels, read[:, row], strict=True):
            _draw_image(panel, image)
        _draw_prediction(last, prediction, row, None if y is None else int(y[row]), classes)
    axes[0, 0].set_title("input, with where it looked", fontsize=10, loc="left")
    axes[0, 1 + count // 2].set_title("what the classifier saw", fontsize=10)
    axes[0, -1].set_title("answer", fontsize=10)
    if y is not None:
        axes[-1, -1].set_xlabel("class (orange: the true one)", fontsize=8)
    target = Path(path)
    with write_atomically(target) as draft:
        figure.savefig(draft, dpi=130, format=target.suffix.lstrip(".") or "png")
    return target


def _draw_image(axes: Axes, image: Tensor) -> None:
    image = image.cpu()
    if image.dim() == 2:
        axes.plot(image.T.numpy(), linewidth=1.1)
    else:
        axes.imshow(image.clamp(0, 1).movedim(0, -1).expand(-1, -1, 3).numpy(), interpolation="nearest")
    axes.set(xticks=[], yticks=[], anchor="N")  # so that the headings of a row stand in one line


def _draw_boxes(axes: Axes, boxes: Tensor, size: tuple[int, ...], margin: float) -> None:
    if len(size) == 1:
        for end in boxes[..., 0].flatten().tolist():
            axes.axvline(end, color=_BOX, linewidth=1.1, alpha=0.5)
        return
    height, width = size
    cut = ((boxes < -margin) | (boxes > boxes.new_tensor([width, height]) + margin)).flatten(1).any(1).tolist()
    for corners, far in zip(boxes, cut, strict=True):
        line = torch.cat([corners, corners[:1]]).T.numpy()
        axes.plot(*line, color=_BOX, linewidth=1.1, alpha=0.8, linestyle="--" if far else "-")
    if any(cut):
        axes.set_xlabel(f"dashed: {sum(cut)} of {len(cut)} reach further", fontsize=8)
    axes.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin), facecolor="0.88")


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
    axes.set(ylim=(0, 1), yticks=[], xticks=classes if few else [])
    if names is not None and few:
        slanted: dict[str, Any] = {"rotation": 35, "ha": "right"} if max(map(len, names)) > 2 else {}
        axes.set_xticklabels([_plain(name[:16]) for name in names], **slanted)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    best = str(answer) if names is None else _plain(names[answer][:16])
    from_looking = prediction.mutual_information[row]
    note = f"{best}: {probs[answer]:.0%}\nentropy {prediction.entropy[row]:.2f}\nfrom looking {from_looking:.2f}"
    note = f"wrong\n{note}" if truth not in (None, answer) else note
    place, side = (0.02, "left") if answer >= len(probs) / 2 else (0.98, "right")
    axes.text(place, 0.97, note, transform=axes.transAxes, fontsize=8, va="top", ha=side)
