"""Small files of every kind, for the tests of the data."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pstn.data import DataError

REAL = os.environ.get("PSTN_DATA", "").strip()
needs_real = pytest.mark.skipif(not REAL, reason="PSTN_DATA is not set")


def refused(match, call, *arguments, error=DataError, **settings):
    """Assert that a call raises; returns the exception."""
    with pytest.raises(error, match=match) as caught:
        call(*arguments, **settings)
    return caught.value


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(path: Path, array: np.ndarray) -> Path:
    content = idx_bytes(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def tar_of(path: Path, *members, mode: str = "w:gz") -> Path:
    """A tar archive of members (name, content[, type])."""
    with tarfile.open(path, mode) as archive:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind[0] if kind else tarfile.REGTYPE
            info.size, info.linkname = len(content), "/etc/passwd" if info.islnk() or info.issym() else ""
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_of_folder(path: Path, folder: Path) -> Path:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return tar_of(path, *((file.relative_to(folder).as_posix(), file.read_bytes()) for file in files))


def save_image(path: Path, width: int, height: int, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def mtsd_box(label, xmin, ymin, xmax, ymax, key="k"):
    return {"key": key, "label": label, "bbox": {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}}


def mtsd_annotation(objects, width=400, height=300, ispano=False):
    return {"width": width, "height": height, "ispano": ispano, "objects": objects}


def write_mtsd(root: Path, annotations: dict, splits: dict) -> None:
    base = root / "mtsd_v2_fully_annotated"
    (base / "annotations").mkdir(parents=True, exist_ok=True)
    (base / "splits").mkdir(exist_ok=True)
    for key, content in annotations.items():
        (base / "annotations" / f"{key}.json").write_text(json.dumps(content))
    for name, keys in splits.items():
        (base / "splits" / f"{name}.txt").write_text("\n".join(keys) + "\n")
