import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pstn.data import DataError, balanced_indices, read_indices, stratified_indices

labels = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@given(labels=labels, data=st.data(), fold=st.integers(0, 4))
def test_any_k_is_as_even_as_it_can_be(labels, data, fold):
    y = torch.tensor(labels)
    k = data.draw(st.integers(1, len(labels)))
    chosen = balanced_indices(y, k, fold=fold)
    assert len(chosen) == k
    assert len(chosen.unique()) == k
    available, taken = torch.bincount(y), torch.bincount(y[chosen], minlength=int(y.max()) + 1)
    # A class has fewer than another by more than one only where it has given all it had.
    for a, t in zip(available.tolist(), taken.tolist(), strict=True):
        assert t == a or t >= int(taken.max()) - 1


def test_the_papers_sizes_divide_evenly():
    y = torch.arange(10).repeat_interleave(torch.tensor([500, 400, 300, 350, 450, 600, 320, 310, 390, 380]))
    for k in (30, 100, 1000, 3000):
        assert torch.bincount(y[balanced_indices(y, k)]).tolist() == [k // 10] * 10


def test_folds_and_seeds_differ_and_repeat():
    y = torch.arange(10).repeat(100)
    assert torch.equal(balanced_indices(y, 30, fold=3, seed=1), balanced_indices(y, 30, fold=3, seed=1))
    drawn = {tuple(balanced_indices(y, 30, fold=f, seed=s).tolist()) for f in range(5) for s in range(3)}
    assert len(drawn) == 15


def test_left_over_examples_go_to_different_classes_in_different_folds():
    y = torch.arange(10).repeat(100)
    extra = {
        tuple(torch.nonzero(torch.bincount(y[balanced_indices(y, 33, fold=f)]) == 4).flatten().tolist())
        for f in range(5)
    }
    assert len(extra) > 1
    assert all(len(classes) == 3 for classes in extra)


@pytest.mark.parametrize(
    ("k", "message"), [(0, "at least 1"), (5, "at most the number of examples, 4"), (2.0, "whole")]
)
def test_bad_k(k, message):
    with pytest.raises((ValueError, TypeError), match=message):
        balanced_indices(torch.tensor([0, 0, 1, 1]), k)


@pytest.mark.parametrize("fold", [-1, 1.5, True])
def test_bad_fold(fold):
    with pytest.raises(ValueError, match="fold must be"):
        balanced_indices(torch.tensor([0, 1]), 1, fold=fold)


@given(labels=labels, fraction=st.floats(0, 0.99), seed=st.integers(0, 5))
def test_stratified_parts_make_up_the_whole(labels, fraction, seed):
    y = torch.tensor(labels)
    first, second = stratified_indices(y, fraction, seed=seed)
    assert sorted(first.tolist() + second.tolist()) == list(range(len(labels)))
    assert set(y[first].tolist()) == set(labels)
    for c in set(labels):
        exact = labels.count(c) * fraction
        assert abs(int((y[second] == c).sum()) - min(exact, labels.count(c) - 1)) <= 1


def test_three_quarters_are_three_quarters():
    y = torch.arange(4).repeat_interleave(torch.tensor([271, 237, 250, 242]))
    first, second = stratified_indices(y, 0.25)
    assert (len(first), len(second)) == (750, 250)


def test_published_indices(tmp_path):
    np.save(tmp_path / "i.npy", np.array([3, 1, 2], dtype=np.uint16))
    assert read_indices(tmp_path / "i.npy", size=4).tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([0.0, 1.0]), "whole numbers"),
        (np.array([[1, 2]]), "whole numbers of shape"),
        (np.array([], dtype=int), "whole numbers of shape"),
        (np.array([0, 4]), "entry 1: 4 is not among"),
        (np.array([0, -1]), "entry 1: -1 is not among"),
        (np.array([2, 0, 2]), "entry 2: 2 occurs more than once"),
    ],
)
def test_bad_published_indices(tmp_path, array, message):
    np.save(tmp_path / "i.npy", array)
    with pytest.raises(DataError, match=message) as caught:
        read_indices(tmp_path / "i.npy", size=4)
    assert "i.npy" in str(caught.value)


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "i.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read_indices(tmp_path / "i.npy", size=4)


def test_an_index_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"fold9.npy: there is no such file"):
        read_indices(tmp_path / "fold9.npy", size=10)
