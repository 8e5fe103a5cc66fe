"""Trained models on data: those of a run, or one that somebody shared."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pstn.nn import About, Shareable, from_pretrained
from pstn.training.population import score_models
from pstn.training.run import CHECKPOINT, SETTINGS, model_folder
from pstn.training.settings import SettingsError, TrainSettings, read_settings
from pstn.training.sources import Source, load_source

__all__ = ["evaluate_models"]


def evaluate_models(
    name: str | Path, data: str | None = None, samples: int | None = None, *, seed: int | None = None
) -> dict[str, list[float]]:
    """Score the trained models of a run, or one model, on the test part of a data set.

    Args:
        name: folder of a run, or whatever `pstn.from_pretrained` takes.
        data: whatever `pstn.data.load` takes; what the models were trained on when not given. Its images are prepared
            as the models want them, and its classes found by their names.
        samples: S; the models' own `test_samples` when not given.
        seed: of the samples; that of each model's training when not given.

    Returns:
        {"nll": [...], "accuracy": [...], "ece": [...]}, one number per model.
    """
    models = _models(name)
    abouts = [about for model in models if (about := model.about) is not None]
    about = abouts[0]
    if not (data or about.data):
        raise ValueError(f"{name} does not say what it was trained on: say which data to evaluate it on")
    x, y = _test_part(data or about.data, about)
    seeds = [about.seed if seed is None else seed for about in abouts]
    return score_models(models, x, y, samples=samples, seeds=seeds)


def _models(name: str | Path) -> list[Shareable]:
    run = Path(name)
    if not (run / SETTINGS).exists() or not (run / CHECKPOINT).exists():
        return [from_pretrained(name)]
    settings = TrainSettings.from_dict(read_settings(run / SETTINGS))
    folders = [model_folder(run, number) for number in range(settings.models)]
    if not all(folder.is_dir() for folder in folders):
        raise SettingsError(f"{run} is not finished: pstn train --resume --out {run}")
    return [from_pretrained(folder) for folder in folders]


def _test_part(data: str, about: About) -> tuple[Tensor, Tensor]:
    """Test examples as the model takes them: its normalisation, the positions of its classes."""
    size = (about.size[0], about.size[1]) if about.size is not None and len(about.size) == 2 else None
    kind: Literal["auto", "image", "series"] = "image" if about.ndim == 2 else "series" if about.ndim == 1 else "auto"
    source = load_source(data, size=size, channels=about.channels if about.channels in (1, 3) else None, kind=kind)
    if source.test is None:
        raise ValueError(f"{data} has no test part")
    x, y = source.test
    if x.shape[1] != about.channels or (about.size is not None and tuple(x.shape[2:]) != about.size):
        wanted, got = (about.channels, *(about.size or ())), tuple(x.shape[1:])
        raise ValueError(f"{data} must hold examples of shape {wanted}, which the model takes, got {got}")
    if (source.mean, source.std) != (about.mean, about.std):
        x = about.prepare(_raw(x, source))
    return x, _positions(data, source.names, about.classes)[y]


def _raw(x: Tensor, source: Source) -> Tensor:
    return About(source.names, x.shape[1], mean=source.mean, std=source.std).undo(x)


def _positions(data: str, names: tuple[str, ...], classes: tuple[str, ...]) -> Tensor:
    """Where each class of the data is among those of the model."""
    unknown = sorted(set(names) - set(classes))
    if unknown:
        raise ValueError(f"{data} has a class {unknown[0]!r} that the model does not know: {', '.join(classes)}")
    return torch.tensor([classes.index(name) for name in names])
