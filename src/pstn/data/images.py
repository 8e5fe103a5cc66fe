"""Decoding image files, in parallel, without trusting them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pstn.data.errors import DataError, require_package

__all__ = ["IMAGE_SUFFIXES", "each_in_parallel", "image_size", "open_image", "to_array"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
T = TypeVar("T")


@contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """A Pillow image of the file, open for as long as the block runs; what goes wrong in it is a DataError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(require_package("Pillow", "reading images")) from error
    if not path.is_file():
        raise DataError(path, "there is no such image file")
    try:
        with Image.open(path) as image:
            yield image
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise almost anything on damaged files, SyntaxError and struct.error included
        raise DataError(path, f"does not decode as an image ({error})") from error


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file, from its header alone."""
    with open_image(path) as image:
        width, height = image.size
    return int(width), int(height)


def to_array(image: Any) -> npt.NDArray[np.uint8]:
    """A decoded image as (C, H, W) uint8."""
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))


def each_in_parallel(work: Callable[[T], None], items: Iterable[T], workers: int | None = None) -> None:
    """Call `work` on every item in threads: decoders release the interpreter. The first error stops the rest.

    Args:
        work: what to do with an item.
        items: the items.
        workers: how many threads; one per processor, at most 8, where None. Each holds one decoded image.
    """
    workers = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(work, item) for item in items]
        _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.result()
