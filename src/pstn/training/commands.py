"""The commands `pstn train`, `pstn evaluate` and `pstn sweep`; every setting is an option of the first."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
import types
import typing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pstn.command_errors import echo, plain_errors
from pstn.data.files import DataWarning
from pstn.files import to_json
from pstn.training.progress import sigterm_as_ctrl_c
from pstn.training.runs.settings import SettingsError, TrainSettings, describe_field, read_settings

if TYPE_CHECKING:
    from pstn.training.runs.run import Outcome

__all__ = ["evaluate", "register", "sweep", "train"]

# Given by name on the command line and handled by the commands themselves.
_ARGUMENTS = ("data",)


def _option_type(hint: Any) -> Any:
    """What typer reads for a setting: lists and choices as text, which `TrainSettings` then checks."""
    if typing.get_origin(hint) is types.UnionType:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    return str if typing.get_origin(hint) in (list, Literal) else hint


def _with_settings(command: Callable[..., None], without: Sequence[str] = ()) -> Callable[..., None]:
    """Give a command one option for each setting but those `without`; those that were not given stay None."""
    hints = typing.get_type_hints(TrainSettings)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
    added = []
    for item in dataclasses.fields(TrainSettings):
        if item.name in (*_ARGUMENTS, *without):
            continue
        kind, flag = _option_type(hints[item.name]), "--" + item.name.replace("_", "-")
        names = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
        option = typer.Option(None, names, help=_help(item, hints[item.name]), show_default=False)
        annotation = kind | None
        added.append(
            inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
        )
    command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]  # read by inspect
    command.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    return command


def _help(item: Any, hint: Any) -> str:
    from rich.markup import escape

    default = item.default_factory() if item.default is dataclasses.MISSING else item.default
    text = item.metadata["help"]
    if typing.get_origin(hint) is Literal:
        text += f" {describe_field(hint).capitalize()}."
    if default not in (None, ""):
        # rich would take the brackets for markup of its own, and drop them with all that is in them.
        text += escape(f" [default: {', '.join(map(str, default)) if isinstance(default, list) else default}]")
    return text


def _values(data: str | None, config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The file's settings, then the command line's over them; those that neither gives are left out."""
    values = {} if config is None else read_settings(config)
    hints = typing.get_type_hints(TrainSettings)
    for name, value in given.items():
        if value is not None:
            values[name] = value.split(",") if typing.get_origin(hints[name]) is list else value
    if data is not None:
        values["data"] = data
    return values


def _require_data(command: str, values: dict[str, Any]) -> None:
    if "data" not in values:
        raise SettingsError(
            f"DATA is missing: say what to train on, a folder, a file or a name of `pstn data list`, for example "
            f"`pstn {command} digits`"
        )


def _require_same(values: dict[str, Any], settings: TrainSettings) -> None:
    """Refuse settings that a resumed run would not follow: it goes on with its own."""
    from pstn.training.runs.run import saved_settings

    saved = saved_settings(settings.folder)
    for name in values:
        if name != "out" and (wanted := getattr(settings, name)) != (own := getattr(saved, name)):
            raise SettingsError(
                f"{name} of the run in {settings.folder} is {own}, got {wanted}: a resumed run goes on with its own "
                "settings; leave it out, or give --out another folder to start anew"
            )


@_with_settings
def train(
    data: Annotated[
        str | None, typer.Argument(help="A known set's name, a folder or a file; ./NAME is the folder where both are.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; options override it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    **given: Any,
) -> None:
    """Train one model or many together, into a folder; stop with Ctrl-C, go on with --resume.

    For example, with a folder of images for each class in photos/:

        pstn train photos --size 64 --epochs 50 --out runs/photos

        pstn predict runs/photos photos/cat/1.jpg

    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure, 130 stopped by Ctrl-C or SIGTERM.
    """
    from pstn.training.runs.run import train as run

    with plain_errors(DataWarning):
        values = _values(data, config, given)
        settings = TrainSettings.from_dict(values)
        if not resume:
            _require_data("train", values)
        elif not {"data", "out"} & values.keys():
            raise SettingsError("--resume needs the run to go on with: give --out FOLDER")
        else:
            _require_same(values, settings)
        outcome = run(
            settings, resume=resume, overwrite=overwrite, say=lambda text: echo(text, err=True), quiet=as_json
        )
        _print_outcome(outcome, as_json)
    if not outcome.finished:
        raise typer.Exit(130)


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        models = sorted(str(path.parent) for path in outcome.folder.glob("model-*/config.json"))
        about = {"folder": str(outcome.folder), "finished": outcome.finished, "models": models}
        echo(to_json({**about, "scores": outcome.scores, "problems": outcome.problems}))
    elif outcome.finished:
        from pstn.training.runs.run import model_folder
        from pstn.training.runs.sources import HOW_TO_ADD_A_TEST

        if outcome.scores:
            _print_scores(outcome.scores, outcome.test_examples)
        else:
            echo(f"No scores, as the data have no test part: {HOW_TO_ADD_A_TEST}")
        echo(f"Models, settings, scores and the whole history are in {outcome.folder}")
        use = shlex.join(["pstn", "predict", str(model_folder(outcome.folder, 0))])
        echo(f"Use it: {use} {outcome.takes.upper()}")


def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of a run or of a model, or OWNER/NAME of the Hub.")],
    data: Annotated[
        str | None, typer.Argument(help="A known set's name, a folder or a file; what it was trained on if not given.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="S; the model's own when not given.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the samples; that of its training when not given.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="For gaps and unequal lengths in series: refuse, resample or pad; the run's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score a trained model, or all models of a run, on the test part of a data set.

    For example, on what it was trained on, and then on other photos of the same classes:

        pstn evaluate runs/photos

        pstn evaluate runs/photos other-photos --samples 50

    Images are resized and normalised as the model wants them; classes are found by their names.
    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure.
    """
    from pstn.training.runs.evaluation import prepare_examination

    with plain_errors(DataWarning):
        examination = prepare_examination(model, data, seed=seed, policy=_policy(policy))
        scores = examination.score(samples)
        if as_json:
            echo(to_json(scores))
        else:
            _print_scores(scores, len(examination.y))


@partial(_with_settings, without=("models", "save_every"))
def sweep(
    data: Annotated[
        str | None, typer.Argument(help="A known set's name, a folder or a file; ./NAME is the folder where both are.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; options override it.")] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=V1,V2,... for a grid or NAME=LOW:HIGH (logarithmic). The authors' KL weights when not given."
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many in all; the whole grid when not given.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="A file, or a database URL, that several machines share; in OUT when not given.")
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in the storage.")] = "pstn",
    together: Annotated[int, typer.Option(help="Trials trained as one population.")] = 12,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Train again what killed processes had taken; with no other running.")
    ] = False,
    **given: Any,
) -> None:
    """Choose the KL weight, or anything else, on validation data; the same command again goes on.

    For example:

        pstn sweep digits --train-size 100 --epochs 100 --over kl_weight=0,1e-4,1e-3,1e-2 --out runs/sweep

        pstn train --config runs/sweep/best.yaml

    OUT holds the study, the settings, the table and the settings that were chosen.
    Exit codes: 0 done, 2 a mistake in what was given, 1 a failure, 130 stopped by Ctrl-C or SIGTERM.
    """
    from pstn.training.runs.sweep import BEST, parse_space, run_sweep

    with plain_errors(DataWarning):
        values = _values(data, config, given)
        settings = TrainSettings.from_dict(values)
        _require_data("sweep", values)
        folder = Path(settings.out or f"{settings.folder}-sweep")
        try:
            with sigterm_as_ctrl_c():
                result = run_sweep(
                    settings, parse_space(over or []), trials=trials, folder=folder, storage=storage, study=study,
                    together=together, take_over=take_over, say=lambda text: echo(text, err=True),
                )  # fmt: skip
        except KeyboardInterrupt:
            echo(f"Stopped; what is finished is in {folder}. To go on: the same command again.", err=True)
            raise typer.Exit(130) from None
        for parameters, value in result.table:
            echo(f"{value:10.4f}  {json.dumps(parameters)}")
        echo(f"Best validation loss {result.value:.4f} with {json.dumps(result.best)}")
        train_it = shlex.join(["pstn", "train", "--config", str(folder / BEST)])
        echo(f"Study, settings and table are in {folder}. Train it: {train_it}")


def _policy(text: str | None) -> Any:
    return None if text is None else TrainSettings.from_dict({"policy": text}).policy


def _print_scores(scores: dict[str, list[float]], examples: int) -> None:
    echo(f"On {examples:,} test examples:")
    echo("model  accuracy     NLL     ECE")
    for number, (accuracy, nll, ece) in enumerate(zip(scores["accuracy"], scores["nll"], scores["ece"], strict=True)):
        echo(f"{number:5d}  {accuracy:8.2%}  {nll:6.3f}  {ece:6.3f}")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (train, evaluate, sweep):
        app.command()(command)
