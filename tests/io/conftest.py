"""What the tests of sharing have in common."""

import pytest

import pstn
from shared_models import moved


@pytest.fixture
def folder(tmp_path):
    return moved(pstn.nn.mnist_pstn()).save_pretrained(tmp_path / "model")
