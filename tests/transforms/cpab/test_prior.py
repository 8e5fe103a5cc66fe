"""The smoothness prior."""

import numpy as np
import pytest
import torch

from pstn import CPAB, Similarity, SmoothPrior
from refusals import refused


@pytest.mark.parametrize(
    "transform", [CPAB(tess=10), CPAB(tess=(3, 3)), CPAB(tess=(3, 3), volume_preserving=True)], ids=str
)
def test_covariance_decays_with_distance(transform):
    """Built once more, entry by entry, from the definition."""
    prior = SmoothPrior(transform, scale=0.7, length=0.3)
    basis = transform.basis.numpy()
    width = transform.ndim * (transform.ndim + 1)
    if transform.ndim == 1:
        centres = (np.arange(10)[:, None] + 0.5) / 10
    else:
        middle = [((i + 0.5) / 3, (j + 0.5) / 3) for j in range(3) for i in range(3)]
        # The centroid of a triangle lies two thirds of the way from the centre to the side's middle.
        shift = [(-1 / 9, 0), (1 / 9, 0), (0, -1 / 9), (0, 1 / 9)]
        centres = np.array([(x + dx, y + dy) for x, y in middle for dx, dy in shift])
    distances = np.linalg.norm(centres[:, None] - centres, axis=-1)
    full = np.kron(0.49 * np.exp(-(distances**2) / (2 * 0.3**2)), np.eye(width))
    assert np.allclose(prior.covariance.numpy(), basis.T @ full @ basis, atol=1e-6)


def test_samples_have_the_covariance():
    prior = SmoothPrior(CPAB(tess=6), scale=0.5, length=0.2)
    theta = prior.sample(200_000, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(theta.T.cov(), prior.covariance, atol=0.01)
    assert theta.mean(0).abs().max() < 0.01


def test_longer_lengths_give_smoother_fields():
    transform, axis = CPAB(tess=10), torch.linspace(-1, 1, 200)[:, None]
    noise = torch.randn(500, 9, generator=torch.Generator().manual_seed(0))
    roughness = []
    for length in (0.02, 0.1, 0.3):
        velocity = transform.velocity(SmoothPrior(transform, length=length).sample(noise=noise), axis)[..., 0]
        roughness.append(((velocity.diff().diff() ** 2).mean() / (velocity**2).mean()).item())
    assert roughness[0] > 2 * roughness[1] > 4 * roughness[2]


test_bad_arguments_are_refused = refused(
    (lambda: SmoothPrior(Similarity()), TypeError, "transform"),
    (lambda: SmoothPrior(CPAB(tess=4), scale=0.0), ValueError, "scale"),
    (lambda: SmoothPrior(CPAB(tess=4), length=-1.0), ValueError, "length"),
    (lambda: SmoothPrior(CPAB(tess=4)).sample(0), ValueError, "samples"),
    (lambda: SmoothPrior(CPAB(tess=5)).log_prob([0.0] * 4), TypeError, "theta"),
    # A width of 1 would broadcast.
    (lambda: SmoothPrior(CPAB(tess=5)).log_prob(torch.zeros(2, 1)), ValueError, "theta"),
    (lambda: SmoothPrior(CPAB(tess=5)).sample(noise=torch.zeros(2, 1)), ValueError, "noise"),
)


@pytest.mark.parametrize("length", [0.1, 0.3, 0.4, 0.5])
def test_the_squared_length_of_samples_is_chi_squared(length):
    # With 0.3 and more, some directions have a variance far below float32's rounding of the largest.
    prior = SmoothPrior(CPAB(tess=10), length=length)
    drawn = prior.sample(20_000, generator=torch.Generator().manual_seed(0))
    assert -2 * prior.log_prob(drawn).mean() == pytest.approx(9, abs=0.15)
    _, directions = torch.linalg.eigh(prior.covariance.double())
    spread = (drawn.double() @ directions[:, 0]).std()
    assert prior.log_prob(10 * spread * directions[:, 0]) < -20
