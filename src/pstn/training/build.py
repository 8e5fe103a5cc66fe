"""From settings to models and a population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data.split import stratified_indices
from pstn.nn import (
    PSTN,
    STN,
    About,
    ConvClassifier,
    ConvLocalizer,
    SeriesClassifier,
    SeriesLocalizer,
    Shareable,
    SpatialTransformer,
)
from pstn.training.population import Population
from pstn.training.recipe import Member
from pstn.training.settings import TrainSettings
from pstn.training.sources import Source, choose_subset
from pstn.transforms import make_transform

__all__ = ["USUAL_FAMILY", "make_about", "make_device", "make_model", "make_population"]

# Filters of classifier and localizer, so that the three kinds have about as many parameters each: the paper's choice.
_FILTERS = {"cnn": ((12, 24), 52, ()), "stn": ((10, 20), 50, (12, 18)), "pstn": ((10, 20), 50, (8, 14))}

USUAL_FAMILY = {1: "cpab", 2: "similarity"}
"""The family of transformations where none is asked for, by the number of spatial axes."""


def make_model(settings: TrainSettings, source: Source, seed: int) -> Shareable:
    """One untrained model for the data.

    Args:
        settings: which kind, and its options.
        source: the data, for its shape.
        seed: of the weights; torch's own random state stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _make(settings, source)


def _make(settings: TrainSettings, source: Source) -> Shareable:
    channels, size = source.x.shape[1], source.size
    filters, hidden, localizer_filters = _FILTERS[settings.model]
    classifier: Shareable
    if len(size) == 1:
        classifier = SeriesClassifier(channels, source.classes)
    else:
        classifier = ConvClassifier(channels, size, source.classes, filters, hidden)
    if settings.model == "cnn":
        return classifier
    localizer: nn.Module
    localizer = SeriesLocalizer(channels) if len(size) == 1 else ConvLocalizer(channels, size, localizer_filters)
    # Beyond an image lies its background; a series has none, and goes on as it ends.
    beyond: dict[str, Any] = {"padding_mode": "border"} if len(size) == 1 else {"fill": source.fill}
    layer = SpatialTransformer(
        make_transform(settings.transform or USUAL_FAMILY[len(size)], len(size)), localizer, size,
        probabilistic=settings.model == "pstn", var_init=settings.var_init, **beyond,
    )  # fmt: skip
    if settings.model == "stn":
        return STN(layer, classifier)
    return PSTN(layer, classifier, train_samples=settings.samples, test_samples=settings.test_samples)


def make_about(settings: TrainSettings, source: Source, number: int, kl_weight: float | None = None) -> About:
    """What belongs to model `number` of a run beside its weights, before it has scores."""
    return About(
        source.names, source.x.shape[1], source.size, source.mean, source.std,
        kl_weight=kl_weight, seed=settings.seed + number,
        data=settings.data, policy=settings.policy,
    )  # fmt: skip


def make_device(name: str) -> torch.device:
    """The device called `name`; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or another that torch knows, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that is here, got {name!r}: torch finds no GPU")
    return device


def _train_and_valid(settings: TrainSettings, source: Source, seed: int) -> tuple[Tensor, Tensor | None]:
    """The data's own validation part; else, where one is asked for, its share of every class."""
    if source.valid is not None or settings.valid_fraction == 0:
        return source.train, source.valid
    train, valid = stratified_indices(source.y[source.train], settings.valid_fraction, seed=seed)
    if len(valid) == 0:
        raise ValueError(
            f"valid_fraction {settings.valid_fraction:g} of {len(source.train)} training examples leaves none to "
            "validate on: give a larger one, or data with a validation part of its own"
        )
    return train, valid


def make_population(settings: TrainSettings, source: Source, seeds: Sequence[int] | None = None) -> Population:
    """The population that the settings describe, untrained.

    Args:
        settings: what to make.
        source: the data.
        seeds: one per model; counted up from the settings' seed when not given.
    """
    seeds = [settings.seed + i for i in range(settings.models)] if seeds is None else list(seeds)
    models = [make_model(settings, source, seed) for seed in seeds]
    members = []
    for i, seed in enumerate(seeds):
        train, valid = _train_and_valid(settings, source, seed)
        if settings.train_size is not None:
            train = choose_subset(source.y, train, settings.train_size, seed)
        lr = settings.lr[i % len(settings.lr)]
        kl_weight = settings.kl_weight[i % len(settings.kl_weight)] if settings.kl_weight else None
        members.append(Member(seed, lr, settings.localizer_factor, kl_weight, settings.weight_decay, train, valid))
    if settings.patience is not None and any(m.valid is None for m in members):
        raise ValueError("patience needs validation data: set valid_fraction")
    return Population(
        models, source.x, source.y, members, settings.recipe(source.augment),
        device=make_device(settings.device), groups=settings.groups, compile=settings.compile,
    )  # fmt: skip
