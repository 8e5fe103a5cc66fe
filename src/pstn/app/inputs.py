"""What a visitor gives the page: pictures from strangers made into digits, and digits and series that are moved."""

from __future__ import annotations

import base64
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn.data.files import DataError
from pstn.data.images import open_image, orientation, turn_upright, with_bytes
from pstn.limits import PAGE_FILE_BYTES, PAGE_FILE_PIXELS
from pstn.transforms import Similarity
from pstn.warp import warp

__all__ = [
    "SIDE",
    "SKETCH_SIDE",
    "PictureError",
    "move_digit",
    "move_series",
    "read_picture",
    "read_sketch",
    "to_digit",
]

SIDE = 28
SKETCH_SIDE = 4 * SIDE
_INK_SIDE = 20  # MNIST's digits are 20 pixels long, in a frame of 28
_FAINTEST = 0.12  # of the range from black to white: less contrast than this is paper, not ink
Grey = npt.NDArray[np.uint8]


class PictureError(ValueError):
    """A picture that the page cannot use; the message is for the visitor."""


def read_picture(path: str | Path) -> Grey:
    """The grey levels (H, W) of an image file from a stranger: transparent is white, and the camera's tilt is undone.

    The file's length is checked before it is opened, and the picture's size before it is decoded.

    Raises:
        PictureError: it is too large, damaged, or not a picture.
    """
    from PIL import Image

    path = Path(path)
    if path.stat().st_size > PAGE_FILE_BYTES:
        raise PictureError(f"That file is too large: the page takes pictures of up to {PAGE_FILE_BYTES >> 20} MB.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_image(path) as image:
                _refuse_huge(*image.size)
                flat = image
                if image.has_transparency_data:
                    paper = Image.new("RGBA", image.size, "white")
                    flat = Image.alpha_composite(paper, image.convert("RGBA"))
                grey = turn_upright(with_bytes(flat, "L", path), orientation(image))
                return np.asarray(grey, dtype=np.uint8)
    except DataError as error:
        if isinstance(error.__cause__, PictureError):
            raise error.__cause__ from None
        if isinstance(error.__cause__, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
            raise PictureError(_too_many_pixels()) from None
        raise PictureError(
            "That file does not open as a picture: it may be damaged. Try a PNG or a JPEG, or draw a digit."
        ) from None


def _refuse_huge(width: int, height: int) -> None:
    if width * height > PAGE_FILE_PIXELS:
        raise PictureError(_too_many_pixels(f" and this one has {width:,} × {height:,}"))


def _too_many_pixels(found: str = "") -> str:
    return f"That picture is too large: the page takes up to {PAGE_FILE_PIXELS // 10**6} million pixels{found}."


def read_sketch(ink: Any) -> Grey:
    """The grey levels (112, 112) of a drawing, from base64 of one byte of ink per place, row by row.

    Raises:
        PictureError: it is anything else.
    """
    try:
        if not isinstance(ink, str) or len(ink) > 2 * SKETCH_SIDE**2:
            raise ValueError
        levels = np.frombuffer(base64.b64decode(ink, validate=True), np.uint8).reshape(SKETCH_SIDE, SKETCH_SIDE)
    except ValueError:
        raise PictureError("That drawing did not arrive whole: draw it again.") from None
    return 255 - levels


def to_digit(grey: Grey) -> Tensor:
    """Find the ink in a picture and place it as MNIST does: (H, W) uint8 -> (1, 28, 28) from 0 (paper) to 1 (ink).

    What differs from the picture's border is ink, so dark on light and light on dark will both do.

    Raises:
        PictureError: there is no ink.

    Example:
        >>> picture = np.full((90, 60), 255, np.uint8)
        >>> picture[20:70, 28:34] = 0
        >>> digit = to_digit(picture)
        >>> digit.shape, int((digit[0].sum(1) > 0.5).sum())
        (torch.Size([1, 28, 28]), 20)
    """
    from PIL import Image

    image = Image.fromarray(grey)
    image.thumbnail((256, 256), Image.Resampling.BOX)
    levels = np.asarray(image, dtype=np.float32) / 255
    border = np.concatenate([levels[0], levels[-1], levels[:, 0], levels[:, -1]])
    contrast = np.abs(levels - np.median(border))
    strongest = float(np.quantile(contrast, 0.995)) if min(levels.shape) > 1 else 0.0
    if strongest < _FAINTEST:
        strongest = float(contrast.max())
    if strongest < _FAINTEST:
        raise PictureError("There is no digit to be seen: draw one, thick and dark on a light ground.")
    ink = np.clip((contrast / strongest - 0.25) / 0.5, 0, 1)
    rows, columns = np.flatnonzero(ink.max(1) > 0.3), np.flatnonzero(ink.max(0) > 0.3)
    return _centred(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def _centred(ink: npt.NDArray[np.float32]) -> Tensor:
    """The ink, 20 pixels long, with its centre of mass in the middle of the frame."""
    from PIL import Image

    factor = _INK_SIDE / max(ink.shape)
    height, width = (max(1, round(extent * factor)) for extent in ink.shape)
    small = np.asarray(Image.fromarray(ink).resize((width, height), Image.Resampling.BOX))
    mass = small.sum()
    middle = [(small.sum(1 - axis) @ np.arange(extent)) / mass for axis, extent in enumerate(small.shape)]
    top, left = (
        int(np.clip(round((SIDE - 1) / 2 - centre), 0, SIDE - extent))
        for centre, extent in zip(middle, small.shape, strict=True)
    )
    frame = np.zeros((1, SIDE, SIDE), np.float32)
    frame[0, top : top + height, left : left + width] = small
    return torch.from_numpy(frame)


def move_digit(digit: Tensor, turn: float = 0.0, right: float = 0.0, down: float = 0.0, size: float = 1.0) -> Tensor:
    """Turn, shift and scale a digit on its black ground.

    Args:
        digit: (1, H, W), from 0 to 1.
        turn: degrees, clockwise.
        right: pixels to the right.
        down: pixels downwards.
        size: how many times as large.

    Example:
        >>> digit = torch.zeros(1, 28, 28)
        >>> digit[0, 4, 13] = 1
        >>> move_digit(digit, right=3, down=2)[0].argmax().item() == 6 * 28 + 16
        True
    """
    height, width = digit.shape[-2:]
    moved = torch.tensor([math.radians(turn), size, 2 * right / width, 2 * down / height])
    family = Similarity()
    # A grid says where each output pixel reads from, which is the inverse of how the content moves.
    grid = family.grid(family.inverse(moved), size=(height, width))
    return warp(digit[None], grid[None])[0].clamp(0, 1)


def move_series(
    series: Tensor, later: float = 0.0, stretch: float = 1.0, noise: float = 0.0, *, seed: int = 0
) -> Tensor:
    """Move a series in time, stretch it about its middle, and add noise; its ends are held where nothing is left.

    Args:
        series: (1, L).
        later: steps by which it happens later.
        stretch: how many times as long everything takes.
        noise: standard deviation of what is added.
        seed: of the noise, the same at each call, so that a slider scales it.

    Example:
        >>> move_series(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), later=1)
        tensor([[0., 0., 1., 2.]])
    """
    values: Any = series[0].double().numpy()
    steps = np.arange(len(values))
    middle = (len(values) - 1) / 2
    read_at = middle + (steps - middle - later) / stretch
    moved = torch.from_numpy(np.interp(read_at, steps, values)).float()
    jitter = torch.randn(len(values), generator=torch.Generator().manual_seed(seed))
    return (moved + noise * jitter)[None]
