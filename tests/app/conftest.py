"""Three small untrained models, which the page takes like trained ones."""

import dataclasses

import pytest
import torch

from pstn.app import SERIES
from pstn.demo import DIGITS, LABELS


def make_models(plan, **metrics):
    torch.manual_seed(0)
    models = {kind: plan.make(kind).eval() for kind in LABELS}
    for model in models.values():
        model.about = dataclasses.replace(plan.about, metrics=dict(metrics))
    return models


@pytest.fixture
def digit_models():
    return make_models(DIGITS, accuracy=0.92)


@pytest.fixture
def series_models():
    return make_models(SERIES)
