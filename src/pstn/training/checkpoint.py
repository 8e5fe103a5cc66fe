"""Checkpoints: one file that holds everything a run needs to go on, replaced as a whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pstn.files import require_writable, write_atomically
from pstn.training.population import Failure, Population, Progress
from pstn.training.recipe import Member

__all__ = [
    "CheckpointError",
    "load_checkpoint",
    "member_summary",
    "read_checkpoint",
    "require_room",
    "save_checkpoint",
    "save_weights",
]

_FORMAT = "pstn population 2"
_WHOLE_NUMBERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Of these examples every bit counts for the fingerprint of the data; of the others their sums.
_WHOLE = 64


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or that belongs to another run."""


def save_checkpoint(path: str | Path, population: Population, settings: dict[str, Any] | None = None) -> None:
    """Write a population's whole state: weights, optimiser, running statistics, best weights, progress, seeds.

    Beside it stands how it was trained, and on what, so that it goes on in no other way.

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
        "members": json.dumps(_members(population)),
        "training": json.dumps(_training(population)),
        "settings": json.dumps(settings or {}),
    }
    tensors = {name: tensor.contiguous() for name, tensor in population.tensors().items()}
    with write_atomically(path) as draft:
        save_file(tensors, draft, metadata=about)
    _sync_folder(Path(path).parent)


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint, and what stands beside them: progress, members, training, settings."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as stream:
            about = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118  # it is no dict
    except (SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from error
    if about.get("format") != _FORMAT:
        raise CheckpointError(f"{path} must be a checkpoint of format {_FORMAT!r}, got {about.get('format')!r}")
    return tensors, {name: json.loads(about[name]) for name in ("progress", "members", "training", "settings")}


def load_checkpoint(path: str | Path, population: Population) -> None:
    """Put a population where a checkpoint left it; training then goes on as if nothing had happened.

    Args:
        path: what `save_checkpoint` wrote.
        population: made from the same models' shape, members, recipe and data; only `epochs` may differ, to go on for
            longer.

    Raises:
        CheckpointError: if it is of another population; with what differs.
    """
    tensors, about = read_checkpoint(path)
    if about["members"] != _members(population):
        raise CheckpointError(f"{path} belongs to other models: its seeds, weights or learning rates differ")
    was, now = about["training"], _training(population)
    changed = [f"{name} was {was.get(name)}, is {value}" for name, value in now.items() if value != was.get(name)]
    if changed:
        raise CheckpointError(f"{path} belongs to another training: {'; '.join(changed)}")
    expected = {name: tuple(tensor.shape) for name, tensor in population.tensors().items()}
    odd = [name for name, shape in expected.items() if name not in tensors or tuple(tensors[name].shape) != shape]
    if odd:
        raise CheckpointError(f"{path} belongs to models of another shape: {odd[0]} differs")
    population.load_tensors(tensors)
    progress = Progress(**about["progress"])
    progress.failures = [Failure(**failure) for failure in about["progress"]["failures"]]
    population.progress = progress


def save_weights(path: str | Path, weights: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    """Write one model's weights as safetensors, atomically."""
    from safetensors.torch import save_file

    with write_atomically(path) as draft:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, draft, metadata=about)


def require_room(folder: str | Path, population: Population) -> None:
    """Refuse a folder that cannot be written or that has no room for checkpoints: before training, not after.

    Raises:
        OSError: with what is wrong and what to do.
    """
    folder = Path(folder)
    # Two checkpoints lie side by side while one is replaced; the models' weights come on top at the end. Early stopping
    # keeps the best state beside the current one.
    held = 1 if population.recipe.patience is None else 2
    needed = (2 * held + 1) * sum(t.numel() * t.element_size() for t in population.tensors().values()) + (1 << 20)
    require_writable(folder)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"checkpoints need {needed >> 20} MiB, {free >> 20} MiB are free: not trained", str(folder)
        )  # fmt: skip


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


def _members(population: Population) -> list[dict[str, Any]]:
    return [member_summary(member) for member in population.members]


def _training(population: Population) -> dict[str, str]:
    """All that decides what the next step will be, but for models and members."""
    recipe = {f.name: _words(getattr(population.recipe, f.name)) for f in fields(population.recipe)}
    del recipe["epochs"]  # how long it is to go on does not change how it does
    recipe["steps_per_epoch"] = str(population.steps_per_epoch)
    constants = population.groups[0].constants
    return {**recipe, "data": _fingerprint([constants.x, constants.y, *constants.weights])}


def _words(value: Any) -> str:
    """`repr`, but for what has none of its own: that holds an address, which differs from run to run."""
    if inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    words = repr(value)
    if " object at 0x" not in words:
        return words
    held = ", ".join(f"{name}={_words(part)}" for name, part in sorted(vars(value).items()))
    return f"{type(value).__qualname__}({held})"


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


def _sync_folder(folder: Path) -> None:
    """Make a rename outlive a power cut; not every system lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
