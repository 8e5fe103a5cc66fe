"""IDX files, MNIST and FashionMNIST, the digits that ship with the package."""

import gzip
import struct

import numpy as np
import pytest
import torch

import pstn.data
from data_files import idx_bytes, needs_real, write_idx
from pstn.data import DataError, MissingDataError, load_digits, load_mnist, mnist_subset, read_idx
from pstn.data.files import sha256_of_content
from pstn.data.mnist import MNIST_FILES
from pstn.files import sha256_of


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_what_was_written(tmp_path, suffix):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx(write_idx(tmp_path / f"images{suffix}", array)), array)


def test_reads_big_endian_floats(tmp_path):
    path = tmp_path / "floats"
    path.write_bytes(bytes([0, 0, 0x0D, 1]) + struct.pack(">I2f", 2, 1.5, -2.0))
    assert read_idx(path).tolist() == [1.5, -2.0]


BAD_IDX = {
    "empty": (b"", ""),
    "wrong magic": (b"\x89PNG\r\n\x1a\n", "offset 0"),
    "unknown type": (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "offset 0"),
    "no axes": (bytes([0, 0, 8, 0]), "offset 0"),
    "cut header": (bytes([0, 0, 8, 3, 0, 0]), "offset 6"),
    "too few": (bytes([0, 0, 8, 1]) + struct.pack(">I", 10) + b"12345", "offset 13"),
    "too many": (bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + b"12345", "offset 11"),
    "large header": (bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**32 - 1, 2**32 - 1) + b"1", "header"),
}


@pytest.mark.parametrize("name", BAD_IDX)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_are_named_with_the_place(tmp_path, name, packed):
    content, place = BAD_IDX[name]
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(gzip.compress(content) if packed and content else content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert (caught.value.path, caught.value.place or "") == (path, place)


@pytest.mark.parametrize("cut", [3, 12, 30, -9, -1])
def test_truncated_gzip(tmp_path, cut):
    path = tmp_path / "images.gz"
    noise = np.random.default_rng(0).integers(0, 256, (50, 28), dtype=np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(noise))[:cut])
    with pytest.raises(DataError, match=r"truncated|damaged|is not an IDX"):
        read_idx(path)


def test_axes_can_be_demanded(tmp_path):
    path = write_idx(tmp_path / "labels", np.zeros(4, np.uint8))
    with pytest.raises(DataError, match="swapped"):
        read_idx(path, ndim=3)


def test_balanced_disjoint_and_real():
    train, test = load_digits("train"), load_digits("test")
    assert train.x.shape == (4000, 1, 28, 28)
    assert test.x.shape == (1000, 1, 28, 28)
    assert train.y.bincount().tolist() == [400] * 10
    assert test.y.bincount().tolist() == [100] * 10
    assert train.y[:10].tolist() == list(range(10))
    assert train.x.min() == 0
    assert train.x.max() == 1
    # MNIST's published mean and standard deviation, from a fifteenth of it.
    assert train.x.mean().item() == pytest.approx(0.1307, abs=0.003)
    assert train.x.std().item() == pytest.approx(0.3081, abs=0.005)
    everything = torch.cat([train.x, test.x]).flatten(1)
    assert everything.unique(dim=0).shape[0] == 5000


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'val'"):
        load_digits("val")


@needs_real
@pytest.mark.parametrize("which", ["mnist", "fashion-mnist"])
def test_the_real_files(which):
    splits = load_mnist(which, normalise=False)  # verified against the published sums on the way
    assert splits.sizes() == {"train": 50_000, "validation": 10_000, "test": 10_000}
    assert splits.train.x.shape == (50_000, 1, 28, 28)
    assert splits.train.x.dtype == torch.float32
    assert (splits.train.x.min(), splits.train.x.max()) == (0, 1)
    total = splits.train.counts() + splits.validation.counts()
    if which == "mnist":
        assert total.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert splits.test.counts().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    else:
        assert total.tolist() == [6000] * 10
        assert splits.test.counts().tolist() == [1000] * 10
        assert splits.train.classes[9] == "Ankle boot"


@needs_real
@pytest.mark.parametrize("which", ["mnist", "fashion-mnist"])
def test_real_checksums(which):
    root = pstn.data.data_folder() / which
    for name, file in MNIST_FILES[which].items():
        assert sha256_of(root / name) == file.sha256
        assert sha256_of_content(root / name) == file.content_sha256
        assert (root / name).stat().st_size == file.size
        assert len(file.urls) == 2


@needs_real
def test_the_papers_normalisation_gives_mean_0_and_std_1():
    train = load_mnist(validation=0).train
    assert abs(float(train.x.mean())) < 1e-3
    assert abs(float(train.x.std()) - 1) < 1e-3


def test_a_folder_of_your_own(fake_mnist):
    splits = load_mnist(root=fake_mnist, validation=20, verify=False)
    assert splits.sizes() == {"train": 40, "validation": 20, "test": 20}
    assert splits.train.y[:3].tolist() == [0, 1, 2]
    # Images 40 to 59 of the file are set aside: the last ones, not the first.
    everything = load_mnist(root=fake_mnist, validation=0, verify=False)
    assert everything.validation is None
    assert torch.equal(everything.train.x[40:], splits.validation.x)


def test_the_parent_folder_is_accepted(fake_mnist):
    assert len(load_mnist(root=fake_mnist.parent, validation=0, verify=False).train) == 60


def test_black_is_fill_to_the_last_bit(fake_mnist):
    for normalise in (True, False):
        train = load_mnist(root=fake_mnist, validation=0, verify=False, normalise=normalise).train
        assert torch.all(train.x[:, :, :4] == train.fill)
    assert train.fill == 0


def test_unpacked_files_are_found(fake_mnist):
    for path in list(fake_mnist.iterdir()):
        import gzip

        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load_mnist(root=fake_mnist, validation=0, verify=False).train) == 60


def test_other_content_is_refused_unless_verify_is_false(fake_mnist):
    with pytest.raises(DataError, match=r"train-images.*is not the published file of mnist.*verify=False"):
        load_mnist(root=fake_mnist)


def test_unknown_label(fake_mnist):
    write_idx(fake_mnist / "train-labels-idx1-ubyte.gz", np.array([1, 2, 11] + [0] * 57, dtype=np.uint8))
    with pytest.raises(DataError, match=r"train-labels.*offset 10: unknown label 11"):
        load_mnist(root=fake_mnist, verify=False)


def test_counts_that_disagree(fake_mnist):
    write_idx(fake_mnist / "train-labels-idx1-ubyte.gz", np.zeros(59, dtype=np.uint8))
    with pytest.raises(DataError, match="59 labels for the 60 images"):
        load_mnist(root=fake_mnist, verify=False)


def test_images_of_another_size(fake_mnist):
    write_idx(fake_mnist / "train-images-idx3-ubyte.gz", np.zeros((60, 20, 20), dtype=np.uint8))
    with pytest.raises(DataError, match=r"\(28, 28\) are expected"):
        load_mnist(root=fake_mnist, verify=False)


def test_absent_offline(absent, tmp_path):
    with pytest.raises(MissingDataError) as caught:
        load_mnist("fashion-mnist")
    message = str(caught.value)
    assert "train-images-idx3-ubyte.gz" in message
    assert str(tmp_path / "cache" / "fashion-mnist") in message
    assert "pstn data get fashion-mnist" in message
    assert "PSTN_DATA is not set" in message


def test_a_given_root_is_the_only_place(fake_mnist, tmp_path):
    with pytest.raises(MissingDataError, match=str(tmp_path / "elsewhere")):
        load_mnist(root=tmp_path / "elsewhere")


def test_subset_by_a_published_file(fake_mnist, tmp_path):
    train = load_mnist(root=fake_mnist, validation=0, verify=False).train
    np.save(tmp_path / "fold.npy", np.array([5, 3, 59]))
    chosen = mnist_subset(train, 3, indices=tmp_path / "fold.npy")
    assert torch.equal(chosen.x, train.x[[5, 3, 59]])
    with pytest.raises(DataError, match="holds 3 positions, where k=4"):
        mnist_subset(train, 4, indices=tmp_path / "fold.npy")


@pytest.mark.parametrize("validation", [-1, 60, 2.5, True])
def test_validation_must_leave_something(fake_mnist, validation):
    with pytest.raises(ValueError, match="validation must be"):
        load_mnist(root=fake_mnist, verify=False, validation=validation)


def test_negative_labels_are_unknown_labels(fake_mnist):
    content = bytes([0, 0, 9, 1, 0, 0, 0, 60]) + bytes([255] * 60)  # signed bytes: -1
    (fake_mnist / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"unknown label -1: classes are 0 to 9"):
        load_mnist(root=fake_mnist, verify=False, validation=0)
