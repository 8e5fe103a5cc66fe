"""The commands that use a trained model: `pstn predict`, `pstn show` and `pstn export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from pstn.command_errors import MISTAKE, echo, plain_errors
from pstn.data.errors import DataError

__all__ = ["export", "predict", "register", "show"]

_Model = Annotated[str, typer.Argument(help="Folder of a model or of a run with one, or OWNER/NAME of the Hub.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, instead of a table.")]
_Samples = Annotated[int | None, typer.Option(help="S; the model's own when not given.", min=1)]
_Seed = Annotated[int, typer.Option(help="Of the samples: the same seed gives the same answers.", min=0)]

_MOST_DRAWN = 20
_MOST_NAMED = 20  # of a table with a wrong column, every row is as bad as the first


class _Refusals:
    """Inputs that cannot be read: the first are named on standard error, and all are counted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: DataError) -> None:
        self.count += 1
        if self.count <= _MOST_NAMED:
            echo(f"error: {error}", err=True)

    def stop_if_any(self, rest: str) -> None:
        """End the command with the exit code of a mistake, after what was done about the rest."""
        if self.count:
            more = f" ({self.count - _MOST_NAMED:,} more than are named here)" if self.count > _MOST_NAMED else ""
            echo(f"error: {self.count:,} input(s) could not be read{more}, {rest}", err=True)
            raise typer.Exit(MISTAKE)


def predict(
    model: _Model,
    inputs: Annotated[list[Path], typer.Argument(help="Images, folders of images, or tables of series.")],
    out: Annotated[Path | None, typer.Option(help="File to write; standard output when not given.")] = None,
    samples: _Samples = None,
    seed: _Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Inputs in memory at a time.", min=1)] = 64,
    as_json: _Json = False,
) -> None:
    """Classify images or series: labels, probabilities, uncertainty, and the box that was looked at.

    For example, one image, then a folder of any size into a table:

        pstn predict pstn-demo/pstn digit.png --json

        pstn predict runs/photos new-photos --out answers.csv

    A box has its corners in pixels of the image as viewers show it, by the mean transformation. Files and rows that
    cannot be read are named on standard error and left out.
    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    from pstn.data.errors import DataWarning
    from pstn.nn import from_pretrained
    from pstn.predict import Answer, predict_files, require_about, write_answers

    refusals, answered = _Refusals(), 0

    with plain_errors(DataWarning):
        loaded = from_pretrained(model)
        about = require_about(loaded)

        def counted() -> Iterator[Answer]:
            nonlocal answered
            for answer in predict_files(
                loaded, inputs, samples=samples, seed=seed, batch_size=batch_size, refuse=refusals
            ):
                answered += 1
                yield answer

        with _opened(out) as stream:
            write_answers(stream, counted(), about, as_json=as_json)
    if out is not None:
        echo(f"{answered:,} answers are in {out}", err=True)
    refusals.stop_if_any(f"{answered:,} were answered")


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    from pstn.files import write_atomically

    if out is None:
        yield sys.stdout
        return
    with write_atomically(out) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def show(
    model: _Model,
    inputs: Annotated[list[Path], typer.Argument(help="Images or a table of series; the first 20 inputs are drawn.")],
    out: Annotated[Path, typer.Option(help="The PNG file to write.")] = Path("looks.png"),
    samples: Annotated[int, typer.Option(help="How many looks to draw.", min=1, max=20)] = 6,
    seed: _Seed = 0,
    as_json: _Json = False,
) -> None:
    """Draw where a model looked: each input with the sampled boxes, what the classifier saw, and its answer.

    For example:

        pstn show pstn-demo/pstn digit.png --out looks.png

    Files and rows that cannot be read are named on standard error and left out.
    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    from itertools import islice

    import torch

    from pstn._checks import require_seed
    from pstn.data.errors import DataWarning
    from pstn.nn import PSTN, STN, from_pretrained
    from pstn.predict import read_items, require_about
    from pstn.report.pictures import draw_samples
    from pstn.text import printable

    refusals = _Refusals()
    with plain_errors(DataWarning):
        require_seed("seed", seed)
        loaded = from_pretrained(model)
        about = require_about(loaded)
        if not isinstance(loaded, (PSTN, STN)):
            raise ValueError(f"{model} is a {type(loaded).__name__}, which looks at the whole input: nothing to show")
        # One more than are drawn, to know whether there are more.
        items = list(islice(read_items(inputs, about, batch_size=_MOST_DRAWN + 1, refuse=refusals), _MOST_DRAWN + 1))
        if not items:
            raise ValueError("there is nothing to draw: no input could be read")
        if len(items) > _MOST_DRAWN:
            echo(f"note: the first {_MOST_DRAWN} inputs are drawn; name others to see those", err=True)
            del items[_MOST_DRAWN:]
        x = about.prepare(torch.stack([item.x for item in items]))
        source = torch.Generator().manual_seed(seed)
        names = [printable(Path(item.name).name, lines=False) for item in items]
        draw_samples(
            out, loaded, x, samples=samples, undo=about.undo, classes=about.classes, names=names, generator=source
        )
    echo(json.dumps({"written": str(out), "inputs": len(items)}) if as_json else f"wrote {out}")
    refusals.stop_if_any(f"{len(items):,} were drawn")


def export(
    model: _Model,
    format: Annotated[
        str | None, typer.Option(help="onnx, or pt2 for a program of torch.export; by the name of --out, or onnx.")
    ] = None,
    mean: Annotated[bool, typer.Option("--mean", help="Take the mean transformation: no samples, no noise.")] = False,
    samples: Annotated[
        int | None, typer.Option(help="S, with the noise as an input; the model's own when not given.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; model.onnx or model.pt2 when not given.")] = None,
    as_json: _Json = False,
) -> None:
    """Write a model as a file that runs without this package: ONNX anywhere, pt2 with torch.

    For example, for a phone, and then with 10 samples, whose noise is an input of the file:

        pstn export pstn-demo/pstn --mean --out digits.onnx

        pstn export pstn-demo/pstn --samples 10 --out digits-10.onnx

    The file takes a batch of any size, and holds the names of the classes and how its input is prepared.
    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    from pstn.export import advice_on_running, export_onnx, export_program
    from pstn.nn import PSTN, TransformerClassifier, from_pretrained

    with plain_errors():
        format = _chosen_format(format, out)
        if mean and samples is not None:
            raise ValueError("--mean and --samples exclude each other: the mean transformation has no samples")
        loaded = from_pretrained(model)
        chosen = loaded.test_samples if samples is None and isinstance(loaded, PSTN) and not mean else samples
        target = out or Path(f"model.{format}")
        if target.is_dir():
            raise IsADirectoryError(f"--out must be a file, got the folder {target}")
        write = export_onnx if format == "onnx" else export_program
        write(loaded, target, samples=chosen)
    if as_json:
        echo(json.dumps({"written": str(target), "format": format, "samples": chosen}))
    else:
        looks = isinstance(loaded, TransformerClassifier)
        how = ", the mean transformation" if looks else ""
        echo(f"wrote {target}{how if chosen is None else f', {chosen} samples, their noise an input'}")
    if format == "onnx" and (advice := advice_on_running(loaded)):
        echo(f"note: {advice}", err=True)


def _chosen_format(format: str | None, out: Path | None) -> str:
    """The format that is asked for, by its name or by that of the file; both have to agree."""
    formats = ("onnx", "pt2")
    if format is not None and format not in formats:
        raise ValueError(f"--format must be one of {', '.join(formats)}, got {format!r}")
    suffix = "" if out is None else out.suffix.lower().removeprefix(".")
    if suffix not in formats:
        if out is not None and format is None:
            raise ValueError(f"--out {out} must end in .onnx or .pt2, or --format say which of them it is to be")
        return format or "onnx"
    if format not in (None, suffix):
        raise ValueError(f"--format {format} and --out {out} contradict each other: give one of them, or .{format}")
    return suffix


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (predict, show, export):
        app.command()(command)
