"""Scores of classifiers, and the data that `fit` and `evaluate` take: the one way to score for every trainer.

And what is found on held-out examples: a temperature, and when the model should not answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pstn._checks import require_floating
from pstn.abstaining import Abstention
from pstn.nn.classifier import PSTN, Prediction, TransformerClassifier, TransformerModel, evaluating, shared_noise
from pstn.nn.metadata import ModelMetadata
from pstn.noise import Samples
from pstn.text import excerpt
from pstn.threads import suit_threads, using_threads
from pstn.uncertainty import calibration_error, require_labels

if TYPE_CHECKING:
    from pstn.data import Generated, Split

Batches: TypeAlias = "Split | Generated | tuple[Tensor, Tensor] | Iterable[Any]"
Answer = TypeVar("Answer")
# Numbers that the inputs scored at a time may hold: 500 images of 64 x 64 in colour.
_AT_ONCE = 1 << 23
# Wider than any classifier needs: at the ends all probabilities are 0 or 1, or equal.
_RANGE = (math.log(0.02), math.log(50.0))


class Scores(NamedTuple):
    """How good a classifier is, and how well calibrated its probabilities."""

    accuracy: float
    """Share of right answers."""
    nll: float
    """Negative log-likelihood, in nats: the lower the better."""
    calibration_error: float
    """Expected calibration error with 15 bins: the lower the better."""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.1%}, NLL {self.nll:.3f}, calibration error {self.calibration_error:.3f}"


def score(log_probs: Tensor, y: Tensor) -> Scores:
    """Scores of predictions.

    Args:
        log_probs: (B, K); those of a model that failed may be NaN, and so is then its calibration error.
        y: (B,), class indices.

    Example:
        >>> print(score(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log(), torch.tensor([0, 1])))
        accuracy 50.0%, NLL 0.857, calibration error 0.450
    """
    finite = bool(torch.isfinite(log_probs).all())
    return Scores(
        float((log_probs.argmax(1) == y).double().mean()),
        float(-log_probs.gather(1, y[:, None]).mean()),
        float(calibration_error(log_probs.exp(), y)) if finite else math.nan,
    )


def evaluate(
    model: nn.Module,
    data: Batches,
    *,
    samples: Samples | None = None,
    batch_size: int = 500,
    generator: torch.Generator | None = None,
) -> Scores:
    """Score a classifier, with or without a transformer: accuracy, negative log-likelihood, calibration error.

    Args:
        model: a PSTN, an STN, or any module x (B, C, *size) -> logits (B, K); its mode stays what it was.
        data: as in `fit`.
        samples: S, for a PSTN, or "modes" for one weighted sample at the centre of each of the posterior's modes; its
            own `test_samples` when None.
        batch_size: for sets and tuples only; fewer of large images.
        generator: where the randomness of a PSTN comes from; torch's global seed when None.

    Example:
        >>> scores = pstn.evaluate(pstn.nn.mnist_cnn(), pstn.data.load_digits("test"))
        >>> 0 < scores.accuracy < 0.5
        True
    """
    return score(*predict_all(model, data, samples=samples, batch_size=batch_size, generator=generator))


def predict_all(
    model: nn.Module, data: Batches, *, samples: Samples | None, batch_size: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N, K) and class indices (N,) of all examples; the arguments are those of `evaluate`."""

    def ask(x: Tensor) -> Tensor:
        return log_probs_of(model(x, samples, generator=generator) if isinstance(model, TransformerModel) else model(x))

    found, y = ask_about(model, data, batch_size, ask)
    p = torch.cat(found)
    return p, require_labels(y, p.shape)


def ask_about(
    model: nn.Module, data: Any, batch_size: int, ask: Callable[[Tensor], Answer]
) -> tuple[list[Answer], Tensor]:
    """What `ask` returns for each batch of inputs, with the model in evaluation mode, and all labels (N,).

    Args:
        model: says where to compute, and with how many threads.
        data: as in `fit`.
        batch_size: for sets and tuples only; fewer of large images.
        ask: called with x (B, C, *in).
    """
    data, answers, labels = require_data(data), list[Answer](), list[Tensor]()
    with evaluating(model), torch.no_grad(), using_threads(None):
        for x, y in read_batches(model, data, examples_at_once(data, batch_size), shuffle=False):
            if not labels:
                suit_threads(model, x)
            answers.append(ask(x))
            labels.append(y)
    if not labels:
        raise ValueError("data holds no batches")
    return answers, torch.cat(labels)


def log_probs_of(output: Any) -> Tensor:
    """The log-probabilities (B, K) of what a classifier returned: a `Prediction`, or logits."""
    return output.log_probs if isinstance(output, Prediction) else output.float().log_softmax(-1)


def require_data(data: Any, *, labels: bool = True) -> Any:
    """The data as given, with tensors as a set; what only looks like batches is refused.

    Args:
        data: as in `fit`.
        labels: whether they are needed; without, a tensor x will do.
    """
    from pstn.data import Split, Splits

    if isinstance(data, Tensor) and not labels:
        require_floating("x", data)
        return TensorDataset(data)

    if isinstance(data, Splits):  # it can be iterated, and that would train on the test part
        raise TypeError("data holds a training, a validation and a test part: pass one of them, such as data.train")
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        require_floating("x", data[0])
        # Targets that are no classes are no set of `pstn.data`, which counts them.
        data = TensorDataset(*data) if data[1].is_floating_point() else Split(*data, classes=())
    if isinstance(data, Split) and not data.x.is_floating_point():
        raise TypeError(f"data must hold floating-point numbers, got {data.x.dtype}: pass data.as_float()")
    return data


def is_set(data: Any) -> bool:
    """Whether data are examples, to be cut into batches here: a set of `pstn.data`, or a `TensorDataset`."""
    return hasattr(data, "batch") or isinstance(data, TensorDataset)


def shape_of(data: Any) -> tuple[int, ...]:
    """The shape (C, *size) of the examples of a set; empty where data are batches, whose shapes are their own."""
    held = getattr(data, "base", data)
    x = held.tensors[0] if isinstance(held, TensorDataset) else getattr(held, "x", None)
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else ()


def examples_at_once(data: Any, most: int) -> int:
    """How many examples of a set to score at a time: fewer of large images, whose features take tens of times more."""
    return max(1, min(most, _AT_ONCE // math.prod(shape_of(data))))


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are; the CPU for one without any."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def read_batches(
    model: nn.Module, data: Any, batch_size: int, *, shuffle: bool, labels: bool = True
) -> Iterator[tuple[Tensor, Any]]:
    """One pass over the data: pairs (x, y) on the model's device; y is None where `labels` are not asked for."""
    if isinstance(data, TensorDataset):
        order = torch.randperm(len(data)) if shuffle else torch.arange(len(data))
        data = map(data.__getitem__, order.split(batch_size))
    elif is_set(data):
        from pstn.data import batches

        data = batches(data, batch_size, shuffle=shuffle)
    device = device_of(model)
    for batch in data:
        if hasattr(batch, "x") and hasattr(batch, "y"):
            batch = (batch.x, batch.y)
        pair = tuple(batch[: 1 + labels]) if isinstance(batch, (tuple, list)) else (batch,)
        if len(pair) <= labels or not all(isinstance(part, Tensor) and part.dim() for part in pair):
            wanted = "(x, y)" if labels else "x or (x, y)"
            raise TypeError(f"data must hold batches {wanted} of tensors, got {type(batch).__name__}")
        yield pair[0].to(device), pair[1].to(device) if labels else None


def calibrate(
    model: TransformerClassifier,
    data: Batches,
    *,
    samples: Samples | None = None,
    batch_size: int = 500,
    generator: torch.Generator | None = None,
) -> float:
    """Find the temperature under which the averaged probabilities fit held-out data best, and give it to the model.

    The logarithms of the averaged probabilities are divided by one number (Guo et al. 2017), that which makes the
    negative log-likelihood smallest. It changes no answer, only how sure it is; it is saved with the model and is in
    exported programs that sample. Use examples that the model was neither trained on nor is tested on.

    Args:
        model: a PSTN or STN; its `temperature` is replaced.
        data: held-out examples with labels, as in `fit`.
        samples: S or "modes"; the model's `test_samples` when None. A temperature fits the S it was found for.
        batch_size: for sets and tuples only; fewer of large images.
        generator: where the randomness comes from; torch's global seed when None.

    Returns:
        The temperature; above 1 the model was too sure, below 1 not sure enough.

    Example:
        >>> model, data = pstn.nn.mnist_pstn(), pstn.data.load_digits("test")
        >>> temperature = pstn.calibrate(model, data, samples=1)
        >>> temperature == model.temperature
        True
    """
    if not isinstance(model, TransformerClassifier):
        raise TypeError(f"model must be a PSTN or an STN, got {type(model).__name__}")
    before, model.temperature = model.temperature, 1.0
    try:
        log_probs, y = predict_all(model, data, samples=samples, batch_size=batch_size, generator=generator)
    except BaseException:
        model.temperature = before
        raise
    model.temperature = find_temperature(log_probs, y)
    return model.temperature


def find_abstention(
    model: Any,
    data: Any,
    *,
    accuracy: float | None = None,
    coverage: float | None = None,
    samples: Samples | None = None,
    batch_size: int = 500,
) -> Abstention:
    """Find when a classifier should not answer, and which classes it cannot rule out, on held-out data.

    Where the model has metadata, `model.about`, they hold it from then on: it is saved with the model and is in its
    exported programs, and predictions have `abstain` and `set`. Find the temperature first, as it changes the
    probabilities. Use examples that the model was neither trained on nor is tested on. All of them have the noise of
    `pstn predict`.

    Args:
        model: as in `evaluate`, or a fitted classifier with scikit-learn's interface.
        data: held-out examples with labels, as in `fit`; (X, y) for scikit-learn's.
        accuracy: wanted of the answers that are given; the model answers all when None.
        coverage: the share of inputs whose true class is to be in the set; no sets when None.
        samples: S or "modes"; the model's `test_samples` when None. Predictions and exported programs with others leave
            out what was found.
        batch_size: for sets and tuples only; fewer of large images.

    Example:
        >>> model, data = pstn.nn.mnist_cnn(), pstn.data.load_digits("test")
        >>> pstn.find_abstention(model, data, coverage=0.9).score(torch.full((1, 10), 0.1), [3])["set_size"] > 0
        True
    """
    if hasattr(model, "predict_proba"):
        if samples is not None:
            raise ValueError(f"samples must be left out for an estimator, which has its own, got {samples}")
        index, labels = {name: k for k, name in enumerate(model.classes_.tolist())}, np.asarray(data[1]).tolist()
        if unknown := set(labels) - index.keys():
            raise ValueError(f"data must have the classes of the estimator alone, got {excerpt(sorted(unknown))}")
        known = [index[label] for label in labels]
        return Abstention.find(model.predict_proba(data[0]), known, accuracy=accuracy, coverage=coverage)
    probs, y, theta = ask_all(model, data, samples=samples, batch_size=batch_size)
    rule = Abstention.find(probs, y, accuracy=accuracy, coverage=coverage, theta=None if samples == "modes" else theta)
    if isinstance(model, PSTN):
        rule = dataclasses.replace(rule, samples=model.test_samples if samples is None else samples)
    if isinstance(about := getattr(model, "about", None), ModelMetadata):
        model.about = dataclasses.replace(about, abstention=rule)
    return rule


def ask_all(
    model: nn.Module, data: Batches, *, samples: Samples | None = None, batch_size: int = 500
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Probabilities (N, K), classes (N,), and theta (S, N, D) if there are any, with the noise of `pstn predict`.

    The arguments are those of `find_abstention`.
    """

    def ask(x: Tensor) -> tuple[Tensor, Tensor | None]:
        noise = shared_noise(model, len(x), samples)
        output = model(x, **{k: v.to(x.device) if isinstance(v, Tensor) else v for k, v in noise.items()})
        return log_probs_of(output).exp().cpu(), output.theta.cpu() if isinstance(output, Prediction) else None

    answers, y = ask_about(model, data, batch_size, ask)
    p, theta = torch.cat([probs for probs, _ in answers]), [own for _, own in answers if own is not None]
    return p, require_labels(y.cpu(), p.shape), torch.cat(theta, 1) if theta else None


def find_temperature(log_probs: Tensor, y: Tensor, *, smoothing: float = 0.0) -> float:
    """The number by which log-probabilities are to be divided for the smallest negative log-likelihood.

    Args:
        log_probs: (N, K).
        y: (N,), class indices.
        smoothing: the share of each label that all classes have in equal parts: where examples are few and all are
            right, probabilities would else be 1.

    Example:
        >>> two_of_three = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
        >>> round(find_temperature(two_of_three, torch.tensor([0, 0, 1])), 2)
        3.17
    """
    log_probs, y = log_probs.double(), y.to(log_probs.device)

    def nll(log_temperature: float) -> float:
        return float(F.cross_entropy(log_probs / math.exp(log_temperature), y, label_smoothing=smoothing))

    # The loss is convex in 1 / T, so it has one minimum, and what lies beyond the worse of two points is left out.
    low, high = _RANGE
    while high - low > 1e-4:
        inner, outer = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (low, outer) if nll(inner) < nll(outer) else (inner, high)
    return math.exp((low + high) / 2)
