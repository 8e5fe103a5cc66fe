"""Decoding pictures: their depth, their number, and a user who has waited long enough."""

import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from pstn.data import Box, DataError, Photo, Sign, from_folder
from pstn.data.images import each_in_parallel, read_image
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
