"""Parts of a data set: balanced subsets, published index files, stratified splits."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from pstn._checks import require_positive_int
from pstn.data.errors import DataError
from pstn.data.files import read_npy

__all__ = ["balanced_indices", "read_indices", "stratified_indices"]


def balanced_indices(y: Tensor, k: int, *, fold: int = 0, seed: int = 0) -> Tensor:
    """The positions of `k` examples with the classes as even as they can be.

    The rule: every class gets k // K examples, and the k % K left over go one each to classes drawn at random. Where a
    class has fewer than its share, it gives all it has and the others share the rest evenly. Within a class the
    examples are drawn at random without repetition. Folds and seeds are independent draws.

    Args:
        y: (N,) classes 0..K-1.
        k: how many, 1..N.
        fold: which subset of this size.
        seed: which family of folds.

    Returns:
        (k,) int64, ascending, on the CPU.

    Example:
        >>> y = torch.arange(10).repeat(100)
        >>> torch.bincount(y[balanced_indices(y, 30)])
        tensor([3, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    k = require_positive_int("k", k)
    y = y.cpu()
    if k > len(y):
        raise ValueError(f"k must be at most the number of examples, {len(y)}, got {k}")
    generator = _fold_generator(seed, fold)
    members = [torch.nonzero(y == c).flatten() for c in range(int(y.max()) + 1)]
    shares = _even_shares([len(m) for m in members], k, generator)
    drawn = [m[torch.randperm(len(m), generator=generator)[:n]] for m, n in zip(members, shares, strict=True)]
    return torch.cat(drawn).sort().values


def _even_shares(available: list[int], k: int, generator: torch.Generator) -> list[int]:
    """How many to take of each class: the level to which water rises when k units are poured into vessels."""
    order = torch.randperm(len(available), generator=generator).tolist()
    shares = [0] * len(available)
    left = k
    while left:
        open_classes = [c for c in order if shares[c] < available[c]]
        each = left // len(open_classes)
        if each == 0:
            for c in open_classes[:left]:
                shares[c] += 1
            break
        for c in open_classes:
            more = min(each, available[c] - shares[c])
            shares[c] += more
            left -= more
    return shares


def stratified_indices(y: Tensor, fraction: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Divide positions in two, class by class: (the larger part, `fraction` of each class).

    The second part has `fraction` of all examples, rounded; classes share it in proportion, by largest remainders, and
    at least one example of every class stays in the first part.

    Args:
        y: (N,) classes.
        fraction: of each class for the second part, 0 up to but not including 1.
        seed: of the draw.

    Returns:
        Two ascending index tensors on the CPU; the second is empty where `fraction` is 0.

    Example:
        >>> first, second = stratified_indices(torch.tensor([0] * 8 + [1] * 4), 0.25)
        >>> len(first), len(second)
        (9, 3)
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and below 1, got {fraction}")
    y = y.cpu()
    generator = torch.Generator().manual_seed(seed)
    classes, sizes = torch.unique(y, return_counts=True)
    held_out = _proportional_shares(sizes.tolist(), fraction)
    first, second = [], []
    for c, share in zip(classes, held_out, strict=True):
        members = torch.nonzero(y == c).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first.append(members[share:])
        second.append(members[:share])
    return torch.cat(first).sort().values, torch.cat(second).sort().values


def _proportional_shares(sizes: list[int], fraction: float) -> list[int]:
    """How many of each class make up `fraction` of all, with none taken whole."""
    exact = [size * fraction for size in sizes]
    shares = [min(int(e), size - 1) for e, size in zip(exact, sizes, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda c: shares[c] - exact[c])
    for c in by_remainder[: max(0, int(sum(exact) + 0.5) - sum(shares))]:
        shares[c] = min(shares[c] + 1, sizes[c] - 1)
    return shares


def read_indices(path: str | os.PathLike[str], *, size: int) -> Tensor:
    """Positions of training examples from a .npy file that somebody published.

    Args:
        path: the file: whole numbers of shape (k,).
        size: how many training examples there are; every position must be below it.

    Returns:
        (k,) int64, in the file's order.

    Raises:
        DataError: the file is not such an array, or a position is out of range or occurs twice.

    Example:
        >>> import numpy, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "fold0.npy"
        >>> numpy.save(path, [17, 42, 51023])
        >>> read_indices(path, size=60_000)
        tensor([   17,    42, 51023])
    """
    path = Path(path)
    array = read_npy(path)
    if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) == 0:
        raise DataError(path, f"must hold whole numbers of shape (k,), got {array.dtype} of shape {array.shape}")
    outside = (array < 0) | (array >= size)
    if outside.any():
        at = int(outside.argmax())
        raise DataError(path, f"{array[at]} is not among the {size:,} training examples", place=f"entry {at}")
    indices = torch.from_numpy(array.astype("int64"))
    values, counts = indices.unique(return_counts=True)
    if int(counts.max()) > 1:
        twice = int(values[counts.argmax()])
        at = int(torch.nonzero(indices == twice)[1])
        raise DataError(path, f"{twice} occurs more than once", place=f"entry {at}")
    return indices


def _fold_generator(seed: int, fold: int) -> torch.Generator:
    """A generator of its own for each (seed, fold): the fold-th number that the seed draws."""
    if isinstance(fold, bool) or not isinstance(fold, int) or fold < 0:
        raise ValueError(f"fold must be a whole number of at least 0, got {fold!r}")
    start = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (fold + 1,), generator=start)
    return torch.Generator().manual_seed(int(seeds[fold]))
