"""The basis of velocity fields and the smoothness prior, against their definitions."""

import numpy as np
import pytest
import torch

from pstn import CPAB, Similarity, SmoothPrior
from pstn.transforms.cpab.basis import make_basis, triangles
from refusals import refused

FAMILIES = [
    {"tess": 10},
    {"tess": 3, "zero_boundary": False},
    {"tess": (3, 3)},
    {"tess": (2, 3), "zero_boundary": False},
    {"tess": (3, 3), "volume_preserving": True},
]


def test_number_of_parameters():
    assert [CPAB(tess).dim for tess in (10, (3, 3), (1, 1), [2])] == [9, 34, 2, 1]
    assert [CPAB(tess, zero_boundary=False).dim for tess in (10, (3, 3))] == [11, 50]


@pytest.mark.parametrize("settings", FAMILIES)
def test_is_printed_with_the_settings_that_it_was_given(settings):
    assert str(CPAB(**settings)) == f"CPAB({', '.join(f'{name}={value}' for name, value in settings.items())})"


@pytest.mark.parametrize("settings", FAMILIES)
def test_columns_are_orthonormal_and_fields_continuous(settings):
    """At a vertex, all cells around it agree on the velocity."""
    transform = CPAB(**settings)
    basis, n = transform.basis.numpy(), transform.tess[0]
    assert np.allclose(basis.T @ basis, np.eye(transform.dim), atol=1e-13)
    entries = (basis @ np.random.default_rng(0).normal(size=transform.dim)).reshape(
        -1, transform.ndim, transform.ndim + 1
    )
    line = np.linspace(0, 1, n + 1)[:, None], np.stack([np.arange(n), np.arange(n) + 1], 1)
    nodes, cells = line if transform.ndim == 1 else triangles(*transform.tess)
    seen: dict[int, np.ndarray] = {}
    for cell, corners in enumerate(cells):
        for corner in corners:
            value = entries[cell] @ np.append(nodes[corner], 1.0)
            assert np.allclose(seen.setdefault(corner, value), value, atol=1e-12)


def test_the_basis_spans_all_fields_without_divergence():
    """The dimension is that of the hat functions minus the rank of the constraints."""
    basis = make_basis((3, 3), True, True)
    traces = basis.entries.reshape(36, 2, 3, -1)
    assert np.allclose(traces[:, 0, 0] + traces[:, 1, 1], 0, atol=1e-12)
    plain = make_basis((3, 3), True, False).entries.reshape(36, 2, 3, -1)
    rank = np.linalg.matrix_rank(plain[:, 0, 0] + plain[:, 1, 1])
    assert basis.entries.shape[1] == 34 - rank


def test_basis_is_reproducible_and_signed():
    """QR with a positive diagonal: the first hat function's own coefficient is positive, on every machine."""
    basis = make_basis((10,), True, False)
    assert np.array_equal(basis.entries, make_basis((10,), True, False).entries)
    first = basis.nodal[1, 0]  # the first interior node, first column: 1 / R[0, 0]
    # Column 0 is the hat function of node 1 divided by the norm of its entries: a=10, b=0 and a=-10, b=2.
    assert first == pytest.approx(1 / np.sqrt(10**2 + 10**2 + 2**2), rel=1e-12)


test_bad_settings_are_refused = refused(
    (lambda: CPAB(0), ValueError, "tess"),
    (lambda: CPAB("3"), TypeError, "tess"),
    (lambda: CPAB(True), TypeError, "tess"),
    (lambda: CPAB((3, 0)), ValueError, r"tess\[1\]"),
    (lambda: CPAB((3, 3, 3)), ValueError, "tess"),
    (lambda: CPAB(1), ValueError, "tess"),
    (lambda: CPAB(5, volume_preserving=True), ValueError, "volume_preserving"),
    (lambda: CPAB(5, zero_boundary=1), TypeError, "zero_boundary"),
    (lambda: CPAB(5, backend="cuda"), ValueError, "backend"),
)


@pytest.mark.parametrize("settings", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_precision_of_the_model_does_not_change_the_basis(settings, dtype):
    transform = CPAB(**settings)
    theta = torch.randn(transform.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3
    size = 7 if transform.ndim == 1 else (5, 4)
    before = transform.grid(theta, size)
    model = torch.nn.Sequential(transform).to(dtype)
    assert model[0].basis.dtype == torch.float64
    assert torch.equal(model[0].grid(theta, size), before)
    assert transform.grid(theta.to(dtype), size).dtype == torch.float32


def test_a_checkpoint_determines_the_basis():
    """A model saved with another basis of the same space computes the same after loading."""
    old, new = CPAB(tess=5), CPAB(tess=5)
    flipped = {name: -value for name, value in old.state_dict().items()}
    assert set(flipped) == {"basis"}
    theta = torch.randn(4, generator=torch.Generator().manual_seed(0))
    expected = new.grid(-theta, size=9)
    new.load_state_dict(flipped)
    assert torch.allclose(new.grid(theta, size=9), expected, atol=1e-7)
    with pytest.raises(RuntimeError, match="size mismatch"):
        CPAB(tess=6).load_state_dict(old.state_dict())


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


test_bad_priors_are_refused = refused(
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
