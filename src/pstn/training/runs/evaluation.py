"""Trained models on data: those of a run, or a single shared model."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pstn.data.files import MissingDataError
from pstn.files import inside
from pstn.io import from_pretrained
from pstn.nn import PSTN, About, Shareable
from pstn.training.population import Population
from pstn.training.population.group import GroupScores
from pstn.training.population.recipe import Member, Recipe
from pstn.training.runs.run import CHECKPOINT, SETTINGS, model_folder, require_confirmed
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings
from pstn.training.runs.sources import HOW_TO_ADD_A_TEST, Policy, Source, load_source, prepare

__all__ = ["Examination", "prepare_examination", "score_models"]


def score_models(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, samples: int | None = None, seeds: Sequence[int] | None = None
) -> GroupScores:
    """Trained models of one shape on the same examples, with the noise that `Population.evaluate` uses.

    Args:
        models: of one shape.
        x: (M, C, *size).
        y: (M,).
        samples: S; the models' own `test_samples` when None.
        seeds: of their evaluation noise; 0, 1, 2, ... when not given.
    """
    members = [Member(seed=s) for s in (range(len(models)) if seeds is None else seeds)]
    # Chunks are a matter of one model's memory; here batches are cut instead, and a population refuses chunks.
    models = [copy.deepcopy(model) for model in models]
    for model in models:
        if isinstance(model, PSTN):
            model.chunk_size = None
    # Two examples, where there are: batch norm in training mode, which finding the shapes takes, refuses one.
    some = min(2, len(x))
    with Population(models, x[:some], y[:some], members, Recipe(batch_size=some), groups=1) as population:
        return population.evaluate(x, y, samples)


class Examination(NamedTuple):
    """Trained models, and what they are to be scored on."""

    models: list[Shareable]
    x: Tensor
    """(M, C, *size), as the models take it."""
    y: Tensor
    """(M,), positions among the models' classes."""
    seeds: list[int]
    """Of each model's samples."""

    def score(self, samples: int | None = None) -> GroupScores:
        """{"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; S is their own when not given."""
        return score_models(self.models, self.x, self.y, samples=samples, seeds=self.seeds)


def prepare_examination(
    name: str | Path, data: str | None = None, *, seed: int | None = None, policy: Policy | None = None,
    allow: Sequence[str] = (),
) -> Examination:  # fmt: skip
    """Load the trained models of a run, or one model, and the test part of a data set as they take it.

    Args:
        name: folder of a run, or whatever `pstn.from_pretrained` takes.
        data: whatever `pstn.data.load` takes; what the models were trained on when not given, if that is the name of
            a known set, or a path that this user has trained this run on: no other path is opened that a file names.
            Its images are prepared as the models want them, and its classes found by their names.
        seed: of the samples; that of each model's training when not given.
        policy: for missing values and unequal lengths in series; that of the models' training when not given.
        allow: modules that may be imported for the models, as in `pstn.from_pretrained`.
    """
    folder, run = Path(name), None
    if (folder / SETTINGS).exists() and (folder / CHECKPOINT).exists():
        run = TrainSettings.from_dict(read_settings(inside(folder, SETTINGS)))
        folders = [model_folder(folder, number) for number in range(run.models)]
        if not all(model.is_dir() for model in folders):
            raise SettingsError(f"{folder} is not finished: pstn train --resume --out {shlex.quote(str(folder))}")
        models = [from_pretrained(model, allow=allow) for model in folders]
        run = run if policy is None else run.replace(policy=policy)
    else:
        models = [from_pretrained(name, allow=allow)]
    abouts = [about for model in models if (about := model.about) is not None]
    about = abouts[0]
    if data is None:
        remembered = about.data if run is None else run.data
        if not remembered:
            raise ValueError(f"{name} does not say what it was trained on: say which data to evaluate it on")
        require_confirmed(folder, remembered, f"pstn evaluate {folder} DATA")
    try:
        if run is not None and data in (None, run.data):
            source = prepare(run)  # as it was trained on, with its change of the test part
        else:
            source = _load(data or about.data, about, policy or (run.policy if run else about.policy))
    except MissingDataError as error:
        if data is not None or str(error.path) != about.data:
            raise
        raise ValueError(  # the path is kept as it was given, relative to the folder of that time
            f"{name} was trained on {about.data!r}, which cannot be found from this folder: say where it is, "
            f"pstn evaluate {name} DATA"
        ) from error
    x, y = _test_part(data or about.data, source, about)
    return Examination(models, x, y, [about.seed if seed is None else seed for about in abouts])


def _load(data: str, about: About, policy: Policy) -> Source:
    """Data as near to what the model takes as can be read."""
    size = (about.size[0], about.size[1]) if about.size is not None and len(about.size) == 2 else None
    kind: Literal["auto", "image", "series"] = "image" if about.ndim == 2 else "series" if about.ndim == 1 else "auto"
    channels = about.channels if about.channels in (1, 3) else None
    # Other data have a longest series of their own: theirs become as long as the model's.
    length = about.size[0] if about.size is not None and about.ndim == 1 and policy != "refuse" else None
    return load_source(data, size=size, channels=channels, kind=kind, policy=policy, length=length)


def _test_part(data: str, source: Source, about: About) -> tuple[Tensor, Tensor]:
    """Test examples as the model takes them: its normalisation, the positions of its classes."""
    if source.test is None:
        raise ValueError(f"{data} has no test part: {HOW_TO_ADD_A_TEST}")
    x, y = source.test
    if x.shape[1] != about.channels or (about.size is not None and tuple(x.shape[2:]) != about.size):
        wanted, got = (about.channels, *(about.size or ())), tuple(x.shape[1:])
        raise ValueError(f"{data} must hold examples of shape {wanted}, which the model takes, got {got}")
    if (source.mean, source.std) != (about.mean, about.std):
        x = about.prepare(About(source.names, x.shape[1], mean=source.mean, std=source.std).undo(x))
    if unknown := sorted(set(source.names) - set(about.classes)):
        known = ", ".join(about.classes)
        raise ValueError(f"{data} has a class {unknown[0]!r} that the model does not know: {known}")
    return x, torch.tensor([about.classes.index(name) for name in source.names])[y]
