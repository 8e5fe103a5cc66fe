"""What the page of `pstn app` computes, without gradio: digits from pictures, and how three models read an input."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import pstn
from pstn.data import DataError
from pstn.decode import open_image, orientation, turn_upright, with_bytes
from pstn.demo import LABELS
from pstn.io import ModelFileError
from pstn.limits import PAGE_EXAMPLES, PAGE_FILE_BYTES, PAGE_FILE_PIXELS
from pstn.nn import PSTN, STN, ModelMetadata, Shareable
from pstn.predict import read_items, require_about
from pstn.transforms import Similarity
from pstn.uncertainty import entropy, mutual_information
from pstn.warping import warp

SIDE = 28
SKETCH_SIDE = 4 * SIDE
HOURS = 24
SAMPLES = 10
# The archive calls the classes 1 and 2: days from October to March, whose evening peak comes early, and the others.
SEASONS = ("winter", "summer")
_INK_SIDE = 20  # the digits of MNIST are 20 pixels long, in an image of 28
_FAINTEST = 0.12  # of the range from black to white: less contrast than this is paper, not ink
Grey = npt.NDArray[np.uint8]


class PictureError(ValueError):
    """A picture that the page cannot use; the message is for the visitor."""


def read_picture(path: str | Path) -> Grey:
    """The grey levels (H, W) of an untrusted image file, upright by its EXIF data; transparent is white.

    The size of the file is checked before it is opened, and that of the image before it is decoded.

    Raises:
        PictureError: it is too large, damaged, or not an image.
    """
    from PIL import Image

    with _open_upload(Path(path)) as image:
        flat = image
        if image.has_transparency_data:
            flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        return np.asarray(turn_upright(with_bytes(flat, "L", Path(path)), orientation(image)), dtype=np.uint8)


def _require_small(path: Path) -> None:
    if path.stat().st_size > PAGE_FILE_BYTES:
        raise PictureError(f"That file is too large: the limit is {PAGE_FILE_BYTES >> 20} MB.")


@contextmanager
def _open_upload(path: Path) -> Iterator[Any]:
    """A Pillow image of an untrusted file, of which only the header has been read."""
    from PIL import Image

    _require_small(path)
    huge = False
    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            open_image(path) as image,
        ):
            if huge := image.width * image.height > PAGE_FILE_PIXELS:
                raise DataError(path, "too large")
            yield image
    except DataError as error:  # of open_image, whatever the reason
        if huge or isinstance(error.__cause__, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
            most = PAGE_FILE_PIXELS // 10**6
            raise PictureError(f"That picture is too large: the limit is {most} million pixels.") from None
        raise PictureError("That file does not open as a picture. Try a PNG or a JPEG.") from None


def read_examples(path: str | Path, about: ModelMetadata) -> Tensor:
    """The inputs (N, C, *size) in an untrusted file, as a person sees them: an image, or the first series of a table.

    Raises:
        PictureError: there is nothing in it that the model takes.
    """
    if about.ndim == 2:
        with _open_upload(Path(path)):
            pass
    else:
        _require_small(Path(path))
    try:
        return stack_examples([path], about)
    except DataError as error:  # its text has the path
        raise PictureError(f"That file cannot be used: {error.problem}") from None


def stack_examples(paths: Iterable[str | Path], about: ModelMetadata) -> Tensor:
    """The first inputs (N, C, *size) in files and folders, as a person sees them: pixels from 0 to 1, or series.

    Raises:
        DataError: one cannot be read, or there is none.
    """
    paths = list(paths)
    found = [item.x for item in islice(read_items(paths, about), PAGE_EXAMPLES)]
    if not found:
        raise DataError(paths[0], "there is no input in it")
    x = torch.stack(found)
    return x if x.is_floating_point() else x / 255


def read_sketch(ink: Any) -> Grey:
    """The grey levels (112, 112) of a drawing, from base64 of one byte of ink per pixel, row by row.

    Raises:
        PictureError: it is anything else.
    """
    try:
        if not isinstance(ink, str) or len(ink) > 2 * SKETCH_SIDE**2:
            raise ValueError
        levels = np.frombuffer(base64.b64decode(ink, validate=True), np.uint8).reshape(SKETCH_SIDE, SKETCH_SIDE)
    except ValueError:
        raise PictureError("That drawing did not arrive complete: please draw it again.") from None
    return 255 - levels


def to_digit(grey: Grey) -> Tensor:
    """Find the ink in a picture and place it as in MNIST: (H, W) uint8 -> (1, 28, 28) from 0 (paper) to 1 (ink).

    Ink is what differs from the border of the picture, so both dark on light and light on dark work.

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
    if strongest < _FAINTEST:  # a dot is less than one in 200 pixels
        strongest = float(contrast.max())
    if strongest < _FAINTEST:
        raise PictureError("There is no digit in that picture: draw a thick, dark one on a light background.")
    ink = np.clip((contrast / strongest - 0.25) / 0.5, 0, 1)
    rows, columns = np.flatnonzero(ink.max(1) > 0.3), np.flatnonzero(ink.max(0) > 0.3)
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]

    factor = _INK_SIDE / max(ink.shape)
    height, width = (max(1, round(extent * factor)) for extent in ink.shape)
    small = np.asarray(Image.fromarray(ink).resize((width, height), Image.Resampling.BOX))
    centre = [(small.sum(1 - axis) @ np.arange(extent)) / small.sum() for axis, extent in enumerate(small.shape)]
    top, left = (
        int(np.clip(round((SIDE - 1) / 2 - middle), 0, SIDE - extent))
        for middle, extent in zip(centre, small.shape, strict=True)
    )
    digit = np.zeros((1, SIDE, SIDE), np.float32)
    digit[0, top : top + height, left : left + width] = small
    return torch.from_numpy(digit)


def move_digit(digit: Tensor, turn: float = 0.0, right: float = 0.0, down: float = 0.0, size: float = 1.0) -> Tensor:
    """Rotate, shift and scale a digit, or another image, on a black background.

    Args:
        digit: (C, H, W), from 0 to 1.
        turn: degrees, clockwise.
        right: pixels to the right.
        down: pixels downwards.
        size: scale factor.

    Example:
        >>> digit = torch.zeros(1, 28, 28)
        >>> digit[0, 4, 13] = 1
        >>> move_digit(digit, right=3, down=2)[0].argmax().item() == 6 * 28 + 16
        True
    """
    height, width = digit.shape[-2:]
    moved = torch.tensor([math.radians(turn), size, 2 * right / width, 2 * down / height])
    family = Similarity()
    # A grid maps output to input coordinates, the inverse of how the content moves.
    grid = family.grid(family.inverse(moved), size=(height, width))
    return warp(digit[None], grid[None])[0].clamp(0, 1)


def move_series(
    series: Tensor, later: float = 0.0, stretch: float = 1.0, noise: float = 0.0, *, seed: int = 0
) -> Tensor:
    """Shift a series in time, stretch it about its middle, and add noise; beyond its ends it is constant.

    Args:
        series: (C, L).
        later: delay, in steps.
        stretch: factor by which everything takes longer.
        noise: standard deviation of the noise.
        seed: of the noise, which is the same at each call, so that a slider scales it.

    Example:
        >>> move_series(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), later=1)
        tensor([[0., 0., 1., 2.]])
    """
    steps = np.arange(series.shape[-1])
    middle = (len(steps) - 1) / 2
    read = middle + (steps - middle - later) / stretch
    moved = np.stack([np.interp(read, steps, values) for values in series.double().numpy()])
    return torch.from_numpy(moved).float() + noise * torch.randn(
        series.shape, generator=torch.Generator().manual_seed(seed)
    )


ModelSet = Mapping[str, Any]
"""Models that the page compares, by "cnn", "stn" and "pstn", which take the same inputs, in evaluation mode."""


def as_set(model: Shareable) -> ModelSet:
    """One model of images or series as a set, under what it is."""
    if require_about(model).masked:
        raise ValueError("model must take no mask to be on the page, got one of padded series: see pstn show")
    return {"pstn" if isinstance(model, PSTN) else "stn" if isinstance(model, STN) else "cnn": model}


class Answer(NamedTuple):
    """The answer of one model to one input.

    Attributes:
        probs: the probability of each class, by its name.
        votes: the most probable class under each sample; one for a model without samples.
        entropy: of `probs`, in nats.
        mutual_information: the part of it that comes from not knowing where to look, in nats.
        theta: (S, D), the transformations; None for the CNN.
        seen: (S, C, *size), what its classifier read, as a person sees it; None for the CNN.
    """

    probs: dict[str, float]
    votes: tuple[str, ...]
    entropy: float
    mutual_information: float
    theta: Any = None
    seen: Any = None

    @property
    def best(self) -> str:
        """The most probable class."""
        return max(self.probs, key=self.probs.__getitem__)

    @property
    def sureness(self) -> str:
        """How sure the model is, in words that go with its largest probability in whole percent."""
        percent, least = round(100 * self.probs[self.best]), 60 if len(self.probs) == 2 else 50
        words = {"sure": 95, "fairly sure": 75, "unsure": least, "guessing": 0}
        return next(word for word, start in words.items() if percent >= start)

    @property
    def explanation(self) -> str:
        """How the samples voted; empty for a model without samples.

        Example:
            >>> Answer({"a": 0.75, "b": 0.25}, ("a", "a", "a", "b"), 0.56, 0.5).explanation
            '3 of 4 samples say a, 1 says b. Most of its uncertainty comes from not knowing where to look.'
        """
        if len(self.votes) < 2:
            return ""
        counts = {name: self.votes.count(name) for name in self.probs if name in self.votes}
        first, *rest = sorted(counts, key=counts.__getitem__, reverse=True)
        others = "".join(f", {counts[name]} {'says' if counts[name] == 1 else 'say'} {name}" for name in rest)
        text = f"{counts[first]} of {len(self.votes)} samples say {first}{others}."
        if self.sureness != "sure" and self.mutual_information > self.entropy / 2:
            text += " Most of its uncertainty comes from not knowing where to look."
        return text


def compare(models: ModelSet, shown: Tensor, *, samples: int = SAMPLES, seed: int = 0) -> dict[str, Answer]:
    """The answer of each model to one input.

    Args:
        models: the models.
        shown: (C, *size), the input as a person sees it: pixels from 0 to 1, or a series.
        samples: S, for the P-STN.
        seed: of its samples: with the same seed, only the input makes a difference.
    """
    about, answers = next(iter(models.values())).about, {}
    x = about.prepare(shown[None])
    with torch.inference_mode():
        for kind, model in models.items():
            sampled = {"samples": samples, "generator": torch.Generator().manual_seed(seed)}
            output = model(x, **sampled) if isinstance(model, PSTN) else model(x)
            theta = seen = None
            if not isinstance(model, (PSTN, STN)):
                log_probs = output.log_softmax(-1)
                each = log_probs[None]
            else:
                log_probs, each, theta = output.log_probs, output.sample_log_probs, output.theta[:, 0]
                seen = about.undo(model.layer.warp(x, output.theta)[:, 0])
            votes = tuple(about.classes[k] for k in each[:, 0].argmax(-1).tolist())
            probs = dict(zip(about.classes, log_probs[0].exp().tolist(), strict=True))
            uncertainty = entropy(log_probs).item(), mutual_information(each).item()
            answers[kind] = Answer(probs, votes, *uncertainty, theta, seen)
    return answers


SHIPPED = Path(pstn.__file__).parent / "data" / "offline"
"""The folder of models that `scripts/train_page_models.py` has trained: of digits in any pose, and of little data."""


def load_models(folder: Path, size: tuple[int, ...] | None) -> ModelSet:
    """The three models in the subfolders cnn, stn and pstn, as `pstn demo` writes them.

    Args:
        folder: where they are.
        size: spatial size of the input that they must take, with one channel.

    Raises:
        ModelFileError: one is missing, damaged, or takes other input.
    """
    if not all((folder / name).is_dir() for name in LABELS):  # the Hub would be asked: the page contacts no one
        raise ModelFileError(f"{folder} must contain the folders cnn, stn and pstn, as `pstn demo` writes them")
    found: dict[str, Any] = {name: pstn.from_pretrained(folder / name) for name in LABELS}
    kinds = {name: next((kind for kind in (STN, PSTN) if isinstance(found[name], kind)), None) for name in LABELS}
    if kinds != {"cnn": None, "stn": STN, "pstn": PSTN}:
        raise ModelFileError(f"{folder}: cnn, stn and pstn must contain what their names say")
    inputs = {(model.about.classes, model.about.channels, model.about.size) for model in found.values()}
    if len(inputs) > 1 or next(iter(inputs))[1:] != (1, size):
        wanted = " × ".join(map(str, size or ()))
        raise ModelFileError(f"{folder} must contain three models of the same classes, for grey input of {wanted}")
    return found


def load_sets(digits: Path | None = None, own: Shareable | None = None) -> dict[str, ModelSet]:
    """The sets of models that the page shows, by name: a model of the user's alone, where there is one.

    Args:
        digits: a folder with models of digits, as `pstn demo` writes them, instead of those that are shipped.
        own: a model of the user's.

    Raises:
        ModelFileError: there are no such models in `digits`.
    """
    if own is not None:
        return {"own": as_set(own)}
    folders = {"poses": SHIPPED / "poses", "digits": digits or SHIPPED / "digits", "series": SHIPPED / "series"}
    return {
        name: load_models(folder, (HOURS,) if name == "series" else (SIDE, SIDE)) for name, folder in folders.items()
    }
