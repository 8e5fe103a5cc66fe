"""Every reader of untrusted files, on a fixed number of damaged ones: it reads them or raises as documented."""

import contextlib
import gzip
import io
import json
import shutil
import struct
import time
import warnings
import zipfile
import zlib
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

import pstn
from data_files import idx_bytes, mtsd_annotation, mtsd_box, save_image, tar_of, write_mtsd
from made_up_results import make_results
from pstn.app import PictureError, read_picture, to_digit
from pstn.data import DataError, from_npz, read_mtsd, read_series, read_yolo, stack_series
from pstn.data.files import open_zip, read_npy, read_zip_member, unpack_tar
from pstn.data.images import read_idx, read_image
from pstn.data.photos import read_class_names
from pstn.io import ModelFileError
from pstn.nn import ConvClassifier, ConvLocalizer
from pstn.report.results import read_results
from pstn.training import Population
from pstn.training.population.recipe import Recipe
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, read_about, save_checkpoint
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings
from security.fuzz import mutate, mutate_json

CASES = 150
SECONDS = 2.0  # of processor time for a case: a valid file takes a hundredth of it


# A target is a function of an empty folder that gives a valid content, and what reads a damaged one.


def file(name, content, read):
    """A target that writes the content to a file, and reads that."""

    def make(folder):
        def attempt(content):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return read(path)

        return content, attempt

    return make


def saved(save, *arguments, **options):
    """What a function writes to a stream."""
    stream = io.BytesIO()
    save(stream, *arguments, **options)
    return stream.getvalue()


def picture(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels).save, kind)


def read_pixels(path):
    assert read_image(path, 3, (8, 8))[0].shape == (3, 8, 8)


def read_digit(path):
    assert to_digit(read_picture(path)).shape == (1, 28, 28)


def png_with_checksums(folder):
    """The chunks of a PNG are damaged, and their checksums made anew: damage gets past the first check."""
    _, whole = file("image.png", b"", read_pixels)(folder)

    def attempt(content):
        chunks, at = [], 0
        while at + 8 <= len(content):
            length = min(struct.unpack(">I", content[at : at + 4])[0], len(content))
            body = content[at + 4 : at + 8 + length]
            chunks.append(content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body)))
            at += 12 + length
        return whole(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))

    return picture("PNG")[8:], attempt


def small(read):
    """A reader of arrays, none of which is larger than its file can be, packed as tightly as gzip packs."""

    def checked(path):
        assert read(path).nbytes <= 1032 * path.stat().st_size

    return checked


IDX = idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
NPY = saved(np.save, np.arange(96, dtype=np.float32).reshape(6, 4, 4))
LABELS = np.array([0, 1] * 3)


def zipped(**members):
    def save(stream):
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name.replace("_npy", ".npy"), content)

    return saved(save)


def read_image_npz(path):
    return from_npz(path, kind="image")


def npz_members(folder):
    """The arrays of an archive are damaged, and the archive is whole."""
    _, attempt = file("x.npz", b"", read_image_npz)(folder)
    return NPY, lambda content: attempt(zipped(x_npy=content, y_npy=saved(np.save, LABELS)))


def read_zip(path):
    with open_zip(path) as archive:
        for member in archive.namelist():
            read_zip_member(archive, member, path)


def tar(mode):
    def read(path):
        inside = path.parent / "work" / "out"
        shutil.rmtree(inside, ignore_errors=True)
        inside.parent.mkdir(exist_ok=True)
        try:
            unpack_tar(path, inside)
        finally:
            assert {p.name for p in path.parent.iterdir()} == {"work", "x.tar"}
        assert not [p for p in inside.rglob("*") if p.is_symlink()]

    def make(folder):
        members = (("images/a.txt", b"one"), ("labels/" + "b" * 120 + ".txt", b"two" * 100))
        return file("x.tar", tar_of(folder / "x.tar", *members, mode=mode).read_bytes(), read)(folder)

    return make


SERIES = {
    "tsv": "1\t0.5\t-1.5\n2\t1e-3\t2\n1\t3\t4\n",
    "csv": "class,t0,t1\na,0.5,-1.5\nb,1e-3,2\na,3,4\n",
    "ts": "@problemName Toy\n@univariate false\n@dimensions 2\n@equalLength true\n@seriesLength 3\n"
    "@classLabel true up down\n@data\n1,2,3:4,5,6:up\n7,8,9:10,11,12:down\n",
    "arff": "@relation toy\n@attribute channels relational\n@attribute t0 numeric\n@attribute t1 numeric\n"
    "@end channels\n@attribute 'the class' {up, down}\n@data\n'1,2\\n4,5',up\n'7,8\\n10,11',down\n",
    "flat.arff": "@relation toy\n@attribute a numeric\n@attribute b numeric\n@attribute c {1,2}\n@data\n"
    "0.5,-1.5,1\n1e-3,2,2\n",
}


def read_and_stack(path):
    found = read_series(path)
    assert len(found.values) == len(found.labels) == len(found.lines) > 0
    assert all(v.ndim == 2 and not np.isinf(v).any() for v in found.values)
    for policy in ("refuse", "resample", "pad"):
        with contextlib.suppress(DataError):
            stack_series([found], policy)


def yolo(name, content, read):
    def make(folder):
        save_image(folder / "images" / "a.png", 40, 30)
        (folder / "labels").mkdir()
        (folder / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
        if name != "data.yaml":
            (folder / "classes.txt").write_text("stop\nyield\n")
        return file(name, content, lambda _: read(folder))(folder)

    return make


def mtsd(folder):
    (folder / "images").mkdir()
    boxes = [mtsd_box("regulatory--stop--g1", 1, 2, 30, 40), mtsd_box("other-sign", 5, 5, 9, 9, "l")]
    write_mtsd(folder, {"a": mtsd_annotation(boxes)}, {"train": ["a"]})

    def read(_):
        [photo] = read_mtsd("train", root=folder)
        for box in photo.boxes:
            assert 0 <= box.xmin < box.xmax
            assert 0 <= box.ymin < box.ymax <= photo.height

    content = json.dumps(mtsd_annotation(boxes)).encode()
    return file("mtsd_v2_fully_annotated/annotations/a.json", content, read)(folder)


def model(name, transform):
    def make(folder):
        torch.manual_seed(0)
        layer = pstn.SpatialTransformer(transform, ConvLocalizer(1, (8, 8), (2,), 3))
        pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(folder / "model")

        def read(path):
            pstn.from_pretrained(path.parent).save_pretrained(folder / "again")

        return file(f"model/{name}", (folder / "model" / name).read_bytes(), read)(folder)

    return make


def checkpoint(folder):
    torch.manual_seed(0)
    models = [ConvClassifier(1, (8, 8), 2, (2,), 3, 3) for _ in range(2)]
    population = Population(models, torch.rand(8, 1, 8, 8), torch.arange(8) % 2, recipe=Recipe(epochs=1, batch_size=4))
    save_checkpoint(folder / "whole.safetensors", population, {"data": "digits"})

    def read(path):
        load_checkpoint(path, population)
        assert read_about(path)["settings"] is not None

    return file("checkpoint.safetensors", (folder / "whole.safetensors").read_bytes(), read)(folder)


def header_of(make):
    """The header of a safetensors file as JSON, and what reads the file with another one of the right length."""

    def make_header(folder):
        content, attempt = make(folder)
        length = struct.unpack("<Q", content[:8])[0]
        data = content[8 + length :]
        return content[8 : 8 + length], lambda header: attempt(struct.pack("<Q", len(header)) + header + data)

    return make_header


def result(folder):
    whole = make_results()[0]
    _, attempt = file(f"{whole.experiment}.jsonl", b"", lambda path: read_results(path.parent))(folder)
    # A last line without an end counts as cut off: a whole line is what a reader must refuse or read.
    return whole.to_line().encode(), lambda content: attempt(content + b"\n")


FORMATS = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}
SETTINGS = b"data: digits\nepochs: 3\nlr: [0.001]\nkl_weight: [0.0003, 0.001]\nmodels: 2\nmodel: pstn\nsize: null\n"
BOXES = b"0 0.5 0.5 0.2 0.2\n1 0.25 0.5 0.1 0.3\n"
YAML = b"train: images\nnc: 2\nnames:\n  0: stop\n  1: yield\nnested: {a: [1, 2.5, 'x']}\n"
WEIGHTS = model("model.safetensors", pstn.Similarity())
TARGETS = {
    DataError: {
        **{f"image {suffix}": file(f"image.{suffix}", picture(kind), read_pixels) for suffix, kind in FORMATS.items()},
        "image png with valid checksums": png_with_checksums,
        "npy": file("x.npy", NPY, small(read_npy)),
        "npz": file("x.npz", saved(np.savez, x=np.zeros((6, 4, 4), np.float32), y=LABELS), read_image_npz),
        "npz members": npz_members,
        "idx": file("x-idx3-ubyte", IDX, small(read_idx)),
        "idx in gzip": file("x-idx3-ubyte.gz", gzip.compress(IDX), small(read_idx)),
        **{f"tar {mode}": tar(mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")},
        "zip": file("Toy.zip", zipped(train="1,2:a\n" * 50, test="1,2:a\n" * 50), read_zip),
        **{f"series {name}": file(f"Toy.{name}", text.encode(), read_and_stack) for name, text in SERIES.items()},
        "yolo boxes": yolo("labels/a.txt", BOXES, read_yolo),
        "yolo classes.txt": yolo("classes.txt", b"stop\nyield\nleft\n", read_class_names),
        "yolo data.yaml": yolo("data.yaml", YAML, read_class_names),
        "mtsd json": mtsd,
    },
    PictureError: {
        f"page {suffix}": file(f"x.{suffix}", picture(kind), read_digit) for suffix, kind in FORMATS.items()
    },
    ModelFileError: {
        "similarity json": model("config.json", pstn.Similarity()),
        "cpab json": model("config.json", pstn.Compose(pstn.Crop(), pstn.CPAB(tess=(2, 2)))),
        "weights": WEIGHTS,
        "header of weights json": header_of(WEIGHTS),
    },
    CheckpointError: {"checkpoint": checkpoint, "header of a checkpoint json": header_of(checkpoint)},
    SettingsError: {
        "settings": file("settings.yaml", SETTINGS, lambda path: TrainSettings.from_dict(read_settings(path)))
    },
    ValueError: {"result json": result},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "documented"),
    [pytest.param(name, make, error, id=name) for error, some in TARGETS.items() for name, make in some.items()],
)
def test_damaged_files_are_read_or_refused(name, make, documented, tmp_path):
    content, attempt = make(tmp_path)
    change = mutate_json if name.endswith("json") else mutate
    rng, refused = Random(name), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attempt(content)
        for case in range(CASES):
            damaged, message, start = change(content, rng), "", time.process_time()
            try:
                attempt(damaged)
            except documented as error:
                refused += 1
                message = str(error)
            except Exception as error:
                raise AssertionError(f"case {case} of {name}, {damaged[:2_000]!r}: {error!r}") from error
            assert len(message) < 1_000, (case, message, damaged[:2_000])
            assert time.process_time() - start < SECONDS, (case, damaged[:2_000])
    assert refused > CASES // 20
