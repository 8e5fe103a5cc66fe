"""Every reader of files from strangers, on a fixed number of damaged ones: it reads them or raises as documented."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import struct
import tarfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

import pstn
from data_files import idx_bytes, mtsd_annotation, mtsd_box, save_image, write_mtsd
from made_up_results import make_results
from pstn.app.core import PictureError, read_picture, to_digit
from pstn.data import DataError, from_npz, read_mtsd, read_series, read_yolo, stack_series
from pstn.data.files import open_zip, read_npy, read_zip_member, unpack_tar
from pstn.data.images import read_idx, read_image
from pstn.data.photos import read_class_names
from pstn.io import ModelFileError
from pstn.nn import ConvClassifier, ConvLocalizer
from pstn.report.results import read_results
from pstn.training.population import Population
from pstn.training.population.recipe import Recipe
from pstn.training.runs.checkpoint import CheckpointError, load_checkpoint, read_about, save_checkpoint
from pstn.training.runs.settings import SettingsError, TrainSettings, read_settings
from security.fuzz import mutate, mutate_json

CASES = 250
SECONDS = 2.0  # of processor time for a case: a valid file takes a hundredth of it
Attempt = Callable[[bytes], object]
TARGETS: dict[str, tuple[Callable[[Path], tuple[bytes, Attempt]], tuple[type[Exception], ...]]] = {}


def target(name: str, *errors: type[Exception]):
    """Register a reader: the function gives a valid content and what reads a damaged one, in a folder of its own."""

    def register(make):
        TARGETS[name] = (make, errors)
        return make

    return register


def reads(folder: Path, name: str, read: Callable[[Path], object]) -> Attempt:
    """What writes a content to a file and reads it."""

    def attempt(content: bytes) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return attempt


# Images


def _picture(kind: str, mode: str = "RGB", **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def _register_images():
    for kind, suffix in (
        ("PNG", "png"),
        ("JPEG", "jpg"),
        ("GIF", "gif"),
        ("BMP", "bmp"),
        ("TIFF", "tif"),
        ("WEBP", "webp"),
        ("PPM", "ppm"),
    ):

        @target(f"image {suffix}", DataError)
        def image(folder, kind=kind, suffix=suffix):
            def read(path):
                pixels, _ = read_image(path, 3, (8, 8))
                assert pixels.shape == (3, 8, 8)

            return _picture(kind), reads(folder, f"image.{suffix}", read)

        @target(f"picture on the page {suffix}", PictureError)
        def picture(folder, kind=kind, suffix=suffix):
            def read(path):
                assert to_digit(read_picture(path)).shape == (1, 28, 28)

            return _picture(kind), reads(folder, f"image.{suffix}", read)


_register_images()


@target("image png with valid checksums", DataError)
def png(folder):
    """The chunks of a PNG are damaged, and their checksums made anew: damage gets past the first check."""

    def rebuilt(content):
        chunks, at = [], 0
        while at + 8 <= len(content):
            length = min(struct.unpack(">I", content[at : at + 4])[0], len(content))
            body = content[at + 4 : at + 8 + length]
            chunks.append(content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body)))
            at += 12 + length
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    whole = reads(folder, "image.png", lambda path: read_image(path, 1, (8, 8)))
    return _picture("PNG")[8:], lambda content: whole(rebuilt(content))


# Arrays and archives


def _npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(96, dtype=np.float32).reshape(6, 4, 4))
    return stream.getvalue()


def _small(read):
    """A reader of arrays, none of which is larger than its file can be, packed as tightly as gzip packs."""

    def checked(path):
        assert read(path).nbytes <= 1032 * path.stat().st_size

    return checked


@target("npy", DataError)
def npy(folder):
    return _npy(), reads(folder, "x.npy", _small(read_npy))


@target("npz", DataError)
def npz(folder):
    stream = io.BytesIO()
    np.savez(stream, x=np.zeros((6, 4, 4), np.float32), y=np.array([0, 1] * 3))
    return stream.getvalue(), reads(folder, "x.npz", lambda path: from_npz(path, kind="image"))


@target("npz members", DataError)
def npz_members(folder):
    """The arrays of an archive are damaged, and the archive is whole."""
    labels = io.BytesIO()
    np.save(labels, np.array([0, 1] * 3))
    read = reads(folder, "x.npz", lambda path: from_npz(path, kind="image"))

    def attempt(content):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", content)
            archive.writestr("y.npy", labels.getvalue())
        return read(stream.getvalue())

    return _npy(), attempt


@target("idx", DataError)
def idx(folder):
    return idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4)), reads(folder, "x-idx3-ubyte", _small(read_idx))


@target("idx in gzip", DataError)
def idx_gzip(folder):
    content = gzip.compress(idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4)))
    return content, reads(folder, "x-idx3-ubyte.gz", _small(read_idx))


def _tar(mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in (("images/a.txt", b"one"), ("labels/" + "b" * 120 + ".txt", b"two" * 100)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _register_tars():
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):

        @target(f"tar {mode}", DataError)
        def tar(folder, mode=mode):
            def read(path):
                shutil.rmtree(folder / "work" / "out", ignore_errors=True)
                unpack_tar(path, folder / "work" / "out")
                assert not [p for p in (folder / "work" / "out").rglob("*") if p.is_symlink()]

            (folder / "work").mkdir()
            attempt = reads(folder, "x.tar", read)

            def outside_is_untouched(content):
                try:
                    attempt(content)
                finally:
                    assert {p.name for p in folder.iterdir()} == {"work", "x.tar"}

            return _tar(mode), outside_is_untouched


_register_tars()


@target("zip", DataError)
def zipped(folder):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Toy_TRAIN.ts", "1,2:a\n" * 50)
        archive.writestr("Toy_TEST.ts", "1,2:a\n" * 50)

    def read(path):
        with open_zip(path) as archive:
            for member in archive.namelist():
                read_zip_member(archive, member, path)

    return stream.getvalue(), reads(folder, "Toy.zip", read)


# Series

SERIES = {
    "tsv": "1\t0.5\t-1.5\n2\t1e-3\t2\n1\t3\t4\n",
    "csv": "class,t0,t1\na,0.5,-1.5\nb,1e-3,2\na,3,4\n",
    "ts": """@problemName Toy
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true up down
@data
1,2,3:4,5,6:up
7,8,9:10,11,12:down
""",
    "arff": """@relation toy
@attribute channels relational
@attribute t0 numeric
@attribute t1 numeric
@end channels
@attribute 'the class' {up, down}
@data
'1,2\\n4,5',up
'7,8\\n10,11',down
""",
    "flat.arff": """@relation toy
@attribute a numeric
@attribute b numeric
@attribute c {1,2}
@data
0.5,-1.5,1
1e-3,2,2
""",
}


def _register_series():
    for suffix, text in SERIES.items():

        @target(f"series {suffix}", DataError)
        def series(folder, suffix=suffix, text=text):
            def read(path):
                found = read_series(path)
                assert len(found.values) == len(found.labels) == len(found.lines) > 0
                assert all(v.ndim == 2 and not np.isinf(v).any() for v in found.values)
                for policy in ("refuse", "resample", "pad"):
                    with contextlib.suppress(DataError):
                        stack_series([found], policy)

            return text.encode(), reads(folder, f"Toy.{suffix}", read)


_register_series()


# Photographs with boxes


def _yolo(folder):
    save_image(folder / "images" / "a.png", 40, 30)
    (folder / "labels").mkdir()
    (folder / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (folder / "classes.txt").write_text("stop\nyield\n")
    return folder


@target("yolo boxes", DataError)
def yolo_boxes(folder):
    _yolo(folder)
    return b"0 0.5 0.5 0.2 0.2\n1 0.25 0.5 0.1 0.3\n", reads(folder, "labels/a.txt", lambda _: read_yolo(folder))


@target("yolo classes.txt", DataError)
def yolo_classes(folder):
    _yolo(folder)
    return b"stop\nyield\nleft\n", reads(folder, "classes.txt", lambda _: read_class_names(folder))


@target("yolo data.yaml", DataError)
def yolo_yaml(folder):
    (_yolo(folder) / "classes.txt").unlink()
    text = b"train: images\nnc: 2\nnames:\n  0: stop\n  1: yield\nnested: {a: [1, 2.5, 'x']}\n"
    return text, reads(folder, "data.yaml", lambda _: read_class_names(folder))


@target("mtsd json", DataError)
def mtsd(folder):
    (folder / "images").mkdir()
    annotation = mtsd_annotation(
        [mtsd_box("regulatory--stop--g1", 1, 2, 30, 40), mtsd_box("other-sign", 5, 5, 9, 9, "l")]
    )
    write_mtsd(folder, {"a": annotation}, {"train": ["a"]})
    path = "mtsd_v2_fully_annotated/annotations/a.json"

    def read(_):
        [photo] = read_mtsd("train", root=folder)
        for box in photo.boxes:
            assert 0 <= box.xmin < box.xmax
            assert 0 <= box.ymin < box.ymax <= photo.height

    return json.dumps(annotation).encode(), reads(folder, path, read)


# Models and runs


def _model(folder, transform=None):
    torch.manual_seed(0)
    layer = pstn.SpatialTransformer(transform or pstn.Similarity(), ConvLocalizer(1, (8, 8), (2,), 3))
    pstn.PSTN(layer, ConvClassifier(1, (8, 8), 2, (2,), 3, 3)).save_pretrained(folder)
    return folder


def _register_models():
    transforms = {"similarity": pstn.Similarity, "cpab": lambda: pstn.Compose(pstn.Crop(), pstn.CPAB(tess=(2, 2)))}
    for name, transform in transforms.items():

        @target(f"{name} config.json", ModelFileError)
        def config(folder, transform=transform):
            def read(path):
                model = pstn.from_pretrained(path.parent)
                model.save_pretrained(folder / "again")

            _model(folder / "model", transform())
            return (folder / "model" / "config.json").read_bytes(), reads(folder, "model/config.json", read)


_register_models()


@target("weights", ModelFileError)
def weights(folder):
    content = (_model(folder / "model") / "model.safetensors").read_bytes()
    return content, reads(folder, "model/model.safetensors", lambda path: pstn.from_pretrained(path.parent))


def _with_header(content: bytes, attempt: Attempt) -> tuple[bytes, Attempt]:
    """The header of a safetensors file as JSON, and what reads the file with another one of the right length."""
    length = struct.unpack("<Q", content[:8])[0]
    data = content[8 + length :]
    return content[8 : 8 + length], lambda header: attempt(struct.pack("<Q", len(header)) + header + data)


@target("header of weights json", ModelFileError)
def weights_header(folder):
    return _with_header(*weights(folder))


@target("checkpoint", CheckpointError)
def checkpoint(folder):
    torch.manual_seed(0)
    models = [ConvClassifier(1, (8, 8), 2, (2,), 3, 3) for _ in range(2)]
    population = Population(models, torch.rand(8, 1, 8, 8), torch.arange(8) % 2, recipe=Recipe(epochs=1, batch_size=4))
    save_checkpoint(folder / "whole.safetensors", population, {"data": "digits"})

    def read(path):
        load_checkpoint(path, population)
        assert read_about(path)["settings"] is not None

    return (folder / "whole.safetensors").read_bytes(), reads(folder, "checkpoint.safetensors", read)


@target("header of a checkpoint json", CheckpointError)
def checkpoint_header(folder):
    return _with_header(*checkpoint(folder))


@target("settings.yaml", SettingsError)
def settings_file(folder):
    text = b"data: digits\nepochs: 3\nlr: [0.001]\nkl_weight: [0.0003, 0.001]\nmodels: 2\nmodel: pstn\nsize: null\n"
    return text, reads(folder, "settings.yaml", lambda path: TrainSettings.from_dict(read_settings(path)))


@target("result json", ValueError)
def result(folder):
    whole = make_results()[0]
    # A last line without an end counts as cut off: a whole line is what a reader must refuse or read.
    content = f"{whole.to_line()}".encode()

    def attempt(content):
        (folder / f"{whole.experiment}.jsonl").write_bytes(content + b"\n")
        return read_results(folder)

    return content, attempt


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(name, tmp_path):
    make, errors = TARGETS[name]
    content, attempt = make(tmp_path)
    change = mutate_json if name.endswith("json") else mutate
    dice, refused = Random(name), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attempt(content)
        for case in range(CASES):
            damaged, message, start = change(content, dice), "", time.process_time()
            try:
                attempt(damaged)
            except errors as error:
                refused += 1
                message = str(error)
            except Exception as error:
                raise AssertionError(f"case {case} of {name}, {damaged[:2_000]!r}: {error!r}") from error
            assert len(message) < 1_000, (case, message, damaged[:2_000])
            assert time.process_time() - start < SECONDS, (case, damaged[:2_000])
    assert refused > CASES // 20


@pytest.mark.slow
def test_damaged_requests_to_the_example_server_are_answered(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'pstn[onnx]'")
    from security.example_server import ask, request, send, serving

    dice, statuses = Random("requests"), set()
    with serving(tmp_path) as port:
        for _ in range(CASES):
            start = time.monotonic()
            statuses.add(ask(port, mutate(_picture("JPEG"), dice))[0])
            answer = send(port, mutate(request(_picture("JPEG")), dice))
            assert answer == b"" or answer.startswith(b"HTTP/1.0 ") or b"Error response" in answer
            assert time.monotonic() - start < 10
        assert ask(port, _picture("PNG"))[0] == 200
    assert statuses == {200, 400}
