"""Logistic regression on features: where a last layer on a pretrained network starts, and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pstn.data.split import stratified_indices
from pstn.nn.backbones import BackboneClassifier

__all__ = ["fit_linear", "start_heads", "tune_linear"]

# The L2 terms that are tried.
_PENALTIES = tuple(10.0**power for power in (-1, 0, 1, 2, 3))
# The least deviation by which a feature is divided, as a part of the root mean square of all.
_LEAST = 0.2


def fit_linear(x: Tensor, y: Tensor, classes: int, penalty: float = 1.0) -> nn.Linear:
    """Multinomial logistic regression: the layer that minimises the sum of cross-entropies and an L2 term.

    The L2 term is penalty / 2 times the squared weights of features that are scaled to a deviation of 1, or less where
    they vary much less than others.

    Args:
        x: (N, F), features.
        y: (N,), classes.
        classes: K.
        penalty: of the L2 term.

    Example:
        >>> x, y = torch.tensor([[-1.0], [-2.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1])
        >>> fit_linear(x, y, 2)(x).argmax(1)
        tensor([0, 0, 1, 1])
    """
    x = x.double()
    mean, std = x.mean(0), x.std(0, correction=0)
    # A feature that hardly varies here would count without bound for an input in which it does.
    std = std.clamp_min(max(1e-6, _LEAST * float(std.square().mean().sqrt())))
    scaled = (x - mean) / std
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-6)

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = cross_entropy(scaled @ weight.T + bias, y, reduction="sum") + penalty / 2 * weight.square().sum()
        total = total / len(y)
        total.backward()
        return total

    optimiser.step(loss)
    layer = nn.Linear(x.shape[1], classes)
    with torch.no_grad():
        layer.weight.copy_(weight / std)
        layer.bias.copy_(bias - (weight / std) @ mean)
    return layer


def tune_linear(x: Tensor, y: Tensor, classes: int, valid: tuple[Tensor, Tensor] | None = None) -> nn.Linear:
    """Logistic regression with the L2 term that predicts validation examples best.

    Args:
        x: (N, F), features.
        y: (N,), classes.
        classes: K.
        valid: features and classes to choose by; a fifth of `x` when None, which is then fitted again as a whole.
    """
    chosen, (inside, held) = (x, y), (None, None)
    if valid is None:
        inside, held = stratified_indices(y, 0.2)
        chosen, valid = (x[inside], y[inside]), (x[held], y[held])
    losses = []
    for penalty in _PENALTIES:
        with torch.no_grad():
            losses.append(float(cross_entropy(fit_linear(*chosen, classes, penalty)(valid[0]), valid[1])))
    return fit_linear(x, y, classes, _PENALTIES[losses.index(min(losses))])


@torch.no_grad()
def extract_features(trunk: nn.Module, x: Tensor, batch: int = 64) -> Tensor:
    """Features (N, F) of inputs (N, C, H, W), a batch at a time."""
    return torch.cat([trunk(part) for part in x.split(batch)])


def start_heads(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, parts: Sequence[tuple[Tensor, Tensor | None]]
) -> None:
    """Start the last layers of models on one pretrained network at the logistic regression on its features.

    Args:
        models: whose classifiers are `BackboneClassifier`s; others are left alone.
        x: (M, C, H, W), all examples.
        y: (M,).
        parts: the training and validation examples of each model.
    """
    found = [part for model in models for part in model.modules() if isinstance(part, BackboneClassifier)]
    if len(found) < len(models):
        return
    features = extract_features(found[0].trunk.eval(), x)
    for head, (train, valid) in zip(found, parts, strict=True):
        held = None if valid is None else (features[valid], y[valid])
        with torch.enable_grad():
            layer = tune_linear(features[train], y[train], head.classes, held)
        head.head.load_state_dict(layer.state_dict())
