"""Series in the forms that people have them: which axis is which, unequal lengths, gaps, nested tables."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import VotingClassifier
from sklearn.model_selection import cross_val_score

import pstn
from archive_shapes import UCR, UEA
from pstn.data.files import DataWarning
from pstn.estimators.arrays import choose_layout, read_inputs, unpack, warn_if_ambiguous
from pstn.training.evaluate import log_probs_of
from refusals import refused

# Some tests take only a step or two.
pytestmark = pytest.mark.filterwarnings("ignore:The transformation is the identity")


def read(shape, kind="auto", axes="auto", dtype="float64"):
    """The layout of one example, and whether there was a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layout = choose_layout(shape, kind, axes)
        warn_if_ambiguous(layout, kind, axes, np.broadcast_to(np.zeros((), dtype), (1, *shape)))
    return layout, any(issubclass(w.category, DataWarning) for w in caught)


@pytest.mark.parametrize("name", [*UEA, "five steps", "square"])
@pytest.mark.parametrize("kind", ["auto", "series", "image"])
def test_no_array_is_misread_without_a_warning(name, kind):
    channels, steps = {**UEA, "five steps": (9, 50, 5), "square": (9, 12, 12)}[name][1:]
    for shape, right in ((channels, steps), "NCL"), ((steps, channels), "NLC"):
        expected = ("series", channels, (steps,), right)
        if kind != "image":  # which says what it is
            layout, warned = read(shape, kind)
            assert warned or (layout.kind, layout.channels, layout.size, layout.axes) == expected
            layout, warned = read(shape, kind, axes=right)
            assert (layout.kind, layout.channels, layout.size, layout.axes, warned) == (*expected, False)
        elif min(shape) >= 8:
            layout, warned = read(shape, kind)
            assert (layout.kind, layout.size, warned) == ("image", shape, False)


READERS = {
    "classifier": pstn.PSTNClassifier(), "stn": pstn.STNClassifier(), "cnn": pstn.CNNClassifier(),
    "aligner": pstn.SeriesAligner(), "augmenter": pstn.Augmenter(),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_no_estimator_misreads_a_set_of_the_archives_without_a_warning(reader):
    sets = [*UEA.values(), *((number, 1, steps) for number, steps in UCR.values())]
    forms = [*((each, each) for each in sets), *((each[:1] + each[:0:-1], each) for each in sets)]
    for shape, (_, channels, steps) in forms:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # As large as the set, without its memory.
            layout = read_inputs(clone(reader), np.broadcast_to(np.int16(0), shape), reset=True)[1]
        right = (layout.kind, layout.channels, layout.size) == ("series", channels, (steps,))
        assert right or any(issubclass(w.category, DataWarning) for w in caught), shape
        if channels == 1:
            assert right, shape
            assert not caught, shape
    for number, steps in UCR.values():
        normalised = np.broadcast_to(np.linspace(-1, 1, steps), (number, steps))
        assert read_inputs(clone(reader), normalised, reset=True)[1].shape == (steps,)


def test_flat_images_are_read_as_series_with_a_warning():
    rng, y = np.random.default_rng(0), np.arange(12) % 2
    pixels = rng.integers(0, 17, (12, 64))
    for flat in pixels, pixels.astype(float), pixels / 16, rng.integers(0, 255, (12, 3072)).astype(np.uint8):
        with pytest.warns(DataWarning, match=r"X.reshape\(-1, H, W"):
            assert quick().fit(flat, y).layout_.kind == "series"
        pstn.CNNClassifier("series", epochs=1, width=2).fit(flat, y)
    for series in rng.normal(size=(12, 64)), rng.random((12, 65)), 1000.0 * pixels:
        quick().fit(series, y)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((28, 28), "uint8"), ((28, 30), "uint8"), ((1, 50), "float64"), ((50, 1), "float64"), ((24,), "float32"),
     ((32, 30, 3), "int8"), ((16, 16, 4), "float64")],
)  # fmt: skip
def test_shapes_with_one_reading_are_quiet(shape, dtype):
    assert not read(shape, dtype=dtype)[1]
    assert read((16, 32, 32))[1]  # many channels last
    assert not read((16, 32, 32), "image")[1]


def test_a_list_of_arrays_of_one_shape_is_read_as_the_array_is():
    X, y = list(np.random.default_rng(0).normal(size=(12, 28, 30))), np.arange(12) % 2
    with pytest.warns(DataWarning, match="images"):
        assert quick().fit(X, y).layout_.kind == "image"
    assert quick(axes="NCL").fit(X, y).layout_.channels == 28
    with pytest.warns(DataWarning, match="series"):
        assert pstn.SeriesAligner(steps=1).fit(X, y).layout_.channels == 28


def ragged(count=12, channels=2):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(channels, 20 + i % 5)) for i in range(count)], np.arange(count) % 2


def quick(of=pstn.CNNClassifier, **options):
    return of(**{"epochs": 1, "width": 2, "random_state": 0, **options})


def test_all_forms_of_the_same_series_predict_the_same():
    series, y = ragged()
    objects = np.empty(len(series), object)
    objects[:] = series
    nested = pd.DataFrame([[pd.Series(channel) for channel in x] for x in series])
    long = pd.concat({i: pd.DataFrame(x.T) for i, x in enumerate(series)})
    # sktime's tables in a list have time in their rows, aeon's in their columns: the axis that differs is time.
    tables = [[pd.DataFrame(x.T) for x in series], [pd.DataFrame(x) for x in series]]
    lists = [x.tolist() for x in series]
    last = [x.T for x in series]
    padded = np.full((12, 24, 2), np.nan)  # tslearn's
    for row, x in zip(padded, last, strict=True):
        row[: len(x)] = x
    classifier = quick().fit(series, y)
    expected = classifier.predict_proba(series)
    for other in objects, nested, long, *tables, lists, last:
        np.testing.assert_array_equal(quick().fit(other, y).predict_proba(other), expected)
    for other in objects, nested, long, lists, tables[1]:
        np.testing.assert_array_equal(classifier.predict_proba(other), expected)
    for other in last, padded, lists, tables[0]:
        fitted = quick(axes="NLC").fit(padded, y)
        given = [np.transpose(x).tolist() for x in other] if other is lists else other
        np.testing.assert_array_equal(fitted.predict_proba(given), expected)


def test_tables_of_one_length_are_read_with_time_in_their_rows_and_with_a_warning():
    X, y = np.random.default_rng(0).normal(size=(12, 29, 60)), np.arange(12) % 2
    for shape in (29, 60), (60, 29), (100, 3):
        tables = [pd.DataFrame(np.resize(x, shape)) for x in X]
        with pytest.warns(DataWarning, match=r"series \(N, L, C\)"):
            assert quick().fit(tables, y).layout_.size == shape[:1]
        assert quick(axes="NCL").fit(tables, y).layout_.size == shape[1:]


def test_lists_of_unequal_length_pass_through_the_tools_of_scikit_learn():
    series, y = ragged()
    assert cross_val_score(quick(lengths="pad"), series, y, cv=2).shape == (2,)
    five = VotingClassifier([(f"network {seed}", quick(random_state=seed)) for seed in range(5)], voting="soft")
    alone = [quick(random_state=seed).fit(series, y).predict_proba(series) for seed in range(5)]
    np.testing.assert_allclose(five.fit(series, y).predict_proba(series), np.mean(alone, 0), atol=1e-6)


def test_lists_of_numbers_are_series():
    lists, y = [[float(i)] * (5 + i % 3) for i in range(12)], np.arange(12) % 2
    assert quick().fit(lists, y).layout_.shape == (7,)
    assert unpack([[1.0, 2.0], [3.0, 4.0]])[1] is None


def test_arrays_with_channels_last_are_those_with_channels_first():
    X, y = np.random.default_rng(0).normal(size=(12, 3, 20)), np.arange(12) % 2
    options = {"kl_weight": 1e-3, "test_samples": 2}
    first = quick(pstn.PSTNClassifier, axes="NCL", **options).fit(X, y)
    last = quick(pstn.PSTNClassifier, axes="NLC", **options).fit(X.transpose(0, 2, 1), y)
    np.testing.assert_array_equal(first.transform(X).transpose(0, 2, 1), last.transform(X.transpose(0, 2, 1)))
    assert last.sample(X.transpose(0, 2, 1), 3, random_state=0).shape == (3, 12, 20, 3)


ESTIMATORS = {
    "classifier": lambda **options: quick(**options),
    "aligner": lambda **options: pstn.SeriesAligner(steps=1, random_state=0, **options),
    "augmenter": lambda **options: pstn.Augmenter(pstn.data.RandomCPAB(pstn.CPAB(tess=4)), **options),
}


@pytest.fixture(params=ESTIMATORS)
def make(request):
    return ESTIMATORS[request.param]


def shortened(count=12, length=24, cut=4):
    """Series (N, L), some of them ended by NaN."""
    X = np.random.default_rng(0).normal(size=(count, length))
    X[::2, length - cut :] = np.nan
    return X, np.arange(count) % 2


def test_the_test_part_follows_the_lengths_of_the_training_part(make):
    series, y = ragged()
    estimator = pickle.loads(pickle.dumps(make().fit(series, y)))
    assert estimator.layout_.shape == (2, 24)
    one_length = np.stack([x[:, :20] for x in series])
    np.testing.assert_array_equal(estimator._read(one_length), estimator._read(list(one_length)))
    even = make(axes="NCL").fit(one_length, y)
    padded = np.pad(one_length, ((0, 0), (0, 0), (0, 4)), constant_values=np.nan)
    late = one_length.copy()
    late[3, :, -1] = np.nan
    for other in series, late:
        with pytest.raises(ValueError, match=r"length 20, as in fit.*lengths='resample'"):
            even.transform(other) if hasattr(even, "transform") else even.predict(other)
    for other in one_length[..., :15], padded:
        with pytest.raises(ValueError, match="X must hold inputs of shape"):
            even._read(other)
    flexible = make(axes="NCL", lengths="resample").fit(one_length, y)
    for other in series, padded, one_length[..., :15]:
        assert flexible._read(other).shape == (12, 2, 20)
    np.testing.assert_allclose(flexible._read(padded), one_length)


def test_one_rule_for_the_lengths_of_arrays_and_lists(make):
    X, y = shortened()
    from_array, from_list = make().fit(X, y), make().fit([x[~np.isnan(x)] for x in X], y)
    for estimator in from_array, from_list:
        assert estimator.layout_.shape == (24,)
        for form in X, list(X), [x[~np.isnan(x)] for x in X], X[:, :20]:
            assert estimator._read(form).shape == (12, 24)
        np.testing.assert_array_equal(estimator._read(X), from_array._read(X))
    # All ended early: an array keeps its width, and so does a list.
    X[:, 20:] = np.nan
    for form in X, list(X):
        estimator = make().fit(form, y)
        assert estimator._read(form).shape == X.shape
        assert np.isfinite(estimator._read(form)).all()


def test_gaps_are_interpolated_and_trailing_ones_are_a_shorter_series():
    gaps = np.array([[np.nan, 1.0, np.nan, 3.0], [0.0, 2.0, np.nan, np.nan]])
    np.testing.assert_allclose(read_inputs(quick(), gaps)[0], [[1, 1, 2, 3], [0, 2 / 3, 4 / 3, 2]])
    X, y = np.random.default_rng(0).normal(size=(12, 20)), np.arange(12) % 2
    missing = X.copy()
    missing[:, 7] = np.nan
    filled = X.copy()
    filled[:, 7] = (X[:, 6] + X[:, 8]) / 2
    np.testing.assert_allclose(
        quick().fit(missing, y).predict_proba(missing), quick().fit(filled, y).predict_proba(filled), atol=1e-6
    )


def with_a(value, shape=(8, 20)):
    X = np.random.default_rng(0).normal(size=shape)
    X.flat[7] = value
    return X, np.arange(len(X)) % 2


SERIES, LABELS = ragged()
test_what_cannot_be_read_is_refused = refused(
    (lambda: choose_layout((28, 28), "image", "NLC"), ValueError, "axes must be"),
    (lambda: read_inputs(quick(), [np.full(4, np.nan), np.zeros(3)]), ValueError, "only NaN"),
    (lambda: unpack([np.zeros((2, 4)), np.zeros((3, 5))]), ValueError, "same channels"),
    (lambda: quick(kind="image").fit([np.zeros((2, 4)), np.zeros((2, 5))], [0, 1]), ValueError, "X must be one array"),
    (lambda: quick().fit(SERIES, LABELS).predict([np.zeros((3, 4)), np.zeros((3, 5))]), ValueError, "2 channel"),
    (lambda: quick(kind="image").fit(*with_a(np.nan, (4, 8, 8))), ValueError, "X must not contain NaN"),
    (lambda: quick(kind="series").fit(*with_a(np.inf)), ValueError, "infinity"),
    (lambda: quick(kind="series").fit(*with_a(-np.inf)), ValueError, "infinity"),
    (lambda: quick(lengths="cut").fit(SERIES, LABELS), ValueError, "lengths"),
    (
        lambda: quick(lengths="pad", teach="crop=0.2,0.1", of=pstn.PSTNClassifier).fit(SERIES, LABELS),
        ValueError,
        "teach",
    ),
    (lambda: quick(lengths="pad", fill=0.0, of=pstn.PSTNClassifier).fit(SERIES, LABELS), ValueError, "fill"),
    (lambda: pstn.nn.Masked(pstn.nn.SeriesClassifier(1, 2, padded=False)), ValueError, "padded=True"),
    (lambda: pstn.nn.make_model("pstn", 1, (20,), 2, masked=True), ValueError, "masked"),
    (lambda: pstn.SpatialTransformer(pstn.Crop(), torch.nn.Flatten(), masked=True), ValueError, "masked"),
    (lambda: quick(lengths="pad").fit(SERIES, LABELS).model_(torch.rand(2, 2, 24)), ValueError, "the last channel"),
    *[
        (lambda w=w: quick().fit(w, [0, 1]), ValueError, "X must hold series of numbers")
        for w in ([["a", "b"], ["c"]], [[1.0, [2.0]], [3.0]], [[[1.0, 2.0], [3.0]], [[4.0]]])
    ],
)


def test_verbose_prints_the_loss(capsys):
    X, y = np.random.default_rng(0).normal(size=(12, 20)), np.arange(12) % 2
    quick().fit(X, y)
    assert capsys.readouterr().out == ""
    quick(verbose=1).fit(X, y)
    assert "loss" in capsys.readouterr().out
    quick(pstn.PSTNClassifier, verbose=1, kl_weight="auto", test_samples=1).fit(X, y)
    assert "alpha" in capsys.readouterr().out


masking = pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pstn.PSTNClassifier, {}), (pstn.STNClassifier, {}), (pstn.CNNClassifier, {}),
        (pstn.PSTNClassifier, {"networks": "inception", "width": None}),
        (pstn.CNNClassifier, {"networks": "resnet", "width": None}),
    ],
)  # fmt: skip


def behind(series, width):
    """Series (C, L_i) as an array with NaN behind them, (N, C, width)."""
    X = np.full((len(series), len(series[0]), width), np.nan)
    for row, x in zip(X, series, strict=True):
        row[:, : x.shape[1]] = x
    return X


@masking
def test_a_prediction_does_not_change_with_how_much_padding_follows_the_series(kind, options):
    series, y = ragged()
    fitted = quick(kind, epochs=3, lengths="pad", **options).fit(series, y)
    expected = fitted.predict_proba(series)
    # Beside a longer series, alone, and in the network itself.
    longer = fitted.predict_proba([*series, np.ones((2, 70))])[:-1]
    np.testing.assert_allclose(longer, expected, atol=1e-5)
    np.testing.assert_allclose(fitted.predict_proba([series[1]]), expected[1:2], atol=1e-5)
    np.testing.assert_allclose(fitted.predict_proba(behind(series, 90)), expected, atol=1e-5)
    x = fitted._scaled(behind(series, 24))
    wider = torch.nn.functional.pad(x, (0, 50))
    wider[:, :-1, 24:] = 1e6  # what is behind the end is not read
    noise = {} if kind is pstn.CNNClassifier else {"noise": torch.rand(3, 12, fitted.model_.layer.noise_width)}
    with torch.no_grad():
        outputs = [log_probs_of(fitted.model_(each, **noise)) for each in (x, wider)]
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)
    # Nor does what is learned.
    again = quick(kind, epochs=3, lengths="pad", axes="NCL", **options).fit(behind(series, 50), y)
    np.testing.assert_allclose(again.predict_proba(series), expected, atol=1e-4)


@masking
def test_a_mask_changes_nothing_where_all_is_real(kind, options):
    X, y = np.random.default_rng(0).normal(size=(12, 2, 24)), np.arange(12) % 2
    options = {"epochs": 3, "axes": "NCL", **options}
    padded, plain = (quick(kind, lengths=each, **options).fit(X, y) for each in ("pad", "auto"))
    np.testing.assert_allclose(padded.predict_proba(X), plain.predict_proba(X), atol=1e-4)


def test_warps_map_the_real_part_of_a_series_onto_itself():
    series, y = ragged()
    fitted = quick(pstn.PSTNClassifier, lengths="pad").fit(series, y)
    X = behind(series, 24)
    for made in fitted.transform(series), *fitted.sample(series, 3, random_state=0):
        np.testing.assert_array_equal(np.isnan(made), np.isnan(X))
    layer = fitted.model_.layer
    x, theta = fitted._scaled(X), 0.5 * torch.randn(3, 12, layer.transform.dim)
    warped = layer.warp(x, theta)
    for number, one in enumerate(series):
        length = one.shape[1]
        real = x[number : number + 1, :2, :length]
        alone = pstn.warp(real, layer.transform.grid(theta[:, number : number + 1], length), padding_mode="border")
        torch.testing.assert_close(warped[:, number, :2, :length], alone[:, 0], atol=1e-4, rtol=0)


@masking
def test_networks_with_masks_are_saved_and_pickled(kind, options, tmp_path):
    series, y = ragged()
    fitted = quick(kind, lengths="pad", **options).fit(series, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(series), fitted.predict_proba(series), atol=1e-6)
    about = pstn.ModelMetadata(("a", "b"), channels=2, size=(24,))
    loaded = pstn.from_pretrained(fitted.model_.save_pretrained(tmp_path, about=about))
    x = fitted._scaled(behind(series, 40))
    noise = {} if kind is pstn.CNNClassifier else {"noise": torch.rand(3, 12, fitted.model_.layer.noise_width)}
    with torch.no_grad():
        torch.testing.assert_close(*(log_probs_of(model(x, **noise)) for model in (loaded, fitted.model_)))
