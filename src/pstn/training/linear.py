"""Linear classifiers of features: where a last layer on a pretrained network starts, and what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss, one_hot

from pstn.data.split import stratified_indices
from pstn.defaults import PRETRAINED_VAR_INITS
from pstn.nn.backbones import BackboneClassifier, Trunk
from pstn.nn.classifier import TransformerModel
from pstn.training.diagnose import start_variance
from pstn.training.population.recipe import Augmentation
from pstn.training.tune import hold_out
from pstn.uncertainty import log_mean_exp

__all__ = ["fit_linear", "fit_ridge", "start_heads", "tune_linear"]

# The L2 terms that are tried.
_PENALTIES = tuple(10.0**power for power in (-2, -1, 0, 1, 2))
# The same for ridge regression, and what its outputs are multiplied with.
_RIDGE_PENALTIES = tuple(10.0 ** (power / 2) for power in range(-2, 13))
_LOGITS = tuple(math.exp(power / 10) for power in range(-20, 36))
# The least deviation by which a feature is divided, as a part of the root mean square of all.
_LEAST = 0.2
# Views of each image that a last layer starts at, and of all images together; the same to choose a variance by.
_VIEWS, _FEW_VIEWS, _ROWS = 6, 4, 6000


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
        x: (N, F), features; or (V, N, F), of several views of each example, whose probabilities are averaged.
        y: (N,), classes.
        classes: K.
        valid: features and classes to choose by; a fifth of `x` when None, which is then fitted again as a whole.
    """
    chosen, (inside, held) = (x, y), (None, None)
    if valid is None:
        inside, held = stratified_indices(y, 0.2)
        chosen, valid = (x[..., inside, :], y[inside]), (x[..., held, :], y[held])

    fit = partial(_fit_views, classes)
    losses = [_loss(fit(*chosen, penalty), *valid) for penalty in _PENALTIES]
    return fit(x, y, _PENALTIES[losses.index(min(losses))])


def _fit_views(classes: int, x: Tensor, y: Tensor, penalty: float) -> nn.Linear:
    """`fit_linear` on features (N, F), or (V, N, F) of views, which are penalised as one."""
    views = x.shape[:-2].numel()
    return fit_linear(x.flatten(0, -2), y.repeat(views), classes, views * penalty)


@torch.no_grad()
def _loss(layer: nn.Linear, x: Tensor, y: Tensor) -> float:
    """The negative log-likelihood of features (N, F), or (V, N, F) of views, whose probabilities are averaged."""
    log_probs = layer(x).log_softmax(-1)
    return float(nll_loss(log_mean_exp(log_probs.reshape(-1, *log_probs.shape[-2:])), y))


@torch.no_grad()
def fit_ridge(x: Tensor, y: Tensor, classes: int) -> nn.Linear:
    """A linear layer for many features of few examples: ridge regression whose outputs are calibrated logits.

    The regression is on 1 for the class and -1 for the others. Its L2 term, and what its outputs are multiplied with to
    be logits, are those that predict each example best from all others, which takes no further fit. The likelihood
    reckons with one wrong prediction more than there are: where all are right, probabilities would else be 1.

    Args:
        x: (N, F), features.
        y: (N,), classes.
        classes: K.

    Example:
        >>> x, y = torch.tensor([[-1.0], [-2.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1])
        >>> fit_ridge(x, y, 2)(x).argmax(1)
        tensor([0, 0, 1, 1])
    """
    x = x.double()
    mean, std = x.mean(0), x.std(0, correction=0).clamp_min(1e-6)
    scaled, targets = (x - mean) / std, 2 * one_hot(y, classes).double() - 1
    values, vectors = torch.linalg.eigh(scaled @ scaled.T)
    values, projected = values.clamp_min(0), vectors.T @ targets
    factors = torch.tensor(_LOGITS, dtype=torch.float64, device=x.device)[:, None, None]
    best, penalty, factor = math.inf, 0.0, 1.0
    for tried in _RIDGE_PENALTIES:
        share = values / (values + tried)
        leverage = vectors.square() @ share + 1 / len(y)
        left_out = (
            targets - (targets - targets.mean(0) - vectors @ (share[:, None] * projected)) / (1 - leverage)[:, None]
        )
        logits = (factors * left_out).transpose(1, 2)
        losses = cross_entropy(logits, y.expand(len(_LOGITS), -1), reduction="none", label_smoothing=1 / (len(y) + 2))
        loss, at = losses.mean(1).min(0)
        if float(loss) < best:
            best, penalty, factor = float(loss), tried, _LOGITS[int(at)]
    weight = scaled.T @ (vectors @ (projected / (values + penalty)[:, None])) / std[:, None] * factor
    layer = nn.Linear(x.shape[1], classes, device=x.device)
    layer.weight.copy_(weight.T)
    layer.bias.copy_(factor * targets.mean(0) - mean @ weight)
    return layer


@torch.no_grad()
def extract_features(trunk: nn.Module, x: Tensor, batch: int = 64) -> Tensor:
    """Features (N, F) of inputs (N, C, H, W), a batch at a time."""
    return torch.cat([trunk(part) for part in x.split(batch)])


def start_heads(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, parts: Sequence[tuple[Tensor, Tensor | None]],
    augment: Augmentation | None = None, *, taught: bool = False, variances: Sequence[float] = PRETRAINED_VAR_INITS,
) -> None:  # fmt: skip
    """Start the last layers of models on one pretrained network at the logistic regression on what they read.

    A classifier alone reads the images. One behind a spatial transformer reads its windows of them, which are drawn as
    they are at its start, of images that are changed as in training: several of each image where there are few. How far
    apart the windows of one image are at the start is chosen by cross-validation, as a training this short keeps it.

    Args:
        models: of one kind, whose classifiers are `BackboneClassifier`s; others are left alone.
        x: (M, C, H, W), all examples.
        y: (M,).
        parts: the training and validation examples of each model.
        augment: how images are changed in training.
        taught: models are taught to undo poses, so that their classifiers will read images as they are.
        variances: where the variance heads may start, before softplus, if they have one; fewer than two leave it.
    """
    found = [part for model in models for part in model.modules() if isinstance(part, BackboneClassifier)]
    if len(found) < len(models):
        return
    trunk, first = found[0].trunk.eval(), models[0].eval()
    if isinstance(first, TransformerModel) and not taught:  # all models have the same windows, until localizers learn
        views = max(1, min(_VIEWS, _ROWS // len(x)))
        if len(variances) > 1:
            rows = torch.cat([part for pair in parts for part in pair if part is not None]).unique()
            start = _choose_variance(first, trunk, found[0].classes, x, y, rows, variances)
            for model in models:
                if start is not None and isinstance(model, TransformerModel):
                    start_variance(model, start)
        read = partial(_read_windows, first, trunk, x, views)
        changed = read(augment, torch.cat([train for train, _ in parts]))
        if held := [valid for _, valid in parts if valid is not None]:
            as_given = read(augment if augment is not None and augment.in_use else None, torch.cat(held))
    else:
        changed = as_given = extract_features(trunk, x)
    for head, (train, valid) in zip(found, parts, strict=True):
        validation = None if valid is None else (as_given[..., valid, :], y[valid])
        with torch.enable_grad():
            layer = tune_linear(changed[..., train, :], y[train], head.classes, validation)
        head.head.load_state_dict(layer.state_dict())


@torch.no_grad()
def _choose_variance(
    model: TransformerModel, trunk: Trunk, classes: int, x: Tensor, y: Tensor, rows: Tensor, starts: Sequence[float]
) -> float | None:
    """The start of the variance whose windows predict held-out images best; None if there is no choice."""
    splits, losses = hold_out(y[rows]), dict[float, float]()
    for start in starts if splits else ():
        if start_variance(model, start):
            features = _read_windows(model, trunk, x, max(1, min(_FEW_VIEWS, _ROWS // len(x))), None, rows)[:, rows]
            with torch.enable_grad():
                layers = [_fit_views(classes, features[:, train], y[rows[train]], 1.0) for train, _ in splits]
            pairs = zip(layers, splits, strict=True)
            losses[start] = sum(_loss(layer, features[:, held], y[rows[held]]) for layer, (_, held) in pairs)
    return min(losses, key=losses.__getitem__) if losses else None


@torch.no_grad()
def _read_windows(
    model: TransformerModel, trunk: Trunk, x: Tensor, views: int, augment: Augmentation | None, rows: Tensor
) -> Tensor:
    """Features (V, M, F) of windows of images (M, C, H, W), with the same draws each time; zeros but for `rows`."""
    generator, wanted = torch.Generator().manual_seed(0), torch.zeros(len(x), dtype=torch.bool)
    wanted[rows] = True

    def read(part: Tensor, wanted: Tensor) -> Tensor:
        if augment is not None:
            part = augment(part, torch.rand(len(part), augment.width, generator=generator))
        windows = model.layer(part, generator=generator).warped[0]
        if not wanted.any():
            return windows.new_zeros(len(part), trunk.features)
        found: Tensor = trunk(windows[wanted])
        features = found.new_zeros(len(part), found.shape[-1])
        features[wanted] = found
        return features

    pairs = list(zip(x.split(64), wanted.split(64), strict=True))
    return torch.stack([torch.cat([read(*pair) for pair in pairs]) for _ in range(views)])
