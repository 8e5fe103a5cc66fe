"""The Mapillary Traffic Sign Dataset, and the crops that are cut from its photos."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import save_image, write_mtsd
from pstn.data import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    MTSD_CLASSES,
    Box,
    DataError,
    DataWarning,
    MissingDataError,
    Sign,
    isolated_signs,
    load,
    load_mtsd,
    make_signs,
    read_mtsd,
)
from pstn.data.photos import decode_crops, region_around

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


def test_a_full_disk_is_told_before_it_kills(mtsd, tmp_path, monkeypatch):
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


def test_bad_boxes_can_be_left_out(mtsd):
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
        ('{"width": ' + "9" * 5000 + "}", "not JSON|must be a number"),
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


def test_a_truncated_image(mtsd):
    path = mtsd[0] / "images" / "alone.jpg"
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(DataError, match=r"alone.jpg: does not decode"):
        load_mtsd(root=mtsd[0], source=None)


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
