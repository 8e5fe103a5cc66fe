"""Predictions for files, images or rows of series: in batches, so that memory does not grow with their number."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO, TypeVar

import torch
from torch import Tensor

from pstn._checks import require_finite, require_positive_int, require_seed
from pstn._deprecation import renamed
from pstn.abstaining import Abstention
from pstn.data.files import DataError, ErrorHandler, raise_error
from pstn.data.images import IMAGE_SUFFIXES, each_in_parallel, find_images
from pstn.data.series import Wanted, read_rows
from pstn.decode import read_image
from pstn.files import to_json
from pstn.framing import WHOLE, Framing
from pstn.nn import PSTN, ModelMetadata, Prediction, Shareable, TransformerClassifier
from pstn.nn.classifier import evaluating, fitting_rule, shared_noise
from pstn.noise import Samples
from pstn.text import did_you_mean, printable
from pstn.threads import suit_threads, using_threads
from pstn.uncertainty import entropy

__all__ = ["Answer", "Item", "ask", "predict_files", "read_items", "require_about", "write_answers"]

T = TypeVar("T")
# As spreadsheets read them, after blanks too, and in the wide letters of Asian keyboards.
_FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class Item(NamedTuple):
    """One input: an image, or a row of a table of series."""

    name: str
    """The file, and for a series the line in it."""
    x: Tensor
    """(C, *size), uint8 pixels or float32 values, at the size that the model takes."""
    size: tuple[int, ...]
    """The spatial size it had before that."""
    framing: Framing = WHOLE
    """What of an image `x` is."""


class Answer(NamedTuple):
    """A model's answer for one input."""

    input: str
    """The file, and for a series the line in it."""
    label: str
    """The most probable class."""
    probabilities: tuple[float, ...]
    """In the order of the model's classes."""
    entropy: float
    """The uncertainty of the answer, in nats."""
    mutual_information: float
    """How much of that comes from not knowing where to look, in nats."""
    box: tuple[tuple[float, ...], ...] | None
    """Where the model looked, by its mean transformation: corners (x, y) in pixels of the image as viewers show it,
    which spans (0, 0) to (width, height); for a series its two ends; None for a model without a transformation."""
    abstain: bool | None = None
    """Whether the model should not answer; None where no accuracy was wanted of it, or with other samples."""
    set: tuple[str, ...] | None = None
    """The classes that cannot be ruled out; None where no coverage was wanted of it, or with other samples."""
    typical: float | None = None
    """The share of held-out examples that are less typical: near 0 where the input is unlike the training data; None
    where that is not known."""


def require_about(model: Shareable, samples: Samples | None = None) -> ModelMetadata:
    """The metadata of a model, checked to suffice for reading files; `abstention` only if it was found for `samples`.

    Args:
        model: what is to predict.
        samples: with how many samples, or "modes"; the model's own `test_samples` when not given.
    """
    about = model.about
    if about is None or about.size is None or len(about.size) > 2:
        raise ValueError("the model does not say what input it takes: save it with about=pstn.ModelMetadata(...)")
    if len(about.size) == 2 and about.channels not in (1, 3):
        raise ValueError(f"the model takes images of {about.channels} channels; files have 1 or 3")
    used = model.test_samples if samples is None and isinstance(model, PSTN) else samples
    return replace(about, abstention=fitting_rule(model, used))


@renamed(refuse="on_error")
def predict_files(
    model: Shareable, paths: Iterable[str | os.PathLike[str]], *, samples: Samples | None = None, seed: int = 0,
    batch_size: int = 64, on_error: ErrorHandler = raise_error,
) -> Iterator[Answer]:  # fmt: skip
    """Classify image files, all images in folders, or the series in tables, one batch after another.

    Args:
        model: what `pstn.from_pretrained` returned.
        paths: files and folders.
        samples: S, or "modes" for the centre of each of the posterior's modes; the model's own `test_samples` when not
            given.
        seed: of the samples. Every input has the same noise, so that its answer does not depend on its neighbours.
        batch_size: how many inputs are in memory at a time, at least 1.
        on_error: called with the error of each image, series or file that cannot be read, which is then left out; when
            not given, the first one raises.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> model = pstn.from_pretrained(pstn.nn.mnist_pstn().save_pretrained(tempfile.mkdtemp()))
        >>> path = Path(tempfile.mkdtemp()) / "one.png"
        >>> Image.new("L", (56, 56)).save(path)
        >>> [answer] = predict_files(model, [path])
        >>> [[round(value) for value in corner] for corner in answer.box]
        [[0, 0], [56, 0], [56, 56], [0, 56]]
    """
    about = require_about(model)
    require_seed("seed", seed)
    for batch in _in_batches(read_items(paths, about, batch_size=batch_size, on_error=on_error), batch_size):
        yield from ask(model, batch, samples=samples, seed=seed)


def ask(model: Shareable, items: Sequence[Item], *, samples: Samples | None = None, seed: int = 0) -> list[Answer]:
    """A model's answers for a batch of inputs; the arguments are those of `predict_files`."""
    about = require_about(model, samples)
    x = about.prepare(torch.stack([item.x for item in items]))
    disagreement, boxes, theta, rule = [0.0] * len(items), None, None, about.abstention
    with evaluating(model), torch.inference_mode(), using_threads(None):
        suit_threads(model, x)
        output = model(x, **shared_noise(model, len(items), samples, seed))
        if isinstance(output, Prediction):
            log_probs, disagreement = output.log_probs, output.mutual_information.tolist()
            assert isinstance(model, TransformerClassifier)
            boxes = model.layer.transform.corners(output.posterior.mode, aspect=tuple(x.shape[2:])[::-1])
            theta = output.theta.cpu().numpy() if samples != "modes" else None
        else:
            require_finite("logits", output, "the model diverged in training, or these inputs are not of its kind")
            log_probs = output.log_softmax(-1)
        unsure, best = entropy(log_probs).tolist(), log_probs.argmax(-1).tolist()
    return [
        Answer(
            item.name, about.classes[best[i]], tuple(row), unsure[i], disagreement[i],
            None if boxes is None else _corners(boxes[i], item),
            **({} if rule is None else rule.describe(row, about.classes, None if theta is None else theta[:, i])),
        )
        for i, (item, row) in enumerate(zip(items, log_probs.exp().tolist(), strict=True))
    ]  # fmt: skip


def _corners(box: Tensor, item: Item) -> tuple[tuple[float, ...], ...]:
    """The corners in pixels of the file, or in steps of the series; whole numbers are the edges of pixels."""
    low, high = [0.0], [float(item.size[0])]
    if len(item.size) == 2:
        height, width = item.x.shape[1:]
        left, top, right, bottom = item.framing.box((item.size[0], item.size[1]), (height, width))
        low, high = [left, top], [right, bottom]
    start, end = box.new_tensor(low), box.new_tensor(high)
    return tuple(map(tuple, (start + (box + 1) / 2 * (end - start)).tolist()))


@renamed(refuse="on_error")
def read_items(
    paths: Iterable[str | os.PathLike[str]], about: ModelMetadata, *, batch_size: int = 64,
    on_error: ErrorHandler = raise_error,
) -> Iterator[Item]:  # fmt: skip
    """The inputs in files and folders, as a model takes them; the arguments are those of `predict_files`."""
    if about.ndim == 1:
        for path in paths:
            try:
                yield from _series(Path(path), about, on_error)
            except DataError as error:
                on_error(error)
        return
    for batch in _in_batches(_image_paths(paths, on_error), batch_size):
        yield from _images(batch, about, on_error)


def _image_paths(paths: Iterable[str | os.PathLike[str]], on_error: ErrorHandler) -> Iterator[Path]:
    for path in map(Path, paths):
        if not os.path.lexists(path):
            beside = (entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else ()
            on_error(DataError(path, f"there is no such file or folder{did_you_mean(path.name, beside)}"))
            continue
        images = find_images(path, on_error) if path.is_dir() else iter([path])
        first = next(images, None)
        if first is None:
            on_error(DataError(path, f"holds no images ({', '.join(IMAGE_SUFFIXES)})"))
        else:
            yield first
            yield from images


def _images(paths: Sequence[Path], about: ModelMetadata, on_error: ErrorHandler) -> Iterator[Item]:
    assert about.size is not None
    size = (about.size[0], about.size[1])
    read: dict[int, Item | DataError] = {}

    def work(i: int) -> None:
        try:
            pixels, had = read_image(paths[i], about.channels, size, about.framing)
            read[i] = Item(_printable(paths[i]), torch.tensor(pixels), had, about.framing)
        except DataError as error:
            read[i] = error

    each_in_parallel(work, range(len(paths)))
    for _, item in sorted(read.items()):
        if isinstance(item, Item):
            yield item
        else:
            on_error(item)


def _series(path: Path, about: ModelMetadata, on_error: ErrorHandler) -> Iterator[Item]:
    assert about.size is not None
    wanted = Wanted(about.channels, about.size[0], about.classes, about.policy, about.masked)
    for line, x in read_rows(path, wanted, on_error):
        yield Item(f"{_printable(path)}:{line}", x, (int((~x.isnan().any(0)).sum()),))


def _printable(path: Path) -> str:
    """A file's name as text: names of files may be bytes that are not."""
    return os.fsencode(path).decode("utf-8", "replace")


def _in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    source, size = iter(items), require_positive_int("batch_size", size)
    while batch := list(islice(source, size)):
        yield batch


def _cell(text: str) -> str:
    """Text for a table: one line, and with an apostrophe before what a spreadsheet would take for a formula."""
    formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    # Where semicolons separate cells, as in much of Europe, one in a name starts another cell.
    shown = re.sub(r";(?=\s*[=+\-@＝＋－＠])", r"\\u003b", printable(text, lines=False))
    return ("'" if formula else "") + shown


def write_answers(stream: TextIO, answers: Iterable[Answer], about: ModelMetadata, *, as_json: bool = False) -> int:
    """Write answers as CSV with a header, or as JSON, one object a line, with the same numbers.

    Control characters in names are written as escape sequences. In CSV, an apostrophe stands before a name that a
    spreadsheet would take for a formula; numbers are left alone.

    Args:
        stream: to write to.
        answers: an iterable of them.
        about: of the model, for the names of the classes.
        as_json: JSON instead of CSV.

    Returns:
        The number of answers.
    """
    corners = ["start", "end"] if about.ndim == 1 else [f"{axis}{i}" for i in range(1, 5) for axis in "xy"]
    rule, count = about.abstention or Abstention(), 0
    wanted = {"abstain": rule.accuracy, "set": rule.coverage, "typical": rule.typicality}
    known = [name for name, value in wanted.items() if value is not None]
    table = csv.writer(stream, lineterminator="\n")
    header = ["input", "label", "probability", "entropy", "mutual_information", *known]
    if not as_json:
        table.writerow([*header, *corners, *(_cell(f"p({name})") for name in about.classes)])
    for answer in map(_rounded, answers):
        count += 1
        values = {**answer._asdict(), "probability": max(answer.probabilities)}
        if as_json:
            values["probabilities"] = dict(zip(about.classes, answer.probabilities, strict=True))
            told = {name: value for name, value in values.items() if value is not None or name not in wanted}
            stream.write(printable(to_json(told, ensure_ascii=False)) + "\n")
            continue
        values |= {"input": _cell(answer.input), "label": _cell(answer.label), "abstain": str(answer.abstain).lower()}
        values["set"] = _cell(" | ".join(answer.set or ()))
        box = [value for corner in answer.box or () for value in corner]
        empty = [""] * (len(corners) - len(box))
        table.writerow([*(values[name] for name in header), *box, *empty, *answer.probabilities])
    return count


def _rounded(answer: Answer) -> Answer:
    """The answer with as many digits as it is written with: six, and hundredths of a pixel."""
    numbers = (answer.entropy, answer.mutual_information, *answer.probabilities)
    unsure, disagreement, *probs = (float(f"{value:.6g}") for value in numbers)
    box = None if answer.box is None else tuple(tuple(round(v, 2) for v in corner) for corner in answer.box)
    return answer._replace(probabilities=tuple(probs), entropy=unsure, mutual_information=disagreement, box=box)
