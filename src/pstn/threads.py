"""How many threads torch should use on a CPU: for small networks their overhead exceeds their gain."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# From this many multiplications in a forward pass over a batch, the number of threads is left unchanged. Under other
# load, every thread waits for the one that is not scheduled, and small steps wait the longest. Measured on two quiet
# cores, in ms per training step with one thread and with two: the paper's MNIST P-STN in batches of 8 (6e6), 3.2 and
# 2.8; of 64 (5e7), 14 and 9.5; the P-STN of examples/series.py in batches of 16 (3.7e7), 5.4 and 4.7. On cores in use
# by others two threads took about 25 times as long as one for both of the small batches.
_WORTH_THREADS = 40_000_000

# A cache by model: the shape of an example, whether it trains, and the multiplications that it takes.
_COUNTED: WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], int]] = WeakKeyDictionary()


def choose_threads(work: int) -> int | None:
    """How many threads to use in this process on the CPU; None for as many as torch has.

    Args:
        work: multiplications in a forward pass over a batch.

    A number that the user has set in the environment is not overridden.
    """
    asked = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    return 1 if work < _WORTH_THREADS and not asked else None


def count_multiplications(model: nn.Module, x: Tensor, **options: Any) -> int:
    """Multiplications of inputs with the weights of layers in a forward pass over one example.

    The model and torch's random state stay as they are. A counter of torch's, which sees all operators, takes a second
    to import.

    Args:
        model: on the CPU.
        x: (1, C, *size).
        **options: of the model's forward pass.
    """
    found, other = 0, copy.deepcopy(model).eval()

    def count(layer: nn.Module, given: Any, output: Any) -> None:
        nonlocal found
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor):
            spread = getattr(layer, "transposed", False)  # one number of the input to many of the output
            found += (given[0] if spread and given else output).numel() * weight[0].numel()

    for layer in other.modules():
        layer.register_forward_hook(count)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        other(x, **options)
    return found


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Use this many threads of torch in the block, and restore the number afterwards; None leaves it unchanged."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def suit_threads(model: nn.Module, x: Tensor) -> None:
    """Set torch's threads for a model that reads batches like `x`, within `using_threads(None)`, which restores them.

    Args:
        model: any module; if its work cannot be counted, the number of threads is left unchanged.
        x: (B, C, *size).
    """
    if x.device.type != "cpu" or torch.get_num_threads() == 1:
        return
    asked = (model.training, *x.shape[1:])
    if _COUNTED.get(model, (None, 0))[0] != asked:
        # Counted in evaluation, where a model draws other samples than in training, unless it is told how many.
        drawn = getattr(model, "train_samples", None) if model.training else None
        options = {} if drawn is None else {"samples": drawn}
        try:
            _COUNTED[model] = (asked, count_multiplications(model, x[:1], **options))
        except Exception:  # a model that takes no single example, or cannot be copied
            return
    if (count := choose_threads(_COUNTED[model][1] * len(x))) is not None:
        torch.set_num_threads(count)
