"""Folders of data from strangers: links stay inside, nothing is listed twice, and names cost linear time."""

import json
import os
import subprocess
import time

import numpy as np
import pytest
from PIL import Image

from pstn.data import DataError, DataWarning, check, from_folder, load, read_mtsd, read_yolo
from pstn.data.images import find_images
from pstn.data.photos import load_mtsd, read_class_names
from pstn.data.series import load_series_file, load_ucr
from pstn.data.split import encode_labels, sort_classes
from pstn.limits import CLASSES


def draw(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 16), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


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


def test_a_link_to_a_folder_with_a_similar_name_leads_out(photos):
    draw(photos.parent / "data-2" / "1.png")
    (photos / "a" / "more").symlink_to(photos.parent / "data-2")
    with pytest.warns(DataWarning, match=r"1 link\(s\)"):
        assert len(list(find_images(photos))) == 6


def test_links_in_a_circle_are_listed_once(photos):
    (photos / "a" / "up").symlink_to(photos)
    (photos / "b" / "self").symlink_to(".")
    (photos / "b" / "none").symlink_to("none")
    with pytest.warns(DataWarning):
        assert len(list(find_images(photos))) == 6


@pytest.mark.parametrize("how", ["folder", "file", "hard", "nested"])
def test_a_folder_listed_twice_never_puts_a_picture_into_training_and_test(tmp_path, how):
    for number in range(4):
        draw(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", number)
        draw(tmp_path / "test" / "ab"[number % 2] / f"other-{number}.png", 10 + number)
    if how == "folder":
        (tmp_path / "test" / "a" / "again").symlink_to("../../train/a")
    elif how == "file":
        (tmp_path / "test" / "a" / "again.png").symlink_to("../../train/a/0.png")
    elif how == "hard":
        os.link(tmp_path / "train" / "a" / "0.png", tmp_path / "test" / "a" / "again.png")
    else:
        (tmp_path / "train" / "a" / "again").symlink_to("../../test")
    with pytest.warns(DataWarning, match="listed"):
        splits = from_folder(tmp_path)
    seen = {tuple(x.flatten().tolist()) for x in splits.train.x}
    assert len(seen) == len(splits.train)
    assert not seen & {tuple(x.flatten().tolist()) for x in (splits.test.x if splits.test else [])}


def test_a_class_that_is_a_link_to_another_class_is_left_out(photos):
    (photos / "0").symlink_to("a")
    with pytest.warns(DataWarning, match="listed"):
        splits = from_folder(photos, test=0.0)
    assert splits.train.classes == ("a", "b")
    assert len(splits.train) == 6


def test_a_folder_of_data_may_itself_be_a_link(photos):
    (photos.parent / "link").symlink_to(photos)
    assert len(from_folder(photos.parent / "link", test=0.0).train) == 6


def test_folders_in_folders_in_folders(tmp_path):
    """As deep as a path may be: no recursion."""
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    draw(tmp_path / "1.png")
    assert len(list(find_images(tmp_path, lambda error: None))) == 1
    assert [finding.status for finding in check(tmp_path)][:1] == ["readable"]
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # pytest's own removal recurses


@pytest.fixture
def yolo(tmp_path):
    root = tmp_path / "yolo"
    for part, start in (("train", 0), ("val", 10)):
        (root / "labels" / part).mkdir(parents=True)
        for number in range(start, start + 3):
            draw(root / "images" / part / f"{number}.png", number)
            (root / "labels" / part / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    (root / "classes.txt").write_text("stop\n")
    (tmp_path / "secret.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    draw(tmp_path / "secret.png", 99)
    return root


def test_a_yolo_photo_is_in_one_part_only(yolo):
    (yolo / "images" / "val" / "again.png").symlink_to("../train/0.png")
    os.link(yolo / "images" / "train" / "1.png", yolo / "images" / "val" / "hard.png")
    (yolo / "images" / "valid").symlink_to("train")
    (yolo / "labels" / "valid").symlink_to("train")
    with pytest.warns(DataWarning, match="listed"):
        parts, _ = read_yolo(yolo)
    assert {part: [photo.key for photo in found] for part, found in parts.items()} == {
        "train": ["0", "1", "2"],
        "val": ["10", "11", "12"],
    }


def test_yolo_photos_that_are_links_out_are_left_out(yolo):
    (yolo / "images" / "val" / "secret.png").symlink_to("../../../secret.png")
    with pytest.warns(DataWarning, match=r"1 link\(s\)"):
        parts, _ = read_yolo(yolo)
    assert len(parts["val"]) == 3


@pytest.mark.parametrize("name", ["labels/val/10.txt", "labels/val", "images/val", "classes.txt"])
def test_yolo_files_that_are_links_out_are_refused(yolo, name):
    (yolo / name).rename(yolo.parent / "moved")
    (yolo / name).symlink_to(yolo.parent / "moved")
    with pytest.raises(DataError, match="leads out"):
        read_yolo(yolo)


@pytest.fixture
def mtsd(tmp_path):
    root = tmp_path / "mtsd"
    annotated = root / "mtsd_v2_fully_annotated"
    for folder in ("annotations", "splits"):
        (annotated / folder).mkdir(parents=True)
    (root / "images").mkdir()
    for number, key in enumerate(("one", "two")):
        draw(root / "images" / f"{key}.jpg", number)
        box = {"xmin": 4, "ymin": 4, "xmax": 12, "ymax": 12}
        content = {"width": 16, "height": 16, "ispano": False, "objects": [{"key": "k", "label": "stop", "bbox": box}]}
        (annotated / "annotations" / f"{key}.json").write_text(json.dumps(content))
    (annotated / "splits" / "train.txt").write_text("one\n")
    (annotated / "splits" / "val.txt").write_text("two\n")
    return root


@pytest.mark.parametrize("name", ["images/one.jpg", "images", "mtsd_v2_fully_annotated/annotations/one.json"])
def test_mtsd_files_that_are_links_out_are_refused(mtsd, name):
    assert len(read_mtsd("train", root=mtsd)) == 1
    (mtsd / name).rename(mtsd.parent / "moved")
    (mtsd / name).symlink_to(mtsd.parent / "moved")
    with pytest.raises(DataError, match="leads out"):
        read_mtsd("train", root=mtsd)


def test_an_mtsd_photo_is_in_one_split_only(mtsd):
    (mtsd / "images" / "two.jpg").unlink()
    (mtsd / "images" / "two.jpg").symlink_to("one.jpg")
    with pytest.raises(DataError, match=r"one\.jpg"):
        load_mtsd(root=mtsd, margin=0, classes=1, size=8, source=None, cache=False)


def test_series_of_training_and_test_are_not_the_same_file(tmp_path):
    (tmp_path / "Toy_TRAIN.tsv").write_text("1\t2\t3\n2\t4\t5\n" * 4)
    (tmp_path / "Toy_TEST.tsv").symlink_to("Toy_TRAIN.tsv")
    for read in (lambda: load_ucr("Toy", root=tmp_path), lambda: load(tmp_path)):
        with pytest.raises(DataError, match="same file"):
            read()


@pytest.mark.parametrize("name", ["Toy_TRAIN.tsv", "Toy_TEST.tsv"])
def test_series_that_are_links_out_are_refused(tmp_path, name):
    folder = tmp_path / "data"
    folder.mkdir()
    for part in ("TRAIN", "TEST"):
        (folder / f"Toy_{part}.tsv").write_text("1\t2\t3\n2\t4\t5\n" * 4)
    assert len(load(folder).test) == 8
    (folder / name).rename(tmp_path / "moved.tsv")
    (folder / name).symlink_to(tmp_path / "moved.tsv")
    for read in (lambda: load(folder), lambda: load_ucr("Toy", root=folder)):
        with pytest.raises(DataError, match="leads out"):
            read()
    if name == "Toy_TRAIN.tsv":  # a file that the user names may be a link
        assert len(load_series_file(folder / name).test) == 8


def test_mnist_files_that_are_links_out_are_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "moved").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
    for name in ("train-labels-idx1-ubyte", "train-images-idx3-ubyte"):
        (folder / name).symlink_to(tmp_path / "moved")
    with pytest.raises(DataError, match="leads out"):
        load(folder)


def test_class_names_take_linear_time_and_have_a_limit(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(f"n{i}" for i in range(CLASSES)))
    start = time.perf_counter()
    assert len(read_class_names(tmp_path)) == CLASSES
    assert time.perf_counter() - start < 2
    (tmp_path / "classes.txt").write_text("\n".join(f"{i:x}" for i in range(170_000)))
    start = time.perf_counter()
    with pytest.raises(DataError, match="classes"):
        read_class_names(tmp_path)
    assert time.perf_counter() - start < 2
    (tmp_path / "classes.txt").write_text("a\nb\na\n")
    with pytest.raises(DataError, match="line 3"):
        read_class_names(tmp_path)


def test_aliases_in_a_yolo_data_yaml_are_refused(tmp_path):
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        laughs += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    (tmp_path / "data.yaml").write_text(f"{laughs}names: *a11\n")
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"data\.yaml") as caught:
        read_class_names(tmp_path)
    assert time.perf_counter() - start < 2
    assert len(str(caught.value)) < 1000


def test_labels_take_linear_time_and_have_a_limit():
    labels = [f"n{i}" for i in range(CLASSES + 1)]
    with pytest.raises(ValueError, match="classes"):
        sort_classes(labels)
    assert len(encode_labels(labels[:-1], sort_classes(labels[:-1]))) == CLASSES


@pytest.mark.parametrize("suffix", [".ts", ".arff", ".tsv"])
def test_files_of_series_with_many_classes_take_linear_time(tmp_path, suffix):
    names = [f"n{i}" for i in range(20_000)]
    head = {
        ".ts": f"@problemName x\n@univariate true\n@classLabel true {' '.join(names)}\n@data\n",
        ".arff": f"@relation x\n@attribute a numeric\n@attribute target {{{','.join(names)}}}\n@data\n",
        ".tsv": "",
    }[suffix]
    row = {".ts": "1:{}", ".arff": "1,{}", ".tsv": "{}\t1"}[suffix]
    text = head + "\n".join(row.format(name) for name in names) + "\n"
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Toy_{part}{suffix}").write_text(text)
    start = time.perf_counter()
    assert len(load(tmp_path, validation=0).train) == len(names)
    assert time.perf_counter() - start < 12


def test_a_named_pipe_in_place_of_a_label_file_is_refused(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "classes.txt").write_text("stop\n")
    os.mkfifo(tmp_path / "labels" / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt"):
        read_yolo(tmp_path)
