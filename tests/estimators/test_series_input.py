"""Series in the forms that people have them: which axis is which, unequal lengths, gaps, nested tables."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

import pstn
from pstn.data.files import DataWarning
from pstn.estimators.arrays import choose_layout, equalise, list_of_series, warn_if_ambiguous

# Channels and steps (of the longest series) of the 30 sets of the UEA archive.
UEA = {
    "ArticularyWordRecognition": (9, 144), "AtrialFibrillation": (2, 640), "BasicMotions": (6, 100),
    "CharacterTrajectories": (3, 182), "Cricket": (6, 1197), "DuckDuckGeese": (1345, 270), "EigenWorms": (6, 17984),
    "Epilepsy": (3, 206), "ERing": (4, 65), "EthanolConcentration": (3, 1751), "FaceDetection": (144, 62),
    "FingerMovements": (28, 50), "HandMovementDirection": (10, 400), "Handwriting": (3, 152), "Heartbeat": (61, 405),
    "InsectWingbeat": (200, 30), "JapaneseVowels": (12, 29), "Libras": (2, 45), "LSST": (6, 36),
    "MotorImagery": (64, 3000), "NATOPS": (24, 51), "PEMS-SF": (963, 144), "PenDigits": (2, 8),
    "PhonemeSpectra": (11, 217), "RacketSports": (6, 30), "SelfRegulationSCP1": (6, 896),
    "SelfRegulationSCP2": (7, 1152), "SpokenArabicDigits": (13, 93), "StandWalkJump": (4, 2500),
    "UWaveGestureLibrary": (3, 315),
}  # fmt: skip


def read(shape, kind="auto", axes="auto"):
    """The layout, and whether there was a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layout = choose_layout(shape, kind, axes)
        warn_if_ambiguous(layout, kind, axes)
    return layout, any(issubclass(w.category, DataWarning) for w in caught)


@pytest.mark.parametrize("name", UEA)
def test_no_set_of_the_archive_is_misread_without_a_warning(name):
    channels, steps = UEA[name]
    for shape, right in ((channels, steps), "NCL"), ((steps, channels), "NLC"):
        # kind="series" promises (N, C, L): (N, L, C) with fewer steps than channels cannot be told from it.
        for kind in ("auto",) if right == "NLC" and channels > steps else ("auto", "series"):
            layout, warned = read(shape, kind)
            assert warned or (layout.kind, layout.channels, layout.size) == ("series", channels, (steps,))
        layout, warned = read(shape, axes=right)
        assert (layout.kind, layout.channels, layout.size, warned) == ("series", channels, (steps,), False)


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (3, 50), (24,), (32, 30, 3)])
def test_shapes_with_one_usual_reading_are_quiet(shape):
    assert not read(shape)[1]


def test_axes_of_images_are_refused():
    with pytest.raises(ValueError, match="axes must be"):
        choose_layout((28, 28), "image", "NLC")


def ragged(count=12, channels=2):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(channels, 20 + i % 5)) for i in range(count)], np.arange(count) % 2


def quick(kind=pstn.CNNClassifier, **options):
    return kind(**{"epochs": 1, "width": 2, "random_state": 0, **options})


def test_all_forms_of_the_same_series_predict_the_same():
    series, y = ragged()
    objects = np.empty(len(series), object)
    objects[:] = series
    nested = pd.DataFrame([[pd.Series(channel) for channel in x] for x in series])
    long = pd.concat({i: pd.DataFrame(x.T) for i, x in enumerate(series)})
    expected = quick().fit(series, y).predict_proba(series)
    for other in objects, nested, long:
        np.testing.assert_array_equal(quick().fit(other, y).predict_proba(other), expected)
    last = [x.T for x in series]
    np.testing.assert_array_equal(quick(axes="NLC").fit(last, y).predict_proba(last), expected)


def test_arrays_with_channels_last_are_those_with_channels_first():
    X, y = np.random.default_rng(0).normal(size=(12, 3, 20)), np.arange(12) % 2
    options = {"kl_weight": 1e-3, "test_samples": 2}
    first = quick(pstn.PSTNClassifier, axes="NCL", **options).fit(X, y)
    last = quick(pstn.PSTNClassifier, axes="NLC", **options).fit(X.transpose(0, 2, 1), y)
    np.testing.assert_array_equal(first.transform(X).transpose(0, 2, 1), last.transform(X.transpose(0, 2, 1)))
    assert last.sample(X.transpose(0, 2, 1), 3, random_state=0).shape == (3, 12, 20, 3)


def test_the_test_part_follows_the_lengths_of_the_training_part():
    series, y = ragged()
    classifier = pickle.loads(pickle.dumps(quick().fit(series, y)))
    assert classifier.layout_.shape == (2, 24)
    one_length = np.stack([x[:, :20] for x in series])
    np.testing.assert_array_equal(classifier.predict_proba(one_length), classifier.predict_proba(list(one_length)))
    even = quick().fit(one_length, y)
    with pytest.raises(ValueError, match="length 20, as in fit"):
        even.predict(series)
    with pytest.raises(ValueError, match="X must hold inputs of shape"):
        even.predict(one_length[..., :15])


def test_gaps_are_interpolated_and_trailing_ones_are_a_shorter_series():
    gaps = [np.array([np.nan, 1.0, np.nan, 3.0]), np.array([0.0, 2.0, np.nan, np.nan])]
    np.testing.assert_allclose(equalise(gaps), [[1, 1, 2, 3], [0, 2 / 3, 4 / 3, 2]])
    X, y = np.random.default_rng(0).normal(size=(12, 20)), np.arange(12) % 2
    missing = X.copy()
    missing[:, 7] = np.nan
    filled = X.copy()
    filled[:, 7] = (X[:, 6] + X[:, 8]) / 2
    np.testing.assert_allclose(
        quick().fit(missing, y).predict_proba(missing), quick().fit(filled, y).predict_proba(filled), atol=1e-6
    )


def test_what_cannot_be_filled_in_is_refused():
    with pytest.raises(ValueError, match="only NaN"):
        equalise([np.full(4, np.nan)])
    with pytest.raises(ValueError, match="same channels"):
        equalise([np.zeros((2, 4)), np.zeros((3, 4))])
    images = np.zeros((4, 8, 8))
    images[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="X must not contain NaN"):
        quick().fit(images, [0, 1, 0, 1])
    assert list_of_series([[1.0, 2.0], [3.0, 4.0]]) is None


def test_verbose_prints_the_loss(capsys):
    X, y = np.random.default_rng(0).normal(size=(12, 20)), np.arange(12) % 2
    quick().fit(X, y)
    assert capsys.readouterr().out == ""
    quick(verbose=1).fit(X, y)
    assert "loss" in capsys.readouterr().out


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_refused_where_nan_is_not(value):
    X = np.random.default_rng(0).normal(size=(8, 20))
    X[3, 5] = value
    with pytest.raises(ValueError, match="infinity"):
        pstn.CNNClassifier(kind="series", epochs=1).fit(X, np.arange(8) % 2)
