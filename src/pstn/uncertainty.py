"""How sure a prediction is, and whether that is warranted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pstn._checks import can_inspect_values, require_finite, require_floating, require_positive_int, require_tensor

__all__ = [
    "ReliabilityCurve", "RiskCoverageCurve", "accuracy", "brier_score", "calibration_error", "entropy", "log_mean_exp",
    "mutual_information", "negative_log_likelihood", "reliability_curve", "require_labels", "risk_coverage_curve",
]  # fmt: skip


def entropy(log_probs: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis.

    Args:
        log_probs: (..., K), log-probabilities; minus infinity is a probability of 0.

    Returns:
        (...), from 0 to log K.

    Example:
        >>> entropy(torch.tensor([0.5, 0.5]).log())
        tensor(0.6931)
    """
    _require_log_probs("log_probs", log_probs)
    return _entropy(log_probs)


def _entropy(log_probs: Tensor) -> Tensor:
    probs = log_probs.exp()
    # Where a probability underflows its logarithm counts for nothing; 0 times minus infinity would be NaN.
    total = (probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)
    return 0.0 - total  # -total would be -0.0 for an answer that is certain


def mutual_information(sample_log_probs: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """How much the samples disagree: the entropy of their mean less the mean of their entropies, in nats.

    Zero where every transformation gives the same answer; large where the answer depends on where one looks.

    Args:
        sample_log_probs: (S, ..., K), log-probabilities of each sample.
        log_weights: (S, ...), the logarithms of the samples' weights; all count the same when None.

    Returns:
        (...), at least 0.

    Example:
        >>> certain_but_opposed = torch.eye(2)[:, None].clamp_min(1e-30).log()
        >>> mutual_information(certain_but_opposed)
        tensor([0.6931])
    """
    _require_log_probs("sample_log_probs", sample_log_probs)
    mean = log_mean_exp(sample_log_probs, log_weights)
    each = _entropy(sample_log_probs)
    expected = each.mean(0) if log_weights is None else (log_weights.softmax(0) * each).sum(0)
    return (_entropy(mean) - expected).clamp_min(0)


def log_mean_exp(sample_log_probs: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """The logarithm of the mean over the first axis of the exponentials, (S, ..., K) -> (..., K).

    Args:
        sample_log_probs: (S, ..., K).
        log_weights: (S, ...), the logarithms of the weights of a weighted mean; they need not add up to 1.

    Example:
        >>> log_mean_exp(torch.tensor([0.2, 0.6]).log()).exp()
        tensor(0.4000)
    """
    require_floating("sample_log_probs", sample_log_probs)
    if log_weights is not None:
        return torch.logsumexp(sample_log_probs + log_weights.log_softmax(0)[..., None], dim=0)
    # S as a tensor's value: a Python logarithm of it would fix S when a model is exported.
    samples = torch.ones((), dtype=sample_log_probs.dtype, device=sample_log_probs.device) * sample_log_probs.shape[0]
    return torch.logsumexp(sample_log_probs, dim=0) - samples.log()


class ReliabilityCurve(NamedTuple):
    """Confidence against accuracy, bin by bin, each (bins,); empty bins hold NaN and a weight of 0."""

    confidence: Tensor
    accuracy: Tensor
    weight: Tensor
    """The share of all predictions that fall into the bin; adds up to 1."""


def reliability_curve(probs: Tensor, y: Tensor, bins: int = 15) -> ReliabilityCurve:
    """Mean confidence and accuracy in bins of equal width.

    Bins are [lower, upper), the last one closed, so a confidence of exactly 1 counts in it.

    Args:
        probs: (N, K), probabilities.
        y: (N,), class indices.
        bins: how many bins between 0 and 1.

    Example:
        >>> curve = reliability_curve(torch.tensor([[1.0, 0.0], [0.6, 0.4]]), torch.tensor([0, 1]), bins=10)
        >>> curve.weight[[6, 9]], curve.accuracy[[6, 9]]
        (tensor([0.5000, 0.5000]), tensor([0., 1.]))
    """
    probs, y = _checked_probs(probs, y)
    require_positive_int("bins", bins)
    confidence, predicted = probs.double().max(-1)
    # A confidence that stands on an edge belongs to the bin above, whatever rounding makes of `confidence * bins`.
    inner_edges = torch.arange(1, bins, dtype=torch.float64, device=probs.device) / bins
    index = torch.bucketize(confidence.to(probs.dtype), inner_edges.to(probs.dtype), right=True)
    correct = (predicted == y).double()
    zeros = torch.zeros(bins, dtype=torch.float64, device=probs.device)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    mean_confidence = zeros.index_add(0, index, confidence) / count
    mean_accuracy = zeros.index_add(0, index, correct) / count
    dtype = torch.promote_types(probs.dtype, torch.float32)
    return ReliabilityCurve(mean_confidence.to(dtype), mean_accuracy.to(dtype), (count / len(y)).to(dtype))


class RiskCoverageCurve(NamedTuple):
    """How many answers are wrong where only the surest are given, each (N,)."""

    coverage: Tensor
    """The share of examples that are answered: 1/N, 2/N, ..., 1."""
    risk: Tensor
    """The share of wrong answers among them."""
    confidence: Tensor
    """The lowest confidence among them."""

    @property
    def area(self) -> Tensor:
        """The mean risk over all coverages: the lower the better."""
        return self.risk.mean()


def risk_coverage_curve(probs: Tensor, y: Tensor) -> RiskCoverageCurve:
    """The risk of answering only the surest examples, for every share of them.

    Args:
        probs: (N, K), probabilities.
        y: (N,), class indices.

    Example:
        >>> curve = risk_coverage_curve(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> curve.risk, curve.area
        (tensor([0.0000, 0.5000]), tensor(0.2500))
    """
    probs, y = _checked_probs(probs, y)
    confidence, predicted = probs.max(-1)
    order = confidence.argsort(descending=True, stable=True)
    answered = torch.arange(1, len(y) + 1, device=probs.device)
    wrong = (predicted != y)[order].cumsum(0)
    dtype = torch.promote_types(probs.dtype, torch.float32)
    return RiskCoverageCurve(answered.to(dtype) / len(y), wrong.to(dtype) / answered, confidence[order])


def calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error (Guo et al. 2017): the mean gap between confidence and accuracy, weighted by bin.

    Args:
        probs: (N, K), probabilities.
        y: (N,), class indices.
        bins: how many bins of equal width; the last one is closed.

    Returns:
        A scalar from 0 to 1.

    Example:
        >>> calibration_error(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
        tensor(0.4000)
    """
    curve = reliability_curve(probs, y, bins)
    return ((curve.confidence - curve.accuracy).abs() * curve.weight).nansum()


def brier_score(probs: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance between the predicted distribution and the true class, from 0 to 2.

    Args:
        probs: (N, K), probabilities.
        y: (N,), class indices.

    Example:
        >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor(0.2500)
    """
    probs, y = _checked_probs(probs, y)
    target = torch.nn.functional.one_hot(y, probs.shape[-1]).to(probs.dtype)
    return (probs - target).square().sum(-1).mean()


def negative_log_likelihood(log_probs: Tensor, y: Tensor) -> Tensor:
    """Mean negative log-probability of the true class.

    Args:
        log_probs: (N, K), log-probabilities.
        y: (N,), class indices.

    Example:
        >>> negative_log_likelihood(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]))
        tensor(0.6931)
    """
    require_floating("log_probs", log_probs)
    y = require_labels(y, log_probs.shape)
    _refuse_nan("log_probs", log_probs)
    _require_log_probs("log_probs", log_probs)
    return torch.nn.functional.nll_loss(log_probs, y)


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """The share of inputs whose most probable class is the true one.

    Args:
        probs: (N, K), probabilities, log-probabilities or logits.
        y: (N,), class indices.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    require_tensor("probs", probs)
    y = require_labels(y, probs.shape)
    _refuse_nan("probs", probs)
    return (probs.argmax(-1) == y).float().mean()


def require_labels(y: Any, prediction_shape: torch.Size) -> Tensor:
    """Refuse labels that are not one class index per prediction of shape (N, K); return them as int64."""
    if len(prediction_shape) != 2:
        raise ValueError(f"predictions must have shape (N, K), got {tuple(prediction_shape)}")
    batch, classes = prediction_shape
    if not isinstance(y, Tensor) or y.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y must be a tensor of class indices, e.g. torch.int64, got {kind}")
    if tuple(y.shape) != (batch,):
        raise ValueError(f"y must have shape ({batch},), one class index per prediction, got {tuple(y.shape)}")
    if batch == 0:
        raise ValueError("y must not be empty")
    if can_inspect_values(y) and not bool(((y >= 0) & (y < classes)).all()):
        found = f"{int(y.min())} to {int(y.max())}"
        raise ValueError(f"y must hold class indices from 0 to {classes - 1}, got {found}")
    return y.long()


def _refuse_nan(name: str, tensor: Tensor) -> None:
    if can_inspect_values(tensor) and bool(torch.isnan(tensor).any()):
        raise ValueError(f"{name} must not hold NaN: look for it in the classifier's output")


def _require_log_probs(name: str, log_probs: Any) -> None:
    require_floating(name, log_probs)
    # Rounding may leave the logarithm of a mean that is 1 a few digits above 0.
    rounding = max(1e-4, 8 * torch.finfo(log_probs.dtype).eps)
    if can_inspect_values(log_probs) and bool((log_probs > rounding).any()):
        raise ValueError(f"{name} must be logarithms of probabilities, at most 0, got up to {log_probs.max():.3g}")


def _checked_probs(probs: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    require_floating("probs", probs)
    y = require_labels(y, probs.shape)
    require_finite("probs", probs, "probabilities must be numbers")
    if can_inspect_values(probs):
        total = probs.sum(-1)
        if bool((probs < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-2):
            raise ValueError("probs must hold probabilities that add up to 1: pass log_probs.exp() or softmax(logits)")
    return probs, y
