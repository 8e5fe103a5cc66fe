"""Image files: decoding, folders of images per class."""

import os
import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from data_files import save_image
from pstn.data import (
    Box,
    DataError,
    Photo,
    Sign,
    from_folder,
)
from pstn.data.images import each_in_parallel, find_images, read_image
from pstn.data.photos import decode_crops


@pytest.fixture
def ramp():
    """Every level of 16 bits that is the same level of 8 bits, and those just beside it."""
    levels = np.arange(256, dtype=np.uint16) * 257
    return np.stack([levels, np.minimum(levels, 65535 - 100) + 100, np.maximum(levels, 100) - 100])


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_pictures_of_16_bits_keep_their_levels(tmp_path, ramp, suffix):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(ramp).save(tmp_path / name / f"1.{suffix}")
    x = from_folder(tmp_path, test=0.0).train.x
    assert x.shape == (2, 1, 3, 256)
    assert (x[0, 0].int().numpy() == np.arange(256)).all()
    assert (from_folder(tmp_path, test=0.0, channels=3).train.x[0, 2].int().numpy() == np.arange(256)).all()


def test_crops_of_16_bits_keep_their_levels(tmp_path, ramp):
    Image.fromarray(np.repeat(ramp[:1], 256, 0)).save(tmp_path / "a.png")
    box = Box(0, 0, 256, 256, "a")
    (crop,) = decode_crops([Sign(Photo("a", tmp_path / "a.png", 256, 256, (box,)), box)], margin=0, sizes=[256])
    assert (crop[0, :, 0].int().numpy() == np.arange(256)).all()


@pytest.mark.parametrize("held", range(1, 9))
def test_photos_are_turned_as_the_camera_was_held(tmp_path, held):
    """As Pillow's own `exif_transpose` turns them, before their sizes are compared."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = held
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        photo.save(tmp_path / name / "1.png", exif=exif)
    with Image.open(tmp_path / "a" / "1.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(from_folder(tmp_path, test=0.0).train.x[0, 0].numpy(), expected)


@pytest.mark.parametrize("note", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b""])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow says so too
def test_a_damaged_note_on_the_camera_is_no_reason_to_refuse_a_photo(tmp_path, note):
    (tmp_path / "a").mkdir()
    Image.new("L", (6, 4), 77).save(tmp_path / "a" / "1.jpg", exif=note)
    read, size = read_image(tmp_path / "a" / "1.jpg", 1)
    assert size == (4, 6)
    assert (read == 77).all()


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_pictures_without_a_white_are_refused(tmp_path, dtype):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 70_000, dtype)).save(tmp_path / "a" / "1.tif")
    with pytest.raises(DataError, match=r"1\.tif: .*32 bits.*from_arrays"):
        from_folder(tmp_path, test=0.0)


def test_an_interrupt_does_not_wait_for_what_is_queued(monkeypatch):
    begun, ended, release, before = [], [], threading.Event(), set(threading.enumerate())

    def work(item):
        begun.append(item)
        release.wait(10)
        ended.append(item)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("pstn.data.images.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        each_in_parallel(work, range(100), 2)
    assert ended == []  # it did not wait for those under way
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert len(begun) <= 2  # nor were the others begun


@pytest.fixture
def folder(tmp_path):
    for i in range(10):
        save_image(tmp_path / "mine" / ("cat" if i % 2 else "dog") / f"{i}.png", 12, 10, i)
    (tmp_path / "mine" / ".hidden").mkdir()
    (tmp_path / "mine" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "mine"


def test_a_folder_per_class(folder):
    splits = from_folder(folder)
    assert splits.sizes() == {"train": 8, "validation": 0, "test": 2}
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.x.shape == (8, 3, 10, 12)
    assert splits.test.counts().tolist() == [1, 1]
    picture = np.asarray(Image.open(folder / "cat" / "1.png"))
    everything = from_folder(folder, test=0.0).train
    assert np.array_equal(everything.x[0].movedim(0, -1).numpy(), picture)
    assert everything.y[0] == 0


def test_sizes_and_channels(folder):
    splits = from_folder(folder, size=16, channels=1)
    assert splits.train.x.shape == (8, 1, 16, 16)
    assert from_folder(folder, size=(8, 20)).train.x.shape == (8, 3, 8, 20)


def test_grey_images_stay_grey(tmp_path):
    (tmp_path / "g" / "a").mkdir(parents=True)
    Image.new("L", (4, 4), 9).save(tmp_path / "g" / "a" / "1.png")
    assert from_folder(tmp_path / "g", test=0.0).train.x.shape == (1, 1, 4, 4)


def test_parts_of_a_folder(tmp_path):
    for part in ("train", "val", "test"):
        save_image(tmp_path / part / "cat" / "1.png", 8, 8)
    save_image(tmp_path / "train" / "dog" / "1.png", 8, 8)
    splits = from_folder(tmp_path)
    assert splits.sizes() == {"train": 2, "validation": 1, "test": 1}
    assert splits.test.classes == ("cat", "dog")
    save_image(tmp_path / "test" / "bird" / "1.png", 8, 8)
    with pytest.raises(DataError, match=r"bird: unknown label 'bird': the training part has cat, dog"):
        from_folder(tmp_path)


def test_bad_folders(folder):
    (folder / "cat" / "bad.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(DataError, match=r"bad.png: does not decode"):
        from_folder(folder)
    (folder / "cat" / "bad.png").unlink()
    save_image(folder / "cat" / "odd.png", 7, 7)
    with pytest.raises(DataError, match=r"odd.png: is 7x7, others are 12x10: pass size="):
        from_folder(folder)
    (folder / "cat" / "odd.png").unlink()
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: holds no images"):
        from_folder(folder)
    with pytest.raises(DataError, match="holds no folders"):
        from_folder(folder / "empty")
    with pytest.raises(DataError, match="no such folder"):
        from_folder(folder / "nowhere")


def test_a_class_called_train_beside_others_is_a_class(tmp_path):
    for name in ("car", "bus", "train"):
        save_image(tmp_path / name / "1.png", 8, 8)
    assert from_folder(tmp_path, test=0.0).train.classes == ("bus", "car", "train")


def test_pictures_without_classes_are_not_classes(tmp_path):
    for name in ("train", "test"):
        save_image(tmp_path / name / "1.png", 8, 8)
    with pytest.raises(DataError, match="one per class is expected"):
        from_folder(tmp_path)


def test_hidden_folders_within_a_class_are_skipped(tmp_path):
    for place in ("a/1.png", "a/.ipynb_checkpoints/1.png", "a/inner/2.png", "b/1.png"):
        save_image(tmp_path / place, 8, 8)
    assert from_folder(tmp_path, test=0.0).train.counts().tolist() == [2, 1]


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "testing"), ("TRAIN", "VAL")])
def test_parts_are_known_by_other_spellings(tmp_path, names):
    for part in names:
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / part / label / "1.png")
    splits = from_folder(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert sorted(splits.sizes().values()) == [0, 2, 2]


def test_links_are_followed_once_and_unreadable_folders_are_reported(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for path in (root / "a" / "1.png", root / ".hidden" / "2.png"):
        path.write_bytes(b"")
    (root / "b").symlink_to(".hidden")
    assert [path.name for path in find_images(root)] == ["1.png", "2.png"]
    told = []
    monkeypatch.setattr(os, "scandir", lambda path: (_ for _ in ()).throw(PermissionError(13, "denied", str(path))))
    assert list(find_images(root, told.append)) == []
    assert str(told[0]) == f"{root}: cannot be read (denied)"
