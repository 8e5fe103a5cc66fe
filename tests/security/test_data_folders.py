"""Untrusted folders of data: links stay inside, nothing is listed twice, and names cost linear time."""

import os
import time

import numpy as np
import pytest

from data_files import mtsd_annotation, mtsd_box, refused, save_image, write_idx, write_mtsd
from pstn.data import DataWarning, check, from_folder, load, read_mtsd, read_yolo
from pstn.data.images import find_images
from pstn.data.photos import read_class_names
from pstn.data.series import load_ucr
from pstn.data.split import encode_labels, sort_classes
from pstn.limits import CLASSES


def draw(path, seed=0):
    return save_image(path, 16, 16, seed)


@pytest.fixture
def photos(tmp_path):
    """Two classes of three images each, and a secret beside the folder."""
    draw(tmp_path / "secret" / "secret.png", seed=99)
    for number, name in enumerate(["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"]):
        draw(tmp_path / "data" / f"{name}.png", number)
    return tmp_path / "data"


def test_links_that_lead_out_of_a_data_folder_are_left_out_and_counted(photos):
    (photos / "a" / "out.png").symlink_to(photos.parent / "secret" / "secret.png")
    (photos / "a" / "folder").symlink_to(photos.parent / "secret")
    (photos / "c").symlink_to(photos.parent / "secret")
    (photos / "b" / "relative.png").symlink_to("../../secret/secret.png")
    with pytest.warns(DataWarning, match=r"4 link\(s\)"):
        splits = from_folder(photos, test=0.0)
    assert len(splits.train) == 6
    assert splits.train.classes == ("a", "b")
    with pytest.warns(DataWarning, match=r"4 link\(s\)"):
        assert not any("secret" in os.path.realpath(path) for path in find_images(photos))
    [*rest, last] = check(photos)
    assert (last.status, "4 link(s)" in last.note) == ("skipped", True)
    assert {finding.status for finding in rest} == {"readable"}


def test_links_to_a_similar_name_and_in_a_circle(photos):
    draw(photos.parent / "data-2" / "1.png")
    (photos / "a" / "more").symlink_to(photos.parent / "data-2")
    (photos / "a" / "up").symlink_to(photos)
    (photos / "b" / "self").symlink_to(".")
    (photos / "b" / "none").symlink_to("none")
    (photos.parent / "link").symlink_to(photos)  # the folder itself may be a link
    with pytest.warns(DataWarning):
        assert len(list(find_images(photos.parent / "link"))) == 6


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("test/a/again", "../../train/a"),
        ("test/a/again.png", "../../train/a/0.png"),
        ("train/a/again", "../../test"),
        (None, None),
    ],
)
def test_a_folder_listed_twice_never_puts_a_picture_into_training_and_test(tmp_path, link, target):
    for number in range(4):
        draw(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", number)
        draw(tmp_path / "test" / "ab"[number % 2] / f"other-{number}.png", 10 + number)
    if link is None:
        os.link(tmp_path / "train" / "a" / "0.png", tmp_path / "test" / "a" / "again.png")
    else:
        (tmp_path / link).symlink_to(target)
    with pytest.warns(DataWarning, match="listed"):
        splits = from_folder(tmp_path)
    seen = {tuple(x.flatten().tolist()) for x in splits.train.x}
    assert len(seen) == len(splits.train)
    assert not seen & {tuple(x.flatten().tolist()) for x in (splits.test.x if splits.test else [])}


def make_yolo(root):
    for part, start in (("train", 0), ("val", 10)):
        (root / "labels" / part).mkdir(parents=True)
        for number in range(start, start + 3):
            draw(root / "images" / part / f"{number}.png", number)
            (root / "labels" / part / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    (root / "classes.txt").write_text("stop\n")


def test_a_yolo_photo_is_in_one_part_only(tmp_path):
    make_yolo(tmp_path)
    (tmp_path / "images" / "val" / "again.png").symlink_to("../train/0.png")
    os.link(tmp_path / "images" / "train" / "1.png", tmp_path / "images" / "val" / "hard.png")
    for name in ("images", "labels"):
        (tmp_path / name / "valid").symlink_to("train")
    with pytest.warns(DataWarning, match="listed"):
        parts, _ = read_yolo(tmp_path)
    keys = {part: [photo.key for photo in found] for part, found in parts.items()}
    assert keys == {"train": ["0", "1", "2"], "val": ["10", "11", "12"]}


def test_series_of_training_and_test_are_not_the_same_file(tmp_path):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n2\t4\t5\n" * 4)
    (tmp_path / "Toy_TEST.tsv").symlink_to("Toy_TRAIN.tsv")
    refused("same file", load_ucr, "Toy", root=tmp_path)
    refused("same file", load, tmp_path)


def test_class_names_take_linear_time_and_have_a_limit(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(f"n{i}" for i in range(CLASSES)))
    start = time.perf_counter()
    assert len(read_class_names(tmp_path)) == CLASSES
    (tmp_path / "classes.txt").write_text("\n".join(f"{i:x}" for i in range(170_000)))
    refused("classes", read_class_names, tmp_path)
    assert time.perf_counter() - start < 4
    labels = [f"n{i}" for i in range(CLASSES + 1)]
    refused("classes", encode_labels, labels, sort_classes(labels), error=ValueError)
    assert len(encode_labels(labels[:-1], sort_classes(labels[:-1]))) == CLASSES


def make_series(root):
    for part in ("TRAIN", "TEST"):
        (root / f"Toy_{part}.tsv").write_text("1\t2\t3\n2\t4\t5\n" * 4)


def make_mnist(root):
    for part in ("train", "t10k"):
        write_idx(root / f"{part}-images-idx3-ubyte", np.zeros((3, 8, 8), np.uint8))
        write_idx(root / f"{part}-labels-idx1-ubyte", np.arange(3, dtype=np.uint8))


def make_mtsd(root):
    save_image(root / "images" / "one.jpg", 400, 300)
    write_mtsd(root, {"one": mtsd_annotation([mtsd_box("stop", 4, 4, 12, 12)])}, {"train": ["one"]})


@pytest.mark.parametrize(
    ("make", "read", "name"),
    [
        (make_yolo, read_yolo, "labels/val/10.txt"),
        (make_yolo, read_yolo, "labels/val"),
        (make_yolo, read_yolo, "images/val"),
        (make_yolo, read_yolo, "classes.txt"),
        (make_mtsd, lambda root: read_mtsd("train", root=root), "images/one.jpg"),
        (make_mtsd, lambda root: read_mtsd("train", root=root), "mtsd_v2_fully_annotated/annotations/one.json"),
        (make_series, load, "Toy_TRAIN.tsv"),
        (make_series, load, "Toy_TEST.tsv"),
        (make_series, lambda root: load_ucr("Toy", root=root), "Toy_TRAIN.tsv"),
        (make_mnist, load, "train-labels-idx1-ubyte"),
    ],
)
def test_files_that_are_links_out_are_refused(tmp_path, make, read, name):
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    (root / name).rename(tmp_path / "moved")
    (root / name).symlink_to(tmp_path / "moved")
    refused("leads out", read, root)
