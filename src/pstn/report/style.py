"""One look for all figures: readable in grey, to colour-blind readers, and in print.

Colours are Okabe and Ito's, chosen to differ in lightness too; each model has a marker, a line and a hatch of its own,
so that no figure needs its colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["INK", "Look", "applied", "look", "mosaic", "picture", "shades"]

INK = "#222222"
_GRID = "#d9d9d9"

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.6,
    "savefig.facecolor": "white",
    # The same figure is the same file.
    "svg.hashsalt": "pstn",
}


@dataclass(frozen=True)
class Look:
    """How one model is drawn."""

    colour: str
    marker: str
    line: Any
    hatch: str

    @property
    def curve(self) -> dict[str, Any]:
        """Keywords for `Axes.plot` and `Axes.errorbar`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line}


_LOOKS = {
    "CNN": Look("#E69F00", "s", "--", "///"),
    "NN": Look("#E69F00", "s", "--", "///"),
    "STN": Look("#009E73", "^", (0, (4, 1.5, 1, 1.5)), "..."),
    "P-STN": Look("#0072B2", "o", "-", ""),
}
_REFERENCE = Look(INK, "D", ":", "xxx")


def look(model: str) -> Look:
    """How a model is drawn; the reference look for any but the paper's three."""
    return _LOOKS.get(model, _REFERENCE)


_SHADES = ("#56B4E9", "#E69F00", "#009E73", "#D55E00", "#0072B2", "#222222")
_SHADE_MARKERS = ("o", "s", "^", "D", "v", "P")


def shades(count: int) -> list[Look]:
    """Looks for as many things of one kind, from light to dark; from the seventh on they repeat.

    Example:
        >>> [look.marker for look in shades(3)]
        ['o', 's', '^']
    """
    return [Look(_SHADES[at % 6], _SHADE_MARKERS[at % 6], "-", "") for at in range(count)]


@contextmanager
def applied() -> Iterator[None]:
    """The style, for whatever is drawn and saved inside."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def picture(axes: Axes, pixels: Any) -> None:
    """Show an image, grey (H, W) or colour (H, W, 3), of whole numbers from 0 to 255; no axes around it."""
    axes.imshow(np.asarray(pixels, dtype=np.uint8), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def mosaic(images: npt.ArrayLike, gap: int) -> npt.NDArray[np.uint8]:
    """Many images as one: (rows, columns, H, W) to a single image with white lines of `gap` pixels between them.

    Example:
        >>> mosaic(np.zeros((2, 3, 28, 28)), gap=2).shape
        (58, 88)
    """
    tiles = np.pad(np.asarray(images, np.uint8), ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=255)
    rows, columns, height, width = tiles.shape
    return tiles.swapaxes(1, 2).reshape(rows * height, columns * width)[:-gap, :-gap]
