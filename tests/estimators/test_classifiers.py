"""What the estimators do with images and series in arrays."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import pstn
from pstn.data import RandomRotation
from pstn.defaults import default_batch_size, default_epochs, default_kl_weight
from pstn.estimators import classifiers

# Small arrays are read by the rule alone: tests/estimators/test_series_input.py tests the warning.
pytestmark = pytest.mark.filterwarnings("ignore:X .N, .* is read as")
KINDS = [pstn.PSTNClassifier, pstn.STNClassifier, pstn.CNNClassifier]
SHAPES = [(24,), (1,), (3,), (2, 24), (8, 8), (9, 12, 3)]


def quick(kind=pstn.PSTNClassifier, **options):
    if kind is pstn.PSTNClassifier:
        options = {"kl_weight": 1e-3, "test_samples": 3, **options}
    return kind(**{"epochs": 1, "width": 4, "random_state": 0, **options})


def examples(shape=(24,), count=20, classes=("no", "yes")):
    rng = np.random.default_rng(0)
    y = np.arange(count) % len(classes)
    return rng.normal(size=(count, *shape)) + y.reshape(-1, *[1] * len(shape)), np.array(classes)[y]


@pytest.fixture(scope="module")
def fitted():
    return quick(epochs=3).fit(*examples())


def tensors_equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_fits_predicts_warps_and_samples(shape):
    X, y = examples(shape)
    classifier = quick().fit(X, y)
    assert set(classifier.predict(X)) <= {"no", "yes"}
    proba = classifier.predict_proba(X)
    assert proba.shape == (20, 2)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(np.log(proba), classifier.predict_log_proba(X), atol=1e-5)
    assert classifier.transform(X).shape == X.shape
    still = quick(pstn.STNClassifier, learning_rate=1e-12).fit(100 + 20 * X, y)
    np.testing.assert_allclose(still.transform(100 + 20 * X), 100 + 20 * X, rtol=1e-3)  # the identity, in X's units
    assert classifier.sample(X, 4).shape == (4, *X.shape)
    assert classifier.uncertainty(X).entropy.shape == (20,)
    assert (classifier.uncertainty(X).mutual_information <= classifier.uncertainty(X).entropy + 1e-5).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(24,), (8, 8)], ids=str)
def test_all_three_learn_what_is_easy(kind, shape):
    X, y = examples(shape, count=40)
    classifier = quick(kind, epochs=12, batch_size=20, width=8, learning_rate=2e-2).fit(2 * X, y)
    assert classifier.score(2 * X, y) > 0.85
    assert classifier.loss_curve_[-1] < classifier.loss_curve_[0]
    assert classifier.n_iter_ == 12


def test_defaults_are_chosen_from_the_data():
    assert isinstance(quick().fit(*examples((8, 8))).model_.layer.transform, pstn.Similarity)
    assert isinstance(quick(transform=pstn.Rotation()).fit(*examples((8, 8))).model_.layer.transform, pstn.Rotation)
    classifier = pstn.CNNClassifier(width=2, random_state=0).fit(*examples((4,), count=12))
    assert classifier.n_iter_ == default_epochs(12, default_batch_size(12))
    assert classifier._steps == classifier.n_iter_ * (12 // default_batch_size(12))
    recipe = classifier._recipe(600)
    assert (recipe.batch_size, recipe.epochs) == (default_batch_size(600), default_epochs(600, recipe.batch_size))
    # Nothing to hold out, and partial_fit, which does not search: the rule of thumb.
    tiny = quick(kl_weight="auto").fit(*examples(count=2))
    assert isinstance(tiny.model_.layer.transform, pstn.CPAB)
    assert tiny.kl_weight_ == 1e-3
    partly = quick(kl_weight="auto").partial_fit(*examples(), classes=["no", "yes"])
    assert (partly.kl_weight_, partly.kl_weight_losses_) == (default_kl_weight(20), {})


def test_an_answer_does_not_depend_on_the_others_it_is_asked_with(fitted, monkeypatch):
    X, _ = examples()
    monkeypatch.setattr(pstn.PSTNClassifier, "_values", 24 * 7)  # several parts, of different lengths
    alone = np.concatenate([fitted.predict_proba(X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_allclose(alone, fitted.predict_proba(X), atol=1e-5)
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(fitted.predict_proba(X[order]), fitted.predict_proba(X)[order], atol=1e-5)


def test_random_state_decides_everything_and_no_global_seed_is_touched():
    X, y = examples()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002  # numpy's global generator is the one to leave alone
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again = quick().fit(X, y), quick(random_state=np.random.RandomState(0)).fit(X, y)
    assert tensors_equal(first.model_, again.model_)
    assert not tensors_equal(first.model_, quick(random_state=1).fit(X, y).model_)
    first.predict(X)
    drawn = first.sample(X, 5, random_state=0)
    np.testing.assert_array_equal(drawn, first.sample(X, 5, random_state=0))
    assert not np.array_equal(drawn, first.sample(X, 5, random_state=1))
    assert not np.allclose(drawn[0], drawn[1])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_the_search_tries_all_settings_together_and_keeps_the_best():
    X, y = examples((8, 8), count=30)
    classifier = quick(kl_weight="auto").fit(X, y)
    losses, best = classifier.kl_weight_losses_, classifier.tuned_.best
    assert list(losses) == pytest.approx([factor * default_kl_weight(30) for factor in (0.1, 1, 10)])
    assert classifier.kl_weight_ == best.kl_weight == min(losses, key=losses.get)
    assert losses[best.kl_weight] == best.nll == min(trial.nll for trial in classifier.tuned_.trials)
    assert len(classifier.tuned_.trials) == 12
    assert classifier.model_.layer.posterior.alpha == best.alpha
    assert classifier._member(0, None).localizer_factor == best.localizer_factor
    again = pickle.loads(pickle.dumps(classifier))
    assert again.tuned_ == classifier.tuned_
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    shared = quick(kl_weight="auto", n_jobs=2)
    with joblib.parallel_config("threading"):
        shared.fit(X, y)
    np.testing.assert_allclose(list(shared.kl_weight_losses_.values()), list(losses.values()), rtol=1e-3)


def test_early_stopping_stops_and_keeps_the_best():
    X, y = examples(count=40)
    labels = np.random.default_rng(0).permutation(y)  # nothing to learn
    classifier = quick(epochs=25, batch_size=32, early_stopping=True, patience=2, learning_rate=3e-2).fit(X, labels)
    curve = classifier.validation_curve_
    assert classifier.n_iter_ == len(curve) < 25
    assert int(np.argmin(curve)) == len(curve) - 3
    with pytest.raises(ValueError, match="early_stopping must be False here"):
        quick(early_stopping=True).fit(*examples(count=2))


def test_balanced_weights_are_the_weights_of_the_classes():
    X, y = examples(count=40)
    y[:30] = "no"
    share = (y == "no").mean()
    weights = np.where(y == "no", 0.5 / share, 0.5 / (1 - share))
    balanced = quick(class_weight="balanced").fit(X, y)
    assert tensors_equal(balanced.model_, quick().fit(X, y, sample_weight=7 * weights).model_)
    assert not tensors_equal(balanced.model_, quick().fit(X, y).model_)


def test_partial_fit_passes_over_what_it_is_given():
    X, y = examples(count=60)
    classifier = quick(learning_rate=1e-2, batch_size=10)
    for at in range(0, 60, 20):
        classifier.partial_fit(X[at : at + 20], y[at : at + 20], classes=["maybe", "no", "yes"])
    assert classifier.classes_.tolist() == ["maybe", "no", "yes"]
    assert classifier.n_iter_ == len(classifier.loss_curve_) == 3
    assert classifier._steps == 6
    for _ in range(4):
        classifier.partial_fit(X, y)
    assert classifier.score(X, y) > 0.75


@pytest.mark.parametrize(("count", "batch_size"), [(20, 8), (13, 4), (9, 8), (5, 5), (3, 64), (20, None)])
def test_partial_fit_sees_every_example(count, batch_size, monkeypatch):
    X, y = examples(count=count)
    seen = []

    class Seeing(classifiers.Population):
        def __init__(self, models, x, y, members, recipe, **options):
            super().__init__(models, x, y, members, recipe, **options)
            steps = self.steps_per_epoch
            seen.append(x[self.stacks[0]._order.draw(self.recipe.epochs * steps - steps, steps).flatten()])

    monkeypatch.setattr(classifiers, "Population", Seeing)
    classifier = quick(pstn.CNNClassifier, batch_size=batch_size).partial_fit(X, y, classes=["no", "yes"])
    for _ in range(2):
        classifier.partial_fit(X, y)
    for x in seen:
        assert len(x.flatten(1).unique(dim=0)) == count <= len(x) < count + classifier._steps // 3


def test_partial_fits_over_one_set_are_one_fit():
    X, y = examples(count=40)
    whole = quick(pstn.CNNClassifier, epochs=1, batch_size=10).fit(X, y)
    parts = quick(pstn.CNNClassifier, batch_size=10).partial_fit(X, y, classes=["no", "yes"])
    assert tensors_equal(whole.model_, parts.model_)
    parts.partial_fit(X, y)
    more = quick(pstn.CNNClassifier, epochs=2, batch_size=10).fit(X, y)
    assert more._steps == parts._steps == 8
    by_pickle = pickle.loads(pickle.dumps(parts)).partial_fit(X, y)
    assert tensors_equal(parts.partial_fit(X, y).model_, by_pickle.model_)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_answer_alike(kind):
    X, y = examples((8, 8))
    original = quick(kind).fit(X, y)
    for made in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        np.testing.assert_array_equal(made.predict_proba(X), original.predict_proba(X))
        assert made.get_params() == original.get_params()
    fresh = clone(original)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_warm_start_continues_and_a_cold_start_does_not():
    X, y = examples()
    classifier = quick(warm_start=True, learning_rate=1e-6).fit(X, y)
    before = classifier.predict_proba(X)
    np.testing.assert_allclose(classifier.set_params(random_state=1).fit(X, y).predict_proba(X), before, atol=1e-2)
    assert not np.allclose(classifier.set_params(warm_start=False).fit(X, y).predict_proba(X), before, atol=1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(24,), (8, 8)], ids=str)
def test_what_a_gpu_learned_predicts_the_same_on_the_cpu(shape):
    X, y = examples(shape, count=40)
    classifier = quick(device="cuda", kl_weight="auto", epochs=5).fit(X, y)
    there = classifier.predict_proba(X)
    here = pickle.loads(pickle.dumps(classifier)).set_params(device="cpu")
    np.testing.assert_allclose(here.predict_proba(X), there, atol=1e-3)
    assert classifier.partial_fit(X, y).sample(X, 2).shape == (2, *X.shape)


def test_training_that_breaks_warns_and_its_network_is_not_trusted():
    X, y = examples()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier = quick(pstn.CNNClassifier, epochs=10, learning_rate=1e30).fit(X, y)
    assert any("Training stopped early" in str(w.message) for w in caught)
    with pytest.raises(ValueError, match="lower its learning rate"):
        classifier.predict(X)


def plain_loss(prediction, y):
    """A loss without a KL term: the smoothed cross-entropy under the mean of the samples' probabilities."""
    log_probs = getattr(prediction, "log_probs", prediction)
    return torch.nn.functional.cross_entropy(log_probs, y, label_smoothing=0.1)


def weighted_loss(prediction, y, kl_weight):
    return pstn.elbo_loss(prediction, y, kl_weight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_the_user_s_own_is_minimised(kind):
    X, y = examples(count=18)
    options = {"kl_weight": "auto"} if kind is pstn.PSTNClassifier else {}
    classifier = quick(kind, loss=plain_loss, batch_size=8, **options).fit(X, y)
    assert not tensors_equal(classifier.model_, quick(kind, batch_size=8).fit(X, y).model_)
    assert clone(classifier).loss is plain_loss
    classifier.partial_fit(X, y)  # 18 examples do not fill their batches
    assert classifier.n_iter_ == 2
    if kind is pstn.PSTNClassifier:
        assert classifier.kl_weight_ is None
        assert classifier.kl_weight_losses_ == {}


def test_a_loss_is_given_the_weight_that_it_takes_and_no_other():
    X, y = examples()
    elbo = quick(loss=weighted_loss, kl_weight=0.5).fit(X, y)
    assert tensors_equal(elbo.model_, quick(kl_weight=0.5).fit(X, y).model_)
    assert len(quick(loss=weighted_loss, kl_weight="auto").fit(X, y).kl_weight_losses_) == 3
    with pytest.raises(ValueError, match="kl_weight"):
        quick(loss=plain_loss, kl_weight=0.5).fit(X, y)
    with pytest.raises(ValueError, match="weights"):
        quick(loss=plain_loss, kl_weight="auto").fit(X, y, sample_weight=np.ones(20))
    with pytest.raises(TypeError, match="loss"):
        quick(loss="elbo").fit(X, y)


def bars(count=60, seed=0):
    """Upright bars with a foot to the left or the right, which is their class: a turn does not change it."""
    rng, y = np.random.default_rng(seed), np.arange(count) % 2
    x = 0.05 * rng.random((count, 12, 12))
    x[:, 1:9, 5:7] += 1
    for number, side in enumerate(y):
        x[number, 7:9, 7:11] += side
        x[number, 7:9, 1:5] += 1 - side
    return x, y


@pytest.mark.slow
def test_a_pose_is_taught_beside_the_labels():
    X, y = bars()
    classifier = quick(teach=RandomRotation(), epochs=30, width=8, batch_size=10).fit(X, y)
    assert classifier.tuned_ is None
    assert isinstance(classifier.model_.layer.transform, pstn.Rotation)
    X, y = bars(200, seed=1)
    theta = RandomRotation().draw(200, generator=torch.Generator().manual_seed(0))
    turned = RandomRotation().make(torch.from_numpy(X)[:, None], theta)[:, 0].numpy()
    assert classifier.score(turned, y) > 0.9
    upright = classifier.transform(turned)
    assert np.abs(upright - X).mean() < np.abs(turned - X).mean() / 2
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_allclose(again.predict_proba(turned), classifier.predict_proba(turned), atol=1e-6)


@pytest.mark.parametrize("kind", [pstn.PSTNClassifier, pstn.STNClassifier])
def test_a_random_transform_that_is_taught_may_be_a_text(kind):
    classifier = quick(kind, teach="crop=0.2,0.1").fit(*examples((24,)))
    assert repr(classifier.model_.layer.transform) == "Crop(scale='log', ndim=1)"
    assert clone(classifier).teach == "crop=0.2,0.1"
    with pytest.raises(ValueError, match=r"^teach must keep the size"):
        quick(kind, teach="rotation=1,keep=0.5").fit(*examples((12, 12)))
    with pytest.raises(ValueError, match=r"^teach must keep the size"):
        quick(kind, teach="rotation").fit(*examples((24,)))
    with pytest.raises(TypeError, match=r"^teach must"):
        quick(kind, teach=1.0).fit(*examples((12, 12)))
