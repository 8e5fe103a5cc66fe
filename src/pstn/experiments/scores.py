"""What is measured on a trained model."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pstn._checks import require_finite
from pstn.data.split import Sized
from pstn.distributions import Posterior
from pstn.nn import Prediction, TransformerClassifier
from pstn.training.population.noise import stream_keys, uniform
from pstn.uncertainty import calibration_error, negative_log_likelihood, reliability_curve

__all__ = ["Answers", "Found", "as_pixels", "classify", "predict", "reliability", "rounded"]

Found = tuple[dict[str, float], dict[str, Any]]
"""Metrics and what the figures draw."""


class Answers(NamedTuple):
    """What a model says to a test set."""

    log_probs: Tensor
    """(N, K)."""
    y: Tensor
    """(N,), the truth."""
    loc: Tensor | None
    """(N, D), the mean of theta; None for a model without a transformer."""
    beta: Tensor | None
    """(N, D), where the posterior has one."""
    truth: Tensor | None
    """(N, D), how each example was made, where that is known."""


def predict(
    model: nn.Module,
    test: Sized,
    *,
    seed: int = 0,
    samples: int | None = None,
    batch: int = 1000,
) -> Answers:
    """Ask a model about every test example.

    Args:
        model: a classifier, or an STN or P-STN; left as it is.
        test: the examples, on the device to use.
        seed: of the posterior's samples. Noise goes by an example's place in the test set: neither the size of the
            batches nor the device changes it.
        samples: S; the model's own `test_samples` when None.
        batch: examples at a time.

    Raises:
        NotFiniteError: when the model's answers are not finite: it diverged.

    Example:
        >>> digits = pstn.data.load("digits").test.take(range(20))
        >>> predict(pstn.nn.mnist_pstn(), digits).log_probs.shape
        torch.Size([20, 10])
    """
    index = torch.arange(len(test))
    device = test.batch(index[:1]).x.device
    model = copy.deepcopy(model).to(device).eval()
    keys = stream_keys([seed], "evaluate", device=device)
    parts: list[Answers] = []
    with torch.no_grad():
        for at in index.split(batch):
            examples = test.batch(at)
            loc = beta = None
            if isinstance(model, TransformerClassifier):
                shape = (samples or model.test_samples, 1, model.layer.noise_width)
                each = uniform(keys, int(at[0]), len(at), shape, model.layer.sampling)  # (b, 1, S, 1, D)
                noise = each[:, 0, :, 0].transpose(0, 1) if model.layer.probabilistic else None
                answer: Prediction = model(examples.x, noise=noise)
                log_probs, loc = answer.log_probs, answer.posterior.mode
                if isinstance(answer.posterior, Posterior):
                    beta = answer.posterior.beta
            else:
                log_probs = model(examples.x).float().log_softmax(-1)
                require_finite("log_probs", log_probs, "the classifier returned them")
            parts.append(Answers(log_probs, examples.y, loc, beta, examples.theta))
    columns: list[Any] = [None if c[0] is None else torch.cat(c) for c in zip(*parts, strict=True)]
    return Answers(*columns)


def classify(answers: Answers) -> dict[str, float]:
    """Accuracy, negative log-likelihood, and calibration error in 15 and in 10 bins, as fractions."""
    probs = answers.log_probs.exp()
    return {
        "accuracy": float((answers.log_probs.argmax(1) == answers.y).double().mean()),
        "nll": float(negative_log_likelihood(answers.log_probs, answers.y)),
        "ece": float(calibration_error(probs, answers.y)),
        "ece10": float(calibration_error(probs, answers.y, bins=10)),
    }


def reliability(answers: Answers) -> dict[str, list[Any]]:
    """Confidence, accuracy and number of predictions in 15 bins; empty bins hold null."""
    curve = reliability_curve(answers.log_probs.exp(), answers.y)
    count = (curve.weight * len(answers.y)).round().long().tolist()

    def column(values: Tensor) -> list[float | None]:
        return [v if n else None for v, n in zip(rounded(values), count, strict=True)]

    return {"confidence": column(curve.confidence), "accuracy": column(curve.accuracy), "count": count}


def rounded(values: Tensor, digits: int = 4) -> list[Any]:
    """A tensor as nested lists of short numbers, for result files."""
    return torch.round(values.detach().double().cpu(), decimals=digits).tolist()


def as_pixels(images: Tensor) -> list[Any]:
    """Images with pixels from 0 to 1 as whole numbers from 0 to 255."""
    return (images.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu().tolist()
