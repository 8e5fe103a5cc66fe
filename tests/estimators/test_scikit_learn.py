"""scikit-learn's own checks, and its tools around the estimators."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import estimator_checks_generator

import pstn
from pstn.data import balanced_indices, load_digits, load_italy_power_demand

# Small arrays are read by the rule alone: tests/estimators/test_series_input.py tests the warning.
pytestmark = pytest.mark.filterwarnings("ignore:X .N, .* is read as")
# Checks that are not passed, and why; all others are.
FAILS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "training is stochastic: a repeated example is drawn into other batches, beside other noise, than one of "
        "weight 2; the losses agree in expectation, not to 1e-7"
    )
}
_VERSIONS = "fit_transform makes versions to train on, and transform hands on the inputs"
FAILS_OF_AUGMENTER = dict.fromkeys(("check_transformer_general", "check_transformer_data_not_an_array"), _VERSIONS)

# Networks compute in float32: the last bits of a probability depend on its place in the batch, and these want 1e-7.
ROUNDED = {"check_methods_sample_order_invariance", "check_methods_subset_invariance"}
ROUNDING = 1e-5

# A network small enough for some hundred fits, trained long enough for the checks that ask for accuracy.
_SMALL = {"width": 8, "batch_size": 32, "learning_rate": 1e-2, "epochs": 20}
ESTIMATORS = [
    pstn.PSTNClassifier(kl_weight=1e-3, test_samples=3, **_SMALL),
    pstn.STNClassifier(**_SMALL),
    pstn.CNNClassifier(**_SMALL),
    pstn.SeriesAligner(steps=5),
    pstn.Augmenter(pstn.SeriesAligner(steps=5), samples=1),
    pstn.Augmenter(pstn.SeriesAligner(steps=5), SVC(), samples=1),
]
# Those of the aligner that take longest.
_SLOW = {"check_fit_score_takes_y", "check_classifiers_train", "check_classifiers_classes"}
# A part of the checks that takes seconds, for the P-STN alone; the slow tests run the rest for all three.
_QUICK = {
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
    "check_no_attributes_set_in_init", "check_dont_overwrite_parameters", "check_estimators_overwrite_params",
    "check_estimators_unfitted", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
    "check_complex_data", "check_estimators_empty_data_messages",
    "check_estimator_sparse_array", "check_classifiers_one_label", "check_classifiers_regression_target",
    "check_supervised_y_no_nan", "check_parameters_default_constructible", "check_fit1d", "check_fit2d_1sample",
    "check_fit2d_1feature", "check_get_params_invariance", "check_set_params", "check_estimators_pickle",
    "check_n_features_in", "check_fit_check_is_fitted", "check_all_zero_sample_weights_error",
}  # fmt: skip


def name_of(check):
    return check.func.__name__ if isinstance(check, functools.partial) else check.__name__


def all_checks():
    for estimator in ESTIMATORS:
        kind = type(estimator)
        fails = FAILS_OF_AUGMENTER if kind is pstn.Augmenter else FAILS
        for one, check in estimator_checks_generator(estimator):
            name = name_of(check)
            if kind is pstn.STNClassifier and name not in _QUICK:
                continue  # it adds a constructor to two classes that the P-STN's estimator has too
            if kind is pstn.PSTNClassifier and name in _QUICK:
                quick, one = True, clone(one).set_params(epochs=1)  # the quick ones ask for no accuracy
            else:
                quick = (
                    name not in _SLOW and kind in (pstn.SeriesAligner, pstn.Augmenter) and "SVC" not in repr(estimator)
                )
            marks = [] if quick else [pytest.mark.slow]
            if name in fails:
                marks.append(pytest.mark.xfail(raises=AssertionError, strict=True, reason=fails[name]))
            yield pytest.param(one, check, marks=marks, id=f"{estimator!r:.30}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(all_checks()))
@pytest.mark.filterwarnings("ignore")  # the checks make estimators warn on purpose
def test_passes_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    if name_of(check) in ROUNDED:
        allow_rounding(monkeypatch)
    check(estimator)


def allow_rounding(monkeypatch):
    """Let the checks compare to 1e-5 instead of 1e-7 and 1e-9."""
    for name in ("assert_allclose", "assert_allclose_dense_sparse"):
        compare = getattr(estimator_checks, name)

        def loosely(a, b, *, compare=compare, **options):
            compare(a, b, **{**options, "atol": ROUNDING})

        monkeypatch.setattr(estimator_checks, name, loosely)


def test_the_checks_that_are_named_exist():
    names = {name_of(check) for _, check in estimator_checks_generator(ESTIMATORS[0])}
    assert set(FAILS) | ROUNDED | _QUICK <= names


def images(count=24):
    rng = np.random.default_rng(0)
    y = np.arange(count) % 2
    X = rng.normal(0, 0.1, (count, 8, 8))
    X[:, 2:6, 2:6] += (2 * y - 1)[:, None, None]
    return X, np.array(["hole", "blob"])[y]


def quick(**options):
    return pstn.PSTNClassifier(**{"kl_weight": 1e-3, "epochs": 1, "width": 4, "random_state": 0, **options})


def test_grid_search_over_weight_and_family():
    X, y = images()
    search = GridSearchCV(quick(), {"kl_weight": [1e-4, 1e-2], "transform": ["rotation", "crop"]}, cv=2)
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.get_params()["transform"] == search.best_params_["transform"]
    assert search.best_estimator_.kl_weight_ == search.best_params_["kl_weight"]


def test_cross_validation_on_images_and_with_probabilities():
    X, y = images()
    classifier = quick(epochs=8, learning_rate=2e-2)
    assert cross_val_score(classifier, X, y, cv=2).mean() > 0.9
    assert cross_val_score(classifier, X, y, cv=2, scoring="neg_log_loss").shape == (2,)
    assert cross_val_predict(quick(), X, y, cv=2, method="predict_proba").shape == (24, 2)


def test_in_a_pipeline_as_classifier_and_as_aligner():
    X, y = images()
    flat = X.reshape(24, -1)[:, 16:40]
    as_classifier = make_pipeline(StandardScaler(), quick(kind="series")).fit(flat, y)
    assert as_classifier.predict(flat).shape == (24,)
    as_aligner = Pipeline([("align", quick(kind="series")), ("svc", SVC())]).fit(flat, y)
    assert as_aligner.score(flat, y) > 0.9
    as_aligner.set_params(align__transform="crop", align__kl_weight=1e-2).fit(flat, y)
    assert as_aligner["align"].model_.layer.transform.names == pstn.Crop(ndim=1).names


def test_tables_keep_their_column_names():
    X, y = images()
    table = pd.DataFrame(X.reshape(24, -1)[:, :12], columns=[f"hour {i}" for i in range(12)])
    classifier = quick().fit(table, pd.Series(y))
    assert classifier.feature_names_in_[0] == "hour 0"
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(table[table.columns[::-1]])


def italy_power_demand():
    parts = load_italy_power_demand(validation=0.0)
    return [a.numpy() for a in (parts.train.x[:, 0], parts.train.y, parts.test.x[:, 0], parts.test.y)]


def two_hundred_digits():
    pool, test = load_digits("train"), load_digits("test")
    x, y = torch.cat([pool.x, test.x])[:, 0].numpy(), torch.cat([pool.y, test.y])
    train = balanced_indices(y, 200).numpy()
    rest = np.setdiff1d(np.arange(len(y)), train)
    y = y.numpy()
    return x[train], y[train], x[rest], y[rest]


@pytest.mark.slow
@pytest.mark.parametrize(("load", "seeds"), [(italy_power_demand, 3), (two_hundred_digits, 1)])
def test_is_at_least_as_good_as_a_support_vector_machine(load, seeds):
    x, y, test_x, test_y = load()
    flat, test_flat = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1)
    machines = (SVC(), make_pipeline(StandardScaler(), SVC()))
    to_beat = max(machine.fit(flat, y).score(test_flat, test_y) for machine in machines)
    # On the series the two are half a percent apart, and seeds differ by as much: their mean counts.
    kind = "image" if x.ndim == 3 else "series"
    made = [pstn.PSTNClassifier(kind=kind, random_state=seed).fit(x, y) for seed in range(seeds)]
    scores = [each.score(test_x, test_y) for each in made]
    assert np.mean(scores) >= to_beat
