"""aeon's own checks, and its tools around the classifiers."""

import doctest
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("aeon")

from aeon.classification.compose import ClassifierEnsemble, ClassifierPipeline
from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
from aeon.datasets import load_basic_motions, load_japanese_vowels
from aeon.testing.estimator_checking import parametrize_with_checks
from aeon.transformations.collection import Normalizer
from aeon.transformations.collection.convolution_based import MiniRocket
from torch import nn

import pstn
from largest_tensor import LargestTensor
from pstn.data.files import DataWarning
from pstn.estimators import aeon as ours
from pstn.training.linear import fit_ridge

pytestmark = pytest.mark.slow  # aeon compiles its code when it is first called
CLASSES = [ours.PSTNClassifier, ours.RocketPSTNClassifier]
every_class = pytest.mark.parametrize("kind", CLASSES)
QUICK = pstn.SeriesAligner(steps=2, random_state=0)


@pytest.mark.filterwarnings("ignore")  # the checks make estimators warn on purpose
@parametrize_with_checks([*CLASSES, ours.SeriesTransformer])
def test_passes_the_checks_of_aeon(check):
    check()


def test_the_examples_run():
    names = {"np": np, "torch": torch, **vars(ours)}
    found = doctest.testmod(ours, globs=names)
    assert found.attempted > 3
    assert not found.failed


def quick(kind=ours.PSTNClassifier, **options):
    return kind(**{**kind._get_test_params(), "random_state": 0, **options})


def series(count=16, channels=2, length=30):
    y = np.arange(count) % 2
    X = np.random.default_rng(0).normal(0, 0.3, (count, channels, length))
    X[:, 0, 5:15] += 2 * y[:, None]
    return X, np.array(["flat", "step"])[y]


def test_it_is_the_classifier_of_scikit_learn():
    X, y = series()
    options = {**ours.PSTNClassifier._get_test_params(), "random_state": 0}
    plain = pstn.PSTNClassifier(kind="series", axes="NCL", **options).fit(X, y)
    fitted = quick().fit(X, y)
    np.testing.assert_array_equal(fitted.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(fitted.transform(X), plain.transform(X))
    assert fitted.get_params()["transform"] == "auto"


@every_class
def test_in_a_pipeline_and_an_ensemble(kind):
    X, y = series()
    assert set(ClassifierPipeline(Normalizer(), quick(kind)).fit(X, y).predict(X)) <= {"flat", "step"}
    ensemble = ClassifierEnsemble([("a", quick(kind)), ("b", quick(kind, random_state=1))]).fit(X, y)
    assert ensemble.predict_proba(X).shape == (16, 2)


@every_class
def test_series_of_unequal_length_and_of_many_channels(kind):
    X, y = series()
    ragged = [x[:, : 20 + i % 8] for i, x in enumerate(X)]
    np.testing.assert_allclose(quick(kind).fit(ragged, y).predict_proba(ragged).sum(1), 1, atol=1e-5)
    # What is fitted on equal lengths takes others too, as the tag says.
    assert quick(kind).fit(X, y).predict(ragged).shape == (16,)
    X[0, 1, 3] = np.nan
    assert quick(kind).fit(X, y).predict(X).shape == (16,)


def test_padding_is_masked_or_refused():
    X, y = series()
    ragged = [x[:, : 20 + i % 8] for i, x in enumerate(X)]
    assert quick(lengths="pad").fit(ragged, y).predict_proba(ragged[:3]).shape == (3, 2)
    with pytest.raises(ValueError, match="lengths must be 'resample'"):
        quick(ours.RocketPSTNClassifier, lengths="pad").fit(ragged, y)


@pytest.mark.filterwarnings("ignore:The transformation is the identity", "ignore:unsafe cast")
@pytest.mark.parametrize(
    "step",
    [QUICK, pstn.Augmenter(QUICK), pstn.Augmenter(pstn.data.RandomCPAB(pstn.CPAB(tess=4)), random_state=0)],
    ids=str,
)
def test_aligner_and_augmenter_in_pipelines_of_aeon(step):
    X, y = series()
    ragged = [x[:, : 26 + i % 5] for i, x in enumerate(X)]
    gaps = X.copy()
    gaps[2, 1, 7] = np.nan
    for data in X, ragged, gaps, X[:, :1]:
        nearest = KNeighborsTimeSeriesClassifier(distance="euclidean")
        pipeline = ClassifierPipeline(ours.SeriesTransformer(step), nearest).fit(data, y)
        assert (pipeline.predict(data) == y).all()
    assert pstn.plot(ours.SeriesTransformer(QUICK).fit(X, y), X).axes


def test_a_picture_and_the_estimator_within():
    X, y = series()
    fitted = quick().fit(X, y)
    widths = [bar.get_width() for bar in pstn.plot(fitted, X[0]).axes[2].patches]
    np.testing.assert_allclose(widths, fitted.predict_proba(X[:1])[0], atol=1e-6)
    assert fitted.estimator_.sample([x[:, : 26 + i % 5] for i, x in enumerate(X)], 2).shape == (2, 16, 2, 30)


def test_sets_in_the_forms_that_aeon_loads_them():
    X, y = load_japanese_vowels(split="train")  # a list of arrays (12, L)
    X, y = X[::15], y[::15]
    assert quick().fit(X, y).estimator_.layout_.channels == 12
    cut = np.stack([x[:, :7] for x in X])  # (18, 12, 7): channels and steps cannot be told apart
    with pytest.warns(DataWarning, match="is read as"):
        pstn.CNNClassifier(epochs=1, width=2).fit(cut, y)
    assert quick().fit(cut, y).estimator_.layout_.shape == (12, 7)
    X, y = load_basic_motions(split="train")  # (40, 6, 100)
    assert quick(epochs=1).fit(X[::4], y[::4]).estimator_.layout_.shape == (6, 100)


@pytest.mark.parametrize(("channels", "length"), [(1, 50), (3, 61), (12, 26)])
def test_features_are_those_of_aeon(channels, length):
    x = np.random.default_rng(0).normal(size=(6, channels, length)).astype(np.float32)
    rocket = MiniRocket(n_kernels=500, random_state=0).fit(x)
    found = ours.rocket_features(rocket)(torch.from_numpy(x))
    np.testing.assert_allclose(found, rocket.transform(x), atol=1e-6)


def test_memory_does_not_grow_with_the_number_of_series():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1200, 1, 24)), np.arange(1200) % 2
    options = {**ours.PSTNClassifier._get_test_params(), "batch_size": 600}
    with LargestTensor() as largest:
        fitted = ours.RocketPSTNClassifier(**options).fit(X, y)
    features = fitted.estimator_.model_.classifier.trunk.features
    assert largest.values <= 1200 * features  # those of all series, which the regression reads
    with LargestTensor() as largest:
        fitted.predict(X)
    assert largest.values <= 500 * features


def test_a_head_on_features_reads_the_samples_and_survives_pickling(tmp_path):
    X, y = series()
    fitted = quick(ours.RocketPSTNClassifier).fit(X, y)
    assert (fitted.predict(X) == y).all()
    assert fitted.estimator_.uncertainty(X).mutual_information.max() > 0
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), atol=1e-6)
    loaded = pstn.from_pretrained(fitted.estimator_.model_.save_pretrained(tmp_path))
    assert loaded.classifier.trunk.features == fitted.estimator_.model_.classifier.trunk.features


def test_wrapped_features_that_pass_no_gradient_are_taught():
    """The example of docs/wrap.md, and its figures."""
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    t = np.linspace(0, 1, 48)
    one = np.exp(-(((t - 0.5) / 0.07) ** 2))
    two = np.exp(-(((t - 0.35) / 0.05) ** 2)) + np.exp(-(((t - 0.65) / 0.05) ** 2))
    X = (np.where(y[:, None] == 0, one, two) + rng.normal(0, 0.05, (60, 48)))[:, None].astype(np.float32)
    features = ours.rocket_features(MiniRocket(n_kernels=500, random_state=0).fit(X))
    x, labels = torch.from_numpy(X), torch.from_numpy(y)
    classifier = nn.Sequential(features, fit_ridge(features(x), labels, classes=2))
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    family = pstn.CPAB(tess=4)
    warps = pstn.data.RandomCPAB(family, scale=0.8)
    torch.manual_seed(0)
    robust = pstn.wrap(classifier, family, in_channels=1, ndim=1, taught=True, padding_mode="border")
    robust = pstn.fit(robust, x, teach=warps, epochs=60, batch_size=20)
    made = warps.make(x, warps.draw(60, generator=torch.Generator().manual_seed(1)), padding_mode="border")
    alone, wrapped = (pstn.evaluate(model, (made, labels)).accuracy for model in (classifier, robust))
    assert alone == pytest.approx(0.85, abs=0.005)
    assert wrapped > 0.95
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())
