"""What is found on held-out examples: a temperature, and when the model should not answer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn.abstaining import Abstention
from pstn.nn.classifier import PSTN, Prediction, TransformerClassifier, shared_noise
from pstn.nn.metadata import ModelMetadata
from pstn.noise import Samples
from pstn.text import excerpt
from pstn.training.evaluate import Batches, ask_about, log_probs_of, predict_all
from pstn.uncertainty import require_labels

# Wider than any classifier needs: at the ends all probabilities are 0 or 1, or equal.
_RANGE = (math.log(0.02), math.log(50.0))


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
