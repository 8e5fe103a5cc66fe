"""Random transforms and generated sets."""

import dataclasses
import hashlib
import math

import pytest
import torch

import pstn
from data_files import needs_real
from refusals import refused

from pstn.data import (  # isort: skip
    Cropped, Generated, RandomAffine, RandomCPAB, RandomCrop, RandomPlacement, RandomRotation, RandomSimilarity,
    RandomTranslation, Split, generate, load, load_digits, load_placed_fashion, load_rotated_mnist,
    make_random_transform,
)  # fmt: skip


def digits(count=200, normalise=True) -> Split:
    x, y = load_digits("test")
    split = Split(x[:count], y[:count], tuple("0123456789"), "digits")
    return split.as_float(0.1307, 0.3081) if normalise else split


def undone(batch, transform, size):
    """Warp the examples by the inverse of the theta that they came with."""
    grid = transform.grid(transform.inverse(batch.theta), size)
    return pstn.warp(batch.x, grid, fill=batch.fill)


def blurred(x):
    """What two bilinear readings do to an image at worst, near enough."""
    return torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def assert_rotation_undone(data):
    batch, originals = data.batch(range(200)), data.base.take(range(200))
    back = undone(batch, pstn.Rotation(), (28, 28))
    inner = (..., slice(4, 24), slice(4, 24))  # the corners of a rotated square are cut off
    error = (back - originals.x)[inner].abs().mean()
    opposite = dataclasses.replace(batch, theta=-batch.theta)
    wrong = (undone(opposite, pstn.Rotation(), (28, 28)) - originals.x)[inner].abs().mean()
    spread = (blurred(originals.x) - originals.x)[inner].abs().mean()
    assert error < spread  # within interpolation
    assert error < wrong / 4  # and far from what the opposite sign would give


def test_the_inverse_of_theta_undoes_a_rotation(absent):
    assert_rotation_undone(generate(digits(), RandomRotation(), seed=0))
    splits = load("rotated-digits")
    assert splits.sizes() == {"train": 3200, "validation": 800, "test": 1000}
    assert_rotation_undone(splits.test)


@needs_real
def test_real_rotated_mnist():
    splits = load_rotated_mnist()
    assert splits.sizes() == {"train": 50_000, "validation": 10_000, "test": 10_000}
    assert_rotation_undone(splits.test)
    assert_rotation_undone(splits.train)
    angles = splits.test.theta.flatten()
    assert abs(float(angles.mean())) < 0.06
    assert float(angles.std()) == pytest.approx(math.pi / math.sqrt(3), rel=0.02)
    assert float(angles.abs().max()) <= math.pi
    assert not torch.equal(splits.validation.theta[:100], splits.test.theta[:100])


@needs_real
def test_real_placed_fashion():
    splits = load_placed_fashion()
    batch, originals = splits.test.batch(range(500)), splits.test.base.take(range(500))
    assert batch.x.shape == (500, 1, 96, 96)
    assert torch.allclose(undone(batch, pstn.Similarity(), (28, 28)), originals.x, atol=1e-4)
    # Corners are whole numbers on 0..63, and all of the range is used.
    corners = (96 - (batch.theta[:, 2:] + 1) * 28) / 2
    assert torch.allclose(corners, corners.round(), atol=1e-4)
    assert (round(float(corners.min())), round(float(corners.max()))) == (0, 63)
    # Everything outside the pasted image is background.
    assert torch.isclose(batch.x, torch.tensor(batch.fill), atol=1e-5).float().mean() > 1 - 28 * 28 / 96**2
    assert float(batch.x[0, 0, -5:, -5:].max()) == pytest.approx(batch.fill, abs=1e-5)


@pytest.mark.parametrize(
    "random_transform", [RandomPlacement(), RandomPlacement(40, 28, None), RandomPlacement(30, 28, 2)]
)
def test_placed_images_come_back_exactly(random_transform):
    data = generate(digits(), random_transform, seed=3)
    batch = data.batch(range(50))
    assert torch.allclose(undone(batch, pstn.Similarity(), (28, 28)), data.base.x[:50], atol=1e-4)


def test_a_pasted_image_is_where_theta_says():
    x = torch.zeros(1, 1, 28, 28)
    x[..., 0, 0] = 1.0
    random_transform = RandomPlacement()
    theta = random_transform.draw(1, generator=torch.Generator().manual_seed(5))
    row, column = ((random_transform.make(x, theta)[0, 0] > 0.5).nonzero()[0]).tolist()
    corner = (96 - (theta[0, 2:] + 1) * 28) / 2  # (x, y)
    assert corner.tolist() == pytest.approx([column, row], abs=1e-3)


def test_the_papers_text_has_an_undoing_scale_of_one_half():
    random_transform = RandomPlacement.as_in_text()
    data = generate(digits(normalise=False), random_transform, seed=0)
    batch = data.batch(range(50))
    inverse = pstn.Similarity().inverse(batch.theta)
    assert torch.allclose(inverse[:, 1], torch.tensor(0.5))
    assert torch.allclose(inverse[:, 0], torch.zeros(()))
    # Shrunk to half and read at the old size, an image is itself, smoothed.
    back, originals = undone(batch, pstn.Similarity(), (28, 28)), data.base.x[:50]
    assert (back - originals).abs().mean() < 1.5 * (blurred(originals) - originals).abs().mean()


@pytest.mark.parametrize("random_transform", [RandomRotation(), RandomPlacement()])
def test_the_background_stays_the_background(random_transform):
    base = digits()
    flat = Split(torch.full_like(base.x, base.fill), base.y, base.classes, fill=base.fill)
    made = generate(flat, random_transform, seed=0).batch(range(20)).x
    assert torch.all(made == made.flatten()[0])
    assert float(made.flatten()[0]) == pytest.approx(base.fill, abs=1e-7)


@pytest.mark.parametrize("random_transform", [RandomRotation(), RandomPlacement()])
def test_training_draws_anew_and_testing_does_not(random_transform):
    fresh, fixed = generate(digits(), random_transform), generate(digits(), random_transform, seed=0)
    index = [3, 1, 4]
    assert not torch.equal(fresh.batch(index).theta, fresh.batch(index).theta)
    assert torch.equal(fixed.batch(index).x, fixed.batch(index).x)
    # The draw belongs to the example, whatever the batch it is in.
    assert torch.equal(fixed.batch([4]).theta[0], fixed.batch(index).theta[2])
    assert torch.equal(fixed.all().theta, fixed.theta)
    assert torch.equal(generate(digits(), random_transform, seed=0).theta, fixed.theta)
    assert not torch.equal(generate(digits(), random_transform, seed=1).theta, fixed.theta)


def test_fixed_draws_stay_what_they_were():
    """Results were measured on these test sets."""
    for random_transform, digest in ((RandomRotation(), "3c8cbee80daa"), (RandomPlacement(), "458e50f9f00c")):
        theta = random_transform.draw(10_000, generator=torch.Generator().manual_seed(0))
        assert hashlib.sha256(theta.numpy().tobytes()).hexdigest().startswith(digest)


def test_a_generator_or_the_global_seed_makes_fresh_draws_repeatable():
    data = generate(digits(), RandomRotation())
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(7)
        draws.append((data.batch([0, 1]).theta, dataclasses.replace(data, generator=generator).batch([0, 1]).theta))
    assert all(map(torch.equal, *draws))
    assert not torch.equal(*draws[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_every_device_gets_the_same_test_set():
    here = generate(digits(), RandomRotation(), seed=0)
    there = here.to("cuda")
    batch = there.batch(torch.arange(20, device="cuda"))
    assert batch.x.is_cuda
    assert torch.allclose(batch.x.cpu(), here.batch(range(20)).x, atol=1e-4)


@pytest.mark.parametrize("random_transform", [RandomRotation(), RandomPlacement(), RandomPlacement.as_in_text()])
def test_examples_are_what_the_family_makes_of_theta(random_transform):
    """The grid is laid out in a way of its own, for speed; it is the family's."""
    x, theta = torch.rand(3, 1, 28, 28), random_transform.draw(3)
    made = random_transform.make(x, theta)
    small = torch.nn.functional.interpolate(x, (14, 14), mode="bilinear", antialias=True) if made.shape[-1] == 28 else x
    source = small if isinstance(random_transform, RandomPlacement) and random_transform.size == 14 else x
    assert torch.allclose(made, pstn.warp(source, random_transform.transform.grid(theta, made.shape[-2:])), atol=1e-5)


def test_a_subset_is_made_like_the_whole():
    splits = load("rotated-digits")
    few = pstn.data.mnist_subset(splits.train, 30)
    assert isinstance(few, Generated)
    assert (len(few), few.counts().tolist(), few.device) == (30, [3] * 10, splits.train.base.device)
    assert not torch.equal(few.all().x, few.all().x)
    part = splits.test.take([5, 2])
    assert torch.equal(part.all().x, splits.test.batch([5, 2]).x)
    assert torch.equal(part.y, splits.test.y[[5, 2]])


LINE, PLANE = pstn.CPAB(tess=4), pstn.CPAB(tess=(2, 2))
# A random transform, a family that can undo it, and the size of its examples.
UNDONE = [
    (RandomRotation(), pstn.Rotation(), (8, 8)),
    (RandomRotation(), pstn.Similarity(), (6, 11)),
    (RandomRotation(1.0), pstn.Affine(), (6, 11)),
    (RandomSimilarity(), pstn.Similarity(), (6, 11)),
    (RandomSimilarity(), pstn.Similarity("log"), (6, 11)),
    (RandomSimilarity(shift=0.0), pstn.Affine(), (6, 11)),
    (RandomTranslation(0.4, ndim=1), pstn.Translation(1.0, ndim=1), (9,)),
    (RandomTranslation(0.4, ndim=2), pstn.Similarity(), (9, 7)),
    (RandomTranslation(0.4, ndim=3), pstn.Crop(ndim=3), (5, 6, 7)),
    (RandomCrop(ndim=1), pstn.Crop(ndim=1), (9,)),
    (RandomCrop(ndim=2), pstn.Crop("log"), (9, 7)),
    (RandomCrop(ndim=2), pstn.Similarity(), (9, 7)),
    (RandomCrop(ndim=3), pstn.Affine(ndim=3), (5, 6, 7)),
    (RandomAffine(), pstn.Affine(), (9, 7)),
    (RandomAffine(ndim=3), pstn.Affine(ndim=3), (5, 6, 7)),
    (RandomPlacement(40, 28, None), pstn.Crop(), (28, 28)),
    (RandomPlacement(40, 28, None), pstn.Similarity("log"), (28, 28)),
    (RandomPlacement(40, 20, None), pstn.Translation(0.5), (20, 20)),
    (RandomCPAB(LINE), pstn.CPAB(tess=4), (9,)),
    (RandomCPAB(PLANE), PLANE, (9, 7)),
    (Cropped(RandomRotation(), 0.7), pstn.Rotation(), (20, 20)),
]


@pytest.mark.parametrize(("random_transform", "family", "size"), UNDONE, ids=str)
def test_what_undoes_a_random_transform_leads_every_point_back(random_transform, family, size):
    u = torch.rand(50, random_transform.width, generator=torch.Generator().manual_seed(3))
    theta = random_transform.theta(u)
    made = random_transform.make(torch.zeros(50, 2, *size), theta)
    aspect = tuple(made.shape[:1:-1])
    undo = random_transform.undo(theta, family, aspect=aspect)
    points = 2 * torch.rand(50, 30, len(size), generator=torch.Generator().manual_seed(4)) - 1
    there = family.apply(undo, points, aspect=aspect)
    back = random_transform.transform.apply(theta, there, aspect=aspect)
    torch.testing.assert_close(back, points, rtol=0, atol=2e-4)
    random_transform.require_undo(family, made.shape[2:])


@pytest.mark.parametrize(
    ("random_transform", "family"),
    [
        (RandomSimilarity(), pstn.Rotation()),
        (RandomRotation(), pstn.Crop()),
        (RandomCrop(), pstn.Translation(1.0)),
        (RandomPlacement(40, 20, None), pstn.Translation(1.0)),
        (RandomAffine(), pstn.Similarity()),
        (RandomTranslation(ndim=1), pstn.Translation(1.0, ndim=2)),
        (RandomRotation(), PLANE),
        (RandomCPAB(PLANE), pstn.Similarity()),
        (RandomCPAB(PLANE), pstn.CPAB(tess=(4, 1))),
        (RandomCPAB(LINE), pstn.CPAB(tess=5)),
    ],
    ids=str,
)
def test_a_family_that_cannot_undo_a_random_transform_is_refused(random_transform, family):
    with pytest.raises(ValueError, match=r"^teach must be a random transform that"):
        random_transform.require_undo(family, (12,) * random_transform.transform.ndim)


def test_a_rotation_is_rigid_where_examples_are_not_square():
    x = torch.zeros(1, 1, 20, 40)
    x[..., 8:12, 12:28] = 1.0  # 16 wide and 4 high
    turned = RandomRotation().make(x, torch.tensor([[math.pi / 2]]))[0, 0] > 0.5
    assert (int(turned.any(0).sum()), int(turned.any(1).sum())) == (4, 16)


def test_series_images_and_volumes_are_warped():
    assert RandomCrop(ndim=1).make(torch.zeros(2, 3, 20), torch.zeros(2, 2)).shape == (2, 3, 20)
    assert RandomCrop(ndim=3).make(torch.zeros(2, 3, 4, 5, 6), torch.zeros(2, 4)).shape == (2, 3, 4, 5, 6)
    assert RandomCPAB(LINE).make(torch.zeros(2, 3, 20), torch.zeros(2, 3)).shape == (2, 3, 20)
    x = torch.zeros(1, 1, 8)
    x[..., 3] = 1.0
    moved = RandomTranslation(1.0, ndim=1).make(x, torch.tensor([[0.5]]))  # reads 2 of 8 further right
    assert int(moved.argmax()) == 1


@pytest.mark.parametrize(
    "random_transform",
    [
        RandomRotation(1.0), RandomTranslation(0.4, ndim=3), RandomCrop(0.2, 0.4), RandomSimilarity(3.0, 0.2, 0.1),
        RandomAffine(0.1, 0.3),
    ],
    ids=str,
)  # fmt: skip
def test_theta_is_uniform_within_its_limits_and_so_is_its_density(random_transform):
    transform = random_transform.transform
    u = torch.rand(4000, random_transform.width, generator=torch.Generator().manual_seed(0))
    theta = random_transform.theta(u) - transform.identity()
    torch.testing.assert_close(theta.amax(0), -theta.amin(0), rtol=0.01, atol=0)
    torch.testing.assert_close(theta.std(0), theta.amax(0) / 3**0.5, rtol=0.05, atol=0)
    assert random_transform.log_density() == pytest.approx(-float((2 * theta.amax(0)).log().sum()), abs=0.02)
    compiled = torch.compile(random_transform.theta, backend="eager", fullgraph=True)  # as a population's step is
    torch.testing.assert_close(compiled(u), random_transform.theta(u), rtol=0, atol=0)


def test_the_density_of_any_angle_is_that_of_the_circle():
    assert RandomRotation().log_density() == pytest.approx(-math.log(2 * math.pi))
    assert RandomRotation(2 * math.pi).log_density() == pytest.approx(-math.log(2 * math.pi))
    assert Cropped(RandomRotation()).log_density() == RandomRotation().log_density()


def test_cpab_warps_are_drawn_from_the_smooth_prior():
    random_transform = RandomCPAB(LINE, scale=0.3, length=0.4)
    u = torch.rand(20000, random_transform.width, generator=torch.Generator().manual_seed(0))
    prior = pstn.SmoothPrior(LINE, 0.3, 0.4)
    torch.testing.assert_close(random_transform.theta(u).T.cov(), prior.covariance, rtol=0.1, atol=5e-4)
    assert bool(torch.isfinite(random_transform.theta(torch.zeros(1, 3))).all())
    expected = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), prior.covariance.double())
    at_identity = float(expected.log_prob(torch.zeros(3, dtype=torch.float64)))
    assert random_transform.log_density() == pytest.approx(at_identity, rel=1e-4)


def test_a_cropped_example_shows_nothing_outside_and_is_at_the_originals_resolution():
    cropped = Cropped(RandomRotation(), 0.7)
    made = cropped.make(torch.ones(200, 1, 40, 60), cropped.draw(200))
    assert made.shape == (200, 1, 28, 42)
    square = cropped.make(torch.ones(200, 1, 40, 40), cropped.draw(200), fill=-9.0)
    assert float(square.min()) > 0.99
    still = cropped.make(torch.arange(40.0).expand(1, 1, 40, 40), torch.zeros(1, 1))
    torch.testing.assert_close(still[0, 0, 0], torch.arange(6.0, 34.0))


RAW = Split(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
GENERATOR = torch.Generator()
test_what_cannot_be_is_refused = refused(
    (lambda: RandomRotation(0.0), ValueError, "limit"),
    (lambda: RandomSimilarity(angle=-1.0), ValueError, "angle"),
    (lambda: RandomCrop(scale=0.0, shift=0.0), ValueError, "scale"),
    (lambda: RandomTranslation(ndim=4), ValueError, "ndim"),
    (lambda: RandomAffine(linear=0.5), ValueError, "linear"),
    (lambda: RandomCPAB(LINE, scale=0.0), ValueError, "scale"),
    (lambda: RandomCPAB(pstn.Crop()), TypeError, "transform"),
    (lambda: RandomPlacement(20, 28), ValueError, "size"),
    (lambda: RandomPlacement(96, 28, 70), ValueError, "corners"),
    (lambda: RandomPlacement().log_density(), ValueError, "density"),
    (lambda: Cropped(RandomRotation(), 1.0), ValueError, "crop"),
    (lambda: Cropped(RandomRotation(), 0.8).require_undo(pstn.Rotation(), (28, 28)), ValueError, "crop"),
    (lambda: Cropped(RandomPlacement(), 0.5), TypeError, "random_transform"),
    (lambda: generate(RAW, RandomRotation()), TypeError, r"base\.x"),
    (lambda: generate(digits(), RandomRotation(), seed=0, generator=GENERATOR), ValueError, "generator"),
    (lambda: Generated(digits(5), RandomRotation(), torch.zeros(4, 1)), ValueError, "theta"),
    (lambda: make_random_transform("turn"), ValueError, "name"),
    (lambda: make_random_transform("rotation=x"), ValueError, "limit"),
    (lambda: make_random_transform("rotation=1,2"), ValueError, "limit"),
    (lambda: make_random_transform("rotation=scale=2"), ValueError, "limit"),
    (lambda: make_random_transform("rotation=0"), ValueError, "limit"),
    (lambda: make_random_transform(3.0), TypeError, "teach"),
)


def test_a_random_transform_is_read_from_text():
    assert make_random_transform("rotation") == RandomRotation()
    assert make_random_transform("rotation=0.5") == RandomRotation(0.5)
    assert make_random_transform("similarity=3,0.2,0.1") == RandomSimilarity(3.0, 0.2, 0.1)
    assert make_random_transform("similarity=shift=0.1") == RandomSimilarity(shift=0.1)
    assert make_random_transform("crop=0.2,shift=0.1", ndim=3) == RandomCrop(0.2, 0.1, ndim=3)
    assert make_random_transform("rotation=3.14,keep=0.7") == Cropped(RandomRotation(3.14), 0.7)
    assert make_random_transform("placement=40,20") == RandomPlacement(40, 20, None)
    warps = make_random_transform("cpab=0.3", ndim=1)
    assert (warps.transform.tess, warps.scale, warps.length) == ((10,), 0.3, 0.2)
    assert make_random_transform(warps) is warps
