"""Image files, folders of images per class, IDX files, MNIST and the digits that ship with the package."""

import gzip
import os
import struct
import threading

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from data_files import needs_real, refused, save_image, write_idx
from pstn.data import MissingDataError, Photo, data_folder, from_folder, images, load_mnist, read_idx
from pstn.data.files import sha256_of_content
from pstn.data.images import each_in_parallel, find_images, read_image
from pstn.data.photos import Box, Sign, decode_crops
from pstn.files import sha256_of


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_pictures_of_16_bits_keep_their_levels(tmp_path, suffix):
    """Every level of 16 bits that is the same level of 8 bits, and those just beside it."""
    levels = np.arange(256, dtype=np.uint16) * 257
    ramp = np.stack([levels, np.minimum(levels, 65535 - 100) + 100, np.maximum(levels, 100) - 100])
    path = tmp_path / "data" / "a" / f"1.{suffix}"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.repeat(ramp, 86, 0)[:256]).save(path)
    box = Box(0, 0, 256, 256, "a")
    (crop,) = decode_crops([Sign(Photo("a", path, 256, 256, (box,)), box)], margin=0, sizes=[256])
    for x in (from_folder(tmp_path / "data", test=0.0, channels=channels).train.x for channels in (None, 3)):
        assert (x[0, -1].int().numpy() == np.arange(256)).all()
    assert (crop[0].int().numpy() == np.arange(256)).all()


@pytest.mark.parametrize("held", range(1, 9))
def test_photos_are_turned_as_the_camera_was_held(tmp_path, held):
    """As Pillow's own `exif_transpose` turns them, before their sizes are compared."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = held
    (tmp_path / "a").mkdir()
    photo.save(tmp_path / "a" / "1.png", exif=exif)
    with Image.open(tmp_path / "a" / "1.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(from_folder(tmp_path, test=0.0).train.x[0, 0].numpy(), expected)


@pytest.mark.parametrize("note", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b""])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow says so too
def test_a_damaged_note_on_the_camera_is_no_reason_to_refuse_a_photo(tmp_path, note):
    Image.new("L", (6, 4), 77).save(tmp_path / "1.jpg", exif=note)
    read, size = read_image(tmp_path / "1.jpg", 1)
    assert size == (4, 6)
    assert (read == 77).all()


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_pictures_without_a_white_are_refused(tmp_path, dtype):
    Image.fromarray(np.full((4, 4), 70_000, dtype)).save(tmp_path / "1.tif")
    refused(r"1\.tif: .*32 bits.*from_arrays", read_image, tmp_path / "1.tif", 1)


def test_unreadable_folders_and_images_are_reported(tmp_path, monkeypatch):
    def denied(path, *args):
        raise PermissionError(13, "denied", str(path))

    save_image(tmp_path / "1.png", 8, 8)
    monkeypatch.setattr(os, "open", denied)
    refused(r"1\.png", read_image, tmp_path / "1.png", 1)
    errors = []
    monkeypatch.setattr(os, "scandir", denied)
    assert list(find_images(tmp_path, errors.append)) == []
    assert str(errors[0]) == f"{tmp_path}: cannot be read (denied)"


def test_an_interrupt_does_not_wait_for_what_is_queued():
    begun, ended, release, before = [], [], threading.Event(), set(threading.enumerate())

    def work(item):
        begun.append(item)
        if item == 0:
            raise KeyboardInterrupt
        release.wait(10)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        each_in_parallel(work, range(100), 2)
    assert ended == []  # it did not wait for those under way
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert len(begun) <= 4  # nor were the others begun


@pytest.fixture
def folder(tmp_path):
    for i in range(10):
        save_image(tmp_path / "mine" / ("cat" if i % 2 else "dog") / f"{i}.png", 12, 10, i)
    save_image(tmp_path / "mine" / "cat" / ".ipynb_checkpoints" / "1.png", 8, 8)
    (tmp_path / "mine" / ".hidden").mkdir()
    (tmp_path / "mine" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "mine"


def test_a_folder_per_class(folder, tmp_path):
    splits = from_folder(folder)
    assert splits.sizes() == {"train": 8, "validation": 0, "test": 2}
    assert splits.train.classes == ("cat", "dog")
    assert splits.test.counts().tolist() == [1, 1]
    everything = from_folder(folder, test=0.0).train
    assert np.array_equal(everything.x[0].movedim(0, -1).numpy(), np.asarray(Image.open(folder / "cat" / "1.png")))
    assert everything.y[0] == 0
    assert from_folder(folder, size=16, channels=1).train.x.shape == (8, 1, 16, 16)
    assert from_folder(folder, size=(8, 20)).train.x.shape == (8, 3, 8, 20)
    (tmp_path / "grey" / "a").mkdir(parents=True)
    Image.new("L", (4, 4), 9).save(tmp_path / "grey" / "a" / "1.png")
    assert from_folder(tmp_path / "grey", test=0.0).train.x.shape == (1, 1, 4, 4)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "VALID", "testing")])
def test_parts_of_a_folder(tmp_path, names):
    for path in (*(f"{part}/cat" for part in names), f"{names[0]}/dog"):
        save_image(tmp_path / path / "1.png", 8, 8)
    splits = from_folder(tmp_path)
    assert splits.sizes() == {"train": 2, "validation": 1, "test": 1}
    assert splits.test.classes == ("cat", "dog")
    save_image(tmp_path / names[2] / "bird" / "1.png", 8, 8)
    refused(r"bird.*: unknown label 'bird'", from_folder, tmp_path)


def test_bad_folders(folder):
    (folder / "cat" / "bad.png").write_bytes(b"\x89PNG nothing")
    refused(r"bad.png: does not decode", from_folder, folder)
    save_image(folder / "cat" / "bad.png", 7, 7)
    refused(r"bad.png: .*7x7 and 12x10.*size=", from_folder, folder)
    (folder / "cat" / "bad.png").unlink()
    (folder / "empty").mkdir()
    refused("empty: holds no images", from_folder, folder)
    refused("holds no folders", from_folder, folder / "empty")
    refused("no such folder", from_folder, folder / "nowhere")


def test_a_class_called_train_beside_others_is_a_class(tmp_path):
    for name in ("train", "test"):
        save_image(tmp_path / name / "1.png", 8, 8)
    refused("one per class is expected", from_folder, tmp_path)  # pictures without classes are not classes
    for name in ("car", "bus"):
        save_image(tmp_path / name / "1.png", 8, 8)
    assert from_folder(tmp_path, test=0.0).train.classes == ("bus", "car", "test", "train")


def test_idx_files(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    for suffix in ("", ".gz"):
        assert np.array_equal(read_idx(write_idx(tmp_path / f"images{suffix}", array)), array)
    refused("swapped", read_idx, tmp_path / "images", ndim=1)
    (tmp_path / "floats").write_bytes(bytes([0, 0, 0x0D, 1]) + struct.pack(">I2f", 2, 1.5, -2.0))
    assert read_idx(tmp_path / "floats").tolist() == [1.5, -2.0]


BAD_IDX = {
    "empty": (b"", "offset 0"),
    "wrong magic": (b"\x89PNG\r\n\x1a\n", "offset 0"),
    "no axes": (bytes([0, 0, 8, 0]), "offset 0"),
    "unknown type": (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "offset 0"),
    "cut header": (bytes([0, 0, 8, 3, 0, 0]), "header"),
    "too few": (bytes([0, 0, 8, 1]) + struct.pack(">I", 10) + b"12345", "offset 13"),
    "too many": (bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + b"12345", "offset 11"),
    "large header": (bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**32 - 1, 2**32 - 1) + b"1", "header"),
}


@pytest.mark.parametrize("name", BAD_IDX)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bad_idx_files_are_named_with_the_place(tmp_path, name, pack):
    content, place = BAD_IDX[name]
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(pack(content))
    error = refused(path.name, read_idx, path)
    assert (error.path, error.place) == (path, place)


def test_balanced_disjoint_and_real():
    train, test = images.load_digits("train"), images.load_digits("test")
    assert train.x.shape == (4000, 1, 28, 28)
    assert train.y.bincount().tolist() == [400] * 10
    assert test.y.bincount().tolist() == [100] * 10
    assert train.y[:10].tolist() == list(range(10))
    assert (train.x.min(), train.x.max()) == (0, 1)
    # MNIST's published mean and standard deviation, from a fifteenth of it.
    assert train.x.mean().item() == pytest.approx(0.1307, abs=0.003)
    assert train.x.std().item() == pytest.approx(0.3081, abs=0.005)
    assert torch.cat([train.x, test.x]).flatten(1).unique(dim=0).shape[0] == 5000
    refused("split", images.load_digits, "val", error=ValueError)


@needs_real
@pytest.mark.parametrize("which", ["mnist", "fashion-mnist"])
def test_the_real_files(which):
    for name, file in images.MNIST_FILES[which].items():
        path = data_folder() / which / name
        assert (sha256_of(path), sha256_of_content(path)) == (file.sha256, file.content_sha256)
        assert (path.stat().st_size, len(file.urls)) == (file.size, 2)
    splits = load_mnist(which, normalise=False)  # verified against the published sums on the way
    assert splits.sizes() == {"train": 50_000, "validation": 10_000, "test": 10_000}
    assert splits.train.x.shape == (50_000, 1, 28, 28)
    assert (splits.train.x.min(), splits.train.x.max()) == (0, 1)
    total = splits.train.counts() + splits.validation.counts()
    if which == "mnist":
        assert total.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        normalised = load_mnist(validation=0).train
        assert normalised.x.min() == normalised.fill  # to the last bit
        assert float(normalised.x.mean()) == pytest.approx(0, abs=1e-3)
        assert float(normalised.x.std()) == pytest.approx(1, abs=1e-3)
    else:
        assert total.tolist() == [6000] * 10
        assert splits.train.classes[9] == "Ankle boot"


def test_a_folder_of_your_own(fake_mnist):
    splits = load_mnist(root=fake_mnist, validation=20, verify=False)
    assert splits.sizes() == {"train": 40, "validation": 20, "test": 20}
    assert splits.train.y[:3].tolist() == [0, 1, 2]
    for path in list(fake_mnist.iterdir()):  # unpacked files are found, too, and the parent folder is accepted
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    everything = load_mnist(root=fake_mnist.parent, validation=0, verify=False)
    assert everything.validation is None
    # Images 40 to 59 of the file are set aside: the last ones, not the first.
    assert torch.equal(everything.train.x[40:], splits.validation.x)


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("labels-idx1", np.array([1, 2, 11] + [0] * 57, np.uint8)),
        ("labels-idx1", np.zeros(59, np.uint8)),
        ("images-idx3", np.zeros((59, 28, 28), np.uint8)),
    ],
)
def test_bad_mnist_files(fake_mnist, file, array):
    write_idx(fake_mnist / f"train-{file}-ubyte.gz", array)
    refused("train-labels-idx1", load_mnist, root=fake_mnist, verify=False)


def test_mnist_that_is_missing_or_not_the_published_one(absent, fake_mnist, tmp_path):
    message = str(refused("train-images-idx3-ubyte.gz", load_mnist, "fashion-mnist", error=MissingDataError))
    for part in (str(tmp_path / "cache"), "get fashion-mnist", "PSTN_DATA is not set"):
        assert part in message
    refused(str(tmp_path / "elsewhere"), load_mnist, root=tmp_path / "elsewhere", error=MissingDataError)
    refused(r"train-images.*verify=False", load_mnist, root=fake_mnist)


def test_subset_by_a_published_file(fake_mnist, tmp_path):
    train = load_mnist(root=fake_mnist, validation=0, verify=False).train
    np.save(tmp_path / "fold.npy", np.array([5, 3, 59]))
    assert torch.equal(images.mnist_subset(train, 3, indices=tmp_path / "fold.npy").x, train.x[[5, 3, 59]])
    refused("k=4", images.mnist_subset, train, 4, indices=tmp_path / "fold.npy")
    errors = (ValueError, TypeError)
    for count in (-1, 60, 2.5, True):
        refused("validation", load_mnist, root=fake_mnist, verify=False, validation=count, error=errors)
