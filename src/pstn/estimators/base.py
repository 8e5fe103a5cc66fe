"""What the estimators share: data in, labels and probabilities out, in scikit-learn's manner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from pstn._checks import plain, require_nonnegative_number, require_positive_int, require_positive_number
from pstn.estimators.design import Design
from pstn.estimators.fitting import Outcome, Schedule, TrainingData, advance, train
from pstn.estimators.layout import Layout, choose_layout
from pstn.estimators.scaling import Scaling, fit_scaling
from pstn.estimators.state import pack_tensors, unpack_tensors
from pstn.training.population.planning import make_device

__all__ = ["ArrayClassifier", "KLWeight"]

Fitted = TypeVar("Fitted", bound="ArrayClassifier")

_LEARNING_RATES = {"image": 1e-3, "series": 3e-3}
# Numbers of the warped samples that prediction holds at once.
_AT_ONCE = 1 << 21


class KLWeight(NamedTuple):
    """The weight w of a fit."""

    value: float
    losses: dict[float, float]
    """The validation loss of each that was tried; empty without a search."""


class ArrayClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of images or series in arrays.

    Subclasses say which network to make, and name the constructor's parameters; those that all share are listed here.
    """

    kind: str
    width: int | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float | None
    weight_decay: float
    early_stopping: bool
    validation_fraction: float
    patience: int
    class_weight: Any
    warm_start: bool
    random_state: Any
    device: str

    classes_: NDArray[Any]
    layout_: Layout
    scaling_: Scaling
    design_: Design
    model_: Any
    loss_curve_: list[float]
    _optimiser: dict[str, Tensor] | None
    _kl_weight: KLWeight
    _seed: int
    _steps: int

    @abstractmethod
    def _design(self, layout: Layout, scaling: Scaling, classes: int) -> Design:
        """The network for the data."""

    @abstractmethod
    def _find_kl_weight(self, design: Design, data: TrainingData, schedule: Schedule, seed: int) -> KLWeight:
        """The weight w for a fit from the start."""

    @abstractmethod
    def _kl_weight_without_search(self, examples: int) -> float:
        """The weight w where there is nothing to search on."""

    @abstractmethod
    def _log_probs(self, x: Tensor) -> Tensor:
        """(B, C, *size) -> (B, K)."""

    def fit(self: Fitted, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Fitted:
        """Learn from examples.

        Args:
            X: images (N, H, W) or (N, H, W, C), or series (N, L) or (N, C, L).
            y: (N,), labels: numbers or text.
            sample_weight: (N,), how much each example counts.

        Returns:
            The estimator itself.
        """
        if self.warm_start and hasattr(self, "model_"):
            return self._fit_on(X, y, sample_weight)
        fresh = clone(self)
        array, labels = fresh._check_examples(X, y, reset=True)
        layout, (classes, encoded) = choose_layout(array.shape[1:], self.kind), np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {plain(classes[0])!r}")
        schedule = self._schedule(layout)
        scaling = fit_scaling(layout.channels_first(array), getattr(self, "fill", "auto"))
        design = self._design(layout, scaling, len(classes))
        weights = _one_on_average(self._weights(encoded, classes, sample_weight, array))
        data = self._data(array, encoded, weights, layout, scaling)
        seed = self._draw_seed()
        kl_weight = self._find_kl_weight(design, data, schedule, seed)
        outcome = train(
            design.build(seed), data, schedule,
            kl_weight=kl_weight.value, seed=seed, valid_fraction=self.validation_fraction,
        )  # fmt: skip
        fresh.classes_, fresh.layout_, fresh.scaling_, fresh.design_ = classes, layout, scaling, design
        self._adopt(fresh)
        self._keep(outcome, kl_weight, seed)
        return self

    def _fit_on(self: Fitted, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Fitted:
        """Go on from the weights of the last fit: the same classes, scaling and w, other or the same data."""
        schedule = self._schedule(self.layout_)
        data = self._known_data(X, y, sample_weight)
        data = data._replace(weights=_one_on_average(data.weights))
        seed = self._draw_seed()
        outcome = train(
            self.model_, data, schedule,
            kl_weight=self._kl_weight.value, seed=seed, valid_fraction=self.validation_fraction,
        )  # fmt: skip
        self._keep(outcome, self._kl_weight, seed)
        return self

    def partial_fit(
        self: Fitted,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Fitted:
        """Take one pass over these examples, each of them once, from where the estimator stands.

        Scaling is learned from the first call; there is no search for w and no early stopping. Weights count as they
        are: a weight of 2 means the same in every call, whatever the others in it. (`fit` divides by their mean.)

        Args:
            X: as for `fit`.
            y: (N,), labels among `classes`.
            classes: all labels that there will ever be; needed in the first call, not looked at in later ones.
            sample_weight: (N,), how much each example counts.

        Returns:
            The estimator itself.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                "class_weight must be a dict or None for partial_fit, got 'balanced': the classes' shares are not known"
            )
        known = self if hasattr(self, "model_") else self._started(X, y, classes)
        data = known._known_data(X, y, sample_weight)
        outcome = advance(
            known.model_, data, self._schedule(known.layout_),
            kl_weight=known._kl_weight.value, seed=known._seed, step=known._steps, optimiser=known._optimiser,
        )  # fmt: skip
        curve = known.loss_curve_ + outcome.loss_curve
        if known is not self:
            self._adopt(known)
        self._keep(outcome, known._kl_weight, known._seed)
        self.loss_curve_, self.n_iter_ = curve, len(curve)
        return self

    def _started(self: Fitted, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None) -> Fitted:
        """A clone with an untrained network, for the first call of `partial_fit`."""
        if classes is None:
            raise ValueError("classes must be given in the first call of partial_fit: all labels that will occur")
        fresh = clone(self)
        array, labels = fresh._check_examples(X, y, reset=True)
        known = np.unique(np.asarray(classes))
        if len(known) < 2:
            raise ValueError(f"classes must hold at least two classes, got {known.tolist()}")
        _encode(labels, known)
        layout = choose_layout(array.shape[1:], self.kind)
        scaling = fit_scaling(layout.channels_first(array), getattr(self, "fill", "auto"))
        design = self._design(layout, scaling, len(known))
        seed = self._draw_seed()
        kl_weight = KLWeight(self._kl_weight_without_search(len(array)), {})
        fresh.classes_, fresh.layout_, fresh.scaling_, fresh.design_ = known, layout, scaling, design
        fresh._keep(Outcome(design.build(seed).eval(), [], [], None, 0), kl_weight, seed)
        return fresh

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each input, (N,)."""
        best = self.predict_log_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """The probability of each class, (N, K) in the order of `classes_`, float32."""
        return np.exp(self.predict_log_proba(X))

    @torch.no_grad()
    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """The logarithm of `predict_proba`, (N, K), float32."""
        parts = [self._log_probs(x).cpu().numpy() for x in self._batches(X, getattr(self, "test_samples", 1))]
        return np.concatenate(parts)

    def _schedule(self, layout: Layout) -> Schedule:
        """The parameters that say how to train, checked."""
        for name in ("epochs", "batch_size", "width"):
            if getattr(self, name) is not None:
                require_positive_int(name, getattr(self, name))
        rate = _LEARNING_RATES[layout.kind] if self.learning_rate is None else self.learning_rate
        rate = require_positive_number("learning_rate", rate)
        factor = require_positive_number("localizer_factor", getattr(self, "localizer_factor", 1.0))
        if not 0 < require_positive_number("validation_fraction", self.validation_fraction) < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        decay = require_nonnegative_number("weight_decay", self.weight_decay)
        patience = require_positive_int("patience", self.patience) if self.early_stopping else None
        return Schedule(self.epochs, self.batch_size, rate, factor, decay, patience, make_device(self.device))

    def _check_examples(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        array, labels = validate_data(self, X, y, reset=reset, allow_nd=True, dtype="numeric")
        check_classification_targets(labels)
        if array.size == 0:
            raise ValueError(f"X must hold inputs of at least one value each, got shape {array.shape}")
        if not reset:
            self._check_shape(array)
        return array, labels

    def _check_shape(self, array: NDArray[Any]) -> None:
        if array.shape[1:] != self.layout_.shape:
            raise ValueError(f"X must hold inputs of shape {self.layout_.shape}, as in fit, got {array.shape[1:]}")

    def _known_data(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> TrainingData:
        """Further examples of the classes and shape that are known already."""
        array, labels = self._check_examples(X, y, reset=False)
        encoded = _encode(labels, self.classes_)
        weights = self._weights(encoded, self.classes_, sample_weight, array)
        return self._data(array, encoded, weights, self.layout_, self.scaling_)

    def _weights(
        self, encoded: NDArray[Any], classes: NDArray[Any], sample_weight: ArrayLike | None, array: NDArray[Any]
    ) -> Tensor | None:
        """(N,), what each example's own weight and its class's come to; None if there are neither."""
        if sample_weight is None and self.class_weight is None:
            return None
        given = _check_sample_weight(sample_weight, array, dtype=np.float64, ensure_non_negative=True)
        if isinstance(self.class_weight, dict):  # by all classes: a call of partial_fit need not hold each of them
            per_class = compute_class_weight(self.class_weight, classes=classes, y=classes)[encoded]
        else:
            per_class = compute_sample_weight(self.class_weight, classes[encoded])
        return torch.from_numpy(given * per_class)

    @staticmethod
    def _data(
        array: NDArray[Any], encoded: NDArray[Any], weights: Tensor | None, layout: Layout, scaling: Scaling
    ) -> TrainingData:
        x = scaling.apply(layout.channels_first(array))
        return TrainingData(x, torch.from_numpy(encoded.astype(np.int64)), weights)

    def _adopt(self, fresh: ArrayClassifier) -> None:
        """Take over what is known of the data: only now, so that data refused leave the last fit whole."""
        for name in ("n_features_in_", "feature_names_in_", "classes_", "layout_", "scaling_", "design_"):
            self.__dict__.pop(name, None)
            if hasattr(fresh, name):
                setattr(self, name, getattr(fresh, name))

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _keep(self, outcome: Outcome, kl_weight: KLWeight, seed: int) -> None:
        self.model_, self._optimiser = outcome.model, outcome.optimiser
        self.loss_curve_, self.validation_curve_ = outcome.loss_curve, outcome.validation_curve
        self.n_iter_ = len(outcome.loss_curve)
        self._kl_weight, self._seed, self._steps = kl_weight, seed, outcome.steps

    def _batches(self, X: ArrayLike, samples: int = 1) -> Iterator[Tensor]:
        """Inputs as the network takes them, some at a time, on its device."""
        check_is_fitted(self)
        samples = require_positive_int("test_samples", samples)  # which set_params may have changed since the fit
        array = validate_data(self, X, reset=False, allow_nd=True, dtype="numeric")
        self._check_shape(array)
        device = make_device(self.device)
        self.model_.to(device)
        count = max(1, _AT_ONCE // (samples * array[0].size))
        for at in range(0, len(array), count):
            part = self.layout_.channels_first(array[at : at + count])
            yield self.scaling_.apply(part).to(device)

    def __getstate__(self) -> dict[str, Any]:
        """The network's weights as safetensors, everything else as it is."""
        state = dict(super().__getstate__())
        if "model_" in state:
            optimiser = state.pop("_optimiser") or {}
            state["_tensors"] = pack_tensors({"model": state.pop("model_").state_dict(), "optimiser": optimiser})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build the network anew and fill in its weights."""
        state = dict(state)
        packed = state.pop("_tensors", None)
        super().__setstate__(state)
        if packed is not None:
            tensors = unpack_tensors(packed)
            self.model_ = self.design_.build(0).eval()
            self.model_.load_state_dict(tensors["model"])
            self._optimiser = tensors.get("optimiser")

    def __sklearn_tags__(self) -> Any:
        """Arrays of two to four axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _encode(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """Labels as positions in `classes`."""
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise ValueError(f"y must hold the classes of the first call only, got {unknown[:5].tolist()} as well")
    return np.searchsorted(classes, labels)


def _one_on_average(weights: Tensor | None) -> Tensor | None:
    """Weights for a whole fit, so that learning rates mean the same with weights and without."""
    if weights is None:
        return None
    if not weights.sum() > 0:
        raise ValueError("sample_weight and class_weight must leave some example a weight above zero")
    return weights / weights.mean()
