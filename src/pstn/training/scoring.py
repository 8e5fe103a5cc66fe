"""How well the models of a group do: each on validation examples of its own, or all on the same examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import vmap

from pstn.nn.classifier import TransformerModel
from pstn.training.group import Group
from pstn.training.noise import stream_keys, uniform
from pstn.uncertainty import calibration_error

__all__ = ["Scores", "score_members", "score_together"]

Scores = dict[str, list[float]]
"""{"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; {"loss": [...]} where there are no classes."""


# How many numbers all inputs of all models under all samples may hold at a time. A network's activations take some tens
# of times the memory of its inputs: stacks of many models would otherwise not fit.
_INPUT = {"cpu": 1 << 22, "cuda": 1 << 27}


def score_members(group: Group, held: dict[str, Tensor], samples: int | None, batch: int) -> Scores:
    """Each model on its own validation examples, changed as training changes them, by a draw that stays the same.

    Args:
        group: the models.
        held: their weights, as `Group.tensors` names them.
        samples: S; the models' own `test_samples` when None.
        batch: examples at a time, at most; fewer where all models together would take too much memory.
    """
    batch = _batch(group, samples, batch)
    constants, keys = group.constants, _keys(group, "evaluate")
    subsets = [m.valid for m in group.members if m.valid is not None]
    if len(subsets) < len(group.members):
        raise ValueError("valid must be given for every member to validate")
    longest = max(len(s) for s in subsets)
    index = torch.stack([torch.cat([s, s[:1].expand(longest - len(s))]) for s in subsets]).to(keys.device)
    classes, parts = not constants.y.is_floating_point(), []
    for first in range(0, longest, batch):
        at = index[:, first : first + batch]
        x = _changed(group, constants.x[at], first)
        if classes:
            parts.append(group.log_probs(x, keys, first, samples, held, shared=False))
        else:
            parts.append(group.losses(x, constants.y[at], keys, first, samples, held, shared=False))
    log_probs = torch.cat(parts, dim=1)
    if not classes:
        return {"loss": [float(losses[: len(s)].mean()) for losses, s in zip(log_probs, subsets, strict=True)]}
    return _scores([(log_probs[k, : len(s)], constants.y[s.to(keys.device)]) for k, s in enumerate(subsets)])


def score_together(
    group: Group, held: dict[str, Tensor], x: Tensor, y: Tensor, samples: int | None, batch: int
) -> Scores:
    """All models on the same examples `x` (M, C, *size), `y` (M,), taken as they are."""
    keys, batch = _keys(group, "evaluate"), _batch(group, samples, batch)
    if y.is_floating_point():
        losses = [
            group.losses(x[first : first + batch], y[first : first + batch], keys, first, samples, held, shared=True)
            for first in range(0, len(x), batch)
        ]
        return {"loss": torch.cat(losses, dim=1).mean(1).tolist()}
    parts = [
        group.log_probs(x[first : first + batch], keys, first, samples, held, shared=True)
        for first in range(0, len(x), batch)
    ]
    return _scores([(log_probs, y) for log_probs in torch.cat(parts, dim=1)])


def _batch(group: Group, samples: int | None, most: int) -> int:
    module = group.template.module
    drawn = module.test_samples if isinstance(module, TransformerModel) else 1
    example = math.prod(group.template.example) * len(group.members) * (samples or drawn)
    return max(1, min(most, _INPUT.get(group.state.rows.device.type, _INPUT["cpu"]) // example))


def _keys(group: Group, stream: str) -> Tensor:
    return stream_keys([m.seed for m in group.members], stream, device=group.state.rows.device)


def _changed(group: Group, x: Tensor, first: int) -> Tensor:
    """Validation examples x (N, b, C, *size), the first of them at place `first`, under the recipe's augmentation."""
    augment = group.recipe.augment
    if augment is None:
        return x
    u = uniform(_keys(group, "validate"), first, x.shape[1], (augment.width,))
    return vmap(augment)(x, u.transpose(0, 1))


def _scores(answers: list[tuple[Tensor, Tensor]]) -> Scores:
    scores: Scores = {"nll": [], "accuracy": [], "ece": []}
    for log_probs, y in answers:
        scores["nll"].append(float(-log_probs.gather(1, y[:, None]).mean()))
        scores["accuracy"].append(float((log_probs.argmax(1) == y).double().mean()))
        finite = bool(torch.isfinite(log_probs).all())
        scores["ece"].append(float(calibration_error(log_probs.exp(), y)) if finite else math.nan)
    return scores
