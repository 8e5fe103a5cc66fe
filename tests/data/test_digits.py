"""The digits that ship with the package."""

import pytest
import torch

from pstn.data import load_digits


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
