"""Three small untrained models, which the page's functions take like trained ones."""

import pytest
import torch

from pstn.app.looks import Trio
from pstn.app.models import SEASONS, SERIES_MODELS
from pstn.demo import DEMO_MODELS
from pstn.nn import About


def make_trio(entries, about):
    torch.manual_seed(0)
    models = {name: entry.make().eval() for name, entry in entries.items()}
    for model in models.values():
        model.about = about
    return Trio(**models)


@pytest.fixture
def digit_trio():
    about = About(tuple("0123456789"), 1, (28, 28), (0.1307,), (0.3081,), metrics={"accuracy": 0.92})
    return make_trio(DEMO_MODELS, about)


@pytest.fixture
def series_trio():
    return make_trio(SERIES_MODELS, About(SEASONS, 1, (24,)))
