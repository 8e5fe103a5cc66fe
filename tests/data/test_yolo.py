"""YOLO folders, small ones and the real one."""

import tarfile

import pytest
import torch

from data_files import needs_real, save_image
from pstn.data import (
    Box,
    DataError,
    DataWarning,
    MissingDataError,
    isolated_signs,
    load,
    load_yolo,
    read_yolo,
)
from pstn.data.files import unpack_tar
from pstn.data.photos import find_traffic_signs


def test_yolo(yolo):
    parts, names = read_yolo(yolo)
    assert names == ("stop", "yield")
    a, b, c = parts["all"]
    assert a.boxes == (Box(80, 30, 120, 70, "stop"),)
    assert (len(b.boxes), len(c.boxes)) == (2, 0)
    splits = load_yolo(yolo, margin=20, size=16, test=0.0)
    assert splits.sizes() == {"train": 3, "validation": 0, "test": 0}
    assert splits.train.classes == ("stop", "yield")
    assert load(yolo, margin=20, size=16, test=0.0).sizes() == splits.sizes()


def test_yolo_in_an_archive(yolo, tmp_path):
    with tarfile.open(tmp_path / "signs.tar.gz", "w:gz") as archive:
        for name in ("images", "labels", "classes.txt"):
            archive.add(yolo / name, name)
    assert load(tmp_path / "signs.tar.gz", margin=20, size=16, test=0.0).sizes()["train"] == 3


@pytest.mark.parametrize("nested", [True, False])
def test_yolo_with_parts(yolo, nested):
    for part, names in (("train", "ab"), ("val", "c")):
        for kind, suffix in (("images", "png"), ("labels", "txt")):
            folder = yolo / kind / part if nested else yolo / part / kind
            folder.mkdir(parents=True)
            for name in names:
                path = yolo / kind / f"{name}.{suffix}"
                if path.exists():
                    path.rename(folder / path.name)
    if not nested:
        (yolo / "images").rmdir()
        (yolo / "labels").rmdir()
    parts, _ = read_yolo(yolo)
    assert {part: len(photos) for part, photos in parts.items()} == {"train": 2, "val": 1}


@pytest.mark.parametrize(
    "text",
    [
        "names: [stop, 'yield']\n",
        "nc: 2\nnames:\n- stop\n- yield\n",
        "names:\n  0: stop\n  1: yield\nnc: 2\n",
        "names: {0: 'stop', 1: 'yield'}",
        "names: {1: yield, 0: stop}",
        "names: {1: 'yield', 0: 'stop'}",
        "names:\n  1: yield\n  0: stop\n",
        "names: # mine\n  - stop  # red\n  - yield\n",
        "path: x\nnames: [stop,  # red\n  yield]\n",
    ],
)
def test_names_in_yaml(yolo, text):
    (yolo / "classes.txt").unlink()
    (yolo / "data.yaml").write_text(text)
    assert read_yolo(yolo)[1] == ("stop", "yield")


def test_names_in_yaml_are_text_whatever_they_look_like(yolo):
    (yolo / "classes.txt").unlink()
    (yolo / "data.yaml").write_text("names: [no, 30]\n")
    assert read_yolo(yolo)[1] == ("no", "30")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names:\n  0: stop\n  2: yield\n", "must be numbered from 0 to 1, each once"),
        ("names:\n  0: stop\n  0: yield\n", "line 3: .*twice"),
        ("names: {a: stop, b: yield}", "must be numbered from 0 to 1, each once"),
        ("names: []", "names"),
        ("names: stop", "names"),
        ("names: [[stop]]", "names"),
        ("nc: 2\nnames: [stop\n", "is not YAML"),
        ("nc: 2\n", "names"),
        ("- names\n", "names"),
        ("[" * 5000, "nested"),
    ],
)
def test_bad_yaml(yolo, text, message):
    (yolo / "classes.txt").unlink()
    (yolo / "data.yaml").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_yolo(yolo)
    assert "data.yaml" in str(caught.value)


BAD_LABELS = {
    "columns": ("0 0.5 0.5 0.2", "line 1: 5 columns"),
    "class": ("2 0.5 0.5 0.2 0.2", "line 1: unknown label '2': classes are 0 to 1"),
    "class name": ("stop 0.5 0.5 0.2 0.2", "unknown label 'stop'"),
    "number": ("0 0.5 x 0.2 0.2", "line 1, column 3: 'x' is not a number"),
    "no area": ("0 0.5 0.5 0 0.2", "has no area"),
    "negative": ("0 0.5 0.5 -0.1 0.2", "has no area"),
    "nan": ("0 0.5 0.5 nan 0.2", "has no area"),
    "beyond the edge": ("0 1.0005 0.5 0.0002 0.2", "no area within the image"),
    "outside": ("\n0 0.95 0.5 0.2 0.2", "line 2: the box is outside"),
}


@pytest.mark.parametrize("name", BAD_LABELS)
def test_bad_labels_are_named_with_the_line(yolo, name):
    text, message = BAD_LABELS[name]
    (yolo / "labels" / "a.txt").write_text(text + "\n")
    with pytest.raises(DataError, match=message) as caught:
        read_yolo(yolo)
    assert str(yolo / "labels" / "a.txt") in str(caught.value)


def test_bad_yolo_boxes_can_be_left_out_but_not_bad_lines(yolo):
    (yolo / "labels" / "a.txt").write_text("0 0.95 0.5 0.2 0.2\n1 0.5 0.5 0.1 0.1\n")
    with pytest.warns(DataWarning, match="1 bad box"):
        parts, _ = read_yolo(yolo, bad_boxes="skip")
    assert len(parts["all"][0].boxes) == 1
    (yolo / "labels" / "a.txt").write_text("zero 0.5 0.5 0.2 0.2\n")
    with pytest.raises(DataError, match="unknown label"):
        read_yolo(yolo, bad_boxes="skip")
    (yolo / "labels" / "a.txt").write_text("0 box 0.5 0.2 0.2\n")
    with pytest.raises(DataError, match="'box' is not a number"):
        read_yolo(yolo, bad_boxes="skip")


def test_odd_yolo_folders(yolo):
    (yolo / "classes.txt").write_text("stop\nstop\n")
    with pytest.raises(DataError, match=r"classes.txt: line 2: class 'stop' occurs twice"):
        read_yolo(yolo)
    (yolo / "classes.txt").unlink()
    with pytest.raises(MissingDataError, match="class names are looked for in"):
        read_yolo(yolo)
    (yolo / "classes.txt").write_text("stop\nyield\n")
    save_image(yolo / "images" / "a.jpg", 200, 100)
    with pytest.raises(DataError, match="shares its label file with"):
        read_yolo(yolo)
    with pytest.raises(DataError, match="there is no such folder or archive"):
        load_yolo(yolo / "nowhere")


def test_a_margin_that_leaves_nothing(yolo):
    (yolo / "labels" / "a.txt").unlink()
    with pytest.raises(DataError, match="margin of 500"):
        load_yolo(yolo, margin=500, test=0.0)


@pytest.fixture(scope="module")
def traffic_signs(tmp_path_factory):
    """The real photos, unpacked once."""
    return unpack_tar(find_traffic_signs(), tmp_path_factory.mktemp("real") / "signs")


@needs_real
def test_real_traffic_signs(traffic_signs):
    parts, names = read_yolo(traffic_signs)
    photos = parts["all"]
    assert (len(photos), sum(len(p.boxes) for p in photos), len(names)) == (1400, 3391, 87)
    assert len({box.label for p in photos for box in p.boxes}) == 84
    assert max(max(p.width, p.height) for p in photos) == 608
    signs = isolated_signs(photos, 50)
    # Nothing that was kept has another box within the margin; checked the slow way.
    for sign in signs[:300]:
        for other in sign.photo.boxes:
            if other is not sign.box:
                gap_x = max(other.xmin - sign.box.xmax, sign.box.xmin - other.xmax)
                gap_y = max(other.ymin - sign.box.ymax, sign.box.ymin - other.ymax)
                assert max(gap_x, gap_y) >= 50


@needs_real
def test_real_traffic_signs_as_tensors(traffic_signs):
    splits = load(traffic_signs, size=64, source=128, margin=50, classes=10)
    sizes = splits.sizes()
    assert sizes["train"] > 450
    assert sizes["test"] > 100
    assert splits.train.x.shape[1:] == (3, 64, 64)
    assert splits.train.source.shape[1:] == (3, 128, 128)
    assert len(splits.train.classes) == 10
    assert (splits.train.counts() > 10).all()
    # The view is the source at half the size.
    half = torch.nn.functional.avg_pool2d(splits.train.source[:20].float(), 2)
    assert (half - splits.train.x[:20].float()).abs().mean() < 6
