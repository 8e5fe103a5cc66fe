"""Cheaper predictions: a student that gives the averaged prediction of many samples in one pass."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn.defaults import LR, WEIGHT_DECAY
from pstn.distributions import AtMode
from pstn.nn.classifier import PSTN, STN, evaluating
from pstn.nn.layer import SpatialTransformer
from pstn.nn.wrap import Frozen
from pstn.threads import suit_threads, using_threads
from pstn.training.evaluate import read_batches, require_data
from pstn.training.fit import fit

if TYPE_CHECKING:
    from pstn.noise import Samples
    from pstn.training.evaluate import Batches


def distil(
    model: PSTN,
    data: Batches | Tensor,
    *,
    samples: Samples | None = None,
    epochs: int | None = None,
    lr: float = LR,
    weight_decay: float = WEIGHT_DECAY,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> STN:
    """Train a student that gives the averaged prediction of a PSTN in one pass, at the mode of its posterior.

    The student has the same localizer, which is not changed, and a classifier that starts as the model's. That learns
    to answer for any one sample of an input what the model answers on average over S of them: its cross-entropy with
    the model's averaged probabilities is minimised. Labels are not used, and the more inputs there are, the better.

    Args:
        model: a trained PSTN, with its temperature; it stays as it is.
        data: inputs as in `fit`, with or without labels. All of them are held in memory.
        samples: S of the averaged prediction; the model's `test_samples` when None.
        epochs: passes over the data; chosen by the number of examples when None.
        lr: learning rate of the classifier.
        weight_decay: Adam's L2 term.
        batch_size: chosen by the number of examples when None.
        generator: where the randomness of the averaged predictions comes from; torch's global seed when None.
        progress: whether a terminal shows how far it is.

    Returns:
        The student, in evaluation mode: it is saved, exported and evaluated as any other STN.

    Example:
        >>> digits = pstn.data.load_digits("test")
        >>> student = pstn.distil(pstn.nn.mnist_pstn(), digits.x[:16], samples=2, epochs=1)
        >>> student(digits.x[:3]).sample_log_probs.shape
        torch.Size([1, 3, 10])
    """
    if not isinstance(model, PSTN):
        raise TypeError(f"model must be a PSTN, which averages over samples, got {type(model).__name__}")
    inputs, answers = list[Tensor](), list[Tensor]()
    with evaluating(model), torch.no_grad(), using_threads(None):
        for x, _ in read_batches(model, require_data(data, labels=False), 500, shuffle=False, labels=False):
            if not inputs:
                suit_threads(model, x)
            inputs.append(x)
            answers.append(model(x, samples, generator=generator).probs)
    if not inputs:
        raise ValueError("data holds no batches")
    layer = copy.deepcopy(model.layer).requires_grad_(False).eval()
    classifier = model.classifier.module if isinstance(model.classifier, Frozen) else model.classifier
    classifier = copy.deepcopy(classifier).requires_grad_(True)
    fit(
        _OnSamples(layer, classifier), (torch.cat(inputs), torch.cat(answers)), loss=F.cross_entropy, epochs=epochs,
        lr=lr, weight_decay=weight_decay, batch_size=batch_size, progress=progress,
    )  # fmt: skip
    layer.posterior, layer.noise_width = AtMode(layer.posterior), 0
    student = STN(layer, classifier)
    student.about = model.about
    return student.eval()


@final
class _OnSamples(nn.Module):
    """A classifier that reads one sample of each input; the layer is no part of it, and so is not trained."""

    def __init__(self, layer: SpatialTransformer, classifier: nn.Module) -> None:
        super().__init__()
        self._held, self.classifier = (layer,), classifier

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            warped = self._held[0](x).warped[0]
        logits: Tensor = self.classifier(warped).float()
        return logits
