"""A data set in memory: `Split`, labels, subsets, batches, arrays or a torch Dataset of your own, and their scale."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pstn._checks import plain, require_choice, require_finite, require_nonnegative_int, require_positive_int
from pstn.data.files import DataError, most_unpacked, open_zip, read_npy, read_zip_array
from pstn.limits import ARRAY_BYTES, CLASSES, EXAMPLES
from pstn.nn.metadata import standardise
from pstn.text import did_you_mean

__all__ = [
    "Split", "Splits", "balanced_indices", "batches", "divide", "from_arrays", "from_dataset", "from_npz",
    "read_indices", "stratified_indices",
]  # fmt: skip


def as_label(text: object) -> str:
    """A label as text, with numbers that are whole written without a fraction: "1.0" and "1.00e+00" are class "1".

    Text such as "01" or "1e2" is left alone, as it may be a name.

    Example:
        >>> [as_label(label) for label in ("-1", "1.0000000e+00", 2.0, " up ", "01", "1e2", b"cat")]
        ['-1', '1', '2', 'up', '01', '1e2', 'cat']
    """
    label = (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)).strip()
    if "." in label:
        try:
            number = float(label)
        except ValueError:
            return label
        if math.isfinite(number) and number == int(number):
            return str(int(number))
    return label


def name_classes(classes: Collection[str], most: int = 20) -> str:
    """The names of the classes for a message, the first of them where there are many.

    Example:
        >>> name_classes(["a", "b"]), name_classes(["a", "b", "c", "d"], most=2)
        ('a, b', 'a, b and 2 more')
    """
    more = f" and {len(classes) - most:,} more" if len(classes) > most else ""
    return ", ".join(name[:80] for name in islice(classes, most)) + more


def sort_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in order: by value where all are numbers, else by name.

    Example:
        >>> sort_classes(["10", "2", "-1", "2"])
        ('-1', '2', '10')
    """
    distinct = sorted(set(labels))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)


def encode_labels(
    labels: Sequence[str], classes: Sequence[str], error: Callable[[int, str], Exception] | None = None
) -> Tensor:
    """The position of each label among `classes`, (N,) int64.

    Args:
        labels: one for each example.
        classes: at most as many as a network's last layer can be wide.
        error: makes the exception for a label that is not among them, from its position and a message; a ValueError
            where None.

    Example:
        >>> encode_labels(["b", "a", "b"], ["a", "b"])
        tensor([1, 0, 1])
    """
    if len(classes) > CLASSES:
        raise ValueError(f"classes must be at most {CLASSES:,}, got {len(classes):,}")
    position = {name: i for i, name in enumerate(classes)}
    for i, label in enumerate(labels):
        if label not in position:
            meant = did_you_mean(label, classes)
            problem = f"unknown label {label!r}: the classes are {name_classes(classes)}{meant}"
            raise ValueError(problem) if error is None else error(i, problem)
    return torch.tensor([position[label] for label in labels], dtype=torch.long)


# A background is what at least this share of the border shows, give or take this part of the range of values.
_SHARE, _TOLERANCE = 0.5, 0.05
# A channel whose deviation is below this part of its largest value is constant, up to rounding.
_CONSTANT = 1e-10
NO_ARRAYS = "must hold x and y, or x_train and y_train"
_TENSORS = ("x", "y", "mask", "theta", "source")


@dataclass(frozen=True)
class Split:
    """Examples with their classes: images, series or volumes; stored, generated or decoded.

    Attributes:
        x: (N, C, *size), uint8 as stored or float32. `as_float` goes from the one to the other.
        y: (N,) int64, positions in `classes`.
        classes: the names of the classes, as the data set has them.
        name: what this is, for messages and plots.
        fill: the background's value in `x`, one number or one per channel: what `pstn.warp(..., fill=...)` needs.
            Black is 0 as stored and (0 - mean) / std after normalisation.
        mask: (N, *size) bool, True where `x` holds a real value; None where all of them are real.
        theta: (N, D), how each example was made, where that is known; see `pstn.data.Generated`.
        source: (N, C, *large), the same views at a higher resolution, where the warp should read from that.
        mean: what was subtracted from pixels in [0, 1], one number or one per channel; `as_float` keeps count.
        std: what they were then divided by.

    Example:
        >>> split = Split(torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 1, 0]), ("no", "yes"))
        >>> split.take(torch.tensor([1, 2])).y
        tensor([1, 1])
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str = ""
    fill: float | tuple[float, ...] = 0.0
    mask: Tensor | None = None
    theta: Tensor | None = None
    source: Tensor | None = None
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        if self.x.dim() < 3:
            raise ValueError(f"x must have shape (N, C, *size), got {tuple(self.x.shape)}")
        if self.y.dim() != 1 or self.y.is_floating_point():
            raise ValueError(f"y must be whole numbers of shape (N,), got {self.y.dtype} of {tuple(self.y.shape)}")
        for name in _TENSORS:
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != self.x.shape[0]:
                raise ValueError(f"{name} must have one entry per example, {self.x.shape[0]}, got {tensor.shape[0]}")

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One example and its class, as a DataLoader asks for them."""
        return self.x[index], self.y[index]

    def __repr__(self) -> str:
        shape = f"{tuple(self.x.shape[1:])} {str(self.x.dtype).removeprefix('torch.')}"
        return f"Split({self.name!r}: {len(self):,} examples of {shape}, {len(self.classes)} classes)"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.x.device

    @property
    def ndim(self) -> int:
        """How many spatial axes an example has: 1 for series, 2 for images."""
        return self.x.dim() - 2

    def counts(self) -> Tensor:
        """How many examples each class has, (K,)."""
        return torch.bincount(self.y, minlength=len(self.classes))

    def to(self, device: torch.device | str) -> Split:
        """The same examples on `device`. Call it once, before training."""
        return self._each(lambda tensor: tensor.to(device))

    def take(self, index: Tensor | Sequence[int] | slice) -> Split:
        """The examples at `index` (B,), on the device where the data is; a slice makes no copy."""
        at = index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)
        return self._each(lambda tensor: tensor[at])

    batch = take

    def as_float(self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> Split:
        """The examples as float32, (x - mean) / std, with whole-number pixels divided by 255 first.

        `fill` follows: it stays the value of the background. Do it once for small data; for large images do it per
        batch, on the device: `split.take(index).as_float(mean, std)`.

        Args:
            mean: one number or one per channel, in units of [0, 1] pixels.
            std: likewise, above 0.
        """
        channels = self.x.shape[1]
        means, stds = _per_channel("mean", mean, channels), _per_channel("std", std, channels)
        if min(stds) <= 0:
            raise ValueError(f"std must be above 0, got {std}")
        # The background goes through the same arithmetic as the pixels, so that it stays equal to them to the last bit.
        background = torch.tensor(_per_channel("fill", self.fill, channels)).view(1, -1, 1).to(self.x.dtype)
        fills = tuple(standardise(background, means, stds).flatten().tolist())
        before = zip(_per_channel("mean", self.mean, channels), _per_channel("std", self.std, channels), strict=True)
        both = [(m + s * new_mean, s * new) for (m, s), new_mean, new in zip(before, means, stds, strict=True)]
        shift, scale = zip(*both, strict=True)
        x, source = standardise(self.x, means, stds), self.source
        source = None if source is None else standardise(source, means, stds)
        fill, total_mean, total_std = map(_one_or_each, (fills, shift, scale))
        return dataclasses.replace(self, x=x, source=source, fill=fill, mean=total_mean, std=total_std)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Split:
        present = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in present.items()}
        return dataclasses.replace(self, **changed)


class Sized(Protocol):
    """What training needs of data: a length, classes, batches and subsets by index, and a way to the device."""

    def __len__(self) -> int:
        """How many examples there are."""

    @property
    def y(self) -> Tensor:
        """(N,) int64, positions among the classes."""

    def batch(self, index: Tensor | Sequence[int]) -> Split:
        """The examples at `index`."""

    def take(self, index: Tensor | Sequence[int]) -> Any:
        """The examples at `index` as a data set of the same kind."""

    def to(self, device: torch.device | str) -> Any:
        """The same on `device`."""


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class Splits(Generic[T]):
    """Training, validation and test examples of one data set; a part that does not exist is None.

    Example:
        >>> one = Split(torch.zeros(1, 1, 8), torch.tensor([0]), ("a",))
        >>> Splits(one, None, one).sizes()
        {'train': 1, 'validation': 0, 'test': 1}
    """

    train: T
    validation: T | None = None
    test: T | None = None

    def to(self, device: torch.device | str) -> Splits[T]:
        """All parts on `device`."""
        return Splits(*(None if part is None else part.to(device) for part in self))

    def __iter__(self) -> Iterator[T | None]:
        return iter((self.train, self.validation, self.test))

    def sizes(self) -> dict[str, int]:
        """How many examples each part has."""
        lengths = (0 if part is None else len(part) for part in self)
        return dict(zip(("train", "validation", "test"), lengths, strict=True))


def name_parts(name: str, train: Split, validation: Split | None = None, test: Split | None = None) -> Splits[Split]:
    """Splits whose parts are called after the data set and what they are for; a part without examples is None.

    Example:
        >>> one = Split(torch.zeros(1, 1, 8), torch.tensor([0]), ("a",))
        >>> name_parts("toy", one, one.take(slice(0))).train.name
        'toy train'
    """
    parts = {"train": train, "validation": validation, "test": test}
    named = {
        which: dataclasses.replace(part, name=f"{name} {which}".strip()) if part is not None and len(part) else None
        for which, part in parts.items()
    }
    return Splits(**named)  # type: ignore[arg-type]  # the training part has examples


def batches(
    data: Sized, batch_size: int, *, shuffle: bool = False, generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Split]:  # fmt: skip
    """Walk through `data` once, `batch_size` examples at a time; the last batch may be smaller.

    Args:
        data: a `Split` or `Generated`.
        batch_size: at least 1.
        shuffle: in a random order, drawn from `generator` or torch's global seed.
        generator: on the CPU, so that the order is the same on every device.
        device: where to put each batch; by default where the data is.

    Example:
        >>> split = Split(torch.zeros(5, 1, 8), torch.zeros(5, dtype=torch.long), ("a",))
        >>> [len(b) for b in batches(split, 2)]
        [2, 2, 1]
    """
    size = require_positive_int("batch_size", batch_size)
    order = torch.randperm(len(data), generator=generator) if shuffle else torch.arange(len(data))
    for index in order.split(size):
        batch = data.batch(index)
        yield batch if device is None else batch.to(device)


def _per_channel(name: str, value: float | Sequence[float], channels: int) -> tuple[float, ...]:
    value = plain(value)
    values = (float(value),) * channels if isinstance(value, (int, float)) else tuple(float(v) for v in value)
    if len(values) != channels:
        raise ValueError(f"{name} must be one number or one per channel ({channels}), got {len(values)}")
    return values


def _one_or_each(values: tuple[float, ...]) -> float | tuple[float, ...]:
    return values[0] if len(set(values)) == 1 else values


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
    require_nonnegative_int("fold", fold)
    # A generator of its own for each (seed, fold): the fold-th number that the seed draws.
    seeds = torch.randint(2**62, (fold + 1,), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(int(seeds[fold]))
    members = [torch.nonzero(y == c).flatten() for c in range(int(y.max()) + 1)]
    shares, left = [0] * len(members), k
    for c in cycle(torch.randperm(len(members), generator=generator).tolist()):
        if not left:
            break
        if shares[c] < len(members[c]):
            shares[c] += 1
            left -= 1
    drawn = [m[torch.randperm(len(m), generator=generator)[:n]] for m, n in zip(members, shares, strict=True)]
    return torch.cat(drawn).sort().values


def group_alike(x: Tensor, least: float = 0.98) -> Tensor:
    """Numbers (N,) that are equal for images (N, C, H, W) that look alike, or that others connect so.

    Two images look alike if their grey thumbnails of 16 x 16 correlate by more than `least`: copies of another size or
    compression do, and photos of a series in which little moves. Images of one colour look like no other.

    Example:
        >>> x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> group_alike(torch.cat([x, 0.5 * x[:1] + 0.2])).tolist()
        [0, 1, 0]
    """
    small = torch.nn.functional.interpolate(x.float().mean(1, keepdim=True), (16, 16), mode="area").flatten(1)
    small = torch.nn.functional.normalize(small - small.mean(1, keepdim=True), eps=1e-6)
    first, second = torch.cat(
        [(part @ small.T > least).nonzero() + torch.tensor([1000 * k, 0]) for k, part in enumerate(small.split(1000))]
    ).T
    found = torch.arange(len(x))
    while True:
        joined = found.scatter_reduce(0, first, found[second], "amin")
        if torch.equal(joined, found):
            return found
        found = joined


def stratified_indices(
    y: Tensor, fraction: float, *, seed: int = 0, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Divide positions in two, class by class: (the larger part, `fraction` of each class).

    The second part has `fraction` of all examples, rounded; classes share it in proportion, by largest remainders, and
    at least one example of every class stays in the first part.

    Args:
        y: (N,) classes.
        fraction: of each class for the second part, 0 up to but not including 1.
        seed: of the draw.
        groups: (N,), examples of a class that have the same number come into one part, which may then be smaller; but
            for classes that would have none in the second part.

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
        chosen = torch.arange(len(members)) < share
        if groups is not None and share:
            together, left = torch.zeros_like(chosen), share
            for number in dict.fromkeys(groups[members].tolist()):
                alike = groups[members] == number
                if int(alike.sum()) <= left:
                    together, left = together | alike, left - int(alike.sum())
            chosen = together if together.any() else chosen
        first.append(members[~chosen])
        second.append(members[chosen])
    return torch.cat(first).sort().values, torch.cat(second).sort().values


def _proportional_shares(sizes: list[int], fraction: float) -> list[int]:
    """How many of each class make up `fraction` of all, with none taken whole."""
    exact = [size * fraction for size in sizes]
    shares = [min(int(e), size - 1) for e, size in zip(exact, sizes, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda c: shares[c] - exact[c])
    for c in by_remainder[: max(0, int(sum(exact) + 0.5) - sum(shares))]:
        shares[c] = min(shares[c] + 1, sizes[c] - 1)
    return shares


def read_indices(path: str | os.PathLike[str], *, size: int, array: str | None = None) -> Tensor:
    """Positions of training examples from a published .npy file, or from one array of an .npz file.

    Args:
        path: the file: whole numbers of shape (k,).
        size: how many training examples there are; every position must be below it.
        array: the name of the array, of an .npz file.

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
    if array is None:
        held = read_npy(path)
    else:
        with open_zip(path, "an .npz file") as archive:
            held = read_zip_array(archive, array, path, limit=most_unpacked(path))
    if held.dtype.kind not in "iu" or held.ndim != 1 or len(held) == 0:
        raise DataError(path, f"must hold whole numbers of shape (k,), got {held.dtype} of shape {held.shape}")
    if ((held < 0) | (held >= size)).any() or len(np.unique(held)) < len(held):
        raise DataError(path, f"must hold different positions among the {size:,} training examples")
    return torch.from_numpy(held.astype("int64"))


def from_arrays(
    x: Any, y: Any, *, kind: Literal["image", "series"] | None = None, classes: Sequence[str] | None = None,
    name: str = "",
) -> Split:  # fmt: skip
    """Arrays as a `Split`: images (N, H, W) or (N, H, W, C), series (N, L) or (N, C, L).

    Args:
        x: numbers, as a numpy array, a tensor or nested lists. The pixels of images of 8 bits (uint8) are
            kept for `as_float` to divide by 255; everything else becomes float32.
        y: (N,) labels of any kind, none of them missing; they are mapped to 0..K-1 and kept as `classes`.
        kind: "image" or "series". It must be given for three axes, which could be either.
        classes: the classes in their order, each once; by value or name where None.
        name: what this is.

    Example:
        >>> split = from_arrays(np.zeros((3, 8, 8)), ["cat", "dog", "cat"], kind="image")
        >>> split.x.shape, split.y, split.classes
        (torch.Size([3, 1, 8, 8]), tensor([0, 1, 0]), ('cat', 'dog'))
    """
    require_choice("kind", kind, (None, "image", "series"))
    tensor = _to_tensor("x", x)
    shape = tuple(tensor.shape)
    if len(shape) == 3 and kind is None:
        problem = "may be images (N, H, W) or series (N, C, L): pass kind='image' or 'series' (--kind)"
        raise ValueError(f"x of shape {shape} {problem}")
    if len(shape) == (3 if kind == "image" else 2):
        tensor = tensor[:, None]
    elif len(shape) == 4 and kind != "series" and shape[-1] <= 4:
        tensor = tensor.movedim(-1, 1).contiguous()
    elif len(shape) != 3:
        accepted = "(N, L), (N, C, L), (N, H, W) or (N, H, W, C), channels last and up to 4 of them"
        raise ValueError(f"x must have shape {accepted}, got {shape} for kind={kind!r}")
    if tensor.dim() == 3:  # a series of bytes holds numbers, not pixels: those who predict from a table give the same
        tensor = tensor.float()
    if np.ndim(y) != 1 or len(y) != len(tensor) or not len(y):
        raise ValueError(f"y must hold one label per example, {len(tensor)}, got shape {np.shape(y)}")
    # A list is read as it is: numpy would make text of the gaps in a list of names.
    labels = [_plain_label(f"example {i}", v) for i, v in enumerate(y.tolist() if hasattr(y, "tolist") else y)]
    return Split(tensor, *_encoded(labels, classes), name)


def _to_tensor(name: str, x: Any) -> Tensor:
    """Finite real numbers as a tensor on the CPU: uint8 as it is, everything else as float32."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind not in "iuf":
            raise TypeError(f"{name} must hold numbers, got {array.dtype}")
        x = np.require(array, np.uint8 if array.dtype == np.uint8 else np.float32, ("C", "W"))
    tensor = torch.as_tensor(x).detach().cpu()
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    tensor = tensor if tensor.dtype == torch.uint8 else tensor.float()
    require_finite(name, tensor, "leave such examples out, or fill their gaps in first")
    return tensor


def _plain_label(place: str, label: Any) -> Any:
    """A label as a plain Python value; an error where it is missing."""
    if isinstance(label, (Tensor, np.ndarray, np.generic)):
        if math.prod(label.shape) != 1:
            raise ValueError(f"the label of {place} must be one value, got shape {tuple(label.shape)}")
        label = label.item()
    # By how it prints, as each library has a missing value of its own. Text that reads so may be a name.
    if not isinstance(label, (str, bytes)) and str(label) in ("None", "nan", "NaN", "NaT", "<NA>"):
        raise ValueError(f"{place} has no label, got {label!r}: leave it out, or give it a class of its own")
    return label


def _encoded(labels: Sequence[Any], classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as positions in the classes, and the classes: those given, or else those that occur."""
    texts = [as_label(label) for label in labels]
    chosen = sort_classes(texts) if classes is None else tuple(as_label(c) for c in classes)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"classes must be different names, got {name_classes(chosen)}")
    return encode_labels(texts, chosen), chosen


def from_dataset(dataset: Any, *, classes: Sequence[str] | None = None, name: str = "") -> Split:
    """Everything in a torch Dataset, as tensors.

    Args:
        dataset: anything with a length whose items are (x, y): x a tensor (C, *size), an array (H, W[, C]) or a
            Pillow image; y a label of any kind, or an array of one.
        classes: the order of the classes; else the dataset's own `classes` where y are positions in it, else by value.
        name: what this is.

    Example:
        >>> items = torch.utils.data.TensorDataset(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))
        >>> from_dataset(items).x.shape
        torch.Size([4, 1, 8, 8])
    """
    xs: list[Tensor] = []
    labels: list[Any] = []
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise TypeError(f"items of dataset must be (x, y), got {type(item).__name__} at {i}")
        x = _to_tensor(f"x of item {i}", item[0])
        if not isinstance(item[0], Tensor):
            x = (x[..., None] if x.dim() == 2 else x).movedim(-1, 0).contiguous()
        if x.dim() < 2 or (xs and (x.shape, x.dtype) != (xs[0].shape, xs[0].dtype)):
            problem = "must have shape (C, *size), or (H, W[, C]) for an array or an image, and be like the others"
            raise ValueError(f"x of item {i} {problem}, got {tuple(x.shape)} of {x.dtype}")
        xs.append(x)
        labels.append(_plain_label(f"item {i}", item[1]))
    if not xs:
        raise ValueError("dataset must not be empty")
    own = getattr(dataset, "classes", None)
    if classes is None and own is not None and all(isinstance(v, int) and 0 <= v < len(own) for v in labels):
        return Split(torch.stack(xs), torch.tensor(labels, dtype=torch.long), tuple(map(str, own)), name)
    return Split(torch.stack(xs), *_encoded(labels, classes), name)


def from_npz(path: str | os.PathLike[str], *, kind: Literal["image", "series"] | None = None) -> Splits[Split]:
    """Arrays from an .npz file: x and y, or x_train and y_train, with x_test, y_test, x_validation, ... if there.

    Nothing is unpickled, no array may be larger than the file says, and other arrays in the file are not read.

    Args:
        path: the file.
        kind: "image" or "series", as for `from_arrays`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, x=np.zeros((4, 24)), y=["a", "b", "a", "b"])
        >>> from_npz(path).train.x.shape
        torch.Size([4, 1, 24])
    """
    path = Path(path)
    arrays: dict[str, Any] = {}
    with open_zip(path, "an .npz file") as archive:
        members = archive.namelist()
        if {"x.npy", "x_train.npy"} <= set(members):
            raise DataError(path, "holds x and x_train: leave one of them out")
        train = "" if "x.npy" in members else "_train"
        endings = {"train": train, "validation": "_validation", "test": "_test"}
        wanted = (f"{letter}{ending}" for ending in endings.values() for letter in "xy")
        found = [name for name in wanted if f"{name}.npy" in members]
        limit = min(ARRAY_BYTES, most_unpacked(path))
        if (declared := sum(archive.getinfo(f"{name}.npy").file_size for name in found)) > limit:
            raise DataError(path, f"declares arrays of {declared:,} bytes in all, above the limit of {limit:,}")
        for name in found:
            if members.count(f"{name}.npy") > 1:
                raise DataError(path, "occurs twice", place=name)
            arrays[name] = read_zip_array(archive, name, path, limit=limit)
            if arrays[name].ndim and len(arrays[name]) > EXAMPLES:
                raise DataError(path, f"holds more than {EXAMPLES:,} examples, which is the limit", place=name)
    if f"x{train}" not in arrays:
        held = name_classes(sorted(member.removesuffix(".npy") for member in members), most=8) or "nothing"
        raise DataError(path, f"{NO_ARRAYS}; it holds {held}")
    parts: dict[str, Split] = {}
    for part, ending in endings.items():
        if f"x{ending}" in arrays:
            classes = parts["train"].classes if parts else None
            try:
                parts[part] = from_arrays(arrays[f"x{ending}"], arrays.get(f"y{ending}"), kind=kind, classes=classes)
            except (ValueError, TypeError) as error:
                raise DataError(path, str(error), place=f"x{ending}, y{ending}") from error
    return Splits(**parts)


def divide(split: Split, *, test: float, validation: float = 0.0, seed: int = 0) -> Splits[Split]:
    """Divide examples into training, validation and test parts, class by class.

    Images of a class that look alike (`group_alike`) come into one part.

    Args:
        split: the examples.
        test: the share of each class to test on.
        validation: the share of each class to validate on.
        seed: of the draw.

    Example:
        >>> split = from_arrays(np.zeros((100, 24)), np.arange(100) % 4)
        >>> divide(split, test=0.2, validation=0.2).sizes()
        {'train': 60, 'validation': 20, 'test': 20}
    """
    if not 0 <= test + validation < 1:
        raise ValueError(f"test + validation must be at least 0 and below 1, got {test} + {validation}")
    groups = torch.arange(len(split))
    for c in split.y.unique() if split.ndim == 2 and test + validation else ():
        members = torch.nonzero(split.y == c).flatten()
        groups[members] = members[group_alike(split.x[members])]
    rest, tested = stratified_indices(split.y, test, seed=seed, groups=groups)
    share = validation / (1 - test)
    inner, validated = stratified_indices(split.y[rest], share, seed=seed + 1, groups=groups[rest])
    return name_parts(split.name, *(split.take(index) for index in (rest[inner], rest[validated], tested)))


@dataclass(frozen=True)
class Scaling:
    """A mean and a deviation per channel, and what lies outside the input.

    Args:
        mean: one number per channel, in the units of the data.
        std: the same, above 0.
        fill: what lies outside, one number per channel in the units of the data; None repeats the border.

    Example:
        >>> x = np.arange(12.0).reshape(2, 1, 6)
        >>> scaling = fit_scaling(x)
        >>> scaling.mean, scaling.fill
        ((5.5,), None)
        >>> bool(np.allclose(scaling.restore(scaling.apply(x), ndim=1), x, atol=1e-5))
        True
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: tuple[float, ...] | None

    def apply(self, x: NDArray[Any]) -> Tensor:
        """(N, C, *size) in the data's units -> float32 around 0."""
        wide = x if x.dtype == np.float32 else x.astype(np.float64)  # a float64 may lose all it has to say in 32 bits
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (np.reshape(values, shape).astype(wide.dtype) for values in (self.mean, self.std))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = ((wide - mean) / std).astype(np.float32)
        if not np.isfinite(scaled).all():
            raise ValueError("X has values too large to work with: they overflow once mean and deviation are taken out")
        return torch.from_numpy(np.ascontiguousarray(scaled))

    def restore(self, x: Tensor, ndim: int) -> NDArray[Any]:
        """Back to the data's units: (..., C, *size) with `ndim` spatial axes, float32."""
        mean, std = (np.reshape(values, (-1, *[1] * ndim)) for values in (self.mean, self.std))
        restored: NDArray[Any] = (x.cpu().numpy() * std + mean).astype(np.float32)
        return restored

    @property
    def scaled_fill(self) -> tuple[float, ...] | None:
        """The fill as the network sees it: after standardisation black is not 0."""
        if self.fill is None:
            return None
        return tuple((f - m) / s for f, m, s in zip(self.fill, self.mean, self.std, strict=True))


def fit_scaling(x: NDArray[Any], fill: str | float | Sequence[float] = "auto") -> Scaling:
    """Learn the scaling from training data.

    Args:
        x: (N, C, *size).
        fill: what lies outside an input, in the data's units: one number or one per channel; "border" repeats the
            nearest value; "auto" is the background of images that have one, a value that half of their border pixels
            show, and "border" otherwise.
    """
    axes = (0, *range(2, x.ndim))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
        usable = np.isfinite(mean + std).all()
    if not usable:
        raise ValueError("X has values too large to work with: their mean or deviation overflows")
    largest = np.maximum(np.abs(x.max(axes).astype(np.float64)), np.abs(x.min(axes).astype(np.float64)))
    std = np.where(std > _CONSTANT * largest, std, 1.0)
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()), _choose_fill(x, fill))


def _choose_fill(x: NDArray[Any], fill: Any) -> tuple[float, ...] | None:
    if isinstance(fill, str) and fill in ("auto", "border"):
        return _background(x) if fill == "auto" and x.ndim == 4 else None
    try:
        values = np.broadcast_to(np.asarray(fill, dtype=np.float64), (x.shape[1],))
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not np.isfinite(values).all():
        raise ValueError(f"fill must be 'auto', 'border', or one finite number or {x.shape[1]}, got {fill!r}")
    return tuple(values.tolist())


def _background(x: NDArray[Any]) -> tuple[float, ...] | None:
    """The value per channel that most of the border shows, or None if there is none."""
    edges = (x[..., 0, :], x[..., -1, :], x[..., 1:-1, 0], x[..., 1:-1, -1])
    border = np.concatenate(edges, axis=-1).astype(np.float64)  # (N, C, pixels)
    value = np.median(border, axis=(0, 2))
    spread = x.max((0, 2, 3)).astype(np.float64) - x.min((0, 2, 3)).astype(np.float64)
    near = np.abs(border - value[:, None]) <= _TOLERANCE * spread[:, None]
    return tuple(value.tolist()) if near.mean() >= _SHARE else None
