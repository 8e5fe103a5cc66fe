"""Scores of classifiers, and the data that `fit` and `evaluate` take: the one way to score for every trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pstn._checks import require_floating
from pstn.nn.classifier import Prediction, TransformerModel, evaluating
from pstn.noise import Samples
from pstn.threads import suit_threads, using_threads
from pstn.uncertainty import calibration_error, require_labels

if TYPE_CHECKING:
    from pstn.data import Generated, Split

Batches: TypeAlias = "Split | Generated | tuple[Tensor, Tensor] | Iterable[Any]"
Answer = TypeVar("Answer")
# Numbers that the inputs scored at a time may hold: 500 images of 64 x 64 in colour.
_AT_ONCE = 1 << 23


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
