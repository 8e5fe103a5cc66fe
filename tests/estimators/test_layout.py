"""The rule that says what an array holds."""

import numpy as np
import pytest

from pstn.estimators.arrays import choose_layout


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((24,), "auto", ("series", 1, (24,))),
        ((1,), "auto", ("series", 1, (1,))),
        ((8, 8), "auto", ("image", 1, (8, 8))),
        ((7, 8), "auto", ("series", 7, (8,))),
        ((8, 32), "auto", ("image", 1, (8, 32))),
        ((8, 33), "auto", ("series", 8, (33,))),
        ((33, 8), "auto", ("series", 33, (8,))),
        ((12, 1000), "auto", ("series", 12, (1000,))),
        ((28, 28), "series", ("series", 28, (28,))),
        ((12, 1000), "image", ("image", 1, (12, 1000))),
        ((32, 30, 3), "auto", ("image", 3, (32, 30))),
        ((32, 30, 3), "image", ("image", 3, (32, 30))),
    ],
)
def test_the_written_rule_of_kind(shape, kind, expected):
    layout = choose_layout(shape, kind)
    assert (layout.kind, layout.channels, layout.size) == expected


@pytest.mark.parametrize("shape", [(24,), (3, 24), (9, 10), (9, 10, 3)])
def test_arrays_come_back_as_they_were_given(shape):
    layout = choose_layout(shape)
    x = np.random.default_rng(0).random((5, *shape))
    network = layout.channels_first(x)
    assert network.shape == (5, layout.channels, *layout.size)
    np.testing.assert_array_equal(layout.as_given(network), x)
    np.testing.assert_array_equal(layout.as_given(np.stack([network, network])), np.stack([x, x]))


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ((), "auto", "got an array with 1 axes"),
        ((2, 3, 4, 5), "auto", "got an array with 5 axes"),
        ((64,), "image", r"X.reshape\(-1, H, W\)"),
        ((8, 8, 3), "series", r"\(N, L\) or \(N, C, L\)"),
        ((3, 32, 32), "auto", "channels come last"),
        ((7, 9), "image", "8x8 or larger"),
        ((9, 9), "picture", "kind must be one of 'auto', 'image', 'series', got 'picture'"),
    ],
)
def test_shapes_that_are_neither_are_refused_with_a_way_out(shape, kind, message):
    with pytest.raises(ValueError, match=message):
        choose_layout(shape, kind)
