"""Untrusted images: only the documented formats are decoded, within limits, and no other program is started."""

import io
import os
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

import pstn
from data_files import refused
from pstn.app import PictureError, read_picture
from pstn.data import check, from_folder
from pstn.data.images import IMAGE_SUFFIXES
from pstn.decode import image_size, read_image
from pstn.limits import JPEG_SCANS
from pstn.predict import read_items
from security.limited import run_limited

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
ABOUT = pstn.ModelMetadata(classes=("a", "b"), size=(8, 8), channels=1)


def programs(tmp_path, *names):
    """A folder of programs that leave the mark `started`, and the PATH with it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\necho 10.0\n")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_a_png_that_is_eps_starts_no_ghostscript(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path, "gs", "djpeg", "ppmtogif"))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    path = tmp_path / "data" / "a" / "1.png"
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "1.png").write_bytes(EPS)
    reads = (lambda: read_image(path, 1), lambda: [*read_items([path], ABOUT)], lambda: from_folder(path.parents[1]))
    for read in reads:
        refused("does not decode", read)
    with pytest.raises(PictureError):
        read_picture(path)
    assert [finding.status for finding in check(path.parent)] == ["damaged"]
    assert not (tmp_path / "started").exists()


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
        refused("does not decode", image_size, path)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_documented_formats_are_decoded_whatever_the_suffix_says_and_refused_if_cut_off(tmp_path, name):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(stream, name)
    for suffix in IMAGE_SUFFIXES:
        path = tmp_path / f"image{suffix}"
        path.write_bytes(stream.getvalue())
        assert read_image(path, 1)[0].shape == (1, 64, 64)
    path.write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
    refused(path.name, read_image, path, 1)


def test_a_jpeg_of_thousands_of_scans_is_refused(tmp_path):
    stream, path = io.BytesIO(), tmp_path / "scans.jpg"
    Image.new("L", (4000, 4000)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    path.write_bytes(content[:last] + content[last:-2] * (JPEG_SCANS + 1) + content[-2:])
    start = time.perf_counter()
    refused("scans", read_image, path, 1)
    assert time.perf_counter() - start < 1


def tiff(tags, length):
    """A TIFF of 8 x 8 pixels with as many tags beside them, whose values are all the same bytes."""
    start = 14 + 12 * (9 + tags)
    plain = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 277: 1, 278: 8}
    entries = [(tag, 3, 1, value) for tag, value in plain.items()] + [(273, 4, 1, start), (279, 4, 1, 64)]
    entries += [(40_000 + number, 1, length, start) for number in range(tags)]
    content = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + content + bytes(4) + bytes(length)


def png(*chunks):
    """A PNG of 8 x 8 pixels with further chunks before them."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(9 * 8)))
    parts = [chunk(name, content) for name, content in chunks]
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(parts) + pixels + chunk(b"IEND", b"")


def jpeg(*segments):
    """A JPEG of 8 x 8 pixels with further segments before all others."""
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "JPEG")
    parts = [struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for marker, content in segments]
    return stream.getvalue()[:2] + b"".join(parts) + stream.getvalue()[20:]  # without JFIF, which has the resolution


def notes(content):
    """The segments of a JPEG that hold an EXIF note of any length."""
    return [(0xE1, b"Exif\0\0" + content[at : at + 60_000]) for at in range(0, len(content), 60_000)]


def bmp(width, height, content):
    """A BMP of compressed rows (RLE8)."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(content), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(content), 0, 0, 1078) + head + bytes(1024) + content


GIF = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0) + bytes(6)
READ = """
from pathlib import Path
from pstn.data import DataError
from pstn.data.images import read_image
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        print(read_image(Path(path), 1)[1])
    except DataError as error:
        print(type(error).__name__)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 17)  # kilobytes
"""


def test_small_image_files_take_little_memory(tmp_path):
    contents = {
        "tags": (tiff(3_000, 1 << 20), "DataError"),  # 3 GB of tags
        "exif": (png((b"eXIf", tiff(3_000, 1 << 20))), "(8, 8)"),  # likewise, in a note that is not needed
        "notes": (jpeg(*notes(tiff(3_000, 1 << 18))), "DataError"),
        "step": (bmp(60_000_000, 1, b"\0\2\xff\xff\0\1"), "DataError"),  # a step of 255 rows: 15 GB
        "chunk": (png()[:33] + struct.pack(">I", 0x7FFF_FFFF) + b"IDAT" + bytes(100), "DataError"),
    }
    for name, (content, _) in contents.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    paths = [tmp_path / f"{name}.png" for name in contents]
    done = run_limited(READ, *paths, memory=1 << 28, imports="import pstn.data; from PIL import Image; Image.init()")
    assert done.stdout.splitlines() == [said for _, said in contents.values()], done.stderr


@pytest.mark.parametrize(
    "content",
    [
        GIF + b"!\xfe" + (b"\xff" + b"a" * 255) * 40_000 + b"\0",
        b"P3 8 8 255\n" + b"#a\n" * 300_000 + b"1 " * 192,
        b"P6 8 8 #" + b"a" * 5_000_000 + b"\n255\n" + bytes(192),
        jpeg()[:2] + b"\xff" * 10_000_000 + jpeg()[2:],
        jpeg(*[(0xE5, b"x")] * 300_000),
    ],
    ids=["gif-comment", "ppm-comments", "ppm-comment", "jpeg-fill", "jpeg-segments"],
)
def test_headers_of_many_pieces_are_refused_soon(tmp_path, content):
    path = tmp_path / "image.png"
    path.write_bytes(content)
    start = time.process_time()
    refused("pieces|comments", read_image, path, 1)
    assert time.process_time() - start < 2


def test_a_file_of_many_gigabytes_is_refused_at_once(tmp_path):
    path = tmp_path / "image.png"
    with path.open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\xffWEBPVP8X")
        file.truncate(40 << 30)  # takes no room on the disk
    refused("bytes", read_image, path, 1)


@pytest.mark.slow
def test_a_matplotlibrc_in_the_current_folder_starts_no_tex(tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    code = (
        "import pstn, pathlib, torch\n"
        "pstn.data.contact_sheet(pstn.data.load('digits').train, pathlib.Path('sheet.png'), count=4)\n"
        "from pstn.report.pictures import draw_samples\n"
        "draw_samples('samples.png', pstn.nn.mnist_pstn().eval(), torch.rand(1, 1, 28, 28))"
    )
    environment = {**os.environ, "PATH": programs(tmp_path, "latex", "dvipng", "pdflatex")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "started").exists()
