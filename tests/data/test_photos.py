"""Photos with boxes: YOLO folders, MTSD, crops."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import needs_real, refused, save_image, tar_of_folder, write_mtsd
from pstn.data import Box, DataWarning, MissingDataError, Photo, Sign, load, photos, read_mtsd, read_yolo
from pstn.data.files import unpack_tar

STOP, YIELD = "regulatory--stop--g1", "regulatory--yield--g1"


def photo(*corners, width=1000, height=500, panorama=False):
    return Photo("p", Path("p.jpg"), width, height, tuple(Box(*c, "a") for c in corners), panorama)


def test_boxes_are_isolated_by_the_margin_on_each_side_and_across_the_edge_of_a_panorama():
    for gap, alone in ((149.9, False), (150.0, True)):
        for second in ((10 + gap, 0, 20 + gap, 10), (0, 10 + gap, 10, 20 + gap)):
            assert photos.isolated(photo((0, 0, 10, 10), second)) == [alone, alone]
    for panorama in (False, True):
        assert photos.isolated(photo((20, 0, 60, 40), (940, 0, 980, 40), panorama=panorama)) == [not panorama] * 2
        found = photos.isolated(photo((980, 0, 1020, 40), (100, 0, 120, 40), (500, 0, 520, 40), panorama=panorama))
        assert found == [not panorama, not panorama, True]


@pytest.mark.parametrize(
    ("corners", "panorama", "expected"),
    [
        ((400, 200, 420, 220), False, (250, 50, 570, 370)),
        ((10, 20, 30, 40), False, (0, 0, 180, 190)),
        ((980, 480, 1000, 500), False, (830, 330, 1000, 500)),
        ((980, 200, 1020, 220), True, (830, 50, 1170, 370)),
        ((10, 200, 30, 220), True, (-140, 50, 180, 370)),
        ((0, 200, 900, 220), True, (0, 50, 1000, 370)),
    ],
)
def test_wide_regions(corners, panorama, expected):
    sign = Sign(photo(corners, panorama=panorama), Box(*corners, "a"))
    assert photos.region_around(sign, 150) == expected


def test_mtsd(mtsd):
    root, _, _ = mtsd
    found = {p.key: p for p in read_mtsd("train", root=root)}
    assert set(found) == {"alone", "crowd", "pano"}
    assert found["pano"].panorama
    assert found["pano"].boxes[0] == Box(780, 90, 820, 130, STOP)  # across the edge
    assert found["alone"].boxes[0].xmin == 180.5
    splits = photos.load_mtsd(root=root, source=64, size=32, classes=[YIELD, STOP])
    # "crowd" is left out: its boxes are 30 pixels apart.
    assert splits.sizes() == {"train": 2, "validation": 0, "test": 1}
    assert splits.train.x.shape == (2, 3, 32, 32)
    assert splits.train.source.shape == (2, 3, 64, 64)
    assert splits.train.x.dtype == torch.uint8
    assert (splits.train.y.tolist(), splits.test.y.tolist()) == ([0, 1], [1])
    assert photos.load_mtsd(root=root, source=None, size=16, classes=1).train.classes == (STOP,)
    (root / "images" / "train").mkdir()
    for key in found:  # older downloads have a folder per split
        (root / "images" / f"{key}.jpg").rename(root / "images" / "train" / f"{key}.jpg")
    older = photos.load_mtsd(root=root, source=None, size=16)
    assert (older.sizes()["train"], older.train.classes) == (2, photos.MTSD_CLASSES)  # the paper's ten
    assert len(set(photos.MTSD_CLASSES)) == 10


def test_crops_show_the_right_pixels(mtsd):
    root, _, _ = mtsd
    found = {p.key: p for p in read_mtsd("train", root=root)}
    pixels = {key: np.asarray(Image.open(root / "images" / f"{key}.jpg").convert("RGB")) for key in found}
    across = np.concatenate([pixels["pano"][90:130, 780:800], pixels["pano"][90:130, 0:20]], axis=1)
    for key, margin, expected in (
        ("alone", 0, pixels["alone"][130:171, 180:221]),
        ("alone", 10, pixels["alone"][120:181, 170:231]),
        ("pano", 0, across),
    ):
        sign = Sign(found[key], found[key].boxes[0])
        (crop,) = photos.decode_crops([sign], margin=margin, sizes=[len(expected)])
        assert np.array_equal(crop[0].movedim(0, -1).numpy(), expected)


def test_crops_are_cached_and_the_cache_knows_its_photos(mtsd, tmp_path, monkeypatch):
    root, _, _ = mtsd
    in_memory = photos.load_mtsd(root=root, source=None, size=16, cache=False)
    assert not (tmp_path / "cache").exists()
    first = photos.load_mtsd(root=root, source=None, size=16)
    assert torch.equal(first.train.x, in_memory.train.x)

    def no_decoding(*args):
        raise AssertionError("decoded again")

    monkeypatch.setattr(photos, "open_image", no_decoding)
    assert torch.equal(photos.load_mtsd(root=root, source=None, size=16).train.x, first.train.x)
    os.utime(root / "images" / "alone.jpg", ns=(1, 1))  # another picture under the same name, of the same size
    refused("decoded again", photos.load_mtsd, root=root, source=None, size=16, error=AssertionError)
    assert not [p for p in (tmp_path / "cache" / "crops").iterdir() if p.name.startswith(".")]


def test_a_full_disk_is_reported_before_writing(mtsd, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    refused(r"1,536 bytes, 1,000 are free.*PSTN_CACHE", photos.load_mtsd, root=mtsd[0], source=None, size=16)
    assert not list((tmp_path / "cache" / "crops").iterdir())


def change(**updates):
    return lambda annotation: annotation.update(updates)


def change_box(**updates):
    return lambda annotation: annotation["objects"][0]["bbox"].update(updates)


BAD_ANNOTATIONS = {
    "objects[0]": [
        change_box(xmin=230), change_box(ymin=170.9), change_box(xmin=400.5, xmax=401.5), change_box(xmax=500),
        change_box(xmin=-50), change_box(ymin=-50), change_box(ymax=500), change_box(xmin=None),
        change_box(xmin=10**400), lambda annotation: annotation["objects"][0].update(label=1), change(objects=[3]),
    ],
    "top level": [change(objects=None), change(width="wide"), change(width=0), change(ispano="yes")],
    None: [change_box(xmin=float("inf"))],
}  # fmt: skip


@pytest.mark.parametrize(("damage", "place"), [(d, place) for place, some in BAD_ANNOTATIONS.items() for d in some])
def test_bad_annotations_are_named_with_the_place(mtsd, damage, place):
    root, annotations, splits = mtsd
    damage(annotations["alone"])
    write_mtsd(root, annotations, splits)
    assert refused(r"alone\.json", read_mtsd, "train", root=root).place == place


@pytest.mark.parametrize("text", ["{", "[]", "", '{"width": 1, "width": 2}'])
def test_bad_json(mtsd, text):
    (mtsd[0] / "mtsd_v2_fully_annotated" / "annotations" / "alone.json").write_text(text)
    refused(r"alone\.json", read_mtsd, "train", root=mtsd[0])


def test_bad_boxes_can_be_skipped_but_not_bad_files(mtsd, yolo):
    root, annotations, splits = mtsd
    label = yolo / "labels" / "a.txt"
    change_box(xmax=500)(annotations["alone"])
    write_mtsd(root, annotations, splits)
    label.write_text("0 0.95 0.5 0.2 0.2\n1 0.5 0.5 0.1 0.1\n")
    with pytest.warns(DataWarning, match=r"1 bad box.*alone.json"):
        assert read_mtsd("train", root=root, bad_boxes="skip")[0].boxes == ()
    with pytest.warns(DataWarning, match=r"1 bad box.*a\.txt"):
        assert len(read_yolo(yolo, bad_boxes="skip")[0]["all"][0].boxes) == 1
    change_box(xmax="box")(annotations["alone"])
    write_mtsd(root, annotations, splits)
    refused("box", read_mtsd, "train", root=root, bad_boxes="skip")
    label.write_text("0 box 0.5 0.2 0.2\n")
    refused("line 1", read_yolo, yolo, bad_boxes="skip")
    refused("bad_boxes", read_yolo, yolo, bad_boxes="keep", error=ValueError)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"train": ["alone", "alone"]}, "train.txt: line 2"), ({"train": ["../../alone"]}, "train.txt: line 1"),
        ({"train": ["a\\b"]}, "train.txt: line 1"), ({"train": ["nobody"]}, "nobody.json"),
        ({"train": []}, "train.txt"), ({"val": ["alone"]}, "val.txt: line 1"),
    ],
)  # fmt: skip
def test_bad_splits(mtsd, keys, place):
    root, annotations, splits = mtsd
    write_mtsd(root, annotations, {**splits, **keys})
    refused(place, read_mtsd, "train", root=root)


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0 cut", "other size", "missing"])
def test_bad_images(mtsd, content, tmp_path):
    path = mtsd[0] / "images" / "alone.jpg"
    path.unlink()
    if content == "other size":
        save_image(path, 200, 150)
    elif content != "missing":
        path.write_bytes(content)
    refused(r"alone\.jpg", photos.load_mtsd, root=mtsd[0], source=None)
    crops = tmp_path / "cache" / "crops"
    assert not crops.exists() or not list(crops.iterdir())  # nothing half-made is kept


def test_without_pillow_the_message_says_what_to_install(mtsd, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(r"pip install 'pstn\[data\]'", photos.load_mtsd, root=mtsd[0], source=None, error=ImportError)


def test_classes_or_a_margin_that_leave_nothing(mtsd, yolo):
    signs = photos.isolated_signs(read_mtsd("train", root=mtsd[0]))
    refused("signs", photos.make_signs, signs, ["nothing"], error=ValueError)
    (yolo / "labels" / "a.txt").unlink()
    refused("margin of 500", photos.load_yolo, yolo, margin=500, test=0.0)


def test_yolo(yolo, tmp_path):
    parts, names = read_yolo(yolo)
    assert names == ("stop", "yield")
    a, b, c = parts["all"]
    assert a.boxes == (Box(80, 30, 120, 70, "stop"),)
    assert (len(b.boxes), len(c.boxes)) == (2, 0)
    for path in (yolo, tar_of_folder(tmp_path / "signs.tar.gz", yolo)):
        splits = load(path, margin=20, size=16, test=0.0)
        assert splits.sizes() == {"train": 3, "validation": 0, "test": 0}
        assert splits.train.classes == ("stop", "yield")


@pytest.mark.parametrize("nested", [True, False])
def test_yolo_with_parts(yolo, nested):
    for part, names in (("train", "ab"), ("val", "c")):
        for kind, suffix in (("images", "png"), ("labels", "txt")):
            folder = yolo / kind / part if nested else yolo / part / kind
            folder.mkdir(parents=True)
            for path in (yolo / kind / f"{name}.{suffix}" for name in names):
                if path.exists():
                    path.rename(folder / path.name)
    if not nested:
        (yolo / "images").rmdir()
        (yolo / "labels").rmdir()
    assert {part: len(found) for part, found in read_yolo(yolo)[0].items()} == {"train": 2, "val": 1}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [stop, 'yield']\n", ("stop", "yield")),
        ("nc: 2\nnames:\n- stop\n- yield\n", ("stop", "yield")),
        ("names: {1: 'yield', 0: 'stop'}", ("stop", "yield")),
        ("path: x\nnames: [stop,  # red\n  yield]\n", ("stop", "yield")),
        ("names: [no, 30]\n", ("no", "30")),  # text, whatever it looks like
        *((text, None) for text in ("names:\n  0: stop\n  2: yield\n", "names:\n  0: stop\n  0: yield\n")),
        *((text, None) for text in ("names: {a: stop, b: yield}", "names: []", "names: stop", "names: [[stop]]")),
        *((text, None) for text in ("nc: 2\nnames: [stop\n", "nc: 2\n", "- names\n", "[" * 5000)),
    ],
)
def test_names_in_yaml(yolo, text, names):
    (yolo / "classes.txt").unlink()
    (yolo / "data.yaml").write_text(text)
    if names is None:
        refused(r"data\.yaml", read_yolo, yolo)
    else:
        assert read_yolo(yolo)[1] == names


@pytest.mark.parametrize(
    "text",  # too few columns, classes and numbers that are none, no area, partly outside
    [
        "0 0.5 0.5 0.2", "2 0.5 0.5 0.2 0.2", "stop 0.5 0.5 0.2 0.2", "0 0.5 x 0.2 0.2", "0 0.5 0.5 0 0.2",
        "0 0.5 0.5 nan 0.2", "0 0.5 0.5 inf 0.2", "0 0.95 0.5 0.2 0.2",
    ],
)  # fmt: skip
def test_bad_labels_are_named_with_the_line(yolo, text):
    (yolo / "labels" / "a.txt").write_text(f"\n{text}\n")
    error = refused(r"a\.txt", read_yolo, yolo)
    assert (error.path, error.place) == (yolo / "labels" / "a.txt", "line 2")


def test_odd_yolo_folders(yolo):
    (yolo / "classes.txt").write_text("stop\nstop\n")
    refused(r"classes.txt: class 'stop'", read_yolo, yolo)
    (yolo / "classes.txt").unlink()
    refused(r"classes\.txt", read_yolo, yolo, error=MissingDataError)
    (yolo / "classes.txt").write_text("stop\nyield\n")
    save_image(yolo / "images" / "a.jpg", 200, 100)
    refused("shares its label file with", read_yolo, yolo)
    refused("nowhere", photos.load_yolo, yolo / "nowhere", error=MissingDataError)


@needs_real
def test_real_traffic_signs(tmp_path):
    folder = unpack_tar(photos.find_traffic_signs(), tmp_path / "signs")
    parts, names = read_yolo(folder)
    found = parts["all"]
    assert (len(found), sum(len(p.boxes) for p in found), len(names)) == (1400, 3391, 87)
    assert len({box.label for p in found for box in p.boxes}) == 84
    assert max(max(p.width, p.height) for p in found) == 608
    # Nothing that was kept has another box within the margin; checked the slow way.
    signs = photos.isolated_signs(found, 50)
    pairs = [(sign.box, other) for sign in signs[:300] for other in sign.photo.boxes if other is not sign.box]
    for box, other in pairs:
        gap_x = max(other.xmin - box.xmax, box.xmin - other.xmax)
        gap_y = max(other.ymin - box.ymax, box.ymin - other.ymax)
        assert max(gap_x, gap_y) >= 50
    splits = load(folder, size=64, source=128, margin=50, classes=10)
    assert splits.sizes()["train"] > 450
    assert splits.train.source.shape[1:] == (3, 128, 128)
    assert (splits.train.counts() > 10).all()
    # The view is the source at half the size.
    half = torch.nn.functional.avg_pool2d(splits.train.source[:20].float(), 2)
    assert (half - splits.train.x[:20].float()).abs().mean() < 6
