"""Alignment of series, augmentation learned from it, and pictures of both."""

import functools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import pstn
from largest_tensor import LargestTensor
from pstn.estimators.aligning import AligningLoss, Alignment, SmoothCPAB
from refusals import refused

# Some tests take only a few steps.
pytestmark = pytest.mark.filterwarnings("ignore:The transformation is the identity")


def bumps(count=24, length=48, seed=0):
    """Two classes, one bump and two, at a time that differs from series to series."""
    rng, y = np.random.default_rng(seed), np.arange(count) % 2
    t = np.linspace(0, 1, length)
    shift = rng.uniform(-0.12, 0.12, (count, 1))
    one = np.exp(-(((t - 0.5 - shift) / 0.07) ** 2))
    two = np.exp(-(((t - 0.35 - shift) / 0.05) ** 2)) + np.exp(-(((t - 0.65 - shift) / 0.05) ** 2))
    return np.where(y[:, None] == 0, one, two) + rng.normal(0, 0.01, (count, length)), np.array(["one", "two"])[y]


def within(X, y):
    return sum(np.square(X[y == k] - X[y == k].mean(0)).sum() for k in np.unique(y)) / X.size


@functools.cache
def fitted():
    X, y = bumps()
    return pstn.SeriesAligner(steps=80, random_state=0).fit(X, y)


def test_unseen_series_vary_less_and_are_classified_by_the_nearest_average():
    X, y = bumps(40, seed=1)
    aligner = fitted()
    aligned = aligner.transform(X)
    assert aligned.shape == X.shape
    assert aligned.dtype == np.float32
    before, after = within(X, y), within(aligned, y)
    assert after < 0.4 * before
    # Flat series would vary less too.
    assert after / aligned.var() < 0.4 * before / X.var()
    assert aligner.score(X, y) > 0.9
    # The prediction is that of the averages that are published.
    distance = np.square(aligned[:, None] - aligner.averages_).sum(-1)
    np.testing.assert_array_equal(aligner.predict(X), aligner.classes_[distance.argmin(1)])


def test_warps_read_where_the_aligned_series_comes_from_and_come_with_an_interval():
    X, _ = bumps(10, seed=2)
    aligner = fitted()
    warps, aligned = aligner.warps(X), aligner.transform(X)
    assert warps.mode.shape == warps.low.shape == (10, 48)
    assert (np.diff(warps.mode, axis=1) > 0).all()
    assert (warps.low <= warps.high).all()
    inside = (warps.low - 1e-3 <= warps.mode) & (warps.mode <= warps.high + 1e-3)
    assert inside.mean() > 0.95
    for series, at, made in zip(X, warps.mode, aligned, strict=True):
        np.testing.assert_allclose(np.interp(at, np.arange(48), series), made, atol=1e-4)
    wider = aligner.warps(X, level=0.99)
    assert (wider.high - wider.low).mean() > 1.2 * (warps.high - warps.low).mean()


@pytest.mark.parametrize("passes", [1, 2])
def test_the_inverse_brings_series_and_points_back(passes):
    X, y = bumps()
    aligner = fitted() if passes == 1 else pstn.SeriesAligner(passes=2, steps=40, random_state=0).fit(X, y)
    other, _ = bumps(8, seed=3)
    back = aligner.inverse_transform(aligner.transform(other), other)
    assert np.abs(back - other).mean() < 0.06  # what is lost where time is compressed
    assert np.abs(back - other).mean() < 0.4 * np.abs(aligner.transform(other) - other).mean()
    np.testing.assert_array_equal(aligner.inverse_transform(X), aligner.inverse_transform(X, X))
    theta = aligner.model_(torch.randn(3, 1, 48), 2).theta.detach()
    assert theta.shape[:3] == (passes, 2, 3)
    there = aligner.model_.points(theta, 48)
    back = aligner.model_.points(theta, there, inverse=True)
    np.testing.assert_allclose(back[1, 2, :, 0], (2 * np.arange(48) + 1) / 48 - 1, atol=1e-4)


def test_bands_hold_the_share_of_the_class_that_was_asked_for():
    X, y = bumps()
    averages = fitted().class_averages(0.8)
    assert averages.classes.tolist() == ["one", "two"]
    aligned = fitted().transform(X)
    for name, mean, low, high in zip(*averages, strict=True):
        np.testing.assert_allclose(mean, aligned[y == name].mean(0), atol=1e-4)
        inside = (low - 1e-3 <= aligned[y == name]) & (aligned[y == name] <= high + 1e-3)
        assert 0.7 < inside.mean() < 0.95


def test_samples_have_the_timing_of_others():
    X, y = bumps(12, seed=4)
    aligner = fitted()
    retimed = aligner.sample(X, 30, random_state=0)
    assert retimed.shape == (30, 12, 48)
    np.testing.assert_array_equal(retimed, aligner.sample(X, 30, random_state=0))
    # As different from each other as the series of a class are, which aligned ones are not.
    spread = np.mean([within(each, y) for each in retimed])
    assert 0.5 * within(X, y) < spread < 2 * within(X, y)


def test_several_channels_share_a_warp_in_either_order_of_the_axes():
    X, y = bumps(16)
    both = np.stack([X, 5 - 2 * X], axis=1)
    options = {"steps": 5, "random_state": 0}
    aligner = pstn.SeriesAligner(axes="NCL", **options).fit(both, y)
    aligned = aligner.transform(both)
    np.testing.assert_allclose(aligned[:, 1], 5 - 2 * aligned[:, 0], atol=1e-4)
    last = pstn.SeriesAligner(axes="NLC", **options).fit(both.transpose(0, 2, 1), y)
    np.testing.assert_allclose(last.transform(both.transpose(0, 2, 1)), aligned.transpose(0, 2, 1), atol=1e-5)
    assert last.averages_.shape == (2, 48, 2)
    assert last.warps(both.transpose(0, 2, 1)).mode.shape == (16, 48)


def test_memory_does_not_grow_with_classes_or_series():
    X = np.random.default_rng(0).normal(size=(600, 1000))
    with LargestTensor() as largest:
        aligner = pstn.SeriesAligner(steps=1, samples=1, random_state=0).fit(X, np.arange(600) % 60)
        aligner.transform(X)
        aligner.class_averages()
    # The differences from all averages would be 256 * 60 * 1000 values, and 32 warps of each series 19 million.
    assert largest.values <= 1 << 24


def test_verbose_prints_the_loss(capsys):
    X, y = bumps(8)
    pstn.SeriesAligner(steps=2).fit(X, y)
    assert capsys.readouterr().out == ""
    pstn.SeriesAligner(steps=2, verbose=1).fit(X, y)
    assert capsys.readouterr().out.count("loss=") == 2


def test_unequal_lengths_and_gaps():
    X, y = bumps(16)
    ragged = [x[: 40 + at % 9] for at, x in enumerate(X)]
    aligner = pstn.SeriesAligner(steps=5, random_state=0).fit(ragged, y)
    assert aligner.transform(ragged).shape == (16, 48)
    assert aligner.predict([x[:30] for x in X[:3]]).shape == (3,)
    assert aligner.inverse_transform(aligner.transform(ragged)).shape == (16, 48)
    holes = X.copy()
    holes[:, 7] = np.nan
    assert np.isfinite(aligner.transform(holes)).all()


def test_without_labels_all_series_are_one_class():
    X = bumps(16)[0][::2]
    aligner = pstn.SeriesAligner(steps=60, random_state=0).fit(X)
    assert aligner.averages_.shape == (1, 48)
    assert aligner.transform(X).var(0).mean() < 0.5 * X.var(0).mean()
    assert aligner.class_averages().classes.shape == (1,)


def test_scaled_distances_tell_classes_of_one_average_by_their_spread():
    rng, y = np.random.default_rng(0), np.repeat(["calm", "wild"], 20)
    X = rng.normal(size=(40, 2, 24)) * np.array([[1.0, 1.0], [1.0, 5.0]]).repeat(20, 0)[:, :, None]
    test = rng.normal(size=(40, 2, 24)) * np.array([[1.0, 1.0], [1.0, 5.0]]).repeat(20, 0)[:, :, None]
    aligner = pstn.SeriesAligner(axes="NCL", steps=10, random_state=0).fit(X, y)
    assert (
        clone(aligner).set_params(distance="euclidean").fit(X, y).score(test, y) < 0.8 < aligner.score(test, y) - 0.15
    )
    aligned = torch.from_numpy(aligner.transform(X)).double()
    residuals = torch.stack([part - part.mean(0) for part in aligned.split(20)]).square().mean(-1)
    spread = (residuals.sum(1) + residuals.sum((0, 1)) / 38) / 20  # with the spread of all as one more series
    away = (torch.from_numpy(aligner.transform(test))[:, None] - torch.from_numpy(aligner.averages_)).square().mean(-1)
    expected = (away / spread + spread.log()).sum(-1).argmin(1)
    np.testing.assert_array_equal(aligner.predict(test), np.array(["calm", "wild"])[expected])


@pytest.mark.parametrize("distance", ["euclidean", "scaled"])
def test_classes_of_one_series_or_without_spread_are_predicted(distance):
    X = np.stack([np.sin(np.linspace(0, 6, 30)), np.linspace(-1, 1, 30)])
    for copies in 1, 3:
        aligner = pstn.SeriesAligner(steps=2, distance=distance, random_state=0).fit(
            np.repeat(X, copies, 0), np.arange(2).repeat(copies)
        )
        np.testing.assert_array_equal(aligner.predict(X), [0, 1])


def test_taught_warps_are_undone():
    X = np.repeat(bumps(2)[0][:1], 64, axis=0)
    warp = pstn.data.RandomCPAB(pstn.CPAB(tess=4), scale=0.5)
    aligner = pstn.SeriesAligner(teach=warp, steps=150, random_state=0).fit(X)
    theta = warp.draw(40, generator=torch.Generator().manual_seed(9))
    series = torch.from_numpy(X[:40]).float()[:, None]
    made = warp.make(series, theta, padding_mode="border")[:, 0].numpy()
    before, after = (np.square(each - X[0]).mean() for each in (made, aligner.transform(made)))
    assert after < 0.4 * before


def test_a_point_has_no_interval_and_any_family_of_one_axis_will_do():
    X, y = bumps(8)
    aligner = pstn.SeriesAligner(pstn.Crop(ndim=1), probabilistic=False, steps=3, random_state=0).fit(X, y)
    warps = aligner.warps(X)
    np.testing.assert_array_equal(warps.low, warps.high)
    assert pstn.SeriesAligner("translation", steps=2).fit(X, y).transform(X).shape == X.shape


@pytest.mark.parametrize("probabilistic", [True, False])
def test_smoothness_holds_warps_near_the_identity(probabilistic):
    X, y = bumps()
    free, held = (
        pstn.SeriesAligner(probabilistic=probabilistic, smoothness=smoothness, steps=40, random_state=0).fit(X, y)
        for smoothness in (0.0, 10.0)
    )
    far, near = (np.abs(aligner.warps(X).mode - np.arange(48)).mean() for aligner in (free, held))
    assert near < 0.5 * far


def test_clones_pickles_and_seeds():
    X, y = bumps(8)
    state = torch.get_rng_state()
    first = pstn.SeriesAligner(steps=3, random_state=0).fit(X, y)
    assert torch.equal(state, torch.get_rng_state())
    again = clone(first).fit(X, y)
    np.testing.assert_array_equal(first.transform(X), again.transform(X))
    np.testing.assert_array_equal(first.transform(X), pickle.loads(pickle.dumps(first)).transform(X))
    assert first.get_params()["transform"] == "auto"
    assert first.set_params(transform="crop").get_params()["transform"] == "crop"


BAD_SETTINGS = {
    "passes": 0, "steps": 0, "smoothness": -1.0, "objective": "mean", "transform": pstn.Affine(), "axes": "CNL",
    "teach": "spin", "learning_rate": 0, "lengths": "pad",
}  # fmt: skip
test_what_does_not_suit_is_refused = refused(
    *[
        (lambda X, y, s=s: pstn.SeriesAligner(**dict([s])).fit(X, y), ValueError, s[0].replace("teach", "random"))
        for s in BAD_SETTINGS.items()
    ],
    (lambda X, y: fitted().transform(np.zeros((2, 3, 48))), ValueError, "48"),
    (lambda X, y: fitted().inverse_transform(np.zeros((3, 48))), ValueError, "as many series"),
    (lambda X, y: fitted().warps(X, level=1.0), ValueError, "level"),
    (lambda X, y: pstn.Augmenter(SVC()).fit(X, y), TypeError, "warp"),
    (lambda X, y: pstn.Augmenter(fitted(), lengths="pad").fit(X, y), ValueError, "lengths"),
    (lambda X, y: pstn.SeriesAligner(steps=1).fit(X).predict(X), NotFittedError, "fitted without y"),
    (lambda X, y: pstn.SeriesAligner(steps=1).fit(X).score(X, y), NotFittedError, "fitted without y"),
    # The labels of an earlier fit are no longer known.
    (lambda X, y: pstn.SeriesAligner(steps=1).fit(X, y).fit(X).predict(X), NotFittedError, "fitted without y"),
    (lambda X, y: pstn.SeriesAligner().predict(X), NotFittedError, "not fitted yet"),
    given=lambda: bumps(8),
)


def test_the_loss_is_the_share_of_the_variance_within_classes():
    x, y = torch.randn(2, 6, 1, 5), torch.tensor([0, 0, 0, 1, 1, 1])
    q = pstn.NormalPosterior(torch.zeros(6, 3), torch.ones(6, 3))
    output = Alignment(x, torch.zeros(1, 2, 6, 3), q, (q,))
    flat = x[:, :, 0].numpy()
    squares = sum(np.square(flat[:, k] - flat[:, k].mean((0, 1))).sum() for k in (slice(0, 3), slice(3, 6)))
    variance = squares / (2 * 4 * 5)
    assert float(AligningLoss(2, "variance")(output, y, 0.0).total) == pytest.approx(variance, rel=1e-5)
    assert float(AligningLoss(2)(output, y, 0.0).total) == pytest.approx(variance / flat.var(), rel=1e-5)
    assert float(AligningLoss(2)(output, y, 1.0).kl) == pytest.approx(0.0, abs=1e-6)


def test_whitened_cpab_is_cpab_under_its_smoothness_prior():
    cpab = pstn.CPAB(tess=8)
    family, prior = SmoothCPAB(cpab, 0.5, 0.2), pstn.SmoothPrior(cpab, 0.5, 0.2)
    noise, points = torch.randn(3, 7), torch.linspace(-1, 1, 9)[:, None]
    there = family.apply(noise, points)
    torch.testing.assert_close(there, cpab.apply(prior.sample(noise=noise), points))
    torch.testing.assert_close(family.apply_inverse(noise, there), points.expand(3, 9, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(family.apply(family.inverse(noise), points), family.apply_inverse(noise, points))


def test_an_augmenter_uses_a_fitted_estimator_as_it_is_and_fits_any_other():
    X, y = bumps(16)
    augmenter = pstn.Augmenter(fitted(), random_state=0).fit(X, y)
    assert augmenter.warp_ is fitted()
    assert augmenter.sample(X, 3).shape == (3, 16, 48)
    both, labels = augmenter.fit_resample(X, y)
    assert both.shape == (80, 48)
    np.testing.assert_array_equal(both[:16], X)
    np.testing.assert_array_equal(labels, np.tile(y, 5))
    np.testing.assert_array_equal(augmenter.transform(X), X)
    unfitted = pstn.SeriesAligner(steps=2)
    fresh = pstn.Augmenter(unfitted, random_state=0).fit(X, y)
    assert not hasattr(unfitted, "model_")
    np.testing.assert_array_equal(
        fresh.sample(X, 2, random_state=0), clone(fresh).fit(X, y).sample(X, 2, random_state=0)
    )
    taught = pstn.Augmenter(pstn.PSTNClassifier("cpab", epochs=1, random_state=0), random_state=0)
    assert taught.fit_transform(X, y).shape == (16, 48)


@pytest.mark.parametrize("shape", [(48,), (2, 48)])
def test_an_augmenter_with_fixed_random_warps(shape):
    X = np.random.default_rng(0).normal(size=(5, *shape))
    warp = pstn.data.RandomCPAB(pstn.CPAB(tess=4))
    augmenter = pstn.Augmenter(warp, axes="NCL", random_state=0).fit(X)
    made = augmenter.sample(X, 3, random_state=0)
    assert made.shape == (3, 5, *shape)
    assert np.abs(made[0] - made[1]).max() > 0.01
    if len(shape) == 2:
        last = pstn.Augmenter(warp, axes="NLC", random_state=0).fit(X.transpose(0, 2, 1))
        turned = last.sample(X.transpose(0, 2, 1), 3, random_state=0)
        np.testing.assert_array_equal(turned, made.transpose(0, 1, 3, 2))
        with pytest.warns(pstn.data.files.DataWarning, match="is read as"):
            pstn.Augmenter(warp).fit(X)


@pytest.mark.parametrize("warp", [None, "fixed", "P-STN"])
def test_an_augmenter_reads_series_of_unequal_length_and_with_gaps_for_its_classifier(warp):
    X, y = bumps(16)
    ragged = [x[: 40 + at % 9] for at, x in enumerate(X)]
    padded = np.full((16, 48), np.nan)
    for row, x in zip(padded, ragged, strict=True):
        row[: len(x)] = x
    padded[:, 7] = np.nan
    made = {
        None: pstn.SeriesAligner(steps=2, random_state=0), "fixed": pstn.data.RandomCPAB(pstn.CPAB(tess=4)),
        "P-STN": pstn.PSTNClassifier("cpab", epochs=1, random_state=0),
    }[warp]  # fmt: skip
    for form in ragged, padded:
        augmenter = pstn.Augmenter(made, SVC(), random_state=0).fit(form, y)
        assert augmenter.score(form, y) > 0.8
        assert augmenter.sample(form, 2).shape == (2, 16, 48)
        assert np.isfinite(augmenter.sample(form, 2)).all()
        assert augmenter.transform(form[:3]).shape == (3, 48)
    assert np.isfinite(pstn.Augmenter(made, random_state=0).fit_transform(padded, y)).all()


def test_an_augmenter_with_a_classifier_is_a_classifier():
    X, y = bumps(16)
    augmenter = pstn.Augmenter(fitted(), SVC(), random_state=0)
    assert augmenter.fit(X, y).score(*bumps(20, seed=5)) > 0.8
    assert augmenter.classifier_.shape_fit_ == (80, 48)
    again = pstn.Augmenter(pstn.SeriesAligner(steps=2), SVC(), random_state=0)
    assert cross_val_score(again, X, y, cv=2).shape == (2,)
    last = make_pipeline(pstn.SeriesAligner(steps=2, random_state=0), pstn.Augmenter(fitted(), SVC(), random_state=0))
    assert last.fit(X, y).predict(X).shape == (16,)


def test_a_picture_of_an_alignment():
    X, y = bumps(10, seed=6)
    before, aligned, warps = pstn.plot(fitted(), X, y).axes
    assert len(before.lines) == 10
    np.testing.assert_allclose(before.lines[3].get_ydata(), X[3])
    np.testing.assert_allclose(aligned.lines[3].get_ydata(), fitted().transform(X)[3])
    np.testing.assert_allclose(warps.lines[0].get_ydata(), fitted().warps(X).mode[0] - np.arange(48), atol=1e-3)
    # Series without labels have no colour of a class.
    assert {line.get_color() for line in pstn.plot(fitted(), X).axes[0].lines} == {"0.5"}
    with pytest.raises(ValueError, match="y must hold"):
        pstn.plot(fitted(), X, y[:3])


def test_a_picture_is_of_one_channel():
    X, y = bumps(8)
    both = np.stack([X, -X], 1)
    aligner = pstn.SeriesAligner(axes="NCL", steps=2, random_state=0).fit(both, y)
    np.testing.assert_allclose(pstn.plot(aligner, both, y, channel=1).axes[0].lines[3].get_ydata(), -X[3])
    classifier = pstn.PSTNClassifier(axes="NCL", epochs=1, kl_weight=1e-3).fit(both, y)
    for channel, expected in enumerate((X, -X)):
        left = pstn.plot(classifier, both[2], samples=3, channel=channel).axes[0]
        assert len([line for line in left.lines if len(line.get_xdata())]) == 4  # of this channel alone
        np.testing.assert_allclose(left.lines[3].get_ydata(), expected[2], atol=1e-4)
    for wrong in -1, 2:
        with pytest.raises(ValueError, match="channel must be"):
            pstn.plot(aligner, both, y, channel=wrong)
    with pytest.raises(ValueError, match="x must be one series"):
        pstn.plot(classifier, both[:1])


def test_a_picture_of_many_classes_can_be_read():
    X, y = np.random.default_rng(0).normal(size=(60, 30)), np.arange(60)
    figure = pstn.plot(pstn.SeriesAligner(steps=1, random_state=0).fit(X, y % 10), X, y % 10)
    assert len({line.get_color() for line in figure.axes[1].lines[-10:]}) == 10
    assert len(figure.legends[0].get_texts()) == 10
    right = pstn.plot(pstn.PSTNClassifier(epochs=1, kl_weight=1e-3).fit(X, y % 20), X[0]).axes[2]
    widths = [bar.get_width() for bar in right.patches]
    assert len(right.get_yticklabels()) == len(widths) == 12
    assert widths == sorted(widths, reverse=True)


def test_a_picture_of_a_prediction():
    X, y = bumps(16)
    for made in (pstn.PSTNClassifier("cpab", epochs=2, random_state=0), pstn.STNClassifier("cpab", epochs=1)):
        classifier = made.fit(X, y)
        series, warp, bars = pstn.plot(classifier, X[0], samples=7).axes
        np.testing.assert_allclose(series.lines[-3].get_ydata(), X[0], atol=1e-4)
        assert [tick.get_text() for tick in bars.get_yticklabels()] == ["one", "two"]
        assert sum(bar.get_width() for bar in bars.patches) == pytest.approx(1, abs=1e-4)
        low, high = warp.get_ylim()
        assert low <= -0.5 < 0.5 <= high  # a warp of hundredths of a step does not fill the axes
        assert ("90%" in warp.get_title()) == isinstance(made, pstn.PSTNClassifier)
    assert pstn.plot(classifier.model_, torch.randn(1, 48)).axes
    with pytest.raises(TypeError, match="model"):
        pstn.plot(SVC(), X[0])


@pytest.mark.parametrize("lengths", ["auto", "pad"])
def test_a_picture_shows_the_probabilities_of_the_classifier_and_leaves_the_global_seed_alone(lengths):
    X, y = bumps(16)
    X = [x[: 40 + at % 9] for at, x in enumerate(X)] if lengths == "pad" else X
    classifier = pstn.PSTNClassifier(epochs=2, lengths=lengths, random_state=0).fit(X, y)
    state = torch.get_rng_state()
    for model, x in ((classifier, X[1]), (classifier.model_, classifier._scaled(classifier._read(X)[1:2])[0])):
        left, middle, right = pstn.plot(model, x).axes
        widths = [bar.get_width() for bar in right.patches]
        assert widths == [bar.get_width() for bar in pstn.plot(model, x).axes[2].patches]
        assert np.isfinite(middle.lines[0].get_ydata()).sum() == len(X[1])  # no warp is drawn behind the end
        if model is classifier:
            np.testing.assert_allclose(widths, classifier.predict_proba(X[1:2])[0], atol=1e-6)
            expected = np.pad(x, (0, 48 - len(x)), constant_values=np.nan)
            np.testing.assert_allclose(left.lines[-3].get_ydata(), expected, atol=1e-4)
        assert np.nanmax(np.abs(middle.lines[0].get_ydata())) < 48
    assert torch.equal(state, torch.get_rng_state())
