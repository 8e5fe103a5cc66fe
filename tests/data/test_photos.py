"""Photos with boxes: YOLO folders, MTSD, crops."""

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import needs_real, save_image, write_mtsd
from pstn.data import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    MTSD_CLASSES,
    Box,
    DataError,
    DataWarning,
    MissingDataError,
    Photo,
    Sign,
    commonest_classes,
    isolated,
    isolated_signs,
    load,
    load_mtsd,
    load_yolo,
    make_signs,
    read_mtsd,
    read_yolo,
)
from pstn.data.files import unpack_tar
from pstn.data.photos import decode_crops, find_traffic_signs, region_around


def photo(*corners, width=1000, height=500, panorama=False):
    return Photo("p", Path("p.jpg"), width, height, tuple(Box(*c, "a") for c in corners), panorama)


@pytest.mark.parametrize(("gap", "alone"), [(149.9, False), (150.0, True), (151, True)])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_margin_counts_on_each_side(gap, alone, axis):
    first, second = [0, 0, 10, 10], [0, 0, 10, 10]
    second[axis], second[axis + 2] = 10 + gap, 20 + gap
    assert isolated(photo(first, second)) == [alone, alone]


def test_a_far_box_on_one_axis_is_enough():
    assert isolated(photo((0, 0, 10, 10), (300, 0, 310, 10))) == [True, True]
    assert isolated(photo((0, 0, 10, 10), (100, 300, 110, 310))) == [True, True]


def test_distances_on_a_panorama_cross_its_edge():
    corners = (20, 0, 60, 40), (940, 0, 980, 40)
    assert isolated(photo(*corners)) == [True, True]
    assert isolated(photo(*corners, panorama=True)) == [False, False]
    across = (980, 0, 1020, 40), (100, 0, 120, 40), (500, 0, 520, 40)
    assert isolated(photo(*across, panorama=True)) == [False, False, True]


def test_all_labels_count_as_neighbours_but_other_sign_is_no_class():
    boxes = (Box(0, 0, 10, 10, "x"), Box(20, 0, 30, 10, "other-sign"), Box(500, 0, 510, 10, "other-sign"))
    signs = isolated_signs([Photo("p", Path("p"), 1000, 500, boxes)])
    assert [s.box.label for s in signs] == ["other-sign"]
    assert commonest_classes(signs) == ()


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
    assert region_around(sign, 150) == expected


STOP, YIELD = "regulatory--stop--g1", "regulatory--yield--g1"


def test_mtsd(mtsd):
    root, _, _ = mtsd
    photos = {p.key: p for p in read_mtsd("train", root=root)}
    assert set(photos) == {"alone", "crowd", "pano"}
    assert photos["pano"].panorama
    assert photos["pano"].boxes[0] == Box(780, 90, 820, 130, STOP)  # across the edge
    assert photos["alone"].boxes[0].xmin == 180.5
    splits = load_mtsd(root=root, source=64, size=32, classes=[YIELD, STOP])
    # "crowd" is left out: its boxes are 30 pixels apart.
    assert splits.sizes() == {"train": 2, "validation": 0, "test": 1}
    assert splits.train.x.shape == (2, 3, 32, 32)
    assert splits.train.source.shape == (2, 3, 64, 64)
    assert splits.train.x.dtype == torch.uint8
    assert splits.train.classes == (YIELD, STOP)
    assert splits.train.y.tolist() == [0, 1]
    assert splits.test.y.tolist() == [1]


def test_the_papers_ten_classes_are_the_default(mtsd):
    splits = load_mtsd(root=mtsd[0], source=None, size=16)
    assert splits.train.classes == MTSD_CLASSES
    assert len(set(MTSD_CLASSES)) == 10
    assert load_mtsd(root=mtsd[0], source=None, size=16, classes=1).train.classes == (STOP,)


def test_tight_and_wide_crops_show_the_right_pixels(mtsd):
    root, _, _ = mtsd
    pixels = np.asarray(Image.open(root / "images" / "alone.jpg").convert("RGB"))
    sign = Sign(read_mtsd("train", root=root)[0], read_mtsd("train", root=root)[0].boxes[0])
    left, top, right, bottom = region_around(sign)
    assert (left, top, right, bottom) == (180, 130, 221, 171)
    (tight,) = decode_crops([sign], margin=0, sizes=[41])
    assert np.array_equal(tight[0].movedim(0, -1).numpy(), pixels[130:171, 180:221])
    (wide,) = decode_crops([sign], margin=10, sizes=[61])
    assert np.array_equal(wide[0].movedim(0, -1).numpy(), pixels[120:181, 170:231])


def test_a_crop_across_the_edge_of_a_panorama_is_whole(mtsd):
    root, _, _ = mtsd
    pano = next(p for p in read_mtsd("train", root=root) if p.panorama)
    pixels = np.asarray(Image.open(pano.path).convert("RGB"))
    (tight,) = decode_crops([Sign(pano, pano.boxes[0])], margin=0, sizes=[40])
    expected = np.concatenate([pixels[90:130, 780:800], pixels[90:130, 0:20]], axis=1)
    assert np.array_equal(tight[0].movedim(0, -1).numpy(), expected)


def test_older_downloads_have_a_folder_per_split(mtsd):
    root, _, _ = mtsd
    for key in ("alone", "crowd", "pano"):
        (root / "images" / "train").mkdir(exist_ok=True)
        (root / "images" / f"{key}.jpg").rename(root / "images" / "train" / f"{key}.jpg")
    assert load_mtsd(root=root, source=None, size=16).sizes()["train"] == 2


def test_crops_are_cached_and_the_cache_knows_its_photos(mtsd, tmp_path, monkeypatch):
    root, _, _ = mtsd
    first = load_mtsd(root=root, source=None, size=16)
    import pstn.data.photos as crops

    def no_decoding(*args):
        raise AssertionError("decoded again")

    monkeypatch.setattr(crops, "open_image", no_decoding)
    assert torch.equal(load_mtsd(root=root, source=None, size=16).train.x, first.train.x)
    os.utime(root / "images" / "alone.jpg", ns=(1, 1))  # another picture under the same name, of the same size
    with pytest.raises(AssertionError, match="decoded again"):
        load_mtsd(root=root, source=None, size=16)
    assert not [p for p in (tmp_path / "cache" / "crops").iterdir() if p.name.startswith(".")]


def test_a_full_disk_is_reported_before_writing(mtsd, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"no room for the crops: they need 1,536 bytes, 1,000 are free.*PSTN_CACHE"):
        load_mtsd(root=mtsd[0], source=None, size=16)
    assert not list((tmp_path / "cache" / "crops").iterdir())


def test_without_cache_nothing_is_written(mtsd, tmp_path):
    first = load_mtsd(root=mtsd[0], source=None, size=16, cache=False)
    assert not (tmp_path / "cache").exists()
    assert torch.equal(first.train.x, load_mtsd(root=mtsd[0], source=None, size=16).train.x)


def test_a_batch_is_normalised_where_it_is(mtsd):
    train = load_mtsd(root=mtsd[0], source=32, size=16).train
    batch = train.take([1, 0]).as_float(IMAGENET_MEAN, IMAGENET_STD)
    expected = (train.x[[1, 0]].float() / 255 - torch.tensor(IMAGENET_MEAN)[:, None, None]) / torch.tensor(
        IMAGENET_STD
    )[:, None, None]
    assert torch.allclose(batch.x, expected, atol=1e-6)
    assert batch.source.dtype == torch.float32
    assert batch.fill == pytest.approx([-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])


def test_absent_mtsd_says_what_to_do(absent):
    with pytest.raises(MissingDataError, match=r"mtsd_v2_fully_annotated.*cache/mtsd.*mapillary.*pstn data check"):
        load("mtsd")


def change(**updates):
    def apply(annotation):
        annotation.update(updates)

    return apply


def change_box(**updates):
    def apply(annotation):
        annotation["objects"][0]["bbox"].update(updates)

    return apply


BAD_ANNOTATIONS = {
    "inverted": (change_box(xmin=230), "objects[0].bbox"),
    "empty": (change_box(ymin=170.9), "objects[0].bbox"),
    "beyond the edge": (change_box(xmin=400.5, xmax=401.5), "objects[0].bbox"),
    "outside": (change_box(xmax=500), "objects[0].bbox"),
    "negative": (change_box(ymin=-50), "objects[0].bbox"),
    "text": (change_box(xmin="a"), "objects[0].bbox"),
    "infinite": (change_box(xmin=float("inf")), None),
    "missing": (change_box(xmin=None), "objects[0].bbox"),
    "huge": (change_box(xmin=10**400), "objects[0].bbox"),
    "no box": (lambda a: a["objects"][0].pop("bbox"), "objects[0]"),
    "no label": (lambda a: a["objects"][0].pop("label"), "objects[0]"),
    "key twice": (lambda a: a["objects"].append(a["objects"][0]), "objects[1]"),
    "no objects": (change(objects=None), "top level"),
    "objects": (change(objects=[3]), "objects[0]"),
    "width": (change(width="wide"), "top level"),
    "zero": (change(width=0), "top level"),
    "panorama": (change(ispano="yes"), "top level"),
}


@pytest.mark.parametrize("name", BAD_ANNOTATIONS)
def test_bad_annotations_are_named_with_the_place(mtsd, name):
    root, annotations, splits = mtsd
    spoil, place = BAD_ANNOTATIONS[name]
    spoil(annotations["alone"])
    write_mtsd(root, annotations, splits)
    with pytest.raises(DataError) as caught:
        read_mtsd("train", root=root)
    assert caught.value.path.name == "alone.json"
    assert caught.value.place == place


def test_bad_boxes_can_be_skipped(mtsd):
    root, annotations, splits = mtsd
    change_box(xmax=500)(annotations["alone"])
    write_mtsd(root, annotations, splits)
    with pytest.warns(DataWarning, match=r"1 bad box.*alone.json"):
        photos = read_mtsd("train", root=root, bad_boxes="skip")
    assert photos[0].boxes == ()
    change_box(xmax="box")(annotations["alone"])
    write_mtsd(root, annotations, splits)
    with pytest.raises(DataError, match="xmax must be a number, got 'box'"):
        read_mtsd("train", root=root, bad_boxes="skip")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"width": 1, "width": 2}', "key 'width' occurs twice in one object"),
        ("{", "is not JSON.*|line 1, column 2"),
        ("[]", "must hold an object"),
        ("", "is not JSON"),
        ("[" * 100_000, "nested"),
        ('{"width": ' + "9" * 5000 + "}", "JSON|must be a number"),
    ],
)
def test_bad_json(mtsd, text, message):
    root, _, _ = mtsd
    (root / "mtsd_v2_fully_annotated" / "annotations" / "alone.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_mtsd("train", root=root)
    assert "alone.json" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["alone", "alone"], "train.txt: line 2: key 'alone'"),
        (["../../alone"], r"train.txt: line 1: '../../alone' is not an image key"),
        (["/etc/passwd"], "leads out"),
        (["a\\b"], "leads out"),
        (["nobody"], "nobody.json: is missing"),
        ([], "holds no keys"),
    ],
)
def test_bad_splits(mtsd, keys, message):
    root, annotations, splits = mtsd
    write_mtsd(root, annotations, {**splits, "train": keys})
    with pytest.raises(DataError, match=message):
        read_mtsd("train", root=root)


def test_a_key_in_two_splits(mtsd):
    root, annotations, splits = mtsd
    write_mtsd(root, annotations, {**splits, "val": ["alone"]})
    with pytest.raises(DataError, match=r"val.txt: line 1: key 'alone'.*train.txt"):
        read_mtsd("val", root=root)


def test_images_that_do_not_fit_their_annotation(mtsd):
    root, _, _ = mtsd
    save_image(root / "images" / "alone.jpg", 200, 150)
    with pytest.raises(DataError, match=r"alone.jpg: is 200x150 pixels, its boxes are for 400x300"):
        load_mtsd(root=root, source=None)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0 cut"])
def test_images_that_do_not_decode(mtsd, content, tmp_path):
    root, _, _ = mtsd
    (root / "images" / "alone.jpg").write_bytes(content)
    with pytest.raises(DataError, match=r"alone.jpg: does not decode"):
        load_mtsd(root=root, source=None)
    assert not list((tmp_path / "cache" / "crops").iterdir())  # nothing half-made is kept


def test_a_missing_image(mtsd):
    (mtsd[0] / "images" / "alone.jpg").unlink()
    with pytest.raises(DataError, match=r"alone.jpg: there is no such image"):
        load_mtsd(root=mtsd[0], source=None)


def test_without_pillow_the_message_says_what_to_install(mtsd, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'pstn\[data\]'"):
        load_mtsd(root=mtsd[0], source=None)


def test_no_sign_of_the_classes(mtsd):
    signs = isolated_signs(read_mtsd("train", root=mtsd[0]))
    with pytest.raises(ValueError, match="signs must hold"):
        make_signs(signs, ["nothing"])


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


def test_bad_yolo_boxes_can_be_skipped_but_not_bad_lines(yolo):
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
