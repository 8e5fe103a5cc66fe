"""Choosing w, or anything else, on validation data: optuna asks, populations answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pstn._checks import require_positive_int
from pstn.files import inside, parse_json, write_atomically
from pstn.training.build import make_population
from pstn.training.settings import SettingsError, TrainSettings, write_settings
from pstn.training.sources import Source, prepare
from pstn.training.study import Claim, Study

__all__ = ["AUTHORS_KL_WEIGHTS", "SweepResult", "parse_space", "run_sweep"]

AUTHORS_KL_WEIGHTS = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The grid that the paper's authors searched."""

STUDY, SETTINGS, RESULTS, BEST = "study.log", "sweep.yaml", "sweep.json", "best.yaml"
# What may differ between machines that share a study: where and how fast, not what.
_ANYWHERE = ("out", "device", "groups", "compile", "save_every")

# What models of one population may differ in; any other setting makes a population of its own.
_PER_MODEL = ("kl_weight", "lr", "seed")


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found."""

    best: dict[str, Any]
    value: float
    """The lowest validation loss: mean negative log-likelihood."""
    table: list[tuple[dict[str, Any], float]]
    """All finished trials of the study, best first, whichever machine ran them."""


def parse_space(texts: Sequence[str]) -> dict[str, Any]:
    """What to search, from NAME=V1,V2,... (a list to choose from) or NAME=LOW:HIGH (a logarithmic range).

    Example:
        >>> parse_space(["kl_weight=0,1e-3", "lr=1e-4:1e-2"])
        {'kl_weight': [0, 0.001], 'lr': (0.0001, 0.01)}
    """
    space: dict[str, Any] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not separator or not values:
            raise SettingsError(f"over must be NAME=V1,V2,... or NAME=LOW:HIGH, got {text!r}")
        if name in space:
            raise SettingsError(f"{name} is given twice: give all of its values in one, {name}=V1,V2")
        if ":" in values:
            try:
                low, high = (float(v) for v in values.split(":", 1))
            except ValueError as error:
                raise SettingsError(f"the range of {name} must be LOW:HIGH, two numbers, got {values!r}") from error
            space[name] = (low, high)
        else:
            space[name] = [_read(v) for v in values.split(",")]
    return space


def _read(text: str) -> Any:
    try:
        return parse_json(text, "--over")
    except ValueError:
        return text


def _checked(settings: TrainSettings, space: Mapping[str, Any]) -> dict[str, Any]:
    """The space with every value as its setting wants it; refuses, before anything is trained, what does not fit."""
    found: dict[str, Any] = {}
    for name, values in space.items():
        if name in ("models", "out"):
            raise SettingsError(f"{name} cannot be searched: a sweep decides it itself")
        if isinstance(values, tuple):
            _require_range(settings, name, values)
        fitted = [getattr(settings.replace(**{name: value}), name) for value in values]
        found[name] = type(values)(v[0] if isinstance(v, list) else v for v in fitted)
    return found


def _require_range(settings: TrainSettings, name: str, values: tuple[Any, ...]) -> None:
    if len(values) != 2 or not 0 < values[0] < values[1]:
        raise SettingsError(f"the range of {name} must be LOW:HIGH with 0 < LOW < HIGH, got {values}")
    between = values[0] + (values[1] - values[0]) / math.e
    try:
        settings.replace(**{name: between})
    except SettingsError as error:
        raise SettingsError(f"{name} takes no range, only a list such as {name}=V1,V2: {error}") from error


def run_sweep(
    settings: TrainSettings,
    space: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    folder: str | Path | None = None,
    storage: str | None = None,
    study: str = "pstn",
    together: int = 12,
    take_over: bool = False,
    say: Callable[[str], None] = print,
) -> SweepResult:
    """Search for the settings with the lowest validation loss.

    Trials that differ only in what models of one population may differ in are trained together. A study that was
    stopped goes on, if it is kept: what is finished is not trained again.

    Args:
        settings: of every trial, but for what is searched.
        space: by name, a list to choose from or a (low, high) range; the authors' KL weights when empty.
        trials: how many the study is to have in all; the whole grid when None.
        folder: where to keep the study (study.log), the settings of every trial (sweep.yaml), the table (sweep.json)
            and the settings that were chosen (best.yaml, for `pstn train --config`); nowhere when None.
        storage: see `Study`; in `folder`, if there is one, when None.
        study: its name.
        together: how many trials are asked for at a time.
        take_over: train again what processes that were killed had taken. Only where no other process runs this study.
        say: where messages go.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if settings.models != 1:
        raise SettingsError(f"models must be 1 in a sweep, where every trial is a model, got {settings.models}")
    require_positive_int("together", together)
    if trials is not None:
        require_positive_int("trials", trials)
    space = _checked(settings, space or {"kl_weight": list(AUTHORS_KL_WEIGHTS)})
    if trials is None and any(isinstance(values, tuple) for values in space.values()):
        raise SettingsError("trials must be given where a range is searched: it has no end of its own")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in (STUDY, SETTINGS, RESULTS, BEST):
            inside(Path(folder), name)  # a study is appended to, through a link too
        storage = storage or str(Path(folder) / STUDY)
    shared = Study(space, storage, study, _in_common(settings, space))
    if take_over:
        shared.take_over()
    if folder is not None:
        write_settings(Path(folder) / SETTINGS, settings)
    while left := shared.claim(together, trials):
        try:
            for population, losses in _train_all(settings, left):
                for claim, value in zip(population, losses, strict=True):
                    if shared.tell(claim, value):
                        words = f"validation loss {value:.4f} with {json.dumps(claim.values)}"
                        say(f"trial {claim.trial.number}: {words}")
                left = [claim for claim in left if claim not in population]
                _write(folder, settings, space, shared)
        except BaseException:
            shared.give_back(left)
            raise
    _write(folder, settings, space, shared)  # with what others found since
    if others := shared.running:
        say(f"{others} trials are with other processes. If those were killed: --take-over trains them again.")
    return _result(shared)


def _in_common(settings: TrainSettings, space: Mapping[str, Any]) -> dict[str, Any]:
    """What the losses of a study's trials can be compared by."""
    fixed = {name: value for name, value in settings.to_dict().items() if name not in (*_ANYWHERE, *space)}
    return {**fixed, "over": _as_texts(space)}


def _as_texts(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, list) else f"{v[0]:g}:{v[1]:g}" for name, v in space.items()}


def _write(folder: str | Path | None, settings: TrainSettings, space: Mapping[str, Any], study: Study) -> None:
    """The table so far, and the settings that are best so far."""
    if folder is None or not study.table():
        return
    result = _result(study)
    chosen = settings.replace(**result.best, out="")
    if chosen.patience is not None:  # else what is chosen trains on all there is
        chosen = _with_validation(chosen, prepare(chosen))
    about = {
        "settings": settings.to_dict(), "over": _as_texts(space), "best": result.best, "value": result.value,
        "chosen": chosen.to_dict(), "table": [{**values, "validation_loss": loss} for values, loss in result.table],
    }  # fmt: skip
    with write_atomically(Path(folder) / RESULTS) as draft:
        draft.write_text(json.dumps(about, indent=1))
    write_settings(Path(folder) / BEST, chosen)


def _result(study: Study) -> SweepResult:
    table = study.table()
    if not table and study.running:
        raise SettingsError("every trial is with other processes, and none is finished yet: try again later")
    if not table:
        raise SettingsError("no trial finished with a finite validation loss")
    return SweepResult(*table[0], table)


def _train_all(settings: TrainSettings, claims: Sequence[Claim]) -> Iterator[tuple[list[Claim], list[float]]]:
    """Trials that may be trained as one population, and the validation loss of each; one population after another."""
    shapes: dict[str, list[Claim]] = {}
    for claim in claims:
        rest = {name: value for name, value in claim.values.items() if name not in _PER_MODEL}
        shapes.setdefault(json.dumps(rest, sort_keys=True), []).append(claim)
    for population in shapes.values():
        rest = {name: value for name, value in population[0].values.items() if name not in _PER_MODEL}
        common = settings.replace(**rest)
        yield population, _losses(common, [claim.values for claim in population])


def _with_validation(settings: TrainSettings, source: Source) -> TrainSettings:
    """Settings that hold back a part of the training data, where there is nothing else to validate on."""
    if source.valid is None and settings.valid_fraction == 0:
        return settings.replace(valid_fraction=0.2)
    return settings


def _losses(settings: TrainSettings, values: Sequence[dict[str, Any]]) -> list[float]:
    source = prepare(settings)
    settings = _with_validation(settings, source)
    columns = {
        "lr": [v.get("lr", settings.lr[0]) for v in values],
    }
    if settings.kl_weight or any("kl_weight" in v for v in values):
        columns["kl_weight"] = [v["kl_weight"] if "kl_weight" in v else settings.kl_weight[0] for v in values]
    # Every trial has the same seed unless seeds are searched: the same subset, start and noise, so that only what is
    # searched differs.
    seeds = [int(v.get("seed", settings.seed)) for v in values]
    many = settings.replace(models=len(values), **columns)
    with make_population(many, source, seeds) as population:
        population.fit()
        best = population.progress.best
        last = population.evaluate_members(samples=settings.test_samples)["nll"]
        failed = {failure.model for failure in population.progress.failures}
    # A run that is shorter than the time between validations has no best.
    lowest = [b if settings.patience is not None and math.isfinite(b) else v for b, v in zip(best, last, strict=True)]
    return [math.inf if model in failed else value for model, value in enumerate(lowest)]
