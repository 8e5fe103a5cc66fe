"""aeon's interface: a P-STN for series, one that classifies by MiniRocket's features, and aligner and augmenter.

They pass the checks of `aeon.testing.estimator_checking.check_estimator`, and take what aeon's estimators take: arrays
(N, C, L) or (N, L), and lists of arrays (C, L_i) of unequal length; missing values are interpolated.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

try:
    from aeon.classification import BaseClassifier
    from aeon.transformations.collection import BaseCollectionTransformer
    from aeon.transformations.collection.convolution_based import MiniRocket
except ImportError as error:
    raise ImportError("these estimators need aeon 1.4 or newer: pip install 'pstn[aeon]'") from error

from pstn.defaults import LOCALIZER_FACTOR, RESTARTS, TEST_SAMPLES, TRAIN_SAMPLES
from pstn.estimators import classifiers
from pstn.estimators.aligning import SeriesAligner
from pstn.estimators.arrays import parameter_too
from pstn.estimators.augmenting import Augmenter
from pstn.nn import PSTN, BackboneClassifier, RocketFeatures, Trunk
from pstn.objective import LossFunction
from pstn.training.linear import fit_ridge
from pstn.transforms import Transform

_TAKES = ("capability:multivariate", "capability:unequal_length", "capability:missing_values")
_TAGS = {"X_inner_type": ["np-list", "numpy3D"], **dict.fromkeys(_TAKES, True)}
__all__ = ["PSTNClassifier", "RocketPSTNClassifier", "SeriesTransformer", "rocket_features"]


class PSTNClassifier(BaseClassifier):  # type: ignore[misc]  # aeon has no types
    """A probabilistic spatial transformer network as a classifier of aeon.

    It is `pstn.PSTNClassifier` for series; what is said there of its parameters holds here.

    Args:
        transform: the family of transformations of time; "auto" is CPAB.
        networks: "auto", "inception" or "resnet".
        kl_weight: w; by the number of examples when None, chosen on held-out data when "auto".
        loss: what to minimise, instead of the negative ELBO.
        width: channels of the first convolution.
        train_samples: S in training.
        test_samples: S in prediction.
        epochs: passes over the data; chosen by their number when None.
        batch_size: examples in a step; likewise.
        learning_rate: Adam's; chosen by the network when None.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        class_weight: a weight per label, "balanced", or None.
        restarts: how often a network that ends at chance is trained again.
        verbose: 0 is quiet, 1 prints the loss.
        lengths: "resample" or "pad", what is done with series of other lengths than the longest of `fit`.
        random_state: a number, a `numpy.random.RandomState` or None.
        device: "auto", "cpu", "cuda", ...

    Attributes:
        estimator_: the fitted `pstn.PSTNClassifier`, which has `sample`, `uncertainty` and `calibrate`.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 2, 50), np.repeat(["slow", "fast"], 10)
        >>> PSTNClassifier(epochs=1, kl_weight=1e-3).fit(X, y).predict_proba(X).shape
        (20, 2)
    """

    _tags = {**_TAGS, "algorithm_type": "deeplearning"}  # noqa: RUF012  # aeon's name for it

    def __init__(
        self, transform: str | Transform = "auto", *, networks: str = "auto", kl_weight: float | str | None = None,
        loss: LossFunction | None = None, width: int | None = None, train_samples: int = TRAIN_SAMPLES,
        test_samples: int = TEST_SAMPLES, epochs: int | None = None, batch_size: int | None = None,
        learning_rate: float | None = None, localizer_factor: float = LOCALIZER_FACTOR, weight_decay: float = 1e-4,
        class_weight: Any = None, restarts: int = RESTARTS, verbose: int = 0, lengths: str = "resample",
        random_state: Any = None, device: str = "auto",
    ) -> None:  # fmt: skip
        values = locals()
        for name in self._get_param_names():
            setattr(self, name, values[name])
        super().__init__()

    def _fit(self, X: Any, y: NDArray[Any]) -> Self:
        options = self.get_params(deep=False)
        self.estimator_ = classifiers.PSTNClassifier(kind="series", axes="NCL", **options).fit(X, y)
        return self

    def _predict(self, X: Any) -> NDArray[Any]:
        return self.classes_[self._predict_proba(X).argmax(1)]

    def _predict_proba(self, X: Any) -> NDArray[np.float32]:
        return self.estimator_.predict_proba(X)

    @parameter_too
    def transform(self, X: Any) -> NDArray[np.float32]:
        """Series as the classifier sees them, under the most probable warp of each, (N, C, L)."""
        self._check_is_fitted()
        return self.estimator_.transform(self._preprocess_collection(X, store_metadata=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Names and values of the constructor's parameters, of nested estimators too if `deep`."""
        return {**super().get_params(deep=deep), "transform": vars(self)["transform"]}

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        """What aeon's checks make it with."""
        return {"epochs": 2, "width": 4, "kl_weight": 1e-3, "train_samples": 1, "test_samples": 2}


class RocketPSTNClassifier(PSTNClassifier):
    """A P-STN whose classifier is a calibrated linear layer on MiniRocket's features.

    A P-STN is trained first, by `PSTNClassifier`; its layer then warps each series by several samples of theta, in
    training and in prediction. The features of the warped samples, which do not learn, are averaged for a ridge
    regression that is calibrated by leaving out one series at a time; in prediction, probabilities are averaged over
    the samples. Series need at least nine values.

    Its parameters are those of `PSTNClassifier`.

    Attributes:
        estimator_: the fitted `pstn.PSTNClassifier`; its `model_` holds the linear layer on the features.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 2, 50), np.repeat(["slow", "fast"], 10)
        >>> RocketPSTNClassifier(epochs=1, kl_weight=1e-3).fit(X, y).predict_proba(X).shape
        (20, 2)
    """

    def _fit(self, X: Any, y: NDArray[Any]) -> Self:
        if self.lengths == "pad":
            raise ValueError("lengths must be 'resample': MiniRocket's features read no mask, got 'pad'")
        super()._fit(X, y)
        fitted = self.estimator_
        x, labels, _ = fitted._data(X, y, None)
        rocket = MiniRocket(random_state=fitted._seed).fit(x.numpy())
        layer, features = fitted.model_.layer, rocket_features(rocket)
        generator = torch.Generator(x.device).manual_seed(fitted._seed)
        samples, read = fitted.model_.test_samples, list[Tensor]()
        with torch.no_grad():
            for part in x.split(fitted._at_once(samples)):
                versions = layer(part, samples, generator=generator).warped
                read.append(sum((features(version) for version in versions), torch.zeros(())) / samples)
        with torch.random.fork_rng():  # the head is replaced
            classifier = BackboneClassifier(Trunk(features), len(self.classes_))
        classifier.head = fit_ridge(torch.cat(read), labels, len(self.classes_))
        fitted.model_ = PSTN(layer, classifier, fitted.model_.train_samples, samples).to(x.device).eval()
        fitted._optimiser = None  # there is nothing to go on with
        return self


class SeriesTransformer(BaseCollectionTransformer):  # type: ignore[misc]  # aeon has no types
    """A `pstn.SeriesAligner` or `pstn.Augmenter` as a transformer of aeon, for its pipelines.

    Series may have several channels, unequal lengths and missing values; what it returns has one length and none.

    Args:
        estimator: it is cloned; its own `axes` and `lengths` are not used.

    Attributes:
        estimator_: fitted.

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 2, 50), np.repeat(["slow", "fast"], 10)
        >>> SeriesTransformer(SeriesAligner(steps=20)).fit_transform(X, y).shape
        (20, 2, 50)
    """

    _tags = {**_TAGS, "removes_unequal_length": True, "removes_missing_values": True}  # noqa: RUF012

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: Any, y: Any = None) -> None:
        estimator, own = clone(self.estimator), {"axes": "NCL", "lengths": "resample"}
        # Of the warp within an augmenter too.
        names = [name for name in estimator.get_params() if name.split("__")[-1] in own]
        self.estimator_ = estimator.set_params(**{name: own[name.split("__")[-1]] for name in names}).fit(X, y)

    def _transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        return self.estimator_.transform(X)

    def _fit_transform(self, X: Any, y: Any = None) -> NDArray[Any]:
        self._fit(X, y)
        # An augmenter makes versions of the series to train on, and of no others.
        return self.estimator_.sample(X, 1)[0] if isinstance(self.estimator_, Augmenter) else self._transform(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        """What aeon's checks make it with."""
        return {"estimator": SeriesAligner(steps=2, random_state=0)}


def rocket_features(fitted: MiniRocket) -> RocketFeatures:
    """A fitted MiniRocket of aeon as a torch module, which makes the same features.

    Args:
        fitted: by `fit` on series (N, C, L).

    Example:
        >>> X = np.random.RandomState(0).rand(10, 1, 40).astype(np.float32)
        >>> rocket_features(MiniRocket(n_kernels=168, random_state=0).fit(X))(torch.from_numpy(X)).shape
        torch.Size([10, 168])
    """
    numbers, channels, dilations, counts, biases = fitted.parameters
    features = RocketFeatures(fitted.metadata_["n_channels"], dilations.tolist(), counts.tolist())
    rows = torch.zeros(84 * len(dilations), features.in_channels)
    for row, chosen in zip(rows, np.split(channels, np.cumsum(numbers)[:-1]), strict=True):
        row[chosen] = 1
    features.channels.copy_(rows.view_as(features.channels))
    features.biases.copy_(torch.from_numpy(biases))
    return features
