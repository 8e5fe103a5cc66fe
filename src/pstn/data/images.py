"""Image files: decoding within limits, folders of images per class, contact sheets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn._checks import require_positive_int
from pstn.data.files import (
    PART_NAMES,
    DataError,
    Listing,
    Refuse,
    list_folder,
    raise_it,
    require_package,
)
from pstn.data.split import Sized, Split, Splits, balanced_indices, divide, encode_labels, name_classes, require_classes
from pstn.files import write_atomically
from pstn.limits import IMAGE_PIXELS, JPEG_SCANS

__all__ = ["contact_sheet", "from_folder"]


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
# The first five are what Pillow knows from the start; the others make it import all its decoders, once.
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that are decoded, by Pillow's names, whatever the suffix: other decoders of Pillow start programs."""
T = TypeVar("T")
_SHORTEST_SCAN = 10  # bytes
_PIXELS_IN_SECONDS = 1 << 32  # of all scans together
_TOO_LARGE = f"has more than {IMAGE_PIXELS:,} pixels, too many to decode safely: make it smaller first"


def find_images(folder: Path, refuse: Refuse = raise_it) -> Iterator[Path]:
    """The image files in a folder and in those below it, in the order of names, as `Listing` lists them.

    Args:
        folder: where to look.
        refuse: told of folders that cannot be read.

    Warns:
        DataWarning: links lead out of the folder, or files are listed under another name; they are left out.
    """
    with list_folder(folder) as listing:
        yield from listing.files(folder, IMAGE_SUFFIXES, refuse)


@contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """A Pillow image of the file, open for as long as the block runs; what goes wrong in it is a DataError.

    This is the only place that opens image files: only `IMAGE_FORMATS` are decoded, and only within the limits.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(require_package("Pillow", "reading images")) from error
    if not path.is_file():
        raise DataError(path, "there is no such image file")
    try:
        Image.preinit()
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            _require_moderate(path, image.width * image.height)
            if image.info.get("progressive"):
                prepare = _after(lambda: _require_few_scans(path, image), image.load_prepare)
                image.load_prepare = prepare  # type: ignore[method-assign]  # of this image alone
            yield image
    except (DataError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(path, _TOO_LARGE) from error
    except Exception as error:  # decoders raise almost anything on damaged files, SyntaxError and struct.error included
        raise DataError(path, f"does not decode as an image ({error})") from error


def _require_moderate(path: Path, pixels: int) -> None:
    """Refuse what would fill the memory; a file of a few kilobytes can claim any size."""
    if pixels > IMAGE_PIXELS:
        raise DataError(path, _TOO_LARGE)


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    """What calls both: `load_prepare` of an image is called before it is decoded, and not for its header alone."""

    def both() -> None:
        first()
        then()

    return both


def _require_few_scans(path: Path, image: Any) -> None:
    """Refuse a JPEG file whose scans would take minutes to decode."""
    if image.width * image.height * (path.stat().st_size // _SHORTEST_SCAN) < _PIXELS_IN_SECONDS:
        return
    found, last = 0, b""
    with path.open("rb") as file:
        while portion := file.read(1 << 20):
            found += (last + portion).count(b"\xff\xda")  # the marker of a scan, which compressed data cannot hold
            last = portion[-1:]
    if found > JPEG_SCANS:
        raise DataError(path, f"has {found:,} scans, more than the limit of {JPEG_SCANS:,}: save it anew")


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file, from its header alone."""
    with open_image(path) as image:
        width, height = image.size
    return int(width), int(height)


def is_grey(mode: str) -> bool:
    """Whether Pillow's mode of an image has no colours."""
    return mode in ("L", "1", "LA", "I", "F") or mode.startswith("I;16")


def with_bytes(image: Any, mode: str, path: Path) -> Any:
    """The image in Pillow's mode "L" or "RGB", 8 bits a channel.

    Pillow's own conversion cuts off what is above 255, which makes a picture of 16 bits white, and drops what says
    which pixels are transparent. They become black here, which is what warps read outside a picture.
    """
    from PIL import Image

    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert(mode)

    # These formats know no whole numbers beyond 16 bits, which older versions of Pillow keep in 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        levels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        problem = (
            "has 32 bits a pixel, of which none says what is white: save it with 8 or 16 bits, or pass from_arrays"
        )
        raise DataError(path, f"{problem} its numbers")
    return image if image.mode == mode else image.convert(mode)


_ORIENTATION = 0x0112  # of EXIF
# By what Pillow calls the turn that undoes it.
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip


def orientation(image: Any) -> int:
    """How the camera was held, by EXIF: 1 to 8, of which 1 is upright and 5 and above lie on their side."""
    image.load()  # what is wrong with the picture itself is to be told; in a PNG the note may come after it, too
    try:
        found = image.getexif().get(_ORIENTATION)
    except Exception:  # of a damaged note beside the picture, not of the picture: as good as none
        found = None
    return found if found in _TURNS else 1


def turn_upright(image: Any, orientation: int) -> Any:
    """The image as it is meant to be seen, which is how viewers show it."""
    from PIL import Image

    return image if orientation == 1 else image.transpose(Image.Transpose[_TURNS[orientation]])


def upright_size(image: Any) -> tuple[int, int]:
    """(height, width) of an image as it is meant to be seen."""
    return (image.width, image.height) if orientation(image) >= 5 else (image.height, image.width)


def read_image(
    path: Path, channels: int, size: tuple[int, int] | None = None
) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """A file as (C, H, W) uint8, upright, resized to `size` where given, and the (height, width) that it had.

    Args:
        path: the file.
        channels: 1 for grey, 3 for colour.
        size: (height, width).
    """
    with open_image(path) as image:
        converted = turn_upright(with_bytes(image, "L" if channels == 1 else "RGB", path), orientation(image))
        had = (converted.height, converted.width)
        return to_array(converted if size in (None, had) else converted.resize((size[1], size[0]))), had


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
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        futures = [pool.submit(work, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future in done:
                future.result()
    finally:
        # Also when the user interrupts: what is queued is not worth waiting for.
        pool.shutdown(wait=False, cancel_futures=True)


_CELL, _GAP, _CAPTION, _HEAD = 112, 10, 14, 34
_PAPER, _INK, _FAINT, _LINE = (255, 255, 255), (30, 30, 30), (120, 120, 120), (31, 96, 160)


def contact_sheet(
    data: Sized,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    count: int = 40,
    columns: int = 10,
    seed: int = 0,
) -> Path:
    """Draw examples of a data set, as even over the classes as can be, with their classes, into a PNG file.

    Images are shown with the full range of their values from black to white, and series as lines at one scale;
    generated examples have theta below their class.

    Args:
        data: a `Split` or `Generated`.
        path: the file to write.
        title: above the examples; the name of the data where empty.
        count: how many examples.
        columns: how many of them in a row.
        seed: of the choice.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, pstn
        >>> contact_sheet(pstn.data.load("digits").train, Path(tempfile.mkdtemp()) / "digits.png").name
        'digits.png'
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError(require_package("Pillow", "drawing a contact sheet")) from error
    count = min(require_positive_int("count", count), len(data))
    columns = min(require_positive_int("columns", columns), count)
    batch = _choose(data, count, seed)
    rows = -(-count // columns)
    lines = 1 if batch.theta is None else 2
    step_x, step_y = _CELL + _GAP, _CELL + 4 + _CAPTION * lines + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP + _HEAD), _PAPER)
    draw = ImageDraw.Draw(sheet)
    small, large = ImageFont.load_default(size=11), ImageFont.load_default(size=16)
    head = f"{title or batch.name}: {_facts(data, batch)}"
    draw.text((_GAP, 10), _shorten(draw, head, large, sheet.width - 2 * _GAP), _INK, large)
    low, high = _value_range(batch)
    for i in range(count):
        left, top = _GAP + (i % columns) * step_x, _HEAD + _GAP + (i // columns) * step_y
        if batch.ndim == 1:
            _draw_series(draw, batch, i, (left, top), (low, high))
        else:
            picture = Image.fromarray(_pixels(batch.x[i], low, high))
            side = _fit(picture.size)
            enlarged = picture.resize(
                side, Image.Resampling.NEAREST if side > picture.size else Image.Resampling.BILINEAR
            )
            sheet.paste(enlarged, (left + (_CELL - side[0]) // 2, top + (_CELL - side[1]) // 2))
        for line, text in enumerate(_captions(batch, i)):
            caption = _shorten(draw, text, small, _CELL)
            draw.text((left + _CELL / 2, top + _CELL + 3 + line * _CAPTION), caption, _FAINT, small, anchor="ma")
    target = Path(path)
    with write_atomically(target) as draft:
        sheet.save(draft, format="PNG")
    return target


def _choose(data: Sized, count: int, seed: int) -> Split:
    """Examples of every class, class after class, chosen by labels alone so that nothing else is made or decoded."""
    index = balanced_indices(data.y, count, seed=seed)
    order = torch.argsort(data.y.cpu()[index], stable=True)
    batch = data.batch(index[order]).to("cpu")
    return batch if batch.x.is_floating_point() else batch.as_float()


def _facts(data: Sized, batch: Split) -> str:
    channels, *size = batch.x.shape[1:]
    shape = "x".join(map(str, size)) + (f", {channels} channels" if channels not in (1, 3) else "")
    kind = "series of length" if batch.ndim == 1 else "images of"
    return f"{len(data):,} {kind} {shape}, {len(batch.classes)} classes"


def _value_range(batch: Split) -> tuple[float, float]:
    if batch.ndim == 1:
        # A single spike would flatten all the others: the outermost hundredths of the values run along the frame.
        values = batch.x.flatten() if batch.mask is None else batch.x.movedim(1, -1)[batch.mask].flatten()
        low, high = np.quantile(values.numpy(), (0.01, 0.99)).tolist()
        low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    else:
        low, high = float(batch.x.min()), float(batch.x.max())
    return low, high if high > low else low + 1


def _pixels(x: Tensor, low: float, high: float) -> npt.NDArray[np.uint8]:
    shown = ((x - low) / (high - low) * 255).round().to(torch.uint8)
    colour = shown[:3] if shown.shape[0] >= 3 else shown[:1].expand(3, -1, -1)
    return np.ascontiguousarray(colour.movedim(0, -1).numpy())


def _fit(size: tuple[int, int]) -> tuple[int, int]:
    scale = _CELL / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _draw_series(draw: Any, batch: Split, i: int, corner: tuple[int, int], limits: tuple[float, float]) -> None:
    left, top = corner
    draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=(225, 225, 225))
    real = torch.ones(batch.x.shape[-1], dtype=torch.bool) if batch.mask is None else batch.mask[i]
    for c, channel in enumerate(batch.x[i]):
        shade = _LINE if batch.x.shape[1] == 1 else _colour(c)
        points = _points(channel[real], int(real.numel()), real.nonzero().flatten().tolist(), limits, left, top)
        draw.line(points, fill=shade, width=1, joint="curve")


def _points(
    values: Tensor, length: int, at: Sequence[int], limits: tuple[float, float], left: int, top: int
) -> list[tuple[float, float]]:
    inner = _CELL - 9
    across = [left + 4 + inner * t / max(1, length - 1) for t in at]
    heights = ((values - limits[0]) / (limits[1] - limits[0])).clamp(0, 1)
    return list(zip(across, (top + 4 + inner * (1 - heights)).tolist(), strict=True))


def _colour(channel: int) -> tuple[int, int, int]:
    palette = ((31, 96, 160), (214, 104, 33), (60, 140, 70), (170, 60, 70), (120, 90, 170), (110, 90, 80))
    return palette[channel % len(palette)]


def _captions(batch: Split, i: int) -> list[str]:
    name = batch.classes[int(batch.y[i])]
    if batch.theta is None:
        return [name]
    numbers = [f"{v:.2f}" for v in batch.theta[i].tolist()]
    # Four numbers fill the width of a cell by themselves.
    return [name, ", ".join(numbers) if len(numbers) > 3 else f"theta {', '.join(numbers)}"]


def _shorten(draw: Any, text: str, font: Any, width: int) -> str:
    """`text` cut so that it fits, with dots where something is left out."""
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."


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
        folders = {part: next((inside[n] for n in names if n in inside), None) for part, names in PART_NAMES.items()}
        if folders["train"] is None or _is_class(folders["train"]):
            everything = _read_class_folders(listing, root, found, None, target, channels, workers)
            return divide(everything, test=test, validation=validation, seed=seed)

        def read(part: Path, *settings: Any) -> Split:
            return _read_class_folders(listing, part, listing.folders(part), *settings)

        train = read(folders["train"], None, target, channels, workers)
        size = target or (train.x.shape[-2], train.x.shape[-1])
        settings = (train.classes, size, channels or train.x.shape[1], workers)
        rest = {p: None if f is None else read(f, *settings) for p, f in folders.items() if p != "train"}
        return Splits(train, rest["validation"], rest["test"])


def _is_class(train: Path) -> bool:
    """Whether a folder called "train" is a class, of vehicles say: it has other classes beside it and images in it."""
    parts = {name for names in PART_NAMES.values() for name in names}
    beside = any(
        f.is_dir() and f.name.lower() not in parts and not f.name.startswith(".") for f in train.parent.iterdir()
    )
    return beside and any(f.suffix.lower() in IMAGE_SUFFIXES for f in train.iterdir())


def _read_class_folders(
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
