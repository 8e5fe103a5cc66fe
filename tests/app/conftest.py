"""Three small untrained models, which the page takes like trained ones."""

import pytest
import torch

import pstn
from pstn.demo import LABELS, make_digit_model
from pstn.nn import make_model


def make_models(make, about):
    torch.manual_seed(0)
    models = {kind: make(kind).eval() for kind in LABELS}
    for model in models.values():
        model.about = about
    return models


@pytest.fixture
def digit_models():
    digits = pstn.ModelMetadata(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), metrics={"accuracy": 0.92})
    return make_models(make_digit_model, digits)


@pytest.fixture
def series_models():
    days = pstn.ModelMetadata(("winter", "summer"), 1, (24,))
    return make_models(lambda kind: make_model(kind, 1, (24,), 2, pstn.CPAB(tess=5), networks="auto", width=16), days)
