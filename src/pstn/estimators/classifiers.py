"""The three estimators: a P-STN, and the STN and CNN to compare it with."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pstn._checks import require_choice, require_finite, require_nonnegative_number, require_positive_int
from pstn._deprecation import renamed
from pstn.defaults import LOCALIZER_FACTOR, TEST_SAMPLES, TRAIN_SAMPLES, default_kl_weight
from pstn.estimators.base import ArrayClassifier, KLWeight
from pstn.estimators.design import Design
from pstn.estimators.fitting import Schedule, TrainingData, search_kl_weight
from pstn.estimators.layout import Layout
from pstn.estimators.scaling import Scaling
from pstn.estimators.warping import Warping
from pstn.nn import Prediction
from pstn.noise import draw_noise
from pstn.transforms import Transform

__all__ = ["CNNClassifier", "PSTNClassifier", "STNClassifier", "Uncertainty"]


class Uncertainty(NamedTuple):
    """How unsure a prediction is, in nats."""

    entropy: NDArray[np.float32]
    """(N,), all told."""
    mutual_information: NDArray[np.float32]
    """(N,), the part that comes from not knowing where to look."""


@final
class PSTNClassifier(Warping, ArrayClassifier):
    """A probabilistic spatial transformer network as a scikit-learn classifier.

    Inputs are standardised per channel with the training data's mean and deviation; `transform` and `sample` give back
    the data's units. Prediction looks at every input under the same S quantiles of its posterior, so that an answer
    does not depend on the other inputs it is asked with.

    Args:
        transform: the family of transformations: "similarity", "affine", "crop", "cpab", ..., a `pstn.Transform`, or
            "auto": a similarity for images, CPAB for series.
        kind: what (N, a, b) is: "image" (N, H, W), "series" (N, C, L), or "auto": images if both sides are at least 8
            and neither is more than 4 times the other.
        kl_weight: w, the pull of the posterior towards the prior; "auto" tries a tenth, one and ten times what suits
            this many digits, 1e-3 (30 / N)^0.8, on held-out data, all trained together, and takes the best.
        width: channels of the classifier's first convolution; chosen by the size of the input when None.
        train_samples: S in training.
        test_samples: S in prediction.
        fill: what lies outside an input, in the units of the data, one number or one per channel; "border" repeats
            the nearest value; "auto" is the background of images that have one, "border" otherwise.
        epochs: passes over the data; chosen by their number when None.
        batch_size: examples in a step; chosen by their number when None.
        learning_rate: Adam's; chosen by the kind of data when None.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        early_stopping: hold data out, stop when they are no longer predicted better, and keep the best weights.
        validation_fraction: the part to hold out, for early stopping and for the search for w.
        patience: epochs without a better validation loss after which to stop.
        class_weight: a weight per label, "balanced", or None.
        warm_start: whether `fit` goes on from the weights of the last; classes, scaling and w stay.
        random_state: a number, a `numpy.random.RandomState` or None. No global seed is touched.
        n_jobs: processes that share the search for w, as joblib counts them.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...

    Attributes:
        classes_: (K,), the labels.
        kl_weight_: the w that was used; `kl_weight_losses_` has the validation loss of each that was tried, and is
            empty where none was: for a number, and after `partial_fit` alone, which takes the rule of thumb.
        n_iter_: epochs trained; `loss_curve_` has the loss of each, `validation_curve_` that of held-out data.
        n_features_in_: the length of X's second axis; `layout_` says what the axes are.
        scaling_: mean, deviation and fill.
        model_: the `pstn.PSTN`.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.repeat(["slow", "fast"], 10)
        >>> classifier = pstn.PSTNClassifier(transform="cpab", kind="series", kl_weight=1e-3, epochs=2).fit(X, y)
        >>> classifier.predict_proba(X).shape, classifier.transform(X).shape, classifier.sample(X, 3).shape
        ((20, 2), (20, 50), (3, 20, 50))
    """

    @renamed(localizer_rate="localizer_factor")
    def __init__(
        self,
        transform: str | Transform = "auto",
        kind: str = "auto",
        *,
        kl_weight: float | str = "auto",
        width: int | None = None,
        train_samples: int = TRAIN_SAMPLES,
        test_samples: int = TEST_SAMPLES,
        fill: Any = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        localizer_factor: float = LOCALIZER_FACTOR,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        patience: int = 20,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        device: str = "auto",
    ) -> None:
        self.transform = transform
        self.kind = kind
        self.kl_weight = kl_weight
        self.width = width
        self.train_samples = train_samples
        self.test_samples = test_samples
        self.fill = fill
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.localizer_factor = localizer_factor
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device

    def _design(self, layout: Layout, scaling: Scaling, classes: int) -> Design:
        return Design(
            "pstn", layout.channels, layout.size, classes, vars(self)["transform"], self.width,
            require_positive_int("train_samples", self.train_samples),
            require_positive_int("test_samples", self.test_samples), scaling.scaled_fill,
        )  # fmt: skip

    def _find_kl_weight(self, design: Design, data: TrainingData, schedule: Schedule, seed: int) -> KLWeight:
        if not isinstance(self.kl_weight, str):
            return KLWeight(self._kl_weight_without_search(len(data.y)), {})
        require_choice("kl_weight (unless it is a number)", self.kl_weight, ("auto",))
        losses = search_kl_weight(
            design, data, schedule, seed=seed, valid_fraction=self.validation_fraction, n_jobs=self.n_jobs
        )
        return KLWeight(min(losses, key=lambda weight: losses[weight]), losses)

    def _kl_weight_without_search(self, examples: int) -> float:
        if isinstance(self.kl_weight, str):
            require_choice("kl_weight (unless it is a number)", self.kl_weight, ("auto",))
            return default_kl_weight(examples)
        return require_nonnegative_number("kl_weight", self.kl_weight)

    @property
    def kl_weight_(self) -> float:
        """The weight w that the fit used."""
        check_is_fitted(self)
        return self._kl_weight.value

    @property
    def kl_weight_losses_(self) -> dict[float, float]:
        """The validation loss of each weight that was tried; empty where there was no search."""
        check_is_fitted(self)
        return self._kl_weight.losses

    def _log_probs(self, x: Tensor) -> Tensor:
        return self._look(x).log_probs

    def _look(self, x: Tensor) -> Prediction:
        """Classify under the same S quantiles for every input: an answer does not depend on who else is asked."""
        samples = require_positive_int("test_samples", self.test_samples)
        shape = (1, self.model_.layer.noise_width)
        source = torch.Generator().manual_seed(self._seed)
        noise = draw_noise(samples, shape, method="sobol", generator=source, device=x.device)
        return self.model_(x, noise=noise.expand(-1, len(x), -1))

    @torch.no_grad()
    def uncertainty(self, X: ArrayLike) -> Uncertainty:
        """How unsure each prediction is, and how much of that comes from not knowing where to look.

        Args:
            X: as for `fit`.
        """
        looks = [self._look(x) for x in self._batches(X, self.test_samples)]
        parts = [(look.entropy.cpu().numpy(), look.mutual_information.cpu().numpy()) for look in looks]
        return Uncertainty(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @torch.no_grad()
    def sample(self, X: ArrayLike, samples: int = 10, *, random_state: Any = None) -> NDArray[np.float32]:
        """Warped versions of each input, drawn from the transformations that the network holds possible.

        They are learned augmentation: train another model on them.

        Args:
            X: as for `fit`.
            samples: S.
            random_state: of the draw.

        Returns:
            (S, N, ...), each of the S in the shape and units of `X`, float32.
        """
        require_positive_int("samples", samples)
        source = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        parts = [
            self._restored(self.model_.layer(x, samples, generator=source).warped) for x in self._batches(X, samples)
        ]
        return np.concatenate(parts, axis=1)


@final
class STNClassifier(Warping, ArrayClassifier):
    """A classic spatial transformer network as a scikit-learn classifier: one look per input, no distribution.

    Everything is as in `PSTNClassifier`, less what has to do with sampling.

    Args:
        transform: the family of transformations.
        kind: "auto", "image" or "series".
        width: channels of the classifier's first convolution.
        fill: what lies outside an input.
        epochs: passes over the data.
        batch_size: examples in a step.
        learning_rate: Adam's; chosen by the kind of data when None.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        early_stopping: hold data out and stop when they are no longer predicted better.
        validation_fraction: the part to hold out.
        patience: epochs without a better validation loss after which to stop.
        class_weight: a weight per label, "balanced", or None.
        warm_start: whether `fit` goes on from the weights of the last.
        random_state: a number, a `numpy.random.RandomState` or None.
        device: "auto", "cpu", "cuda", ...

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 8, 8), np.arange(20) % 2
        >>> pstn.STNClassifier(epochs=1).fit(X, y).transform(X).shape
        (20, 8, 8)
    """

    @renamed(localizer_rate="localizer_factor")
    def __init__(
        self,
        transform: str | Transform = "auto",
        kind: str = "auto",
        *,
        width: int | None = None,
        fill: Any = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        localizer_factor: float = LOCALIZER_FACTOR,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        patience: int = 20,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.transform = transform
        self.kind = kind
        self.width = width
        self.fill = fill
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.localizer_factor = localizer_factor
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device

    def _design(self, layout: Layout, scaling: Scaling, classes: int) -> Design:
        return Design(
            "stn", layout.channels, layout.size, classes, vars(self)["transform"], self.width, fill=scaling.scaled_fill
        )

    def _find_kl_weight(self, design: Design, data: TrainingData, schedule: Schedule, seed: int) -> KLWeight:
        return KLWeight(0.0, {})

    def _kl_weight_without_search(self, examples: int) -> float:
        return 0.0

    def _log_probs(self, x: Tensor) -> Tensor:
        return self.model_(x).log_probs


@final
class CNNClassifier(ArrayClassifier):
    """The classifier of a P-STN without the transformer, as a scikit-learn classifier: what to compare with.

    Everything is as in `PSTNClassifier`, less what has to do with transformations.

    Args:
        kind: "auto", "image" or "series".
        width: channels of the first convolution.
        epochs: passes over the data.
        batch_size: examples in a step.
        learning_rate: Adam's; chosen by the kind of data when None.
        weight_decay: Adam's L2 term.
        early_stopping: hold data out and stop when they are no longer predicted better.
        validation_fraction: the part to hold out.
        patience: epochs without a better validation loss after which to stop.
        class_weight: a weight per label, "balanced", or None.
        warm_start: whether `fit` goes on from the weights of the last.
        random_state: a number, a `numpy.random.RandomState` or None.
        device: "auto", "cpu", "cuda", ...

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.arange(20) % 2
        >>> pstn.CNNClassifier(epochs=1).fit(X, y).predict(X).shape
        (20,)
    """

    def __init__(
        self,
        kind: str = "auto",
        *,
        width: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        patience: int = 20,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.kind = kind
        self.width = width
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device

    def _design(self, layout: Layout, scaling: Scaling, classes: int) -> Design:
        return Design("cnn", layout.channels, layout.size, classes, width=self.width)

    def _find_kl_weight(self, design: Design, data: TrainingData, schedule: Schedule, seed: int) -> KLWeight:
        return KLWeight(0.0, {})

    def _kl_weight_without_search(self, examples: int) -> float:
        return 0.0

    def _log_probs(self, x: Tensor) -> Tensor:
        logits = self.model_(x)
        require_finite("logits", logits, "the classifier returned them; lower its learning rate")
        return logits.log_softmax(-1)
