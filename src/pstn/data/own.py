"""Data of your own: a folder of images per class, arrays, a torch Dataset."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pstn._checks import require_choice, require_finite, require_positive_int
from pstn.data.archives import open_zip, read_zip_member
from pstn.data.errors import DataError
from pstn.data.files import most_unpacked, parse_npy
from pstn.data.images import (
    IMAGE_SUFFIXES,
    each_in_parallel,
    is_grey,
    open_image,
    read_image,
    upright_size,
)
from pstn.data.labels import as_label, encode_labels, name_classes, require_classes, sort_classes
from pstn.data.listing import Listing, list_folder
from pstn.data.split import Split, Splits
from pstn.data.subsets import stratified_indices
from pstn.limits import ARRAY_BYTES, EXAMPLES

__all__ = ["divide", "from_arrays", "from_dataset", "from_folder", "from_npz"]

_NO_LABEL = ("None", "nan", "NaN", "NaT", "<NA>")
_GAPS = "leave such examples out, or fill their gaps in first"
_PARTS = {"train": ("train", "training"), "validation": ("val", "valid", "validation"), "test": ("test", "testing")}


def from_arrays(
    x: Any,
    y: Any,
    *,
    kind: Literal["image", "series"] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "",
) -> Split:
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
    tensor = _as_tensor(x)
    if kind is not None:
        require_choice("kind", kind, ("image", "series"))
    tensor = _with_channels(tensor, kind)
    if tensor.dim() == 3:  # a series of bytes holds numbers, not pixels: those who predict from a table give the same
        tensor = tensor.float()
    if np.ndim(y) != 1 or len(y) != len(tensor) or not len(y):
        raise ValueError(f"y must hold one label per example, {len(tensor)}, got shape {np.shape(y)}")
    # A list is read as it is: numpy would make text of the gaps in a list of names.
    labels = [_plain_label(f"example {i}", v) for i, v in enumerate(y.tolist() if hasattr(y, "tolist") else y)]
    return Split(tensor, *_encoded(labels, classes), name)


def _plain_label(place: str, label: Any) -> Any:
    """A label as a value of Python's; refused where there is none."""
    if isinstance(label, (Tensor, np.ndarray, np.generic)):
        if math.prod(label.shape) != 1:
            raise ValueError(f"the label of {place} must be one value, got shape {tuple(label.shape)}")
        label = label.item()
    # By how it prints, as each library has a missing value of its own. Text that reads so may be a name.
    if not isinstance(label, (str, bytes)) and str(label) in _NO_LABEL:
        raise ValueError(f"{place} has no label, got {label!r}: leave it out, or give it a class of its own")
    return label


def _encoded(labels: Sequence[Any], classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """The labels as positions in the classes, and the classes: those given, or else those that occur."""
    texts = [as_label(label) for label in labels]
    chosen = sort_classes(texts) if classes is None else tuple(as_label(c) for c in classes)
    twice = next((c for c, times in Counter(chosen).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"classes must be different names, got {twice!r} twice: give each of them once")
    unknown = sorted(set(texts) - set(chosen))
    if unknown:
        raise ValueError(f"unknown label {unknown[0]!r}: classes are {name_classes(chosen)}")
    return encode_labels(texts, chosen), chosen


def _as_tensor(x: Any) -> Tensor:
    tensor = x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(_numeric(x)))
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"x must hold real numbers, got {tensor.dtype}")
    tensor = tensor.float()
    require_finite("x", tensor, _GAPS)
    return tensor


def _numeric(x: Any) -> Any:
    array = np.asarray(x)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"x must hold numbers, got {array.dtype}")
    # torch has no unsigned types beyond uint8 to speak of, and no extended floats.
    return array if array.dtype == np.uint8 else array.astype(np.float32)


def _with_channels(tensor: Tensor, kind: str | None) -> Tensor:
    shape = tuple(tensor.shape)
    if tensor.dim() == 2 and kind in (None, "series"):
        return tensor[:, None]
    if tensor.dim() == 3 and kind is not None:
        return tensor[:, None] if kind == "image" else tensor
    if tensor.dim() == 4 and kind in (None, "image"):
        if shape[-1] > 4:
            raise ValueError(f"images must have their channels last, (N, H, W, C) with C up to 4, got {shape}")
        return tensor.movedim(-1, 1).contiguous()
    if tensor.dim() == 3:
        raise ValueError(
            f"x of shape {shape} may be images (N, H, W) or series (N, C, L): pass kind='image' or 'series' (--kind)"
        )
    raise ValueError(f"x must have shape (N, L), (N, C, L), (N, H, W) or (N, H, W, C), got {shape} for kind={kind!r}")


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
    count = len(dataset)
    if count == 0:
        raise ValueError("dataset must not be empty")
    xs, labels = [], []
    for i in range(count):
        item = dataset[i]
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise TypeError(f"items of dataset must be (x, y), got {type(item).__name__} at {i}")
        xs.append(_item_tensor(item[0], i))
        labels.append(_plain_label(f"item {i}", item[1]))
        if xs[i].shape != xs[0].shape or xs[i].dtype != xs[0].dtype:
            raise ValueError(
                f"items of dataset must have one shape, got {tuple(xs[0].shape)} and {tuple(xs[i].shape)} at {i}"
            )
    own = getattr(dataset, "classes", None)
    if classes is None and own is not None and all(isinstance(v, int) and 0 <= v < len(own) for v in labels):
        return Split(torch.stack(xs), torch.tensor(labels, dtype=torch.long), tuple(map(str, own)), name)
    return Split(torch.stack(xs), *_encoded(labels, classes), name)


def _item_tensor(x: Any, position: int) -> Tensor:
    name = f"x of item {position}"
    if isinstance(x, Tensor):
        if x.dim() < 2:
            raise ValueError(f"{name} must have shape (C, *size), got {tuple(x.shape)}")
        tensor = x if x.dtype == torch.uint8 else x.float()
    else:
        array = np.asarray(x)
        if array.dtype.kind not in "iuf" or array.ndim not in (2, 3):
            raise TypeError(f"{name} must be a tensor, an array (H, W[, C]) or an image, got {type(x).__name__}")
        array = array if array.dtype == np.uint8 else array.astype(np.float32)
        array = array.copy() if array.ndim == 3 else array[..., None].copy()
        tensor = torch.from_numpy(array).movedim(-1, 0).contiguous()
    require_finite(name, tensor, _GAPS)
    return tensor


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
    arrays = _read_arrays(path)
    if "x" in arrays and "x_train" in arrays:
        raise DataError(path, "holds x and x_train: which of them to train on? Leave one out")
    names = {part: f"_{part}" for part in _PARTS}
    if "x" in arrays:
        names["train"] = ""
    parts: dict[str, Split] = {}
    for part, ending in names.items():
        if f"x{ending}" not in arrays:
            continue
        if f"y{ending}" not in arrays:
            raise DataError(path, f"holds x{ending} without y{ending}")
        classes = parts["train"].classes if "train" in parts else None
        try:
            parts[part] = from_arrays(arrays[f"x{ending}"], arrays[f"y{ending}"], kind=kind, classes=classes)
        except (ValueError, TypeError) as error:
            raise DataError(path, str(error), place=f"x{ending}, y{ending}") from error
    if "train" not in parts:
        raise DataError(path, f"must hold x and y, or x_train and y_train; it holds {', '.join(arrays) or 'nothing'}")
    return Splits(parts["train"], parts.get("validation"), parts.get("test"))


def _read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file that `from_npz` uses, by name."""
    wanted = [f"{letter}{ending}" for ending in ("", *(f"_{part}" for part in _PARTS)) for letter in "xy"]
    with open_zip(path, "an .npz file") as archive:
        counts = Counter(archive.namelist())
        found = [name for name in wanted if f"{name}.npy" in counts]
        for name in found:
            if counts[f"{name}.npy"] > 1:
                raise DataError(path, "occurs twice", place=f"{name}.npy")
        if not found:
            held = name_classes(sorted(name.removesuffix(".npy") for name in counts), most=8) or "nothing"
            raise DataError(path, f"must hold x and y, or x_train and y_train; it holds {held}")
        limit = min(ARRAY_BYTES, most_unpacked(path))
        if (promised := sum(archive.getinfo(f"{name}.npy").file_size for name in found)) > limit:
            raise DataError(path, f"promises arrays of {promised:,} bytes in all, above the limit of {limit:,}")
        arrays = {}
        for name in found:
            content = read_zip_member(archive, f"{name}.npy", path, limit=limit)
            arrays[name] = parse_npy(content, path, f"{name}.npy")
            if arrays[name].ndim and len(arrays[name]) > EXAMPLES:
                raise DataError(path, f"holds more than {EXAMPLES:,} examples, which is the limit", place=f"{name}.npy")
    return arrays


def from_folder(
    root: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    channels: Literal[1, 3] | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
) -> Splits[Split]:
    """A folder of images per class: root/cat/1.png, or root/train/cat/1.png with val/ and test/ beside it.

    Args:
        root: the folder.
        size: resize every image to this side, or to (height, width); without it all must be of one size.
        channels: 1 for grey, 3 for colour; colour where any image has it, if None.
        test: the share of each class to test on, where the folder is not divided already.
        validation: likewise for validation.
        seed: of that division.
        workers: decoding threads.

    Returns:
        Images (N, C, H, W) as uint8; `as_float` makes numbers of them.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     Image.new("RGB", (32, 24)).save(root / name / "1.png")
        >>> splits = from_folder(root, test=0.0)
        >>> splits.train.x.shape, splits.train.classes
        (torch.Size([2, 3, 24, 32]), ('cat', 'dog'))
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(root, "there is no such folder")
    target = (require_positive_int("size", size),) * 2 if isinstance(size, int) else size
    with list_folder(root) as listing:
        found = listing.folders(root)
        inside = {folder.name.lower(): folder for folder in found}
        folders = {part: next((inside[n] for n in names if n in inside), None) for part, names in _PARTS.items()}
        if folders["train"] is None or _is_class(folders["train"]):
            everything = _read_folder(listing, root, found, None, target, channels, workers)
            return divide(everything, test=test, validation=validation, seed=seed)

        def read(part: Path, *settings: Any) -> Split:
            return _read_folder(listing, part, listing.folders(part), *settings)

        train = read(folders["train"], None, target, channels, workers)
        size = target or (train.x.shape[-2], train.x.shape[-1])
        settings = (train.classes, size, channels or train.x.shape[1], workers)
        rest = {p: None if f is None else read(f, *settings) for p, f in folders.items() if p != "train"}
        return Splits(train, rest["validation"], rest["test"])


def _is_class(train: Path) -> bool:
    """Whether a folder called "train" is a class, of vehicles say: it has other classes beside it and images in it."""
    parts = {name for names in _PARTS.values() for name in names}
    beside = any(
        f.is_dir() and f.name.lower() not in parts and not f.name.startswith(".") for f in train.parent.iterdir()
    )
    return beside and any(f.suffix.lower() in IMAGE_SUFFIXES for f in train.iterdir())


def divide(split: Split, *, test: float, validation: float = 0.0, seed: int = 0) -> Splits[Split]:
    """Divide examples into training, validation and test parts, class by class.

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
    rest, tested = stratified_indices(split.y, test, seed=seed)
    inner, validated = stratified_indices(split.y[rest], validation / (1 - test), seed=seed + 1)

    def part(index: Tensor, which: str) -> Split | None:
        return dataclasses.replace(split.take(index), name=f"{split.name} {which}".strip()) if len(index) else None

    train = part(rest[inner], "train")
    assert train is not None  # at least one example of every class stays
    return Splits(train, part(rest[validated], "validation"), part(tested, "test"))


def _read_folder(
    listing: Listing,
    root: Path,
    folders: list[Path],
    classes: tuple[str, ...] | None,
    size: tuple[int, int] | None,
    channels: int | None,
    workers: int | None,
) -> Split:
    if not folders:
        raise DataError(root, "holds no folders: one per class is expected, with its images in it")
    chosen = tuple(f.name for f in folders) if classes is None else classes
    require_classes(len(chosen))
    known = set(chosen)
    paths, labels = [], []
    for folder in folders:
        if folder.name not in known:
            raise DataError(folder, f"unknown label {folder.name!r}: the training part has {name_classes(chosen)}")
        images = sorted(listing.files(folder, IMAGE_SUFFIXES))
        if not images and classes is None:
            raise DataError(folder, f"holds no images ({', '.join(IMAGE_SUFFIXES)})")
        paths += images
        labels += [folder.name] * len(images)
    if not paths:
        raise DataError(root, "holds no images")
    x = _decode(paths, size, channels, workers)
    return Split(x, encode_labels(labels, chosen), chosen, root.name)


def _decode(paths: list[Path], size: tuple[int, int] | None, channels: int | None, workers: int | None) -> Tensor:
    modes: list[str] = [""] * len(paths)
    extents: list[tuple[int, int]] = [(0, 0)] * len(paths)

    def look(i: int) -> None:
        with open_image(paths[i]) as image:
            modes[i] = image.mode
            if size is None:
                extents[i] = upright_size(image)

    each_in_parallel(look, range(len(paths)), workers)
    channels = channels or (1 if all(map(is_grey, modes)) else 3)
    if size is None:
        size = extents[0]
        odd = next((i for i, extent in enumerate(extents) if extent != size), None)
        if odd is not None:
            problem = f"is {extents[odd][1]}x{extents[odd][0]}, others are {size[1]}x{size[0]}: pass size= (--size)"
            raise DataError(paths[odd], problem)
    out = np.empty((len(paths), channels, *size), np.uint8)

    def read(i: int) -> None:
        out[i], _ = read_image(paths[i], channels, size)

    each_in_parallel(read, range(len(paths)), workers)
    return torch.from_numpy(out)
