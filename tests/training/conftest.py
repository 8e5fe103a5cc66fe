"""What the tests of training share."""

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Small images that an .npz file holds."""
    import numpy as np

    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    x, y = generator.random((32, 16, 16), np.float32)[..., None], np.arange(32) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return str(path)
