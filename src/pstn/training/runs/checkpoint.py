"""Checkpoints: one file that holds everything a run needs to go on, replaced as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pstn.files import DataError, parse_json, require_regular_file, write_atomically
from pstn.limits import CHECKPOINT_TEXT
from pstn.text import ShortError, excerpt
from pstn.training.population.recipe import Member
from pstn.training.population.step import METRICS
from pstn.training.population.trainer import Failure, Population, Progress

_FORMAT = "pstn population 2"
_TEXTS = ("progress", "members", "training", "settings")
_WHOLE_NUMBERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Of these examples every bit counts for the fingerprint of the data; of the others their sums.
_WHOLE = 64


class CheckpointError(ShortError):
    """A checkpoint that cannot be read, or that belongs to another run."""


def save_checkpoint(path: str | Path, population: Population, settings: dict[str, Any] | None = None) -> None:
    """Write a population's whole state: weights, optimiser, running statistics, best weights, progress, seeds.

    It also records the recipe and a fingerprint of the data: training resumes with the same ones only.

    Noise is counted, not drawn from a generator: seeds and the step are all the generator state there is.

    Args:
        path: a .safetensors file; the old one stays until the new one is whole and on the disk.
        population: what to save.
        settings: anything that JSON can hold, kept beside it.
    """
    from safetensors.torch import save_file

    about = {
        "format": _FORMAT,
        "progress": json.dumps(asdict(population.progress)),
        "members": json.dumps([member_summary(member) for member in population.members]),
        "training": json.dumps(_training(population)),
        "settings": json.dumps(settings or {}),
    }
    with write_atomically(path) as draft:
        save_file(population.tensors(), draft, metadata=about)


def read_about(path: str | Path) -> dict[str, Any]:
    """What stands beside the tensors of a checkpoint: progress, members, training, settings; no tensor is read.

    Raises:
        CheckpointError: it is not a checkpoint that can be read.
    """
    with _opened(path) as (_, about):
        return about


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A checkpoint's open file, and what stands beside its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(require_regular_file(path)), framework="pt") as stream:
            held = stream.metadata() or {}
            if held.get("format") != _FORMAT or not held.keys() >= set(_TEXTS):
                got = excerpt(held.get("format"))
                raise CheckpointError(f"{path} must be a whole checkpoint of format {_FORMAT!r}, got {got}")
            # A model that broke leaves NaN in its history.
            yield stream, {n: parse_json(held[n], path, limit=CHECKPOINT_TEXT, constants=True) for n in _TEXTS}
    except (SafetensorError, FileNotFoundError, DataError, RuntimeError) as error:  # of torch, where mapping fails
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from error


def load_checkpoint(path: str | Path, population: Population) -> None:
    """Put a population where a checkpoint left it; training then continues to the same bits.

    Args:
        path: what `save_checkpoint` wrote.
        population: made from the same models' shape, members, recipe and data; only `epochs` may differ, to go on for
            longer, and when early stopping stops.

    Raises:
        CheckpointError: if it is of another population, with what differs; or if it holds NaN or infinity.
    """
    with _opened(path) as (stream, about):
        if about["members"] != [member_summary(member) for member in population.members]:
            raise CheckpointError(f"{path} belongs to other models: its seeds, weights or learning rates differ")
        now, was = _training(population), about["training"] if isinstance(about["training"], dict) else {}
        if changed := [f"{k} was {str(was.get(k))[:200]}, is {v}" for k, v in now.items() if v != was.get(k)]:
            raise CheckpointError(f"{path} belongs to another training: {'; '.join(changed)}")
        progress = read_progress(path, about["progress"], len(population.members))
        tensors = _read_tensors(path, stream, population.tensors())
    population.load_tensors(tensors)
    population.progress = progress


def _read_tensors(path: str | Path, stream: Any, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, read once their names, shapes and types are the population's; all finite."""
    present = set(stream.keys())
    best = {f"best.{name}": tensor for name, tensor in expected.items() if not name.startswith("best.")}
    wanted = {**expected, **(best if present & set(best) else {})}  # only after the first validation there is a best
    for name, tensor in wanted.items():
        if name not in present or tuple(stream.get_slice(name).get_shape()) != tuple(tensor.shape):
            raise CheckpointError(f"{path} belongs to models of another shape: {name} differs")
    tensors = {name: stream.get_tensor(name) for name in wanted}
    for name, tensor in tensors.items():
        if tensor.dtype != wanted[name].dtype or not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: {name} must be of {wanted[name].dtype} and finite, got {tensor.dtype}")
    return tensors


def read_progress(path: str | Path, held: Any, models: int) -> Progress:
    """Where a population of so many models stood, with the types and lengths that it writes."""
    try:
        failures = [Failure(**failure) for failure in held["failures"]]
        progress = Progress(**{**held, "failures": failures})
        per_model: list[list[Any]] = [progress.best, progress.waited, *([progress.partial] if progress.step else [])]
        lists = [held["failures"], progress.history, *per_model]
        lengths = {len(part) for part in per_model} | {models}, {len(row) for row in progress.partial} | {len(METRICS)}
        counts = (progress.step, progress.epoch, *(n for f in failures for n in (f.model, f.step)), *progress.waited)
        entries = [value for entry in progress.history for value in entry.values()]
        numbers = [*progress.best, *progress.partial, *entries]
        means = (n for value in numbers for n in (value if isinstance(value, list) else [value]))
        fine = all(isinstance(part, list) for part in lists) and max(map(len, lengths)) == 1
        fine = fine and all(type(n) is int and n >= 0 for n in counts) and math.isfinite(progress.seconds)
        if not fine or not all(isinstance(n, (int, float)) for n in means):
            raise ValueError(f"it is not that of {models} models")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: its progress cannot be read ({error})") from error
    return progress


def member_summary(member: Member) -> dict[str, Any]:
    """What tells a member from others, as JSON can hold it; subsets by a few numbers, not whole.

    Example:
        >>> member_summary(Member(seed=3, kl_weight=1e-3))["kl_weight"]
        0.001
    """

    def summary(subset: Tensor | None) -> list[int] | None:
        # Enough to tell subsets apart without writing them down.
        return None if subset is None else [len(subset), int(subset.sum()), int(subset[0]), int(subset[-1])]

    return {
        "seed": member.seed, "lr": member.lr, "localizer_factor": member.localizer_factor,
        "kl_weight": _words(member.kl_weight) if callable(member.kl_weight) else member.kl_weight,
        "weight_decay": member.weight_decay, "train": summary(member.train), "valid": summary(member.valid),
    }  # fmt: skip


def _training(population: Population) -> dict[str, str]:
    """All that decides what the next step will be, but for models and members."""
    recipe = {f.name: _words(getattr(population.recipe, f.name)) for f in fields(population.recipe)}
    for name in ("epochs", "patience", "validate_every"):  # how long it is to go on does not change how it does
        del recipe[name]
    recipe["early stopping"] = str(population.recipe.patience is not None)  # it keeps the best weights
    recipe["steps_per_epoch"] = str(population.steps_per_epoch)
    return {**recipe, "data": _fingerprint(list(population.stacks[0].constants.data.values()))}


def _words(value: Any) -> str:
    """`repr`, without the address that functions and objects without one of their own have in it."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _fingerprint(tensors: Sequence[Tensor]) -> str:
    """Enough to tell data apart, the same on every device, without copying all of it from there."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        rows = tensor.reshape(len(tensor), -1)
        bits = rows.view(_WHOLE_NUMBERS[rows.element_size()])
        few = bits[:: max(1, len(bits) // _WHOLE)]
        for part in (bits.sum(1, dtype=torch.int64), few):
            digest.update(part.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
