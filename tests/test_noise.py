"""Counter-based noise: the same numbers wherever, whenever and beside whomever they are drawn."""

import numpy as np
import pytest
import torch

import pstn
from pstn.noise import BatchOrder, stream_keys, uniform
from refusals import refused


def test_bits_match_splitmix64_by_hand():
    def mix(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF  # as Java's SplittableRandom and the published C code have it
    seeds = [0, 1, -1, 2**62, -(2**63), 2**64 - 1]
    assert [key % 2**64 for key in stream_keys(seeds, "theta").tolist()] == [mix(mix(s % 2**64) + 2) for s in seeds]


@pytest.mark.parametrize("method", ["iid", "antithetic", "sobol"])
def test_noise_is_uniform_and_random_access(method):
    keys = stream_keys([3, 4], "theta")
    u = uniform(keys, 0, 200, (4, 8, 2), method)
    assert u.shape == (200, 2, 4, 8, 2)
    assert torch.equal(u[50:60], uniform(keys, 50, 10, (4, 8, 2), method))
    assert torch.equal(u[:, :1], uniform(keys[:1], 0, 200, (4, 8, 2), method))
    assert 0 <= float(u.min()) <= float(u.max()) < 1
    histogram = torch.histc(u, 10, 0, 1) / u.numel()
    # The S values of an input may hang together, so there are at least 6,400 independent ones: six standard errors.
    assert histogram.tolist() == pytest.approx([0.1] * 10, abs=6 * (0.09 / 6400) ** 0.5)


def test_streams_and_models_do_not_hang_together():
    drawn = [uniform(stream_keys([s], name), 0, 1, (20000,))[0, 0] for s in (0, 1) for name in ("theta", "dropout")]
    correlation = torch.corrcoef(torch.stack(drawn)) - torch.eye(4)
    lagged = torch.corrcoef(torch.stack([drawn[0][1:], drawn[0][:-1]]))[0, 1]
    assert float(correlation.abs().max()) < 5 / 20000**0.5
    assert abs(float(lagged)) < 5 / 20000**0.5


def test_each_epoch_sees_each_example_once_in_another_order():
    order = BatchOrder([0, 1], [torch.arange(10), torch.arange(20, 26)], batch=2, steps_per_epoch=3)
    drawn = order.draw(0, 6)
    assert drawn.shape == (6, 2, 2)
    first, second = drawn[:3, 1].flatten(), drawn[3:, 1].flatten()
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(20, 26))
    assert first.tolist() != second.tolist()
    assert torch.equal(order.draw(2, 3), drawn[2:5])
    alone = BatchOrder([1], [torch.arange(20, 26)], batch=2, steps_per_epoch=3)
    assert torch.equal(alone.draw(0, 6)[:, 0], drawn[:, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_noise_is_float32_whatever_the_default(dtype):
    torch.set_default_dtype(dtype)
    try:
        for method in ("iid", "antithetic", "sobol"):
            noise = pstn.draw_noise(1000, (10,), method=method)
            assert noise.dtype == torch.float32
            assert noise.unique().numel() > 5000
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("shape", [(), (0, 3), [4, 3], torch.Size([4, 3]), (np.int64(4), 3)])
def test_noise_of_any_shape(shape):
    assert pstn.draw_noise(2, shape).shape == (2, *shape)


test_bad_arguments_are_named = refused(
    (lambda: pstn.draw_noise(2, 5), TypeError, "shape must"),
    (lambda: pstn.draw_noise(2, "ab"), TypeError, "shape must"),
    (lambda: pstn.draw_noise(2, (3, 2.5)), TypeError, "shape must"),
    (lambda: pstn.draw_noise(2, (3, -1)), ValueError, "shape must"),
    (lambda: pstn.draw_noise(2, (), method="sobol"), ValueError, "shape must"),
)
