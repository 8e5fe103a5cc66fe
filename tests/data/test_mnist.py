import numpy as np
import pytest
import torch

import pstn.data
from data_files import needs_real, write_idx
from pstn.data import DataError, MissingDataError, load_mnist, mnist_subset
from pstn.data.files import sha256_of_content
from pstn.data.mnist import MNIST_FILES
from pstn.files import sha256_of


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


def test_a_folder_of_ones_own(fake_mnist):
    splits = load_mnist(root=fake_mnist, validation=20, verify=False)
    assert splits.sizes() == {"train": 40, "validation": 20, "test": 20}
    assert splits.train.y[:3].tolist() == [0, 1, 2]
    # Images 40 to 59 of the file are set aside: the last ones, not the first.
    everything = load_mnist(root=fake_mnist, validation=0, verify=False)
    assert everything.validation is None
    assert torch.equal(everything.train.x[40:], splits.validation.x)


def test_the_parent_folder_will_do(fake_mnist):
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


def test_other_content_is_refused_unless_told(fake_mnist):
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
