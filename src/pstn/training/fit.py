"""One model and its data: the shortest way to train a classifier with or without a transformer, or a student of one."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sized
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeVar, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pstn._checks import require_choice, require_nonnegative_int, require_positive_number, skip_value_checks
from pstn._deprecation import renamed
from pstn.defaults import LR, RESTARTS, WEIGHT_DECAY, default_kl_weight
from pstn.distributions import AtMode
from pstn.nn.classifier import PSTN, STN, TransformerModel, evaluating
from pstn.nn.layer import SpatialTransformer
from pstn.nn.wrap import Frozen
from pstn.noise import Samples
from pstn.objective import LossFunction
from pstn.threads import suit_threads, using_threads
from pstn.training.diagnose import Watch, collapses
from pstn.training.evaluate import Batches, device_of, is_set, read_batches, require_data, shape_of
from pstn.training.population.recipe import (
    KLWeight,
    Localizing,
    LRSchedule,
    Member,
    Recipe,
    Teaching,
    kl_weight_at,
    progress_at,
)
from pstn.training.population.step import report_parts
from pstn.training.population.trainer import Population
from pstn.training.progress import Bar

if TYPE_CHECKING:
    from pstn.data.augment import RandomTransform

Model = TypeVar("Model", bound=nn.Module)

# Steps whose figures are read at once: each read waits for the device. On a CPU there is nothing to wait for.
_READ_EVERY = {"cuda": 50}
# Tracing and capturing take a second or two, in which some hundred steps are taken without.
_WORTH_CAPTURING = 500


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


@renamed(localizer_lr="localizer_factor")
def fit(
    model: Model,
    data: Batches,
    *,
    epochs: int | None = None,
    lr: float = LR,
    localizer_factor: float | None = None,
    kl_weight: KLWeight | Literal["auto"] | None = None,
    weight_decay: float = WEIGHT_DECAY,
    clip_norm: float | None = None,
    batch_size: int | None = None,
    loss: LossFunction | None = None,
    teach: RandomTransform | None = None,
    teach_weight: float | None = None,
    lr_schedule: LRSchedule | None = None,
    on_epoch: Callable[[Epoch], bool | None] | None = None,
    progress: bool = True,
    restarts: int = RESTARTS,
    capture: bool | None = None,
) -> Model:
    """Train one model on batches, with Adam; the model is changed in place and returned in evaluation mode.

    Where a classifier is frozen (`pstn.wrap(..., freeze=True)`) only the localizer learns, and dropout and batch norm
    of the classifier stay in evaluation mode. Batches go to the device on which the model is. For many
    models at once see `pstn.training.Population`, for many devices `pstn.training.LitPSTN`.

    Args:
        model: a PSTN, an STN, any module x (B, C, *size) -> logits (B, K), or with `loss` any module at all.
        data: a DataLoader, or anything else that yields batches (x, y) on every pass; or a set of
            `pstn.data`, or a tuple of tensors (x, y), which is shuffled and cut into batches of `batch_size`.
        epochs: passes over the data; chosen by the number of examples when None, from 20 to 300.
        lr: learning rate.
        localizer_factor: what it is multiplied with for the localizer and its heads: a localizer that learns too fast
            memorises few examples, or warps its inputs away before the classifier has learned anything. When None,
            0.008 beside a classifier that learns, and 0.1 where nothing else learns.
        kl_weight: w, the weight of the KL term: the fewer the data, the larger; chosen by their number when None. Or a
            schedule, a function of the progress of training, from 0 to 1. "auto" trains copies of a P-STN first, with
            w, the localizer's factor and the posterior's alpha around their defaults, and takes what is best on
            held-out examples; `model.tuned` then says what was tried, and why it was chosen.
        weight_decay: Adam's L2 term.
        clip_norm: largest norm of the gradient; None does not clip.
        batch_size: for sets and tuples only; chosen by the number of examples when None, from 8 to 64.
        loss: what to minimise, (prediction, y) -> a scalar or a `pstn.Loss`; the negative ELBO when None. A function
            with a parameter `kl_weight` is given the weight.
        teach: a random transform such as `pstn.data.RandomRotation()`, by which the inputs, which are aligned, are
            warped afresh in every step; the model learns the posterior of what undoes it. No labels are used: data may
            be a tensor x, or batches of it. Only the layer learns, at the rate `lr` without `localizer_factor`, and
            the classifier is not called.
        teach_weight: learn from labels too: what that loss is multiplied with before it is added to `loss`.
        lr_schedule: what learning rates are multiplied with, as a function of the progress of training from 0 to 1,
            such as `pstn.training.one_cycle`; needs data of a known length to change within an epoch.
        on_epoch: called with the figures of every epoch; returning True stops there.
        progress: whether a terminal shows how far it is.
        restarts: how often a model with a transformer that ends at chance, or whose classifier is shown nothing any
            more, is put back to where it started and trained again, each time with a localizer ten times slower, and
            with a logarithmic scale or a smaller start of the variance; `on_epoch` then counts from 1 again. Where the
            pose alone is taught: one whose loss ends at that of an even density, or is not finite, with a wide start
            of the variance, or if it has that already, with a tenth of `lr`.
        capture: take the steps of a `Population` of one model: traced once, and replayed as CUDA graphs on a GPU. The
            last incomplete batch of an epoch is then left out, and what a model or a loss does besides operations on
            tensors, such as counting its calls, happens once. None does so on CUDA for a set or a tuple of tensors and
            500 steps or more, without a `loss` of your own, autocast or hooks, unless the model refuses.

    Raises:
        FloatingPointError: at a loss or gradient that is not finite, before it reaches the weights; where the pose
            alone is taught, after all restarts. On CUDA steps are read in blocks: up to 49 more are taken, which change
            no weight.

    Warns:
        UserWarning: at once, if training is started again, and why; in the end, if it ended at chance, or if the
            transformer collapsed in one of the known ways, with what to try.

    Example:
        >>> backbone = pstn.nn.mnist_cnn()
        >>> loader = [(torch.rand(8, 1, 28, 28), torch.arange(8)) for _ in range(5)]
        >>> model = pstn.fit(pstn.wrap(backbone, in_channels=1), loader, epochs=2)
        >>> model(torch.rand(1, 1, 28, 28)).probs.shape
        torch.Size([1, 10])

        A model that learns to turn digits upright, from upright ones without labels:

        >>> digits = pstn.data.load_digits("train").x
        >>> model = pstn.fit(pstn.nn.mnist_pstn(), digits, teach=pstn.data.RandomRotation(), epochs=1)
    """
    given = dict(locals())  # for another start
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    options: dict[str, Any] = {"loss": loss, "teach": teach, "teach_weight": teach_weight, "lr_schedule": lr_schedule}
    options |= {"epochs": epochs, "batch_size": batch_size, "clip_norm": clip_norm}
    recipe = Recipe(**options)
    training_loss = recipe.training_loss()
    labels = not training_loss.only_teaches
    data = require_data(data, labels=labels)
    examples = _count_examples(data)
    recipe = recipe.for_examples(examples, shape_of(data)[1:])
    if recipe.epochs > 1 and isinstance(data, Iterator):
        raise ValueError(
            f"data must last {recipe.epochs} passes, got {type(data).__name__}: pass a DataLoader or a list"
        )
    teaching = None if teach is None else Teaching(teach, model)
    default = default_kl_weight(examples) if training_loss.takes_kl_weight else None
    asked = training_loss.choose_kl_weight(kl_weight, default)
    if search := isinstance(asked, str):
        require_choice("kl_weight (unless it is a number or a schedule)", asked, ("auto",))
    member = Member(0, lr, localizer_factor, None if search else asked, weight_decay)
    if search:
        member = replace(member, seed=int(torch.randint(2**31, ())))
        asked, localizer_factor = _tune(model, data, member, recipe, say=progress)
        member = replace(member, kl_weight=asked, localizer_factor=localizer_factor)
    require_nonnegative_int("restarts", restarts)
    watch, failure = Watch(model, None if labels else teaching), None
    model.train()
    with watch, Bar(recipe.epochs, shown=progress) as bar, using_threads(None):
        population = _make_population(model, data, member, recipe, capture)
        if population is None:
            taken = _take_steps(model, data, member, recipe, teaching, watch, bar)
        else:
            taken = _replay_steps(model, population, watch, each=on_epoch is not None)
        for epoch, x in taken:
            shown = {"loss": f"{epoch.loss:.3f}", "KL": f"{epoch.kl:.2f}", "accuracy": f"{epoch.accuracy:.1%}"}
            known = {name: words for name, words in shown.items() if "nan" not in words}
            bar.update(epoch.number, f"epoch {epoch.number}/{recipe.epochs}", known)
            stop = on_epoch is not None and on_epoch(epoch)
            failure = watch.judge(epoch.nll if labels else epoch.loss, x, last=epoch.number == recipe.epochs)
            if stop or failure:
                break
        taken.close()
    failure = f"The pose was not learned: {watch.error}." if watch.error else failure
    if failure and restarts and not isinstance(data, Iterator) and (again := watch.start_again(lr, localizer_factor)):
        change, lr, localizer_factor = again
        warnings.warn(f"{failure} Training starts again with {change}.", UserWarning, stacklevel=3)
        careful = {"lr": lr, "localizer_factor": localizer_factor, "restarts": restarts - 1}
        return cast(Model, fit(**{**given, **careful, "data": data, "kl_weight": asked}))
    if watch.error:
        raise watch.error
    if failure:
        warnings.warn(f"Training failed. {failure}", UserWarning, stacklevel=3)
    model.eval()
    for problem in collapses(model, x) if labels else ():  # a pose that is taught may well be certain
        warnings.warn(problem, UserWarning, stacklevel=3)
    return model


def _take_steps(
    model: nn.Module, data: Any, member: Member, recipe: Recipe, teaching: Teaching | None, watch: Watch, bar: Bar
) -> Generator[tuple[Epoch, Tensor]]:
    """Train step by step; yield the figures of each epoch and a few of its inputs."""
    loss = recipe.training_loss()
    learner = Localizing(model) if loss.only_teaches else model
    device, epochs, batch_size = device_of(model), recipe.epochs, recipe.batch_size
    block = _READ_EVERY.get(device.type, 1)
    factor = member.localizer_factor if teaching is None else 1.0
    optimiser = make_optimiser(learner, member.lr, factor, member.weight_decay, fused=True)
    rates, learned = [group["lr"] for group in optimiser.param_groups], list(learner.parameters())
    limit = math.inf if recipe.clip_norm is None else recipe.clip_norm
    length = max(1, -(-len(data) // batch_size) if is_set(data) else len(data)) if isinstance(data, Sized) else math.inf
    broken = torch.zeros((), dtype=torch.bool, device=device)
    for number in range(1, epochs + 1):
        total, count, unread = torch.zeros(4, dtype=torch.float64), 0, list[tuple[int, Tensor]]()

        def read(unread: list[tuple[int, Tensor]], after: int, number: int = number) -> Tensor:
            """The sums of (loss, nll, kl, accuracy) over the examples of these batches, `after` others."""
            figures = torch.stack([step for _, step in unread]).cpu().double()
            for at, (value, norm) in enumerate(figures[:, :2].tolist(), start=after + 1):
                if not (math.isfinite(value) and math.isfinite(norm)):
                    _refuse_step(value, norm, number, at)
            sizes = torch.tensor([size for size, _ in unread], dtype=torch.float64)
            return (sizes[:, None] * figures[:, [0, 2, 3, 4]]).sum(0)

        # Each check of values waits for the device: there they are made in the first epoch alone.
        with nullcontext() if block == 1 or number == 1 else skip_value_checks():
            batches = read_batches(model, data, batch_size, shuffle=True, labels=not loss.only_teaches)
            for at, (x, y) in enumerate(batches, start=1):
                if number == at == 1:
                    suit_threads(learner, x)
                    if teaching is not None:
                        teaching.check(x)
                theta, done = None, progress_at(number - 1, at - 1, epochs, length)
                if teaching is not None:
                    x, theta = teaching(x, torch.rand(len(x), teaching.width, device=x.device))
                if recipe.lr_schedule is not None:
                    for group, rate in zip(optimiser.param_groups, rates, strict=True):
                        group["lr"] = rate * recipe.lr_schedule(done)
                output = learner(x)
                made = loss(output, y, kl_weight_at(member.kl_weight, done), None, theta)
                watch.see(y)
                optimiser.zero_grad()
                made.total.backward()
                norm = nn.utils.clip_grad_norm_(learned, limit)
                judged = torch.cat([made.total.detach()[None], norm[None]])
                unread.append((len(x), torch.cat([judged, report_parts(made, output, y)])))
                count += len(x)
                if block == 1:
                    total, unread = total + read(unread, at - 1), []
                else:  # the optimiser is told not to change the weights any more
                    broken = broken | ~torch.isfinite(judged).all()
                    optimiser.found_inf = broken.float()  # type: ignore[attr-defined]
                optimiser.step()
                if len(unread) == block:
                    total, unread = total + read(unread, at - block), []
                bar.update(number - 1 + at / length, f"epoch {number}/{epochs}", {})
        if count == 0:
            raise ValueError("data holds no batches")
        if unread:
            total = total + read(unread, at - len(unread))
        yield Epoch(number, *(total / count).tolist()), x[:64]


def _replay_steps(
    model: nn.Module, population: Population, watch: Watch, *, each: bool
) -> Generator[tuple[Epoch, Tensor]]:
    """Train as a population of one; the model is brought up to date after `each` epoch, or after several short ones."""
    data, steps, epochs = population.stacks[0].constants.data, population.steps_per_epoch, population.recipe.epochs
    together = 1 if each else max(1, _WORTH_CAPTURING // steps)
    try:
        for first in range(0, epochs, together):
            watch.see(data.get("y"), steps)
            progress = population.fit(lambda _: None, until=(first + together) * steps)  # fit itself says what failed
            population.load_into(model)
            for failure in progress.failures:
                _refuse_step(failure.loss, failure.grad_norm, failure.step // steps + 1, failure.step % steps + 1)
            for number, means in enumerate(progress.history[first:], start=first + 1):
                if number > first + 1:
                    watch.see(data.get("y"), steps)
                figures = [means.get(name, [math.nan])[0] for name in ("loss", "nll", "kl", "accuracy")]
                yield Epoch(number, *figures), data["x"][:64]
    finally:
        population.close()


def _make_population(
    model: nn.Module, data: Any, member: Member, recipe: Recipe, capture: bool | None
) -> Population | None:
    """The model as a population of one that has taken no step but is ready to; None if it is to be trained eagerly."""
    steps = len(data) // recipe.batch_size * recipe.epochs if is_set(data) else 0
    if not capture and (capture is False or steps < _WORTH_CAPTURING or recipe.loss is not None or _observed(model)):
        return None
    try:
        if not hasattr(data, "x") and not isinstance(data, TensorDataset):
            raise ValueError("capture must be left out for data that are not a set or a tuple of tensors")
        x, y = data.tensors[:2] if isinstance(data, TensorDataset) else (data.x, data.y)
        # Any loss that is finite will do, and products are as precise as torch is told.
        recipe = replace(recipe, loss_limit=torch.finfo(torch.float32).max, precision=None)
        member = replace(member, seed=int(torch.randint(2**31, ())))
        population = Population([model], x, y, [member], recipe, device=device_of(model), workers=False)
        population.prepare()
    except Exception:
        if capture:
            raise
        return None  # as it would have been trained elsewhere; what is wrong with it will be said there
    return population


def _observed(model: nn.Module) -> bool:
    """Whether a model is not on CUDA, or a replayed step would not do all that one step after another does."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    parameters = list(model.parameters())
    return (
        device_of(model).type != "cuda"
        or torch.is_autocast_enabled("cuda")
        or any(getattr(part, name) for part in model.modules() for name in hooks)
        or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)
        or any(isinstance(p, nn.parameter.UninitializedParameter) or p.dtype != torch.float32 for p in parameters)
    )


def _refuse_step(loss: float, norm: float, epoch: int, batch: int) -> NoReturn:
    found = f"the loss is {loss:g} and its gradient's norm {norm:g} in epoch {epoch}, batch {batch}"
    raise FloatingPointError(f"{found}: look at the data, or try a smaller lr, or clip_norm")


def _tune(model: nn.Module, data: Any, member: Member, recipe: Recipe, *, say: bool) -> tuple[float, float]:
    """Search on copies of the model, whose posterior is given the alpha that is best; returns w and the factor."""
    from pstn.training.tune import hold_out, set_alpha, tune

    if not (isinstance(model, TransformerModel) and model.layer.probabilistic):
        raise ValueError(f"kl_weight must be left out for a model without a posterior, got 'auto' for {model!r:.80}")
    start = copy.deepcopy(model)
    if isinstance(start, PSTN):  # chunks are a matter of one model's memory, and a population refuses them
        start.chunk_size = None
    x, y = (torch.cat(part) for part in zip(*read_batches(model, data, recipe.batch_size, shuffle=False), strict=True))
    tuned = tune(lambda seed: start, x, y, member, recipe, hold_out(y, seed=member.seed))
    set_alpha(model, tuned.best.alpha)
    model.tuned = tuned  # type: ignore[assignment]  # torch's types know of tensors and modules alone
    if say:
        print(tuned, file=sys.stderr)
    return tuned.best.kl_weight, tuned.best.localizer_factor


def make_optimiser(
    model: nn.Module, lr: float, localizer_factor: float | None, weight_decay: float, *, fused: bool | None = None
) -> torch.optim.Adam:
    """Adam on what is not frozen, with a learning rate of its own for the localizer and its heads.

    Args:
        model: a PSTN, an STN or any other module.
        lr: learning rate.
        localizer_factor: what it is multiplied with for the localizer and its heads; None as in `fit`.
        weight_decay: the L2 term.
        fused: as for `torch.optim.Adam`.

    Example:
        >>> [group["lr"] for group in make_optimiser(pstn.nn.mnist_stn(), 1e-2, 0.1, 0.0).param_groups]
        [0.001, 0.01]
    """
    groups: list[Any] = [p for p in model.parameters() if p.requires_grad]
    if not groups:
        raise ValueError("model has nothing to learn: all of its parameters are frozen")
    if isinstance(model, TransformerModel):
        groups = model.parameter_groups(lr, localizer_factor=localizer_factor)
    return torch.optim.Adam(groups, lr=require_positive_number("lr", lr), weight_decay=weight_decay, fused=fused)


def _count_examples(data: Any) -> int | None:
    """How many examples there are, where the data can say without a pass over them."""
    if isinstance(data, (list, tuple)):
        return sum(len(batch[0]) for batch in data if isinstance(batch, (list, tuple)) and len(batch)) or None
    held = getattr(data, "dataset", data if is_set(data) else None)
    return len(held) or None if isinstance(held, Sized) else None


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
