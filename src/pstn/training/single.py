"""One model and a loader: the shortest way to train, and to score, a classifier with or without a transformer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pstn._checks import require_floating, require_positive_int, require_positive_number
from pstn._deprecation import renamed
from pstn.defaults import (
    LOCALIZER_FACTOR,
    LR,
    WEIGHT_DECAY,
    default_batch_size,
    default_epochs,
    default_kl_weight,
)
from pstn.nn.classifier import Prediction, TransformerModel
from pstn.nn.modes import evaluating
from pstn.objective import LossFunction, TrainingLoss
from pstn.threads import suit_threads, using_threads
from pstn.training.program import report_parts
from pstn.training.progress import Bar
from pstn.training.recipe import KLWeight, kl_weight_at, progress_at
from pstn.training.watchdog import look_for_collapses
from pstn.uncertainty import accuracy, calibration_error, negative_log_likelihood

if TYPE_CHECKING:
    from pstn.data import Generated, Split

    Batches = Split | Generated | tuple[Tensor, Tensor] | Iterable[Any]

__all__ = ["Epoch", "Scores", "evaluate", "fit"]

Model = TypeVar("Model", bound=nn.Module)


class Epoch(NamedTuple):
    """Means over one pass through the data, as they were seen in training."""

    number: int
    """Counted from 1."""
    loss: float
    """What was minimised: nll + kl_weight * kl, unless another loss was given."""
    nll: float
    """Negative log-likelihood, in nats; NaN if the loss does not say."""
    kl: float
    """KL from the posterior to the prior, averaged over theta's parameters; 0 for a plain classifier or an STN, NaN if
    the loss does not say."""
    accuracy: float
    """Of single samples; NaN if there are no classes."""


class Scores(NamedTuple):
    """How good a classifier is, and how honest its probabilities."""

    accuracy: float
    """Share of right answers."""
    nll: float
    """Negative log-likelihood, in nats: the lower the better."""
    calibration_error: float
    """Expected calibration error with 15 bins: the lower the better."""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.1%}, NLL {self.nll:.3f}, calibration error {self.calibration_error:.3f}"


@renamed(localizer_lr="localizer_factor")
def fit(
    model: Model,
    data: Batches,
    *,
    epochs: int | None = None,
    lr: float = LR,
    localizer_factor: float = LOCALIZER_FACTOR,
    kl_weight: KLWeight | None = None,
    weight_decay: float = WEIGHT_DECAY,
    clip_norm: float | None = None,
    batch_size: int | None = None,
    loss: LossFunction | None = None,
    on_epoch: Callable[[Epoch], bool | None] | None = None,
) -> Model:
    """Train one model on batches, with Adam; the model is changed in place and returned in evaluation mode.

    Where a classifier is frozen (`pstn.wrap(..., freeze=True)`) only the localizer learns, and dropout and batch norm
    of the classifier stay in evaluation mode. Batches go to the device on which the model is. A terminal shows
    progress. For many models at once see `pstn.training.Population`, for many devices `pstn.training.LitPSTN`.

    Args:
        model: a PSTN, an STN, any module x (B, C, *size) -> logits (B, K), or with `loss` any module at all.
        data: a DataLoader, or anything else that gives batches (x, y) each time it is walked through; or a set of
            `pstn.data`, or a tuple of tensors (x, y), which is shuffled and cut into batches of `batch_size`.
        epochs: how often the data are walked through; chosen by the number of examples when None, from 20 to 300.
        lr: learning rate.
        localizer_factor: what it is multiplied with for the localizer and its heads, before a frozen classifier too: a
            localizer that learns too fast looks away before it has learned where to look.
        kl_weight: w, the weight of the KL term: the fewer the data, the larger; chosen by their number when None. Or a
            schedule, a function of the progress of training, from 0 to 1.
        weight_decay: Adam's L2 term.
        clip_norm: largest norm of the gradient; None does not clip.
        batch_size: for sets and tuples only; chosen by the number of examples when None, from 8 to 64.
        loss: what to minimise, (prediction, y) -> a scalar or a `pstn.Loss`; the negative ELBO when None. A function
            with a parameter `kl_weight` is given the weight.
        on_epoch: called with the figures of every epoch; returning True stops there.

    Raises:
        FloatingPointError: at a loss or gradient that is not finite, before it reaches the weights.

    Warns:
        UserWarning: in the end, if the transformer collapsed in one of the known ways, with what to try.

    Example:
        >>> backbone = pstn.nn.mnist_cnn()
        >>> loader = [(torch.rand(8, 1, 28, 28), torch.arange(8)) for _ in range(5)]
        >>> model = pstn.fit(pstn.wrap(backbone, in_channels=1), loader, epochs=2)
        >>> model(torch.rand(1, 1, 28, 28)).probs.shape
        torch.Size([1, 10])
    """
    data = _examples(data)
    examples, training_loss = _count(data), TrainingLoss(loss)
    kl_weight = training_loss.choose_kl_weight(kl_weight, default_kl_weight(examples))
    batch_size = default_batch_size(examples) if batch_size is None else require_positive_int("batch_size", batch_size)
    epochs = default_epochs(examples, batch_size) if epochs is None else require_positive_int("epochs", epochs)
    _check(model, data, epochs)
    optimiser = _optimiser(model, lr, localizer_factor, weight_decay)
    limit = math.inf if clip_norm is None else require_positive_number("clip_norm", clip_norm)
    length = _length(data, batch_size)
    kl_weight_at(kl_weight, 0.0)  # refuses a weight that cannot be, before any step
    model.train()
    with Bar(epochs) as bar, using_threads(None):
        for number in range(1, epochs + 1):
            total, count, batches = torch.zeros(4, dtype=torch.float64), 0, _batches(data, batch_size, shuffle=True)
            for at, (x, y) in enumerate(_on(_device(model), batches), start=1):
                if number == at == 1:
                    suit_threads(model, x)
                done = progress_at(number - 1, at - 1, epochs, length)
                output = model(x)
                made = training_loss(output, y, kl_weight_at(kl_weight, done), None)
                _step(model, optimiser, made.total, limit, f"epoch {number}, batch {at}")
                parts = report_parts(made, output, y)
                total += len(y) * torch.cat([made.total.detach()[None], parts]).cpu().double()
                count += len(y)
                bar.update(number - 1 + at / length, f"epoch {number}/{epochs}", {})
            if count == 0:
                raise ValueError("data holds no batches")
            figures = Epoch(number, *(total / count).tolist())
            bar.update(number, f"epoch {number}/{epochs}", _summary(figures))
            if on_epoch is not None and on_epoch(figures):
                break
    for problem in look_for_collapses(model.eval(), x[:64]):
        warnings.warn(problem, UserWarning, stacklevel=2)
    return model


def evaluate(
    model: nn.Module,
    data: Batches,
    *,
    samples: int | None = None,
    batch_size: int = 500,
    generator: torch.Generator | None = None,
) -> Scores:
    """Score a classifier, with or without a transformer: accuracy, negative log-likelihood, calibration error.

    Args:
        model: a PSTN, an STN, or any module x (B, C, *size) -> logits (B, K); its mode stays what it was.
        data: as in `fit`.
        samples: S, for a PSTN; its own `test_samples` when None.
        batch_size: for sets and tuples only.
        generator: where the randomness of a PSTN comes from; torch's global seed when None.

    Example:
        >>> scores = pstn.evaluate(pstn.nn.mnist_cnn(), pstn.data.load_digits("test"))
        >>> 0 < scores.accuracy < 0.5
        True
    """
    data = _examples(data)
    log_probs, labels = list[Tensor](), list[Tensor]()
    with evaluating(model), torch.no_grad(), using_threads(None):
        for x, y in _on(_device(model), _batches(data, batch_size, shuffle=False)):
            if not labels:
                suit_threads(model, x)
            transformer = isinstance(model, TransformerModel)
            output = model(x, samples, generator=generator) if transformer else model(x)
            log_probs.append(output.log_probs if isinstance(output, Prediction) else output.float().log_softmax(-1))
            labels.append(y)
    if not labels:
        raise ValueError("data holds no batches")
    p, y = torch.cat(log_probs), torch.cat(labels)
    return Scores(float(accuracy(p, y)), float(negative_log_likelihood(p, y)), float(calibration_error(p.exp(), y)))


def _summary(figures: Epoch) -> dict[str, str]:
    """What a terminal shows of an epoch: only what there is."""
    shown = {"loss": f"{figures.loss:.3f}", "KL": f"{figures.kl:.2f}", "accuracy": f"{figures.accuracy:.1%}"}
    return {name: words for name, words in shown.items() if "nan" not in words}


def _check(model: Any, data: Any, epochs: int) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if epochs > 1 and isinstance(data, Iterator):
        raise ValueError(
            f"data can be walked only once, got {type(data).__name__} for {epochs} epochs: pass a DataLoader, a list "
            "of batches, or a set of pstn.data"
        )


def _optimiser(model: nn.Module, lr: float, localizer_factor: float, weight_decay: float) -> torch.optim.Optimizer:
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("model has nothing to learn: all of its parameters are frozen")
    groups: list[Any]
    if isinstance(model, TransformerModel):
        groups = model.parameter_groups(lr, localizer_factor=localizer_factor)
    else:
        groups = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.Adam(groups, lr=require_positive_number("lr", lr), weight_decay=weight_decay)


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor, limit: float, where: str) -> None:
    """Take a step, unless the loss or its gradient is not finite."""
    optimiser.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
        raise FloatingPointError(
            f"the loss is {float(loss.detach()):g} and its gradient's norm {float(norm):g} in {where}; the weights are "
            "those before it. Look for missing or huge values in the data; try a smaller lr or localizer_factor, or "
            "clip_norm"
        )
    optimiser.step()


def _examples(data: Any) -> Any:
    """What was given, with a tuple of tensors as a set; what only looks like batches is refused."""
    from pstn.data import Split, Splits

    if isinstance(data, Splits):  # it can be walked, and that would train on the test part
        raise TypeError("data holds a training, a validation and a test part: pass one of them, such as data.train")
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        require_floating("x", data[0])
        # Targets that are no classes are no set of `pstn.data`, which counts them.
        data = TensorDataset(*data) if data[1].is_floating_point() else Split(*data, classes=())
    if isinstance(data, Split) and not data.x.is_floating_point():
        raise TypeError(
            f"data must hold floating-point numbers, got {data.x.dtype}: pass data.as_float(), or data.as_float(mean, "
            "std) with those that the model knows"
        )
    return data


def _batches(data: Any, batch_size: int, *, shuffle: bool) -> Iterable[Any]:
    """The batches of one walk through the data."""
    if isinstance(data, TensorDataset):
        order = torch.randperm(len(data)) if shuffle else torch.arange(len(data))
        return (data[index] for index in order.split(batch_size))
    if not hasattr(data, "batch"):
        return data
    from pstn.data import batches

    return batches(data, batch_size, shuffle=shuffle)


def _count(data: Any) -> int | None:
    """How many examples there are, where the data can say without being walked through."""
    if isinstance(data, (list, tuple)):
        return sum(len(batch[0]) for batch in data if isinstance(batch, (list, tuple)) and len(batch)) or None
    whole = hasattr(data, "batch") or isinstance(data, TensorDataset)
    held = getattr(data, "dataset", data if whole else None)
    return len(held) or None if isinstance(held, Sized) else None


def _length(data: Any, batch_size: int) -> float:
    """How many batches a walk has; without end where the data cannot say."""
    if not isinstance(data, Sized):
        return math.inf
    whole = hasattr(data, "batch") or isinstance(data, TensorDataset)
    return max(1, -(-len(data) // batch_size) if whole else len(data))


def _on(device: torch.device, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (x, y) on the device."""
    for batch in batches:
        if hasattr(batch, "x") and hasattr(batch, "y"):
            batch = (batch.x, batch.y)
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError(
                f"data must hold batches (x, y), got {type(batch).__name__}: pass a DataLoader, a list of such "
                "batches, a tuple of tensors (x, y), or a set of pstn.data"
            )
        for name, part in zip("xy", batch, strict=False):
            if not isinstance(part, Tensor):
                hint = "" if name == "x" else ": the number of its class for each example, counted from 0"
                raise TypeError(f"{name} of a batch must be a torch.Tensor, got {type(part).__name__}{hint}")
        if batch[1].dim() == 0:
            raise TypeError("data holds single examples, not batches: wrap it in a torch.utils.data.DataLoader")
        yield batch[0].to(device), batch[1].to(device)


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
