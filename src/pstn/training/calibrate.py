"""Temperature scaling: probabilities that are as sure as they should be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn.nn.classifier import TransformerClassifier
from pstn.noise import Samples
from pstn.training.evaluate import predict_all

if TYPE_CHECKING:
    from pstn.training.evaluate import Batches

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
        batch_size: for sets and tuples only.
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


def find_temperature(log_probs: Tensor, y: Tensor) -> float:
    """The number by which log-probabilities are to be divided for the smallest negative log-likelihood.

    Args:
        log_probs: (N, K).
        y: (N,), class indices.

    Example:
        >>> two_of_three = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
        >>> round(find_temperature(two_of_three, torch.tensor([0, 0, 1])), 2)
        3.17
    """
    log_probs, y = log_probs.double(), y.to(log_probs.device)

    def nll(log_temperature: float) -> float:
        return float(F.cross_entropy(log_probs / math.exp(log_temperature), y))

    # The loss is convex in 1 / T, so it has one minimum, and what lies beyond the worse of two points is left out.
    low, high = _RANGE
    while high - low > 1e-4:
        inner, outer = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (low, outer) if nll(inner) < nll(outer) else (inner, high)
    return math.exp((low + high) / 2)
