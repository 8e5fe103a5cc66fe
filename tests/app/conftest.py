"""Three small untrained models, which the page takes like trained ones."""

import pytest
import torch

from pstn.app.core import SEASONS, SERIES_MODELS, ModelSet
from pstn.demo import DEMO_MODELS
from pstn.nn import About


def make_models(entries, about):
    torch.manual_seed(0)
    models = {name: entry.make().eval() for name, entry in entries.items()}
    for model in models.values():
        model.about = about
    return ModelSet(**models)


@pytest.fixture
def digit_models():
    about = About(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), metrics={"accuracy": 0.92})
    return make_models(DEMO_MODELS, about)


@pytest.fixture
def series_models():
    return make_models(SERIES_MODELS, About(SEASONS, 1, (24,)))
