"""A user's mistake is answered with an error that names it, before anything is lost."""

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pstn
from refusals import refused


def quick(**options):
    return pstn.PSTNClassifier(**{"kl_weight": 1e-3, "epochs": 1, "width": 2, "test_samples": 2, **options})


def series(count=12, length=10):
    return np.random.default_rng(0).normal(size=(count, length)), np.arange(count) % 2


@pytest.fixture(scope="module")
def fitted():
    return quick(random_state=0).fit(*series())


BAD = [
    ("kind", "sound"), ("transform", "twist"), ("transform", pstn.Similarity()), ("transform", 3),
    ("kl_weight", "large"), ("kl_weight", -1), ("kl_weight", np.nan), ("weight_decay", -1e-3),
    ("width", 0), ("epochs", 0), ("epochs", 2.5), ("batch_size", -3), ("train_samples", 0), ("test_samples", "ten"),
    ("learning_rate", 0), ("localizer_factor", -1), ("validation_fraction", 1.0), ("validation_fraction", "some"),
    ("patience", 0), ("fill", "black"), ("class_weight", "fair"), ("class_weight", {0: 0.0, 1: 0.0}),
    ("device", "abacus"), ("random_state", "dice"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_parameters_that_make_no_sense_are_named(name, value):
    with pytest.raises((ValueError, TypeError), match=name if name != "random_state" else "dice"):
        quick(**{name: value}).fit(*series())


def test_a_refused_fit_leaves_the_last_one_in_place(fitted):
    X, y = series()
    before = fitted.predict_proba(X)
    for bad in (X, 0 * y), (X[:, :5], 0 * y), (X[:, :, None, None, None], y), (np.full((12, 10), np.nan), y):
        with pytest.raises(ValueError, match=r"class|NaN|X must be"):
            fitted.fit(*bad)
    np.testing.assert_array_equal(fitted.predict_proba(X), before)


UNREADABLE = [
    (np.full((3, 10), np.nan), "NaN"), (np.full((3, 10), 1e300), "too large"), (np.zeros((3, 9)), "9 features"),
    (np.zeros((3, 10, 2)), r"X must hold inputs of shape \(10,\)"), (np.zeros((0, 10)), "minimum of 1"),
]  # fmt: skip


@pytest.mark.parametrize(("X", "message"), UNREADABLE)
@pytest.mark.parametrize("method", ["predict", "transform", "sample", "uncertainty"])
def test_inputs_that_cannot_be_predicted_are_named(fitted, X, message, method):
    with pytest.raises(ValueError, match=message):
        getattr(fitted, method)(X)


X, Y = series()
test_labels_that_cannot_be_learned_are_named = refused(
    (lambda: quick().fit(X, np.zeros(12)), ValueError, r"one class: 0\.0$"),
    (lambda: quick().fit(X, Y[:5]), ValueError, "inconsistent numbers"),
    (lambda: quick().fit(X, np.linspace(0, 1, 12)), ValueError, "continuous"),
    (lambda: quick().fit(X, np.where(Y, np.nan, 1.0)), ValueError, "NaN"),
    (lambda: quick(axes="NCL").fit(np.zeros((4, 0, 3)), [0, 1, 0, 1]), ValueError, "at least one value each"),
)
test_partial_fit_refuses_what_it_cannot_know = refused(
    (lambda: quick().partial_fit(X, Y), ValueError, "classes must be given in the first call"),
    (lambda: quick().partial_fit(X, Y, classes=[1]), ValueError, "at least two classes"),
    (lambda: quick().partial_fit(X, Y, classes=[0, 2]), ValueError, r"got \[1\] as well"),
    (lambda: quick(class_weight="balanced").partial_fit(X, Y, classes=[0, 1]), ValueError, "class_weight must"),
    (lambda: quick().fit(X, Y).partial_fit(X, np.full(12, 7)), ValueError, r"got \[7\] as well"),
    (lambda: quick().fit(X, Y).partial_fit(X, Y, sample_weight=np.ones(3)), ValueError, "sample_weight"),
)


@pytest.mark.parametrize("samples", [0, 2.5])
def test_samples_must_be_a_whole_number_after_the_fit_too(fitted, samples):
    X, _ = series()
    with pytest.raises((ValueError, TypeError), match="samples must be"):
        fitted.sample(X, samples)
    classifier = copy.deepcopy(fitted).set_params(test_samples=samples)
    for method in (classifier.predict, classifier.uncertainty):
        with pytest.raises((ValueError, TypeError), match="test_samples must be"):
            method(X)


# scikit-learn's own validation casts what it is given to whole numbers, to see whether it is; numpy remarks on it.
@pytest.mark.filterwarnings("ignore:invalid value encountered in")  # numpy, of the bad input
@pytest.mark.filterwarnings("ignore:X .N, .* is read as")  # of shapes that are in doubt
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    X=arrays.arrays(
        dtype=st.sampled_from([np.float64, np.float32, np.float16, np.int8, np.uint8, np.bool_, "U3", np.complex64]),
        shape=arrays.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=10),
    ),
    labels=st.lists(st.one_of(st.integers(-2, 2), st.floats(), st.text(max_size=2), st.none()), max_size=10),
    kind=st.sampled_from(["auto", "image", "series"]),
)
def test_anything_is_learned_or_refused_with_a_message(X, labels, kind):
    y = np.arange(len(X)) % 2 if len(labels) != len(X) else labels
    classifier = pstn.CNNClassifier(kind, epochs=1, width=2)
    try:
        classifier.fit(X, y)
    except (ValueError, TypeError):  # anything else would be a traceback from inside
        return
    assert classifier.predict_proba(X).shape == (len(X), len(classifier.classes_))
