"""Learned augmentation for other models: a classifier trained and asked on warped versions of its inputs."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_X_y
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted

from pstn import _checks
from pstn.data.augment import RandomTransform
from pstn.estimators.aligning import SeriesAligner
from pstn.estimators.arrays import Layout, draw_seed, read_inputs

__all__ = ["Augmenter"]


def _has_classifier(augmenter: Any) -> bool:
    return augmenter.classifier is not None


@final
class Augmenter(TransformerMixin, ClassifierMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]
    """Warped versions of series or images, drawn from what an estimator has learned, to train another model on.

    `sample` makes them. As a step of a pipeline it replaces each training input by one version (`fit_transform`) and
    leaves inputs to predict as they are (`transform`). With a `classifier` it is a classifier itself, as the last step:
    trained on the inputs and `samples` versions of each. Series are read as by the warp: those of unequal length are
    resampled and gaps filled in, for the classifier too.

    Args:
        warp: where versions come from: a `pstn.PSTNClassifier`, a `pstn.SeriesAligner`, which gives each series the
            timing of others, or a fixed `pstn.data.RandomTransform` of series. An estimator that is fitted is used as
            it is, any other is fitted in `fit`, and so is a clone in cross-validation; None is a
            `pstn.SeriesAligner()`.
        classifier: any classifier of such arrays, of scikit-learn or aeon.
        samples: how many versions of each input.
        axes: of series with channels, for a random transform and for None: "auto", "NCL" or "NLC", as in
            `pstn.SeriesAligner`. Estimators have their own.
        lengths: likewise, "auto" or "resample".
        random_state: a number, a `numpy.random.RandomState` or None.

    Attributes:
        warp_: fitted.
        classifier_: fitted; only where there is one.
        classes_: (K,), the labels, where there are any.

    Example:
        >>> from sklearn.svm import SVC
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.arange(20) % 2
        >>> augmenter = pstn.Augmenter(pstn.SeriesAligner(steps=5), SVC(), random_state=0).fit(X, y)
        >>> augmenter.sample(X, 3).shape, augmenter.predict(X).shape
        ((3, 20, 50), (20,))
    """

    warp_: Any
    classifier_: Any
    classes_: NDArray[Any]
    layout_: Layout

    def __init__(
        self, warp: Any = None, classifier: Any = None, *, samples: int = 4, axes: str = "auto", lengths: str = "auto",
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.warp, self.classifier, self.samples, self.random_state = warp, classifier, samples, random_state
        self.axes, self.lengths = axes, lengths

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit what is not fitted yet: the warp, and the classifier on the inputs and their versions.

        Args:
            X: (N, ...), as the warp takes it.
            y: (N,), labels; what learns from labels, and a classifier, need them.
        """
        _checks.require_positive_int("samples", self.samples)
        _checks.require_choice("lengths", self.lengths, ("auto", "resample"))
        self._seed = draw_seed(self.random_state)
        self.warp_ = self._fitted_warp(X, y)
        array = self._read(X, reset=True)
        if y is not None or self.classifier is not None:
            _, labels = check_X_y(array, y, allow_nd=True, ensure_all_finite="allow-nan", estimator=self)
            self.classes_ = np.unique(labels)
        if self.classifier is not None:
            check_classification_targets(labels)
            self.classifier_ = clone(self.classifier).fit(*self.fit_resample(X, labels))
        return self

    def _fitted_warp(self, X: ArrayLike, y: ArrayLike | None) -> Any:
        warp = SeriesAligner(axes=self.axes, lengths=self.lengths) if self.warp is None else self.warp
        if isinstance(warp, RandomTransform):
            return warp
        if not (hasattr(warp, "sample") and hasattr(warp, "_read")):
            raise TypeError(f"warp must be an estimator of this package, or a random transform, got {warp!r}")
        try:
            check_is_fitted(warp)
        except NotFittedError:
            warp = clone(warp)
            if warp.random_state is None:
                warp.set_params(random_state=self._seed)
            warp.fit(X, y)
        return warp

    def _read(self, X: ArrayLike, *, reset: bool = False) -> NDArray[Any]:
        """Inputs (N, ...) of one length and without gaps, as the warp reads them."""
        if isinstance(self.warp_, RandomTransform):
            array, self.layout_ = read_inputs(self, X, layout=None if reset else self.layout_, reset=reset)
            return array
        array = self.warp_._read(X)
        _check_feature_names(self, X, reset=reset)
        if reset:
            _check_n_features(self, array, reset=True)
        return array

    def sample(self, X: ArrayLike, samples: int | None = None, *, random_state: Any = None) -> NDArray[np.float32]:
        """Versions of each input.

        Args:
            X: as for `fit`.
            samples: S; the constructor's when None.
            random_state: of the draw.

        Returns:
            (S, N, ...), each of the S in the shape and units of `X`, float32.
        """
        check_is_fitted(self, "warp_")
        count = _checks.require_positive_int("samples", self.samples if samples is None else samples)
        if isinstance(self.warp_, RandomTransform):
            x = self.layout_.channels_first(self._read(X).astype(np.float32))
            repeated = torch.from_numpy(x).repeat(count, 1, 1)
            theta = self.warp_.draw(len(repeated), generator=torch.Generator().manual_seed(draw_seed(random_state)))
            made = self.warp_.make(repeated, theta, padding_mode="border").numpy()
            return self.layout_.as_given(made.reshape(count, *x.shape))
        return self.warp_.sample(X, count, random_state=random_state)

    def fit_resample(self, X: ArrayLike, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The inputs and `samples` versions of each with their labels, as samplers of imbalanced-learn return them.

        Args:
            X: (N, ...).
            y: (N,).

        Returns:
            ((1 + samples) N, ...) and ((1 + samples) N,): the inputs first.
        """
        if not hasattr(self, "warp_"):
            self.fit(X, y)
        made = self.sample(X, random_state=self._seed)
        return np.concatenate([self._read(X), *made]), np.concatenate([np.asarray(y)] * (1 + len(made)))

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The inputs as they are, of one length and without gaps: versions are for training."""
        check_is_fitted(self, "warp_")
        return self._read(X)

    def fit_transform(self, X: ArrayLike, y: ArrayLike | None = None, **options: Any) -> NDArray[np.float32]:
        """One version of each input, (N, ...): what a pipeline hands to its next step in training."""
        return self.fit(X, y).sample(X, 1, random_state=self._seed)[0]

    @available_if(_has_classifier)  # type: ignore[untyped-decorator]
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The classifier's labels, (N,)."""
        check_is_fitted(self, "classifier_")
        return self.classifier_.predict(self._read(X))

    @available_if(lambda self: hasattr(self.classifier, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """The classifier's probabilities, (N, K)."""
        check_is_fitted(self, "classifier_")
        return self.classifier_.predict_proba(self._read(X))

    @available_if(_has_classifier)  # type: ignore[untyped-decorator]
    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The classifier's accuracy."""
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        """A classifier where it has one; arrays of two axes and more, with gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.target_tags.required = self.classifier is not None
        if self.classifier is None:
            tags.estimator_type, tags.classifier_tags = None, None
        return tags
