"""What an array holds, standardisation and the background."""

import numpy as np
import pytest

from pstn.data.split import fit_scaling
from pstn.estimators.arrays import choose_layout


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((24,), "auto", ("series", 1, (24,))), ((8, 8), "auto", ("image", 1, (8, 8))),
        ((7, 8), "auto", ("series", 7, (8,))), ((8, 32), "auto", ("image", 1, (8, 32))),
        ((8, 33), "auto", ("series", 8, (33,))), ((33, 8), "auto", ("series", 33, (8,))),
        ((28, 28), "series", ("series", 28, (28,))), ((12, 1000), "image", ("image", 1, (12, 1000))),
        ((32, 30, 3), "auto", ("image", 3, (32, 30))),
    ],
)  # fmt: skip
def test_the_written_rule_of_kind(shape, kind, expected):
    layout = choose_layout(shape, kind)
    assert (layout.kind, layout.channels, layout.size) == expected
    x = np.random.default_rng(0).random((5, *shape))
    network = layout.channels_first(x)
    assert network.shape == (5, layout.channels, *layout.size)
    np.testing.assert_array_equal(layout.as_given(np.stack([network, network])), np.stack([x, x]))


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ((), "auto", "X must be"), ((2, 3, 4, 5), "auto", "X must be"), ((64,), "image", r"X.reshape\(-1, H, W\)"),
        ((8, 8, 3), "series", "X must be"), ((3, 32, 32), "auto", "channels come last"), ((7, 9), "image", "8x8"),
        ((9, 9), "picture", "kind must be"),
    ],
)  # fmt: skip
def test_shapes_that_are_neither_are_refused(shape, kind, message):
    with pytest.raises(ValueError, match=message):
        choose_layout(shape, kind)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(30, 2, 40), (30, 3, 9, 10)])
def test_channels_are_standardised_and_restored(dtype, shape):
    x = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    x[:, 1] //= 2
    scaling = fit_scaling(x)
    scaled = scaling.apply(x)
    axes = [0, *range(2, x.ndim)]
    assert scaled.mean(axes).abs().max() < 1e-5
    assert (scaled.std(axes) - 1).abs().max() < 1e-3
    np.testing.assert_allclose(scaling.restore(scaled, x.ndim - 2), x, atol=1e-3)


def test_small_changes_on_a_large_offset_survive_and_a_constant_stays_finite():
    x = 1e9 + np.random.default_rng(0).normal(size=(20, 1, 30))
    assert abs(float(fit_scaling(x).apply(x).std()) - 1) < 1e-2
    constant = np.full((4, 1, 12), 0.1)
    assert fit_scaling(constant).apply(constant).abs().max() < 1e-6


def test_the_background_of_digits_is_found_and_scaled():
    images = np.full((20, 1, 12, 12), 7.0)
    images[:, :, 3:9, 3:9] = np.random.default_rng(0).normal(50, 10, (20, 1, 6, 6))
    scaling = fit_scaling(images)
    assert scaling.fill == (7.0,)
    assert scaling.scaled_fill[0] == pytest.approx(float(scaling.apply(images)[0, 0, 0, 0]), abs=1e-5)
    assert fit_scaling(np.random.default_rng(0).random((20, 3, 12, 12))).fill is None
    assert fit_scaling(np.zeros((20, 1, 12))).fill is None


@pytest.mark.parametrize(("fill", "expected"), [("border", None), (3, (3.0, 3.0)), ([1, 2.5], (1.0, 2.5))])
def test_fill_may_be_given(fill, expected):
    assert fit_scaling(np.zeros((5, 2, 9, 9)), fill).fill == expected


@pytest.mark.parametrize("fill", ["black", [1, 2, 3], np.inf, object(), None])
def test_a_fill_that_makes_no_sense_is_refused(fill):
    with pytest.raises(ValueError, match="fill must be"):
        fit_scaling(np.zeros((5, 2, 9, 9)), fill)


def test_values_that_overflow_are_refused():
    with pytest.raises(ValueError, match="too large"):
        fit_scaling(np.array([[[1e300, -1e300]]]))
    with pytest.raises(ValueError, match="too large"):
        fit_scaling(np.array([[[0.0, 1.0]]])).apply(np.array([[[0.0, 1e300]]]))
