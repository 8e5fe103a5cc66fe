"""Folders of images as a user has them, to try `pstn train` on: drawn shapes, crops of signs, and a messy one.

    python benchmarks/folders.py shapes OUT      # 6 classes of drawn shapes, anywhere, at any angle, in any colour
    python benchmarks/folders.py signs OUT       # 8 classes of crops from the traffic signs in $PSTN_DATA
    python benchmarks/folders.py mixed OUT       # sign or no sign: many sizes, EXIF, grey, CMYK, and one broken file

Each is divided into train/ and test/. Crops of one photo, and of photos that look alike, are on one side.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from pstn.data.files import unpack_tar
from pstn.data.photos import Box, Photo, Sign, commonest_classes, find_traffic_signs, read_yolo
from pstn.data.split import group_alike

SIDES = {"triangle": 3, "square": 4, "pentagon": 5, "star": 10, "disc": 60, "bar": 4}


def draw_shape(kind: str, chance: random.Random, side: int = 64) -> Image.Image:
    """A shape in one colour on a background of another, with noise: anywhere, of any size, at any angle."""
    light = chance.random() < 0.5
    back = [chance.randrange(140, 256) if light else chance.randrange(0, 116) for _ in range(3)]
    front = [chance.randrange(0, 90) if light else chance.randrange(166, 256) for _ in range(3)]
    image = Image.new("RGB", (4 * side, 4 * side), tuple(back))
    radius = side * chance.uniform(0.6, 1.2)
    x, y = (chance.uniform(radius, 4 * side - radius) for _ in range(2))
    start, points = chance.uniform(0, 2 * math.pi), []
    for k in range(SIDES[kind]):
        angle = start + 2 * math.pi * k / SIDES[kind]
        length = radius * (0.45 if kind == "star" and k % 2 else 1.0)
        if kind == "bar":  # a rectangle four times as long as wide
            angle = start + (0.245, math.pi - 0.245, math.pi + 0.245, -0.245)[k]
        points.append((x + length * math.cos(angle), y + length * math.sin(angle)))
    ImageDraw.Draw(image).polygon(points, fill=tuple(front))
    pixels = np.asarray(image.resize((side, side)), np.float32)
    noise = np.random.default_rng(chance.randrange(2**32)).normal(0, 12, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def make_shapes(out: Path, *, train: int = 40, test: int = 25, seed: int = 0) -> None:
    """Write the shapes: so many of each class."""
    chance = random.Random(seed)
    for part, count in (("train", train), ("test", test)):
        for kind in SIDES:
            (out / part / kind).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                draw_shape(kind, chance).save(out / part / kind / f"{number}.png")


def group_photos(photos: list[Photo]) -> dict[str, int]:
    """A number for each photo, the same for those that look alike."""
    small = [np.asarray(Image.open(photo.path).convert("L").resize((64, 64))) for photo in photos]
    groups = group_alike(torch.from_numpy(np.stack(small))[:, None], least=0.9).tolist()
    return {photo.key: group for photo, group in zip(photos, groups, strict=True)}


def crop_box(photo: Photo, box: Box, margin: float = 0.5) -> Image.Image:
    """The box with a margin, as a part of its longer side, on every side."""
    more = margin * max(box.xmax - box.xmin, box.ymax - box.ymin)
    region = (max(0, box.xmin - more), max(0, box.ymin - more), box.xmax + more, box.ymax + more)
    right, bottom = min(photo.width, region[2]), min(photo.height, region[3])
    return Image.open(photo.path).convert("RGB").crop((int(region[0]), int(region[1]), int(right), int(bottom)))


def read_photos(work: Path) -> list[Photo]:
    """The photos of the traffic signs, unpacked."""
    found = find_traffic_signs()
    parts, _ = read_yolo(unpack_tar(found, work / "signs") if found.is_file() else found, bad_boxes="skip")
    return [photo for part in parts.values() for photo in part]


def make_signs(out: Path, *, classes: int = 8, share: float = 0.23, seed: int = 0) -> None:
    """Write crops of the commonest signs, at least 12 pixels wide."""
    with tempfile.TemporaryDirectory() as work:
        photos = read_photos(Path(work))
        signs = [Sign(photo, box) for photo in photos for box in photo.boxes if min(_extent(box)) >= 12]
        chosen = commonest_classes(signs, classes)
        group = group_photos(photos)
        tested = _draw_groups([group[s.photo.key] for s in signs if s.box.label in chosen], share, seed)
        for number, sign in enumerate(s for s in signs if s.box.label in chosen):
            part = "test" if group[sign.photo.key] in tested else "train"
            path = out / part / sign.box.label.lower().replace(" ", "-") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            crop_box(sign.photo, sign.box).save(path)


def make_mixed(out: Path, *, count: int = 300, share: float = 0.3, seed: int = 0) -> None:
    """Write crops with a sign and without, of many sizes and kinds, and one file that is cut off."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as work:
        photos = read_photos(Path(work))
        group = group_photos(photos)
        tested = _draw_groups(list(group.values()), share, seed)
        made: dict[str, int] = defaultdict(int)
        for photo in chance.sample(photos, len(photos)):
            boxes = [box for box in photo.boxes if min(_extent(box)) >= 16]
            if not boxes or min(made["sign"], made["nothing"]) >= count // 2:
                continue
            side = max(_extent(boxes[0]))
            empty = _empty_place(photo, 2 * side, chance)
            for kind, box in (("sign", boxes[0]), ("nothing", empty)):
                if box is None or made[kind] >= count // 2:
                    continue
                crop = crop_box(photo, box, 0.5 if kind == "sign" else 0.0)
                part = "test" if group[photo.key] in tested else "train"
                folder = out / part / kind
                folder.mkdir(parents=True, exist_ok=True)
                _save_somehow(crop, folder / str(made[kind]), made[kind])
                made[kind] += 1
        broken = next((out / "train" / "sign").glob("*.jpg"))
        broken.with_name("broken.jpg").write_bytes(broken.read_bytes()[:200])


def _save_somehow(crop: Image.Image, stem: Path, number: int) -> None:
    """As a plain file, in grey, as CMYK, as a palette, or turned with an EXIF tag that says so."""
    if number % 5 == 0:
        crop.convert("L").save(stem.with_suffix(".png"))
    elif number % 5 == 1:
        crop.convert("CMYK").save(stem.with_suffix(".jpg"))
    elif number % 5 == 2:
        exif = Image.Exif()
        exif[0x0112] = 6
        crop.transpose(Image.Transpose.ROTATE_90).save(stem.with_suffix(".jpg"), exif=exif)
    elif number % 5 == 3:
        crop.convert("P").save(stem.with_suffix(".gif"))
    else:
        crop.save(stem.with_suffix(".jpg"), quality=90)


def _extent(box: Box) -> tuple[float, float]:
    return box.xmax - box.xmin, box.ymax - box.ymin


def _empty_place(photo: Photo, side: float, chance: random.Random) -> Box | None:
    """A square of a photo that meets no box; None where none is found."""
    for _ in range(50):
        if side >= min(photo.width, photo.height):
            return None
        x, y = chance.uniform(0, photo.width - side), chance.uniform(0, photo.height - side)
        if all(x + side < b.xmin or x > b.xmax or y + side < b.ymin or y > b.ymax for b in photo.boxes):
            return Box(x, y, x + side, y + side, "nothing")
    return None


def _draw_groups(groups: list[int], share: float, seed: int) -> set[int]:
    """Groups that hold about so large a share of all."""
    order, chosen, held = sorted(set(groups)), set[int](), 0
    random.Random(seed).shuffle(order)
    for group in order:
        if held < share * len(groups):
            chosen.add(group)
            held += groups.count(group)
    return chosen


if __name__ == "__main__":
    makers: dict[str, Any] = {"shapes": make_shapes, "signs": make_signs, "mixed": make_mixed}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=makers)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    makers[given.kind](given.out, seed=given.seed)
