import os
import warnings
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_files import save_image
from pstn.data import DataError, Split, Splits, batches, divide, from_arrays, from_dataset, from_folder, from_npz
from pstn.data.images import find_images


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((4, 10), None, (4, 1, 10)),
        ((4, 3, 10), "series", (4, 3, 10)),
        ((4, 8, 10), "image", (4, 1, 8, 10)),
        ((4, 8, 10, 3), None, (4, 3, 8, 10)),
    ],
)
def test_arrays(shape, kind, expected):
    split = from_arrays(np.arange(np.prod(shape)).reshape(shape), ["b", "a", "b", "c"], kind=kind)
    assert tuple(split.x.shape) == expected
    assert split.x.dtype == torch.float32
    assert split.classes == ("a", "b", "c")
    assert split.y.tolist() == [1, 0, 1, 2]


def test_channels_move_with_their_pixels():
    x = np.random.default_rng(0).random((2, 5, 6, 3)).astype("f4")
    assert torch.equal(from_arrays(x, [0, 1]).x[1, 2], torch.from_numpy(x[1, :, :, 2]))


def test_bytes_stay_bytes_until_asked():
    split = from_arrays(np.full((2, 4, 4, 1), 255, np.uint8), [7, -7])
    assert split.x.dtype == torch.uint8
    assert split.classes == ("-7", "7")
    assert float(split.as_float().x.max()) == 1


@pytest.mark.parametrize(
    ("x", "y", "settings", "error", "message"),
    [
        (np.zeros((4, 8, 8)), [0] * 4, {}, ValueError, "pass kind="),
        (np.zeros((4, 8)), [0] * 3, {}, ValueError, "one label per example, 4"),
        (np.zeros((4, 8)), [[0]] * 4, {}, ValueError, "one label per example"),
        (np.full((2, 8), np.nan), [0, 1], {}, ValueError, "must be finite"),
        (np.array([["a"] * 8]), [0], {}, TypeError, "must hold numbers"),
        (np.zeros((2, 3, 8, 8)), [0, 1], {}, ValueError, "channels last"),
        (np.zeros((2, 8)), [0, 5], {"classes": ["0", "1"]}, ValueError, "unknown label '5'"),
        (np.zeros((2, 8)), [0, 1], {"kind": "video"}, ValueError, "kind must be one of"),
        (np.zeros(3), [0, 1, 2], {}, ValueError, "must have shape"),
        (np.zeros((3, 8)), [0.0, 1.0, np.nan], {}, ValueError, "example 2 has no label, got nan: leave it out"),
        (np.zeros((2, 8)), np.array([np.nan, 1.0]), {}, ValueError, "example 0 has no label"),
        (np.zeros((2, 8)), torch.tensor([1.0, np.nan]), {}, ValueError, "example 1 has no label"),
        (np.zeros((2, 8)), ["a", None], {}, ValueError, "example 1 has no label, got None"),
        (np.zeros((2, 8)), ["a", np.nan], {}, ValueError, "example 1 has no label, got nan"),
        (np.zeros((2, 8)), ["a", "b"], {"classes": ["a", "b", "a"]}, ValueError, "classes must be"),
        (np.zeros((2, 8)), [0, 1], {"classes": ["0", "1", "1.0"]}, ValueError, "classes must be"),
    ],
)
def test_bad_arrays(x, y, settings, error, message):
    with pytest.raises(error, match=message):
        from_arrays(x, y, **settings)


@given(st.lists(st.sampled_from(["cat", "dog", "1", "1.0", "-3", "x y"]), min_size=1, max_size=20))
def test_labels_map_there_and_back(labels):
    split = from_arrays(np.zeros((len(labels), 4)), labels)
    back = [split.classes[i] for i in split.y.tolist()]
    assert back == ["1" if label == "1.0" else label for label in labels]


def test_a_torch_dataset():
    data = torch.utils.data.TensorDataset(torch.rand(4, 3, 8, 8), torch.tensor([5, 2, 5, 9]))
    split = from_dataset(data)
    assert torch.equal(split.x, data.tensors[0])
    assert split.classes == ("2", "5", "9")
    assert split.y.tolist() == [1, 0, 1, 2]


def test_a_dataset_of_pictures_with_names():
    class Pictures(torch.utils.data.Dataset):
        classes = ("cat", "dog")

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return Image.new("RGB", (6, 4), (i, 0, 0)), i % 2

    split = from_dataset(Pictures())
    assert split.x.shape == (3, 3, 4, 6)
    assert split.x[2, 0, 0, 0] == 2
    assert split.classes == ("cat", "dog")


def test_arrays_of_a_dataset_keep_their_rows_and_columns():
    grey, colour = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(2, 3, 2)
    assert from_dataset([(grey, 0)]).x[0, 0].tolist() == grey.tolist()
    assert from_dataset([(colour, 0)]).x[0, 1].tolist() == colour[..., 1].tolist()


class Named(list):
    """A data set that has names for its classes."""

    classes = ("zero", "one", "two")


@pytest.mark.parametrize("as_kind", [int, np.int64, np.uint8, torch.tensor, np.array, lambda y: np.array([y])])
def test_positions_of_any_kind_are_positions_in_the_classes_of_a_dataset(as_kind):
    split = from_dataset(Named((torch.zeros(1, 2, 2), as_kind(y)) for y in (0, 2)))
    assert split.classes == ("zero", "one", "two")
    assert split.y.tolist() == [0, 2]
    assert split.y.dtype == torch.int64


@pytest.mark.parametrize("as_kind", [bool, np.bool_, torch.tensor])
def test_truth_values_become_whole_numbers(as_kind):
    split = from_dataset(Named((torch.zeros(1, 2, 2), as_kind(y)) for y in (False, True)))
    assert split.y.tolist() == [0, 1]
    assert split.y.dtype == torch.int64


def test_text_that_looks_like_a_missing_label_is_a_name():
    assert from_arrays(np.zeros((2, 8)), ["None", "nan"]).classes == ("None", "nan")


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([], ValueError, "must not be empty"),
        ([(torch.zeros(1, 2, 2), torch.tensor([0, 1]))], ValueError, "label of item 0 must be one value, got shape"),
        ([(torch.zeros(1, 2, 2), np.array([0, 1]))], ValueError, "label of item 0 must be one value, got shape"),
        ([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 2, 2), None)], ValueError, "item 1 has no label, got None"),
        ([(torch.zeros(1, 2, 2), np.float32("nan"))], ValueError, "item 0 has no label, got nan"),
        ([(torch.full((1, 2, 2), np.nan), 0)], ValueError, "x of item 0 must be finite"),
        ([(np.full((2, 2), np.inf), 0)], ValueError, "x of item 0 must be finite"),
        ([torch.zeros(1, 2, 2)], TypeError, "items of dataset"),
        ([(torch.zeros(1, 2, 2),)], TypeError, "items of dataset"),
        ([{"x": torch.zeros(1, 2, 2), "y": 0}], TypeError, "items of dataset"),
        ([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 3, 3), 0)], ValueError, "one shape.*at 1"),
        ([("text", 0)], TypeError, "item 0"),
        ([(torch.zeros(3), 0)], ValueError, "item 0 must have shape"),
    ],
)
def test_bad_datasets(items, error, message):
    with pytest.raises(error, match=message):
        from_dataset(items)


def test_the_classes_that_are_asked_for_must_cover_a_dataset():
    items = [(torch.zeros(1, 2, 2), "cat"), (torch.zeros(1, 2, 2), "dog")]
    assert from_dataset(items, classes=["dog", "cat"]).y.tolist() == [1, 0]
    with pytest.raises(ValueError, match="unknown label 'dog': classes are cat, bird"):
        from_dataset(items, classes=["cat", "bird"])
    with pytest.raises(ValueError, match="classes must be"):
        from_dataset(items, classes=["cat", "dog", "cat"])


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


def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((4, 9)), y=np.array(["a", "b", "a", "b"]))
    assert from_npz(path).train.x.shape == (4, 1, 9)
    np.savez(path, x_train=np.zeros((4, 9)), y_train=[0, 1, 0, 1], x_test=np.zeros((1, 9)), y_test=[1])
    assert from_npz(path).sizes() == {"train": 4, "validation": 0, "test": 1}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4))}, "holds x without y"),
        ({"z": np.zeros(3)}, "must hold x and y"),
        ({"x": np.zeros((2, 4)), "y": np.zeros(3)}, "x, y: y must hold one label"),
        ({"x": np.zeros((2, 4)), "y": np.array([{}, {}], dtype=object)}, "y.npy: holds Python objects"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        from_npz(tmp_path / "a.npz")
    assert "a.npz" in str(caught.value)


def test_damaged_npz(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"is not an \.npz"):
        from_npz(path)


def test_split_checks_its_shapes():
    x, y = torch.zeros(3, 1, 4), torch.tensor([0, 1, 0])
    for bad, message in (
        (lambda: Split(torch.zeros(3, 4), y, ("a", "b")), "x must have shape"),
        (lambda: Split(x, y.float(), ("a", "b")), "y must be whole numbers"),
        (lambda: Split(x, y[:2], ("a", "b")), "y must have one entry per example, 3, got 2"),
        (lambda: Split(x, y, ("a", "b"), theta=torch.zeros(2, 1)), "theta must have one entry"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()


def test_everything_goes_to_the_device_and_into_batches():
    split = Split(
        torch.rand(5, 1, 8),
        torch.arange(5),
        tuple("abcde"),
        mask=torch.ones(5, 8).bool(),
        theta=torch.rand(5, 2),
        source=torch.rand(5, 1, 16),
    )
    moved = Splits(split, None, split).to("meta")
    assert all(
        t.device.type == "meta"
        for t in (moved.train.x, moved.train.mask, moved.train.theta, moved.train.source, moved.test.y)
    )
    assert moved.validation is None
    part = split.take([4, 0])
    assert torch.equal(part.source, split.source[[4, 0]])
    assert torch.equal(part.mask, split.mask[[4, 0]])
    drawn = [b.y for b in batches(split, 2, shuffle=True, generator=torch.Generator().manual_seed(0))]
    assert [len(b) for b in drawn] == [2, 2, 1]
    assert sorted(torch.cat(drawn).tolist()) == [0, 1, 2, 3, 4]
    assert torch.cat(drawn).tolist() != [0, 1, 2, 3, 4]


def test_normalisation_per_channel_keeps_the_background():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    split = Split(x, torch.tensor([0, 0]), ("a",)).as_float((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    assert torch.equal(split.x[0, :, 0, 0], torch.tensor(split.fill))
    white = Split(x, torch.tensor([0, 0]), ("a",), fill=255.0).as_float(0.5, 0.5)
    assert white.fill == 1.0
    assert torch.equal(Split(x, torch.tensor([0, 0]), ("a",), fill=255.0).as_float(np.float32(0.5), 0.5).x, white.x)
    with pytest.raises(ValueError, match="std must be above 0"):
        split.as_float(0.0, 0.0)
    with pytest.raises(ValueError, match="one per channel"):
        split.as_float((0.0, 1.0))


def test_the_mean_and_std_that_are_recorded_undo_every_normalisation():
    stored = Split(torch.arange(24, dtype=torch.uint8).view(2, 3, 4), torch.tensor([0, 0]), ("a",))
    once = stored.as_float((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    assert once.std == (0.2, 0.2, 0.1)
    twice = once.as_float(2.0, 4.0)
    mean, std = (torch.tensor(value).view(-1, 1) for value in (twice.mean, twice.std))
    assert torch.allclose(twice.x * std + mean, stored.x / 255, atol=1e-6)
    assert stored.as_float(0.1, 0.5).std == 0.5


def test_divide():
    split = Split(torch.zeros(100, 1, 4), torch.arange(100) % 4, tuple("abcd"), "mine")
    parts = divide(split, test=0.2, validation=0.2)
    assert parts.sizes() == {"train": 60, "validation": 20, "test": 20}
    assert parts.test.name == "mine test"
    with pytest.raises(ValueError, match="test \\+ validation"):
        divide(split, test=0.6, validation=0.5)


def test_a_member_that_occurs_twice_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((4, 24)), y=[0, 1, 0, 1])
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Duplicate name")  # which is what is wanted
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(DataError, match=r"a.npz: x.npy: occurs twice"):
        from_npz(path)


def test_a_class_called_train_beside_others_is_a_class(tmp_path):
    for name in ("car", "bus", "train"):
        save_image(tmp_path / name / "1.png", 8, 8)
    assert from_folder(tmp_path, test=0.0).train.classes == ("bus", "car", "train")


def test_pictures_without_classes_are_not_classes(tmp_path):
    for name in ("train", "test"):
        save_image(tmp_path / name / "1.png", 8, 8)
    with pytest.raises(DataError, match="one per class is expected"):
        from_folder(tmp_path)


def test_hidden_folders_within_a_class_are_left_out(tmp_path):
    for place in ("a/1.png", "a/.ipynb_checkpoints/1.png", "a/inner/2.png", "b/1.png"):
        save_image(tmp_path / place, 8, 8)
    assert from_folder(tmp_path, test=0.0).train.counts().tolist() == [2, 1]


def test_a_series_of_bytes_holds_numbers_not_pixels():
    values = np.array([[0, 128, 255]] * 4, dtype=np.uint8)
    series, images = from_arrays(values, list("abab")), from_arrays(values[:, None], list("abab"), kind="image")
    assert series.as_float().x[0, 0].tolist() == [0.0, 128.0, 255.0]
    assert images.as_float().x.max() == 1


def test_an_npz_of_x_may_have_a_test_part(tmp_path):
    x, y = np.zeros((4, 24)), list("abab")
    np.savez(tmp_path / "both.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    assert from_npz(tmp_path / "both.npz").sizes() == {"train": 4, "validation": 0, "test": 2}
    np.savez(tmp_path / "two.npz", x=x, y=y, x_train=x, y_train=y)
    with pytest.raises(DataError, match="holds x and x_train"):
        from_npz(tmp_path / "two.npz")


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "testing"), ("TRAIN", "VAL")])
def test_parts_are_known_by_other_spellings(tmp_path, names):
    for part in names:
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / part / label / "1.png")
    splits = from_folder(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert sorted(splits.sizes().values()) == [0, 2, 2]


def test_links_are_followed_once_and_folders_that_cannot_be_read_are_told(tmp_path, monkeypatch):
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
