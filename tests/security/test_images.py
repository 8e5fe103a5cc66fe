"""Images from strangers: only the documented formats are decoded, within limits, and no other program is started."""

import io
import os
import time

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

import pstn
from pstn.app.core import PictureError, read_picture
from pstn.data import DataError, from_folder
from pstn.data.check import check
from pstn.data.images import IMAGE_SUFFIXES, image_size, read_image
from pstn.limits import JPEG_SCANS
from pstn.predict import read_items

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
ABOUT = pstn.About(classes=("a", "b"), size=(8, 8), channels=1)


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """The file that exists once `gs` has been started."""
    mark = tmp_path / "started"
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("gs", "djpeg", "ppmtogif"):
        (folder / name).write_text(f"#!/bin/sh\ntouch {mark}\necho 10.0\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return mark


def write_eps(folder):
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        (folder / label / "1.png").write_bytes(EPS)
    return folder / "a" / "1.png"


def test_a_png_that_is_eps_starts_no_ghostscript(tmp_path, ghostscript):
    path = write_eps(tmp_path / "data")
    for read in (
        lambda: read_image(path, 1),
        lambda: list(read_items([path], ABOUT)),
        lambda: from_folder(path.parents[1]),
    ):
        with pytest.raises(DataError, match="does not decode"):
            read()
    with pytest.raises(PictureError):
        read_picture(path)
    assert [finding.status for finding in check(path.parent)] == ["damaged"]
    assert not ghostscript.exists()


# Formats that Pillow decodes and that the documentation does not list: under the names of ones that it does.
OTHERS = ["ICO", "TGA", "PCX", "SGI", "DIB", "IM", "MSP", "SPIDER", "DDS", "JPEG2000", "PDF", "ICNS", "AVIF"]


@pytest.mark.parametrize("name", OTHERS)
def test_only_documented_formats_are_decoded(tmp_path, name):
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    try:
        stream = io.BytesIO()
        (image.convert("1") if name == "MSP" else image).save(stream, name)
    except (KeyError, OSError, ValueError) as error:
        pytest.skip(f"this Pillow does not write {name}: {error}")
    for suffix in (".png", ".tif", ".gif", ".ppm"):
        path = tmp_path / f"image{suffix}"
        path.write_bytes(stream.getvalue())
        with pytest.raises(DataError, match="does not decode"):
            image_size(path)


def test_every_documented_format_is_decoded_whatever_the_suffix_says(tmp_path):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for name in ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        for suffix in IMAGE_SUFFIXES:
            path = tmp_path / f"{name}{suffix}"
            Image.fromarray(pixels).save(path, name)
            assert read_image(path, 1)[0].shape == (1, 8, 8)


def test_truncated_files_are_refused(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))
    for name in ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        stream = io.BytesIO()
        image.save(stream, name)
        path = tmp_path / f"{name}.png"
        path.write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
        with pytest.raises(DataError, match=path.name):
            read_image(path, 1)


def test_a_jpeg_of_thousands_of_scans_is_refused(tmp_path):
    stream = io.BytesIO()
    Image.new("L", (4000, 4000)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    path = tmp_path / "scans.jpg"
    path.write_bytes(content[:last] + content[last:-2] * (JPEG_SCANS + 1) + content[-2:])
    start = time.perf_counter()
    with pytest.raises(DataError, match="scans"):
        read_image(path, 1)
    assert time.perf_counter() - start < 1
    path.write_bytes(content)
    assert read_image(path, 1)[1] == (4000, 4000)
