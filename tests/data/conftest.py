"""What the tests of the data share: a cache of their own, no network, and small files of every kind."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest

from data_files import mtsd_annotation, mtsd_box, save_image, write_idx, write_mtsd

# A long look for files that break a parser: pytest tests/data --hypothesis-profile=thorough -k "any or changed"
hypothesis.settings.register_profile("thorough", max_examples=3000, deadline=None)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No test sees the user's cache or the network."""
    monkeypatch.setenv("PSTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PSTN_OFFLINE", "1")


@pytest.fixture
def absent(monkeypatch):
    """No data folder at all."""
    monkeypatch.delenv("PSTN_DATA", raising=False)


@pytest.fixture
def fake_mnist(tmp_path):
    """A tiny set in the files of MNIST: 60 training and 20 test images."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        images[:, :4] = 0
        write_idx(tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    return tmp_path / "mnist"


@pytest.fixture
def mtsd(tmp_path):
    """A small tree in the layout of MTSD, and the annotations in it, to be changed and written again."""
    root = tmp_path / "mtsd"
    yield_, stop = "regulatory--yield--g1", "regulatory--stop--g1"
    crowd = [mtsd_box(yield_, 100, 100, 120, 120, "a"), mtsd_box("other-sign", 150, 100, 170, 120, "b")]
    annotations = {
        "alone": mtsd_annotation([mtsd_box(yield_, 180.5, 130.2, 220.5, 170.9)]),
        "crowd": mtsd_annotation(crowd),
        "edge": mtsd_annotation([mtsd_box(stop, 0, 0, 30, 40)]),
        "pano": mtsd_annotation([mtsd_box(stop, 780, 90, 20, 130)], width=800, ispano=True),
    }
    splits = {"train": ["alone", "crowd", "pano"], "val": ["edge"], "test": ["unlabelled"]}
    write_mtsd(root, annotations, splits)
    for i, (key, content) in enumerate(annotations.items()):
        save_image(root / "images" / f"{key}.jpg", content["width"], content["height"], i)
    return root, annotations, splits


@pytest.fixture
def yolo(tmp_path):
    """A small YOLO folder: three photos of 200 x 100, with one, two and no boxes."""
    root = tmp_path / "signs"
    for i, name in enumerate(("a", "b", "c")):
        save_image(root / "images" / f"{name}.png", 200, 100, i)
    (root / "labels").mkdir()
    (root / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    (root / "labels" / "b.txt").write_text("1 0.1 0.1 0.1 0.1\n0 0.9 0.9 0.1 0.1\n")
    (root / "classes.txt").write_text("stop\nyield\n")
    return root
