"""Choices that a population makes before it trains, and what it refuses."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pstn.nn.classifier import TransformerModel
from pstn.threads import count_multiplications
from pstn.training.population.convolution import ConvKind
from pstn.training.population.recipe import Member, Recipe

__all__ = [
    "check_population",
    "check_precision",
    "check_validation",
    "choose_compile",
    "choose_conv",
    "choose_groups",
    "count_cores",
    "count_steps",
    "count_work",
    "make_device",
]


# On CUDA, multiplications in one model's forward pass over a batch, from which on the model fills the device by itself.
# Measured on an H200 (benchmarks/training.py): a stack of 5 is the faster at 4e6, 5 streams at 6e8 and beyond.
_FILLS_DEVICE = 100_000_000
# From here on convolutions of few channels are worth cutting into blocks for tensor cores. Measured on an H200 in TF32,
# in ms a step with and without: the paper's P-STN for rotated MNIST (6e8) 0.50 and 0.57, for images on a canvas of 96
# by 96 pixels (1.8e9) 0.83 and 1.13.
_WORTH_CUTTING = 500_000_000
# Compiling takes about 15 s, once for all stacks of one size, and saves a third of each step of a stack, which is near
# 1 ms or below.
_WORTH_COMPILING = 40_000

# Batch normalisation takes squares, which are infinite in float32 from 2e19 on: this leaves layers room to multiply.
_LARGEST = 1e15


def choose_groups(models: int, device: torch.device, work: int, recipe: Recipe) -> int:
    """Into how many stacks to split a population.

    Args:
        models: how many there are.
        device: where they train.
        work: multiplications in one model's forward pass over a batch.
        recipe: says in which precision.
    """
    if device.type == "cuda":
        return models if work >= _FILLS_DEVICE else 1
    if recipe.precision == "bf16":  # on a CPU what stacks are computed with has no autocast
        return models
    return min(models, count_cores())


def count_cores() -> int:
    """Cores that this process may use: on a cluster, not all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_conv(stacked: int, device: torch.device, work: int, recipe: Recipe) -> ConvKind:
    """How a stack computes its convolutions.

    Args:
        stacked: models in the stack.
        device: where they train.
        work: multiplications in one model's forward pass over a batch.
        recipe: says in which precision.
    """
    if stacked > 1:
        return "matmul" if device.type == "cuda" else "rows"
    cuts = device.type == "cuda" and recipe.precision == "tf32" and work >= _WORTH_CUTTING
    return "blocks" if cuts else "library"


def choose_compile(steps: int, device: torch.device) -> bool:
    """Whether to compile the step of a run this long: so many steps, of all stacks together."""
    if device.type != "cuda" or steps < _WORTH_COMPILING:
        return False
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def count_work(model: nn.Module, x: Tensor, recipe: Recipe) -> int:
    """Multiplications in a forward pass over a batch of training.

    Args:
        model: on the CPU; its mode is left as it is.
        x: (1, C, *size), one example as the model is given it, on the CPU.
        recipe: says how large a batch is, and how many samples are drawn.
    """
    options = {"samples": recipe.samples or model.train_samples} if isinstance(model, TransformerModel) else {}
    return count_multiplications(model, x, **options) * recipe.batch_size


def check_population(
    models: Sequence[nn.Module],
    members: Sequence[Member],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    *,
    floats: bool = False,
) -> None:
    """Refuse what cannot be trained together; `floats` says whether targets may be other than classes."""
    if not models:
        raise ValueError("models must hold at least one model, got none")
    if len(members) != len(models):
        raise ValueError(f"members must hold one entry for each of {len(models)} models, got {len(members)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be a floating-point tensor, got {x.dtype}: convert it first, e.g. x.float() / 255")
    classes = y.dtype == torch.int64 and y.shape == x.shape[:1]
    if not classes and not (floats and y.is_floating_point() and y.shape[:1] == x.shape[:1]):
        other = f", or floating-point targets ({len(x)}, ...)" if floats else " unless loss= is for other targets"
        raise ValueError(f"y must be classes, int64 of shape ({len(x)},){other}, got {y.dtype} of {tuple(y.shape)}")
    if not x.numel():
        raise ValueError(f"x must hold examples, got shape {tuple(x.shape)}")
    low, high = map(float, torch.aminmax(x))  # no copy of all data, and NaN where there is one
    largest = max(-low, high)
    if not math.isfinite(largest):
        raise ValueError("x must be finite: clean or mask missing values before training")
    if largest > _LARGEST:
        raise ValueError(
            f"x must lie within {_LARGEST:g}, got up to {largest:g}: if that stands for missing values, fill them in "
            "or leave such examples out; if not, scale the values"
        )
    if weights is not None:
        if weights.shape != y.shape[:1] or not weights.is_floating_point():
            raise ValueError(
                f"weights must be floats of shape ({len(x)},), got {weights.dtype} of {tuple(weights.shape)}"
            )
        if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
            raise ValueError("weights must be finite and at least 0")
    for number, member in enumerate(members):
        for name in ("train", "valid"):
            subset = getattr(member, name)
            if subset is not None and not 0 <= int(subset.min()) <= int(subset.max()) < len(x):
                raise ValueError(
                    f"{name} of member {number} must index {len(x)} examples, got up to {int(subset.max())}"
                )


def check_precision(recipe: Recipe, device: torch.device) -> None:
    """Refuse a precision that the device does not have."""
    if recipe.precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision must be 'float32' or 'bf16' on {device}, got 'tf32', which only CUDA devices have")


def check_validation(members: Sequence[Member], recipe: Recipe) -> None:
    """Refuse to validate without examples for it, before training rather than after the first epoch."""
    missing = [number for number, member in enumerate(members) if member.valid is None]
    if recipe.validates and missing:
        asked = "patience" if recipe.patience is not None else "validate_every"
        raise ValueError(f"{asked} needs examples to validate on: give valid, which member {missing[0]} has not")


def count_steps(members: Sequence[Member], examples: int, recipe: Recipe) -> int:
    """Steps in one epoch: what every subset allows."""
    batch = recipe.batch_size * recipe.accumulate
    sizes = [examples if m.train is None else len(m.train) for m in members]
    possible = [size // batch for size in sizes]
    if min(possible) < 1:
        fits, times = min(sizes) // recipe.accumulate, f" times accumulate {recipe.accumulate}"
        advice = f"batch_size={fits} (--batch-size {fits}) or less" if fits else "a smaller accumulate"
        raise ValueError(
            f"batch_size{times if recipe.accumulate > 1 else ''} must not exceed the examples of the smallest training "
            f"set, got {batch} for {min(sizes)}: give {advice}"
        )
    if recipe.steps_per_epoch is None:
        if len(set(possible)) > 1:
            raise ValueError(
                f"subsets give different numbers of steps per epoch, {sorted(set(possible))}: pass steps_per_epoch"
            )
        return possible[0]
    if recipe.steps_per_epoch > min(possible):
        raise ValueError(f"steps_per_epoch must be at most {min(possible)}, got {recipe.steps_per_epoch}")
    return recipe.steps_per_epoch


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
