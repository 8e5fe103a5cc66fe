"""At its defaults the P-STN estimator is at least as good as scikit-learn's SVC at its own."""

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import pstn
from pstn.data import balanced_indices, load_digits, load_italy_power_demand


def italy_power_demand():
    parts = load_italy_power_demand(validation=0.0)
    return [a.numpy() for a in (parts.train.x[:, 0], parts.train.y, parts.test.x[:, 0], parts.test.y)]


def two_hundred_digits():
    pool, test = load_digits("train"), load_digits("test")
    x, y = torch.cat([pool.x, test.x])[:, 0].numpy(), torch.cat([pool.y, test.y])
    train = balanced_indices(y, 200).numpy()
    rest = np.setdiff1d(np.arange(len(y)), train)
    y = y.numpy()
    return x[train], y[train], x[rest], y[rest]


@pytest.mark.slow
@pytest.mark.parametrize(("load", "seeds"), [(italy_power_demand, 3), (two_hundred_digits, 1)])
def test_is_at_least_as_good_as_a_support_vector_machine(load, seeds):
    x, y, test_x, test_y = load()
    flat, test_flat = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1)
    machines = (SVC(), make_pipeline(StandardScaler(), SVC()))
    to_beat = max(machine.fit(flat, y).score(test_flat, test_y) for machine in machines)
    # On the series the two are half a percent apart, and seeds differ by as much: their mean counts.
    kind = "image" if x.ndim == 3 else "series"
    made = [pstn.PSTNClassifier(kind=kind, random_state=seed).fit(x, y) for seed in range(seeds)]
    scores = [each.score(test_x, test_y) for each in made]
    assert np.mean(scores) >= to_beat
