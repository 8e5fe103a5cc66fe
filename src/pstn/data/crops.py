"""Crops of photos as tensors, decoded once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn.data.boxes import Photo, Region, Sign, region_around
from pstn.data.errors import DataError
from pstn.data.files import read_npy
from pstn.data.folders import whole_folder
from pstn.data.images import each_in_parallel, open_image, to_array, with_bytes
from pstn.data.places import cache_folder

__all__ = ["decode_crops"]

# Part of the cache's key: to be raised when the pixels that come out change.
_VERSION = 1


def decode_crops(
    signs: Sequence[Sign],
    *,
    margin: float,
    sizes: Sequence[int],
    workers: int | None = None,
    cache: bool = True,
) -> list[Tensor]:
    """Cut every sign's box plus a margin out of its photo, at one or more resolutions.

    A photo is decoded once for all its signs, in one of several threads; the crops go straight to files in the cache,
    so that memory holds one photo per thread however many there are. The tensors are mapped from these files. A second
    call with the same photos, boxes and settings decodes nothing.

    Args:
        signs: what to cut out.
        margin: pixels added on every side of the box.
        sizes: the side of the square that the crop is resized to, for each tensor wanted, e.g. (224, 1024).
        workers: threads; one per processor, at most 8, where None.
        cache: keep the crops for the next time; else they go when the process ends, with the memory.

    Returns:
        One tensor (N, 3, size, size) of uint8 per size, in the order of `signs`.
    """
    if not signs:
        raise ValueError("signs must not be empty: no box is left after the filter")
    if not cache:
        arrays = [np.empty((len(signs), 3, size, size), np.uint8) for size in sizes]
        _fill(arrays, signs, margin, workers)
        return [torch.from_numpy(array) for array in arrays]
    folder = cache_folder() / "crops" / _key(signs, margin, sizes)
    if not folder.is_dir():
        _decode_into(folder, signs, margin, sizes, workers)
    kept = [read_npy(folder / f"{size}.npy", mmap=True) for size in sizes]
    for size, array in zip(sizes, kept, strict=True):
        if array.shape != (len(signs), 3, size, size) or array.dtype != np.uint8:
            raise DataError(folder / f"{size}.npy", f"holds {array.dtype} of {array.shape}: remove the folder")
    return [torch.from_numpy(array) for array in kept]


def _decode_into(folder: Path, signs: Sequence[Sign], margin: float, sizes: Sequence[int], workers: int | None) -> None:
    """Fill a folder of arrays that appears whole or not at all."""
    with whole_folder(folder) as work:
        _require_space(work, sum(len(signs) * 3 * size * size for size in sizes))
        arrays = [
            np.lib.format.open_memmap(work / f"{size}.npy", "w+", np.uint8, (len(signs), 3, size, size))
            for size in sizes
        ]
        _fill(arrays, signs, margin, workers)
        for array in arrays:
            array.flush()
        del arrays


def _require_space(folder: Path, needed: int) -> None:
    """Writing to a mapped file on a full disk kills the process without a word: so ask before."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            cache_folder(),
            f"has no room for the crops: they need {needed:,} bytes, {free:,} are free. Make room, set $PSTN_CACHE to "
            "a folder on a larger disk, or ask for a smaller source= or size=",
        )


def _fill(arrays: Sequence[npt.NDArray[np.uint8]], signs: Sequence[Sign], margin: float, workers: int | None) -> None:
    order = sorted(range(len(signs)), key=lambda i: str(signs[i].photo.path))
    groups = [list(group) for _, group in groupby(order, key=lambda i: str(signs[i].photo.path))]

    def cut(group: list[int]) -> None:
        photo = signs[group[0]].photo
        with open_image(photo.path) as image:
            if image.size != (photo.width, photo.height):
                problem = f"is {image.size[0]}x{image.size[1]} pixels, its boxes are for {photo.width}x{photo.height}"
                raise DataError(photo.path, problem)
            whole = with_bytes(image, "RGB", photo.path)  # a copy of a panorama is 100 MB
            whole.load()
            for i in group:
                region = region_around(signs[i], margin)
                for array in arrays:
                    array[i] = to_array(_resized(whole, photo, region, array.shape[-1]))

    each_in_parallel(cut, groups, workers)


def _resized(image: Any, photo: Photo, region: Region, size: int) -> Any:
    from PIL import Image

    left, top, right, bottom = region
    if left < 0 or right > photo.width:  # across the edge of a panorama: two pieces, side by side
        joined = Image.new("RGB", (right - left, bottom - top))
        for turn in (-photo.width, 0, photo.width):
            start, end = max(left, turn), min(right, turn + photo.width)
            if start < end:
                joined.paste(image.crop((start - turn, top, end - turn, bottom)), (start - left, 0))
        image, region = joined, (0, 0, right - left, bottom - top)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=region)


def _key(signs: Sequence[Sign], margin: float, sizes: Sequence[int]) -> str:
    """A name for these crops: other files, boxes or settings give another."""
    digest = hashlib.sha256(json.dumps([_VERSION, margin, list(sizes)]).encode())
    for sign in signs:
        path, box = sign.photo.path, sign.box
        if not path.is_file():
            raise DataError(path, "there is no such image file")
        state = path.stat()
        entry = [str(path.resolve()), state.st_size, state.st_mtime_ns, box.xmin, box.ymin, box.xmax, box.ymax]
        digest.update(json.dumps([*entry, sign.photo.panorama]).encode())
    return digest.hexdigest()[:32]
