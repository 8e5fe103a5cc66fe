"""The three estimators: a P-STN, and the STN and CNN to compare it with."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, cast, final, get_args

import numpy as np
import torch
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_X_y
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn

from pstn import _checks
from pstn._deprecation import renamed
from pstn.data.augment import RandomTransform, make_random_transform
from pstn.data.split import fit_scaling, stratified_indices
from pstn.defaults import LOCALIZER_FACTOR, RESTARTS, TEST_SAMPLES, default_kl_weight
from pstn.estimators.arrays import ArrayEstimator, Layout, Warping, draw_seed, parameter_too
from pstn.nn import Prediction, find_pretrained, make_model
from pstn.nn.backbones import Learns, Reads
from pstn.noise import draw_noise
from pstn.objective import LossFunction, TrainingLoss
from pstn.training import Member, Population, Recipe
from pstn.training.diagnose import train_again
from pstn.training.evaluate import find_temperature, log_probs_of
from pstn.training.linear import start_heads
from pstn.training.population.trainer import Progress, make_device
from pstn.training.progress import summary
from pstn.training.tune import Tuned, hold_out, set_alpha, tune
from pstn.transforms import Transform

__all__ = ["CNNClassifier", "PSTNClassifier", "STNClassifier", "Uncertainty"]

_LEARNING_RATES = {"image": 1e-3, "series": 3e-3, "published": 1e-3}
# How parameters are checked when training starts: scikit-learn sets them unchecked.
_CHECKS = {
    **dict.fromkeys(
        ("test_samples", "patience", "epochs", "batch_size", "width", "train_samples"), _checks.require_positive_int
    ),
    **dict.fromkeys(("localizer_factor", "validation_fraction", "learning_rate"), _checks.require_positive_number),
    "weight_decay": _checks.require_nonnegative_number,
    "restarts": _checks.require_nonnegative_int,
}


class Uncertainty(NamedTuple):
    """How unsure a prediction is, in nats."""

    entropy: NDArray[np.float32]
    """(N,), in total."""
    mutual_information: NDArray[np.float32]
    """(N,), the part that comes from not knowing where to look."""


class TrainingData(NamedTuple):
    """Examples as the networks take them."""

    x: Tensor
    """(N, C, *size), standardised."""
    y: Tensor
    """(N,), classes 0..K-1."""
    weights: Tensor | None
    """(N,), how much each counts; None if all count the same."""


class ArrayClassifier(ClassifierMixin, ArrayEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier of images or series in arrays; subclasses name the constructor's parameters."""

    _model_kind: Any
    classes_: NDArray[Any]
    _make: partial[Any]
    _optimiser: dict[str, Tensor] | None
    _kl_weight: float | None
    _teach: RandomTransform | None = None
    _tuned: Tuned | None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from examples.

        Args:
            X: images (N, H, W) or (N, H, W, C), or series (N, L) or (N, C, L), also as a list of arrays of unequal
                length or a nested table; NaN in series is interpolated.
            y: (N,), labels: numbers or text.
            sample_weight: (N,), how much each example counts.

        Returns:
            The estimator itself.
        """
        continues = self.warm_start and hasattr(self, "model_")
        known = self if continues else self._started(X, y, None)
        searches = getattr(self, "kl_weight", None) == "auto" and known._teach is None
        data = known._data(X, y, sample_weight)
        if data.weights is not None:  # learning rates mean the same with weights and without
            if not data.weights.sum() > 0:
                raise ValueError("sample_weight and class_weight must leave some example a weight above zero")
            data = data._replace(weights=data.weights / data.weights.mean())
        seed = draw_seed(self.random_state)
        if not continues:
            known._kl_weight = self._default_kl_weight(len(data.y))
            known.model_ = known._make(seed=seed)  # refuses a transform that does not suit the data
            parts = [(torch.arange(len(data.y)), None)]
            start_heads([known.model_], data.x, data.y, parts, taught=known._teach is not None)
            if searches and known._kl_weight is not None:
                known._tuned = known._search(data, seed)
                known._kl_weight = known._tuned.best.kl_weight
                set_alpha(known.model_, known._tuned.best.alpha)
        train = valid = None
        if self.early_stopping:
            train, valid = stratified_indices(data.y, self.validation_fraction, seed=seed)
            if len(valid) == 0:
                raise ValueError("early_stopping must be False here: validation_fraction leaves no example")
        member = known._member(seed, known._kl_weight, train, valid)
        recipe = known._recipe(len(data.y) if train is None else len(train))
        with known._population([known.model_], data, [member], recipe) as population:
            population.fit(self._print_progress)
            return self._keep(known, self._train_again(population), seed, [])

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Take one pass over these examples from where the estimator stands; a few may come twice, to fill a batch.

        Scaling is learned from the first call; there is no search for w and no early stopping. Weights count as they
        are: a weight of 2 means the same in every call, whatever the others in it. (`fit` divides by their mean.)

        Args:
            X: as for `fit`.
            y: (N,), labels among `classes`.
            classes: all labels that there will ever be; needed in the first call, ignored in later ones.
            sample_weight: (N,), how much each example counts.

        Returns:
            The estimator itself.
        """
        if isinstance(self.class_weight, str):
            raise ValueError("class_weight must be a dict or None for partial_fit, got 'balanced'")
        known = self
        if not hasattr(self, "model_"):
            if classes is None:
                raise ValueError("classes must be given in the first call of partial_fit: all labels that will occur")
            known = self._started(X, y, np.unique(np.asarray(classes)))
            known._kl_weight, known._seed = self._default_kl_weight(len(np.asarray(y))), draw_seed(self.random_state)
            known.model_ = known._make(seed=known._seed)
        data = known._data(X, y, sample_weight)
        count = len(data.y)
        per_pass = math.ceil(count / known._recipe(count).batch_size)
        batch = math.ceil(count / per_pass)
        if missing := per_pass * batch - count:
            # A population takes whole batches: the first examples fill up the last one.
            parts: Any = (None if part is None else torch.cat([part, part[:missing]]) for part in data)
            data = TrainingData(*parts)
        # Noise and batches are functions of the step, and a pass starts at a multiple of its length.
        passed = -(-known._steps // per_pass)
        recipe, member = Recipe(passed + 1, batch, **known._task()), known._member(known._seed, known._kl_weight)
        with known._population([known.model_], data, [member], recipe) as population:
            if known._optimiser is not None:
                population.load_tensors({**population.tensors(), **known._optimiser})
            population.progress.step, population.progress.epoch = passed * per_pass, passed
            population.fit(self._print_progress)
            return self._keep(known, population, known._seed, known.loss_curve_)

    def _started(self, X: ArrayLike, y: ArrayLike, classes: NDArray[Any] | None) -> Self:
        """A clone that knows the data's shape, classes and scaling: data that are refused leave the last fit whole."""
        fresh = clone(self)
        array, labels = fresh._check_examples(X, y, reset=True)
        fresh.classes_ = np.unique(labels) if classes is None else classes
        if len(fresh.classes_) < 2:
            what, found = ("y", "one class") if classes is None else ("classes", "only")
            only = _checks.plain(fresh.classes_[0])
            raise ValueError(f"{what} must hold at least two classes, got {found}: {only!r}")
        layout, real = fresh.layout_, fresh.layout_.channels_first(array)
        if layout.lengths == "pad":
            real = np.moveaxis(real, 1, 0)[None, :, ~np.isnan(real).any(1)]
        fresh.scaling_ = fit_scaling(real, getattr(self, "fill", "auto"))
        pretrained = None if self.backbone is None else find_pretrained(self.backbone)
        if pretrained is not None:
            if layout.kind != "image" or layout.channels != 3:
                raise ValueError(f"backbone must be None but for images (N, H, W, 3), got X (N, {layout.shape})")
            white = 1.0 if array.max() <= 1 else 255.0
            mean, std = (tuple(white * v for v in values) for values in (pretrained.mean, pretrained.std))
            fresh.scaling_ = replace(fresh.scaling_, mean=mean, std=std)
        fresh._check_parameters()
        if layout.lengths == "pad":
            fresh._require_masks()
        fresh._teach = _teaching(getattr(self, "teach", None), layout)
        transform = vars(self).get("transform")
        if isinstance(transform, str) and transform == "auto":
            transform = None if fresh._teach is None else fresh._teach.transform
        fresh._make = partial(
            make_model, self._model_kind, layout.channels, layout.size, len(fresh.classes_),
            transform, networks=self.networks, width=self.width, fill=fresh.scaling_.scaled_fill,
            backbone=None if pretrained is None else pretrained.make(),
            backbone_for=getattr(self, "backbone_for", "classifier"), learns=self.backbone_learns,
            samples=getattr(self, "train_samples", 1), test_samples=int(getattr(self, "test_samples", 1)),
            taught=fresh._teach is not None, masked=layout.lengths == "pad",
        )  # fmt: skip
        fresh.loss_curve_, fresh._optimiser, fresh._steps, fresh._kl_weight, fresh._tuned = [], None, 0, None, None
        return fresh

    def _check_parameters(self) -> None:
        parameters, defaults = self.get_params(deep=False), type(self)().get_params(deep=False)
        for name in _CHECKS.keys() & parameters.keys():
            if parameters[name] is not None or defaults[name] is not None:  # None: to be chosen
                _CHECKS[name](name, parameters[name])
        if not self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        _checks.require_choice("networks", self.networks, ("auto", "inception", "resnet"))
        _checks.require_choice("backbone_for", parameters.get("backbone_for", "both"), get_args(Reads))
        _checks.require_choice("backbone_learns", self.backbone_learns, get_args(Learns))

    def _require_masks(self) -> None:
        """Refuse what would read the padding behind series."""
        found = {"teach": getattr(self, "teach", None) is not None, "fill": self.scaling_.fill is not None}
        if wrong := [name for name, is_wrong in found.items() if is_wrong]:
            raise ValueError(f"lengths must be 'resample' with {' and '.join(wrong)}, which read no mask, got 'pad'")

    def _default_kl_weight(self, examples: int) -> float | None:
        """The weight w without a search: as given, or by the number of examples; None if the loss takes none."""
        given, loss = getattr(self, "kl_weight", 0.0), TrainingLoss(self.loss)
        if given is None or isinstance(given, str):
            _checks.require_choice("kl_weight (unless it is a number)", given, ("auto", None))
            return default_kl_weight(examples) if loss.takes_kl_weight else None
        if self._model_kind != "pstn" and not loss.takes_kl_weight:
            return None
        return _checks.require_nonnegative_number("kl_weight", loss.choose_kl_weight(given, given))

    def _recipe(self, examples: int) -> Recipe:
        """For so many examples; learning rates fall to a tenth after two thirds of the epochs."""
        batch_size: Any = None if self.batch_size is None else min(self.batch_size, examples)
        patience = self.patience if self.early_stopping else None
        recipe = Recipe(self.epochs, batch_size, patience=patience, **self._task())
        reads_features = self.backbone is not None and getattr(self, "backbone_for", "both") != "localizer"
        recipe = recipe.for_examples(examples, self.layout_.size, pretrained=reads_features)
        return replace(recipe, lr_step=math.ceil(2 * recipe.epochs / 3))

    def _task(self) -> dict[str, Any]:
        """The part of a recipe that says what to minimise."""
        return {"loss": self.loss, "teach": self._teach, "teach_weight": None if self._teach is None else 1.0}

    def _member(
        self, seed: int, kl_weight: float | None, train: Tensor | None = None, valid: Tensor | None = None
    ) -> Member:
        kind = self.layout_.kind if self.networks == "auto" else "published"
        rate = _LEARNING_RATES[kind] if self.learning_rate is None else float(self.learning_rate)
        given = float(getattr(self, "localizer_factor", 1.0))
        factor = given if self._tuned is None else self._tuned.best.localizer_factor
        return Member(seed, rate, factor, kl_weight, float(self.weight_decay), train, valid)

    def _population(
        self, models: Sequence[nn.Module], data: TrainingData, members: Sequence[Member], recipe: Recipe
    ) -> Population:
        # One stack in this process: starting others would run a script without a main guard twice.
        return Population(
            models, data.x, data.y, members, recipe, device=make_device(self.device), groups=1, workers=False,
            weights=data.weights,
        )  # fmt: skip

    def _search(self, data: TrainingData, seed: int) -> Tuned:
        """Choose w, the localizer's factor and alpha on held-out data; processes of joblib share the work."""
        splits = hold_out(data.y, self.validation_fraction, seed=seed)
        member = self._member(seed, self._kl_weight)
        recipe = self._recipe(len(splits[0][0]) if splits else len(data.y))
        jobs = effective_n_jobs(self.n_jobs)

        def run(score: Callable[[Any], list[float]], parts: list[Any]) -> Any:
            return Parallel(n_jobs=jobs, verbose=10 if self.verbose else 0)(delayed(score)(part) for part in parts)

        tuned = tune(
            self._make, data.x, data.y, member, recipe, splits, weights=data.weights, device=make_device(self.device),
            jobs=jobs, run=run,
        )  # fmt: skip
        if self.verbose:
            print(f"[{type(self).__name__}] {tuned}", flush=True)
        return tuned

    def _print_progress(self, progress: Progress) -> None:
        if self.verbose and progress.history:
            print(f"[{type(self).__name__}] step {progress.step}, {summary(progress, 1)}", flush=True)

    def _train_again(self, population: Population) -> Population:
        """The population, or another one in which a model that failed in it has learned something."""

        def fit(second: Population) -> None:
            second.fit(self._print_progress)

        say = partial(warnings.warn, category=ConvergenceWarning)
        restarted = train_again(population, getattr(self, "restarts", 0), fit, say)
        if restarted.failed and not population.progress.failures:  # which `_keep` tells of
            warnings.warn(f"Training failed. {restarted.failed[0]}", ConvergenceWarning)
        return restarted.mended[0][0] if restarted.mended else population

    def _keep(self, known: Self, population: Population, seed: int, loss_curve: list[float]) -> Self:
        """Take over what is known of the data and what was learned."""
        for failure in population.progress.failures:
            warnings.warn(f"Training stopped early: {failure}", ConvergenceWarning)
        if known is not self:
            parameters = self._get_param_names()
            self.__dict__.pop("feature_names_in_", None)
            self.__dict__.update({name: value for name, value in vars(known).items() if name not in parameters})
        history = population.progress.history
        self.model_, self._seed, self._steps = population.models()[0], seed, population.progress.step
        self.loss_curve_ = loss_curve + [entry["loss"][0] for entry in history]
        self.validation_curve_ = [entry["valid_nll"][0] for entry in history if "valid_nll" in entry]
        self.n_iter_ = len(self.loss_curve_)
        self._optimiser = {name: tensor for name, tensor in population.tensors().items() if name in ("mean", "square")}
        return self

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
        parts = []
        for x in self._batches(X, getattr(self, "test_samples", 1)):
            output = self._predict(x)
            if isinstance(output, Tensor):
                _checks.require_finite("logits", output, "the classifier returned them; lower its learning rate")
            parts.append(log_probs_of(output).cpu().numpy())
        return np.concatenate(parts)

    def _predict(self, x: Tensor) -> Tensor | Prediction:
        """A batch (B, C, *size) through the network."""
        return cast(Tensor, self.model_(x))

    def _check_examples(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        array = self._read(X, reset=reset)
        _, labels = check_X_y(array, y, allow_nd=True, ensure_all_finite="allow-nan", estimator=self)
        check_classification_targets(labels)
        return array, labels

    def _data(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> TrainingData:
        """Examples of the classes and shape that are known, as the network takes them."""
        self._check_parameters()
        array, labels = self._check_examples(X, y, reset=False)
        if len(unknown := np.setdiff1d(labels, self.classes_)):
            raise ValueError(f"y must hold the classes of the first call only, got {unknown[:5].tolist()} as well")
        encoded, weights = np.searchsorted(self.classes_, labels), None
        if sample_weight is not None or self.class_weight is not None:
            given = _check_sample_weight(sample_weight, array, dtype=np.float64, ensure_non_negative=True)
            if isinstance(self.class_weight, dict):  # by all classes: a call of partial_fit need not hold each of them
                per_class = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_)[encoded]
            else:
                per_class = compute_sample_weight(self.class_weight, labels)
            weights = torch.from_numpy(given * per_class)
        return TrainingData(self._scaled(array), torch.from_numpy(encoded.astype(np.int64)), weights)

    def _batches(self, X: ArrayLike, samples: int = 1) -> Iterator[Tensor]:
        check_is_fitted(self)
        samples = _checks.require_positive_int("test_samples", samples)  # which may have changed since the fit
        self.model_.to(make_device(self.device))
        yield from super()._batches(X, samples)

    def __getstate__(self) -> dict[str, Any]:
        """What is learned as bytes that torch reads on any device, and that joblib hashes alike each time."""
        state = dict(super().__getstate__())
        state.pop("_make", None)
        if "model_" in state:
            buffer = io.BytesIO()
            torch.save({name: state.pop(name) for name in ("model_", "_optimiser")}, buffer)
            state["_learned"] = buffer.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if learned := state.pop("_learned", None):
            state |= torch.load(io.BytesIO(learned), "cpu", weights_only=False)  # a part of the pickle that is loaded
        super().__setstate__(state)


def _teaching(teach: str | RandomTransform | None, layout: Layout) -> RandomTransform | None:
    """The random transform that is taught; one that changes the size of inputs is refused."""
    if teach is None:
        return None
    made = make_random_transform(teach, len(layout.size))
    x = torch.zeros(1, layout.channels, *layout.size)
    if made.transform.ndim != x.dim() - 2 or Recipe(teach=made).as_seen(x).shape != x.shape:
        raise ValueError(f"teach must keep the size of inputs, {layout.size}, got {made}")
    return made


class WarpingClassifier(Warping, ArrayClassifier, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Adds `transform` and `calibrate`; images have no columns, so that its output is always a plain array."""

    @parameter_too
    @torch.no_grad()
    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Inputs as the classifier sees them, warped by the most probable transformation that it predicts.

        Args:
            X: as for `fit`.

        Returns:
            The shape of `X`, in its units, float32.
        """
        parts = []
        for x in self._batches(X):
            layer = self.model_.layer
            parts.append(self._restored(layer.warp(x, layer.localize(x).mode[None])[0]))
        return np.concatenate(parts)

    def calibrate(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Find the temperature under which the probabilities fit examples best that `fit` has not seen.

        It changes no answer, only how sure it is: see `pstn.calibrate`.

        Args:
            X: held-out inputs, as for `fit`.
            y: (N,), their labels.

        Returns:
            The estimator itself; `model_.temperature` is what was found.
        """
        check_is_fitted(self)
        labels = self._data(X, y, None).y
        self.model_.temperature = 1.0
        self.model_.temperature = find_temperature(torch.from_numpy(self.predict_log_proba(X)), labels)
        return self


@final
class PSTNClassifier(WarpingClassifier):
    """A probabilistic spatial transformer network as a scikit-learn classifier.

    Inputs are standardised per channel with the training data's mean and deviation; `transform` and `sample` give back
    the data's units. Prediction reads every input under the same S quantiles of its posterior, so that an answer
    does not depend on the other inputs it is asked with.

    Args:
        transform: the family of transformations: "similarity", "affine", "crop", "cpab", ..., a `pstn.Transform`, or
            "auto": that of `teach`, or a similarity for images and CPAB for series.
        kind: what (N, a, b) is: "image" (N, H, W), "series" (N, C, L), or "auto": images if both sides are at least 8
            and neither is more than 4 times the other, with a warning unless they hold 8-bit pixels.
        axes: of series with channels: "NCL" (N, C, L), "NLC" (N, L, C), or "auto": (N, C, L), with a warning, and
            (N, L, 1).
        lengths: what is done with series of other lengths than the longest of `fit`: "resample" stretches them; "pad"
            puts NaN behind them, which warp, localizer and classifier leave out; "auto" resamples if lengths differ in
            `fit`, and otherwise refuses others.
        verbose: 0 is quiet, 1 prints the loss about every two seconds, and how far a search is.
        kl_weight: w, the pull of the posterior towards the prior; by the number of examples when None. "auto" chooses
            it, the localizer's factor and the posterior's alpha on held-out data, among twelve settings around the
            defaults that are trained together, each on up to three splits for half the epochs.
        teach: a random transform such as `pstn.data.RandomRotation()`, or a text such as "rotation=3.14": the inputs of
            `fit` are aligned, are warped by it afresh in every step, and the network is taught what undoes it beside
            the labels. There is no search then, and `localizer_factor` is not used. None: as they are.
        loss: what to minimise, (prediction, y) -> a scalar or a `pstn.Loss`, as in `pstn.fit`; the negative ELBO when
            None. `kl_weight` stays None for a function without a parameter `kl_weight`.
        networks: "auto": small ones, chosen by the size of the input; for series also "inception" and "resnet", as in
            `pstn.nn.make_model`.
        width: channels of the classifier's first convolution; chosen by the size of the input when None.
        backbone: a pretrained network for images in colour, as `pstn.nn.find_pretrained` takes it, such as
            "efficientnet-lite0"; the last layer on it starts at a logistic regression.
        backbone_for: what reads by it: the "classifier", the "localizer" or "both".
        backbone_learns: what of it learns: "none", its "last" layers or "all".
        train_samples: S in training; 4 when None, and 1 where a pretrained network classifies.
        test_samples: S in prediction.
        fill: what lies outside an input, in the units of the data, one number or one per channel; "border" repeats
            the nearest value; "auto" is the background of images that have one, "border" otherwise.
        epochs: passes over the data; chosen by their number when None.
        batch_size: examples in a step; chosen by their number when None.
        learning_rate: Adam's; chosen by the kind of data when None.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        early_stopping: hold data out, stop when they are no longer predicted better, and keep the best weights.
        validation_fraction: the part to hold out, for early stopping and for the search.
        patience: epochs without a better validation loss after which to stop.
        class_weight: a weight per label, "balanced", or None.
        warm_start: whether `fit` continues from the weights of the last; classes, scaling and w stay.
        restarts: how often a network that ends at chance is trained again, with more care: see `pstn.fit`.
        random_state: a number, a `numpy.random.RandomState` or None. No global seed is touched.
        n_jobs: processes that share the search, as joblib counts them. Without one, a fit runs in this process, with
            the threads of torch.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...

    Attributes:
        classes_: (K,), the labels.
        kl_weight_: the w that was used.
        tuned_: what the search tried and chose, and why; None where there was none: without "auto", and after
            `partial_fit` alone, which takes the defaults. `kl_weight_losses_` has the lowest validation loss of each w.
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

    _model_kind = "pstn"

    @renamed(localizer_rate="localizer_factor")
    def __init__(
        self, transform: str | Transform = "auto", kind: str = "auto", *, axes: str = "auto", lengths: str = "auto",
        verbose: int = 0,
        kl_weight: float | str | None = None,
        teach: str | RandomTransform | None = None, loss: LossFunction | None = None, networks: str = "auto",
        width: int | None = None,
        backbone: str | None = None, backbone_for: str = "classifier", backbone_learns: str = "none",
        train_samples: int | None = None,
        test_samples: int = TEST_SAMPLES, fill: Any = "auto", epochs: int | None = None, batch_size: int | None = None,
        learning_rate: float | None = None, localizer_factor: float = LOCALIZER_FACTOR, weight_decay: float = 1e-4,
        early_stopping: bool = False, validation_fraction: float = 0.2, patience: int = 20, class_weight: Any = None,
        warm_start: bool = False, restarts: int = RESTARTS, random_state: Any = None, n_jobs: int | None = None,
        device: str = "auto",
    ) -> None:  # fmt: skip
        self._set_parameters(locals())

    @property
    def kl_weight_(self) -> float | None:
        """The weight w that the fit used; None for a loss that takes none."""
        check_is_fitted(self)
        return self._kl_weight

    @property
    def tuned_(self) -> Tuned | None:
        """What the search tried and chose, and why; None where there was no search."""
        check_is_fitted(self)
        return self._tuned

    @property
    def kl_weight_losses_(self) -> dict[float, float]:
        """The lowest validation loss of each weight that was tried; empty where there was no search."""
        worst_first = reversed(() if self.tuned_ is None else self.tuned_.trials)
        return dict(sorted({trial.kl_weight: trial.nll for trial in worst_first}.items()))

    def _predict(self, x: Tensor) -> Prediction:
        """Classify under the same S quantiles for every input: an answer does not depend on the other inputs."""
        samples = _checks.require_positive_int("test_samples", self.test_samples)
        source = torch.Generator().manual_seed(self._seed)
        shape = (1, self.model_.layer.noise_width)
        noise = draw_noise(samples, shape, method="sobol", generator=source, device=x.device)
        return cast(Prediction, self.model_(x, noise=noise.expand(-1, len(x), -1)))

    @torch.no_grad()
    def uncertainty(self, X: ArrayLike) -> Uncertainty:
        """How unsure each prediction is, and how much of that comes from not knowing where to look.

        Args:
            X: as for `fit`.
        """
        predictions = [self._predict(x) for x in self._batches(X, self.test_samples)]
        parts = [(p.entropy.cpu().numpy(), p.mutual_information.cpu().numpy()) for p in predictions]
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
        _checks.require_positive_int("samples", samples)
        source = torch.Generator().manual_seed(draw_seed(random_state))
        parts = [
            self._restored(self.model_.layer(x, samples, generator=source).warped) for x in self._batches(X, samples)
        ]
        return np.concatenate(parts, axis=1)


@final
class STNClassifier(WarpingClassifier):
    """A classic spatial transformer network as a scikit-learn classifier: one look per input, no distribution.

    Everything is as in `PSTNClassifier`, less what has to do with sampling.

    Args:
        transform: the family of transformations.
        kind: "auto", "image" or "series".
        axes: of series with channels, "auto", "NCL" or "NLC".
        lengths: "auto", "resample" or "pad", as in `PSTNClassifier`.
        verbose: 0 or 1, whether to print the loss.
        teach: a random transform that is taught, as in `PSTNClassifier`.
        loss: what to minimise, as in `PSTNClassifier`.
        networks: "auto", or for series "inception" or "resnet", as in `PSTNClassifier`.
        width: channels of the classifier's first convolution.
        backbone: a pretrained network for images in colour, as `pstn.nn.find_pretrained` takes it, such as
            "efficientnet-lite0"; the last layer on it starts at a logistic regression.
        backbone_for: what reads by it: the "classifier", the "localizer" or "both".
        backbone_learns: what of it learns: "none", its "last" layers or "all".
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
        warm_start: whether `fit` continues from the weights of the last.
        restarts: how often a network that ends at chance is trained again.
        random_state: a number, a `numpy.random.RandomState` or None.
        device: "auto", "cpu", "cuda", ...

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 8, 8), np.arange(20) % 2
        >>> pstn.STNClassifier(kind="image", epochs=1).fit(X, y).transform(X).shape
        (20, 8, 8)
    """

    _model_kind = "stn"

    @renamed(localizer_rate="localizer_factor")
    def __init__(
        self, transform: str | Transform = "auto", kind: str = "auto", *, axes: str = "auto", lengths: str = "auto",
        verbose: int = 0,
        teach: str | RandomTransform | None = None,
        loss: LossFunction | None = None, networks: str = "auto", width: int | None = None,
        backbone: str | None = None, backbone_for: str = "classifier", backbone_learns: str = "none",
        fill: Any = "auto", epochs: int | None = None, batch_size: int | None = None,
        learning_rate: float | None = None, localizer_factor: float = LOCALIZER_FACTOR, weight_decay: float = 1e-4,
        early_stopping: bool = False, validation_fraction: float = 0.2, patience: int = 20, class_weight: Any = None,
        warm_start: bool = False, restarts: int = RESTARTS, random_state: Any = None, device: str = "auto",
    ) -> None:  # fmt: skip
        self._set_parameters(locals())


@final
class CNNClassifier(ArrayClassifier):
    """The classifier of a P-STN without the transformer, as a scikit-learn classifier: what to compare with.

    Everything is as in `PSTNClassifier`, less what has to do with transformations.

    Args:
        kind: "auto", "image" or "series".
        axes: of series with channels, "auto", "NCL" or "NLC".
        lengths: "auto", "resample" or "pad", as in `PSTNClassifier`.
        verbose: 0 or 1, whether to print the loss.
        loss: what to minimise, as in `PSTNClassifier`; its prediction is the logits (B, K).
        networks: "auto", or for series "inception" or "resnet", as in `PSTNClassifier`.
        width: channels of the first convolution.
        backbone: a pretrained network for images in colour, as `pstn.nn.find_pretrained` takes it, such as
            "efficientnet-lite0"; the last layer on it starts at a logistic regression.
        backbone_learns: what of it learns: "none", its "last" layers or "all".
        epochs: passes over the data.
        batch_size: examples in a step.
        learning_rate: Adam's; chosen by the kind of data when None.
        weight_decay: Adam's L2 term.
        early_stopping: hold data out and stop when they are no longer predicted better.
        validation_fraction: the part to hold out.
        patience: epochs without a better validation loss after which to stop.
        class_weight: a weight per label, "balanced", or None.
        warm_start: whether `fit` continues from the weights of the last.
        random_state: a number, a `numpy.random.RandomState` or None.
        device: "auto", "cpu", "cuda", ...

    Example:
        >>> X, y = np.random.RandomState(0).rand(20, 50), np.arange(20) % 2
        >>> pstn.CNNClassifier(epochs=1).fit(X, y).predict(X).shape
        (20,)
    """

    _model_kind = "cnn"

    def __init__(
        self, kind: str = "auto", *, axes: str = "auto", lengths: str = "auto",
        verbose: int = 0,
        loss: LossFunction | None = None, networks: str = "auto", width: int | None = None,
        backbone: str | None = None, backbone_learns: str = "none",
        epochs: int | None = None, batch_size: int | None = None, learning_rate: float | None = None,
        weight_decay: float = 1e-4, early_stopping: bool = False, validation_fraction: float = 0.2, patience: int = 20,
        class_weight: Any = None, warm_start: bool = False, random_state: Any = None, device: str = "auto",
    ) -> None:  # fmt: skip
        self._set_parameters(locals())
