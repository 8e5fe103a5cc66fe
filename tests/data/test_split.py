"""Splits, subsets, arrays and data sets of one's own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_files import refused
from pstn.data import Split, Splits, from_arrays, from_dataset, from_npz, load_digits
from pstn.data import split as splitting
from refusals import refused as refused_rows

labels = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@given(labels=labels, data=st.data(), fold=st.integers(0, 4))
def test_any_k_is_as_even_as_it_can_be(labels, data, fold):
    y = torch.tensor(labels)
    k = data.draw(st.integers(1, len(labels)))
    chosen = splitting.balanced_indices(y, k, fold=fold)
    assert len(chosen) == k
    assert len(chosen.unique()) == k
    available, taken = torch.bincount(y), torch.bincount(y[chosen], minlength=int(y.max()) + 1)
    # A class has fewer than another by more than one only where it has given all it had.
    for a, t in zip(available.tolist(), taken.tolist(), strict=True):
        assert t == a or t >= int(taken.max()) - 1


def test_folds_and_seeds_differ_and_repeat():
    y = torch.arange(10).repeat_interleave(torch.tensor([500, 400, 300, 350, 450, 600, 320, 310, 390, 380]))
    for k in (30, 100, 1000, 3000):  # the paper's sizes
        assert torch.bincount(y[splitting.balanced_indices(y, k)]).tolist() == [k // 10] * 10

    def draw():
        return [tuple(splitting.balanced_indices(y, 30, fold=f, seed=s).tolist()) for f in range(5) for s in range(3)]

    assert draw() == draw()
    assert len(set(draw())) == 15
    # Those left over go to different classes in different folds.
    counts = [torch.bincount(y[splitting.balanced_indices(y, 33, fold=f)]) for f in range(5)]
    extra = {tuple(torch.nonzero(count == 4).flatten().tolist()) for count in counts}
    assert len(extra) > 1
    assert {len(classes) for classes in extra} == {3}


@pytest.mark.parametrize(("k", "fold"), [(0, 0), (5, 0), (2.0, 0), (1, -1), (1, 1.5), (1, True)])
def test_bad_subsets(k, fold):
    name, y = "fold" if k == 1 else "k", torch.tensor([0, 0, 1, 1])
    refused(name, splitting.balanced_indices, y, k, fold=fold, error=(ValueError, TypeError))


@given(labels=labels, fraction=st.floats(0, 0.99), seed=st.integers(0, 5))
def test_stratified_parts_make_up_the_whole(labels, fraction, seed):
    y = torch.tensor(labels)
    first, second = splitting.stratified_indices(y, fraction, seed=seed)
    assert sorted(first.tolist() + second.tolist()) == list(range(len(labels)))
    assert set(y[first].tolist()) == set(labels)
    for c in set(labels):
        exact = labels.count(c) * fraction
        assert abs(int((y[second] == c).sum()) - min(exact, labels.count(c) - 1)) <= 1
    y = torch.arange(4).repeat_interleave(torch.tensor([271, 237, 250, 242]))
    assert [len(part) for part in splitting.stratified_indices(y, 0.25)] == [750, 250]


@pytest.mark.parametrize("array", [[0.0, 1.0], [[1, 2]], np.array([], dtype=int), [0, 4], [0, -1], [2, 0, 2]])
def test_published_indices(tmp_path, array):
    path = tmp_path / "i.npy"
    refused(r"i\.npy", splitting.read_indices, path, size=4)
    np.save(path, np.array([3, 1, 2], dtype=np.uint16))
    assert splitting.read_indices(path, size=4).tolist() == [3, 1, 2]
    np.save(path, np.asarray(array))
    refused(r"i\.npy", splitting.read_indices, path, size=4)
    several = tmp_path / "several.npz"
    np.savez(several, good=[3, 1], bad=np.asarray(array))
    assert splitting.read_indices(several, size=4, array="good").tolist() == [3, 1]
    for name in ("bad", "other"):
        refused(r"several\.npz", splitting.read_indices, several, size=4, array=name)


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


def test_bytes_are_pixels_in_images_and_numbers_in_series():
    values = np.array([[0, 128, 255]] * 4, dtype=np.uint8)
    series, images = from_arrays(values, list("abab")), from_arrays(values[:, None], [7, -7] * 2, kind="image")
    assert series.as_float().x[0, 0].tolist() == [0.0, 128.0, 255.0]
    assert images.x.dtype == torch.uint8
    assert images.classes == ("-7", "7")
    assert images.as_float().x.max() == 1


ROWS, EXAMPLE = np.zeros((2, 8)), torch.zeros(1, 2, 2)
SERIES, PLACES = torch.zeros(3, 1, 4), torch.tensor([0, 1, 0])
test_what_is_no_data_set_is_refused = refused_rows(
    (lambda: from_arrays(np.zeros((4, 8, 8)), [0] * 4), ValueError, "kind="),
    (lambda: from_arrays(np.zeros((4, 8)), [0] * 3), ValueError, "y"),
    (lambda: from_arrays(np.zeros((4, 8)), [[0]] * 4), ValueError, "y"),
    (lambda: from_arrays(np.full((2, 8), np.nan), [0, 1]), ValueError, "x must be finite"),
    (lambda: from_arrays(np.array([["a"] * 8]), [0]), TypeError, "x"),
    (lambda: from_arrays(np.zeros((2, 3, 8, 8)), [0, 1]), ValueError, "x"),
    (lambda: from_arrays(ROWS, [0, 5], classes=["0", "1"]), ValueError, "label '5'"),
    (lambda: from_arrays(ROWS, [0, 1], kind="video"), ValueError, "kind"),
    (lambda: from_arrays(np.zeros(3), [0, 1, 2]), ValueError, "x"),
    (lambda: from_arrays(ROWS, torch.tensor([1.0, np.nan])), ValueError, "example 1 has no label"),
    (lambda: from_arrays(ROWS, ["a", None]), ValueError, "example 1 has no label"),
    (lambda: from_arrays(ROWS, [0, 1], classes=["0", "1", "1.0"]), ValueError, "classes"),
    (lambda: from_arrays(torch.zeros(2, 8, dtype=torch.bool), [0, 1]), TypeError, "x"),
    (lambda: splitting.stratified_indices(PLACES, 1.0), ValueError, "fraction"),
    (lambda: from_dataset([]), ValueError, "dataset"),
    (lambda: from_dataset([(EXAMPLE, torch.tensor([0, 1]))]), ValueError, "item 0"),
    (lambda: from_dataset([(EXAMPLE, 0), (EXAMPLE, None)]), ValueError, "item 1 has no label"),
    (lambda: from_dataset([(torch.full((1, 2, 2), np.nan), 0)]), ValueError, "item 0 must be finite"),
    (lambda: from_dataset([EXAMPLE]), TypeError, "items of dataset"),
    (lambda: from_dataset([(EXAMPLE,)]), TypeError, "items of dataset"),
    (lambda: from_dataset([(EXAMPLE, 0), (torch.zeros(1, 3, 3), 0)]), ValueError, "item 1"),
    (lambda: from_dataset([("text", 0)]), TypeError, "item 0"),
    (lambda: from_dataset([(torch.zeros(3), 0)]), ValueError, "item 0 must have shape"),
    (lambda: from_dataset([(EXAMPLE, "cat"), (EXAMPLE, "dog")], classes=["cat", "bird"]), ValueError, "label 'dog'"),
    (lambda: Split(SERIES[0], PLACES, ("a", "b")), ValueError, "x"),
    (lambda: Split(SERIES, PLACES.float(), ("a", "b")), ValueError, "y"),
    (lambda: Split(SERIES, PLACES[:2], ("a", "b")), ValueError, "y"),
    (lambda: Split(SERIES, PLACES, ("a", "b"), theta=torch.zeros(2, 1)), ValueError, "theta"),
    (lambda: Split(SERIES, PLACES, ("a", "b")).as_float(0.0, 0.0), ValueError, "std"),
    (lambda: Split(SERIES, PLACES, ("a", "b")).as_float((0.0, 1.0)), ValueError, "mean"),
    (lambda: splitting.divide(Split(SERIES, PLACES, ("a", "b")), test=0.6, validation=0.5), ValueError, "validation"),
)


@given(st.lists(st.sampled_from(["cat", "dog", "1", "1.0", "-3", "x y", "None", "nan"]), min_size=1, max_size=20))
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


def test_arrays_and_pictures_of_a_dataset_keep_their_rows_and_columns():
    grey, colour = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(2, 3, 2)
    assert from_dataset([(grey, 0)]).x[0, 0].tolist() == grey.tolist()
    assert from_dataset([(colour, 0)]).x[0, 1].tolist() == colour[..., 1].tolist()
    split = from_dataset([(Image.new("RGB", (6, 4), (i, 0, 0)), 0) for i in range(3)])
    assert split.x.shape == (3, 3, 4, 6)
    assert split.x[2, 0, 0, 0] == 2


class Named(list):
    """A data set that has names for its classes."""

    classes = ("zero", "one", "two")


@pytest.mark.parametrize("as_kind", [int, bool, np.uint8, torch.tensor, np.array, lambda y: np.array([y])])
def test_positions_of_any_kind_are_positions_in_the_classes_of_a_dataset(as_kind):
    split = from_dataset(Named((torch.zeros(1, 2, 2), as_kind(y)) for y in (0, 1)))
    assert split.classes == ("zero", "one", "two")
    assert split.y.tolist() == [0, 1]
    assert split.y.dtype == torch.int64


def test_a_dataset_takes_the_order_of_classes_that_is_asked_for():
    assert from_dataset([(EXAMPLE, "cat"), (EXAMPLE, "dog")], classes=["dog", "cat"]).y.tolist() == [1, 0]


def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    x, y = np.zeros((4, 9)), np.array(["a", "b", "a", "b"])
    np.savez_compressed(path, x=x, y=y, x_test=x[:2], y_test=y[:2])
    assert from_npz(path).sizes() == {"train": 4, "validation": 0, "test": 2}
    np.savez(path, x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    assert from_npz(path).sizes() == {"train": 4, "validation": 0, "test": 1}
    assert from_npz(path).train.x.shape == (4, 1, 9)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4))}, "x, y: y must"),
        ({"z": np.zeros(3)}, "must hold x and y"),
        ({"x": np.zeros((2, 4)), "y": np.zeros(3)}, "x, y: y must hold one label"),
        ({"x": np.zeros((1, 4)), "y": [0], "x_train": np.zeros((1, 4)), "y_train": [0]}, "x and x_train"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(rf"a\.npz: .*{message}", from_npz, tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"no zip")
    refused(r"is not an \.npz", from_npz, tmp_path / "a.npz")


def test_everything_goes_to_the_device_and_into_batches():
    tensors = {"mask": torch.ones(5, 8).bool(), "theta": torch.rand(5, 2), "source": torch.rand(5, 1, 16)}
    split = Split(torch.rand(5, 1, 8), torch.arange(5), tuple("abcde"), **tensors)
    moved = Splits(split, None, split).to("meta")
    assert {getattr(moved.train, name).device.type for name in ("x", "y", *tensors)} == {"meta"}
    assert moved.validation is None
    part = split.take([4, 0])
    assert torch.equal(part.source, split.source[[4, 0]])
    assert torch.equal(part.mask, split.mask[[4, 0]])
    drawn = [b.y for b in splitting.batches(split, 2, shuffle=True, generator=torch.Generator().manual_seed(0))]
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
    parts = splitting.divide(split, test=0.2, validation=0.2)
    assert parts.sizes() == {"train": 60, "validation": 20, "test": 20}
    assert parts.test.name == "mine test"


def test_images_that_look_alike_come_into_one_part():
    generator = torch.Generator().manual_seed(0)
    scenes = torch.rand(30, 3, 12, 12, generator=generator).repeat_interleave(4, 0)  # of each, four shots in a row
    shots = torch.nn.functional.interpolate(scenes, (48, 48), mode="bilinear") * 200 + 20
    shots = (shots + 8 * torch.randn(shots.shape, generator=generator)).clamp(0, 255).to(torch.uint8)
    scene = torch.arange(120) // 4
    split = Split(shots, scene % 2, ("a", "b"))
    groups = splitting.group_alike(shots)
    assert torch.equal(groups, 4 * scene)
    for seed in range(5):
        _, tested = splitting.stratified_indices(split.y, 0.2, seed=seed)
        assert len(scene[tested].unique()) > len(tested) / 4  # which is why
        parts = splitting.divide(split, test=0.2, validation=0.2, seed=seed)
        sides = [{bytes(x.numpy()) for x in part.x} for part in parts]
        for shot in range(0, 120, 4):
            held = [sum(bytes(x.numpy()) in side for x in shots[shot : shot + 4]) for side in sides]
            assert sorted(held) == [0, 0, 4]
        assert parts.sizes() == {"train": 72, "validation": 24, "test": 24}


def test_a_class_whose_images_all_look_alike_is_divided_all_the_same():
    x = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)).expand(20, -1, -1, -1)
    split = Split(x, torch.arange(20) % 2, ("a", "b"))
    assert splitting.divide(split, test=0.2).sizes() == {"train": 16, "validation": 0, "test": 4}


def test_different_digits_and_images_of_one_colour_do_not_look_alike():
    digits = load_digits()
    x, y = (part[:100][digits.y[:100] != 1] for part in digits)  # of the ones, some do
    assert len(splitting.group_alike(x).unique()) == 90
    assert len(splitting.group_alike(torch.zeros(5, 3, 8, 8)).unique()) == 5
    split = Split(x, y, tuple("0123456789"))
    first, second = splitting.stratified_indices(split.y, 0.2)
    parts = splitting.divide(split, test=0.2)
    assert torch.equal(parts.train.x, x[first])
    assert torch.equal(parts.test.x, x[second])
