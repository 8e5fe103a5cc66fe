"""A contact sheet: what a data set looks like, as one picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_positive_int
from pstn.data.errors import require_package
from pstn.data.split import Sized, Split
from pstn.data.subsets import balanced_indices
from pstn.files import write_atomically

__all__ = ["contact_sheet"]

_CELL, _GAP, _CAPTION, _HEAD = 112, 10, 14, 34
_PAPER, _INK, _FAINT, _LINE = (255, 255, 255), (30, 30, 30), (120, 120, 120), (31, 96, 160)


def contact_sheet(
    data: Sized,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    count: int = 40,
    columns: int = 10,
    seed: int = 0,
) -> Path:
    """Draw examples of a data set, as even over the classes as can be, with their classes, into a PNG file.

    Images are shown with the full range of their values from black to white, and series as lines at one scale;
    generated examples have theta below their class.

    Args:
        data: a `Split` or `Generated`.
        path: the file to write.
        title: above the examples; the name of the data where empty.
        count: how many examples.
        columns: how many of them in a row.
        seed: of the choice.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, pstn
        >>> contact_sheet(pstn.data.load("digits").train, Path(tempfile.mkdtemp()) / "digits.png").name
        'digits.png'
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError(require_package("Pillow", "drawing a contact sheet")) from error
    count = min(require_positive_int("count", count), len(data))
    columns = min(require_positive_int("columns", columns), count)
    batch = _choose(data, count, seed)
    rows = -(-count // columns)
    lines = 1 if batch.theta is None else 2
    step_x, step_y = _CELL + _GAP, _CELL + 4 + _CAPTION * lines + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP + _HEAD), _PAPER)
    draw = ImageDraw.Draw(sheet)
    small, large = ImageFont.load_default(size=11), ImageFont.load_default(size=16)
    head = f"{title or batch.name}: {_facts(data, batch)}"
    draw.text((_GAP, 10), _shorten(draw, head, large, sheet.width - 2 * _GAP), _INK, large)
    low, high = _value_range(batch)
    for i in range(count):
        left, top = _GAP + (i % columns) * step_x, _HEAD + _GAP + (i // columns) * step_y
        if batch.ndim == 1:
            _draw_series(draw, batch, i, (left, top), (low, high))
        else:
            picture = Image.fromarray(_pixels(batch.x[i], low, high))
            side = _fit(picture.size)
            enlarged = picture.resize(
                side, Image.Resampling.NEAREST if side > picture.size else Image.Resampling.BILINEAR
            )
            sheet.paste(enlarged, (left + (_CELL - side[0]) // 2, top + (_CELL - side[1]) // 2))
        for line, text in enumerate(_captions(batch, i)):
            caption = _shorten(draw, text, small, _CELL)
            draw.text((left + _CELL / 2, top + _CELL + 3 + line * _CAPTION), caption, _FAINT, small, anchor="ma")
    target = Path(path)
    with write_atomically(target) as draft:
        sheet.save(draft, format="PNG")
    return target


def _choose(data: Sized, count: int, seed: int) -> Split:
    """Examples of every class, class after class, chosen by labels alone so that nothing else is made or decoded."""
    index = balanced_indices(data.y, count, seed=seed)
    order = torch.argsort(data.y.cpu()[index], stable=True)
    batch = data.batch(index[order]).to("cpu")
    return batch if batch.x.is_floating_point() else batch.as_float()


def _facts(data: Sized, batch: Split) -> str:
    channels, *size = batch.x.shape[1:]
    shape = "x".join(map(str, size)) + (f", {channels} channels" if channels not in (1, 3) else "")
    kind = "series of length" if batch.ndim == 1 else "images of"
    return f"{len(data):,} {kind} {shape}, {len(batch.classes)} classes"


def _value_range(batch: Split) -> tuple[float, float]:
    if batch.ndim == 1:
        # A single spike would flatten all the others: the outermost hundredths of the values run along the frame.
        values = batch.x.flatten() if batch.mask is None else batch.x.movedim(1, -1)[batch.mask].flatten()
        low, high = np.quantile(values.numpy(), (0.01, 0.99)).tolist()
        low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    else:
        low, high = float(batch.x.min()), float(batch.x.max())
    return low, high if high > low else low + 1


def _pixels(x: Tensor, low: float, high: float) -> npt.NDArray[np.uint8]:
    shown = ((x - low) / (high - low) * 255).round().to(torch.uint8)
    colour = shown[:3] if shown.shape[0] >= 3 else shown[:1].expand(3, -1, -1)
    return np.ascontiguousarray(colour.movedim(0, -1).numpy())


def _fit(size: tuple[int, int]) -> tuple[int, int]:
    scale = _CELL / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _draw_series(draw: Any, batch: Split, i: int, corner: tuple[int, int], limits: tuple[float, float]) -> None:
    left, top = corner
    draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=(225, 225, 225))
    real = torch.ones(batch.x.shape[-1], dtype=torch.bool) if batch.mask is None else batch.mask[i]
    for c, channel in enumerate(batch.x[i]):
        shade = _LINE if batch.x.shape[1] == 1 else _colour(c)
        points = _points(channel[real], int(real.numel()), real.nonzero().flatten().tolist(), limits, left, top)
        draw.line(points, fill=shade, width=1, joint="curve")


def _points(
    values: Tensor, length: int, at: Sequence[int], limits: tuple[float, float], left: int, top: int
) -> list[tuple[float, float]]:
    inner = _CELL - 9
    across = [left + 4 + inner * t / max(1, length - 1) for t in at]
    heights = ((values - limits[0]) / (limits[1] - limits[0])).clamp(0, 1)
    return list(zip(across, (top + 4 + inner * (1 - heights)).tolist(), strict=True))


def _colour(channel: int) -> tuple[int, int, int]:
    palette = ((31, 96, 160), (214, 104, 33), (60, 140, 70), (170, 60, 70), (120, 90, 170), (110, 90, 80))
    return palette[channel % len(palette)]


def _captions(batch: Split, i: int) -> list[str]:
    name = batch.classes[int(batch.y[i])]
    if batch.theta is None:
        return [name]
    numbers = [f"{v:.2f}" for v in batch.theta[i].tolist()]
    # Four numbers fill the width of a cell by themselves.
    return [name, ", ".join(numbers) if len(numbers) > 3 else f"theta {', '.join(numbers)}"]


def _shorten(draw: Any, text: str, font: Any, width: int) -> str:
    """`text` cut so that it fits, with dots where something is left out."""
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."
